//! Examining: what was left to be done for the index by those who wrote, or by time, is done in bounded pieces by whoever comes next.
//!
//! A done task is examined by moving each watch on it on, to the next dependency that is not done or to the line of the ready ones.
//! Done is for ever, so nobody puts a watch on it any more, and once no watch is left the marker goes. Any other task is examined by
//! putting its entry.

use std::collections::BTreeSet;

use super::super::BoardError;
use super::super::adapter::{BoardAdapter, commit};
use super::super::record::{Definition, Head, definition_key, head_key, read_definition, read_head};
use super::super::task::{State, TaskId};
use super::entry::{self, Entry, Place, due_time, place, todo_key, watches};
use super::place::{Change, Scan, scan};
use crate::backend::Backend;
use crate::cas::{Bounds, Fate, Judge, Pending, Step, View};
use crate::clock::Timestamp;
use crate::key::{Key, limits};
use crate::snapshot::{KeyRange, KeySet, Version};
use crate::txn::{Assert, Mutation, Txn};

/// How many watches one transaction moves on: each asserts two heads at most.
const PAGE: usize = 20;
/// How often a page is tried before its tasks are left to somebody else. Whoever is in the way moves them on as well, mostly.
const CONFLICTS: u32 = 8;

/// What examining came to.
#[derive(Debug, Default)]
pub(crate) struct Examined {
    /// A record that could not be read.
    pub(crate) malformed: Option<BoardError>,
    /// Whether anything was done.
    pub(crate) worked: bool,
}

impl Examined {
    fn add(&mut self, other: Examined) {
        self.worked |= other.worked;
        if other.malformed.is_some() {
            self.malformed = other.malformed;
        }
    }
}

/// An entry, and its key.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) entry: Entry,
}

impl Item {
    pub(crate) fn of(key: Key) -> Option<Self> {
        Some(Item { entry: Entry::of(&key)?, key })
    }
}

/// Replaces entries by those that are right.
struct Replacing {
    items: Vec<Item>,
    /// Those that did not fit the transaction.
    left: Vec<Item>,
    malformed: Option<BoardError>,
    /// Keys of entries that stay where they are.
    stay: BTreeSet<Key>,
}

/// What the judgement of one entry says.
enum Judged {
    /// It is right, or gone.
    Stays,
    Change(Change),
    Read(Vec<Key>),
}

impl Replacing {
    fn new(items: Vec<Item>) -> Self {
        Replacing { items, left: Vec::new(), malformed: None, stay: BTreeSet::new() }
    }

    fn judge_item(view: &View<'_>, item: &Item) -> Result<Judged, BoardError> {
        let id = item.entry.id();
        let own = view.entry(&item.key)?.version();
        if own.is_missing() {
            return Ok(Judged::Stays);
        }
        let head_entry = view.entry(&head_key(id))?;
        let mut change = Change::default();
        change.delete(item.key.clone());
        change.assert(head_key(id), head_entry.version());
        let Some(head) = read_head(id, head_entry)? else {
            // That the head is missing proves nothing if an answer is lost; the entry does.
            change.assert(item.key.clone(), own);
            return Ok(Judged::Change(change));
        };
        if matches!(item.entry, Entry::Todo { .. }) && head.state() == State::Done {
            // Its marker goes only once no watch is left.
            return Ok(Judged::Stays);
        }
        let definition = read_definition(id, view.entry(&definition_key(id))?)?;
        let place = match &item.entry {
            Entry::Watch { dependency, .. } => {
                let Some(at) = definition.deps.iter().position(|dep| dep.id == *dependency) else {
                    return Ok(Judged::Change(change));
                };
                // What was done when its watches were listed may have begun another life. While a task depends on it, it cannot go,
                // so this needs no assert.
                let watched = read_head(dependency, view.entry(&head_key(dependency))?)?;
                if head.state() == State::Open && watched.is_none_or(|head| head.state() != State::Done) {
                    return Ok(Judged::Stays);
                }
                // All before it were done when the watch was put, for ever.
                match Self::place(view, &head, &definition, at + 1, &mut change) {
                    Ok(place) => place,
                    Err(unread) => return Ok(Judged::Read(unread)),
                }
            }
            Entry::Due { time, .. } if Self::has_come(view, &head, *time) => {
                change.assert(item.key.clone(), own);
                Place::Ready
            }
            _ => {
                change.assert(item.key.clone(), own);
                match Self::place(view, &head, &definition, 0, &mut change) {
                    Ok(place) => place,
                    Err(unread) => return Ok(Judged::Read(unread)),
                }
            }
        };
        if place.key(id, head.order, definition.priority).as_ref() == Some(&item.key) {
            return Ok(Judged::Stays);
        }
        change.enter(id, &head, &definition, &place);
        Ok(Judged::Change(change))
    }

    /// Where a task stands, as far as its dependencies from the `from`-th on tell.
    fn place(
        view: &View<'_>,
        head: &Head,
        definition: &Definition,
        from: usize,
        change: &mut Change,
    ) -> Result<Place, Vec<Key>> {
        if head.state() != State::Open {
            return Ok(place(head, None));
        }
        match scan(view, &definition.deps[from..]) {
            Scan::Done => Ok(place(head, None)),
            Scan::Waits(_, dep, version) => {
                change.assert(head_key(dep), version);
                Ok(place(head, Some(dep)))
            }
            Scan::Unread(keys) => Err(keys),
        }
    }

    /// Whether the time under which a task is due has come, and it is still due then.
    fn has_come(view: &View<'_>, head: &Head, due: Timestamp) -> bool {
        let time = view.time(head.touched);
        due_time(head) == Some(due)
            && match head.state() {
                State::Claimed => time.may_take_over(Some(due)),
                _ => time.now >= due,
            }
    }
}

impl Judge for Replacing {
    type Answer = ();
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        self.items
            .iter()
            .flat_map(|item| {
                let id = item.entry.id();
                let watched = match &item.entry {
                    Entry::Watch { dependency, .. } => Some(head_key(dependency)),
                    _ => None,
                };
                [item.key.clone(), head_key(id), definition_key(id)].into_iter().chain(watched)
            })
            .collect()
    }

    fn restart(&mut self) {
        self.left.clear();
        self.malformed = None;
        self.stay.clear();
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<()>, BoardError> {
        let mut whole = Change::default();
        let mut unread = Vec::new();
        let mut ids = BTreeSet::new();
        for item in &self.items {
            // Two entries of one task could contradict each other within one transaction.
            if !ids.insert(item.entry.id()) {
                self.left.push(item.clone());
                continue;
            }
            match Self::judge_item(view, item) {
                Ok(Judged::Stays) => {
                    self.stay.insert(item.key.clone());
                }
                Ok(Judged::Read(keys)) => unread.extend(keys),
                Ok(Judged::Change(change)) => {
                    let mut with = whole.clone();
                    with.merge(change);
                    if with.asserted() > limits::TXN_ASSERTS {
                        self.left.push(item.clone());
                    } else {
                        whole = with;
                    }
                }
                Err(error @ BoardError::Backend(_)) => return Err(error),
                Err(error) => {
                    self.malformed = Some(error);
                    self.stay.insert(item.key.clone());
                }
            }
        }
        if !unread.is_empty() {
            return Ok(Step::Read(unread));
        }
        if whole.is_empty() {
            return Ok(Step::Answer(()));
        }
        let (asserts, mutations) = whole.into_parts([], []);
        Ok(Step::Commit(commit(asserts, mutations)?, ()))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<()>) -> Result<Fate<()>, BoardError> {
        // Whether it was applied does not matter: what is right now is judged afresh, and what lands late asserts that it is right.
        Ok(if pending.has_moved(view)? { Fate::Dead } else { Fate::Open })
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        BoardError::TxnConflict { attempts }
    }

    fn unknown(&self) -> BoardError {
        // The index is only a hint, so nothing has happened that a caller could miss.
        BoardError::TxnConflict { attempts: 1 }
    }
}

impl<B: Backend> BoardAdapter<B> {
    /// Replaces these entries by what is right for their tasks. Those that cannot be read stay, and those that others keep changing.
    pub(super) async fn replace(&self, items: Vec<Item>) -> Result<Examined, BoardError> {
        let mut examined = Examined::default();
        let mut rest = items;
        while !rest.is_empty() {
            let next = rest.split_off(rest.len().min(PAGE));
            let mut judge = Replacing::new(rest);
            let bounds = Bounds { conflicts: CONFLICTS, failures: 1 };
            match self.run_within(bounds, &mut judge).await {
                Ok(()) => {
                    examined.worked |= judge.stay.len() < judge.items.len();
                    rest = judge.left;
                    // Whatever did not fit comes first, and at least one did.
                    rest.extend(next);
                }
                // One task that changes all the time does not keep the others from their places.
                Err(BoardError::TxnConflict { .. }) if judge.items.len() > 1 => {
                    let mut halves = judge.items;
                    let half = halves.split_off(halves.len() / 2);
                    for piece in [halves, half] {
                        examined.add(Box::pin(self.replace(piece)).await?);
                    }
                    rest = next;
                    continue;
                }
                Err(BoardError::TxnConflict { .. }) => rest = next,
                Err(error) => return Err(error),
            }
            if judge.malformed.is_some() {
                examined.malformed = judge.malformed;
            }
        }
        Ok(examined)
    }

    /// Examines tasks, of each of which at most so many watches.
    pub(super) async fn examine(&self, ids: &[TaskId], watches: usize) -> Result<Examined, BoardError> {
        let mut examined = Examined::default();
        if ids.is_empty() {
            return Ok(examined);
        }
        let keys = ids.iter().flat_map(|id| [todo_key(id), head_key(id)]);
        let snapshot = self.backend().snapshot(&KeySet::new(keys)?).await?;
        let (mut others, mut finished) = (Vec::new(), Vec::new());
        for id in ids {
            let key = todo_key(id);
            let version = snapshot.require(&key)?.version();
            if version.is_missing() {
                continue;
            }
            let done = match read_head(id, snapshot.require(&head_key(id))?) {
                Ok(head) => head.is_some_and(|head| head.state() == State::Done),
                Err(error) => {
                    examined.malformed = Some(error);
                    continue;
                }
            };
            if !done {
                others.extend(Item::of(key));
            } else if self.move_watches(id, watches, &mut examined).await? {
                finished.push((key, version));
            }
        }
        self.finish(finished).await?;
        examined.worked |= !others.is_empty();
        examined.add(self.replace(others).await?);
        Ok(examined)
    }

    /// Moves the watches on a done task on, until there are none, and then says so.
    async fn move_watches(
        &self,
        id: &TaskId,
        most: usize,
        examined: &mut Examined,
    ) -> Result<bool, BoardError> {
        // One pass moves them all, a second one sees that; more are needed where others change the same tasks.
        const PASSES: u32 = 4;
        let start = KeyRange::new(entry::prefix(watches(id)), PAGE)?;
        let mut range = start.clone();
        let (mut met, mut passes, mut stayed) = (0, 0, false);
        loop {
            let keys = self.backend().keys(&range).await?;
            let Some(last) = keys.last().cloned() else {
                if range.after().is_none() {
                    return Ok(true);
                }
                passes += 1;
                if stayed || passes == PASSES {
                    return Ok(false);
                }
                range = start.clone();
                continue;
            };
            if met >= most {
                return Ok(false);
            }
            met += keys.len();
            let count = keys.len();
            let items: Vec<Item> = keys.into_iter().filter_map(Item::of).collect();
            stayed |= items.len() < count;
            let moved = self.replace(items).await?;
            stayed |= moved.malformed.is_some();
            examined.add(moved);
            range = start.clone().start_after(last);
        }
    }

    /// Deletes the markers of done tasks on which there are no watches any more, each at the version that it had before that was seen.
    async fn finish(&self, finished: Vec<(Key, Version)>) -> Result<(), BoardError> {
        for page in finished.chunks(limits::TXN_ASSERTS) {
            if self.delete_all(page).await? || page.len() == 1 {
                continue;
            }
            // Somebody else has deleted one of them.
            for one in page.chunks(1) {
                self.delete_all(one).await?;
            }
        }
        Ok(())
    }

    /// Deletes entries at these versions: all, or none if one has moved. Whether an answer that is lost was that they are deleted, the
    /// next who lists them will see.
    pub(super) async fn delete_all(&self, entries: &[(Key, Version)]) -> Result<bool, BoardError> {
        let asserts = entries.iter().map(|(key, version)| Assert::version(key.clone(), *version));
        let mutations = entries.iter().map(|(key, _)| Mutation::delete(key.clone()));
        match self.backend().txn(&Txn::new(asserts, mutations)?).await {
            Ok(outcome) => Ok(outcome.is_applied()),
            Err(error) if error.is_indeterminate() => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Examines what a verb has just written. The marker is there for whoever comes next, so this is a best effort: what goes wrong is
    /// of no interest to whoever called the verb, and more than some hundred dependents are left to others.
    pub(in super::super) async fn examine_own(&self, id: &TaskId) {
        const WATCHES: usize = 8 * PAGE;
        if let Err(error) = self.examine(std::slice::from_ref(id), WATCHES).await {
            tracing::debug!(kind = error_kind(&error), "the ready index is left to be examined");
        }
    }
}

fn error_kind(error: &BoardError) -> &'static str {
    match error {
        BoardError::Backend(error) => error.kind().as_str(),
        BoardError::TxnConflict { .. } => "conflict",
        _ => "other",
    }
}
