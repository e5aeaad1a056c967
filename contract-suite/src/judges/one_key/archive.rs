//! Retention.

use coord_core::board::{Archive, ArchiveReport, BoardError, State, TaskId, Verb};

use super::edges::unpin;
use super::record::{Answer, Whole};
use super::{Call, Judged, OneKeyBoard, Time, WrongJudge};

impl OneKeyBoard {
    pub(super) async fn archive_tasks(&self, request: &Archive) -> Result<ArchiveReport, BoardError> {
        request.validate()?;
        let call = Call::new(Verb::Archive, &TaskId::unchecked("(finished ones)"), None);
        let answer = self
            .run(call, |whole, time| {
                let after = |id: &&TaskId| request.after.as_ref().is_none_or(|after| *id > after);
                let ids: Vec<TaskId> = whole.tasks.keys().filter(after).take(request.most).cloned().collect();
                let next = if ids.len() == request.most { ids.last().cloned() } else { None };
                let mut line: Vec<(u64, TaskId)> = Vec::new();
                for id in &ids {
                    line.extend(whole.tasks.get(id).map(|task| (task.order, id.clone())));
                }
                line.sort_by_key(|(order, _)| std::cmp::Reverse(*order));
                let mut archived = Vec::new();
                for (_, id) in line {
                    if self.may_go(whole, time, request, &id) {
                        self.archive_one(whole, time, &id);
                        archived.push(id);
                    }
                }
                let gone = !archived.is_empty();
                let answer = Answer::Archived { examined: ids.len(), archived, next };
                Ok(if gone { Judged::Write(answer) } else { Judged::Keep(answer) })
            })
            .await?;
        Ok(answer.into_archived())
    }

    fn may_go(&self, whole: &Whole, time: Time, request: &Archive, id: &TaskId) -> bool {
        let Some(task) = whole.tasks.get(id) else { return false };
        let age = time.at(task.touched).saturating_since(task.touched);
        let wanted = request.wants(task.state)
            || (task.state == State::Failed && self.is(WrongJudge::ArchiveTakesFailed))
            || (task.state == State::Cancelled
                && request.failed
                && self.is(WrongJudge::ArchiveFailedTakesCancelled));
        let kept = task.state == State::Skipped && self.is(WrongJudge::ArchiveKeepsSkipped);
        if !wanted || kept {
            return false;
        }
        if age < request.older_than && !self.is(WrongJudge::ArchiveIgnoresAge) {
            return false;
        }
        let mut dependents = whole.tasks.values().filter(|other| other.deps.iter().any(|dep| dep.id == *id));
        match self.wrong {
            Some(WrongJudge::ArchiveTakesNeeded) => true,
            Some(WrongJudge::ArchiveTakesFailedsNeeds) => {
                dependents.all(|other| matches!(other.state, State::Done | State::Skipped | State::Failed))
            }
            Some(WrongJudge::ArchiveTakesCancelledsNeeds) => {
                dependents.all(|other| matches!(other.state, State::Done | State::Skipped | State::Cancelled))
            }
            Some(WrongJudge::ArchiveKeepsSkippedsNeeds) => dependents.all(|other| other.state == State::Done),
            Some(WrongJudge::ArchiveKeepsNamed) => dependents.next().is_none(),
            _ => dependents.all(|other| matches!(other.state, State::Done | State::Skipped)),
        }
    }

    fn archive_one(&self, whole: &mut Whole, time: Time, id: &TaskId) {
        for other in whole.tasks.values_mut().filter(|other| other.deps.iter().any(|dep| dep.id == *id)) {
            if self.is(WrongJudge::ArchiveDangles) {
                continue;
            }
            let old = other.deps.clone();
            other.deps.retain(|dep| dep.id != *id);
            if !self.is(WrongJudge::ArchiveRedefines) {
                other.created_deps.get_or_insert(old);
            }
            let touched = other.touched;
            other.touch(time.at(touched));
            // That dependencies were archived, one after the other, is one thing that happened.
            if other.events.back().is_some_and(|last| last.verb == Verb::Archive) {
                other.events.pop_back();
            }
            self.note(other, Verb::Archive, None, None, &format!("{id} was archived"));
            if !self.is(WrongJudge::ArchiveRejuvenates) {
                other.touched = touched;
            }
        }
        if self.is(WrongJudge::ArchiveUnpins) {
            unpin(whole, id);
        }
        if let Some(task) = whole.tasks.remove(id)
            && !self.is(WrongJudge::ArchiveForgetsFence)
        {
            whole.floor_fence = whole.floor_fence.max(task.fence);
            whole.floor_seq = whole.floor_seq.max(task.seq);
        }
    }
}
