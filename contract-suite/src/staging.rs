//! What the stages of boards and of side-effect stores share: clients' clocks, and steps of rivals within a call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::layer::{Cell, Faults};
use coord_core::{Clock, ManualClock, Timestamp, async_trait};

use crate::clause::{Verdict, VerdictContext};

/// A client's clock: the stage's, some time ahead or behind. Waiting is real, for only a backoff between two tries waits here.
#[derive(Debug)]
pub(crate) struct SeatClock {
    stage: Arc<ManualClock>,
    ahead: i64,
    longest: Duration,
}

impl SeatClock {
    /// Ahead by so many microseconds; a backoff really waits `longest` at most.
    pub(crate) fn new(stage: Arc<ManualClock>, ahead: i64, longest: Duration) -> Self {
        SeatClock { stage, ahead, longest }
    }
}

#[async_trait]
impl Clock for SeatClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.stage.now().as_micros() + self.ahead).unwrap_or(Timestamp::EPOCH)
    }

    fn monotonic(&self) -> Duration {
        self.stage.monotonic()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is a clock, and a backoff that does not wait is a storm"
    )]
    async fn sleep(&self, duration: Duration) {
        if self.longest.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(duration.min(self.longest)).await;
        }
    }
}

/// Where a rival's step comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before the call reaches the store.
    Before,
    /// After the store has done the call and before the caller is answered.
    After,
}

impl Place {
    pub(crate) const BOTH: [Place; 2] = [Place::Before, Place::After];
}

/// What the steps of a rival said, in order.
pub(crate) type Said<T> = Arc<Mutex<Vec<Result<T, Verdict>>>>;

/// A rival's step that waits for its call.
pub(crate) struct Step<T> {
    said: Said<T>,
}

impl<T> Step<T> {
    pub(crate) fn new(said: Said<T>) -> Self {
        Step { said }
    }

    /// What the step said, if it was taken.
    ///
    /// # Errors
    /// What went wrong in it.
    pub(crate) fn taken(&self) -> Result<Option<T>, Verdict> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).pop();
        said.transpose().at("in a rival's step")
    }
}

/// A cell with a rival's step, what it says not being lost.
pub(crate) fn with_step<T, F, S>(cell: Cell, place: Place, step: S) -> (Cell, Said<T>)
where
    T: Send + 'static,
    S: Fn(Faults) -> F + Send + Sync + 'static,
    F: Future<Output = Result<T, Verdict>> + Send + 'static,
{
    let said: Said<T> = Arc::default();
    let sink = said.clone();
    let step = move |faults: Faults| {
        let (sink, step) = (sink.clone(), step(faults));
        async move {
            let outcome = step.await;
            sink.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
        }
    };
    let cell = match place {
        Place::Before => cell.before(step),
        Place::After => cell.then(step),
    };
    (cell, said)
}
