//! T40: calls about ends, pins and skips that are not answered, or that nobody waits for any more.

use std::sync::Arc;

use coord_core::board::{
    Board as _, BoardError, Claim, Dep, ExtendedBoard as _, Filter, Rule, State, TaskId, TaskSpec,
};
use coord_core::layer::{Cell, When};
use tokio::sync::Notify;

use super::pins::is_pinned;
use super::rules::{look, next};
use super::stage::{Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::{Context, remove_all};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T40",
    layer: Layer::Board,
    promise: "a claim that rests on a failed or cancelled task, fail, cancel, complete and a skip, with every transaction \
              refused, lost, its reply lost, late, sent twice or never answered: a task is pinned exactly if its dependent \
              has begun, and another client finds all that may begin, and skips what never can",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(unanswered(cx)),
}];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    /// Of the dependent of what has failed.
    Claim,
    ClaimNext,
    /// Of what others wait for.
    Fail,
    Cancel,
    Complete,
    /// Of what can never begin.
    Skip,
    SkipByNext,
}

const CALLS: [Called; 7] = [
    Called::Claim,
    Called::ClaimNext,
    Called::Fail,
    Called::Cancel,
    Called::Complete,
    Called::Skip,
    Called::SkipByNext,
];

type NewCell = fn() -> Cell;

const CELLS: [(&str, NewCell); 7] = [
    ("refused", Cell::refused),
    ("lost", Cell::request_lost),
    ("whose reply is lost", Cell::reply_lost),
    ("that is late", Cell::late),
    ("sent twice", Cell::twice),
    ("sent twice, the reply lost", Cell::twice_reply_lost),
    ("never answered", Cell::hangs),
];

async fn unanswered(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let handles = [stage.open().await?, stage.open().await?];
    for call in CALLS {
        for (what, cell) in CELLS {
            // A board of its own each, so that none grows.
            remove_all(&*handles[0]).await?;
            let stage = stage.again();
            let b = stage.seat_on(handles[1].clone(), 0, true).await?;
            for k in 1..30 {
                // The client that meets the fault is never heard of again.
                let a = stage.seat_on(handles[0].clone(), 0, true).await?;
                let when = format!("{call:?}, its {k}. transaction {what}");
                if !one(&a, &b, call, cell, k, &when).await.at(&when)? {
                    // A board may have skipped it before anybody asked.
                    let skips = matches!(call, Called::Skip | Called::SkipByNext);
                    ensure!(k > 1 || skips, "saw {call:?} without a transaction");
                    break;
                }
            }
            b.list().await?;
            let problems = b.board.check_index().await?;
            ensure_eq!(problems, [], "what is wrong with the index after {call:?} with transactions {what}");
        }
    }
    Ok(())
}

/// What stands before the call: a task that others wait for in every way.
struct Scene {
    dep: TaskId,
    label: String,
    held: Option<Claim>,
}

impl Scene {
    async fn set(seat: &Seat, call: Called, when: &str) -> Result<Self, Verdict> {
        let dep = seat.open_task(&format!("dep, {when}")).await?;
        let mut scene = Scene { dep, label: format!("label, {when}"), held: None };
        let waits = |name: &str, rule| {
            TaskSpec::new(scene.named(name)).dep(Dep::on(scene.dep.clone(), rule)).label(&scene.label)
        };
        let (finished, failed, done) =
            (waits("finished", Rule::Finished), waits("failed", Rule::Failed), waits("done", Rule::Done));
        match call {
            Called::Claim | Called::ClaimNext => {
                seat.end(&scene.dep, "failed").await?;
                seat.add(finished).await?;
            }
            Called::Fail | Called::Cancel | Called::Complete => {
                scene.held = Some(seat.claim(&scene.dep, "w").await?);
                for waiting in [finished, failed, done] {
                    seat.add(waiting).await?;
                }
            }
            Called::Skip | Called::SkipByNext => {
                seat.end(&scene.dep, "done").await?;
                seat.add(spec(scene.named("skips").as_str()).dep(Dep::on(scene.dep.clone(), Rule::Failed)))
                    .await?;
                for (name, rule) in [("behind", Rule::Done), ("cleans up", Rule::Finished)] {
                    let skips = Dep::on(scene.named("skips"), rule);
                    seat.add(TaskSpec::new(scene.named(name)).dep(skips).label(&scene.label)).await?;
                }
            }
        }
        Ok(scene)
    }

    fn named(&self, name: &str) -> TaskId {
        id(format!("{name}, {}", self.label))
    }

    async fn call(&self, seat: &Seat, call: Called) -> Result<Option<Claim>, BoardError> {
        let filter = Filter::any().with_label(&self.label);
        let token = self.held.as_ref().map(|claim| &claim.lease.token);
        match (call, token) {
            (Called::Claim, _) => return seat.try_claim(&self.named("finished"), "w").await.map(Some),
            (Called::ClaimNext | Called::SkipByNext, _) => {
                return seat.board.claim_next(&agent("w"), &filter, TTL).await;
            }
            (Called::Skip, _) => return seat.try_claim(&self.named("skips"), "w").await.map(Some),
            (Called::Fail, Some(token)) => drop(seat.board.fail(&self.dep, token, result("no")).await?),
            (Called::Complete, Some(token)) => drop(seat.board.complete(&self.dep, token, result("")).await?),
            _ => seat.board.cancel(&self.dep).await?,
        }
        Ok(None)
    }
}

/// `false` if the call has no such transaction.
async fn one(a: &Seat, b: &Seat, call: Called, cell: NewCell, k: u64, when: &str) -> Result<bool, Verdict> {
    let scene = Scene::set(b, call, when).await?;
    let reached = Arc::new(Notify::new());
    let told = {
        let reached = reached.clone();
        cell().then(move |_| {
            reached.notify_one();
            std::future::ready(())
        })
    };
    let hangs = cell().name() == Cell::hangs().name();
    let rule = a.faults.on(When::txn().nth(k), told);
    let answer = tokio::select! {
        biased;
        () = reached.notified(), if hangs => None,
        answer = scene.call(a, call) => Some(answer),
    };
    let met = a.faults.hits_of(rule) > 0;
    a.faults.release_held().await;
    while a.faults.take_held().is_some() {}
    a.faults.clear();
    if let Some(Err(error)) = &answer
        && !matches!(
            error,
            BoardError::Backend(_)
                | BoardError::OutcomeUnknown { .. }
                | BoardError::Terminal { state: State::Skipped }
        )
    {
        fail!("saw {error:?}");
    }
    match call {
        Called::Claim | Called::ClaimNext => pinned_if_begun(b, &scene, answer).await?,
        Called::Fail | Called::Cancel | Called::Complete => all_are_found(b, &scene, answer).await?,
        Called::Skip | Called::SkipByNext => {
            if let Some(Ok(Some(claim))) = answer {
                ensure_eq!(claim.task.id, scene.named("cleans up"), "what was given");
                b.board.release(&claim.task.id, &claim.lease.token).await.at("release")?;
            }
            // Whoever is never answered may hold it.
            let given = b.get(&scene.named("cleans up")).await?;
            if given.state == State::Claimed {
                b.board.revoke(&given.id, given.fence).await.at("revoke")?;
            }
            skipped(b, &scene).await?;
        }
    }
    b.list().await?;
    Ok(met)
}

async fn pinned_if_begun(
    b: &Seat,
    scene: &Scene,
    answer: Option<Result<Option<Claim>, BoardError>>,
) -> Outcome {
    let task = scene.named("finished");
    let shown = b.get(&task).await?;
    if let Some(Ok(claim)) = &answer {
        ensure_eq!(claim.is_some(), shown.state == State::Claimed, "whether it is held, by the answer");
    }
    if shown.state == State::Claimed {
        is_pinned(b, &scene.dep, &task, "of what a held task rests on").await?;
        if let Some(Ok(Some(claim))) = answer {
            b.board.complete(&task, &claim.lease.token, result("")).await.at("complete")?;
        } else {
            b.board.cancel(&task).await.at("cancel")?;
        }
        return is_pinned(b, &scene.dep, &task, "of what an ended task has rested on").await;
    }
    ensure_eq!(shown.state, State::Open, "the state of what nobody holds");
    b.board.reopen(&scene.dep).await.at("reopen, though nobody has begun")?;
    b.board.cancel(&scene.dep).await.at("cancel")?;
    let found = next(b, &scene.label).await?;
    ensure_eq!(found.map(|claim| claim.task.id), Some(task), "what may begin");
    Ok(())
}

/// All that may begin is found, and what never can is skipped.
async fn all_are_found(
    b: &Seat,
    scene: &Scene,
    answer: Option<Result<Option<Claim>, BoardError>>,
) -> Outcome {
    let state = b.get(&scene.dep).await?.state;
    if let Some(Ok(_)) = &answer {
        ensure!(state.is_terminal(), "saw {state:?} after success");
    }
    let state = if state.is_terminal() {
        state
    } else {
        ensure_eq!(state, State::Claimed, "the state of what nobody has ended");
        b.board.cancel(&scene.dep).await.at("cancel")?;
        State::Cancelled
    };
    let mut expected = vec![scene.named("finished")];
    match state {
        State::Done => expected.push(scene.named("done")),
        State::Failed => expected.push(scene.named("failed")),
        _ => {}
    }
    expected.sort();
    let mut found = Vec::new();
    while let Some(claim) = next(b, &scene.label).await? {
        b.board.complete(&claim.task.id, &claim.lease.token, result("")).await.at("complete")?;
        found.push(claim.task.id);
        ensure!(found.len() < 4, "saw {found:?} given");
    }
    found.sort();
    ensure_eq!(found, expected, "what is found once a task is {state:?}");
    if state == State::Done {
        ensure_eq!(
            b.get(&scene.named("failed")).await?.state,
            State::Skipped,
            "the state of what waits for the failure of a done task"
        );
    }
    Ok(())
}

async fn skipped(b: &Seat, scene: &Scene) -> Outcome {
    let found = next(b, &scene.label).await?;
    ensure_eq!(found.map(|claim| claim.task.id), Some(scene.named("cleans up")), "what may begin");
    look(b).await?;
    for name in ["skips", "behind"] {
        ensure_eq!(b.get(&scene.named(name)).await?.state, State::Skipped, "the state of {name:?}");
    }
    Ok(())
}
