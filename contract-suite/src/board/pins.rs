//! T39: what a task rests on since it has begun is not reopened.

use std::sync::Arc;

use coord_core::board::{
    Board as _, BoardError, Dep, ExtendedBoard as _, ProblemCode, Rule, Standing, State, TaskId, TaskSpec,
};
use coord_core::layer::When;
use tokio::sync::Barrier;

use super::rules::{is_blocked, look, next};
use super::stage::{Place, Seat, Stage, TTL, agent, id, result};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T39",
        layer: Layer::Board,
        promise: "reopen of what failed or was cancelled is HasDependents, naming the dependent, once one has begun that rests \
                  on that end, and whatever becomes of the dependent, and explain names it; before it is allowed, and blocks the \
                  dependents",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(begun(cx)),
    },
    Clause {
        id: "T39.race",
        layer: Layer::Board,
        promise: "of a reopen and a claim that rests on the end that it undoes one comes first: no held task ever names one \
                  that is open",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(race(cx)),
    },
];

/// The ends on which a task by this rule rests.
const RESTS: [(Rule, &str); 3] =
    [(Rule::Finished, "failed"), (Rule::Finished, "cancelled"), (Rule::Failed, "failed")];

/// What becomes of a task that has begun.
const AFTER: [&[&str]; 9] = [
    &["release"],
    &["release", "set_deps", "claim", "complete"],
    &["fail"],
    &["fail", "reopen"],
    &["complete"],
    &["cancel", "remove"],
    &["revoke", "remove"],
    &["complete", "remove"],
    &["expire", "claim", "release"],
];

/// Reopening is refused because of this task, and changes nothing.
pub(super) async fn is_pinned(seat: &Seat, dep: &TaskId, dependent: &TaskId, when: &str) -> Outcome {
    let before = seat.get(dep).await?;
    match seat.board.reopen(dep).await {
        Err(BoardError::HasDependents { dependent: named }) if named == *dependent => {}
        other => fail!("saw {other:?}, not HasDependents {dependent:?}: reopen {when}"),
    }
    match seat.board.explain(dep).await.at("explain")? {
        Standing::Pinned { state, dependent: named } if state == before.state && named == *dependent => {}
        other => fail!("saw {other:?}, not Pinned by {dependent:?}: explain {when}"),
    }
    seat.is_unchanged(&before, format!("a refused reopen {when}")).await
}

async fn begun(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for (rule, end) in RESTS {
        for (n, after) in AFTER.into_iter().enumerate() {
            let when = format!("{rule} on {end}, then {}", after.join(", "));
            one_life(&stage, (&a, &b), (rule, end, after, n % 2 == 0), &when).await.at(&when)?;
        }
    }
    several(&a, &b).await?;
    begun_again(&a, &b).await?;
    not_begun(&a, &b).await?;
    look(&b).await?;
    a.list().await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

async fn one_life(
    stage: &Stage,
    (a, b): (&Seat, &Seat),
    (rule, end, after, by_next): (Rule, &str, &[&str], bool),
    when: &str,
) -> Outcome {
    let dep = a.open_task(&format!("dep, {when}")).await?;
    let task = id(format!("task, {when}"));
    let waiting = TaskSpec::new(task.clone()).dep(Dep::on(dep.clone(), rule)).label(task.as_str());
    a.add(waiting).await?;
    a.end(&dep, end).await?;
    // Nobody has begun, though the index has it among what can be claimed.
    look(b).await?;
    b.board.reopen(&dep).await.at("reopen before anybody has begun")?;
    let found = next(a, task.as_str()).await?;
    ensure!(found.is_none(), "saw {found:?}, though what it rests on was reopened");
    is_blocked(a, &task, &[&dep], &[], "once what it rests on was reopened").await?;
    b.end(&dep, end).await?;
    let mut claim = if by_next {
        let Some(found) = next(b, task.as_str()).await? else { fail!("saw claim_next find nothing") };
        found
    } else {
        b.claim(&task, "w").await?
    };
    ensure_eq!(claim.task.id, task, "what was given");
    for seat in [a, b] {
        is_pinned(seat, &dep, &task, "while a dependent is held").await?;
    }
    let mut removed = false;
    for verb in after {
        let token = claim.lease.token.clone();
        match *verb {
            "release" => b.board.release(&task, &token).await.at("release")?,
            "set_deps" => a.board.set_deps(&task, &[], None).await.at("set_deps")?,
            "claim" => claim = a.claim(&task, "w").await?,
            "fail" => drop(b.board.fail(&task, &token, result("no")).await.at("fail")?),
            "reopen" => a.board.reopen(&task).await.at("reopen of the dependent")?,
            "complete" => drop(a.board.complete(&task, &token, result("")).await.at("complete")?),
            "cancel" => a.board.cancel(&task).await.at("cancel")?,
            "revoke" => a.board.revoke(&task, claim.lease.fence).await.at("revoke")?,
            "remove" => {
                let held = a.board.remove(&dep).await;
                ensure_matches!(
                    held,
                    Err(BoardError::HasDependents { .. }),
                    "removal of what another one names"
                );
                a.board.remove(&task).await.at("removal of the dependent")?;
                removed = true;
            }
            "expire" => stage.advance(TTL * 2),
            other => fail!("the suite knows no verb {other}"),
        }
        is_pinned(a, &dep, &task, &format!("after {verb}")).await?;
    }
    if removed {
        b.board.remove(&dep).await.at("removal of what nobody names any more")?;
        // The next life of the id knows nothing of it.
        a.ended_task(dep.as_str(), end).await?;
        b.board.reopen(&dep).await.at("reopen in the next life")?;
        return Ok(());
    }
    // One more may rest on it, and changes nothing about who is named.
    let second = id(format!("second, {when}"));
    a.add(TaskSpec::new(second.clone()).dep(Dep::on(dep.clone(), rule))).await?;
    let claim = b.claim(&second, "w").await?;
    is_pinned(a, &dep, &task, "with two dependents").await?;
    b.board.complete(&second, &claim.lease.token, result("")).await.at("complete of the second")?;
    is_pinned(b, &dep, &task, "after the second is done").await
}

/// All that a task rests on stays.
async fn several(a: &Seat, b: &Seat) -> Outcome {
    let mut deps = Vec::new();
    for (n, (rule, end)) in RESTS.into_iter().enumerate() {
        deps.push(Dep::on(a.ended_task(&format!("one of several {n}"), end).await?, rule));
    }
    let done = a.ended_task("the done one", "done").await?;
    let mut edges = deps.clone();
    edges.insert(1, Dep::on(done.clone(), Rule::Finished));
    let task = id("rests on several");
    a.add(TaskSpec::new(task.clone()).deps(edges)).await?;
    b.claim(&task, "w").await?;
    for dep in &deps {
        is_pinned(a, &dep.id, &task, "of one of several").await?;
    }
    let refused = a.board.reopen(&done).await;
    ensure_matches!(refused, Err(BoardError::Terminal { state: State::Done }), "reopen of the done one");
    Ok(())
}

/// What another claim of the same task rests on stays as well, and what the first one rested on.
async fn begun_again(a: &Seat, b: &Seat) -> Outcome {
    for (n, (rule, end)) in RESTS.into_iter().enumerate() {
        let first = a.ended_task(&format!("first of {n}"), end).await?;
        let second = a.ended_task(&format!("second of {n}"), end).await?;
        let task = id(format!("begins again {n}"));
        a.add(TaskSpec::new(task.clone()).dep(Dep::on(first.clone(), rule))).await?;
        let claim = b.claim(&task, "w").await?;
        b.board.release(&task, &claim.lease.token).await.at("release")?;
        a.board.set_deps(&task, &[Dep::on(second.clone(), rule)], None).await.at("set_deps")?;
        b.claim(&task, "w").await?;
        for dep in [&first, &second] {
            is_pinned(a, dep, &task, "of a task that has begun twice").await?;
        }
    }
    Ok(())
}

/// Whoever has not begun keeps nobody from reopening.
async fn not_begun(a: &Seat, b: &Seat) -> Outcome {
    let other = a.open_task("still open").await?;
    let done = a.ended_task("done long ago", "done").await?;
    for (rule, end) in RESTS {
        for reason in ["blocked", "cancelled", "skipped", "edited", "removed", "by the rule done"] {
            let name = format!("{rule} on {end}, {reason}");
            let dep = a.ended_task(&format!("dep, {name}"), end).await?;
            let task = id(format!("task, {name}"));
            let edges = match reason {
                "blocked" => vec![Dep::on(dep.clone(), rule), Dep::from(&other)],
                "skipped" => vec![Dep::on(dep.clone(), rule), Dep::on(done.clone(), Rule::Failed)],
                "by the rule done" => vec![Dep::from(&dep)],
                _ => vec![Dep::on(dep.clone(), rule)],
            };
            a.add(TaskSpec::new(task.clone()).deps(edges)).await?;
            match reason {
                "cancelled" => b.board.cancel(&task).await.at("cancel")?,
                "edited" => b.board.set_deps(&task, &[], None).await.at("set_deps")?,
                "removed" => b.board.remove(&task).await.at("remove")?,
                _ => {
                    let refused = b.try_claim(&task, "w").await;
                    ensure_matches!(
                        refused,
                        Err(BoardError::Blocked { .. } | BoardError::Terminal { state: State::Skipped }),
                        "a claim that comes to nothing"
                    );
                }
            }
            if reason == "edited" {
                b.claim(&task, "w").await?;
            }
            b.board.reopen(&dep).await.at(format!("reopen, though nobody has begun: {name}"))?;
        }
    }
    Ok(())
}

/// Exactly one of the two happened, and the board says so.
async fn one_of_both(
    seat: &Seat,
    (dep, task): (&TaskId, &TaskId),
    reopened: Result<(), BoardError>,
    claimed: Result<bool, BoardError>,
) -> Outcome {
    let shown = (seat.get(dep).await?.state, seat.get(task).await?.state);
    match (&reopened, &claimed) {
        (Ok(()), Err(BoardError::Blocked { pending, .. })) if pending == std::slice::from_ref(dep) => {
            ensure_eq!(shown, (State::Open, State::Open), "the states after reopen came first");
        }
        (Ok(()), Ok(false)) => {
            ensure_eq!(shown, (State::Open, State::Open), "the states after reopen came first")
        }
        (Err(BoardError::HasDependents { dependent }), Ok(true)) if dependent == task => {
            ensure!(shown.0.is_terminal(), "saw {:?} after a refused reopen", shown.0);
            ensure_eq!(shown.1, State::Claimed, "the state of what was claimed first");
        }
        _ => fail!(
            "saw {reopened:?} and {claimed:?}, and then {shown:?}: a reopen beside a claim that rests on the end"
        ),
    }
    seat.list().await?;
    Ok(())
}

async fn ready_pair(seat: &Seat, name: &str, n: usize) -> Result<(TaskId, TaskId), Verdict> {
    let (rule, end) = RESTS[n % RESTS.len()];
    let dep = seat.ended_task(&format!("dep {name}"), end).await?;
    let task = id(format!("task {name}"));
    seat.add(TaskSpec::new(task.clone()).dep(Dep::on(dep.clone(), rule)).label(name)).await?;
    Ok((dep, task))
}

async fn claims(seat: &Seat, task: &TaskId, label: &str, by_next: bool) -> Result<bool, BoardError> {
    if by_next {
        let filter = coord_core::board::Filter::any().with_label(label);
        return Ok(seat.board.claim_next(&agent("w"), &filter, TTL).await?.is_some());
    }
    seat.try_claim(task, "w").await.map(|_| true)
}

async fn race(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let mut firsts = [0, 0];
    for by_next in [false, true] {
        for place in Place::BOTH {
            // A reopen within a claim.
            for k in 1..40 {
                let name = format!("within a claim {by_next} {place:?} {k}");
                let (dep, task) = ready_pair(&b, &name, k as usize).await?;
                let step = a.interpose(When::any().nth(k), place, {
                    let (board, dep) = (b.board.clone(), dep.clone());
                    move || {
                        let (board, dep) = (board.clone(), dep.clone());
                        async move { Ok(board.reopen(&dep).await) }
                    }
                });
                let claimed = claims(&a, &task, &name, by_next).await;
                let reopened = step.taken()?;
                a.faults.clear();
                let Some(reopened) = reopened else { break };
                firsts[usize::from(reopened.is_ok())] += 1;
                one_of_both(&b, (&dep, &task), reopened, claimed).await.at(&name)?;
            }
            // A claim within a reopen.
            for k in 1..40 {
                let name = format!("within a reopen {by_next} {place:?} {k}");
                let (dep, task) = ready_pair(&b, &name, k as usize).await?;
                let rival = Arc::new(stage.seat().await?);
                let step = a.interpose(When::any().nth(k), place, {
                    let (task, name) = (task.clone(), name.clone());
                    move || {
                        let (rival, task, name) = (rival.clone(), task.clone(), name.clone());
                        async move { Ok(claims(&rival, &task, &name, by_next).await) }
                    }
                });
                let reopened = a.board.reopen(&dep).await;
                let claimed = step.taken()?;
                a.faults.clear();
                let Some(claimed) = claimed else { break };
                firsts[usize::from(reopened.is_ok())] += 1;
                one_of_both(&b, (&dep, &task), reopened, claimed).await.at(&name)?;
            }
        }
    }
    ensure!(firsts[0] > 0 && firsts[1] > 0, "saw {firsts:?} claims and reopens that came first");
    let a = Arc::new(a);
    for round in 0..40 {
        let name = format!("round {round}");
        let by_next = round % 4 == 3;
        let (dep, task) = ready_pair(&b, &name, round).await?;
        let barrier = Arc::new(Barrier::new(2));
        let rival = tokio::spawn({
            let (a, task, name, barrier) = (a.clone(), task.clone(), name.clone(), barrier.clone());
            async move {
                barrier.wait().await;
                claims(&a, &task, &name, by_next).await
            }
        });
        barrier.wait().await;
        let reopened = b.board.reopen(&dep).await;
        one_of_both(&b, (&dep, &task), reopened, rival.await?).await.at(&name)?;
    }
    look(&b).await?;
    // What was ready when a reopen came stays in line until somebody comes upon it.
    let mut problems = b.board.check_index().await?;
    problems.retain(|problem| problem.code != ProblemCode::StaleEntry);
    ensure_eq!(problems, [], "what is wrong with the index");
    Ok(())
}
