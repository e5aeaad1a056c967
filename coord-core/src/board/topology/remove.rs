//! Removing a task.

use super::super::adapter::{BoardAdapter, commit, outcome_unknown};
use super::super::archive::Archive;
use super::super::one_head::{taken, unknown_state};
use super::super::past::past_key;
use super::super::progress::progress_key;
use super::super::ready::{self, todo_key, watch_key};
use super::super::record::{
    self, definition_key, edge_ids, edge_key, edges_prefix, encode_topology, head_key, read_definition,
    read_head, topology_key,
};
use super::super::task::{State, TaskId};
use super::super::{BoardError, Verb};
use super::guard;
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::key::Key;
use crate::snapshot::KeyRange;
use crate::token::OperationId;
use crate::txn::{Assert, Mutation};

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

impl<B: Backend> BoardAdapter<B> {
    pub(in crate::board) async fn remove_task(&self, id: &TaskId) -> Result<(), BoardError> {
        id.validate()?;
        self.remove_if(id, None).await.map(|_| ())
    }

    /// Removes a task, if it is covered; `false` if it is not.
    pub(in crate::board) async fn remove_if(
        &self,
        id: &TaskId,
        only: Option<&Archive>,
    ) -> Result<bool, BoardError> {
        self.run(&mut Removing { id, operation: OperationId::mint(), only, dependents: None }).await
    }
}
