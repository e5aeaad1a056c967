//! One claim of a worker: kept alive, attended to, and told of.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::event::{Settled, WorkerEvent};
use super::handle::Wish;
use super::job::Answer;
use super::{Options, is_transient};
use crate::board::task::{Outcome, Task};
use crate::board::{BoardError, ExtendedBoard};
use crate::cas::Backoff;
use crate::hold::{Hold, Renewed};
use crate::panic::panic_text;
use crate::token::Token;

/// For how long it is tried to give a task back: its lease ends by itself.
const RELEASE: Duration = Duration::from_secs(3);

/// How long passes between two words of progress at least.
const PROGRESS: Duration = Duration::from_secs(1);

/// A task that ends with what holds it.
struct Aborted<T>(JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A claim that a worker holds.
#[derive(Clone)]
pub(super) struct Claimed {
    pub(super) board: Arc<dyn ExtendedBoard>,
    pub(super) task: Arc<Task>,
    pub(super) fence: u64,
    pub(super) token: Token,
    pub(super) hold: Arc<Hold>,
    pub(super) options: Options,
}

impl Claimed {
    /// Attends to the claim to its end.
    pub(super) async fn work<F>(
        self,
        handling: F,
        sent: Duration,
        mut wish: watch::Receiver<Wish>,
        progress: watch::Receiver<String>,
    ) -> Settled
    where
        F: Future<Output: Into<Answer> + Send + 'static> + Send + 'static,
    {
        let renewing = Aborted(tokio::spawn(self.clone().keep_alive(sent)));
        let telling = Aborted(tokio::spawn(self.clone().tell_progress(progress)));
        let answer = self.attend(handling, &mut wish).await;
        drop(telling);
        let (how, said) = match answer {
            Some(answer) => self.tell(answer).await,
            None => (Settled::Lost, None),
        };
        drop(renewing);
        let settled = WorkerEvent::Settled { task: &self.task, fence: self.fence, how, said: said.as_ref() };
        self.options.observer.see(settled);
        how
    }

    /// Tells how far the task is, as often as there is something new and not more often than once in [`PROGRESS`].
    async fn tell_progress(self, mut progress: watch::Receiver<String>) {
        while progress.changed().await.is_ok() {
            let text = progress.borrow_and_update().clone();
            match self.board.progress(&self.task.id, &self.token, &text).await {
                Ok(()) => {}
                // Whoever renews will notice as well.
                Err(BoardError::LeaseLost { .. } | BoardError::NotFound { .. }) => return,
                Err(error) => tracing::debug!(task = %self.task.id, %error, "progress could not be told"),
            }
            self.options.clock.sleep(PROGRESS).await;
        }
    }

    /// Renews the lease until it is lost.
    async fn keep_alive(self, sent: Duration) {
        let renew = async || {
            let renewed = self.board.renew(&self.task.id, &self.token, self.options.ttl).await;
            Renewed::of(renewed, is_transient, &self.task.id)
        };
        self.hold.keep_alive(self.options.ttl, sent, renew).await;
    }

    /// What is to be told to the board; `None` if nothing may be, for the lease is lost.
    async fn attend<F>(&self, handling: F, wish: &mut watch::Receiver<Wish>) -> Option<Answer>
    where
        F: Future<Output: Into<Answer> + Send + 'static> + Send + 'static,
    {
        let clock = &*self.options.clock;
        let began = clock.monotonic();
        let mut handler = Aborted(tokio::spawn(async move { handling.await.into() }));
        let limit = async {
            match self.options.time_limit {
                Some(limit) => clock.sleep_until(began.saturating_add(limit)).await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = &mut handler.0 => answer.unwrap_or_else(ended),
            _ = self.hold.lost() => {
                self.notice(&mut handler).await;
                return None;
            }
            () = Wish::Stop.is_wished(wish) => match self.notice(&mut handler).await {
                Some(answer) => answer,
                None => {
                    // First nothing runs any more, then the task is somebody else's.
                    let _ = (&mut handler.0).await;
                    Answer::Release
                }
            },
            () = limit => {
                handler.0.abort();
                let _ = (&mut handler.0).await;
                let limit = self.options.time_limit.unwrap_or_default();
                Answer::Fail(Outcome::truncated(&format!("ran out of time after {limit:?}")))
            }
        };
        // A task that was worked on to its end is told of also then: nobody may have taken it over yet. One that is only given back is not.
        if answer == Answer::Release && self.hold.is_lost() { None } else { Some(answer) }
    }

    /// Lets a handler answer that was told that its lease is lost or the worker stops; then its future is dropped.
    async fn notice(&self, handler: &mut Aborted<Answer>) -> Option<Answer> {
        tokio::select! {
            biased;
            answer = &mut handler.0 => Some(answer.unwrap_or_else(ended)),
            () = self.options.clock.sleep(self.options.notice) => {
                handler.0.abort();
                None
            }
        }
    }

    async fn say(&self, answer: &Answer) -> Result<(Settled, Option<Outcome>), BoardError> {
        let (id, token) = (&self.task.id, &self.token);
        Ok(match answer {
            Answer::Complete(outcome) => {
                (Settled::Completed, Some(self.board.complete(id, token, outcome.clone()).await?))
            }
            Answer::Fail(reason) => {
                (Settled::Failed, Some(self.board.fail(id, token, reason.clone()).await?))
            }
            Answer::Release => {
                self.board.release(id, token).await?;
                (Settled::Released, None)
            }
        })
    }

    /// Tells the board. The same token may say it as often as it likes, so whatever is no answer is asked again; the lease is renewed
    /// meanwhile.
    async fn tell(&self, answer: Answer) -> (Settled, Option<Outcome>) {
        let (clock, id) = (&*self.options.clock, &self.task.id);
        let bound = match answer {
            Answer::Release => RELEASE.min(self.options.settle_for),
            _ => self.options.settle_for,
        };
        let end = clock.monotonic().saturating_add(bound);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        let said = || match &answer {
            Answer::Complete(outcome) | Answer::Fail(outcome) => Some(outcome.clone()),
            Answer::Release => None,
        };
        loop {
            let error = match self.say(&answer).await {
                Ok(told) => return told,
                Err(error) => error,
            };
            if !is_transient(&error) {
                tracing::warn!(task = %id, %error, "what came of a task was refused");
                if !matches!(error, BoardError::LeaseLost { .. } | BoardError::NotFound { .. }) {
                    self.trouble(&error);
                }
                return (Settled::Lost, said());
            }
            self.trouble(&error);
            if clock.monotonic() >= end {
                tracing::warn!(task = %id, %error, "the board could not be told what came of a task");
                return (Settled::Unsettled, said());
            }
            tracing::debug!(task = %id, %error, "the board could not be told yet");
            backoff.wait(clock).await;
        }
    }

    fn trouble(&self, error: &BoardError) {
        self.options.observer.see(WorkerEvent::Trouble { task: Some(&self.task.id), error });
    }
}

fn ended(error: tokio::task::JoinError) -> Answer {
    if !error.is_panic() {
        // Only a runtime that shuts down cancels it, and then nobody is told.
        return Answer::Fail(Outcome::truncated("was cancelled"));
    }
    panicked(&*error.into_panic())
}

/// The answer of a handler that panicked.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Answer {
    Answer::Fail(Outcome::truncated(&format!("panicked: {}", panic_text(panic))))
}
