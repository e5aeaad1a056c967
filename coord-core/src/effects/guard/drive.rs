//! The task of a run: from the acquire to the settled outcome, whether or not somebody still waits for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::{
    Action, ActionState, ActionStatus, Completed, EffectError, EffectStore, Episode, Holder, Lease, Note,
    Outcome,
};
use super::act::{self, Acting, Ended, Held, RunContext, Start};
use super::hold::{is_transient, keep_alive};
use super::options::{OnDrop, RunOptions, Wait};
use super::outcome::{Doubt, Failure, RunOutcome};
use crate::cas::Backoff;
use crate::hold::{Hold, Lost};

type Answer<E> = oneshot::Sender<Result<RunOutcome<E>, EffectError>>;

pub(super) async fn drive<F, A, E>(
    store: Arc<dyn EffectStore>,
    action: Action,
    options: RunOptions,
    held: Held,
    act: F,
    start: Arc<Start>,
    mut answer: Answer<E>,
) where
    F: FnOnce(RunContext) -> A + Send + 'static,
    A: Future<Output = Result<Bytes, Failure<E>>> + Send + 'static,
    E: fmt::Display + Send + 'static,
{
    let (lease, sent) = match obtain(&*store, &action, &options, &held, &mut answer).await {
        Obtained::Lease(lease, sent) => (lease, sent),
        Obtained::Answer(outcome) => return tell(answer, outcome),
        Obtained::Nobody => return,
    };
    let hold = Arc::new(Hold::new(options.clock.clone(), options.trusted(), sent));
    let beat = keep_alive(store.clone(), action.clone(), lease.clone(), options.ttl, hold.clone(), sent);
    let attempt = Attempt {
        store: store.clone(),
        action,
        lease: lease.clone(),
        hold: hold.clone(),
        heartbeat: Heartbeat(tokio::spawn(beat)),
        options,
    };
    let context = RunContext::new(store, lease, hold);
    match act::start(act, context, held, start.clone(), attempt.options.place) {
        Ok(acting) => attempt.attend(acting, &start, answer).await,
        Err(error) => {
            attempt.withdraw("there is no thread to do it").await.ok();
            tell(answer, Err(EffectError::Invalid(format!("there is no thread to act: {error}"))));
        }
    }
}

/// Nobody may be waiting for the answer any more.
fn tell<E>(answer: Answer<E>, outcome: Result<RunOutcome<E>, EffectError>) {
    let _ = answer.send(outcome);
}

enum Obtained<E> {
    /// Granted, asked for at this instant.
    Lease(Lease, Duration),
    Answer(Result<RunOutcome<E>, EffectError>),
    /// The caller is gone, and nothing is held.
    Nobody,
}

async fn obtain<E>(
    store: &dyn EffectStore,
    action: &Action,
    options: &RunOptions,
    held: &Held,
    answer: &mut Answer<E>,
) -> Obtained<E> {
    let clock = &*options.clock;
    let begin = clock.monotonic();
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let mut heard = None;
    loop {
        let sent = clock.monotonic();
        let asked = store.acquire(action, options.ttl).await;
        // Whoever waits already is not sent away because the store is, for a moment. Nothing has happened then.
        if let (Err(EffectError::Backend(error)), Some(last)) = (&asked, heard)
            && error.is_retryable()
            && clock.monotonic().saturating_sub(last) < options.settle_for
        {
            tracing::debug!(key = %action.key, %error, "the store is away while somebody waits");
            tokio::select! {
                biased;
                () = answer.closed() => return Obtained::Nobody,
                () = backoff.wait(clock) => {}
            }
            continue;
        }
        heard = Some(clock.monotonic());
        let (limit, outcome) = match asked {
            Err(error) => return Obtained::Answer(Err(error)),
            Ok(Outcome::Granted(lease)) => return Obtained::Lease(lease, sent),
            Ok(Outcome::Completed(completed)) => {
                return Obtained::Answer(Ok(RunOutcome::Replayed(completed)));
            }
            Ok(Outcome::Uncertain(info)) => return Obtained::Answer(Ok(earlier(info))),
            Ok(Outcome::InFlight(holder)) if !act::is_own(held, &holder) => match options.wait {
                Wait::ForOutcome(limit) => {
                    return outcome_of(store, action, options, limit, holder, answer).await;
                }
                Wait::ForTurn(limit) => (limit, RunOutcome::InFlight(holder)),
                Wait::No => return Obtained::Answer(Ok(RunOutcome::InFlight(holder))),
            },
            Ok(Outcome::InFlight(holder)) => return Obtained::Answer(Ok(RunOutcome::InFlight(holder))),
            Ok(Outcome::Contended(holder)) => match options.wait {
                Wait::ForTurn(limit) if !act::is_own(held, &holder) => (limit, RunOutcome::Contended(holder)),
                _ => return Obtained::Answer(Ok(RunOutcome::Contended(holder))),
            },
        };
        let left = limit.saturating_sub(clock.monotonic().saturating_sub(begin));
        if left.is_zero() {
            return Obtained::Answer(Ok(outcome));
        }
        tokio::select! {
            biased;
            () = answer.closed() => return Obtained::Nobody,
            () = backoff.wait(clock) => {}
            // The last look is at the limit.
            () = clock.sleep_until(begin.saturating_add(limit)) => {}
        }
    }
}

fn earlier<E>(info: super::super::Uncertain) -> RunOutcome<E> {
    RunOutcome::Uncertain { episode: Ok(info.episode), doubt: Doubt::Earlier(info) }
}

/// Waits for what comes of another attempt. Nothing here asks to do the action.
async fn outcome_of<E>(
    store: &dyn EffectStore,
    action: &Action,
    options: &RunOptions,
    limit: Duration,
    mut holder: Holder,
    answer: &mut Answer<E>,
) -> Obtained<E> {
    let clock = &*options.clock;
    let begin = clock.monotonic();
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    loop {
        let left = limit.saturating_sub(clock.monotonic().saturating_sub(begin));
        if left.is_zero() {
            return Obtained::Answer(Ok(RunOutcome::InFlight(holder)));
        }
        tokio::select! {
            biased;
            () = answer.closed() => return Obtained::Nobody,
            () = backoff.wait(clock) => {}
            () = clock.sleep_until(begin.saturating_add(limit)) => {}
        }
        let status = match store.get(&action.key).await {
            Ok(Some(status)) => status,
            // It was withdrawn and forgotten.
            Ok(None) => return Obtained::Answer(Ok(RunOutcome::InFlight(holder))),
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Obtained::Answer(Err(error)),
        };
        if !is_same(&status.action, action) {
            let (key, state) = (action.key.clone(), status.state);
            return Obtained::Answer(Err(EffectError::Mismatch { key, state }));
        }
        match status {
            ActionStatus {
                state: ActionState::Completed,
                replay: Some(replay),
                completed: Some(kept),
                ..
            } => {
                let completed = Completed::new(replay, kept.at, kept.maybe_twice);
                return Obtained::Answer(Ok(RunOutcome::Replayed(completed)));
            }
            ActionStatus { state: ActionState::Uncertain, uncertain: Some(info), .. } => {
                return Obtained::Answer(Ok(earlier(info)));
            }
            ActionStatus { state: ActionState::Idle, .. } => {
                return Obtained::Answer(Ok(RunOutcome::InFlight(holder)));
            }
            status => {
                holder.fence = status.fence;
                holder.agent = status.agent;
                holder.until = status.hold_until.unwrap_or(holder.until);
            }
        }
    }
}

/// As an acquire would judge it.
fn is_same(theirs: &Action, ours: &Action) -> bool {
    theirs.resource == ours.resource
        && match (&theirs.fingerprint, &ours.fingerprint) {
            (Some(theirs), Some(ours)) => theirs.is_same_action(ours),
            (None, None) => true,
            _ => false,
        }
}

/// Ends with whoever holds it.
struct Heartbeat(JoinHandle<()>);

impl Heartbeat {
    fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A granted attempt.
struct Attempt {
    store: Arc<dyn EffectStore>,
    action: Action,
    lease: Lease,
    hold: Arc<Hold>,
    heartbeat: Heartbeat,
    options: RunOptions,
}

impl Attempt {
    /// Waits for the closure, for the time limit or for the caller to leave, and settles.
    async fn attend<E: fmt::Display>(self, mut acting: Acting<E>, start: &Start, mut answer: Answer<E>) {
        let begin = self.options.clock.monotonic();
        let limited = async {
            match self.options.time_limit {
                Some(limit) => self.options.clock.sleep_until(begin.saturating_add(limit)).await,
                None => std::future::pending().await,
            }
        };
        let left = async {
            match self.options.on_drop {
                OnDrop::Abort => answer.closed().await,
                // A closure that was never polled ends by itself.
                OnDrop::Detach => std::future::pending().await,
            }
        };
        let given_up = tokio::select! {
            biased;
            ended = acting.end() => {
                let outcome = self.settle(ended).await;
                return tell(answer, outcome);
            }
            () = left => Lost::Aborted,
            () = limited => Lost::TimedOut,
        };
        if start.cancel() {
            let outcome = self.settle(Ended::NotStarted).await;
            return tell(answer, outcome);
        }
        self.hold.lose(given_up);
        self.heartbeat.stop();
        if given_up == Lost::Aborted {
            acting.abort();
        }
        let doubt = match given_up {
            Lost::Aborted => "the caller left and it was aborted".to_owned(),
            _ => Doubt::<E>::TimedOut.to_string(),
        };
        // Who waits is told after one try; the store may be away for longer.
        let mut marked = self.store.mark_uncertain(&self.action, &self.lease, &Note::truncated(&doubt)).await;
        let mut again = None;
        if marked.as_ref().is_err_and(is_transient) {
            again = Some(doubt);
        }
        if given_up == Lost::TimedOut {
            let episode = std::mem::replace(&mut marked, Err(EffectError::LeaseLost));
            tell(answer, Ok(RunOutcome::Uncertain { episode, doubt: Doubt::TimedOut }));
        }
        let ended = match again {
            Some(doubt) => tokio::select! {
                biased;
                ended = acting.end() => ended,
                _ = self.mark(&doubt) => acting.end().await,
            },
            None => acting.end().await,
        };
        // A closure that comes back after all knows more than the mark. Nobody waits for this any more: it is in the store.
        match ended {
            Ended::Returned(Ok(value)) => drop(self.complete(value).await),
            Ended::Returned(Err(Failure::NotApplied(error))) => drop(self.withdraw(&error.to_string()).await),
            _ => {}
        }
    }

    async fn settle<E: fmt::Display>(&self, ended: Ended<E>) -> Result<RunOutcome<E>, EffectError> {
        let doubt = match ended {
            Ended::Returned(Ok(value)) => {
                let answer = self.complete(value.clone()).await;
                return Ok(RunOutcome::of_value(value, answer));
            }
            Ended::Returned(Err(Failure::NotApplied(error))) => {
                let withdrawn = self.withdraw(&error.to_string()).await;
                return Ok(RunOutcome::Failed { error, withdrawn });
            }
            Ended::NotStarted => {
                let lost = self.hold.is_lost();
                self.withdraw("it was not begun").await?;
                let why = "the time limit passed, or the caller left, before the action was begun";
                return Err(if lost { EffectError::LeaseLost } else { EffectError::Invalid(why.into()) });
            }
            Ended::Returned(Err(Failure::Unknown(error))) => Doubt::Error(error),
            Ended::Panicked(text) => Doubt::Panicked(text),
            Ended::Aborted => Doubt::Panicked("aborted".to_owned()),
        };
        let episode = self.mark(&doubt.to_string()).await;
        Ok(RunOutcome::Uncertain { episode, doubt })
    }

    /// The lease is kept alive meanwhile: nobody should be granted the resource before the result is in.
    async fn complete(&self, value: Bytes) -> Result<Completed, EffectError> {
        self.insist(|| self.store.complete(&self.action, &self.lease, value.clone())).await
    }

    async fn mark(&self, reason: &str) -> Result<Episode, EffectError> {
        self.heartbeat.stop();
        let reason = Note::truncated(reason);
        self.insist(|| self.store.mark_uncertain(&self.action, &self.lease, &reason)).await
    }

    async fn withdraw(&self, reason: &str) -> Result<(), EffectError> {
        self.heartbeat.stop();
        let reason = Note::truncated(reason);
        self.insist(|| self.store.abandon(&self.action, &self.lease, &reason)).await
    }

    /// Sends a verb again while the store is away, within the bound.
    async fn insist<T, R>(&self, verb: impl Fn() -> R) -> Result<T, EffectError>
    where
        R: Future<Output = Result<T, EffectError>>,
    {
        let clock = &*self.options.clock;
        let begin = clock.monotonic();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            match verb().await {
                Err(error) if is_transient(&error) => {
                    if clock.monotonic().saturating_sub(begin) >= self.options.settle_for {
                        tracing::warn!(key = %self.action.key, %error, "what came of an action could not be recorded");
                        return Err(error);
                    }
                }
                settled => return settled,
            }
            backoff.wait(clock).await;
        }
    }
}
