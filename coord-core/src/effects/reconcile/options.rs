//! How a reconciler works.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};

/// How a [`Reconciler`](super::Reconciler) works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReconcilerOptions {
    /// How long after the end of the attempt's hold the probe is asked: longer than anything that was sent may be under way, and than
    /// the clocks of two clients may be apart. By default a minute.
    pub settle: Duration,
    /// How long an attempt may have held its resource after it was marked uncertain, where the store cannot tell any more because somebody
    /// else was granted it since: the longest ttl in use. By default 5 minutes.
    pub longest_hold: Duration,
    /// How long sealing may take, and how long looking. By default 20 s each.
    pub probe_limit: Duration,
    /// For how long the right to judge is claimed: longer than both. By default 2 minutes.
    pub claim_ttl: Duration,
    /// How many actions are looked into at a time. By default 4.
    pub concurrency: usize,
    /// How long an action is left alone after the first time that nothing could be told; doubled each time, up to `longest_pause`. By
    /// default 10 s.
    pub first_pause: Duration,
    /// By default 10 minutes.
    pub longest_pause: Duration,
    /// How long [`run_until`](super::Reconciler::run_until) rests between two passes. By default 5 s.
    pub interval: Duration,
    /// The clock by which it waits.
    pub clock: Arc<dyn Clock>,
}

impl Default for ReconcilerOptions {
    fn default() -> Self {
        ReconcilerOptions {
            settle: Duration::from_secs(60),
            longest_hold: Duration::from_secs(300),
            probe_limit: Duration::from_secs(20),
            claim_ttl: Duration::from_secs(120),
            concurrency: 4,
            first_pause: Duration::from_secs(10),
            longest_pause: Duration::from_secs(600),
            interval: Duration::from_secs(5),
            clock: Arc::new(SystemClock::new()),
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)+) => {
        impl ReconcilerOptions {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $name: $kind) -> Self {
                    self.$name = $name;
                    self
                }
            )+
        }
    };
}

setters! {
    /// The probe is asked so long after the end of the hold.
    settle: Duration,
    /// The longest ttl in use.
    longest_hold: Duration,
    /// Sealing and looking may take so long, each.
    probe_limit: Duration,
    /// The right to judge is claimed for so long.
    claim_ttl: Duration,
    /// So many actions are looked into at a time.
    concurrency: usize,
    /// The first pause after nothing could be told.
    first_pause: Duration,
    /// The longest pause after nothing could be told.
    longest_pause: Duration,
    /// The rest between two passes.
    interval: Duration,
    /// The clock.
    clock: Arc<dyn Clock>,
}
