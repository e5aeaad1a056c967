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
