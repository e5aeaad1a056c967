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

use coord_core::{Assert, Backend, Mutation, Txn, TxnOutcome};
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
        self.pass_unless(|| false);
    }

    /// Whether all came before the end.
    fn pass_unless(&self, is_over: impl Fn() -> bool) -> bool {
        self.awaited.fetch_sub(1, Ordering::AcqRel);
        let mut spins = 0_u32;
        while self.awaited.load(Ordering::Acquire) > 0 {
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(512) {
                if is_over() {
                    return false;
                }
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        true
    }
}

/// Lets racers go through many steps abreast: each step begins for all of them at one instant.
pub(crate) struct Lockstep {
    gates: Vec<Gate>,
    cx: Context,
}

/// One racer's step: the answer that it got, and when it asked and was answered.
pub(crate) struct Step {
    pub(crate) outcome: TxnOutcome,
    asked: Duration,
    answered: Duration,
}

impl Lockstep {
    pub(crate) fn new(cx: &Context, racers: usize, steps: usize) -> Arc<Self> {
        Arc::new(Lockstep { gates: (0..steps).map(|_| Gate::new(racers)).collect(), cx: cx.clone() })
    }

    /// A transaction, once the others have come to this step. Waits spinning: only for racers that have a thread of their own.
    ///
    /// # Errors
    /// Failed if the others do not come, or if the store fails.
    pub(crate) async fn step(
        &self,
        step: usize,
        handle: &dyn Backend,
        asserts: &[Assert],
        mutation: Mutation,
    ) -> Result<Step, Verdict> {
        let txn = Txn::new(asserts.iter().cloned(), [mutation])?;
        let (start, patience) = (self.cx.elapsed(), self.cx.patience());
        if !self.gates[step].pass_unless(|| self.cx.elapsed() - start > patience) {
            fail!("saw a racer wait for another one for {} s", patience.as_secs_f64());
        }
        let asked = self.cx.elapsed();
        let outcome = handle.txn(&txn).await?;
        Ok(Step { outcome, asked, answered: self.cx.elapsed() })
    }
}

/// The rounds of a race in lockstep: until racers have really met often enough, so that a busy machine, where they seldom run at the same
/// time, does not make a race of no account; but not for ever.
pub(crate) struct Contest {
    cx: Context,
    end: Duration,
    rounds: usize,
    least: usize,
    met: usize,
    enough: usize,
}

impl Contest {
    /// At least so many rounds; then until the racers have met so often, or this time is over.
    pub(crate) fn new(cx: &Context, least: usize, enough: usize, time: Duration) -> Self {
        Contest { cx: cx.clone(), end: cx.elapsed() + time, rounds: 0, least, met: 0, enough }
    }

    /// The next round, if there is another one.
    pub(crate) fn another(&mut self) -> Option<usize> {
        let more = self.rounds < self.least || (self.met < self.enough && self.cx.elapsed() < self.end);
        more.then(|| {
            self.rounds += 1;
            self.rounds - 1
        })
    }

    /// Counts the steps of a round in which two racers were in the store at the same time.
    pub(crate) fn count(&mut self, racers: &[Vec<Step>]) {
        let steps = racers.iter().map(Vec::len).min().unwrap_or(0);
        self.met += (0..steps)
            .filter(|step| {
                let last_asked = racers.iter().map(|steps| steps[*step].asked).max();
                let first_answered = racers.iter().map(|steps| steps[*step].answered).min();
                last_asked < first_answered
            })
            .count();
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
