//! E01, E02, E05 and E06: what an acquire is answered.

use std::time::Duration;

use coord_core::effects::{ActionState, EffectError, Outcome as Acquired, TransitionKind};
use coord_core::layer::When;

use super::scenes::{Past, occupy, reach};
use super::stage::{Place, Stage, TICK, TTL, alone, on};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E01",
        layer: Layer::Effects,
        promise: "a new action is granted: fence one above the resource's last; attempt, holder and index in one \
                  transaction (counted); acquire and complete cost two snapshots and two transactions at most",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(granted(cx)),
    },
    Clause {
        id: "E02",
        layer: Layer::Effects,
        promise: "the order of outcomes, for every reachable pair: completed or uncertain while another key holds the \
                  resource; uncertain while its own attempt still holds it; in flight and own hold (in flight, not \
                  contended)",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(order(cx)),
    },
    Clause {
        id: "E05",
        layer: Layer::Effects,
        promise: "an attempt whose lease expired or was released, unjudged: written down as uncertain by the first who \
                  meets it, never granted, never Contended; a slow renew cannot revive it",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(lapsed(cx)),
    },
    Clause {
        id: "E06",
        layer: Layer::Effects,
        promise: "another key on a resource whose holder expired is granted, with a larger fence; the first key stays \
                  uncertain",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(expired_holder(cx)),
    },
];

async fn granted(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let mut last = None;
    for (n, name) in ["first", "second", "third"].into_iter().enumerate() {
        let action = on(name, "shared");
        stage.advance(Duration::from_millis(7));
        let before = a.meter.counts();
        let lease = a.grant(&action).await?;
        let acquired = a.meter.counts().since(before);
        ensure_eq!(acquired.txn.calls, 1, "the transactions of an acquire");
        ensure!(acquired.snapshot.calls <= 1, "saw {} snapshots for an acquire", acquired.snapshot.calls);
        ensure_eq!(acquired.keys.calls, 0, "the listings of an acquire");
        if let Some(last) = last {
            ensure_eq!(lease.fence, last + 1, "the fence of the {}. grant of a resource", n + 1);
        }
        last = Some(lease.fence);
        let until = stage.now().checked_add(TTL);
        ensure_eq!(Some(lease.until), until, "the end of the hold, which is the time plus the ttl");
        // Both sides of the grant are there at once, for everybody.
        let history = b.history(&action).await?;
        ensure_eq!(history.status.state, ActionState::InFlight, "the state of a granted action");
        ensure_eq!(history.status.fence, lease.fence, "the fence that is stored");
        ensure_eq!(history.status.hold_until, until, "the end of the hold that is stored");
        ensure_eq!(history.status.agent.as_str(), "ada", "who made the attempt");
        ensure_eq!(history.status.downstream_key, lease.downstream_key, "the key for downstream");
        ensure_eq!(history.status.attempts, 1, "the attempts");
        ensure_matches!(
            &history.transitions[..],
            [only] if only.kind == TransitionKind::Granted && only.fence == lease.fence && only.at == stage.now(),
            "the history of a granted action"
        );
        let open = b.store.list(&Default::default()).await?;
        ensure_eq!(
            open.actions.iter().map(|status| status.action.key.as_str()).collect::<Vec<_>>(),
            [name],
            "the open actions"
        );
        match b.ask(&on("other", "shared")).await? {
            Acquired::Contended(holder) => {
                ensure_eq!(
                    (holder.key, holder.fence, holder.until, holder.agent.as_str()),
                    (action.key.clone(), lease.fence, lease.until, "ada"),
                    "who holds the resource"
                );
            }
            other => fail!("saw {other:?}, not Contended: another key on a held resource"),
        }
        let before = a.meter.counts();
        let kept = a.finish(&lease, "done").await.at("completing")?;
        let completed = a.meter.counts().since(before);
        ensure_eq!(kept.result().map(|result| &result[..]), Some(&b"done"[..]), "what complete returns");
        ensure!(!kept.maybe_twice, "saw maybe_twice for an action that was done once");
        ensure_eq!(completed.txn.calls, 1, "the transactions of a completion");
        ensure!(completed.snapshot.calls <= 1, "saw {} snapshots for a completion", completed.snapshot.calls);
        ensure_eq!(completed.keys.calls, 0, "the listings of a completion");
        let open = b.store.list(&Default::default()).await?;
        ensure!(open.actions.is_empty(), "saw {:?} open after everything was completed", open.actions);
    }
    // A handle that comes to it for the first time pays no more.
    let fresh = stage.seat("cay").await?;
    let before = fresh.meter.counts();
    let lease = fresh.grant(&alone("elsewhere")).await?;
    ensure_eq!(
        lease.action.resource.as_str(),
        "elsewhere",
        "the resource, which is the key unless it is said"
    );
    fresh.finish(&lease, "done").await?;
    let cost = fresh.meter.counts().since(before);
    ensure!(
        cost.snapshot.calls <= 2 && cost.txn.calls <= 2 && cost.keys.calls == 0,
        "saw {} snapshots, {} transactions and {} listings for acquire and complete",
        cost.snapshot.calls,
        cost.txn.calls,
        cost.keys.calls
    );
    // Without the transaction nothing is there.
    let before = b.raw_entries().await?;
    fresh.faults.on(When::txn().always(), coord_core::layer::Cell::refused());
    let refused = fresh.store.acquire(&alone("refused"), TTL).await;
    ensure_matches!(refused, Err(EffectError::Backend(_)), "an acquire whose transaction does not happen");
    b.same_entries(&before, "an acquire whose transaction did not happen").await
}

/// What holds the resource meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Around {
    Nobody,
    OtherLive,
    OtherExpired,
}

async fn order(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for past in Past::ALL {
        for around in [Around::Nobody, Around::OtherLive, Around::OtherExpired] {
            if past.holds() && around != Around::Nobody {
                continue;
            }
            let place = format!("{past:?}, and the resource: {around:?}");
            let name = format!("{past:?} {around:?}");
            let action = on(&name, format!("resource of {name}"));
            let lease = reach(&stage, &a, &action, past).await?;
            if around != Around::Nobody {
                occupy(&b, &action, &format!("other {name}")).await.at(&place)?;
                if around == Around::OtherExpired {
                    stage.advance(TTL);
                }
            }
            for seat in [&a, &b] {
                let outcome = seat.ask(&action).await.at(&place)?;
                let right = match &outcome {
                    Acquired::Completed(_) => past.is_completed(),
                    Acquired::Uncertain(uncertain) => {
                        let own = lease.as_ref().map(|lease| lease.fence);
                        (past.is_uncertain() || past.is_lapsed()) && Some(uncertain.fence) == own
                    }
                    Acquired::InFlight(holder) => {
                        past == Past::InFlight
                            && holder.key == action.key
                            && Some(holder.until) == lease.as_ref().map(|lease| lease.until)
                    }
                    Acquired::Contended(holder) => {
                        let free = !past.is_completed() && !past.is_uncertain() && !past.is_lapsed();
                        let own = past == Past::RuledHeld && holder.key == action.key;
                        let other = around == Around::OtherLive && holder.key != action.key;
                        free && past != Past::InFlight && (own || other)
                    }
                    Acquired::Granted(_) => {
                        matches!(past, Past::Never | Past::Abandoned | Past::Ruled)
                            && around != Around::OtherLive
                    }
                };
                ensure!(right, "saw {outcome:?}: {place}");
                if let Acquired::Granted(lease) = outcome {
                    seat.abandon(&lease).await.at(&place)?;
                }
            }
        }
    }
    Ok(())
}

async fn lapsed(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for past in [Past::Expired, Past::Released] {
        for meets in ["acquire", "get", "begin_reconcile"] {
            for occupied in [false, true] {
                let place = format!("{past:?}, met by {meets}, the resource taken: {occupied}");
                let name = format!("{past:?} {meets} {occupied}");
                let action = on(&name, format!("resource of {name}"));
                let granted = stage.now();
                let Some(lease) = reach(&stage, &a, &action, past).await? else {
                    fail!("saw no lease: {place}")
                };
                let ended = stage.now();
                if occupied {
                    occupy(&b, &action, &format!("other {name}")).await.at(&place)?;
                }
                stage.advance(TICK * 3);
                let before = b.history(&action).await?;
                ensure_eq!(
                    before.status.state,
                    ActionState::Lapsed,
                    "the state before anybody met it: {place}"
                );
                ensure!(before.status.uncertain.is_none(), "saw an episode of a lapsed attempt: {place}");
                // Once another key was granted the resource, the end of the hold is not known any more, only that it is over.
                ensure!(
                    before.status.since == ended
                        || occupied && (granted..=ended).contains(&before.status.since),
                    "saw it lapsed since {}, not since {ended}: {place}",
                    before.status.since
                );
                let writes = b.meter.counts().txn.applied;
                let (episode, since) = match meets {
                    "acquire" => match b.ask(&action).await.at(&place)? {
                        Acquired::Uncertain(uncertain) => (uncertain.episode, Some(uncertain.since)),
                        other => fail!("saw {other:?}, not Uncertain: {place}"),
                    },
                    "get" => {
                        let uncertain = b.uncertain(&action).await.at(&place)?;
                        (uncertain.episode, Some(uncertain.since))
                    }
                    _ => {
                        let right = b.look_into(&action).await.at(&place)?;
                        ensure_eq!(right.fence, lease.fence, "the fence of the unknown attempt: {place}");
                        (right.episode, None)
                    }
                };
                ensure!(b.meter.counts().txn.applied > writes, "saw nothing written: {place}");
                if let Some(since) = since {
                    ensure!(
                        since >= ended,
                        "saw it uncertain since {since}, before it ended at {ended}: {place}"
                    );
                }
                let after = a.history(&action).await?;
                ensure_eq!(
                    after.status.state,
                    ActionState::Uncertain,
                    "the state after somebody met it: {place}"
                );
                ensure_eq!(
                    after.status.uncertain.as_ref().map(|uncertain| uncertain.episode),
                    Some(episode),
                    "the episode that is stored: {place}"
                );
                ensure!(
                    after.transitions.iter().any(|step| step.kind == TransitionKind::Lapsed
                        && step.fence == lease.fence
                        && step.agent.as_str() == "bob"),
                    "saw {:?} without who wrote it down: {place}",
                    after.transitions
                );
                // Nothing brings it back.
                ensure_matches!(
                    a.renew(&lease).await,
                    Err(EffectError::LeaseLost
                        | EffectError::AttemptJudged { .. }
                        | EffectError::FenceStale { .. }),
                    "a slow renewal: {place}"
                );
                for seat in [&a, &b] {
                    match seat.ask(&action).await.at(&place)? {
                        Acquired::Uncertain(uncertain) => {
                            ensure_eq!(uncertain.episode, episode, "the episode when asked again: {place}");
                        }
                        other => fail!("saw {other:?}, not Uncertain: {place}"),
                    }
                }
            }
        }
    }
    // A renewal that has judged, and somebody writes it down before its transaction.
    let action = alone("slow");
    let lease = a.grant(&action).await?;
    let rival = (b.clone(), action.clone(), stage.clock.clone());
    let step = a.interpose(When::txn(), Place::Before, move || {
        let (b, action, clock) = rival.clone();
        async move {
            clock.advance(TTL);
            b.ask(&action).await
        }
    });
    let renewed = a.renew(&lease).await;
    let met = step.taken()?;
    ensure_matches!(met, Some(Acquired::Uncertain(_)), "an acquire at the moment of expiry");
    ensure_matches!(
        renewed,
        Err(EffectError::LeaseLost | EffectError::AttemptJudged { .. }),
        "a renewal whose attempt was written down as lapsed meanwhile"
    );
    ensure_eq!(b.state(&action).await?, ActionState::Uncertain, "the state after a slow renewal");
    // The other way round: it was renewed just before somebody writes it down.
    let action = alone("quick");
    let lease = a.grant(&action).await?;
    stage.advance(TTL - TICK);
    let holder = (a.clone(), lease.clone());
    let clock = stage.clock.clone();
    let step = b.interpose(When::txn(), Place::Before, move || {
        let (a, lease) = holder.clone();
        async move { a.renew(&lease).await.at("renewing") }
    });
    clock.advance(Duration::ZERO);
    let early = b.ask(&action).await?;
    ensure_matches!(early, Acquired::InFlight(_), "an acquire one tick before expiry");
    ensure!(step.taken()?.is_none(), "saw an acquire of an action that is under way write something");
    Ok(())
}

async fn expired_holder(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for written in [false, true] {
        let place = format!("the first key written down before: {written}");
        let (first, second) =
            (on(format!("first {written}"), "gate"), on(format!("second {written}"), "gate"));
        // Several attempts of the second key elsewhere must not confuse the count.
        let held = a.grant(&first).await?;
        stage.advance(TTL - TICK);
        match b.ask(&second).await? {
            Acquired::Contended(holder) => {
                ensure_eq!(holder.key, first.key, "who holds it one tick before the end")
            }
            other => fail!("saw {other:?}, not Contended: one tick before the end, {place}"),
        }
        stage.advance(TICK);
        if written {
            b.uncertain(&first).await?;
        }
        let lease = b.grant(&second).await.at(format!("exactly at the end, {place}"))?;
        ensure!(lease.fence > held.fence, "saw the fence {} after {}: {place}", lease.fence, held.fence);
        for seat in [&a, &b] {
            match seat.ask(&first).await? {
                Acquired::Uncertain(uncertain) => {
                    ensure_eq!(uncertain.fence, held.fence, "the fence of the unknown attempt: {place}");
                }
                other => fail!("saw {other:?}, not Uncertain: the first key, {place}"),
            }
        }
        b.finish(&lease, "second").await.at(&place)?;
        ensure_eq!(a.state(&first).await?, ActionState::Uncertain, "the first key after the second is done");
    }
    Ok(())
}
