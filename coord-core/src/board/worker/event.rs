//! What a worker says while it works, and in the end.

use std::fmt;

use crate::board::BoardError;
use crate::board::task::{Outcome, Task, TaskId};

/// How a claim of a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Settled {
    /// The task is done.
    Completed,
    /// The attempt failed, panicked or ran out of time, and the board was told.
    Failed,
    /// The task was given back.
    Released,
    /// The lease was lost: whatever the handler did, the board did not take it.
    Lost,
    /// The board could not be told in time. The claim ends with its lease.
    Unsettled,
}

/// What happens to a worker, for whoever [observes](super::Worker::observe) it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum WorkerEvent<'a> {
    /// It has claimed a task, and calls its handler next.
    Claimed {
        /// The task.
        task: &'a Task,
        /// The fence of the claim.
        fence: u64,
    },
    /// A claim has ended.
    Settled {
        /// The task, as it was when it was claimed.
        task: &'a Task,
        /// The fence of the claim.
        fence: u64,
        /// How.
        how: Settled,
        /// What the board was told of it, or was to be told.
        said: Option<&'a Outcome>,
    },
    /// It found less than it could run, and looks again later.
    Idle,
    /// Something did not work; it goes on.
    Trouble {
        /// The task that it tells the board of; `None` while it looks for one.
        task: Option<&'a TaskId>,
        /// What.
        error: &'a BoardError,
    },
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Tasks that it claimed.
    pub claimed: u64,
    /// Tasks that it completed.
    pub completed: u64,
    /// Attempts that failed, panicked or ran out of time, and of which the board was told.
    pub failed: u64,
    /// Tasks that it gave back, because it was told to stop or its handler wanted it so.
    pub released: u64,
    /// Tasks whose lease was lost, so that nothing was told.
    pub lost: u64,
    /// Tasks of which the board could not be told in time. Their claims end with their leases.
    pub unsettled: u64,
}

impl WorkerReport {
    pub(super) fn count(&mut self, ended: Result<Settled, tokio::task::JoinError>) {
        let counter = match ended {
            Ok(Settled::Completed) => &mut self.completed,
            Ok(Settled::Failed) => &mut self.failed,
            Ok(Settled::Released) => &mut self.released,
            Ok(Settled::Lost) => &mut self.lost,
            // Nothing of ours panics; a claim whose task did ends with its lease.
            Ok(Settled::Unsettled) | Err(_) => &mut self.unsettled,
        };
        *counter += 1;
    }
}

type Watching = dyn Fn(WorkerEvent<'_>) + Send + Sync;

/// Whoever observes a worker, if anybody does.
#[derive(Clone, Default)]
pub(super) struct Observer(pub(super) Option<std::sync::Arc<Watching>>);

impl Observer {
    pub(super) fn see(&self, event: WorkerEvent<'_>) {
        if let Some(observe) = &self.0 {
            observe(event);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer(..)" } else { "Observer" })
    }
}
