//! T16, T18 and T19: tasks that come and go, and the edges between them.

use std::sync::Arc;

use coord_core::board::{
    Added, Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard as _, State, TaskId, TaskSpec, limits,
};
use coord_core::layer::When;
use tokio::sync::Barrier;

use super::stage::{Place, Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T16",
        layer: Layer::Board,
        promise: "add refuses an id with another definition (AlreadyExists), an unknown or own dependency, a cycle (with \
                  its path) and more than 1,024 dependencies (TooLarge); two clients that add A-to-B and B-to-A at one \
                  instant: at most one is applied",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(adding(cx)),
    },
    Clause {
        id: "T18",
        layer: Layer::Board,
        promise: "set_deps or remove on a claimed task, expired or not: Taken; set_deps on a terminal one: Terminal; \
                  never a silent unclaim",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(held_tasks(cx)),
    },
    Clause {
        id: "T19",
        layer: Layer::Board,
        promise: "removal of a task that others depend on, finished ones included, is HasDependents; fences go on over \
                  removal and re-adding, also at another handle",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(removal(cx)),
    },
];

async fn adding(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    other_definitions(&a, &b).await?;
    unknown_and_own(&a, &b).await?;
    cycles(&a, &b).await?;
    limits_of_dependencies(&a, &b).await?;
    edges_at_one_instant(&a, &b).await?;
    edges_to_what_goes(&a, &b).await?;
    a.list().await?;
    Ok(())
}

async fn other_definitions(a: &Seat, b: &Seat) -> Outcome {
    let (x, y) = (a.open_task("x").await?, a.open_task("y").await?);
    let full = || {
        spec("task").title("title").deps([id("x"), id("y")]).label("l").label("m").priority(3).payload("p")
    };
    ensure_eq!(a.board.add(full()).await.at("adding")?, Added::New, "the answer of the first add");
    let before = b.list().await?;
    let shown = b.get(&id("task")).await?;
    ensure_eq!(
        (&shown.title[..], &shown.deps[..], shown.priority, &shown.labels[..], &shown.payload[..]),
        ("title", &Dep::all([x.clone(), y.clone()])[..], 3, &["l".to_owned(), "m".to_owned()][..], &b"p"[..]),
        "the definition that was added"
    );
    ensure_eq!((shown.state, shown.owner, shown.lease), (State::Open, None, None), "the state of a new task");
    let others = [
        spec("task"),
        full().title("another"),
        full().payload("another"),
        full().label("another"),
        full().priority(-3),
        spec("task").title("title").dep(x.clone()).label("l").label("m").priority(3).payload("p"),
        spec("task").title("title").deps([x, y]).label("l").priority(3).payload("p"),
    ];
    for other in others {
        for seat in [a, b] {
            match seat.board.add(other.clone()).await {
                Err(BoardError::AlreadyExists { id: name }) if name == id("task") => {}
                answer => fail!("saw {answer:?}, not AlreadyExists: adding {other:?}"),
            }
        }
    }
    ensure_eq!(
        b.board.add(full()).await.at("adding it again")?,
        Added::Existed,
        "the answer of the second add"
    );
    ensure_eq!(b.list().await?, before, "the board after refused adds");
    Ok(())
}

async fn unknown_and_own(a: &Seat, b: &Seat) -> Outcome {
    let before = b.list().await?;
    for seat in [a, b] {
        match seat.board.add(spec("new").dep(id("x")).dep(id("nowhere"))).await {
            Err(BoardError::UnknownDep { id: name }) if name == id("nowhere") => {}
            other => fail!("saw {other:?}, not UnknownDep: adding a task with an unknown dependency"),
        }
        match seat.board.set_deps(&id("x"), &Dep::all([id("y"), id("nowhere")]), None).await {
            Err(BoardError::UnknownDep { id: name }) if name == id("nowhere") => {}
            other => fail!("saw {other:?}, not UnknownDep: set_deps to an unknown task"),
        }
        match seat.board.add(spec("new").dep(id("new"))).await {
            Err(BoardError::Cycle { path }) if path == [id("new"), id("new")] => {}
            other => fail!("saw {other:?}, not Cycle: adding a task that depends on itself"),
        }
        match seat.board.set_deps(&id("x"), &Dep::all([id("x")]), None).await {
            Err(BoardError::Cycle { path }) if path == [id("x"), id("x")] => {}
            other => fail!("saw {other:?}, not Cycle: set_deps of a task to itself"),
        }
        let nothing = seat.board.set_deps(&id("nowhere"), &[], None).await;
        ensure_matches!(nothing, Err(BoardError::NotFound { .. }), "set_deps of an unknown task");
        let twice = seat.board.add(spec("new").dep(id("x")).dep(id("x"))).await;
        ensure_matches!(twice, Err(BoardError::Invalid(_)), "adding a task that names a dependency twice");
        let empty = seat.board.add(spec("")).await;
        ensure_matches!(empty, Err(BoardError::Invalid(_)), "adding a task with an empty id");
    }
    ensure_eq!(b.list().await?, before, "the board after refused adds and edits");
    Ok(())
}

/// The path must be one: it ends where it begins, and every step of it is an edge, the refused ones included.
async fn is_cycle(seat: &Seat, path: &[TaskId], refused: (&TaskId, &[TaskId])) -> Outcome {
    ensure!(path.len() >= 3 && path.first() == path.last(), "saw {path:?} as the path of a cycle");
    for step in path.windows(2) {
        let edge = if step[0] == *refused.0 {
            refused.1.contains(&step[1])
        } else {
            seat.get(&step[0]).await?.depends_on(&step[1])
        };
        ensure!(
            edge,
            "saw {path:?} as the path of a cycle, but {:?} does not depend on {:?}",
            step[0],
            step[1]
        );
    }
    let mut once: Vec<&TaskId> = path[1..].iter().collect();
    once.sort();
    once.dedup();
    ensure_eq!(once.len(), path.len() - 1, "tasks that a cycle of {path:?} goes through");
    Ok(())
}

async fn cycles(a: &Seat, b: &Seat) -> Outcome {
    // c0 <- c1 <- ... <- c5, with a detour beside it, and a diamond that is no cycle.
    a.open_task("c0").await?;
    for n in 1..6 {
        a.add(spec(format!("c{n}")).dep(id(format!("c{}", n - 1)))).await?;
    }
    a.add(spec("detour").deps([id("c1"), id("c3")])).await?;
    let before = b.list().await?;
    for (task, deps) in [
        ("c0", vec![id("c5")]),
        ("c0", vec![id("x"), id("detour")]),
        ("c2", vec![id("y"), id("c3"), id("x")]),
        ("c0", vec![id("c1")]),
    ] {
        match b.board.set_deps(&id(task), &Dep::all(deps.clone()), None).await {
            Err(BoardError::Cycle { path }) => is_cycle(a, &path, (&id(task), &deps)).await?,
            other => fail!("saw {other:?}, not Cycle: set_deps of {task:?} to {deps:?}"),
        }
    }
    ensure_eq!(b.list().await?, before, "the board after refused cycles");
    b.board
        .set_deps(&id("c5"), &Dep::all([id("c0"), id("c4"), id("detour")]), None)
        .await
        .at("closing a diamond")?;
    // An edge that is taken away no longer closes anything.
    b.board.set_deps(&id("c1"), &[], None).await.at("cutting the chain")?;
    a.board.set_deps(&id("c0"), &Dep::all([id("c1")]), None).await.at("an edge the other way")?;
    a.board.set_deps(&id("c0"), &[], None).await?;
    Ok(())
}

async fn limits_of_dependencies(a: &Seat, b: &Seat) -> Outcome {
    let names = (0..=limits::DEPENDENCIES).map(|n| id(format!("dep {n:04}")));
    let deps = Dep::all(names);
    let plan = coord_core::board::Plan::new(deps.iter().map(|dep| TaskSpec::new(dep.id.clone())))?;
    a.board.add_plan(&plan).await.at("adding 1,025 tasks")?;
    let most = &deps[..limits::DEPENDENCIES];
    for (seat, name) in [(a, "wide by a"), (b, "wide by b")] {
        let refused = seat.board.add(spec(name).deps(deps.iter().cloned())).await;
        ensure_matches!(refused, Err(BoardError::TooLarge { .. }), "adding a task with 1,025 dependencies");
        seat.board
            .add(spec(name).deps(most.iter().cloned()))
            .await
            .at("adding a task with 1,024 dependencies")?;
        let refused = seat.board.set_deps(&id(name), &deps, None).await;
        ensure_matches!(refused, Err(BoardError::TooLarge { .. }), "set_deps to 1,025 dependencies");
        seat.board.set_deps(&id(name), &deps[1..], None).await.at("set_deps to 1,024 dependencies")?;
        ensure_eq!(a.get(&id(name)).await?.deps, deps[1..], "the 1,024 dependencies of {name:?}");
        match seat.try_claim(&id(name), "w").await {
            Err(BoardError::Blocked { pending, .. }) if pending.len() == limits::DEPENDENCIES => {}
            other => fail!("saw {other:?}, not Blocked by 1,024 tasks: a claim"),
        }
    }
    let nonsense = vec![id("nowhere"); limits::DEPENDENCIES + 1];
    let refused = b.board.set_deps(&id("nobody"), &Dep::all(nonsense), None).await;
    ensure_matches!(
        refused,
        Err(BoardError::TooLarge { .. }),
        "set_deps of an unknown task to 1,025 dependencies"
    );
    for name in ["wide by a", "wide by b"] {
        a.board.remove(&id(name)).await.at("removing a wide task")?;
    }
    Ok(())
}

/// A-to-B and B-to-A, from two clients.
async fn edges_at_one_instant(a: &Seat, b: &Seat) -> Outcome {
    let mut judged_again = 0;
    for place in Place::BOTH {
        for k in 1.. {
            let (one, two) = two_tasks(a, &format!("{place:?} {k}")).await?;
            let step = a.interpose(When::any().nth(k), place, {
                let (board, one, two) = (b.board.clone(), one.clone(), two.clone());
                move || {
                    let (board, one, two) = (board.clone(), one.clone(), two.clone());
                    async move {
                        let edited = board.set_deps(&two, &Dep::all([one]), None).await;
                        ensure_matches!(
                            edited,
                            Ok(()) | Err(BoardError::Cycle { .. }),
                            "the rival's set_deps"
                        );
                        Ok(edited.is_ok())
                    }
                }
            });
            let edited = a.board.set_deps(&one, &[Dep::from(&two)], None).await;
            let rivals = step.taken()?;
            let taken = rivals.is_some();
            a.faults.clear();
            judged_again += usize::from(edited.is_err());
            ensure!(
                edited.is_ok() != rivals.unwrap_or(false),
                "saw {edited:?}, and the opposite edge accepted: {rivals:?}"
            );
            one_edge(b, &one, &two, edited).await.at(format!("a rival {place:?} call {k}"))?;
            if !taken {
                break;
            }
        }
    }
    ensure!(judged_again > 0, "saw no edge that was judged again on a rival's");
    for round in 0..10 {
        let (one, two) = two_tasks(a, &format!("round {round}")).await?;
        let barrier = Arc::new(Barrier::new(2));
        let rival = tokio::spawn({
            let (board, one, two) = (b.board.clone(), one.clone(), two.clone());
            let barrier = barrier.clone();
            async move {
                barrier.wait().await;
                board.set_deps(&two, &Dep::all([one]), None).await
            }
        });
        barrier.wait().await;
        let edited = a.board.set_deps(&one, &[Dep::from(&two)], None).await;
        let rivals = rival.await?;
        ensure!(edited.is_ok() != rivals.is_ok(), "saw {edited:?} and {rivals:?}: two racing edges");
        ensure_matches!(rivals, Ok(()) | Err(BoardError::Cycle { .. }), "the rival's set_deps in a race");
        one_edge(b, &one, &two, edited).await.at(format!("round {round}"))?;
        // Added with the edge at once, neither can be there before the other.
        let (one, two) = (id(format!("one {round}")), id(format!("two {round}")));
        let rival = tokio::spawn({
            let (board, spec) = (b.board.clone(), TaskSpec::new(two.clone()).dep(one.clone()));
            async move { board.add(spec).await }
        });
        let added = a.board.add(TaskSpec::new(one).dep(two)).await;
        for answer in [added, rival.await?] {
            ensure_matches!(answer, Err(BoardError::UnknownDep { .. }), "adding A-to-B beside B-to-A");
        }
    }
    Ok(())
}

async fn two_tasks(seat: &Seat, name: &str) -> Result<(TaskId, TaskId), crate::Verdict> {
    Ok((seat.open_task(&format!("left {name}")).await?, seat.open_task(&format!("right {name}")).await?))
}

async fn one_edge(seat: &Seat, one: &TaskId, two: &TaskId, edited: Result<(), BoardError>) -> Outcome {
    let (there, back) = (seat.get(one).await?.deps, seat.get(two).await?.deps);
    match edited {
        Ok(()) => ensure_eq!((&there[..], &back[..]), (&[Dep::from(two)][..], &[][..]), "the edges"),
        Err(BoardError::Cycle { path }) => {
            ensure_eq!((&there[..], &back[..]), (&[][..], &[Dep::from(one)][..]), "the edges");
            is_cycle(seat, &path, (one, std::slice::from_ref(two))).await?;
        }
        Err(other) => fail!("saw {other:?}, neither success nor Cycle: set_deps beside its opposite"),
    }
    Ok(())
}

/// An edge to a task that is removed meanwhile: either comes first, and no edge ends nowhere.
async fn edges_to_what_goes(a: &Seat, b: &Seat) -> Outcome {
    for by_add in [true, false] {
        for place in Place::BOTH {
            for k in 1.. {
                let name = format!("{by_add} {place:?} {k}");
                let goes = a.open_task(&format!("goes {name}")).await?;
                let task = id(format!("stays {name}"));
                if !by_add {
                    a.open_task(task.as_str()).await?;
                }
                let step = a.interpose(When::any().nth(k), place, {
                    let (board, goes) = (b.board.clone(), goes.clone());
                    move || {
                        let (board, goes) = (board.clone(), goes.clone());
                        async move {
                            let removed = board.remove(&goes).await;
                            ensure_matches!(
                                removed,
                                Ok(()) | Err(BoardError::HasDependents { .. }),
                                "removing what another one comes to depend on"
                            );
                            Ok(removed.is_ok())
                        }
                    }
                });
                let linked = if by_add {
                    a.board.add(TaskSpec::new(task.clone()).dep(goes.clone())).await.map(|_| ())
                } else {
                    a.board.set_deps(&task, &[Dep::from(&goes)], None).await
                };
                let removed = step.taken()?;
                let taken = removed.is_some();
                a.faults.clear();
                let there = b.board.get(&goes).await.is_ok();
                ensure_eq!(
                    there,
                    !removed.unwrap_or(false),
                    "whether a task is there after its removal: {name}"
                );
                match linked {
                    Ok(()) => ensure!(there, "saw an edge to a task that was removed: {name}"),
                    Err(BoardError::UnknownDep { id }) if id == goes => {
                        ensure!(!there, "saw UnknownDep for a task that is there: {name}");
                    }
                    Err(other) => fail!("saw {other:?}: an edge to a task that goes: {name}"),
                }
                if !taken {
                    break;
                }
            }
        }
    }
    Ok(())
}

async fn held_tasks(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let dep = a.ended_task("dep", "done").await?;
    let deps = &[Dep::from(&dep)];
    let task = a.open_task("task").await?;
    let claim = a.claim(&task, "w").await?;
    let forever = a.open_task("forever").await?;
    let endless = a.board.claim(&forever, &agent("w"), ClaimRequest::forever()).await?;
    for when in ["live", "exactly at expiry", "long expired"] {
        let before = b.list().await?;
        for (task, claim) in [(&task, &claim), (&forever, &endless)] {
            for seat in [&a, &b] {
                for (verb, refused) in [
                    ("set_deps", seat.board.set_deps(task, deps, None).await),
                    ("set_deps to nothing", seat.board.set_deps(task, &[], None).await),
                    ("set_deps with the seq", seat.board.set_deps(task, deps, Some(claim.task.seq)).await),
                    ("remove", seat.board.remove(task).await),
                ] {
                    match refused {
                        Err(BoardError::Taken { owner, until, fence })
                            if owner == agent("w")
                                && until == claim.lease.until
                                && fence == claim.lease.fence => {}
                        other => {
                            fail!("saw {other:?}, not Taken by \"w\": {verb} of a task whose lease is {when}")
                        }
                    }
                }
            }
        }
        ensure_eq!(b.list().await?, before, "the board after refused edits of held tasks");
        stage.advance(if when == "live" { TTL } else { TTL * 100 });
    }
    // Its holder could complete all the while, and an operator frees it first.
    a.board.complete(&task, &claim.lease.token, result("")).await.at("complete by the holder")?;
    b.board.revoke(&forever, endless.lease.fence).await?;
    b.board.set_deps(&forever, deps, None).await.at("set_deps after revoke")?;
    b.board.remove(&forever).await.at("remove after revoke")?;
    for end in ["done", "failed", "cancelled"] {
        let ended = a.ended_task(&format!("ended {end}"), end).await?;
        let before = b.get(&ended).await?;
        match b.board.set_deps(&ended, deps, None).await {
            Err(BoardError::Terminal { state }) if state == before.state => {}
            other => fail!("saw {other:?}, not Terminal: set_deps of a {end} task"),
        }
        a.is_unchanged(&before, "a refused set_deps").await?;
        b.board.remove(&ended).await.at(format!("removing a {end} task"))?;
    }
    claimed_meanwhile(&a, &b, &dep).await
}

/// A claim between the snapshot and the transaction of an edit.
async fn claimed_meanwhile(a: &Seat, b: &Seat, dep: &TaskId) -> Outcome {
    for by_remove in [true, false] {
        for place in Place::BOTH {
            let mut refused = 0;
            for k in 1.. {
                let task = a.open_task(&format!("{by_remove} {place:?} {k}")).await?;
                let step = a.interpose(When::any().nth(k), place, {
                    let (board, task) = (b.board.clone(), task.clone());
                    move || {
                        let (board, task) = (board.clone(), task.clone());
                        async move {
                            match board.claim(&task, &agent("w"), ClaimRequest::for_ttl(TTL)).await {
                                Ok(claim) => Ok(Some(claim)),
                                Err(BoardError::NotFound { .. }) => Ok(None),
                                Err(error) => Err(error).at("claiming what is being edited"),
                            }
                        }
                    }
                });
                let edited = if by_remove {
                    a.board.remove(&task).await
                } else {
                    a.board.set_deps(&task, &[Dep::from(dep)], None).await
                };
                let said = step.taken()?;
                let taken = said.is_some();
                let claim = said.flatten();
                a.faults.clear();
                match (&edited, &claim) {
                    (Ok(()), None) => {}
                    // The edit came first, and the claim was judged on it.
                    (Ok(()), Some(claim)) if !by_remove && claim.task.deps == [dep.clone()] => {}
                    (Err(BoardError::Taken { .. }), Some(_)) => refused += 1,
                    _ => fail!("saw {edited:?} of a task that was meanwhile claimed as {claim:?}"),
                }
                if let Some(claim) = claim {
                    b.board
                        .renew(&task, &claim.lease.token, TTL)
                        .await
                        .at("renewing what was claimed meanwhile")?;
                }
                if !taken {
                    break;
                }
            }
            ensure!(refused > 0, "saw no edit refused because of a claim {place:?} one of its calls");
        }
    }
    Ok(())
}

async fn removal(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let absent = a.board.remove(&id("never")).await;
    ensure_matches!(absent, Err(BoardError::NotFound { .. }), "removal of an unknown task");
    for state in ["open", "claimed", "done", "failed", "cancelled"] {
        let base = a.ended_task(&format!("base {state}"), "done").await?;
        let dependent = id(format!("dependent {state}"));
        a.add(TaskSpec::new(dependent.clone()).dep(base.clone())).await?;
        let mut claim = None;
        match state {
            "open" => {}
            "claimed" => claim = Some(a.claim(&dependent, "w").await?),
            end => a.end(&dependent, end).await?,
        }
        let before = b.list().await?;
        for seat in [&a, &b] {
            match seat.board.remove(&base).await {
                Err(BoardError::HasDependents { dependent: name }) if name == dependent => {}
                other => fail!("saw {other:?}, not HasDependents: removal of what a {state} task depends on"),
            }
        }
        ensure_eq!(b.list().await?, before, "the board after a refused removal");
        if let Some(claim) = claim {
            a.board.release(&dependent, &claim.lease.token).await?;
        }
        b.board.remove(&dependent).await.at("removing the dependent")?;
        b.board.remove(&base).await.at("removing what nothing depends on any more")?;
        let gone = a.board.get(&base).await;
        ensure_matches!(gone, Err(BoardError::NotFound { .. }), "get of a removed task");
        let again = a.board.remove(&base).await;
        ensure_matches!(again, Err(BoardError::NotFound { .. }), "removal of a removed task");
    }
    // An undone task blocks nothing less: held by an open dependent, freed by its edit.
    let base = a.open_task("base").await?;
    a.add(spec("edited").dep(base.clone())).await?;
    let held = b.board.remove(&base).await;
    ensure_matches!(held, Err(BoardError::HasDependents { .. }), "removal of what an open task depends on");
    a.board.set_deps(&id("edited"), &[], None).await?;
    b.board.remove(&base).await.at("removal after the dependent was edited")?;
    fences_go_on(&stage, &a, &b).await
}

async fn fences_go_on(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let task = id("phoenix");
    let (mut fence, mut tokens) = (0, Vec::new());
    for life in 0..6 {
        // Each step by the other seat, and once by one that was opened later.
        let (one, other) = if life % 2 == 0 { (a, b) } else { (b, a) };
        one.open_task("phoenix").await?;
        let late = stage.seat().await?;
        for round in 0..if life % 2 == 0 { 3 } else { 1 } {
            let seat = if round == 1 { &late } else { other };
            let claim = seat.claim(&task, "w").await?;
            ensure!(
                claim.lease.fence > fence,
                "saw the fence {} after {fence}: life {life} of an id, claim {round}",
                claim.lease.fence
            );
            fence = claim.lease.fence;
            ensure!(!tokens.contains(&claim.lease.token), "saw a token given twice");
            for token in &tokens {
                let stale = one.board.complete(&task, token, result("")).await;
                ensure_matches!(stale, Err(BoardError::LeaseLost { .. }), "complete with an older token");
            }
            seat.board.release(&task, &claim.lease.token).await?;
            tokens.push(claim.lease.token);
        }
        // Another id's fences do not matter.
        let bystander = other.open_task("bystander").await?;
        one.board.remove(&bystander).await?;
        one.board.remove(&task).await.at("removing a task that was claimed")?;
    }
    a.list().await?;
    Ok(())
}
