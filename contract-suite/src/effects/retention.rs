//! E27: what is dropped, and what stays.

use std::time::Duration;

use coord_core::Bytes;
use coord_core::effects::{
    ActionState, EffectError, ListFilter, Outcome as Acquired, PurgeRequest, Replay, TransitionKind,
};
use coord_core::layer::{Cell, When};

use super::scenes::{Past, reach};
use super::stage::{Place, Stage, TICK, TTL, alone, key, on, resource};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E27",
        layer: Layer::Effects,
        promise: "purge drops the payload of settled actions after the retention and keeps key and verdict (Purged); never \
                  touches open ones; forget is explicit, fences survive both, and a late acquire from before a forget \
                  cannot land",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(retention(cx)),
    },
    Clause {
        id: "E27.lists",
        layer: Layer::Effects,
        promise: "list: by state and age, in the order of keys, page by page, without writing; open actions are found \
                  without reading settled ones",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(lists(cx)),
    },
];

async fn retention(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let payload = "a result that nobody needs for ever ".repeat(40);
    let action = alone("old");
    let lease = a.grant(&action).await?;
    a.finish(&lease, &payload).await?;
    a.finish(&lease, "evidence").await?;
    stage.advance(TTL - TICK);
    let report = b.store.purge(&PurgeRequest::older_than(TTL)).await.at("purging too early")?;
    ensure_eq!(
        (report.examined, report.purged, report.next),
        (1, 0, None),
        "one tick before the retention is over"
    );
    match b.ask(&action).await? {
        Acquired::Completed(kept) => {
            ensure_eq!(
                kept.result().map(Bytes::len),
                Some(payload.len()),
                "the result before the retention is over"
            );
        }
        other => fail!("saw {other:?}, not Completed"),
    }
    stage.advance(TICK);
    let report = b.store.purge(&PurgeRequest::older_than(TTL)).await.at("purging")?;
    ensure_eq!(
        (report.examined, report.purged, report.next),
        (1, 1, None),
        "exactly when the retention is over"
    );
    let purged = stage.now();
    stage.advance(TICK);
    match a.ask(&action).await? {
        Acquired::Completed(kept) => {
            ensure_eq!(kept.replay, Replay::Purged { at: purged }, "what is left of the result");
            ensure!(kept.maybe_twice, "saw the verdict change with the payload");
        }
        other => fail!("saw {other:?}, not Completed: a purged action"),
    }
    let history = b.history(&action).await?;
    ensure!(
        history.evidence.len() == 1 && history.evidence[0].result.is_none(),
        "saw {:?}, not one piece of evidence without its payload",
        history.evidence
    );
    ensure!(
        history.transitions.iter().any(|step| step.kind == TransitionKind::Purged),
        "saw {:?} without the purge",
        history.transitions
    );
    for (name, value) in b.raw_entries().await? {
        let text = String::from_utf8_lossy(&value).into_owned();
        ensure!(!text.contains("nobody needs"), "saw the payload under {name:?} after it was purged");
    }
    let again = b.store.purge(&PurgeRequest::older_than(TTL)).await?;
    ensure_eq!(again.purged, 0, "how many were purged a second time");
    // The token of long ago is told the verdict.
    let kept = a.finish(&lease, &payload).await.at("the same completion after the purge")?;
    ensure_eq!(kept.replay, Replay::Purged { at: purged }, "what a late repetition gets");
    // Open ones are never touched, whatever the retention; E17 sees to uncertain ones.
    let mut open = Vec::new();
    for past in
        [Past::InFlight, Past::Expired, Past::Released, Past::Marked, Past::MarkedReleased, Past::Lapsed]
    {
        let action = on(format!("open {past:?}"), format!("gate {past:?}"));
        reach(&stage, &a, &action, past).await?;
        open.push((past, action));
    }
    let before: Vec<_> = {
        let mut before = Vec::new();
        for (_, action) in &open {
            before.push(b.history(action).await?);
        }
        before
    };
    b.store.purge(&PurgeRequest::older_than(Duration::ZERO).limit(1_000)).await?;
    for ((past, action), before) in open.iter().zip(before) {
        ensure_eq!(b.history(action).await?, before, "an action that is {past:?}, after a purge");
        ensure_matches!(
            b.store.forget(&action.key).await,
            Err(EffectError::NotSettled { .. }),
            "forgetting an action that is {past:?}"
        );
        ensure!(
            !b.history(action).await?.transitions.is_empty(),
            "saw the history of what was not forgotten gone"
        );
    }
    // A held resource is not forgotten, a free one is.
    let held = on("holds", "held gate");
    let lease = a.grant(&held).await?;
    ensure_matches!(
        b.store.forget_resource(&resource("held gate")).await,
        Err(EffectError::NotSettled { .. }),
        "forgetting a held resource"
    );
    match b.ask(&on("other", "held gate")).await? {
        Acquired::Contended(_) => {}
        other => fail!("saw {other:?}, not Contended: after a refused forget"),
    }
    a.finish(&lease, "done").await?;
    b.store.forget_resource(&resource("held gate")).await.at("forgetting a free resource")?;
    let next = a.grant(&on("other", "held gate")).await?;
    ensure!(
        next.fence > lease.fence,
        "saw the fence {} after {} on a forgotten resource",
        next.fence,
        lease.fence
    );
    // Forgetting makes it new.
    ensure_matches!(
        b.store.forget(&key("never")).await,
        Err(EffectError::NeverAcquired { .. }),
        "forgetting what never was"
    );
    for past in [Past::Completed, Past::Purged, Past::Abandoned, Past::Ruled] {
        let action = on(format!("forgotten {past:?}"), format!("forgotten gate {past:?}"));
        let Some(lease) = reach(&stage, &a, &action, past).await? else { fail!("saw no lease") };
        b.store.forget(&action.key).await.at(format!("forgetting what is {past:?}"))?;
        ensure!(b.store.get(&action.key).await?.is_none(), "saw {action:?} after it was forgotten");
        ensure!(
            b.store.history(&action.key).await?.is_none(),
            "saw the history of {action:?} after it was forgotten"
        );
        let listed = b.store.list(&ListFilter::all()).await?;
        ensure!(
            listed.actions.iter().all(|status| status.action.key != action.key),
            "saw {action:?} listed after it was forgotten"
        );
        let again = a.grant(&action).await.at(format!("after it was forgotten: {past:?}"))?;
        ensure!(again.fence > lease.fence, "saw the fence {} after {}", again.fence, lease.fence);
        // The token of the life before is nothing in this one.
        ensure_matches!(
            b.finish(&lease, "late").await,
            Err(EffectError::LeaseLost),
            "a lease of the life before"
        );
        ensure_eq!(b.state(&action).await?, ActionState::InFlight, "the new life: {past:?}");
        ensure!(b.evidence(&action).await?.is_empty(), "saw evidence of the life before");
        a.finish(&again, "again").await?;
    }
    // A late acquire from before a forget cannot land: not of the key, and not of the resource.
    for forgotten in ["key", "resource", "both"] {
        for known in [false, true] {
            let place = format!("forgotten: {forgotten}, known before: {known}");
            let action = on(format!("late {place}"), format!("late gate {place}"));
            if known {
                // There is something to forget before the late acquire is judged.
                let lease = b.grant(&action).await?;
                b.abandon(&lease).await?;
            }
            let rule = a.faults.on(When::txn(), Cell::late().then_gone());
            let answer = a.store.acquire(&action, TTL).await;
            ensure_matches!(
                answer,
                Err(EffectError::OutcomeUnknown { .. }),
                "an acquire without an answer: {place}"
            );
            ensure_eq!(a.faults.hits_of(rule), 1, "the faults: {place}");
            a.faults.heal();
            // Somebody else does it all, and then it is forgotten.
            let lease = b.grant(&action).await.at(&place)?;
            b.finish(&lease, "done").await?;
            if forgotten != "resource" {
                b.store.forget(&action.key).await.at(&place)?;
            }
            if forgotten != "key" {
                b.store.forget_resource(&action.resource).await.at(&place)?;
            }
            let before = b.store.history(&action.key).await?;
            for answer in a.faults.release_held().await {
                ensure_matches!(answer, Ok(coord_core::TxnOutcome::Rejected), "a late acquire: {place}");
            }
            a.faults.clear();
            ensure_eq!(b.store.history(&action.key).await?, before, "the key after a late acquire: {place}");
            if forgotten == "resource" {
                b.store.forget(&action.key).await?;
            }
            let again = b.grant(&action).await.at(&place)?;
            ensure!(
                again.fence > lease.fence,
                "saw the fence {} after {}: {place}",
                again.fence,
                lease.fence
            );
        }
    }
    // A forget that races an acquire: one of them first.
    let action = alone("raced");
    let lease = a.grant(&action).await?;
    a.finish(&lease, "done").await?;
    let (seat, inner) = (b.clone(), action.clone());
    let step = a.interpose(When::txn(), Place::Before, move || {
        let (seat, inner) = (seat.clone(), inner.clone());
        async move { seat.ask(&inner).await }
    });
    a.store.forget(&action.key).await.at("forgetting while somebody asks")?;
    ensure_matches!(
        step.taken()?,
        Some(Acquired::Completed(_)),
        "an acquire before the forget's transaction"
    );
    ensure!(b.store.get(&action.key).await?.is_none(), "saw it after it was forgotten");
    Ok(())
}

async fn lists(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    // Every state, each in its own minute.
    let mut expected: Vec<(String, ActionState, coord_core::Timestamp)> = Vec::new();
    let pasts = [
        (Past::Completed, ActionState::Completed),
        (Past::Abandoned, ActionState::Idle),
        (Past::Marked, ActionState::Uncertain),
        (Past::Released, ActionState::Lapsed),
        (Past::MarkedReleased, ActionState::Uncertain),
        (Past::Purged, ActionState::Completed),
        (Past::InFlight, ActionState::InFlight),
    ];
    for round in 0..3 {
        for (past, state) in pasts {
            if past == Past::InFlight && round < 2 {
                continue;
            }
            let action = alone(format!("{past:?} {round}"));
            reach(&stage, &a, &action, past).await?;
            expected.push((action.key.as_str().to_owned(), state, stage.now()));
            stage.advance(Duration::from_secs(1));
        }
    }
    expected.sort_by(|left, right| left.0.cmp(&right.0));
    let now = stage.now();
    let whole = b.raw_entries().await?;
    let filters = [
        ListFilter::default(),
        ListFilter::all(),
        ListFilter::overdue(Duration::from_secs(5)),
        ListFilter::all().at_least(Duration::from_secs(8)),
        ListFilter::default().states([ActionState::InFlight]),
        ListFilter::default().states([ActionState::Completed, ActionState::Lapsed]),
        ListFilter::default().states([ActionState::Idle]).at_least(Duration::from_secs(3)),
        ListFilter::default().states([]),
    ];
    for filter in filters {
        for limit in [1, 2, 5, 1_000] {
            let place = format!("{:?} for {:?}, {limit} at a time", filter.states, filter.at_least);
            let mut seen = Vec::new();
            let mut after = None;
            loop {
                let page =
                    b.store.list(&filter.clone().limit(limit).after(after.clone())).await.at(&place)?;
                ensure!(page.actions.len() <= limit, "saw {} actions of a page: {place}", page.actions.len());
                for status in page.actions {
                    ensure!(status.replay.is_none(), "saw a result in a list: {place}");
                    ensure!(
                        status.state != ActionState::Lapsed || status.uncertain.is_none(),
                        "saw an episode of a lapsed attempt: {place}"
                    );
                    ensure_eq!(
                        status.uncertain.is_some(),
                        status.state == ActionState::Uncertain,
                        "whether something is unknown of {:?}: {place}",
                        status.action.key
                    );
                    ensure_eq!(
                        status.completed.is_some(),
                        status.state == ActionState::Completed,
                        "whether something is done of {:?}: {place}",
                        status.action.key
                    );
                    seen.push((status.action.key.as_str().to_owned(), status.state));
                }
                match page.next {
                    Some(next) => {
                        ensure!(
                            after.as_ref().is_none_or(|after| next > *after),
                            "saw a list go back: {place}"
                        );
                        after = Some(next);
                    }
                    None => break,
                }
            }
            let right: Vec<(String, ActionState)> = expected
                .iter()
                .filter(|(_, state, since)| filter.wants(*state, now.saturating_since(*since)))
                .map(|(name, state, _)| (name.clone(), *state))
                .collect();
            ensure_eq!(seen, right, "the list: {place}");
        }
    }
    b.same_entries(&whole, "it was listed").await?;
    for limit in [0, 1_001] {
        ensure_matches!(
            b.store.list(&ListFilter::all().limit(limit)).await,
            Err(EffectError::Invalid(_)),
            "a page of {limit} actions"
        );
        ensure_matches!(
            b.store.purge(&PurgeRequest::older_than(TTL).limit(limit)).await,
            Err(EffectError::Invalid(_)),
            "a batch of {limit} actions"
        );
    }
    b.same_entries(&whole, "bad limits were refused").await
}
