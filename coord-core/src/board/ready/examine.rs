//! Examining: what was left to be done for the index by those who wrote, or by time, is done in bounded pieces by whoever comes next.
//!
//! A task that has ended is examined by moving each watch on it on whose dependency is settled by that: to the next dependency that is
//! not settled, or to the line of the ready ones. A task of which all dependencies are settled and one can never be satisfied is written
//! as skipped, and leaves a marker of its own, so that a chain of any length is worked off piece by piece. Once each watch has moved on or
//! rightly stays, the marker goes, at the version that it had before they were listed. Any other task is examined by putting its entry.

use std::collections::BTreeSet;

use super::super::adapter::{BoardAdapter, commit};
use super::super::dep::Rule;
use super::super::one_head::unknown_state;
use super::super::past::{self, past_key};
use super::super::record::{
    Definition, Head, definition_key, encode_head, head_key, read_definition, read_head,
};
use super::super::task::{State, TaskId};
use super::super::{BoardError, Verb};
use super::entry::{self, Entry, Needs, Place, due_time, marker, place, todo_key, watches};
use super::place::{Change, Scan, leave_line, scan};
use crate::backend::Backend;
use crate::cas::{Bounds, Fate, Judge, Pending, Step, View};
use crate::clock::Timestamp;
use crate::key::{Key, limits};
use crate::snapshot::{KeyRange, KeySet, Version};
use crate::token::OperationId;
use crate::txn::{Assert, Mutation, Txn};

/// How many watches one transaction moves on: each asserts two heads at most.
const PAGE: usize = 20;
/// From which place on the dependencies before a watch are not read again. A first piece is read at once anyway.
const READ_AGAIN: usize = 15;
/// How often a page is tried before its tasks are left to somebody else. Whoever is in the way moves them on as well, mostly.
const CONFLICTS: u32 = 8;

/// What examining came to.
#[derive(Debug, Default)]
pub(crate) struct Examined {
    /// A record that could not be read.
    pub(crate) malformed: Option<BoardError>,
    /// Whether anything was done.
    pub(crate) worked: bool,
    /// Whether an entry was left to others, for they kept changing its task.
    pub(crate) left: bool,
    /// How many entries stay because a record could not be read.
    unreadable: usize,
    /// Tasks that were skipped. Each has left a marker.
    pub(crate) skipped: Vec<TaskId>,
}

impl Examined {
    fn add(&mut self, other: Examined) {
        self.worked |= other.worked;
        self.left |= other.left;
        self.unreadable += other.unreadable;
        self.skipped.extend(other.skipped);
        if other.malformed.is_some() {
            self.malformed = other.malformed;
        }
    }
}

/// What became of entries that were to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    All,
    None,
    /// The answer was lost: the next who lists them will see.
    Perhaps,
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
    /// How many entries cannot be judged because of that.
    unreadable: usize,
    /// Keys of entries that stay where they are.
    stay: BTreeSet<Key>,
    /// Tasks that some try has skipped, applied or not.
    skipped: BTreeSet<TaskId>,
    operation: OperationId,
}

/// What the judgement of one entry says.
enum Judged {
    /// It is right, or gone.
    Stays,
    Change(Change),
    /// It can never begin, and is skipped.
    Skip(Change),
    Read(Vec<Key>),
}

impl Replacing {
    fn new(items: Vec<Item>) -> Self {
        Replacing {
            items,
            left: Vec::new(),
            malformed: None,
            unreadable: 0,
            stay: BTreeSet::new(),
            skipped: BTreeSet::new(),
            operation: OperationId::mint(),
        }
    }

    fn judge_item(&self, view: &View<'_>, item: &Item) -> Result<Judged, BoardError> {
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
        if let State::Unknown(code) = head.state() {
            // Where it belongs, and what waits for it, is known to the version that wrote it.
            return Err(unknown_state(id, code));
        }
        if matches!(item.entry, Entry::Todo { .. }) && head.state().is_terminal() {
            // Its marker goes only once all watches on it have been judged.
            return Ok(Judged::Stays);
        }
        let definition = read_definition(id, view.entry(&definition_key(id))?)?;
        let place = match &item.entry {
            Entry::Watch { dependency, .. } => {
                let Some(at) = definition.deps.iter().position(|dep| dep.id == *dependency) else {
                    return Ok(Judged::Change(change));
                };
                // What had ended when its watches were listed may have begun another life, or been reopened. While a task depends on it,
                // it cannot go, and where it is reopened after this, the task that moves on is judged again. So this needs no assert.
                let watched = read_head(dependency, view.entry(&head_key(dependency))?)?;
                let verdict = watched.and_then(|watched| definition.deps[at].rule.verdict(watched.state()));
                if head.state() == State::Open && verdict.is_none() {
                    return Ok(Judged::Stays);
                }
                // Where all must be done, those before it were settled when the watch was put, for ever.
                let settled = definition.deps.iter().all(|dep| dep.rule == Rule::Done);
                let from = if settled && at >= READ_AGAIN { at + 1 } else { 0 };
                match Self::place(view, &head, &definition, from, &mut change) {
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
        if place == Place::Examine {
            let key = past_key(id);
            if view.snapshot.get(&key).is_none() {
                return Ok(Judged::Read(vec![key]));
            }
            return Ok(Judged::Skip(self.skip(view, id, head, &definition, change)?));
        }
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
            return Ok(place(head, Needs::Met));
        }
        match scan(view, &definition.deps[from..]) {
            // Those before tell whether it may begin or never can.
            Scan::Settled { .. } if from > 0 => Self::place(view, head, definition, 0, change),
            Scan::Settled { impossible } => Ok(place(head, Needs::of(impossible))),
            Scan::Waits(_, dep, version) => {
                change.assert(head_key(dep), version);
                Ok(place(head, Needs::Waits(dep)))
            }
            Scan::Unread(keys) => Err(keys),
        }
    }

    /// Writes that a task is skipped, and leaves a marker for what waits for it.
    fn skip(
        &self,
        view: &View<'_>,
        id: &TaskId,
        mut head: Head,
        definition: &Definition,
        mut change: Change,
    ) -> Result<Change, BoardError> {
        leave_line(&mut change, id, &head, definition);
        let before = head.clone();
        head.leave(State::Skipped);
        head.touch(self.operation, view.time(head.touched).now);
        change.put(head_key(id), encode_head(&head));
        change.put(todo_key(id), marker());
        let event = past::event(Verb::Skip, &before, &head);
        change.put(past_key(id), past::with(view, id, &before, event)?);
        Ok(change)
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
        self.unreadable = 0;
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
            match self.judge_item(view, item) {
                Ok(Judged::Stays) => {
                    self.stay.insert(item.key.clone());
                }
                Ok(Judged::Read(keys)) => unread.extend(keys),
                Ok(judged @ (Judged::Change(_) | Judged::Skip(_))) => {
                    let (change, skips) = match judged {
                        Judged::Skip(change) => (change, true),
                        Judged::Change(change) => (change, false),
                        Judged::Stays | Judged::Read(_) => continue,
                    };
                    let mut with = whole.clone();
                    with.merge(change);
                    if with.asserted() > limits::TXN_ASSERTS {
                        self.left.push(item.clone());
                    } else {
                        whole = with;
                        if skips {
                            self.skipped.insert(item.entry.id().clone());
                        }
                    }
                }
                Err(error @ BoardError::Backend(_)) => return Err(error),
                Err(error) => {
                    self.malformed = Some(error);
                    self.unreadable += 1;
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
                    examined.unreadable += judge.unreadable;
                    examined.skipped.extend(judge.skipped);
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
                Err(BoardError::TxnConflict { .. }) => {
                    examined.left = true;
                    rest = next;
                }
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
            let ended = match read_head(id, snapshot.require(&head_key(id))?) {
                Ok(head) => head.is_some_and(|head| head.state().is_terminal()),
                Err(error) => {
                    examined.malformed = Some(error);
                    continue;
                }
            };
            if !ended {
                others.extend(Item::of(key));
            } else if self.move_watches(id, watches, &mut examined).await? {
                finished.push((key, version));
            }
        }
        examined.worked |= self.finish(finished).await?;
        let count = others.len();
        let replaced = self.replace(others).await?;
        // An entry of these stays only if it cannot be read, or if somebody else has seen to it.
        examined.worked |= !replaced.left && replaced.unreadable < count;
        examined.add(replaced);
        Ok(examined)
    }

    /// Judges each watch on a task that has ended, at most so many: it moves on, or it rightly stays, for the task has not come to what
    /// its rule wants and may be reopened. Whether each was judged.
    async fn move_watches(
        &self,
        id: &TaskId,
        most: usize,
        examined: &mut Examined,
    ) -> Result<bool, BoardError> {
        // One pass judges them all; more are needed where others change the same tasks.
        const PASSES: u32 = 4;
        let start = KeyRange::new(entry::prefix(watches(id)), PAGE)?;
        let (mut range, mut met) = (start.clone(), 0);
        let (mut passes, mut left) = (0, false);
        loop {
            let keys = self.backend().keys(&range).await?;
            let count = keys.len();
            let last = keys.last().cloned();
            if count > 0 {
                if met >= most {
                    return Ok(false);
                }
                met += count;
                let items: Vec<Item> = keys.into_iter().filter_map(Item::of).collect();
                let unreadable = items.len() < count;
                let moved = self.replace(items).await?;
                if unreadable || moved.malformed.is_some() {
                    passes = PASSES;
                    left = true;
                }
                left |= moved.left;
                examined.add(Examined { left: false, ..moved });
            }
            match last {
                Some(last) if count == PAGE => range = start.clone().start_after(last),
                _ if !left => return Ok(true),
                _ => {
                    passes += 1;
                    if passes >= PASSES {
                        return Ok(false);
                    }
                    (range, left) = (start.clone(), false);
                }
            }
        }
    }

    /// Deletes the markers of ended tasks of which all watches have been judged, each at the version that it had before that. Whether any
    /// is gone, or has been put again by somebody else.
    async fn finish(&self, finished: Vec<(Key, Version)>) -> Result<bool, BoardError> {
        let mut worked = false;
        for page in finished.chunks(limits::TXN_ASSERTS) {
            match self.delete_all(page).await? {
                Deleted::All => worked = true,
                Deleted::Perhaps => {}
                Deleted::None if page.len() == 1 => worked = true,
                // Somebody else has deleted one of them.
                Deleted::None => {
                    for one in page.chunks(1) {
                        worked |= self.delete_all(one).await? != Deleted::Perhaps;
                    }
                }
            }
        }
        Ok(worked)
    }

    /// Deletes entries at these versions: all, or none if one has moved.
    pub(super) async fn delete_all(&self, entries: &[(Key, Version)]) -> Result<Deleted, BoardError> {
        let asserts = entries.iter().map(|(key, version)| Assert::version(key.clone(), *version));
        let mutations = entries.iter().map(|(key, _)| Mutation::delete(key.clone()));
        match self.backend().txn(&Txn::new(asserts, mutations)?).await {
            Ok(outcome) if outcome.is_applied() => Ok(Deleted::All),
            Ok(_) => Ok(Deleted::None),
            Err(error) if error.is_indeterminate() => Ok(Deleted::Perhaps),
            Err(error) => Err(error.into()),
        }
    }

    /// Examines what a verb has just written. The marker is there for whoever comes next, so this is a best effort: what goes wrong is
    /// of no interest to whoever called the verb, and more than some hundred dependents are left to others.
    pub(in super::super) async fn examine_own(&self, id: &TaskId) {
        const WATCHES: usize = 8 * PAGE;
        // What is skipped by that is examined too, and so on, for a while.
        const LEVELS: usize = 16;
        let mut ids = vec![id.clone()];
        for _ in 0..LEVELS {
            match self.examine(&ids, WATCHES).await {
                Ok(examined) if examined.skipped.is_empty() => return,
                Ok(examined) => ids = examined.skipped,
                Err(error) => {
                    tracing::debug!(kind = error_kind(&error), "the ready index is left to be examined");
                    return;
                }
            }
            ids.truncate(PAGE);
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
