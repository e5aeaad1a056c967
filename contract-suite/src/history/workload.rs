//! What the clients of a recorded run do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coord_core::{
    Assert, Backend, BackendError, Clock as _, Key, KeyRange, KeySet, Mutation, Prefix, SystemClock, Txn,
    TxnOutcome, Version,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Barrier;

use super::event::History;
use super::record::Recorder;

/// A run of several clients on few keys.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Every choice of the clients follows from it (but not how their calls interleave).
    pub seed: u64,
    /// How many clients.
    pub clients: usize,
    /// How many keys.
    pub keys: usize,
    /// How many steps each client takes; a step is a snapshot, a listing, or a snapshot and a transaction.
    pub steps: usize,
}

impl Default for Workload {
    fn default() -> Self {
        Workload { seed: 0, clients: 6, keys: 4, steps: 80 }
    }
}

/// The number of versions that a client remembers of each key, to guess with.
const REMEMBERED: usize = 8;

impl Workload {
    /// Runs it on these handles, used in turn, under keys that begin with `prefix`, and returns what was recorded. Calls that the store could
    /// not serve (unavailable, indeterminate) are part of the history.
    ///
    /// # Errors
    /// What a right store never answers to these requests.
    ///
    /// # Panics
    /// If there is no handle or no key, or if a client panics.
    pub async fn run(&self, handles: &[Arc<dyn Backend>], prefix: &str) -> Result<History, BackendError> {
        let recorder = Recorder::new();
        let barrier = Arc::new(Barrier::new(self.clients));
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..self.clients {
            let client = Client {
                number,
                handle: recorder.wrap(handles[number % handles.len()].clone(), number),
                rng: StdRng::seed_from_u64(self.seed ^ (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                prefix: prefix.to_owned(),
                keys: (0..self.keys)
                    .map(|key| Key::new(format!("{prefix}{key}")))
                    .collect::<Result<_, _>>()?,
                known: BTreeMap::new(),
                values: 0,
            };
            clients.spawn(client.run(self.steps, barrier.clone()));
        }
        while let Some(client) = clients.join_next().await {
            client.expect("a client of the workload does not panic")?;
        }
        match recorder.take_errors().pop() {
            Some(error) => Err(error),
            None => Ok(recorder.history()),
        }
    }
}

struct Client {
    number: usize,
    handle: Arc<dyn Backend>,
    rng: StdRng,
    prefix: String,
    keys: Vec<Key>,
    /// The versions that this client saw last, the newest at the end.
    known: BTreeMap<Key, Vec<Version>>,
    values: u64,
}

impl Client {
    async fn run(mut self, steps: usize, barrier: Arc<Barrier>) -> Result<(), BackendError> {
        barrier.wait().await;
        for _ in 0..steps {
            match self.rng.random_range(0..10) {
                0 | 1 => {
                    let keys = self.some_keys(self.keys.len());
                    self.read(keys).await?;
                }
                2 | 3 => self.list().await?,
                _ => self.write().await?,
            }
            self.pause().await;
        }
        Ok(())
    }

    /// Lets the others go first, now and then.
    async fn pause(&mut self) {
        for _ in 0..self.rng.random_range(0..3) {
            tokio::task::yield_now().await;
        }
    }

    fn some_keys(&mut self, most: usize) -> Vec<Key> {
        let mut keys = self.keys.clone();
        keys.shuffle(&mut self.rng);
        keys.truncate(self.rng.random_range(1..=most.min(keys.len())));
        keys
    }

    fn remember(&mut self, key: &Key, version: Version) {
        let known = self.known.entry(key.clone()).or_default();
        if known.last() != Some(&version) {
            known.push(version);
        }
        if known.len() > REMEMBERED {
            known.remove(0);
        }
    }

    async fn read(&mut self, keys: Vec<Key>) -> Result<(), BackendError> {
        // A failed read says nothing; the recorder keeps the errors that a right store never gives.
        match self.handle.snapshot(&KeySet::new(keys)?).await {
            Ok(snapshot) => {
                for (key, entry) in snapshot.iter() {
                    self.remember(key, entry.version());
                }
            }
            Err(_) => self.wait().await,
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<(), BackendError> {
        let mut range =
            KeyRange::new(Prefix::new(&self.prefix)?, self.rng.random_range(1..=self.keys.len() + 1))?;
        if self.rng.random_ratio(1, 3) {
            range = range.start_after(self.keys[self.rng.random_range(0..self.keys.len())].clone());
        }
        if self.handle.keys(&range).await.is_err() {
            self.wait().await;
        }
        Ok(())
    }

    /// A transaction on one to four keys, most of the time on what was just read.
    async fn write(&mut self) -> Result<(), BackendError> {
        let keys = self.some_keys(4);
        if !self.rng.random_ratio(1, 8) {
            self.read(keys.clone()).await?;
            self.pause().await;
        }
        let guess = self.rng.random_ratio(1, 6).then(|| self.rng.random_range(0..keys.len()));
        let (mut asserts, mut mutations) = (Vec::new(), Vec::new());
        for (place, key) in keys.into_iter().enumerate() {
            let known = self.known.get(&key).map_or(&[][..], |known| known);
            let version = match guess {
                Some(guessed) if guessed == place && !known.is_empty() => {
                    known[self.rng.random_range(0..known.len())]
                }
                _ => known.last().copied().unwrap_or(Version::MISSING),
            };
            asserts.push(Assert::version(key.clone(), version));
            match self.rng.random_range(0..10) {
                // Asserted, not written.
                0..4 => {}
                4..6 if !version.is_missing() => mutations.push(Mutation::delete(key)),
                _ => {
                    self.values += 1;
                    mutations.push(Mutation::put(key, format!("{}.{}", self.number, self.values)));
                }
            }
        }
        asserts.shuffle(&mut self.rng);
        let txn = Txn::new(asserts, mutations)?;
        // What became of it is recorded.
        match self.handle.txn(&txn).await {
            Ok(TxnOutcome::Applied) => self.remember_writes(&txn),
            Ok(TxnOutcome::Rejected) => {}
            Err(_) => self.wait().await,
        }
        Ok(())
    }

    fn remember_writes(&mut self, txn: &Txn) {
        for mutation in txn.mutations() {
            let asserted = txn.asserts().iter().find(|assert| assert.key == *mutation.key());
            let next = match mutation {
                Mutation::Delete { .. } => Some(Version::MISSING),
                Mutation::Put { .. } => asserted.and_then(|assert| assert.version.next()),
            };
            if let Some(next) = next {
                self.remember(mutation.key(), next);
            }
        }
    }

    /// Gives a store that is in trouble a moment, so that a run is not spent on it.
    async fn wait(&self) {
        SystemClock::new().sleep(Duration::from_millis(2)).await;
    }
}
