//! What an attempt says about itself: complete, mark, renew, release, abandon.

use std::time::Duration;

use bytes::Bytes;

use super::action::{Action, ActionState, Completed, Episode, Lease, Replay, result_digest};
use super::adapter::EffectAdapter;
use super::history::TransitionKind;
use super::names::{Note, limits};
use super::record::{Attempt, Completion, Head, Kept, Phase, Verdict, encode_payload, result_key};
use super::situation::{Change, Decision, Situation};
use super::verb::{OnAction, OnActionVerb};
use super::{EffectError, EffectVerb};
use crate::backend::Backend;
use crate::board::AgentId;
use crate::cas::{View, check_ttl, lease_end};
use crate::codec::RecordKind;
use crate::token::{OperationId, Token};
use crate::txn::Mutation;

/// What a completion comes to once its write is there.
#[derive(Clone)]
enum Told {
    Completed(Completed),
    FenceStale { current_fence: u64 },
    AttemptJudged { state: ActionState },
}

fn verb<'a>(verb: EffectVerb, action: &'a Action, lease: &'a Lease) -> OnActionVerb<'a> {
    OnActionVerb {
        verb,
        key: &action.key,
        resource: Some(&action.resource),
        token: Some(&lease.token),
        with_result: verb == EffectVerb::Complete,
    }
}

/// Keeps a result in a head that is about to be completed.
pub(super) fn keep(
    situation: &Situation,
    head: &mut Head,
    fence: Option<u64>,
    result: &Bytes,
) -> (Completed, Mutation) {
    let now = situation.now();
    let (len, digest) = (result.len() as u64, result_digest(result));
    let whole = result.len() <= limits::RESULT_BYTES;
    let kept = if whole { Kept::Whole } else { Kept::TooLarge };
    head.completion = Some(Completion { fence, len, digest, kept, at: now });
    head.settle(Phase::Completed, now);
    // Of a result that is too large an empty one is stored, so that retention finds every completed action that may have payloads.
    let stored = if whole { result.clone() } else { Bytes::new() };
    let put = Mutation::put(result_key(&situation.key), encode_payload(RecordKind::ActionResult, &stored));
    let replay = if whole { Replay::Result(result.clone()) } else { Replay::TooLarge { len, digest } };
    (Completed::new(replay, now, head.maybe_twice), put)
}

/// The judgement of a result, in the order of the trait.
fn judge_result(
    view: &View<'_>,
    situation: &Situation,
    agent: &AgentId,
    mut head: Head,
    attempt: &Attempt,
    token: &Token,
    result: &Bytes,
) -> Result<Decision<Told>, EffectError> {
    let now = situation.now();
    if let Some(completion) = &head.completion {
        let same = completion.digest == result_digest(result) && completion.len == result.len() as u64;
        let told = Told::Completed(situation.completed(view, &head)?);
        if same && completion.fence == Some(attempt.fence) {
            return Ok(Decision::Answer(told));
        }
        let purged = matches!(completion.kept, Kept::Purged { .. });
        let (new, put) = head.add_evidence(&situation.key, attempt.fence, result, now);
        if !new {
            return Ok(Decision::Answer(told));
        }
        // Retention finds an action by its result. One that was purged gets an empty one again, so that its evidence is found too.
        let found = (purged && put.is_some())
            .then(|| encode_payload(RecordKind::ActionResult, &Bytes::new()))
            .map(|empty| Mutation::put(result_key(&situation.key), empty));
        head.maybe_twice = true;
        head.note(
            TransitionKind::Evidence,
            agent,
            attempt.fence,
            now,
            Note::truncated("the action was completed already"),
        );
        let told = match told {
            Told::Completed(completed) => Told::Completed(Completed { maybe_twice: true, ..completed }),
            told => told,
        };
        return Ok(Decision::write(Change::of(head).and(put).and(found), told));
    }
    let newest = head.is_newest(attempt);
    let granted_since = situation.last_fence() != attempt.fence;
    if newest && attempt.verdict == Verdict::Open && !granted_since {
        head.judge_newest(Verdict::Completed);
        head.maybe_twice |= head.maybe_applied;
        head.note(TransitionKind::Completed, agent, attempt.fence, now, Note::default());
        let (completed, put) = keep(situation, &mut head, Some(attempt.fence), result);
        let change = Change::of(head).and_resource(situation.freed(token)).and([put]);
        return Ok(Decision::write(change, Told::Completed(completed)));
    }
    let told = if !newest || attempt.verdict == Verdict::Open {
        Told::FenceStale { current_fence: situation.last_fence() }
    } else {
        Told::AttemptJudged { state: ActionState::Uncertain }
    };
    let (new, put) = head.add_evidence(&situation.key, attempt.fence, result, now);
    if !new {
        return Ok(Decision::Answer(match told {
            Told::AttemptJudged { .. } => Told::AttemptJudged { state: situation.state() },
            told => told,
        }));
    }
    head.maybe_applied = true;
    let why = Note::truncated(format!("a result of the attempt with fence {} came late", attempt.fence));
    head.note(TransitionKind::Evidence, agent, attempt.fence, now, why.clone());
    // A newer attempt goes on with what it does. Everything else is uncertain from now on.
    if newest || head.phase != Phase::InFlight {
        head.become_uncertain(why, now);
    }
    Ok(Decision::write(Change::of(head).and(put), told))
}

impl<B: Backend> EffectAdapter<B> {
    pub(super) async fn complete_action(
        &self,
        action: &Action,
        lease: &Lease,
        result: Bytes,
    ) -> Result<Completed, EffectError> {
        let judge = |view: &View<'_>, situation: &Situation| {
            let (head, attempt) = situation.attempt(action, lease)?;
            judge_result(view, situation, self.agent(), head, &attempt, &lease.token, &result)
        };
        // What was completed by this attempt stays so for ever, whatever else was written since.
        let found = |head: &Head| {
            let completion = head.completion.as_ref()?;
            let ours = head.attempt(&lease.token)?.fence;
            if completion.fence != Some(ours) || completion.digest != result_digest(&result) {
                return None;
            }
            let replay = match completion.kept {
                Kept::Whole => Replay::Result(result.clone()),
                Kept::TooLarge => Replay::TooLarge { len: completion.len, digest: completion.digest },
                Kept::Purged { at } => Replay::Purged { at },
            };
            Some(Told::Completed(Completed::new(replay, completion.at, head.maybe_twice)))
        };
        let verb = verb(EffectVerb::Complete, action, lease);
        match self.run(&mut OnAction { verb, operation: OperationId::mint(), judge, found }).await? {
            Told::Completed(completed) => Ok(completed),
            Told::FenceStale { current_fence } => Err(EffectError::FenceStale { current_fence }),
            Told::AttemptJudged { state } => Err(EffectError::AttemptJudged { state }),
        }
    }

    /// What mark and abandon need: the newest attempt, of which nothing was said yet.
    fn unjudged(situation: &Situation, head: &Head, attempt: &Attempt) -> Result<(), EffectError> {
        if !head.is_newest(attempt) {
            return Err(EffectError::FenceStale { current_fence: situation.last_fence() });
        }
        if attempt.verdict != Verdict::Open {
            return Err(EffectError::AttemptJudged { state: situation.state() });
        }
        Ok(())
    }

    pub(super) async fn mark_action(
        &self,
        action: &Action,
        lease: &Lease,
        reason: &Note,
    ) -> Result<Episode, EffectError> {
        let judge = |_: &View<'_>, situation: &Situation| {
            let (mut head, attempt) = situation.attempt(action, lease)?;
            Self::unjudged(situation, &head, &attempt)?;
            if head.phase == Phase::Uncertain {
                return Ok(Decision::Answer(situation.episode(&head)));
            }
            let now = situation.now();
            head.become_uncertain(reason.clone(), now);
            head.note(TransitionKind::Marked, self.agent(), attempt.fence, now, reason.clone());
            let episode = situation.episode(&head);
            Ok(Decision::write(Change::of(head), episode))
        };
        self.on_action(verb(EffectVerb::MarkUncertain, action, lease), judge).await
    }

    pub(super) async fn renew_action(
        &self,
        action: &Action,
        lease: &Lease,
        ttl: Duration,
    ) -> Result<Lease, EffectError> {
        check_ttl(ttl)?;
        let judge = |_: &View<'_>, situation: &Situation| {
            let until = lease_end(situation.now(), ttl)?;
            let (head, attempt) = situation.attempt(action, lease)?;
            if situation.last_fence() != attempt.fence {
                return Err(EffectError::FenceStale { current_fence: situation.last_fence() });
            }
            if head.phase != Phase::InFlight || attempt.verdict != Verdict::Open {
                return Err(EffectError::AttemptJudged { state: situation.state() });
            }
            let mut resource = situation.resource.clone().ok_or(EffectError::LeaseLost)?;
            match &mut resource.held {
                Some(held) if held.token == lease.token && !situation.time.is_over(Some(held.until)) => {
                    held.until = until;
                }
                _ => return Err(EffectError::LeaseLost),
            }
            let renewed = Lease { until, downstream_key: head.downstream_key(), ..lease.clone() };
            let change = Change { resource: Some(resource), ..Change::default() };
            Ok(Decision::write(change, renewed))
        };
        self.on_action(verb(EffectVerb::Renew, action, lease), judge).await
    }

    pub(super) async fn release_action(&self, action: &Action, lease: &Lease) -> Result<(), EffectError> {
        let judge = |_: &View<'_>, situation: &Situation| {
            let (mut head, attempt) = situation.attempt(action, lease)?;
            if situation.last_fence() != attempt.fence {
                return Err(EffectError::FenceStale { current_fence: situation.last_fence() });
            }
            let Some(resource) = situation.freed(&lease.token) else { return Ok(Decision::Answer(())) };
            head.note(
                TransitionKind::Released,
                self.agent(),
                attempt.fence,
                situation.now(),
                Note::default(),
            );
            Ok(Decision::write(Change::of(head).and_resource(Some(resource)), ()))
        };
        self.on_action(verb(EffectVerb::Release, action, lease), judge).await
    }

    pub(super) async fn abandon_action(
        &self,
        action: &Action,
        lease: &Lease,
        reason: &Note,
    ) -> Result<(), EffectError> {
        let judge = |_: &View<'_>, situation: &Situation| {
            let (mut head, attempt) = situation.attempt(action, lease)?;
            if attempt.verdict == Verdict::Abandoned {
                return Ok(Decision::Answer(()));
            }
            Self::unjudged(situation, &head, &attempt)?;
            if head.phase == Phase::Uncertain && head.maybe_applied {
                return Err(EffectError::StillUncertain { episode: situation.episode(&head) });
            }
            let now = situation.now();
            head.judge_newest(Verdict::Abandoned);
            head.note(TransitionKind::Abandoned, self.agent(), attempt.fence, now, reason.clone());
            if head.maybe_applied {
                head.become_uncertain(Note::truncated("an earlier attempt may have been done"), now);
            } else {
                head.settle(Phase::Idle, now);
            }
            let change = Change::of(head).and_resource(situation.freed(&lease.token));
            Ok(Decision::write(change, ()))
        };
        let found = |head: &Head| (head.attempt(&lease.token)?.verdict == Verdict::Abandoned).then_some(());
        let verb = verb(EffectVerb::Abandon, action, lease);
        self.run(&mut OnAction { verb, operation: OperationId::mint(), judge, found }).await
    }
}
