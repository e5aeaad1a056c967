//! Keeping the lease of a run alive.

use std::sync::Arc;
use std::time::Duration;

use super::super::{Action, EffectError, EffectStore, Lease};
use crate::hold::{Hold, Renewed};

/// Renews the lease of a run until it is lost.
pub(super) async fn keep_alive(
    store: Arc<dyn EffectStore>,
    action: Action,
    lease: Lease,
    ttl: Duration,
    hold: Arc<Hold>,
    sent: Duration,
) {
    let renew = async || {
        let renewed = store.renew(&action, &lease, ttl).await;
        Renewed::of(renewed, is_transient, &action.key)
    };
    hold.keep_alive(ttl, sent, renew).await;
}

/// Whether the same request may get another answer later. All verbs of an attempt may be repeated: they are known by its token.
pub(in super::super) fn is_transient(error: &EffectError) -> bool {
    match error {
        EffectError::TxnConflict { .. } | EffectError::OutcomeUnknown { .. } => true,
        EffectError::Backend(error) => error.is_retryable() || error.is_indeterminate(),
        _ => false,
    }
}
