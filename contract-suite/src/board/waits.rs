//! T32: waiting.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{Awaited, Board as _, BoardError, ExtendedBoard, Filter};
use coord_core::layer::{Meter, Observe, StoreClock};
use coord_core::{Backend, Clock, ManualClock, Timestamp, async_trait};

use super::stage::{SKEW, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::BoardSeat;
use crate::{ensure, ensure_eq, ensure_matches};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T32",
    layer: Layer::Board,
    promise: "wait for a task to become terminal, or for anything to become ready, returns promptly and polls with \
              bounded cost",
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

async fn cost(cx: &Context) -> Outcome {
    let stage = Stage::fresh(cx);
    let a = stage.seat().await?;
    let (board, meter) = racing(cx, a.raw.clone(), &stage.clock).await?;
    let hour = Duration::from_secs(3_600);
    let held = a.open_task("held").await?;
    let claim = a.claim(&held, "w").await?;
    a.board.renew(&held, &claim.lease.token, hour * 24).await.at("renew")?;
    for awaited in [Awaited::Ready, Awaited::Ended(held.clone())] {
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
