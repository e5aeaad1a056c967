//! T51: many workers wait on an empty board.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coord_core::board::{AgentId, Outcome as TaskOutcome, TaskId, TaskSpec, Worker};
use coord_core::layer::{Meter, Observe};
use coord_core::{Clock, SystemClock};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::super::processes::seat;
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, fail};

pub(super) const CLAUSE: Clause = Clause {
    id: "T51",
    layer: Layer::Board,
    promise: "200 workers that wait on an empty board cost the store less than 100 reads a second in all, and a task that is added \
              starts within a second",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(idle(cx)),
};

const WORKERS: usize = 200;
/// A store may limit its connections.
const HANDLES: usize = 8;
const READS_A_SECOND: u128 = 100;
const START: Duration = Duration::from_secs(1);
/// Idle workers look ever less often; by then they look as rarely as they ever will.
const SETTLED: Duration = Duration::from_secs(20);
const SECONDS: u64 = 10;
const TASKS: usize = 3;
/// How often it is looked how late the machine is.
const LOOK: Duration = Duration::from_millis(10);

/// How late this process does what it wants to do at a certain time: as much as the machine has no time for it.
struct Late {
    most: Arc<AtomicU64>,
    watch: JoinHandle<()>,
}

impl Late {
    fn watch() -> Self {
        let most = Arc::new(AtomicU64::new(0));
        let watch = tokio::spawn({
            let (most, clock) = (most.clone(), SystemClock::new());
            async move {
                loop {
                    let before = clock.monotonic();
                    clock.sleep(LOOK).await;
                    let late = (clock.monotonic() - before).saturating_sub(LOOK);
                    most.fetch_max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
                }
            }
        });
        Late { most, watch }
    }

    fn forget(&self) {
        self.most.store(0, Ordering::Relaxed);
    }

    /// The most since it was forgotten.
    fn most(&self) -> Duration {
        Duration::from_micros(self.most.load(Ordering::Relaxed))
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

async fn idle(cx: Context) -> Outcome {
    let (clock, meter) = (SystemClock::new(), Meter::default());
    let late = Late::watch();
    let (started, mut starts) = mpsc::unbounded_channel();
    let mut workers = JoinSet::new();
    for handle in 0..HANDLES {
        let observed = Observe::with_meter(cx.open().await?, meter.clone());
        let board = cx.board(Arc::new(observed), seat()).await?;
        for n in 0..WORKERS / HANDLES {
            let started = started.clone();
            let worker = Worker::new(board.clone(), AgentId::unchecked(format!("{handle} {n}")));
            workers.spawn(worker.run(
                move |job| {
                    let at = clock.monotonic();
                    let _ = started.send((job.task().id.clone(), at));
                    async { Ok::<_, String>(TaskOutcome::default()) }
                },
                std::future::pending(),
            ));
        }
    }
    let here = cx.board(cx.open().await?, seat()).await?;
    clock.sleep(SETTLED).await;
    let reads = || {
        let counts = meter.counts();
        counts.snapshot.calls + counts.keys.calls
    };
    let (before, from) = (reads(), clock.monotonic());
    clock.sleep(Duration::from_secs(SECONDS)).await;
    let (count, took) = (reads() - before, clock.monotonic().saturating_sub(from));
    ensure!(
        u128::from(count) * 1_000_000 < READS_A_SECOND * took.as_micros(),
        "saw {count} reads in {took:?} of {WORKERS} workers that wait"
    );
    ensure!(count > 0, "saw no worker look at the board in {took:?}");
    for n in 0..TASKS {
        let task = TaskId::unchecked(format!("task {n}"));
        late.forget();
        here.add(TaskSpec::new(task.clone())).await.at("adding")?;
        let added = clock.monotonic();
        let Ok(Some((seen, at))) = tokio::time::timeout(cx.patience(), starts.recv()).await else {
            fail!("saw {task} not started at all, with {WORKERS} workers waiting");
        };
        let took = at.saturating_sub(added);
        // A machine that stood still did so for the workers too.
        let late = late.most();
        ensure!(
            seen == task && took < START + late,
            "saw {seen} start {took:?} after {task} was added, on a machine that was {late:?} late"
        );
    }
    if let Some(ended) = workers.try_join_next() {
        fail!("saw a worker end that should wait: {ended:?}");
    }
    Ok(())
}
