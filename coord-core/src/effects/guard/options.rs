//! How an action is run.

use std::sync::Arc;
use std::time::Duration;

use super::super::EffectError;
use crate::clock::{Clock, SystemClock};

/// What to do while somebody else does the action, or another action on the resource. The duration says how long at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Tell at once.
    #[default]
    No,
    /// While somebody does this action, wait for what comes of it, and never do it oneself: the run ends as replayed, uncertain or in flight (also if
    /// the holder withdrew). A resource that is busy with another action is told at once.
    ForOutcome(Duration),
    /// Wait for the end of either, and do the action if nobody has.
    ForTurn(Duration),
}

/// What becomes of a run whose future is dropped after the closure was first polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDrop {
    /// It goes on by itself and settles what comes.
    #[default]
    Detach,
    /// The future of the closure is dropped at its next await, and the action is marked uncertain.
    Abort,
}

/// Who polls the closure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A thread of its own, within the runtime: it may block. A thread for each action that runs.
    #[default]
    Thread,
    /// The workers of the runtime: cheaper where many actions run at a time and none of them blocks its thread. One that does may keep its lease
    /// from being renewed; the signal of the lost lease is right all the same for who asks [`is_lost`](super::RunContext::is_lost).
    Runtime,
}

/// How an action is run: by default with a lease of 30 s, no time limit and no waiting.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunOptions {
    /// How long the lease lasts if it is not renewed; it is renewed at a third of this.
    pub ttl: Duration,
    /// How long before the end of the lease it counts as lost: what the closure needs to stop, and what the clocks may drift apart within
    /// a ttl. `None` is a tenth of the ttl.
    pub margin: Option<Duration>,
    /// How long the closure may take. After that the action is marked uncertain, the closure is told that the lease is lost, and the run
    /// ends. If the closure returns a value later, that is completed all the same.
    pub time_limit: Option<Duration>,
    /// What to do while somebody else is at it.
    pub wait: Wait,
    /// What becomes of a run whose future is dropped.
    pub on_drop: OnDrop,
    /// Who polls the closure.
    pub place: Place,
    /// For how long the outcome is sent again while the store is away, and for how long a run that waits bears that.
    pub settle_for: Duration,
    /// The clock by which it is renewed, waited and limited.
    pub clock: Arc<dyn Clock>,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            ttl: Duration::from_secs(30),
            margin: None,
            time_limit: None,
            wait: Wait::No,
            on_drop: OnDrop::Detach,
            place: Place::Thread,
            settle_for: Duration::from_secs(60),
            clock: Arc::new(SystemClock::new()),
        }
    }
}

impl RunOptions {
    /// The lease lasts so long if it is not renewed.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The lease counts as lost so long before its end.
    #[must_use]
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// The closure may take so long.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// What to do while somebody else is at it.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// What becomes of a run whose future is dropped.
    #[must_use]
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.on_drop = on_drop;
        self
    }

    /// Who polls the closure.
    #[must_use]
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// The outcome is sent again for so long while the store is away.
    #[must_use]
    pub fn settle_for(mut self, bound: Duration) -> Self {
        self.settle_for = bound;
        self
    }

    /// The clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How long the closure may act on one renewal.
    pub(super) fn trusted(&self) -> Duration {
        self.ttl.saturating_sub(self.margin.unwrap_or(self.ttl / 10))
    }

    pub(super) fn validate(&self) -> Result<(), EffectError> {
        if self.trusted() <= self.ttl / 3 {
            return Err(EffectError::Invalid(format!(
                "the lease would be lost before it is renewed: its ttl is {:?}, its margin {:?}",
                self.ttl, self.margin
            )));
        }
        Ok(())
    }
}
