#![doc = include_str!("../README.md")]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use coord_core::token::mint_incarnation;
use coord_core::{
    Backend, BackendError, Bytes, Clock, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation, Namespace,
    Operation, Snapshot, SystemClock, Txn, TxnOutcome, Version, limits,
};

const NAME: &str = "memory";

type Entries = BTreeMap<Key, (Version, Bytes)>;

/// A store in the memory of this process, with any number of namespaces. Clones are the same store.
#[derive(Clone)]
pub struct MemoryStore {
    namespaces: Arc<Mutex<BTreeMap<Namespace, Entries>>>,
    clock: Arc<dyn Clock>,
}

impl MemoryStore {
    /// A new, empty store with the system's clock.
    #[must_use]
    pub fn new() -> Self {
        MemoryStore::with_clock(Arc::new(SystemClock::new()))
    }

    /// A new, empty store with this clock as its own.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        MemoryStore { namespaces: Arc::default(), clock }
    }

    /// The one store of this process that the URL `memory:` means.
    #[must_use]
    pub fn global() -> Self {
        static GLOBAL: LazyLock<MemoryStore> = LazyLock::new(MemoryStore::new);
        GLOBAL.clone()
    }

    /// The one store of this process that the URL `memory:NAME` means. It is kept until the process ends.
    #[must_use]
    pub fn named(name: &str) -> Self {
        static NAMED: LazyLock<Mutex<BTreeMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.entry(name.to_owned()).or_default().clone()
    }

    /// A handle on one namespace. Handles of one namespace see the same data.
    #[must_use]
    pub fn open(&self, namespace: &Namespace) -> MemoryBackend {
        MemoryBackend { store: self.clone(), namespace: namespace.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Namespace, Entries>> {
        // Nothing panics while the lock is held with the data half changed, so a poisoned lock guards whole data.
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

/// A handle on one namespace of a [`MemoryStore`]: the simplest right [`Backend`], every primitive under one lock.
#[derive(Clone, Debug)]
pub struct MemoryBackend {
    store: MemoryStore,
    namespace: Namespace,
}

#[async_trait]
impl Backend for MemoryBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let namespaces = self.store.lock();
        let entries = namespaces.get(&self.namespace);
        let mut size = 0;
        let mut answer = Vec::with_capacity(keys.len());
        for key in keys.distinct() {
            let entry = match entries.and_then(|entries| entries.get(key)) {
                None => Entry::Absent,
                Some((version, value)) => {
                    size += key.as_bytes().len() + value.len();
                    Entry::Present { version: *version, value: value.clone() }
                }
            };
            answer.push((key.clone(), entry));
        }
        if size > limits::SNAPSHOT_BYTES {
            let message = format!("the snapshot has {size} bytes, more than {}", limits::SNAPSHOT_BYTES);
            return Err(BackendError::new(ErrorKind::Invalid, NAME, Operation::Snapshot, message));
        }
        Ok(Snapshot::new(answer, Some(self.store.clock.now())))
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let mut namespaces = self.store.lock();
        let entries = namespaces.entry(self.namespace.clone()).or_default();
        let version =
            |entries: &Entries, key: &Key| entries.get(key).map_or(Version::MISSING, |(version, _)| *version);
        if txn.asserts().iter().any(|assert| version(entries, &assert.key) != assert.version) {
            return Ok(TxnOutcome::Rejected);
        }
        let incarnation = mint_incarnation();
        // Every successor is known before the first write, so that an exhausted version changes nothing.
        let mut successors = Vec::with_capacity(txn.mutations().len());
        for mutation in txn.mutations() {
            let now = version(entries, mutation.key());
            let next = match mutation {
                Mutation::Delete { .. } => None,
                Mutation::Put { .. } if now.is_missing() => Version::first(incarnation),
                Mutation::Put { key, .. } => Some(now.next().ok_or_else(|| {
                    let message = format!("the key {key:?} has been written 2^63 times");
                    BackendError::new(ErrorKind::Corrupt, NAME, Operation::Txn, message)
                })?),
            };
            successors.push(next);
        }
        for (mutation, next) in txn.mutations().iter().zip(successors) {
            match (mutation.value(), next) {
                (Some(value), Some(version)) => {
                    entries.insert(mutation.key().clone(), (version, value.clone()));
                }
                _ => {
                    entries.remove(mutation.key());
                }
            }
        }
        Ok(TxnOutcome::Applied)
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let namespaces = self.store.lock();
        let Some(entries) = namespaces.get(&self.namespace) else { return Ok(Vec::new()) };
        let prefix = range.prefix().as_str();
        let lower = match range.after() {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        Ok(entries
            .range::<str, _>((lower, Bound::Unbounded))
            .map(|(key, _)| key)
            .take_while(|key| range.prefix().matches(key))
            .take(range.limit())
            .cloned()
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::{Assert, ManualClock, Prefix, Timestamp};

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn namespace(text: &str) -> Namespace {
        Namespace::new(text).unwrap()
    }

    async fn put(backend: &MemoryBackend, text: &str, value: impl Into<Bytes>) {
        let txn = Txn::new([], [Mutation::put(key(text), value)]).unwrap();
        assert_eq!(backend.txn(&txn).await.unwrap(), TxnOutcome::Applied);
    }

    async fn entry(backend: &MemoryBackend, text: &str) -> Entry {
        let snapshot = backend.snapshot(&KeySet::new([key(text)]).unwrap()).await.unwrap();
        snapshot.require(&key(text)).unwrap().clone()
    }

    async fn list(backend: &MemoryBackend, range: KeyRange) -> Vec<String> {
        backend.keys(&range).await.unwrap().iter().map(Key::to_string).collect()
    }

    fn range(prefix: &str, limit: usize) -> KeyRange {
        KeyRange::new(Prefix::new(prefix).unwrap(), limit).unwrap()
    }

    #[tokio::test]
    async fn a_version_counts_the_writes_of_one_life() {
        let store = MemoryStore::new();
        let (a, b) = (store.open(&namespace("lives")), store.open(&namespace("lives")));
        put(&a, "k", "v").await;
        let first = entry(&b, "k").await.version();
        assert_eq!(first.count(), 1);
        put(&b, "k", "v").await;
        assert_eq!(entry(&a, "k").await.version(), first.next().unwrap());
        let delete = Txn::new([], [Mutation::delete(key("k")), Mutation::delete(key("absent"))]).unwrap();
        assert_eq!(a.txn(&delete).await.unwrap(), TxnOutcome::Applied);
        assert_eq!(entry(&b, "k").await, Entry::Absent);
        put(&b, "k", "v").await;
        let second = entry(&a, "k").await.version();
        assert!(second.count() == 1 && second.incarnation() != first.incarnation());
    }

    #[tokio::test]
    async fn one_assert_that_fails_changes_nothing() {
        let backend = MemoryStore::new().open(&namespace("asserts"));
        put(&backend, "a", "1").await;
        let held = entry(&backend, "a").await;
        let right = Assert::version(key("a"), held.version());
        let (newer, other) = (held.version().next().unwrap(), Version::first(1).unwrap());
        for wrong in [
            Assert::missing(key("a")),
            Assert::version(key("a"), newer),
            Assert::version(key("a"), other),
            Assert::version(key("b"), held.version()),
        ] {
            for asserts in
                [vec![right.clone(), wrong.clone()], vec![wrong.clone(), right.clone()], vec![wrong]]
            {
                let mutations = [Mutation::put(key("a"), "2"), Mutation::put(key("b"), "2")];
                let txn = Txn::new(asserts, mutations).unwrap();
                assert_eq!(backend.txn(&txn).await.unwrap(), TxnOutcome::Rejected);
                assert_eq!(entry(&backend, "a").await, held);
                assert_eq!(entry(&backend, "b").await, Entry::Absent);
            }
        }
        let check = Txn::new([right.clone(), right, Assert::missing(key("b"))], []).unwrap();
        assert_eq!(backend.txn(&check).await.unwrap(), TxnOutcome::Applied);
        assert_eq!(backend.txn(&Txn::default()).await.unwrap(), TxnOutcome::Applied);
        assert_eq!(entry(&backend, "a").await, held);
    }

    #[tokio::test]
    async fn a_key_that_was_written_too_often_changes_nothing() {
        let store = MemoryStore::new();
        let backend = store.open(&namespace("end"));
        put(&backend, "k", "v").await;
        let last = Version::new(7, Version::MAX_HALF).unwrap();
        store.lock().get_mut(&namespace("end")).unwrap().get_mut("k").unwrap().0 = last;
        let txn = Txn::new([], [Mutation::put(key("first"), ""), Mutation::put(key("k"), "")]).unwrap();
        assert_eq!(backend.txn(&txn).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(entry(&backend, "first").await, Entry::Absent);
        assert_eq!(entry(&backend, "k").await.version(), last);
    }

    #[tokio::test]
    async fn listings_are_in_byte_order_and_page_without_gap_or_repeat() {
        let backend = MemoryStore::new().open(&namespace("listing"));
        for name in ["a", "aB", "a_", "ab", "b", "é", "\u{10FFFF}"] {
            put(&backend, name, "").await;
        }
        assert_eq!(list(&backend, range("", 100)).await, ["a", "aB", "a_", "ab", "b", "é", "\u{10FFFF}"]);
        assert_eq!(list(&backend, range("a", 100)).await, ["a", "aB", "a_", "ab"]);
        assert_eq!(list(&backend, range("a", 2)).await, ["a", "aB"]);
        assert_eq!(list(&backend, range("a", 2).start_after(key("aB"))).await, ["a_", "ab"]);
        assert_eq!(list(&backend, range("a", 2).start_after(key("ab"))).await, [""; 0]);
        // What comes before the prefix, and a key that does not exist, are starts as well.
        assert_eq!(list(&backend, range("b", 2).start_after(key("a"))).await, ["b"]);
        assert_eq!(list(&backend, range("", 1).start_after(key("aZ"))).await, ["a_"]);
        assert_eq!(list(&MemoryStore::new().open(&namespace("listing")), range("", 1)).await, [""; 0]);
    }

    #[tokio::test]
    async fn a_snapshot_has_16_mib_and_not_a_byte_more() {
        let backend = MemoryStore::new().open(&namespace("size"));
        let names: Vec<String> = (0..32).map(|n| format!("{n:04}")).collect();
        for name in &names {
            put(&backend, name, vec![0; limits::VALUE_BYTES - 4]).await;
        }
        let keys = |more: &[&str]| {
            let all = names.iter().chain(&names).map(String::as_str).chain(more.iter().copied());
            KeySet::new(all.map(key)).unwrap()
        };
        let whole = backend.snapshot(&keys(&["absent"])).await.unwrap();
        assert_eq!((whole.size(), whole.len()), (limits::SNAPSHOT_BYTES, 33));
        put(&backend, "x", "").await;
        assert_eq!(backend.snapshot(&keys(&["x"])).await.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[tokio::test]
    async fn the_time_is_that_of_the_clock_of_the_store() {
        let time = Timestamp::from_micros(1_234_567).unwrap();
        let backend = MemoryStore::with_clock(Arc::new(ManualClock::new(time))).open(&namespace("time"));
        assert_eq!(backend.snapshot(&KeySet::empty()).await.unwrap().store_time(), Some(time));
    }

    #[tokio::test]
    async fn stores_and_namespaces_are_disjoint_and_names_find_them_again() {
        let a = MemoryStore::named("disjoint-a");
        put(&a.open(&namespace("n")), "k", "").await;
        assert!(entry(&MemoryStore::named("disjoint-a").open(&namespace("n")), "k").await.is_present());
        for other in [MemoryStore::named("disjoint-b"), MemoryStore::global(), MemoryStore::new()] {
            assert_eq!(entry(&other.open(&namespace("n")), "k").await, Entry::Absent);
        }
        for other in ["na", "N", "m"] {
            assert_eq!(entry(&a.open(&namespace(other)), "k").await, Entry::Absent);
        }
    }
}
