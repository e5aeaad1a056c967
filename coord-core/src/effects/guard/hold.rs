//! How long an attempt may act: the lease as its holder sees it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::super::{Action, EffectError, EffectStore, Lease};
use super::options::RunOptions;
use crate::cas::Backoff;
use crate::clock::Clock;

/// Why the lease of a run is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// It was not renewed in time.
    Expired,
    /// The store refused to renew it: it expired there, was judged, or the resource was granted to somebody else.
    Refused,
    /// The run has passed its time limit.
    TimedOut,
    /// The run was dropped and is to be aborted.
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
pub(super) struct Hold {
    clock: Arc<dyn Clock>,
    trusted: Duration,
    state: watch::Sender<State>,
}

impl Hold {
    pub(super) fn new(options: &RunOptions, sent: Duration) -> Self {
        let trusted = options.trusted();
        let state = State { deadline: sent.saturating_add(trusted), lost: None };
        Hold { clock: options.clock.clone(), trusted, state: watch::Sender::new(state) }
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

    pub(super) fn lose(&self, why: Lost) {
        self.state.send_if_modified(|state| {
            let first = state.lost.is_none();
            state.lost.get_or_insert(why);
            first
        });
    }

    pub(super) fn is_lost(&self) -> bool {
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

    pub(super) fn remaining(&self) -> Duration {
        if self.is_lost() {
            return Duration::ZERO;
        }
        self.state.borrow().deadline.saturating_sub(self.clock.monotonic())
    }

    pub(super) async fn lost(&self) -> Lost {
        let mut states = self.state.subscribe();
        loop {
            let state = *states.borrow_and_update();
            if let Some(why) = state.lost {
                return why;
            }
            let now = self.clock.monotonic();
            if now >= state.deadline {
                self.expire(state.deadline);
                continue;
            }
            tokio::select! {
                biased;
                // The sender is in `self`.
                _ = states.changed() => {}
                () = self.clock.sleep(state.deadline - now) => {}
            }
        }
    }
}

/// Renews a lease at a third of its ttl until it is lost.
pub(super) async fn keep_alive(
    store: Arc<dyn EffectStore>,
    action: Action,
    lease: Lease,
    options: RunOptions,
    hold: Arc<Hold>,
    mut sent: Duration,
) {
    let clock = &*options.clock;
    let third = options.ttl / 3;
    loop {
        let due = sent.saturating_add(third).saturating_sub(clock.monotonic());
        tokio::select! {
            biased;
            _ = hold.lost() => return,
            () = clock.sleep(due) => {}
        }
        // What fails for the moment is tried again quickly: there are two thirds of the ttl left, less the margin.
        let mut backoff = Backoff::new(third / 16, third / 4);
        sent = loop {
            let sent = clock.monotonic();
            let renewed = tokio::select! {
                biased;
                _ = hold.lost() => return,
                renewed = store.renew(&action, &lease, options.ttl) => renewed,
            };
            match renewed {
                Ok(_) if hold.extend(sent) => break sent,
                Ok(_) => return,
                Err(error) if is_transient(&error) => {
                    tracing::debug!(key = %action.key, %error, "a lease could not be renewed yet");
                }
                Err(error) => {
                    tracing::warn!(key = %action.key, %error, "a lease is lost");
                    return hold.lose(Lost::Refused);
                }
            }
            tokio::select! {
                biased;
                _ = hold.lost() => return,
                () = backoff.wait(clock) => {}
            }
        };
    }
}

/// Whether the same request may get another answer later. All verbs of an attempt may be repeated: they are known by its token.
pub(in super::super) fn is_transient(error: &EffectError) -> bool {
    match error {
        EffectError::TxnConflict { .. } | EffectError::OutcomeUnknown { .. } => true,
        EffectError::Backend(error) => error.is_retryable() || error.is_indeterminate(),
        _ => false,
    }
}
