//! Graphs of tasks for fleets of workers, and what must come of them, computed without a board.

use std::time::Duration;

use coord_core::board::{Dep, Plan, Retry, Rule, State, TaskId, TaskSpec};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::clause::Verdict;

/// How a task behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduct {
    Passes,
    /// Fails until it has failed twice.
    FailsTwice,
    /// Fails each time.
    Poison,
}

impl Conduct {
    fn code(self) -> u8 {
        match self {
            Conduct::Passes => 0,
            Conduct::FailsTwice => 1,
            Conduct::Poison => 2,
        }
    }

    /// What the payload of a task says.
    pub(super) fn of(payload: &[u8]) -> Conduct {
        match payload {
            [1] => Conduct::FailsTwice,
            [2] => Conduct::Poison,
            _ => Conduct::Passes,
        }
    }
}

/// A task to be.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) id: TaskId,
    deps: Vec<(usize, Rule)>,
    pub(super) conduct: Conduct,
}

/// Tasks, of which each depends on earlier ones only.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
}

/// Kills eat attempts, so those that pass in the end have many. What is poison needs few.
const ATTEMPTS: u32 = 1_000;
const POISON_ATTEMPTS: u32 = 3;

/// The deps of the tasks of one piece, each by its place in the piece.
fn piece(rng: &mut StdRng) -> Vec<Vec<usize>> {
    match rng.random_range(0..4) {
        // A chain.
        0 => (0..rng.random_range(3..10_usize)).map(|n| n.checked_sub(1).into_iter().collect()).collect(),
        // Out and in again.
        1 => {
            let wide = rng.random_range(3..24);
            let mut deps = vec![Vec::new()];
            deps.extend((0..wide).map(|_| vec![0]));
            deps.push((1..=wide).collect());
            deps
        }
        // A lattice of diamonds.
        2 => {
            let (wide, deep) = (rng.random_range(2..5_usize), rng.random_range(2..5_usize));
            let of = |n: usize| {
                let (row, column) = (n / wide, n % wide);
                let above = (row > 0).then(|| n - wide);
                let beside = (row > 0 && column > 0).then(|| n - wide - 1);
                above.into_iter().chain(beside).collect()
            };
            (0..wide * deep).map(of).collect()
        }
        // Layers.
        _ => {
            let (wide, deep) = (rng.random_range(3..9_usize), rng.random_range(2..6_usize));
            (0..wide * deep)
                .map(|n| {
                    let before = n / wide * wide;
                    let mut deps: Vec<usize> = (0..before).collect();
                    deps.shuffle(rng);
                    deps.truncate(rng.random_range(1..4));
                    deps
                })
                .collect()
        }
    }
}

/// What a dependency in this state says by its rule: `Some(true)` if it is satisfied, `Some(false)` if it never can be, `None` while it
/// waits. Written down here once more, for the board's own table is what is judged.
pub(super) fn verdict(rule: Rule, state: State) -> Option<bool> {
    match (rule, state) {
        (Rule::Done | Rule::Finished, State::Done)
        | (Rule::Finished | Rule::Failed, State::Failed)
        | (Rule::Finished, State::Skipped) => Some(true),
        (Rule::Failed, State::Done | State::Skipped) | (Rule::Done, State::Skipped) => Some(false),
        _ => None,
    }
}

impl Graph {
    /// So many tasks, in pieces of different shapes: 3 % fail twice and 1 % always, but never fewer than two.
    pub(super) fn generate(seed: u64, count: usize) -> Graph {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut nodes: Vec<Node> = Vec::with_capacity(count);
        while nodes.len() < count {
            let first = nodes.len();
            // Some pieces begin when something of an earlier one has ended.
            let before = (first > 0 && rng.random_bool(0.3)).then(|| rng.random_range(0..first));
            for deps in piece(&mut rng).into_iter().take(count - first) {
                let rule = |rng: &mut StdRng| match rng.random_range(0..100) {
                    0..5 => Rule::Failed,
                    5..15 => Rule::Finished,
                    _ => Rule::Done,
                };
                let mut deps: Vec<(usize, Rule)> =
                    deps.into_iter().map(|dep| (first + dep, rule(&mut rng))).collect();
                if deps.is_empty() {
                    deps.extend(before.map(|before| (before, Rule::Finished)));
                }
                let id = TaskId::unchecked(format!("task {:05}", nodes.len()));
                nodes.push(Node { id, deps, conduct: Conduct::Passes });
            }
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.shuffle(&mut rng);
        let (twice, poison) = ((count * 3 / 100).max(2), (count / 100).max(2));
        for (n, place) in order.into_iter().take(twice + poison).enumerate() {
            nodes[place].conduct = if n < twice { Conduct::FailsTwice } else { Conduct::Poison };
        }
        Graph { nodes }
    }

    pub(super) fn plan(&self) -> Result<Plan, Verdict> {
        let spec = |node: &Node| {
            let attempts = if node.conduct == Conduct::Poison { POISON_ATTEMPTS } else { ATTEMPTS };
            let retry = Retry::new(attempts).backoff(Duration::from_millis(10), Duration::from_millis(50));
            let deps = node.deps.iter().map(|(dep, rule)| Dep::on(self.nodes[*dep].id.clone(), *rule));
            TaskSpec::new(node.id.clone()).deps(deps).payload(vec![node.conduct.code()]).retry(retry)
        };
        Ok(Plan::new(self.nodes.iter().map(spec))?)
    }

    /// The state in which each task ends, from the rules alone. What waits for ever for a failed one stays open.
    pub(super) fn ends(&self) -> Vec<State> {
        let mut ends: Vec<State> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let says = |wanted| node.deps.iter().any(|(dep, rule)| verdict(*rule, ends[*dep]) == wanted);
            let end = match node.conduct {
                _ if says(None) => State::Open,
                _ if says(Some(false)) => State::Skipped,
                Conduct::Poison => State::Failed,
                Conduct::Passes | Conduct::FailsTwice => State::Done,
            };
            ends.push(end);
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn graphs_have_every_end_and_most_tasks_run() {
        for seed in 0..20 {
            let graph = Graph::generate(seed, 2_000);
            assert_eq!(graph.plan().unwrap().tasks().len(), 2_000);
            let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
            for end in graph.ends() {
                *counts.entry(end.as_str()).or_default() += 1;
            }
            for end in ["done", "failed", "skipped", "open"] {
                assert!(counts.contains_key(end), "seed {seed}: {counts:?}");
            }
            assert!(counts["done"] > 1_000, "seed {seed}: {counts:?}");
        }
    }
}
