//! E25: whose clock counts.

use coord_core::effects::{ActionState, EffectError, Outcome as Acquired};

use super::stage::{SKEW, Stage, TICK, TTL, alone, on};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "E25",
    layer: Layer::Effects,
    promise: "skewed clients change nothing where the store has a clock; without one, nothing within the margin",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(skew(cx)),
}];

const HOUR: i64 = 3_600_000_000;

async fn skew(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let judge = stage.seat("judge").await?;
    for ahead in [HOUR, -HOUR] {
        let skewed = stage.seat_ahead("skewed", ahead, true).await?;
        let place = format!("a client {ahead} microseconds ahead, at a store with a clock");
        let (first, second) = (on(format!("first {ahead}"), "gate"), on(format!("second {ahead}"), "gate"));
        let lease = skewed.grant(&first).await.at(&place)?;
        ensure_eq!(Some(lease.until), stage.now().checked_add(TTL), "the end of its hold: {place}");
        ensure_eq!(
            judge.history(&first).await?.transitions[0].at,
            stage.now(),
            "the time in the history: {place}"
        );
        stage.advance(TTL - TICK);
        for seat in [&skewed, &judge] {
            match seat.ask(&second).await? {
                Acquired::Contended(_) => {}
                other => fail!("saw {other:?}, not Contended: one tick before the end, {place}"),
            }
            ensure_eq!(seat.state(&first).await?, ActionState::InFlight, "one tick before the end, {place}");
        }
        let renewed = skewed.renew(&lease).await.at(&place)?;
        ensure_eq!(Some(renewed.until), stage.now().checked_add(TTL), "the end after a renewal: {place}");
        stage.advance(TTL);
        ensure_matches!(
            skewed.renew(&lease).await,
            Err(EffectError::LeaseLost),
            "a renewal at the end: {place}"
        );
        let taken = skewed.grant(&second).await.at(format!("exactly at the end, {place}"))?;
        match skewed.ask(&first).await? {
            Acquired::Uncertain(uncertain) => ensure_eq!(uncertain.since, stage.now(), "since when: {place}"),
            other => fail!("saw {other:?}, not Uncertain: {place}"),
        }
        let right = skewed.look_into(&first).await?;
        ensure_eq!(Some(right.until), stage.now().checked_add(TTL), "the end of the right to judge: {place}");
        stage.advance(TTL - TICK);
        ensure_matches!(judge.look_into(&first).await, Err(EffectError::Reconciling { .. }), "{place}");
        stage.advance(TICK);
        judge.look_into(&first).await.at(&place)?;
        judge.finish(&taken, "done").await?;
    }
    // No store clock: clients may be `SKEW` apart, and whoever takes over waits for that.
    let half = i64::try_from(SKEW.as_micros()).unwrap_or(0) / 2;
    for (holder_ahead, taker_ahead) in [(0, 0), (half, -half), (-half, half)] {
        let place = format!("no store clock, the holder {holder_ahead} and the taker {taker_ahead} ahead");
        let stage = Stage::fresh(&cx);
        let holder = stage.seat_ahead("holder", holder_ahead, false).await?;
        let taker = stage.seat_ahead("taker", taker_ahead, false).await?;
        let (first, second) = (on("first", "gate"), on("second", "gate"));
        let lease = holder.grant(&first).await.at(&place)?;
        // By the holder's own clock it may renew until one tick before the end; nobody must have taken over until then.
        stage.advance(TTL - TICK);
        for action in [&first, &second] {
            match taker.ask(action).await? {
                Acquired::InFlight(_) | Acquired::Contended(_) => {}
                other => fail!("saw {other:?} before the holder's own end: {place}"),
            }
        }
        ensure_eq!(taker.get(&first).await?.state, ActionState::InFlight, "{place}");
        let lease = {
            let renewed = holder.renew(&lease).await.at(&place)?;
            stage.advance(TTL);
            ensure_matches!(
                holder.renew(&renewed).await,
                Err(EffectError::LeaseLost),
                "a renewal at the end, by the holder's own clock: {place}"
            );
            renewed
        };
        // Far enough for everybody.
        stage.advance(SKEW * 2 + TICK);
        let taken = taker.grant(&second).await.at(format!("long after the end, {place}"))?;
        ensure!(taken.fence > lease.fence, "saw the fence {} after {}: {place}", taken.fence, lease.fence);
        match taker.ask(&first).await? {
            Acquired::Uncertain(_) => {}
            other => fail!("saw {other:?}, not Uncertain: {place}"),
        }
        let right = taker.look_into(&first).await?;
        ensure_matches!(
            holder.look_into(&first).await,
            Err(EffectError::Reconciling { .. }),
            "a second look, {place}"
        );
        stage.advance(TTL + SKEW * 2);
        ensure_matches!(
            taker.rule_owned(&right, &coord_core::effects::Resolution::NotApplied).await,
            Err(EffectError::ReconcileLost { .. }),
            "a ruling too late, {place}"
        );
        holder.look_into(&first).await.at(&place)?;
    }
    // One client that is hopelessly ahead must not stop the others for long.
    let stage = Stage::fresh(&cx);
    let ahead = stage.seat_ahead("ahead", 1_000 * HOUR, false).await?;
    let (action, other) = (alone("poisoned"), alone("clean"));
    let lease = ahead.grant(&action).await?;
    ahead.finish(&lease, "done").await?;
    let right = stage.seat_ahead("right", 0, false).await?;
    let lease = right.grant(&other).await?;
    ensure!(
        lease.until <= stage.now().saturating_add(TTL + SKEW),
        "saw a hold until {}, because another client's clock is wrong",
        lease.until
    );
    Ok(())
}
