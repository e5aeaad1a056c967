//! A small right store, made of parts that can be bent one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use coord_core::token::mint_incarnation;
use coord_core::{
    Assert, Backend, BackendError, Bytes, Clock, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation,
    Operation, Snapshot, SystemClock, Timestamp, Txn, TxnOutcome, Version, limits,
};

pub(crate) const NAME: &str = "toy";

/// What lies under a key.
#[derive(Clone, PartialEq)]
pub(crate) enum Cell {
    Ours(Version, Bytes),
    Foreign(Bytes),
}

/// One namespace.
#[derive(Clone, Default)]
pub(crate) struct Space {
    pub(crate) cells: BTreeMap<Key, Cell>,
    /// For what is wrong only: the value that each version had.
    pub(crate) history: BTreeMap<(Key, Version), Bytes>,
    /// For what is wrong only: keys that somebody remembers although they are not there.
    pub(crate) ghosts: BTreeSet<Key>,
    /// How many transactions were applied.
    pub(crate) writes: u64,
}

impl Space {
    pub(crate) fn version(&self, key: &Key) -> Version {
        match self.cells.get(key) {
            Some(Cell::Ours(version, _)) => *version,
            _ => Version::MISSING,
        }
    }

    pub(crate) fn value(&self, key: &Key) -> Option<&Bytes> {
        match self.cells.get(key) {
            Some(Cell::Ours(_, value)) => Some(value),
            _ => None,
        }
    }

    /// Puts one key, right: the successor of its version, or count 1 of a new incarnation.
    pub(crate) fn put(&mut self, key: &Key, value: &Bytes, mint: u64) {
        let version = self.version(key).next().or(Version::first(mint)).unwrap_or(Version::MISSING);
        self.put_as(key, value, version);
    }

    pub(crate) fn put_as(&mut self, key: &Key, value: &Bytes, version: Version) {
        self.history.insert((key.clone(), version), value.clone());
        self.cells.insert(key.clone(), Cell::Ours(version, value.clone()));
    }

    pub(crate) fn mutate(&mut self, mutation: &Mutation, mint: u64) {
        match mutation {
            Mutation::Put { key, value } => self.put(key, value, mint),
            Mutation::Delete { key } => {
                self.cells.remove(key);
            }
        }
    }
}

/// All namespaces.
#[derive(Default)]
pub(crate) struct Toy {
    spaces: Mutex<BTreeMap<String, Space>>,
    pub(crate) handles: AtomicU64,
}

impl Toy {
    pub(crate) fn with<T>(&self, namespace: &str, work: impl FnOnce(&mut Space) -> T) -> T {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        work(spaces.entry(namespace.to_owned()).or_default())
    }
}

/// The parts of the store.
pub(crate) struct Bend {
    pub(crate) space: fn(&str) -> String,
    /// What is foreign where a request meets it.
    pub(crate) sound: fn(&Space, &[&Key], Operation) -> Result<(), BackendError>,
    pub(crate) holds: fn(&Space, &Txn) -> bool,
    pub(crate) apply: fn(&mut Space, &Txn, u64),
    /// What a rejected transaction does, and answers.
    pub(crate) reject: fn(&mut Space, &Txn) -> Result<TxnOutcome, BackendError>,
    pub(crate) mint: fn(&Handle) -> u64,
    pub(crate) read: fn(&Space, &KeySet) -> Vec<(Key, Entry)>,
    pub(crate) fits: fn(usize, &KeySet) -> bool,
    pub(crate) time: fn(&Handle, &KeySet) -> Option<Timestamp>,
    pub(crate) list: fn(&Space, &KeyRange) -> Vec<Key>,
}

/// Nothing is bent.
pub(crate) const RIGHT: Bend = Bend { space, sound, holds, apply, reject, mint, read, fits, time, list };

fn space(namespace: &str) -> String {
    namespace.to_owned()
}

pub(crate) fn sound(space: &Space, keys: &[&Key], operation: Operation) -> Result<(), BackendError> {
    match keys.iter().find(|key| matches!(space.cells.get(**key), Some(Cell::Foreign(_)))) {
        None => Ok(()),
        Some(key) => {
            Err(error(ErrorKind::Corrupt, operation, format!("what lies under {key:?} is not ours")))
        }
    }
}

pub(crate) fn assert_holds(space: &Space, assert: &Assert) -> bool {
    space.version(&assert.key) == assert.version
}

pub(crate) fn holds(space: &Space, txn: &Txn) -> bool {
    txn.asserts().iter().all(|assert| assert_holds(space, assert))
}

pub(crate) fn apply(space: &mut Space, txn: &Txn, mint: u64) {
    for mutation in txn.mutations() {
        space.mutate(mutation, mint);
    }
}

pub(crate) fn reject(_: &mut Space, _: &Txn) -> Result<TxnOutcome, BackendError> {
    Ok(TxnOutcome::Rejected)
}

fn mint(_: &Handle) -> u64 {
    mint_incarnation()
}

pub(crate) fn entry(space: &Space, key: &Key) -> Entry {
    match space.cells.get(key) {
        Some(Cell::Ours(version, value)) => Entry::Present { version: *version, value: value.clone() },
        _ => Entry::Absent,
    }
}

pub(crate) fn read(space: &Space, keys: &KeySet) -> Vec<(Key, Entry)> {
    keys.distinct().into_iter().map(|key| (key.clone(), entry(space, key))).collect()
}

fn fits(size: usize, _: &KeySet) -> bool {
    size <= limits::SNAPSHOT_BYTES
}

fn time(handle: &Handle, _: &KeySet) -> Option<Timestamp> {
    Some(handle.now())
}

pub(crate) fn list(space: &Space, range: &KeyRange) -> Vec<Key> {
    space.cells.keys().filter(|key| range.contains(key)).take(range.limit()).cloned().collect()
}

pub(crate) fn error(kind: ErrorKind, operation: Operation, message: impl Into<String>) -> BackendError {
    BackendError::new(kind, NAME, operation, message)
}

/// A handle on a namespace of a toy store.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) toy: Arc<Toy>,
    pub(crate) bend: &'static Bend,
    pub(crate) namespace: String,
    /// The handles of a store are numbered from 0.
    pub(crate) number: u64,
    pub(crate) clock: SystemClock,
    pub(crate) opened: Timestamp,
    /// How many incarnations this handle has minted.
    pub(crate) minted: Arc<AtomicU64>,
}

impl Handle {
    pub(crate) fn new(toy: &Arc<Toy>, bend: &'static Bend, namespace: &str) -> Self {
        let clock = SystemClock::new();
        Handle {
            toy: toy.clone(),
            bend,
            namespace: (bend.space)(namespace),
            number: toy.handles.fetch_add(1, Ordering::Relaxed),
            clock,
            opened: clock.now(),
            minted: Arc::default(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Space) -> T) -> T {
        self.toy.with(&self.namespace, work)
    }

    pub(crate) fn snapshot_now(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.with(|space| {
            (self.bend.sound)(space, &keys.distinct(), Operation::Snapshot)?;
            let entries = (self.bend.read)(space, keys);
            let size: usize = entries
                .iter()
                .map(|(key, entry)| entry.value().map_or(0, |v| v.len() + key.as_bytes().len()))
                .sum();
            if !(self.bend.fits)(size, keys) {
                return Err(error(
                    ErrorKind::Invalid,
                    Operation::Snapshot,
                    format!("an answer of {size} bytes"),
                ));
            }
            Ok(Snapshot::new(entries, (self.bend.time)(self, keys)))
        })
    }

    pub(crate) fn txn_now(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let mint = (self.bend.mint)(self);
        self.with(|space| {
            let keys: Vec<&Key> = (txn.asserts().iter().map(|assert| &assert.key))
                .chain(txn.mutations().iter().map(Mutation::key))
                .collect();
            (self.bend.sound)(space, &keys, Operation::Txn)?;
            if !(self.bend.holds)(space, txn) {
                return (self.bend.reject)(space, txn);
            }
            (self.bend.apply)(space, txn, mint);
            space.writes += 1;
            Ok(TxnOutcome::Applied)
        })
    }

    pub(crate) fn list_now(&self, range: &KeyRange) -> Vec<Key> {
        self.with(|space| (self.bend.list)(space, range))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Handle {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.snapshot_now(keys)
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.txn_now(txn)
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        Ok(self.list_now(range))
    }
}
