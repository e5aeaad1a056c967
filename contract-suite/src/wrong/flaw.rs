//! The flaws of handles on the simulated store, each by what it does wrong.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::{
    BackendError, Clock as _, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation, Operation, Snapshot,
    SystemClock, Txn, TxnOutcome, Version,
};

use crate::harness::ServerControl as _;
use crate::sim::NAME;

use super::bent::{Bench, Flaw};

pub(super) fn error(kind: ErrorKind, operation: Operation) -> BackendError {
    BackendError::new(kind, NAME, operation, "wrong on purpose")
}

/// Whether an error is about the line and not about the request.
fn outage(error: &BackendError) -> bool {
    error.is_retryable() || error.is_indeterminate()
}

fn timed_out(error: &BackendError) -> bool {
    outage(error) && error.message().contains("deadline")
}

/// No flaw: what is wrong is elsewhere.
pub(super) struct Right;
#[async_trait]
impl Flaw for Right {}

macro_rules! flaw {
    ($(#[$doc:meta])* $name:ident, $method:ident($self:ident, $bench:ident, $request:ident: $type:ty) -> $answer:ty $body:block) => {
        $(#[$doc])*
        pub(super) struct $name;
        #[async_trait]
        impl Flaw for $name {
            async fn $method(&$self, $bench: &Bench, $request: &$type) -> Result<$answer, BackendError> $body
        }
    };
}

flaw!(Hopeful, txn(self, bench, txn: Txn) -> TxnOutcome {
    match bench.right.txn(txn).await {
        Err(error) if outage(&error) => Ok(TxnOutcome::Applied),
        answer => answer,
    }
});

flaw!(Pessimist, txn(self, bench, txn: Txn) -> TxnOutcome {
    match bench.right.txn(txn).await {
        Err(error) if error.is_indeterminate() => Ok(TxnOutcome::Rejected),
        answer => answer,
    }
});

flaw!(Blank, snapshot(self, bench, keys: KeySet) -> Snapshot {
    match bench.right.snapshot(keys).await {
        Err(error) if outage(&error) => {
            Ok(Snapshot::new(keys.iter().map(|key| (key.clone(), Entry::Absent)), None))
        }
        answer => answer,
    }
});

flaw!(Empty, keys(self, bench, range: KeyRange) -> Vec<Key> {
    match bench.right.keys(range).await {
        Err(error) if outage(&error) => Ok(Vec::new()),
        answer => answer,
    }
});

pub(super) struct DoubtfulReads;
#[async_trait]
impl Flaw for DoubtfulReads {
    async fn snapshot(&self, bench: &Bench, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let kind = ErrorKind::Indeterminate;
        bench.right.snapshot(keys).await.map_err(|_| error(kind, Operation::Snapshot))
    }
    async fn keys(&self, bench: &Bench, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        bench.right.keys(range).await.map_err(|_| error(ErrorKind::Indeterminate, Operation::Keys))
    }
}

flaw!(WrongKind, txn(self, bench, txn: Txn) -> TxnOutcome {
    bench.right.txn(txn).await.map_err(|_| error(ErrorKind::Config, Operation::Txn))
});

flaw!(Stubborn, txn(self, bench, txn: Txn) -> TxnOutcome {
    // Bounded, so that only its answers are wrong and not its patience.
    for _ in 0..20 {
        match bench.right.txn(txn).await {
            Err(error) if outage(&error) => {}
            answer => return answer,
        }
    }
    bench.right.txn(txn).await
});

flaw!(RetriesOnce, txn(self, bench, txn: Txn) -> TxnOutcome {
    match bench.right.txn(txn).await {
        Err(error) if error.is_indeterminate() => bench.right.txn(txn).await,
        answer => answer,
    }
});

flaw!(RetriesTimeout, txn(self, bench, txn: Txn) -> TxnOutcome {
    match bench.right.txn(txn).await {
        Err(error) if timed_out(&error) => bench.right.txn(txn).await,
        answer => answer,
    }
});

flaw!(LostIsUnavailable, txn(self, bench, txn: Txn) -> TxnOutcome {
    bench.right.txn(txn).await.map_err(|_| error(ErrorKind::Unavailable, Operation::Txn))
});

flaw!(TimeoutIsUnavailable, txn(self, bench, txn: Txn) -> TxnOutcome {
    bench.right.txn(txn).await.map_err(|seen| {
        if timed_out(&seen) { error(ErrorKind::Unavailable, Operation::Txn) } else { seen }
    })
});

flaw!(TimeoutIsRejected, txn(self, bench, txn: Txn) -> TxnOutcome {
    match bench.right.txn(txn).await {
        Err(error) if timed_out(&error) => Ok(TxnOutcome::Rejected),
        answer => answer,
    }
});

flaw!(BackgroundRetry, txn(self, bench, txn: Txn) -> TxnOutcome {
    let answer = bench.right.txn(txn).await;
    if answer.as_ref().is_err_and(BackendError::is_indeterminate) {
        let (right, txn) = (bench.right.clone(), txn.clone());
        tokio::spawn(async move { right.txn(&txn).await });
    }
    answer
});

flaw!(MintsFromContent, txn(self, bench, txn: Txn) -> TxnOutcome {
    let answer = bench.right.txn(txn).await;
    let mut hasher = DefaultHasher::new();
    for mutation in txn.mutations() {
        (mutation.key(), mutation.value()).hash(&mut hasher);
    }
    reincarnate(bench, txn, || hasher.finish()).await;
    answer
});

flaw!(CountsFromStart, txn(self, bench, txn: Txn) -> TxnOutcome {
    let answer = bench.right.txn(txn).await;
    reincarnate(bench, txn, || bench.events.created.fetch_add(1, Ordering::SeqCst)).await;
    answer
});

/// Gives the keys that a transaction has created another incarnation.
async fn reincarnate(bench: &Bench, txn: &Txn, incarnation: impl Fn() -> u64) {
    for mutation in txn.mutations() {
        let Some(value) = mutation.value() else { continue };
        // Past the wire, so that no cut is met and no server is needed.
        let Ok(Some(raw)) = bench.sim.read_raw(&bench.namespace, mutation.key()).await else { continue };
        let created = raw.get(12..20) == Some(&1_u64.to_be_bytes()[..]) && raw.get(20..) == Some(&value[..]);
        if created && let Some(version) = Version::first((incarnation() & 0xFFFF_FFFF) + 1) {
            let _ = bench.sim.set_version(&bench.namespace, mutation.key(), version).await;
        }
    }
}

flaw!(ReadsInstead, txn(self, bench, txn: Txn) -> TxnOutcome {
    let seen = match bench.right.txn(txn).await {
        Err(error) if error.is_indeterminate() => error,
        answer => return answer,
    };
    let keys = KeySet::new(txn.mutations().iter().map(|mutation| mutation.key().clone()))?;
    let snapshot = bench.right.snapshot(&keys).await.map_err(|_| seen)?;
    let there = txn.mutations().iter().all(|mutation| {
        snapshot.get(mutation.key()).and_then(Entry::value) == mutation.value()
    });
    Ok(if there { TxnOutcome::Applied } else { TxnOutcome::Rejected })
});

/// Once it has met an outage it says so for ever.
#[derive(Default)]
pub(super) struct Sulks(AtomicBool);

impl Sulks {
    fn note<T>(&self, operation: Operation, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        if answer.as_ref().is_err_and(outage) {
            self.0.store(true, Ordering::SeqCst);
        } else if self.0.load(Ordering::SeqCst) {
            return Err(error(ErrorKind::Unavailable, operation));
        }
        answer
    }
}

#[async_trait]
impl Flaw for Sulks {
    async fn snapshot(&self, bench: &Bench, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.note(Operation::Snapshot, bench.right.snapshot(keys).await)
    }
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        if self.0.load(Ordering::SeqCst) {
            return Err(error(ErrorKind::Unavailable, Operation::Txn));
        }
        self.note(Operation::Txn, bench.right.txn(txn).await)
    }
}

/// Sends later what it could not send.
#[derive(Default)]
pub(super) struct Outbox(Mutex<Vec<Txn>>);

#[async_trait]
impl Flaw for Outbox {
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let answer = bench.right.txn(txn).await;
        let kept = {
            let mut outbox = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if answer.as_ref().is_err_and(BackendError::is_retryable) {
                outbox.push(txn.clone());
                Vec::new()
            } else {
                std::mem::take(&mut *outbox)
            }
        };
        for txn in kept {
            let _ = bench.right.txn(&txn).await;
        }
        answer
    }
}

/// Answers from what it read last if the server does not.
#[derive(Default)]
pub(super) struct Cache(Mutex<BTreeMap<Vec<Key>, Snapshot>>);

#[async_trait]
impl Flaw for Cache {
    async fn snapshot(&self, bench: &Bench, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let request: Vec<Key> = keys.iter().cloned().collect();
        let answer = bench.right.snapshot(keys).await;
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(snapshot) => {
                cache.insert(request, snapshot.clone());
                Ok(snapshot)
            }
            Err(error) => cache.get(&request).cloned().ok_or(error),
        }
    }
}

#[derive(Default)]
pub(super) struct ListingCache(Mutex<BTreeMap<String, Vec<Key>>>);

#[async_trait]
impl Flaw for ListingCache {
    async fn keys(&self, bench: &Bench, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let request = format!("{range:?}");
        let answer = bench.right.keys(range).await;
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(listing) => {
                cache.insert(request, listing.clone());
                Ok(listing)
            }
            Err(error) => cache.get(&request).cloned().ok_or(error),
        }
    }
}

/// After a snapshot that timed out, its reply is still on the line, and is taken for the next one's.
#[derive(Default)]
pub(super) struct Shifted(Mutex<Option<KeySet>>);

#[async_trait]
impl Flaw for Shifted {
    async fn snapshot(&self, bench: &Bench, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let late = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(late) = late {
            let answer = bench.right.snapshot(&late).await;
            if answer.is_ok() {
                return answer;
            }
        }
        let answer = bench.right.snapshot(keys).await;
        if answer.as_ref().is_err_and(timed_out) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys.clone());
        }
        answer
    }
}

flaw!(UnpreparedIsRejected, txn(self, bench, txn: Txn) -> TxnOutcome {
    match bench.right.txn(txn).await {
        Err(error) if error.message().contains("script") => Ok(TxnOutcome::Rejected),
        answer => answer,
    }
});

/// The first transaction after a flush is sent twice.
#[derive(Default)]
pub(super) struct RunsTwice(AtomicU64);

#[async_trait]
impl Flaw for RunsTwice {
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let flushes = bench.events.flushes.load(Ordering::SeqCst);
        if self.0.swap(flushes, Ordering::SeqCst) != flushes {
            let _ = bench.right.txn(txn).await;
        }
        bench.right.txn(txn).await
    }
}

/// The first snapshot after a flush finds nothing.
#[derive(Default)]
pub(super) struct FlushedIsBlank(AtomicU64);

#[async_trait]
impl Flaw for FlushedIsBlank {
    async fn snapshot(&self, bench: &Bench, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let flushes = bench.events.flushes.load(Ordering::SeqCst);
        if self.0.swap(flushes, Ordering::SeqCst) != flushes {
            return Ok(Snapshot::new(keys.iter().map(|key| (key.clone(), Entry::Absent)), None));
        }
        bench.right.snapshot(keys).await
    }
}

flaw!(ForeignIsMissing, snapshot(self, bench, keys: KeySet) -> Snapshot {
    match bench.right.snapshot(keys).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {}
        answer => return answer,
    }
    let mut entries = Vec::new();
    for key in keys.distinct() {
        let entry = match bench.right.snapshot(&KeySet::new([key.clone()])?).await {
            Ok(snapshot) => snapshot.require(key)?.clone(),
            Err(error) if error.kind() == ErrorKind::Corrupt => Entry::Absent,
            Err(error) => return Err(error),
        };
        entries.push((key.clone(), entry));
    }
    Ok(Snapshot::new(entries, None))
});

/// Removes whatever foreign content lies under these keys.
async fn remove_foreign(bench: &Bench, keys: impl Iterator<Item = &Key>) -> Result<(), BackendError> {
    for key in keys {
        let seen = bench.right.snapshot(&KeySet::new([key.clone()])?).await;
        if seen.is_err_and(|error| error.kind() == ErrorKind::Corrupt) {
            let _ = bench.sim.remove_raw(&bench.namespace, key).await;
        }
    }
    Ok(())
}

flaw!(Overwrites, txn(self, bench, txn: Txn) -> TxnOutcome {
    let puts = txn.mutations().iter().filter(|mutation| mutation.value().is_some());
    remove_foreign(bench, puts.map(Mutation::key)).await?;
    bench.right.txn(txn).await
});

flaw!(DeletesForeign, txn(self, bench, txn: Txn) -> TxnOutcome {
    let deletes = txn.mutations().iter().filter(|mutation| mutation.value().is_none());
    remove_foreign(bench, deletes.map(Mutation::key)).await?;
    bench.right.txn(txn).await
});

pub(super) struct ForeignIsOutage;

impl ForeignIsOutage {
    fn bend(seen: BackendError) -> BackendError {
        if seen.kind() == ErrorKind::Corrupt { error(ErrorKind::Unavailable, seen.operation()) } else { seen }
    }
}

#[async_trait]
impl Flaw for ForeignIsOutage {
    async fn snapshot(&self, bench: &Bench, keys: &KeySet) -> Result<Snapshot, BackendError> {
        bench.right.snapshot(keys).await.map_err(Self::bend)
    }
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        bench.right.txn(txn).await.map_err(Self::bend)
    }
}

flaw!(ForeignIsRejected, txn(self, bench, txn: Txn) -> TxnOutcome {
    match bench.right.txn(txn).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(TxnOutcome::Rejected),
        answer => answer,
    }
});

flaw!(ForeignHolds, txn(self, bench, txn: Txn) -> TxnOutcome {
    match bench.right.txn(txn).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let (mut asserts, written) = (txn.asserts().to_vec(), txn.mutations());
            asserts.retain(|assert| !assert.version.is_missing());
            if asserts.len() == txn.asserts().len() {
                return Err(error);
            }
            bench.right.txn(&Txn::new(asserts, written.iter().cloned())?).await
        }
        answer => answer,
    }
});

/// How many places each of these pools has.
const PLACES: usize = 3;

#[derive(Default)]
pub(super) struct LeakyPool(AtomicUsize);

#[async_trait]
impl Flaw for LeakyPool {
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        if self.0.load(Ordering::SeqCst) >= PLACES {
            return Err(error(ErrorKind::Unavailable, Operation::Txn));
        }
        let answer = bench.right.txn(txn).await;
        if answer.as_ref().is_err_and(outage) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        answer
    }
}

#[derive(Default)]
pub(super) struct DropLeak(AtomicUsize);

#[async_trait]
impl Flaw for DropLeak {
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        if self.0.load(Ordering::SeqCst) >= PLACES {
            return Err(error(ErrorKind::Unavailable, Operation::Txn));
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        let answer = bench.right.txn(txn).await;
        // Not reached if the future is dropped.
        self.0.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

#[derive(Default)]
pub(super) struct Doubles(AtomicUsize);

#[async_trait]
impl Flaw for Doubles {
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let errors = self.0.load(Ordering::SeqCst);
        if errors > 0 {
            let wait = Duration::from_micros(100).saturating_mul(1 << errors.min(30));
            // No single call takes too long: it gives up before its wait is over.
            if wait > Duration::from_millis(200) {
                self.0.fetch_add(1, Ordering::SeqCst);
                SystemClock::new().sleep(Duration::from_millis(20)).await;
                return Err(error(ErrorKind::Unavailable, Operation::Txn));
            }
            SystemClock::new().sleep(wait).await;
        }
        let answer = bench.right.txn(txn).await;
        if answer.as_ref().is_err_and(outage) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        answer
    }
}

/// Recovers once, and not again.
#[derive(Default)]
pub(super) struct GivesUp(AtomicU64);

#[async_trait]
impl Flaw for GivesUp {
    async fn txn(&self, bench: &Bench, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        if bench.events.restarts.load(Ordering::SeqCst) > 1 && self.0.load(Ordering::SeqCst) > 0 {
            return Err(error(ErrorKind::Unavailable, Operation::Txn));
        }
        let answer = bench.right.txn(txn).await;
        self.0.fetch_add(u64::from(answer.is_err()), Ordering::SeqCst);
        answer
    }
}
