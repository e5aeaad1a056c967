//! T37: what a dependency has to come to, by its rule.

use coord_core::board::{
    Added, Board as _, BoardError, Claim, ClaimRequest, Dep, ExtendedBoard as _, Filter, Plan, Rule,
    Standing, State, TaskId, TaskSpec, limits,
};

use super::stage::{Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T37",
        layer: Layer::Board,
        promise: "a dependency is satisfied by its rule: done by done; finished by done, skipped, failed and cancelled; \
                  failed by failed. What can never be satisfied skips the task, everything else blocks it visibly, \
                  whether it was added before or after, and whoever looks for it by claim, claim_next or explain",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(table(cx)),
    },
    Clause {
        id: "T37.mixed",
        layer: Layer::Board,
        promise: "a task with several dependencies is judged once all of them are settled, in whatever order they are \
                  named and come to their ends; until then the impossible ones are named among the failed",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(mixed(cx)),
    },
    Clause {
        id: "T37.definition",
        layer: Layer::Board,
        promise: "the rules belong to the definition of a task, are shown and can be replaced; at most 40 of its \
                  dependencies have another one than done; cycles, unknown tasks and dependents are judged whatever the \
                  rule",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(definition(cx)),
    },
];

/// What a task with one dependency comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    Begins,
    Skips,
    /// The dependency has not ended.
    Waits,
    /// The dependency has ended, and somebody has to reopen it.
    Stuck,
}

const STATES: [&str; 6] = ["open", "claimed", "done", "failed", "cancelled", "skipped"];

const TABLE: [(Rule, [Comes; 6]); 3] = {
    use Comes::{Begins, Skips, Stuck, Waits};
    [
        (Rule::Done, [Waits, Waits, Begins, Stuck, Stuck, Skips]),
        (Rule::Finished, [Waits, Waits, Begins, Begins, Begins, Begins]),
        (Rule::Failed, [Waits, Waits, Skips, Begins, Stuck, Skips]),
    ]
};

/// What is to be had under this label, looked for more than once: another client may have left work undone.
pub(super) async fn next(seat: &Seat, label: &str) -> Result<Option<Claim>, Verdict> {
    for _ in 0..3 {
        let filter = Filter::any().with_label(label);
        let found = seat.board.claim_next(&agent("looker"), &filter, TTL).await.at("claim_next")?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Looks for tasks that nobody has, so that what is left to be done about the others is done.
pub(super) async fn look(seat: &Seat) -> Outcome {
    let found = next(seat, "a label that no task bears").await?;
    ensure!(found.is_none(), "saw {found:?} given by a label that no task bears");
    Ok(())
}

/// A task that can be brought to any state: it is skipped if the one that it names is done.
pub(super) async fn subject(seat: &Seat, name: &str, state: &str) -> Result<TaskId, Verdict> {
    let mut task = spec(name);
    if state == "skipped" {
        task = task.dep(Dep::on(seat.open_task(&format!("gate of {name}")).await?, Rule::Failed));
    }
    seat.add(task).await?;
    Ok(id(name))
}

/// Brings a subject to its state.
pub(super) async fn bring(seat: &Seat, task: &TaskId, state: &str) -> Outcome {
    match state {
        "open" => Ok(()),
        "claimed" => {
            seat.board.claim(task, &agent("holder"), ClaimRequest::forever()).await.at("claim")?;
            Ok(())
        }
        "skipped" => {
            seat.end(&id(format!("gate of {task}")), "done").await?;
            look(seat).await?;
            ensure_eq!(seat.get(task).await?.state, State::Skipped, "the state of what can never begin");
            Ok(())
        }
        end => seat.end(task, end).await,
    }
}

/// A claim is refused because of these, and `explain` names them too.
pub(super) async fn is_blocked(
    seat: &Seat,
    task: &TaskId,
    pending: &[&TaskId],
    failed: &[&TaskId],
    when: &str,
) -> Outcome {
    let sorted = |ids: Vec<TaskId>| {
        let mut ids = ids;
        ids.sort();
        ids
    };
    let named = |ids: &[&TaskId]| sorted(ids.iter().map(|id| (*id).clone()).collect());
    let expected = (named(pending), named(failed), Vec::<TaskId>::new());
    match seat.try_claim(task, "w").await {
        Err(BoardError::Blocked { pending, failed, missing }) => {
            ensure_eq!((sorted(pending), sorted(failed), missing), expected, "what blocks a claim {when}");
        }
        other => fail!("saw {other:?}, not Blocked by {expected:?}: a claim {when}"),
    }
    match seat.board.explain(task).await.at("explain")? {
        Standing::Blocked { pending, failed, missing } => {
            ensure_eq!((sorted(pending), sorted(failed), missing), expected, "what blocks a task {when}");
        }
        other => fail!("saw {other:?}, not Blocked by {expected:?}: explain {when}"),
    }
    ensure_eq!(seat.get(task).await?.state, State::Open, "the state of what is blocked {when}");
    Ok(())
}

/// The task is skipped: by whoever claims it, or by whoever looks for tasks.
pub(super) async fn is_skipped(seat: &Seat, task: &TaskId, by_claim: bool, when: &str) -> Outcome {
    if by_claim {
        match seat.try_claim(task, "w").await {
            Err(BoardError::Terminal { state: State::Skipped }) => {}
            other => fail!("saw {other:?}, not Terminal: a claim of what is to be skipped {when}"),
        }
    } else {
        look(seat).await?;
    }
    let shown = seat.get(task).await?;
    ensure_eq!(
        (shown.state, &shown.owner, &shown.lease),
        (State::Skipped, &None, &None),
        "state, owner and lease of what is to be skipped {when}"
    );
    let standing = seat.board.explain(task).await.at("explain")?;
    ensure_eq!(standing, Standing::Ended { state: State::Skipped }, "explain of what is skipped {when}");
    Ok(())
}

async fn comes_to(
    seat: &Seat,
    task: &TaskId,
    dep: &TaskId,
    expected: Comes,
    by_next: bool,
    when: &str,
) -> Outcome {
    let label = task.as_str();
    match expected {
        Comes::Begins => {
            ensure_eq!(
                seat.board.explain(task).await.at("explain")?,
                Standing::Claimable,
                "explain of what may begin {when}"
            );
            let claim = if by_next {
                let Some(found) = next(seat, label).await? else {
                    fail!("saw claim_next find nothing, though a task may begin {when}");
                };
                found
            } else {
                seat.claim(task, "w").await.at(when)?
            };
            ensure_eq!(claim.task.id, *task, "what was given {when}");
            seat.board.complete(task, &claim.lease.token, result("")).await.at("complete")?;
        }
        Comes::Skips => {
            is_skipped(seat, task, !by_next, when).await?;
            let found = next(seat, label).await?;
            ensure!(found.is_none(), "saw {found:?} of what is skipped {when}");
        }
        Comes::Waits | Comes::Stuck => {
            if by_next {
                let found = next(seat, label).await?;
                ensure!(found.is_none(), "saw {found:?} of what is blocked {when}");
            }
            let named: &[&TaskId] = &[dep];
            let (pending, failed) =
                if expected == Comes::Waits { (named, &[][..]) } else { (&[][..], named) };
            is_blocked(seat, task, pending, failed, when).await?;
        }
    }
    Ok(())
}

async fn table(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for (rule, row) in TABLE {
        for (state, expected) in STATES.into_iter().zip(row) {
            for late in [false, true] {
                for by_next in [false, true] {
                    let when = format!(
                        "{rule} on {state}, {}{}",
                        if late { "added afterwards" } else { "added before" },
                        if by_next { ", looked for" } else { "" }
                    );
                    let dep = subject(&a, &format!("dep, {when}"), state).await?;
                    let task = id(format!("task, {when}"));
                    let waiting = spec(task.as_str()).dep(Dep::on(dep.clone(), rule)).label(task.as_str());
                    if late {
                        bring(&a, &dep, state).await.at(&when)?;
                        a.add(waiting).await?;
                    } else {
                        a.add(waiting).await?;
                        is_blocked(&b, &task, &[&dep], &[], &format!("({when}) before it is")).await?;
                        bring(&a, &dep, state).await.at(&when)?;
                    }
                    comes_to(&b, &task, &dep, expected, by_next, &when).await?;
                }
            }
        }
    }
    look(&b).await?;
    a.list().await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

async fn mixed(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for swapped in [false, true] {
        for end in ["done", "failed", "cancelled"] {
            one_impossible(&a, &b, swapped, end).await.at(format!("swapped: {swapped}, {end}"))?;
        }
        several(&a, &b, swapped).await.at(format!("swapped: {swapped}"))?;
    }
    reopened(&a, &b).await?;
    look(&b).await?;
    a.list().await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

fn ordered<T>(mut items: Vec<T>, swapped: bool) -> Vec<T> {
    if swapped {
        items.reverse();
    }
    items
}

/// One dependency is impossible at once, the other one takes its time.
async fn one_impossible(a: &Seat, b: &Seat, swapped: bool, end: &str) -> Outcome {
    let name = format!("{swapped} {end}");
    let (one, other) =
        (a.open_task(&format!("one {name}")).await?, a.open_task(&format!("other {name}")).await?);
    let edges = ordered(vec![Dep::on(one.clone(), Rule::Failed), Dep::from(&other)], swapped);
    let task = id(format!("task {name}"));
    a.add(TaskSpec::new(task.clone()).deps(edges).label(&name)).await?;
    is_blocked(b, &task, &[&one, &other], &[], "while both are open").await?;
    a.end(&one, "done").await?;
    let found = next(b, &name).await?;
    ensure!(found.is_none(), "saw {found:?}, though one dependency is open and one impossible");
    is_blocked(b, &task, &[&other], &[&one], "while one is impossible and one open").await?;
    let claim = b.claim(&other, "w").await?;
    look(a).await?;
    is_blocked(b, &task, &[&other], &[&one], "while one is impossible and one held").await?;
    b.board.release(&other, &claim.lease.token).await.at("release")?;
    if end != "done" {
        a.end(&other, end).await?;
        look(b).await?;
        is_blocked(b, &task, &[], &[&one, &other], "while one is impossible and one to be reopened").await?;
        b.board.reopen(&other).await.at("reopen")?;
        is_blocked(b, &task, &[&other], &[&one], "once the other one is reopened").await?;
    }
    a.end(&other, "done").await?;
    is_skipped(b, &task, swapped, "once all are settled").await
}

/// Each by another rule, settled one by one.
async fn several(a: &Seat, b: &Seat, swapped: bool) -> Outcome {
    let mut deps = Vec::new();
    for (name, rule, end) in [
        ("done", Rule::Done, "done"),
        ("cancelled", Rule::Finished, "cancelled"),
        ("failed", Rule::Failed, "failed"),
        ("skipped", Rule::Finished, "skipped"),
        ("also failed", Rule::Finished, "failed"),
    ] {
        deps.push((subject(a, &format!("{name} {swapped}"), end).await?, rule, end));
    }
    let task = id(format!("several {swapped}"));
    let edges = deps.iter().map(|(dep, rule, _)| Dep::on(dep.clone(), *rule)).collect();
    a.add(TaskSpec::new(task.clone()).deps(ordered::<Dep>(edges, swapped)).label(task.as_str())).await?;
    let mut left: Vec<&TaskId> = deps.iter().map(|(dep, ..)| dep).collect();
    for (n, (dep, _, end)) in deps.iter().enumerate() {
        is_blocked(b, &task, &left, &[], &format!("with {n} of them settled")).await?;
        let found = next(b, task.as_str()).await?;
        ensure!(found.is_none(), "saw {found:?} with {n} of the dependencies settled");
        bring(a, dep, end).await?;
        left.retain(|other| *other != dep);
    }
    let found = next(b, task.as_str()).await?;
    ensure_eq!(found.map(|claim| claim.task.id), Some(task), "what is given once all are satisfied");
    Ok(())
}

/// What failed is reopened before anybody rests on it: it is judged on what comes of it then.
async fn reopened(a: &Seat, b: &Seat) -> Outcome {
    for (rule, first, then, expected) in [
        (Rule::Failed, "failed", "done", Comes::Skips),
        (Rule::Failed, "cancelled", "failed", Comes::Begins),
        (Rule::Failed, "failed", "cancelled", Comes::Stuck),
        (Rule::Finished, "failed", "done", Comes::Begins),
        (Rule::Finished, "cancelled", "failed", Comes::Begins),
        (Rule::Done, "failed", "done", Comes::Begins),
    ] {
        for by_next in [false, true] {
            let when = format!("{rule} on {first}, reopened and {then} {by_next}");
            let dep = a.open_task(&format!("dep, {when}")).await?;
            let task = id(format!("task, {when}"));
            a.add(TaskSpec::new(task.clone()).dep(Dep::on(dep.clone(), rule)).label(task.as_str())).await?;
            a.end(&dep, first).await?;
            look(b).await?;
            b.board.reopen(&dep).await.at(format!("reopen ({when})"))?;
            let found = next(b, task.as_str()).await?;
            ensure!(found.is_none(), "saw {found:?} on what was reopened: {when}");
            is_blocked(b, &task, &[&dep], &[], &format!("({when}) while it is open again")).await?;
            a.end(&dep, then).await?;
            comes_to(b, &task, &dep, expected, by_next, &when).await?;
        }
    }
    Ok(())
}

async fn definition(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let (x, y, z) = (a.open_task("x").await?, a.open_task("y").await?, a.open_task("z").await?);
    let edges = [Dep::on(x.clone(), Rule::Finished), Dep::from(&y), Dep::on(z.clone(), Rule::Failed)];
    let task = id("task");
    let ruled = spec("task").deps(edges.clone());
    a.add(ruled.clone()).await?;
    ensure_eq!(b.get(&task).await?.deps, edges, "the dependencies that are shown");
    let listed = b.list().await?.into_iter().find(|shown| shown.id == task).map(|shown| shown.deps);
    ensure_eq!(listed, Some(edges.to_vec()), "the dependencies that are listed");
    ensure_eq!(b.board.add(ruled.clone()).await.at("adding it again")?, Added::Existed, "the same again");
    for rule in Rule::ALL {
        let mut other = edges.clone();
        if other[0].rule == rule {
            continue;
        }
        other[0].rule = rule;
        let refused = b.board.add(spec("task").deps(other)).await;
        ensure_matches!(refused, Err(BoardError::AlreadyExists { .. }), "the same with another rule");
    }
    // Replaced: the rules are the new ones, and the definition that was added stays the one it is compared with.
    let replaced = [Dep::on(x.clone(), Rule::Failed), Dep::on(y.clone(), Rule::Finished)];
    let before = b.get(&task).await?;
    b.board.set_deps(&task, &replaced, Some(before.seq)).await.at("set_deps")?;
    let shown = a.get(&task).await?;
    ensure_eq!(shown.deps, replaced, "the dependencies after set_deps");
    ensure!(shown.seq > before.seq, "saw set_deps leave the seq at {}", shown.seq);
    ensure_eq!(a.board.add(ruled).await.at("adding it again")?, Added::Existed, "the same after set_deps");
    // Only the rule is another one: it counts at once.
    let failed = a.ended_task("failed", "failed").await?;
    b.board.set_deps(&task, &[Dep::from(&failed)], None).await.at("set_deps")?;
    is_blocked(&a, &task, &[], &[&failed], "by the rule done on what failed").await?;
    b.board.set_deps(&task, &[Dep::on(failed.clone(), Rule::Failed)], None).await.at("set_deps")?;
    a.claim(&task, "w").await.at("once the rule is failed")?;

    for two in [[Rule::Done, Rule::Failed], [Rule::Finished, Rule::Finished]] {
        let twice = two.map(|rule| Dep::on(x.clone(), rule));
        let refused = a.board.add(spec("twice").deps(twice.clone())).await;
        ensure_matches!(refused, Err(BoardError::Invalid(_)), "adding a task that names another one twice");
        let refused = a.board.set_deps(&z, &twice, None).await;
        ensure_matches!(refused, Err(BoardError::Invalid(_)), "set_deps that names another task twice");
    }
    for rule in Rule::ALL {
        topology(&a, &b, rule).await.at(format!("the rule {rule}"))?;
    }
    limit(&a, &b).await?;
    look(&b).await?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}

async fn topology(a: &Seat, b: &Seat, rule: Rule) -> Outcome {
    let name = |text: &str| id(format!("{text} {rule}"));
    let edge = |text: &str| Dep::on(name(text), rule);
    // A plan names its own, and they are added before.
    let plan = [
        spec(name("c").as_str()).dep(edge("b")),
        spec(name("b").as_str()).dep(edge("a")),
        spec(name("a").as_str()),
    ];
    b.board.add_plan(&Plan::new(plan)?).await.at("a plan")?;
    match b.board.set_deps(&name("a"), &[edge("c")], None).await {
        Err(BoardError::Cycle { path }) => {
            ensure!(path.len() >= 3, "saw the path {path:?} of a cycle of three")
        }
        other => fail!("saw {other:?}, not Cycle: an edge back"),
    }
    match b.board.set_deps(&name("a"), &[edge("nowhere")], None).await {
        Err(BoardError::UnknownDep { id }) if id == name("nowhere") => {}
        other => fail!("saw {other:?}, not UnknownDep: an edge to nowhere"),
    }
    match a.board.remove(&name("a")).await {
        Err(BoardError::HasDependents { dependent }) if dependent == name("b") => {}
        other => fail!("saw {other:?}, not HasDependents: removal of what another task names"),
    }
    a.list().await?;
    Ok(())
}

async fn limit(a: &Seat, b: &Seat) -> Outcome {
    let many = limits::RULED_DEPENDENCIES + 1;
    let names: Vec<TaskId> = (0..many).map(|n| id(format!("many {n}"))).collect();
    b.board.add_plan(&Plan::new(names.iter().cloned().map(TaskSpec::new))?).await.at("a plan")?;
    let edges: Vec<Dep> = names.iter().map(|name| Dep::on(name.clone(), Rule::Finished)).collect();
    let refused = a.board.add(spec("too many").deps(edges.clone())).await;
    ensure_matches!(refused, Err(BoardError::TooLarge { .. }), "adding a task with too many rules");
    let task = id("most");
    let mut most = edges.clone();
    most[0].rule = Rule::Done;
    a.add(TaskSpec::new(task.clone()).deps(most)).await?;
    let refused = b.board.set_deps(&task, &edges, None).await;
    ensure_matches!(refused, Err(BoardError::TooLarge { .. }), "set_deps with too many rules");
    // As many as there may be can be rested on at once.
    for (n, name) in names.iter().enumerate() {
        a.end(name, if n == 0 { "done" } else { "cancelled" }).await?;
    }
    b.claim(&task, "w").await.at("of a task with as many rules as there may be")?;
    for name in &names[1..] {
        let refused = a.board.reopen(name).await;
        ensure_matches!(
            refused,
            Err(BoardError::HasDependents { .. }),
            "reopening what a held task rests on"
        );
    }
    Ok(())
}
