//! A lease as its holder sees it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::cas::Backoff;
use crate::clock::Clock;

/// Why a lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// It was not renewed in time.
    Expired,
    /// The store refused to renew it: it expired there, was judged, or the resource was granted to somebody else.
    Refused,
    /// The time limit has passed.
    TimedOut,
    /// Whoever held it was told to stop.
    Aborted,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The instant, in the clock's monotonic time, from which on the lease counts as lost.
    deadline: Duration,
    lost: Option<Lost>,
}

/// The lease as its holder sees it. It is lost at the instant before its last successful acquire or renew was *sent*, plus the ttl, minus the
/// margin: the store cannot have judged earlier than that, so it grants the resource to nobody else before. Whoever asks judges by
/// the clock, so that no task has to run in time. Once lost it stays lost.
#[derive(Debug)]
pub(crate) struct Hold {
    clock: Arc<dyn Clock>,
    trusted: Duration,
    state: watch::Sender<State>,
}

impl Hold {
    /// A lease that was asked for at this instant of the clock's monotonic time, and may be acted on for so long after each renewal.
    pub(crate) fn new(clock: Arc<dyn Clock>, trusted: Duration, sent: Duration) -> Self {
        let state = State { deadline: sent.saturating_add(trusted), lost: None };
        Hold { clock, trusted, state: watch::Sender::new(state) }
    }

    /// A renewal that was sent then has succeeded. `false` if it came too late: the lease was lost before, and whoever was told so may rely on it.
    fn extend(&self, sent: Duration) -> bool {
        let now = self.clock.monotonic();
        let mut alive = false;
        self.state.send_if_modified(|state| {
            if state.lost.is_none() && now >= state.deadline {
                state.lost = Some(Lost::Expired);
                return true;
            }
            alive = state.lost.is_none();
            let deadline = sent.saturating_add(self.trusted);
            let later = alive && deadline > state.deadline;
            if later {
                state.deadline = deadline;
            }
            later
        });
        alive
    }

    pub(crate) fn lose(&self, why: Lost) {
        self.state.send_if_modified(|state| {
            let first = state.lost.is_none();
            state.lost.get_or_insert(why);
            first
        });
    }

    pub(crate) fn is_lost(&self) -> bool {
        let state = *self.state.borrow();
        if state.lost.is_some() {
            return true;
        }
        let over = self.clock.monotonic() >= state.deadline;
        if over {
            self.expire(state.deadline);
        }
        self.state.borrow().lost.is_some()
    }

    /// Lost by the clock, unless the deadline has moved since it was read.
    fn expire(&self, deadline: Duration) {
        self.state.send_if_modified(|state| {
            let over = state.lost.is_none() && state.deadline == deadline;
            if over {
                state.lost = Some(Lost::Expired);
            }
            over
        });
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.is_lost() {
            return Duration::ZERO;
        }
        self.state.borrow().deadline.saturating_sub(self.clock.monotonic())
    }

    pub(crate) async fn lost(&self) -> Lost {
        let mut states = self.state.subscribe();
        loop {
            let state = *states.borrow_and_update();
            if let Some(why) = state.lost {
                return why;
            }
            if self.clock.monotonic() >= state.deadline {
                self.expire(state.deadline);
                continue;
            }
            tokio::select! {
                biased;
                // The sender is in `self`.
                _ = states.changed() => {}
                () = self.clock.sleep_until(state.deadline) => {}
            }
        }
    }

    /// Renews the lease, which was asked for at `sent` and lasts `ttl`, at a third of that until it is lost. What `renew` says to have failed
    /// for the moment is tried again quickly: there are two thirds of the ttl left, less the margin.
    pub(crate) async fn keep_alive<F: Future<Output = Renewed>>(
        &self,
        ttl: Duration,
        mut sent: Duration,
        renew: impl Fn() -> F,
    ) {
        let clock = &*self.clock;
        let third = ttl / 3;
        loop {
            tokio::select! {
                biased;
                _ = self.lost() => return,
                () = clock.sleep_until(sent.saturating_add(third)) => {}
            }
            let mut backoff = Backoff::new(third / 16, third / 4);
            sent = loop {
                let sent = clock.monotonic();
                let renewed = tokio::select! {
                    biased;
                    _ = self.lost() => return,
                    renewed = renew() => renewed,
                };
                match renewed {
                    Renewed::Yes if self.extend(sent) => break sent,
                    Renewed::Yes => return,
                    Renewed::NotYet => {}
                    Renewed::Refused => return self.lose(Lost::Refused),
                }
                tokio::select! {
                    biased;
                    _ = self.lost() => return,
                    () = backoff.wait(clock) => {}
                }
            };
        }
    }
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Yes,
    /// It failed for the moment.
    NotYet,
    /// It was refused, and will be.
    Refused,
}

impl Renewed {
    /// From what the store said of the lease of `whose`.
    pub(crate) fn of<T, E: std::error::Error>(
        renewed: Result<T, E>,
        is_transient: impl FnOnce(&E) -> bool,
        whose: &dyn std::fmt::Display,
    ) -> Self {
        match renewed {
            Ok(_) => Renewed::Yes,
            Err(error) if is_transient(&error) => {
                tracing::debug!(lease = %whose, %error, "a lease could not be renewed yet");
                Renewed::NotYet
            }
            Err(error) => {
                tracing::warn!(lease = %whose, %error, "a lease is lost");
                Renewed::Refused
            }
        }
    }
}
