//! Small plays for the clauses about unknown outcomes: one call, one rival who knows as much, and what the store is in every order of
//! the two.

use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    Action, ActionKey, ActionState, Completed, EffectError, EffectStore, Episode, Lease, Outcome as Acquired,
    PurgeRequest, Reconciliation, Replay, Resolution, Ruled,
};
use coord_core::{Backend, Bytes, ManualClock};

use super::repertoire::Scene;
use super::stage::{Seat, Stage, TTL, allow_retry, applied, note, on, resource};
use crate::clause::{Verdict, VerdictContext};
use crate::context::{Context, remove_all};
use crate::fail;

/// One verb with fixed arguments, mostly on the action "t" on the resource "r".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Time passes, two leases long.
    Wait,
    Acquire,
    Complete(&'static str),
    Mark,
    Renew,
    Release,
    Abandon,
    Begin,
    NotApplied,
    Applied,
    AllowRetry,
    /// By the right to judge that the actor has.
    Owned,
    Get,
    Purge,
    Forget,
    ForgetResource,
    /// Another key on the same resource.
    AcquireOther,
    CompleteOther,
    AbandonOther,
}

/// Somebody at the store, with what they know.
#[derive(Clone)]
pub(super) struct Actor {
    pub(super) store: Arc<dyn EffectStore>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) lease: Option<Lease>,
    pub(super) other: Option<Lease>,
    pub(super) episode: Option<Episode>,
    pub(super) right: Option<Reconciliation>,
}

/// What one verb answered: everything but the secrets and the numbers that differ from play to play.
pub(super) type Answer = Result<String, EffectError>;

fn told(completed: &Completed) -> String {
    format!("completed with {}, maybe twice: {}", replay(&completed.replay), completed.maybe_twice)
}

fn replay(replay: &Replay) -> String {
    match replay {
        Replay::Result(result) => format!("{:?}", String::from_utf8_lossy(result)),
        Replay::Purged { .. } => "a purged result".to_owned(),
        Replay::TooLarge { .. } => "too large a result".to_owned(),
    }
}

fn ruled(ruled: Ruled) -> String {
    format!("{}, yours: {}", ruled.ruling.as_str(), ruled.yours)
}

/// An error without what differs from play to play.
pub(super) fn refusal(error: &EffectError) -> String {
    match error {
        EffectError::FenceStale { .. } => "FenceStale".to_owned(),
        EffectError::AttemptJudged { state } => format!("AttemptJudged {state}"),
        EffectError::StillUncertain { .. } => "StillUncertain".to_owned(),
        // Nobody can tell them apart who does not know what ended the episode.
        EffectError::EpisodeOver { state } | EffectError::NotUncertain { state } => format!("over {state}"),
        EffectError::Reconciling { .. } => "Reconciling".to_owned(),
        other => format!("{other:?}"),
    }
}

impl Actor {
    fn lease(&self) -> Result<Lease, EffectError> {
        self.lease.clone().ok_or_else(|| EffectError::Invalid("the actor has no lease".to_owned()))
    }

    fn episode(&self) -> Result<Episode, EffectError> {
        self.episode.ok_or_else(|| EffectError::Invalid("the actor knows no episode".to_owned()))
    }

    pub(super) async fn perform(&mut self, op: Op) -> Answer {
        let (action, other) = (on("t", "r"), on("u", "r"));
        let store = self.store.clone();
        let why = note("the play wants it");
        match op {
            Op::Wait => {
                self.clock.advance(TTL * 2);
                Ok(String::new())
            }
            Op::Acquire => {
                let outcome = store.acquire(&action, TTL).await?;
                Ok(self.acquired(&action, outcome))
            }
            Op::AcquireOther => {
                let outcome = store.acquire(&other, TTL).await?;
                Ok(self.acquired(&other, outcome))
            }
            Op::Complete(text) => {
                let result = Bytes::from_static(text.as_bytes());
                Ok(told(&store.complete(&action, &self.lease()?, result).await?))
            }
            Op::CompleteOther => match self.other.clone() {
                Some(lease) => Ok(told(&store.complete(&other, &lease, Bytes::from_static(b"other")).await?)),
                None => Ok("no lease of the other key".to_owned()),
            },
            Op::AbandonOther => match self.other.clone() {
                Some(lease) => store.abandon(&other, &lease, &why).await.map(|()| String::new()),
                None => Ok("no lease of the other key".to_owned()),
            },
            Op::Mark => {
                let episode = store.mark_uncertain(&action, &self.lease()?, &why).await?;
                self.episode = Some(episode);
                Ok("marked".to_owned())
            }
            Op::Renew => {
                let lease = store.renew(&action, &self.lease()?, TTL).await?;
                self.lease = Some(lease);
                Ok("renewed".to_owned())
            }
            Op::Release => store.release(&action, &self.lease()?).await.map(|()| String::new()),
            Op::Abandon => store.abandon(&action, &self.lease()?, &why).await.map(|()| String::new()),
            Op::Begin => {
                let right = store.begin_reconcile(&action, TTL).await?;
                self.episode = Some(right.episode);
                self.right = Some(right);
                Ok("begun".to_owned())
            }
            Op::NotApplied => self.rule(&action, &Resolution::NotApplied).await,
            Op::Applied => self.rule(&action, &applied("ruled")).await,
            Op::AllowRetry => self.rule(&action, &allow_retry()).await,
            Op::Owned => {
                let Some(right) = self.right.clone() else { return Ok("no right to judge".to_owned()) };
                let ruling = Resolution::NotApplied;
                Ok(ruled(store.resolve_owned(&action, right.episode, &ruling, &why, &right.token).await?))
            }
            Op::Get => {
                let status = store.get(&action.key).await?;
                if let Some(uncertain) = status.as_ref().and_then(|status| status.uncertain.as_ref()) {
                    self.episode = Some(uncertain.episode);
                }
                Ok(format!("{:?}", status.map(|status| status.state)))
            }
            Op::Purge => Ok(store.purge(&PurgeRequest::older_than(Duration::ZERO)).await?.purged.to_string()),
            Op::Forget => store.forget(&action.key).await.map(|()| String::new()),
            Op::ForgetResource => store.forget_resource(&resource("r")).await.map(|()| String::new()),
        }
    }

    async fn rule(&self, action: &Action, resolution: &Resolution) -> Answer {
        let Ok(episode) = self.episode() else { return Ok("no episode is known".to_owned()) };
        Ok(ruled(self.store.resolve(action, episode, resolution, &note("the play wants it")).await?))
    }

    fn acquired(&mut self, action: &Action, outcome: Acquired) -> String {
        let own = action.key.as_str() == "t";
        match outcome {
            Acquired::Completed(completed) => told(&completed),
            Acquired::Uncertain(uncertain) => {
                if own {
                    self.episode = Some(uncertain.episode);
                }
                "uncertain".to_owned()
            }
            Acquired::InFlight(_) => "in flight".to_owned(),
            Acquired::Contended(holder) => format!("contended by {}", holder.key),
            Acquired::Granted(lease) => {
                *(if own { &mut self.lease } else { &mut self.other }) = Some(lease);
                "granted".to_owned()
            }
        }
    }

    /// Performs several, and remembers what was answered, refusals included: they depend on what came first.
    pub(super) async fn perform_all(&mut self, ops: &[Op]) -> Result<Vec<String>, Verdict> {
        let mut said = Vec::new();
        for op in ops {
            match self.perform(*op).await {
                Err(error @ (EffectError::Backend(_) | EffectError::OutcomeUnknown { .. })) => {
                    return Err(Verdict::from(error).context(format!("{op:?}, where nothing goes wrong")));
                }
                Ok(answer) => said.push(answer),
                Err(error) => said.push(refusal(&error)),
            }
        }
        Ok(said)
    }
}

/// What is left of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// An attempt that lapsed is as good as uncertain.
    state: ActionState,
    maybe_applied: bool,
    result: Option<String>,
    maybe_twice: Option<bool>,
    evidence: Vec<Option<String>>,
    reconciling: bool,
}

/// What is left when all is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) action: Option<Left>,
    pub(super) other: Option<Left>,
    /// Who holds the resource, seen by a third key.
    pub(super) holder: Option<String>,
    /// What the rival was answered.
    pub(super) rival: Vec<String>,
    /// Whether the first holder's, the caller's and the rival's leases are live.
    pub(super) holds: [bool; 3],
}

/// Two connected handles, used again and again: every play begins on an empty store.
pub(super) struct Theatre {
    stage: Stage,
    handles: [Arc<dyn Backend>; 2],
}

/// A store that has been set up.
pub(super) struct Play {
    /// Where the call comes from.
    pub(super) a: Seat,
    /// Where nothing goes wrong.
    pub(super) b: Seat,
    /// Who knows what was set up.
    pub(super) first: Actor,
}

impl Theatre {
    pub(super) async fn open(cx: &Context) -> Result<Self, Verdict> {
        Ok(Theatre { stage: Stage::new(cx), handles: [cx.open().await?, cx.open().await?] })
    }

    pub(super) async fn begin(&self, scene: &Scene, nudged: bool) -> Result<Play, Verdict> {
        remove_all(&*self.handles[0]).await?;
        let stage = self.stage.again();
        let b = stage.seat_on(self.handles[1].clone(), "ada", 0, true).await?;
        let mut first = Actor {
            store: b.store.clone(),
            clock: stage.clock.clone(),
            lease: None,
            other: None,
            episode: None,
            right: None,
        };
        for op in scene.setup {
            first.perform(*op).await.at(format!("setting up by {op:?}"))?;
        }
        if nudged {
            for op in scene.nudge {
                // Late evidence is told as a refusal.
                match first.perform(*op).await {
                    Ok(_) | Err(EffectError::AttemptJudged { .. }) => {}
                    Err(error) => return Err(Verdict::from(error).context(format!("nudging by {op:?}"))),
                }
            }
        }
        let a = stage.seat_on(self.handles[0].clone(), "ada", 0, true).await?;
        Ok(Play { a, b, first })
    }
}

impl Play {
    /// The one who calls, with what is known.
    pub(super) fn caller(&self) -> Actor {
        Actor { store: self.a.store.clone(), ..self.first.clone() }
    }

    async fn left(&self, key: &ActionKey) -> Result<Option<Left>, Verdict> {
        let Some(history) = self.b.store.history(key).await.at("reading what is left")? else {
            return Ok(None);
        };
        let status = history.status;
        let mut result = None;
        if status.state == ActionState::Completed
            && let Some(read) = self.b.store.get(key).await.at("reading what is left")?
        {
            result = read.replay.as_ref().map(replay);
        }
        let mut evidence: Vec<Option<String>> = history
            .evidence
            .iter()
            .map(|late| late.result.as_ref().map(|result| String::from_utf8_lossy(result).into_owned()))
            .collect();
        evidence.sort();
        Ok(Some(Left {
            state: if status.state == ActionState::Lapsed { ActionState::Uncertain } else { status.state },
            maybe_applied: status.maybe_applied,
            result,
            maybe_twice: status.completed.map(|completed| completed.maybe_twice),
            evidence,
            reconciling: status.uncertain.is_some_and(|uncertain| uncertain.reconciling_until.is_some()),
        }))
    }

    pub(super) async fn end(
        &self,
        rival: Vec<String>,
        caller: &Actor,
        other: &Actor,
    ) -> Result<Ending, Verdict> {
        let action = self.left(&on("t", "r").key).await?;
        let left = self.left(&on("u", "r").key).await?;
        let mut holds = [false; 3];
        for (held, actor) in holds.iter_mut().zip([&self.first, caller, other]) {
            let Some(lease) = &actor.lease else { continue };
            *held = match self.b.store.renew(&lease.action, lease, TTL).await {
                Ok(_) => true,
                Err(
                    EffectError::LeaseLost
                    | EffectError::FenceStale { .. }
                    | EffectError::AttemptJudged { .. }
                    | EffectError::NeverAcquired { .. },
                ) => false,
                Err(error) => fail!("saw {error:?}: renewing at the end"),
            };
        }
        let holder = match self.b.ask(&on("third", "r")).await? {
            Acquired::Contended(holder) => Some(holder.key.to_string()),
            Acquired::Granted(_) => None,
            other => fail!("saw {other:?}: a third key at the end"),
        };
        Ok(Ending { action, other: left, holder, rival, holds })
    }
}

/// The orders in which a call and a rival may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The call does not happen.
    RivalOnly,
    CallFirst,
    RivalFirst,
    /// The call, the rival, and the same completion again: what it tells is as true as what the first one told.
    Repeated,
    /// The rival comes first, and what the call wrote lands so late that its time is over.
    TooLate,
    /// An attempt of the call, then the rival, and the attempt is withdrawn, for its caller never heard of it.
    Withdrawn,
    /// The same, and then the call again.
    WithdrawnAndAgain,
}

pub(super) type Known = crate::unanswered::Known<Order, EffectError, Ending>;

/// Plays a scene in every order.
pub(super) async fn known(
    theatre: &Theatre,
    scene: &Scene,
    rival: &[Op],
    nudged: bool,
) -> Result<Vec<Known>, Verdict> {
    let mut orders = vec![Order::RivalOnly, Order::CallFirst, Order::RivalFirst];
    if scene.call == Op::Acquire {
        orders.extend([Order::TooLate, Order::Withdrawn, Order::WithdrawnAndAgain]);
    }
    if matches!(scene.call, Op::Complete(_)) {
        orders.push(Order::Repeated);
    }
    let mut known = Vec::new();
    for order in orders {
        let play = theatre.begin(scene, nudged).await?;
        let (mut caller, mut other) = (play.caller(), play.first.clone());
        let (mut answer, mut said) = (None, Vec::new());
        let withdraws = matches!(order, Order::Withdrawn | Order::WithdrawnAndAgain);
        if matches!(order, Order::CallFirst | Order::Repeated) || withdraws {
            answer = Some(caller.perform(scene.call).await);
        }
        said.extend(other.perform_all(rival).await?);
        if withdraws {
            if !matches!(&answer, Some(Ok(text)) if text == "granted") {
                continue;
            }
            // If the attempt was judged meanwhile, there is nothing to withdraw.
            let _ = caller.perform(Op::Abandon).await;
            caller.lease = play.first.lease.clone();
        }
        if matches!(order, Order::RivalFirst | Order::Repeated | Order::TooLate | Order::WithdrawnAndAgain) {
            answer = Some(caller.perform(scene.call).await);
        }
        if order == Order::Repeated && !matches!(answer, Some(Ok(_))) {
            continue;
        }
        if order == Order::TooLate {
            caller.perform(Op::Wait).await.at("letting time pass")?;
        }
        if let Some(Err(error @ (EffectError::Backend(_) | EffectError::OutcomeUnknown { .. }))) = answer {
            return Err(Verdict::from(error).context(format!("{:?}, where nothing goes wrong", scene.call)));
        }
        let ending = play.end(said, &caller, &other).await?;
        known.push(Known { order, answer, ending });
    }
    Ok(known)
}
