//! The harness of whatever a URL names.

use std::sync::Arc;

use async_trait::async_trait;
use coord_connect::Registry;
use coord_core::{Backend, BackendError, ErrorKind, Namespace, Operation};

use crate::harness::Harness;

/// Where the binary finds its URL when it is started again as a worker.
const VARIABLE: &str = "COORD_SUITE_URL";

/// A store that a URL names, opened with one of the backends that were compiled in. Nothing can be done to it but to use it.
pub struct UrlHarness {
    registry: Registry,
    name: String,
    url: String,
}

impl UrlHarness {
    /// The store behind this URL. Nothing is connected yet.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) if no backend that was compiled in opens such URLs. The URL is not repeated in it.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let registry = Registry::with_builtin();
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        if !registry.schemes().any(|known| known == scheme) {
            let known: Vec<String> = registry.schemes().map(|scheme| format!("`{scheme}:`")).collect();
            return Err(BackendError::new(
                ErrorKind::Config,
                "contract-suite",
                Operation::Connect,
                format!(
                    "no backend of this program opens this URL; it knows {}. The cargo features redis, etcd and postgres \
                     compile these stores in",
                    known.join(", ")
                ),
            ));
        }
        Ok(UrlHarness { registry, name: scheme, url: url.to_owned() })
    }
}

#[async_trait]
impl Harness for UrlHarness {
    fn name(&self) -> &str {
        &self.name
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        self.registry.connect(&self.url, &Namespace::new(namespace)?).await
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        vec![(VARIABLE.to_owned(), self.url.clone())]
    }
}
