//! E09, E10, E12 and E14: attempts that come late.

use coord_core::Bytes;
use coord_core::effects::{
    ActionState, ActionStatus, EffectError, Lease, Outcome as Acquired, Resolution, TransitionKind, limits,
    result_digest,
};

use super::scenes::occupy;
use super::stage::{Seat, Stage, TICK, TTL, allow_retry, alone, on};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E09",
        layer: Layer::Effects,
        promise: "complete after a newer attempt of the key: FenceStale, the newer attempt untouched, the evidence kept; \
                  an idle or uncertain key is uncertain in a new episode, and a ruling on the old one is EpisodeOver",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(after_newer(cx)),
    },
    Clause {
        id: "E10",
        layer: Layer::Effects,
        promise: "complete after expiry, mark or release with no grant in between: accepted, the same whether or not \
                  somebody saw it as uncertain",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(without_grant(cx)),
    },
    Clause {
        id: "E12",
        layer: Layer::Effects,
        promise: "the truth is never lost: the six cases of complete, each with its evidence readable afterwards",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(six_cases(cx)),
    },
    Clause {
        id: "E14",
        layer: Layer::Effects,
        promise: "a late mark, release or abandon of an old attempt changes nothing of a newer one",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(late_verbs(cx)),
    },
];

/// What the newer attempt has come to when the old one's result arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newer {
    InFlight,
    Abandoned,
    Marked,
    RuledNotApplied,
    Completed,
}

/// An old attempt that was ruled retryable, and a newer one.
async fn newer(stage: &Stage, a: &Seat, b: &Seat, name: &str) -> Result<(Lease, Lease), crate::Verdict> {
    let action = on(name, format!("resource of {name}"));
    let old = a.grant(&action).await?;
    let episode = a.mark(&old).await?;
    b.rule(&action, episode, &Resolution::NotApplied).await?;
    stage.advance(TTL);
    let new = b.grant(&action).await.at("after a ruling and the end of the hold")?;
    ensure!(new.fence > old.fence, "saw the fence {} after {}", new.fence, old.fence);
    ensure!(new.token != old.token, "saw one token for two attempts");
    ensure_eq!(
        new.downstream_key,
        old.downstream_key,
        "the key for downstream of two attempts of one action"
    );
    Ok((old, new))
}

async fn after_newer(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for case in [Newer::InFlight, Newer::Abandoned, Newer::Marked, Newer::RuledNotApplied, Newer::Completed] {
        let place = format!("the newer attempt is {case:?}");
        let name = format!("{case:?}");
        let (old, new) = newer(&stage, &a, &b, &name).await.at(&place)?;
        let action = new.action.clone();
        let mut seen = None;
        match case {
            Newer::InFlight => {}
            Newer::Abandoned => b.abandon(&new).await.at(&place)?,
            Newer::Marked => seen = Some(b.mark(&new).await.at(&place)?),
            Newer::RuledNotApplied => {
                let episode = b.mark(&new).await.at(&place)?;
                b.rule(&action, episode, &Resolution::NotApplied).await.at(&place)?;
                seen = Some(episode);
            }
            Newer::Completed => {
                b.finish(&new, "new").await.at(&place)?;
            }
        }
        let before = b.history(&action).await?;
        stage.advance(TICK);
        let answer = a.finish(&old, "old").await;
        if case == Newer::Completed {
            // What is done is done, whoever asks.
            let kept = answer.at(&place)?;
            ensure_eq!(kept.result().map(|result| &result[..]), Some(&b"new"[..]), "the result: {place}");
            ensure!(kept.maybe_twice, "saw no maybe_twice although another attempt brought a result");
        } else {
            ensure_matches!(
                answer,
                Err(EffectError::FenceStale { current_fence }) if *current_fence == new.fence,
                "the old attempt's completion: {place}"
            );
        }
        ensure_eq!(
            b.evidence(&action).await?,
            [(old.fence, Some(Bytes::from_static(b"old")))],
            "the evidence: {place}"
        );
        let after = b.history(&action).await?;
        match case {
            Newer::InFlight => {
                ensure_eq!(after.status.state, ActionState::InFlight, "the state: {place}");
                ensure_eq!(
                    (after.status.fence, after.status.hold_until),
                    (new.fence, Some(new.until)),
                    "the newer attempt: {place}"
                );
                ensure!(after.status.maybe_applied, "saw no maybe_applied: {place}");
                b.renew(&new).await.at(&place)?;
                // It may finish, and is told.
                let kept = b.finish(&new, "new").await.at(&place)?;
                ensure!(kept.maybe_twice, "saw no maybe_twice although the old attempt brought a result");
            }
            Newer::Completed => {}
            _ => {
                ensure_eq!(after.status.state, ActionState::Uncertain, "the state: {place}");
                ensure!(after.status.maybe_applied, "saw no maybe_applied: {place}");
                let Some(uncertain) = after.status.uncertain.clone() else {
                    fail!("saw nothing of what is unknown: {place}")
                };
                if let Some(seen) = seen {
                    ensure!(seen != uncertain.episode, "saw the same episode after evidence came: {place}");
                    let ruled = b.rule(&action, seen, &Resolution::NotApplied).await;
                    if case == Newer::Marked {
                        ensure_matches!(
                            ruled,
                            Err(EffectError::EpisodeOver { state: ActionState::Uncertain }),
                            "a ruling on the episode before the evidence: {place}"
                        );
                    } else {
                        ensure_matches!(ruled, Ok(ruled) if !ruled.yours, "a second ruling on a ruled episode: {place}");
                    }
                    let still = b.history(&action).await?.status;
                    ensure_eq!(
                        still.state,
                        ActionState::Uncertain,
                        "the state after a ruling on an old episode"
                    );
                }
                match b.ask(&action).await? {
                    Acquired::Uncertain(told) => {
                        ensure_eq!(told.episode, uncertain.episode, "the episode: {place}")
                    }
                    other => fail!("saw {other:?}, not Uncertain: {place}"),
                }
                // The same again is nothing new.
                let whole = b.raw_entries().await?;
                ensure_matches!(
                    a.finish(&old, "old").await,
                    Err(EffectError::FenceStale { .. }),
                    "the same evidence again: {place}"
                );
                b.same_entries(&whole, format!("the same evidence came again: {place}")).await?;
                // Only a ruling on the new episode settles it.
                let ruled = b.rule(&action, uncertain.episode, &Resolution::NotApplied).await.at(&place)?;
                ensure!(ruled.yours, "saw another one's ruling: {place}");
                ensure!(
                    !b.history(&action).await?.status.maybe_applied,
                    "saw maybe_applied after a ruling: {place}"
                );
            }
        }
        if before.status.state == ActionState::InFlight {
            ensure!(
                after
                    .transitions
                    .iter()
                    .any(|step| step.kind == TransitionKind::Evidence && step.fence == old.fence),
                "saw {:?} without the evidence: {place}",
                after.transitions
            );
        }
    }
    // Evidence that ends a reconciler's episode ends its right, too.
    let (old, new) = newer(&stage, &a, &b, "reconciled").await?;
    b.mark(&new).await?;
    let right = b.look_into(&new.action).await?;
    ensure_matches!(a.finish(&old, "old").await, Err(EffectError::FenceStale { .. }), "late evidence");
    ensure_matches!(
        b.rule_owned(&right, &Resolution::NotApplied).await,
        Err(EffectError::EpisodeOver { .. } | EffectError::ReconcileLost { .. }),
        "the ruling of who began before the evidence came"
    );
    a.look_into(&new.action).await.at("looking into it again after the evidence came")?;
    Ok(())
}

async fn without_grant(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for before in ["expiry", "mark", "release", "mark and expiry", "mark and release", "release and mark"] {
        for seen in ["nobody", "acquire", "get", "reconciler"] {
            let place = format!("after {before}, seen by {seen}");
            let action = on(format!("{before} {seen}"), format!("resource of {before} {seen}"));
            let lease = a.grant(&action).await?;
            for step in before.split(" and ") {
                match step {
                    "expiry" => stage.advance(TTL),
                    "mark" => {
                        a.mark(&lease).await.at(&place)?;
                    }
                    _ => a.release(&lease).await.at(&place)?,
                }
            }
            let mut right = None;
            match seen {
                "acquire" => {
                    b.ask(&action).await?;
                }
                "get" => {
                    b.get(&action).await?;
                }
                "reconciler" => right = Some(b.look_into(&action).await.at(&place)?),
                _ => {}
            }
            let kept = a.finish(&lease, "done").await.at(&place)?;
            ensure_eq!(kept.result().map(|result| &result[..]), Some(&b"done"[..]), "the result: {place}");
            ensure!(!kept.maybe_twice, "saw maybe_twice: {place}");
            match b.ask(&action).await? {
                Acquired::Completed(told) => ensure_eq!(told, kept, "what is replayed: {place}"),
                other => fail!("saw {other:?}, not Completed: {place}"),
            }
            if let Some(right) = right {
                ensure_matches!(
                    b.rule_owned(&right, &Resolution::NotApplied).await,
                    Err(EffectError::NotUncertain { state: ActionState::Completed }
                        | EffectError::EpisodeOver { state: ActionState::Completed }),
                    "the ruling of who began to look before the attempt completed"
                );
            }
            ensure_matches!(b.state(&action).await?, ActionState::Completed, "the state at the end: {place}");
            b.fence_of(&action.resource, &format!("probe {before} {seen}")).await.at(&place)?;
        }
    }
    Ok(())
}

/// What the six cases come to.
async fn six_cases(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    // 1: nothing is created.
    let lease = a.grant(&alone("one")).await?;
    let before = b.raw_entries().await?;
    let unknown = alone("unknown");
    ensure_matches!(
        a.store.complete(&unknown, &lease, Bytes::from_static(b"lost")).await,
        Err(EffectError::NeverAcquired { key }) if *key == unknown.key,
        "completing an unknown key"
    );
    b.same_entries(&before, "an unknown key was completed").await?;
    // 2: completed already, by this attempt.
    a.finish(&lease, "first").await?;
    let kept = a.finish(&lease, "later").await.at("completing again with another result")?;
    ensure_eq!(kept.result().map(|result| &result[..]), Some(&b"first"[..]), "the result that counts");
    has_evidence(&b, &lease, &[b"later"], "another result of a completed attempt").await?;
    // 2: completed already, by a ruling.
    let lease = a.grant(&alone("two")).await?;
    let episode = a.mark(&lease).await?;
    b.rule(&lease.action, episode, &super::stage::applied("ruled")).await?;
    let kept = a.finish(&lease, "mine").await.at("completing after a ruling")?;
    ensure_eq!(kept.result().map(|result| &result[..]), Some(&b"ruled"[..]), "the result that was ruled");
    ensure!(
        kept.maybe_twice,
        "saw no maybe_twice although the attempt brought another result than was ruled"
    );
    has_evidence(&b, &lease, &[b"mine"], "another result than was ruled").await?;
    // 3: a newer attempt.
    let (old, new) = newer(&stage, &a, &b, "three").await?;
    ensure_matches!(a.finish(&old, "old").await, Err(EffectError::FenceStale { .. }), "with a newer attempt");
    has_evidence(&b, &old, &[b"old"], "with a newer attempt").await?;
    ensure_eq!(b.state(&new.action).await?, ActionState::InFlight, "the newer attempt");
    // 4: judged, in each way.
    for judged in ["not applied", "allowed", "abandoned"] {
        let place = format!("after the attempt was judged: {judged}");
        let lease = a.grant(&alone(format!("four {judged}"))).await?;
        if judged == "abandoned" {
            a.abandon(&lease).await?;
        } else {
            let episode = a.mark(&lease).await?;
            let ruling = if judged == "allowed" { allow_retry() } else { Resolution::NotApplied };
            b.rule(&lease.action, episode, &ruling).await?;
        }
        ensure_matches!(
            a.finish(&lease, "mine").await,
            Err(EffectError::AttemptJudged { state: ActionState::Uncertain }),
            "{place}"
        );
        has_evidence(&b, &lease, &[b"mine"], &place).await?;
        let status = b.history(&lease.action).await?.status;
        ensure_eq!((status.state, status.maybe_applied), (ActionState::Uncertain, true), "{place}");
        let whole = b.raw_entries().await?;
        ensure_matches!(
            a.finish(&lease, "mine").await,
            Err(EffectError::AttemptJudged { state: ActionState::Uncertain }),
            "the same again, {place}"
        );
        b.same_entries(&whole, format!("the same evidence came again, {place}")).await?;
        // Another one is another fact, and another episode.
        let episode = status.uncertain.map(|uncertain| uncertain.episode);
        ensure_matches!(a.finish(&lease, "other").await, Err(EffectError::AttemptJudged { .. }), "{place}");
        has_evidence(&b, &lease, &[b"mine", b"other"], &place).await?;
        ensure!(
            Some(b.uncertain(&lease.action).await?.episode) != episode,
            "saw the same episode after other evidence came: {place}"
        );
    }
    // 5: accepted; E10 goes through the ways.
    let lease = a.grant(&alone("five")).await?;
    stage.advance(TTL);
    a.finish(&lease, "done").await.at("after expiry, with no grant since")?;
    ensure!(b.evidence(&lease.action).await?.is_empty(), "saw evidence beside the only result");
    // 6: the resource was granted to another key since, whatever became of that.
    for since in ["held", "done", "over", "seen"] {
        let place = format!("the resource was granted to another key, which is {since}");
        let action = on(format!("six {since}"), format!("gate six {since}"));
        let lease = a.grant(&action).await?;
        stage.advance(TTL);
        let mut episode = None;
        if since == "seen" {
            episode = Some(b.uncertain(&action).await?.episode);
        }
        let other = occupy(&b, &action, &format!("other six {since}")).await?;
        match since {
            "done" => {
                b.finish(&other, "other").await?;
            }
            "over" => stage.advance(TTL),
            _ => {}
        }
        ensure_matches!(
            a.finish(&lease, "mine").await,
            Err(EffectError::FenceStale { current_fence }) if *current_fence == other.fence,
            "{place}"
        );
        has_evidence(&b, &lease, &[b"mine"], &place).await?;
        let status = b.history(&action).await?.status;
        ensure_eq!((status.state, status.maybe_applied), (ActionState::Uncertain, true), "{place}");
        let now = status.uncertain.map(|uncertain| uncertain.episode);
        ensure!(episode.is_none() || episode != now, "saw the same episode after evidence came: {place}");
        if since == "held" {
            b.finish(&other, "other").await.at("the holder, after another key's late result")?;
        }
    }
    // Many: four are kept whole, and all are told apart and counted.
    let lease = a.grant(&alone("many")).await?;
    a.abandon(&lease).await?;
    let texts: Vec<String> = (0..7).map(|n| format!("result {n}")).collect();
    for text in &texts {
        ensure_matches!(
            a.finish(&lease, text).await,
            Err(EffectError::AttemptJudged { .. }),
            "evidence {text}"
        );
    }
    let history = b.history(&lease.action).await?;
    ensure_eq!(
        (history.evidence.len(), history.status.evidence),
        (7, 7),
        "the evidence of seven late results"
    );
    for (n, (evidence, text)) in history.evidence.iter().zip(&texts).enumerate() {
        ensure_eq!(
            (evidence.digest, evidence.len),
            (result_digest(text.as_bytes()), text.len() as u64),
            "the digest and the length of evidence {n}"
        );
        let expected = (n < limits::EVIDENCE_KEPT).then_some(text.as_bytes());
        ensure_eq!(evidence.result.as_deref(), expected, "what is kept of evidence {n}");
    }
    // The fifth and later ones count all the same.
    let episode = b.uncertain(&lease.action).await?.episode;
    ensure_matches!(
        a.finish(&lease, "one more").await,
        Err(EffectError::AttemptJudged { .. }),
        "more evidence"
    );
    ensure!(b.uncertain(&lease.action).await?.episode != episode, "saw the eighth evidence change nothing");
    // And a large one, whole.
    let lease = a.grant(&alone("large")).await?;
    a.abandon(&lease).await?;
    let large = Bytes::from(vec![7; limits::RESULT_BYTES]);
    let late = a.store.complete(&lease.action, &lease, large.clone()).await;
    ensure_matches!(late, Err(EffectError::AttemptJudged { .. }), "a large late result");
    let kept = b.evidence(&lease.action).await?;
    ensure!(kept.len() == 1 && kept[0].1.as_ref() == Some(&large), "saw a large late result not kept whole");
    Ok(())
}

async fn has_evidence(seat: &Seat, lease: &Lease, texts: &[&'static [u8]], place: &str) -> Outcome {
    let expected: Vec<(u64, Option<Bytes>)> =
        texts.iter().map(|text| (lease.fence, Some(Bytes::from_static(text)))).collect();
    ensure_eq!(seat.evidence(&lease.action).await?, expected, "the evidence: {place}");
    Ok(())
}

async fn late_verbs(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for ended in ["abandoned", "not applied", "allowed"] {
        for verb in ["mark", "release", "abandon", "renew"] {
            for state in [ActionState::InFlight, ActionState::Uncertain, ActionState::Completed] {
                let place = format!("a late {verb} of an attempt that was {ended}; the newer one is {state}");
                let action = on(format!("{ended} {verb} {state}"), format!("gate {ended} {verb} {state}"));
                let old = a.grant(&action).await?;
                if ended == "abandoned" {
                    a.abandon(&old).await?;
                } else {
                    let episode = a.mark(&old).await?;
                    let ruling = if ended == "allowed" { allow_retry() } else { Resolution::NotApplied };
                    b.rule(&action, episode, &ruling).await?;
                    stage.advance(TTL);
                }
                let new = b.grant(&action).await.at(&place)?;
                match state {
                    ActionState::Uncertain => {
                        b.mark(&new).await.at(&place)?;
                    }
                    ActionState::Completed => {
                        b.finish(&new, "new").await.at(&place)?;
                    }
                    _ => {}
                }
                let before: ActionStatus = b.history(&action).await?.status;
                let answer = match verb {
                    "mark" => a.mark(&old).await.map(|_| ()),
                    "release" => a.release(&old).await,
                    "abandon" => a.abandon(&old).await,
                    _ => a.renew(&old).await.map(|_| ()),
                };
                // Its own verdict stands, so a repeated abandon is no error; everything else is too late.
                let repeated = verb == "abandon" && ended == "abandoned";
                ensure!(
                    matches!(
                        answer,
                        Err(EffectError::FenceStale { .. }
                            | EffectError::AttemptJudged { .. }
                            | EffectError::LeaseLost)
                    ) || repeated && answer.is_ok()
                        || verb == "release" && state == ActionState::Completed && answer.is_ok(),
                    "saw {answer:?}: {place}"
                );
                let after = b.history(&action).await?.status;
                ensure_eq!(after, before, "the newer attempt: {place}");
                if state == ActionState::InFlight {
                    b.renew(&new).await.at(format!("the newer attempt, after {place}"))?;
                    match a.ask(&on(format!("other {ended} {verb}"), action.resource.as_str())).await? {
                        Acquired::Contended(holder) => {
                            ensure_eq!(holder.fence, new.fence, "the holder: {place}")
                        }
                        other => fail!("saw {other:?}, not Contended: {place}"),
                    }
                    b.finish(&new, "new").await.at(format!("the newer attempt, after {place}"))?;
                }
            }
        }
    }
    // Another key's newer hold on the resource.
    for verb in ["mark", "release", "abandon"] {
        let place = format!("a late {verb} after another key was granted the resource");
        let action = on(format!("late {verb}"), format!("gate of {verb}"));
        let old = a.grant(&action).await?;
        stage.advance(TTL);
        let other = occupy(&b, &action, &format!("holder {verb}")).await?;
        let answer = match verb {
            "mark" => a.mark(&old).await.map(|_| ()),
            "release" => a.release(&old).await,
            _ => a.abandon(&old).await,
        };
        if verb == "release" {
            ensure_matches!(answer, Err(EffectError::FenceStale { .. }), "{place}");
        } else {
            answer.at(&place)?;
        }
        let expected = if verb == "abandon" { ActionState::Idle } else { ActionState::Uncertain };
        ensure_eq!(b.get(&action).await?.state, expected, "the old attempt's action: {place}");
        let renewed = b.renew(&other).await.at(&place)?;
        ensure_eq!(renewed.fence, other.fence, "the holder's fence: {place}");
        match a.ask(&on(format!("third {verb}"), action.resource.as_str())).await? {
            Acquired::Contended(holder) => ensure_eq!(holder.key, other.action.key, "the holder: {place}"),
            other => fail!("saw {other:?}, not Contended: {place}"),
        }
    }
    Ok(())
}
