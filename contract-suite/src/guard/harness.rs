//! How to run actions and to reconcile: what the clauses of the guard put to the test.

use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    Action, EffectError, EffectStore, Failure, Guard as _, Probe, Reconciler, ReconcilerOptions, RunContext,
    RunOptions, RunOutcome,
};
use coord_core::{Bytes, async_trait};
use futures::future::BoxFuture;

/// What a guard gives to the closure.
#[async_trait]
pub trait Given: Send + Sync + 'static {
    /// The fence of the attempt.
    fn fence(&self) -> u64;
    /// The same for all attempts of the action.
    fn downstream_key(&self) -> &str;
    /// Whether the lease is lost.
    fn is_lost(&self) -> bool;
    /// How long until it is lost, unless it is renewed before.
    fn remaining(&self) -> Duration;
    /// Waits until it is lost.
    async fn lost(&self);
}

#[async_trait]
impl Given for RunContext {
    fn fence(&self) -> u64 {
        RunContext::fence(self)
    }
    fn downstream_key(&self) -> &str {
        RunContext::downstream_key(self)
    }
    fn is_lost(&self) -> bool {
        RunContext::is_lost(self)
    }
    fn remaining(&self) -> Duration {
        RunContext::remaining(self)
    }
    async fn lost(&self) {
        let _ = RunContext::lost(self).await;
    }
}

/// An action as a closure.
pub type Act =
    Box<dyn FnOnce(Arc<dyn Given>) -> BoxFuture<'static, Result<Bytes, Failure<String>>> + Send + 'static>;

/// What a run ends with.
pub type Ran = Result<RunOutcome<String>, EffectError>;

/// A guard and a reconciler above any side-effect store. The clauses `G01` to `G10` run on it.
#[async_trait]
pub trait GuardHarness: Send + Sync + 'static {
    /// The name in reports.
    fn name(&self) -> &str;

    /// Runs an action; dropping the future is dropping the run.
    async fn run(&self, store: Arc<dyn EffectStore>, action: Action, options: RunOptions, act: Act) -> Ran;

    /// One pass of a new reconciler.
    async fn reconcile(
        &self,
        store: Arc<dyn EffectStore>,
        probe: Arc<dyn Probe>,
        options: ReconcilerOptions,
    ) -> Result<(), EffectError>;
}

/// The project's own: what a [`Subject`](crate::Subject) has if nobody supplies another.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreGuard;

#[async_trait]
impl GuardHarness for CoreGuard {
    fn name(&self) -> &str {
        "core"
    }

    async fn run(&self, store: Arc<dyn EffectStore>, action: Action, options: RunOptions, act: Act) -> Ran {
        store.run(action, options, |context| act(Arc::new(context))).await
    }

    async fn reconcile(
        &self,
        store: Arc<dyn EffectStore>,
        probe: Arc<dyn Probe>,
        options: ReconcilerOptions,
    ) -> Result<(), EffectError> {
        Reconciler::new(store, probe, options)?.run_once().await.map(drop)
    }
}
