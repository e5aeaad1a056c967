//! Adding tasks.

use std::collections::{BTreeMap, BTreeSet};

use super::super::adapter::{BoardAdapter, commit, outcome_unknown, ring_fate};
use super::super::cost::{WATCHED, pieces};
use super::super::dep::Dep;
use super::super::plan::{Added, Plan, PlanReport};
use super::super::ready::{self, Needs, Scan, marker, todo_key};
use super::super::record::{
    Created, Definition, Head, Recent, StoredState, definition_key, digest, encode_definition, encode_head,
    encode_topology, head_key, read_head, topology_key,
};
use super::super::task::{State, TaskId, TaskSpec};
use super::super::{BoardError, Verb};
use super::{edge_put, guard};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::key::{Key, limits};
use crate::snapshot::{KeySet, Version};
use crate::token::OperationId;
use crate::txn::Mutation;

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

impl<B: Backend> BoardAdapter<B> {
    pub(in crate::board) async fn add_tasks(&self, tasks: &[TaskSpec]) -> Result<Vec<Added>, BoardError> {
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

    pub(in crate::board) async fn add_whole_plan(&self, plan: &Plan) -> Result<PlanReport, BoardError> {
        let answer = self.add_tasks(plan.tasks()).await?;
        let added = answer.iter().filter(|added| **added == Added::New).count();
        Ok(PlanReport { added, existed: answer.len() - added })
    }
}
