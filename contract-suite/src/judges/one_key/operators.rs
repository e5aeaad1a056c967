//! What operators do to a claim.

use coord_core::board::{BoardError, Rule, State, TaskId, Verb};

use super::claim::{record, taken};
use super::edges::unpin;
use super::holder::lost;
use super::record::Answer;
use super::{Call, Judged, OneKeyBoard, WrongJudge};

impl OneKeyBoard {
    pub(super) async fn cancel_task(&self, id: &TaskId) -> Result<(), BoardError> {
        let id = self.ident(id)?;
        self.run(Call::new(Verb::Cancel, &id, None), |whole, time| {
            let task = record(whole, &id)?;
            match task.state {
                State::Cancelled => return Ok(Judged::Keep(Answer::Nothing)),
                State::Skipped if self.is(WrongJudge::SkippedCancelled) => {}
                state @ (State::Done | State::Failed | State::Skipped | State::Unknown(_)) => {
                    return Err(BoardError::Terminal { state });
                }
                _ => {}
            }
            let now = time.at(task.touched);
            let (owner, token, seq) = (task.owner.clone(), task.token.clone(), task.seq);
            task.unclaim(State::Cancelled);
            task.touch(now);
            self.note(task, Verb::Cancel, None, owner.clone(), "");
            match self.wrong {
                Some(WrongJudge::PinUntilCancelled) => unpin(whole, &id),
                Some(WrongJudge::CancelKeepsOwner) => task.owner = owner,
                Some(WrongJudge::CancelKeepsToken) => task.token = token,
                Some(WrongJudge::CancelKeepsSeq) => task.seq = seq,
                _ => {}
            }
            Ok(Judged::Write(Answer::Nothing))
        })
        .await
        .map(|_| ())
    }

    pub(super) async fn reopen_task(&self, id: &TaskId) -> Result<(), BoardError> {
        let id = self.ident(id)?;
        let early = match self.wrong {
            Some(WrongJudge::PinOfBefore) => self.read().await?.whole.tasks.get(&id).cloned(),
            _ => None,
        };
        let mut first_pin: Option<Option<TaskId>> = None;
        self.run(Call::new(Verb::Reopen, &id, None), |whole, time| {
            let named = whole
                .tasks
                .iter()
                .find(|(_, other)| other.deps.iter().any(|dep| dep.id == id && dep.rule != Rule::Done));
            let named = named.map(|(dependent, _)| dependent.clone());
            let task = record(whole, &id)?;
            match task.state {
                State::Open => return Ok(Judged::Keep(Answer::Nothing)),
                State::Claimed => return Err(taken(task)),
                State::Done if self.is(WrongJudge::ReopenDone) => {}
                State::Skipped if self.is(WrongJudge::SkippedReopened) => {}
                state @ (State::Done | State::Skipped | State::Unknown(_)) => {
                    return Err(BoardError::Terminal { state });
                }
                _ => {}
            }
            let first_pin = first_pin.get_or_insert_with(|| task.pinned_by.clone());
            let pinned_by = match self.wrong {
                Some(WrongJudge::PinOfFirstLook) => first_pin.clone(),
                Some(WrongJudge::ReopenIgnoresPin) => None,
                Some(WrongJudge::PinOfBefore) => early.as_ref().and_then(|task| task.pinned_by.clone()),
                Some(WrongJudge::PinnedByName) => named,
                Some(WrongJudge::PinNamesItself) => task.pinned_by.as_ref().map(|_| id.clone()),
                _ => task.pinned_by.clone(),
            };
            if let Some(dependent) = pinned_by {
                return Err(BoardError::HasDependents { dependent });
            }
            let now = time.at(task.touched);
            task.unclaim(State::Open);
            task.outcome = None;
            if !self.is(WrongJudge::ReopenKeepsAttempts) {
                task.attempts = 0;
            }
            task.at_once = true;
            task.rests_until = None;
            task.touch(now);
            self.note(task, Verb::Reopen, None, None, "");
            Ok(Judged::Write(Answer::Nothing))
        })
        .await
        .map(|_| ())
    }

    pub(super) async fn revoke_claim(&self, id: &TaskId, fence: u64) -> Result<(), BoardError> {
        let id = self.ident(id)?;
        self.run(Call::new(Verb::Revoke, &id, None), |whole, time| {
            let task = record(whole, &id)?;
            if task.state != State::Claimed {
                return Ok(Judged::Keep(Answer::Nothing));
            }
            if task.fence != fence && !self.is(WrongJudge::RevokeAnyFence) {
                return Err(lost(task));
            }
            let now = time.at(task.touched);
            let (token, from) = (task.token.clone(), task.owner.clone());
            task.unclaim(State::Open);
            if self.is(WrongJudge::RevokeKeepsToken) {
                task.token = token;
            }
            task.touch(now);
            self.note(task, Verb::Revoke, None, from, "");
            Ok(Judged::Write(Answer::Nothing))
        })
        .await
        .map(|_| ())
    }
}
