//! The ready index under many small schedules: some clients use every verb on a few tasks, the schedule decides at every call to the
//! store who goes on, whose call is dropped, which answers are lost, which transactions land late or twice, and when time passes.
//!
//! At every instant each task that has not ended must be where somebody looks for it, and once all is quiet, whoever looks for tasks
//! must get exactly those that can be claimed, in their order, and leave an index with one entry a task and nothing to examine.
//!
//! A failure names its seed; `COORD_SUITE_SEED=<seed> COORD_SCHEDULES=1 cargo test -p coord-core --test ready_index` replays it, and
//! `COORD_SCHEDULES` sets how many are tried.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "ready_index/clients.rs"]
mod clients;
#[path = "ready_index/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Waker};

use coord_core::Token;
use coord_core::board::{
    Board as _, ClaimRequest, ExtendedBoard as _, Filter, Outcome, ProblemCode, Rule, State, Task, TaskId,
    TaskSpec, check,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use clients::Client;
use world::{Flaw, Quiet, TTL, World, agent, id, now_or_never};

const SCHEDULES: u64 = 4_000;
/// At most so many until a flaw is found.
const FLAWED_SCHEDULES: u64 = 40_000;

/// The steps of a call, one at a time.
struct Steps(Option<Pin<Box<dyn Future<Output = ()>>>>);

impl Steps {
    /// Goes on for so many steps; whether that was the end.
    fn take(&mut self, steps: usize) -> bool {
        for _ in 0..steps {
            let Some(call) = &mut self.0 else { break };
            if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                self.0 = None;
            }
        }
        self.0.is_none()
    }
}

/// A task is completed, and before the completer has seen to the marker, the task begins another life that ends in the same way: after
/// each number of steps of the first one, and with each number of steps of the second one.
fn another_life(flaw: Option<Flaw>) {
    for first in 0..40 {
        for second in 0..40 {
            let world = World::new(1, flaw);
            let quiet = world.quiet();
            let task = id("d");
            let claim = || {
                now_or_never(quiet.claim(&task, &agent("w"), ClaimRequest::for_ttl(TTL))).unwrap().lease.token
            };
            let complete = |token: Token| {
                let (board, task) = (world.stepped(), task.clone());
                Steps(Some(Box::pin(
                    async move { drop(board.complete(&task, &token, Outcome::default()).await) },
                )))
            };
            now_or_never(quiet.add(TaskSpec::new(task.clone()))).unwrap();
            let mut completion = complete(claim());
            completion.take(first);
            if now_or_never(quiet.remove(&task)).is_err() {
                continue;
            }
            now_or_never(quiet.add(TaskSpec::new(task.clone()))).unwrap();
            now_or_never(quiet.add(TaskSpec::new(id("x")).dep(task.clone()))).unwrap();
            complete(claim()).take(second);
            assert!(completion.take(1_000), "a completion does not end");
            at_rest(&world, &quiet);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// What becomes of the tasks when everybody who can be skipped is, as it is defined: again and again, every open task of which all
/// dependencies are settled and one can never be satisfied.
fn skipped(tasks: &[Task]) -> BTreeMap<TaskId, State> {
    let mut states: BTreeMap<TaskId, State> =
        tasks.iter().map(|task| (task.id.clone(), task.state)).collect();
    loop {
        let next = tasks.iter().find(|task| {
            let verdicts = || task.deps.iter().map(|dep| verdict(dep.rule, states[&dep.id]));
            states[&task.id] == State::Open
                && verdicts().all(|verdict| verdict != Verdict::Unsettled)
                && verdicts().any(|verdict| verdict == Verdict::Never)
        });
        let Some(next) = next else { return states };
        states.insert(next.id.clone(), State::Skipped);
    }
}

#[derive(PartialEq, Eq)]
enum Verdict {
    Satisfied,
    Never,
    Unsettled,
}

/// The rules, once more.
fn verdict(rule: Rule, state: State) -> Verdict {
    let ended = matches!(state, State::Done | State::Failed | State::Cancelled | State::Skipped);
    match rule {
        Rule::Finished if ended => Verdict::Satisfied,
        Rule::Done if state == State::Done => Verdict::Satisfied,
        Rule::Failed if state == State::Failed => Verdict::Satisfied,
        Rule::Done if state == State::Skipped => Verdict::Never,
        Rule::Failed if state == State::Done || state == State::Skipped => Verdict::Never,
        _ => Verdict::Unsettled,
    }
}

fn is_spent(task: &Task) -> bool {
    task.retry.is_some_and(|retry| task.attempts >= retry.attempts)
}

/// Whether it could be claimed, as far as its own head tells, though its attempts may be used up.
fn is_free(world: &World, task: &Task) -> bool {
    let now = world.now();
    let free = match task.state {
        State::Open => true,
        State::Claimed => task.lease.and_then(|lease| lease.until).is_some_and(|until| until <= now),
        _ => false,
    };
    free && task.not_before.is_none_or(|time| time <= now)
}

/// The tasks that can be claimed, in the order in which they should be given.
fn claimable(world: &World, tasks: &[Task]) -> Vec<TaskId> {
    let states: BTreeMap<&TaskId, State> = tasks.iter().map(|task| (&task.id, task.state)).collect();
    let mut line: Vec<&Task> = tasks
        .iter()
        .filter(|task| {
            is_free(world, task)
                && !is_spent(task)
                && task.deps.iter().all(|dep| verdict(dep.rule, states[&dep.id]) == Verdict::Satisfied)
        })
        .collect();
    line.sort_by_key(|task| (std::cmp::Reverse(task.priority), task.order));
    line.into_iter().map(|task| task.id.clone()).collect()
}

/// Nobody has what he may not have.
fn sound(board: &Quiet) -> Vec<Task> {
    let tasks = now_or_never(board.list()).unwrap();
    let problems = check(&tasks);
    assert!(problems.is_empty(), "{problems:?}");
    tasks
}

/// Every task has the one entry that it should have, or none if it has ended.
fn one_entry_each(world: &World, tasks: &[Task]) {
    let keys = world.keys();
    for task in tasks {
        let own = format!("/{}", task.id);
        let of = |prefix: &str| {
            keys.iter().filter(|key| key.as_str().starts_with(prefix) && key.as_str().ends_with(&own)).count()
        };
        let entries = of("rdy/") + of("due/") + of("wait/") + of("todo/");
        let expected = usize::from(!task.state.is_terminal());
        assert_eq!(entries, expected, "the entries of {:?}, {}, in {keys:#?}", task.id, task.state);
    }
}

/// Nobody would ever find these.
fn unindexed(board: &Quiet) -> Vec<String> {
    let problems = now_or_never(board.check_index()).unwrap();
    problems
        .iter()
        .filter(|problem| problem.code == ProblemCode::Unindexed)
        .map(ToString::to_string)
        .collect()
}

/// What must be so when nobody is at the board any more.
fn at_rest(world: &World, board: &Quiet) {
    let lost = unindexed(board);
    assert!(lost.is_empty(), "{lost:?}");
    work_off(world, board);
    // What was past a task that has been reopened since is looked at when its time has come.
    world.advance(TTL * 1_000);
    work_off(world, board);
    let tasks = sound(board);
    let states: BTreeMap<TaskId, State> = tasks.iter().map(|task| (task.id.clone(), task.state)).collect();
    assert_eq!(states, skipped(&tasks), "somebody should be skipped");
    assert!(claimable(world, &tasks).is_empty(), "somebody should be claimed of {tasks:#?}");
}

/// Claims whatever can be claimed, and ends it, until nothing can be any more.
fn work_off(world: &World, board: &Quiet) {
    for round in 0..20 {
        let before = sound(board);
        let mut given = Vec::new();
        while let Some(claim) = now_or_never(board.claim_next(&agent("last"), &Filter::any(), TTL)).unwrap() {
            given.push(claim);
        }
        let after = sound(board);
        let ids: Vec<TaskId> = given.iter().map(|claim| claim.task.id.clone()).collect();
        // Whoever looks for tasks makes some failed or skipped, and so others can be claimed. Else it is just these.
        let ended = |tasks: &[Task]| tasks.iter().filter(|task| task.state.is_terminal()).count();
        if ended(&before) == ended(&after) {
            assert_eq!(ids, claimable(world, &before), "what was given of {before:#?}");
        }
        let due = |task: &&Task| task.not_before.is_none_or(|time| time <= world.now());
        let settled = skipped(&after);
        for task in after.iter().filter(due) {
            assert_eq!(task.state, settled[&task.id], "{:?} of {after:#?}", task.id);
            assert!(
                !is_free(world, task) || !claimable(world, &after).contains(&task.id),
                "{:?} is left of {after:#?}",
                task.id
            );
        }
        let problems = now_or_never(board.check_index()).unwrap();
        assert!(problems.is_empty(), "after round {round}: {problems:?} in {:#?}", world.keys());
        one_entry_each(world, &after);
        if given.is_empty() {
            return;
        }
        for (n, claim) in given.into_iter().enumerate() {
            let (id, token) = (&claim.task.id, &claim.lease.token);
            if (n + round) % 3 == 2 {
                now_or_never(board.fail(id, token, Outcome::default())).unwrap();
            } else {
                now_or_never(board.complete(id, token, Outcome::default())).unwrap();
            }
        }
        let problems = now_or_never(board.check_index()).unwrap();
        assert!(
            problems.iter().all(|problem| problem.code == ProblemCode::StaleEntry),
            "after ends: {problems:?}"
        );
    }
}

/// Plays one schedule.
fn play(seed: u64, flaw: Option<Flaw>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let world = World::new(seed, flaw);
    let quiet = world.quiet();
    let (clients, tasks) = (rng.random_range(2..4), rng.random_range(2..6));
    let ruled = match flaw {
        Some(flaw) => flaw.is_of_rules(),
        None => rng.random_ratio(2, 3),
    };
    let mut clients: Vec<Client> = (0..clients).map(|n| Client::new(&world, n, tasks, ruled)).collect();
    let mut verbs = rng.random_range(4..60);
    // Who is frozen, and for how many steps: others do much in between.
    let mut frozen = (0, 0);
    while verbs > 0 || clients.iter().any(Client::is_busy) {
        let n = rng.random_range(0..clients.len());
        frozen.1 = usize::saturating_sub(frozen.1, 1);
        if frozen.1 == 0 && rng.random_ratio(1, 100) {
            frozen = (n, rng.random_range(10..400));
        }
        if frozen.1 > 0 && frozen.0 == n && verbs > 0 {
            continue;
        }
        match rng.random_range(0..100) {
            0..3 => clients[n].drop_call(),
            3..5 => world.release_one(&mut rng),
            5 => world.advance(TTL / 4),
            6 if verbs > 0 => {
                let lost = unindexed(&quiet);
                assert!(lost.is_empty(), "{lost:?} while others are at work");
                sound(&quiet);
            }
            _ if clients[n].is_busy() => clients[n].poll(),
            _ if verbs > 0 => {
                verbs -= 1;
                clients[n].begin(&mut rng);
            }
            _ => {}
        }
    }
    while world.has_held() {
        world.release_one(&mut rng);
    }
    if rng.random_bool(0.5) {
        world.advance(TTL * 2);
    }
    at_rest(&world, &quiet);
}

#[test]
fn no_task_is_lost_and_every_flaw_is_found() {
    another_life(None);
    no_task_is_lost();
    every_flaw_is_found();
}

fn no_task_is_lost() {
    let first = number("COORD_SUITE_SEED").unwrap_or(1);
    for seed in first..first + number("COORD_SCHEDULES").unwrap_or(SCHEDULES) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| play(seed, None))) {
            let why = panic.downcast_ref::<String>().map_or("", String::as_str);
            panic!("with the seed {seed}: {why}");
        }
    }
}

/// Each of these is noticed: the schedules reach what the index's rules are for.
fn every_flaw_is_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let finds = |flaw| (1..FLAWED_SCHEDULES).find(|seed| catch_unwind(|| play(*seed, Some(flaw))).is_err());
    let unasserted = catch_unwind(|| another_life(Some(Flaw::TodoUnasserted)));
    let found: Vec<(Flaw, Option<u64>)> = Flaw::ALL.iter().map(|flaw| (*flaw, finds(*flaw))).collect();
    std::panic::set_hook(hook);
    assert!(unasserted.is_err(), "a marker may go at any version");
    let green: Vec<_> = found.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(green.is_empty(), "green in every schedule: {green:?}");
}
