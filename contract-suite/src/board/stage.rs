//! Where the clauses of a board play: seats at one board, a store clock that only the clause moves, and faults in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    AgentId, Board, BoardError, Claim, ClaimRequest, ExtendedBoard, Outcome as TaskOutcome, Problem, Task,
    TaskId, TaskSpec, check,
};
use coord_core::layer::{Cell, Fault, Faults, Meter, Observe, StoreClock, When};
use coord_core::{
    Backend, Bytes, Clock, Key, KeyRange, KeySet, ManualClock, Mutation, Prefix, Timestamp, Token, Txn,
    TxnOutcome,
};

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::BoardSeat;
pub(super) use crate::staging::{Place, with_step};
use crate::staging::{SeatClock, Step};
use crate::{ensure, fail};

/// The lease of most claims.
pub(super) const TTL: Duration = Duration::from_secs(60);
/// The smallest step of time.
pub(super) const TICK: Duration = Duration::from_micros(1);
/// How far clients may be apart, where a store has no clock.
pub(super) const SKEW: Duration = Duration::from_secs(5);

/// The first of January 2030, and an odd number of microseconds, so that rounding is seen.
fn start() -> Timestamp {
    Timestamp::EPOCH.saturating_add(Duration::from_micros(1_893_456_000_123_457))
}

pub(super) fn id(text: impl AsRef<str>) -> TaskId {
    TaskId::unchecked(text)
}

pub(super) fn agent(text: impl AsRef<str>) -> AgentId {
    AgentId::unchecked(text)
}

pub(super) fn spec(text: impl AsRef<str>) -> TaskSpec {
    TaskSpec::new(id(text))
}

/// A text as the outcome of a task.
pub(super) fn result(text: &str) -> TaskOutcome {
    TaskOutcome::truncated(text)
}

/// One board, seen from several seats.
pub(super) struct Stage {
    pub(super) cx: Context,
    pub(super) clock: Arc<ManualClock>,
    namespace: String,
    /// How long a backoff really waits at most.
    longest: Duration,
}

/// One client: a board over a handle of its own.
pub(super) struct Seat {
    pub(super) board: Arc<dyn ExtendedBoard>,
    /// What goes wrong between this board and the store.
    pub(super) faults: Faults,
    /// What this board asks of the store.
    pub(super) meter: Meter,
    /// The handle itself, past every layer.
    pub(super) raw: Arc<dyn Backend>,
}

impl Stage {
    pub(super) fn new(cx: &Context) -> Self {
        Stage::on(cx, cx.namespace().to_owned())
    }

    /// A stage of its own beside the clause's.
    pub(super) fn fresh(cx: &Context) -> Self {
        Stage::on(cx, cx.fresh_namespace())
    }

    /// The same board, as soon as it is empty again, at the beginning of time. Nobody races there, so no backoff waits.
    pub(super) fn again(&self) -> Self {
        Stage { longest: Duration::ZERO, ..Stage::on(&self.cx, self.namespace.clone()) }
    }

    fn on(cx: &Context, namespace: String) -> Self {
        let clock = Arc::new(ManualClock::new(start()));
        Stage { cx: cx.clone(), clock, namespace, longest: Duration::from_millis(50) }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// Moves the clock to this time.
    pub(super) fn advance_to(&self, time: Timestamp) {
        self.clock.advance(time.saturating_since(self.now()));
    }

    /// A seat whose client's clock is right.
    pub(super) async fn seat(&self) -> Result<Seat, Verdict> {
        let raw = self.cx.open_in(&self.namespace).await?;
        self.seat_on(raw, 0, true).await
    }

    /// Two seats, connected separately.
    pub(super) async fn pair(&self) -> Result<(Seat, Seat), Verdict> {
        Ok((self.seat().await?, self.seat().await?))
    }

    /// Several seats, connected separately.
    pub(super) async fn seats(&self, count: usize) -> Result<Vec<Seat>, Verdict> {
        let mut seats = Vec::with_capacity(count);
        for _ in 0..count {
            seats.push(self.seat().await?);
        }
        Ok(seats)
    }

    /// A seat whose client's clock is wrong by so many microseconds, at a store with or without a clock.
    pub(super) async fn seat_ahead(&self, micros: i64, store_has_clock: bool) -> Result<Seat, Verdict> {
        let raw = self.cx.open_in(&self.namespace).await?;
        self.seat_on(raw, micros, store_has_clock).await
    }

    /// A new board over a handle that is open already.
    pub(super) async fn seat_on(
        &self,
        raw: Arc<dyn Backend>,
        ahead: i64,
        store_has_clock: bool,
    ) -> Result<Seat, Verdict> {
        let observed = Observe::new(raw.clone());
        let meter = observed.meter();
        let faulty = Fault::new(observed);
        let faults = faulty.faults();
        let backend: Arc<dyn Backend> = if store_has_clock {
            Arc::new(StoreClock::new(faulty, self.clock.clone() as Arc<dyn Clock>))
        } else {
            Arc::new(StoreClock::none(faulty))
        };
        let clock = Arc::new(SeatClock::new(self.clock.clone(), ahead, self.longest));
        let board = self.cx.board(backend, BoardSeat { clock, max_clock_skew: SKEW }).await?;
        Ok(Seat { board, faults, meter, raw })
    }
}

impl Seat {
    /// A rival's step at this seat's next call of this kind.
    pub(super) fn interpose<T, F, S>(&self, when: When, place: Place, step: S) -> Step<T>
    where
        T: Send + 'static,
        S: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, Verdict>> + Send + 'static,
    {
        let (cell, said) = with_step(Cell::pass(), place, move |_| step());
        self.faults.on(when, cell);
        Step::new(said)
    }

    pub(super) async fn add(&self, spec: TaskSpec) -> Result<(), Verdict> {
        let name = spec.id.clone();
        self.board.add(spec).await.at(format!("adding {name:?}"))?;
        Ok(())
    }

    /// Adds an open task without anything.
    pub(super) async fn open_task(&self, name: &str) -> Result<TaskId, Verdict> {
        self.add(spec(name)).await?;
        Ok(id(name))
    }

    /// Adds a task and brings it to this end: "done", "failed" or "cancelled".
    pub(super) async fn ended_task(&self, name: &str, end: &str) -> Result<TaskId, Verdict> {
        let task = self.open_task(name).await?;
        self.end(&task, end).await?;
        Ok(task)
    }

    pub(super) async fn end(&self, task: &TaskId, end: &str) -> Outcome {
        if end == "cancelled" {
            return self.board.cancel(task).await.at(format!("cancelling {task:?}"));
        }
        let claim = self.claim(task, "ender").await?;
        if end == "failed" {
            self.board.fail(task, &claim.lease.token, result("it broke")).await.at("failing")?;
        } else {
            self.board.complete(task, &claim.lease.token, result("it worked")).await.at("completing")?;
        }
        Ok(())
    }

    /// A claim of the usual length that must succeed.
    pub(super) async fn claim(&self, task: &TaskId, name: &str) -> Result<Claim, Verdict> {
        self.try_claim(task, name).await.at(format!("claiming {task:?}"))
    }

    pub(super) async fn try_claim(&self, task: &TaskId, name: &str) -> Result<Claim, BoardError> {
        self.board.claim(task, &agent(name), ClaimRequest::for_ttl(TTL)).await
    }

    pub(super) async fn get(&self, task: &TaskId) -> Result<Task, Verdict> {
        self.board.get(task).await.at(format!("reading {task:?}"))
    }

    /// The whole board, which must break no invariant.
    pub(super) async fn list(&self) -> Result<Vec<Task>, Verdict> {
        let tasks = self.board.list().await.at("listing the board")?;
        let problems: Vec<Problem> = check(&tasks);
        if let Some(problem) = problems.first() {
            fail!("saw {} problem(s) on the board, the first is {problem}", problems.len());
        }
        Ok(tasks)
    }

    /// Tries every verb of a holder with this token: each must be `LeaseLost` with this fence and change nothing.
    pub(super) async fn is_lost(&self, task: &TaskId, token: &Token, fence: u64, when: &str) -> Outcome {
        let before = self.get(task).await?;
        for verb in HOLDER_VERBS {
            let answer = self.hold(verb, task, token, "too late").await;
            match answer {
                Err(BoardError::LeaseLost { current_fence }) if current_fence == fence => {}
                other => fail!("saw {other:?}, not LeaseLost with fence {fence}: {verb} {when}"),
            }
            self.is_unchanged(&before, format!("{verb} was refused {when}")).await?;
        }
        Ok(())
    }

    /// One verb of a holder, its answer as text.
    pub(super) async fn hold(
        &self,
        verb: &str,
        task: &TaskId,
        token: &Token,
        text: &str,
    ) -> Result<String, BoardError> {
        match verb {
            "renew" => self.board.renew(task, token, TTL).await.map(|lease| format!("{lease:?}")),
            "release" => self.board.release(task, token).await.map(|()| String::new()),
            "complete" => self.board.complete(task, token, result(text)).await.map(|kept| kept.to_string()),
            "fail" => self.board.fail(task, token, result(text)).await.map(|kept| kept.to_string()),
            other => Err(BoardError::Invalid(format!("the suite knows no verb {other}"))),
        }
    }

    pub(super) async fn is_unchanged(&self, before: &Task, why: impl std::fmt::Display) -> Outcome {
        let after = self.get(&before.id).await?;
        ensure!(after == *before, "saw {after:?}, not the unchanged {before:?}: {why}");
        Ok(())
    }

    /// Every key of the namespace, and its value.
    pub(super) async fn raw_entries(&self) -> Result<BTreeMap<Key, Bytes>, Verdict> {
        let mut entries = BTreeMap::new();
        let mut range = KeyRange::new(Prefix::all(), 1_000)?;
        loop {
            let keys = self.raw.keys(&range).await.at("listing the keys of the board")?;
            let Some(last) = keys.last() else { return Ok(entries) };
            range = range.start_after(last.clone());
            let snapshot = self.raw.snapshot(&KeySet::new(keys)?).await?;
            for (key, entry) in snapshot.iter() {
                if let Some(value) = entry.value() {
                    entries.insert(key.clone(), value.clone());
                }
            }
        }
    }

    /// Writes or deletes past the board.
    pub(super) async fn raw_write(&self, mutations: impl IntoIterator<Item = Mutation>) -> Outcome {
        let outcome = self.raw.txn(&Txn::new([], mutations)?).await.at("writing past the board")?;
        ensure!(outcome == TxnOutcome::Applied, "saw an unconditional transaction rejected");
        Ok(())
    }
}

/// What only a holder may do.
pub(super) const HOLDER_VERBS: [&str; 4] = ["renew", "release", "complete", "fail"];

/// The same board as the narrower trait.
pub(super) fn narrow(seats: &[Seat]) -> Vec<Arc<dyn Board>> {
    seats.iter().map(|seat| seat.board.clone() as Arc<dyn Board>).collect()
}
