//! Retention: finished tasks that nobody can need any more are taken off the board, so that one that goes on for ever stays bounded.
//!
//! A task may go once all that depend on it are done or skipped, for these are for ever. It is removed as any other; before that, its
//! name is taken out of the definitions of its dependents, in pieces, each of them a change of the graph: the guard is asserted and
//! written. Whoever stops in between, or fails, leaves a board that is whole, and whoever comes next goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use super::adapter::{BoardAdapter, commit, heads_prefix, outcome_unknown, ring_fate};
use super::past::{self, Event, past_key};
use super::ready::watch_key;
use super::record::{
    self, Head, definition_key, edge_ids, edge_key, edges_prefix, encode_definition, encode_head,
    encode_topology, head_id, head_key, read_definition, read_head, topology_key,
};
use super::task::{State, TaskId};
use super::topology::guard;
use super::{BoardError, Verb};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::key::Key;
use crate::snapshot::{KeyRange, KeySet};
use crate::token::OperationId;
use crate::txn::{Assert, Mutation};

/// How many dependents one transaction takes a name out of.
const PIECE: usize = 20;
/// How many bytes their definitions may have.
const PIECE_BYTES: usize = 400 * 1_024;
/// How many edges are listed at a time.
const EDGES_AT_ONCE: usize = 1_000;
/// The most tasks that one call looks at.
const MOST: usize = 1_000;

/// Which tasks to archive.
///
/// ```
/// use std::time::Duration;
/// use coord_core::board::{Archive, State};
///
/// let week = Archive::older_than(Duration::from_secs(7 * 24 * 3_600)).failed();
/// assert!(week.wants(State::Done) && week.wants(State::Failed) && !week.wants(State::Cancelled));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Archive {
    /// Only tasks that were last touched at least so long ago.
    pub older_than: Duration,
    /// How many tasks to look at, 1 to 1,000.
    pub most: usize,
    /// Only ids after this one.
    pub after: Option<TaskId>,
    /// Also tasks that failed. Nobody can reopen them any more then.
    pub failed: bool,
    /// Also tasks that were cancelled. Nobody can reopen them any more then.
    pub cancelled: bool,
}

impl Archive {
    /// Tasks that are done or skipped and were last touched at least so long ago, from the first id on.
    #[must_use]
    pub fn older_than(age: Duration) -> Self {
        Archive { older_than: age, most: MOST, after: None, failed: false, cancelled: false }
    }

    /// Look at so many tasks.
    #[must_use]
    pub fn most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// Only ids after this one.
    #[must_use]
    pub fn after(mut self, id: Option<TaskId>) -> Self {
        self.after = id;
        self
    }

    /// Also tasks that failed.
    #[must_use]
    pub fn failed(mut self) -> Self {
        self.failed = true;
        self
    }

    /// Also tasks that were cancelled.
    #[must_use]
    pub fn cancelled(mut self) -> Self {
        self.cancelled = true;
        self
    }

    /// Whether tasks in this state are meant.
    #[must_use]
    pub fn wants(&self, state: State) -> bool {
        match state {
            State::Done | State::Skipped => true,
            State::Failed => self.failed,
            State::Cancelled => self.cancelled,
            _ => false,
        }
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// [`BoardError::Invalid`] for another number of tasks to look at.
    pub fn validate(&self) -> Result<(), BoardError> {
        if !(1..=MOST).contains(&self.most) {
            return Err(BoardError::Invalid(format!("1 to {MOST} tasks are looked at, not {}", self.most)));
        }
        self.after.as_ref().map_or(Ok(()), TaskId::validate)
    }

    /// Whether a task may go, as far as its head tells.
    pub(super) fn covers(&self, view: &View<'_>, head: &Head) -> bool {
        let age = view.time(head.touched).now.saturating_since(head.touched);
        self.wants(head.state()) && age >= self.older_than
    }
}

/// What a call of [`archive`](super::ExtendedBoard::archive) did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveReport {
    /// How many tasks were looked at.
    pub examined: usize,
    /// The tasks that are gone, in the order in which they went.
    pub archived: Vec<TaskId>,
    /// Where to go on after; `None` after the last id.
    pub next: Option<TaskId>,
}

impl ArchiveReport {
    /// For implementations of [`ExtendedBoard`](super::ExtendedBoard).
    #[must_use]
    pub fn new(examined: usize, archived: Vec<TaskId>, next: Option<TaskId>) -> Self {
        ArchiveReport { examined, archived, next }
    }
}

/// Whether a dependent in this state can never need anything again.
fn is_settled(state: State) -> bool {
    matches!(state, State::Done | State::Skipped)
}

/// Takes the name of a task out of the definitions of some of its dependents.
struct Detaching<'a> {
    id: &'a TaskId,
    operation: OperationId,
    request: &'a Archive,
    dependents: Option<Vec<TaskId>>,
}

/// What came of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detached {
    /// There may be more.
    Some,
    /// Nothing depends on the task any more.
    All,
    /// It must stay: it is gone or has changed, or somebody could still need it.
    Stays,
}

impl Judge for Detaching<'_> {
    type Answer = Detached;
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        vec![topology_key(), head_key(self.id)]
    }

    fn restart(&mut self) {
        self.dependents = None;
    }

    fn listed(&mut self, keys: Vec<Key>) {
        self.dependents = Some(keys.iter().filter_map(edge_ids).map(|(_, dependent)| dependent).collect());
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<Detached>, BoardError> {
        let (mut topology, assert) = guard(view)?;
        let own = head_key(self.id);
        let own_entry = view.entry(&own)?;
        let Some(head) = read_head(self.id, own_entry)? else { return Ok(Step::Answer(Detached::Stays)) };
        if !self.request.covers(view, &head) {
            return Ok(Step::Answer(Detached::Stays));
        }
        // Listed after this view was read; the assert on the guard says that no edge has come or gone since.
        let Some(dependents) = &self.dependents else {
            return Ok(Step::List(KeyRange::new(edges_prefix(self.id), PIECE)?));
        };
        if dependents.is_empty() {
            return Ok(Step::Answer(Detached::All));
        }
        let unread = view.lacks(&dependents.iter().map(head_key).collect::<Vec<_>>());
        if !unread.is_empty() {
            return Ok(Step::Read(unread));
        }
        // As many as fit one transaction, and one at least.
        let (mut chosen, mut bytes) = (Vec::new(), 0);
        for dependent in dependents {
            let entry = view.entry(&head_key(dependent))?;
            let head = read_head(dependent, entry)?.ok_or_else(|| {
                record::malformed(&head_key(dependent), "an edge leads to it, and it is absent")
            })?;
            if !is_settled(head.state()) {
                return Ok(Step::Answer(Detached::Stays));
            }
            bytes += head.definition_bytes as usize;
            if bytes > PIECE_BYTES && !chosen.is_empty() {
                break;
            }
            chosen.push((dependent, head, entry.version()));
        }
        let more = chosen.iter().flat_map(|(id, ..)| [definition_key(id), past_key(id)]);
        let unread = view.lacks(&more.collect::<Vec<_>>());
        if !unread.is_empty() {
            return Ok(Step::Read(unread));
        }
        topology.recent.push(self.operation);
        let mut asserts = vec![assert, Assert::version(own, own_entry.version())];
        let mut mutations = vec![Mutation::put(topology_key(), encode_topology(&topology))];
        for (dependent, before, version) in chosen {
            let mut definition = read_definition(dependent, view.entry(&definition_key(dependent))?)?;
            definition.deps.retain(|dep| dep.id != *self.id);
            let encoded = encode_definition(&definition);
            let mut head = before.clone();
            let now = view.time(before.touched).now;
            head.touch(self.operation, now);
            let event = Event {
                text: Event::cut(&format!("{} was archived", self.id)),
                ..past::event(Verb::Archive, &before, &head)
            };
            // What has ended keeps the time of its end, or it would never be old enough to go itself.
            head.touched = before.touched;
            head.definition_bytes = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
            asserts.push(Assert::version(head_key(dependent), version));
            mutations.extend([
                past::noted(view, dependent, &before, event)?,
                Mutation::put(head_key(dependent), encode_head(&head)),
                Mutation::put(definition_key(dependent), encoded),
                Mutation::delete(edge_key(self.id, dependent)),
                // A watch that was left behind is of no use to anybody.
                Mutation::delete(watch_key(self.id, dependent)),
            ]);
        }
        Ok(Step::Commit(commit(asserts, mutations)?, Detached::Some))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<Detached>) -> Result<Fate<Detached>, BoardError> {
        let (topology, _) = guard(view)?;
        Ok(ring_fate(view, pending, self.operation, &[(&topology_key(), &topology.recent)])?)
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        BoardError::TxnConflict { attempts }
    }

    fn unknown(&self) -> BoardError {
        outcome_unknown(Verb::Archive, self.id, None)
    }
}

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn archive_tasks(&self, request: &Archive) -> Result<ArchiveReport, BoardError> {
        request.validate()?;
        let mut range = KeyRange::new(heads_prefix(), request.most)?;
        if let Some(after) = &request.after {
            range = range.start_after(head_key(after));
        }
        let keys = self.backend().keys(&range).await?;
        let mut report = ArchiveReport { examined: keys.len(), ..ArchiveReport::default() };
        if keys.len() == request.most {
            report.next = keys.last().and_then(head_id);
        }
        let mut candidates = self.candidates(request, &keys).await?;
        // What was added last depends on what was added before, and with it goes the edge.
        candidates.sort_by_key(|(order, _)| std::cmp::Reverse(*order));
        for (_, id) in candidates {
            match self.archive_one(request, &id).await {
                Ok(true) => report.archived.push(id),
                Ok(false) => {}
                // It stays, and keeps no other from going.
                Err(error @ BoardError::Malformed { .. }) => {
                    tracing::warn!(task = %id, %error, "a task that cannot be read is not archived");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// Those of some tasks that may go as far as their heads tell, each with its place in line. One that cannot be read stays.
    async fn candidates(&self, request: &Archive, keys: &[Key]) -> Result<Vec<(u64, TaskId)>, BoardError> {
        let snapshot = self.backend().snapshot(&KeySet::new(keys.iter().cloned())?).await?;
        let view = self.view(&snapshot);
        let mut candidates = Vec::new();
        for key in keys {
            let Some(id) = head_id(key) else { continue };
            if let Ok(Some(head)) = read_head(&id, view.entry(key)?)
                && request.covers(&view, &head)
            {
                candidates.push((head.order, id));
            }
        }
        Ok(candidates)
    }

    /// Archives a task; `false` if it must stay.
    async fn archive_one(&self, request: &Archive, id: &TaskId) -> Result<bool, BoardError> {
        let mut looked = false;
        loop {
            match self.remove_if(id, Some(request)).await {
                Ok(gone) => return Ok(gone),
                Err(BoardError::NotFound { .. } | BoardError::Taken { .. }) => return Ok(false),
                Err(BoardError::HasDependents { .. }) => {}
                Err(error) => return Err(error),
            }
            // Nothing is taken apart for a task that has to stay after all.
            if !looked && !self.all_settled(id).await? {
                return Ok(false);
            }
            looked = true;
            loop {
                let operation = OperationId::mint();
                match self.run(&mut Detaching { id, operation, request, dependents: None }).await? {
                    Detached::Some => {}
                    Detached::All => break,
                    Detached::Stays => return Ok(false),
                }
            }
        }
    }

    /// Whether all that depends on a task can never need anything again.
    async fn all_settled(&self, id: &TaskId) -> Result<bool, BoardError> {
        let mut range = KeyRange::new(edges_prefix(id), EDGES_AT_ONCE)?;
        loop {
            let keys = self.backend().keys(&range).await?;
            let Some(last) = keys.last().cloned() else { return Ok(true) };
            let dependents: BTreeSet<TaskId> =
                keys.iter().filter_map(edge_ids).map(|(_, dependent)| dependent).collect();
            let snapshot = self.backend().snapshot(&KeySet::new(dependents.iter().map(head_key))?).await?;
            for dependent in &dependents {
                // One that is gone since does not need it any more.
                let head = read_head(dependent, snapshot.require(&head_key(dependent))?)?;
                if head.is_some_and(|head| !is_settled(head.state())) {
                    return Ok(false);
                }
            }
            range = range.start_after(last);
        }
    }
}
