//! T51: many workers wait on an empty board.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{AgentId, Outcome as TaskOutcome, TaskId, TaskSpec, Worker};
use coord_core::layer::{Meter, Observe};
use coord_core::{Clock, SystemClock};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

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

async fn idle(cx: Context) -> Outcome {
    let (clock, meter) = (SystemClock::new(), Meter::default());
    let (started, mut starts) = mpsc::unbounded_channel();
    let mut workers = JoinSet::new();
    for handle in 0..HANDLES {
        let observed = Observe::with_meter(cx.open().await?, meter.clone());
        let board = cx.board(Arc::new(observed), seat()).await?;
        for n in 0..WORKERS / HANDLES {
            let (started, clock) = (started.clone(), SystemClock::new());
            let worker = Worker::new(board.clone(), AgentId::unchecked(format!("{handle} {n}")));
            workers.spawn(worker.run(
                move |job| {
                    let at = clock.now();
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
        here.add(TaskSpec::new(task.clone())).await.at("adding")?;
        let added = clock.now();
        let Ok(Some((seen, at))) = tokio::time::timeout(cx.patience(), starts.recv()).await else {
            fail!("saw {task} not started at all, with {WORKERS} workers waiting");
        };
        let took = at.saturating_since(added);
        ensure!(seen == task && took < START, "saw {seen} start {took:?} after {task} was added");
    }
    if let Some(ended) = workers.try_join_next() {
        fail!("saw a worker end that should wait: {ended:?}");
    }
    Ok(())
}
