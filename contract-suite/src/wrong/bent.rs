//! The simulated store with a flaw between its handles and their callers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use coord_core::{
    Backend, BackendError, Key, KeyRange, KeySet, Namespace, Snapshot, Txn, TxnOutcome, Version,
};

use crate::harness::{Control, ControlError, Cut, Harness, Misconfiguration, ServerControl};
use crate::sim::{Manner, NAME, Settings, SimHarness};

/// What a flaw works with: a right handle, the server past all clients, and what has been done to the server.
pub(super) struct Bench {
    pub(super) right: Arc<dyn Backend>,
    pub(super) sim: SimHarness,
    pub(super) namespace: String,
    pub(super) events: Arc<Events>,
}

/// What has been done to the server so far.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) restarts: AtomicU64,
    pub(super) flushes: AtomicU64,
    /// How many keys were created since the last restart.
    pub(super) created: AtomicU64,
}

/// One way of being wrong. Each handle has a flaw of its own.
#[async_trait]
pub(super) trait Flaw: Send + Sync + 'static {
    async fn snapshot(&self, bench: &Bench, keys: &KeySet) -> Result<Snapshot, BackendError> {
        bench.right.snapshot(keys).await
    }
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        bench.right.txn(txn).await
    }
    async fn keys(&self, bench: &Bench, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        bench.right.keys(range).await
    }
}

/// A handle with a flaw.
struct BentBackend {
    bench: Bench,
    flaw: Arc<dyn Flaw>,
}

impl fmt::Debug for BentBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BentBackend").finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for BentBackend {
    fn name(&self) -> &'static str {
        NAME
    }
    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.flaw.snapshot(&self.bench, keys).await
    }
    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.flaw.txn(&self.bench, txn).await
    }
    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.flaw.keys(&self.bench, range).await
    }
}

/// What becomes of the opening of a handle, on the server of the harness or on one with a wrong setting.
pub(super) type Opening = fn(
    Option<Misconfiguration>,
    Result<Arc<dyn Backend>, BackendError>,
) -> Result<Arc<dyn Backend>, BackendError>;

/// The simulated store whose handles have a flaw.
pub(super) struct Bent {
    sim: SimHarness,
    events: Arc<Events>,
    flaw: fn() -> Arc<dyn Flaw>,
    opening: Opening,
}

impl Bent {
    pub(super) fn with(
        settings: Settings,
        manner: Manner,
        flaw: fn() -> Arc<dyn Flaw>,
        opening: Opening,
    ) -> Arc<dyn Harness> {
        Arc::new(Bent { sim: SimHarness::with(settings, manner), events: Arc::default(), flaw, opening })
    }
}

#[async_trait]
impl Harness for Bent {
    fn name(&self) -> &str {
        "wrong"
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let bench = Bench {
            right: (self.opening)(None, self.sim.open(namespace).await)?,
            sim: self.sim.clone(),
            namespace: Namespace::new(namespace)?.to_string(),
            events: self.events.clone(),
        };
        Ok(Arc::new(BentBackend { bench, flaw: (self.flaw)() }))
    }

    fn server(&self) -> Option<&dyn ServerControl> {
        Some(self)
    }

    async fn open_misconfigured(
        &self,
        fault: Misconfiguration,
    ) -> Option<Result<Arc<dyn Backend>, BackendError>> {
        Some((self.opening)(Some(fault), self.sim.open_misconfigured(fault).await?))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ServerControl for Bent {
    fn can(&self, control: Control) -> bool {
        self.sim.can(control)
    }
    async fn kill(&self) -> Result<(), ControlError> {
        self.sim.kill().await
    }
    async fn restart(&self) -> Result<(), ControlError> {
        self.events.restarts.fetch_add(1, Ordering::SeqCst);
        self.events.created.store(0, Ordering::SeqCst);
        self.sim.restart().await
    }
    async fn pause(&self) -> Result<(), ControlError> {
        self.sim.pause().await
    }
    async fn resume(&self) -> Result<(), ControlError> {
        self.sim.resume().await
    }
    async fn cut(&self, cut: Cut) -> Result<(), ControlError> {
        self.sim.cut(cut).await
    }
    async fn heal(&self) -> Result<usize, ControlError> {
        self.sim.heal().await
    }
    async fn flush_scripts(&self) -> Result<(), ControlError> {
        self.events.flushes.fetch_add(1, Ordering::SeqCst);
        self.sim.flush_scripts().await
    }
    async fn write_foreign(&self, namespace: &str, key: &Key, variant: usize) -> Result<bool, ControlError> {
        self.sim.write_foreign(namespace, key, variant).await
    }
    async fn read_raw(&self, namespace: &str, key: &Key) -> Result<Option<Vec<u8>>, ControlError> {
        self.sim.read_raw(namespace, key).await
    }
    async fn remove_raw(&self, namespace: &str, key: &Key) -> Result<(), ControlError> {
        self.sim.remove_raw(namespace, key).await
    }
    async fn set_version(&self, namespace: &str, key: &Key, version: Version) -> Result<bool, ControlError> {
        self.sim.set_version(namespace, key, version).await
    }
}
