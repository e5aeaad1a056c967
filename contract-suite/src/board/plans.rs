//! T17: plans.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use coord_core::board::{
    Added, Board as _, BoardError, Dep, ExtendedBoard as _, Plan, Task, TaskId, TaskSpec,
};
use coord_core::layer::{Cell, When};

use super::stage::{Place, Seat, Stage, id, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T17",
    layer: Layer::Board,
    promise: "a plan that fits one transaction (some 700 tasks) is added all or nothing, a larger one in dependency \
              order, in resumable pieces; the same definition again is Existed and changes nothing",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(plans(cx)),
}];

const ONE_PIECE: usize = 700;
const LARGE: usize = 3_000;

async fn plans(cx: Context) -> Outcome {
    all_or_nothing(&cx).await.at("a plan of 700 tasks")?;
    again(&Stage::fresh(&cx)).await.at("a plan that is added again")?;
    in_pieces(&cx).await.at("a plan of 3,000 tasks")
}

/// A chain, a fan and loners, named so that no order of names is one of dependencies.
fn plan(count: usize) -> Result<Plan, BoardError> {
    let name = |n: usize| id(format!("n{:05}", count - n));
    Plan::new((0..count).map(|n| {
        let task = TaskSpec::new(name(n));
        match n % 5 {
            0 | 1 if n > 5 => task.dep(name(n - 5)),
            2 if n > 5 => task.deps([name(0), name(n - 1), name(n / 2)]),
            _ => task,
        }
    }))
}

async fn all_or_nothing(cx: &Context) -> Outcome {
    let plan = plan(ONE_PIECE)?;
    // Whatever happens to a transaction of the call, and whoever looks when.
    for (cell, nth) in [
        (Cell::refused(), 1),
        (Cell::request_lost(), 1),
        (Cell::reply_lost(), 1),
        (Cell::late(), 1),
        (Cell::twice_reply_lost(), 1),
        (Cell::refused(), 2),
        (Cell::request_lost(), 2),
    ] {
        let stage = Stage::fresh(cx);
        let (a, b) = stage.pair().await?;
        let place = format!("{cell} at transaction {nth}, and the store gone");
        let rule = a.faults.on(When::txn().nth(nth), cell.then_gone());
        let answer = a.board.add_plan(&plan).await;
        let reached = a.faults.hits_of(rule) > 0;
        a.faults.heal();
        let there = whole(&b, ONE_PIECE).await.at(&place)?;
        match &answer {
            Ok(report) => {
                ensure!(there, "saw no task of a plan that was answered as {report:?}: {place}");
                ensure_eq!((report.added, report.existed), (ONE_PIECE, 0), "the answer of add_plan: {place}");
            }
            Err(BoardError::OutcomeUnknown { .. }) => {}
            Err(BoardError::Backend(_)) => {
                ensure!(!there, "saw the plan, told that nothing happened: {place}")
            }
            Err(other) => fail!("saw {other:?}: add_plan with {place}"),
        }
        ensure!(reached || answer.is_ok(), "saw {answer:?}: add_plan without a fault");
        a.faults.release_held().await;
        whole(&b, ONE_PIECE).await.at(format!("{place}, and what was late has arrived"))?;
        let report = b.board.add_plan(&plan).await.at("adding it again after a fault")?;
        ensure_eq!(report.added + report.existed, ONE_PIECE, "tasks of a plan that is added again: {place}");
        ensure!(whole(&a, ONE_PIECE).await?, "saw no task of a plan that was added again: {place}");
    }
    for place in Place::BOTH {
        for k in 1.. {
            let stage = Stage::fresh(cx);
            let (a, b) = stage.pair().await?;
            let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
            let step = a.interpose(When::any().nth(k), place, {
                let (board, seen) = (b.board.clone(), seen.clone());
                move || {
                    let (board, seen) = (board.clone(), seen.clone());
                    async move {
                        let count = board.list().await.at("listing while a plan is added")?.len();
                        seen.lock().unwrap_or_else(PoisonError::into_inner).push(count);
                        Ok(())
                    }
                }
            });
            a.board.add_plan(&plan).await.at("adding a plan")?;
            if step.taken()?.is_none() {
                break;
            }
            for count in seen.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                ensure!(
                    [0, ONE_PIECE].contains(count),
                    "saw {count} of 700 tasks {place:?} call {k} of add_plan"
                );
            }
        }
    }
    refused_as_a_whole(&Stage::fresh(cx), &plan).await
}

/// Whether the whole plan is there, or nothing of it.
async fn whole(seat: &Seat, count: usize) -> Result<bool, crate::Verdict> {
    let listed = seat.list().await?.len();
    ensure!(listed == 0 || listed == count, "saw {listed} of {count} tasks");
    Ok(listed > 0)
}

/// One task that cannot be added refuses all.
async fn refused_as_a_whole(stage: &Stage, plan: &Plan) -> Outcome {
    let (a, b) = stage.pair().await?;
    let other = plan.tasks()[ONE_PIECE / 2].id.clone();
    a.add(TaskSpec::new(other.clone()).title("another")).await?;
    let before = b.list().await?;
    match b.board.add_plan(plan).await {
        Err(BoardError::AlreadyExists { id }) if id == other => {}
        answer => fail!("saw {answer:?}, not AlreadyExists: a plan with a task that is another one"),
    }
    ensure_eq!(b.list().await?, before, "the board after a refused plan");
    let dangling =
        Plan::new([spec("first"), spec("second").dep(id("nowhere")), spec("third").dep(id("second"))])?;
    match b.board.add_plan(&dangling).await {
        Err(BoardError::UnknownDep { id: name }) if name == id("nowhere") => {}
        answer => fail!("saw {answer:?}, not UnknownDep: a plan that depends on what is not there"),
    }
    ensure_eq!(b.list().await?, before, "the board after a refused plan");
    let nothing = b.board.add_plan(&Plan::new([])?).await.at("adding an empty plan")?;
    ensure_eq!((nothing.added, nothing.existed), (0, 0), "the answer to an empty plan");
    Ok(())
}

async fn again(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let plan = plan(20)?;
    let first: Vec<TaskSpec> = plan.tasks()[..8].to_vec();
    let report = a.board.add_plan(&Plan::new(first)?).await.at("adding the first eight tasks")?;
    ensure_eq!((report.added, report.existed), (8, 0), "tasks added and found");
    // Some of them are worked on, and one is edited, meanwhile.
    let open: Vec<Task> = a.list().await?.into_iter().filter(|task| task.deps.is_empty()).collect();
    a.end(&open[0].id, "done").await?;
    a.claim(&open[1].id, "w").await?;
    b.board.cancel(&open[2].id).await?;
    b.board.set_deps(&open[3].id, &[Dep::from(&open[0].id)], None).await?;
    let before = b.list().await?;
    stage.advance(super::stage::TTL);
    for task in &plan.tasks()[..8] {
        let existed = b.board.add(task.clone()).await.at("adding one again")?;
        ensure_eq!(existed, Added::Existed, "the answer to the same definition");
    }
    ensure_eq!(b.list().await?, before, "the board after the same definitions");
    let report = b.board.add_plan(&plan).await.at("adding the rest")?;
    ensure_eq!((report.added, report.existed), (12, 8), "tasks added and found");
    let after = a.list().await?;
    for task in &before {
        ensure!(after.contains(task), "saw {task:?} changed by a plan that has it already");
    }
    let report = a.board.add_plan(&plan).await.at("adding it all again")?;
    ensure_eq!((report.added, report.existed), (0, 20), "tasks added and found");
    ensure_eq!(a.list().await?, after, "the board after the same plan");
    // First in, first out: a plan stands in line in its own order, behind what was there.
    let order = |id: &TaskId| after.iter().find(|task| task.id == *id).map(|task| task.order);
    for pair in plan.tasks().windows(2) {
        ensure!(
            order(&pair[0].id) < order(&pair[1].id),
            "saw {:?} in line before {:?}",
            pair[1].id,
            pair[0].id
        );
    }
    let last = a.open_task("last").await?;
    let last = a.get(&last).await?.order;
    ensure!(Some(last) > order(&plan.tasks()[19].id), "saw a later task in line before an earlier one");
    Ok(())
}

async fn in_pieces(cx: &Context) -> Outcome {
    let plan = plan(LARGE)?;
    let names: BTreeSet<&TaskId> = plan.tasks().iter().map(|task| &task.id).collect();
    ensure_eq!(names.len(), LARGE, "ids of the plan");
    // How many transactions it takes, undisturbed.
    let stage = Stage::fresh(cx);
    let (a, b) = stage.pair().await?;
    let before = a.meter.counts().txn;
    let report = a.board.add_plan(&plan).await.at("undisturbed")?;
    ensure_eq!((report.added, report.existed), (LARGE, 0), "tasks added and found");
    let pieces = a.meter.counts().txn.since(before).applied;
    let listed = b.list().await?;
    ensure_eq!(listed.len(), LARGE, "tasks of the board");
    let report = b.board.add_plan(&plan).await.at("again")?;
    ensure_eq!((report.added, report.existed), (0, LARGE), "tasks added and found, again");
    ensure_eq!(a.list().await?, listed, "the board after the same plan");
    // Cut in the beginning, in the middle and at the end, and gone on with by another client.
    let mut cuts =
        vec![(1, Cell::refused()), (pieces.div_ceil(2), Cell::reply_lost()), (pieces, Cell::request_lost())];
    cuts.dedup_by_key(|(cut, _)| *cut);
    for (cut, cell) in cuts {
        let stage = Stage::fresh(cx);
        let (a, b) = stage.pair().await?;
        let place = format!("{cell} at transaction {cut} of {pieces}, and the store gone");
        let rule = a.faults.on(When::txn().nth(cut), cell.then_gone());
        let answer = a.board.add_plan(&plan).await;
        ensure_matches!(
            answer,
            Err(BoardError::OutcomeUnknown { .. } | BoardError::Backend(_)),
            "add_plan with {place}"
        );
        ensure_eq!(a.faults.hits_of(rule), 1, "how often the fault was reached: {place}");
        a.faults.heal();
        // What is there is in dependency order: no edge ends nowhere.
        let half = b.list().await.at(&place)?;
        ensure!(half.len() < LARGE || cut == pieces, "saw the whole plan there: {place}");
        for task in &half {
            ensure!(names.contains(&task.id), "saw {:?}, which is not of the plan: {place}", task.id);
        }
        let report = b.board.add_plan(&plan).await.at("going on")?;
        ensure_eq!(
            (report.added, report.existed),
            (LARGE - half.len(), half.len()),
            "tasks added and found by going on: {place}"
        );
        let after = a.list().await?;
        ensure_eq!(after.len(), LARGE, "tasks of the board after going on: {place}");
        let index: std::collections::BTreeMap<_, _> = after.iter().map(|task| (&task.id, task)).collect();
        for task in &half {
            ensure!(index.get(&task.id) == Some(&task), "saw {task:?} changed by going on: {place}");
        }
    }
    Ok(())
}
