//! T12: a board is listed at one instant, or in pages.

use std::sync::Arc;

use coord_core::board::{
    AgentId, Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard, Plan, State, Task, TaskId, TaskSpec,
    check, limits,
};
use coord_core::layer::When;
use futures::future::BoxFuture;
use tokio::sync::Barrier;

use super::stage::{Place, Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T12",
        layer: Layer::Board,
        promise: "list is one instant up to 9,999 tasks, in ascending order of ids; above: TooLarge, and check goes on, telling nothing \
                  that never was",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(one_instant(cx)),
    },
    Clause {
        id: "T12.pages",
        layer: Layer::Board,
        promise: "page gives 1 to 1,000 tasks after an id, at one instant, in ascending order of ids; page after page gives each task once",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(pages(cx)),
    },
];

async fn one_instant(cx: Context) -> Outcome {
    small(&Stage::new(&cx)).await.at("on a small board")?;
    racing(&Stage::fresh(&cx)).await.at("under a storm of writes")?;
    large(&Stage::fresh(&cx)).await.at("on a board of 9,999 tasks")
}

type Change = fn(Arc<dyn ExtendedBoard>) -> BoxFuture<'static, Outcome>;

/// Two changes far apart in the order of ids: whoever lists must see none, the first, or both, and nothing in between.
const CHANGES: &[(&str, [Change; 2])] = &[
    ("claims of the first and the last task", [|b| Box::pin(claim(b, "a")), |b| Box::pin(claim(b, "z"))]),
    ("claims of the last and the first task", [|b| Box::pin(claim(b, "z")), |b| Box::pin(claim(b, "a"))]),
    ("new dependencies of the first and the last", [|b| Box::pin(edit(b, "a")), |b| Box::pin(edit(b, "z"))]),
    ("new dependencies of the last and the first", [|b| Box::pin(edit(b, "z")), |b| Box::pin(edit(b, "a"))]),
    ("removal of one, and then another one added", [|b| Box::pin(remove(b, "b")), |b| Box::pin(add(b, "y"))]),
    ("one added, and then removal of another one", [|b| Box::pin(add(b, "y")), |b| Box::pin(remove(b, "b"))]),
    ("a task removed and added again", [|b| Box::pin(remove(b, "z")), |b| Box::pin(add(b, "z"))]),
    ("a new task and a claim of it", [|b| Box::pin(add(b, "0")), |b| Box::pin(claim(b, "0"))]),
    (
        "a dependency done and its dependent claimed",
        [|b| Box::pin(finish(b, "x")), |b| Box::pin(claim(b, "e"))],
    ),
];

async fn claim(board: Arc<dyn ExtendedBoard>, task: &str) -> Outcome {
    board.claim(&id(task), &agent("rival"), ClaimRequest::for_ttl(TTL)).await.at("claiming")?;
    Ok(())
}

async fn edit(board: Arc<dyn ExtendedBoard>, task: &str) -> Outcome {
    board.set_deps(&id(task), &Dep::all([id("m")]), None).await.at("editing dependencies")
}

async fn remove(board: Arc<dyn ExtendedBoard>, task: &str) -> Outcome {
    board.remove(&id(task)).await.at("removing")
}

async fn add(board: Arc<dyn ExtendedBoard>, task: &str) -> Outcome {
    board.add(spec(task)).await.at("adding")?;
    Ok(())
}

async fn finish(board: Arc<dyn ExtendedBoard>, task: &str) -> Outcome {
    let claim = board.claim(&id(task), &agent("rival"), ClaimRequest::for_ttl(TTL)).await.at("claiming")?;
    board.complete(&id(task), &claim.lease.token, result("")).await.at("completing")?;
    Ok(())
}

/// A small board, whose tasks were added in another order than they are listed in, and its ids in ascending order.
async fn small_board(seat: &Seat) -> Result<Vec<TaskId>, Verdict> {
    let names = ["z", "m", "b", "a", "x", "n", "Z", "aa", "a/", "é", "\u{1F600}", "01", "1"];
    for name in names {
        seat.open_task(name).await?;
    }
    seat.add(spec("e").dep(id("x"))).await?;
    let mut ids: Vec<TaskId> = names.into_iter().chain(["e"]).map(id).collect();
    ids.sort();
    Ok(ids)
}

async fn small(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let lister = stage.seat().await?;
    ensure_eq!(lister.list().await?, Vec::<Task>::new(), "an empty board");
    let expected = small_board(&a).await?;
    let listed: Vec<TaskId> = lister.list().await?.into_iter().map(|task| task.id).collect();
    ensure_eq!(listed, expected, "the ids of a listing");
    for task in lister.list().await? {
        ensure_eq!(b.get(&task.id).await?, task, "one task by itself, against the listing");
    }
    let list: Look = |board| Box::pin(async move { board.list().await });
    disturbed(&a, &b, list, CHANGES).await
}

/// A way to see all tasks of a small board at one instant.
type Look = fn(Arc<dyn ExtendedBoard>) -> BoxFuture<'static, Result<Vec<Task>, BoardError>>;

/// Makes changes before and after each call of a look: what is seen must be what the board was before, between or after them.
async fn disturbed(a: &Seat, b: &Seat, look: Look, all: &[(&str, [Change; 2])]) -> Outcome {
    for (what, changes) in all {
        for place in Place::BOTH {
            let mut in_between = false;
            for k in 1.. {
                let states: Arc<std::sync::Mutex<Vec<Vec<Task>>>> = Arc::default();
                let before = b.list().await?;
                let step = a.interpose(When::any().nth(k), place, {
                    let (board, states, changes) = (b.board.clone(), states.clone(), *changes);
                    move || {
                        let (board, states) = (board.clone(), states.clone());
                        async move {
                            for change in changes {
                                change(board.clone()).await?;
                                let state = board.list().await.at("listing between two changes")?;
                                states.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(state);
                            }
                            Ok(())
                        }
                    }
                });
                let listed = look(a.board.clone()).await.at("looking while the board changes")?;
                let taken = step.taken()?.is_some();
                a.faults.clear();
                if !taken {
                    ensure!(listed == before, "saw {listed:?}, not {before:?}: a look that nobody disturbed");
                    break;
                }
                let states = states.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
                in_between = true;
                if listed != before && !states.contains(&listed) {
                    fail!(
                        "saw {}, which the board never was, {what}, {place:?} call {k} of the look",
                        difference(&listed, states.last().unwrap_or(&before))
                    );
                }
                undo(b).await.at("undoing the changes")?;
            }
            ensure!(in_between, "saw no call of a look to change the board at");
        }
    }
    Ok(())
}

async fn pages(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let empty = b.board.page(None, 1).await.at("a page of an empty board")?;
    ensure!(empty.tasks.is_empty() && empty.next.is_none(), "saw {empty:?}: a page of an empty board");
    let ids = small_board(&a).await?;
    a.claim(&id("m"), "w").await?;
    let all = b.list().await?;
    for limit in [0, 1_001, usize::MAX] {
        ensure_matches!(
            b.board.page(None, limit).await,
            Err(BoardError::Invalid(_)),
            "a page of {limit} tasks"
        );
    }
    for limit in (1..=ids.len() + 1).chain([1_000]) {
        let mut seen: Vec<Task> = Vec::new();
        let mut after: Option<TaskId> = None;
        loop {
            let page = b.board.page(after.as_ref(), limit).await.at(format!("a page of {limit}"))?;
            let full = page.tasks.len() == limit;
            ensure!(
                page.tasks.len() <= limit && (full || page.next.is_none()),
                "saw {} tasks of {limit}, and then a next page {:?}",
                page.tasks.len(),
                page.next
            );
            seen.extend(page.tasks);
            ensure!(
                seen.len() <= all.len(),
                "saw {} tasks in pages of {limit}, not {}",
                seen.len(),
                all.len()
            );
            after = page.next;
            if after.is_none() {
                break;
            }
            ensure_eq!(
                after.as_ref(),
                seen.last().map(|task| &task.id),
                "where the next page of {limit} starts"
            );
            ensure!(seen.len() < all.len(), "saw a next page after the last task, in pages of {limit}");
        }
        ensure_eq!(seen, all, "all pages of {limit}, against the listing");
    }
    // A place is a place also where no task is, or none any more.
    for place in ["0", "a0", "ab", "n ", "zz", "\u{10FFFF}"] {
        let expected: Vec<TaskId> = ids.iter().filter(|other| **other > id(place)).take(3).cloned().collect();
        let page = b.board.page(Some(&id(place)), 3).await.at(format!("a page after {place:?}"))?;
        let seen: Vec<TaskId> = page.tasks.into_iter().map(|task| task.id).collect();
        ensure_eq!(seen, expected, "three tasks after {place:?}, where none is");
    }
    let last = a.list().await?.into_iter().find_map(|task| task.lease).map(|lease| lease.fence);
    a.board.revoke(&id("m"), last.unwrap_or_default()).await.at("revoking")?;
    let page: Look = |board| Box::pin(async move { Ok(board.page(None, 1_000).await?.tasks) });
    let few: Vec<_> = CHANGES.iter().step_by(4).copied().collect();
    disturbed(&a, &b, page, &few).await
}

/// Brings the small board back to where any of the changes may start.
async fn undo(seat: &Seat) -> Outcome {
    for task in seat.list().await? {
        if let Some(lease) = task.lease {
            seat.board.revoke(&task.id, lease.fence).await?;
        }
        if task.deps == [id("m")] {
            seat.board.set_deps(&task.id, &[], None).await?;
        }
    }
    for name in ["y", "0"] {
        match seat.board.remove(&id(name)).await {
            Ok(()) | Err(BoardError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for name in ["b", "z"] {
        seat.board.add(spec(name)).await?;
    }
    if seat.get(&id("x")).await?.state == State::Done {
        seat.board.remove(&id("e")).await?;
        seat.board.remove(&id("x")).await?;
        seat.board.add(spec("x")).await?;
        seat.board.add(spec("e").dep(id("x"))).await?;
    }
    Ok(())
}

/// The first task in which two listings differ.
fn difference(seen: &[Task], other: &[Task]) -> String {
    let mut pairs = seen.iter().zip(other);
    match pairs.find(|(one, other)| one != other) {
        Some((one, other)) => format!("{one:?}, where the board at the end has {other:?}"),
        None => format!("{} tasks, where the board at the end has {}", seen.len(), other.len()),
    }
}

/// One agent holds exactly one of all tasks, or none, at any time; plans come and go as a whole.
async fn racing(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let lister = stage.seat().await?;
    let tasks: Vec<TaskId> = ["a", "m", "z"].map(id).to_vec();
    for task in &tasks {
        a.add(TaskSpec::new(task.clone())).await?;
    }
    let barrier = Arc::new(Barrier::new(3));
    let holder = tokio::spawn({
        let (board, tasks, barrier) = (a.board.clone(), tasks.clone(), barrier.clone());
        async move {
            barrier.wait().await;
            for round in 0..40 {
                let task = &tasks[[0, 2, 1][round % 3]];
                let claim = board.claim(task, &agent("only one"), ClaimRequest::for_ttl(TTL)).await?;
                board.release(task, &claim.lease.token).await?;
            }
            Ok::<(), BoardError>(())
        }
    });
    let planner = tokio::spawn({
        let (board, barrier) = (b.board.clone(), barrier.clone());
        async move {
            barrier.wait().await;
            for _ in 0..20 {
                board.add_plan(&pair_plan()?).await?;
                board.remove(&id("z pair")).await?;
                board.remove(&id("a pair")).await?;
            }
            Ok::<(), BoardError>(())
        }
    });
    barrier.wait().await;
    let owner: AgentId = agent("only one");
    let mut listings = 0;
    while !(holder.is_finished() && planner.is_finished()) || listings < 5 {
        let listed = match lister.board.list().await {
            Ok(listed) => listed,
            // Bounded: a board that never stands still may be told so.
            Err(BoardError::TxnConflict { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        listings += 1;
        let held: Vec<&TaskId> =
            listed.iter().filter(|task| task.owner.as_ref() == Some(&owner)).map(|task| &task.id).collect();
        ensure!(held.len() <= 1, "saw {held:?} held by one who never holds two");
        let pair = |name: &str| listed.iter().any(|task| task.id == id(name));
        ensure!(pair("a pair") || !pair("z pair"), "saw the second half of a plan without the first");
        let problems = check(&listed);
        ensure!(problems.is_empty(), "saw {problems:?} in a listing during writes");
        tokio::task::yield_now().await;
    }
    holder.await?.at("claiming and releasing")?;
    planner.await?.at("adding and removing a plan")?;
    Ok(())
}

fn pair_plan() -> Result<Plan, BoardError> {
    Plan::new([spec("a pair"), spec("z pair").dep(id("a pair"))])
}

async fn large(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let count = limits::LISTED_TASKS;
    let name = |n: usize| format!("t{n:04}");
    let plan = Plan::new((0..count).map(|n| spec(name(n))))?;
    let report = a.board.add_plan(&plan).await.at("adding 9,999 tasks")?;
    ensure_eq!((report.added, report.existed), (count, 0), "tasks added and found");
    let listed = b.list().await?;
    ensure_eq!(listed.len(), count, "tasks of a listing of 9,999");
    for (n, task) in listed.iter().enumerate() {
        ensure_eq!(task.id.as_str(), name(n), "the {n}. task of a listing of 9,999");
    }
    // Some points of the listing, from its first call to its last.
    let calls = b.meter.counts();
    b.list().await?;
    let calls = b.meter.counts().since(calls).total().calls;
    let mut ks: Vec<u64> = vec![1, calls.div_ceil(3), calls.div_ceil(3) * 2, calls];
    ks.retain(|k| (1..=calls).contains(k));
    ks.dedup();
    for (round, k) in ks.into_iter().enumerate() {
        let (first, last, middle) = (id(name(round)), id(name(count - 1 - round)), id(name(5_000 + round)));
        let step = b.interpose(When::any().nth(k), Place::After, {
            let (board, first, last, middle) = (a.board.clone(), first.clone(), last.clone(), middle.clone());
            move || {
                let (board, first, last) = (board.clone(), first.clone(), last.clone());
                let middle = middle.clone();
                async move {
                    board.set_deps(&last, &[Dep::from(&first)], None).await.at("set_deps")?;
                    board.remove(&middle).await.at("remove")?;
                    board.claim(&first, &agent("rival"), ClaimRequest::for_ttl(TTL)).await.at("claim")?;
                    Ok(())
                }
            }
        });
        let listed = b.board.list().await.at("listing while the board changes")?;
        ensure!(step.taken()?.is_some(), "saw a listing end before its {k}. call, although one took {calls}");
        b.faults.clear();
        let find = |id: &TaskId| listed.iter().find(|task| task.id == *id);
        let edited = find(&last).is_some_and(|task| task.deps == [first.clone()]);
        let removed = find(&middle).is_none();
        let claimed = find(&first).is_some_and(|task| task.state == State::Claimed);
        ensure!(
            matches!(
                (edited, removed, claimed),
                (false, false, false) | (true, _, false) | (true, true, true)
            ),
            "saw edited {edited}, removed {removed}, claimed {claimed}, which was their order: call {k} of {calls}"
        );
        a.board.add(TaskSpec::new(middle)).await.at("adding it again")?;
    }
    a.open_task("one more").await?;
    match b.board.list().await {
        Err(BoardError::TooLarge { .. }) => {}
        Ok(listed) => fail!("saw {} tasks, not TooLarge: listing a board of 10,000", listed.len()),
        Err(other) => fail!("saw {other:?}, not TooLarge: listing a board of 10,000"),
    }
    checked(&a, &b).await.at("checking a board of 10,000")?;
    // Everything else goes on.
    let claim = b.claim(&id("one more"), "w").await.at("on a board that is too large to list")?;
    b.board.complete(&id("one more"), &claim.lease.token, result("")).await?;
    a.board.remove(&id("one more")).await.at("on a board that is too large to list")?;
    ensure_matches!(b.board.list().await, Ok(tasks) if tasks.len() == count, "the listing after that");
    Ok(())
}

/// While a board that is too large to be listed is checked, it changes so that its first tasks, as they were, and its last ones, as they
/// are then, contradict each other.
async fn checked(a: &Seat, b: &Seat) -> Outcome {
    let tasks = ["0 first", "0 ring", "zz last", "zz ring"].map(id);
    let [first, ring, last, other_ring] = &tasks;
    let new = id("0 new");
    let calls = b.meter.counts();
    let problems = b.board.check().await?;
    ensure!(problems.is_empty(), "saw {problems:?} on a board that is right");
    let calls = b.meter.counts().since(calls).total().calls;
    let mut ks: Vec<u64> = (1..=4).map(|part| (calls * part / 5).max(1)).collect();
    ks.dedup();
    for k in ks {
        a.add(TaskSpec::new(first.clone())).await?;
        a.add(TaskSpec::new(last.clone()).dep(first.clone())).await?;
        a.add(TaskSpec::new(other_ring.clone())).await?;
        a.add(TaskSpec::new(ring.clone()).dep(other_ring.clone())).await?;
        let step = b.interpose(When::any().nth(k), Place::After, {
            let (board, tasks, new) = (a.board.clone(), tasks.clone(), new.clone());
            move || {
                let (board, [first, ring, last, other_ring], new) =
                    (board.clone(), tasks.clone(), new.clone());
                async move {
                    let now = ClaimRequest::for_ttl(TTL);
                    let claim =
                        board.claim(&first, &agent("w"), now.clone()).await.at("claiming the first")?;
                    board.complete(&first, &claim.lease.token, result("")).await.at("completing it")?;
                    board.claim(&last, &agent("w"), now).await.at("claiming the last")?;
                    board.set_deps(&ring, &[], None).await.at("opening the ring")?;
                    board.add(TaskSpec::new(new.clone())).await.at("adding one")?;
                    let deps = [Dep::from(&ring), Dep::from(&new)];
                    board.set_deps(&other_ring, &deps, None).await.at("closing it the other way round")
                }
            }
        });
        let problems = b.board.check().await.at("checking while the board changes")?;
        ensure!(step.taken()?.is_some(), "saw a check end before its {k}. call, although one took {calls}");
        b.faults.clear();
        ensure!(
            problems.is_empty(),
            "saw {problems:?}, which never were, after call {k} of {calls} of the check"
        );
        let fence = a.get(last).await?.fence;
        a.board.revoke(last, fence).await.at("revoking")?;
        for task in [last, first, other_ring, ring, &new] {
            a.board.remove(task).await.at("removing")?;
        }
    }
    Ok(())
}
