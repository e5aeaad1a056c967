//! What every transaction that writes a task writes of the index: the entry that it replaces goes, the new one is put.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::BoardError;
use super::super::dep::Dep;
use super::super::record::{Definition, Head, definition_key, head_key, read_definition, read_head};
use super::super::task::{State, TaskId};
use super::entry::{Needs, Place, due_key, due_time, marker, place, ready_key, todo_key, watch_key};
use crate::cas::{Time, View};
use crate::key::Key;
use crate::snapshot::Version;
use crate::txn::{Assert, Mutation};

/// Asserts and mutations that are being gathered for one transaction. A key is asserted and written once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    asserts: BTreeMap<Key, Version>,
    mutations: BTreeMap<Key, Option<Bytes>>,
}

impl Change {
    pub(crate) fn assert(&mut self, key: Key, version: Version) {
        self.asserts.insert(key, version);
    }

    /// Deletes a key, unless this change puts it.
    pub(crate) fn delete(&mut self, key: Key) {
        self.mutations.entry(key).or_insert(None);
    }

    /// Puts a key, also if this change was to delete it. A put always writes.
    pub(crate) fn put(&mut self, key: Key, value: Bytes) {
        self.mutations.insert(key, Some(value));
    }

    /// How many keys are asserted.
    pub(crate) fn asserted(&self) -> usize {
        self.asserts.len()
    }

    pub(crate) fn asserts(&self, key: &Key) -> bool {
        self.asserts.contains_key(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mutations.is_empty()
    }

    /// Adds another change. What one of both puts is put.
    pub(crate) fn merge(&mut self, other: Change) {
        self.asserts.extend(other.asserts);
        for (key, value) in other.mutations {
            match value {
                Some(value) => self.put(key, value),
                None => self.delete(key),
            }
        }
    }

    /// Puts the entry of a task at this place.
    pub(crate) fn enter(&mut self, id: &TaskId, head: &Head, definition: &Definition, place: &Place) {
        if let Some(key) = place.key(id, head.order, definition.priority) {
            self.put(key, place.value(definition));
        }
    }

    /// The parts of a transaction: these asserts and mutations, and those that are given.
    pub(crate) fn into_parts(
        self,
        asserts: impl IntoIterator<Item = Assert>,
        mutations: impl IntoIterator<Item = Mutation>,
    ) -> (Vec<Assert>, Vec<Mutation>) {
        let own = self.asserts.into_iter().map(|(key, version)| Assert::version(key, version));
        let asserts = asserts.into_iter().chain(own).collect();
        let own = self.mutations.into_iter().map(|(key, value)| match value {
            Some(value) => Mutation::put(key, value),
            None => Mutation::delete(key),
        });
        (asserts, mutations.into_iter().chain(own).collect())
    }
}

/// What is known of some dependencies, in their order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scan<'d> {
    /// All are settled: for good or, if one can never be satisfied, for bad.
    Settled { impossible: bool },
    /// This one, the n-th, is the first that is not settled, at this version.
    Waits(usize, &'d TaskId, Version),
    /// These have to be read first.
    Unread(Vec<Key>),
}

/// Looks for the first dependency that is not settled. They are read in growing pieces, for mostly the first ones tell. One that cannot
/// be read, or that is missing, is not settled.
pub(crate) fn scan<'d>(view: &View<'_>, deps: &'d [Dep]) -> Scan<'d> {
    const FIRST_PIECE: usize = 16;
    let mut impossible = false;
    for (n, Dep { id: dep, rule }) in deps.iter().enumerate() {
        let key = head_key(dep);
        let Some(entry) = view.snapshot.get(&key) else {
            return Scan::Unread(
                deps[n..].iter().take(n.max(FIRST_PIECE)).map(|dep| head_key(&dep.id)).collect(),
            );
        };
        match read_head(dep, entry).ok().flatten().and_then(|head| rule.verdict(head.state())) {
            Some(satisfied) => impossible |= !satisfied,
            None => return Scan::Waits(n, dep, entry.version()),
        }
    }
    Scan::Settled { impossible }
}

/// What a verb on one head has to write of the index.
pub(crate) enum Moved {
    /// These keys have to be read first.
    Read(Vec<Key>),
    /// This.
    Change(Change),
}

/// The entries that a task may have while nothing but its head tells: it may be ready although it is due, if its time has come.
pub(crate) fn leave_line(change: &mut Change, id: &TaskId, head: &Head, definition: &Definition) {
    if let Some(time) = due_time(head) {
        change.delete(due_key(time, id));
    }
    if matches!(head.state(), State::Open | State::Claimed) {
        change.delete(ready_key(definition.priority, head.order, id));
    }
}

/// The change of the index that goes with a change of a head by a verb that leaves the definition alone.
pub(crate) fn moved(
    view: &View<'_>,
    id: &TaskId,
    before: &Head,
    after: &Head,
    time: Time,
) -> Result<Moved, BoardError> {
    let mut change = Change::default();
    // The lease of a claimed task is due; once it is over, somebody may have made the task ready.
    let expired = before.held.as_ref().is_some_and(|held| time.is_over(held.until));
    if before.state() != State::Open && after.state() != State::Open && !expired {
        if let Some(time) = due_time(before) {
            change.delete(due_key(time, id));
        }
        if let Place::Due(time) = place(after, Needs::Met) {
            change.put(due_key(time, id), marker());
        }
    } else {
        let key = definition_key(id);
        let Some(entry) = view.snapshot.get(&key) else { return Ok(Moved::Read(vec![key])) };
        let definition = read_definition(id, entry)?;
        leave_line(&mut change, id, before, &definition);
        if before.state() == State::Open {
            // Which of them has the watch, only their heads would tell.
            definition.deps.iter().for_each(|dep| change.delete(watch_key(&dep.id, id)));
        }
        let was_claimed = before.state() == State::Claimed;
        let needs = if after.state() != State::Open || was_claimed {
            Needs::Met
        } else {
            match scan(view, &definition.deps) {
                Scan::Settled { impossible } => Needs::of(impossible),
                Scan::Waits(_, dep, version) => {
                    change.assert(head_key(dep), version);
                    Needs::Waits(dep)
                }
                Scan::Unread(keys) => return Ok(Moved::Read(keys)),
            }
        };
        change.enter(id, after, &definition, &place(after, needs));
    }
    if after.state().is_terminal() {
        // Whether anything waits for it is not asserted, so it must not be judged.
        change.put(todo_key(id), marker());
    }
    Ok(Moved::Change(change))
}
