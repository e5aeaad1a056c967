//! Why a verb of a board did not do what it was asked.

use super::Verb;
use super::task::{AgentId, State, TaskId};
use crate::cas::TtlError;
use crate::clock::Timestamp;
use crate::codec::DamagedRecord;
use crate::error::BackendError;
use crate::token::Token;

/// Why a verb did not do what it was asked. One set for every implementation of a board.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BoardError {
    /// There is no such task.
    #[error("there is no task {id:?}")]
    NotFound {
        /// The task.
        id: TaskId,
    },
    /// The task is done, failed, cancelled or skipped.
    #[error("the task is {state}")]
    Terminal {
        /// Its state.
        state: State,
    },
    /// Somebody holds the task.
    #[error("the task is held by {owner:?}{}", until_text(*.until))]
    Taken {
        /// Who.
        owner: AgentId,
        /// Until when, in the store's time; `None` if for ever. May have passed where an operator has to revoke first.
        until: Option<Timestamp>,
        /// Under which fence: what `revoke` wants to know.
        fence: u64,
    },
    /// The task may not be claimed yet.
    #[error("the task may not be claimed before {until}")]
    NotYet {
        /// From when on it may.
        until: Timestamp,
    },
    /// Dependencies are not done.
    #[error(
        "the task waits for {} task(s): {} not done, {} failed or cancelled, {} missing",
        .pending.len() + .failed.len() + .missing.len(), .pending.len(), .failed.len(), .missing.len()
    )]
    Blocked {
        /// Those that are open or claimed.
        pending: Vec<TaskId>,
        /// Those that ended otherwise than their rules want. Those that failed or were cancelled somebody may reopen.
        failed: Vec<TaskId>,
        /// Those that do not exist.
        missing: Vec<TaskId>,
    },
    /// The token does not, or no longer, hold the task. Also: the fence is not that of the standing claim.
    #[error("the lease is lost; the task's fence is now {current_fence}")]
    LeaseLost {
        /// The fence that was given last.
        current_fence: u64,
    },
    /// There is a task of this name with another definition.
    #[error("there is a task {id:?} already, with another definition")]
    AlreadyExists {
        /// The task.
        id: TaskId,
    },
    /// A dependency names a task that does not exist.
    #[error("the dependency {id:?} does not exist")]
    UnknownDep {
        /// The task that is named.
        id: TaskId,
    },
    /// Tasks would wait for each other.
    #[error("the dependencies form a cycle: {}", path_text(.path))]
    Cycle {
        /// The cycle, each task depending on the next; the first one is repeated at the end.
        path: Vec<TaskId>,
    },
    /// Other tasks depend on the task, so that it cannot be removed; or one has begun because it failed or was cancelled, so that it
    /// cannot be reopened.
    #[error("the task {dependent:?} depends on it")]
    HasDependents {
        /// One that does.
        dependent: TaskId,
    },
    /// The task has changed since the caller looked.
    #[error("the task has changed: its seq is now {current_seq}")]
    SeqMismatch {
        /// Its seq now.
        current_seq: u64,
    },
    /// Something is larger than a board holds.
    #[error("{what} is too large: {size}, at most {limit}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// How large it is.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// The request makes no sense.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// What is stored under one of the board's keys was not written by a board, or by one that this version understands.
    #[error("the record under {key:?} cannot be read")]
    Malformed {
        /// The key.
        key: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync + 'static>,
    },
    /// Others kept changing the same records. Nothing has happened; try again later.
    #[error("gave up after {attempts} conflicts with other clients")]
    TxnConflict {
        /// How often it was tried.
        attempts: u32,
    },
    /// It may have happened, or may yet, and nobody can tell any more from within this call.
    #[error("whether {verb} of {id:?} has happened is unknown")]
    OutcomeUnknown {
        /// The verb.
        verb: Verb,
        /// The task; the first one for a plan.
        id: TaskId,
        /// The token that the verb presented or, for a claim, would have given: if it has happened, this token holds the lease.
        token: Option<Token>,
    },
    /// The store failed, and nothing has happened.
    #[error("the store failed")]
    Backend(#[from] BackendError),
}

impl From<TtlError> for BoardError {
    fn from(error: TtlError) -> Self {
        BoardError::Invalid(error.to_string())
    }
}

impl From<DamagedRecord> for BoardError {
    fn from(DamagedRecord { key, source }: DamagedRecord) -> Self {
        BoardError::Malformed { key, source }
    }
}

fn until_text(until: Option<Timestamp>) -> String {
    until.map_or_else(|| " until released".to_owned(), |until| format!(" until {until}"))
}

fn path_text(path: &[TaskId]) -> String {
    path.iter().map(|id| format!("{id:?}")).collect::<Vec<_>>().join(" -> ")
}
