//! Wrong only now and then, or only if several things come together: what recorded histories and model runs are for.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use coord_core::{
    Assert, Backend, BackendError, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation, Namespace, Operation,
    Prefix, Snapshot, Txn, TxnOutcome, limits,
};
use coord_memory::{MemoryBackend, MemoryStore};
use tokio::task::yield_now;

use crate::harness::Harness;

use super::Wrong;

macro_rules! wrong {
    ($id:literal, $clause:literal, $fault:ident one in $rate:literal, $what:literal) => {
        Wrong { id: $id, what: $what, clause: $clause, also: &[], harness: || rarely(Fault::$fault, $rate) }
    };
}

pub(super) const WRONG: &[Wrong] = &[
    wrong!("H01", "B50", TornSnapshot one in 4, "some snapshots are read key by key"),
    wrong!("H02", "B50", CachedSnapshot one in 100, "now and then a snapshot is the one that the handle gave before"),
    wrong!("H03", "B50", CachedListing one in 5, "now and then a listing is the one that the handle gave before"),
    wrong!("H04", "B50", TornListing one in 1, "a listing is read in two pages"),
    wrong!("H05", "B50", WriteSkew one in 4, "some asserts on unwritten keys are checked before the transaction"),
    wrong!("H06", "B50", LostUpdate one in 8, "now and then all asserts are checked before the transaction"),
    wrong!("H07", "B50", SplitWrites one in 4, "some transactions happen write by write"),
    wrong!("H08", "B50", AppliedAsRejected one in 100, "now and then what was applied is answered rejected"),
    wrong!("H09", "B50", NotApplied one in 100, "now and then what was not applied is answered applied"),
    wrong!("H10", "B50", RejectedForNothing one in 100, "now and then it rejects without a reason"),
    wrong!("H11", "B50", CountsOnly one in 1, "versions are compared by their counts alone"),
    wrong!("H12", "B50", GhostKey one in 10, "some listings show a key that the last transaction deleted"),
    wrong!("H13", "B50", MissingUnchecked one in 1, "that a key is missing is not checked unless it is written"),
    wrong!("H14", "B50", Refuses one in 1, "every transaction is refused, so that nothing can be proved"),
    wrong!("H41", "B52", CountsOnly one in 1, "versions are compared by their counts alone"),
    wrong!("H42", "B52", GhostKey one in 1, "a listing shows a key that the last transaction deleted"),
    wrong!("H43", "B52", MissingUnchecked one in 1, "that a key is missing is not checked unless it is written"),
    wrong!("H44", "B52", EmptyDeletes one in 1, "putting the empty value deletes"),
    wrong!("H45", "B52", WildPrefix one in 1, "an underscore in a prefix stands for any character"),
    wrong!("H46", "B52", FoldedPrefix one in 1, "a prefix matches in either case"),
    wrong!("H47", "B52", StartsAt one in 1, "a listing starts at the key that it should start after"),
    wrong!("H48", "B52", EqualBytesStay one in 1, "putting equal bytes moves no version"),
    wrong!("H49", "B52", LastAssertOnly one in 1, "only the last assert is checked"),
    wrong!("H50", "B52", RejectedWrites one in 1, "a rejected transaction writes its last key all the same"),
    wrong!("H51", "B52", RejectedForNothing one in 8, "now and then it rejects without a reason"),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    TornSnapshot,
    CachedSnapshot,
    CachedListing,
    TornListing,
    WriteSkew,
    LostUpdate,
    SplitWrites,
    AppliedAsRejected,
    NotApplied,
    RejectedForNothing,
    CountsOnly,
    GhostKey,
    MissingUnchecked,
    Refuses,
    EmptyDeletes,
    WildPrefix,
    FoldedPrefix,
    StartsAt,
    EqualBytesStay,
    LastAssertOnly,
    RejectedWrites,
}

/// A memory store whose handles have this fault once in `rate` times that it could show.
fn rarely(fault: Fault, rate: u64) -> Arc<dyn Harness> {
    Arc::new(RareHarness { store: MemoryStore::new(), fault, rate })
}

struct RareHarness {
    store: MemoryStore,
    fault: Fault,
    rate: u64,
}

#[async_trait]
impl Harness for RareHarness {
    fn name(&self) -> &str {
        "wrong"
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        Ok(Arc::new(Rare {
            inner: self.store.open(&Namespace::new(namespace)?),
            fault: self.fault,
            rate: self.rate,
            chances: AtomicU64::new(0),
            snapshots: Mutex::default(),
            listing: Mutex::default(),
            deleted: Mutex::default(),
        }))
    }
}

struct Rare {
    inner: MemoryBackend,
    fault: Fault,
    rate: u64,
    chances: AtomicU64,
    snapshots: Mutex<Vec<(KeySet, Snapshot)>>,
    listing: Mutex<Option<(KeyRange, Vec<Key>)>>,
    deleted: Mutex<Vec<Key>>,
}

impl fmt::Debug for Rare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rare").field(&self.fault).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rare {
    /// Whether this is the fault, and its turn.
    fn is_wrong(&self, fault: Fault) -> bool {
        self.fault == fault && (self.chances.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.rate)
    }

    async fn entry(&self, key: &Key) -> Result<Entry, BackendError> {
        let snapshot = self.inner.snapshot(&KeySet::new([key.clone()])?).await?;
        snapshot.require(key).cloned()
    }

    /// Checks some asserts by themselves, and returns those that are left if they held.
    async fn check_first(
        &self,
        txn: &Txn,
        which: impl Fn(&Assert) -> bool,
    ) -> Result<Option<Vec<Assert>>, BackendError> {
        let (first, rest): (Vec<_>, Vec<_>) = txn.asserts().iter().cloned().partition(which);
        let held = self.inner.txn(&Txn::new(first, [])?).await?.is_applied();
        yield_now().await;
        Ok(held.then_some(rest))
    }

    /// The transaction as the fault bends it.
    async fn bent(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let writes = |key: &Key| txn.mutations().iter().any(|mutation| mutation.key() == key);
        let mutations = || txn.mutations().iter().cloned();
        match self.fault {
            Fault::WriteSkew => {
                let Some(rest) = self.check_first(txn, |assert| !writes(&assert.key)).await? else {
                    return Ok(TxnOutcome::Rejected);
                };
                self.inner.txn(&Txn::new(rest, mutations())?).await
            }
            Fault::LostUpdate => {
                if self.check_first(txn, |_| true).await?.is_none() {
                    return Ok(TxnOutcome::Rejected);
                }
                self.inner.txn(&Txn::new([], mutations())?).await
            }
            Fault::SplitWrites => {
                let (first, rest) = txn.mutations().split_at(txn.mutations().len().min(1));
                if !self.inner.txn(&Txn::new(txn.asserts().to_vec(), first.to_vec())?).await?.is_applied() {
                    return Ok(TxnOutcome::Rejected);
                }
                yield_now().await;
                self.inner.txn(&Txn::new([], rest.to_vec())?).await
            }
            Fault::AppliedAsRejected => {
                let _ = self.inner.txn(txn).await?;
                Ok(TxnOutcome::Rejected)
            }
            Fault::NotApplied => self.inner.txn(&Txn::new(txn.asserts().to_vec(), [])?).await,
            Fault::RejectedForNothing => Ok(TxnOutcome::Rejected),
            Fault::Refuses => {
                let message = "this store takes no transactions";
                Err(BackendError::new(ErrorKind::Unavailable, "wrong", Operation::Txn, message))
            }
            Fault::CountsOnly => {
                let mut asserts = Vec::new();
                for assert in txn.asserts() {
                    let now = self.entry(&assert.key).await?.version();
                    let same = now.count() == assert.version.count();
                    asserts
                        .push(Assert { version: if same { now } else { assert.version }, ..assert.clone() });
                }
                self.inner.txn(&Txn::new(asserts, mutations())?).await
            }
            Fault::MissingUnchecked => {
                let checked = |assert: &&Assert| !assert.version.is_missing() || writes(&assert.key);
                let asserts = txn.asserts().iter().filter(checked).cloned();
                self.inner.txn(&Txn::new(asserts, mutations())?).await
            }
            Fault::EmptyDeletes => {
                let bent = mutations().map(|mutation| match mutation.value() {
                    Some(value) if value.is_empty() => Mutation::delete(mutation.key().clone()),
                    _ => mutation,
                });
                self.inner.txn(&Txn::new(txn.asserts().to_vec(), bent)?).await
            }
            Fault::EqualBytesStay => {
                let mut moving = Vec::new();
                for mutation in txn.mutations() {
                    let entry = self.entry(mutation.key()).await?;
                    if mutation.value().is_none() || mutation.value() != entry.value() {
                        moving.push(mutation.clone());
                    }
                }
                self.inner.txn(&Txn::new(txn.asserts().to_vec(), moving)?).await
            }
            Fault::LastAssertOnly => {
                self.inner.txn(&Txn::new(txn.asserts().last().cloned(), mutations())?).await
            }
            Fault::RejectedWrites => {
                let outcome = self.inner.txn(txn).await?;
                if !outcome.is_applied() {
                    let _ = self.inner.txn(&Txn::new([], mutations().last())?).await?;
                }
                Ok(outcome)
            }
            _ => self.inner.txn(txn).await,
        }
    }

    /// Lists the keys of a range, as this sees what a prefix matches.
    async fn matching(
        &self,
        range: &KeyRange,
        matches: impl Fn(&str) -> bool,
    ) -> Result<Vec<Key>, BackendError> {
        let all = self.inner.keys(&KeyRange::new(Prefix::all(), limits::LISTING_KEYS)?).await?;
        let after = |key: &Key| range.after().is_none_or(|after| key > after);
        Ok(all.into_iter().filter(|key| matches(key.as_str()) && after(key)).take(range.limit()).collect())
    }
}

/// Whether a text begins with a pattern in which `_` stands for any character.
fn begins_like(text: &str, pattern: &str) -> bool {
    let mut characters = text.chars();
    pattern.chars().all(|wanted| characters.next().is_some_and(|found| wanted == '_' || wanted == found))
}

#[async_trait]
impl Backend for Rare {
    fn name(&self) -> &'static str {
        "wrong"
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        if self.is_wrong(Fault::TornSnapshot) {
            let mut entries = Vec::new();
            for key in keys.distinct() {
                entries.push((key.clone(), self.entry(key).await?));
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
        lock(&self.deleted).clear();
        let outcome =
            if self.is_wrong(self.fault) { self.bent(txn).await? } else { self.inner.txn(txn).await? };
        if outcome.is_applied() {
            let deletes = txn.mutations().iter().filter(|mutation| mutation.value().is_none());
            *lock(&self.deleted) = deletes.map(|mutation| mutation.key().clone()).collect();
        }
        Ok(outcome)
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        if self.is_wrong(Fault::TornListing) && range.limit() > 1 {
            let half = KeyRange::new(range.prefix().clone(), range.limit() / 2)?;
            let half = match range.after() {
                Some(after) => half.start_after(after.clone()),
                None => half,
            };
            let mut keys = self.inner.keys(&half).await?;
            yield_now().await;
            if let Some(last) = keys.last() {
                let rest = KeyRange::new(range.prefix().clone(), range.limit() - keys.len())?;
                keys.extend(self.inner.keys(&rest.start_after(last.clone())).await?);
            }
            return Ok(keys);
        }
        let prefix = range.prefix().as_str();
        match self.fault {
            Fault::WildPrefix => return self.matching(range, |key| begins_like(key, prefix)).await,
            Fault::FoldedPrefix => {
                let prefix = prefix.to_lowercase();
                return self.matching(range, |key| key.to_lowercase().starts_with(&prefix)).await;
            }
            _ => {}
        }
        let mut keys = self.inner.keys(range).await?;
        let mut extra = Vec::new();
        if self.is_wrong(Fault::GhostKey) {
            extra = lock(&self.deleted).iter().filter(|key| range.contains(key)).cloned().collect();
        }
        if let Some(after) = range.after().filter(|after| range.prefix().matches(after))
            && self.is_wrong(Fault::StartsAt)
            && self.entry(after).await?.is_present()
        {
            extra.push(after.clone());
        }
        keys.extend(extra);
        keys.sort();
        keys.dedup();
        keys.truncate(range.limit());
        let wrong = self.is_wrong(Fault::CachedListing);
        let mut cached = lock(&self.listing);
        match &*cached {
            Some((of, keys)) if wrong && of == range => return Ok(keys.clone()),
            _ => *cached = Some((range.clone(), keys.clone())),
        }
        Ok(keys)
    }
}
