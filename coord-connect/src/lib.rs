#![doc = include_str!("../README.md")]

mod builtin;
mod redact;
mod registry;

use std::sync::Arc;

pub use coord_core;
use coord_core::{Backend, BackendError, Namespace};

pub use redact::redact;
pub use registry::{Factory, Registry};

/// Opens a handle on a namespace of the store that a URL names, with the backends that were compiled in.
///
/// The same as [`Registry::with_builtin`] and [`Registry::connect`].
///
/// # Errors
/// [`Config`](coord_core::ErrorKind::Config) if the URL names no store that is compiled in, or has a parameter that the backend does not
/// know; and whatever the backend says when it opens the store.
///
/// # Panics
/// As the backend does; outside of a tokio runtime most do.
pub async fn connect(url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError> {
    Registry::with_builtin().connect(url, namespace).await
}
