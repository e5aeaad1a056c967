//! T32: waiting.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    Awaited, Board as _, BoardError, Claim, ExtendedBoard, Filter, Plan, TaskId, TaskSpec, limits,
};
use coord_core::layer::{Cell, Meter, Observe, StoreClock, When};
use coord_core::{Backend, Clock, ManualClock, Timestamp, async_trait};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::sync::Mutex;

use super::stage::{SKEW, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::BoardSeat;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T32",
    layer: Layer::Board,
    promise: "wait for a task, or the first of several, to become terminal, for anything to become ready, or for nothing \
              to be left that could run at one instant, returns promptly and polls with bounded cost",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(waits(cx)),
}];

/// A clock on which waiting takes no time but its own.
#[derive(Debug)]
struct Racing(Arc<ManualClock>);

#[async_trait]
impl Clock for Racing {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.0.advance(duration);
        tokio::task::yield_now().await;
    }
}

/// Somebody whose waiting makes time pass, and what they ask of the store.
async fn racing(
    cx: &Context,
    raw: Arc<dyn Backend>,
    clock: &Arc<ManualClock>,
) -> Result<(Arc<dyn ExtendedBoard>, Meter), Verdict> {
    let observed = Observe::new(raw);
    let meter = observed.meter();
    let backend = Arc::new(StoreClock::new(observed, clock.clone() as Arc<dyn Clock>));
    let seat = BoardSeat { clock: Arc::new(Racing(clock.clone())), max_clock_skew: SKEW };
    Ok((cx.board(backend, seat).await?, meter))
}

async fn waits(cx: Context) -> Outcome {
    woken(&cx).await.at("somebody waits while others act")?;
    first_of_several(&cx).await.at("somebody waits for the first of several tasks")?;
    idle(&cx).await.at("somebody waits for an idle board")?;
    idle_while_others_work(&cx).await.at("somebody waits for an idle board while others work")?;
    cost(&cx).await.at("somebody waits for long")
}

async fn woken(cx: &Context) -> Outcome {
    let stage = Stage::fresh(cx);
    let (a, b) = stage.pair().await?;
    let hour = Duration::from_secs(3_600);
    let waiter = |awaited: Awaited| {
        let board = a.board.clone();
        tokio::spawn(async move { board.wait(&awaited, hour).await })
    };
    for end in ["done", "failed", "cancelled"] {
        let task = b.open_task(end).await?;
        let waiting = waiter(Awaited::Ended(task.clone()));
        b.end(&task, end).await?;
        let come = tokio::time::timeout(cx.patience(), waiting).await;
        let Ok(come) = come else { crate::fail!("saw somebody still wait for a task that is {end}") };
        ensure!(come?.at("wait")?, "saw the patience over, although the task is {end}");
        // What has ended already is not waited for.
        ensure!(
            a.board.wait(&Awaited::Ended(task), Duration::ZERO).await.at("wait")?,
            "saw no end of what has ended"
        );
    }
    let empty = a.board.wait(&Awaited::Ready, Duration::ZERO).await.at("wait")?;
    ensure!(!empty, "saw something ready on a board where nothing is");
    let waiting = waiter(Awaited::Ready);
    b.open_task("new").await?;
    let come = tokio::time::timeout(cx.patience(), waiting).await;
    let Ok(come) = come else { crate::fail!("saw somebody still wait for anything to be ready") };
    ensure!(come?.at("wait")?, "saw the patience over, although a task is ready");
    let unknown = a.board.wait(&Awaited::Ended(id("unknown")), hour).await;
    ensure_matches!(unknown, Err(BoardError::NotFound { .. }), "waiting for an unknown task");
    Ok(())
}

async fn first_of_several(cx: &Context) -> Outcome {
    let stage = Stage::fresh(cx);
    let (a, b) = stage.pair().await?;
    let hour = Duration::from_secs(3_600);
    let (one, two) = (b.open_task("one").await?, b.open_task("two").await?);
    let any = |ids: &[&TaskId]| Awaited::AnyEnded(ids.iter().copied().cloned().collect());
    let come = async |awaited: &Awaited| a.board.wait(awaited, Duration::ZERO).await;
    ensure!(!come(&any(&[&one, &two])).await.at("wait")?, "saw the end of one of two open tasks");
    let waiting = tokio::spawn({
        let (board, awaited) = (a.board.clone(), any(&[&one, &two]));
        async move { board.wait(&awaited, hour).await }
    });
    b.end(&two, "failed").await?;
    let Ok(woken) = tokio::time::timeout(cx.patience(), waiting).await else {
        crate::fail!("saw somebody still wait for the first of two tasks, of which one has failed")
    };
    ensure!(woken?.at("wait")?, "saw the patience over, although one of the tasks has failed");
    // One that has ended is enough; else all have to be there.
    let unknown = id("unknown");
    ensure!(come(&any(&[&two, &unknown])).await.at("wait")?, "saw no end of one that has ended");
    ensure_matches!(come(&any(&[&one, &unknown])).await, Err(BoardError::NotFound { .. }), "an unknown task");
    ensure_matches!(come(&any(&[])).await, Err(BoardError::Invalid(_)), "waiting for the first of no tasks");
    let many: Vec<TaskId> = (0..=limits::AWAITED).map(|n| id(format!("t{n}"))).collect();
    let many = any(&many.iter().collect::<Vec<_>>());
    ensure_matches!(
        come(&many).await,
        Err(BoardError::TooLarge { .. }),
        "waiting for the first of too many tasks"
    );
    Ok(())
}

async fn idle(cx: &Context) -> Outcome {
    let stage = Stage::fresh(cx);
    let (a, b) = stage.pair().await?;
    let hour = Duration::from_secs(3_600);
    let is_idle = async || a.board.wait(&Awaited::Idle, Duration::ZERO).await.at("wait");
    ensure!(is_idle().await?, "saw an empty board that is not idle");
    let failed = b.open_task("failed").await?;
    b.add(spec("stuck").dep(failed.clone())).await?;
    b.add(spec("stuck-too").dep(id("stuck"))).await?;
    ensure!(!is_idle().await?, "saw a board idle on which a task can be claimed");
    let claim = b.claim(&failed, "w").await?;
    ensure!(!is_idle().await?, "saw a board idle on which a task is held");
    let waiting = tokio::spawn({
        let board = a.board.clone();
        async move { board.wait(&Awaited::Idle, hour).await }
    });
    b.board.fail(&failed, &claim.lease.token, result("it broke")).await.at("fail")?;
    let Ok(woken) = tokio::time::timeout(cx.patience(), waiting).await else {
        crate::fail!(
            "saw somebody still wait for a board to be idle on which all that is left waits for what has failed"
        )
    };
    ensure!(woken?.at("wait")?, "saw the patience over, although nothing is left that could run");
    b.board.reopen(&failed).await.at("reopen")?;
    ensure!(!is_idle().await?, "saw a board idle on which a task was opened again");
    b.end(&failed, "done").await?;
    ensure!(
        !is_idle().await?,
        "saw a board idle on which a task can be claimed since its dependency is done"
    );
    for name in ["stuck", "stuck-too"] {
        b.end(&id(name), "done").await?;
    }
    ensure!(is_idle().await?, "saw a board that is not idle, although all tasks are done");
    // What may run later is left, too: a task before its time, and one whose holder is gone.
    b.add(spec("later").not_before(stage.now().saturating_add(hour))).await?;
    ensure!(!is_idle().await?, "saw a board idle on which a task may run later");
    b.board.cancel(&id("later")).await.at("cancel")?;
    let gone = b.open_task("gone").await?;
    b.claim(&gone, "w").await?;
    stage.clock.advance(TTL + SKEW + TTL);
    ensure!(!is_idle().await?, "saw a board idle on which a task can be taken over");
    b.board.cancel(&gone).await.at("cancel")?;
    ensure!(is_idle().await?, "saw a board that is not idle, although all tasks have ended");
    Ok(())
}

/// Works off a chain of tasks, of which one can be claimed or is held at any time.
struct Runner {
    board: Arc<dyn ExtendedBoard>,
    rng: StdRng,
    held: Option<Claim>,
    left: usize,
    failed: Option<BoardError>,
}

impl Runner {
    /// Some verbs.
    async fn go_on(&mut self) {
        for _ in 0..self.rng.random_range(0..3) {
            if self.left > 0
                && self.failed.is_none()
                && let Err(error) = self.step().await
            {
                self.failed = Some(error);
            }
        }
    }

    async fn step(&mut self) -> Result<(), BoardError> {
        match self.held.take() {
            None => self.held = self.board.claim_next(&agent("w"), &Filter::any(), TTL).await?,
            Some(claim) if self.rng.random_bool(0.2) => {
                self.board.release(&claim.task.id, &claim.lease.token).await?;
            }
            Some(claim) => {
                self.board.complete(&claim.task.id, &claim.lease.token, result("")).await?;
                self.left -= 1;
            }
        }
        Ok(())
    }
}

/// Others go on before each call to the store of somebody who asks whether the board is idle.
async fn idle_while_others_work(cx: &Context) -> Outcome {
    const TASKS: usize = 24;
    for play in 0..4 {
        let stage = Stage::fresh(cx);
        let (a, b) = stage.pair().await?;
        let name = |n: usize| id(format!("{n}"));
        let link = |n: usize| {
            let link = TaskSpec::new(name(n));
            if n == 0 { link } else { link.dep(name(n - 1)) }
        };
        b.board.add_plan(&Plan::new((0..TASKS).map(link))?).await.at("adding a chain")?;
        let (board, rng) = (b.board.clone(), cx.rng(play));
        let runner = Arc::new(Mutex::new(Runner { board, rng, held: None, left: TASKS, failed: None }));
        let others = runner.clone();
        let goes_on = move |_| {
            let others = others.clone();
            async move { others.lock().await.go_on().await }
        };
        a.faults.on(When::any().always(), Cell::pass().before(goes_on));
        loop {
            let idle = a.board.wait(&Awaited::Idle, Duration::ZERO).await.at("wait")?;
            let mut runner = runner.lock().await;
            if let Some(error) = runner.failed.take() {
                fail!("saw {error:?}: the verbs of others");
            }
            let left = runner.left;
            ensure!(!idle || left == 0, "saw a board idle on which {left} of {TASKS} tasks are left");
            if idle {
                break;
            }
        }
        a.faults.clear();
    }
    Ok(())
}

async fn cost(cx: &Context) -> Outcome {
    let stage = Stage::fresh(cx);
    let a = stage.seat().await?;
    let (board, meter) = racing(cx, a.raw.clone(), &stage.clock).await?;
    let hour = Duration::from_secs(3_600);
    let held = a.open_task("held").await?;
    let claim = a.claim(&held, "w").await?;
    a.board.renew(&held, &claim.lease.token, hour * 24).await.at("renew")?;
    let any = Awaited::AnyEnded([held.clone()].into());
    for awaited in [Awaited::Ready, Awaited::Ended(held.clone()), any, Awaited::Idle] {
        let (before, start) = (meter.counts(), stage.clock.monotonic());
        let come = board.wait(&awaited, hour).await.at("wait")?;
        let waited = stage.clock.monotonic() - start;
        let reads = meter.counts().since(before).total();
        ensure!(!come, "saw {awaited:?} come, although nothing has happened");
        ensure!(waited >= hour && waited < hour + hour / 60, "saw {waited:?} waited, not an hour");
        // 200 who wait ask less than 100 times a second.
        ensure!(reads.calls < 1_800, "saw {} reads in an hour of waiting for {awaited:?}", reads.calls);
        ensure_eq!(reads.applied, 0, "transactions of somebody who waits");
    }
    // What becomes due is seen right then.
    let time = stage.now().saturating_add(hour / 2);
    a.add(spec("later").not_before(time)).await?;
    ensure!(
        board.wait(&Awaited::Ready, hour).await.at("wait")?,
        "saw the patience over, although a task became due"
    );
    let late = stage.now().saturating_since(time);
    ensure!(stage.now() >= time && late < Duration::from_secs(6), "saw a task that was due {late:?} later");
    let found = board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next")?;
    ensure_eq!(found.map(|claim| claim.task.id), Some(id("later")), "what was waited for");
    a.board.complete(&held, &claim.lease.token, result("")).await.at("complete")?;
    Ok(())
}
