//! Where the clauses of a board play: seats at one board, a store clock that only the clause moves, and faults in between.

use std::ops::Deref;
use std::sync::Arc;

use coord_core::board::{
    AgentId, Board, BoardError, Claim, ClaimRequest, ExtendedBoard, Outcome as TaskOutcome, Problem, Task,
    TaskId, TaskSpec, check,
};
use coord_core::{Backend, Token};

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::BoardSeat;
use crate::staging::{self, Wire};
pub(super) use crate::staging::{Place, SKEW, TICK, TTL, with_step};
use crate::{ensure, fail};

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
pub(super) struct Stage(staging::Stage);

impl Deref for Stage {
    type Target = staging::Stage;

    fn deref(&self) -> &staging::Stage {
        &self.0
    }
}

/// One client: a board over a handle of its own.
pub(super) struct Seat {
    pub(super) board: Arc<dyn ExtendedBoard>,
    wire: Wire,
}

impl Deref for Seat {
    type Target = Wire;

    fn deref(&self) -> &Wire {
        &self.wire
    }
}

impl Stage {
    pub(super) fn new(cx: &Context) -> Self {
        Stage(staging::Stage::new(cx))
    }

    /// A stage of its own beside the clause's.
    pub(super) fn fresh(cx: &Context) -> Self {
        Stage(staging::Stage::fresh(cx))
    }

    /// The same board, as soon as it is empty again, at the beginning of time. Nobody races there, so no backoff waits.
    pub(super) fn again(&self) -> Self {
        Stage(self.0.again())
    }

    /// A seat whose client's clock is right.
    pub(super) async fn seat(&self) -> Result<Seat, Verdict> {
        let raw = self.open().await?;
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
        let raw = self.open().await?;
        self.seat_on(raw, micros, store_has_clock).await
    }

    /// A new board over a handle that is open already.
    pub(super) async fn seat_on(
        &self,
        raw: Arc<dyn Backend>,
        ahead: i64,
        store_has_clock: bool,
    ) -> Result<Seat, Verdict> {
        let (backend, wire) = self.wire(raw, store_has_clock);
        let seat = BoardSeat { clock: self.seat_clock(ahead), max_clock_skew: SKEW };
        let board = self.cx.board(backend, seat).await?;
        Ok(Seat { board, wire })
    }
}

impl Seat {
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
}

/// What only a holder may do.
pub(super) const HOLDER_VERBS: [&str; 4] = ["renew", "release", "complete", "fail"];

/// The same board as the narrower trait.
pub(super) fn narrow(seats: &[Seat]) -> Vec<Arc<dyn Board>> {
    seats.iter().map(|seat| seat.board.clone() as Arc<dyn Board>).collect()
}
