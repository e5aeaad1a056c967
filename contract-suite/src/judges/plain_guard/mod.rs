//! A second guard and a second reconciler: straightforward ones, which look again and again instead of waiting.

mod hold;
mod reconcile;
mod run;

use std::sync::Arc;
use std::time::Duration;

use coord_core::async_trait;
use coord_core::effects::{Action, EffectError, EffectStore, Probe, ReconcilerOptions, RunOptions};

use super::WrongGuard;
use crate::guard::{Act, GuardHarness, Ran};

/// A guard and a reconciler, right or wrong in one way.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainGuard {
    /// How it is wrong.
    pub wrong: Option<WrongGuard>,
}

impl PlainGuard {
    fn is(self, wrong: WrongGuard) -> bool {
        self.wrong == Some(wrong)
    }
}

#[async_trait]
impl GuardHarness for PlainGuard {
    fn name(&self) -> &str {
        "plain"
    }

    async fn run(&self, store: Arc<dyn EffectStore>, action: Action, options: RunOptions, act: Act) -> Ran {
        run::run(*self, store, action, options, act).await
    }

    async fn reconcile(
        &self,
        store: Arc<dyn EffectStore>,
        probe: Arc<dyn Probe>,
        options: ReconcilerOptions,
    ) -> Result<(), EffectError> {
        reconcile::pass(*self, &*store, &probe, &options).await
    }
}

/// Until the next look.
#[expect(clippy::disallowed_methods, reason = "it looks again and again, in real time")]
async fn breathe() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Whether the same request may get another answer later.
fn may_pass(error: &EffectError) -> bool {
    match error {
        EffectError::TxnConflict { .. } | EffectError::OutcomeUnknown { .. } => true,
        EffectError::Backend(error) => error.is_retryable() || error.is_indeterminate(),
        _ => false,
    }
}
