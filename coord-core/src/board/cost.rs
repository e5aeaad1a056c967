//! What adding a plan costs, and how it is cut into transactions.

use super::plan::Plan;
use super::ready::{self, watch_key};
use super::record::{Definition, edge_key, encode_definition};
use super::task::TaskSpec;
use crate::key::limits;

/// How many heads of other tasks one transaction asserts not to be done. A task that would need more is left to be examined.
pub(super) const WATCHED: usize = 40;

/// What adding a plan costs the store if all its tasks are new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanCost {
    /// Records that are written.
    pub mutations: usize,
    /// Bytes of keys and values that are written.
    pub bytes: usize,
    /// Transactions; with one, the plan is added all or nothing.
    pub transactions: usize,
}

impl Plan {
    /// What adding this plan costs if all its tasks are new.
    #[must_use]
    pub fn cost(&self) -> PlanCost {
        let pieces = pieces(self.tasks());
        let guard = Size::of_guard();
        let mut cost = PlanCost { transactions: pieces.len(), ..PlanCost::default() };
        for task in self.tasks() {
            let size = Size::of_task(task);
            cost.mutations += size.mutations;
            cost.bytes += size.bytes;
        }
        cost.mutations += pieces.len() * guard.mutations;
        cost.bytes += pieces.len() * guard.bytes;
        cost
    }
}

/// An upper bound of what a piece of a plan writes.
#[derive(Clone, Copy)]
struct Size {
    mutations: usize,
    bytes: usize,
}

impl Size {
    /// The guard's record, asserted and written, and the heads that are asserted not to be done.
    fn of_guard() -> Self {
        Size { mutations: 1, bytes: 1_024 + WATCHED * ("task/".len() + super::task::limits::ID_BYTES) }
    }

    fn of_task(task: &TaskSpec) -> Self {
        // A new head has a fixed size but for its numbers, which have at most nine or five bytes each.
        const NEW_HEAD: usize = 192;
        let id = task.id.as_str().len();
        let edges: usize = task.deps.iter().map(|dep| edge_key(&dep.id, &task.id).as_bytes().len() + 8).sum();
        let definition = encode_definition(&Definition::of(task)).len();
        // Its entry in the index: with its labels if it is ready, with the name of another task if it waits for that.
        let labels: usize = task.labels.iter().map(|label| label.len() + 3).sum();
        let watch =
            task.deps.iter().map(|dep| watch_key(&dep.id, &task.id).as_bytes().len()).max().unwrap_or(0);
        let entry = watch.max(ready::ready_key(0, 0, &task.id).as_bytes().len() + labels) + 16;
        Size {
            mutations: 3 + task.deps.len(),
            bytes: "task/".len() + "def/".len() + 2 * id + NEW_HEAD + definition + edges + entry,
        }
    }
}

/// Cuts a plan, which is in dependency order, into pieces of one transaction each.
pub(super) fn pieces(tasks: &[TaskSpec]) -> Vec<&[TaskSpec]> {
    let guard = Size::of_guard();
    let mut pieces = Vec::new();
    let (mut start, mut mutations, mut bytes) = (0, guard.mutations, guard.bytes);
    for (index, task) in tasks.iter().enumerate() {
        let size = Size::of_task(task);
        let fits =
            mutations + size.mutations <= limits::TXN_MUTATIONS && bytes + size.bytes <= limits::TXN_BYTES;
        if !fits && index > start {
            pieces.push(&tasks[start..index]);
            (start, mutations, bytes) = (index, guard.mutations, guard.bytes);
        }
        mutations += size.mutations;
        bytes += size.bytes;
    }
    if start < tasks.len() {
        pieces.push(&tasks[start..]);
    }
    pieces
}
