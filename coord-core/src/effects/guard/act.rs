//! Where the closure of a run is polled, and what it is given.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::super::{Action, ActionKey, EffectError, EffectStore, Holder, Lease};
use super::options::Place;
use super::outcome::Failure;
use crate::hold::{Hold, Lost};
use crate::panic::panic_text;

/// What the closure of a run is given. Clones are the same one.
#[derive(Clone, Debug)]
pub struct RunContext {
    store: Arc<dyn EffectStore>,
    lease: Arc<Lease>,
    hold: Arc<Hold>,
}

impl RunContext {
    pub(super) fn new(store: Arc<dyn EffectStore>, lease: Lease, hold: Arc<Hold>) -> Self {
        RunContext { store, lease: Arc::new(lease), hold }
    }

    /// The action.
    #[must_use]
    pub fn action(&self) -> &Action {
        &self.lease.action
    }

    /// Larger than every fence that was given for the resource before. Hand it to the resource, if that refuses smaller ones than it has seen.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.lease.fence
    }

    /// The same for all attempts of this action. Hand it to the resource, if that recognises a request that it has had.
    #[must_use]
    pub fn downstream_key(&self) -> &str {
        &self.lease.downstream_key
    }

    /// The how-manieth attempt of this action this is, as far as they are remembered; 1 for the first. Asks the store.
    ///
    /// # Errors
    /// Those of [`get`](EffectStore::get), and [`EffectError::NeverAcquired`] if the action is gone from the store.
    pub async fn attempt(&self) -> Result<u32, EffectError> {
        let key = &self.lease.action.key;
        match self.store.get(key).await? {
            Some(status) => Ok(status.attempts),
            None => Err(EffectError::NeverAcquired { key: key.clone() }),
        }
    }

    /// Waits until the lease is lost, and says why. From then on nothing may be done any more in the name of this attempt: at the end of the lease
    /// the resource may be granted to somebody else. What was done should be returned all the same.
    pub async fn lost(&self) -> Lost {
        self.hold.lost().await
    }

    /// Whether the lease is lost. For closures that block: it reads the clock, and needs nobody else to run.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost()
    }

    /// How much time is left until the lease is lost, unless it is renewed before.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }
}

tokio::task_local! {
    /// What the runs around this code hold.
    static HELD: Vec<(ActionKey, u64)>;
}

pub(super) type Held = Vec<(ActionKey, u64)>;

/// What the runs hold within which this is called.
pub(super) fn held() -> Held {
    HELD.try_with(Clone::clone).unwrap_or_default()
}

/// Whether this holder is one of them, so that waiting for it would be waiting for oneself.
pub(super) fn is_own(held: &Held, holder: &Holder) -> bool {
    held.iter().any(|(key, fence)| *key == holder.key && *fence == holder.fence)
}

/// Whether the closure was polled, decided exactly once.
#[derive(Debug, Default)]
pub(super) struct Start(AtomicU8);

impl Start {
    const POLLED: u8 = 1;
    const CANCELLED: u8 = 2;

    fn decide(&self, verdict: u8) -> bool {
        match self.0.compare_exchange(0, verdict, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(earlier) => earlier == verdict,
        }
    }

    fn begin(&self) -> bool {
        self.decide(Self::POLLED)
    }

    /// Whether the closure will never be polled.
    pub(super) fn cancel(&self) -> bool {
        self.decide(Self::CANCELLED)
    }
}

/// The caller of a run: once it is gone, a closure that was not polled never is.
#[derive(Debug)]
pub(super) struct Caller(pub(super) Arc<Start>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// How a closure ended.
#[derive(Debug)]
pub(super) enum Ended<E> {
    /// It returned.
    Returned(Result<Bytes, Failure<E>>),
    /// It panicked.
    Panicked(String),
    /// It was dropped in the middle.
    Aborted,
    /// It was never polled.
    NotStarted,
}

/// A closure that runs. Dropped, it is aborted: so a runtime that shuts down ends its thread too.
pub(super) struct Acting<E> {
    pub(super) ended: oneshot::Receiver<Ended<E>>,
    abort: Option<oneshot::Sender<()>>,
}

impl<E> Acting<E> {
    /// Drops the future of the closure at its next await.
    pub(super) fn abort(&mut self) {
        self.abort = None;
    }

    /// Waits for its end.
    pub(super) async fn end(&mut self) -> Ended<E> {
        // Nothing is sent if dropping the future of the closure panics.
        (&mut self.ended).await.unwrap_or_else(|_| Ended::Panicked("while it was dropped".to_owned()))
    }
}

/// Starts the closure.
///
/// # Errors
/// The system has no thread for it; it was not and will not be polled.
pub(super) fn start<F, A, E>(
    act: F,
    context: RunContext,
    mut held: Held,
    start: Arc<Start>,
    place: Place,
) -> std::io::Result<Acting<E>>
where
    F: FnOnce(RunContext) -> A + Send + 'static,
    A: Future<Output = Result<Bytes, Failure<E>>> + Send + 'static,
    E: Send + 'static,
{
    let (abort, aborted) = oneshot::channel::<()>();
    let (end, ended) = oneshot::channel();
    held.push((context.lease.action.key.clone(), context.lease.fence));
    let body = async move {
        if context.is_lost() || !start.begin() {
            // Whoever has not begun by now never will.
            start.cancel();
            return Ended::NotStarted;
        }
        tokio::select! {
            biased;
            _ = aborted => Ended::Aborted,
            ended = caught(async move { act(context).await }) => match ended {
                Ok(returned) => Ended::Returned(returned),
                Err(panic) => Ended::Panicked(panic_text(&*panic).to_owned()),
            },
        }
    };
    let body = HELD.scope(held, async move {
        // The receiver is gone if the runtime shuts down.
        let _ = end.send(body.await);
    });
    match place {
        Place::Runtime => drop(tokio::spawn(body)),
        Place::Thread => {
            let handle = Handle::current();
            let thread = std::thread::Builder::new().name("coord-run".to_owned());
            drop(thread.spawn(move || handle.block_on(body))?);
        }
    }
    Ok(Acting { ended, abort: Some(abort) })
}

/// Polls a future and catches its panic.
async fn caught<T>(future: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut future = Box::pin(future);
    std::future::poll_fn(move |context| {
        // After a panic the future is only dropped.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}
