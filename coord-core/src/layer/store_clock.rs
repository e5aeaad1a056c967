//! Another clock in place of the store's, for tests.

use std::sync::Arc;

use async_trait::async_trait;

use crate::backend::Backend;
use crate::clock::{Clock, Timestamp};
use crate::error::BackendError;
use crate::key::Key;
use crate::snapshot::{KeyRange, KeySet, Snapshot};
use crate::txn::{Txn, TxnOutcome};

/// A backend whose snapshots carry the time of an injected clock, or none at all, instead of the store's.
///
/// The injected clock is read after the wrapped snapshot was answered. That is no atomic read, so this is only for tests, where the
/// clock stands still unless the test moves it.
///
/// ```
/// use std::sync::Arc;
/// use coord_core::layer::StoreClock;
/// use coord_core::{Backend, KeySet, ManualClock, Namespace, Timestamp};
/// use coord_memory::MemoryStore;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let memory = MemoryStore::new().open(&Namespace::new("example")?);
/// let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
///
/// let backend = StoreClock::new(memory.clone(), clock.clone());
/// assert_eq!(backend.snapshot(&KeySet::empty()).await?.store_time(), Some(Timestamp::EPOCH));
///
/// // A store that has no clock, such as etcd.
/// let backend = StoreClock::none(memory);
/// assert_eq!(backend.snapshot(&KeySet::empty()).await?.store_time(), None);
/// # Ok::<(), coord_core::BackendError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct StoreClock<B> {
    inner: B,
    clock: Option<Arc<dyn Clock>>,
}

impl<B: Backend> StoreClock<B> {
    /// The store's time is what [`now`](Clock::now) of this clock says.
    #[must_use]
    pub fn new(inner: B, clock: Arc<dyn Clock>) -> Self {
        StoreClock { inner, clock: Some(clock) }
    }

    /// The store has no clock.
    #[must_use]
    pub fn none(inner: B) -> Self {
        StoreClock { inner, clock: None }
    }

    /// The wrapped backend.
    #[must_use]
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn time(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.now())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for StoreClock<B> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        Ok(self.inner.snapshot(keys).await?.with_store_time(self.time()))
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.inner.txn(txn).await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.inner.keys(range).await
    }
}
