//! E13, E15 and E16: marks, the ways to let go, and renewals.

use coord_core::effects::{ActionState, EffectError, Outcome as Acquired, Resolution, TransitionKind};
use coord_core::layer::{Cell, When};

use super::scenes::occupy;
use super::stage::{Stage, TICK, TTL, alone, on};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E13",
        layer: Layer::Effects,
        promise: "mark: uncertain, intent gone; a failed write leaves the intent standing; again: no change",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(marks(cx)),
    },
    Clause {
        id: "E15",
        layer: Layer::Effects,
        promise: "release frees the resource for other keys, not the key; abandon frees both; complete frees the resource",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(letting_go(cx)),
    },
    Clause {
        id: "E16",
        layer: Layer::Effects,
        promise: "renew: extends; too late at expiry; refused once another holds the resource or the attempt was judged",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(renewals(cx)),
    },
];

async fn marks(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let action = on("mail", "gate");
    let lease = a.grant(&action).await?;
    stage.advance(TICK);
    let before = a.meter.counts();
    let episode = a.mark(&lease).await.at("marking")?;
    ensure_eq!(a.meter.counts().since(before).txn.calls, 1, "the transactions of a mark");
    let uncertain = b.uncertain(&action).await?;
    ensure_eq!(
        (
            uncertain.episode,
            uncertain.since,
            uncertain.fence,
            uncertain.agent.as_str(),
            uncertain.reason.as_str()
        ),
        (episode, stage.now(), lease.fence, "ada", "it did not answer"),
        "what is known of a marked action"
    );
    ensure!(uncertain.reconciling_until.is_none(), "saw somebody looking into it already");
    let history = b.history(&action).await?;
    ensure!(
        history.transitions.iter().any(|step| step.kind == TransitionKind::Marked
            && step.note.as_str() == "it did not answer"
            && step.agent.as_str() == "ada"),
        "saw {:?} without the mark",
        history.transitions
    );
    // The hold ends at its time, not with the mark.
    match b.ask(&on("other", "gate")).await? {
        Acquired::Contended(holder) => {
            ensure_eq!(holder.key, action.key, "who holds the resource of a marked action")
        }
        other => fail!("saw {other:?}, not Contended: the hold of a marked action"),
    }
    let whole = b.raw_entries().await?;
    stage.advance(TICK);
    ensure_eq!(a.mark(&lease).await.at("marking again")?, episode, "the episode of a second mark");
    b.same_entries(&whole, "it was marked again").await?;
    stage.advance(TTL);
    b.grant(&on("other", "gate")).await.at("after the end of the marked action's hold")?;
    ensure_eq!(b.state(&action).await?, ActionState::Uncertain, "the state after the end of the hold");
    // A write that fails changes nothing: the intent stands, in every order of a failure and a look.
    for nth in 1..=3 {
        let action = alone(format!("failed {nth}"));
        let lease = a.grant(&action).await?;
        a.faults.on(When::txn().nth(nth), Cell::refused().then_gone());
        let answer = a.mark(&lease).await;
        a.faults.clear();
        if answer.is_ok() {
            ensure!(nth > 1, "saw a mark succeed without a transaction");
            ensure_eq!(b.state(&action).await?, ActionState::Uncertain, "the state of a marked action");
            continue;
        }
        ensure_matches!(
            answer,
            Err(EffectError::Backend(_)),
            "a mark whose transaction {nth} did not happen"
        );
        ensure_eq!(
            b.state(&action).await?,
            ActionState::InFlight,
            "the state after a mark of which the transaction {nth} did not happen"
        );
        stage.advance(TTL);
        match b.ask(&action).await? {
            Acquired::Uncertain(_) => {}
            other => fail!("saw {other:?}, not Uncertain: the intent of a mark that failed"),
        }
    }
    // Marked too late is marked all the same, and what was written down already stays.
    let action = alone("expired");
    let lease = a.grant(&action).await?;
    stage.advance(TTL);
    let episode = a.mark(&lease).await.at("marking after expiry")?;
    ensure_eq!(b.uncertain(&action).await?.episode, episode, "the episode of a mark after expiry");
    let action = alone("seen");
    let lease = a.grant(&action).await?;
    stage.advance(TTL);
    let episode = b.uncertain(&action).await?.episode;
    ensure_eq!(a.mark(&lease).await.at("marking what is written down")?, episode, "the episode");
    Ok(())
}

async fn letting_go(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    // Release: the resource, not the key.
    let action = on("released", "gate 1");
    let lease = a.grant(&action).await?;
    a.release(&lease).await.at("releasing")?;
    let whole = b.raw_entries().await?;
    a.release(&lease).await.at("releasing again")?;
    b.same_entries(&whole, "it was released again").await?;
    ensure_eq!(b.state(&action).await?, ActionState::Lapsed, "the state of a released action");
    let other = b.grant(&on("other 1", "gate 1")).await.at("another key on a released resource")?;
    ensure!(other.fence > lease.fence, "saw the fence {} after {}", other.fence, lease.fence);
    match b.ask(&action).await? {
        Acquired::Uncertain(_) => {}
        other => fail!("saw {other:?}, not Uncertain: a released action"),
    }
    b.finish(&other, "other").await?;
    // Abandon: both.
    for twice in [false, true] {
        let action = on(format!("abandoned {twice}"), "gate 2");
        let lease = a.grant(&action).await?;
        a.abandon(&lease).await.at("abandoning")?;
        if twice {
            let whole = b.raw_entries().await?;
            a.abandon(&lease).await.at("abandoning again")?;
            b.same_entries(&whole, "it was abandoned again").await?;
        }
        ensure_eq!(b.state(&action).await?, ActionState::Idle, "the state of an abandoned action");
        let again = b.grant(&action).await.at("the key that was abandoned")?;
        b.abandon(&again).await?;
        let other = b
            .grant(&on(format!("other 2 {twice}"), "gate 2"))
            .await
            .at("the resource of an abandoned action")?;
        b.finish(&other, "other").await?;
    }
    // Abandoned from uncertain: the attempt itself knows.
    let action = on("uncertain", "gate 3");
    let lease = a.grant(&action).await?;
    let episode = a.mark(&lease).await?;
    let right = b.look_into(&action).await?;
    a.abandon(&lease).await.at("abandoning what was marked")?;
    ensure_eq!(b.state(&action).await?, ActionState::Idle, "the state of a marked and abandoned action");
    for answer in [
        b.rule(&action, episode, &Resolution::NotApplied).await,
        b.rule_owned(&right, &Resolution::NotApplied).await,
    ] {
        ensure_matches!(
            answer,
            Err(EffectError::NotUncertain { .. } | EffectError::EpisodeOver { .. }),
            "a ruling on an episode that an abandon ended"
        );
    }
    let lease = b.grant(&action).await.at("the key and the resource of a marked and abandoned action")?;
    // Complete: the resource.
    b.finish(&lease, "done").await?;
    let other = a.grant(&on("other 3", "gate 3")).await.at("the resource of a completed action")?;
    a.release(&other).await?;
    // A hold that was released after a mark is over.
    let action = on("marked", "gate 4");
    let lease = a.grant(&action).await?;
    a.mark(&lease).await?;
    a.release(&lease).await.at("releasing what was marked")?;
    occupy(&b, &action, "next").await?;
    ensure_eq!(b.state(&action).await?, ActionState::Uncertain, "the state of a marked and released action");
    Ok(())
}

async fn renewals(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let action = on("long", "gate");
    let mut lease = a.grant(&action).await?;
    for (n, wait) in [TTL / 3, TTL - TICK, TICK].into_iter().enumerate() {
        stage.advance(wait);
        let renewed = a.renew(&lease).await.at(format!("renewal {n}"))?;
        ensure_eq!(Some(renewed.until), stage.now().checked_add(TTL), "the end after renewal {n}");
        ensure_eq!(
            (&renewed.action, &renewed.token, renewed.fence, &renewed.downstream_key),
            (&lease.action, &lease.token, lease.fence, &lease.downstream_key),
            "all but the end after renewal {n}"
        );
        let status = b.history(&action).await?.status;
        ensure_eq!(
            (status.state, status.hold_until),
            (ActionState::InFlight, Some(renewed.until)),
            "what is stored after renewal {n}"
        );
        // The lease of the grant is as good as that of a renewal: what proves it is the token.
        if n != 1 {
            lease = renewed;
        }
    }
    // Shorter than it was.
    let shorter = a.store.renew(&action, &lease, TICK * 5).await.at("a shorter renewal")?;
    ensure_eq!(Some(shorter.until), stage.now().checked_add(TICK * 5), "the end after a shorter renewal");
    stage.advance(TICK * 4);
    let lease = a.renew(&shorter).await.at("one tick before the end")?;
    // Exactly at the end is too late.
    stage.advance_to(lease.until);
    let whole = b.raw_entries().await?;
    ensure_matches!(a.renew(&lease).await, Err(EffectError::LeaseLost), "a renewal exactly at the end");
    stage.advance(TTL);
    ensure_matches!(a.renew(&lease).await, Err(EffectError::LeaseLost), "a renewal long after the end");
    b.same_entries(&whole, "it was renewed too late").await?;
    // Another holds the resource.
    let other = b.grant(&on("other", "gate")).await?;
    let whole = b.raw_entries().await?;
    ensure_matches!(
        a.renew(&lease).await,
        Err(EffectError::FenceStale { current_fence }) if *current_fence == other.fence,
        "a renewal while another key holds the resource"
    );
    b.same_entries(&whole, "it was renewed while another key holds the resource").await?;
    b.finish(&other, "other").await?;
    ensure_matches!(
        a.renew(&lease).await,
        Err(EffectError::FenceStale { .. }),
        "a renewal after another key held the resource"
    );
    // Released, marked, judged.
    for ended in ["released", "marked", "abandoned", "completed", "ruled"] {
        let action = alone(ended);
        let lease = a.grant(&action).await?;
        match ended {
            "released" => a.release(&lease).await?,
            "marked" => {
                a.mark(&lease).await?;
            }
            "abandoned" => a.abandon(&lease).await?,
            "completed" => {
                a.finish(&lease, "done").await?;
            }
            _ => {
                let episode = a.mark(&lease).await?;
                b.rule(&action, episode, &Resolution::NotApplied).await?;
            }
        }
        let whole = b.raw_entries().await?;
        let answer = a.renew(&lease).await;
        if ended == "released" {
            ensure_matches!(answer, Err(EffectError::LeaseLost), "a renewal after it was released");
        } else {
            ensure_matches!(answer, Err(EffectError::AttemptJudged { .. }), "a renewal after it was {ended}");
        }
        b.same_entries(&whole, format!("it was renewed after it was {ended}")).await?;
    }
    Ok(())
}
