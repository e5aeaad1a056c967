//! What an attempt does: acquire, and say what came of it.

use std::time::Duration;

use coord_core::effects::{
    Action, ActionState, EffectError, EffectVerb, Episode, Holder, Lease, Note, Outcome, TransitionKind,
    Uncertain, limits,
};
use coord_core::{Timestamp, Token};

use super::record::{Attempt, Held, Hold, Record, Stored, Time, Verdict, Whole};
use super::{Call, Found, Judged, OneKeyEffects, WrongEffects, check_ttl, end};

/// What one judgement of an acquire comes to.
enum Acquired {
    Completed(Found),
    Uncertain(Uncertain),
    InFlight(Holder),
    Contended(Holder),
    Granted(Lease),
    /// An attempt of this call landed that is not live any more: again with another token.
    Fresh,
}

impl OneKeyEffects {
    /// Whether an action is the one that the key is in use for.
    pub(super) fn matches(&self, record: &Record, action: &Action) -> bool {
        let same_resource =
            record.action.resource == action.resource || self.is(WrongEffects::ResourceNotCompared);
        let same_fingerprint = match (&record.action.fingerprint, &action.fingerprint) {
            (Some(own), Some(other)) => own.is_same_action(other),
            (None, None) => true,
            _ => self.is(WrongEffects::NoFingerprintMatches),
        };
        same_resource && (same_fingerprint || self.is(WrongEffects::FingerprintNotCompared))
    }

    pub(super) fn check_action(
        &self,
        whole: &Whole,
        record: &Record,
        action: &Action,
        time: Time,
    ) -> Result<(), EffectError> {
        if self.matches(record, action) {
            return Ok(());
        }
        Err(EffectError::Mismatch { key: action.key.clone(), state: whole.state(record, time) })
    }

    pub(super) async fn acquire_action(
        &self,
        action: &Action,
        ttl: Duration,
    ) -> Result<Outcome, EffectError> {
        if !self.is(WrongEffects::ZeroTtl) {
            check_ttl(ttl)?;
        }
        loop {
            let token = self.mint();
            let call = Call::new(EffectVerb::Acquire, action.key.as_str(), Some(&token));
            let acquired =
                self.run(call, |whole, time| self.judge_acquire(whole, time, action, ttl, &token)).await?;
            return Ok(match acquired {
                Acquired::Fresh => continue,
                Acquired::Completed(found) => match self.replay(&found.done).await? {
                    Some(completed) => Outcome::Completed(completed),
                    None => continue,
                },
                Acquired::Uncertain(uncertain) => Outcome::Uncertain(uncertain),
                Acquired::InFlight(holder) => Outcome::InFlight(holder),
                Acquired::Contended(holder) => Outcome::Contended(holder),
                Acquired::Granted(lease) => {
                    if self.is(WrongEffects::GrantInTwo) {
                        self.touch(action).await?;
                    }
                    Outcome::Granted(lease)
                }
            });
        }
    }

    /// A second transaction, for the judge that needs one.
    async fn touch(&self, action: &Action) -> Result<(), EffectError> {
        let call = Call::new(EffectVerb::Get, action.key.as_str(), None);
        self.run(call, |_, _| Ok(Judged::Write(Ok(())))).await
    }

    fn judge_acquire(
        &self,
        whole: &mut Whole,
        time: Time,
        action: &Action,
        ttl: Duration,
        token: &Token,
    ) -> Result<Judged<Acquired>, EffectError> {
        let until = match end(time.now, ttl) {
            Err(_) if self.is(WrongEffects::TtlSaturates) => Timestamp::MAX,
            until => until?,
        };
        let record = whole.actions.get(&action.key);
        if let Some(record) = record
            && let Some(own) = record.attempt(token)
        {
            return self.find_own(whole, time, action, own.clone());
        }
        if let Some(record) = record {
            let early =
                self.is(WrongEffects::MismatchAfterCompleted) && matches!(record.state, Stored::Completed(_));
            if !early {
                self.check_action(whole, record, action, time)?;
            }
        }
        let mut contended = whole
            .held(&action.resource)
            .filter(|held| !time.is_past(held.until) || self.is(WrongEffects::HolderNeverExpires))
            .and_then(|_| whole.holder_of(&action.resource));
        if self.is(WrongEffects::ResourceNotHeld) {
            contended = None;
        }
        if let Some(record) = record {
            let foreign = contended.clone().filter(|holder| holder.key != action.key);
            if let (Some(holder), Stored::Uncertain { .. }) = (&foreign, &record.state)
                && self.is(WrongEffects::ContendedBeforeUncertain)
            {
                return Ok(Judged::Keep(Acquired::Contended(holder.clone())));
            }
            if let (Some(holder), Stored::Completed(_)) = (&foreign, &record.state)
                && self.is(WrongEffects::ContendedBeforeCompleted)
            {
                return Ok(Judged::Keep(Acquired::Contended(holder.clone())));
            }
            match whole.state(record, time) {
                ActionState::Completed => {
                    if let Stored::Completed(done) = &record.state {
                        return Ok(Judged::Keep(Acquired::Completed(Found { done: done.clone() })));
                    }
                }
                ActionState::Uncertain => {
                    let forgotten = self.is(WrongEffects::UncertainExpires)
                        && time.is_past(record.since.saturating_add(ttl * 10));
                    if let Some(uncertain) = record.uncertain().filter(|_| !forgotten) {
                        let own_hold = contended.as_ref().filter(|holder| holder.key == action.key);
                        if let (Some(holder), true) = (own_hold, self.is(WrongEffects::OwnHoldIsInFlight)) {
                            return Ok(Judged::Keep(Acquired::InFlight(holder.clone())));
                        }
                        return Ok(Judged::Keep(Acquired::Uncertain(uncertain)));
                    }
                }
                ActionState::InFlight => {
                    if let Some(holder) = whole.holder_of(&action.resource) {
                        return Ok(Judged::Keep(if self.is(WrongEffects::InFlightIsContended) {
                            Acquired::Contended(holder)
                        } else {
                            Acquired::InFlight(holder)
                        }));
                    }
                }
                ActionState::Lapsed => {
                    let expired =
                        time.is_past(record.newest().until) && whole.is_holder(record, record.newest());
                    let again = self.is(WrongEffects::LapsedGrantedAgain) && expired
                        || self.is(WrongEffects::ReleasedGrantedAgain) && !expired;
                    if let (Some(holder), true) = (&foreign, self.is(WrongEffects::LapsedIsContended)) {
                        return Ok(Judged::Keep(Acquired::Contended(holder.clone())));
                    }
                    if !again {
                        self.lapse(whole, time, action);
                        return Ok(match whole.actions.get(&action.key).and_then(Record::uncertain) {
                            Some(uncertain) if self.is(WrongEffects::LapseNotWritten) => {
                                Judged::Keep(Acquired::Uncertain(uncertain))
                            }
                            Some(uncertain) => Judged::Write(Ok(Acquired::Uncertain(uncertain))),
                            None => Judged::WriteFirst,
                        });
                    }
                }
                _ => {}
            }
        }
        if let Some(holder) = contended {
            return Ok(Judged::Keep(Acquired::Contended(holder)));
        }
        Ok(Judged::Write(Ok(Acquired::Granted(self.grant(whole, time, action, until, token)?))))
    }

    /// What became of this call's own attempt, which was not known to have landed.
    fn find_own(
        &self,
        whole: &mut Whole,
        time: Time,
        action: &Action,
        own: Attempt,
    ) -> Result<Judged<Acquired>, EffectError> {
        let Some(record) = whole.actions.get(&action.key) else { return Ok(Judged::Keep(Acquired::Fresh)) };
        let held = whole.held(&record.action.resource);
        let live = held.is_some_and(|held| held.token == own.token && time.now < held.until);
        if !record.is_newest(&own.token) || own.verdict != Verdict::Open {
            return Ok(Judged::Keep(Acquired::Fresh));
        }
        if matches!(record.state, Stored::InFlight) && (live || self.is(WrongEffects::OwnAttemptUnchecked)) {
            let until = held.map_or(own.until, |held| held.until);
            return Ok(Judged::Keep(Acquired::Granted(self.lease(record, &own, until))));
        }
        if self.is(WrongEffects::OwnAttemptLeft) {
            return Ok(Judged::Keep(Acquired::Fresh));
        }
        if matches!(record.state, Stored::Uncertain { .. }) && record.maybe_applied {
            return Ok(Judged::Keep(Acquired::Fresh));
        }
        let reason = Note::truncated("its caller was never told of it");
        self.withdraw(whole, time, action, &reason);
        Ok(Judged::Write(Ok(Acquired::Fresh)))
    }

    fn lease(&self, record: &Record, attempt: &Attempt, until: Timestamp) -> Lease {
        Lease {
            action: record.action.clone(),
            token: attempt.token.clone(),
            fence: attempt.fence,
            until,
            downstream_key: record.downstream_key.clone(),
        }
    }

    fn grant(
        &self,
        whole: &mut Whole,
        time: Time,
        action: &Action,
        until: Timestamp,
        token: &Token,
    ) -> Result<Lease, EffectError> {
        let last = whole.last_fence(&action.resource);
        let fence = match self.wrong {
            Some(WrongEffects::FenceByTwo) => last + 2,
            Some(WrongEffects::FenceByHead) => {
                whole.actions.get(&action.key).map_or(0, |record| record.newest().fence) + 1
            }
            Some(WrongEffects::FenceInHandle) => self.fence_in_handle(&action.resource, last),
            _ => last + 1,
        };
        if !whole.actions.contains_key(&action.key) {
            whole.lives += 1;
            let life = if self.is(WrongEffects::LivesAreOne) { 1 } else { whole.lives };
            whole.actions.insert(action.key.clone(), Record::new(action.clone(), life, time.now));
        }
        let held = Held { key: action.key.clone(), agent: self.agent.clone(), token: token.clone(), until };
        let displaced = whole
            .resources
            .insert(action.resource.clone(), Hold { fence, holder: Some(held) })
            .and_then(|hold| hold.holder);
        if let Some(displaced) = displaced.filter(|_| self.is(WrongEffects::TakeoverFreesKey))
            && displaced.key != action.key
            && let Some(other) = whole.actions.get_mut(&displaced.key)
        {
            other.newest_mut().verdict = Verdict::Abandoned;
            other.enter(Stored::Idle, time.now);
        }
        let Some(record) = whole.actions.get_mut(&action.key) else {
            return Err(EffectError::NeverAcquired { key: action.key.clone() });
        };
        if self.is(WrongEffects::DownstreamKeyPerAttempt) {
            record.downstream_key = format!("{}-{fence}", Token::mint().reveal());
        }
        if self.is(WrongEffects::RuledAttemptsDropped) {
            record.attempts.clear();
        }
        let keep_all = self.is(WrongEffects::AbandonedFillUp);
        record.attempts.retain({
            let mut abandoned =
                record.attempts.iter().filter(|attempt| attempt.verdict == Verdict::Abandoned).count();
            let evidence: Vec<u64> = record.evidence.iter().map(|late| late.fence).collect();
            move |attempt| {
                let drop = attempt.verdict == Verdict::Abandoned
                    && !keep_all
                    && abandoned >= limits::ABANDONED_ATTEMPTS
                    && !evidence.contains(&attempt.fence);
                if drop {
                    abandoned -= 1;
                }
                !drop
            }
        });
        if self.is(WrongEffects::OldestDropped) && record.attempts.len() >= limits::ATTEMPTS {
            record.attempts.remove(0);
        }
        if record.attempts.len() >= limits::ATTEMPTS {
            return Err(EffectError::Invalid(format!("{:?} cannot be attempted any more", action.key)));
        }
        let agent = self.agent.clone();
        let attempt =
            Attempt { token: token.clone(), agent: agent.clone(), fence, until, verdict: Verdict::Open };
        record.attempts.push(attempt.clone());
        record.enter(Stored::InFlight, time.now);
        record.note(time.now, TransitionKind::Granted, &agent, fence, &Note::default());
        let mut lease = self.lease(record, &attempt, until);
        if self.is(WrongEffects::FenceAnsweredWrong) {
            lease.fence += 1;
        }
        Ok(lease)
    }

    /// Writes down that the newest attempt has lapsed.
    pub(super) fn lapse(&self, whole: &mut Whole, time: Time, action: &Action) {
        let Some(record) = whole.actions.get_mut(&action.key) else { return };
        let (agent, fence) = (record.newest().agent.clone(), record.newest().fence);
        let reason = Note::truncated("it ended without a word");
        record.note(time.now, TransitionKind::Lapsed, &self.agent, fence, &reason);
        record.become_uncertain(time.now, agent, fence, reason);
    }

    /// The newest attempt did nothing.
    fn withdraw(&self, whole: &mut Whole, time: Time, action: &Action, reason: &Note) {
        let Some(record) = whole.actions.get_mut(&action.key) else { return };
        let (token, agent, fence) =
            (record.newest().token.clone(), record.newest().agent.clone(), record.newest().fence);
        record.newest_mut().verdict = Verdict::Abandoned;
        record.note(time.now, TransitionKind::Abandoned, &self.agent, fence, reason);
        if record.maybe_applied && !self.is(WrongEffects::AbandonClearsDoubt) {
            record.become_uncertain(
                time.now,
                agent,
                fence,
                Note::truncated("an earlier attempt may have been done"),
            );
        } else {
            record.enter(Stored::Idle, time.now);
        }
        let resource = record.action.resource.clone();
        if !self.is(WrongEffects::AbandonKeepsResource) {
            whole.free(&resource, &token);
        }
    }

    /// The attempt of a lease, checked as far as every verb checks it.
    pub(super) fn attempt<'a>(
        &self,
        whole: &'a Whole,
        time: Time,
        action: &Action,
        lease: &Lease,
    ) -> Result<(&'a Record, &'a Attempt), EffectError> {
        let Some(record) = whole.actions.get(&action.key) else {
            return Err(EffectError::NeverAcquired { key: action.key.clone() });
        };
        let attempt = match record.attempt(&lease.token) {
            Some(attempt) => attempt,
            None if self.is(WrongEffects::TokenNotCompared) => record.newest(),
            None => return Err(EffectError::LeaseLost),
        };
        self.check_action(whole, record, action, time)?;
        let claimed = self.action(&lease.action)?;
        if claimed.key != action.key || !self.matches(record, &claimed) {
            return Err(EffectError::Mismatch { key: action.key.clone(), state: whole.state(record, time) });
        }
        if lease.fence != attempt.fence
            && !self.is(WrongEffects::FenceAnsweredWrong)
            && !self.is(WrongEffects::LeaseFenceNotCompared)
        {
            return Err(EffectError::LeaseLost);
        }
        Ok((record, attempt))
    }

    pub(super) fn stale(whole: &Whole, record: &Record) -> EffectError {
        EffectError::FenceStale { current_fence: whole.last_fence(&record.action.resource) }
    }

    pub(super) async fn mark_action(
        &self,
        action: &Action,
        lease: &Lease,
        reason: &Note,
    ) -> Result<Episode, EffectError> {
        let call = Call::new(EffectVerb::MarkUncertain, action.key.as_str(), Some(&lease.token));
        if self.is(WrongEffects::MarkInTwo) {
            let withdraw = |whole: &mut Whole, time: Time| {
                let (record, attempt) = self.attempt(whole, time, action, lease)?;
                if record.is_newest(&attempt.token) && matches!(record.state, Stored::InFlight) {
                    if let Some(record) = whole.actions.get_mut(&action.key) {
                        record.enter(Stored::Idle, time.now);
                    }
                    return Ok(Judged::Write(Ok(())));
                }
                Ok(Judged::Keep(()))
            };
            self.run(call.clone(), withdraw).await?;
        }
        self.run(call, |whole, time| {
            let (record, attempt) = self.attempt(whole, time, action, lease)?;
            let (newest, verdict) = (record.is_newest(&attempt.token), attempt.verdict);
            let (agent, fence, state) = (attempt.agent.clone(), attempt.fence, whole.state(record, time));
            if !newest && !self.is(WrongEffects::LateMarkMarks) {
                return Err(Self::stale(whole, record));
            }
            if verdict != Verdict::Open && newest {
                return Err(EffectError::AttemptJudged { state });
            }
            if state == ActionState::Lapsed && self.is(WrongEffects::MarkOnlyLive) {
                return Err(EffectError::LeaseLost);
            }
            if state == ActionState::Uncertain && !self.is(WrongEffects::MarkAgainIsNew) {
                return Ok(Judged::Keep(record.episode()));
            }
            let (resource, token) = (record.action.resource.clone(), attempt.token.clone());
            let Some(record) = whole.actions.get_mut(&action.key) else { return Err(EffectError::LeaseLost) };
            record.note(time.now, TransitionKind::Marked, &self.agent, fence, reason);
            record.become_uncertain(time.now, agent, fence, reason.clone());
            let episode = record.episode();
            if self.is(WrongEffects::MarkFreesResource) {
                whole.free(&resource, &token);
            }
            Ok(Judged::Write(Ok(episode)))
        })
        .await
    }

    pub(super) async fn renew_action(
        &self,
        action: &Action,
        lease: &Lease,
        ttl: Duration,
    ) -> Result<Lease, EffectError> {
        if !self.is(WrongEffects::ZeroTtl) {
            check_ttl(ttl)?;
        }
        let call = Call::new(EffectVerb::Renew, action.key.as_str(), Some(&lease.token));
        let mut renewed =
            self.run(call, |whole, time| self.judge_renew(whole, time, action, lease, ttl)).await?;
        renewed.action = lease.action.clone();
        Ok(renewed)
    }

    fn judge_renew(
        &self,
        whole: &mut Whole,
        time: Time,
        action: &Action,
        lease: &Lease,
        ttl: Duration,
    ) -> Result<Judged<Lease>, EffectError> {
        let (record, attempt) = self.attempt(whole, time, action, lease)?;
        let (record, attempt) = (record.clone(), attempt.clone());
        let held = whole.held(&record.action.resource).cloned();
        let own = held.as_ref().is_some_and(|held| held.token == attempt.token);
        if attempt.verdict != Verdict::Open {
            return Err(EffectError::AttemptJudged { state: whole.state(&record, time) });
        }
        let other_grant =
            !record.is_newest(&attempt.token) || whole.last_fence(&record.action.resource) != attempt.fence;
        if other_grant && !self.is(WrongEffects::RenewTakesOver) {
            return Err(Self::stale(whole, &record));
        }
        let mut revived = false;
        if matches!(record.state, Stored::Uncertain { .. }) {
            revived = self.is(WrongEffects::RenewRevives);
            if !revived && !self.is(WrongEffects::RenewUncertain) {
                return Err(EffectError::AttemptJudged { state: ActionState::Uncertain });
            }
        }
        let base = held.as_ref().map_or(time.now, |held| held.until);
        let late = match self.wrong {
            Some(WrongEffects::RenewAtExpiry) => time.now > base,
            Some(WrongEffects::RenewRevives | WrongEffects::RenewTooLate) => false,
            _ => time.now >= base,
        };
        if !own && !self.is(WrongEffects::RenewTakesOver) && !revived || late {
            return Err(EffectError::LeaseLost);
        }
        let until = match self.wrong {
            Some(WrongEffects::RenewAdds) => end(base, ttl)?,
            Some(WrongEffects::TtlSaturates) => time.now.saturating_add(ttl),
            Some(WrongEffects::RenewNeverShortens) => base.max(end(time.now, ttl)?),
            _ => end(time.now, ttl)?,
        };
        let held = Held {
            key: action.key.clone(),
            agent: attempt.agent.clone(),
            token: attempt.token.clone(),
            until,
        };
        if let Some(hold) = whole.resources.get_mut(&record.action.resource) {
            hold.holder = Some(held);
        }
        if let Some(record) = whole.actions.get_mut(&action.key) {
            record.newest_mut().until = until;
            if revived {
                record.enter(Stored::InFlight, time.now);
            }
        }
        Ok(Judged::Write(Ok(self.lease(&record, &attempt, until))))
    }

    pub(super) async fn release_action(&self, action: &Action, lease: &Lease) -> Result<(), EffectError> {
        let call = Call::new(EffectVerb::Release, action.key.as_str(), Some(&lease.token));
        self.run(call, |whole, time| {
            let (record, attempt) = self.attempt(whole, time, action, lease)?;
            let (resource, token, fence) =
                (record.action.resource.clone(), attempt.token.clone(), attempt.fence);
            if self.is(WrongEffects::LateReleaseFrees) {
                if let Some(hold) = whole.resources.get_mut(&resource) {
                    hold.holder = None;
                }
                return Ok(Judged::Write(Ok(())));
            }
            if whole.last_fence(&resource) != fence {
                return Err(Self::stale(whole, record));
            }
            if !whole.is_holder(record, attempt) {
                if self.is(WrongEffects::ReleaseTwiceRefused) {
                    return Err(EffectError::LeaseLost);
                }
                return Ok(Judged::Keep(()));
            }
            whole.free(&resource, &token);
            if self.is(WrongEffects::FenceRestarts) {
                whole.resources.remove(&resource);
            }
            if let Some(record) = whole.actions.get_mut(&action.key) {
                let attempt = record.newest_mut();
                attempt.until = attempt.until.min(time.now);
                record.note(time.now, TransitionKind::Released, &self.agent, fence, &Note::default());
                if self.is(WrongEffects::ReleaseFreesKey) {
                    record.newest_mut().verdict = Verdict::Abandoned;
                    record.enter(Stored::Idle, time.now);
                }
            }
            Ok(Judged::Write(Ok(())))
        })
        .await
    }

    pub(super) async fn abandon_action(
        &self,
        action: &Action,
        lease: &Lease,
        reason: &Note,
    ) -> Result<(), EffectError> {
        let call = Call::new(EffectVerb::Abandon, action.key.as_str(), Some(&lease.token));
        self.run(call, |whole, time| {
            let (record, attempt) = self.attempt(whole, time, action, lease)?;
            let newest = record.is_newest(&attempt.token);
            if self.is(WrongEffects::LateAbandonFrees) && !newest {
                let resource = record.action.resource.clone();
                if let Some(hold) = whole.resources.get_mut(&resource) {
                    hold.holder = None;
                }
                return Ok(Judged::Write(Ok(())));
            }
            if attempt.verdict == Verdict::Abandoned {
                return Ok(Judged::Keep(()));
            }
            if !newest {
                return Err(Self::stale(whole, record));
            }
            if attempt.verdict != Verdict::Open {
                return Err(EffectError::AttemptJudged { state: whole.state(record, time) });
            }
            let uncertain = matches!(record.state, Stored::Uncertain { .. });
            if uncertain && self.is(WrongEffects::AbandonUncertainRefused) {
                return Err(EffectError::AttemptJudged { state: ActionState::Uncertain });
            }
            if uncertain && record.maybe_applied && !self.is(WrongEffects::AbandonClearsDoubt) {
                return Err(EffectError::StillUncertain { episode: record.episode() });
            }
            self.withdraw(whole, time, action, reason);
            Ok(Judged::Write(Ok(())))
        })
        .await
    }
}
