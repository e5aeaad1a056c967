//! The harness of the memory backend.

use std::sync::Arc;

use async_trait::async_trait;
use coord_core::{Backend, BackendError, Namespace};
use coord_memory::MemoryStore;

use crate::harness::Harness;

/// The memory backend: the reference that every clause must pass on.
#[derive(Clone, Debug, Default)]
pub struct MemoryHarness {
    store: MemoryStore,
}

#[async_trait]
impl Harness for MemoryHarness {
    fn name(&self) -> &str {
        "memory"
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        Ok(Arc::new(self.store.open(&Namespace::new(namespace)?)))
    }
}
