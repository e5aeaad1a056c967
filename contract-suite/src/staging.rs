//! What the stages of boards and of side-effect stores share: a store clock that only the clause moves, clients' clocks, the layers between a
//! client and its store, and steps of rivals within a call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::layer::{Cell, Fault, Faults, Meter, Observe, StoreClock, When};
use coord_core::{
    Backend, Bytes, Clock, Key, KeyRange, KeySet, ManualClock, Mutation, Prefix, Timestamp, Txn, TxnOutcome,
    async_trait,
};

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::ensure;

/// The usual length of a lease.
pub(crate) const TTL: Duration = Duration::from_secs(60);
/// The smallest step of time.
pub(crate) const TICK: Duration = Duration::from_micros(1);
/// How far clients may be apart, where a store has no clock.
pub(crate) const SKEW: Duration = Duration::from_secs(5);

/// The first of January 2030, and an odd number of microseconds, so that rounding is seen.
fn start() -> Timestamp {
    Timestamp::EPOCH.saturating_add(Duration::from_micros(1_893_456_000_123_457))
}

/// One namespace, seen from several seats.
pub(crate) struct Stage {
    pub(crate) cx: Context,
    pub(crate) clock: Arc<ManualClock>,
    namespace: String,
    /// How long a backoff really waits at most.
    longest: Duration,
}

impl Stage {
    pub(crate) fn new(cx: &Context) -> Self {
        Stage::on(cx, cx.namespace().to_owned())
    }

    /// A stage of its own beside the clause's.
    pub(crate) fn fresh(cx: &Context) -> Self {
        Stage::on(cx, cx.fresh_namespace())
    }

    /// The same namespace, as soon as it is empty again, at the beginning of time. Nobody races there, so no backoff waits.
    pub(crate) fn again(&self) -> Self {
        Stage { longest: Duration::ZERO, ..Stage::on(&self.cx, self.namespace.clone()) }
    }

    fn on(cx: &Context, namespace: String) -> Self {
        let clock = Arc::new(ManualClock::new(start()));
        Stage { cx: cx.clone(), clock, namespace, longest: Duration::from_millis(50) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// Moves the clock to this time, never back.
    pub(crate) fn advance_to(&self, time: Timestamp) {
        self.clock.advance(time.saturating_since(self.now()));
    }

    /// A new handle on the namespace.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Backend>, Verdict> {
        self.cx.open_in(&self.namespace).await
    }

    /// The clock of a client that is ahead by so many microseconds.
    pub(crate) fn seat_clock(&self, ahead: i64) -> Arc<SeatClock> {
        Arc::new(SeatClock::new(self.clock.clone(), ahead, self.longest))
    }

    /// The store as a client is to see it over this handle, with or without a clock, and what the clause does on the way there.
    pub(crate) fn wire(&self, raw: Arc<dyn Backend>, store_has_clock: bool) -> (Arc<dyn Backend>, Wire) {
        let observed = Observe::new(raw.clone());
        let meter = observed.meter();
        let faulty = Fault::new(observed);
        let faults = faulty.faults();
        let backend: Arc<dyn Backend> = if store_has_clock {
            Arc::new(StoreClock::new(faulty, self.clock.clone() as Arc<dyn Clock>))
        } else {
            Arc::new(StoreClock::none(faulty))
        };
        (backend, Wire { faults, meter, raw })
    }
}

/// The way between one client and its store.
#[derive(Clone)]
pub(crate) struct Wire {
    /// What goes wrong between this client and the store.
    pub(crate) faults: Faults,
    /// What this client asks of the store.
    pub(crate) meter: Meter,
    /// The handle itself, past every layer.
    pub(crate) raw: Arc<dyn Backend>,
}

impl Wire {
    /// A rival's step at this client's next call of this kind.
    pub(crate) fn interpose<T, F, S>(&self, when: When, place: Place, step: S) -> Step<T>
    where
        T: Send + 'static,
        S: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, Verdict>> + Send + 'static,
    {
        let (cell, said) = with_step(Cell::pass(), place, move |_| step());
        self.faults.on(when, cell);
        Step::new(said)
    }

    /// Every key of the namespace, and its value.
    pub(crate) async fn raw_entries(&self) -> Result<BTreeMap<Key, Bytes>, Verdict> {
        let mut entries = BTreeMap::new();
        let mut range = KeyRange::new(Prefix::all(), 1_000)?;
        loop {
            let keys = self.raw.keys(&range).await.at("listing the keys of the namespace")?;
            let Some(last) = keys.last() else { return Ok(entries) };
            range = range.start_after(last.clone());
            let snapshot = self.raw.snapshot(&KeySet::new(keys)?).await?;
            for (key, entry) in snapshot.iter() {
                if let Some(value) = entry.value() {
                    entries.insert(key.clone(), value.clone());
                }
            }
        }
    }

    /// Writes or deletes past what is above the store.
    pub(crate) async fn raw_write(&self, mutations: impl IntoIterator<Item = Mutation>) -> Outcome {
        let outcome =
            self.raw.txn(&Txn::new([], mutations)?).await.at("writing past what is above the store")?;
        ensure!(outcome == TxnOutcome::Applied, "saw an unconditional transaction rejected");
        Ok(())
    }
}

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
