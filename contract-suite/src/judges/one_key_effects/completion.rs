//! What a result comes to, in time or late.

use coord_core::Bytes;
use coord_core::effects::{
    Action, ActionState, Completed, EffectError, EffectVerb, Lease, Note, Replay, TransitionKind, limits,
    result_digest,
};

use super::record::{Attempt, Done, Late, Payload, Record, Stored, Time, Verdict, Whole};
use super::{Call, Found, Judged, OneKeyEffects, WrongEffects};

/// What a completion comes to.
enum Kept {
    /// What this call brought is the result.
    Own { done: Done },
    /// What was there before.
    Earlier(Found),
}

impl OneKeyEffects {
    pub(super) async fn complete_action(
        &self,
        action: &Action,
        lease: &Lease,
        result: Bytes,
    ) -> Result<Completed, EffectError> {
        if result.len() > limits::RESULT_BYTES && self.is(WrongEffects::TooLargeIsInvalid) {
            return Err(EffectError::Invalid("the result is too large".to_owned()));
        }
        loop {
            let call = Call::new(EffectVerb::Complete, action.key.as_str(), Some(&lease.token));
            let kept = self
                .run(call, |whole, time| self.judge_complete(whole, time, action, lease, &result))
                .await?;
            match kept {
                Kept::Own { done } => {
                    let replay = match done.payload {
                        Payload::Here(bytes) => Replay::Result(Bytes::from(bytes)),
                        Payload::TooLarge => Replay::TooLarge { len: done.len, digest: done.digest },
                        _ => Replay::Result(result),
                    };
                    return Ok(Completed::new(replay, done.at, done.maybe_twice));
                }
                Kept::Earlier(found) => {
                    if let Some(completed) = self.replay(&found.done).await? {
                        return Ok(completed);
                    }
                }
            }
        }
    }

    fn judge_complete(
        &self,
        whole: &mut Whole,
        time: Time,
        action: &Action,
        lease: &Lease,
        result: &Bytes,
    ) -> Result<Judged<Kept>, EffectError> {
        let (record, attempt) = self.attempt(whole, time, action, lease)?;
        let (record, attempt) = (record.clone(), attempt.clone());
        let newest = record.is_newest(&attempt.token);
        if let Stored::Completed(done) = &record.state
            && !self.is(WrongEffects::SecondResultOverwrites)
        {
            if self.is(WrongEffects::RepeatRefused) {
                return Err(EffectError::AttemptJudged { state: ActionState::Completed });
            }
            let same = done.fence == attempt.fence && done.digest == result_digest(result);
            let added = !same && self.add_evidence(whole, time, &record, &attempt, result);
            if !added {
                if self.is(WrongEffects::RepeatWrites) {
                    return Ok(Judged::Write(Ok(Kept::Earlier(Found { done: done.clone() }))));
                }
                return Ok(Judged::Keep(Kept::Earlier(Found { done: done.clone() })));
            }
            let mut done = done.clone();
            if !self.is(WrongEffects::LateResultNotDoubted) {
                done.maybe_twice = true;
            }
            if let Some(record) = whole.actions.get_mut(&action.key) {
                record.state = Stored::Completed(done.clone());
            }
            return Ok(Judged::Write(Ok(Kept::Earlier(Found { done }))));
        }
        if !newest && !self.is(WrongEffects::CompleteAfterNewer) {
            let kept = self.late(whole, time, &record, &attempt, result);
            return Ok(refuse(kept, Self::stale(whole, &record)));
        }
        if newest && attempt.verdict != Verdict::Open && !self.is(WrongEffects::CompleteAfterJudged) {
            let kept = self.late(whole, time, &record, &attempt, result);
            let state =
                whole.actions.get(&action.key).map_or(ActionState::Idle, |now| whole.state(now, time));
            return Ok(refuse(kept, EffectError::AttemptJudged { state }));
        }
        if newest
            && whole.last_fence(&record.action.resource) != attempt.fence
            && !self.is(WrongEffects::CompleteAfterOther)
        {
            let kept = self.late(whole, time, &record, &attempt, result);
            return Ok(refuse(kept, Self::stale(whole, &record)));
        }
        let live = whole.is_live(&record, &attempt, time);
        let uncertain = matches!(record.state, Stored::Uncertain { .. });
        if !live && self.is(WrongEffects::CompleteOnlyLive)
            || uncertain && self.is(WrongEffects::CompleteOnlyCertain)
        {
            return Err(EffectError::LeaseLost);
        }
        let payload = self.keep_result(whole, result);
        let done = Done {
            payload,
            len: result.len() as u64,
            digest: result_digest(result),
            at: time.now,
            maybe_twice: record.maybe_applied && !self.is(WrongEffects::CompletionClearsDoubt)
                || self.is(WrongEffects::AlwaysMaybeTwice),
            fence: attempt.fence,
        };
        if let Some(record) = whole.actions.get_mut(&action.key) {
            if let Some(own) = record.attempts.iter_mut().find(|own| own.token == attempt.token) {
                own.verdict = Verdict::Completed;
            }
            record.note(time.now, TransitionKind::Completed, &self.agent, attempt.fence, &Note::default());
            record.enter(Stored::Completed(done.clone()), time.now);
        }
        if self.is(WrongEffects::FenceForgotten) {
            whole.resources.remove(&record.action.resource);
        } else if !self.is(WrongEffects::CompleteKeepsResource) {
            whole.free(&record.action.resource, &attempt.token);
        }
        Ok(Judged::Write(Ok(Kept::Own { done })))
    }

    pub(super) fn keep_result(&self, whole: &mut Whole, result: &Bytes) -> Payload {
        match self.wrong {
            Some(WrongEffects::ResultTrimmed) => {
                let end = result.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                whole.keep(&result.slice(..end))
            }
            Some(WrongEffects::EmptyResultLost) if result.is_empty() => Payload::NotKept,
            _ => whole.keep(result),
        }
    }

    /// Keeps evidence. Whether it is new.
    fn add_evidence(
        &self,
        whole: &mut Whole,
        time: Time,
        record: &Record,
        attempt: &Attempt,
        result: &Bytes,
    ) -> bool {
        if self.is(WrongEffects::EvidenceDropped) {
            return false;
        }
        let digest = result_digest(result);
        let known = record.evidence.iter().any(|late| late.fence == attempt.fence && late.digest == digest);
        let fifth = record.evidence.len() >= limits::EVIDENCE_KEPT && self.is(WrongEffects::FifthIgnored);
        if fifth || known && !self.is(WrongEffects::EvidenceTwice) {
            return false;
        }
        let many = record.evidence.len() >= limits::EVIDENCE_KEPT;
        let payload = if many || self.is(WrongEffects::EvidenceWithoutBytes) {
            Payload::NotKept
        } else {
            whole.keep(result)
        };
        let late = Late { fence: attempt.fence, at: time.now, len: result.len() as u64, digest, payload };
        if let Some(record) = whole.actions.get_mut(&record.action.key) {
            record.evidence_count += 1;
            if record.evidence.len() < limits::EVIDENCE_KNOWN {
                record.evidence.push(late);
            }
            let reason = Note::truncated("a result came late");
            record.note(time.now, TransitionKind::Evidence, &self.agent, attempt.fence, &reason);
        }
        true
    }

    /// A late result of a key that is not completed: a fact, and the key is uncertain because of it.
    fn late(
        &self,
        whole: &mut Whole,
        time: Time,
        record: &Record,
        attempt: &Attempt,
        result: &Bytes,
    ) -> bool {
        if !self.add_evidence(whole, time, record, attempt, result) {
            return false;
        }
        let newer_in_flight = matches!(record.state, Stored::InFlight) && !record.is_newest(&attempt.token);
        let fence = attempt.fence;
        let Some(record) = whole.actions.get_mut(&record.action.key) else { return true };
        record.maybe_applied = !self.is(WrongEffects::EvidenceNotDoubted);
        let settles = match self.wrong {
            Some(WrongEffects::EvidenceLeavesIdle) => !matches!(record.state, Stored::Idle),
            Some(WrongEffects::EvidenceLeavesEpisode) => !matches!(record.state, Stored::Uncertain { .. }),
            _ => true,
        };
        if (!newer_in_flight || self.is(WrongEffects::EvidenceStopsNewer)) && settles {
            let reason = Note::truncated("a result came late");
            record.become_uncertain(time.now, attempt.agent.clone(), fence, reason);
        }
        true
    }
}

/// A refusal that is written only if the evidence was new.
fn refuse<T>(written: bool, error: EffectError) -> Judged<T> {
    if written { Judged::Write(Err(error)) } else { Judged::Refuse(error) }
}
