//! The guard: does an action under a lease, and settles what came of it.

mod act;
mod drive;
mod hold;
mod options;
mod outcome;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use act::RunContext;
pub(super) use hold::is_transient;
pub use options::{OnDrop, Place, RunOptions, Wait};
pub use outcome::{Doubt, Failure, RunOutcome};

use super::{Action, EffectError, EffectStore, EffectVerb};

/// What users of a side-effect store call: [`run`](Guard::run). Implemented for every store that can be cloned, such as an
/// `Arc<dyn EffectStore>`.
pub trait Guard: EffectStore + Clone {
    /// Does an action at most once: acquires it, runs `act` while it keeps the lease alive, and settles what came of it. If the action is done
    /// already, the kept result is replayed and `act` is not called.
    ///
    /// `act` is given a [`RunContext`]: the fence and the downstream key, which it hands to the resource, and the signal that the lease is
    /// lost, upon which it stops acting. What it returns decides:
    ///
    /// | `act` | the guard | the next one who asks |
    /// |---|---|---|
    /// | returns a value | completes, always: also after the time limit or with a lost lease | is given the value |
    /// | returns [`Failure::NotApplied`] | abandons | does it |
    /// | returns [`Failure::Unknown`], panics, passes the time limit | marks it uncertain | is told that it is uncertain |
    /// | is not heard of again (kill -9, a runtime that shuts down) | writes nothing | is told that it is uncertain, once the lease has expired |
    ///
    /// Settling is retried while the store is away, for [`RunOptions::settle_for`].
    ///
    /// # Where it runs
    /// Everything is done by a task of its own, spawned on the current tokio runtime when this future is first polled. The lease is renewed
    /// at a third of its ttl by a second one. `act` is polled by a thread of its own, within the same runtime: whatever it blocks, it
    /// never blocks the renewals, nor the tasks that drive the store's connections, also on a runtime with one thread. (See [`Place`] for the
    /// other way.) Should the runtime itself be blocked by something else, the signal is right all the same:
    /// [`RunContext::is_lost`] reads the clock.
    ///
    /// # Dropping the future
    /// Before `act` was first polled: the action is abandoned, nothing has happened. Afterwards the task goes on by itself and settles what
    /// comes, or, with [`OnDrop::Abort`], the future of `act` is dropped at its next await and the action marked uncertain.
    ///
    /// # Nesting
    /// A run of the same key within `act` is told `InFlight`, also if it asked to wait: it would wait for itself.
    ///
    /// # Errors
    /// Those of [`acquire`](EffectStore::acquire), and [`EffectError::Invalid`] without a tokio runtime or with senseless options;
    /// [`EffectError::LeaseLost`] if the lease was over before `act` could begin. In all of them `act` was not called. (After
    /// [`EffectError::OutcomeUnknown`] of an acquire nobody acts, but the action may be uncertain once the lease that nobody got has expired.)
    /// Once `act` was called there are only outcomes, save that a runtime that shuts down under a run ends it with
    /// [`EffectError::OutcomeUnknown`] of a complete.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use coord_core::effects::{
    ///     Action, ActionKey, EffectAdapter, EffectOptions, EffectStore, Failure, Guard, RunOptions, RunOutcome,
    /// };
    /// # use coord_core::Namespace;
    /// # use coord_memory::MemoryStore;
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let backend = MemoryStore::new().open(&Namespace::new("shop")?);
    /// let effects: Arc<dyn EffectStore> = Arc::new(EffectAdapter::open(backend, EffectOptions::default()).await?);
    /// let charge = Action::new(ActionKey::new("charge/order-7")?);
    ///
    /// let first = effects
    ///     .run(charge.clone(), RunOptions::default(), |lease| async move {
    ///         // Here the card is charged, with the fence and the downstream key along.
    ///         let receipt = format!("charged once, as {}", lease.downstream_key());
    ///         Ok::<_, Failure<std::io::Error>>(receipt)
    ///     })
    ///     .await?;
    /// assert!(matches!(first, RunOutcome::Executed { .. }));
    ///
    /// let again = effects
    ///     .run(charge, RunOptions::default(), |_| async { Err::<&str, _>(Failure::NotApplied("never called")) })
    ///     .await?;
    /// assert!(matches!(again, RunOutcome::Replayed(_)));
    /// assert_eq!(again.result(), first.result());
    /// # Ok::<(), coord_core::effects::EffectError>(())
    /// # }).unwrap();
    /// ```
    fn run<F, A, V, E>(
        &self,
        action: Action,
        options: RunOptions,
        act: F,
    ) -> impl Future<Output = Result<RunOutcome<E>, EffectError>> + Send + use<Self, F, A, V, E>
    where
        F: FnOnce(RunContext) -> A + Send + 'static,
        A: Future<Output = Result<V, Failure<E>>> + Send + 'static,
        V: Into<Bytes>,
        E: fmt::Display + Send + 'static,
    {
        let store: Arc<dyn EffectStore> = Arc::new(self.clone());
        let key = action.key.clone();
        async move {
            options.validate()?;
            let handle = Handle::try_current()
                .map_err(|error| EffectError::Invalid(format!("a run needs a tokio runtime: {error}")))?;
            let act = |context| async move { act(context).await.map(Into::into) };
            let (answer, answered) = oneshot::channel();
            let start = Arc::new(act::Start::default());
            // Dropped with this future, also when that is dropped in the middle.
            let _caller = act::Caller(start.clone());
            drop(handle.spawn(drive::drive(store, action, options, act::held(), act, start, answer)));
            answered.await.unwrap_or(Err(EffectError::OutcomeUnknown {
                verb: EffectVerb::Complete,
                subject: key.to_string(),
                token: None,
            }))
        }
    }
}

impl<S: EffectStore + Clone> Guard for S {}
