//! What a dependency comes to by its rule: what blocks a task, what skips it, and what it rests on once it has begun.

use std::collections::{BTreeMap, VecDeque};

use coord_core::Timestamp;
use coord_core::board::{BoardError, Dep, Rule, State, TaskId, Verb};

use super::claim::Claimer;
use super::record::{Answer, Record, Whole};
use super::{Call, Judged, OneKeyBoard, Time, WrongJudge};

/// What one dependency says to its dependent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    Satisfied,
    Impossible,
    Pending,
    /// It has ended in another way, and may be reopened.
    Stuck,
}

/// Forgets on which ends this task rests: what only a wrong judge does.
pub(super) fn unpin(whole: &mut Whole, id: &TaskId) {
    for record in whole.tasks.values_mut() {
        if record.pinned_by.as_ref() == Some(id) {
            record.pinned_by = None;
        }
    }
}

impl OneKeyBoard {
    fn edge(&self, rule: Rule, state: State) -> Edge {
        let rule = if self.is(WrongJudge::RulesIgnored) { Rule::Done } else { rule };
        match (rule, state, self.wrong) {
            (Rule::Done, State::Skipped, Some(WrongJudge::SkippedCountsAsDone))
            | (Rule::Done, State::Failed | State::Cancelled, Some(WrongJudge::FailedCountsAsDone))
            | (Rule::Failed, State::Cancelled, Some(WrongJudge::FailedTakesCancelled))
            | (Rule::Failed, State::Done, Some(WrongJudge::FailedTakesDone)) => Edge::Satisfied,
            (Rule::Done, State::Failed | State::Cancelled, Some(WrongJudge::FailureSkips))
            | (Rule::Finished, State::Skipped, Some(WrongJudge::FinishedNotSkipped))
            | (Rule::Failed, State::Cancelled, Some(WrongJudge::CancelSkips)) => Edge::Impossible,
            (Rule::Done, State::Failed | State::Cancelled, Some(WrongJudge::FailedIsPending))
            | (Rule::Failed, State::Cancelled, Some(WrongJudge::CancelledIsPending)) => Edge::Pending,
            (
                Rule::Finished,
                State::Failed | State::Cancelled | State::Skipped,
                Some(WrongJudge::FinishedIsDone),
            )
            | (Rule::Finished, State::Cancelled, Some(WrongJudge::FinishedNotCancelled))
            | (Rule::Done, State::Skipped, Some(WrongJudge::SkipStops)) => Edge::Stuck,
            (Rule::Done, State::Done, _)
            | (Rule::Finished, State::Done | State::Skipped | State::Failed | State::Cancelled, _)
            | (Rule::Failed, State::Failed, _) => Edge::Satisfied,
            (Rule::Done, State::Skipped, _) | (Rule::Failed, State::Done | State::Skipped, _) => {
                Edge::Impossible
            }
            (Rule::Done, State::Failed | State::Cancelled, _) | (Rule::Failed, State::Cancelled, _) => {
                Edge::Stuck
            }
            _ => Edge::Pending,
        }
    }

    pub(super) fn judge_deps(
        &self,
        whole: &Whole,
        deps: &[Dep],
        claimer: &mut Claimer,
        now: Timestamp,
    ) -> Result<(), BoardError> {
        let (mut pending, mut failed, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let old = claimer.first_ends.take().filter(|_| self.is(WrongJudge::EndsOfBefore));
        let mut ends = BTreeMap::new();
        for Dep { id: dep, rule } in deps {
            let Some(task) = whole.tasks.get(dep) else {
                missing.push(dep.clone());
                continue;
            };
            let state = old.as_ref().and_then(|old| old.get(dep)).copied().unwrap_or(task.state);
            ends.insert(dep.clone(), state);
            match self.edge(*rule, state) {
                Edge::Satisfied
                    if self.is(WrongJudge::DoneCountsLate) && task.until.is_some_and(|until| now < until) =>
                {
                    pending.push(dep.clone());
                }
                Edge::Satisfied => {}
                Edge::Impossible if self.is(WrongJudge::ImpossibleNotNamed) => {}
                Edge::Impossible | Edge::Stuck => failed.push(dep.clone()),
                Edge::Pending => pending.push(dep.clone()),
            }
        }
        claimer.first_ends = Some(ends);
        if self.is(WrongJudge::BlockedNamesOne) {
            pending.truncate(1);
            failed.truncate(usize::from(pending.is_empty()));
            missing.truncate(usize::from(pending.is_empty() && failed.is_empty()));
        }
        if pending.is_empty() && failed.is_empty() && missing.is_empty() {
            return Ok(());
        }
        Err(BoardError::Blocked { pending, failed, missing })
    }

    /// Whether an open task can never begin.
    fn is_impossible(&self, whole: &Whole, record: &Record) -> bool {
        let edge = |dep: &Dep| {
            whole.tasks.get(&dep.id).map_or(Edge::Pending, |task| self.edge(dep.rule, task.state))
        };
        let settled = record.deps.iter().all(|dep| matches!(edge(dep), Edge::Satisfied | Edge::Impossible));
        record.state == State::Open
            && (settled || self.is(WrongJudge::SkippedByFirst))
            && record.deps.iter().any(|dep| edge(dep) == Edge::Impossible)
    }

    /// Skips whatever can never begin, in the same transaction as what made it so.
    pub(super) fn skip_all(&self, whole: &mut Whole, time: Time) -> Vec<TaskId> {
        let mut skipped = Vec::new();
        if self.is(WrongJudge::ImpossibleBlocks) {
            return skipped;
        }
        let mut next: VecDeque<TaskId> = whole
            .tasks
            .iter()
            .filter(|(_, record)| self.is_impossible(whole, record))
            .map(|(id, _)| id.clone())
            .collect();
        if next.is_empty() {
            return skipped;
        }
        let mut dependents: BTreeMap<TaskId, Vec<TaskId>> = BTreeMap::new();
        for (id, record) in &whole.tasks {
            for dep in &record.deps {
                dependents.entry(dep.id.clone()).or_default().push(id.clone());
            }
        }
        while let Some(id) = next.pop_front() {
            let impossible = whole.tasks.get(&id).is_some_and(|record| self.is_impossible(whole, record));
            let (Some(record), true) = (whole.tasks.get_mut(&id), impossible) else { continue };
            let seq = record.seq;
            record.unclaim(match self.wrong {
                Some(WrongJudge::SkippedIsCancelled) => State::Cancelled,
                _ => State::Skipped,
            });
            record.touch(time.at(record.touched));
            match self.wrong {
                Some(WrongJudge::SkipKeepsSeq) => record.seq = seq,
                Some(WrongJudge::SkipForgetsFence) => record.fence = 0,
                _ => {}
            }
            if !self.is(WrongJudge::SkipUntold) {
                self.note(record, Verb::Skip, None, None, "");
            }
            next.extend(dependents.remove(&id).unwrap_or_default());
            skipped.push(id);
        }
        skipped
    }

    /// What this task rests on from now on is not reopened any more.
    pub(super) fn pin(&self, whole: &mut Whole, id: &TaskId, time: Time) {
        let deps = whole.tasks.get(id).map(|record| record.deps.clone()).unwrap_or_default();
        let begun = whole.tasks.get(id).is_some_and(|record| record.fence > 0);
        if begun && self.is(WrongJudge::PinsFirstClaimOnly) {
            return;
        }
        for dep in deps {
            let rests = match self.wrong {
                Some(WrongJudge::PinsByFailedOnly) => dep.rule == Rule::Failed,
                _ => dep.rule != Rule::Done,
            };
            let Some(record) = whole.tasks.get_mut(&dep.id) else { continue };
            let undone = match self.wrong {
                Some(WrongJudge::PinsFailedOnly) => record.state == State::Failed,
                _ => matches!(record.state, State::Failed | State::Cancelled),
            };
            if !rests || !undone || (record.pinned_by.is_some() && !self.is(WrongJudge::PinNamesLast)) {
                continue;
            }
            record.pinned_by = Some(id.clone());
            record.touch(time.at(record.touched));
            if self.is(WrongJudge::PinsOne) {
                break;
            }
        }
    }

    /// Pins in a transaction of its own: what only a wrong judge does.
    pub(super) async fn pin_alone(&self, call: &Call, id: &TaskId) -> Result<(), BoardError> {
        let pins = |whole: &mut Whole, time: Time| {
            self.pin(whole, id, time);
            Ok(Judged::Write(Answer::Nothing))
        };
        self.run(call.clone(), pins).await.map(|_| ())
    }
}
