//! The project's own boards with a rule of their ready index broken, on the way to the store.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use coord_core::board::{BoardError, ExtendedBoard};
use coord_core::{Assert, Backend, BackendError, Key, KeyRange, KeySet, Mutation, Snapshot, Txn, TxnOutcome};

use crate::adapter::AdapterBoards;
use crate::harness::{BoardHarness, BoardSeat};

/// A rule of the ready index that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WrongIndex {
    /// A completion leaves no marker, so what waits for the task is never found.
    MarkerDropped,
    /// A watch is put without asserting that what it is on is not done.
    WatchUnasserted,
    /// A marker goes although it has been put again meanwhile.
    TodoUnasserted,
    /// A claimed task is nowhere, so nobody finds it when its lease is over.
    NeverDue,
    /// A task that is open again is not put back in line.
    ReadyDropped,
    /// A task that was claimed stays in line, and where it was due.
    NothingDeleted,
    /// All that waits for a task stays where it was when that is done.
    WatchesStay,
    /// Nothing is asserted of a task that is written, so one is handed out twice.
    HeadUnasserted,
    /// A task that failed or was cancelled leaves no marker.
    FailureUnmarked,
    /// A task that is skipped leaves no marker.
    SkipUnmarked,
    /// Of what waits for a task only the first is ever seen, and the marker goes.
    WatchesUnseen,
    /// A task is skipped without an assert, over dependencies that were replaced meanwhile.
    SkipUnasserted,
    /// What a claim rests on is not kept.
    PinUnwritten,
    /// What a claim rests on is kept without asserting that it is as it was.
    PinUnasserted,
}

impl WrongIndex {
    /// All of them.
    pub const ALL: &'static [WrongIndex] = &[
        WrongIndex::MarkerDropped,
        WrongIndex::WatchUnasserted,
        WrongIndex::TodoUnasserted,
        WrongIndex::NeverDue,
        WrongIndex::ReadyDropped,
        WrongIndex::NothingDeleted,
        WrongIndex::WatchesStay,
        WrongIndex::HeadUnasserted,
        WrongIndex::FailureUnmarked,
        WrongIndex::SkipUnmarked,
        WrongIndex::WatchesUnseen,
        WrongIndex::SkipUnasserted,
        WrongIndex::PinUnwritten,
        WrongIndex::PinUnasserted,
    ];

    /// The clause that must fail on it.
    #[must_use]
    pub fn clause(self) -> &'static str {
        match self {
            WrongIndex::MarkerDropped => "T33",
            WrongIndex::WatchUnasserted | WrongIndex::TodoUnasserted => "T25",
            WrongIndex::NeverDue
            | WrongIndex::ReadyDropped
            | WrongIndex::NothingDeleted
            | WrongIndex::HeadUnasserted => "T23",
            WrongIndex::WatchesStay => "T26",
            WrongIndex::FailureUnmarked => "T37",
            WrongIndex::SkipUnmarked => "T38.chain",
            WrongIndex::SkipUnasserted => "T38.edited",
            WrongIndex::WatchesUnseen => "T40",
            WrongIndex::PinUnwritten => "T39",
            WrongIndex::PinUnasserted => "T39.race",
        }
    }

    fn bend(self, txn: &Txn) -> Result<Txn, BackendError> {
        let mut asserts: Vec<Assert> = txn.asserts().to_vec();
        let mut mutations: Vec<Mutation> = txn.mutations().to_vec();
        let begins = |key: &Key, prefix: &str| key.as_str().starts_with(prefix);
        let writes_a_task = mutations.iter().any(|m| begins(m.key(), "task/"));
        match self {
            WrongIndex::MarkerDropped => {
                mutations.retain(|m| m.value().is_none() || !begins(m.key(), "todo/"));
            }
            WrongIndex::WatchUnasserted => {
                let put = mutations.iter().filter(|m| m.value().is_some());
                let watched: Vec<String> =
                    put.filter_map(|m| watched(m.key())).map(|id| format!("task/{id}")).collect();
                asserts.retain(|assert| !watched.iter().any(|head| head == assert.key.as_str()));
            }
            WrongIndex::TodoUnasserted => asserts.retain(|assert| !begins(&assert.key, "todo/")),
            WrongIndex::NeverDue => mutations.retain(|m| m.value().is_none() || !begins(m.key(), "due/")),
            WrongIndex::ReadyDropped => {
                let is_old = !asserts.iter().any(|assert| begins(&assert.key, "topo"));
                let dropped = |m: &Mutation| m.value().is_some() && begins(m.key(), "rdy/");
                mutations.retain(|m| !(is_old && writes_a_task && dropped(m)));
            }
            WrongIndex::NothingDeleted => {
                let stays = |m: &Mutation| ["rdy/", "due/"].iter().any(|prefix| begins(m.key(), prefix));
                mutations.retain(|m| m.value().is_some() || !(writes_a_task && stays(m)));
            }
            WrongIndex::WatchesStay => {
                mutations.retain(|m| writes_a_task || !begins(m.key(), "rdy/"));
            }
            WrongIndex::HeadUnasserted => {
                asserts.retain(|assert| !(writes_a_task && begins(&assert.key, "task/")));
            }
            WrongIndex::FailureUnmarked | WrongIndex::SkipUnmarked => {
                let states: &[u8] =
                    if self == WrongIndex::SkipUnmarked { &[SKIPPED] } else { &[FAILED, CANCELLED] };
                let written: Vec<String> = mutations
                    .iter()
                    .filter(|m| state_of(m).is_some_and(|state| states.contains(&state)))
                    .filter_map(|m| m.key().as_str().strip_prefix("task/").map(|id| format!("/{id}")))
                    .collect();
                let is_of = |key: &Key| written.iter().any(|id| key.as_str().ends_with(id));
                mutations.retain(|m| m.value().is_none() || !begins(m.key(), "todo/") || !is_of(m.key()));
            }
            // Bends what is listed.
            WrongIndex::WatchesUnseen => {}
            WrongIndex::SkipUnasserted => {
                let skipped: Vec<&Key> =
                    mutations.iter().filter(|m| state_of(m) == Some(SKIPPED)).map(Mutation::key).collect();
                asserts.retain(|assert| !skipped.contains(&&assert.key));
            }
            WrongIndex::PinUnwritten | WrongIndex::PinUnasserted
                if mutations.iter().any(|m| state_of(m) == Some(CLAIMED)) =>
            {
                let is_pin = |m: &Mutation| matches!(state_of(m), Some(FAILED | CANCELLED));
                let pinned: Vec<Key> =
                    mutations.iter().filter(|m| is_pin(m)).map(|m| m.key().clone()).collect();
                if self == WrongIndex::PinUnwritten {
                    mutations.retain(|m| !pinned.contains(m.key()));
                } else {
                    asserts.retain(|assert| !pinned.contains(&assert.key));
                }
            }
            WrongIndex::PinUnwritten | WrongIndex::PinUnasserted => {}
        }
        Txn::new(asserts, mutations)
    }
}

/// The numbers under which states are stored, and where in a record: behind the envelope.
const STATE_AT: usize = 6;
const CLAIMED: u8 = 1;
const FAILED: u8 = 3;
const CANCELLED: u8 = 4;
const SKIPPED: u8 = 5;

/// The state of a task that is written.
fn state_of(mutation: &Mutation) -> Option<u8> {
    let written = mutation.value().filter(|_| mutation.key().as_str().starts_with("task/"))?;
    written.get(STATE_AT).copied()
}

/// The task that a watch is on.
fn watched(key: &Key) -> Option<&str> {
    let (length, rest) = key.as_str().strip_prefix("wait/")?.split_once('/')?;
    rest.get(..length.parse().ok()?)
}

/// Opens the project's boards, all of them wrong in one way.
#[derive(Clone, Copy, Debug)]
pub struct WrongIndexHarness(pub WrongIndex);

#[async_trait]
impl BoardHarness for WrongIndexHarness {
    fn name(&self) -> &str {
        "adapter with a wrong index"
    }

    async fn open(
        &self,
        backend: Arc<dyn Backend>,
        seat: BoardSeat,
    ) -> Result<Arc<dyn ExtendedBoard>, BoardError> {
        AdapterBoards.open(Arc::new(Bent { inner: backend, wrong: self.0 }), seat).await
    }
}

struct Bent {
    inner: Arc<dyn Backend>,
    wrong: WrongIndex,
}

impl fmt::Debug for Bent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bent").field("inner", &self.inner).field("wrong", &self.wrong).finish()
    }
}

#[async_trait]
impl Backend for Bent {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.inner.snapshot(keys).await
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.inner.txn(&self.wrong.bend(txn)?).await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let mut keys = self.inner.keys(range).await?;
        if self.wrong == WrongIndex::WatchesUnseen && keys.first().is_some_and(|key| watched(key).is_some()) {
            keys.truncate(1);
        }
        Ok(keys)
    }
}
