//! A store in memory whose every call is a point where another client may go on, and whose answers may be lost.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use coord_core::board::{AgentId, BoardAdapter, BoardOptions, TaskId};
use coord_core::{
    Assert, Backend, BackendError, Clock, ErrorKind, Key, KeyRange, KeySet, Mutation, Namespace, Operation,
    Prefix, Snapshot, Timestamp, Txn, TxnOutcome, async_trait,
};
use coord_memory::{MemoryBackend, MemoryStore};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

pub(crate) const TTL: Duration = Duration::from_secs(40);

/// A rule of the index that is broken on the way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A completion leaves no marker.
    MarkerDropped,
    /// A watch is put although the task that it is on may be done meanwhile.
    WatchUnasserted,
    /// A marker goes although it has been put again meanwhile.
    TodoUnasserted,
    /// Whoever moves a watch on does not assert the head of the task that waits.
    HeadUnasserted,
    /// A claimed task is not due.
    NeverDue,
    /// A task that was released is not put back.
    ReadyDropped,
    /// What a write replaces stays.
    NothingDeleted,
    /// A failure or a cancellation leaves no marker.
    FailureUnmarked,
    /// A skip leaves no marker.
    SkipUnmarked,
    /// A claim that rests on a failure does not pin it.
    PinDropped,
}

impl Flaw {
    pub(crate) const ALL: &[Flaw] = &[
        Flaw::MarkerDropped,
        Flaw::WatchUnasserted,
        Flaw::HeadUnasserted,
        Flaw::NeverDue,
        Flaw::ReadyDropped,
        Flaw::NothingDeleted,
        Flaw::FailureUnmarked,
        Flaw::SkipUnmarked,
        Flaw::PinDropped,
    ];

    /// Whether it takes other rules than done to be noticed.
    pub(crate) fn is_of_rules(self) -> bool {
        matches!(self, Flaw::FailureUnmarked | Flaw::SkipUnmarked | Flaw::PinDropped)
    }

    fn bend(self, txn: &Txn) -> Txn {
        let (mut asserts, mut mutations): (Vec<Assert>, Vec<Mutation>) =
            (txn.asserts().to_vec(), txn.mutations().to_vec());
        let text = |key: &Key| key.as_str().to_owned();
        let is_head_write = mutations.iter().any(|m| m.key().as_str().starts_with("task/"));
        match self {
            Flaw::MarkerDropped => {
                mutations.retain(|m| m.value().is_none() || !m.key().as_str().starts_with("todo/"));
            }
            Flaw::WatchUnasserted => {
                let watched: Vec<String> = mutations
                    .iter()
                    .filter(|m| m.value().is_some())
                    .filter_map(|m| watched(m.key()))
                    .map(|dependency| format!("task/{dependency}"))
                    .collect();
                asserts.retain(|assert| !watched.contains(&text(&assert.key)));
            }
            Flaw::TodoUnasserted => asserts.retain(|assert| !assert.key.as_str().starts_with("todo/")),
            Flaw::HeadUnasserted if !is_head_write => {
                asserts.retain(|assert| !assert.key.as_str().starts_with("task/"));
            }
            Flaw::HeadUnasserted => {}
            Flaw::NeverDue => {
                mutations.retain(|m| m.value().is_none() || !m.key().as_str().starts_with("due/"))
            }
            Flaw::ReadyDropped if is_head_write => {
                mutations.retain(|m| m.value().is_none() || !m.key().as_str().starts_with("rdy/"));
            }
            Flaw::ReadyDropped => {}
            Flaw::NothingDeleted if is_head_write => {
                mutations.retain(|m| m.value().is_some() || !m.key().as_str().starts_with("due/"));
            }
            Flaw::NothingDeleted => {}
            Flaw::FailureUnmarked | Flaw::SkipUnmarked => {
                let states: &[u8] = if self == Flaw::SkipUnmarked { &[5] } else { &[3, 4] };
                // Behind the envelope of a head comes its state.
                if heads(&mutations).any(|value| value.get(6).is_some_and(|state| states.contains(state))) {
                    mutations.retain(|m| m.value().is_none() || !m.key().as_str().starts_with("todo/"));
                }
            }
            Flaw::PinDropped => {
                // The kind of a pinned head.
                mutations.retain(|m| {
                    !m.key().as_str().starts_with("task/")
                        || m.value().is_none_or(|value| value.get(5) != Some(&10))
                });
            }
        }
        Txn::new(asserts, mutations).unwrap()
    }
}

/// The heads that are written.
fn heads(mutations: &[Mutation]) -> impl Iterator<Item = &bytes::Bytes> {
    mutations.iter().filter(|m| m.key().as_str().starts_with("task/")).filter_map(Mutation::value)
}

/// The task that a watch is on.
fn watched(key: &Key) -> Option<&str> {
    let (length, rest) = key.as_str().strip_prefix("wait/")?.split_once('/')?;
    rest.get(..length.parse().ok()?)
}

/// A clock that moves when the schedule says so; waiting is a point and takes no time.
#[derive(Debug)]
struct StepClock(AtomicI64);

#[async_trait]
impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst)).unwrap()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst).unsigned_abs())
    }

    async fn sleep(&self, _: Duration) {
        point().await;
    }
}

/// A point where another client may go on.
async fn point() {
    let mut passed = false;
    std::future::poll_fn(
        |_| {
            if std::mem::replace(&mut passed, true) { Poll::Ready(()) } else { Poll::Pending }
        },
    )
    .await;
}

/// Runs a call that meets no point.
pub(crate) fn now_or_never<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    for _ in 0..100_000 {
        if let Poll::Ready(answer) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return answer;
        }
    }
    panic!("the call does not end");
}

/// What has been sent and has not arrived.
type Held = Arc<Mutex<VecDeque<Txn>>>;

/// A client's way to the store.
pub(crate) struct Link {
    store: MemoryBackend,
    random: Mutex<StdRng>,
    held: Held,
    flaw: Option<Flaw>,
    points: bool,
    faulty: bool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

impl Link {
    fn chance(&self, of: u32) -> bool {
        self.faulty && self.random.lock().unwrap().random_ratio(1, of)
    }

    async fn point(&self) {
        if self.points {
            point().await;
        }
    }

    fn error(kind: ErrorKind, operation: Operation) -> BackendError {
        BackendError::new(kind, "link", operation, "the schedule says so")
    }
}

#[async_trait]
impl Backend for Link {
    fn name(&self) -> &'static str {
        "link"
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.point().await;
        if self.chance(80) {
            return Err(Link::error(ErrorKind::Unavailable, Operation::Snapshot));
        }
        let snapshot = self.store.snapshot(keys).await;
        self.point().await;
        snapshot
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.point().await;
        let txn = self.flaw.map_or_else(|| txn.clone(), |flaw| flaw.bend(txn));
        if self.chance(12) {
            let which = self.random.lock().unwrap().random_range(0..4);
            if which >= 2 {
                self.held.lock().unwrap().push_back(txn.clone());
            }
            if which % 2 == 1 {
                let _ = self.store.txn(&txn).await?;
            }
            self.point().await;
            return Err(Link::error(ErrorKind::Indeterminate, Operation::Txn));
        }
        let outcome = self.store.txn(&txn).await;
        self.point().await;
        outcome
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.point().await;
        if self.chance(80) {
            return Err(Link::error(ErrorKind::Unavailable, Operation::Keys));
        }
        let keys = self.store.keys(range).await;
        self.point().await;
        keys
    }
}

pub(crate) type Quiet = BoardAdapter<Link>;

/// One store and its time.
pub(crate) struct World {
    store: MemoryStore,
    clock: Arc<StepClock>,
    seed: u64,
    held: Held,
    flaw: Option<Flaw>,
}

impl World {
    pub(crate) fn new(seed: u64, flaw: Option<Flaw>) -> Self {
        let clock = Arc::new(StepClock(AtomicI64::new(1_000_000_000)));
        World { store: MemoryStore::with_clock(clock.clone()), clock, seed, held: Held::default(), flaw }
    }

    fn open(&self, n: u64, points: bool, faulty: bool) -> BoardAdapter<Link> {
        let link = Link {
            store: self.store.open(&Namespace::default()),
            random: Mutex::new(StdRng::seed_from_u64(self.seed.wrapping_mul(31).wrapping_add(n))),
            held: self.held.clone(),
            flaw: self.flaw,
            points,
            faulty,
        };
        let mut options = BoardOptions::default().clock(self.clock.clone());
        options.max_conflicts = 30;
        // Opening may fail too, as any call may.
        now_or_never(BoardAdapter::open(link, options))
            .unwrap_or_else(|_| self.open(n + 1_000, points, faulty))
    }

    /// A client whose calls are points and may go wrong.
    pub(crate) fn client(&self, n: u64) -> BoardAdapter<Link> {
        self.open(n, true, true)
    }

    /// A client whose calls are points at which nothing goes wrong.
    pub(crate) fn stepped(&self) -> BoardAdapter<Link> {
        self.open(0, true, false)
    }

    /// A client at whose calls nothing happens.
    pub(crate) fn quiet(&self) -> Quiet {
        self.open(0, false, false)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.clock.0.fetch_add(i64::try_from(time.as_micros()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn has_held(&self) -> bool {
        !self.held.lock().unwrap().is_empty()
    }

    /// One of the transactions that are on their way arrives, or never will.
    pub(crate) fn release_one(&self, rng: &mut StdRng) {
        let txn = {
            let mut held = self.held.lock().unwrap();
            if held.is_empty() {
                return;
            }
            let n = rng.random_range(0..held.len());
            held.remove(n).unwrap()
        };
        if rng.random_bool(0.8) {
            let _ = now_or_never(self.store.open(&Namespace::default()).txn(&txn)).unwrap();
        }
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        let range = KeyRange::new(Prefix::all(), 1_000).unwrap();
        now_or_never(self.store.open(&Namespace::default()).keys(&range)).unwrap()
    }
}

pub(crate) fn id(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

pub(crate) fn agent(name: &str) -> AgentId {
    AgentId::new(name).unwrap()
}
