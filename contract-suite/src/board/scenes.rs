//! Small plays for the clauses about unknown outcomes: one call, one rival of the same name, and what the board is in every order of
//! the two.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    Archive, Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard, Filter, History, Plan, Rule, Standing,
    State, Task, TaskId, Verb,
};
use coord_core::layer::{Cell, When};
use coord_core::{Backend, ManualClock, Token};
use tokio::sync::Notify;

pub(super) use super::scripts::{NEXT_LIFE, NEXT_LIFE_OPEN, SCENES};
use super::stage::{Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Verdict, VerdictContext};
use crate::context::{Context, remove_all};
use crate::{ensure_matches, fail};

/// One verb with fixed arguments, mostly on the task "t".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Time passes, two leases long.
    Wait,
    Claim,
    ClaimNext,
    Renew,
    Release,
    Complete(&'static str),
    Fail(&'static str),
    Cancel,
    Reopen,
    Revoke,
    /// Adds this task, which depends on the done one.
    Add(&'static str),
    AddOther(&'static str),
    AddPlan,
    Remove(&'static str),
    /// "t" depends on the open task, or on nothing.
    NeedsOpen,
    NeedsNothing,
    /// Adds the task "broken", which fails at once.
    Break,
    /// "t" depends on the failure of "broken", or on its end.
    NeedsFailure,
    NeedsEnd,
    /// "t" depends on the failure of the done task, so it never begins.
    NeedsImpossible,
    /// Another task than "t".
    CancelOf(&'static str),
    ReopenOf(&'static str),
    /// Adds the task "behind", which depends on the failure of "t"; and then it depends on nothing.
    AddBehind,
    FreeBehind,
    Progress(&'static str),
    /// Of what has ended, "t" alone.
    Archive,
}

/// Somebody at the board, with the last token and fence that they know of.
#[derive(Clone)]
pub(super) struct Actor {
    pub(super) board: Arc<dyn ExtendedBoard>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) token: Option<Token>,
    pub(super) fence: u64,
}

/// What one verb answered: everything but the secrets.
pub(super) type Answer = Result<String, BoardError>;

impl Actor {
    pub(super) async fn perform(&mut self, op: Op) -> Answer {
        let task = id("t");
        let token = self.token.clone().unwrap_or_else(Token::mint);
        let board = self.board.clone();
        let said = |answer: Result<(), BoardError>| answer.map(|()| String::new());
        match op {
            Op::Wait => {
                self.clock.advance(TTL * 2);
                Ok(String::new())
            }
            Op::Claim => {
                let claim = board.claim(&task, &agent("w"), ClaimRequest::for_ttl(TTL)).await?;
                self.holds(&claim.lease.token, claim.lease.fence);
                Ok(format!("{claim:?}"))
            }
            Op::ClaimNext => {
                let claim = board.claim_next(&agent("w"), &Filter::any(), TTL).await?;
                if let Some(claim) = &claim {
                    self.holds(&claim.lease.token, claim.lease.fence);
                }
                Ok(format!("{claim:?}"))
            }
            Op::Renew => Ok(format!("{:?}", board.renew(&task, &token, TTL).await?)),
            Op::Release => said(board.release(&task, &token).await),
            Op::Complete(text) => Ok(board.complete(&task, &token, result(text)).await?.to_string()),
            Op::Fail(text) => Ok(board.fail(&task, &token, result(text)).await?.to_string()),
            Op::Cancel => said(board.cancel(&task).await),
            Op::Reopen => said(board.reopen(&task).await),
            Op::Revoke => said(board.revoke(&task, self.fence).await),
            Op::Add(name) => Ok(format!("{:?}", board.add(spec(name).dep(id("done"))).await?)),
            Op::AddOther(name) => Ok(format!("{:?}", board.add(spec(name).title("another")).await?)),
            Op::AddPlan => {
                let tasks = [spec("new").dep(id("done")), spec("new 2").dep(id("new"))];
                Ok(format!("{:?}", board.add_plan(&Plan::new(tasks)?).await?))
            }
            Op::Remove(name) => said(board.remove(&id(name)).await),
            Op::NeedsOpen => said(board.set_deps(&task, &Dep::all([id("open")]), None).await),
            Op::NeedsNothing => said(board.set_deps(&task, &[], None).await),
            Op::Break => {
                board.add(spec("broken")).await?;
                let request = ClaimRequest::for_ttl(TTL);
                let claim = board.claim(&id("broken"), &agent("breaker"), request).await?;
                Ok(board.fail(&id("broken"), &claim.lease.token, result("it broke")).await?.to_string())
            }
            Op::NeedsFailure => said(self.needs("broken", Rule::Failed).await),
            Op::NeedsEnd => said(self.needs("broken", Rule::Finished).await),
            Op::NeedsImpossible => said(self.needs("done", Rule::Failed).await),
            Op::CancelOf(name) => said(board.cancel(&id(name)).await),
            Op::ReopenOf(name) => said(board.reopen(&id(name)).await),
            Op::AddBehind => {
                let behind = spec("behind").dep(Dep::on(task, Rule::Failed));
                Ok(format!("{:?}", board.add(behind).await?))
            }
            Op::FreeBehind => said(board.set_deps(&id("behind"), &[], None).await),
            Op::Progress(text) => said(board.progress(&task, &token, text).await),
            Op::Archive => {
                let request = Archive::older_than(Duration::ZERO).after(Some(id("open")));
                Ok(format!("{:?}", board.archive(&request).await?.archived))
            }
        }
    }

    /// "t" depends on this one alone.
    async fn needs(&self, name: &str, rule: Rule) -> Result<(), BoardError> {
        self.board.set_deps(&id("t"), &[Dep::on(id(name), rule)], None).await
    }

    fn holds(&mut self, token: &Token, fence: u64) {
        self.token = Some(token.clone());
        self.fence = fence;
    }

    /// Performs several, and remembers what was answered, refusals included: they depend on what came first.
    pub(super) async fn perform_all(&mut self, ops: &[Op]) -> Result<Vec<String>, Verdict> {
        let mut said = Vec::new();
        for op in ops {
            match self.perform(*op).await {
                Err(error @ (BoardError::Backend(_) | BoardError::OutcomeUnknown { .. })) => {
                    return Err(Verdict::from(error).context(format!("{op:?}, where nothing goes wrong")));
                }
                answer => said.push(format!("{answer:?}")),
            }
        }
        Ok(said)
    }
}

/// A call, and who comes between.
pub(super) struct Scene {
    pub(super) verb: Verb,
    pub(super) call: Op,
    /// On a board with the open tasks "open" and "t" and the done task "done", on which "t" depends.
    pub(super) setup: &'static [Op],
    /// Changes what the call asserts, and leaves it as acceptable as it was.
    pub(super) nudge: &'static [Op],
    /// Each by an agent of the same name.
    pub(super) rivals: &'static [&'static [Op]],
    /// Whether something is to be skipped, now by whoever is first, and by some boards before anybody asks. Time must not pass then.
    pub(super) skips: bool,
}

impl Scene {
    /// The task that `OutcomeUnknown` must name, if the call names one.
    pub(super) fn task(&self) -> Option<TaskId> {
        match self.call {
            Op::ClaimNext => None,
            Op::Add(_) | Op::AddPlan => Some(id("new")),
            Op::ReopenOf(name) | Op::CancelOf(name) => Some(id(name)),
            _ => Some(id("t")),
        }
    }

    /// Whether the call looks for a task and has to skip one on its way.
    pub(super) fn seeks_and_skips(&self) -> bool {
        self.skips && self.call == Op::ClaimNext
    }

    /// Whether the call proves itself by a token, or gets one.
    pub(super) fn has_token(&self) -> bool {
        !matches!(
            self.verb,
            Verb::Cancel
                | Verb::Reopen
                | Verb::Revoke
                | Verb::Add
                | Verb::Remove
                | Verb::SetDeps
                | Verb::Archive
        )
    }
}

/// What is left when all is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) tasks: Vec<Task>,
    /// What has happened to each of them.
    pub(super) histories: Vec<History>,
    /// What the rival was answered.
    pub(super) rival: Vec<String>,
    /// Whether the first holder's, the caller's and the rival's token still hold the task "t", and "open".
    pub(super) holds: Vec<bool>,
    /// What a reopen of "broken" came to: whether somebody has begun because it failed is not shown otherwise.
    pub(super) reopened: String,
}

/// Two connected handles, used again and again: every play begins on an empty store.
pub(super) struct Theatre {
    stage: Stage,
    handles: [Arc<dyn Backend>; 2],
}

/// A board that has been set up.
pub(super) struct Play {
    /// Where the call comes from.
    pub(super) a: Seat,
    /// Where nothing goes wrong.
    pub(super) b: Seat,
    /// The first holder.
    pub(super) first: Actor,
    skips: bool,
}

impl Theatre {
    pub(super) async fn open(cx: &Context) -> Result<Self, Verdict> {
        Ok(Theatre { stage: Stage::new(cx), handles: [cx.open().await?, cx.open().await?] })
    }

    pub(super) async fn begin(&self, scene: &Scene, nudged: bool) -> Result<Play, Verdict> {
        remove_all(&*self.handles[0]).await?;
        let stage = self.stage.again();
        let b = stage.seat_on(self.handles[1].clone(), 0, true).await?;
        b.ended_task("done", "done").await?;
        b.open_task("open").await?;
        b.add(spec("t").dep(id("done"))).await?;
        stage.advance(Duration::from_secs(1));
        let (board, clock) = (b.board.clone(), stage.clock.clone());
        let mut first = Actor { board, clock, token: None, fence: 0 };
        for op in scene.setup {
            first.perform(*op).await.at(format!("setting up by {op:?}"))?;
        }
        if nudged {
            for op in scene.nudge {
                first.perform(*op).await.at(format!("nudging by {op:?}"))?;
            }
        }
        let a = stage.seat_on(self.handles[0].clone(), 0, true).await?;
        Ok(Play { a, b, first, skips: scene.skips })
    }
}

impl Play {
    /// The one who calls, with what the first holder knows.
    pub(super) fn caller(&self) -> Actor {
        Actor { board: self.a.board.clone(), ..self.first.clone() }
    }

    /// A call that is given up once its first transaction has happened, if it has one.
    async fn begin_call(&self, caller: &mut Actor, call: Op) {
        let happened = Arc::new(Notify::new());
        let hangs = {
            let happened = happened.clone();
            Cell::hangs().then(move |_| {
                happened.notify_one();
                std::future::ready(())
            })
        };
        self.a.faults.on(When::txn(), hangs);
        tokio::select! {
            biased;
            () = happened.notified() => {}
            _ = caller.perform(call) => {}
        }
        self.a.faults.clear();
    }

    pub(super) async fn end(
        &self,
        rival: Vec<String>,
        caller: Option<&Token>,
        rivals: Option<&Token>,
    ) -> Result<Ending, Verdict> {
        self.settle().await?;
        let tasks = self.b.list().await?;
        let mut histories = Vec::with_capacity(tasks.len());
        for task in &tasks {
            histories.push(self.b.board.history(&task.id).await.at("reading a history")?);
        }
        let mut holds = Vec::new();
        for task in ["t", "open"] {
            for token in [self.first.token.as_ref(), caller, rivals] {
                let Some(token) = token else {
                    holds.push(false);
                    continue;
                };
                match self.b.board.renew(&id(task), token, TTL).await {
                    Ok(_) => holds.push(true),
                    Err(BoardError::LeaseLost { .. } | BoardError::NotFound { .. }) => holds.push(false),
                    Err(error) => fail!("saw {error:?}: renewing at the end"),
                }
            }
        }
        let reopened = format!("{:?}", self.b.board.reopen(&id("broken")).await);
        Ok(Ending { tasks, histories, rival, holds, reopened })
    }

    /// What is to be skipped is skipped, where it matters.
    async fn settle(&self) -> Result<(), Verdict> {
        if self.skips { skip_all(&*self.b.board).await } else { Ok(()) }
    }
}

/// Skips what can never begin: a board may leave that to whoever comes upon it.
pub(super) async fn skip_all(board: &dyn ExtendedBoard) -> Result<(), Verdict> {
    loop {
        let mut skipped = 0;
        for task in board.list().await.at("listing what may have to be skipped")? {
            if task.state != State::Open
                || board.explain(&task.id).await.at("explain")? != Standing::Skippable
            {
                continue;
            }
            let claimed = board.claim(&task.id, &agent("looker"), ClaimRequest::for_ttl(TTL)).await;
            ensure_matches!(
                claimed,
                Err(BoardError::Terminal { state: State::Skipped }),
                "a claim of what is to be skipped"
            );
            skipped += 1;
        }
        if skipped == 0 {
            return Ok(());
        }
    }
}

/// The orders in which a call and a rival may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The call does not happen.
    RivalOnly,
    CallFirst,
    RivalFirst,
    /// The call happens, then the rival, and what the call would do about the consequences is left to others.
    CallUnfinished,
}

pub(super) type Known = crate::unanswered::Known<Order, BoardError, Ending>;

/// Plays a scene in every order.
pub(super) async fn known(
    theatre: &Theatre,
    scene: &Scene,
    rival: &[Op],
    nudged: bool,
) -> Result<Vec<Known>, Verdict> {
    let mut known: Vec<Known> = Vec::new();
    let orders = [Order::RivalOnly, Order::CallFirst, Order::RivalFirst, Order::CallUnfinished];
    // Only a skip is a consequence that others see.
    for order in orders.into_iter().filter(|order| scene.skips || *order != Order::CallUnfinished) {
        let play = theatre.begin(scene, nudged).await?;
        let (mut caller, mut other) = (play.caller(), play.first.clone());
        let (mut answer, mut said) = (None, Vec::new());
        if order == Order::CallFirst {
            answer = Some(caller.perform(scene.call).await);
        }
        if order == Order::CallUnfinished {
            play.begin_call(&mut caller, scene.call).await;
            answer = known.iter().find(|known| known.order == Order::CallFirst).and_then(|known| {
                Some(match known.answer.as_ref()? {
                    Ok(said) => Ok(said.clone()),
                    Err(BoardError::Terminal { state }) => Err(BoardError::Terminal { state: *state }),
                    Err(_) => return None,
                })
            });
        }
        said.extend(other.perform_all(rival).await?);
        if order == Order::RivalFirst {
            answer = Some(caller.perform(scene.call).await);
        }
        if let Some(Err(error @ (BoardError::Backend(_) | BoardError::OutcomeUnknown { .. }))) = answer {
            return Err(Verdict::from(error).context(format!("{:?}, where nothing goes wrong", scene.call)));
        }
        let ending = play.end(said, caller.token.as_ref(), other.token.as_ref()).await?;
        known.push(Known { order, answer, ending });
    }
    Ok(known)
}
