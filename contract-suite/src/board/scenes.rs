//! Small plays for the clauses about unknown outcomes: one call, one rival of the same name, and what the board is in every order of
//! the two.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard, Filter, History, Plan, Task, TaskId, Verb,
};
use coord_core::{Backend, ManualClock, Token};

use super::stage::{Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Verdict, VerdictContext};
use crate::context::{Context, remove_all};
use crate::fail;

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
        }
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
}

impl Scene {
    /// The task that `OutcomeUnknown` must name, if the call names one.
    pub(super) fn task(&self) -> Option<TaskId> {
        match self.call {
            Op::ClaimNext => None,
            Op::Add(_) | Op::AddPlan => Some(id("new")),
            _ => Some(id("t")),
        }
    }

    /// Whether the call proves itself by a token, or gets one.
    pub(super) fn has_token(&self) -> bool {
        !matches!(
            self.verb,
            Verb::Cancel | Verb::Reopen | Verb::Revoke | Verb::Add | Verb::Remove | Verb::SetDeps
        )
    }
}

/// Removed, added again with the same definition, and claimed by an agent of the same name.
pub(super) const NEXT_LIFE: &[Op] = &[Op::Revoke, Op::Cancel, Op::Remove("t"), Op::Add("t"), Op::Claim];
/// The same, left open.
pub(super) const NEXT_LIFE_OPEN: &[Op] = &[Op::Revoke, Op::Cancel, Op::Remove("t"), Op::Add("t")];
const TAKEOVER: &[Op] = &[Op::Wait, Op::Claim];
const OUSTED: &[Op] = &[Op::Revoke, Op::Claim];
/// More changes than any log of the last operations remembers.
const MANY: &[Op] = &[
    Op::Revoke,
    Op::Cancel,
    Op::Reopen,
    Op::Cancel,
    Op::Reopen,
    Op::Cancel,
    Op::Reopen,
    Op::Cancel,
    Op::Reopen,
    Op::Cancel,
    Op::Reopen,
    Op::Cancel,
    Op::Reopen,
    Op::Cancel,
    Op::Reopen,
    Op::Cancel,
    Op::Reopen,
    Op::Cancel,
    Op::Reopen,
    Op::Claim,
];

pub(super) const SCENES: &[Scene] = &[
    Scene {
        verb: Verb::Claim,
        call: Op::Claim,
        setup: &[],
        nudge: &[Op::Cancel, Op::Reopen],
        rivals: &[
            &[Op::Claim],
            &[Op::Claim, Op::Release],
            &[Op::Claim, Op::Complete("rival")],
            &[Op::NeedsOpen],
            &[Op::Cancel],
            TAKEOVER,
            NEXT_LIFE,
            NEXT_LIFE_OPEN,
            MANY,
        ],
    },
    Scene {
        verb: Verb::Claim,
        call: Op::ClaimNext,
        setup: &[],
        nudge: &[Op::Cancel, Op::Reopen],
        rivals: &[&[Op::ClaimNext], &[Op::Claim], &[Op::Cancel], TAKEOVER, NEXT_LIFE],
    },
    Scene {
        verb: Verb::Renew,
        call: Op::Renew,
        setup: &[Op::Claim],
        nudge: &[Op::Renew],
        rivals: &[&[Op::Wait], TAKEOVER, OUSTED, &[Op::Renew], &[Op::Complete("rival")], NEXT_LIFE, MANY],
    },
    Scene {
        verb: Verb::Release,
        call: Op::Release,
        setup: &[Op::Claim],
        nudge: &[Op::Renew],
        rivals: &[
            &[Op::Claim],
            &[Op::Release],
            &[Op::Release, Op::Claim],
            TAKEOVER,
            OUSTED,
            &[Op::Complete("rival")],
            NEXT_LIFE,
            NEXT_LIFE_OPEN,
            MANY,
        ],
    },
    Scene {
        verb: Verb::Complete,
        call: Op::Complete("call"),
        setup: &[Op::Claim],
        nudge: &[Op::Renew],
        rivals: &[
            &[Op::Complete("rival")],
            &[Op::Release],
            &[Op::Fail("rival")],
            TAKEOVER,
            OUSTED,
            &[Op::Remove("t"), Op::Add("t"), Op::Claim],
            NEXT_LIFE,
            MANY,
        ],
    },
    Scene {
        verb: Verb::Fail,
        call: Op::Fail("call"),
        setup: &[Op::Claim],
        nudge: &[Op::Renew],
        rivals: &[
            &[Op::Reopen],
            &[Op::Reopen, Op::Claim],
            &[Op::Complete("rival")],
            &[Op::Fail("rival")],
            TAKEOVER,
            OUSTED,
            NEXT_LIFE,
            MANY,
        ],
    },
    Scene {
        verb: Verb::Cancel,
        call: Op::Cancel,
        setup: &[Op::Claim],
        nudge: &[Op::Renew],
        rivals: &[
            &[Op::Reopen],
            &[Op::Reopen, Op::Claim],
            &[Op::Complete("rival")],
            &[Op::Cancel, Op::Reopen],
            TAKEOVER,
            NEXT_LIFE_OPEN,
            MANY,
        ],
    },
    Scene {
        verb: Verb::Reopen,
        call: Op::Reopen,
        setup: &[Op::Claim, Op::Fail("setup")],
        nudge: &[Op::Reopen, Op::Cancel],
        rivals: &[
            &[Op::Claim],
            &[Op::Cancel],
            &[Op::Reopen, Op::Cancel],
            &[Op::Reopen, Op::Claim, Op::Complete("rival")],
            NEXT_LIFE,
            MANY,
        ],
    },
    Scene {
        verb: Verb::Revoke,
        call: Op::Revoke,
        setup: &[Op::Claim],
        nudge: &[Op::Renew],
        rivals: &[
            &[Op::Claim],
            &[Op::Release, Op::Claim],
            TAKEOVER,
            &[Op::Complete("rival")],
            &[Op::Revoke, Op::Cancel],
            NEXT_LIFE,
            MANY,
        ],
    },
    Scene {
        verb: Verb::Add,
        call: Op::Add("new"),
        setup: &[],
        nudge: &[Op::AddOther("bystander")],
        rivals: &[
            &[Op::Add("new")],
            &[Op::AddOther("new")],
            &[Op::Remove("new")],
            &[Op::Remove("new"), Op::AddOther("new")],
            &[Op::Remove("new"), Op::Add("new")],
        ],
    },
    Scene {
        verb: Verb::Add,
        call: Op::AddPlan,
        setup: &[],
        nudge: &[Op::AddOther("bystander")],
        rivals: &[
            &[Op::AddPlan],
            &[Op::AddOther("new")],
            &[Op::Add("new")],
            &[Op::Remove("new 2"), Op::Remove("new")],
            &[Op::Remove("new 2"), Op::AddOther("new 2")],
        ],
    },
    Scene {
        verb: Verb::Remove,
        call: Op::Remove("t"),
        setup: &[Op::Claim, Op::Release],
        nudge: &[Op::Cancel, Op::Reopen],
        rivals: &[
            &[Op::Add("t")],
            &[Op::Add("t"), Op::Claim],
            &[Op::AddOther("t")],
            &[Op::Claim],
            &[Op::Remove("t")],
            &[Op::Remove("t"), Op::Add("t")],
            &[Op::Remove("t"), Op::AddOther("t"), Op::Claim],
            MANY,
        ],
    },
    Scene {
        verb: Verb::SetDeps,
        call: Op::NeedsOpen,
        setup: &[],
        nudge: &[Op::Cancel, Op::Reopen],
        rivals: &[
            &[Op::NeedsNothing],
            &[Op::NeedsOpen, Op::NeedsNothing],
            &[Op::Claim],
            &[Op::Cancel],
            NEXT_LIFE_OPEN,
            &[Op::Remove("t")],
        ],
    },
];

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
        Ok(Play { a, b, first })
    }
}

impl Play {
    /// The one who calls, with what the first holder knows.
    pub(super) fn caller(&self) -> Actor {
        Actor { board: self.a.board.clone(), ..self.first.clone() }
    }

    pub(super) async fn end(
        &self,
        rival: Vec<String>,
        caller: Option<&Token>,
        rivals: Option<&Token>,
    ) -> Result<Ending, Verdict> {
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
        Ok(Ending { tasks, histories, rival, holds })
    }
}

/// The orders in which a call and a rival may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The call does not happen.
    RivalOnly,
    CallFirst,
    RivalFirst,
}

pub(super) type Known = crate::unanswered::Known<Order, BoardError, Ending>;

/// Plays a scene in every order.
pub(super) async fn known(
    theatre: &Theatre,
    scene: &Scene,
    rival: &[Op],
    nudged: bool,
) -> Result<Vec<Known>, Verdict> {
    let mut known = Vec::new();
    for order in [Order::RivalOnly, Order::CallFirst, Order::RivalFirst] {
        let play = theatre.begin(scene, nudged).await?;
        let (mut caller, mut other) = (play.caller(), play.first.clone());
        let (mut answer, mut said) = (None, Vec::new());
        if order == Order::CallFirst {
            answer = Some(caller.perform(scene.call).await);
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
