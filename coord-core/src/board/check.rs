//! The invariants of a board, as a pure function over its tasks.

use std::collections::BTreeMap;
use std::fmt;

use super::dep::Dep;
use super::plan::dependency_order;
use super::task::{State, Task, TaskId};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProblemCode {
    /// A task has an empty id.
    EmptyId,
    /// Two tasks have one id.
    DuplicateId,
    /// A task is in a state that this version of coord does not know.
    UnknownState,
    /// A dependency does not exist.
    UnknownDep,
    /// A task depends on itself.
    SelfDep,
    /// Tasks depend on each other in a circle.
    DepCycle,
    /// A task is claimed but has no lease.
    ClaimedWithoutLease,
    /// A task has a lease but is not claimed.
    LeaseWithoutClaim,
    /// A task is claimed although a dependency has not come to what its rule wants.
    BlockedClaim,
    /// A done, failed or cancelled task has an owner.
    TerminalClaimed,
    /// A task is not in the ready index where it should be, so that nobody who looks for one finds it.
    Unindexed,
    /// The ready index has a task where it is not: a look more for whoever meets it, and nothing worse.
    StaleEntry,
    /// A task is marked to be examined for the ready index, by whoever looks for a task next.
    Unexamined,
}

impl ProblemCode {
    /// The code as one lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ProblemCode::EmptyId => "empty_id",
            ProblemCode::DuplicateId => "duplicate_id",
            ProblemCode::UnknownState => "unknown_state",
            ProblemCode::UnknownDep => "unknown_dep",
            ProblemCode::SelfDep => "self_dep",
            ProblemCode::DepCycle => "dep_cycle",
            ProblemCode::ClaimedWithoutLease => "claimed_without_lease",
            ProblemCode::LeaseWithoutClaim => "lease_without_claim",
            ProblemCode::BlockedClaim => "blocked_claim",
            ProblemCode::TerminalClaimed => "terminal_claimed",
            ProblemCode::Unindexed => "unindexed",
            ProblemCode::StaleEntry => "stale_entry",
            ProblemCode::Unexamined => "unexamined",
        }
    }
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The task.
    pub task: TaskId,
    /// What is wrong, for programs.
    pub code: ProblemCode,
    /// What is wrong, for people.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}: {}", self.code, self.task, self.text)
    }
}

/// Finds every broken invariant of a board in the tasks of one instant, as [`list`](super::Board::list) returns them. Linear in tasks
/// and dependencies. The problems come in the order of the tasks; of all cycles one is named, as its path.
///
/// ```
/// use coord_core::board::{ProblemCode, Task, TaskId, check};
///
/// let mut task = Task::new(TaskId::new("a")?);
/// assert!(check(&[task.clone()]).is_empty());
/// task.deps.push(TaskId::new("b")?.into());
/// assert_eq!(check(&[task])[0].code, ProblemCode::UnknownDep);
/// # Ok::<(), coord_core::board::BoardError>(())
/// ```
#[must_use]
pub fn check(tasks: &[Task]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut position: BTreeMap<&TaskId, usize> = BTreeMap::new();
    let mut report =
        |task: &Task, code, text: String| problems.push(Problem { task: task.id.clone(), code, text });
    for (index, task) in tasks.iter().enumerate() {
        if task.id.as_str().is_empty() {
            report(task, ProblemCode::EmptyId, "a task has an empty id".into());
        }
        if position.contains_key(&task.id) {
            report(task, ProblemCode::DuplicateId, format!("two tasks are called {:?}", task.id));
        } else {
            position.insert(&task.id, index);
        }
    }
    for task in tasks {
        if let State::Unknown(code) = task.state {
            report(task, ProblemCode::UnknownState, format!("the state {code} is unknown"));
        }
        for dep in &task.deps {
            let dep = &dep.id;
            if *dep == task.id {
                report(task, ProblemCode::SelfDep, "the task depends on itself".into());
            } else if !position.contains_key(dep) {
                report(task, ProblemCode::UnknownDep, format!("the dependency {dep:?} does not exist"));
            }
        }
        let claimed = task.state == State::Claimed;
        if claimed && (task.lease.is_none() || task.owner.is_none()) {
            report(
                task,
                ProblemCode::ClaimedWithoutLease,
                "the task is claimed without owner or lease".into(),
            );
        }
        if task.state.is_terminal() && task.owner.is_some() {
            report(
                task,
                ProblemCode::TerminalClaimed,
                format!("the task is {} and has an owner", task.state),
            );
        }
        if !claimed && (task.lease.is_some() || (task.owner.is_some() && !task.state.is_terminal())) {
            report(
                task,
                ProblemCode::LeaseWithoutClaim,
                format!("the task is {} and has a lease", task.state),
            );
        }
        if claimed {
            for dep in &task.deps {
                let Dep { id, rule } = dep;
                if let Some(&index) = position.get(id)
                    && rule.verdict(tasks[index].state) != Some(true)
                {
                    let text = format!("the task is claimed, but {id:?} is {}", tasks[index].state);
                    report(task, ProblemCode::BlockedClaim, text);
                }
            }
        }
    }
    if let Some(path) = cycle(tasks, &position) {
        let names: Vec<String> = path.iter().map(|index| format!("{:?}", tasks[*index].id)).collect();
        let first = &tasks[path[0]];
        report(
            first,
            ProblemCode::DepCycle,
            format!("the dependencies form a cycle: {}", names.join(" -> ")),
        );
    }
    problems
}

/// The tasks of a cycle, by their places; the first one is repeated at the end.
pub(super) fn cycle(tasks: &[Task], position: &BTreeMap<&TaskId, usize>) -> Option<Vec<usize>> {
    // Edges to oneself are reported as such and would hide every other cycle.
    let order = dependency_order(tasks.len(), |index| {
        tasks[index]
            .deps
            .iter()
            .filter_map(|dep| position.get(&dep.id).copied())
            .filter(|dep| *dep != index)
            .collect()
    });
    order.err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{AgentId, LeaseInfo};

    fn task(id: &str, deps: &[&str]) -> Task {
        let mut task = Task::new(TaskId::unchecked(id));
        task.deps = deps.iter().map(|dep| TaskId::unchecked(dep).into()).collect();
        task
    }

    fn claimed(mut task: Task) -> Task {
        task.state = State::Claimed;
        task.owner = Some(AgentId::unchecked("w"));
        task.lease = Some(LeaseInfo { fence: 1, until: None });
        task
    }

    fn codes(tasks: &[Task]) -> Vec<ProblemCode> {
        check(tasks).into_iter().map(|problem| problem.code).collect()
    }

    #[test]
    fn each_problem_is_found_and_nothing_else() {
        let with = |mut task: Task, change: fn(&mut Task)| {
            change(&mut task);
            task
        };
        let cases = [
            (ProblemCode::EmptyId, vec![task("", &[])]),
            (ProblemCode::DuplicateId, vec![task("a", &[]), task("a", &[])]),
            (ProblemCode::UnknownState, vec![with(task("a", &[]), |t| t.state = State::Unknown(9))]),
            (ProblemCode::UnknownDep, vec![task("a", &["b"])]),
            (ProblemCode::SelfDep, vec![task("a", &["a"])]),
            (ProblemCode::DepCycle, vec![task("a", &["b"]), task("b", &["c"]), task("c", &["a"])]),
            (ProblemCode::ClaimedWithoutLease, vec![with(claimed(task("a", &[])), |t| t.lease = None)]),
            (ProblemCode::LeaseWithoutClaim, vec![with(claimed(task("a", &[])), |t| t.state = State::Open)]),
            (ProblemCode::BlockedClaim, vec![claimed(task("a", &["b"])), task("b", &[])]),
            (
                ProblemCode::TerminalClaimed,
                vec![with(claimed(task("a", &[])), |t| (t.state, t.lease) = (State::Done, None))],
            ),
        ];
        for (code, tasks) in cases {
            assert_eq!(codes(&tasks), [code]);
        }
        let done = with(task("b", &[]), |t| t.state = State::Done);
        assert_eq!(codes(&[claimed(task("a", &["b"])), done]), []);
    }
}
