//! T09 and T29: how long a lease lives, and by whose clock.

use std::time::Duration;

use coord_core::Timestamp;
use coord_core::board::{Board as _, BoardError, ClaimRequest, ExtendedBoard as _, Filter, State};

use super::stage::{SKEW, Seat, Stage, TICK, TTL, agent, id, result};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T09",
        layer: Layer::Board,
        promise: "a ttl of zero, negative or beyond the representable time is Invalid; none means no expiry",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(ttls(cx)),
    },
    Clause {
        id: "T29",
        layer: Layer::Board,
        promise: "a client whose clock is an hour off, either way, changes nothing where the store has a clock; without \
                  one, nothing within the margin",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(clocks(cx)),
    },
];

/// A `Duration` is never negative, so zero and what rounds to it are the least.
async fn ttls(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let task = a.open_task("task").await?;
    let held = a.open_task("held").await?;
    let claim = a.claim(&held, "w").await?;
    let before = b.list().await?;
    let left = u64::try_from(Timestamp::MAX.as_micros() - stage.now().as_micros()).unwrap_or(0);
    let bad = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_nanos(999),
        Duration::from_micros(left + 1),
        Duration::from_micros(i64::MAX as u64),
        Duration::from_micros(u64::MAX),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ];
    for ttl in bad {
        for seat in [&a, &b] {
            let claimed = seat.board.claim(&task, &agent("w"), ClaimRequest::for_ttl(ttl)).await;
            ensure_matches!(claimed, Err(BoardError::Invalid(_)), "a claim for {ttl:?}");
            let renewed = seat.board.renew(&held, &claim.lease.token, ttl).await;
            ensure_matches!(renewed, Err(BoardError::Invalid(_)), "a renewal for {ttl:?}");
            let next = seat.board.claim_next(&agent("w"), &Filter::any(), ttl).await;
            ensure_matches!(next, Err(BoardError::Invalid(_)), "claim_next for {ttl:?}");
        }
    }
    // Invalid is judged before everything else.
    for ttl in bad {
        let taken = b.board.claim(&held, &agent("w"), ClaimRequest::for_ttl(ttl)).await;
        ensure_matches!(taken, Err(BoardError::Invalid(_)), "a claim of a held task for {ttl:?}");
        let stranger = a.board.renew(&held, &coord_core::Token::mint(), ttl).await;
        ensure_matches!(stranger, Err(BoardError::Invalid(_)), "a renewal with a wrong token for {ttl:?}");
    }
    let nothing = a.board.claim(&id("unknown"), &agent("w"), ClaimRequest::for_ttl(Duration::ZERO)).await;
    ensure_matches!(nothing, Err(BoardError::Invalid(_)), "a claim of an unknown task for no time");
    let nothing = a.board.renew(&id("unknown"), &coord_core::Token::mint(), Duration::ZERO).await;
    ensure_matches!(nothing, Err(BoardError::Invalid(_)), "a renewal of an unknown task for no time");
    ensure_eq!(b.list().await?, before, "the board after refused claims and renewals");

    // The last representable time is representable, and so is one microsecond.
    let longest = Duration::from_micros(left);
    let last =
        b.board.claim(&task, &agent("w"), ClaimRequest::for_ttl(longest)).await.at("the longest ttl")?;
    ensure_eq!(last.lease.until, Some(Timestamp::MAX), "the end of the longest lease");
    b.board.release(&task, &last.lease.token).await?;
    let short = a.board.claim(&task, &agent("w"), ClaimRequest::for_ttl(TICK)).await.at("a ttl of 1 us")?;
    ensure_eq!(short.lease.until, stage.now().checked_add(TICK), "the end of the shortest lease");
    stage.advance(TICK);
    b.claim(&task, "w2").await.at("after the shortest lease")?;

    let forever = a.open_task("forever").await?;
    let claim =
        a.board.claim(&forever, &agent("w"), ClaimRequest::forever()).await.at("a claim without ttl")?;
    ensure_eq!(claim.lease.until, None, "the end of a lease without ttl");
    for years in [1_u64, 100, 10_000] {
        stage.advance(Duration::from_secs(years * 31_557_600));
        ensure_eq!(
            b.get(&forever).await?.lease.map(|lease| lease.until),
            Some(None),
            "its end, as others see it"
        );
        let taken = b.try_claim(&forever, "w2").await;
        ensure_matches!(taken, Err(BoardError::Taken { until: None, .. }), "a claim after {years} years");
        let next = b.board.claim_next(&agent("w2"), &Filter::any().with_label("none"), TTL).await?;
        ensure!(next.is_none(), "saw claim_next give a task without the label");
    }
    a.board.complete(&forever, &claim.lease.token, result("at last")).await.at("complete after all that")?;
    Ok(())
}

const HOUR: i64 = 3_600_000_000;

async fn clocks(cx: Context) -> Outcome {
    store_has_clock(&Stage::new(&cx)).await.at("where the store has a clock")?;
    within_the_margin(&Stage::fresh(&cx)).await.at("where the store has no clock")?;
    poisoned(&Stage::fresh(&cx)).await.at("where the store has no clock, and a client is an hour ahead")
}

async fn store_has_clock(stage: &Stage) -> Outcome {
    let mut seats = Vec::new();
    for ahead in [0, HOUR, -HOUR] {
        seats.push((stage.seat_ahead(ahead, true).await?, ahead));
    }
    for (n, (holder, holder_ahead)) in seats.iter().enumerate() {
        for (m, (taker, taker_ahead)) in seats.iter().enumerate() {
            let place = format!("a holder {holder_ahead} us ahead and a taker {taker_ahead} us ahead");
            let task = seats[0].0.open_task(&format!("task {n} {m}")).await?;
            let claim = holder.claim(&task, "w").await?;
            ensure_eq!(claim.lease.until, stage.now().checked_add(TTL), "the end of a lease: {place}");
            ensure_eq!(claim.task.touched, stage.now(), "the time of the change: {place}");
            stage.advance(TTL - TICK);
            let early = taker.try_claim(&task, "w2").await;
            ensure_matches!(early, Err(BoardError::Taken { .. }), "a claim 1 us before the end: {place}");
            let lease = holder.board.renew(&task, &claim.lease.token, TTL).await.at(&place)?;
            ensure_eq!(lease.until, stage.now().checked_add(TTL), "the end of a renewed lease: {place}");
            stage.advance(TTL);
            let late = holder.board.renew(&task, &claim.lease.token, TTL).await;
            ensure_matches!(late, Err(BoardError::LeaseLost { .. }), "a renewal at the end: {place}");
            let new = taker.claim(&task, "w2").await.at(format!("a claim at the end: {place}"))?;
            ensure_eq!(new.lease.until, stage.now().checked_add(TTL), "the end of the new lease: {place}");
            taker.board.complete(&task, &new.lease.token, result("")).await?;
        }
    }
    Ok(())
}

/// No two clients are further apart than the margin.
async fn within_the_margin(stage: &Stage) -> Outcome {
    let skew = i64::try_from(SKEW.as_micros()).unwrap_or(0);
    for (n, (holder_ahead, taker_ahead)) in
        [(0, 0), (0, skew), (skew, 0), (0, -skew), (-skew, 0), (skew / 2, -skew / 2), (-skew / 2, skew / 2)]
            .into_iter()
            .enumerate()
    {
        let place = format!("a holder {holder_ahead} us ahead and a taker {taker_ahead} us ahead");
        let holder = stage.seat_ahead(holder_ahead, false).await?;
        let taker = stage.seat_ahead(taker_ahead, false).await?;
        let task = holder.open_task(&format!("task {n}")).await?;
        let claim = holder.claim(&task, "w").await.at(&place)?;
        let Some(until) = claim.lease.until else { fail!("saw no end of a lease with a ttl") };
        // By the holder's own clock it holds the task up to the end, and nobody takes it before.
        let end = ahead(until, -holder_ahead);
        stage.advance_to(ahead(end, -1));
        let early = taker.try_claim(&task, "w2").await;
        ensure_matches!(
            early,
            Err(BoardError::Taken { .. }),
            "a claim while the holder may still act: {place}"
        );
        let lease = holder.board.renew(&task, &claim.lease.token, TTL).await;
        ensure!(lease.is_ok(), "saw {lease:?}: a renewal 1 us before the end by the holder's clock: {place}");
        let Some(until) = lease?.until else { fail!("saw no end of a renewed lease") };
        let end = ahead(until, -holder_ahead);
        stage.advance_to(end);
        let late = holder.board.renew(&task, &claim.lease.token, TTL).await;
        ensure_matches!(late, Err(BoardError::LeaseLost { .. }), "a renewal at the end: {place}");
        let early = taker.try_claim(&task, "w2").await;
        if taker_ahead - holder_ahead < skew {
            ensure_matches!(early, Err(BoardError::Taken { .. }), "a claim within the margin: {place}");
            stage.advance_to(ahead(until, skew - taker_ahead - 1));
            let early = taker.try_claim(&task, "w2").await;
            ensure_matches!(early, Err(BoardError::Taken { .. }), "a claim 1 us within the margin: {place}");
            stage.advance(TICK);
            taker.claim(&task, "w2").await.at(format!("a claim after the margin: {place}"))?;
        } else {
            ensure!(early.is_ok(), "saw {early:?}: a claim after the margin: {place}");
        }
        stage.advance(SKEW * 4);
    }
    Ok(())
}

/// What a client far beyond the margin wrote counts as at most the margin ahead: the others' leases do not grow by an hour, and
/// nobody waits an hour.
async fn poisoned(stage: &Stage) -> Outcome {
    let good = stage.seat_ahead(0, false).await?;
    let other = stage.seat_ahead(0, false).await?;
    let fast = stage.seat_ahead(HOUR, false).await?;
    let task = good.open_task("task").await?;
    let claim = fast.claim(&task, "fast").await?;
    fast.board.release(&task, &claim.lease.token).await?;
    let claim = good.claim(&task, "w").await.at("after a client an hour ahead released it")?;
    at_most(stage, claim.lease.until, &good).await?;
    stage.advance(TTL / 2);
    let lease = good.board.renew(&task, &claim.lease.token, TTL).await.at("a renewal")?;
    at_most(stage, lease.until, &good).await?;
    stage.advance(TTL + SKEW * 2);
    let new = other.claim(&task, "w2").await.at("after the lease and twice the margin")?;
    at_most(stage, new.lease.until, &other).await?;
    other.board.complete(&task, &new.lease.token, result("")).await.at("complete")?;
    ensure_eq!(good.get(&task).await?.state, State::Done, "the state after all that");
    Ok(())
}

async fn at_most(stage: &Stage, until: Option<Timestamp>, _seat: &Seat) -> Outcome {
    let (least, most) = (stage.now().checked_add(TTL), stage.now().checked_add(TTL + SKEW));
    ensure!(
        until >= least && until <= most,
        "saw a lease until {until:?}, not between {least:?} and {most:?}"
    );
    Ok(())
}

fn ahead(time: Timestamp, micros: i64) -> Timestamp {
    Timestamp::from_micros(time.as_micros() + micros).unwrap_or(Timestamp::EPOCH)
}
