//! T50 and T51: a fleet of workers, some of which are killed all the time, works off a graph of tasks; and one that has nothing to do.

mod crew;
mod graph;
mod idle;
mod judge;
mod ledger;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coord_core::board::{BoardError, ExtendedBoard, Problem, ProblemCode, State, Task, TaskId, check};
use coord_core::{Clock, SystemClock};
use rand::RngExt as _;

use self::crew::{Crew, FLEET};
use self::graph::Graph;
use self::judge::{Ready, judge};
use self::ledger::Ledger;
use super::processes::seat;
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::process::Job;
use crate::{ensure, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T50",
        layer: Layer::Board,
        promise: "workers of which one crew is dropped every now and then work off a graph of tasks, some of which fail: each task \
                  ends in the state that its plan's rules say, each success is committed once, nobody idles while a task is ready, \
                  and the board is right at any instant",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(fleet(cx, false, 150)),
    },
    Clause {
        id: "T50.processes",
        layer: Layer::Board,
        promise: "as T50, with 32 workers in 4 processes, one of which is killed (-9) every now and then",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(fleet(cx, true, 200)),
    },
    idle::CLAUSE,
];

pub(crate) const JOBS: &[Job] = &[FLEET];

/// How many tasks the graph has, and then one crew is killed every two seconds.
const TASKS: &str = "COORD_FLEET_TASKS";
/// More would not be watched closely enough to tell who idles.
const MOST: usize = 100_000;
const CREWS: usize = 4;

/// How long a fleet may go without bringing a single task to its end. How long all of them take is up to the store.
const STANDSTILL: Duration = Duration::from_secs(60);

async fn fleet(mut cx: Context, processes: bool, usual: usize) -> Outcome {
    let wanted = std::env::var(TASKS).ok().and_then(|text| text.parse().ok());
    let mut tasks = wanted.unwrap_or(usual).clamp(1, MOST);
    // Ever less often, so that a slow store comes to the end as well.
    let pace =
        if wanted.is_some() { (Duration::from_secs(2), 1.0) } else { (Duration::from_millis(700), 1.2) };
    // One that was done before anybody was killed shows too little.
    while works_off(&cx, processes, tasks, pace).await? == 0 {
        ensure!(tasks < MOST, "saw a fleet work off {tasks} tasks within {:?}", pace.0);
        tasks = (tasks * 2).min(MOST);
        cx = cx.again();
    }
    Ok(())
}

/// Lets a fleet work off so many tasks, and tells how many crews were killed meanwhile: one after a pause, and the next one after a pause that is
/// so many times as long.
async fn works_off(
    cx: &Context,
    processes: bool,
    tasks: usize,
    (mut pause, slower): (Duration, f64),
) -> Result<u32, Verdict> {
    let graph = Graph::generate(cx.seed(), tasks);
    let here = cx.board(cx.open().await?, seat()).await?;
    here.add_plan(&graph.plan()?).await.at("adding the plan")?;
    let folder = tempfile::tempdir()?;
    let mut crews = Vec::with_capacity(CREWS);
    for worker in 0..CREWS {
        crews.push(Crew::start(cx, processes, folder.path(), worker).await.at("starting a crew")?);
    }
    let over = AtomicBool::new(false);
    let killing = async {
        let (mut rng, clock, mut kills) = (cx.rng(1), SystemClock::new(), 0_u32);
        loop {
            clock.sleep(pause).await;
            if over.load(Ordering::Relaxed) {
                return Ok(kills);
            }
            pause = pause.mul_f64(slower);
            let victim = rng.random_range(0..CREWS);
            // The old one is killed before the new one begins.
            drop(crews.remove(victim));
            crews.insert(
                victim,
                Crew::start(cx, processes, folder.path(), victim).await.at("starting a crew anew")?,
            );
            kills += 1;
        }
    };
    let watching = async {
        let watched = watch(cx, &*here, &graph).await;
        over.store(true, Ordering::Relaxed);
        watched
    };
    let (kills, ready) = futures::future::try_join(killing, watching).await?;
    drop(crews);
    let (last, _) = look(&*here).await.at("looking at the board in the end")?;
    let ledger = Ledger::new(folder.path(), CREWS);
    judge(&graph, &last, &ledger, &ready)?;
    let problems = here.check_index().await.at("checking the index in the end")?;
    if let Some(problem) = problems.iter().find(|problem| problem.code != ProblemCode::Unexamined) {
        fail!("saw {} problem(s) in the index in the end, one is {problem}", problems.len());
    }
    Ok(kills)
}

/// All tasks, and what is wrong with them: at one instant, or in pages where they are too many for that.
async fn look(board: &dyn ExtendedBoard) -> Result<(Vec<Task>, Vec<Problem>), BoardError> {
    match board.list().await {
        Err(BoardError::TooLarge { .. }) => {}
        listed => {
            let tasks = listed?;
            let problems = check(&tasks);
            return Ok((tasks, problems));
        }
    }
    let mut tasks = Vec::new();
    let mut after: Option<TaskId> = None;
    loop {
        let page = board.page(after.as_ref(), 1_000).await?;
        tasks.extend(page.tasks);
        after = page.next;
        if after.is_none() {
            return Ok((tasks, board.check().await?));
        }
    }
}

/// Looks at the board until every task has come to its end, and judges each look.
async fn watch(cx: &Context, board: &dyn ExtendedBoard, graph: &Graph) -> Result<Ready, Verdict> {
    let (clock, ends) = (SystemClock::new(), graph.ends());
    let mut rng = cx.rng(2);
    let mut ready = Ready::default();
    let (mut left, mut since) = (usize::MAX, cx.elapsed());
    loop {
        let before = clock.monotonic();
        let from = clock.now().as_micros();
        let (tasks, problems) = look(board).await.at("looking at the board")?;
        let seen = (from, clock.now().as_micros());
        let cost = clock.monotonic().saturating_sub(before);
        if let Some(problem) = problems.first() {
            fail!(
                "saw {} problem(s) on the board while workers work, the first is {problem}",
                problems.len()
            );
        }
        ready.note(&tasks, seen);
        let unlike: Vec<(&Task, State)> =
            tasks.iter().zip(ends.iter().copied()).filter(|(task, end)| task.state != *end).collect();
        if unlike.is_empty() {
            return Ok(ready);
        }
        if let Some((task, end)) = unlike.iter().find(|(task, _)| task.state.is_terminal()) {
            fail!("saw {task:?} end, not {end}: as the rules of its plan say");
        }
        if unlike.len() < left {
            (left, since) = (unlike.len(), cx.elapsed());
        } else if cx.elapsed() - since > STANDSTILL {
            let (task, end) = unlike[0];
            fail!(
                "saw {left} tasks not in their last states, and no fewer for {STANDSTILL:?}; the first is {task:?}, not {end}"
            );
        }
        if rng.random_bool(0.2) {
            let problems = board.check_index().await.at("checking the index")?;
            if let Some(problem) = problems.iter().find(|problem| problem.code == ProblemCode::Unindexed) {
                fail!("saw a task that nobody finds while workers work: {problem}");
            }
        }
        let pause = Duration::from_millis(rng.random_range(50..200)).max(cost.saturating_mul(4));
        clock.sleep(pause).await;
    }
}
