//! What `coord top` knows: the board as it was last listed, what is selected, and what is being asked.

use std::collections::HashMap;
use std::time::Duration;

use coord_core::Timestamp;
use coord_core::board::{Dep, Task, TaskId};

use super::work::{Who, Work, Worker};
use crate::standing::{Counts, Standing, standings};

/// The lists between which one switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    /// Tasks that somebody holds, the longest held first.
    Running,
    /// Tasks that can be claimed, in the order in which they are handed out.
    Ready,
    /// Tasks whose dependencies are not done yet.
    Waiting,
    /// Tasks that cannot run before somebody does something.
    Blocked,
    /// Tasks that failed, the last one first.
    Failed,
    /// Tasks that were cancelled or skipped, the last one first.
    Cancelled,
    /// Tasks that are done, the last one first.
    Done,
    /// Who holds how many tasks, and does how many a minute.
    Workers,
}

impl Tab {
    /// All of them, in the order in which they are shown.
    pub(crate) const ALL: [Tab; 8] = [
        Tab::Running,
        Tab::Ready,
        Tab::Waiting,
        Tab::Blocked,
        Tab::Failed,
        Tab::Cancelled,
        Tab::Done,
        Tab::Workers,
    ];

    /// One lower-case word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Tab::Running => "running",
            Tab::Ready => "ready",
            Tab::Waiting => "waiting",
            Tab::Blocked => "blocked",
            Tab::Failed => "failed",
            Tab::Cancelled => "cancelled",
            Tab::Done => "done",
            Tab::Workers => "workers",
        }
    }

    /// Its place among all.
    pub(crate) fn index(self) -> usize {
        Tab::ALL.iter().position(|tab| *tab == self).unwrap_or(0)
    }

    /// The list in which a task of this standing is.
    pub(crate) fn of(standing: Standing) -> Tab {
        match standing {
            Standing::Running => Tab::Running,
            Standing::Ready => Tab::Ready,
            Standing::Waiting => Tab::Waiting,
            Standing::Blocked => Tab::Blocked,
            // Somebody has to look at both.
            Standing::Failed | Standing::Unknown => Tab::Failed,
            Standing::Cancelled | Standing::Skipped => Tab::Cancelled,
            Standing::Done => Tab::Done,
        }
    }
}

/// A change that a key can make to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nobody may claim or complete it any more.
    Cancel,
    /// It failed or was cancelled, and is opened again.
    Retry,
}

impl Change {
    /// The change as an order.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Change::Cancel => "cancel",
            Change::Retry => "retry",
        }
    }
}

/// What the keys mean at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A list is looked at.
    List,
    /// A filter is typed; `before` is what it was.
    Filter {
        /// What Esc goes back to.
        before: String,
    },
    /// The cancellation of a task has to be confirmed.
    Confirm(TaskId),
    /// Why a task stands as it does; `scroll` lines are above the screen.
    Explain {
        /// The task.
        id: TaskId,
        /// How many lines are above the screen.
        scroll: usize,
    },
    /// The keys are explained.
    Help {
        /// How many lines are above the screen.
        scroll: usize,
    },
}

/// Something that is said until the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// What.
    pub(crate) text: String,
    /// Whether something is not as it was asked for.
    pub(crate) bad: bool,
}

/// One answer of the board.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    /// All tasks, without their payloads.
    pub(crate) tasks: Vec<Task>,
    /// The time of the store when it had answered.
    pub(crate) time: Timestamp,
    /// The same instant on the clock that measures.
    pub(crate) at: Duration,
    /// How long the answer took.
    pub(crate) took: Duration,
    /// Whether all tasks are from one instant. A board that is too large for that is read in pages.
    pub(crate) whole: bool,
}

/// The last answer of the board, without its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// As [`Listing::time`].
    pub(crate) time: Timestamp,
    /// As [`Listing::at`].
    pub(crate) at: Duration,
    /// As [`Listing::took`].
    pub(crate) took: Duration,
    /// As [`Listing::whole`].
    pub(crate) whole: bool,
}

/// The store does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Since when, on the clock that measures.
    pub(crate) since: Duration,
    /// What it says.
    pub(crate) error: String,
}

/// The state of `coord top`. It changes only by [`update`](super::update::update).
#[derive(Debug)]
pub(crate) struct Model {
    /// The name of the board.
    pub(crate) board: String,
    /// The store, without a password.
    pub(crate) store: String,
    /// No key changes anything on the board.
    pub(crate) read_only: bool,
    /// Whether colors may be used.
    pub(crate) colors: bool,
    /// Width and height of the screen.
    pub(crate) size: (u16, u16),
    /// Now, on the clock that measures.
    pub(crate) at: Duration,
    /// The tasks, and where they stand.
    pub(crate) tasks: Vec<Task>,
    pub(crate) standings: Vec<Standing>,
    pub(crate) counts: Counts,
    position: HashMap<TaskId, usize>,
    /// Of each blocked task one that has to be looked after first: it failed, was cancelled or is missing.
    blockers: HashMap<usize, TaskId>,
    /// The list that is shown.
    pub(crate) tab: Tab,
    /// Which tasks are in it, in its order.
    pub(crate) rows: Vec<usize>,
    /// Which row is selected.
    pub(crate) cursor: usize,
    selected: Option<TaskId>,
    /// The task that was selected until it left the list by itself, until the next key.
    pub(crate) left: Option<TaskId>,
    /// Only what contains this is shown.
    pub(crate) filter: String,
    pub(crate) mode: Mode,
    pub(crate) notice: Option<Notice>,
    /// The last answer of the board.
    pub(crate) answer: Option<Answer>,
    /// Since when the board is being asked, if it is.
    pub(crate) asking: Option<Duration>,
    pub(crate) trouble: Option<Trouble>,
    /// The change that is being made.
    pub(crate) doing: Option<(Change, TaskId)>,
    /// Who does what.
    pub(crate) work: Work,
}

impl Model {
    /// Nothing is known yet.
    pub(crate) fn new(board: &str, store: &str, read_only: bool) -> Self {
        Model {
            board: board.to_owned(),
            store: store.to_owned(),
            read_only,
            colors: true,
            size: (80, 24),
            at: Duration::ZERO,
            tasks: Vec::new(),
            standings: Vec::new(),
            counts: Counts::default(),
            position: HashMap::new(),
            blockers: HashMap::new(),
            tab: Tab::Running,
            rows: Vec::new(),
            cursor: 0,
            selected: None,
            left: None,
            filter: String::new(),
            mode: Mode::List,
            notice: None,
            answer: None,
            asking: None,
            trouble: None,
            doing: None,
            work: Work::default(),
        }
    }

    /// Now, in the time of the store: that of its last answer, and what has passed since.
    pub(crate) fn now(&self) -> Timestamp {
        match self.answer {
            Some(answer) => answer.time.saturating_add(self.at.saturating_sub(answer.at)),
            None => Timestamp::EPOCH,
        }
    }

    /// A task and its standing.
    pub(crate) fn find(&self, id: &TaskId) -> Option<(&Task, Standing)> {
        let index = *self.position.get(id)?;
        Some((self.tasks.get(index)?, *self.standings.get(index)?))
    }

    /// What blocks a blocked task: one of the tasks that have to be looked after first.
    pub(crate) fn blocker(&self, id: &TaskId) -> Option<&TaskId> {
        self.blockers.get(self.position.get(id)?)
    }

    /// The selected task.
    pub(crate) fn selected(&self) -> Option<(&Task, Standing)> {
        self.find(self.selected.as_ref()?)
    }

    /// How many rows the list has, filtered.
    pub(crate) fn len(&self) -> usize {
        if self.tab == Tab::Workers { self.workers().len() } else { self.rows.len() }
    }

    /// The workers, the fastest first; filtered where they are the list that is shown.
    pub(crate) fn workers(&self) -> Vec<(&Who, &Worker)> {
        let needle = if self.tab == Tab::Workers { self.filter.to_lowercase() } else { String::new() };
        let mut workers: Vec<(&Who, &Worker)> = self
            .work
            .workers()
            .filter(|(who, _)| needle.is_empty() || who.to_string().to_lowercase().contains(&needle))
            .collect();
        workers.sort_by(|(a, x), (b, y)| (y.done(), y.holds, a).cmp(&(x.done(), x.holds, b)));
        workers
    }

    /// How many tasks or workers are in a list, unfiltered.
    pub(crate) fn count(&self, tab: Tab) -> usize {
        match tab {
            Tab::Workers => self.work.workers().count(),
            Tab::Failed => self.counts.get(Standing::Failed) + self.counts.get(Standing::Unknown),
            Tab::Running => self.counts.get(Standing::Running),
            Tab::Ready => self.counts.get(Standing::Ready),
            Tab::Waiting => self.counts.get(Standing::Waiting),
            Tab::Blocked => self.counts.get(Standing::Blocked),
            Tab::Cancelled => self.counts.get(Standing::Cancelled) + self.counts.get(Standing::Skipped),
            Tab::Done => self.counts.get(Standing::Done),
        }
    }

    /// The board has answered.
    pub(super) fn listed(&mut self, listing: Listing) {
        let Listing { tasks, time, at, took, whole } = listing;
        let before = |id: &TaskId| self.position.get(id).and_then(|index| self.tasks.get(*index));
        self.work.observe(before, &tasks, at);
        self.standings = standings(&tasks);
        self.counts = Counts::of(self.standings.iter().copied());
        self.position = tasks.iter().enumerate().map(|(index, task)| (task.id.clone(), index)).collect();
        self.blockers = blockers(&tasks, &self.standings, &self.position);
        self.tasks = tasks;
        self.answer = Some(Answer { time, at, took, whole });
        self.at = self.at.max(at);
        self.asking = None;
        self.trouble = None;
        self.refill();
    }

    /// Shows another list, from its beginning.
    pub(super) fn show(&mut self, tab: Tab) {
        self.tab = tab;
        self.restart();
    }

    /// Shows the list from its beginning.
    pub(super) fn restart(&mut self) {
        self.cursor = 0;
        self.selected = None;
        self.refill();
    }

    /// Selects a row, or the nearest one that there is.
    pub(super) fn select(&mut self, row: usize) {
        self.cursor = row.min(self.len().saturating_sub(1));
        self.selected = self.rows.get(self.cursor).map(|index| self.tasks[*index].id.clone());
    }

    /// Finds out which tasks are in the list. The selection stays on its task, if that is still there.
    fn refill(&mut self) {
        let needle = self.filter.to_lowercase();
        let tab = self.tab;
        let mut rows: Vec<usize> = (0..self.tasks.len())
            .filter(|index| Tab::of(self.standings[*index]) == tab)
            .filter(|index| needle.is_empty() || matches(&self.tasks[*index], &needle))
            .collect();
        let tasks = &self.tasks;
        match tab {
            Tab::Running => rows.sort_by_cached_key(|index| {
                let task = &tasks[*index];
                (self.work.held_since(task), task.order, task.id.clone())
            }),
            Tab::Ready | Tab::Waiting | Tab::Blocked => rows.sort_by(|a, b| {
                let (a, b) = (&tasks[*a], &tasks[*b]);
                (b.priority, a.order, &a.id).cmp(&(a.priority, b.order, &b.id))
            }),
            Tab::Failed | Tab::Cancelled | Tab::Done => rows.sort_by(|a, b| {
                let (a, b) = (&tasks[*a], &tasks[*b]);
                (b.touched, a.order, &a.id).cmp(&(a.touched, b.order, &b.id))
            }),
            Tab::Workers => {}
        }
        self.rows = rows;
        let found = self
            .selected
            .as_ref()
            .and_then(|id| self.rows.iter().position(|index| self.tasks[*index].id == *id));
        match (found, self.selected.take()) {
            (None, Some(gone)) if self.left.is_none() => self.left = Some(gone),
            _ => {}
        }
        self.select(found.unwrap_or(self.cursor));
    }
}

/// What blocks each blocked task. Linear in tasks and dependencies.
fn blockers(
    tasks: &[Task],
    standings: &[Standing],
    position: &HashMap<TaskId, usize>,
) -> HashMap<usize, TaskId> {
    let mut blockers = HashMap::new();
    let mut dependents: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut next = Vec::new();
    for (index, task) in tasks.iter().enumerate().filter(|(index, _)| standings[*index] == Standing::Blocked)
    {
        for Dep { id, rule } in &task.deps {
            if position.get(id).is_some_and(|dep| rule.verdict(tasks[*dep].state).is_some()) {
                continue;
            }
            match position.get(id).map(|dep| (*dep, standings[*dep])) {
                Some((dep, Standing::Blocked)) => dependents.entry(dep).or_default().push(index),
                None | Some((_, Standing::Failed | Standing::Cancelled | Standing::Unknown)) => {
                    if blockers.insert(index, id.clone()).is_none() {
                        next.push(index);
                    }
                }
                Some(_) => {}
            }
        }
    }
    while let Some(index) = next.pop() {
        let Some(blocker) = blockers.get(&index).cloned() else { continue };
        for dependent in dependents.remove(&index).unwrap_or_default() {
            if let std::collections::hash_map::Entry::Vacant(entry) = blockers.entry(dependent) {
                entry.insert(blocker.clone());
                next.push(dependent);
            }
        }
    }
    blockers
}

/// Whether a task has this text, in lower case, in what people know of it.
fn matches(task: &Task, needle: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(needle);
    has(task.id.as_str())
        || has(&task.title)
        || task.owner.as_ref().is_some_and(|owner| has(owner.as_str()))
        || task.labels.iter().any(|label| has(label))
        || task.outcome.as_ref().is_some_and(|outcome| has(outcome.as_str()))
}
