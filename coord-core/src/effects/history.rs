//! What operators ask for: history, lists, retention.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::EffectError;
use super::action::{ActionState, ActionStatus};
use super::names::{ActionKey, Note, limits};
use crate::board::AgentId;
use crate::clock::Timestamp;

/// What happened in a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TransitionKind {
    /// An attempt was granted.
    Granted,
    /// An attempt was completed.
    Completed,
    /// An attempt did not know its outcome.
    Marked,
    /// An attempt had expired or was released without a word, and somebody wrote it down.
    Lapsed,
    /// An attempt freed the resource.
    Released,
    /// An attempt was withdrawn: nothing was done.
    Abandoned,
    /// A result came that was not the first, or came too late.
    Evidence,
    /// Somebody began to look into it.
    Reconciling,
    /// It was ruled to have been done.
    RuledApplied,
    /// It was ruled not to have been done.
    RuledNotApplied,
    /// A retry was allowed although nobody knows.
    RetryAllowed,
    /// The payloads were dropped.
    Purged,
}

impl TransitionKind {
    /// The kind in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            TransitionKind::Granted => "granted",
            TransitionKind::Completed => "completed",
            TransitionKind::Marked => "marked uncertain",
            TransitionKind::Lapsed => "lapsed",
            TransitionKind::Released => "released",
            TransitionKind::Abandoned => "abandoned",
            TransitionKind::Evidence => "late evidence",
            TransitionKind::Reconciling => "reconciling",
            TransitionKind::RuledApplied => "ruled applied",
            TransitionKind::RuledNotApplied => "ruled not applied",
            TransitionKind::RetryAllowed => "retry allowed",
            TransitionKind::Purged => "purged",
        }
    }
}

impl fmt::Display for TransitionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One change of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// When, in the store's time.
    pub at: Timestamp,
    /// What.
    pub kind: TransitionKind,
    /// Who did it.
    pub agent: AgentId,
    /// The fence of the attempt that it is about.
    pub fence: u64,
    /// Why, or what was found.
    pub note: Note,
}

/// A result that was not the first, or came too late.
#[derive(Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The fence of the attempt that brought it.
    pub fence: u64,
    /// When it came.
    pub at: Timestamp,
    /// Its length.
    pub len: u64,
    /// Its SHA-256.
    pub digest: [u8; 32],
    /// The result itself; `None` if it was too large, was not among the first four, or was purged.
    pub result: Option<Bytes>,
}

impl fmt::Debug for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Evidence(fence {}, {}, {} bytes)", self.fence, self.at, self.len)
    }
}

/// What happened to an action.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// What is known of it now. A lapsed attempt is shown as such.
    pub status: ActionStatus,
    /// The last transitions, at most 32, the oldest first.
    pub transitions: Vec<Transition>,
    /// How many earlier transitions are no longer kept.
    pub dropped: u64,
    /// The evidence that is told apart, the oldest first.
    pub evidence: Vec<Evidence>,
}

impl History {
    /// For implementations of [`EffectStore`](super::EffectStore).
    #[must_use]
    pub fn new(
        status: ActionStatus,
        transitions: Vec<Transition>,
        dropped: u64,
        evidence: Vec<Evidence>,
    ) -> Self {
        History { status, transitions, dropped, evidence }
    }
}

/// Which actions to list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListFilter {
    /// Only those in one of these states. Without settled ones among them, settled actions are not read at all.
    pub states: Vec<ActionState>,
    /// Only those that have been in their state for at least this long.
    pub at_least: Duration,
    /// Only keys after this one.
    pub after: Option<ActionKey>,
    /// How many actions to look at, 1 to 1,000.
    pub limit: usize,
}

impl Default for ListFilter {
    /// All open actions: in flight, lapsed and uncertain.
    fn default() -> Self {
        ListFilter {
            states: vec![ActionState::InFlight, ActionState::Lapsed, ActionState::Uncertain],
            at_least: Duration::ZERO,
            after: None,
            limit: limits::PAGE,
        }
    }
}

impl ListFilter {
    /// All actions.
    #[must_use]
    pub fn all() -> Self {
        ListFilter::default().states([
            ActionState::Idle,
            ActionState::InFlight,
            ActionState::Lapsed,
            ActionState::Uncertain,
            ActionState::Completed,
        ])
    }

    /// Actions that need somebody to look: uncertain or lapsed, for at least this long.
    #[must_use]
    pub fn overdue(age: Duration) -> Self {
        ListFilter::default().states([ActionState::Lapsed, ActionState::Uncertain]).at_least(age)
    }

    /// Only these states.
    #[must_use]
    pub fn states(mut self, states: impl IntoIterator<Item = ActionState>) -> Self {
        self.states = states.into_iter().collect();
        self
    }

    /// Only those that have been in their state for at least this long.
    #[must_use]
    pub fn at_least(mut self, age: Duration) -> Self {
        self.at_least = age;
        self
    }

    /// Only keys after this one.
    #[must_use]
    pub fn after(mut self, key: Option<ActionKey>) -> Self {
        self.after = key;
        self
    }

    /// Look at so many actions.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Whether an action in this state, for this long, is wanted.
    #[must_use]
    pub fn wants(&self, state: ActionState, age: Duration) -> bool {
        self.states.contains(&state) && age >= self.at_least
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// [`EffectError::Invalid`] if the limit is 0 or above 1,000.
    pub fn validate(&self) -> Result<(), EffectError> {
        check_limit(self.limit)
    }
}

pub(super) fn check_limit(limit: usize) -> Result<(), EffectError> {
    if (1..=limits::PAGE).contains(&limit) {
        return Ok(());
    }
    Err(EffectError::Invalid(format!("a page has 1 to {} actions, not {limit}", limits::PAGE)))
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ListPage {
    /// The actions, in ascending order of their keys.
    pub actions: Vec<ActionStatus>,
    /// Actions whose records cannot be read, whatever the filter says; [`get`](super::EffectStore::get) tells why. They keep nothing else
    /// from being listed.
    pub damaged: Vec<ActionKey>,
    /// Where the next page starts after; `None` after the last one.
    pub next: Option<ActionKey>,
}

/// What to purge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PurgeRequest {
    /// How long payloads are kept after completion.
    pub retention: Duration,
    /// Only keys after this one.
    pub after: Option<ActionKey>,
    /// How many actions to look at, 1 to 1,000.
    pub limit: usize,
}

impl PurgeRequest {
    /// Payloads of actions that were completed at least this long ago, from the first key on, in batches of 100.
    #[must_use]
    pub fn older_than(retention: Duration) -> Self {
        PurgeRequest { retention, after: None, limit: 100 }
    }

    /// Only keys after this one.
    #[must_use]
    pub fn after(mut self, key: Option<ActionKey>) -> Self {
        self.after = key;
        self
    }

    /// Look at so many actions.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// What a batch of [`purge`](super::EffectStore::purge) did.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PurgeReport {
    /// How many actions were looked at.
    pub examined: usize,
    /// How many were purged.
    pub purged: usize,
    /// Those of which nothing can be purged, for their records cannot be read.
    pub damaged: Vec<ActionKey>,
    /// Where to go on after; `None` after the last key.
    pub next: Option<ActionKey>,
}
