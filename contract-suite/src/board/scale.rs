//! T24 and T26: large boards cost no more than small ones, and large graphs are no trouble.

use std::time::Duration;

use coord_core::board::{
    Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard as _, Filter, Plan, State, TaskSpec, check,
    limits,
};
use coord_core::layer::CallCounts;

use super::next::{claim_all, complete_and_go};
use super::stage::{Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::{Context, remove_all};
use crate::{ensure, ensure_eq, ensure_matches};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T24",
        layer: Layer::Board,
        promise: "claim_next on 100,000 tasks of which ten are ready costs as many round trips and, within 20 %, as many \
                  bytes as on twenty tasks of which ten are ready",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(cost(cx)),
    },
    Clause {
        id: "T26",
        layer: Layer::Board,
        promise: "1,024 dependencies on one task and TooLarge for 1,025, 10,000 dependents of one task, a chain of 10,000, a \
                  17-wide diamond lattice: linear work, no recursion overflow, every transaction within the limits",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(graphs(cx)),
    },
];

/// How many tasks the large board has: as many as are added within this time, unless the variable says how many.
const TASKS: &str = "COORD_SUITE_TASKS";
const AT_LEAST: usize = 4_000;
const AT_MOST: usize = 100_000;
const BUDGET: Duration = Duration::from_secs(8);

/// A board of so many tasks, ten of which are ready; all others wait for one that is held.
async fn ten_ready(cx: &Context, seat: &Seat, wanted: Option<usize>) -> Result<usize, Verdict> {
    let hub = seat.open_task("hub").await?;
    seat.board.claim(&hub, &agent("w"), ClaimRequest::forever()).await.at("claim for ever")?;
    let most = wanted.unwrap_or(AT_MOST);
    let start = cx.elapsed();
    let mut count = 1;
    while count + 10 < most {
        let piece = (count..most - 10).take(2_000).map(|n| spec(format!("wait {n:06}")).dep(hub.clone()));
        let piece = Plan::new(piece)?;
        count += piece.tasks().len();
        seat.board.add_plan(&piece).await.at("adding tasks that wait")?;
        if wanted.is_none() && count >= AT_LEAST && cx.elapsed() - start > BUDGET {
            break;
        }
    }
    let ready = Plan::new((0..10).map(|n| spec(format!("ready {n}"))))?;
    seat.board.add_plan(&ready).await.at("adding tasks that are ready")?;
    Ok(count + 10)
}

/// What twelve calls cost: ten find a task, two do not.
async fn twelve_calls(seat: &Seat) -> Result<Vec<CallCounts>, Verdict> {
    let mut costs = Vec::new();
    for n in 0..12 {
        let before = seat.meter.counts();
        let found = seat.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next")?;
        costs.push(seat.meter.counts().since(before).total());
        ensure_eq!(found.is_some(), n < 10, "whether the {}. call found a task", n + 1);
    }
    Ok(costs)
}

async fn cost(cx: Context) -> Outcome {
    let wanted = std::env::var(TASKS).ok().and_then(|text| text.parse().ok());
    let (small, large) = (Stage::fresh(&cx), Stage::fresh(&cx));
    let (a, b) = small.pair().await?;
    ten_ready(&cx, &a, Some(20)).await?;
    let few = twelve_calls(&b).await.at("on twenty tasks")?;
    let (a, b) = large.pair().await?;
    let count = ten_ready(&cx, &a, wanted).await?;
    let many = twelve_calls(&b).await.at(format!("on {count} tasks"))?;
    // More keys than are removed within the patience after a clause.
    remove_all(&*a.raw).await.at("removing the tasks")?;
    for (n, (few, many)) in few.iter().zip(&many).enumerate() {
        let place = format!("the {}. claim_next on twenty and on {count} tasks", n + 1);
        ensure_eq!(many.calls, few.calls, "round trips of {place}");
        let (least, most) = (few.bytes() - few.bytes() / 5, few.bytes() + few.bytes() / 5);
        ensure!(
            (least..=most).contains(&many.bytes()),
            "saw {} and {} bytes, more than 20 % apart: {place}",
            few.bytes(),
            many.bytes()
        );
    }
    Ok(())
}

async fn graphs(cx: Context) -> Outcome {
    many_dependencies(&Stage::fresh(&cx)).await.at("many dependencies")?;
    many_dependents(&Stage::fresh(&cx)).await.at("many dependents")?;
    chain(&Stage::fresh(&cx)).await.at("a chain")?;
    lattice(&Stage::fresh(&cx)).await.at("a lattice")
}

/// Claims a task, completes it, and says what the completion cost.
async fn done(seat: &Seat, name: &str) -> Result<CallCounts, Verdict> {
    let claim = seat.claim(&id(name), "w").await?;
    let before = seat.meter.counts();
    seat.board.complete(&claim.task.id, &claim.lease.token, result("")).await.at("complete")?;
    Ok(seat.meter.counts().since(before).total())
}

async fn many_dependencies(stage: &Stage) -> Outcome {
    const MOST: usize = limits::DEPENDENCIES;
    let (a, b) = stage.pair().await?;
    let name = |n: usize| format!("d{n}");
    let plan = Plan::new((0..=MOST).map(|n| spec(name(n))))?;
    a.board.add_plan(&plan).await.at("adding dependencies")?;
    let deps = |range: std::ops::Range<usize>| range.map(|n| Dep::from(id(name(n)))).collect::<Vec<_>>();
    let refused = a.board.add(spec("too many").deps(deps(0..MOST + 1))).await;
    ensure_matches!(refused, Err(BoardError::TooLarge { .. }), "adding a task with 1,025 dependencies");
    a.add(spec("last").deps(deps(0..MOST))).await?;
    let refused = a.board.set_deps(&id("last"), &deps(0..MOST + 1), None).await;
    ensure_matches!(refused, Err(BoardError::TooLarge { .. }), "set_deps to 1,025 dependencies");
    // In order, so that each completion moves the task on; each costs the same, however many come after it.
    let mut costs = Vec::new();
    for n in 0..40 {
        costs.push(done(&a, &name(n)).await?);
    }
    for (n, cost) in costs.iter().enumerate() {
        ensure!(
            cost.keys_answered < 300,
            "saw {cost:?} for the {}. completion of 1,024: not linear work",
            n + 1
        );
    }
    // All others at once: they are dependencies no more.
    a.board.set_deps(&id("last"), &deps(MOST - 3..MOST + 1), None).await.at("set_deps from 1,024 to 4")?;
    a.board.set_deps(&id("last"), &deps(1..MOST + 1), None).await.at("set_deps from 4 to 1,024")?;
    a.board.set_deps(&id("last"), &deps(MOST - 2..MOST + 1), None).await.at("set_deps from 1,024 to 3")?;
    for n in (MOST - 2..=MOST).rev() {
        done(&b, &name(n)).await?;
    }
    let last = a.board.claim_next(&agent("w"), &Filter::any().with_label("none"), TTL).await?;
    ensure!(last.is_none(), "saw claim_next give a task without the label");
    a.claim(&id("last"), "w").await.at("once all dependencies are done")?;
    let given = claim_all(&b).await?;
    ensure_eq!(given.len(), MOST + 1 - 43, "how many dependencies were still to be had");
    Ok(())
}

async fn many_dependents(stage: &Stage) -> Outcome {
    const MANY: usize = 9_990;
    let (a, b) = stage.pair().await?;
    let hub = a.open_task("h").await?;
    let plan = Plan::new((0..MANY).map(|n| spec(format!("{n}")).dep(hub.clone())))?;
    let report = a.board.add_plan(&plan).await.at("adding dependents")?;
    ensure_eq!(report.added, MANY, "tasks that were added");
    let claim = a.claim(&hub, "w").await?;
    complete_and_go(&a, &hub, &claim).await?;
    let before = b.meter.counts();
    let given = b.board.claim_up_to(3, &agent("w"), &Filter::any(), TTL).await.at("claim_up_to")?;
    let spent = b.meter.counts().since(before).total();
    let names: Vec<_> = given.into_iter().map(|claim| claim.task.id).collect();
    ensure_eq!(names, ["0", "1", "2"].map(id), "what was given first of 9,990 dependents");
    ensure!(
        spent.keys_answered < 12 * MANY as u64,
        "saw {spent:?} for the dependents of one task: not linear work"
    );
    Ok(())
}

async fn chain(stage: &Stage) -> Outcome {
    const LINKS: usize = 9_990;
    let (a, b) = stage.pair().await?;
    // The last one comes first.
    let link = |n: usize| {
        let task = TaskSpec::new(id(format!("{n}")));
        if n == 0 { task } else { task.dep(id(format!("{}", n - 1))) }
    };
    a.board.add_plan(&Plan::new((0..LINKS).rev().map(link))?).await.at("adding a chain")?;
    let ring = a.board.set_deps(&id("0"), &Dep::all([id(format!("{}", LINKS - 1))]), None).await;
    ensure_matches!(ring, Err(BoardError::Cycle { path }) if path.len() == LINKS + 1, "closing the chain");
    for n in 0..3 {
        let given = claim_all(&b).await?;
        ensure_eq!(given.len(), 1, "how many links are ready at a time");
        for claim in given {
            ensure_eq!(claim.task.id, id(format!("{n}")), "which link is ready");
            let before = a.meter.counts();
            a.board.complete(&claim.task.id, &claim.lease.token, result("")).await.at("complete")?;
            let spent = a.meter.counts().since(before).total();
            ensure!(spent.keys_answered < 100, "saw {spent:?} for the completion of a link");
        }
    }
    let tasks = b.board.list().await.at("listing a chain")?;
    ensure_eq!(check(&tasks), [], "the problems of a chain");
    Ok(())
}

/// Layers of tasks that each depend on all of the layer before.
async fn lattice(stage: &Stage) -> Outcome {
    const WIDE: usize = 17;
    const LAYERS: usize = 6;
    let (a, b) = stage.pair().await?;
    let name = |layer: usize, n: usize| format!("{layer}/{n}");
    let plan = Plan::new((0..LAYERS * WIDE).map(|at| {
        let (layer, n) = (at / WIDE, at % WIDE);
        let deps = (0..WIDE).filter(|_| layer > 0).map(|dep| id(name(layer.wrapping_sub(1), dep)));
        spec(name(layer, n)).deps(deps)
    }))?;
    a.board.add_plan(&plan).await.at("adding a lattice")?;
    let before = [&a, &b].map(|seat| seat.meter.counts());
    for layer in 0..LAYERS {
        let given = claim_all(&b).await?;
        let expected: Vec<_> = (0..WIDE).map(|n| id(name(layer, n))).collect();
        let names: Vec<_> = given.iter().map(|claim| claim.task.id.clone()).collect();
        ensure_eq!(names, expected, "what is ready in layer {layer}");
        for (n, claim) in given.iter().enumerate() {
            let seat = if n % 2 == 0 { &a } else { &b };
            seat.board.complete(&claim.task.id, &claim.lease.token, result("")).await.at("complete")?;
        }
    }
    let spent = [&a, &b]
        .iter()
        .zip(before)
        .map(|(seat, before)| seat.meter.counts().since(before).total().keys_answered)
        .sum::<u64>();
    // Each edge is looked at when a task is added, watched and claimed, a few times at most.
    let edges = (LAYERS * WIDE * WIDE) as u64;
    ensure!(spent < 40 * edges, "saw {spent} keys answered for {edges} edges: not linear work");
    let tasks = b.list().await?;
    ensure!(tasks.iter().all(|task| task.state == State::Done), "saw a task of the lattice that is not done");
    ensure_eq!(b.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}
