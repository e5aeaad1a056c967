//! The graph of what must have come before what, its cycles and its closure.
//!
//! Nodes are the events of a history, and one moment for each return: an event leads to the moment of its return, a moment to the
//! next one, and to the events that were called after it. So real time costs a line of edges and not a square.

use std::collections::VecDeque;

use coord_core::Version;

use super::event::{Event, History};

/// Why one event comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// It wrote what the other one replaced.
    Replaced(usize, Version),
    /// It wrote what the other one saw.
    Saw(usize, Version),
    /// It saw what the other one replaced.
    Before(usize, Version),
    /// It had returned when the other was called (by way of moments).
    Time,
    /// It saw a key absent that the other one created.
    AbsentBefore(usize),
    /// It deleted a key that the other one saw absent.
    AbsentAfter(usize),
    /// It ended a life of a key, and the other one began another.
    NextLife(usize),
    /// It created a key that the other one found present.
    PresentAfter(usize),
    /// It found a key present that the other one deleted.
    PresentBefore(usize),
    /// It was rejected before the other one made a version that it asserted.
    RejectedBefore(usize, Version),
    /// It replaced a version that the other one asserted, which was rejected for that.
    RejectedAfter(usize, Version),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    to: usize,
    link: Link,
}

/// A way around: each event with the link to the next one; the last one leads to the first.
pub(crate) type Cycle = Vec<(usize, Link)>;

#[derive(Clone, Debug)]
pub(crate) struct Graph {
    events: usize,
    edges: Vec<Vec<Edge>>,
}

impl Graph {
    /// The events, and the real time between them if it counts.
    pub(crate) fn new(history: &History, real_time: bool) -> Graph {
        let events = history.0.len();
        let mut graph = Graph { events, edges: vec![Vec::new(); events] };
        if !real_time {
            return graph;
        }
        let mut moments: Vec<(u64, usize)> =
            history.0.iter().enumerate().filter_map(|(node, event)| Some((event.ret?, node))).collect();
        moments.sort_unstable();
        graph.edges.resize_with(events + moments.len(), Vec::new);
        for (index, (_, node)) in moments.iter().enumerate() {
            graph.add(*node, events + index, Link::Time);
            if index + 1 < moments.len() {
                graph.add(events + index, events + index + 1, Link::Time);
            }
        }
        for (node, event) in history.0.iter().enumerate() {
            let returned = moments.partition_point(|(ret, _)| *ret < event.call);
            if returned > 0 {
                graph.add(events + returned - 1, node, Link::Time);
            }
        }
        graph
    }

    pub(crate) fn add(&mut self, from: usize, to: usize, link: Link) {
        self.edges[from].push(Edge { to, link });
    }

    /// The nodes in an order in which every edge leads forward, or `None` if there is a cycle.
    fn order(&self) -> Option<Vec<usize>> {
        let mut incoming = vec![0_u32; self.edges.len()];
        for edge in self.edges.iter().flatten() {
            incoming[edge.to] += 1;
        }
        let mut order: Vec<usize> = (0..self.edges.len()).filter(|node| incoming[*node] == 0).collect();
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for edge in &self.edges[node] {
                incoming[edge.to] -= 1;
                if incoming[edge.to] == 0 {
                    order.push(edge.to);
                }
            }
        }
        (order.len() == self.edges.len()).then_some(order)
    }

    /// Who reaches whom, or the shortest cycle.
    pub(crate) fn reach(&self) -> Result<Reach, Cycle> {
        let Some(order) = self.order() else { return Err(self.shortest_cycle()) };
        let words = self.events.div_ceil(64);
        let mut bits = vec![0_u64; words * self.edges.len()];
        for &node in order.iter().rev() {
            let mut row = vec![0_u64; words];
            for edge in &self.edges[node] {
                if edge.to < self.events {
                    row[edge.to / 64] |= 1 << (edge.to % 64);
                }
                let other = &bits[edge.to * words..(edge.to + 1) * words];
                row.iter_mut().zip(other).for_each(|(word, other)| *word |= other);
            }
            bits[node * words..(node + 1) * words].copy_from_slice(&row);
        }
        Ok(Reach { words, bits })
    }

    /// For each event the earliest moment at which it can take effect, and the latest, as its own calls and returns and those of
    /// its predecessors and successors bound them.
    pub(crate) fn windows(&self, history: &[Event]) -> Vec<(u64, u64)> {
        let order = self.order().unwrap_or_default();
        let mut windows: Vec<(u64, u64)> = (0..self.edges.len())
            .map(|node| history.get(node).map_or((0, u64::MAX), |e| (e.call, e.ret.unwrap_or(u64::MAX))))
            .collect();
        for &node in &order {
            for edge in &self.edges[node] {
                windows[edge.to].0 = windows[edge.to].0.max(windows[node].0);
            }
        }
        for &node in order.iter().rev() {
            for edge in &self.edges[node] {
                windows[node].1 = windows[node].1.min(windows[edge.to].1);
            }
        }
        windows.truncate(self.events);
        windows
    }

    /// The shortest cycle, in events.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn shortest_cycle(&self) -> Cycle {
        // More starts than this are not tried: the cycle found is then short, but perhaps not the shortest.
        const STARTS: usize = 500;
        let component = self.components();
        let mut size = vec![0_usize; self.edges.len()];
        component.iter().for_each(|name| size[*name] += 1);
        let in_cycle = |node: &usize| {
            size[component[*node]] > 1 || self.edges[*node].iter().any(|edge| edge.to == *node)
        };
        let mut best: Option<Cycle> = None;
        for start in (0..self.events).filter(in_cycle).take(STARTS) {
            if let Some(cycle) = self.cycle_through(start, &component)
                && best.as_ref().is_none_or(|best| cycle.len() < best.len())
            {
                best = Some(cycle);
            }
            if best.as_ref().is_some_and(|best| best.len() <= 2) {
                break;
            }
        }
        best.expect("a graph without an order has a cycle, and every cycle passes an event")
    }

    /// The shortest way from `start` back to it. Steps between moments are free.
    fn cycle_through(&self, start: usize, component: &[usize]) -> Option<Cycle> {
        let mut from: Vec<Option<(usize, Link)>> = vec![None; self.edges.len()];
        let mut distance = vec![u32::MAX; self.edges.len()];
        let mut queue = VecDeque::from([(start, 0_u32)]);
        let mut closed = vec![false; self.edges.len()];
        'search: while let Some((node, steps)) = queue.pop_front() {
            if std::mem::replace(&mut closed[node], true) {
                continue;
            }
            for edge in &self.edges[node] {
                if component[edge.to] != component[start] {
                    continue;
                }
                if edge.to == start {
                    from[start] = Some((node, edge.link));
                    break 'search;
                }
                let free = edge.to >= self.events;
                let there = steps + u32::from(!free);
                if !closed[edge.to] && there < distance[edge.to] {
                    distance[edge.to] = there;
                    from[edge.to] = Some((node, edge.link));
                    if free { queue.push_front((edge.to, there)) } else { queue.push_back((edge.to, there)) }
                }
            }
        }
        let mut cycle = Vec::new();
        let (mut node, mut link) = from[start]?;
        loop {
            if node < self.events {
                cycle.push((node, link));
                if node == start {
                    break;
                }
            }
            (node, link) = from[node]?;
        }
        cycle.reverse();
        Some(cycle)
    }

    /// The strongly connected component of each node, named by a number (Tarjan's algorithm, with a stack of its own).
    fn components(&self) -> Vec<usize> {
        let count = self.edges.len();
        let (mut index, mut low) = (vec![usize::MAX; count], vec![0; count]);
        let mut component = vec![usize::MAX; count];
        let (mut stack, mut next, mut names) = (Vec::new(), 0, 0);
        for root in 0..count {
            if index[root] != usize::MAX {
                continue;
            }
            let mut calls = vec![(root, 0)];
            while let Some((node, at)) = calls.last_mut() {
                let node = *node;
                if *at == 0 {
                    (index[node], low[node]) = (next, next);
                    next += 1;
                    stack.push(node);
                }
                if let Some(edge) = self.edges[node].get(*at) {
                    *at += 1;
                    if index[edge.to] == usize::MAX {
                        calls.push((edge.to, 0));
                    } else if component[edge.to] == usize::MAX {
                        low[node] = low[node].min(index[edge.to]);
                    }
                    continue;
                }
                calls.pop();
                if let Some((caller, _)) = calls.last() {
                    low[*caller] = low[*caller].min(low[node]);
                }
                if low[node] == index[node] {
                    while let Some(member) = stack.pop() {
                        component[member] = names;
                        if member == node {
                            break;
                        }
                    }
                    names += 1;
                }
            }
        }
        component
    }
}

/// Who reaches whom: from every node to every event.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    words: usize,
    bits: Vec<u64>,
}

impl Reach {
    /// Whether there is a way from one event to another.
    pub(crate) fn has(&self, from: usize, to: usize) -> bool {
        self.bits[from * self.words + to / 64] & (1 << (to % 64)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Action;
    use super::*;

    fn history(times: &[(u64, u64)]) -> History {
        let event = |&(call, ret): &(u64, u64)| Event {
            client: 0,
            call,
            ret: Some(ret),
            action: Action::Read(Vec::new()),
        };
        History(times.iter().map(event).collect())
    }

    #[test]
    fn real_time_orders_what_does_not_overlap() {
        let graph = Graph::new(&history(&[(1, 2), (3, 6), (4, 5), (7, 8)]), true);
        let reach = graph.reach().unwrap();
        for (from, to, ordered) in
            [(0, 1, true), (1, 0, false), (1, 2, false), (2, 1, false), (0, 3, true), (2, 3, true)]
        {
            assert_eq!(reach.has(from, to), ordered, "{from} {to}");
        }
    }

    #[test]
    fn the_shortest_cycle_is_found_and_steps_of_time_count_once() {
        // 0..9 one after the other; a way back from 7 to 2 through 8, and one from 9 to 3.
        let mut graph = Graph::new(&history(&(0..10).map(|n| (2 * n, 2 * n + 1)).collect::<Vec<_>>()), true);
        graph.add(8, 2, Link::Saw(0, Version::MISSING));
        graph.add(7, 8, Link::Saw(0, Version::MISSING));
        let cycle = graph.reach().unwrap_err();
        let mut nodes: Vec<usize> = cycle.iter().map(|(node, _)| *node).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [2, 8]);
    }

    #[test]
    fn an_edge_to_itself_is_a_cycle() {
        let mut graph = Graph::new(&history(&[(1, 2)]), true);
        graph.add(0, 0, Link::NextLife(0));
        assert_eq!(graph.reach().unwrap_err(), [(0, Link::NextLife(0))]);
    }

    #[test]
    fn long_chains_need_no_recursion() {
        let mut graph =
            Graph::new(&history(&(0..3_000).map(|n| (2 * n, 2 * n + 1)).collect::<Vec<_>>()), true);
        assert!(graph.reach().unwrap().has(0, 2_999));
        graph.add(2_999, 0, Link::Time);
        assert_eq!(graph.reach().unwrap_err().len(), 2);
    }
}
