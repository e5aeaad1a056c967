//! Giving a task other dependencies.

use std::collections::{BTreeMap, BTreeSet};

use super::super::adapter::{BoardAdapter, commit, outcome_unknown, ring_fate};
use super::super::dep::{Dep, Rule};
use super::super::one_head::{taken, unknown_state};
use super::super::past::{self, Event, past_key};
use super::super::plan::dependency_order;
use super::super::ready::{self, Needs, Scan, watch_key};
use super::super::record::{
    self, EDGES, definition_key, edge_ids, edge_key, edges_prefix, encode_definition, encode_head,
    encode_topology, head_key, read_definition, read_head, topology_key,
};
use super::super::task::{State, TaskId, limits as board_limits, validate_deps};
use super::super::{BoardError, Verb};
use super::{edge_put, guard};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::key::{Key, Prefix, limits};
use crate::snapshot::KeyRange;
use crate::token::OperationId;
use crate::txn::{Assert, Mutation};

/// How many records set_deps writes at most besides edges and watches.
const MUTATIONS_BESIDES: usize = 16;

/// Replaces the dependencies of one task.
struct Reconnecting<'a> {
    id: &'a TaskId,
    deps: &'a [Dep],
    expected_seq: Option<u64>,
    operation: OperationId,
    edges: Edges,
}

/// What has been listed of the edges of the board.
enum Edges {
    /// Nothing yet.
    Unread,
    /// Whether the task has a dependent at all; without one nothing can come back to it.
    Probed { dependents: bool },
    /// All edges up to some key.
    Partly(Vec<Key>),
    /// All edges.
    All(Vec<Key>),
}

impl Reconnecting<'_> {
    /// The listing that is still needed to look for a cycle.
    fn next_listing(&self) -> Result<Option<KeyRange>, BoardError> {
        let all = KeyRange::new(Prefix::new(EDGES)?, limits::LISTING_KEYS)?;
        Ok(match &self.edges {
            Edges::Unread => Some(KeyRange::new(edges_prefix(self.id), 1)?),
            Edges::Probed { dependents: true } => Some(all),
            Edges::Partly(keys) => Some(match keys.last() {
                Some(last) => all.start_after(last.clone()),
                None => all,
            }),
            Edges::Probed { dependents: false } | Edges::All(_) => None,
        })
    }

    /// Takes the task's watches off the dependencies that it had; returns what has to be read for that.
    ///
    /// Where all dependencies must be done, a watch on a task that is not settled is on the first such one. That it still is not is
    /// asserted, so the watch has not moved on. Watches on settled ones are put no more, so those that are seen are all there are.
    /// With other rules a watch may be on any of them, so all are deleted, unless that would be too much for one transaction: a watch
    /// that stays goes when the task that it is on has ended.
    fn leave_watches(&self, view: &View<'_>, deps: &[Dep], index: &mut ready::Change) -> Vec<Key> {
        let ruled = deps.iter().any(|dep| dep.rule != Rule::Done);
        if ruled && 2 * deps.len() + self.deps.len() + MUTATIONS_BESIDES <= limits::TXN_MUTATIONS {
            deps.iter().for_each(|dep| index.delete(watch_key(&dep.id, self.id)));
            return Vec::new();
        }
        let passed = match ready::scan(view, deps) {
            Scan::Unread(keys) => return keys,
            Scan::Settled { .. } => deps,
            Scan::Waits(n, dep, version) => {
                index.assert(head_key(dep), version);
                index.delete(watch_key(dep, self.id));
                &deps[..n]
            }
        };
        let watches: Vec<Key> = passed.iter().map(|dep| watch_key(&dep.id, self.id)).collect();
        let unread = view.lacks(&watches);
        for watch in watches {
            if view.snapshot.get(&watch).is_some_and(|entry| entry.is_present()) {
                index.delete(watch);
            }
        }
        unread
    }

    /// Looks for a way from one of the new dependencies back to the task. Linear in the edges of the board.
    fn check_cycle(&self) -> Result<(), BoardError> {
        let Edges::All(keys) = &self.edges else { return Ok(()) };
        let mut deps_of: BTreeMap<TaskId, Vec<TaskId>> = BTreeMap::new();
        for key in keys {
            let (dependency, dependent) =
                edge_ids(key).ok_or_else(|| record::malformed(key, "the key is no edge"))?;
            deps_of.entry(dependency.clone()).or_default();
            deps_of.entry(dependent).or_default().push(dependency);
        }
        deps_of.insert(self.id.clone(), self.deps.iter().map(|dep| dep.id.clone()).collect());
        for Dep { id: dep, .. } in self.deps {
            deps_of.entry(dep.clone()).or_default();
        }
        let ids: Vec<&TaskId> = deps_of.keys().collect();
        let position: BTreeMap<&TaskId, usize> = ids.iter().enumerate().map(|(n, id)| (*id, n)).collect();
        dependency_order(ids.len(), |n| {
            deps_of[ids[n]].iter().filter_map(|dep| position.get(dep).copied()).collect()
        })
        .map(|_| ())
        .map_err(|cycle| BoardError::Cycle { path: cycle.into_iter().map(|n| ids[n].clone()).collect() })
    }
}

/// How dependencies have changed, in as many words as an event keeps.
fn changed(before: &[Dep], after: &[Dep]) -> String {
    let (old, new): (BTreeSet<&Dep>, BTreeSet<&Dep>) = (before.iter().collect(), after.iter().collect());
    let come = new.difference(&old).map(|dep| ('+', dep));
    let gone = old.difference(&new).map(|dep| ('-', dep));
    let mut text = String::new();
    for (sign, Dep { id, rule }) in come.chain(gone) {
        if text.len() > board_limits::EVENT_BYTES {
            break;
        }
        let space = if text.is_empty() { "" } else { " " };
        let rule = if *rule == Rule::Done { String::new() } else { format!(" ({rule})") };
        text.push_str(&format!("{space}{sign}{id}{rule}"));
    }
    Event::cut(&text)
}

impl Judge for Reconnecting<'_> {
    type Answer = ();
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        [topology_key(), head_key(self.id), definition_key(self.id), past_key(self.id)]
            .into_iter()
            .chain(self.deps.iter().map(|dep| head_key(&dep.id)))
            .collect()
    }

    fn restart(&mut self) {
        self.edges = Edges::Unread;
    }

    fn listed(&mut self, keys: Vec<Key>) {
        self.edges = match std::mem::replace(&mut self.edges, Edges::Unread) {
            Edges::Unread => Edges::Probed { dependents: !keys.is_empty() },
            before => {
                let complete = keys.len() < limits::LISTING_KEYS;
                let mut all = match before {
                    Edges::Partly(all) => all,
                    _ => Vec::new(),
                };
                all.extend(keys);
                if complete { Edges::All(all) } else { Edges::Partly(all) }
            }
        };
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<()>, BoardError> {
        let (mut topology, assert) = guard(view)?;
        let key = head_key(self.id);
        let entry = view.entry(&key)?;
        let mut head =
            read_head(self.id, entry)?.ok_or_else(|| BoardError::NotFound { id: self.id.clone() })?;
        let was = head.clone();
        match (head.state(), &head.held) {
            (State::Open, _) => {}
            (State::Claimed, Some(held)) => return Err(taken(&head, held)),
            (State::Unknown(code), _) => return Err(unknown_state(self.id, code)),
            (state, _) => return Err(BoardError::Terminal { state }),
        }
        if self.expected_seq.is_some_and(|expected| expected != head.seq) {
            return Err(BoardError::SeqMismatch { current_seq: head.seq });
        }
        for Dep { id: dep, .. } in self.deps {
            if read_head(dep, view.entry(&head_key(dep))?)?.is_none() {
                return Err(BoardError::UnknownDep { id: dep.clone() });
            }
        }
        let mut definition = read_definition(self.id, view.entry(&definition_key(self.id))?)?;
        let mut index = ready::Change::default();
        let unread = self.leave_watches(view, &definition.deps, &mut index);
        if !unread.is_empty() {
            return Ok(Step::Read(unread));
        }
        if let Some(range) = self.next_listing()? {
            return Ok(Step::List(range));
        }
        self.check_cycle()?;
        ready::leave_line(&mut index, self.id, &head, &definition);
        let (before, after): (BTreeSet<&TaskId>, BTreeSet<&TaskId>) = (
            definition.deps.iter().map(|dep| &dep.id).collect(),
            self.deps.iter().map(|dep| &dep.id).collect(),
        );
        let mut mutations: Vec<Mutation> =
            before.difference(&after).map(|dep| Mutation::delete(edge_key(dep, self.id))).collect();
        mutations.extend(after.difference(&before).map(|dep| edge_put(dep, self.id)));
        let event_text = changed(&definition.deps, self.deps);
        definition.deps = self.deps.to_vec();
        let record = encode_definition(&definition);
        head.definition_bytes = u32::try_from(record.len()).unwrap_or(u32::MAX);
        head.touch(self.operation, view.time(head.touched).now);
        topology.recent.push(self.operation);
        let event = Event { text: event_text, ..past::event(Verb::SetDeps, &was, &head) };
        mutations.push(past::noted(view, self.id, &was, event)?);
        mutations.push(Mutation::put(definition_key(self.id), record));
        mutations.push(Mutation::put(key.clone(), encode_head(&head)));
        mutations.push(Mutation::put(topology_key(), encode_topology(&topology)));
        let needs = match ready::scan(view, self.deps) {
            Scan::Settled { impossible } => Needs::of(impossible),
            Scan::Waits(_, dep, version) => {
                index.assert(head_key(dep), version);
                Needs::Waits(dep)
            }
            Scan::Unread(keys) => return Ok(Step::Read(keys)),
        };
        index.enter(self.id, &head, &definition, &ready::place(&head, needs));
        let (asserts, mutations) =
            index.into_parts([assert, Assert::version(key, entry.version())], mutations);
        Ok(Step::Commit(commit(asserts, mutations)?, ()))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<()>) -> Result<Fate<()>, BoardError> {
        let (head_key, guard_key) = (head_key(self.id), topology_key());
        let (topology, _) = guard(view)?;
        if topology.recent.contains(self.operation) {
            return Ok(Fate::Applied(()));
        }
        let entry = view.entry(&head_key)?;
        let Some(head) = read_head(self.id, entry)? else { return Ok(Fate::Lost) };
        // On another life of the id nothing is run again, even where it is certain that nothing was run on the first one.
        if pending
            .asserted(&head_key)
            .is_none_or(|before| entry.version().incarnation() != before.incarnation())
        {
            return Ok(Fate::Lost);
        }
        Ok(ring_fate(
            view,
            pending,
            self.operation,
            &[(&head_key, &head.recent), (&guard_key, &topology.recent)],
        )?)
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        BoardError::TxnConflict { attempts }
    }

    fn unknown(&self) -> BoardError {
        outcome_unknown(Verb::SetDeps, self.id, None)
    }
}

impl<B: Backend> BoardAdapter<B> {
    pub(in crate::board) async fn reconnect_task(
        &self,
        id: &TaskId,
        deps: &[Dep],
        expected_seq: Option<u64>,
    ) -> Result<(), BoardError> {
        id.validate()?;
        validate_deps(id, deps)?;
        let operation = OperationId::mint();
        self.run(&mut Reconnecting { id, deps, expected_seq, operation, edges: Edges::Unread }).await
    }
}
