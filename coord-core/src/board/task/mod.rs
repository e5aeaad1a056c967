//! The types of a task board: tasks, states, leases, and what they are made from.

mod filter;
mod name;
mod spec;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use filter::Filter;
pub use name::{AgentId, TaskId, limits};
pub use spec::TaskSpec;
pub(crate) use spec::validate_deps;

use super::BoardError;
use super::dep::Dep;
use super::progress::Progress;
use super::retry::Retry;
use crate::clock::Timestamp;
use crate::token::{RequestId, Token};

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// Nobody holds it. It can be claimed once its dependencies have come to what their rules want.
    Open,
    /// Somebody holds it, or did until the lease expired and nobody took over.
    Claimed,
    /// It has been completed. For ever.
    Done,
    /// It has failed. It can be reopened, until another task has begun because of that.
    Failed,
    /// An operator has cancelled it. It can be reopened, until another task has begun because of that.
    Cancelled,
    /// It can never begin, for a dependency has ended otherwise than its rule wants. For ever.
    Skipped,
    /// A state that this version of coord does not know. Never claimable.
    Unknown(u8),
}

impl State {
    /// Whether nothing more happens to the task by itself.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, State::Done | State::Failed | State::Cancelled | State::Skipped)
    }

    /// The state as one lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Claimed => "claimed",
            State::Done => "done",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
            State::Skipped => "skipped",
            State::Unknown(_) => "unknown",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What everybody may know of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// The fence: strictly greater than that of every earlier claim of this id, over removal and re-adding too. Hand it to
    /// whatever the task writes to, and let that refuse a smaller one than it has seen.
    pub fence: u64,
    /// When the lease expires, in the store's time; `None` if never.
    pub until: Option<Timestamp>,
}

/// What only the claimer gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What proves the claim.
    pub token: Token,
    /// As [`LeaseInfo::fence`].
    pub fence: u64,
    /// As [`LeaseInfo::until`].
    pub until: Option<Timestamp>,
}

/// A claimed task and its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The task as the claim left it.
    pub task: Task,
    /// The lease.
    pub lease: Lease,
}

/// How to claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// How long the lease lives from the time of the claim; `None` for ever. Zero, less than a microsecond, or beyond the
    /// representable time is [`BoardError::Invalid`].
    pub ttl: Option<Duration>,
    /// With a request id, the same agent's same request finds its lease again while it lives, after a lost answer or a dropped call.
    pub request: Option<RequestId>,
}

impl ClaimRequest {
    /// A claim whose lease lives this long.
    #[must_use]
    pub fn for_ttl(ttl: Duration) -> Self {
        ClaimRequest { ttl: Some(ttl), request: None }
    }

    /// A claim whose lease never expires: if the holder dies, only an operator's `revoke` frees the task.
    #[must_use]
    pub fn forever() -> Self {
        ClaimRequest { ttl: None, request: None }
    }

    /// The same claim under a request id.
    #[must_use]
    pub fn with_request(mut self, request: RequestId) -> Self {
        self.request = Some(request);
        self
    }
}

/// What became of a task, in at most 512 bytes of text: a result, a reason, or where to find them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Outcome(String);

impl Outcome {
    /// An outcome.
    ///
    /// # Errors
    /// [`BoardError::TooLarge`] if it has more than 512 bytes.
    pub fn new(text: impl Into<String>) -> Result<Self, BoardError> {
        let text = text.into();
        if text.len() > limits::OUTCOME_BYTES {
            return Err(BoardError::TooLarge {
                what: "the outcome",
                size: text.len(),
                limit: limits::OUTCOME_BYTES,
            });
        }
        Ok(Outcome(text))
    }

    /// The outcome cut to the limit, at a character boundary.
    #[must_use]
    pub fn truncated(text: &str) -> Self {
        Outcome(text[..text.floor_char_boundary(limits::OUTCOME_BYTES)].to_owned())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A task as a board shows it. It never contains a token or a request id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Task {
    /// Its name.
    pub id: TaskId,
    /// What people read.
    pub title: String,
    /// The tasks that must be done, or come to what the rule says, before it can be claimed.
    pub deps: Vec<Dep>,
    /// Its state.
    pub state: State,
    /// Who holds it, if claimed.
    pub owner: Option<AgentId>,
    /// The lease, if claimed.
    pub lease: Option<LeaseInfo>,
    /// Grows with every change of the task, over removal and re-adding too.
    pub seq: u64,
    /// The fence that was given last; 0 if none was ever given.
    pub fence: u64,
    /// Its place in line: tasks of one priority are handed out in this order.
    pub order: u64,
    /// Higher ones are handed out first.
    pub priority: i32,
    /// What filters match.
    pub labels: Vec<String>,
    /// How many claims it has seen since it was added or reopened, releases not counted.
    pub attempts: u32,
    /// It may not be claimed before this time, in the store's time.
    pub not_before: Option<Timestamp>,
    /// What became of it, if done or failed.
    pub outcome: Option<Outcome>,
    /// When it last changed: the time of the judgement.
    pub touched: Timestamp,
    /// What the application needs to run it; opaque to coord.
    pub payload: Bytes,
    /// How often it is tried; `None` if its first failure is its last, and claims that are taken over are not counted.
    #[serde(default)]
    pub retry: Option<Retry>,
    /// How far it is, as the last holder told: until the next claim. Lists tell it of claimed tasks only, and perhaps a newer one than
    /// their instant's.
    #[serde(default)]
    pub progress: Option<Progress>,
}

impl Task {
    /// An open task without anything.
    #[must_use]
    pub fn new(id: TaskId) -> Self {
        Task {
            id,
            title: String::new(),
            deps: Vec::new(),
            state: State::Open,
            owner: None,
            lease: None,
            seq: 0,
            fence: 0,
            order: 0,
            priority: 0,
            labels: Vec::new(),
            attempts: 0,
            not_before: None,
            outcome: None,
            touched: Timestamp::EPOCH,
            payload: Bytes::new(),
            retry: None,
            progress: None,
        }
    }

    /// Whether it depends on this one, by whatever rule.
    #[must_use]
    pub fn depends_on(&self, id: &TaskId) -> bool {
        self.deps.iter().any(|dep| dep.id == *id)
    }

    /// How many attempts are left, not counting one that is being made; `None` if the task is not tried again at all.
    #[must_use]
    pub fn attempts_left(&self) -> Option<u32> {
        self.retry.map(|retry| retry.attempts.saturating_sub(self.attempts))
    }
}
