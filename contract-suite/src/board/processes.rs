//! T03 and T19 again, with several processes instead of several handles.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{AgentId, BoardError, ClaimRequest, ExtendedBoard, TaskId, TaskSpec};
use coord_core::{Clock, SystemClock};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::BoardSeat;
use crate::process::{Job, Seat, run_workers};
use crate::{ensure, ensure_eq, fail, skip};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T03.processes",
        layer: Layer::Board,
        promise: "agents in several processes claim one task at one instant: one winner, all others Taken, and the fence \
                  moves by one",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(one_winner(cx)),
    },
    Clause {
        id: "T19.processes",
        layer: Layer::Board,
        promise: "fences go on over removal and re-adding, also in another process",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(fences(cx)),
    },
];

pub(crate) const JOBS: &[Job] = &[CLAIM, LIVE];

const CLAIM: Job = Job { name: "board claim", body: claim_all };
const LIVE: Job = Job { name: "board live", body: live };

const WORKERS: usize = 4;
const ROUNDS: u64 = 20;
/// How long the slowest process may take to the next round.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any run: the store's own clock counts here.
const TTL: Duration = Duration::from_secs(3_600);

/// What one process got of one task.
#[derive(Serialize, Deserialize)]
struct Won {
    round: u64,
    fence: u64,
    token: String,
}

pub(super) fn seat() -> BoardSeat {
    BoardSeat { clock: Arc::new(SystemClock::new()), max_clock_skew: Duration::from_secs(1) }
}

pub(super) async fn board(seat: &Seat) -> Result<Arc<dyn ExtendedBoard>, Verdict> {
    let Some(boards) = &seat.boards else { skip!("this program has no board harness") };
    boards.open(seat.backend.clone(), self::seat()).await.at("opening a board")
}

fn contested(round: u64) -> TaskId {
    TaskId::unchecked(format!("contested {round}"))
}

/// Comes to each task as soon as all workers have come to it.
fn claim_all(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let board = board(&seat).await?;
        let worker = seat.request["worker"].as_u64().unwrap_or(0);
        let agent = AgentId::unchecked(format!("process {worker}"));
        let mut won = Vec::new();
        for round in 0..ROUNDS {
            gate(&*board, round, worker).await?;
            match board.claim(&contested(round), &agent, ClaimRequest::for_ttl(TTL)).await {
                Ok(claim) => {
                    won.push(Won { round, fence: claim.lease.fence, token: claim.lease.token.reveal() });
                }
                Err(BoardError::Taken { .. }) => {}
                Err(other) => return Err(Verdict::from(other).context(format!("claiming in round {round}"))),
            }
        }
        Ok(serde_json::to_value(won)?)
    })
}

fn gate_task(round: u64, worker: u64) -> TaskId {
    TaskId::unchecked(format!("gate {round} {worker}"))
}

/// Waits until every worker has come here. Who comes removes a task of its own, which the others see on the board.
async fn gate(board: &dyn ExtendedBoard, round: u64, worker: u64) -> Outcome {
    board.remove(&gate_task(round, worker)).await.at("passing a gate")?;
    for other in 0..WORKERS as u64 {
        // The removal of the other's gate is seen as soon as it has come here.
        let clock = SystemClock::new();
        let start = clock.monotonic();
        while board.get(&gate_task(round, other)).await.is_ok() {
            ensure!(
                clock.monotonic() - start < PATIENCE,
                "saw a task still there in round {round} that the process {other} has removed, or that process gone"
            );
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

async fn one_winner(cx: Context) -> Outcome {
    let here = cx.board(cx.open().await?, seat()).await?;
    for round in 0..ROUNDS {
        here.add(TaskSpec::new(contested(round))).await.at("adding")?;
        for worker in 0..WORKERS as u64 {
            here.add(TaskSpec::new(gate_task(round, worker))).await.at("adding a gate")?;
        }
    }
    let requests = (0..WORKERS).map(|worker| json!({ "worker": worker })).collect();
    let answers = run_workers(&cx, &CLAIM, requests).await?;
    let mut won: Vec<(usize, Won)> = Vec::new();
    for (worker, answer) in answers.into_iter().enumerate() {
        let wins: Vec<Won> = serde_json::from_value(answer)?;
        won.extend(wins.into_iter().map(|win| (worker, win)));
    }
    for round in 0..ROUNDS {
        let winners: Vec<&(usize, Won)> = won.iter().filter(|(_, win)| win.round == round).collect();
        let [(worker, win)] = winners[..] else {
            fail!("saw {} of {WORKERS} processes win one task in round {round}", winners.len());
        };
        let task = here.get(&contested(round)).await?;
        ensure_eq!(
            (task.fence, win.fence),
            (1, 1),
            "the fence after one race, on the board and as the winner got it"
        );
        ensure_eq!(
            task.owner,
            Some(AgentId::unchecked(format!("process {worker}"))),
            "the owner, which must be the winner"
        );
        // The token that another process got is good here.
        here.renew(&contested(round), &win.token.parse()?, TTL)
            .await
            .at("renewing with the winner's token")?;
    }
    Ok(())
}

/// One life of a task: added, claimed and released so many times, removed. Answers with the fences that it got.
fn live(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let board = board(&seat).await?;
        let task = TaskId::unchecked("phoenix");
        board.add(TaskSpec::new(task.clone())).await.at("adding")?;
        let mut fences = Vec::new();
        for _ in 0..seat.request["claims"].as_u64().unwrap_or(1) {
            let claim = board
                .claim(&task, &AgentId::unchecked("w"), ClaimRequest::for_ttl(TTL))
                .await
                .at("claiming")?;
            fences.push(claim.lease.fence);
            board.release(&task, &claim.lease.token).await.at("releasing")?;
        }
        board.remove(&task).await.at("removing")?;
        Ok(json!(fences))
    })
}

async fn fences(cx: Context) -> Outcome {
    let mut last = 0;
    for (life, claims) in [5, 1, 3, 1].into_iter().enumerate() {
        for answer in run_workers(&cx, &LIVE, vec![json!({ "claims": claims })]).await? {
            let fences: Vec<u64> = serde_json::from_value(answer)?;
            ensure_eq!(fences.len(), claims, "claims of one life");
            for fence in fences {
                ensure!(fence > last, "saw the fence {fence} after {last}: life {life}, in another process");
                last = fence;
            }
        }
    }
    Ok(())
}
