//! E21 and E23: rulings that come too late, and doubts that stay.

use coord_core::effects::{
    Action, ActionState, EffectError, Episode, ListFilter, Outcome as Acquired, Reconciliation, Resolution,
    RulingKind,
};
use coord_core::layer::{Cell, When};

use super::stage::{Seat, Stage, TTL, allow_retry, alone, applied};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E21",
        layer: Layer::Effects,
        promise: "a ruling on an earlier episode is EpisodeOver and changes nothing, through both entries, also as a late \
                  duplicate, also after evidence arrived in between, also after the key was forgotten and is new",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(earlier_episodes(cx)),
    },
    Clause {
        id: "E23",
        layer: Layer::Effects,
        promise: "after allow-retry, a clean abandon of the second attempt leaves the key uncertain, a completion says \
                  maybe_twice",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(doubts(cx)),
    },
];

async fn earlier_episodes(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for went_on in ["ruled", "evidence", "forgotten", "abandoned"] {
        let place = format!("the first episode is over: {went_on}");
        let action = alone(went_on);
        let lease = a.grant(&action).await?;
        let mut lease = lease;
        if went_on == "evidence" {
            // An attempt before, whose result comes late.
            let episode = a.mark(&lease).await?;
            a.rule(&action, episode, &Resolution::NotApplied).await?;
            stage.advance(TTL);
            let old = lease;
            lease = a.grant(&action).await?;
            let episode = a.mark(&lease).await?;
            let right = b.look_into(&action).await?;
            ensure_matches!(a.finish(&old, "old").await, Err(EffectError::FenceStale { .. }), "{place}");
            stays_uncertain(&b, &action, episode, &right, &place).await?;
            continue;
        }
        let episode = a.mark(&lease).await?;
        let right = b.look_into(&action).await?;
        match went_on {
            "ruled" => {
                b.rule_owned(&right, &Resolution::NotApplied).await?;
                stage.advance(TTL);
            }
            "forgotten" => {
                b.rule_owned(&right, &Resolution::NotApplied).await?;
                stage.advance(TTL);
                b.store.forget(&action.key).await.at(&place)?;
            }
            _ => a.abandon(&lease).await?,
        }
        let second = a.grant(&action).await.at(&place)?;
        // While the second attempt is under way, and when it is uncertain.
        let early = b.rule(&action, episode, &applied("early")).await;
        if went_on == "ruled" {
            ensure_matches!(early, Ok(ruled) if !ruled.yours && ruled.ruling == RulingKind::NotApplied, "{place}");
        } else {
            ensure_matches!(
                early,
                Err(EffectError::EpisodeOver { state: ActionState::InFlight }
                    | EffectError::NotUncertain { state: ActionState::InFlight }),
                "{place}, while the next attempt is under way"
            );
        }
        ensure_eq!(b.state(&action).await?, ActionState::InFlight, "the next attempt: {place}");
        a.mark(&second).await?;
        if went_on == "ruled" {
            // Told what was ruled then; nothing of it touches the second episode.
            let now = b.uncertain(&action).await?.episode;
            ensure!(now != episode, "saw the same episode twice: {place}");
            for told in [
                b.rule(&action, episode, &applied("late")).await,
                b.rule_owned(&right, &applied("late")).await,
            ] {
                ensure_matches!(told, Ok(ruled) if !ruled.yours, "a late duplicate: {place}");
            }
            ensure_eq!(b.uncertain(&action).await?.episode, now, "the second episode: {place}");
        } else {
            stays_uncertain(&b, &action, episode, &right, &place).await?;
        }
        // The new episode can be ruled on.
        let now = b.uncertain(&action).await?.episode;
        let ruled = b.rule(&action, now, &Resolution::NotApplied).await.at(&place)?;
        ensure!(ruled.yours, "saw another one's ruling: {place}");
    }
    // Many lives and episodes: none is ever given twice.
    let action = alone("phoenix");
    let mut seen = std::collections::BTreeSet::new();
    for life in 0..4 {
        for _ in 0..3 {
            let lease = a.grant(&action).await?;
            let episode = a.mark(&lease).await?;
            ensure!(seen.insert(episode), "saw the episode {episode} twice");
            b.rule(&action, episode, &Resolution::NotApplied).await?;
            stage.advance(TTL);
        }
        b.store.forget(&action.key).await.at(format!("forgetting life {life}"))?;
    }
    // As a late duplicate: the request that ruled arrives a second time when the key is uncertain again.
    for (n, gone) in [false, true].into_iter().enumerate() {
        let action = alone(format!("duplicate {n}"));
        let lease = a.grant(&action).await?;
        let episode = a.mark(&lease).await?;
        a.faults.on(When::txn(), Cell::twice());
        a.rule(&action, episode, &Resolution::NotApplied).await?;
        stage.advance(TTL);
        if gone {
            b.store.forget(&action.key).await?;
        }
        let second = b.grant(&action).await?;
        b.mark(&second).await?;
        let before = b.history(&action).await?;
        ensure!(a.faults.held() > 0, "saw a ruling without a transaction");
        a.faults.release_held().await;
        a.faults.clear();
        ensure_eq!(
            b.history(&action).await?,
            before,
            "the action after a late duplicate of an earlier ruling"
        );
    }
    Ok(())
}

async fn stays_uncertain(
    seat: &Seat,
    action: &Action,
    episode: Episode,
    right: &Reconciliation,
    place: &str,
) -> Outcome {
    let whole = seat.raw_entries().await?;
    for resolution in [applied("late"), Resolution::NotApplied, allow_retry()] {
        for answer in
            [seat.rule(action, episode, &resolution).await, seat.rule_owned(right, &resolution).await]
        {
            ensure_matches!(
                answer,
                Err(EffectError::EpisodeOver { state: ActionState::Uncertain }),
                "{place}"
            );
        }
    }
    seat.same_entries(&whole, format!("rulings on an earlier episode: {place}")).await
}

async fn doubts(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    // How an earlier attempt may have been done.
    for doubt in ["allowed", "evidence"] {
        for end in ["abandoned", "completed", "marked", "lapsed"] {
            let place = format!("doubt by {doubt}, and the second attempt is {end}");
            let action = alone(format!("{doubt} {end}"));
            let first = a.grant(&action).await?;
            let episode = a.mark(&first).await?;
            let ruling = if doubt == "allowed" { allow_retry() } else { Resolution::NotApplied };
            b.rule(&action, episode, &ruling).await?;
            stage.advance(TTL);
            let second = b.grant(&action).await.at(&place)?;
            if doubt == "evidence" {
                ensure_matches!(
                    a.finish(&first, "first").await,
                    Err(EffectError::FenceStale { .. }),
                    "{place}"
                );
            }
            ensure!(b.history(&action).await?.status.maybe_applied, "saw no maybe_applied: {place}");
            match end {
                "completed" => {
                    let kept = b.finish(&second, "second").await.at(&place)?;
                    ensure!(kept.maybe_twice, "saw no maybe_twice: {place}");
                    match a.ask(&action).await? {
                        Acquired::Completed(told) => ensure_eq!(told, kept, "what is replayed: {place}"),
                        other => fail!("saw {other:?}, not Completed: {place}"),
                    }
                    let listed = a.store.list(&ListFilter::all()).await?;
                    let listed = listed.actions.into_iter().find(|status| status.action == action);
                    ensure!(
                        listed
                            .and_then(|status| status.completed)
                            .is_some_and(|completed| completed.maybe_twice),
                        "saw no maybe_twice in the list: {place}"
                    );
                }
                "abandoned" => {
                    b.abandon(&second).await.at(&place)?;
                    let uncertain = b.uncertain(&action).await.at(&place)?;
                    ensure!(uncertain.episode != episode, "saw the first episode again: {place}");
                    match a.ask(&action).await? {
                        Acquired::Uncertain(told) => ensure_eq!(told.episode, uncertain.episode, "{place}"),
                        other => fail!("saw {other:?}, not Uncertain: {place}"),
                    }
                    // The resource is free, for the attempt let it go.
                    a.fence_of(&action.resource, &format!("probe {place}")).await.at(&place)?;
                    b.rule(&action, uncertain.episode, &Resolution::NotApplied).await.at(&place)?;
                    let third = a.grant(&action).await.at(&place)?;
                    a.abandon(&third).await?;
                    ensure_eq!(b.state(&action).await?, ActionState::Idle, "once somebody ruled: {place}");
                }
                _ => {
                    if end == "marked" {
                        b.mark(&second).await?;
                    } else {
                        stage.advance(TTL);
                    }
                    let uncertain = a.uncertain(&action).await.at(&place)?;
                    // What the second attempt knows does not settle the first one.
                    ensure_matches!(
                        b.abandon(&second).await,
                        Err(EffectError::StillUncertain { episode }) if *episode == uncertain.episode,
                        "an abandon from uncertain: {place}"
                    );
                    ensure_eq!(
                        a.uncertain(&action).await?.episode,
                        uncertain.episode,
                        "the episode: {place}"
                    );
                    let kept = b.finish(&second, "second").await.at(&place)?;
                    ensure!(kept.maybe_twice, "saw no maybe_twice: {place}");
                }
            }
        }
    }
    Ok(())
}
