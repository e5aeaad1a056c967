//! T10 and T11: what happens while a claim is judged.

use std::sync::Arc;

use coord_core::board::{Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard as _, State};
use coord_core::layer::When;
use tokio::sync::Barrier;

use super::stage::{Place, Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T10",
        layer: Layer::Board,
        promise: "a dependency that completes during the claim: either Blocked or claimed, as if one came first",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(dependency_completes(cx)),
    },
    Clause {
        id: "T11",
        layer: Layer::Board,
        promise: "dependencies edited between snapshot and transaction: judged again on the new ones",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(dependencies_edited(cx)),
    },
];

async fn dependency_completes(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let done = a.ended_task("long done", "done").await?;
    let mut seen = [0, 0];
    // At every point of the claim.
    for place in Place::BOTH {
        for k in 1.. {
            let dep = a.open_task(&format!("dep {place:?} {k}")).await?;
            a.add(spec(format!("task {place:?} {k}")).deps([done.clone(), dep.clone()])).await?;
            let task = id(format!("task {place:?} {k}"));
            let holder = b.claim(&dep, "holder").await?;
            let step = a.interpose(When::any().nth(k), place, {
                let (board, dep, token) = (b.board.clone(), dep.clone(), holder.lease.token.clone());
                move || {
                    let (board, dep, token) = (board.clone(), dep.clone(), token.clone());
                    async move {
                        board.complete(&dep, &token, result("just now")).await.at("completing")?;
                        Ok(())
                    }
                }
            });
            let claimed = a.try_claim(&task, "w").await;
            let taken = step.taken()?.is_some();
            a.faults.clear();
            if !taken {
                ensure_matches!(
                    claimed,
                    Err(BoardError::Blocked { .. }),
                    "a claim before its dependency is done"
                );
                break;
            }
            let won =
                as_if_one_came_first(&a, &b, &task, &dep, claimed).await.at(format!("{place:?} call {k}"))?;
            seen[usize::from(won)] += 1;
        }
    }
    ensure!(seen[0] > 0 && seen[1] > 0, "saw {seen:?} blocked and claimed: both orders must have been tried");
    // At one instant.
    for round in 0..20 {
        let dep = a.open_task(&format!("raced dep {round}")).await?;
        a.add(spec(format!("raced {round}")).deps([dep.clone(), done.clone()])).await?;
        let task = id(format!("raced {round}"));
        let holder = b.claim(&dep, "holder").await?;
        let barrier = Arc::new(Barrier::new(2));
        let claimer = tokio::spawn({
            let (board, task, barrier) = (a.board.clone(), task.clone(), barrier.clone());
            async move {
                barrier.wait().await;
                board.claim(&task, &agent("w"), ClaimRequest::for_ttl(TTL)).await
            }
        });
        barrier.wait().await;
        b.board.complete(&dep, &holder.lease.token, result("just now")).await.at("completing in a race")?;
        as_if_one_came_first(&a, &b, &task, &dep, claimer.await?).await.at(format!("round {round}"))?;
    }
    a.list().await?;
    Ok(())
}

/// Whether the claim came second, and so was given.
async fn as_if_one_came_first(
    a: &Seat,
    b: &Seat,
    task: &coord_core::board::TaskId,
    dep: &coord_core::board::TaskId,
    claimed: Result<coord_core::board::Claim, BoardError>,
) -> Result<bool, crate::Verdict> {
    for seat in [a, b] {
        ensure_eq!(seat.get(dep).await?.state, State::Done, "the state of the dependency that was completed");
    }
    match claimed {
        Ok(claim) => {
            ensure_eq!(b.get(task).await?, claim.task, "the task after the claim");
            b.board.renew(task, &claim.lease.token, TTL).await.at("renewing what was claimed")?;
            Ok(true)
        }
        Err(BoardError::Blocked { pending, failed, missing })
            if pending == [dep.clone()] && failed.is_empty() && missing.is_empty() =>
        {
            ensure_eq!(b.get(task).await?.state, State::Open, "the state after a blocked claim");
            b.claim(task, "w").await.at("after the dependency is done")?;
            Ok(false)
        }
        other => fail!("saw {other:?}: a claim while its dependency completes"),
    }
}

async fn dependencies_edited(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let open = a.open_task("open").await?;
    let done = a.ended_task("done", "done").await?;
    let failed = a.ended_task("failed", "failed").await?;
    // A rival's edit after every read and before every write of the claim; once it has none left, the claim came first.
    let edits = ["open", "failed", "done", "cancel", "remove", "twice"];
    for edit in edits {
        for place in Place::BOTH {
            let mut judged_again = 0;
            for k in 1.. {
                let name = format!("{edit} {place:?} {k}");
                a.add(spec(&name).dep(done.clone())).await?;
                let task = id(&name);
                let step = a.interpose(When::any().nth(k), place, {
                    let (board, task) = (b.board.clone(), task.clone());
                    let (open, done, failed) = (open.clone(), done.clone(), failed.clone());
                    move || {
                        let (board, task) = (board.clone(), task.clone());
                        let (open, done, failed) = (open.clone(), done.clone(), failed.clone());
                        async move {
                            let outcome = match edit {
                                "open" => board.set_deps(&task, &Dep::all([open, done]), None).await,
                                "failed" => board.set_deps(&task, &Dep::all([failed]), None).await,
                                "done" => board.set_deps(&task, &[], None).await,
                                "cancel" => board.cancel(&task).await,
                                "remove" => board.remove(&task).await,
                                _ => match board.set_deps(&task, &Dep::all([open]), None).await {
                                    Ok(()) => board.set_deps(&task, &Dep::all([done]), None).await,
                                    refused => refused,
                                },
                            };
                            match outcome {
                                Ok(()) => Ok(true),
                                // The claim came first; a cancelled one is cancelled all the same.
                                Err(BoardError::Taken { .. }) => Ok(false),
                                Err(error) => Err(error).at(edit),
                            }
                        }
                    }
                });
                let claimed = a.try_claim(&task, "w").await;
                let edited = step.taken()?;
                a.faults.clear();
                let Some(edited) = edited else {
                    ensure!(claimed.is_ok(), "saw {claimed:?}: a claim that nobody disturbed");
                    break;
                };
                let shown = b.board.get(&task).await;
                let place = format!("the edit {edit:?} {place:?} call {k}, and then {shown:?}");
                match (edit, claimed, shown) {
                    ("open", Err(BoardError::Blocked { pending, .. }), Ok(task)) => {
                        ensure_eq!(pending, std::slice::from_ref(&open), "what blocks a claim: {place}");
                        ensure_eq!(task.state, State::Open, "the state after a refused claim: {place}");
                        judged_again += 1;
                    }
                    ("failed", Err(BoardError::Blocked { failed: names, .. }), Ok(task)) => {
                        ensure_eq!(names, std::slice::from_ref(&failed), "what blocks a claim: {place}");
                        ensure_eq!(task.state, State::Open, "the state after a refused claim: {place}");
                        judged_again += 1;
                    }
                    ("cancel", Err(BoardError::Terminal { state: State::Cancelled }), Ok(_))
                    | ("remove", Err(BoardError::NotFound { .. }), Err(BoardError::NotFound { .. })) => {
                        judged_again += 1;
                    }
                    // The claim was applied first, and cancelled then.
                    ("cancel", Ok(claim), Ok(task)) if task.state == State::Cancelled => {
                        let lost = a.board.renew(&task.id, &claim.lease.token, TTL).await;
                        ensure_matches!(lost, Err(BoardError::LeaseLost { .. }), "renew: {place}");
                    }
                    (_, Ok(claim), Ok(task)) if task.state == State::Claimed => {
                        // An edit that succeeded came before the claim, which must have been judged on it.
                        ensure!(
                            !task.depends_on(&open) && !task.depends_on(&failed),
                            "saw a task claimed although its new dependencies are not done: {place}"
                        );
                        ensure!(
                            !edited || edit == "twice" || (edit == "done" && task.deps.is_empty()),
                            "saw an edit that was accepted undone by a claim: {place}"
                        );
                        b.board
                            .renew(&task.id, &claim.lease.token, TTL)
                            .await
                            .at("renewing what was claimed")?;
                        judged_again += usize::from(edit == "done" || edit == "twice");
                    }
                    (_, claimed, _) => fail!("saw {claimed:?}: a claim with {place}"),
                }
            }
            ensure!(
                judged_again > 0,
                "saw no claim that was judged again: the edit {edit:?} {place:?} a call"
            );
        }
    }
    a.list().await?;
    Ok(())
}
