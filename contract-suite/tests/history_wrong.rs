//! Backends that are wrong only now and then, each over the memory backend: the recorded histories of B50 find every one.

use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use contract_suite::{Harness, MemoryHarness, RowResult, check};
use coord_core::{
    Assert, Backend, BackendError, Entry, Key, KeyRange, KeySet, Mutation, Namespace, Snapshot, Txn,
    TxnOutcome, Version,
};
use coord_memory::{MemoryBackend, MemoryStore};
use tokio::task::yield_now;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// A snapshot reads key by key.
    TornSnapshot,
    /// A snapshot is that of the same keys which the handle gave before.
    CachedSnapshot,
    /// A listing is the one that the handle gave before.
    CachedListing,
    /// A listing is read in two pages.
    TornListing,
    /// Asserts on keys that are not written are checked before the transaction begins.
    WriteSkew,
    /// All asserts are checked before the transaction begins.
    LostUpdate,
    /// The writes happen one by one.
    SplitWrites,
    /// It is applied, and answered rejected.
    AppliedAsRejected,
    /// It is answered applied, and is not.
    NotApplied,
    /// It is rejected without a reason.
    RejectedForNothing,
    /// Versions are compared by their counts alone.
    CountsOnly,
    /// A deleted key stays in the listings until the next transaction.
    GhostKey,
    /// An assert that a key is absent is not checked if the key is not written.
    MissingUnchecked,
}

const FAULTS: &[(Fault, u64)] = &[
    (Fault::TornSnapshot, 4),
    (Fault::CachedSnapshot, 100),
    (Fault::CachedListing, 5),
    (Fault::TornListing, 1),
    (Fault::WriteSkew, 4),
    (Fault::LostUpdate, 8),
    (Fault::SplitWrites, 4),
    (Fault::AppliedAsRejected, 100),
    (Fault::NotApplied, 100),
    (Fault::RejectedForNothing, 100),
    (Fault::CountsOnly, 1),
    (Fault::GhostKey, 10),
    (Fault::MissingUnchecked, 1),
];

struct WrongHarness {
    store: MemoryStore,
    fault: Fault,
    /// It is wrong once in so many calls.
    rate: u64,
}

#[async_trait]
impl Harness for WrongHarness {
    fn name(&self) -> &str {
        "wrong"
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        Ok(Arc::new(Wrong {
            inner: self.store.open(&Namespace::new(namespace)?),
            fault: self.fault,
            rate: self.rate,
            calls: AtomicU64::new(0),
            snapshots: Mutex::default(),
            listing: Mutex::default(),
            deleted: Mutex::default(),
        }))
    }
}

struct Wrong {
    inner: MemoryBackend,
    fault: Fault,
    rate: u64,
    calls: AtomicU64,
    snapshots: Mutex<Vec<(KeySet, Snapshot)>>,
    listing: Mutex<Option<(KeyRange, Vec<Key>)>>,
    deleted: Mutex<Vec<Key>>,
}

impl Debug for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wrong({:?})", self.fault)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wrong {
    fn is_wrong(&self, fault: Fault) -> bool {
        self.fault == fault && self.calls.fetch_add(1, Ordering::Relaxed) % self.rate == self.rate - 1
    }

    async fn version(&self, key: &Key) -> Result<Version, BackendError> {
        let snapshot = self.inner.snapshot(&KeySet::new([key.clone()])?).await?;
        Ok(snapshot.require(key)?.version())
    }

    /// Checks some asserts by themselves, and returns those that are left.
    async fn check_first(
        &self,
        txn: &Txn,
        which: impl Fn(&Assert) -> bool,
    ) -> Result<Option<Vec<Assert>>, BackendError> {
        let (first, rest): (Vec<_>, Vec<_>) = txn.asserts().iter().cloned().partition(which);
        let applied = self.inner.txn(&Txn::new(first, [])?).await?.is_applied();
        yield_now().await;
        Ok(applied.then_some(rest))
    }
}

#[async_trait]
impl Backend for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        if self.is_wrong(Fault::TornSnapshot) {
            let mut entries = Vec::new();
            for key in keys.distinct() {
                let one = self.inner.snapshot(&KeySet::new([key.clone()])?).await?;
                entries.push((key.clone(), one.get(key).cloned().unwrap_or(Entry::Absent)));
                yield_now().await;
            }
            return Ok(Snapshot::new(entries, None));
        }
        let snapshot = self.inner.snapshot(keys).await?;
        let wrong = self.is_wrong(Fault::CachedSnapshot);
        let mut cache = lock(&self.snapshots);
        match cache.iter_mut().find(|(cached, _)| cached.distinct() == keys.distinct()) {
            Some((_, cached)) if wrong => return Ok(cached.clone()),
            Some((_, cached)) => cached.clone_from(&snapshot),
            None => cache.push((keys.clone(), snapshot.clone())),
        }
        Ok(snapshot)
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let writes = |key: &Key| txn.mutations().iter().any(|mutation| mutation.key() == key);
        let mutations = || txn.mutations().iter().cloned();
        lock(&self.deleted).clear();
        match self.fault {
            Fault::WriteSkew if self.is_wrong(Fault::WriteSkew) => {
                let Some(rest) = self.check_first(txn, |assert| !writes(&assert.key)).await? else {
                    return Ok(TxnOutcome::Rejected);
                };
                self.inner.txn(&Txn::new(rest, mutations())?).await
            }
            Fault::LostUpdate if self.is_wrong(Fault::LostUpdate) => {
                if self.check_first(txn, |_| true).await?.is_none() {
                    return Ok(TxnOutcome::Rejected);
                }
                self.inner.txn(&Txn::new([], mutations())?).await
            }
            Fault::SplitWrites if txn.mutations().len() > 1 && self.is_wrong(Fault::SplitWrites) => {
                let (first, rest) = txn.mutations().split_at(1);
                if !self.inner.txn(&Txn::new(txn.asserts().to_vec(), first.to_vec())?).await?.is_applied() {
                    return Ok(TxnOutcome::Rejected);
                }
                yield_now().await;
                self.inner.txn(&Txn::new([], rest.to_vec())?).await
            }
            Fault::AppliedAsRejected if self.is_wrong(Fault::AppliedAsRejected) => {
                let _ = self.inner.txn(txn).await?;
                Ok(TxnOutcome::Rejected)
            }
            Fault::NotApplied if self.is_wrong(Fault::NotApplied) => {
                self.inner.txn(&Txn::new(txn.asserts().to_vec(), [])?).await
            }
            Fault::RejectedForNothing if self.is_wrong(Fault::RejectedForNothing) => Ok(TxnOutcome::Rejected),
            Fault::CountsOnly => {
                let mut asserts = Vec::new();
                for assert in txn.asserts() {
                    let now = self.version(&assert.key).await?;
                    let same = now.count() == assert.version.count();
                    let version = if same { now } else { assert.version };
                    asserts.push(Assert::version(assert.key.clone(), version));
                }
                self.inner.txn(&Txn::new(asserts, mutations())?).await
            }
            Fault::MissingUnchecked => {
                let unchecked = |assert: &&Assert| assert.version.is_missing() && !writes(&assert.key);
                let asserts = txn.asserts().iter().filter(|assert| !unchecked(assert)).cloned();
                self.inner.txn(&Txn::new(asserts, mutations())?).await
            }
            _ => {
                let outcome = self.inner.txn(txn).await?;
                if outcome.is_applied() {
                    let deletes = txn.mutations().iter().filter(|m| matches!(m, Mutation::Delete { .. }));
                    *lock(&self.deleted) = deletes.map(|mutation| mutation.key().clone()).collect();
                }
                Ok(outcome)
            }
        }
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        if self.is_wrong(Fault::TornListing) && range.limit() > 1 {
            let half = KeyRange::new(range.prefix().clone(), range.limit() / 2)?;
            let half = range.after().cloned().map_or(half.clone(), |after| half.start_after(after));
            let mut keys = self.inner.keys(&half).await?;
            yield_now().await;
            if let Some(last) = keys.last() {
                let rest = KeyRange::new(range.prefix().clone(), range.limit() - keys.len())?;
                keys.extend(self.inner.keys(&rest.start_after(last.clone())).await?);
            }
            return Ok(keys);
        }
        let mut keys = self.inner.keys(range).await?;
        if self.is_wrong(Fault::GhostKey) {
            keys.extend(lock(&self.deleted).iter().filter(|key| range.contains(key)).cloned());
            keys.sort();
            keys.dedup();
            keys.truncate(range.limit());
        }
        let wrong = self.is_wrong(Fault::CachedListing);
        let mut cached = lock(&self.listing);
        match &*cached {
            Some((of, keys)) if wrong && of == range => return Ok(keys.clone()),
            _ => *cached = Some((range.clone(), keys.clone())),
        }
        Ok(keys)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn recorded_histories_find_every_wrong_backend() {
    let mut missed = Vec::new();
    for &(fault, rate) in FAULTS {
        let row = check(Arc::new(WrongHarness { store: MemoryStore::new(), fault, rate }), "B50").await;
        let why = row.why.unwrap_or_default();
        if row.result != RowResult::Failed || !why.contains("saw a history that is") {
            missed.push(format!("{fault:?}: {why}"));
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_backend_is_right() {
    let row = check(Arc::new(MemoryHarness::default()), "B50").await;
    assert_eq!(row.result, RowResult::Passed, "{:?}", row.why);
}

/// One client at a time proves nothing, and that is a failure.
#[derive(Debug)]
struct OneAtATime {
    inner: Arc<dyn Backend>,
}

#[async_trait]
impl Backend for OneAtATime {
    fn name(&self) -> &'static str {
        "frozen"
    }
    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.inner.snapshot(keys).await
    }
    async fn txn(&self, _: &Txn) -> Result<TxnOutcome, BackendError> {
        Err(BackendError::new(
            coord_core::ErrorKind::Unavailable,
            "frozen",
            coord_core::Operation::Txn,
            "read only",
        ))
    }
    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.inner.keys(range).await
    }
}

struct Frozen(MemoryHarness);

#[async_trait]
impl Harness for Frozen {
    fn name(&self) -> &str {
        "frozen"
    }
    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        Ok(Arc::new(OneAtATime { inner: self.0.open(namespace).await? }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_without_contention_fails() {
    let row = check(Arc::new(Frozen(MemoryHarness::default())), "B50").await;
    let why = row.why.unwrap_or_default();
    assert!(row.result == RowResult::Failed && why.contains("too little contention"), "{why}");
}
