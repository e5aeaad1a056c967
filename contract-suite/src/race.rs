//! Races: racers on threads of their own that start at one instant, and storms of writers and readers.
//!
//! Tasks on one runtime often run one after the other, so that a gap of some hundred nanoseconds in a store is never met. Threads
//! that spin at a gate and then go do meet it, round after round.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc as lanes;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::fail;

/// What a racer does in one round.
pub(crate) type Leg<T> = BoxFuture<'static, Result<T, Verdict>>;

/// Threads that run one future each, round after round, all started at one instant.
pub(crate) struct Racers<T> {
    lanes: Vec<lanes::Sender<(Leg<T>, Arc<Gate>)>>,
    results: mpsc::UnboundedReceiver<(usize, Result<T, Verdict>)>,
    patience: Duration,
}

impl<T: Send + 'static> Racers<T> {
    /// Starts the threads. Call it within the runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime, or if the system can start no thread.
    pub(crate) fn new(cx: &Context, racers: usize) -> Self {
        let (report, results) = mpsc::unbounded_channel();
        let patience = cx.patience();
        let lanes = (0..racers)
            .map(|racer| {
                let (lane, legs) = lanes::channel::<(Leg<T>, Arc<Gate>)>();
                let (report, runtime) = (report.clone(), tokio::runtime::Handle::current());
                std::thread::Builder::new()
                    .name(format!("racer {racer}"))
                    .spawn(move || {
                        for (leg, gate) in legs {
                            gate.pass();
                            let leg = AssertUnwindSafe(tokio_timeout(patience, leg)).catch_unwind();
                            let result = match runtime.block_on(leg) {
                                Ok(result) => result,
                                Err(panic) => Err(Verdict::Failed(format!(
                                    "saw a panic: {}",
                                    crate::run::panic_text(&*panic)
                                ))),
                            };
                            if report.send((racer, result)).is_err() {
                                return;
                            }
                        }
                    })
                    .expect("the system can start a thread");
                lane
            })
            .collect();
        Racers { lanes, results, patience }
    }

    /// Runs one leg a racer, all started at one instant, and returns their results in the order of the legs.
    ///
    /// # Errors
    /// The first failure; also if a leg hangs.
    pub(crate) async fn run(&mut self, legs: impl IntoIterator<Item = Leg<T>>) -> Result<Vec<T>, Verdict> {
        let gate = Arc::new(Gate::new(self.lanes.len()));
        let mut sent = 0;
        for (leg, lane) in legs.into_iter().zip(&self.lanes) {
            if lane.send((leg, gate.clone())).is_err() {
                fail!("saw a racer's thread end");
            }
            sent += 1;
        }
        // Every racer of the round must have a leg, or the gate never opens.
        assert_eq!(sent, self.lanes.len(), "a leg for every racer");
        let mut results: Vec<Option<T>> = (0..sent).map(|_| None).collect();
        let mut first = None;
        for _ in 0..sent {
            // A thread that is blocked cannot give up by itself, hence the second limit.
            let limit = self.patience + Duration::from_secs(1);
            let Ok(Some((racer, result))) = tokio::time::timeout(limit, self.results.recv()).await else {
                return Err(first.unwrap_or_else(|| hung(limit)));
            };
            match result {
                Ok(value) => results[racer] = Some(value),
                Err(verdict) => first = first.or(Some(verdict)),
            }
        }
        match first {
            Some(verdict) => Err(verdict),
            None => Ok(results.into_iter().flatten().collect()),
        }
    }
}

async fn tokio_timeout<T>(patience: Duration, leg: Leg<T>) -> Result<T, Verdict> {
    tokio::time::timeout(patience, leg).await.unwrap_or_else(|_| Err(hung(patience)))
}

fn hung(limit: Duration) -> Verdict {
    Verdict::Failed(format!("saw a call that had not ended after {} s", limit.as_secs_f64()))
}

/// A barrier that is met spinning, so that all leave it within a fraction of a microsecond where there are enough cores.
struct Gate {
    awaited: AtomicUsize,
}

impl Gate {
    fn new(racers: usize) -> Self {
        Gate { awaited: AtomicUsize::new(racers) }
    }

    fn pass(&self) {
        self.awaited.fetch_sub(1, Ordering::AcqRel);
        let mut spins = 0_u32;
        while self.awaited.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins.is_multiple_of(512) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

type Write = Box<dyn FnMut(u64) -> Leg<()> + Send>;
type Read = Box<dyn FnMut(u64) -> Leg<u64> + Send>;

/// Writers that write for as long as there are readers, and readers that read until they have seen enough different states. Each on a
/// thread of its own.
pub(crate) struct Storm {
    cx: Context,
    writers: Vec<Write>,
    readers: Vec<Read>,
}

impl Storm {
    pub(crate) fn new(cx: &Context) -> Self {
        Storm { cx: cx.clone(), writers: Vec::new(), readers: Vec::new() }
    }

    /// Adds a writer, which is called with 0, 1, 2, ..
    pub(crate) fn writer(mut self, write: impl FnMut(u64) -> Leg<()> + Send + 'static) -> Self {
        self.writers.push(Box::new(write));
        self
    }

    /// Adds a reader, which judges what it sees and returns a number that differs between different states.
    pub(crate) fn reader(mut self, read: impl FnMut(u64) -> Leg<u64> + Send + 'static) -> Self {
        self.readers.push(Box::new(read));
        self
    }

    /// Lets the storm blow for a third of a second, or longer until every reader has seen ten different states.
    ///
    /// # Errors
    /// The first failure. Also a failure if a reader hardly saw anything change within the patience: that proves nothing.
    pub(crate) async fn blow(self) -> Outcome {
        const STATES: usize = 10;
        let calm = Arc::new(AtomicUsize::new(self.readers.len()));
        let broken = Arc::new(AtomicBool::new(false));
        let end = self.cx.elapsed() + Duration::from_millis(333);
        let deadline = self.cx.elapsed() + self.cx.patience().mul_f64(0.9);
        let mut racers = Racers::new(&self.cx, self.writers.len() + self.readers.len());
        let mut legs: Vec<Leg<()>> = Vec::new();
        for mut write in self.writers {
            let (calm, broken) = (calm.clone(), broken.clone());
            legs.push(Box::pin(async move {
                let mut n = 0;
                while calm.load(Ordering::Acquire) > 0 && !broken.load(Ordering::Acquire) {
                    let written = write(n).await;
                    if written.is_err() {
                        broken.store(true, Ordering::Release);
                        return written.at("in a writer");
                    }
                    n += 1;
                    // A writer on a store that never waits would else never let others on its thread.
                    tokio::task::yield_now().await;
                }
                Ok(())
            }));
        }
        for mut read in self.readers {
            let (calm, broken, cx) = (calm.clone(), broken.clone(), self.cx.clone());
            legs.push(Box::pin(async move {
                let mut states = BTreeSet::new();
                let mut n = 0;
                let result = loop {
                    match read(n).await {
                        Err(verdict) => break Err(verdict),
                        Ok(state) if states.len() < STATES => {
                            states.insert(state);
                        }
                        Ok(_) => {}
                    }
                    n += 1;
                    if broken.load(Ordering::Acquire) || (states.len() >= STATES && cx.elapsed() >= end) {
                        break Ok(());
                    }
                    if cx.elapsed() >= deadline {
                        break Err(Verdict::Failed(format!(
                            "saw only {} different states in {n} reads, which proves nothing",
                            states.len()
                        )));
                    }
                };
                if result.is_err() {
                    broken.store(true, Ordering::Release);
                }
                calm.fetch_sub(1, Ordering::AcqRel);
                result
            }));
        }
        racers.run(legs).await?;
        Ok(())
    }
}
