//! Which scheme is opened by whom.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use coord_core::{Backend, BackendError, ErrorKind, Namespace, Operation, async_trait};

use crate::builtin;
use crate::redact::redact;

/// Opens the stores of one kind. Implemented by every function of a URL and a namespace that returns a future:
/// `|url: String, namespace: Namespace| async move { ... }`.
#[async_trait]
pub trait Factory: Send + Sync + 'static {
    /// Opens a handle of its own on a namespace of the store that the URL names. The URL begins with the scheme that the factory was
    /// registered for, in lower case. A parameter that it does not know must be an error, and no error may show what the
    /// URL keeps secret.
    async fn connect(&self, url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError>;
}

#[async_trait]
impl<F, R> Factory for F
where
    F: Fn(String, Namespace) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Arc<dyn Backend>, BackendError>> + Send + 'static,
{
    async fn connect(&self, url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError> {
        self(url.to_owned(), namespace.clone()).await
    }
}

/// The backends that URLs can name: a value, so that a program can add its own.
#[derive(Clone, Default)]
pub struct Registry {
    factories: BTreeMap<String, Arc<dyn Factory>>,
}

impl Registry {
    /// A registry without any backend.
    #[must_use]
    pub fn new() -> Self {
        Registry::default()
    }

    /// A registry with the backends whose features are on.
    #[must_use]
    pub fn with_builtin() -> Self {
        let mut registry = Registry::new();
        for builtin in builtin::ALL {
            let Some(factory) = builtin.factory else { continue };
            for scheme in builtin.schemes {
                registry.factories.insert((*scheme).to_owned(), factory());
            }
        }
        registry
    }

    /// Adds a backend for URLs that begin with `scheme` and a colon.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) if the scheme is none (a letter, then letters, digits, `+`, `-`, `.`, all in lower case), or is taken.
    pub fn register(&mut self, scheme: &str, factory: impl Factory) -> Result<&mut Self, BackendError> {
        if !is_scheme(scheme) || scheme.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(config(format!(
                "{scheme:?} is no URL scheme in lower case (a letter, then letters, digits, `+`, `-`, `.`)"
            )));
        }
        if self.factories.contains_key(scheme) {
            return Err(config(format!("the URL scheme {scheme:?} is taken by another backend")));
        }
        self.factories.insert(scheme.to_owned(), Arc::new(factory));
        Ok(self)
    }

    /// The schemes that can be connected to, in ascending order.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.factories.keys().map(String::as_str)
    }

    /// Opens a handle on a namespace of the store that a URL names. Each call opens a handle of its own.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) if the URL has no scheme or one that is not registered; and whatever the backend says.
    pub async fn connect(&self, url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError> {
        let (scheme, rest) = match url.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            _ => {
                return Err(config(format!(
                    "{:?} is no URL of a store: it begins with none of {}",
                    redact(url),
                    self.known()
                )));
            }
        };
        if let Some(factory) = self.factories.get(&scheme) {
            return factory.connect(&format!("{scheme}:{rest}"), namespace).await;
        }
        let left_out = builtin::ALL.iter().find(|builtin| builtin.schemes.contains(&scheme.as_str()));
        Err(config(match left_out {
            Some(builtin) => format!(
                "stores with the URL scheme `{scheme}:` are not compiled in: turn on the feature `{}` of coord-connect",
                builtin.feature
            ),
            None => format!("no store has the URL scheme `{scheme}:`; known are {}", self.known()),
        }))
    }

    fn known(&self) -> String {
        if self.factories.is_empty() {
            return "no schemes at all, for no backend is compiled in".to_owned();
        }
        self.schemes().map(|scheme| format!("`{scheme}:`")).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.schemes().collect::<Vec<_>>()).finish()
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// An error of this crate: nothing was opened.
pub(crate) fn config(message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Config, "connect", Operation::Connect, message)
}
