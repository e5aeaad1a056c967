//! The lease as the closure of a plain guard sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use coord_core::async_trait;
use coord_core::effects::{EffectStore, Lease, RunOptions};

use super::super::WrongGuard;
use super::{PlainGuard, breathe, may_pass};
use crate::guard::Given;

pub(super) struct Hold {
    guard: PlainGuard,
    options: RunOptions,
    lease: Lease,
    until: Mutex<Duration>,
    lost: AtomicBool,
}

impl Hold {
    pub(super) fn new(guard: PlainGuard, options: &RunOptions, lease: Lease, sent: Duration) -> Self {
        let hold =
            Hold { guard, options: options.clone(), lease, until: Mutex::default(), lost: false.into() };
        *hold.until() = hold.end(sent);
        hold
    }

    fn until(&self) -> std::sync::MutexGuard<'_, Duration> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, sent: Duration) -> Duration {
        let margin = self.options.margin.unwrap_or(self.options.ttl / 10);
        let margin = if self.guard.is(WrongGuard::SignalWithoutMargin) { Duration::ZERO } else { margin };
        let from = if self.guard.is(WrongGuard::SignalFromAnswer) { self.now() } else { sent };
        from + self.options.ttl - margin
    }

    fn now(&self) -> Duration {
        self.options.clock.monotonic()
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    /// Renews until it is lost or stopped.
    pub(super) async fn keep(&self, store: &dyn EffectStore, mut sent: Duration, stop: &AtomicBool) {
        let share = if self.guard.is(WrongGuard::RenewsLate) { 2 } else { 3 };
        let by_flag = self.guard.is(WrongGuard::RenewsInClosure);
        while !stop.load(Ordering::SeqCst) {
            if by_flag && self.now() >= *self.until() {
                self.lose();
            }
            if self.is_lost() {
                return;
            }
            if self.now() >= sent + self.options.ttl / share && !self.guard.is(WrongGuard::NeverRenews) {
                let now = self.now();
                match store.renew(&self.lease.action, &self.lease, self.options.ttl).await {
                    Ok(_) if self.is_lost() && !self.guard.is(WrongGuard::SignalTakenBack) => return,
                    Ok(_) if self.guard.is(WrongGuard::SignalForgetsRenewals) => sent = now,
                    Ok(_) => {
                        sent = now;
                        let from = if self.is_lost() { self.now() } else { sent };
                        *self.until() = self.end(from);
                        self.lost.store(false, Ordering::SeqCst);
                    }
                    Err(error) if may_pass(&error) => {}
                    Err(_) => return self.lose(),
                }
            }
            breathe().await;
        }
    }
}

#[async_trait]
impl Given for Hold {
    fn fence(&self) -> u64 {
        self.lease.fence
    }

    fn downstream_key(&self) -> &str {
        &self.lease.downstream_key
    }

    fn is_lost(&self) -> bool {
        let by_clock =
            !matches!(self.guard.wrong, Some(WrongGuard::SignalOnlyIfRefused | WrongGuard::RenewsInClosure));
        if by_clock && self.now() >= *self.until() {
            self.lose();
        }
        self.lost.load(Ordering::SeqCst)
    }

    fn remaining(&self) -> Duration {
        if self.is_lost() { Duration::ZERO } else { self.until().saturating_sub(self.now()) }
    }

    async fn lost(&self) {
        while !self.is_lost() {
            breathe().await;
        }
    }
}

/// Stops whoever watches it when it is dropped.
pub(super) struct Stopper(pub(super) Arc<AtomicBool>);

impl Drop for Stopper {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
