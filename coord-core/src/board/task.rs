//! The types of a task board: tasks, states, leases, plans.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::BoardError;
use super::dep::{Dep, Rule};
use super::progress::Progress;
use super::retry::Retry;
use crate::clock::Timestamp;
use crate::text::text_type;
use crate::token::{RequestId, Token};

/// The limits of a board, the same on every backend.
pub mod limits {
    /// The longest task id, in bytes.
    pub const ID_BYTES: usize = 200;
    /// The longest agent name, in bytes.
    pub const AGENT_BYTES: usize = 200;
    /// The longest title, in bytes.
    pub const TITLE_BYTES: usize = 4_096;
    /// The longest outcome, in bytes. Heads stay small, so that a board of 9,999 tasks is listed at one instant.
    pub const OUTCOME_BYTES: usize = 512;
    /// The most dependencies of one task, so that every change of the graph stays one transaction.
    pub const DEPENDENCIES: usize = 1_024;
    /// The most dependencies of one task that have another rule than to be done: a claim pins those that failed or were cancelled.
    pub const RULED_DEPENDENCIES: usize = 40;
    /// The most labels of one task.
    pub const LABELS: usize = 64;
    /// The longest label, in bytes.
    pub const LABEL_BYTES: usize = 200;
    /// The largest payload, in bytes.
    pub const PAYLOAD_BYTES: usize = 256 * 1_024;
    /// The longest progress, in bytes.
    pub const PROGRESS_BYTES: usize = 512;
    /// How many events the history of a task keeps.
    pub const HISTORY_EVENTS: usize = 32;
    /// The longest text of an event, in bytes.
    pub const EVENT_BYTES: usize = 120;
    /// The most tasks that [`list`](super::super::Board::list) returns at one instant.
    pub const LISTED_TASKS: usize = 9_999;
    /// The most tasks of which somebody may wait for the first one to end.
    pub const AWAITED: usize = 1_024;
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $limit:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            #[doc = concat!("A checked ", $what, ".")]
            ///
            /// # Errors
            /// [`BoardError::Invalid`] if it is empty or contains NUL, [`BoardError::TooLarge`] if it has more than 200 bytes.
            pub fn new(text: impl AsRef<str>) -> Result<Self, BoardError> {
                let name = $name::unchecked(text);
                name.validate()?;
                Ok(name)
            }

            /// One that is checked by whoever uses it: verbs refuse a bad one, [`check`](super::check()) reports it.
            #[must_use]
            pub fn unchecked(text: impl AsRef<str>) -> Self {
                $name(text.as_ref().into())
            }

            /// Checks the limits.
            ///
            /// # Errors
            /// As [`new`](Self::new).
            pub fn validate(&self) -> Result<(), BoardError> {
                if self.0.is_empty() {
                    return Err(BoardError::Invalid(concat!("the ", $what, " is empty").into()));
                }
                if self.0.contains('\0') {
                    return Err(BoardError::Invalid(concat!("the ", $what, " contains a NUL character").into()));
                }
                if self.0.len() > $limit {
                    return Err(BoardError::TooLarge {
                        what: concat!("the ", $what),
                        size: self.0.len(),
                        limit: $limit,
                    });
                }
                Ok(())
            }
        }

        text_type!($name, BoardError);
    };
}

name_type! {
    /// The name of a task: 1 to 200 bytes of UTF-8 without NUL, compared as bytes.
    TaskId, "task id", limits::ID_BYTES
}

name_type! {
    /// The name of whoever claims: 1 to 200 bytes of UTF-8 without NUL. It is shown to people and proves nothing; the token does.
    AgentId, "agent name", limits::AGENT_BYTES
}

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

/// The definition of a task to be added.
///
/// ```
/// use coord_core::board::{TaskId, TaskSpec};
///
/// let build = TaskId::new("build")?;
/// let test = TaskSpec::new(TaskId::new("test")?).title("Run the tests").dep(build).label("ci").priority(5);
/// assert_eq!(test.deps.len(), 1);
/// # Ok::<(), coord_core::board::BoardError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskSpec {
    /// As [`Task::id`].
    pub id: TaskId,
    /// As [`Task::title`]; at most 4,096 bytes.
    pub title: String,
    /// As [`Task::deps`]; at most 1,024, of which at most 40 have another rule than [`Rule::Done`].
    pub deps: Vec<Dep>,
    /// As [`Task::labels`]; at most 64 of at most 200 bytes.
    pub labels: Vec<String>,
    /// As [`Task::priority`].
    pub priority: i32,
    /// As [`Task::not_before`].
    pub not_before: Option<Timestamp>,
    /// As [`Task::payload`]; at most 256 KiB.
    pub payload: Bytes,
    /// As [`Task::retry`].
    #[serde(default)]
    pub retry: Option<Retry>,
}

impl TaskSpec {
    /// A task without title, dependencies, labels and payload, of priority 0.
    #[must_use]
    pub fn new(id: TaskId) -> Self {
        TaskSpec {
            id,
            title: String::new(),
            deps: Vec::new(),
            labels: Vec::new(),
            priority: 0,
            not_before: None,
            payload: Bytes::new(),
            retry: None,
        }
    }

    /// With this title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// With one more dependency.
    #[must_use]
    pub fn dep(mut self, dep: impl Into<Dep>) -> Self {
        self.deps.push(dep.into());
        self
    }

    /// With these dependencies more.
    #[must_use]
    pub fn deps(mut self, deps: impl IntoIterator<Item = impl Into<Dep>>) -> Self {
        self.deps.extend(deps.into_iter().map(Into::into));
        self
    }

    /// With one more label.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.labels.push(label.into());
        self
    }

    /// With this priority.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Not to be claimed before this time, in the store's time.
    #[must_use]
    pub fn not_before(mut self, time: Timestamp) -> Self {
        self.not_before = Some(time);
        self
    }

    /// With this payload.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Tried as often as this says.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Checks everything that can be checked without the board.
    ///
    /// # Errors
    /// [`BoardError::Invalid`], [`BoardError::TooLarge`], or [`BoardError::Cycle`] if the task depends on itself.
    pub fn validate(&self) -> Result<(), BoardError> {
        let too_large = |what, size, limit| Err(BoardError::TooLarge { what, size, limit });
        self.id.validate()?;
        if self.title.len() > limits::TITLE_BYTES {
            return too_large("the title", self.title.len(), limits::TITLE_BYTES);
        }
        if self.labels.len() > limits::LABELS {
            return too_large("the number of labels", self.labels.len(), limits::LABELS);
        }
        for label in &self.labels {
            if label.is_empty() {
                return Err(BoardError::Invalid("a label is empty".into()));
            }
            if label.len() > limits::LABEL_BYTES {
                return too_large("a label", label.len(), limits::LABEL_BYTES);
            }
        }
        if self.payload.len() > limits::PAYLOAD_BYTES {
            return too_large("the payload", self.payload.len(), limits::PAYLOAD_BYTES);
        }
        self.retry.map_or(Ok(()), |retry| retry.validate())?;
        validate_deps(&self.id, &self.deps)
    }
}

/// Checks the dependencies of a task as far as that goes without the board.
pub(crate) fn validate_deps(id: &TaskId, deps: &[Dep]) -> Result<(), BoardError> {
    if deps.len() > limits::DEPENDENCIES {
        return Err(BoardError::TooLarge {
            what: "the number of dependencies",
            size: deps.len(),
            limit: limits::DEPENDENCIES,
        });
    }
    let ruled = deps.iter().filter(|dep| dep.rule != Rule::Done).count();
    if ruled > limits::RULED_DEPENDENCIES {
        return Err(BoardError::TooLarge {
            what: "the number of dependencies that need not be done",
            size: ruled,
            limit: limits::RULED_DEPENDENCIES,
        });
    }
    let mut seen = BTreeSet::new();
    for Dep { id: dep, .. } in deps {
        dep.validate()?;
        if dep == id {
            return Err(BoardError::Cycle { path: vec![id.clone(), id.clone()] });
        }
        if !seen.insert(dep) {
            return Err(BoardError::Invalid(format!("the dependency {dep:?} is named twice")));
        }
    }
    Ok(())
}

/// Which tasks [`claim_next`](super::ExtendedBoard::claim_next) may take, by their labels.
///
/// ```
/// use coord_core::board::Filter;
///
/// let filter = Filter::any().with_label("linux").with_any_of(["gpu", "tpu"]).without_label("flaky");
/// assert!(filter.matches(&["linux".into(), "gpu".into()]));
/// assert!(!filter.matches(&["linux".into()]));
/// assert!(!filter.matches(&["linux".into(), "gpu".into(), "flaky".into()]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// The task must have all of these labels.
    pub labels: Vec<String>,
    /// Of these, if there are any, the task must have at least one.
    pub any_of: Vec<String>,
    /// The task must have none of these.
    pub none_of: Vec<String>,
}

impl Filter {
    /// Every task.
    #[must_use]
    pub fn any() -> Self {
        Filter::default()
    }

    /// The task must also have this label.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.labels.push(label.into());
        self
    }

    /// The task must have one of these labels, or of those that were given so before.
    #[must_use]
    pub fn with_any_of(mut self, labels: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.any_of.extend(labels.into_iter().map(Into::into));
        self
    }

    /// The task must not have this label.
    #[must_use]
    pub fn without_label(mut self, label: impl Into<String>) -> Self {
        self.none_of.push(label.into());
        self
    }

    /// Whether every task passes.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.labels.is_empty() && self.any_of.is_empty() && self.none_of.is_empty()
    }

    /// Whether a task with these labels passes.
    #[must_use]
    pub fn matches(&self, labels: &[String]) -> bool {
        self.labels.iter().all(|label| labels.contains(label))
            && (self.any_of.is_empty() || self.any_of.iter().any(|label| labels.contains(label)))
            && !self.none_of.iter().any(|label| labels.contains(label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TaskId {
        TaskId::new(text).unwrap()
    }

    #[test]
    fn limits_are_exact() {
        let spec = || TaskSpec::new(id("t"));
        let deps = |n: usize| (0..n).map(|n| id(&format!("d{n}"))).collect::<Vec<_>>();
        assert!(TaskId::new("i".repeat(200)).is_ok());
        assert!(
            spec()
                .deps(deps(1_024))
                .title("t".repeat(4_096))
                .payload(vec![0; 256 * 1_024])
                .validate()
                .is_ok()
        );
        for (what, bad) in [
            ("id", TaskId::new("i".repeat(201)).map(|_| ())),
            ("deps", spec().deps(deps(1_025)).validate()),
            ("title", spec().title("t".repeat(600 * 1_024)).validate()),
            ("payload", spec().payload(vec![0; 256 * 1_024 + 1]).validate()),
            ("label", spec().label("l".repeat(201)).validate()),
            ("outcome", Outcome::new("o".repeat(513)).map(|_| ())),
        ] {
            assert!(matches!(bad, Err(BoardError::TooLarge { .. })), "{what}: {bad:?}");
        }
        for bad in [TaskId::new(""), TaskId::new("a\0")] {
            assert!(matches!(bad, Err(BoardError::Invalid(_))), "{bad:?}");
        }
        assert!(matches!(spec().dep(id("t")).validate(), Err(BoardError::Cycle { .. })));
        assert!(matches!(spec().dep(id("a")).dep(id("a")).validate(), Err(BoardError::Invalid(_))));
        assert_eq!(Outcome::truncated(&"é".repeat(300)).as_str().len(), 512);
    }
}
