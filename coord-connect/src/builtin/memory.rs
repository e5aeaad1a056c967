//! `memory:` and `memory:NAME`.

use std::sync::Arc;

use coord_core::{Backend, BackendError, Namespace, async_trait};
use coord_memory::MemoryStore;

use crate::registry::{Factory, config};

/// Opens the stores of this process.
pub(crate) struct Memory;

#[async_trait]
impl Factory for Memory {
    async fn connect(&self, url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError> {
        let rest = url.strip_prefix("memory:").unwrap_or(url);
        if rest.contains(['?', '#']) {
            return Err(config("a memory URL has no parameters: it is `memory:` or `memory:NAME`"));
        }
        // A name follows the same rule as a namespace.
        let store = match rest.strip_prefix("//").unwrap_or(rest) {
            "" => MemoryStore::global(),
            name if Namespace::new(name).is_ok() => MemoryStore::named(name),
            _ => {
                return Err(config(
                    "a memory URL is `memory:` or `memory:NAME`, with a name of 1 to 64 characters A-Z a-z 0-9 _ . -",
                ));
            }
        };
        Ok(Arc::new(store.open(namespace)))
    }
}
