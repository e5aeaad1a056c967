//! What the handler of a worker sees, and what it may answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::handle::Wish;
use crate::board::task::{Outcome, Task, limits};
use crate::hold::{Hold, Lost};

/// A claimed task, as its handler sees it. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Job {
    pub(super) task: Arc<Task>,
    pub(super) fence: u64,
    pub(super) hold: Arc<Hold>,
    pub(super) wish: watch::Receiver<Wish>,
    pub(super) progress: watch::Sender<String>,
}

impl Job {
    /// The task.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Larger than every fence that was given for this task before. Hand it to whatever the task writes to, and let that refuse smaller
    /// ones than it has seen.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Waits until the lease is lost, and says why. From then on nothing may be done in the name of this claim.
    pub async fn lost(&self) -> Lost {
        self.hold.lost().await
    }

    /// Whether the lease is lost: it reads the clock, and needs nobody else to run.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost()
    }

    /// How much time is left until the lease is lost, unless it is renewed before.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Tells the board how far the task is, shown as [`Task::progress`]. It returns at once: the last text is told, at most one a second,
    /// and nobody minds if it cannot be. A text of more than 512 bytes is cut.
    pub fn progress(&self, text: impl AsRef<str>) {
        let text = text.as_ref();
        let text = &text[..text.floor_char_boundary(limits::PROGRESS_BYTES)];
        self.progress.send_replace(text.to_owned());
    }

    /// Waits until the worker wants its task back, because it stops: its grace is over, or it was told to
    /// [`stop`](super::WorkerHandle::stop). A handler that answers within the [`notice`](super::Worker::notice) is heard, whatever it
    /// answers; the task of one that does not is released.
    pub async fn stopping(&self) {
        Wish::Stop.is_wished(&mut self.wish.clone()).await;
    }
}

/// What a handler answers. A `Result` is one too: an outcome completes the task, an error fails it with its text as the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The task is done.
    Complete(Outcome),
    /// This attempt has failed: the task is tried again if it has attempts left, and has failed otherwise.
    Fail(Outcome),
    /// The task is given back as if it had not been claimed; whoever comes next may claim it at once.
    Release,
}

impl<E: fmt::Display> From<Result<Outcome, E>> for Answer {
    fn from(came: Result<Outcome, E>) -> Self {
        match came {
            Ok(outcome) => Answer::Complete(outcome),
            Err(error) => Answer::Fail(Outcome::truncated(&error.to_string())),
        }
    }
}
