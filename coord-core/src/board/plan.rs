//! Plans: tasks that are added together, in dependency order.

use std::collections::BTreeMap;

use super::BoardError;
use super::task::TaskSpec;

/// What [`add`](super::ExtendedBoard::add) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Added {
    /// The task is new.
    New,
    /// The task was added with the same definition before; nothing has changed.
    Existed,
}

/// What [`add_plan`](super::ExtendedBoard::add_plan) did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanReport {
    /// How many tasks are new.
    pub added: usize,
    /// How many had been added with the same definition before.
    pub existed: usize,
}

/// Tasks that are added together: ids are unique, and dependencies within the plan have no cycle.
///
/// ```
/// use coord_core::board::{Plan, TaskId, TaskSpec};
///
/// let (a, b) = (TaskId::new("a")?, TaskId::new("b")?);
/// let plan = Plan::new([TaskSpec::new(b.clone()).dep(a.clone()), TaskSpec::new(a.clone())])?;
/// // The tasks are kept in dependency order.
/// assert_eq!(plan.tasks()[0].id, a);
/// assert!(Plan::new([TaskSpec::new(a.clone()).dep(b.clone()), TaskSpec::new(b).dep(a)]).is_err());
/// # Ok::<(), coord_core::board::BoardError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    tasks: Vec<TaskSpec>,
}

impl Plan {
    /// A plan. Its tasks are put in dependency order, and otherwise keep their order. Dependencies that are not in the plan must be
    /// on the board when the plan is added.
    ///
    /// # Errors
    /// What [`TaskSpec::validate`] finds; [`BoardError::AlreadyExists`] for an id that the plan has twice;
    /// [`BoardError::Cycle`] with the path of a cycle.
    pub fn new(tasks: impl IntoIterator<Item = TaskSpec>) -> Result<Self, BoardError> {
        let tasks: Vec<TaskSpec> = tasks.into_iter().collect();
        let mut position = BTreeMap::new();
        for (index, task) in tasks.iter().enumerate() {
            task.validate()?;
            if position.insert(task.id.clone(), index).is_some() {
                return Err(BoardError::AlreadyExists { id: task.id.clone() });
            }
        }
        let order = dependency_order(tasks.len(), |index| {
            tasks[index].deps.iter().filter_map(|dep| position.get(&dep.id).copied()).collect()
        })
        .map_err(|cycle| BoardError::Cycle {
            path: cycle.into_iter().map(|index| tasks[index].id.clone()).collect(),
        })?;
        let mut slots: Vec<Option<TaskSpec>> = tasks.into_iter().map(Some).collect();
        Ok(Plan { tasks: order.into_iter().filter_map(|index| slots[index].take()).collect() })
    }

    /// The tasks, each after its dependencies.
    #[must_use]
    pub fn tasks(&self) -> &[TaskSpec] {
        &self.tasks
    }
}

/// Puts the nodes `0..count` of a graph in an order in which each comes after its dependencies, and keeps their order otherwise.
/// Depth-first search with its own stack, so that a chain of any length is no deeper than memory. On a cycle: its path, the first
/// node repeated at the end.
pub(crate) fn dependency_order(
    count: usize,
    deps: impl Fn(usize) -> Vec<usize>,
) -> Result<Vec<usize>, Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        Unseen,
        Open,
        Placed,
    }
    let mut marks = vec![Mark::Unseen; count];
    let mut order = Vec::with_capacity(count);
    for root in 0..count {
        if marks[root] != Mark::Unseen {
            continue;
        }
        marks[root] = Mark::Open;
        let mut stack = vec![(root, deps(root).into_iter())];
        while let Some((node, rest)) = stack.last_mut() {
            let node = *node;
            match rest.next() {
                None => {
                    marks[node] = Mark::Placed;
                    order.push(node);
                    stack.pop();
                }
                Some(dep) => match marks[dep] {
                    Mark::Placed => {}
                    Mark::Unseen => {
                        marks[dep] = Mark::Open;
                        stack.push((dep, deps(dep).into_iter()));
                    }
                    Mark::Open => {
                        let start = stack.iter().position(|(node, _)| *node == dep).unwrap_or(0);
                        let mut path: Vec<usize> = stack[start..].iter().map(|(node, _)| *node).collect();
                        path.push(dep);
                        return Err(path);
                    }
                },
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::TaskId;

    fn id(text: &str) -> TaskId {
        TaskId::new(text).unwrap()
    }

    #[test]
    fn a_cycle_is_named_by_its_path() {
        let plan = Plan::new([
            TaskSpec::new(id("root")).dep(id("a")),
            TaskSpec::new(id("a")).dep(id("b")),
            TaskSpec::new(id("b")).dep(id("c")),
            TaskSpec::new(id("c")).dep(id("a")),
        ]);
        let Err(BoardError::Cycle { path }) = plan else { panic!("{plan:?}") };
        assert_eq!(path, [id("a"), id("b"), id("c"), id("a")]);
    }

    #[test]
    fn a_long_chain_does_not_overflow_the_stack() {
        let count = 100_000;
        let order = dependency_order(count, |n| if n + 1 < count { vec![n + 1] } else { vec![] }).unwrap();
        assert_eq!(order.first(), Some(&(count - 1)));
    }
}
