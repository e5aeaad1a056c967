//! The verbs that change which tasks there are and what depends on what. All of them read, assert and write the guard record, so
//! that the existence of ids, edges, dependents and the absence of cycles are protected by one assert.

use std::collections::{BTreeMap, BTreeSet};

use super::adapter::{BoardAdapter, commit, outcome_unknown, ring_fate};
use super::archive::Archive;
use super::claim::{taken, unknown_state};
use super::cost::{WATCHED, pieces};
use super::dep::{Dep, Rule};
use super::past::{self, Event, past_key};
use super::plan::{Added, Plan, PlanReport, dependency_order};
use super::progress::progress_key;
use super::ready::{self, Needs, Scan, marker, todo_key, watch_key};
use super::record::{
    self, Created, Definition, EDGES, Head, Recent, StoredState, Topology, definition_key, digest, edge_ids,
    edge_key, edges_prefix, encode_definition, encode_edge, encode_head, encode_topology, head_key,
    read_definition, read_head, read_topology, topology_key,
};
use super::task::{State, TaskId, TaskSpec, limits as board_limits, validate_deps};
use super::{BoardError, Verb};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::key::{Key, Prefix, limits};
use crate::snapshot::{KeyRange, KeySet, Version};
use crate::token::OperationId;
use crate::txn::{Assert, Mutation};

/// How many records set_deps writes at most besides edges and watches.
const MUTATIONS_BESIDES: usize = 16;

fn edge_put(dependency: &TaskId, dependent: &TaskId) -> Mutation {
    Mutation::put(edge_key(dependency, dependent), encode_edge())
}

/// The guard as a view shows it, with the assert that rests on it.
pub(super) fn guard(view: &View<'_>) -> Result<(Topology, Assert), BoardError> {
    let key = topology_key();
    let entry = view.entry(&key)?;
    let version = entry.version();
    Ok((read_topology(entry)?, Assert::version(key, version)))
}

/// Adds the tasks of one piece.
struct Adding<'a> {
    tasks: &'a [TaskSpec],
    digests: Vec<[u8; 32]>,
    operation: OperationId,
}

impl<'a> Adding<'a> {
    fn new(tasks: &'a [TaskSpec]) -> Self {
        Adding { tasks, digests: tasks.iter().map(digest).collect(), operation: OperationId::mint() }
    }

    /// What the dependencies of a task say, and the version of the one that it waits for, if that is on the board already. One that
    /// comes with the same transaction cannot end meanwhile.
    fn waits_for<'t>(
        &self,
        view: &View<'_>,
        task: &'t TaskSpec,
        in_piece: &BTreeSet<&TaskId>,
        existing: &BTreeSet<&TaskId>,
    ) -> (Needs<'t>, Option<Version>) {
        let mut never = false;
        for dep in &task.deps {
            if in_piece.contains(&dep.id) && !existing.contains(&dep.id) {
                return (Needs::Waits(&dep.id), None);
            }
            match ready::scan(view, std::slice::from_ref(dep)) {
                Scan::Waits(_, _, version) => return (Needs::Waits(&dep.id), Some(version)),
                Scan::Settled { impossible } => never |= impossible,
                Scan::Unread(_) => {}
            }
        }
        (Needs::of(never), None)
    }

    /// Which tasks are there already, with the same definition.
    fn existing(&self, view: &View<'_>) -> Result<BTreeSet<&'a TaskId>, BoardError> {
        let mut existing = BTreeSet::new();
        for (task, digest) in self.tasks.iter().zip(&self.digests) {
            match read_head(&task.id, view.entry(&head_key(&task.id))?)? {
                None => {}
                Some(head) if head.created.digest == *digest => {
                    existing.insert(&task.id);
                }
                Some(_) => return Err(BoardError::AlreadyExists { id: task.id.clone() }),
            }
        }
        Ok(existing)
    }
}

impl Judge for Adding<'_> {
    /// Whether each task is new.
    type Answer = Vec<Added>;
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        let ids = self
            .tasks
            .iter()
            .flat_map(|task| std::iter::once(&task.id).chain(task.deps.iter().map(|dep| &dep.id)));
        std::iter::once(topology_key()).chain(ids.map(head_key)).collect()
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<Vec<Added>>, BoardError> {
        let (mut topology, assert) = guard(view)?;
        let existing = self.existing(view)?;
        let in_piece: BTreeSet<&TaskId> = self.tasks.iter().map(|task| &task.id).collect();
        let mut mutations = Vec::new();
        let mut index = ready::Change::default();
        let mut answer = Vec::with_capacity(self.tasks.len());
        for (task, digest) in self.tasks.iter().zip(&self.digests) {
            if existing.contains(&task.id) {
                answer.push(Added::Existed);
                continue;
            }
            answer.push(Added::New);
            for Dep { id: dep, .. } in &task.deps {
                if !in_piece.contains(dep) && read_head(dep, view.entry(&head_key(dep))?)?.is_none() {
                    return Err(BoardError::UnknownDep { id: dep.clone() });
                }
                mutations.push(edge_put(dep, &task.id));
            }
            let defined = Definition::of(task);
            let definition = encode_definition(&defined);
            let mut head = Head {
                state: StoredState(State::Open),
                held: None,
                fence: topology.fence_floor,
                seq: topology.seq_floor,
                order: topology.next_order,
                attempts: 0,
                not_before: task.not_before,
                touched: crate::Timestamp::EPOCH,
                settled: None,
                created: Created { operation: self.operation, digest: *digest },
                definition_bytes: u32::try_from(definition.len()).unwrap_or(u32::MAX),
                recent: Recent::default(),
                pinned_by: None,
            };
            head.touch(self.operation, view.time(crate::Timestamp::EPOCH).now);
            topology.next_order += 1;
            match self.waits_for(view, task, &in_piece, &existing) {
                (needs @ (Needs::Met | Needs::Never), _) => {
                    index.enter(&task.id, &head, &defined, &ready::place(&head, needs));
                }
                (Needs::Waits(dep), version) => {
                    let known = version.is_none_or(|_| index.asserts(&head_key(dep)));
                    if known || index.asserted() < WATCHED {
                        index.enter(&task.id, &head, &defined, &ready::place(&head, Needs::Waits(dep)));
                        if let Some(version) = version {
                            index.assert(head_key(dep), version);
                        }
                    } else {
                        index.put(todo_key(&task.id), marker());
                    }
                }
            }
            mutations.push(Mutation::put(head_key(&task.id), encode_head(&head)));
            mutations.push(Mutation::put(definition_key(&task.id), definition));
        }
        if mutations.is_empty() {
            return Ok(Step::Answer(answer));
        }
        topology.recent.push(self.operation);
        mutations.push(Mutation::put(topology_key(), encode_topology(&topology)));
        let (asserts, mutations) = index.into_parts([assert], mutations);
        Ok(Step::Commit(commit(asserts, mutations)?, answer))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<Vec<Added>>) -> Result<Fate<Vec<Added>>, BoardError> {
        for task in self.tasks {
            // The creation is remembered as long as the task lives.
            if let Some(head) = read_head(&task.id, view.entry(&head_key(&task.id))?)?
                && head.created.operation == self.operation
            {
                return Ok(Fate::Applied(pending.answer.clone()));
            }
        }
        let key = topology_key();
        let (topology, _) = guard(view)?;
        match ring_fate(view, pending, self.operation, &[(&key, &topology.recent)])? {
            // If all are there with these definitions, it does not matter who put them there: judged again, they existed.
            Fate::Lost if self.existing(view)?.len() == self.tasks.len() => Ok(Fate::Dead),
            fate => Ok(fate),
        }
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        BoardError::TxnConflict { attempts }
    }

    fn unknown(&self) -> BoardError {
        match self.tasks.first() {
            Some(task) => outcome_unknown(Verb::Add, &task.id, None),
            None => self.conflict(0),
        }
    }
}

/// Removes one task.
struct Removing<'a> {
    id: &'a TaskId,
    operation: OperationId,
    /// Only if this covers it.
    only: Option<&'a Archive>,
    dependents: Option<Vec<Key>>,
}

impl Judge for Removing<'_> {
    /// Whether it is gone.
    type Answer = bool;
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        vec![topology_key(), head_key(self.id), definition_key(self.id)]
    }

    fn restart(&mut self) {
        self.dependents = None;
    }

    fn listed(&mut self, keys: Vec<Key>) {
        self.dependents = Some(keys);
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<bool>, BoardError> {
        let (mut topology, assert) = guard(view)?;
        let key = head_key(self.id);
        let entry = view.entry(&key)?;
        let head = read_head(self.id, entry)?.ok_or_else(|| BoardError::NotFound { id: self.id.clone() })?;
        if self.only.is_some_and(|archive| !archive.covers(view, &head)) {
            return Ok(Step::Answer(false));
        }
        if let State::Unknown(code) = head.state() {
            return Err(unknown_state(self.id, code));
        }
        if let Some(held) = &head.held {
            return Err(taken(&head, held));
        }
        // Listed after this view was read; the assert on the guard says that no edge has come or gone since.
        let Some(dependents) = &self.dependents else {
            return Ok(Step::List(KeyRange::new(edges_prefix(self.id), 1)?));
        };
        if let Some(edge) = dependents.first() {
            let (_, dependent) =
                edge_ids(edge).ok_or_else(|| record::malformed(edge, "the key is no edge"))?;
            return Err(BoardError::HasDependents { dependent });
        }
        let definition = read_definition(self.id, view.entry(&definition_key(self.id))?)?;
        topology.fence_floor = topology.fence_floor.max(head.fence);
        topology.seq_floor = topology.seq_floor.max(head.seq);
        topology.recent.push(self.operation);
        let mut mutations = vec![
            Mutation::delete(key.clone()),
            Mutation::delete(definition_key(self.id)),
            Mutation::delete(past_key(self.id)),
            Mutation::delete(progress_key(self.id)),
            Mutation::put(topology_key(), encode_topology(&topology)),
        ];
        mutations.extend(definition.deps.iter().map(|dep| Mutation::delete(edge_key(&dep.id, self.id))));
        let mut index = ready::Change::default();
        ready::leave_line(&mut index, self.id, &head, &definition);
        index.delete(ready::ready_key(definition.priority, head.order, self.id));
        index.delete(todo_key(self.id));
        definition.deps.iter().for_each(|dep| index.delete(watch_key(&dep.id, self.id)));
        let (asserts, mutations) =
            index.into_parts([assert, Assert::version(key, entry.version())], mutations);
        Ok(Step::Commit(commit(asserts, mutations)?, true))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<bool>) -> Result<Fate<bool>, BoardError> {
        let key = head_key(self.id);
        let now = view.entry(&key)?.version();
        // Gone, or gone and come again: the life that was to end has ended, and the new one is not ours to end.
        if pending.asserted(&key).is_none_or(|before| now.incarnation() != before.incarnation()) {
            return Ok(Fate::Applied(true));
        }
        Ok(if pending.has_moved(view)? { Fate::Dead } else { Fate::Open })
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        BoardError::TxnConflict { attempts }
    }

    fn unknown(&self) -> BoardError {
        let verb = if self.only.is_some() { Verb::Archive } else { Verb::Remove };
        outcome_unknown(verb, self.id, None)
    }
}

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
    pub(super) async fn add_tasks(&self, tasks: &[TaskSpec]) -> Result<Vec<Added>, BoardError> {
        let pieces = pieces(tasks);
        if pieces.len() > 1 {
            self.check_plan(tasks).await?;
        }
        let mut answer = Vec::with_capacity(tasks.len());
        for piece in pieces {
            answer.extend(self.run(&mut Adding::new(piece)).await?);
        }
        Ok(answer)
    }

    /// Finds what would stop a plan of several pieces half-way, before the first one is added.
    async fn check_plan(&self, tasks: &[TaskSpec]) -> Result<(), BoardError> {
        let specs: BTreeMap<&TaskId, &TaskSpec> = tasks.iter().map(|task| (&task.id, task)).collect();
        let planned: Vec<&TaskId> = specs.keys().copied().collect();
        let mut new = BTreeSet::new();
        // A head has less than 1.5 KiB, so this many fit one snapshot.
        for page in planned.chunks(limits::SNAPSHOT_KEYS) {
            let snapshot = self.backend().snapshot(&KeySet::new(page.iter().map(|id| head_key(id)))?).await?;
            for id in page {
                match (read_head(id, snapshot.require(&head_key(id))?)?, specs.get(id)) {
                    (Some(head), Some(spec)) if head.created.digest != digest(spec) => {
                        return Err(BoardError::AlreadyExists { id: (*id).clone() });
                    }
                    (Some(_), _) => {}
                    (None, _) => {
                        new.insert(*id);
                    }
                }
            }
        }
        // What a task that exists depended on may have been archived since.
        let deps = tasks.iter().filter(|task| new.contains(&task.id)).flat_map(|task| &task.deps);
        let others: BTreeSet<&TaskId> =
            deps.map(|dep| &dep.id).filter(|id| !specs.contains_key(id)).collect();
        for page in others.into_iter().collect::<Vec<_>>().chunks(limits::SNAPSHOT_KEYS) {
            let snapshot = self.backend().snapshot(&KeySet::new(page.iter().map(|id| head_key(id)))?).await?;
            for id in page {
                if read_head(id, snapshot.require(&head_key(id))?)?.is_none() {
                    return Err(BoardError::UnknownDep { id: (*id).clone() });
                }
            }
        }
        Ok(())
    }

    pub(super) async fn add_whole_plan(&self, plan: &Plan) -> Result<PlanReport, BoardError> {
        let answer = self.add_tasks(plan.tasks()).await?;
        let added = answer.iter().filter(|added| **added == Added::New).count();
        Ok(PlanReport { added, existed: answer.len() - added })
    }

    pub(super) async fn remove_task(&self, id: &TaskId) -> Result<(), BoardError> {
        id.validate()?;
        self.remove_if(id, None).await.map(|_| ())
    }

    /// Removes a task, if it is covered; `false` if it is not.
    pub(super) async fn remove_if(&self, id: &TaskId, only: Option<&Archive>) -> Result<bool, BoardError> {
        self.run(&mut Removing { id, operation: OperationId::mint(), only, dependents: None }).await
    }

    pub(super) async fn reconnect_task(
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
