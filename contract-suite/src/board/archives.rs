//! T43: finished tasks go, and nothing that somebody could still need.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    Added, Archive, ArchiveReport, Board as _, BoardError, Dep, ExtendedBoard as _, Filter, Plan, Rule,
    State, Task, TaskId, TaskSpec, Verb, check,
};
use coord_core::layer::{Cell, When};
use tokio::sync::{Barrier, Notify};

use super::stage::{Place, Seat, Stage, TICK, TTL, agent, id, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T43",
    layer: Layer::Board,
    promise: "archive: what is done or skipped, or failed or cancelled if asked, was touched so long ago, and has no dependents but \
              done or skipped ones goes, and nothing else; these keep state, time, outcome and digest; fences go on; stopped \
              anywhere, raced by anything, no task loses one that it needs, and the next call goes on",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(archives(cx)),
}];

const AGE: Duration = Duration::from_secs(3_600);

fn names(report: &ArchiveReport) -> Vec<&str> {
    let mut names: Vec<&str> = report.archived.iter().map(TaskId::as_str).collect();
    names.sort_unstable();
    names
}

async fn archives(cx: Context) -> Outcome {
    named(&Stage::new(&cx)).await.at("tasks that finished ones depend on")?;
    asked(&Stage::fresh(&cx)).await.at("tasks that failed or were cancelled")?;
    dependents(&Stage::fresh(&cx)).await.at("what finished tasks have to do with each other")?;
    many(&Stage::fresh(&cx)).await.at("many tasks")?;
    races(&Stage::fresh(&cx)).await.at("in a race")?;
    interposed(&Stage::fresh(&cx)).await.at("with a rival in between")?;
    stopped(&cx).await.at("a call that is stopped")
}

/// One call that looks at everything.
async fn archive(seat: &Seat, request: Archive) -> Result<ArchiveReport, Verdict> {
    let report = seat.board.archive(&request).await.at("archive")?;
    seat.list().await?;
    Ok(report)
}

async fn named(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let old = a.ended_task("old", "done").await?;
    let fence = a.get(&old).await?.fence;
    let before = a.get(&old).await?.seq;
    let mid_spec = spec("mid").dep(old.clone());
    a.add(mid_spec.clone()).await?;
    a.end(&id("mid"), "done").await?;
    a.add(spec("open").dep(id("mid"))).await?;
    a.add(spec("held")).await?;
    a.claim(&id("held"), "w").await?;
    let mid = b.get(&id("mid")).await?;
    stage.advance(AGE - TICK);
    ensure_eq!(
        names(&archive(&b, Archive::older_than(AGE)).await?),
        Vec::<&str>::new(),
        "what was archived too soon"
    );
    stage.advance(TICK);
    let report = archive(&b, Archive::older_than(AGE)).await?;
    ensure_eq!((names(&report), report.next.clone()), (vec!["old"], None), "what was archived");
    ensure_eq!(report.examined, 4, "how many tasks were looked at");
    for seat in [&a, &b] {
        ensure_matches!(
            seat.board.get(&old).await,
            Err(BoardError::NotFound { .. }),
            "get of an archived task"
        );
        let told = seat.board.history(&old).await;
        ensure_matches!(told, Err(BoardError::NotFound { .. }), "the history of an archived task");
    }
    // The dependent is what it was, but for the name and its seq.
    let now = a.get(&mid.id).await?;
    ensure!(now.seq > mid.seq, "saw the seq {} after {}: a dependency was archived", now.seq, mid.seq);
    ensure_eq!(now.deps, Vec::<Dep>::new(), "the dependencies once that was archived");
    let mut expected = mid.clone();
    expected.deps.clear();
    expected.seq = now.seq;
    ensure!(now == expected, "saw {now:?}, not {expected:?}, whose dependency was archived");
    let told = a.board.history(&mid.id).await?;
    ensure_eq!(
        told.events.last().map(|event| event.verb),
        Some(Verb::Archive),
        "the last event of the dependent"
    );
    ensure_eq!(a.board.add(mid_spec).await?, Added::Existed, "adding the dependent again");
    let late = a.board.add(spec("late").dep(old.clone())).await;
    ensure_matches!(
        late,
        Err(BoardError::UnknownDep { .. }),
        "adding a task that depends on an archived one"
    );
    ensure_eq!(
        names(&archive(&a, Archive::older_than(AGE)).await?),
        Vec::<&str>::new(),
        "what was archived again"
    );
    // Another life of its name goes on with fence and seq.
    let again = b.open_task("old").await?;
    ensure!(b.get(&again).await?.seq > before, "saw the seq start again after archiving");
    let claim = b.claim(&again, "w").await?;
    ensure!(claim.lease.fence > fence, "saw the fence {} after {fence}, over archiving", claim.lease.fence);
    b.board.release(&again, &claim.lease.token).await?;
    // Once the last one is done, and old, the rest goes in one call.
    a.end(&id("open"), "done").await?;
    stage.advance(AGE);
    let report = archive(&a, Archive::older_than(AGE)).await?;
    ensure_eq!(names(&report), vec!["mid", "open"], "what was archived in the end");
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    for bad in [Archive::older_than(AGE).most(0), Archive::older_than(AGE).most(1_001)] {
        ensure_matches!(
            a.board.archive(&bad).await,
            Err(BoardError::Invalid(_)),
            "looking at too few or too many"
        );
    }
    Ok(())
}

async fn asked(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    a.ended_task("base", "done").await?;
    a.add(spec("broken").dep(id("base"))).await?;
    a.end(&id("broken"), "failed").await?;
    a.ended_task("cancelled", "cancelled").await?;
    // What waits for a failure, and what can never run because there was none.
    a.add(spec("cleanup").dep(Dep::on(id("broken"), Rule::Finished))).await?;
    stage.advance(AGE);
    let old = || Archive::older_than(AGE);
    ensure_eq!(names(&archive(&a, old()).await?), Vec::<&str>::new(), "what was archived unasked");
    ensure_eq!(
        names(&archive(&a, old().failed()).await?),
        Vec::<&str>::new(),
        "a failed task that another one waits for"
    );
    a.board.remove(&id("cleanup")).await?;
    ensure_eq!(
        names(&archive(&a, old()).await?),
        Vec::<&str>::new(),
        "what a failed task needs once it is reopened"
    );
    b.board.reopen(&id("broken")).await.at("reopen after archiving")?;
    b.end(&id("broken"), "failed").await?;
    ensure_eq!(names(&archive(&b, old().failed()).await?), Vec::<&str>::new(), "a task that failed just now");
    ensure_eq!(
        names(&archive(&b, old().cancelled()).await?),
        vec!["cancelled"],
        "cancelled tasks, asked for"
    );
    stage.advance(AGE);
    ensure_eq!(names(&archive(&b, old().failed()).await?), vec!["base", "broken"], "failed tasks, asked for");
    ensure_eq!(a.list().await?.len(), 0, "tasks that are left");
    Ok(())
}

async fn dependents(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let old = || Archive::older_than(AGE);
    // One that was cancelled may be reopened, and then needs it.
    let needed = a.ended_task("needed", "done").await?;
    a.add(spec("cancelled").dep(needed.clone())).await?;
    a.end(&id("cancelled"), "cancelled").await?;
    // One that is skipped never will.
    let done = a.ended_task("done", "done").await?;
    a.add(spec("skipped").dep(Dep::on(done, Rule::Failed))).await?;
    let none = b.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next")?;
    ensure!(none.is_none(), "saw {none:?} given, though nothing can be claimed");
    // One has begun because another one has failed.
    let failed = a.ended_task("failed", "failed").await?;
    a.add(spec("repairs").dep(Dep::on(failed.clone(), Rule::Failed))).await?;
    a.end(&id("repairs"), "done").await?;
    stage.advance(AGE);
    let report = archive(&b, old()).await?;
    ensure_eq!(names(&report), vec!["done", "repairs", "skipped"], "what nobody can need any more");
    match a.board.reopen(&failed).await {
        Err(BoardError::HasDependents { dependent }) if dependent == id("repairs") => {}
        other => fail!("saw {other:?}: reopen of what an archived task has rested on"),
    }
    ensure_eq!(names(&archive(&b, old().failed()).await?), vec!["failed"], "failed tasks, asked for");
    // One that was skipped just now stays, and needs nothing.
    let alone = a.ended_task("alone", "done").await?;
    stage.advance(AGE);
    a.add(spec("young").dep(Dep::on(alone, Rule::Failed))).await?;
    let none = b.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next")?;
    ensure!(none.is_none(), "saw {none:?} given, though nothing can be claimed");
    ensure_eq!(names(&archive(&b, old()).await?), vec!["alone"], "what only a skipped task names");
    ensure_eq!(a.get(&id("young")).await?.deps, Vec::<Dep>::new(), "what the skipped task names then");
    b.board.reopen(&id("cancelled")).await.at("reopen of what was cancelled")?;
    b.claim(&id("cancelled"), "w").await.at("a claim of what was cancelled")?;
    ensure_eq!(a.get(&needed).await?.state, State::Done, "what it needs");
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

/// A task that many depend on, which are done; a chain.
async fn finished(seat: &Seat, width: usize, length: usize) -> Result<Vec<TaskSpec>, Verdict> {
    let wide = (0..width).map(|n| spec(format!("wide {n:02}")).dep(id("first")));
    let chain = (1..length).map(|n| spec(format!("chain {n:02}")).dep(id(format!("chain {:02}", n - 1))));
    let tasks: Vec<TaskSpec> =
        [spec("first"), spec("chain 00")].into_iter().chain(wide).chain(chain).collect();
    let plan = Plan::new(tasks)?;
    seat.board.add_plan(&plan).await.at("adding a plan")?;
    for task in plan.tasks() {
        seat.end(&task.id, "done").await?;
    }
    Ok(plan.tasks().to_vec())
}

async fn many(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    let tasks = finished(&a, 45, 12).await?;
    a.add(spec("needs it").dep(id("first"))).await?;
    stage.advance(AGE);
    let before = a.list().await?;
    // Only the first page: of the dependents, of which it takes none, and of the chain all but the last.
    let first = b.board.archive(&Archive::older_than(AGE).most(5)).await.at("archive five")?;
    ensure_eq!((first.examined, first.next.clone()), (5, Some(id("chain 04"))), "a page of five");
    ensure_eq!(
        names(&first),
        vec!["chain 00", "chain 01", "chain 02", "chain 03", "chain 04"],
        "a page of five"
    );
    let mut next = first.next;
    let mut gone = first.archived;
    while next.is_some() {
        let report = archive(&b, Archive::older_than(AGE).most(7).after(next)).await?;
        gone.extend(report.archived);
        next = report.next;
    }
    let left: Vec<TaskId> = a.list().await?.into_iter().map(|task| task.id).collect();
    ensure_eq!(left, vec![id("first"), id("needs it")], "what is left, page by page");
    ensure_eq!(gone.len() + left.len(), before.len(), "what has gone, and what is left");
    let first = a.get(&id("first")).await?;
    ensure!(before.contains(&first), "saw {first:?} changed, which stays");
    let again =
        a.board.add_plan(&Plan::new(tasks.into_iter().filter(|task| task.id == id("first")))?).await?;
    ensure_eq!((again.added, again.existed), (0, 1), "adding again what stays");
    // The young ones keep their dependency, and it keeps them.
    for n in 0..45 {
        a.add(spec(format!("young {n:02}")).dep(id("first"))).await?;
        a.end(&id(format!("young {n:02}")), "done").await?;
    }
    a.end(&id("needs it"), "done").await?;
    let report = archive(&b, Archive::older_than(AGE)).await?;
    ensure_eq!(names(&report), vec!["first"], "a task on which many finished ones depend");
    let named: Vec<TaskId> =
        a.list().await?.into_iter().filter(|task| !task.deps.is_empty()).map(|task| task.id).collect();
    ensure_eq!(named, Vec::<TaskId>::new(), "tasks that still name it");
    Ok(())
}

/// What somebody else does at the instant at which a task is archived.
#[derive(Clone, Copy, Debug)]
enum Rival {
    Add,
    SetDeps,
    Reopen,
    Claim,
    Archive,
}

async fn races(stage: &Stage) -> Outcome {
    const ROUNDS: usize = 8;
    let seats = stage.seats(2).await?;
    let (a, b) = (&seats[0], &seats[1]);
    for rival in [Rival::Add, Rival::SetDeps, Rival::Reopen, Rival::Claim, Rival::Archive] {
        for round in 0..ROUNDS {
            let place = format!("{rival:?}, round {round}");
            let base = a.open_task("base").await?;
            let end = if matches!(rival, Rival::Reopen) { "failed" } else { "done" };
            if matches!(rival, Rival::Claim) {
                a.add(spec("claimed").dep(base.clone())).await?;
            }
            a.end(&base, end).await?;
            a.add(spec("done")).await?;
            if end == "done" {
                a.board.set_deps(&id("done"), &[base.clone().into()], None).await?;
            }
            a.end(&id("done"), "done").await?;
            a.open_task("other").await?;
            stage.advance(AGE);
            let barrier = Arc::new(Barrier::new(2));
            let archiver = {
                let (board, barrier) = (a.board.clone(), barrier.clone());
                tokio::spawn(async move {
                    barrier.wait().await;
                    board.archive(&Archive::older_than(AGE).failed()).await
                })
            };
            let racer = {
                let (board, barrier, base) = (b.board.clone(), barrier.clone(), base.clone());
                tokio::spawn(async move {
                    barrier.wait().await;
                    match rival {
                        Rival::Add => board.add(spec("late").dep(base)).await.map(|_| ()),
                        Rival::SetDeps => board.set_deps(&id("other"), &[base.into()], None).await,
                        Rival::Reopen => board.reopen(&base).await,
                        Rival::Claim => {
                            let request = coord_core::board::ClaimRequest::for_ttl(TTL);
                            board.claim(&id("claimed"), &agent("w"), request).await.map(|_| ())
                        }
                        Rival::Archive => board.archive(&Archive::older_than(AGE).failed()).await.map(|_| ()),
                    }
                })
            };
            let archived = archiver.await?.at(&place)?;
            let answer = racer.await?;
            let left = b.list().await.at(&place)?;
            let stays = left.iter().any(|task| task.id == base);
            if !matches!(rival, Rival::Archive) {
                ensure_eq!(
                    archived.archived.contains(&base),
                    !stays,
                    "whether the task is told to be gone: {place}"
                );
            }
            match (rival, &answer) {
                (Rival::Add | Rival::SetDeps, Err(BoardError::UnknownDep { .. }))
                | (Rival::Reopen, Err(BoardError::NotFound { .. }))
                | (Rival::Archive, Ok(())) => ensure!(!stays, "saw the task stay, and {answer:?}: {place}"),
                (Rival::Add | Rival::SetDeps, Ok(())) => {
                    let dependents =
                        left.iter().filter(|task| task.depends_on(&base) && !task.state.is_terminal());
                    ensure!(stays && dependents.count() == 1, "saw {left:?} after {answer:?}: {place}");
                }
                (Rival::Reopen, Ok(())) => {
                    let open = left.iter().any(|task| task.id == base && task.state == State::Open);
                    ensure!(open, "saw {left:?} after the task was reopened: {place}");
                }
                (Rival::Claim, Ok(())) => ensure!(stays, "saw what a claimed task rests on gone: {place}"),
                other => fail!("saw {other:?}: {place}"),
            }
            for task in left {
                if let Some(lease) = task.lease {
                    a.board.revoke(&task.id, lease.fence).await?;
                }
            }
            clear(a).await?;
        }
    }
    Ok(())
}

/// A task that has been done for long, and more than one transaction's fill of young ones that depend on it.
async fn old_and_young(stage: &Stage, seat: &Seat) -> Result<usize, Verdict> {
    const YOUNG: usize = 21;
    seat.ended_task("first", "done").await?;
    stage.advance(AGE);
    let young = (0..YOUNG).map(|n| spec(format!("young {n:02}")).dep(id("first")));
    let plan = Plan::new(young)?;
    seat.board.add_plan(&plan).await.at("adding a plan")?;
    for task in plan.tasks() {
        seat.end(&task.id, "done").await?;
    }
    Ok(YOUNG + 1)
}

/// Somebody adds a task that needs the one that is archived, right before each of the transactions.
async fn interposed(stage: &Stage) -> Outcome {
    let (a, b) = stage.pair().await?;
    for k in 1..20 {
        old_and_young(stage, &b).await?;
        let board = b.board.clone();
        let step = a.interpose(When::txn().nth(k), Place::Before, move || {
            let board = board.clone();
            async move {
                let late = board.add(spec("late").dep(id("first"))).await;
                ensure_matches!(
                    late,
                    Ok(_) | Err(BoardError::UnknownDep { .. }),
                    "adding what depends on it"
                );
                Ok(late.is_ok())
            }
        });
        a.board.archive(&Archive::older_than(AGE)).await.at("archive")?;
        let added = step.taken()?;
        a.faults.clear();
        let left = b.list().await.at(format!("with a task that was added before the {k}. transaction"))?;
        let shown = |name: &str| left.iter().any(|task| task.id.as_str() == name);
        if added == Some(true) {
            ensure!(
                shown("first") && shown("late"),
                "saw {left:?} after a task was added before transaction {k}"
            );
        }
        clear(&b).await?;
        if added.is_none() {
            ensure!(k > 1, "saw a call without a transaction");
            break;
        }
    }
    Ok(())
}

/// Takes everything off the board, by its verbs.
async fn clear(seat: &Seat) -> Outcome {
    loop {
        let left = seat.list().await?;
        if left.is_empty() {
            return Ok(());
        }
        for task in &left {
            if !left.iter().any(|other| other.depends_on(&task.id)) {
                seat.board.remove(&task.id).await.at("remove")?;
            }
        }
    }
}

/// Dropped after its k-th transaction, or without an answer to it: the board is whole, and the next call goes on. In the end nothing is
/// left behind.
async fn stopped(cx: &Context) -> Outcome {
    let cells: [fn() -> Cell; 4] =
        [Cell::hangs, Cell::request_lost, Cell::reply_lost, Cell::twice_reply_lost];
    for (n, cell) in cells.into_iter().enumerate() {
        let stage = Stage::fresh(cx);
        let (a, b) = stage.pair().await?;
        let empty: Vec<_> = b.raw_entries().await?.into_keys().collect();
        for k in 1..200 {
            let place = format!("{} at its {k}. transaction", cell());
            let tasks = old_and_young(&stage, &b).await?;
            let reached = Arc::new(Notify::new());
            let signal = reached.clone();
            let told = move |_| {
                signal.notify_one();
                std::future::ready(())
            };
            let rule = a.faults.on(When::txn().nth(k), cell().then(told));
            let request = Archive::older_than(AGE);
            let answer = if n == 0 {
                tokio::select! {
                    biased;
                    () = reached.notified() => None,
                    answer = a.board.archive(&request) => Some(answer),
                }
            } else {
                Some(a.board.archive(&request).await)
            };
            let was_reached = a.faults.hits_of(rule) > 0;
            a.faults.heal();
            a.faults.clear();
            let left = b.board.list().await.at(&place)?;
            let problems = check(&left);
            ensure!(problems.is_empty(), "saw {problems:?}: {place}");
            match answer {
                None | Some(Err(BoardError::OutcomeUnknown { verb: Verb::Archive, .. })) => {}
                Some(Ok(report)) => {
                    ensure_eq!(report.archived.len() + left.len(), tasks, "what is gone and left: {place}");
                }
                Some(Err(other)) => fail!("saw {other:?}: {place}"),
            }
            a.faults.release_held().await;
            archive(&b, Archive::older_than(AGE)).await.at(&place)?;
            let left = b.list().await?;
            let needs = left.iter().any(|task| !task.deps.is_empty());
            ensure!(left.len() == tasks - 1 && !needs, "saw {left:?} after a second call: {place}");
            stage.advance(AGE);
            archive(&b, Archive::older_than(AGE)).await.at(&place)?;
            ensure_eq!(b.list().await?, Vec::<Task>::new(), "what is left once all are old: {place}");
            if !was_reached {
                ensure!(k > 1, "saw a call without a transaction");
                break;
            }
        }
        b.board.claim_next(&agent("w"), &Filter::any(), TTL).await?;
        let after: Vec<_> = b.raw_entries().await?.into_keys().collect();
        ensure_eq!(after, empty, "the records that an empty board keeps");
    }
    Ok(())
}
