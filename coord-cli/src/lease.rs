//! Keeping a lease alive, on a task of its own.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{BoardError, ExtendedBoard, TaskId};
use coord_core::{Clock, Token};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What is known of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// It is held until then, in the time of this process.
    Until(Duration),
    /// It is not held any more, or nobody knows.
    Lost,
}

/// Renews a lease at a third of its ttl, until it is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    state: watch::Receiver<Held>,
    task: JoinHandle<()>,
}

/// The time by which the holder stops before the lease ends.
fn margin(ttl: Duration) -> Duration {
    (ttl / 10).min(Duration::from_secs(1))
}

/// Until when a lease is surely held, if it was asked for at this local time.
pub(crate) fn sure_until(asked: Duration, ttl: Duration) -> Duration {
    asked.saturating_add(ttl).saturating_sub(margin(ttl))
}

impl Keeper {
    /// Keeps the lease of this token, which was asked for at the local time `asked`.
    pub(crate) fn start(
        board: Arc<dyn ExtendedBoard>,
        clock: Arc<dyn Clock>,
        id: TaskId,
        token: Token,
        ttl: Duration,
        asked: Duration,
    ) -> Self {
        let (sender, state) = watch::channel(Held::Until(sure_until(asked, ttl)));
        let task = tokio::spawn(async move { keep(&*board, &*clock, &id, &token, ttl, &sender).await });
        Keeper { state, task }
    }

    /// What is known now, and what changes.
    pub(crate) fn state(&self) -> watch::Receiver<Held> {
        self.state.clone()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    board: &dyn ExtendedBoard,
    clock: &dyn Clock,
    id: &TaskId,
    token: &Token,
    ttl: Duration,
    state: &watch::Sender<Held>,
) {
    let mut wait = ttl / 3;
    loop {
        let Held::Until(end) = *state.borrow() else { return };
        let rest = end.saturating_sub(clock.monotonic());
        clock.sleep(wait.min(rest)).await;
        let asked = clock.monotonic();
        if asked >= end {
            state.send_replace(Held::Lost);
            return;
        }
        // A store that does not answer must not keep the loss of the lease from being seen.
        let renewed = tokio::select! {
            renewed = board.renew(id, token, ttl) => renewed,
            () = clock.sleep(end - asked) => {
                state.send_replace(Held::Lost);
                return;
            }
        };
        match renewed {
            Ok(_) => {
                state.send_replace(Held::Until(sure_until(asked, ttl)));
                wait = ttl / 3;
            }
            Err(BoardError::LeaseLost { .. } | BoardError::NotFound { .. } | BoardError::Terminal { .. }) => {
                state.send_replace(Held::Lost);
                return;
            }
            Err(error) => {
                tracing::warn!(task = %id, %error, "the lease was not renewed; trying again");
                wait = (ttl / 12).max(Duration::from_millis(50));
            }
        }
    }
}
