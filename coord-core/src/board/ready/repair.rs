//! Putting the index right, and looking whether it is.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::BoardError;
use super::super::adapter::{BoardAdapter, heads_prefix};
use super::super::check::{Problem, ProblemCode};
use super::super::dep::Rule;
use super::super::record::{
    self, Definition, Head, definition_key, head_id, head_key, read_definition, read_head,
};
use super::super::task::{State, TaskId};
use super::entry::{
    self, Entry, Needs, PREFIXES, TODO, due_key, due_time, encode_mark, mark_key, marker, place, ready_key,
    todo_key, watch_key,
};
use super::examine::Deleted;
use super::place::{Scan, scan};
use crate::backend::Backend;
use crate::cas::View;
use crate::key::{Key, Prefix};
use crate::snapshot::{KeyRange, KeySet};
use crate::txn::{Mutation, Txn};

/// What [`repair`](super::super::ExtendedBoard::repair) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// How many tasks have been examined.
    pub tasks: usize,
    /// How many entries of tasks that are gone have been deleted.
    pub deleted: usize,
}

/// How many records are looked at at a time.
const PAGE: usize = 1_000;
/// How many tasks with their dependencies are compared with the index at one instant.
const COMPARED: usize = 100;
/// How many keys that may need.
const COMPARED_KEYS: usize = 9_000;
/// How often tasks are examined until the index is left to whoever comes next.
const ROUNDS: u32 = 100_000;

/// All keys with a prefix, page by page.
struct Pages(Option<KeyRange>);

impl Pages {
    fn of(prefix: Prefix) -> Result<Self, BoardError> {
        Ok(Pages(Some(KeyRange::new(prefix, PAGE)?)))
    }

    async fn next<B: Backend>(&mut self, board: &BoardAdapter<B>) -> Result<Option<Vec<Key>>, BoardError> {
        let Some(range) = self.0.take() else { return Ok(None) };
        let keys = board.backend().keys(&range).await?;
        if keys.len() == PAGE {
            self.0 = keys.last().map(|last| range.start_after(last.clone()));
        }
        Ok(Some(keys))
    }
}

impl<B: Backend> BoardAdapter<B> {
    /// Puts every task on the list of those that must be examined. Putting it there once more, and for a task that is gone, does no
    /// harm, so a lost answer is simply asked for again.
    async fn mark_all(&self) -> Result<usize, BoardError> {
        let mut marked = 0;
        let mut pages = Pages::of(heads_prefix())?;
        while let Some(keys) = pages.next(self).await? {
            let ids: Vec<TaskId> = keys.iter().filter_map(head_id).collect();
            marked += ids.len();
            self.put_all(ids.iter().map(|id| (todo_key(id), marker())).collect()).await?;
        }
        Ok(marked)
    }

    /// Puts without conditions.
    async fn put_all(&self, entries: Vec<(Key, Bytes)>) -> Result<(), BoardError> {
        const TRIES: u32 = 8;
        let mutations = || entries.iter().map(|(key, value)| Mutation::put(key.clone(), value.clone()));
        for _ in 1..TRIES {
            match self.backend().txn(&Txn::new([], mutations())?).await {
                Err(error) if error.is_indeterminate() => {}
                other => return Ok(other.map(|_| ())?),
            }
        }
        Ok(self.backend().txn(&Txn::new([], mutations())?).await.map(|_| ())?)
    }

    /// Brings a board into the index that was written by a version without one.
    pub(in super::super) async fn index_all(&self) -> Result<(), BoardError> {
        self.mark_all().await?;
        self.put_all(vec![(mark_key(), encode_mark())]).await
    }

    pub(in super::super) async fn repair_index(&self) -> Result<RepairReport, BoardError> {
        let mut report = RepairReport::default();
        for prefix in PREFIXES {
            let mut pages = Pages::of(entry::prefix(prefix))?;
            while let Some(keys) = pages.next(self).await? {
                report.deleted += self.delete_absent(keys).await?;
            }
        }
        report.tasks = self.mark_all().await?;
        // Whatever is left is found by whoever looks for a task.
        let (mut after, mut again): (Option<Key>, bool) = (None, false);
        for _ in 0..ROUNDS {
            let keys = self.entries(TODO, after.as_ref(), 64).await?;
            let Some(last) = keys.last() else {
                if !std::mem::take(&mut again) {
                    break;
                }
                after = None;
                continue;
            };
            let ids: Vec<TaskId> =
                keys.iter().filter_map(Entry::of).map(|entry| entry.id().clone()).collect();
            // Whatever was skipped has left a marker of its own, perhaps before this one.
            again |= !self.examine(&ids, usize::MAX).await?.skipped.is_empty();
            after = Some(last.clone());
        }
        Ok(report)
    }

    /// Deletes those of these entries whose tasks are gone, each at the version at which that was seen.
    async fn delete_absent(&self, keys: Vec<Key>) -> Result<usize, BoardError> {
        let heads_of = |key: &Key| -> Vec<Key> {
            match Entry::of(key) {
                Some(Entry::Watch { dependency, id }) => vec![head_key(&dependency), head_key(&id)],
                Some(entry) => vec![head_key(entry.id())],
                None => Vec::new(),
            }
        };
        let wanted = keys.iter().flat_map(|key| heads_of(key).into_iter().chain([key.clone()]));
        let snapshot = self.backend().snapshot(&KeySet::new(wanted.collect::<BTreeSet<_>>())?).await?;
        let mut deleted = 0;
        for key in keys {
            let version = snapshot.require(&key)?.version();
            let heads = heads_of(&key);
            let absent = heads.iter().any(|head| snapshot.get(head).is_some_and(|entry| !entry.is_present()));
            if absent && !version.is_missing() && self.delete_all(&[(key, version)]).await? != Deleted::None {
                deleted += 1;
            }
        }
        Ok(deleted)
    }

    /// Compares the index with the tasks, a few tasks at one instant at a time.
    pub(in super::super) async fn check_index_entries(&self) -> Result<Vec<Problem>, BoardError> {
        let mut found: BTreeMap<TaskId, BTreeSet<Key>> = BTreeMap::new();
        let mut problems = Vec::new();
        for prefix in PREFIXES {
            let mut pages = Pages::of(entry::prefix(prefix))?;
            while let Some(keys) = pages.next(self).await? {
                for key in keys {
                    match Entry::of(&key) {
                        Some(entry) => {
                            found.entry(entry.id().clone()).or_default().insert(key);
                        }
                        None => return Err(record::malformed(&key, "the key is no entry of the index")),
                    }
                }
            }
        }
        let mut ids: BTreeSet<TaskId> = found.keys().cloned().collect();
        let mut pages = Pages::of(heads_prefix())?;
        while let Some(keys) = pages.next(self).await? {
            ids.extend(keys.iter().filter_map(head_id));
        }
        let ids: Vec<TaskId> = ids.into_iter().collect();
        for page in ids.chunks(COMPARED) {
            self.compare(page, &found, &mut problems).await?;
        }
        Ok(problems)
    }

    /// Compares tasks with all entries that they may have, at one instant.
    async fn compare(
        &self,
        ids: &[TaskId],
        found: &BTreeMap<TaskId, BTreeSet<Key>>,
        problems: &mut Vec<Problem>,
    ) -> Result<(), BoardError> {
        let mut keys: BTreeSet<Key> = BTreeSet::new();
        for id in ids {
            keys.extend([head_key(id), definition_key(id), todo_key(id)]);
            keys.extend(found.get(id).into_iter().flatten().cloned());
        }
        loop {
            let snapshot = self.backend().snapshot(&KeySet::new(keys.iter().cloned())?).await?;
            let view = self.view(&snapshot);
            let known = keys.len();
            let mut seen = Vec::new();
            for id in ids {
                let Some(head) = read_head(id, view.entry(&head_key(id))?)? else { continue };
                let definition = read_definition(id, view.entry(&definition_key(id))?)?;
                keys.extend(possible(id, &head, &definition));
                // Where a watch is allowed, the first dependency that is not done tells.
                for dep in definition.deps.iter().map(|dep| &dep.id) {
                    keys.extend([head_key(dep), todo_key(dep)]);
                }
                seen.push((id, head, definition));
            }
            if keys.len() > COMPARED_KEYS && ids.len() > 1 {
                for half in ids.chunks(ids.len().div_ceil(2)) {
                    Box::pin(self.compare(half, found, problems)).await?;
                }
                return Ok(());
            }
            if keys.len() > known {
                continue;
            }
            for id in ids {
                let task = seen.iter().find(|(seen, ..)| *seen == id).map(|(_, head, def)| (head, def));
                compare_one(&view, id, task, &keys, problems)?;
            }
            return Ok(());
        }
    }
}

/// Every entry that a task may have.
fn possible(id: &TaskId, head: &Head, definition: &Definition) -> Vec<Key> {
    let mut keys = vec![ready_key(definition.priority, head.order, id), todo_key(id)];
    keys.extend(due_time(head).map(|time| due_key(time, id)));
    keys.extend(definition.deps.iter().map(|dep| watch_key(&dep.id, id)));
    keys
}

fn compare_one(
    view: &View<'_>,
    id: &TaskId,
    task: Option<(&Head, &Definition)>,
    keys: &BTreeSet<Key>,
    problems: &mut Vec<Problem>,
) -> Result<(), BoardError> {
    let present = |key: &Key| view.snapshot.get(key).is_some_and(|entry| entry.is_present());
    let of_task = |key: &&Key| Entry::of(key).is_some_and(|entry| entry.id() == id);
    let entries: Vec<&Key> = keys.iter().filter(of_task).filter(|key| present(key)).collect();
    let mut report = |code, text: String| problems.push(Problem { task: id.clone(), code, text });
    let expected = task.and_then(|(head, definition)| {
        let needs = match (head.state(), scan(view, &definition.deps)) {
            (State::Open, Scan::Waits(_, dep, _)) => Needs::Waits(dep),
            (_, Scan::Settled { impossible }) => Needs::of(impossible),
            _ => Needs::Met,
        };
        let key = place(head, needs).key(id, head.order, definition.priority)?;
        // Whoever found it due may have made it ready.
        let ready = ready_key(definition.priority, head.order, id);
        let has_come = due_time(head).is_some_and(|time| view.time(head.touched).now >= time);
        Some(if needs == Needs::Met && has_come && present(&ready) { ready } else { key })
    });
    // A task that was past one that has been reopened since is where somebody looks at it: when another one that it waits for has
    // ended, or when its time has come.
    let looked_at = |key: &Key| match task {
        Some((head, definition)) if head.state() == State::Open => {
            definition.deps.iter().any(|dep| dep.rule != Rule::Done)
                && match Entry::of(key) {
                    Some(Entry::Watch { dependency, .. }) => definition.deps.iter().any(|dep| {
                        dep.id == dependency
                            && matches!(scan(view, std::slice::from_ref(dep)), Scan::Waits(..))
                    }),
                    Some(Entry::Due { time, .. }) => due_time(head) == Some(time),
                    _ => false,
                }
        }
        _ => false,
    };
    let found_ready = |key: &Key| match task {
        Some((_, definition)) => {
            definition.deps.iter().any(|dep| dep.rule != Rule::Done)
                && matches!(Entry::of(key), Some(Entry::Ready { .. }))
        }
        None => false,
    };
    let unexamined = present(&todo_key(id));
    // A watch on a done task is as good as that task's marker.
    let behind_marker = |key: &Key| match Entry::of(key) {
        Some(Entry::Watch { dependency, .. }) => present(&todo_key(&dependency)),
        _ => false,
    };
    if let Some(expected) = &expected
        && !present(expected)
        && !unexamined
        && !entries.iter().any(|key| behind_marker(key) || looked_at(key) || found_ready(key))
    {
        report(ProblemCode::Unindexed, format!("the task is not in the index under {expected:?}"));
    }
    for key in entries {
        let is_todo = *key == todo_key(id);
        if !is_todo && (Some(key) == expected.as_ref() || behind_marker(key) || looked_at(key)) {
            continue;
        }
        if is_todo {
            report(ProblemCode::Unexamined, "the task is still to be examined".into());
        } else {
            report(ProblemCode::StaleEntry, format!("the index has the task under {key:?}"));
        }
    }
    Ok(())
}
