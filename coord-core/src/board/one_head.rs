//! The verbs on one head besides the claim: renew, release, complete, fail, and the operators' cancel, reopen and revoke.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::adapter::{BoardAdapter, commit, outcome_unknown, ring_fate};
use super::past::{self, past_key};
use super::ready::{self, Moved};
use super::record::{
    Head, Held, Settled, SettledBy, definition_key, encode_head, head_key, malformed, read_definition,
    read_head,
};
use super::retry::Retry;
use super::task::{Lease, Outcome, State, TaskId};
use super::{BoardError, Verb};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, Time, View, check_ttl, lease_end};
use crate::key::Key;
use crate::token::{self, OperationId, Token};
use crate::txn::{Assert, Mutation};

pub(super) fn not_found(id: &TaskId) -> BoardError {
    BoardError::NotFound { id: id.clone() }
}

pub(super) fn lease_lost(head: &Head) -> BoardError {
    BoardError::LeaseLost { current_fence: head.fence }
}

pub(super) fn taken(head: &Head, held: &Held) -> BoardError {
    BoardError::Taken { owner: held.owner.clone(), until: held.until, fence: head.fence }
}

pub(super) fn unknown_state(id: &TaskId, code: u8) -> BoardError {
    malformed(&head_key(id), format!("the task is in the state {code}, which this version does not know"))
}

/// The head, if this token holds it.
pub(super) fn held_by<'h>(head: &'h Head, token: &Token) -> Option<&'h Held> {
    head.held.as_ref().filter(|held| held.token == *token)
}

/// The answer that this token got when it ended its claim by this verb.
fn settled_answer(head: &Head, token: &Token, verb: SettledBy) -> Option<Outcome> {
    let settled = head.settled.as_ref()?;
    (settled.token == *token && settled.verb == verb).then(|| settled.answer.clone())
}

/// The fate of a try that wrote the head of a task. Of another life of the id nothing is told, and nothing is run again on it.
pub(super) fn head_fate<A: Clone>(
    view: &View<'_>,
    pending: &Pending<A>,
    id: &TaskId,
    operation: OperationId,
    found: impl FnOnce(&Head) -> Option<A>,
    kept_for_ever: bool,
) -> Result<Fate<A>, BoardError> {
    let key = head_key(id);
    let entry = view.entry(&key)?;
    let Some(before) = pending.asserted(&key) else { return Ok(Fate::Lost) };
    let Some(head) = read_head(id, entry)? else { return Ok(Fate::Lost) };
    if entry.version().incarnation() != before.incarnation() {
        return Ok(Fate::Lost);
    }
    if let Some(answer) = found(&head) {
        return Ok(Fate::Applied(answer));
    }
    let fate = ring_fate(view, pending, operation, &[(&key, &head.recent)])?;
    Ok(match fate {
        // What is kept for ever and is not there was never written.
        Fate::Lost if kept_for_ever => Fate::Dead,
        fate => fate,
    })
}

/// What a judgement on one head says.
enum Change<A> {
    Answer(A),
    Write(Box<Head>, A),
}

/// A verb that judges the head of a task and writes nothing else, but for the index.
struct OnHead<'a, J, F> {
    verb: Verb,
    id: &'a TaskId,
    operation: OperationId,
    token: Option<&'a Token>,
    /// Judges the head as it is.
    judge: J,
    /// Finds what the verb has done in a head, besides by its operation id, and the answer to that.
    found: F,
    /// Whether that is kept as long as the task lives.
    kept_for_ever: bool,
}

impl<A, J, F> Judge for OnHead<'_, J, F>
where
    A: Clone + Send,
    J: FnMut(Time, Head, Option<Retry>) -> Result<Change<A>, BoardError> + Send,
    F: Fn(&Head) -> Option<A> + Send + Sync,
{
    type Answer = A;
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        // Most of these open a task that was closed to others, and that needs the definition for its place in line.
        match self.verb {
            Verb::Renew => vec![head_key(self.id)],
            Verb::Complete => vec![head_key(self.id), past_key(self.id)],
            _ => vec![head_key(self.id), definition_key(self.id), past_key(self.id)],
        }
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<A>, BoardError> {
        let key = head_key(self.id);
        let entry = view.entry(&key)?;
        let before = read_head(self.id, entry)?.ok_or_else(|| not_found(self.id))?;
        let time = view.time(before.touched);
        // Only a failure depends on how often the task is tried.
        let retry = match self.verb {
            Verb::Fail => read_definition(self.id, view.entry(&definition_key(self.id))?)?.retry,
            _ => None,
        };
        match (self.judge)(time, before.clone(), retry)? {
            Change::Answer(answer) => Ok(Step::Answer(answer)),
            Change::Write(mut head, answer) => {
                head.touch(self.operation, time.now);
                let index = match ready::moved(view, self.id, &before, &head, time)? {
                    Moved::Read(keys) => return Ok(Step::Read(keys)),
                    Moved::Change(index) => index,
                };
                let assert = Assert::version(key.clone(), entry.version());
                let mut mutations = vec![Mutation::put(key, encode_head(&head))];
                if self.verb != Verb::Renew {
                    let event = past::event(self.verb, &before, &head);
                    mutations.push(past::noted(view, self.id, &before, event)?);
                }
                let (asserts, mutations) = index.into_parts([assert], mutations);
                Ok(Step::Commit(commit(asserts, mutations)?, answer))
            }
        }
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<A>) -> Result<Fate<A>, BoardError> {
        head_fate(view, pending, self.id, self.operation, &self.found, self.kept_for_ever)
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        BoardError::TxnConflict { attempts }
    }

    fn unknown(&self) -> BoardError {
        outcome_unknown(self.verb, self.id, self.token)
    }
}

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn renew_task(
        &self,
        id: &TaskId,
        token: &Token,
        ttl: Duration,
    ) -> Result<Lease, BoardError> {
        check_ttl(ttl)?;
        let judge = |time: Time, mut head: Head, _: Option<Retry>| {
            let lost = lease_lost(&head);
            let fence = head.fence;
            let until = Some(lease_end(time.now, ttl)?);
            match &mut head.held {
                Some(held) if held.token == *token && !time.is_over(held.until) => {
                    held.until = until;
                    Ok(Change::Write(Box::new(head), Lease { token: token.clone(), fence, until }))
                }
                _ => Err(lost),
            }
        };
        self.on_head(Verb::Renew, id, Some(token), judge, |_| None, false).await
    }

    /// Ends the claim of a token.
    async fn settle(
        &self,
        id: &TaskId,
        token: &Token,
        verb: SettledBy,
        answer: Outcome,
        end: impl Fn(&mut Head, Time, Option<Retry>) + Send + Sync,
    ) -> Result<Outcome, BoardError> {
        let judge = |time: Time, mut head: Head, retry: Option<Retry>| {
            if let Some(answer) = settled_answer(&head, token, verb) {
                return Ok(Change::Answer(answer));
            }
            if held_by(&head, token).is_none() {
                return Err(lease_lost(&head));
            }
            end(&mut head, time, retry);
            head.settled = Some(Settled { token: token.clone(), verb, answer: answer.clone() });
            Ok(Change::Write(Box::new(head), answer.clone()))
        };
        // Another try with this token may have been faster, and then its answer is the one that is kept.
        let found = |head: &Head| settled_answer(head, token, verb);
        self.on_head(verb.verb(), id, Some(token), judge, found, verb == SettledBy::Complete).await
    }

    pub(super) async fn release_task(&self, id: &TaskId, token: &Token) -> Result<(), BoardError> {
        let end = |head: &mut Head, _: Time, _: Option<Retry>| {
            head.leave(State::Open);
            head.attempts = head.attempts.saturating_sub(1);
        };
        self.settle(id, token, SettledBy::Release, Outcome::default(), end).await.map(|_| ())
    }

    pub(super) async fn complete_task(
        &self,
        id: &TaskId,
        token: &Token,
        outcome: Outcome,
    ) -> Result<Outcome, BoardError> {
        let kept = self
            .settle(id, token, SettledBy::Complete, outcome, |head, _, _| head.leave(State::Done))
            .await?;
        self.examine_own(id).await;
        Ok(kept)
    }

    pub(super) async fn fail_task(
        &self,
        id: &TaskId,
        token: &Token,
        reason: Outcome,
    ) -> Result<Outcome, BoardError> {
        let random = token::seed();
        // Whether it was the last attempt.
        let ended = AtomicBool::new(false);
        let end = |head: &mut Head, time: Time, retry: Option<Retry>| match retry {
            Some(retry) if head.attempts < retry.attempts => {
                head.leave(State::Open);
                head.not_before = Some(time.now.saturating_add(retry.rest(head.attempts, random)));
            }
            _ => {
                ended.store(true, Ordering::Relaxed);
                head.leave(State::Failed);
            }
        };
        let kept = self.settle(id, token, SettledBy::Fail, reason, end).await?;
        if ended.load(Ordering::Relaxed) {
            self.examine_own(id).await;
        }
        Ok(kept)
    }

    pub(super) async fn cancel_task(&self, id: &TaskId) -> Result<(), BoardError> {
        let judge = |_: Time, mut head: Head, _: Option<Retry>| match head.state() {
            State::Cancelled => Ok(Change::Answer(())),
            State::Open | State::Claimed => {
                head.leave(State::Cancelled);
                Ok(Change::Write(Box::new(head), ()))
            }
            State::Unknown(code) => Err(unknown_state(id, code)),
            state => Err(BoardError::Terminal { state }),
        };
        self.on_head(Verb::Cancel, id, None, judge, |_| None, false).await?;
        self.examine_own(id).await;
        Ok(())
    }

    pub(super) async fn reopen_task(&self, id: &TaskId) -> Result<(), BoardError> {
        let judge = |_: Time, mut head: Head, _: Option<Retry>| match (head.state(), &head.held) {
            (State::Open, _) => Ok(Change::Answer(())),
            (State::Claimed, Some(held)) => Err(taken(&head, held)),
            (State::Failed | State::Cancelled, _) => {
                if let Some(dependent) = head.pinned_by {
                    return Err(BoardError::HasDependents { dependent });
                }
                head.leave(State::Open);
                head.attempts = 0;
                head.not_before = None;
                Ok(Change::Write(Box::new(head), ()))
            }
            (State::Unknown(code), _) => Err(unknown_state(id, code)),
            (state, _) => Err(BoardError::Terminal { state }),
        };
        self.on_head(Verb::Reopen, id, None, judge, |_| None, false).await
    }

    pub(super) async fn revoke_task(&self, id: &TaskId, fence: u64) -> Result<(), BoardError> {
        let judge = |_: Time, mut head: Head, _: Option<Retry>| {
            if head.held.is_some() && head.fence == fence {
                head.leave(State::Open);
                return Ok(Change::Write(Box::new(head), ()));
            }
            // The claim does not stand, and no later one does.
            if head.held.is_none() && fence <= head.fence {
                return Ok(Change::Answer(()));
            }
            Err(lease_lost(&head))
        };
        self.on_head(Verb::Revoke, id, None, judge, |_| None, false).await
    }

    async fn on_head<A, J, F>(
        &self,
        verb: Verb,
        id: &TaskId,
        token: Option<&Token>,
        judge: J,
        found: F,
        kept_for_ever: bool,
    ) -> Result<A, BoardError>
    where
        A: Clone + Send,
        J: FnMut(Time, Head, Option<Retry>) -> Result<Change<A>, BoardError> + Send,
        F: Fn(&Head) -> Option<A> + Send + Sync,
    {
        id.validate()?;
        let operation = OperationId::mint();
        self.run(&mut OnHead { verb, id, operation, token, judge, found, kept_for_ever }).await
    }
}
