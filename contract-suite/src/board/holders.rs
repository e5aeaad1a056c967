//! T05 to T08: what the holder of a token may do, and until when.

use std::time::Duration;

use coord_core::board::{Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard as _, State, TaskId};
use coord_core::{Timestamp, Token};

use super::stage::{HOLDER_VERBS, Seat, Stage, TICK, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T05",
        layer: Layer::Board,
        promise: "release with the token: open again, owner and lease gone, fence kept; with another token: LeaseLost",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(release(cx)),
    },
    Clause {
        id: "T06",
        layer: Layer::Board,
        promise: "complete with the token: done; a dependent becomes claimable at once; expired but not taken over: \
                  still accepted",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(complete(cx)),
    },
    Clause {
        id: "T07",
        layer: Layer::Board,
        promise: "one token, two verbs: LeaseLost; the same token repeats complete, release or fail: the first answer \
                  again, one transition, until the task is claimed again (complete: for ever); complete with another \
                  outcome: the first outcome stays and is returned; a token that did not end a terminal task: LeaseLost",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(repeats(cx)),
    },
    Clause {
        id: "T08",
        layer: Layer::Board,
        promise: "renew moves until to time + ttl, keeps the token; a wrong or expired token is LeaseLost and changes \
                  nothing; exactly at expiry is too late",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(renew(cx)),
    },
];

/// Every verb of a holder, on a task that does not exist.
async fn on_nothing(seat: &Seat, verbs: &[&str]) -> Outcome {
    for verb in verbs {
        let answer = seat.hold(verb, &id("no such task"), &Token::mint(), "").await;
        ensure_matches!(answer, Err(BoardError::NotFound { .. }), "{verb} of an unknown task");
    }
    Ok(())
}

async fn release(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    on_nothing(&a, &["release"]).await?;
    let task = a.open_task("task").await?;
    let never = b.board.release(&task, &Token::mint()).await;
    ensure_matches!(never, Err(BoardError::LeaseLost { .. }), "release of a task that nobody holds");
    let mut fence = 0;
    for round in 0..4_u64 {
        let claim = a.claim(&task, "w").await?;
        ensure!(
            claim.lease.fence > fence,
            "saw the fence {} after {fence}: after a release",
            claim.lease.fence
        );
        fence = claim.lease.fence;
        let held = b.get(&task).await?;
        for seat in [&a, &b] {
            match seat.board.release(&task, &Token::mint()).await {
                Err(BoardError::LeaseLost { current_fence }) if current_fence == fence => {}
                other => fail!("saw {other:?}, not LeaseLost with fence {fence}: release with another token"),
            }
            seat.is_unchanged(&held, "release with another token").await?;
        }
        // In every second round after expiry: nobody took over, so the claim can still be given back.
        stage.advance(Duration::from_secs(7) + TTL * u32::try_from(round % 2).unwrap_or(0));
        let seat = if round < 2 { &a } else { &b };
        seat.board.release(&task, &claim.lease.token).await.at("release with the token")?;
        for seat in [&a, &b] {
            let open = seat.get(&task).await?;
            ensure_eq!(open.state, State::Open, "the state after a release");
            ensure_eq!((&open.owner, &open.lease), (&None, &None), "owner and lease after a release");
            ensure_eq!(open.fence, fence, "the fence after a release");
            ensure!(open.seq > held.seq, "saw the seq {} after {}: a release", open.seq, held.seq);
        }
        // Nobody else has lost anything by it.
        b.list().await?;
    }
    Ok(())
}

async fn complete(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    on_nothing(&a, &["complete"]).await?;
    let (left, right) = (a.open_task("left").await?, a.open_task("right").await?);
    a.add(spec("after left").dep(left.clone())).await?;
    a.add(spec("after both").deps([left.clone(), right.clone()])).await?;
    let early = b.try_claim(&id("after left"), "w").await;
    ensure_matches!(early, Err(BoardError::Blocked { .. }), "a claim before the dependency is done");

    let claim = a.claim(&left, "w").await?;
    let held = b.get(&left).await?;
    let wrong = b.board.complete(&left, &Token::mint(), result("stolen")).await;
    ensure_matches!(wrong, Err(BoardError::LeaseLost { .. }), "complete with another token");
    b.is_unchanged(&held, "complete with another token").await?;
    let kept = a.board.complete(&left, &claim.lease.token, result("left is done")).await.at("complete")?;
    ensure_eq!(kept, result("left is done"), "the outcome that a completion returns");
    let done = b.get(&left).await?;
    ensure_eq!(done.state, State::Done, "the state after a completion");
    ensure_eq!((&done.owner, &done.lease), (&None, &None), "owner and lease after a completion");
    ensure_eq!(done.outcome, Some(kept), "the outcome that others see");
    ensure_eq!(done.fence, claim.lease.fence, "the fence after a completion");
    ensure!(done.seq > held.seq, "saw the seq {} after {}: a completion", done.seq, held.seq);

    // At once: the time has not moved.
    b.claim(&id("after left"), "w2").await.at("right after its dependency was done")?;
    match b.try_claim(&id("after both"), "w2").await {
        Err(BoardError::Blocked { pending, .. }) if pending == [right.clone()] => {}
        other => fail!("saw {other:?}, not Blocked by \"right\" alone: one of two dependencies is done"),
    }

    let claim = a.claim(&right, "w").await?;
    stage.advance(TTL * 3);
    let held = b.get(&right).await?;
    let wrong = b.board.complete(&right, &Token::mint(), result("stolen")).await;
    ensure_matches!(wrong, Err(BoardError::LeaseLost { .. }), "complete with another token after expiry");
    b.is_unchanged(&held, "complete with another token after expiry").await?;
    a.board
        .complete(&right, &claim.lease.token, result("late"))
        .await
        .at("complete after expiry, though nobody took over")?;
    ensure_eq!(b.get(&right).await?.state, State::Done, "the state after a late completion");
    b.claim(&id("after both"), "w2").await.at("right after its last dependency was done")?;

    // Exactly at expiry, and from another seat: the token is what counts.
    let third = a.open_task("third").await?;
    let claim = a.claim(&third, "w").await?;
    stage.advance(TTL);
    b.board.complete(&third, &claim.lease.token, result("")).await.at("complete exactly at expiry")?;
    a.list().await?;
    Ok(())
}

const ENDINGS: [&str; 3] = ["release", "complete", "fail"];

async fn repeats(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    on_nothing(&a, &HOLDER_VERBS).await?;
    let bystander = a.open_task("bystander").await?;
    for ending in ENDINGS {
        let task = a.open_task(ending).await?;
        let claim = a.claim(&task, "w").await?;
        let token = &claim.lease.token;
        let first = a.hold(ending, &task, token, "first").await.at(ending)?;
        let ended = b.get(&task).await?;
        for verb in HOLDER_VERBS.into_iter().filter(|verb| *verb != ending) {
            match b.hold(verb, &task, token, "other").await {
                Err(BoardError::LeaseLost { current_fence }) if current_fence == claim.lease.fence => {}
                other => fail!("saw {other:?}, not LeaseLost: {verb} after {ending} with the same token"),
            }
            a.is_unchanged(&ended, format!("{verb} after {ending} with the same token")).await?;
        }
        for (round, text) in ["first", "second", "first"].into_iter().enumerate() {
            for seat in [&a, &b] {
                let again = seat.hold(ending, &task, token, text).await;
                ensure_matches!(&again, Ok(answer) if *answer == first, "{ending} again with outcome {text:?}");
                seat.is_unchanged(&ended, format!("{ending} again")).await?;
            }
            // Much time, and more operations than any log of the last ones remembers.
            stage.advance(TTL * 10);
            for _ in 0..20 * round {
                let claim = b.claim(&bystander, "w").await?;
                b.board.release(&bystander, &claim.lease.token).await?;
            }
        }
        let stranger = b.hold(ending, &task, &Token::mint(), "first").await;
        ensure_matches!(
            stranger,
            Err(BoardError::LeaseLost { .. }),
            "{ending} with a token that was never given"
        );
        b.is_unchanged(&ended, format!("{ending} with a token that was never given")).await?;
    }
    released_again(&stage, &a, &b).await?;
    failed_again(&a, &b).await?;
    token_of_another_end(&a, &b).await?;
    b.list().await?;
    Ok(())
}

/// A released task goes through many hands before it is claimed again, and the release is still the same answer.
async fn released_again(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let task = id("release");
    let old = a.claim(&task, "w").await?;
    a.board.release(&task, &old.lease.token).await?;
    let dep = a.ended_task("release needs", "done").await?;
    for _ in 0..10 {
        a.board.set_deps(&task, &[Dep::from(&dep)], None).await?;
        a.board.cancel(&task).await?;
        a.board.reopen(&task).await?;
    }
    let edited = b.get(&task).await?;
    b.board.release(&task, &old.lease.token).await.at("release again after 30 edits by others")?;
    b.is_unchanged(&edited, "release again after 30 edits by others").await?;
    // Until it is claimed again, also by an agent of the same name.
    let new = b.claim(&task, "w").await?;
    a.is_lost(&task, &old.lease.token, new.lease.fence, "after the task was claimed again").await?;
    b.board.complete(&task, &new.lease.token, result("whose?")).await?;
    a.is_lost(&task, &old.lease.token, new.lease.fence, "after another one completed the task").await?;
    stage.advance(TICK);
    let done = b.get(&task).await?;
    ensure_eq!(done.outcome, Some(result("whose?")), "the outcome of the one who completed it");
    Ok(())
}

async fn failed_again(a: &Seat, b: &Seat) -> Outcome {
    let task = a.open_task("fails").await?;
    let old = a.claim(&task, "w").await?;
    a.board.fail(&task, &old.lease.token, result("no space")).await?;
    let failed = b.get(&task).await?;
    ensure_eq!(failed.state, State::Failed, "the state after fail");
    ensure_eq!(failed.outcome, Some(result("no space")), "the reason that others see");
    b.board.reopen(&task).await.at("reopening a failed task")?;
    let reopened = b.get(&task).await?;
    ensure_eq!(reopened.state, State::Open, "the state after reopen");
    let again = a.board.fail(&task, &old.lease.token, result("other")).await.at("fail again after reopen")?;
    ensure_eq!(again, result("no space"), "the reason that fail returns when it is repeated");
    a.is_unchanged(&reopened, "fail again after reopen").await?;
    for verb in ["renew", "release", "complete"] {
        let other = a.hold(verb, &task, &old.lease.token, "").await;
        ensure_matches!(other, Err(BoardError::LeaseLost { .. }), "{verb} after fail and reopen");
        a.is_unchanged(&reopened, format!("{verb} after fail and reopen")).await?;
    }
    let new = b.claim(&task, "w").await?;
    a.is_lost(&task, &old.lease.token, new.lease.fence, "after fail, reopen and another claim").await
}

/// A token that held the task once, but did not end it.
async fn token_of_another_end(a: &Seat, b: &Seat) -> Outcome {
    for end in ["done", "failed", "cancelled"] {
        let task = a.open_task(&format!("ends {end}")).await?;
        let old = a.claim(&task, "w").await?;
        a.board.release(&task, &old.lease.token).await?;
        b.end(&task, end).await?;
        let ended = b.get(&task).await?;
        let verbs: &[&str] = if end == "cancelled" {
            // Nobody has claimed it since, so the release is still answered.
            &["renew", "complete", "fail"]
        } else {
            &HOLDER_VERBS
        };
        for verb in verbs {
            let answer = a.hold(verb, &task, &old.lease.token, "mine").await;
            ensure_matches!(
                answer,
                Err(BoardError::LeaseLost { .. }),
                "{verb} of a {end} task with a token that did not end it"
            );
            a.is_unchanged(&ended, format!("{verb} of a {end} task")).await?;
        }
    }
    Ok(())
}

async fn renew(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    on_nothing(&a, &["renew"]).await?;
    let task = a.open_task("task").await?;
    let nobody = a.board.renew(&task, &Token::mint(), TTL).await;
    ensure_matches!(nobody, Err(BoardError::LeaseLost { .. }), "renew of a task that nobody holds");
    let claim = a.claim(&task, "w").await?;
    let mut token = claim.lease.token.clone();
    // Longer, shorter, and much shorter than what was left; from either seat.
    for (n, ttl) in [TTL * 2, TTL, Duration::from_micros(1_000_001), TTL].into_iter().enumerate() {
        stage.advance(Duration::from_micros(500_009));
        let seat = if n % 2 == 0 { &a } else { &b };
        let held = b.get(&task).await?;
        let lease = seat.board.renew(&task, &token, ttl).await.at("renew with the token")?;
        let until = stage.now().checked_add(ttl);
        ensure_eq!(lease.until, until, "the end of a lease renewed by {ttl:?} at {}", stage.now());
        ensure!(lease.token == claim.lease.token, "saw another token after a renewal");
        ensure_eq!(lease.fence, claim.lease.fence, "the fence after a renewal");
        let after = b.get(&task).await?;
        ensure_eq!(after.lease.map(|lease| lease.until), Some(until), "the end of the lease that others see");
        ensure_eq!((after.state, &after.owner), (held.state, &held.owner), "state and owner after a renewal");
        ensure_eq!(after.fence, held.fence, "the fence that others see after a renewal");
        token = lease.token;
        refused(&a, &b, &task, &Token::mint(), "with a wrong token").await?;
    }
    // What was renewed is held beyond the old end, and up to the new one.
    let Some(until) = b.get(&task).await?.lease.and_then(|lease| lease.until) else {
        fail!("saw no end of a renewed lease")
    };
    stage.clock.set(earlier(until));
    let early = b.try_claim(&task, "w2").await;
    ensure_matches!(early, Err(BoardError::Taken { .. }), "a claim 1 us before the renewed lease ends");
    let lease = a.board.renew(&task, &token, TTL).await.at("renew 1 us before the end")?;
    let Some(until) = lease.until else { fail!("saw no end of a renewed lease") };
    stage.clock.set(until);
    refused(&a, &b, &task, &token, "exactly at expiry").await?;
    stage.advance(TTL);
    refused(&a, &b, &task, &token, "after expiry, though nobody took over").await?;
    let new = b.claim(&task, "w").await?;
    refused(&a, &b, &task, &token, "after another one took over").await?;
    b.board.release(&task, &new.lease.token).await?;
    refused(&a, &b, &task, &new.lease.token, "after the release").await?;
    // A lease without an end gets one.
    let forever = a.board.claim(&task, &agent("w"), ClaimRequest::forever()).await?;
    stage.advance(TTL * 1_000);
    let lease =
        a.board.renew(&task, &forever.lease.token, TTL).await.at("renew of a lease without an end")?;
    ensure_eq!(lease.until, stage.now().checked_add(TTL), "the end of a lease that had none, once renewed");
    stage.advance(TTL);
    b.claim(&task, "w2").await.at("once the end that a renewal gave has come")?;
    Ok(())
}

async fn refused(a: &Seat, b: &Seat, task: &TaskId, token: &Token, when: &str) -> Outcome {
    let before = b.get(task).await?;
    for seat in [a, b] {
        match seat.board.renew(task, token, TTL).await {
            Err(BoardError::LeaseLost { current_fence }) if current_fence == before.fence => {}
            other => fail!("saw {other:?}, not LeaseLost with fence {}: renew {when}", before.fence),
        }
        seat.is_unchanged(&before, format!("renew {when}")).await?;
    }
    Ok(())
}

fn earlier(time: Timestamp) -> Timestamp {
    Timestamp::from_micros(time.as_micros() - 1).unwrap_or(time)
}
