//! The small search: where a fact can be explained in several ways, one of them must fit.
//!
//! "Absent" means before a life of the key or after it; "rejected" means that this assert did not hold, or that one. Each such fact
//! is a choice between sets of edges. Most choices are settled by what is known already; what remains falls into clusters that lie
//! apart in time and cannot disturb each other, and each is searched by itself.

use super::event::Event;
use super::graph::{Cycle, Graph, Link, Reach};

/// One way to explain a fact: all these edges.
pub(crate) type Alternative = Vec<(usize, usize, Link)>;

/// A fact and the ways to explain it.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The event whose answer is to be explained.
    pub(crate) event: usize,
    /// The keys that it is about.
    pub(crate) keys: Vec<usize>,
    /// The fact, as the end of a sentence that begins with the event.
    pub(crate) fact: String,
    pub(crate) alternatives: Vec<Alternative>,
}

/// Why not all facts can be explained.
#[derive(Debug)]
pub(crate) enum Conflict {
    /// What is certain contradicts itself.
    Cycle(Cycle),
    /// Each way to explain this fact contradicts what is certain.
    Unexplained(Box<Choice>, Vec<Cycle>),
    /// Each of these facts can be explained, but not all at once; the cycle is what the first ways lead to.
    Together(Vec<Choice>, Cycle),
    /// The search was given up.
    GivenUp(Vec<Choice>),
}

/// Steps of the search in one cluster.
const STEPS: usize = 50_000;

/// Finds ways to explain all facts at once.
pub(crate) fn solve(mut graph: Graph, mut pending: Vec<Choice>, events: &[Event]) -> Result<(), Conflict> {
    let reach = loop {
        let reach = graph.reach().map_err(Conflict::Cycle)?;
        let mut forced = Vec::new();
        let mut open = Vec::new();
        for mut choice in pending {
            if choice.alternatives.iter().any(|ways| ways.iter().all(|&(from, to, _)| reach.has(from, to))) {
                continue;
            }
            let (alive, dead): (Vec<_>, Vec<_>) =
                choice.alternatives.into_iter().partition(|ways| possible(&reach, ways));
            choice.alternatives = alive;
            match &mut choice.alternatives[..] {
                [] => {
                    let cycles = dead.iter().map(|ways| cycle_of(&graph, ways)).collect();
                    return Err(Conflict::Unexplained(Box::new(choice), cycles));
                }
                [only] => forced.append(only),
                _ => open.push(choice),
            }
        }
        pending = open;
        if forced.is_empty() {
            break reach;
        }
        for (from, to, link) in forced {
            if !reach.has(from, to) {
                graph.add(from, to, link);
            }
        }
    };
    for cluster in clusters(pending, &graph.windows(events)) {
        match search(&reach, &cluster) {
            Search::Explained => {}
            Search::GivenUp => return Err(Conflict::GivenUp(cluster)),
            Search::Impossible => {
                for (from, to, link) in cluster.iter().flat_map(|choice| &choice.alternatives[0]) {
                    graph.add(*from, *to, *link);
                }
                return Err(Conflict::Together(cluster, graph.shortest_cycle()));
            }
        }
    }
    Ok(())
}

fn possible(reach: &Reach, ways: &Alternative) -> bool {
    ways.iter().all(|&(from, to, _)| from != to && !reach.has(to, from))
}

/// The cycle that a way to explain a fact would close.
fn cycle_of(graph: &Graph, ways: &Alternative) -> Cycle {
    let mut graph = graph.clone();
    for (from, to, link) in ways {
        graph.add(*from, *to, *link);
    }
    graph.shortest_cycle()
}

/// Choices whose windows overlap, directly or through others. Choices of two clusters never share a cycle: all events of the earlier
/// one have happened before all of the later one, so a way back would be a cycle by itself.
fn clusters(pending: Vec<Choice>, windows: &[(u64, u64)]) -> Vec<Vec<Choice>> {
    let span = |choice: &Choice| {
        let ends =
            choice.alternatives.iter().flatten().flat_map(|&(from, to, _)| [windows[from], windows[to]]);
        ends.fold((u64::MAX, 0), |(low, high), window| (low.min(window.0), high.max(window.1)))
    };
    let mut spans: Vec<((u64, u64), Choice)> =
        pending.into_iter().map(|choice| (span(&choice), choice)).collect();
    spans.sort_by_key(|(span, _)| *span);
    let mut clusters: Vec<Vec<Choice>> = Vec::new();
    let mut end = None;
    for ((low, high), choice) in spans {
        match clusters.last_mut() {
            Some(last) if end.is_some_and(|end| low <= end) => last.push(choice),
            _ => clusters.push(vec![choice]),
        }
        end = end.max(Some(high));
    }
    clusters
}

enum Search {
    Explained,
    Impossible,
    GivenUp,
}

/// Depth-first over the ways of one cluster, on the closure restricted to its events.
fn search(reach: &Reach, cluster: &[Choice]) -> Search {
    let mut nodes: Vec<usize> = cluster
        .iter()
        .flat_map(|choice| choice.alternatives.iter().flatten())
        .flat_map(|e| [e.0, e.1])
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    let place = |node: usize| nodes.binary_search(&node).expect("the nodes of the cluster were collected");
    let choices: Vec<Vec<Vec<(usize, usize)>>> = cluster
        .iter()
        .map(|choice| {
            let way = |ways: &Alternative| ways.iter().map(|e| (place(e.0), place(e.1))).collect();
            choice.alternatives.iter().map(way).collect()
        })
        .collect();
    let mut stack = vec![(Closure::new(reach, &nodes), (0..choices.len()).collect::<Vec<usize>>())];
    let mut steps = 0;
    'branch: while let Some((mut closure, mut pending)) = stack.pop() {
        steps += 1;
        if steps > STEPS {
            return Search::GivenUp;
        }
        loop {
            let (mut moved, mut open) = (false, Vec::new());
            for choice in pending {
                if choices[choice].iter().any(|ways| ways.iter().all(|e| closure.has(e.0, e.1))) {
                    continue;
                }
                let mut alive = choices[choice].iter().filter(|ways| closure.allows(ways));
                match (alive.next(), alive.next()) {
                    (None, _) => continue 'branch,
                    (Some(only), None) => {
                        if !closure.add_all(only) {
                            continue 'branch;
                        }
                        moved = true;
                    }
                    _ => open.push(choice),
                }
            }
            pending = open;
            if !moved {
                break;
            }
        }
        let Some((first, rest)) = pending.split_first() else { return Search::Explained };
        for ways in choices[*first].iter().rev() {
            let mut closure = closure.clone();
            if closure.allows(ways) && closure.add_all(ways) {
                stack.push((closure, rest.to_vec()));
            }
        }
    }
    Search::Impossible
}

/// Who reaches whom among the events of one cluster; grows edge by edge.
#[derive(Clone)]
struct Closure {
    size: usize,
    reaches: Vec<bool>,
}

impl Closure {
    fn new(reach: &Reach, nodes: &[usize]) -> Closure {
        let reaches = nodes.iter().flat_map(|from| nodes.iter().map(|to| reach.has(*from, *to))).collect();
        Closure { size: nodes.len(), reaches }
    }

    fn has(&self, from: usize, to: usize) -> bool {
        self.reaches[from * self.size + to]
    }

    fn allows(&self, ways: &[(usize, usize)]) -> bool {
        ways.iter().all(|&(from, to)| from != to && !self.has(to, from))
    }

    /// Adds the edges, or says that they close a cycle.
    fn add_all(&mut self, ways: &[(usize, usize)]) -> bool {
        for &(from, to) in ways {
            if from == to || self.has(to, from) {
                return false;
            }
            if self.has(from, to) {
                continue;
            }
            let after: Vec<usize> =
                (0..self.size).filter(|node| *node == to || self.has(to, *node)).collect();
            for node in
                (0..self.size).filter(|node| *node == from || self.has(*node, from)).collect::<Vec<_>>()
            {
                after.iter().for_each(|after| self.reaches[node * self.size + after] = true);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Action, History};
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    const NODES: usize = 7;

    /// Events that all overlap, so that nothing orders them but the edges of the test.
    fn overlapping() -> History {
        let event = |client| Event { client, call: 1, ret: Some(2), action: Action::Read(Vec::new()) };
        History((0..NODES).map(event).collect())
    }

    fn edge(rng: &mut StdRng) -> (usize, usize, Link) {
        (rng.random_range(0..NODES), rng.random_range(0..NODES), Link::NextLife(0))
    }

    fn graph_of(edges: &[(usize, usize, Link)]) -> Graph {
        let mut graph = Graph::new(&overlapping(), true);
        edges.iter().for_each(|(from, to, link)| graph.add(*from, *to, *link));
        graph
    }

    /// Tries all combinations.
    fn can_be_explained(edges: &[(usize, usize, Link)], choices: &[Choice]) -> bool {
        let combinations: usize = choices.iter().map(|choice| choice.alternatives.len()).product();
        (0..combinations).any(|mut number| {
            let mut all = edges.to_vec();
            for choice in choices {
                all.extend(&choice.alternatives[number % choice.alternatives.len()]);
                number /= choice.alternatives.len();
            }
            graph_of(&all).reach().is_ok()
        })
    }

    #[test]
    fn the_search_finds_a_way_exactly_if_there_is_one() {
        let (mut together, mut explained) = (0, 0);
        for seed in 0..2_000 {
            let mut rng = StdRng::seed_from_u64(seed);
            let edges: Vec<_> = (0..rng.random_range(0..3)).map(|_| edge(&mut rng)).collect();
            let choices: Vec<Choice> = (0..rng.random_range(4..9))
                .map(|_| {
                    let mut way = || (0..rng.random_range(1..3)).map(|_| edge(&mut rng)).collect();
                    Choice {
                        event: 0,
                        keys: Vec::new(),
                        fact: String::new(),
                        alternatives: vec![way(), way()],
                    }
                })
                .collect();
            let result = solve(graph_of(&edges), choices.clone(), &overlapping().0);
            assert_eq!(result.is_ok(), can_be_explained(&edges, &choices), "seed {seed}: {result:?}");
            match result {
                Ok(()) => explained += 1,
                Err(Conflict::Together(..)) => together += 1,
                Err(_) => {}
            }
        }
        assert!(together > 10 && explained > 200, "{together} by search, {explained} explained: too few");
    }

    #[test]
    fn clusters_lie_apart_in_time() {
        let windows = [(1, 4), (3, 6), (7, 8), (9, 12), (10, 11)];
        let choice = |from, to| Choice {
            event: from,
            keys: Vec::new(),
            fact: String::new(),
            alternatives: vec![vec![(from, to, Link::NextLife(0))]],
        };
        let clusters = clusters(vec![choice(3, 4), choice(2, 2), choice(0, 1), choice(1, 0)], &windows);
        let sizes: Vec<usize> = clusters.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1, 1]);
    }
}
