//! T14 and T15: seqs and tokens.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard as _, Filter, TaskId};
use coord_core::layer::When;
use coord_core::{Clock, SystemClock, Token};
use tokio::sync::Barrier;

use super::stage::{Place, Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T14",
        layer: Layer::Board,
        promise: "seq strictly grows with every change of a task, over removal and re-adding too",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(seqs(cx)),
    },
    Clause {
        id: "T15",
        layer: Layer::Board,
        promise: "tokens are unique over 100,000 claims (as many of them as the store does in ten seconds, 1,500 at \
                  least), and no loser's token is ever stored",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(tokens(cx)),
    },
];

struct Seq<'a> {
    task: TaskId,
    last: u64,
    seats: [&'a Seat; 2],
}

impl Seq<'_> {
    /// Something has changed the task.
    async fn moved(&mut self, what: &str) -> Outcome {
        let mut seen = Vec::new();
        for seat in self.seats {
            seen.push(seat.get(&self.task).await?.seq);
        }
        ensure_eq!(seen[0], seen[1], "the seq that the second seat sees after {what}");
        ensure!(seen[0] > self.last, "saw the seq {} after {}: {what}", seen[0], self.last);
        self.last = seen[0];
        Ok(())
    }
}

async fn seqs(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let dep = a.ended_task("dep", "done").await?;
    let mut seq = Seq { task: id("task"), last: 0, seats: [&a, &b] };
    let task = &id("task");
    for life in 0..4 {
        let (one, other) = if life % 2 == 0 { (&a, &b) } else { (&b, &a) };
        one.board.add(spec("task")).await?;
        seq.moved(if life == 0 { "add" } else { "add after removal" }).await?;
        // Every second life is short, so that the next one starts below where a long one ended.
        if life % 2 == 0 {
            one.board.set_deps(task, &[Dep::from(&dep)], None).await?;
            seq.moved("set_deps").await?;
            let claim = other.claim(task, "w").await?;
            seq.moved("claim").await?;
            other.board.renew(task, &claim.lease.token, TTL * 2).await?;
            seq.moved("renew").await?;
            stage.advance(TTL * 2);
            let claim = one.claim(task, "w2").await?;
            seq.moved("takeover").await?;
            one.board.release(task, &claim.lease.token).await?;
            seq.moved("release").await?;
            let claim = other.claim(task, "w").await?;
            seq.moved("claim after a release").await?;
            one.board.revoke(task, claim.lease.fence).await?;
            seq.moved("revoke").await?;
            one.board.cancel(task).await?;
            seq.moved("cancel").await?;
            other.board.reopen(task).await?;
            seq.moved("reopen").await?;
            let claim = other.claim(task, "w").await?;
            seq.moved("claim after reopen").await?;
            other.board.fail(task, &claim.lease.token, result("")).await?;
            seq.moved("fail").await?;
            one.board.reopen(task).await?;
            seq.moved("reopen of a failed task").await?;
            let claim = one.board.claim_next(&agent("w"), &Filter::any(), TTL).await?;
            let Some(claim) = claim else { fail!("saw claim_next find nothing, although a task is ready") };
            seq.moved("claim_next").await?;
            other.board.cancel(task).await?;
            seq.moved("cancel of a claimed task").await?;
            let late = one.board.complete(task, &claim.lease.token, result("")).await;
            ensure_matches!(late, Err(BoardError::LeaseLost { .. }), "complete of a cancelled task");
            other.board.reopen(task).await?;
            seq.moved("reopen of a cancelled task").await?;
            let claim = one.claim(task, "w").await?;
            seq.moved("the last claim").await?;
            one.board.complete(task, &claim.lease.token, result("")).await?;
            seq.moved("complete").await?;
        }
        // Renewals of another task must not matter, nor that it goes.
        let bystander = one.open_task("bystander").await?;
        one.board.remove(&bystander).await?;
        one.board.remove(task).await?;
        let gone = other.board.get(task).await;
        ensure_matches!(gone, Err(BoardError::NotFound { .. }), "get of a removed task");
    }
    // An unchanged seq means an untouched task: that is what expected_seq relies on.
    a.board.add(spec("task")).await?;
    seq.moved("add after removal").await?;
    let stale = a.board.set_deps(task, &[Dep::from(&dep)], Some(seq.last - 1)).await;
    match stale {
        Err(BoardError::SeqMismatch { current_seq }) if current_seq == seq.last => {}
        other => fail!("saw {other:?}, not SeqMismatch with {}: set_deps expecting an older seq", seq.last),
    }
    a.board.set_deps(task, &[Dep::from(&dep)], Some(seq.last)).await.at("set_deps expecting the seq")?;
    seq.moved("set_deps expecting the seq").await
}

/// Counts the tokens that it is given, each of which must be new.
#[derive(Default)]
struct Tokens(BTreeSet<String>);

impl Tokens {
    fn insert(&mut self, token: &Token) -> Outcome {
        let claims = self.0.len();
        ensure!(self.0.insert(token.reveal()), "saw one token given twice within {claims} claims");
        Ok(())
    }
}

const CLAIMS: usize = 100_000;
const AT_LEAST: usize = 1_500;
const BUDGET: Duration = Duration::from_secs(10);

async fn tokens(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let seats = stage.seats(4).await?;
    losers_store_nothing(&stage, &seats).await?;
    let clock = SystemClock::new();
    let start = clock.monotonic();
    let mut all = Tokens::default();
    let mut batch = 0_u32;
    while all.0.len() < CLAIMS && (all.0.len() < AT_LEAST || clock.monotonic() - start < BUDGET) {
        // Each seat works on a task of its own, by each way to a token in turn.
        let workers: Vec<_> = seats
            .iter()
            .enumerate()
            .map(|(n, seat)| {
                let (board, clock) = (seat.board.clone(), stage.clock.clone());
                let task = id(format!("task {n}"));
                tokio::spawn(async move {
                    let label = format!("label {n}");
                    board.add(spec(task.as_str()).label(&label)).await?;
                    let filter = Filter::any().with_label(&label);
                    let mut given = Vec::new();
                    for round in 0..100_u32 {
                        let claim = if round == 0 {
                            board.claim_next(&agent("w"), &filter, TTL).await?
                        } else {
                            Some(board.claim(&task, &agent("w"), ClaimRequest::for_ttl(TTL)).await?)
                        };
                        let Some(claim) = claim else { continue };
                        if (round + batch) % 50 == 1 {
                            // The next claim takes over.
                            clock.advance(TTL);
                        } else {
                            board.release(&task, &claim.lease.token).await?;
                        }
                        given.push(claim.lease.token);
                    }
                    Ok::<_, BoardError>(given)
                })
            })
            .collect();
        for worker in workers {
            for token in worker.await?.at("claiming and releasing")? {
                all.insert(&token)?;
            }
        }
        batch += 1;
        // Nothing is held when the next batch begins.
        stage.advance(TTL);
    }
    Ok(())
}

/// A claim that was refused or that lost has applied no transaction at all.
async fn losers_store_nothing(stage: &Stage, seats: &[Seat]) -> Outcome {
    let (a, b) = (&seats[0], &seats[1]);
    let open = a.open_task("open").await?;
    let held = a.open_task("held").await?;
    let mut known = vec![a.claim(&held, "w").await?.lease.token];
    a.add(spec("blocked").dep(open.clone())).await?;
    let done = a.ended_task("done", "done").await?;
    for task in [&held, &id("blocked"), &done, &id("unknown")] {
        let before = (b.meter.counts().txn, b.raw_entries().await?);
        let refused = b.try_claim(task, "loser").await;
        ensure!(refused.is_err(), "saw a claim of {task:?} accepted");
        let applied = b.meter.counts().txn.since(before.0).applied;
        ensure_eq!(applied, 0, "transactions applied by a refused claim of {task:?}");
        ensure!(b.raw_entries().await? == before.1, "saw the store changed by a refused claim of {task:?}");
    }
    for place in Place::BOTH {
        for k in 1.. {
            let task = a.open_task(&format!("raced {place:?} {k}")).await?;
            let step = b.interpose(When::any().nth(k), place, {
                let (board, task) = (a.board.clone(), task.clone());
                move || {
                    let (board, task) = (board.clone(), task.clone());
                    async move {
                        let claimed = board.claim(&task, &agent("w"), ClaimRequest::for_ttl(TTL)).await;
                        ensure_matches!(claimed, Ok(_) | Err(BoardError::Taken { .. }), "the rival's claim");
                        Ok(())
                    }
                }
            });
            let before = b.meter.counts().txn;
            let claimed = b.try_claim(&task, "loser").await;
            let (taken, spent) = (step.taken()?.is_some(), b.meter.counts().txn.since(before));
            b.faults.clear();
            match claimed {
                Ok(claim) => known.push(claim.lease.token),
                Err(_) => ensure_eq!(spent.applied, 0, "transactions applied by a claim that lost"),
            }
            if !taken {
                break;
            }
        }
    }
    // Each racer at a seat of its own: what the three losers sent was not applied.
    for round in 0..10 {
        let task = a.open_task(&format!("race {round}")).await?;
        let before: Vec<_> = seats.iter().map(|seat| seat.meter.counts().txn).collect();
        let barrier = Arc::new(Barrier::new(seats.len()));
        let racers: Vec<_> = seats
            .iter()
            .map(|seat| {
                let (board, barrier, task) = (seat.board.clone(), barrier.clone(), task.clone());
                tokio::spawn(async move {
                    barrier.wait().await;
                    board.claim(&task, &agent("racer"), ClaimRequest::for_ttl(TTL)).await
                })
            })
            .collect();
        for ((racer, seat), before) in racers.into_iter().zip(seats).zip(before) {
            let answer = racer.await?;
            let applied = seat.meter.counts().txn.since(before).applied;
            match answer {
                Ok(claim) => {
                    ensure_eq!(applied, 1, "transactions applied by the winner of a race");
                    known.push(claim.lease.token);
                }
                Err(BoardError::Taken { .. }) => {
                    ensure_eq!(applied, 0, "transactions applied by the loser of a race");
                }
                Err(other) => return Err(Verdict::from(other).context("in a race")),
            }
        }
    }
    let mut all = Tokens::default();
    known.iter().try_for_each(|token| all.insert(token))?;
    // Nothing is left that a later search could find.
    stage.advance(TTL);
    for task in a.list().await? {
        if let Some(lease) = task.lease {
            a.board.revoke(&task.id, lease.fence).await?;
        }
        if !task.state.is_terminal() {
            a.board.cancel(&task.id).await?;
        }
    }
    Ok(())
}
