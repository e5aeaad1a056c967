//! Wrong in how faults are told, survived, or noticed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::{
    Backend, BackendError, Clock as _, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation, Operation,
    Snapshot, SystemClock, Txn, TxnOutcome, Version,
};

use crate::harness::{Harness, Misconfiguration, ServerControl as _};
use crate::sim::{Manner, NAME, Settings, Sync};

use super::Wrong;
use super::bent::{Bench, Bent, Flaw, Opening};

macro_rules! wrong {
    ($id:literal, $clause:literal, $what:literal, $harness:expr) => {
        Wrong { id: $id, what: $what, clause: $clause, harness: || $harness }
    };
}

pub(super) const WRONG: &[Wrong] = &[
    wrong!(
        "F01",
        "B40",
        "a transaction that was not sent is answered as applied",
        bent(|| Arc::new(Hopeful))
    ),
    wrong!("F02", "B40", "a snapshot that was not sent is answered as absent", bent(|| Arc::new(Blank))),
    wrong!("F03", "B40", "a listing that was not sent is answered as empty", bent(|| Arc::new(Empty))),
    wrong!(
        "F04",
        "B40",
        "a read of which nothing came back is indeterminate",
        bent(|| Arc::new(DoubtfulReads))
    ),
    wrong!("F05", "B40", "a request that was not sent is a wrong setting", bent(|| Arc::new(WrongKind))),
    wrong!("F06", "B40", "a transaction is sent until it is answered", bent(|| Arc::new(Stubborn))),
    wrong!("M64", "B41", "retried inside after a lost reply", bent(|| Arc::new(RetriesOnce))),
    wrong!("M66", "B41", "unknown is answered as rejected", bent(|| Arc::new(Pessimist))),
    wrong!("F11", "B41", "a lost reply is reported as unavailable", bent(|| Arc::new(LostIsUnavailable))),
    wrong!(
        "F12",
        "B41",
        "sent again in the background after a lost reply",
        bent(|| Arc::new(BackgroundRetry))
    ),
    wrong!("F13", "B41", "a retry of the caller mints nothing new", bent(|| Arc::new(MintsFromContent))),
    wrong!(
        "F14",
        "B41",
        "a lost reply is made up for by reading the values",
        bent(|| Arc::new(ReadsInstead))
    ),
    wrong!("F15", "B41", "a lost reply is answered as applied", bent(|| Arc::new(Hopeful))),
    wrong!(
        "F21",
        "B42",
        "acknowledged before it is on disk",
        careless(Settings { sync: Sync::Never, ..Settings::RIGHT })
    ),
    wrong!(
        "F22",
        "B42",
        "on disk now and then",
        careless(Settings { sync: Sync::NowAndThen, ..Settings::RIGHT })
    ),
    wrong!("F81", "B51", "unknown is answered as rejected", bent(|| Arc::new(Pessimist))),
    wrong!("F82", "B51", "a lost reply is reported as unavailable", bent(|| Arc::new(LostIsUnavailable))),
    wrong!("F83", "B51", "a lost reply is answered as applied", bent(|| Arc::new(Hopeful))),
    wrong!("F84", "B51", "retried inside after a lost reply", bent(|| Arc::new(RetriesOnce))),
    wrong!("F85", "B51", "a snapshot that was lost is answered as absent", bent(|| Arc::new(Blank))),
    wrong!("F86", "B51", "a listing that was lost is answered as empty", bent(|| Arc::new(Empty))),
    wrong!("F23", "B42", "a handle that never recovers", bent(|| Arc::new(Sulks::default()))),
    wrong!(
        "F24",
        "B42",
        "what could not be sent is kept and sent after the restart",
        bent(|| Arc::new(Outbox::default()))
    ),
    wrong!(
        "F25",
        "B42",
        "incarnations are counted from the start of the server",
        bent(|| Arc::new(CountsFromStart))
    ),
    wrong!(
        "F26",
        "B42",
        "reads of a dead server are answered from a cache",
        bent(|| Arc::new(Cache::default()))
    ),
    wrong!(
        "F27",
        "B42",
        "listings of a dead server are answered from a cache",
        bent(|| Arc::new(ListingCache::default()))
    ),
    wrong!(
        "F28",
        "B42",
        "what was on its way when the server died is on disk in part",
        careless(Settings { sync: Sync::InPart, ..Settings::RIGHT })
    ),
    wrong!(
        "F29",
        "B42",
        "a dead server is a wrong setting when a handle is opened",
        opening(outage_is_config)
    ),
    wrong!("F31", "B43", "waits for ever", impatient(Duration::from_secs(3_600), || Arc::new(Right))),
    wrong!("F32", "B43", "a timeout is reported as unavailable", bent(|| Arc::new(TimeoutIsUnavailable))),
    wrong!("F33", "B43", "retried inside after a timeout", impatient(SHORT, || Arc::new(RetriesTimeout))),
    wrong!(
        "F34",
        "B43",
        "sent until answered, and then answered rejected although it happened",
        impatient(SHORT, || Arc::new(Stubborn))
    ),
    wrong!(
        "F35",
        "B43",
        "a late reply is taken for the answer to the next request",
        bent(|| Arc::new(Shifted::default()))
    ),
    wrong!("F36", "B43", "a timeout is answered as rejected", bent(|| Arc::new(TimeoutIsRejected))),
    wrong!("F37", "B43", "a read that timed out is indeterminate", bent(|| Arc::new(DoubtfulReads))),
    wrong!(
        "F38",
        "B43",
        "a paused server is a wrong setting when a handle is opened",
        opening(outage_is_config)
    ),
    wrong!("F41", "B44", "a script that the server has dropped is surfaced", unprepared(|| Arc::new(Right))),
    wrong!(
        "F42",
        "B44",
        "a transaction whose script was dropped is rejected",
        unprepared(|| Arc::new(UnpreparedIsRejected))
    ),
    wrong!(
        "F43",
        "B44",
        "a script that was dropped is loaded and then run twice",
        bent(|| Arc::new(RunsTwice::default()))
    ),
    wrong!(
        "F44",
        "B44",
        "a snapshot whose script was dropped finds nothing",
        bent(|| Arc::new(FlushedIsBlank::default()))
    ),
    wrong!("F51", "B45", "foreign content is read as missing", bent(|| Arc::new(ForeignIsMissing))),
    wrong!("F52", "B45", "foreign content is overwritten", bent(|| Arc::new(Overwrites))),
    wrong!("F53", "B45", "foreign content is deleted", bent(|| Arc::new(DeletesForeign))),
    wrong!("F54", "B45", "foreign content is an outage", bent(|| Arc::new(ForeignIsOutage))),
    wrong!(
        "F55",
        "B45",
        "a transaction on foreign content is rejected",
        bent(|| Arc::new(ForeignIsRejected))
    ),
    wrong!(
        "F56",
        "B45",
        "what is asserted missing holds over foreign content",
        bent(|| Arc::new(ForeignHolds))
    ),
    wrong!("F61", "B46", "no setting is looked at", careless(Settings::RIGHT)),
    wrong!(
        "F62",
        "B46",
        "a wrong setting is an outage",
        opening(|_, opened| opened.map_err(|_| error(ErrorKind::Unavailable, Operation::Connect)))
    ),
    wrong!(
        "F63",
        "B46",
        "an evicting server is accepted",
        opening(|fault, opened| accept(fault == Some(Misconfiguration::Evicting), opened))
    ),
    wrong!(
        "F64",
        "B46",
        "a server that syncs now and then is accepted",
        opening(|fault, opened| accept(fault == Some(Misconfiguration::LazySync), opened))
    ),
    wrong!(
        "F65",
        "B46",
        "a replica is accepted",
        opening(|fault, opened| accept(fault == Some(Misconfiguration::ReadOnly), opened))
    ),
    wrong!(
        "F71",
        "B48",
        "a pool that never gets back the place of a call that failed",
        bent(|| Arc::new(LeakyPool::default()))
    ),
    wrong!(
        "F72",
        "B48",
        "a pool that never gets back the place of a call that was dropped",
        bent(|| Arc::new(DropLeak::default()))
    ),
    wrong!(
        "F73",
        "B48",
        "the wait before the next try doubles with every error, without a limit",
        bent(|| Arc::new(Doubles::default()))
    ),
    wrong!("F74", "B48", "a server that was gone twice is given up", bent(|| Arc::new(GivesUp::default()))),
];

/// Shorter than some of the pauses of the server.
const SHORT: Duration = Duration::from_millis(200);

fn bent(flaw: fn() -> Arc<dyn Flaw>) -> Arc<dyn Harness> {
    Bent::with(Settings::RIGHT, Manner::RIGHT, flaw, |_, opened| opened)
}

fn careless(settings: Settings) -> Arc<dyn Harness> {
    let manner = Manner { checks_settings: false, ..Manner::RIGHT };
    Bent::with(settings, manner, || Arc::new(Right), |_, opened| opened)
}

fn impatient(deadline: Duration, flaw: fn() -> Arc<dyn Flaw>) -> Arc<dyn Harness> {
    Bent::with(Settings::RIGHT, Manner { deadline, ..Manner::RIGHT }, flaw, |_, opened| opened)
}

fn unprepared(flaw: fn() -> Arc<dyn Flaw>) -> Arc<dyn Harness> {
    Bent::with(Settings::RIGHT, Manner { prepares_again: false, ..Manner::RIGHT }, flaw, |_, opened| opened)
}

fn opening(opening: Opening) -> Arc<dyn Harness> {
    Bent::with(Settings::RIGHT, Manner::RIGHT, || Arc::new(Right), opening)
}

fn outage_is_config(
    fault: Option<Misconfiguration>,
    opened: Result<Arc<dyn Backend>, BackendError>,
) -> Result<Arc<dyn Backend>, BackendError> {
    match opened {
        Err(_) if fault.is_none() => Err(error(ErrorKind::Config, Operation::Connect)),
        opened => opened,
    }
}

fn accept(
    accepted: bool,
    opened: Result<Arc<dyn Backend>, BackendError>,
) -> Result<Arc<dyn Backend>, BackendError> {
    if accepted {
        let store = coord_memory::MemoryStore::new();
        return Ok(Arc::new(store.open(&coord_core::Namespace::new("accepted")?)));
    }
    opened
}

fn error(kind: ErrorKind, operation: Operation) -> BackendError {
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
struct Right;
#[async_trait]
impl Flaw for Right {}

macro_rules! flaw {
    ($(#[$doc:meta])* $name:ident, $method:ident($self:ident, $bench:ident, $request:ident: $type:ty) -> $answer:ty $body:block) => {
        $(#[$doc])*
        struct $name;
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

struct DoubtfulReads;
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
struct Sulks(AtomicBool);

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
struct Outbox(Mutex<Vec<Txn>>);

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
struct Cache(Mutex<BTreeMap<Vec<Key>, Snapshot>>);

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
struct ListingCache(Mutex<BTreeMap<String, Vec<Key>>>);

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
struct Shifted(Mutex<Option<KeySet>>);

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
struct RunsTwice(AtomicU64);

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
struct FlushedIsBlank(AtomicU64);

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

struct ForeignIsOutage;

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
struct LeakyPool(AtomicUsize);

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
struct DropLeak(AtomicUsize);

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
struct Doubles(AtomicUsize);

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
struct GivesUp(AtomicU64);

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
