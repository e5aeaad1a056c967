//! G02: what becomes of an action without a value.

use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    ActionState, Doubt, EffectError, OnDrop, Outcome as Acquired, RunOutcome, TransitionKind,
};
use coord_core::layer::{Cell, When};
use tokio::sync::{Notify, Semaphore};

use super::stage::{Seat, Stage, TTL, Word, action, puppet};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "G02",
        layer: Layer::Effects,
        promise: "an error, a panic, the time limit and an abort leave the action uncertain, and told so to the next one; what is known not to have been done is \
                  withdrawn; a dropped run that is not to be aborted goes on",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(ends(cx)),
    },
    Clause {
        id: "G02.unpolled",
        layer: Layer::Effects,
        promise: "a run that is dropped before its closure was first polled, or that got its lease too late to begin, is withdrawn: nothing has happened",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(unpolled(cx)),
    },
];

/// Nobody may do it again.
async fn is_uncertain(stage: &Stage, seat: &Seat, key: &str) -> Outcome {
    let status = stage.status(seat, &action(key)).await?;
    ensure_eq!(status.state, ActionState::Uncertain, "the state of {key} at the end of the run");
    let next = seat.store.acquire(&action(key), TTL).await?;
    ensure_matches!(next, Acquired::Uncertain(_), "what the next one is told about {key}");
    Ok(())
}

async fn ends(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let seat = stage.seat("holder").await?;
    for (key, word) in [("error", Word::unknown()), ("panic", Word::Panic)] {
        let panics = matches!(word, Word::Panic);
        let (act, mut puppet) = puppet();
        let mut run = stage.run(&seat, action(key), stage.options(), act);
        puppet.began(&stage).await?;
        puppet.say(word);
        let ran = stage.outcome(&mut run).await?;
        is_uncertain(&stage, &seat, key).await?;
        match ran {
            Ok(RunOutcome::Uncertain { episode: Ok(episode), doubt }) => {
                let told = match doubt {
                    Doubt::Panicked(text) => panics && text.contains("told to"),
                    Doubt::Error(text) => !panics && text == "nobody knows",
                    _ => false,
                };
                ensure!(told, "saw another reason than what the closure did: {key}");
                let seen = stage.status(&seat, &action(key)).await?.uncertain.map(|info| info.episode);
                ensure_eq!(seen, Some(episode), "the episode of {key}");
            }
            ran => fail!("saw {ran:?}: {key}"),
        }
    }
    known(&stage, &seat).await.at("known not to have been done")?;
    limited(&stage, &seat).await.at("the time limit")?;
    aborted(&stage, &seat).await.at("aborted")?;
    detached(&stage, &seat).await.at("detached")
}

async fn known(stage: &Stage, seat: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let mut run = stage.run(seat, action("known"), stage.options(), act);
    puppet.began(stage).await?;
    puppet.say(Word::not_applied());
    let ran = stage.outcome(&mut run).await?;
    ensure_matches!(ran, Ok(RunOutcome::Failed { withdrawn: Ok(()), .. }), "a failure that is known");
    ensure_eq!(stage.status(seat, &action("known")).await?.state, ActionState::Idle, "the state");
    let next = seat.store.acquire(&action("known"), TTL).await?;
    ensure_matches!(next, Acquired::Granted(_), "the next one");
    Ok(())
}

async fn limited(stage: &Stage, seat: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let options = stage.options().time_limit(Duration::from_secs(5));
    let mut run = stage.run(seat, action("limited"), options, act);
    let given = puppet.began(stage).await?;
    let ran = stage.pump(&mut run, Some(&*given)).await?;
    ensure_matches!(
        ran,
        Ok(RunOutcome::Uncertain { episode: Ok(_), doubt: Doubt::TimedOut }),
        "a run that passed its time limit"
    );
    ensure!(given.is_lost(), "saw no signal to the closure that its time is over");
    is_uncertain(stage, seat, "limited").await?;
    // What it knows after all counts.
    puppet.say(Word::not_applied());
    stage.until_state(seat, &action("limited"), ActionState::Idle).await.at("withdrawn afterwards")?;
    Ok(())
}

async fn aborted(stage: &Stage, seat: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let run = stage.run(seat, action("aborted"), stage.options().on_drop(OnDrop::Abort), act);
    puppet.began(stage).await?;
    run.abort();
    puppet.gone(stage).await?;
    stage.until_state(seat, &action("aborted"), ActionState::Uncertain).await?;
    is_uncertain(stage, seat, "aborted").await
}

async fn detached(stage: &Stage, seat: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let run = stage.run(seat, action("detached"), stage.options(), act);
    let given = puppet.began(stage).await?;
    run.abort();
    ensure!(run.await.is_err(), "saw the run end before its closure");
    // It is kept alive with nobody waiting for it.
    for _ in 0..4 {
        stage.clock.advance(super::stage::THIRD);
        stage
            .until("a run that was dropped renews its lease", || async {
                Ok((given.remaining() == super::stage::TRUSTED).then_some(()))
            })
            .await?;
    }
    ensure_eq!(stage.status(seat, &action("detached")).await?.state, ActionState::InFlight, "the state");
    puppet.say(Word::unknown());
    stage.until_state(seat, &action("detached"), ActionState::Uncertain).await?;
    Ok(())
}

async fn unpolled(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let seat = stage.seat("holder").await?;
    for (key, on_drop) in [("dropped", OnDrop::Detach), ("dropped to abort", OnDrop::Abort)] {
        // The answer to the acquire, which has been granted, waits.
        let (granted, answer) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
        let (sink, gate) = (granted.clone(), answer.clone());
        seat.faults.on(
            When::txn(),
            Cell::pass().then(move |_| {
                let (sink, gate) = (sink.clone(), gate.clone());
                async move {
                    sink.add_permits(1);
                    gate.notified().await;
                }
            }),
        );
        let (act, mut puppet) = puppet();
        let run = stage.run(&seat, action(key), stage.options().on_drop(on_drop), act);
        match tokio::time::timeout(stage.cx.patience(), granted.acquire()).await {
            Ok(Ok(_)) => {}
            _ => fail!("waited in vain for the acquire"),
        }
        run.abort();
        ensure!(run.await.is_err(), "saw the run end before it was granted");
        answer.notify_one();
        puppet.never_began(&stage).await.at(key)?;
        withdrawn(&stage, &seat, key).await.at(key)?;
    }
    too_late(&stage, &seat).await.at("a lease that is lost before it begins")
}

async fn withdrawn(stage: &Stage, seat: &Seat, key: &str) -> Outcome {
    stage.until_state(seat, &action(key), ActionState::Idle).await?;
    let abandoned = stage.transitions(seat, &action(key), TransitionKind::Abandoned).await?;
    ensure_eq!(abandoned, 1, "how often it was withdrawn");
    Ok(())
}

async fn too_late(stage: &Stage, seat: &Seat) -> Outcome {
    let clock = stage.clock.clone();
    seat.faults.on(
        When::txn(),
        Cell::pass().then(move |_| {
            let clock = clock.clone();
            async move { clock.advance(super::stage::TRUSTED) }
        }),
    );
    let (act, mut puppet) = puppet();
    puppet.say(Word::value("not to be done"));
    let mut run = stage.run(seat, action("late"), stage.options(), act);
    let ran = stage.outcome(&mut run).await?;
    ensure_matches!(ran, Err(EffectError::LeaseLost), "a run whose lease was lost before it began");
    puppet.never_began(stage).await?;
    withdrawn(stage, seat, "late").await
}
