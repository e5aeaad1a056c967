//! T22: what operators do to a claim.

use coord_core::board::{Board as _, BoardError, ClaimRequest, ExtendedBoard as _, State};

use super::stage::{Stage, TTL, agent, id, result};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T22",
    layer: Layer::Board,
    promise: "cancel and revoke of a claimed task: the holder's token is LeaseLost",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(operators(cx)),
}];

async fn operators(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for verb in ["cancel", "revoke"] {
        for expired in [false, true] {
            let task = a.open_task(&format!("{verb} {expired}")).await?;
            let old = a.claim(&task, "w").await?;
            let fence = old.lease.fence;
            if expired {
                stage.advance(TTL * 2);
            }
            let state = if verb == "cancel" {
                b.board.cancel(&task).await.at("cancel of a claimed task")?;
                State::Cancelled
            } else {
                b.board.revoke(&task, fence).await.at("revoke of a claimed task")?;
                State::Open
            };
            let shown = a.get(&task).await?;
            ensure_eq!(shown.state, state, "the state after {verb}");
            ensure_eq!((&shown.owner, &shown.lease), (&None, &None), "owner and lease after {verb}");
            ensure_eq!(shown.fence, fence, "the fence after {verb}");
            for seat in [&a, &b] {
                seat.is_lost(&task, &old.lease.token, fence, &format!("after {verb}")).await?;
            }
            // Success again, and nothing changes.
            let before = a.get(&task).await?;
            if verb == "cancel" {
                a.board.cancel(&task).await.at("cancel of a cancelled task")?;
                a.is_unchanged(&before, "cancel of a cancelled task").await?;
                b.board.reopen(&task).await.at("reopen")?;
                let reopened = a.get(&task).await?;
                ensure_eq!(
                    (reopened.state, reopened.attempts),
                    (State::Open, 0),
                    "state and attempts after reopen"
                );
                a.is_lost(&task, &old.lease.token, fence, "after cancel and reopen").await?;
                b.board.reopen(&task).await.at("reopen of an open task")?;
                a.is_unchanged(&reopened, "reopen of an open task").await?;
            } else {
                a.board.revoke(&task, fence).await.at("revoke of what was revoked")?;
                a.is_unchanged(&before, "revoke of what was revoked").await?;
            }
            // The next holder is not disturbed by anything that was meant for the last one.
            let new = b.claim(&task, "w").await?;
            ensure!(new.lease.fence > fence, "saw the fence {} after {fence}: after {verb}", new.lease.fence);
            for seat in [&a, &b] {
                match seat.board.revoke(&task, fence).await {
                    Err(BoardError::LeaseLost { current_fence }) if current_fence == new.lease.fence => {}
                    other => fail!("saw {other:?}, not LeaseLost: revoke with the fence of an earlier claim"),
                }
                seat.is_unchanged(&new.task, "revoke with the fence of an earlier claim").await?;
            }
            a.is_lost(&task, &old.lease.token, new.lease.fence, "after another claim").await?;
            let held = a.board.reopen(&task).await;
            ensure_matches!(held, Err(BoardError::Taken { .. }), "reopen of a claimed task");
            b.board.renew(&task, &new.lease.token, TTL).await.at("renew by the next holder")?;
            b.board.complete(&task, &new.lease.token, result("by the next")).await.at("complete")?;
        }
    }
    // A claim without end has no other end than this.
    let forever = a.open_task("forever").await?;
    let claim = a.board.claim(&forever, &agent("w"), ClaimRequest::forever()).await?;
    b.board.revoke(&forever, claim.lease.fence).await.at("revoke of a claim without end")?;
    b.claim(&forever, "w2").await.at("after revoke")?;
    for (end, state) in [("done", State::Done), ("failed", State::Failed)] {
        let task = a.ended_task(&format!("ended {end}"), end).await?;
        let before = b.get(&task).await?;
        match b.board.cancel(&task).await {
            Err(BoardError::Terminal { state: seen }) if seen == state => {}
            other => fail!("saw {other:?}, not Terminal {state}: cancel of a {end} task"),
        }
        b.board.revoke(&task, before.fence).await.at(format!("revoke of a {end} task: no claim stands"))?;
        a.is_unchanged(&before, format!("cancel and revoke of a {end} task")).await?;
    }
    match b.board.reopen(&id("ended done")).await {
        Err(BoardError::Terminal { state: State::Done }) => {}
        other => fail!("saw {other:?}, not Terminal: reopen of a done task"),
    }
    b.board.reopen(&id("ended failed")).await.at("reopen of a failed task")?;
    let reopened = a.get(&id("ended failed")).await?;
    ensure_eq!(
        (reopened.state, reopened.attempts),
        (State::Open, 0),
        "state and attempts of a reopened task"
    );
    for (verb, answer) in [
        ("cancel", a.board.cancel(&id("unknown")).await),
        ("reopen", a.board.reopen(&id("unknown")).await),
        ("revoke", a.board.revoke(&id("unknown"), 1).await),
    ] {
        ensure_matches!(answer, Err(BoardError::NotFound { .. }), "{verb} of an unknown task");
    }
    a.list().await?;
    Ok(())
}
