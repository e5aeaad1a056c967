//! Keeping the lease of a run alive.

use std::sync::Arc;
use std::time::Duration;

use super::super::hold::{Hold, Lost};
use super::super::{Action, EffectError, EffectStore, Lease};
use super::options::RunOptions;
use crate::cas::Backoff;

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
        tokio::select! {
            biased;
            _ = hold.lost() => return,
            () = clock.sleep_until(sent.saturating_add(third)) => {}
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
