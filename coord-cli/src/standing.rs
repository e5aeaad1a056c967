//! Where the tasks of a board stand: their states, and what their dependencies make of the open ones.

use std::collections::BTreeMap;

use coord_core::board::{State, Task, TaskId};
use serde::Serialize;

/// The state of a task as people ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    /// Somebody holds it.
    Running,
    /// It can be claimed.
    Ready,
    /// Dependencies have not come to what their rules want yet; or it is to be skipped by whoever looks next.
    Waiting,
    /// A task that it needs, directly or not, has failed, was cancelled or is missing.
    Blocked,
    /// It has failed.
    Failed,
    /// An operator has cancelled it.
    Cancelled,
    /// It never begins, for a dependency has ended otherwise than its rule wants.
    Skipped,
    /// It is done.
    Done,
    /// Its state is not known to this version.
    Unknown,
}

impl Standing {
    /// All of them, in the order in which people want to see them.
    pub(crate) const ALL: [Standing; 9] = [
        Standing::Running,
        Standing::Ready,
        Standing::Waiting,
        Standing::Blocked,
        Standing::Failed,
        Standing::Cancelled,
        Standing::Skipped,
        Standing::Done,
        Standing::Unknown,
    ];

    /// One lower-case word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Standing::Running => "running",
            Standing::Ready => "ready",
            Standing::Waiting => "waiting",
            Standing::Blocked => "blocked",
            Standing::Failed => "failed",
            Standing::Cancelled => "cancelled",
            Standing::Skipped => "skipped",
            Standing::Done => "done",
            Standing::Unknown => "unknown",
        }
    }

    /// The standing of a task in this state, if the state alone tells it.
    pub(crate) fn of_state(state: State) -> Option<Self> {
        Some(match state {
            State::Claimed => Standing::Running,
            State::Done => Standing::Done,
            State::Failed => Standing::Failed,
            State::Cancelled => Standing::Cancelled,
            State::Skipped => Standing::Skipped,
            State::Open => return None,
            _ => Standing::Unknown,
        })
    }

    /// Whether the state of a task alone tells whether it stands so.
    pub(crate) fn is_of_state(self) -> bool {
        !matches!(self, Standing::Ready | Standing::Waiting | Standing::Blocked)
    }

    /// Whether workers may still do something with the task, now or once others are done.
    pub(crate) fn is_alive(self) -> bool {
        matches!(self, Standing::Running | Standing::Ready | Standing::Waiting)
    }
}

/// The standing of each task, in the order of the tasks. Linear in tasks and dependencies.
pub(crate) fn standings(tasks: &[Task]) -> Vec<Standing> {
    let position: BTreeMap<&TaskId, usize> =
        tasks.iter().enumerate().map(|(index, task)| (&task.id, index)).collect();
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
    let mut standings = Vec::with_capacity(tasks.len());
    let mut blocking = Vec::new();
    for (index, task) in tasks.iter().enumerate() {
        let mut missing = false;
        let mut undone = false;
        for dep in &task.deps {
            match position.get(&dep.id) {
                None => missing = true,
                Some(found) => {
                    let verdict = dep.rule.verdict(tasks[*found].state);
                    undone |= verdict != Some(true);
                    // What has come to an end that counts blocks nobody, whatever the end was.
                    if verdict.is_none() {
                        dependents[*found].push(index);
                    }
                }
            }
        }
        let standing = match Standing::of_state(task.state) {
            Some(standing) => standing,
            None if missing => Standing::Blocked,
            None if undone => Standing::Waiting,
            None => Standing::Ready,
        };
        if matches!(standing, Standing::Failed | Standing::Cancelled | Standing::Blocked | Standing::Unknown)
        {
            blocking.push(index);
        }
        standings.push(standing);
    }
    // A task that cannot end, or has ended in a way that does not count, blocks what waits for it, and so on.
    while let Some(index) = blocking.pop() {
        for dependent in std::mem::take(&mut dependents[index]) {
            if standings[dependent] == Standing::Waiting {
                standings[dependent] = Standing::Blocked;
                blocking.push(dependent);
            }
        }
    }
    standings
}

/// How many tasks stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts([usize; Standing::ALL.len()]);

impl Counts {
    /// Counts.
    pub(crate) fn of(standings: impl IntoIterator<Item = Standing>) -> Self {
        let mut counts = Counts::default();
        for standing in standings {
            counts.0[Counts::slot(standing)] += 1;
        }
        counts
    }

    fn slot(standing: Standing) -> usize {
        Standing::ALL.iter().position(|one| *one == standing).unwrap_or(0)
    }

    /// How many stand there.
    pub(crate) fn get(&self, standing: Standing) -> usize {
        self.0[Counts::slot(standing)]
    }

    /// How many there are.
    pub(crate) fn total(&self) -> usize {
        self.0.iter().sum()
    }

    /// As a JSON object, all words, and the total.
    pub(crate) fn to_json(self) -> serde_json::Value {
        let mut object: serde_json::Map<String, serde_json::Value> =
            Standing::ALL.iter().map(|one| (one.as_str().to_owned(), self.get(*one).into())).collect();
        object.insert("total".into(), self.total().into());
        object.into()
    }
}

impl std::fmt::Display for Counts {
    /// What there is, as `3 done, 1 failed`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = Standing::ALL
            .iter()
            .rev()
            .filter(|one| self.get(**one) > 0)
            .map(|one| format!("{} {}", self.get(*one), one.as_str()))
            .collect();
        if parts.is_empty() { f.write_str("no tasks") } else { f.write_str(&parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use coord_core::board::Rule;

    use super::*;

    fn task(id: &str, state: State, deps: &[&str]) -> Task {
        let mut task = Task::new(TaskId::new(id).unwrap());
        task.state = state;
        task.deps = deps.iter().map(|dep| TaskId::new(dep).unwrap().into()).collect();
        task
    }

    #[test]
    fn a_failure_blocks_all_that_comes_after_it_and_nothing_else() {
        let tasks = [
            task("a", State::Failed, &[]),
            task("b", State::Open, &["a"]),
            task("c", State::Open, &["b", "d"]),
            task("d", State::Done, &[]),
            task("e", State::Open, &["d"]),
            task("f", State::Claimed, &[]),
            task("g", State::Open, &["f"]),
            task("h", State::Open, &["nowhere"]),
        ];
        use Standing::*;
        let found = standings(&tasks);
        assert_eq!(found, [Failed, Blocked, Blocked, Done, Ready, Running, Waiting, Blocked]);
        let counts = Counts::of(found);
        assert_eq!((counts.total(), counts.get(Blocked)), (8, 3));
        assert_eq!(counts.to_string(), "1 done, 1 failed, 3 blocked, 1 waiting, 1 ready, 1 running");
    }

    #[test]
    fn rules_say_which_ends_block() {
        let ruled = |id, dep, rule| {
            let mut task = task(id, State::Open, &[]);
            task.deps.push((TaskId::new(dep).unwrap(), rule).into());
            task
        };
        let tasks = [
            task("failed", State::Failed, &[]),
            task("cancelled", State::Cancelled, &[]),
            task("skipped", State::Skipped, &[]),
            task("blocked", State::Open, &["failed"]),
            ruled("cleanup", "failed", Rule::Finished),
            ruled("rescue", "failed", Rule::Failed),
            ruled("no rescue", "cancelled", Rule::Failed),
            ruled("report", "skipped", Rule::Finished),
            task("to be skipped", State::Open, &["skipped"]),
            ruled("after the blocked one", "blocked", Rule::Finished),
        ];
        use Standing::*;
        assert_eq!(
            standings(&tasks),
            [Failed, Cancelled, Skipped, Blocked, Ready, Ready, Blocked, Ready, Waiting, Blocked]
        );
    }
}
