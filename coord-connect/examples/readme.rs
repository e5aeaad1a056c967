//! The pieces of Rust in the project's README, in one program: `cargo run -p coord-connect --example readme`.

#![allow(clippy::print_stdout, reason = "an example says what it does")]

use std::error::Error;
use std::sync::Arc;

use coord_core::Backend;
use coord_core::board::Job;

/// A board with one task, claimed and completed by hand.
async fn by_hand() -> Result<(), Box<dyn Error>> {
    use coord_core::board::{
        AgentId, Board, BoardAdapter, BoardOptions, ExtendedBoard, Filter, Outcome, TaskId, TaskSpec,
    };
    use std::time::Duration;

    let backend = coord_connect::connect("sqlite:jobs.db", &"nightly".parse()?).await?;
    let board = BoardAdapter::open(backend.clone(), BoardOptions::default()).await?;
    board.add(TaskSpec::new(TaskId::new("report")?).title("Write the report")).await?;

    // In any process, on any host that reaches the store:
    let me = AgentId::new("host-7")?;
    if let Some(claim) = board.claim_next(&me, &Filter::any(), Duration::from_secs(30)).await? {
        // Hand `claim.lease.fence` to whatever the task writes to: it refuses a smaller one than it has seen.
        board.complete(&claim.task.id, &claim.lease.token, Outcome::new("42 pages")?).await?;
    }
    Ok(())
}

/// The same by a worker, until Ctrl-C.
#[allow(dead_code, reason = "it works until somebody presses Ctrl-C")]
async fn by_worker(
    board: coord_core::board::BoardAdapter<Arc<dyn Backend>>,
    me: coord_core::board::AgentId,
) -> Result<(), Box<dyn Error>> {
    use coord_core::board::Worker;

    let report = Worker::new(board, me)
        .concurrency(8)
        .run(write_report, async { tokio::signal::ctrl_c().await.unwrap_or_default() })
        .await?;
    println!("{} done, {} failed", report.completed, report.failed);
    Ok(())
}

async fn write_report(job: Job) -> Result<coord_core::board::Outcome, std::io::Error> {
    println!("{} under fence {}", job.task().title, job.fence());
    Ok(coord_core::board::Outcome::default())
}

/// An action that must not happen twice.
async fn at_most_once(backend: Arc<dyn Backend>) -> Result<(), Box<dyn Error>> {
    use coord_core::board::AgentId;
    use coord_core::effects::{
        Action, ActionKey, EffectAdapter, EffectOptions, Failure, Guard, RunOptions, RunOutcome,
    };

    // Who acts: the history tells it to people. Without a name it is `unnamed`.
    let options = EffectOptions::default().agent(AgentId::new("host-7")?);
    let effects = EffectAdapter::open(backend, options).await?;
    let charge = Action::new(ActionKey::new("charge/order-7")?);
    let outcome = effects
        .run(charge, RunOptions::default(), |lease| async move {
            // The vendor's idempotency key: the same for all attempts of this action.
            charge_card(lease.downstream_key(), lease.fence()).await.map_err(Failure::Unknown)
        })
        .await?;
    match outcome {
        RunOutcome::Executed { value, .. } => println!("charged: {value:?}"),
        RunOutcome::Replayed(completed) => println!("was charged before: {:?}", completed.result()),
        other => println!("not now: {}", other.as_str()),
    }
    Ok(())
}

async fn charge_card(key: &str, fence: u64) -> Result<String, std::io::Error> {
    Ok(format!("a receipt for {key} under fence {fence}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    by_hand().await?;
    let backend = coord_connect::connect("sqlite:jobs.db", &"shop".parse()?).await?;
    at_most_once(backend.clone()).await?;
    at_most_once(backend).await
}
