//! Judging what nobody knows.

use std::time::Duration;

use coord_core::Token;
use coord_core::effects::{
    Action, ActionState, EffectError, EffectVerb, Episode, Note, Reconciliation, Resolution, Ruled,
    RulingKind, TransitionKind, result_digest,
};

use super::record::{Claim, Done, Stored, Time, Verdict, Whole};
use super::{Call, Judged, OneKeyEffects, WrongEffects, check_ttl, end};

impl OneKeyEffects {
    pub(super) async fn claim_judgement(
        &self,
        action: &Action,
        ttl: Duration,
    ) -> Result<Reconciliation, EffectError> {
        if !self.is(WrongEffects::ZeroTtl) {
            check_ttl(ttl)?;
        }
        let token = self.mint();
        let call = Call::new(EffectVerb::BeginReconcile, action.key.as_str(), Some(&token));
        self.run(call, |whole, time| {
            let until = end(time.now, ttl)?;
            let Some(record) = whole.actions.get(&action.key) else {
                return Err(EffectError::NeverAcquired { key: action.key.clone() });
            };
            self.check_action(whole, record, action, time)?;
            match whole.state(record, time) {
                ActionState::Uncertain => {}
                ActionState::Lapsed if !self.is(WrongEffects::LapsedNotReconciled) => {
                    self.lapse(whole, time, action);
                    return Ok(Judged::WriteFirst);
                }
                ActionState::InFlight if self.is(WrongEffects::ReconcileInFlight) => {
                    self.lapse(whole, time, action);
                    return Ok(Judged::WriteFirst);
                }
                state => return Err(EffectError::NotUncertain { state }),
            }
            if let Some(claim) = &record.claim
                && (!time.is_past(claim.until) || self.is(WrongEffects::ClaimNeverExpires))
                && !self.is(WrongEffects::TwoReconcilers)
            {
                return Err(EffectError::Reconciling { until: claim.until });
            }
            let held = whole.held(&record.action.resource);
            let right = Reconciliation {
                action: record.action.clone(),
                episode: record.episode(),
                token: token.clone(),
                until,
                fence: record.newest().fence,
                hold_until: held.filter(|held| held.token == record.newest().token).map(|held| held.until),
                downstream_key: record.downstream_key.clone(),
            };
            if let Some(record) = whole.actions.get_mut(&action.key) {
                record.claim = Some(Claim { token: token.clone(), until });
                record.note(
                    time.now,
                    TransitionKind::Reconciling,
                    &self.agent,
                    right.fence,
                    &Note::default(),
                );
            }
            Ok(Judged::Write(Ok(right)))
        })
        .await
    }

    pub(super) async fn rule(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
        holder: Option<&Token>,
    ) -> Result<Ruled, EffectError> {
        let call = Call::new(EffectVerb::Resolve, action.key.as_str(), holder);
        if let Some(holder) = holder.filter(|_| self.is(WrongEffects::ClaimCheckedBefore)) {
            // Looked at on its own, and not again in the transaction.
            let look = |whole: &mut Whole, time: Time| {
                let claim = whole.actions.get(&action.key).and_then(|record| record.claim.clone());
                Ok(Judged::Keep(claim.is_some_and(|claim| claim.token == *holder && time.now < claim.until)))
            };
            if self.run(call.clone(), look).await? {
                return self
                    .run(call, |whole, time| {
                        self.judge(whole, time, action, episode, resolution, evidence, None)
                    })
                    .await;
            }
        }
        self.run(call, |whole, time| self.judge(whole, time, action, episode, resolution, evidence, holder))
            .await
    }

    #[expect(clippy::too_many_arguments, reason = "a ruling is made of all these")]
    fn judge(
        &self,
        whole: &mut Whole,
        time: Time,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
        holder: Option<&Token>,
    ) -> Result<Judged<Ruled>, EffectError> {
        let Some(record) = whole.actions.get(&action.key) else {
            return Err(EffectError::NeverAcquired { key: action.key.clone() });
        };
        self.check_action(whole, record, action, time)?;
        let state = whole.state(record, time);
        let ruled = record.rulings.iter().find(|(count, ..)| Episode::new(record.life, *count) == episode);
        if let Some((_, kind, at)) = ruled
            && !self.is(WrongEffects::SecondRulingCounts)
        {
            return Ok(Judged::Keep(Ruled::new(*kind, *at, self.is(WrongEffects::EveryRulingIsYours))));
        }
        let by_key = match self.wrong {
            Some(WrongEffects::RulingByKey) => true,
            Some(WrongEffects::StaleOwnedRuling) => holder.is_some(),
            _ => false,
        };
        if episode != record.episode() && !by_key {
            return Err(EffectError::EpisodeOver { state });
        }
        if state != ActionState::Uncertain && !self.is(WrongEffects::SecondRulingCounts) {
            return Err(EffectError::NotUncertain { state });
        }
        if let Some(holder) = holder {
            let current = record.claim.as_ref().is_some_and(|claim| {
                claim.token == *holder && (time.now < claim.until || self.is(WrongEffects::ClaimOutlives))
            });
            if !current && !self.is(WrongEffects::OwnedIsNotChecked) {
                return Err(EffectError::ReconcileLost { state });
            }
        }
        let (kind, fence, resource) =
            (resolution.kind(), record.newest().fence, record.action.resource.clone());
        let (doubted, count, token) = (record.maybe_applied, record.episodes, record.newest().token.clone());
        let stored = match resolution {
            Resolution::Applied(result) => Stored::Completed(Done {
                payload: self.keep_result(whole, result),
                len: result.len() as u64,
                digest: result_digest(result),
                at: time.now,
                maybe_twice: doubted,
                fence,
            }),
            _ => Stored::Idle,
        };
        if self.is(WrongEffects::RulingFreesResource) {
            whole.free(&resource, &token);
        }
        if self.is(WrongEffects::RulingBumpsFence)
            && let Some(hold) = whole.resources.get_mut(&resource)
        {
            hold.fence += 1;
        }
        let Some(record) = whole.actions.get_mut(&action.key) else {
            return Err(EffectError::NeverAcquired { key: action.key.clone() });
        };
        for attempt in &mut record.attempts {
            if attempt.verdict == Verdict::Open {
                attempt.verdict = Verdict::Ruled(kind);
            }
        }
        let doubt = kind == RulingKind::AllowRetry && !self.is(WrongEffects::RetryNotDoubted);
        record.maybe_applied = doubt || record.maybe_applied && self.is(WrongEffects::DoubtOutlivesRuling);
        record.rulings.retain(|(ruled, ..)| *ruled != count);
        record.rulings.push((count, kind, time.now));
        let transition = match kind {
            RulingKind::Applied => TransitionKind::RuledApplied,
            RulingKind::NotApplied => TransitionKind::RuledNotApplied,
            RulingKind::AllowRetry => TransitionKind::RetryAllowed,
        };
        if !self.is(WrongEffects::RulingNotRecorded) {
            record.note(time.now, transition, &self.agent, fence, evidence);
        }
        record.enter(stored, time.now);
        Ok(Judged::Write(Ok(Ruled::new(kind, time.now, true))))
    }
}
