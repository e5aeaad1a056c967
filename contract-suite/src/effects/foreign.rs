//! E29: what a side-effect store does with records that are not its own.

use std::collections::BTreeMap;

use coord_core::effects::{EffectError, ListFilter, PurgeRequest, Resolution};
use coord_core::{Bytes, Key, Mutation};

use super::scenes::{Past, reach};
use super::stage::{Seat, Stage, TTL, applied, on};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "E29",
    layer: Layer::Effects,
    promise: "foreign bytes under our keys: Malformed, untouched",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(malformed(cx)),
}];

/// What may be where a record should be, given what was there.
fn garbage(record: &Bytes) -> Vec<(&'static str, Bytes)> {
    let mut longer = record.to_vec();
    longer.push(0);
    let mut other = record.to_vec();
    if let Some(first) = other.first_mut() {
        *first ^= 0x20;
    }
    vec![
        ("nothing", Bytes::new()),
        ("one byte", Bytes::from_static(b"\0")),
        ("text", Bytes::from_static(b"hello, this is not yours")),
        ("JSON", Bytes::from_static(br#"["state","open"]"#)),
        ("bytes that are no text", Bytes::from_static(b"\xff\xfe\xfd")),
        ("its own beginning", record.slice(..record.len().saturating_sub(1))),
        ("itself and one byte more", Bytes::from(longer)),
        ("itself with another first byte", Bytes::from(other)),
    ]
}

async fn malformed(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let whole = a.raw_entries().await?;
    let action = on("mail", "gate");
    let lease = a.grant(&action).await?;
    let episode = a.mark(&lease).await?;
    let right = b.look_into(&action).await?;
    let good = a.raw_entries().await?;
    // The records of the action are those that came with it; a store without any keeps everything in the others.
    let mut own: BTreeMap<Key, Bytes> = good
        .iter()
        .filter(|(key, _)| !whole.contains_key(*key))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    if own.is_empty() {
        own.clone_from(&good);
    }
    ensure!(!own.is_empty(), "saw a store that keeps nothing in its backend");
    for kind in 0..garbage(&Bytes::from_static(b"any")).len() {
        let (mut what, mut bad) = ("", BTreeMap::new());
        for (key, value) in &own {
            let (name, bytes) = garbage(value).swap_remove(kind);
            // An empty value may be a marker's right one.
            if bytes != *value {
                what = name;
                bad.insert(key.clone(), bytes);
            }
        }
        a.raw_write(bad.iter().map(|(key, value)| Mutation::put(key.clone(), value.clone()))).await?;
        let place = format!("with {what} in place of its records");
        for seat in [&a, &b] {
            let answers: Vec<(&str, Result<(), EffectError>)> = vec![
                ("acquire", seat.store.acquire(&action, TTL).await.map(drop)),
                ("complete", seat.finish(&lease, "done").await.map(drop)),
                ("mark", seat.mark(&lease).await.map(drop)),
                ("renew", seat.renew(&lease).await.map(drop)),
                ("release", seat.release(&lease).await),
                ("abandon", seat.abandon(&lease).await),
                ("begin_reconcile", seat.look_into(&action).await.map(drop)),
                ("resolve", seat.rule(&action, episode, &Resolution::NotApplied).await.map(drop)),
                ("resolve_owned", seat.rule_owned(&right, &applied("no")).await.map(drop)),
                ("get", seat.store.get(&action.key).await.map(drop)),
                ("history", seat.store.history(&action.key).await.map(drop)),
                ("forget", seat.store.forget(&action.key).await),
                ("forget of the resource", seat.store.forget_resource(&action.resource).await),
            ];
            for (verb, answer) in answers {
                ensure_matches!(answer, Err(EffectError::Malformed { .. }), "{verb} {place}");
            }
            for filter in [ListFilter::default(), ListFilter::all()] {
                let listed = seat.store.list(&filter).await;
                // A store whose records are apart lists the rest, and names this one.
                ensure!(
                    matches!(&listed, Err(EffectError::Malformed { .. }))
                        || matches!(&listed, Ok(page) if page.actions.is_empty() && page.damaged == [action.key.clone()]),
                    "saw {listed:?}, neither Malformed nor a page that names the action as damaged: list {place}"
                );
            }
            // A purge that goes by what is kept of completed actions does not meet this one.
            match seat.store.purge(&PurgeRequest::older_than(TTL)).await {
                Ok(report) => ensure_eq!(report.purged, 0, "what was purged {place}"),
                answer => ensure_matches!(answer, Err(EffectError::Malformed { .. }), "purge {place}"),
            }
        }
        let now = a.raw_entries().await?;
        for (key, value) in &bad {
            ensure_eq!(
                now.get(key),
                Some(value),
                "the foreign bytes under {key:?} after every verb has met them"
            );
        }
        ensure_eq!(now.len(), good.len(), "the records, after verbs that were refused");
        a.raw_write(own.iter().map(|(key, value)| Mutation::put(key.clone(), value.clone()))).await?;
    }
    ensure_eq!(b.uncertain(&action).await?.episode, episode, "the episode once its records are back");
    // One record at a time: whatever still answers has not read it as missing.
    let mut met = 0;
    for (key, value) in &own {
        for (what, bytes) in garbage(value) {
            if bytes == *value {
                continue;
            }
            a.raw_write([Mutation::put(key.clone(), bytes.clone())]).await?;
            let place = format!("with {what} under {key:?} alone");
            let acquired = b.store.acquire(&action, TTL).await;
            match &acquired {
                Err(EffectError::Malformed { .. }) => met += 1,
                Ok(coord_core::effects::Outcome::Uncertain(uncertain)) if uncertain.episode == episode => {}
                other => fail!("saw {other:?}, not Malformed or what it was before: acquire {place}"),
            }
            let other = b.store.acquire(&on("other", "gate"), TTL).await;
            ensure_matches!(
                other,
                Err(EffectError::Malformed { .. }) | Ok(coord_core::effects::Outcome::Contended(_)),
                "another key on the resource, {place}"
            );
            let got = b.store.get(&action.key).await;
            match &got {
                Err(EffectError::Malformed { .. }) => met += 1,
                Ok(Some(status)) if status.uncertain.as_ref().is_some_and(|now| now.episode == episode) => {}
                other => fail!("saw {other:?}, not Malformed or what it was before: get {place}"),
            }
            ensure_eq!(
                a.raw_entries().await?.get(key),
                Some(&bytes),
                "the foreign bytes under {key:?} after verbs have met them"
            );
            a.raw_write([Mutation::put(key.clone(), value.clone())]).await?;
        }
    }
    ensure!(met > 0, "saw no verb meet foreign bytes in one record");
    // A kept result that is not ours is never replayed as the result.
    let done = on("done", "other gate");
    let before = a.raw_entries().await?;
    let lease = a.grant(&done).await?;
    let large = Bytes::from(vec![b'r'; 100_000]);
    a.store.complete(&done, &lease, large.clone()).await?;
    let after = a.raw_entries().await?;
    for (key, value) in
        after.iter().filter(|(key, value)| value.len() >= 100_000 && before.get(*key) != Some(*value))
    {
        for (what, bytes) in garbage(value) {
            a.raw_write([Mutation::put(key.clone(), bytes.clone())]).await?;
            let answer = b.store.acquire(&done, TTL).await;
            match &answer {
                Err(EffectError::Malformed { .. }) => {}
                Ok(coord_core::effects::Outcome::Completed(kept)) if is_untold(&b, kept, &large) => {}
                other => fail!("saw {other:?}, not Malformed: replaying with {what} under {key:?}"),
            }
            a.raw_write([Mutation::put(key.clone(), value.clone())]).await?;
        }
    }
    let fresh = on("fresh", "third gate");
    reach(&stage, &a, &fresh, Past::Completed).await.at("after all of this")?;
    Ok(())
}

/// Bytes without an envelope cannot be told from others, but a right store compares them with the digest that it keeps.
fn is_untold(_seat: &Seat, kept: &coord_core::effects::Completed, large: &Bytes) -> bool {
    kept.result() == Some(large)
}
