//! Wrong in time: what is done outside the lock, in pieces, late, or by the wrong handle.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use async_trait::async_trait;
use coord_core::token::mint_incarnation;
use coord_core::{
    Backend, BackendError, Clock, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation, Operation, Snapshot,
    SystemClock, Txn, TxnOutcome, Version,
};

use super::toy::{self, Handle, NAME, Space};
use super::{ToyHarness, Wrong};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    CheckedOutside,
    CheckedJustOutside,
    AbsentUnlocked,
    UnwrittenUnlocked,
    CallersOrder,
    DeadlockIsAnError,
    OneByOne,
    KeyByKey,
    InPages,
    Cached,
    AbsenceCached,
    ListingLags,
    SnapshotLags,
    ListedInPages,
    Split,
    DroppedKeepsLock,
    DroppedHalf,
    Starved,
    Swapped,
    OutcomesSwapped,
    ListingsSwapped,
    Joined,
    PlaceholdersForATime,
    StaleSuccessor,
    CheckKeyByKey,
    DisjointConflict,
    FirstAssertsLocked,
    ValueOfAnother,
    DroppedAgain,
}

macro_rules! flawed {
    ($id:literal, $what:literal, [$clause:literal $(, $also:literal)*], $flaw:ident) => {
        Wrong {
            id: $id,
            what: $what,
            clause: $clause,
            also: &[$($also),*],
            harness: || Arc::new(ToyHarness::around(|toy| Arc::new(Flawed::new(toy, Flaw::$flaw)))),
        }
    };
}

pub(super) const WRONG: &[Wrong] = &[
    flawed!("M17", "asserts are checked outside the lock", ["B19"], CheckedOutside),
    flawed!("M19", "absent keys are not locked", ["B20"], AbsentUnlocked),
    flawed!("M21", "locks are taken in the caller's order", ["B21"], CallersOrder),
    flawed!("M22", "mutations become visible one by one", ["B05"], OneByOne),
    flawed!("M33", "the snapshot reads key by key", ["B05"], KeyByKey),
    flawed!("M34", "a handle caches what it read", ["B06"], Cached),
    flawed!("M50", "pages of one listing read at different times", ["B32"], ListedInPages),
    flawed!("M54", "namespace `a` sees `ab`", ["B34"], Joined),
    flawed!("M61", "large transactions are split", ["B23"], Split),
    flawed!("M68", "a dropped future keeps the lock", ["B24"], DroppedKeepsLock),
    flawed!("M72", "one client starves on a hot key", ["B25"], Starved),
    flawed!("M75", "answers swapped over one connection", ["B26"], Swapped),
    flawed!("M78", "the listing lags behind the snapshot", ["B06"], ListingLags),
    Wrong {
        id: "M74",
        what: "two handles, two states",
        clause: "B06",
        also: &[],
        harness: || Arc::new(ToyHarness::apart()),
    },
    flawed!(
        "M161",
        "asserts are checked just outside the lock, without a pause",
        ["B19", "B20", "B22"],
        CheckedJustOutside
    ),
    flawed!("M162", "keys that are only asserted are not locked", ["B20"], UnwrittenUnlocked),
    flawed!("M163", "crossing orders are told to the caller as an error", ["B21"], DeadlockIsAnError),
    flawed!("M164", "a snapshot of more than 1,000 keys is read in pages", ["B05"], InPages),
    flawed!("M165", "a handle caches that a key is absent", ["B06"], AbsenceCached),
    flawed!("M166", "snapshots are one write old", ["B06"], SnapshotLags),
    flawed!("M167", "a dropped future leaves half of its writes", ["B24"], DroppedHalf),
    flawed!("M168", "outcomes swapped over one connection", ["B26"], OutcomesSwapped),
    flawed!("M169", "listings swapped over one connection", ["B26"], ListingsSwapped),
    flawed!("M170", "placeholders are listed while a transaction checks", ["B33"], PlaceholdersForATime),
    flawed!("M171", "the successor is taken from an earlier read", ["B05", "B10", "B21"], StaleSuccessor),
    flawed!("M172", "a pure check looks at one key after the other", ["B15"], CheckKeyByKey),
    flawed!("M173", "transactions on different keys reject one another", ["B10"], DisjointConflict),
    flawed!("M174", "only the first 16 asserts are checked under the lock", ["B20"], FirstAssertsLocked),
    flawed!("M175", "the version of one instant with the value of another one", ["B05"], ValueOfAnother),
    flawed!("M179", "a dropped transaction is sent once more", ["B24"], DroppedAgain),
];

/// Lets others run, on this thread and on others.
async fn gap() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    std::thread::yield_now();
}

/// How long the others must have been quiet before the starved client gets its turn.
const QUIET_MICROS: u64 = 300_000;

/// Sends a transaction again if the call that sent it is dropped before it ends.
struct Again {
    toy: Handle,
    txn: Option<Txn>,
}

impl Drop for Again {
    fn drop(&mut self) {
        if let Some(txn) = self.txn.take() {
            // Nobody is there to be answered.
            let _ = self.toy.txn_now(&txn);
        }
    }
}

struct Flawed {
    toy: Handle,
    flaw: Flaw,
    shared: Arc<Shared>,
    cache: Mutex<BTreeMap<Key, Entry>>,
    /// Answers of requests in flight on this handle.
    snapshots: Mutex<Vec<Snapshot>>,
    outcomes: Mutex<Vec<TxnOutcome>>,
    listings: Mutex<Vec<Vec<Key>>>,
}

/// What all handles of one store have in common besides the store.
struct Shared {
    locked: AtomicBool,
    locks: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>>,
    clock: SystemClock,
    /// When a client other than the one that starves last wrote, in microseconds.
    wrote: AtomicU64,
    /// The state before the last write, by namespace.
    before: Mutex<BTreeMap<String, Space>>,
}

impl Shared {
    /// The one of this store.
    fn of(toy: &Arc<toy::Toy>) -> Arc<Shared> {
        type Known = Mutex<Vec<(std::sync::Weak<toy::Toy>, Arc<Shared>)>>;
        static KNOWN: LazyLock<Known> = LazyLock::new(Known::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(weak, _)| weak.strong_count() > 0);
        if let Some((_, shared)) =
            known.iter().find(|(weak, _)| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(toy)))
        {
            return shared.clone();
        }
        let shared = Arc::new(Shared {
            locked: AtomicBool::new(false),
            locks: Mutex::default(),
            clock: SystemClock::new(),
            wrote: AtomicU64::new(0),
            before: Mutex::default(),
        });
        known.push((Arc::downgrade(toy), shared.clone()));
        shared
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX)
    }

    fn lock_of(&self, key: &Key) -> Arc<tokio::sync::Mutex<()>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_default().clone()
    }
}

fn guard<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Flawed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flawed").field("flaw", &self.flaw).finish_non_exhaustive()
    }
}

impl Flawed {
    fn new(toy: Handle, flaw: Flaw) -> Self {
        let shared = Shared::of(&toy.toy);
        Flawed {
            toy,
            flaw,
            shared,
            cache: Mutex::default(),
            snapshots: Mutex::default(),
            outcomes: Mutex::default(),
            listings: Mutex::default(),
        }
    }

    fn write(&self, txn: &Txn) -> TxnOutcome {
        let mint = mint_incarnation();
        self.toy.with(|space| {
            toy::apply(space, txn, mint);
            space.writes += 1;
        });
        TxnOutcome::Applied
    }

    /// Applies the mutations in parts, with a gap between them, so that others see a part.
    async fn write_in_parts(&self, txn: &Txn, size: usize) -> TxnOutcome {
        let mint = mint_incarnation();
        for (n, part) in txn.mutations().chunks(size).enumerate() {
            if n > 0 {
                gap().await;
            }
            self.toy.with(|space| part.iter().for_each(|mutation| space.mutate(mutation, mint)));
        }
        TxnOutcome::Applied
    }

    fn holds(&self, txn: &Txn) -> bool {
        self.toy.with(|space| toy::holds(space, txn))
    }

    /// Keeps the state before a write, for reads that lag.
    fn write_keeping_the_last(&self, txn: &Txn) -> TxnOutcome {
        let mint = mint_incarnation();
        let mut before = guard(&self.shared.before);
        self.toy.with(|space| {
            if !toy::holds(space, txn) {
                return TxnOutcome::Rejected;
            }
            before.insert(self.toy.namespace.clone(), space.clone());
            toy::apply(space, txn, mint);
            TxnOutcome::Applied
        })
    }

    fn last<T: Default>(&self, read: impl FnOnce(&Space) -> T) -> T {
        guard(&self.shared.before).get(&self.toy.namespace).map(read).unwrap_or_default()
    }

    async fn locked_in_callers_order(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let mut names: Vec<&Key> = txn.asserts().iter().map(|assert| &assert.key).collect();
        names.extend(txn.mutations().iter().map(Mutation::key));
        let mut held = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for name in names.into_iter().filter(|name| seen.insert(*name)) {
            let lock = self.shared.lock_of(name);
            if self.flaw == Flaw::DeadlockIsAnError {
                let Ok(guard) = lock.try_lock_owned() else {
                    return Err(toy::error(ErrorKind::Unavailable, Operation::Txn, "deadlock detected"));
                };
                held.push(guard);
            } else {
                held.push(lock.lock_owned().await);
            }
            gap().await;
        }
        self.toy.txn_now(txn)
    }

    /// Waits for the others to be quiet for a while, which on a hot key they never are.
    async fn after_all_others(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        if self.toy.number % 6 != 2 {
            self.shared.wrote.store(self.shared.micros(), Ordering::Release);
            return self.toy.txn_now(txn);
        }
        while self.shared.micros().saturating_sub(self.shared.wrote.load(Ordering::Acquire)) < QUIET_MICROS {
            gap().await;
        }
        self.toy.txn_now(txn)
    }

    async fn under_a_lock_that_is_not_given_back(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        while self.shared.locked.swap(true, Ordering::AcqRel) {
            gap().await;
        }
        gap().await;
        let outcome = self.toy.txn_now(txn);
        gap().await;
        self.shared.locked.store(false, Ordering::Release);
        outcome
    }

    /// The answer that was given last on this connection, of all that are due.
    async fn any_of<T>(&self, due: &Mutex<Vec<T>>, own: T) -> Option<T> {
        guard(due).push(own);
        gap().await;
        guard(due).pop()
    }

    fn joined(&self, key: &Key) -> Result<Key, BackendError> {
        Key::new(format!("{}{key}", self.toy.namespace))
    }
}

#[async_trait]
impl Backend for Flawed {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        match self.flaw {
            Flaw::KeyByKey | Flaw::InPages => {
                let size = if self.flaw == Flaw::KeyByKey { 1 } else { 1_000 };
                let mut entries = Vec::new();
                for (n, page) in keys.distinct().chunks(size).enumerate() {
                    if n > 0 && size > 1 {
                        gap().await;
                    }
                    let page = KeySet::new(page.iter().map(|key| (*key).clone()))?;
                    entries.extend(self.toy.with(|space| toy::read(space, &page)));
                }
                Ok(Snapshot::new(entries, Some(self.toy.now())))
            }
            Flaw::ValueOfAnother => {
                let versions = self.toy.snapshot_now(keys)?;
                gap().await;
                let values = self.toy.snapshot_now(keys)?;
                let entries = versions.iter().map(|(key, entry)| {
                    let value = values.get(key).and_then(Entry::value).or(entry.value());
                    let entry = match value {
                        Some(value) if entry.is_present() => {
                            Entry::Present { version: entry.version(), value: value.clone() }
                        }
                        _ => Entry::Absent,
                    };
                    (key.clone(), entry)
                });
                Ok(Snapshot::new(entries, versions.store_time()))
            }
            Flaw::Cached | Flaw::AbsenceCached => {
                let fresh = self.toy.snapshot_now(keys)?;
                let mut cache = guard(&self.cache);
                let entries: Vec<(Key, Entry)> = fresh
                    .iter()
                    .map(|(key, entry)| {
                        let kept = match self.flaw {
                            Flaw::Cached => true,
                            _ => *entry == Entry::Absent,
                        };
                        let entry = cache.get(key).unwrap_or(entry).clone();
                        if kept {
                            cache.insert(key.clone(), entry.clone());
                        }
                        (key.clone(), entry)
                    })
                    .collect();
                Ok(Snapshot::new(entries, fresh.store_time()))
            }
            Flaw::SnapshotLags => {
                let entries = self.last(|space| toy::read(space, keys));
                let mut entries: BTreeMap<Key, Entry> = entries.into_iter().collect();
                for key in keys {
                    entries.entry(key.clone()).or_insert(Entry::Absent);
                }
                Ok(Snapshot::new(entries, Some(self.toy.now())))
            }
            Flaw::Swapped => {
                let own = self.toy.snapshot_now(keys)?;
                Ok(self.any_of(&self.snapshots, own).await.unwrap_or_default())
            }
            Flaw::Joined => {
                let inner =
                    KeySet::new(keys.iter().map(|key| self.joined(key)).collect::<Result<Vec<_>, _>>()?)?;
                let answer = self.toy.toy.with("all", |space| toy::read(space, &inner));
                let cut = self.toy.namespace.len();
                let entries =
                    answer.into_iter().map(|(key, entry)| Ok((Key::new(&key.as_str()[cut..])?, entry)));
                Ok(Snapshot::new(entries.collect::<Result<Vec<_>, BackendError>>()?, Some(self.toy.now())))
            }
            _ => self.toy.snapshot_now(keys),
        }
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        match self.flaw {
            Flaw::CheckedOutside => {
                if !self.holds(txn) {
                    return Ok(TxnOutcome::Rejected);
                }
                gap().await;
                Ok(self.write(txn))
            }
            Flaw::CheckedJustOutside => {
                Ok(if self.holds(txn) { self.write(txn) } else { TxnOutcome::Rejected })
            }
            Flaw::AbsentUnlocked | Flaw::UnwrittenUnlocked | Flaw::FirstAssertsLocked => {
                if !self.holds(txn) {
                    return Ok(TxnOutcome::Rejected);
                }
                gap().await;
                let mint = mint_incarnation();
                Ok(self.toy.with(|space| {
                    let written = |key: &Key| txn.mutations().iter().any(|mutation| mutation.key() == key);
                    let locked = txn.asserts().iter().enumerate().filter(|(n, assert)| match self.flaw {
                        Flaw::FirstAssertsLocked => *n < 16,
                        Flaw::AbsentUnlocked => written(&assert.key) || !assert.version.is_missing(),
                        _ => written(&assert.key),
                    });
                    if !locked.into_iter().all(|(_, assert)| toy::assert_holds(space, assert)) {
                        return TxnOutcome::Rejected;
                    }
                    toy::apply(space, txn, mint);
                    TxnOutcome::Applied
                }))
            }
            Flaw::CheckKeyByKey if txn.mutations().is_empty() => {
                for assert in txn.asserts() {
                    if !self.toy.with(|space| toy::assert_holds(space, assert)) {
                        return Ok(TxnOutcome::Rejected);
                    }
                    gap().await;
                }
                Ok(TxnOutcome::Applied)
            }
            Flaw::DroppedAgain => {
                let mut again = Again { toy: self.toy.clone(), txn: Some(txn.clone()) };
                let outcome = self.toy.txn_now(txn);
                gap().await;
                again.txn = None;
                outcome
            }
            Flaw::DisjointConflict => {
                let before = self.toy.with(|space| space.writes);
                gap().await;
                let mint = mint_incarnation();
                Ok(self.toy.with(|space| {
                    let moved = space.writes != before && !txn.asserts().is_empty();
                    if moved || !toy::holds(space, txn) {
                        return TxnOutcome::Rejected;
                    }
                    toy::apply(space, txn, mint);
                    space.writes += 1;
                    TxnOutcome::Applied
                }))
            }
            Flaw::CallersOrder | Flaw::DeadlockIsAnError => self.locked_in_callers_order(txn).await,
            Flaw::OneByOne | Flaw::DroppedHalf | Flaw::Split => {
                let size = if self.flaw == Flaw::Split { 500 } else { 1 };
                if !self.holds(txn) {
                    return Ok(TxnOutcome::Rejected);
                }
                Ok(self.write_in_parts(txn, size).await)
            }
            Flaw::Cached | Flaw::AbsenceCached => {
                let outcome = self.toy.txn_now(txn)?;
                // Its own writes it does notice.
                let mut cache = guard(&self.cache);
                for mutation in txn.mutations() {
                    cache.remove(mutation.key());
                }
                Ok(outcome)
            }
            Flaw::ListingLags | Flaw::SnapshotLags => Ok(self.write_keeping_the_last(txn)),
            Flaw::DroppedKeepsLock => self.under_a_lock_that_is_not_given_back(txn).await,
            Flaw::Starved => self.after_all_others(txn).await,
            Flaw::OutcomesSwapped => {
                let own = self.toy.txn_now(txn)?;
                Ok(self.any_of(&self.outcomes, own).await.unwrap_or(own))
            }
            Flaw::Joined => {
                let mint = mint_incarnation();
                let key = |key: &Key| self.joined(key);
                let mut asserts = Vec::new();
                for assert in txn.asserts() {
                    asserts.push(coord_core::Assert::version(key(&assert.key)?, assert.version));
                }
                let mut mutations = Vec::new();
                for mutation in txn.mutations() {
                    mutations.push(match mutation.value() {
                        Some(value) => Mutation::put(key(mutation.key())?, value.clone()),
                        None => Mutation::delete(key(mutation.key())?),
                    });
                }
                let inner = Txn::new(asserts, mutations)?;
                Ok(self.toy.toy.with("all", |space| {
                    if !toy::holds(space, &inner) {
                        return TxnOutcome::Rejected;
                    }
                    toy::apply(space, &inner, mint);
                    TxnOutcome::Applied
                }))
            }
            Flaw::PlaceholdersForATime => {
                let missing = || {
                    let asserts = txn.asserts().iter().filter(|assert| assert.version.is_missing());
                    asserts.map(|assert| assert.key.clone())
                };
                self.toy.with(|space| space.ghosts.extend(missing()));
                gap().await;
                let outcome = self.toy.txn_now(txn);
                self.toy.with(|space| {
                    missing().for_each(|key| {
                        space.ghosts.remove(&key);
                    })
                });
                outcome
            }
            Flaw::StaleSuccessor => {
                let before = |space: &mut Space| -> Vec<Version> {
                    txn.mutations().iter().map(|mutation| space.version(mutation.key())).collect()
                };
                let versions = self.toy.with(before);
                gap().await;
                let mint = mint_incarnation();
                Ok(self.toy.with(|space| {
                    if !toy::holds(space, txn) {
                        return TxnOutcome::Rejected;
                    }
                    for (mutation, version) in txn.mutations().iter().zip(versions) {
                        match (mutation.value(), version.next().or(Version::first(mint))) {
                            (Some(value), Some(next)) => space.put_as(mutation.key(), value, next),
                            _ => space.mutate(mutation, mint),
                        }
                    }
                    TxnOutcome::Applied
                }))
            }
            _ => self.toy.txn_now(txn),
        }
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        match self.flaw {
            Flaw::ListingLags => Ok(self.last(|space| toy::list(space, range))),
            Flaw::ListedInPages => {
                let mut listed: Vec<Key> = Vec::new();
                while listed.len() < range.limit() {
                    let size = 100.min(range.limit() - listed.len());
                    let mut page = KeyRange::new(range.prefix().clone(), size)?;
                    if let Some(after) = listed.last().or(range.after()) {
                        page = page.start_after(after.clone());
                    }
                    let keys = self.toy.list_now(&page);
                    let full = keys.len() == size;
                    listed.extend(keys);
                    if !full {
                        break;
                    }
                }
                Ok(listed)
            }
            Flaw::ListingsSwapped => {
                let own = self.toy.list_now(range);
                Ok(self.any_of(&self.listings, own).await.unwrap_or_default())
            }
            Flaw::Joined => {
                let namespace = &self.toy.namespace;
                Ok(self.toy.toy.with("all", |space| {
                    let names =
                        space.cells.keys().filter_map(|key| key.as_str().strip_prefix(namespace.as_str()));
                    let keys = names.filter_map(|name| Key::new(name).ok());
                    keys.filter(|key| range.contains(key)).take(range.limit()).collect()
                }))
            }
            Flaw::PlaceholdersForATime => Ok(self.toy.with(|space| {
                let mut keys = toy::list(space, range);
                keys.extend(space.ghosts.iter().filter(|key| range.contains(key)).cloned());
                keys.sort();
                keys.dedup();
                keys.truncate(range.limit());
                keys
            })),
            _ => Ok(self.toy.list_now(range)),
        }
    }
}
