//! T27: what `check` finds, and what random verbs never leave behind.

use std::collections::BTreeMap;

use coord_core::board::{LeaseInfo, ProblemCode, State, Task, check};

use super::random::random_verbs;
use super::stage::{agent, id};
use crate::clause::{Clause, Layer, Needs, Outcome};
use crate::context::Context;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T27",
    layer: Layer::Board,
    promise: "check finds each of its ten problems in a crafted board, and nothing on any board reached by random verbs, \
              which answer and change what the contract says and nothing else: claims, retries, rules of dependencies, pins, \
              skips and retention",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(invariants(cx)),
}];

async fn invariants(cx: Context) -> Outcome {
    crafted()?;
    let handle = tokio::runtime::Handle::current();
    let handles = [cx.open().await?, cx.open().await?];
    // The property test is not asynchronous, so it has a thread of its own, from which it comes back for every verb.
    tokio::task::spawn_blocking(move || random_verbs(&cx, &handle, &handles)).await?
}

fn task(name: &str, deps: &[&str]) -> Task {
    let mut task = Task::new(id(name));
    task.deps = deps.iter().map(|dep| id(dep).into()).collect();
    task
}

fn held(name: &str, deps: &[&str]) -> Task {
    let mut task = task(name, deps);
    task.state = State::Claimed;
    task.owner = Some(agent("w"));
    task.lease = Some(LeaseInfo { fence: 1, until: None });
    task
}

fn with(mut task: Task, change: fn(&mut Task)) -> Task {
    change(&mut task);
    task
}

fn crafted() -> Outcome {
    let good = || {
        vec![
            with(task("done", &[]), |task| task.state = State::Done),
            with(task("failed", &[]), |task| task.state = State::Failed),
            task("open", &["done", "failed"]),
            held("held", &["done"]),
            with(task("cancelled", &["open"]), |task| task.state = State::Cancelled),
        ]
    };
    ensure_eq!(check(&good()), [], "the problems of a board without any");
    ensure_eq!(check(&[]), [], "the problems of an empty board");
    let ring: Vec<Task> =
        (0..5_000).map(|n| task(&format!("r{n}"), &[&format!("r{}", (n + 1) % 5_000)])).collect();
    let cases: Vec<(ProblemCode, &str, Vec<Task>)> = vec![
        (ProblemCode::EmptyId, "", vec![task("", &[])]),
        (ProblemCode::DuplicateId, "x", vec![task("x", &[]), task("x", &[])]),
        (ProblemCode::DuplicateId, "open", vec![task("open", &[])]),
        (ProblemCode::UnknownState, "x", vec![with(task("x", &[]), |task| task.state = State::Unknown(7))]),
        (ProblemCode::UnknownDep, "x", vec![task("x", &["done", "nowhere"])]),
        (ProblemCode::UnknownDep, "x", vec![with(task("x", &["nowhere"]), |task| task.state = State::Done)]),
        (ProblemCode::SelfDep, "x", vec![task("x", &["x"])]),
        (ProblemCode::DepCycle, "", vec![task("x", &["y"]), task("y", &["x"])]),
        (
            ProblemCode::DepCycle,
            "",
            vec![task("x", &["y", "open"]), task("y", &["z"]), task("z", &["done", "x"])],
        ),
        (ProblemCode::DepCycle, "", ring),
        (ProblemCode::ClaimedWithoutLease, "x", vec![with(held("x", &[]), |task| task.lease = None)]),
        (ProblemCode::ClaimedWithoutLease, "x", vec![with(held("x", &[]), |task| task.owner = None)]),
        (ProblemCode::LeaseWithoutClaim, "x", vec![with(held("x", &[]), |task| task.state = State::Open)]),
        (
            ProblemCode::LeaseWithoutClaim,
            "x",
            vec![with(task("x", &[]), |task| task.owner = Some(agent("w")))],
        ),
        (
            ProblemCode::LeaseWithoutClaim,
            "x",
            vec![with(held("x", &[]), |task| (task.state, task.owner) = (State::Done, None))],
        ),
        (ProblemCode::BlockedClaim, "x", vec![held("x", &["open"])]),
        (ProblemCode::BlockedClaim, "x", vec![held("x", &["held"])]),
        (ProblemCode::BlockedClaim, "x", vec![held("x", &["done", "failed"])]),
        (ProblemCode::BlockedClaim, "x", vec![held("x", &["cancelled"])]),
        (
            ProblemCode::TerminalClaimed,
            "x",
            vec![with(task("x", &[]), |task| (task.state, task.owner) = (State::Done, Some(agent("w"))))],
        ),
        (
            ProblemCode::TerminalClaimed,
            "x",
            vec![with(task("x", &[]), |task| {
                (task.state, task.owner) = (State::Cancelled, Some(agent("w")))
            })],
        ),
    ];
    let mut found = BTreeMap::new();
    for (code, name, bad) in cases {
        for first in [true, false] {
            let mut tasks = good();
            let bad = bad.clone();
            tasks = if first {
                bad.into_iter().chain(tasks).collect()
            } else {
                tasks.into_iter().chain(bad).collect()
            };
            let problems = check(&tasks);
            match &problems[..] {
                [problem] if problem.code == code => {
                    ensure!(
                        name.is_empty() || problem.task == id(name),
                        "saw {problem}, not of the task {name:?}: a crafted board"
                    );
                }
                other => fail!("saw {other:?}, not {code} alone: a crafted board"),
            }
            *found.entry(code.as_str()).or_insert(0) += 1;
        }
    }
    ensure_eq!(found.len(), 10, "the codes that were found: {found:?}");
    // All at once: no problem hides another.
    let everything = vec![
        task("", &[]),
        task("twice", &[]),
        task("twice", &[]),
        with(task("odd", &["nowhere", "odd"]), |task| task.state = State::Unknown(9)),
        with(held("no lease", &["odd"]), |task| task.lease = None),
        with(held("no claim", &[]), |task| task.state = State::Open),
        with(task("ended", &[]), |task| (task.state, task.owner) = (State::Failed, Some(agent("w")))),
        task("x", &["y"]),
        task("y", &["x"]),
    ];
    let mut codes: Vec<&str> = check(&everything).iter().map(|problem| problem.code.as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    ensure_eq!(codes.len(), 10, "the codes on a board with all ten problems: {codes:?}");
    Ok(())
}
