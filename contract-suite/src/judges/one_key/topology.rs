//! Tasks that come and go, and the edges between them.

use std::collections::{BTreeMap, BTreeSet};

use coord_core::Timestamp;
use coord_core::board::{
    BoardError, Dep, Plan, PlanReport, Rule, State, Task, TaskId, TaskSpec, Verb, limits,
};

use super::edges::unpin;
use super::record::{Answer, Record, Whole};
use super::{Call, Judged, OneKeyBoard, WrongJudge};

/// A path from `from` to `to` along dependencies, both ends included. With its own stack, so that a chain of any length is no deeper
/// than memory.
fn path(whole: &Whole, from: &TaskId, to: &TaskId) -> Option<Vec<TaskId>> {
    let mut came_from: BTreeMap<TaskId, Option<TaskId>> = BTreeMap::from([(from.clone(), None)]);
    let mut open = vec![from.clone()];
    while let Some(id) = open.pop() {
        if id == *to {
            let mut path = vec![id];
            while let Some(Some(before)) = path.last().and_then(|id| came_from.get(id)) {
                path.push(before.clone());
            }
            path.reverse();
            return Some(path);
        }
        for Dep { id: dep, .. } in whole.tasks.get(&id).map(|record| record.deps.clone()).unwrap_or_default()
        {
            if !came_from.contains_key(&dep) {
                came_from.insert(dep.clone(), Some(id.clone()));
                open.push(dep);
            }
        }
    }
    None
}

fn check_spec(spec: &TaskSpec, any_number: bool, any_rules: bool) -> Result<(), BoardError> {
    match spec.validate() {
        Err(BoardError::TooLarge { .. }) if any_rules && spec.deps.len() <= limits::DEPENDENCIES => Ok(()),
        Err(BoardError::TooLarge { what, .. }) if any_number && what.contains("dependencies") => Ok(()),
        other => other,
    }
}

impl OneKeyBoard {
    pub(super) async fn list_all(&self) -> Result<Vec<Task>, BoardError> {
        let mut whole = self.read().await?.whole;
        if self.is(WrongJudge::TornList) {
            let later = self.read().await?.whole;
            let middle = whole.tasks.len() / 2;
            let rest: BTreeSet<TaskId> = whole.tasks.keys().skip(middle).cloned().collect();
            whole.tasks.retain(|id, _| !rest.contains(id));
            whole.tasks.extend(later.tasks.into_iter().filter(|(id, _)| rest.contains(id)));
        }
        if whole.tasks.len() > limits::LISTED_TASKS && !self.is(WrongJudge::ListNeverTooLarge) {
            return Err(BoardError::TooLarge {
                what: "the board",
                size: whole.tasks.len(),
                limit: limits::LISTED_TASKS,
            });
        }
        let mut tasks: Vec<Task> = whole.tasks.iter().map(|(id, record)| self.shown(id, record)).collect();
        for task in tasks.iter_mut().filter(|task| task.state != State::Claimed) {
            task.progress = None;
        }
        match self.wrong {
            Some(WrongJudge::ListCut) => tasks.truncate(1_000),
            Some(WrongJudge::ListUnsorted) => tasks.sort_by_key(|task| task.order),
            _ => {}
        }
        Ok(tasks)
    }

    pub(super) async fn add_tasks(&self, plan: &Plan) -> Result<PlanReport, BoardError> {
        let mut tasks = plan.tasks().to_vec();
        if self.is(WrongJudge::PlanByName) {
            tasks.sort_by(|a, b| a.id.cmp(&b.id));
        }
        if !self.is(WrongJudge::PlanInHalves) && !self.is(WrongJudge::PlanByName) {
            return Ok(self.add_all(tasks).await?.into_report());
        }
        let rest = tasks.split_off(tasks.len() / 2);
        let mut report = self.add_all(tasks).await?.into_report();
        let second = self.add_all(rest).await?.into_report();
        report.added += second.added;
        report.existed += second.existed;
        Ok(report)
    }

    pub(super) async fn add_all(&self, mut specs: Vec<TaskSpec>) -> Result<Answer, BoardError> {
        let Some(first) = specs.first() else { return Ok(Answer::Added { added: 0, existed: 0 }) };
        let call = Call::new(Verb::Add, &first.id, None);
        for spec in &mut specs {
            check_spec(spec, self.is(WrongJudge::AnyNumberOfDeps), self.is(WrongJudge::AnyNumberOfRules))?;
            spec.id = self.ident(&spec.id)?;
            for dep in &mut spec.deps {
                dep.id = self.ident(&dep.id)?;
            }
        }
        self.run(call, |whole, time| {
            let now = time.at(Timestamp::EPOCH);
            let (mut added, mut existed) = (0, 0);
            let mut moved = false;
            for spec in &specs {
                if let Some(record) = whole.tasks.get_mut(&spec.id) {
                    if self.is(WrongJudge::AddOverwrites) && !record.was_defined_as(spec) {
                        let (seq, order) = (record.seq + 1, record.order);
                        *record = Record::new(spec, seq, record.fence, order, now);
                        (added, moved) = (added + 1, true);
                        continue;
                    }
                    let refused = self.is(WrongJudge::PlanNotResumable) && specs.len() > 1;
                    let is_same = record.was_defined_as(spec)
                        || self.is(WrongJudge::AnyDefinitionExisted)
                        || self.is(WrongJudge::AnyRuleExisted) && record.was_defined_but_for_rules(spec);
                    if refused || !is_same {
                        return Err(BoardError::AlreadyExists { id: spec.id.clone() });
                    }
                    if self.is(WrongJudge::ExistedMovesSeq) {
                        record.touch(now);
                        moved = true;
                    }
                    existed += 1;
                    continue;
                }
                let unknown = spec.deps.iter().find(|dep| !whole.tasks.contains_key(&dep.id));
                if let (Some(dep), false) =
                    (unknown, self.is(WrongJudge::UnknownDepAccepted) || self.is(WrongJudge::PlanByName))
                {
                    return Err(BoardError::UnknownDep { id: dep.id.clone() });
                }
                let fence = match self.wrong {
                    Some(WrongJudge::FenceForgotten) => 0,
                    Some(WrongJudge::FenceInHandle) => self.forgotten_fence(&spec.id, None),
                    _ => whole.floor_fence,
                };
                let seq = if self.is(WrongJudge::SeqRestarts) { 1 } else { whole.floor_seq + 1 };
                let order = whole.next_order;
                whole.next_order += 1;
                let mut record = Record::new(spec, seq, fence, order, now);
                record.events = whole.graves.remove(&spec.id).unwrap_or_default();
                whole.tasks.insert(spec.id.clone(), record);
                added += 1;
            }
            let answer = Answer::Added { added, existed };
            Ok(if added > 0 || moved { Judged::Write(answer) } else { Judged::Keep(answer) })
        })
        .await
    }

    pub(super) async fn remove_task(&self, id: &TaskId) -> Result<(), BoardError> {
        let id = self.ident(id)?;
        let mut sent = false;
        self.run(Call::new(Verb::Remove, &id, None), |whole, time| {
            let Some(task) = whole.tasks.get(&id) else {
                // Only a wrong judge looks for a task that it may have removed itself.
                if sent && self.is(WrongJudge::RemoveRunAgain) {
                    return Ok(Judged::Keep(Answer::Nothing));
                }
                return Err(BoardError::NotFound { id: id.clone() });
            };
            if task.state == State::Claimed && !self.is(WrongJudge::RemoveHeld) {
                let expired = task.until.is_some_and(|until| time.at(task.touched) >= until);
                if !(expired && self.is(WrongJudge::RemoveExpired)) {
                    return Err(super::claim::taken(task));
                }
            }
            if let (Some(dependent), true) = (&task.pinned_by, self.is(WrongJudge::PinnedNotRemoved)) {
                return Err(BoardError::HasDependents { dependent: dependent.clone() });
            }
            let plain = self.is(WrongJudge::RuledNotDependents);
            let dependent = whole.tasks.iter().find(|(_, other)| {
                other.deps.iter().any(|dep| dep.id == id && !(plain && dep.rule != Rule::Done))
                    && match self.wrong {
                        Some(WrongJudge::FinishedDependents) => !other.state.is_terminal(),
                        Some(WrongJudge::RemoveDangles) => other.state != State::Open,
                        _ => true,
                    }
            });
            if let Some((dependent, _)) = dependent {
                return Err(BoardError::HasDependents { dependent: dependent.clone() });
            }
            self.forgotten_fence(&id, Some(task.fence));
            whole.floor_fence = whole.floor_fence.max(task.fence);
            whole.floor_seq = whole.floor_seq.max(task.seq);
            if self.is(WrongJudge::PinUntilRemoved) {
                unpin(whole, &id);
            }
            let task = whole.tasks.remove(&id);
            if let (Some(task), true) = (task, self.is(WrongJudge::HistoryOutlivesTask)) {
                whole.graves.insert(id.clone(), task.events);
            }
            sent = true;
            Ok(Judged::Write(Answer::Nothing))
        })
        .await
        .map(|_| ())
    }

    pub(super) async fn replace_deps(
        &self,
        id: &TaskId,
        deps: &[Dep],
        expected_seq: Option<u64>,
    ) -> Result<(), BoardError> {
        let id = self.ident(id)?;
        let any_number = self.is(WrongJudge::AnyNumberOfDeps);
        let any_rules = self.is(WrongJudge::AnyNumberOfRules);
        check_spec(&TaskSpec::new(id.clone()).deps(deps.iter().cloned()), any_number, any_rules)?;
        let mut replaced = Vec::with_capacity(deps.len());
        for dep in deps {
            let rule = if self.is(WrongJudge::SetDepsForgetsRules) { Rule::Done } else { dep.rule };
            replaced.push(Dep::on(self.ident(&dep.id)?, rule));
        }
        self.run(Call::new(Verb::SetDeps, &id, None), |whole, time| {
            let Some(task) = whole.tasks.get(&id) else {
                return Err(BoardError::NotFound { id: id.clone() });
            };
            let now = time.at(task.touched);
            let expired = task.until.is_some_and(|until| now >= until);
            let edited = task.state == State::Skipped && self.is(WrongJudge::SkippedEdited);
            if task.state.is_terminal() && !self.is(WrongJudge::SetDepsTerminal) && !edited {
                return Err(BoardError::Terminal { state: task.state });
            }
            if task.state == State::Claimed
                && !self.is(WrongJudge::SetDepsUnclaims)
                && !(expired && self.is(WrongJudge::SetDepsExpired))
            {
                return Err(super::claim::taken(task));
            }
            if let Some(expected) = expected_seq
                && expected != task.seq
            {
                return Err(BoardError::SeqMismatch { current_seq: task.seq });
            }
            let mut replaced = replaced.clone();
            if self.is(WrongJudge::SetDepsKeepsRules) {
                for dep in &mut replaced {
                    let before = task.deps.iter().find(|before| before.id == dep.id);
                    dep.rule = before.map_or(dep.rule, |before| before.rule);
                }
            }
            for Dep { id: dep, .. } in &replaced {
                if !whole.tasks.contains_key(dep) && !self.is(WrongJudge::UnknownDepAccepted) {
                    return Err(BoardError::UnknownDep { id: dep.clone() });
                }
            }
            for Dep { id: dep, rule } in &replaced {
                let Some(back) = path(whole, dep, &id) else { continue };
                let ruled = *rule != Rule::Done && self.is(WrongJudge::RuledCycleAccepted);
                if ruled || self.is(WrongJudge::CycleAccepted) {
                    continue;
                }
                let mut cycle = vec![id.clone()];
                if !self.is(WrongJudge::CycleWithoutPath) {
                    cycle.extend(back);
                }
                return Err(BoardError::Cycle { path: cycle });
            }
            if self.is(WrongJudge::PinUntilEdited) {
                unpin(whole, &id);
            }
            let Some(task) = whole.tasks.get_mut(&id) else {
                return Err(BoardError::NotFound { id: id.clone() });
            };
            if self.is(WrongJudge::SetDepsUnclaims) {
                task.unclaim(State::Open);
            }
            let old = std::mem::replace(&mut task.deps, replaced.clone());
            task.created_deps.get_or_insert(old);
            let seq = task.seq;
            task.touch(now);
            self.note(task, Verb::SetDeps, None, None, "");
            if self.is(WrongJudge::SetDepsKeepsSeq) {
                task.seq = seq;
            }
            Ok(Judged::Write(Answer::Nothing))
        })
        .await
        .map(|_| ())
    }
}
