//! T38: what is skipped because it can never begin, and what that comes to.

use std::collections::BTreeMap;
use std::time::Duration;

use coord_core::Token;
use coord_core::board::{
    Added, Awaited, Board as _, BoardError, Dep, ExtendedBoard as _, Plan, Rule, State, TaskId, TaskSpec,
};
use coord_core::layer::When;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::rules::{bring, is_skipped, look, next, subject};
use super::stage::{Place, Seat, Stage, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T38",
        layer: Layer::Board,
        promise: "skipped is as absorbing as done: no verb of an operator or of an old holder changes it, its seq grows and \
                  its fence stays; it can be removed, and what waits for its end may begin",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(absorbing(cx)),
    },
    Clause {
        id: "T38.order",
        layer: Layer::Board,
        promise: "what tasks come to, skipped ones included, depends on the rules and on the ends of the others and never on \
                  the order in which those end and anybody looks",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(any_order(cx)),
    },
    Clause {
        id: "T38.edited",
        layer: Layer::Board,
        promise: "of an edit that lets a task begin and a look that skips it one comes first: what was edited is not skipped",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(edited(cx)),
    },
    Clause {
        id: "T38.chain",
        layer: Layer::Board,
        promise: "a chain of 1,000 tasks behind one that is skipped is skipped to its end by those who look for tasks, and \
                  what waits for the end of the last may begin",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(chain(cx)),
    },
];

async fn absorbing(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let done = a.ended_task("done", "done").await?;
    let impossible = [Dep::on(done.clone(), Rule::Failed)];
    // It was held, and is made impossible afterwards.
    let task = a.open_task("task").await?;
    let claim = a.claim(&task, "w").await?;
    a.board.revoke(&task, claim.lease.fence).await.at("revoke")?;
    let before = b.get(&task).await?;
    b.board.set_deps(&task, &impossible, None).await.at("set_deps to what can never be")?;
    is_skipped(&a, &task, true, "by set_deps").await?;
    let shown = b.get(&task).await?;
    ensure!(shown.seq > before.seq + 1, "saw the seq {} after {} and two changes", shown.seq, before.seq);
    ensure_eq!(shown.fence, before.fence, "the fence of what is skipped");
    for seat in [&a, &b] {
        stays(seat, &task, &claim.lease.token, &done).await?;
    }
    stage.advance(Duration::from_secs(3_600));
    stays(&a, &task, &Token::mint(), &done).await?;
    b.is_unchanged(&shown, "verbs on what is skipped").await?;
    let waited = b.board.wait(&Awaited::Ended(task.clone()), Duration::ZERO).await.at("wait")?;
    ensure!(waited, "saw a skipped task waited for as if it had not ended");

    // Added as impossible, also together with what it rests on.
    a.add(spec("impossible").deps(impossible.clone())).await?;
    is_skipped(&b, &id("impossible"), false, "from the beginning").await?;
    let again = b.board.add(spec("impossible").deps(impossible)).await.at("adding it again")?;
    ensure_eq!(again, Added::Existed, "the answer to adding what is skipped again");
    ensure_eq!(a.get(&id("impossible")).await?.state, State::Skipped, "its state after it was added again");
    let (skips, waits) = (Dep::from(id("impossible")), Dep::on(id("impossible"), Rule::Finished));
    let plan = [
        spec("behind").dep(skips),
        spec("behind that").dep(id("behind")),
        spec("cleans up").dep(waits).label("cleans up"),
        spec("cleans up too").dep(Dep::on(id("behind that"), Rule::Finished)).label("cleans up"),
    ];
    b.board.add_plan(&Plan::new(plan)?).await.at("a plan behind what is skipped")?;
    look(&a).await?;
    for behind in ["behind", "behind that"] {
        is_skipped(&a, &id(behind), false, "behind what is skipped").await?;
    }
    for expected in ["cleans up", "cleans up too"] {
        let found = next(&b, "cleans up").await?;
        ensure_eq!(
            found.map(|claim| claim.task.id),
            Some(id(expected)),
            "what waits for the end of the skipped"
        );
    }
    // Removed like a done one.
    let held = b.board.remove(&id("behind")).await;
    ensure_matches!(
        held,
        Err(BoardError::HasDependents { .. }),
        "removal of a skipped task that another names"
    );
    b.board.remove(&task).await.at("removal of a skipped task")?;
    a.open_task("task").await?;
    let next_life = b.claim(&task, "w").await?;
    ensure!(
        next_life.lease.fence > claim.lease.fence,
        "saw the fence {} after {} in the life of an id before",
        next_life.lease.fence,
        claim.lease.fence
    );
    held_while_settled(&a, &b).await?;
    look(&b).await?;
    a.list().await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

async fn stays(seat: &Seat, task: &TaskId, token: &Token, other: &TaskId) -> Outcome {
    let before = seat.get(task).await?;
    let edges = [Dep::from(other)];
    for (verb, answer) in [
        ("claim", seat.try_claim(task, "w").await.map(|_| ())),
        ("cancel", seat.board.cancel(task).await),
        ("reopen", seat.board.reopen(task).await),
        ("set_deps", seat.board.set_deps(task, &edges, None).await),
        ("set_deps to nothing", seat.board.set_deps(task, &[], None).await),
    ] {
        match answer {
            Err(BoardError::Terminal { state: State::Skipped }) => {}
            other => fail!("saw {other:?}, not Terminal: {verb} of a skipped task"),
        }
        seat.is_unchanged(&before, format!("{verb} of a skipped task")).await?;
    }
    seat.is_lost(task, token, before.fence, "of a skipped task").await
}

/// What has begun is never skipped: its dependencies were satisfied, and stay so.
async fn held_while_settled(a: &Seat, b: &Seat) -> Outcome {
    let failed = a.ended_task("has failed", "failed").await?;
    a.add(spec("repairs").dep(Dep::on(failed.clone(), Rule::Failed))).await?;
    let claim = b.claim(&id("repairs"), "w").await?;
    let edited = a.board.set_deps(&id("repairs"), &[], None).await;
    ensure_matches!(edited, Err(BoardError::Taken { .. }), "set_deps of what is held");
    look(a).await?;
    b.board
        .complete(&id("repairs"), &claim.lease.token, result(""))
        .await
        .at("complete of what has begun")?;
    Ok(())
}

const ROOTS: usize = 5;
const TASKS: usize = 16;

/// A small board: what each task names, and what comes of it if it begins.
struct Graph {
    edges: Vec<Vec<(usize, Rule)>>,
    fates: Vec<State>,
}

impl Graph {
    fn random(rng: &mut StdRng) -> Self {
        let mut edges: Vec<Vec<(usize, Rule)>> = vec![Vec::new(); ROOTS];
        for n in ROOTS..TASKS {
            let mut earlier: Vec<usize> = (0..n).collect();
            earlier.shuffle(rng);
            earlier.truncate(rng.random_range(1..=3));
            edges.push(earlier.into_iter().map(|dep| (dep, Rule::ALL[rng.random_range(0..3)])).collect());
        }
        let fates = [State::Done, State::Failed, State::Cancelled, State::Done];
        let fates = (0..TASKS).map(|_| fates[rng.random_range(0..fates.len())]).collect();
        Graph { edges, fates }
    }

    /// What each task comes to: the definition, on a board where all has ended.
    fn ends(&self) -> Vec<State> {
        let mut ends: Vec<State> = Vec::new();
        for (edges, fate) in self.edges.iter().zip(&self.fates) {
            let (mut impossible, mut unsettled) = (false, false);
            for (dep, rule) in edges {
                match (rule, ends[*dep]) {
                    (Rule::Done, State::Done)
                    | (Rule::Finished, State::Done | State::Failed | State::Cancelled | State::Skipped)
                    | (Rule::Failed, State::Failed) => {}
                    (Rule::Done, State::Skipped) | (Rule::Failed, State::Done | State::Skipped) => {
                        impossible = true;
                    }
                    _ => unsettled = true,
                }
            }
            ends.push(match (unsettled, impossible) {
                (true, _) => State::Open,
                (false, true) => State::Skipped,
                (false, false) => *fate,
            });
        }
        ends
    }
}

async fn any_order(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let mut rng = cx.rng(0);
    let mut skipped = 0;
    for g in 0..4 {
        let graph = loop {
            let graph = Graph::random(&mut rng);
            // One that says something.
            let ends = graph.ends();
            if [State::Skipped, State::Failed, State::Done].iter().all(|end| ends[ROOTS..].contains(end)) {
                break graph;
            }
        };
        skipped += graph.ends().iter().filter(|end| **end == State::Skipped).count();
        for order in 0..3 {
            let name = format!("{g}.{order}");
            one_order(&a, &b, &graph, &name, &mut rng).await.at(format!("graph {g} in the order {order}"))?;
        }
    }
    ensure!(skipped > 0, "saw no graph in which anything is skipped");
    look(&b).await?;
    a.list().await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

async fn one_order(a: &Seat, b: &Seat, graph: &Graph, name: &str, rng: &mut StdRng) -> Outcome {
    let label = format!("graph {name}");
    let task = |n: usize| id(format!("{name} task {n}"));
    let numbers: BTreeMap<TaskId, usize> = (0..TASKS).map(|n| (task(n), n)).collect();
    let plan = graph.edges.iter().enumerate().map(|(n, edges)| {
        let edges = edges.iter().map(|(dep, rule)| Dep::on(task(*dep), *rule));
        TaskSpec::new(task(n)).deps(edges).label(&label).priority(rng.random_range(0..3))
    });
    let plan: Vec<TaskSpec> = plan.collect();
    a.board.add_plan(&Plan::new(plan)?).await.at("adding the graph")?;
    let mut order: Vec<usize> = (0..TASKS).collect();
    loop {
        let mut moved = false;
        order.shuffle(rng);
        for n in order.clone() {
            let seat = if rng.random_bool(0.5) { a } else { b };
            let claim = if rng.random_bool(0.3) {
                next(seat, &label).await?
            } else {
                match seat.try_claim(&task(n), "w").await {
                    Ok(claim) => Some(claim),
                    Err(BoardError::Blocked { .. } | BoardError::Terminal { .. }) => None,
                    Err(other) => fail!("saw {other:?}: a claim of task {n}"),
                }
            };
            let Some(claim) = claim else { continue };
            moved = true;
            let (given, token) = (claim.task.id, claim.lease.token);
            let Some(number) = numbers.get(&given) else { fail!("saw {given:?} given") };
            match graph.fates[*number] {
                State::Failed => drop(seat.board.fail(&given, &token, result("no")).await.at("fail")?),
                State::Cancelled => seat.board.cancel(&given).await.at("cancel")?,
                _ => drop(seat.board.complete(&given, &token, result("")).await.at("complete")?),
            }
        }
        if !moved {
            break;
        }
    }
    for _ in 0..4 {
        let found = next(b, &label).await?;
        ensure!(found.is_none(), "saw {found:?} given once nothing could be claimed any more");
    }
    for (n, end) in graph.ends().into_iter().enumerate() {
        let shown = a.get(&task(n)).await?;
        ensure_eq!(shown.state, end, "the state of task {n}, which names {:?}", graph.edges[n]);
    }
    Ok(())
}

/// An edit before or after each call of somebody who skips.
async fn edited(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for by_claim in [false, true] {
        for place in Place::BOTH {
            for k in 1..60 {
                let when = format!("{by_claim} {place:?} {k}");
                let gate = b.ended_task(&format!("gate {when}"), "done").await?;
                let fresh = id(format!("fresh {when}"));
                b.add(TaskSpec::new(fresh.clone()).dep(Dep::on(gate.clone(), Rule::Failed))).await?;
                let step = a.interpose(When::any().nth(k), place, {
                    let (board, fresh) = (b.board.clone(), fresh.clone());
                    move || {
                        let (board, fresh) = (board.clone(), fresh.clone());
                        async move { Ok(board.set_deps(&fresh, &[], None).await) }
                    }
                });
                let claimed = if by_claim {
                    a.try_claim(&fresh, "w").await
                } else {
                    look(&a).await?;
                    Err(BoardError::NotFound { id: fresh.clone() })
                };
                let edit = step.taken()?;
                a.faults.clear();
                let Some(edit) = edit else { break };
                let state = b.get(&fresh).await?.state;
                match (edit, claimed) {
                    (Ok(()), Ok(_)) => {
                        ensure_eq!(state, State::Claimed, "the state of what was edited and claimed")
                    }
                    (Ok(()), Err(_)) => {
                        ensure_eq!(state, State::Open, "the state of what was edited meanwhile ({when})");
                        b.claim(&fresh, "w").await.at("once it was edited")?;
                    }
                    (Err(BoardError::Terminal { state: State::Skipped }), Err(_)) => {
                        ensure_eq!(state, State::Skipped, "the state of what was skipped first ({when})");
                    }
                    (Err(BoardError::Taken { .. }), Ok(_)) | (Err(BoardError::TxnConflict { .. }), _) => {}
                    (edit, claimed) => fail!("saw {edit:?} and {claimed:?}: an edit beside a skip ({when})"),
                }
            }
        }
    }
    look(&b).await?;
    b.list().await?;
    ensure_eq!(b.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

const LINKS: usize = 1_000;

async fn chain(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let link = |n: usize| id(format!("link {n}"));
    // Of a kind that can be skipped, with the chain behind it.
    let first = subject(&a, "link 0", "skipped").await?;
    let links = (1..LINKS).map(|n| TaskSpec::new(link(n)).dep(link(n - 1)));
    let last = spec("cleans up").dep(Dep::on(link(LINKS - 1), Rule::Finished)).label("cleans up");
    for piece in links.chain([last]).collect::<Vec<_>>().chunks(250) {
        a.board.add_plan(&Plan::new(piece.iter().cloned())?).await.at("adding the chain")?;
    }
    let found = next(&b, "cleans up").await?;
    ensure!(found.is_none(), "saw {found:?}, though nothing has ended");
    bring(&a, &first, "skipped").await?;
    // Each look does a bounded part.
    let mut looks = 0;
    while a.get(&link(LINKS - 1)).await?.state == State::Open {
        look(&b).await?;
        looks += 1;
        ensure!(looks <= LINKS, "saw the last of {LINKS} links still open after {looks} looks for tasks");
    }
    let states = a.list().await?;
    let open =
        states.iter().filter(|task| task.id.as_str().starts_with("link") && task.state != State::Skipped);
    ensure_eq!(open.count(), 0, "how many links are not skipped");
    let found = next(&b, "cleans up").await?;
    ensure_eq!(found.map(|claim| claim.task.id), Some(id("cleans up")), "what waits for the end of the last");
    look(&b).await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}
