//! G01: what becomes of a value.

use std::time::Duration;

use coord_core::Bytes;
use coord_core::effects::{
    Action, ActionState, Doubt, EffectError, Note, Outcome as Acquired, Replay, Resolution, RunOutcome,
};
use coord_core::layer::{Cell, When};

use super::harness::{Given, Ran};
use super::stage::{Seat, Stage, TTL, Word, action, breathe, on_resource, puppet};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "G01",
        layer: Layer::Effects,
        promise: "a value that comes after the lease is lost, after the time limit or after the caller has left is completed, or kept as evidence and \
                  handed back with what counts instead",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(late(cx)),
    },
    Clause {
        id: "G01.away",
        layer: Layer::Effects,
        promise: "a value is sent again while the store is away, also if its first answer was lost",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(away(cx)),
    },
];

fn is_value(ran: &Ran, text: &str) -> bool {
    matches!(ran, Ok(RunOutcome::Executed { value, completed })
        if value == text && completed.result() == Some(&Bytes::copy_from_slice(text.as_bytes())))
}

/// Cuts the seat off and lets its lease expire.
async fn lose(stage: &Stage, seat: &Seat, given: &dyn Given) -> Outcome {
    seat.faults.gone();
    stage.clock.advance(TTL + Duration::from_secs(1));
    if tokio::time::timeout(stage.cx.patience(), given.lost()).await.is_err() {
        fail!("saw no signal that the lease is lost, a second after it has expired");
    }
    seat.faults.heal();
    Ok(())
}

async fn kept(stage: &Stage, seat: &Seat, key: &str, value: &str) -> Outcome {
    let status = stage.until_state(seat, &action(key), ActionState::Completed).await?;
    let result = status.replay.as_ref().and_then(|replay| match replay {
        Replay::Result(result) => Some(result.clone()),
        _ => None,
    });
    ensure_eq!(result.as_deref(), Some(value.as_bytes()), "the result that is kept of {key}");
    Ok(())
}

async fn late(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let (seat, rival) = (stage.seat("holder").await?, stage.seat("rival").await?);
    granted_to_nobody(&stage, &seat).await.at("expired, and granted to nobody since")?;
    granted_on(&stage, &seat, &rival).await.at("the resource was granted to another key since")?;
    ruled(&stage, &seat, &rival).await.at("the attempt was ruled not applied since")?;
    done_again(&stage, &seat, &rival).await.at("another attempt was completed since")?;
    limited(&stage, &seat).await.at("after the time limit")?;
    left(&stage, &seat).await.at("after the caller has left")
}

async fn granted_to_nobody(stage: &Stage, seat: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let mut run = stage.run(seat, action("expired"), stage.options(), act);
    let given = puppet.began(stage).await?;
    lose(stage, seat, &*given).await?;
    puppet.say(Word::value("v"));
    let ran = stage.outcome(&mut run).await?;
    ensure!(is_value(&ran, "v"), "saw {ran:?}");
    kept(stage, seat, "expired", "v").await
}

async fn granted_on(stage: &Stage, seat: &Seat, rival: &Seat) -> Outcome {
    let ours = on_resource("first", "shared");
    let (act, mut puppet) = puppet();
    let mut run = stage.run(seat, ours.clone(), stage.options(), act);
    let given = puppet.began(stage).await?;
    lose(stage, seat, &*given).await?;
    let theirs = rival.store.acquire(&on_resource("second", "shared"), TTL).await?;
    ensure_matches!(theirs, Acquired::Granted(_), "another key on the resource");
    puppet.say(Word::value("v"));
    match stage.outcome(&mut run).await? {
        Ok(RunOutcome::Stale { value, instead: Err(EffectError::FenceStale { .. }) }) if value == "v" => {}
        ran => fail!("saw {ran:?}, and not the value back as stale"),
    }
    has_evidence(stage, seat, &ours).await
}

async fn has_evidence(stage: &Stage, seat: &Seat, ours: &Action) -> Outcome {
    let history = stage.history(seat, ours).await?;
    let evidence: Vec<_> = history.evidence.iter().map(|piece| piece.result.clone()).collect();
    ensure_eq!(evidence, vec![Some(Bytes::from_static(b"v"))], "the evidence");
    Ok(())
}

/// Rules the expired attempt of a key not applied.
async fn rule_out(stage: &Stage, rival: &Seat, key: &str) -> Outcome {
    let status = stage.status(rival, &action(key)).await?;
    let Some(info) = status.uncertain else { fail!("saw {key} {}, after its lease", status.state) };
    let note = Note::truncated("the clause says so");
    let ruled =
        rival.store.resolve(&action(key), info.episode, &Resolution::NotApplied, &note).await.at("ruling")?;
    ensure!(ruled.yours, "saw another ruling");
    Ok(())
}

async fn ruled(stage: &Stage, seat: &Seat, rival: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let mut run = stage.run(seat, action("ruled"), stage.options(), act);
    let given = puppet.began(stage).await?;
    lose(stage, seat, &*given).await?;
    rule_out(stage, rival, "ruled").await?;
    puppet.say(Word::value("v"));
    match stage.outcome(&mut run).await? {
        Ok(RunOutcome::Stale { value, instead: Err(EffectError::AttemptJudged { .. }) }) if value == "v" => {}
        ran => fail!("saw {ran:?}, and not the value back as stale"),
    }
    has_evidence(stage, seat, &action("ruled")).await?;
    let status = stage.status(seat, &action("ruled")).await?;
    ensure_eq!(status.state, ActionState::Uncertain, "a key that was ruled, and of which a value came then");
    Ok(())
}

async fn done_again(stage: &Stage, seat: &Seat, rival: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let mut run = stage.run(seat, action("again"), stage.options(), act);
    let given = puppet.began(stage).await?;
    lose(stage, seat, &*given).await?;
    rule_out(stage, rival, "again").await?;
    let Acquired::Granted(lease) = rival.store.acquire(&action("again"), TTL).await? else {
        fail!("saw no grant after the ruling")
    };
    rival.store.complete(&action("again"), &lease, Bytes::from_static(b"w")).await?;
    puppet.say(Word::value("v"));
    match stage.outcome(&mut run).await? {
        Ok(RunOutcome::Stale { value, instead: Ok(completed) })
            if value == "v"
                && completed.result().is_some_and(|kept| kept == "w")
                && completed.maybe_twice => {}
        ran => fail!("saw {ran:?}, and not the value back with the one that counts"),
    }
    kept(stage, seat, "again", "w").await
}

async fn limited(stage: &Stage, seat: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let options = stage.options().time_limit(Duration::from_secs(5));
    let mut run = stage.run(seat, action("limited"), options, act);
    let given = puppet.began(stage).await?;
    let ran = stage.pump(&mut run, Some(&*given)).await?;
    ensure_matches!(
        ran,
        Ok(RunOutcome::Uncertain { doubt: Doubt::TimedOut, .. }),
        "a run that passed its time limit"
    );
    ensure!(given.is_lost(), "saw no signal after the time limit");
    puppet.say(Word::value("v"));
    kept(stage, seat, "limited", "v").await
}

async fn left(stage: &Stage, seat: &Seat) -> Outcome {
    let (act, mut puppet) = puppet();
    let run = stage.run(seat, action("left"), stage.options(), act);
    puppet.began(stage).await?;
    run.abort();
    ensure!(run.await.is_err(), "saw the run end before its closure");
    puppet.say(Word::value("v"));
    kept(stage, seat, "left", "v").await
}

async fn away(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let seat = stage.seat("holder").await?;
    for (key, lost) in [("away", false), ("answer lost", true)] {
        let (act, mut puppet) = puppet();
        let mut run = stage.run(&seat, action(key), stage.options(), act);
        puppet.began(&stage).await?;
        if lost {
            seat.faults.on(When::txn(), Cell::reply_lost().then_gone());
        } else {
            seat.faults.gone();
        }
        let refused = seat.faults.refused_while_gone();
        puppet.say(Word::value("v"));
        stage
            .until("the store was asked in vain", || async {
                Ok((seat.faults.refused_while_gone() > refused || run.is_finished()).then_some(()))
            })
            .await?;
        // The store stays away for a while.
        for _ in 0..20 {
            stage.clock.advance(Duration::from_millis(100));
            breathe().await;
        }
        seat.faults.heal();
        let ran = stage.pump(&mut run, None).await.at(key)?;
        ensure!(is_value(&ran, "v"), "saw {ran:?}: {key}");
        kept(&stage, &seat, key, "v").await?;
    }
    Ok(())
}
