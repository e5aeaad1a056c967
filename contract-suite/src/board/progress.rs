//! T42: how far a task is.

use coord_core::Token;
use coord_core::board::{Board as _, BoardError, ExtendedBoard as _, TaskId, Verb, limits};
use coord_core::layer::{Cell, When};

use super::stage::{Seat, Stage, TICK, TTL, id, result};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T42",
    layer: Layer::Board,
    promise: "progress: told by who holds a live claim and by nobody else, the last word counts, one of which it is unknown \
              whether it was told never replaces a later one; get shows it until the next claim, lists while the task is \
              claimed; it is no change of the task",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(progress(cx)),
}];

async fn progress(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    told(&stage, &a, &b).await.at("a claim that tells its progress")?;
    refused(&stage, &a, &b).await.at("progress that is refused")?;
    unanswered(&stage, &a, &b).await.at("progress that is not answered")
}

/// What both ways of reading show of a task.
async fn shown(seat: &Seat, task: &TaskId) -> Result<(Option<String>, Option<String>), Verdict> {
    let got = seat.get(task).await?;
    if let Some(progress) = &got.progress {
        ensure_eq!(progress.fence, got.fence, "the fence of a progress");
    }
    let listed = seat.list().await?.into_iter().find(|listed| listed.id == *task);
    let Some(listed) = listed else { fail!("saw {task:?} missing in list") };
    Ok((got.progress.map(|progress| progress.text), listed.progress.map(|progress| progress.text)))
}

async fn shows(seat: &Seat, task: &TaskId, text: &str, when: &str) -> Outcome {
    let text = (!text.is_empty()).then(|| text.to_owned());
    ensure_eq!(shown(seat, task).await?, (text.clone(), text), "the progress in get and list {when}");
    Ok(())
}

async fn told(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let task = a.open_task("told").await?;
    let claim = a.claim(&task, "w").await?;
    let token = &claim.lease.token;
    shows(b, &task, "", "before any was told").await?;
    for text in ["1 of 3", "2 of 3", "2 of 3", "fini\u{301} \u{1F389}"] {
        stage.advance(TICK);
        let before = b.get(&task).await?;
        a.board.progress(&task, token, text).await.at("progress")?;
        shows(b, &task, text, "after it was told").await?;
        let mut after = b.get(&task).await?;
        let at = after.progress.take().map(|progress| progress.at);
        ensure_eq!(at, Some(stage.now()), "when progress was told");
        after.progress.clone_from(&before.progress);
        ensure!(after == before, "saw {after:?}, not {before:?}: progress is no change of the task");
    }
    let lease = a.board.renew(&task, token, TTL).await.at("renew after progress")?;
    ensure_eq!(lease.fence, claim.lease.fence, "the fence after progress");
    shows(b, &task, "fini\u{301} \u{1F389}", "after a renewal").await?;
    let longest = "p".repeat(limits::PROGRESS_BYTES);
    a.board.progress(&task, token, &longest).await.at("the longest progress")?;
    let longer = a.board.progress(&task, token, &format!("{longest}p")).await;
    ensure_matches!(longer, Err(BoardError::TooLarge { .. }), "a progress that is too long");
    shows(b, &task, &longest, "after a longer one was refused").await?;
    // What it came to is seen until somebody begins anew.
    a.board.release(&task, token).await.at("release")?;
    let (got, listed) = shown(b, &task).await?;
    ensure_eq!((got, listed), (Some(longest.clone()), None), "the progress in get and list after a release");
    let next = b.claim(&task, "w").await?;
    ensure_eq!(next.task.progress, None, "the progress that a claim returns");
    shows(a, &task, "", "in the next claim").await?;
    b.board.progress(&task, &next.lease.token, "again").await.at("progress of the next claim")?;
    b.board.complete(&task, &next.lease.token, result("")).await.at("complete")?;
    ensure_eq!(shown(a, &task).await?, (Some("again".into()), None), "the progress of a done task");
    a.board.remove(&task).await.at("remove")?;
    let again = a.open_task("told").await?;
    shows(b, &again, "", "in the next life of the task").await?;
    a.claim(&again, "w").await?;
    shows(b, &again, "", "in the first claim of the next life").await?;
    a.board.cancel(&again).await?;
    Ok(())
}

async fn refused(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let unknown = a.board.progress(&id("none"), &Token::mint(), "x").await;
    ensure_matches!(unknown, Err(BoardError::NotFound { .. }), "progress of an unknown task");
    let task = a.open_task("refused").await?;
    let is_lost = async |token: &Token, when: &str| {
        for seat in [a, b] {
            let before = seat.get(&task).await?;
            match seat.board.progress(&task, token, "not yours").await {
                Err(BoardError::LeaseLost { current_fence }) if current_fence == before.fence => {}
                other => fail!("saw {other:?}, not LeaseLost: progress {when}"),
            }
            seat.is_unchanged(&before, format!("progress was refused {when}")).await?;
        }
        Ok::<(), Verdict>(())
    };
    is_lost(&Token::mint(), "of an open task").await?;
    let claim = a.claim(&task, "w").await?;
    a.board.progress(&task, &claim.lease.token, "mine").await.at("progress")?;
    is_lost(&Token::mint(), "with a token that was never given").await?;
    stage.advance(TTL - TICK);
    a.board.progress(&task, &claim.lease.token, "just in time").await.at("progress right before expiry")?;
    stage.advance(TICK);
    is_lost(&claim.lease.token, "exactly at expiry").await?;
    let next = b.claim(&task, "w").await?;
    is_lost(&claim.lease.token, "after a takeover by the same name").await?;
    b.board.complete(&task, &next.lease.token, result("")).await.at("complete")?;
    is_lost(&next.lease.token, "after completion").await?;
    let forever = a.open_task("forever").await?;
    let request = coord_core::board::ClaimRequest::forever();
    let claim = a.board.claim(&forever, &super::stage::agent("w"), request).await?;
    stage.advance(TTL * 100);
    a.board.progress(&forever, &claim.lease.token, "still").await.at("progress of a claim without end")?;
    a.board.cancel(&forever).await?;
    is_lost(&claim.lease.token, "with the token of another task").await
}

async fn unanswered(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let cells: [fn() -> Cell; 5] =
        [Cell::request_lost, Cell::reply_lost, Cell::late, Cell::twice, Cell::twice_reply_lost];
    for (n, cell) in cells.into_iter().enumerate() {
        for gone in [false, true] {
            for begun in [false, true] {
                let place = format!("with {}, gone: {gone}, begun: {begun}", cell());
                let task = a.open_task(&format!("unanswered {n} {gone} {begun}")).await?;
                let claim = a.claim(&task, "w").await?;
                let token = &claim.lease.token;
                if begun {
                    a.board.progress(&task, token, "first").await.at(&place)?;
                }
                stage.advance(TICK);
                let cell = if gone { cell().then_gone() } else { cell() };
                a.faults.on(When::txn().nth(1), cell);
                let answer = a.board.progress(&task, token, "old").await;
                a.faults.heal();
                match &answer {
                    Ok(()) => shows(b, &task, "old", &place).await?,
                    Err(BoardError::OutcomeUnknown { verb: Verb::Progress, id, token: Some(told) }) => {
                        ensure!(
                            *id == task && told == token,
                            "saw the unknown outcome of another call {place}"
                        );
                    }
                    other => fail!("saw {other:?}: progress {place}"),
                }
                b.board.progress(&task, token, "new").await.at(&place)?;
                a.faults.release_held().await;
                a.faults.clear();
                shows(a, &task, "new", &format!("once all has arrived {place}")).await?;
                b.board.release(&task, token).await.at(&place)?;
            }
        }
    }
    Ok(())
}
