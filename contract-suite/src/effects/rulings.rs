//! E17, E18 and E19: what nobody knows, and who decides it.

use std::time::Duration;

use coord_core::effects::{
    ActionState, EffectError, Episode, Outcome as Acquired, PurgeRequest, Resolution, RulingKind,
    TransitionKind,
};
use coord_core::layer::When;

use super::scenes::{Past, reach};
use super::stage::{Place, Stage, TICK, TTL, allow_retry, alone, applied, on};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E17",
        layer: Layer::Effects,
        promise: "uncertain never ends by itself: not by ttl, retention, purge, restart",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(for_ever(cx)),
    },
    Clause {
        id: "E18",
        layer: Layer::Effects,
        promise: "begin_reconcile: only on an uncertain key; one at a time (Reconciling); after its expiry another one; the \
                  first one's resolve is then ReconcileLost, also if nobody took over",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(reconcilers(cx)),
    },
    Clause {
        id: "E19",
        layer: Layer::Effects,
        promise: "resolve: applied (replayed from then on), not applied (granted again once the hold has ended), allow-retry \
                  (likewise, marked); the second resolver of the episode gets the first ruling; a key that is not \
                  uncertain: NotUncertain",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(rulings(cx)),
    },
];

const AGES: Duration = Duration::from_secs(400 * 86_400);

async fn for_ever(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let pasts = [Past::Expired, Past::Released, Past::Marked, Past::MarkedReleased, Past::Lapsed];
    let mut actions = Vec::new();
    for past in pasts {
        let action = alone(format!("{past:?}"));
        reach(&stage, &a, &action, past).await?;
        actions.push((past, action));
    }
    for (n, wait) in [TTL, TTL * 20, AGES].into_iter().enumerate() {
        stage.advance(wait);
        for retention in [Duration::ZERO, TTL] {
            let report =
                a.store.purge(&PurgeRequest::older_than(retention).limit(1_000)).await.at("purging")?;
            ensure_eq!(report.purged, 0, "how many were purged of actions that are open");
        }
        // A new client knows nothing of before.
        let fresh = stage.seat(&format!("fresh {n}")).await?;
        for (past, action) in &actions {
            for refused in [fresh.store.forget(&action.key).await, b.store.forget(&action.key).await] {
                ensure_matches!(
                    refused,
                    Err(EffectError::NotSettled { .. }),
                    "forgetting a key that is {past:?}"
                );
            }
            if n > 0 || *past != Past::Expired {
                match fresh.ask(action).await? {
                    Acquired::Uncertain(_) => {}
                    other => fail!("saw {other:?}, not Uncertain: {past:?}, after {wait:?}"),
                }
            } else {
                ensure_eq!(fresh.state(action).await?, ActionState::Lapsed, "what a look shows of {past:?}");
            }
        }
    }
    for (past, action) in &actions {
        let episode = b.uncertain(action).await?.episode;
        b.rule(action, episode, &Resolution::NotApplied).await?;
        a.grant(action).await.at(format!("after a ruling on {past:?}"))?;
    }
    Ok(())
}

async fn reconcilers(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for past in Past::ALL {
        let place = format!("looking into an action that is {past:?}");
        let action = on(format!("{past:?}"), format!("gate {past:?}"));
        let lease = reach(&stage, &a, &action, past).await?;
        let whole = b.raw_entries().await?;
        let answer = b.look_into(&action).await;
        if past == Past::Never {
            ensure_matches!(answer, Err(EffectError::NeverAcquired { key }) if *key == action.key, "{place}");
            b.same_entries(&whole, &place).await?;
        } else if past.is_uncertain() || past.is_lapsed() {
            let right = answer.at(&place)?;
            let Some(lease) = lease else { fail!("saw no lease: {place}") };
            ensure_eq!(right.action, action, "the action: {place}");
            ensure_eq!(Some(right.until), stage.now().checked_add(TTL), "until when: {place}");
            ensure_eq!((right.fence, &right.downstream_key), (lease.fence, &lease.downstream_key), "{place}");
            ensure!(right.token != lease.token, "saw the attempt's token as the right to judge: {place}");
            if past == Past::Marked {
                ensure_eq!(right.hold_until, Some(lease.until), "the end of the attempt's hold: {place}");
            }
            let uncertain = b.uncertain(&action).await?;
            ensure_eq!(
                (uncertain.episode, uncertain.reconciling_until),
                (right.episode, Some(right.until)),
                "what is shown of it: {place}"
            );
        } else {
            let state = match past {
                Past::InFlight => ActionState::InFlight,
                Past::Abandoned | Past::Ruled | Past::RuledHeld => ActionState::Idle,
                _ => ActionState::Completed,
            };
            ensure_matches!(answer, Err(EffectError::NotUncertain { state: seen }) if *seen == state, "{place}");
            b.same_entries(&whole, &place).await?;
        }
    }
    // One at a time.
    let action = alone("mail");
    let lease = a.grant(&action).await?;
    a.mark(&lease).await?;
    let first = a.look_into(&action).await?;
    for seat in [&a, &b] {
        ensure_matches!(
            seat.look_into(&action).await,
            Err(EffectError::Reconciling { until }) if *until == first.until,
            "a second one who wants to look"
        );
    }
    stage.advance_to(first.until);
    // It is over although nobody took over.
    let whole = b.raw_entries().await?;
    ensure_matches!(
        a.rule_owned(&first, &Resolution::NotApplied).await,
        Err(EffectError::ReconcileLost { state: ActionState::Uncertain }),
        "a ruling exactly at the end of the right to judge"
    );
    b.same_entries(&whole, "a ruling came too late").await?;
    let second = b.look_into(&action).await.at("after the first one's time")?;
    ensure_eq!(second.episode, first.episode, "the episode, which is the same");
    ensure!(second.token != first.token, "saw the first one's right given to the second");
    ensure_matches!(
        a.rule_owned(&first, &applied("mine")).await,
        Err(EffectError::ReconcileLost { state: ActionState::Uncertain }),
        "the first one's ruling after the second took over"
    );
    ensure_eq!(b.uncertain(&action).await?.episode, second.episode, "the episode after a lost ruling");
    stage.advance(TTL - TICK);
    let ruled =
        b.rule_owned(&second, &Resolution::NotApplied).await.at("one tick before the end of the right")?;
    ensure_eq!((ruled.ruling, ruled.yours), (RulingKind::NotApplied, true), "the second one's ruling");
    // The right is checked in the transaction that rules: it ends, and another one takes over, between look and write.
    for takes_over in [true, false] {
        let action = alone(format!("slow {takes_over}"));
        let lease = a.grant(&action).await?;
        a.mark(&lease).await?;
        let right = a.look_into(&action).await?;
        let rival = (b.clone(), action.clone(), stage.clock.clone());
        let before = move || {
            let (b, action, clock) = rival.clone();
            async move {
                clock.advance(TTL);
                if takes_over {
                    b.look_into(&action).await.at("taking over")?;
                }
                Ok(())
            }
        };
        // Before every read and before the transaction: whichever is the last one before the ruling.
        let step = a.interpose(When::txn(), Place::Before, before);
        let answer = a.rule_owned(&right, &applied("slow")).await;
        if step.taken()?.is_none() {
            fail!("saw a ruling without a transaction: {answer:?}");
        }
        if takes_over {
            ensure_matches!(
                answer,
                Err(EffectError::ReconcileLost { .. }),
                "a ruling while another one took over"
            );
            ensure_eq!(b.state(&action).await?, ActionState::Uncertain, "the state after a lost ruling");
        } else {
            // Time alone moves no record, so the judgement before its end counts.
            ensure_matches!(
                answer,
                Ok(_) | Err(EffectError::ReconcileLost { .. }),
                "a ruling at the end of the right"
            );
        }
    }
    // The same with the look in between two reads, for a store that looks twice.
    let action = alone("looked twice");
    let lease = a.grant(&action).await?;
    a.mark(&lease).await?;
    let right = a.look_into(&action).await?;
    let rival = (b.clone(), action.clone(), stage.clock.clone());
    let step = a.interpose(When::snapshot(), Place::After, move || {
        let (b, action, clock) = rival.clone();
        async move {
            clock.advance(TTL);
            b.look_into(&action).await.at("taking over")
        }
    });
    let answer = a.rule_owned(&right, &applied("slow")).await;
    let Some(second) = step.taken()? else { fail!("saw a ruling without a look: {answer:?}") };
    ensure_matches!(
        answer,
        Err(EffectError::ReconcileLost { state: ActionState::Uncertain }),
        "a ruling whose right another one took over after the look"
    );
    b.rule_owned(&second, &Resolution::NotApplied).await.at("the one who took over")?;
    // Somebody who only knows the episode may rule all the same, and the reconciler sees it.
    let action = alone("overruled");
    let lease = a.grant(&action).await?;
    let episode = a.mark(&lease).await?;
    let right = a.look_into(&action).await?;
    b.rule(&action, episode, &Resolution::NotApplied).await?;
    let told = a.rule_owned(&right, &applied("mine")).await.at("after an operator's ruling")?;
    ensure_eq!((told.ruling, told.yours), (RulingKind::NotApplied, false), "what the reconciler is told");
    Ok(())
}

async fn rulings(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for owned in [false, true] {
        for kind in [RulingKind::Applied, RulingKind::NotApplied, RulingKind::AllowRetry] {
            let place = format!("{kind:?}, owned: {owned}");
            let action = on(format!("mail {place}"), format!("gate {place}"));
            let lease = a.grant(&action).await?;
            let episode = a.mark(&lease).await?;
            stage.advance(TICK);
            let resolution = match kind {
                RulingKind::Applied => applied("it is there"),
                RulingKind::NotApplied => Resolution::NotApplied,
                RulingKind::AllowRetry => allow_retry(),
            };
            let ruled = if owned {
                let right = b.look_into(&action).await?;
                b.rule_owned(&right, &resolution).await.at(&place)?
            } else {
                b.rule(&action, episode, &resolution).await.at(&place)?
            };
            ensure_eq!(
                (ruled.ruling, ruled.at, ruled.yours),
                (kind, stage.now(), true),
                "the ruling: {place}"
            );
            let history = a.history(&action).await?;
            let expected = match kind {
                RulingKind::Applied => TransitionKind::RuledApplied,
                RulingKind::NotApplied => TransitionKind::RuledNotApplied,
                RulingKind::AllowRetry => TransitionKind::RetryAllowed,
            };
            ensure!(
                history.transitions.iter().any(|step| step.kind == expected
                    && step.agent.as_str() == "bob"
                    && step.note.as_str().contains("the ledger was read")),
                "saw {:?} without the ruling, who made it and what it rests on: {place}",
                history.transitions
            );
            ensure_eq!(
                history.status.maybe_applied,
                kind == RulingKind::AllowRetry,
                "maybe_applied after the ruling: {place}"
            );
            // A second one gets the first ruling, whatever it wanted.
            stage.advance(TICK);
            let whole = b.raw_entries().await?;
            for second in [applied("no, this"), Resolution::NotApplied, allow_retry()] {
                let told = a.rule(&action, episode, &second).await.at(format!("a second ruling, {place}"))?;
                ensure_eq!(
                    (told.ruling, told.at, told.yours),
                    (kind, ruled.at, false),
                    "what the second resolver is told: {place}"
                );
            }
            b.same_entries(&whole, format!("second rulings, {place}")).await?;
            if kind == RulingKind::Applied {
                match a.ask(&action).await? {
                    Acquired::Completed(kept) => ensure_eq!(
                        kept.result().map(|result| &result[..]),
                        Some(&b"it is there"[..]),
                        "what is replayed: {place}"
                    ),
                    other => fail!("saw {other:?}, not Completed: {place}"),
                }
            } else {
                ensure_eq!(b.state(&action).await?, ActionState::Idle, "the state: {place}");
                for (who, asked) in [
                    ("the key", action.clone()),
                    ("another key", on(format!("other {place}"), action.resource.as_str())),
                ] {
                    match a.ask(&asked).await? {
                        Acquired::Contended(holder) => ensure_eq!(
                            (holder.key, holder.fence, holder.until),
                            (action.key.clone(), lease.fence, lease.until),
                            "who holds the resource when {who} is asked for: {place}"
                        ),
                        other => {
                            fail!("saw {other:?}, not Contended: {who} before the hold has ended, {place}")
                        }
                    }
                }
                stage.advance_to(lease.until);
                let again = a.grant(&action).await.at(format!("once the hold has ended, {place}"))?;
                ensure_eq!(again.fence, lease.fence + 1, "the fence of the next attempt: {place}");
                ensure_eq!(again.downstream_key, lease.downstream_key, "the key for downstream: {place}");
                let told = a
                    .rule(&action, episode, &applied("late"))
                    .await
                    .at("while the next attempt is under way")?;
                ensure_eq!(
                    (told.ruling, told.yours),
                    (kind, false),
                    "a ruling on the ruled episode, {place}"
                );
                ensure_eq!(b.state(&action).await?, ActionState::InFlight, "the next attempt: {place}");
                let kept = a.finish(&again, "again").await?;
                ensure_eq!(
                    kept.maybe_twice,
                    kind == RulingKind::AllowRetry,
                    "maybe_twice of the next attempt: {place}"
                );
            }
        }
    }
    // A resource that the attempt released is free at once.
    let action = on("released", "free gate");
    reach(&stage, &a, &action, Past::MarkedReleased).await?;
    let episode = b.uncertain(&action).await?.episode;
    b.rule(&action, episode, &Resolution::NotApplied).await?;
    a.grant(&action).await.at("ruled, and the resource released")?;
    // Not uncertain.
    for past in [Past::InFlight, Past::Abandoned, Past::Completed] {
        let action = alone(format!("{past:?}"));
        let lease = a.grant(&action).await?;
        let episode = a.mark(&lease).await?;
        let expected = match past {
            Past::Abandoned => {
                a.abandon(&lease).await?;
                ActionState::Idle
            }
            Past::Completed => {
                a.finish(&lease, "done").await?;
                ActionState::Completed
            }
            _ => {
                a.abandon(&lease).await?;
                a.grant(&action).await?;
                ActionState::InFlight
            }
        };
        let whole = b.raw_entries().await?;
        for resolution in [applied("no"), Resolution::NotApplied, allow_retry()] {
            ensure_matches!(
                b.rule(&action, episode, &resolution).await,
                Err(EffectError::NotUncertain { state } | EffectError::EpisodeOver { state }) if *state == expected,
                "a ruling on an action that is {past:?}"
            );
        }
        b.same_entries(&whole, format!("rulings on an action that is {past:?}")).await?;
    }
    let never = alone("never");
    ensure_matches!(
        b.rule(&never, Episode::new(1, 1), &Resolution::NotApplied).await,
        Err(EffectError::NeverAcquired { key }) if *key == never.key,
        "a ruling on an unknown key"
    );
    Ok(())
}
