//! T23 and T25: whoever looks for a task finds the right one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use coord_core::Timestamp;
use coord_core::board::{
    Board as _, BoardError, Claim, ClaimRequest, Dep, ExtendedBoard as _, Filter, Plan, State, Task, TaskId,
    TaskSpec,
};
use coord_core::layer::{Cell, When};
use tokio::sync::Barrier;

use super::random::satisfies;
use super::stage::{Place, Seat, Stage, TICK, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T23",
        layer: Layer::Board,
        promise: "claim_next: highest priority first (exact while at most 64 completions or expiries are unexamined), by \
                  order within one, filters by label, skips what is held or blocked, takes over what expired, none when \
                  there is none; 64 callers and 64 ready tasks: 64 different tasks",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(next(cx)),
    },
    Clause {
        id: "T25",
        layer: Layer::Board,
        promise: "the last two dependencies complete at one instant: the dependent is found ready, by somebody, without a \
                  sweep of the board",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(last_two(cx)),
    },
];

/// The tasks that can be claimed now, in the order in which they should be given.
pub(super) fn claimable(now: Timestamp, tasks: &[Task]) -> Vec<TaskId> {
    let states: BTreeMap<&TaskId, State> = tasks.iter().map(|task| (&task.id, task.state)).collect();
    let mut line: Vec<&Task> = tasks
        .iter()
        .filter(|task| {
            let free = match task.state {
                State::Open => true,
                State::Claimed => task.lease.and_then(|lease| lease.until).is_some_and(|until| until <= now),
                _ => false,
            };
            let spent = task.retry.is_some_and(|retry| task.attempts >= retry.attempts);
            free && !spent
                && task.not_before.is_none_or(|time| time <= now)
                && task
                    .deps
                    .iter()
                    .all(|dep| states.get(&dep.id).is_some_and(|state| satisfies(dep.rule, *state)))
        })
        .collect();
    line.sort_by_key(|task| (std::cmp::Reverse(task.priority), task.order));
    line.into_iter().map(|task| task.id.clone()).collect()
}

/// Claims whatever there is, one by one.
pub(super) async fn claim_all(seat: &Seat) -> Result<Vec<Claim>, Verdict> {
    let mut given = Vec::new();
    while let Some(claim) = seat.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next")? {
        given.push(claim);
        ensure!(given.len() < 20_000, "saw claim_next give and give");
    }
    Ok(given)
}

fn ids(claims: &[Claim]) -> Vec<TaskId> {
    claims.iter().map(|claim| claim.task.id.clone()).collect()
}

/// Whoever looks gets exactly what can be claimed, in order.
pub(super) async fn finds_all(now: Timestamp, seat: &Seat, when: &str) -> Result<Vec<Claim>, Verdict> {
    let expected = claimable(now, &seat.list().await?);
    let given = claim_all(seat).await.at(when)?;
    ensure_eq!(ids(&given), expected, "the tasks that claim_next gave one after the other: {when}");
    Ok(given)
}

async fn next(cx: Context) -> Outcome {
    in_order(&Stage::fresh(&cx)).await.at("by priority and order")?;
    labels(&Stage::fresh(&cx)).await.at("by label")?;
    skips(&Stage::fresh(&cx)).await.at("what is not to be had")?;
    unexamined(&Stage::fresh(&cx)).await.at("with 64 completions unexamined")?;
    several(&Stage::fresh(&cx)).await.at("several at once")?;
    for _ in cx.rounds(1, 4) {
        callers(&Stage::fresh(&cx)).await.at("64 callers")?;
    }
    Ok(())
}

async fn in_order(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let none =
        b.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next on an empty board")?;
    ensure!(none.is_none(), "saw {none:?} of an empty board");
    let priorities = [0, 3, -1, i32::MIN, 3, 0, i32::MAX, -1, 1 << 20, 3, i32::MAX, i32::MIN];
    for (n, priority) in priorities.into_iter().enumerate() {
        // Names that sort otherwise.
        a.add(spec(format!("n{}", 97 * (n + 5) % 89)).priority(priority)).await?;
    }
    let given = finds_all(stage.now(), &b, "with equal and different priorities").await?;
    // Released, each is where it was; failed and reopened too.
    for (n, claim) in given.iter().enumerate().rev() {
        let (task, token) = (&claim.task.id, &claim.lease.token);
        match n % 4 {
            0 => a.board.release(task, token).await.at("release")?,
            1 => {
                a.board.fail(task, token, result("no")).await.at("fail")?;
                if a.get(task).await?.state == State::Failed {
                    a.board.reopen(task).await.at("reopen")?;
                }
            }
            2 => a.board.revoke(task, claim.lease.fence).await.at("revoke")?,
            _ => {
                a.board.cancel(task).await.at("cancel")?;
                a.board.reopen(task).await.at("reopen")?;
            }
        }
    }
    // A task that failed may have to wait before it is tried again.
    stage.advance(TTL * 60);
    let again = finds_all(stage.now(), &b, "after release, fail, revoke, cancel and reopen").await?;
    ensure_eq!(ids(&again), ids(&given), "the order after release, fail, revoke, cancel and reopen");
    // Expired, too, and exactly at expiry.
    stage.advance(TTL - TICK);
    let early = claim_all(&a).await?;
    ensure_eq!(ids(&early), [], "what was given just before the leases ended");
    stage.advance(TICK);
    let over = finds_all(stage.now(), &a, "as soon as all leases are over").await?;
    ensure_eq!(ids(&over), ids(&given), "the order of takeovers");
    // A renewed one is not to be had when the first lease would have ended.
    let first = over.first().ok_or_else(|| Verdict::Failed("saw no task".into()))?;
    a.board.renew(&first.task.id, &first.lease.token, TTL * 3).await.at("renew")?;
    stage.advance(TTL);
    let rest = finds_all(stage.now(), &b, "when all leases but one are over").await?;
    ensure_eq!(rest.len(), given.len() - 1, "how many were given when all leases but one were over");
    stage.advance(TTL * 2);
    finds_all(stage.now(), &b, "when the last one is over").await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

async fn labels(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let tasks: [(&str, &[&str]); 6] = [
        ("none", &[]),
        ("x", &["x"]),
        ("y", &["y"]),
        ("xy", &["y", "x"]),
        ("xz", &["x", "z"]),
        ("X", &["X", "xy"]),
    ];
    for (name, labels) in tasks {
        let spec = labels.iter().fold(spec(name), |spec, label| spec.label(*label));
        a.add(spec).await?;
    }
    let any = Filter::any;
    for (filter, expected) in [
        (any().with_label("x"), &["x", "xy", "xz"][..]),
        (any().with_label("x").with_label("y"), &["xy"]),
        (any().with_any_of(["y", "z"]), &["y", "xy", "xz"]),
        (any().without_label("x"), &["none", "y", "X"]),
        (any().with_label("x").with_any_of(["z", "y"]).without_label("z"), &["xy"]),
        (any().with_any_of(["nothing"]), &[]),
        (any().with_label(""), &[]),
        (any(), &["none", "x", "y", "xy", "xz", "X"]),
    ] {
        let mut given = Vec::new();
        while let Some(claim) =
            b.board.claim_next(&agent("w"), &filter, TTL).await.at(format!("claim_next with {filter:?}"))?
        {
            given.push(claim);
        }
        let expected: Vec<TaskId> = expected.iter().map(id).collect();
        ensure_eq!(ids(&given), expected, "what was given with {filter:?}");
        for claim in given {
            b.board.release(&claim.task.id, &claim.lease.token).await.at("release")?;
        }
    }
    // Beyond the first ones that do not pass.
    for n in 0..80 {
        a.add(spec(format!("other {n}")).label("other").priority(9)).await?;
    }
    a.add(spec("wanted").label("wanted")).await?;
    let found = b.board.claim_next(&agent("w"), &Filter::any().with_label("wanted"), TTL).await?;
    ensure_eq!(found.map(|claim| claim.task.id), Some(id("wanted")), "what was given behind 80 others");
    Ok(())
}

async fn skips(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let held = a.open_task("held").await?;
    let claim = a.claim(&held, "w").await?;
    let forever = a.open_task("forever").await?;
    a.board.claim(&forever, &agent("w"), ClaimRequest::forever()).await.at("claim for ever")?;
    a.ended_task("failed", "failed").await?;
    a.ended_task("cancelled", "cancelled").await?;
    a.ended_task("done", "done").await?;
    a.add(spec("blocked").dep(held.clone()).priority(9)).await?;
    a.add(spec("blocked for long").deps([id("done"), id("failed")]).priority(9)).await?;
    let time = stage.now().saturating_add(TTL / 2);
    a.add(spec("later").not_before(time).priority(9)).await?;
    let nothing = claim_all(&b).await?;
    ensure_eq!(ids(&nothing), [], "what was given where nothing is to be had");
    a.open_task("free").await?;
    finds_all(stage.now(), &b, "with one task that is free").await?;
    stage.advance(TTL / 2 - TICK);
    ensure_eq!(ids(&claim_all(&b).await?), [], "what was given just before its time");
    stage.advance(TICK);
    let later = finds_all(stage.now(), &b, "at the time of a task").await?;
    ensure_eq!(ids(&later), [id("later")], "what was given at the time of a task");
    a.board.complete(&held, &claim.lease.token, result("done")).await.at("complete")?;
    let unblocked = finds_all(stage.now(), &b, "once a dependency is done").await?;
    ensure_eq!(ids(&unblocked), [id("blocked")], "what was given once a dependency was done");
    a.board.set_deps(&id("blocked for long"), &Dep::all([id("done")]), None).await.at("set_deps")?;
    finds_all(stage.now(), &b, "once a dependency is no more").await?;
    let zero = b.board.claim_next(&agent("w"), &Filter::any(), Duration::ZERO).await;
    ensure_matches!(zero, Err(BoardError::Invalid(_)), "claim_next without a ttl");
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

const UNEXAMINED: usize = 64;

/// As many completions as may be: whoever completed was cut off right afterwards.
async fn unexamined(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let first = (0..UNEXAMINED).map(|n| spec(format!("a{n}")).priority(100));
    // The highest priorities wait for what is completed last.
    let second = (0..UNEXAMINED).map(|n| {
        let priority = i32::try_from(n * 37 % UNEXAMINED).unwrap_or(0);
        spec(format!("b{n}")).dep(id(format!("a{n}"))).priority(priority)
    });
    let plan = Plan::new(first.chain(second).chain([spec("ready before").priority(30)]))?;
    a.board.add_plan(&plan).await.at("adding a plan")?;
    let given = a.board.claim_up_to(UNEXAMINED, &agent("w"), &Filter::any(), TTL).await.at("claim_up_to")?;
    ensure_eq!(given.len(), UNEXAMINED, "how many tasks claim_up_to gave");
    for claim in given {
        complete_and_go(&a, &claim.task.id, &claim).await?;
    }
    let given = finds_all(stage.now(), &b, "with 64 completions that nobody has seen to").await?;
    ensure_eq!(given.len(), UNEXAMINED + 1, "how many tasks became ready");
    stage.advance(TTL);
    finds_all(stage.now(), &b, "with 65 leases that are over").await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

/// Completes a task, and is gone as soon as that has happened.
pub(super) async fn complete_and_go(seat: &Seat, task: &TaskId, claim: &Claim) -> Outcome {
    seat.faults.on(When::txn(), Cell::pass().then_gone());
    let completed = seat.board.complete(task, &claim.lease.token, result("done")).await;
    seat.faults.heal();
    seat.faults.clear();
    completed.at("complete, and nothing afterwards")?;
    Ok(())
}

async fn several(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    for n in 0..7 {
        a.add(spec(format!("n{}", 6 - n)).priority(n % 3)).await?;
    }
    let expected = claimable(stage.now(), &a.list().await?);
    let (worker, any) = (agent("w"), Filter::any());
    let up_to = |most| b.board.claim_up_to(most, &worker, &any, TTL);
    ensure_eq!(ids(&up_to(0).await.at("claim_up_to")?), [], "what was given of none");
    let first = up_to(3).await.at("claim_up_to")?;
    ensure_eq!(ids(&first), expected[..3], "the first three");
    let rest = up_to(10).await.at("claim_up_to")?;
    ensure_eq!(ids(&rest), expected[3..], "up to ten, of four");
    for claim in first.iter().chain(&rest) {
        b.board.renew(&claim.task.id, &claim.lease.token, TTL).await.at("renew of what was given")?;
    }
    ensure_eq!(ids(&up_to(1).await.at("claim_up_to")?), [], "what was given when nothing was left");
    Ok(())
}

const CALLERS: usize = 64;

async fn callers(stage: &Stage) -> Outcome {
    let seats = stage.seats(4).await?;
    let plan = Plan::new((0..CALLERS).map(|n| spec(format!("n{n}")).priority(i32::from(n % 4 == 0))))?;
    seats[0].board.add_plan(&plan).await.at("adding 64 tasks")?;
    let barrier = Arc::new(Barrier::new(CALLERS));
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let (board, barrier) = (seats[n % seats.len()].board.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                board.claim_next(&agent(format!("w{n}")), &Filter::any(), TTL).await
            })
        })
        .collect();
    let mut given = BTreeSet::new();
    for caller in callers {
        let Some(claim) = caller.await?.at("claim_next among 64 callers")? else {
            fail!("saw a caller go without, although there are as many tasks as callers");
        };
        ensure!(given.insert(claim.task.id.clone()), "saw {:?} given twice", claim.task.id);
        seats[0].board.renew(&claim.task.id, &claim.lease.token, TTL).await.at("renew of what was given")?;
    }
    ensure_eq!(given.len(), CALLERS, "how many different tasks were given");
    Ok(())
}

async fn last_two(cx: Context) -> Outcome {
    interposed(&cx).await.at("one completes at each point of the other's completion")?;
    another_life(&cx).await.at("a dependency begins another life at each point of its completion")?;
    let stage = Stage::fresh(&cx);
    let seats = stage.seats(3).await?;
    for round in cx.rounds(3, 40) {
        at_one_instant(&seats, round).await.at("at one instant")?;
    }
    without_a_sweep(&Stage::fresh(&cx)).await.at("on a board of many")
}

/// Exactly this one is to be had.
async fn finds(seat: &Seat, task: &TaskId, when: &str) -> Outcome {
    let given = claim_all(seat).await.at(when)?;
    ensure_eq!(ids(&given), std::slice::from_ref(task), "what was given: {when}");
    for claim in given {
        seat.board.complete(&claim.task.id, &claim.lease.token, result("")).await.at("complete")?;
    }
    Ok(())
}

async fn interposed(cx: &Context) -> Outcome {
    let stage = Stage::fresh(cx);
    let (a, b) = stage.pair().await?;
    for swapped in [false, true] {
        // The rival may be cut off right after its completion.
        for gone in [false, true] {
            for place in Place::BOTH {
                for k in 1.. {
                    let tag = format!("{swapped} {gone} {place:?} {k}");
                    let (one, two, last) =
                        (id(format!("one {tag}")), id(format!("two {tag}")), id(format!("last {tag}")));
                    let deps = if swapped { [&two, &one] } else { [&one, &two] };
                    let specs = [
                        TaskSpec::new(one.clone()),
                        TaskSpec::new(two.clone()),
                        TaskSpec::new(last.clone()).deps(deps.map(Clone::clone)),
                    ];
                    a.board.add_plan(&Plan::new(specs)?).await.at("adding")?;
                    let (first, second) = (a.claim(&one, "w").await?, b.claim(&two, "w").await?);
                    let step = a.interpose(When::any().nth(k), place, {
                        let (board, faults) = (b.board.clone(), b.faults.clone());
                        let (two, token) = (two.clone(), second.lease.token.clone());
                        move || {
                            let (board, faults, two, token) =
                                (board.clone(), faults.clone(), two.clone(), token.clone());
                            async move {
                                if gone {
                                    faults.on(When::txn(), Cell::pass().then_gone());
                                }
                                let completed = board.complete(&two, &token, result("")).await;
                                faults.heal();
                                faults.clear();
                                completed.at("completing the other one")?;
                                Ok(())
                            }
                        }
                    });
                    a.board.complete(&one, &first.lease.token, result("")).await.at("completing one")?;
                    let taken = step.taken()?.is_some();
                    a.faults.clear();
                    if !taken {
                        complete_and_go(&b, &two, &second).await?;
                    }
                    finds(&b, &last, &format!("after both completed, {tag}")).await?;
                    if !taken {
                        break;
                    }
                }
            }
        }
    }
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

/// Whoever completes a task sees to its dependents afterwards. Meanwhile the task is removed, added again, depended on, and completed by
/// somebody who is cut off right then.
async fn another_life(cx: &Context) -> Outcome {
    let stage = Stage::fresh(cx);
    let (a, b) = stage.pair().await?;
    for place in Place::BOTH {
        for k in 1.. {
            let (task, last) = (id(format!("d {place:?} {k}")), id(format!("x {place:?} {k}")));
            a.add(TaskSpec::new(task.clone())).await?;
            let claim = a.claim(&task, "w").await?;
            let step = a.interpose(When::any().nth(k), place, {
                let (board, faults, task, last) =
                    (b.board.clone(), b.faults.clone(), task.clone(), last.clone());
                move || {
                    let (board, faults, task, last) =
                        (board.clone(), faults.clone(), task.clone(), last.clone());
                    async move {
                        match board.remove(&task).await {
                            Err(BoardError::Taken { .. }) => return Ok(false),
                            removed => removed.at("removing a done task")?,
                        }
                        board.add(TaskSpec::new(task.clone())).await.at("adding it again")?;
                        board.add(TaskSpec::new(last).dep(task.clone())).await.at("adding its dependent")?;
                        let claim = board.claim(&task, &agent("w"), ClaimRequest::for_ttl(TTL)).await?;
                        faults.on(When::txn(), Cell::pass().then_gone());
                        let completed = board.complete(&task, &claim.lease.token, result("")).await;
                        faults.heal();
                        faults.clear();
                        completed.at("completing it again")?;
                        Ok(true)
                    }
                }
            });
            a.board.complete(&task, &claim.lease.token, result("")).await.at("completing")?;
            let taken = step.taken()?;
            a.faults.clear();
            if taken == Some(true) {
                finds(&a, &last, &format!("after its dependency was completed in two lives, {place:?} {k}"))
                    .await?;
            }
            if taken.is_none() {
                break;
            }
        }
    }
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

async fn at_one_instant(seats: &[Seat], round: usize) -> Outcome {
    let names = ["one", "two"].map(|name| id(format!("{name} at once {round}")));
    let last = id(format!("last at once {round}"));
    let specs = names.iter().cloned().map(TaskSpec::new).chain([spec(last.as_str()).deps(names.clone())]);
    seats[2].board.add_plan(&Plan::new(specs)?).await.at("adding")?;
    let barrier = Arc::new(Barrier::new(2));
    let mut racers = Vec::new();
    for (seat, task) in seats.iter().zip(&names) {
        let claim = seat.claim(task, "w").await?;
        let (board, barrier) = (seat.board.clone(), barrier.clone());
        racers.push(tokio::spawn(async move {
            barrier.wait().await;
            board.complete(&claim.task.id, &claim.lease.token, result("")).await
        }));
    }
    for racer in racers {
        racer.await?.at("completing at one instant")?;
    }
    finds(&seats[2], &last, "after both completed").await
}

async fn without_a_sweep(stage: &Stage) -> Outcome {
    const OTHERS: usize = 400;
    let (a, b) = stage.pair().await?;
    let hub = a.open_task("hub").await?;
    a.board.claim(&hub, &agent("w"), ClaimRequest::forever()).await.at("claim for ever")?;
    let others = (0..OTHERS).map(|n| spec(format!("other {n}")).dep(hub.clone()));
    let last = spec("last").deps([id("one"), id("two")]);
    let plan = Plan::new(others.chain([spec("one"), spec("two"), last]))?;
    a.board.add_plan(&plan).await.at("adding")?;
    let (one, two) = (a.claim(&id("one"), "w").await?, a.claim(&id("two"), "w").await?);
    complete_and_go(&a, &id("one"), &one).await?;
    complete_and_go(&a, &id("two"), &two).await?;
    let before = b.meter.counts();
    let found = b.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next")?;
    let spent = b.meter.counts().since(before).total();
    ensure_eq!(found.map(|claim| claim.task.id), Some(id("last")), "what was given among 400 that wait");
    ensure!(spent.keys_answered < 100 && spent.calls < 100, "saw {spent:?} for a claim_next: a sweep");
    Ok(())
}
