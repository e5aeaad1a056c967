//! What stands under the one key.

use std::collections::{BTreeMap, VecDeque};

use coord_core::board::{
    Added, AgentId, ArchiveReport, Claim, Dep, Event, History, Lease, LeaseInfo, Outcome, PlanReport,
    Progress, Retry, State, Task, TaskId, TaskSpec, Verb, limits,
};
use coord_core::{Bytes, OperationId, RequestId, Timestamp, Token};
use serde::{Deserialize, Serialize};

/// The whole board.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whole {
    #[serde(rename = "n")]
    pub(super) next_order: u64,
    #[serde(rename = "f")]
    pub(super) floor_fence: u64,
    #[serde(rename = "q")]
    pub(super) floor_seq: u64,
    #[serde(rename = "t")]
    pub(super) tasks: BTreeMap<TaskId, Record>,
    #[serde(rename = "l")]
    pub(super) log: VecDeque<Logged>,
    /// The histories of removed tasks: only a wrong judge keeps them.
    #[serde(rename = "g", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) graves: BTreeMap<TaskId, VecDeque<Note>>,
    /// Only wrong judges put something here.
    #[serde(rename = "j", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) junk: Vec<Token>,
}

/// An operation that was applied, and what it answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Logged {
    pub(super) operation: OperationId,
    pub(super) answer: Answer,
}

/// What a verb answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Nothing,
    Claim {
        task: Box<Task>,
        token: Token,
        fence: u64,
        until: Option<Timestamp>,
    },
    Lease {
        token: Token,
        fence: u64,
        until: Option<Timestamp>,
    },
    Outcome(Outcome),
    Added {
        added: usize,
        existed: usize,
    },
    NoTask,
    Archived {
        examined: usize,
        archived: Vec<TaskId>,
        next: Option<TaskId>,
    },
    /// The task has no attempts left, and has failed.
    Failed,
}

impl Answer {
    pub(super) fn claim(id: &TaskId, record: &Record, token: &Token) -> Answer {
        let (fence, until) = (record.fence, record.until);
        Answer::Claim { task: Box::new(record.task(id)), token: token.clone(), fence, until }
    }

    pub(super) fn into_claim(self) -> Option<Claim> {
        match self {
            Answer::Claim { task, token, fence, until } => {
                Some(Claim { task: *task, lease: Lease { token, fence, until } })
            }
            _ => None,
        }
    }

    pub(super) fn into_lease(self) -> Option<Lease> {
        match self {
            Answer::Lease { token, fence, until } => Some(Lease { token, fence, until }),
            _ => None,
        }
    }

    pub(super) fn into_outcome(self) -> Outcome {
        match self {
            Answer::Outcome(outcome) => outcome,
            _ => Outcome::default(),
        }
    }

    pub(super) fn into_archived(self) -> ArchiveReport {
        match self {
            Answer::Archived { examined, archived, next } => ArchiveReport::new(examined, archived, next),
            _ => ArchiveReport::default(),
        }
    }

    pub(super) fn into_report(self) -> PlanReport {
        match self {
            Answer::Added { added, existed } => PlanReport { added, existed },
            _ => PlanReport::default(),
        }
    }

    pub(super) fn into_added(self) -> Added {
        if self.into_report().added > 0 { Added::New } else { Added::Existed }
    }
}

/// Which verb ended a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ended {
    Released,
    Completed,
    Failed,
}

/// How the last claim ended, so that its holder may ask again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Settled {
    pub(super) token: Token,
    pub(super) verb: Ended,
    pub(super) outcome: Outcome,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_open(state: &State) -> bool {
    *state == State::Open
}

fn open() -> State {
    State::Open
}

/// One thing that has happened to a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Note {
    #[serde(rename = "m")]
    pub(super) at: Timestamp,
    #[serde(rename = "v")]
    pub(super) verb: Verb,
    #[serde(rename = "s", default = "open", skip_serializing_if = "is_open")]
    pub(super) state: State,
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub(super) by: Option<AgentId>,
    #[serde(rename = "o", default, skip_serializing_if = "is_default")]
    pub(super) from: Option<AgentId>,
    #[serde(rename = "f", default, skip_serializing_if = "is_default")]
    pub(super) fence: u64,
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(super) attempts: u32,
    #[serde(rename = "e", default, skip_serializing_if = "is_default")]
    pub(super) text: String,
}

impl Note {
    fn event(&self) -> Event {
        let mut event = Event::new(self.at, self.verb, self.state);
        event.by.clone_from(&self.by);
        event.from.clone_from(&self.from);
        (event.fence, event.attempts) = (self.fence, self.attempts);
        event.text.clone_from(&self.text);
        event
    }
}

/// One task. Short names and left-out defaults keep a board of ten thousand tasks within one transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(rename = "q")]
    pub(super) seq: u64,
    #[serde(rename = "o")]
    pub(super) order: u64,
    #[serde(rename = "m")]
    pub(super) touched: Timestamp,
    #[serde(rename = "s", default = "open", skip_serializing_if = "is_open")]
    pub(super) state: State,
    #[serde(rename = "f", default, skip_serializing_if = "is_default")]
    pub(super) fence: u64,
    #[serde(rename = "t", default, skip_serializing_if = "is_default")]
    pub(super) title: String,
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(super) deps: Vec<Dep>,
    /// The dependencies of the definition that was added, if they have been replaced.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub(super) created_deps: Option<Vec<Dep>>,
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub(super) labels: Vec<String>,
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    pub(super) priority: i32,
    /// Not before this time, unless it has been reopened.
    #[serde(rename = "n", default, skip_serializing_if = "is_default")]
    pub(super) not_before: Option<Timestamp>,
    #[serde(rename = "i", default, skip_serializing_if = "is_default")]
    pub(super) at_once: bool,
    /// Not before this time, because it has failed.
    #[serde(rename = "g", default, skip_serializing_if = "is_default")]
    pub(super) rests_until: Option<Timestamp>,
    #[serde(rename = "h", default, skip_serializing_if = "is_default")]
    pub(super) retry: Option<Retry>,
    #[serde(rename = "y", default, skip_serializing_if = "is_default")]
    pub(super) payload: Bytes,
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(super) attempts: u32,
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub(super) owner: Option<AgentId>,
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    pub(super) token: Option<Token>,
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(super) request: Option<RequestId>,
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub(super) until: Option<Timestamp>,
    #[serde(rename = "e", default, skip_serializing_if = "is_default")]
    pub(super) outcome: Option<Outcome>,
    #[serde(rename = "z", default, skip_serializing_if = "Option::is_none")]
    pub(super) settled: Option<Settled>,
    /// What has happened to it, the oldest first; without any, nothing has since it was added.
    #[serde(rename = "v", default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) events: VecDeque<Note>,
    #[serde(rename = "vd", default, skip_serializing_if = "is_default")]
    pub(super) events_dropped: u64,
    /// How far it is.
    #[serde(rename = "x2", default, skip_serializing_if = "Option::is_none")]
    pub(super) progress: Option<Progress>,
    /// The first one that has begun on the strength of its failure or cancellation, which is not undone any more.
    #[serde(rename = "pb", default, skip_serializing_if = "is_default")]
    pub(super) pinned_by: Option<TaskId>,
    /// Who got which token: only a wrong judge keeps it.
    #[serde(rename = "x", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) past: Vec<(Token, AgentId)>,
}

impl Record {
    pub(super) fn new(spec: &TaskSpec, seq: u64, fence: u64, order: u64, now: Timestamp) -> Self {
        Record {
            seq,
            order,
            touched: now,
            state: State::Open,
            fence,
            title: spec.title.clone(),
            deps: spec.deps.clone(),
            created_deps: None,
            labels: spec.labels.clone(),
            priority: spec.priority,
            not_before: spec.not_before,
            at_once: false,
            rests_until: None,
            retry: spec.retry,
            payload: spec.payload.clone(),
            attempts: 0,
            owner: None,
            token: None,
            request: None,
            until: None,
            outcome: None,
            settled: None,
            events: VecDeque::new(),
            events_dropped: 0,
            progress: None,
            pinned_by: None,
            past: Vec::new(),
        }
    }

    /// Whether it was added with this definition.
    pub(super) fn was_defined_as(&self, spec: &TaskSpec) -> bool {
        self.title == spec.title
            && *self.created_deps.as_ref().unwrap_or(&self.deps) == spec.deps
            && self.labels == spec.labels
            && self.priority == spec.priority
            && self.not_before == spec.not_before
            && self.payload == spec.payload
            && self.retry == spec.retry
    }

    /// The same, the rules of its dependencies aside: what only a wrong judge asks.
    pub(super) fn was_defined_but_for_rules(&self, spec: &TaskSpec) -> bool {
        let plain = |deps: &[Dep]| Dep::all(deps.iter().map(|dep| dep.id.clone()));
        let mut record = self.clone();
        record.created_deps = Some(plain(record.created_deps.as_ref().unwrap_or(&record.deps)));
        let mut spec = spec.clone();
        spec.deps = plain(&spec.deps);
        record.was_defined_as(&spec)
    }

    /// From when on it may be claimed.
    pub(super) fn earliest(&self) -> Option<Timestamp> {
        self.rests_until.or(self.not_before.filter(|_| !self.at_once))
    }

    /// Counts a change.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.begin_history();
        self.seq += 1;
        self.touched = now;
    }

    /// What the history of a task to which nothing has happened begins with.
    fn added(&self) -> Note {
        let (at, fence) = (self.touched, self.fence);
        Note {
            at,
            verb: Verb::Add,
            state: State::Open,
            by: None,
            from: None,
            fence,
            attempts: 0,
            text: String::new(),
        }
    }

    /// Writes down that it was added, before anything else changes.
    pub(super) fn begin_history(&mut self) {
        if self.events.is_empty() {
            self.events.push_back(self.added());
        }
    }

    /// Notes what has just happened, after the change has been counted.
    pub(super) fn note(&mut self, verb: Verb, by: Option<AgentId>, from: Option<AgentId>, text: &str) {
        let (at, state, fence, attempts) = (self.touched, self.state, self.fence, self.attempts);
        let text = Event::cut(text);
        self.events.push_back(Note { at, verb, state, by, from, fence, attempts, text });
    }

    /// Drops what is too much.
    pub(super) fn forget(&mut self) {
        while self.events.len() > limits::HISTORY_EVENTS {
            self.events.pop_front();
            self.events_dropped += 1;
        }
    }

    pub(super) fn history(&self) -> History {
        let added = self.added();
        let notes = if self.events.is_empty() { vec![&added] } else { self.events.iter().collect() };
        History::new(notes.into_iter().map(Note::event).collect(), self.events_dropped, false)
    }

    /// Ends the claim.
    pub(super) fn unclaim(&mut self, state: State) {
        self.state = state;
        self.owner = None;
        self.token = None;
        self.request = None;
        self.until = None;
    }

    pub(super) fn is_held_by(&self, token: &Token) -> bool {
        self.state == State::Claimed && self.token.as_ref() == Some(token)
    }

    /// How a claim of this token ended, if it was the last one.
    pub(super) fn settled_by(&self, token: &Token, verb: Ended) -> Option<&Settled> {
        self.settled.as_ref().filter(|settled| settled.token == *token && settled.verb == verb)
    }

    pub(super) fn task(&self, id: &TaskId) -> Task {
        let mut task = Task::new(id.clone());
        task.title.clone_from(&self.title);
        task.deps.clone_from(&self.deps);
        task.state = self.state;
        task.owner.clone_from(&self.owner);
        task.lease =
            (self.state == State::Claimed).then_some(LeaseInfo { fence: self.fence, until: self.until });
        task.seq = self.seq;
        task.fence = self.fence;
        task.order = self.order;
        task.priority = self.priority;
        task.labels.clone_from(&self.labels);
        task.attempts = self.attempts;
        task.not_before = self.earliest();
        task.outcome.clone_from(&self.outcome);
        task.touched = self.touched;
        task.payload = self.payload.clone();
        task.retry = self.retry;
        task.progress = self.progress.clone();
        task
    }
}
