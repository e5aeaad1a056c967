//! The workers of a fleet: several at a time in each crew, and each crew may be killed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{self, AgentId, ExtendedBoard, Outcome as TaskOutcome, WorkerEvent};
use coord_core::{Clock, SystemClock};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::super::processes::{board as open_board, seat};
use super::graph::Conduct;
use super::ledger::{Event, Ledger};
use crate::clause::{Verdict, VerdictContext};
use crate::context::Context;
use crate::process::{Job, Seat, Worker};

/// How many tasks a crew runs at a time.
pub(super) const HANDS: usize = 8;
/// What a killed crew held is taken over after this time.
pub(super) const LEASE: Duration = Duration::from_secs(2);
/// How long a worker that found nothing waits at most before it looks again.
pub(super) const LONGEST_LOOK: Duration = Duration::from_secs(1);

pub(super) const FLEET: Job = Job { name: "fleet", body: join };

/// What a process of a crew is told.
#[derive(Serialize, Deserialize)]
struct Order {
    worker: usize,
    ledger: PathBuf,
}

/// Runs one task as its payload wants it.
async fn handle(job: board::Job, ledger: Ledger) -> Result<TaskOutcome, String> {
    let (task, fence) = (job.task().id.clone(), job.fence());
    let write = |event| ledger.write(event, task.as_str(), fence).map_err(|error| error.to_string());
    // Some take longer than others, and whoever is killed is killed at any point.
    let millis = fence.wrapping_mul(7).wrapping_add(job.task().order) % 20;
    SystemClock::new().sleep(Duration::from_millis(millis)).await;
    let fails = match Conduct::of(&job.task().payload) {
        Conduct::Passes => false,
        Conduct::FailsTwice => ledger.failures(&task) < 2,
        Conduct::Poison => true,
    };
    if fails {
        ledger.note_failure(&task).map_err(|error| error.to_string())?;
        write(Event::Failed)?;
        return Err("it fails, as it should".into());
    }
    write(Event::Passed)?;
    Ok(TaskOutcome::truncated(&format!("by {fence}")))
}

/// Works until it is dropped.
async fn work(board: Arc<dyn ExtendedBoard>, ledger: Ledger, worker: usize) -> Result<(), Verdict> {
    ledger.write(Event::Born, "-", 0)?;
    let book = ledger.clone();
    let see = move |event: WorkerEvent<'_>| {
        let written = match event {
            WorkerEvent::Idle => book.write(Event::Idle, "-", 0),
            WorkerEvent::Claimed { task, fence } => book.write(Event::Run, task.id.as_str(), fence),
            WorkerEvent::Settled { task, fence, how: board::Settled::Completed, .. } => {
                book.write(Event::Done, task.id.as_str(), fence)
            }
            _ => Ok(()),
        };
        if let Err(error) = written {
            tracing::warn!(%error, "the ledger cannot be written");
        }
    };
    let worker = board::Worker::new(board, AgentId::unchecked(format!("crew {worker}")))
        .concurrency(HANDS)
        .lease(LEASE)
        .look(Duration::from_millis(50), LONGEST_LOOK)
        .observe(see);
    worker.run(move |job| handle(job, ledger.clone()), std::future::pending()).await.at("working")?;
    Ok(())
}

fn join(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let order: Order = serde_json::from_value(seat.request.clone())?;
        let board = open_board(&seat).await?;
        work(board, Ledger::new(&order.ledger, order.worker), order.worker).await?;
        Ok(Value::Null)
    })
}

/// A crew at work. Dropped, it is killed, as `kill -9` kills: nothing of it runs any more, and nobody is told.
pub(super) enum Crew {
    Process(#[expect(dead_code, reason = "it is only killed")] Box<Worker>),
    Tasks(JoinHandle<Result<(), Verdict>>),
}

impl Crew {
    pub(super) async fn start(
        cx: &Context,
        processes: bool,
        ledger: &Path,
        worker: usize,
    ) -> Result<Crew, Verdict> {
        if processes {
            let order = Order { worker, ledger: ledger.to_owned() };
            let mut started = Worker::start(cx, &FLEET, serde_json::to_value(order)?).await?;
            started.go().await?;
            return Ok(Crew::Process(Box::new(started)));
        }
        let board = cx.board(cx.open().await?, seat()).await?;
        let ledger = Ledger::new(ledger, worker);
        Ok(Crew::Tasks(tokio::spawn(work(board, ledger, worker))))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if let Crew::Tasks(running) = self {
            running.abort();
        }
    }
}
