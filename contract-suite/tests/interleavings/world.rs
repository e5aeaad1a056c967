//! A store under the scheduler: between any two calls of a primitive, and before and after each, another client may go on.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::board::{AgentId, BoardAdapter, BoardOptions, Outcome, Task, TaskId, TaskSpec, check};
use coord_core::board::{Board as _, ExtendedBoard as _};
use coord_core::effects::{EffectAdapter, EffectOptions};
use coord_core::{
    Backend, BackendError, Clock, ErrorKind, Key, KeyRange, KeySet, Namespace, Operation, Snapshot,
    Timestamp, Txn, TxnOutcome,
};
use coord_memory::{MemoryBackend, MemoryStore};
use shuttle::future::{JoinHandle, spawn, yield_now};
use shuttle::rand::Rng as _;

/// A point at which the scheduler may let another client go on. An atomic of the scheduler is one; a yield would be more, a wish to
/// be passed over.
fn point() {
    shuttle::sync::atomic::AtomicUsize::new(0).fetch_add(1, Ordering::SeqCst);
}

/// The time of the store, which only the test moves. Waiting passes no time, but lets the others go on.
#[derive(Debug)]
struct StepClock(AtomicI64);

#[async_trait]
impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst)).expect("the test does not go back before 1970")
    }
    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst).unsigned_abs())
    }
    async fn sleep(&self, _: Duration) {
        yield_now().await;
    }
}

/// What becomes of a transaction whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loss {
    /// It does not happen.
    NotApplied,
    /// It happens.
    Applied,
    /// It happens later, at any time.
    Later,
    /// It happens, and once more, later.
    Twice,
}

/// What is wrong with a store on purpose, so that the scenarios have something to find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flaw {
    /// Asserts are checked at one instant, and the writes happen at another.
    TornTxn,
    /// A snapshot reads key by key.
    TornSnapshot,
    /// Asserts are ignored.
    Unasserted,
}

/// One client's handle.
struct Stepped {
    inner: MemoryBackend,
    clock: Arc<StepClock>,
    flaw: Option<Flaw>,
    /// Which of the client's transactions is lost, counted from 0, and how.
    loss: Option<(usize, Loss)>,
    txns: AtomicUsize,
}

impl fmt::Debug for Stepped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stepped").finish_non_exhaustive()
    }
}

async fn apply(inner: &MemoryBackend, flaw: Option<Flaw>, txn: &Txn) -> Result<TxnOutcome, BackendError> {
    match flaw {
        None | Some(Flaw::TornSnapshot) => inner.txn(txn).await,
        Some(Flaw::Unasserted) => inner.txn(&Txn::new([], txn.mutations().to_vec())?).await,
        Some(Flaw::TornTxn) => {
            if !inner.txn(&Txn::new(txn.asserts().to_vec(), [])?).await?.is_applied() {
                return Ok(TxnOutcome::Rejected);
            }
            point();
            inner.txn(&Txn::new([], txn.mutations().to_vec())?).await
        }
    }
}

#[async_trait]
impl Backend for Stepped {
    fn name(&self) -> &'static str {
        "stepped"
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        point();
        let snapshot = if self.flaw == Some(Flaw::TornSnapshot) {
            let mut entries = Vec::new();
            for key in keys.distinct() {
                let one = self.inner.snapshot(&KeySet::new([key.clone()])?).await?;
                entries.push((key.clone(), one.require(key)?.clone()));
                point();
            }
            Ok(Snapshot::new(entries, Some(self.clock.now())))
        } else {
            self.inner.snapshot(keys).await
        };
        point();
        snapshot
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        point();
        let number = self.txns.fetch_add(1, Ordering::SeqCst);
        let outcome = match self.loss {
            Some((lost, loss)) if lost == number => {
                if matches!(loss, Loss::Applied | Loss::Twice) {
                    let _ = apply(&self.inner, self.flaw, txn).await?;
                }
                if matches!(loss, Loss::Later | Loss::Twice) {
                    let (inner, flaw, txn) = (self.inner.clone(), self.flaw, txn.clone());
                    spawn(async move {
                        point();
                        // Nobody hears of it.
                        let _ = apply(&inner, flaw, &txn).await;
                    });
                }
                let message = "the answer is lost";
                Err(BackendError::new(ErrorKind::Indeterminate, "stepped", Operation::Txn, message))
            }
            _ => apply(&self.inner, self.flaw, txn).await,
        };
        point();
        outcome
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        point();
        let keys = self.inner.keys(range).await;
        point();
        keys
    }
}

/// One store and its time.
#[derive(Clone)]
pub(crate) struct World {
    store: MemoryStore,
    clock: Arc<StepClock>,
    flaw: Option<Flaw>,
}

pub(crate) type Client = BoardAdapter<Box<dyn Backend>>;
pub(crate) type Effects = EffectAdapter<Box<dyn Backend>>;

impl World {
    /// An empty store.
    pub(crate) fn new(flaw: Option<Flaw>) -> Self {
        let clock = Arc::new(StepClock(AtomicI64::new(1_000_000_000)));
        World { store: MemoryStore::with_clock(clock.clone()), clock, flaw }
    }

    fn open(&self) -> MemoryBackend {
        self.store.open(&Namespace::default())
    }

    async fn client(&self, backend: Box<dyn Backend>) -> Client {
        let options = BoardOptions::default().clock(self.clock.clone());
        BoardAdapter::open(backend, options).await.expect("a board can be opened")
    }

    /// A board whose calls are no points: to prepare, and to look at the end.
    pub(crate) async fn still(&self) -> Client {
        self.client(Box::new(self.open())).await
    }

    fn stepped(&self, loss: Option<(usize, Loss)>) -> Stepped {
        let (inner, clock) = (self.open(), self.clock.clone());
        Stepped { inner, clock, flaw: self.flaw, loss, txns: AtomicUsize::new(0) }
    }

    /// A client whose calls are points.
    pub(crate) async fn board(&self) -> Client {
        self.client(Box::new(self.stepped(None))).await
    }

    /// A client one of whose first transactions may be lost; the schedule says which and how.
    pub(crate) async fn unlucky(&self) -> Client {
        let mut random = shuttle::rand::thread_rng();
        let losses = [Loss::NotApplied, Loss::Applied, Loss::Later, Loss::Twice];
        let loss = Some((random.gen_range(0..2), losses[random.gen_range(0..losses.len())]));
        self.client(Box::new(self.stepped(loss))).await
    }

    async fn effects_on(&self, backend: Box<dyn Backend>) -> Effects {
        let options = EffectOptions::default().clock(self.clock.clone());
        EffectAdapter::open(backend, options).await.expect("a side-effect store can be opened")
    }

    /// A side-effect store whose calls are no points: to prepare, and to look at the end.
    pub(crate) async fn still_effects(&self) -> Effects {
        self.effects_on(Box::new(self.open())).await
    }

    /// A side-effect store whose calls are points.
    pub(crate) async fn effects(&self) -> Effects {
        self.effects_on(Box::new(self.stepped(None))).await
    }

    /// A side-effect store one of whose first transactions may be lost; the schedule says which and how.
    pub(crate) async fn unlucky_effects(&self) -> Effects {
        let mut random = shuttle::rand::thread_rng();
        let losses = [Loss::NotApplied, Loss::Applied, Loss::Later, Loss::Twice];
        // Made beforehand, so that none of the lost ones is that of opening it.
        drop(self.still_effects().await);
        let loss = Some((random.gen_range(0..2), losses[random.gen_range(0..losses.len())]));
        self.effects_on(Box::new(self.stepped(loss))).await
    }

    /// Time passes, at a point of its own.
    pub(crate) fn pass(&self, time: Duration) {
        point();
        let micros = i64::try_from(time.as_micros()).expect("the test passes little time");
        self.clock.0.fetch_add(micros, Ordering::SeqCst);
        point();
    }

    /// Adds tasks, given as a name and the names it depends on.
    pub(crate) async fn add(&self, tasks: &[(&str, &[&str])]) {
        let board = self.still().await;
        for (name, deps) in tasks {
            board.add(spec(name, deps)).await.expect("the test's tasks can be added");
        }
    }

    /// The tasks at the end, which must make a sound board.
    pub(crate) async fn end(&self) -> Vec<Task> {
        let tasks = self.still().await.list().await.expect("a board can be listed");
        assert_eq!(check(&tasks), [], "problems of the board at the end");
        tasks
    }

    /// A task at the end, if it is there.
    pub(crate) async fn find(&self, name: &str) -> Option<Task> {
        self.end().await.into_iter().find(|task| task.id == id(name))
    }

    /// A task at the end.
    pub(crate) async fn task(&self, name: &str) -> Task {
        self.find(name).await.expect("the task is there")
    }
}

pub(crate) fn spec(name: &str, deps: &[&str]) -> TaskSpec {
    TaskSpec::new(id(name)).title(name).deps(deps.iter().map(|dep| id(dep)))
}

pub(crate) fn id(name: &str) -> TaskId {
    TaskId::new(name).expect("the test's names are task ids")
}

pub(crate) fn agent(name: &str) -> AgentId {
    AgentId::new(name).expect("the test's names are agent names")
}

pub(crate) fn outcome(text: &str) -> Outcome {
    Outcome::new(text).expect("the test's outcomes are short")
}

/// Waits for a client of the test.
pub(crate) async fn ended<T>(client: JoinHandle<T>) -> T {
    client.await.expect("no client of the test panics by itself")
}
