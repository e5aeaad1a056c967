//! Acquire: one atomic judgement of what is known of an action.

use std::time::Duration;

use super::action::{Action, Lease, Outcome};
use super::adapter::EffectAdapter;
use super::history::TransitionKind;
use super::record::{Attempt, Head, Held, Phase, Resource, Verdict, head_key, read_head};
use super::situation::{Change, Situation};
use super::verb::{OnActionVerb, fate};
use super::{EffectError, EffectVerb, Note};
use crate::backend::Backend;
use crate::board::AgentId;
use crate::cas::{Fate, Judge, Pending, Step, View, check_ttl, lease_end};
use crate::clock::Timestamp;
use crate::key::Key;
use crate::recent::Recent;
use crate::token::{OperationId, Token};

/// How often an acquire begins anew because its grant came to be after it could be used.
const FRESH_TRIES: usize = 8;

#[derive(Clone)]
enum Acquired {
    Outcome(Outcome),
    /// The call's own attempt is of no use any more and does not stand: the call goes on with a fresh token.
    Withdrawn,
}

struct Acquiring<'a> {
    action: &'a Action,
    ttl: Duration,
    agent: &'a AgentId,
    token: &'a Token,
    granting: OperationId,
    lapsing: OperationId,
    withdrawing: OperationId,
    /// Whether the call's own attempt was seen to stand. From then on no failure means that nothing has happened.
    stands: bool,
}

impl Acquiring<'_> {
    fn verb(&self) -> OnActionVerb<'_> {
        OnActionVerb {
            verb: EffectVerb::Acquire,
            key: &self.action.key,
            resource: Some(&self.action.resource),
            token: Some(self.token),
            with_result: true,
        }
    }

    /// Judges an attempt of this very call that came to be, and can no longer be given to the caller.
    fn withdraw(
        &self,
        situation: &Situation,
        mut head: Head,
        attempt: &Attempt,
    ) -> Result<Step<Acquired>, EffectError> {
        if !head.is_newest(attempt) || attempt.verdict != Verdict::Open {
            return Ok(Step::Answer(Acquired::Withdrawn));
        }
        let now = situation.now();
        head.judge_newest(Verdict::Abandoned);
        let reason = Note::truncated("the grant came to be too late for its caller");
        head.note(TransitionKind::Abandoned, self.agent, attempt.fence, now, reason);
        if head.maybe_applied {
            head.become_uncertain(Note::truncated("an earlier attempt may have been done"), now);
        } else {
            head.settle(Phase::Idle, now);
        }
        let change = Change::of(head).and_resource(situation.freed(self.token));
        Ok(Step::Commit(situation.commit(change, self.withdrawing)?, Acquired::Withdrawn))
    }

    fn grant(&self, situation: &Situation, until: Timestamp) -> Result<Step<Acquired>, EffectError> {
        let now = situation.now();
        // The head is looked at too, for a failover of the store may have lost the resource's last write and not the head's.
        let fence = situation.last_fence().max(situation.head.as_ref().map_or(0, Head::fence)) + 1;
        let mut head = match &situation.head {
            Some(head) => head.clone(),
            None => Head::new(self.action, &situation.floor, self.agent, now),
        };
        if !head.has_room() {
            return Err(EffectError::Invalid(format!(
                "the action {:?} has had {} attempts that have to be remembered, and cannot hold another one",
                self.action.key,
                head.attempts.len()
            )));
        }
        head.attempts.push(Attempt { token: self.token.clone(), fence, verdict: Verdict::Open });
        head.agent = self.agent.clone();
        head.settle(Phase::InFlight, now);
        head.note(TransitionKind::Granted, self.agent, fence, now, Note::default());
        let resource = Resource {
            fence,
            held: Some(Held {
                key: self.action.key.clone(),
                agent: self.agent.clone(),
                token: self.token.clone(),
                until,
            }),
            touched: now,
            recent: situation
                .resource
                .as_ref()
                .map_or_else(Recent::default, |resource| resource.recent.clone()),
        };
        let lease = self.lease(&head, fence, until);
        let txn = situation.commit(Change::of(head).and_resource(Some(resource)), self.granting)?;
        Ok(Step::Commit(txn, Acquired::Outcome(Outcome::Granted(lease))))
    }

    fn lease(&self, head: &Head, fence: u64, until: Timestamp) -> Lease {
        Lease {
            action: self.action.clone(),
            token: self.token.clone(),
            fence,
            until,
            downstream_key: head.downstream_key(),
        }
    }
}

impl Judge for Acquiring<'_> {
    type Answer = Acquired;
    type Error = EffectError;

    fn keys(&self) -> Vec<Key> {
        self.verb().keys()
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<Acquired>, EffectError> {
        let situation = match Situation::read(view, &self.action.key, Some(&self.action.resource))? {
            Ok(situation) => situation,
            Err(unread) => return Ok(Step::Read(vec![unread])),
        };
        // A ttl that makes no sense is refused before anything else is judged.
        let until = lease_end(situation.now(), self.ttl)?;
        let found = |outcome| Ok(Step::Answer(Acquired::Outcome(outcome)));
        if let Some(head) = situation.head.clone() {
            if let Some(attempt) = head.attempt(self.token).cloned() {
                self.stands = head.is_newest(&attempt) && attempt.verdict == Verdict::Open;
                return self.withdraw(&situation, head, &attempt);
            }
            if !head.is_about(self.action) {
                return Err(situation.mismatch());
            }
            match head.phase {
                Phase::Completed => return found(Outcome::Completed(situation.completed(view, &head)?)),
                Phase::Uncertain => return found(Outcome::Uncertain(situation.uncertain(&head))),
                Phase::InFlight if situation.has_lapsed() => {
                    let head = situation.lapsed(head, self.agent);
                    let answer = Outcome::Uncertain(situation.uncertain(&head));
                    let txn = situation.commit(Change::of(head), self.lapsing)?;
                    return Ok(Step::Commit(txn, Acquired::Outcome(answer)));
                }
                Phase::InFlight => {
                    if let Some(held) = situation.newest_hold() {
                        return found(Outcome::InFlight(situation.holder(held)));
                    }
                }
                Phase::Idle => {}
            }
        }
        if let Some(held) = situation.held()
            && !situation.time.may_take_over(Some(held.until))
        {
            return found(Outcome::Contended(situation.holder(held)));
        }
        self.grant(&situation, until)
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<Acquired>) -> Result<Fate<Acquired>, EffectError> {
        let operation = match &pending.answer {
            Acquired::Outcome(Outcome::Granted(_)) => self.granting,
            Acquired::Outcome(_) => return fate(view, pending, self.lapsing),
            Acquired::Withdrawn => return fate(view, pending, self.withdrawing),
        };
        let head = read_head(&self.action.key, view.entry(&head_key(&self.action.key))?)?;
        if let Some(head) = &head
            && let Some(attempt) = head.attempt(self.token)
        {
            // It came to be. It is given to the caller exactly if it is still good; else the next judgement sees it and withdraws it.
            let Ok(situation) = Situation::read(view, &self.action.key, Some(&self.action.resource))? else {
                return Ok(Fate::Dead);
            };
            let good =
                head.is_newest(attempt) && attempt.verdict == Verdict::Open && head.phase == Phase::InFlight;
            if let Some(held) = situation.held_by(self.token)
                && good
                && !situation.time.is_over(Some(held.until))
            {
                let lease = self.lease(head, attempt.fence, held.until);
                return Ok(Fate::Applied(Acquired::Outcome(Outcome::Granted(lease))));
            }
            return Ok(Fate::Dead);
        }
        Ok(match fate(view, pending, operation)? {
            // It came to be and was forgotten since, so it cannot come to be again.
            Fate::Applied(_) => Fate::Dead,
            fate => fate,
        })
    }

    fn looks_again(&self) -> bool {
        true
    }

    fn conflict(&self, attempts: u32) -> EffectError {
        EffectError::TxnConflict { attempts }
    }

    fn unknown(&self) -> EffectError {
        self.verb().unknown()
    }
}

impl<B: Backend> EffectAdapter<B> {
    pub(super) async fn acquire_action(
        &self,
        action: &Action,
        ttl: Duration,
    ) -> Result<Outcome, EffectError> {
        check_ttl(ttl)?;
        for _ in 0..FRESH_TRIES {
            let token = Token::mint();
            let mut acquiring = Acquiring {
                action,
                ttl,
                agent: self.agent(),
                token: &token,
                granting: OperationId::mint(),
                lapsing: OperationId::mint(),
                withdrawing: OperationId::mint(),
                stands: false,
            };
            match self.run(&mut acquiring).await {
                Ok(Acquired::Outcome(outcome)) => return Ok(outcome),
                Ok(Acquired::Withdrawn) => {}
                Err(EffectError::Backend(_) | EffectError::TxnConflict { .. }) if acquiring.stands => {
                    return Err(acquiring.unknown());
                }
                Err(error) => return Err(error),
            }
        }
        Err(EffectError::TxnConflict { attempts: FRESH_TRIES as u32 })
    }
}
