//! G04 and G06: waiting for another holder, and for oneself.

use std::sync::Arc;
use std::time::Duration;

use coord_core::Bytes;
use coord_core::effects::{
    Action, ActionState, Doubt, EffectStore, Outcome as Acquired, RunOptions, RunOutcome, TransitionKind,
    Wait,
};

use super::harness::{Act, Given, GuardHarness, Ran};
use super::stage::{Seat, Stage, TTL, Word, action, breathe, on_resource, puppet};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "G04",
        layer: Layer::Effects,
        promise: "waiting for a holder never becomes an acquire: it ends as completed, in flight (at its limit, or if the holder withdrew) or uncertain",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(outcomes(cx)),
    },
    Clause {
        id: "G04.turn",
        layer: Layer::Effects,
        promise: "who asks to wait for a turn acquires once the holder has withdrawn or the resource is free, and is replayed what was done meanwhile",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(turns(cx)),
    },
    Clause {
        id: "G06",
        layer: Layer::Effects,
        promise: "a nested run on the same key is in flight, and one on the same resource contended, also if it asks to wait: no deadlock",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(nested(cx)),
    },
];

const LIMIT: Duration = Duration::from_secs(20);

struct Scene {
    stage: Stage,
    holder: Seat,
    waiter: Seat,
}

impl Scene {
    /// A holder, a waiter that has looked once at least, and what the holder does then.
    async fn play(&self, key: &str, word: Option<Word>) -> Result<Ran, Verdict> {
        let Scene { stage, holder, waiter } = self;
        let (act, mut doing) = puppet();
        let mut run = stage.run(holder, action(key), stage.options(), act);
        let given = doing.began(stage).await?;
        let calls = waiter.faults.calls();
        let (act, mut other) = puppet();
        other.say(Word::value("not to be done"));
        let options = stage.options().wait(Wait::ForOutcome(LIMIT));
        let mut waiting = stage.run(waiter, action(key), options, act);
        stage
            .until("the waiter has looked", || async {
                Ok((waiter.faults.calls() > calls || waiting.is_finished()).then_some(()))
            })
            .await?;
        if let Some(word) = word {
            doing.say(word);
            stage.outcome(&mut run).await?.at("the holder's run")?;
        }
        // Once the holder has ended nothing keeps the clock back.
        let alive: Option<&dyn Given> = if run.is_finished() { None } else { Some(&*given) };
        let ran = stage.pump(&mut waiting, alive).await?;
        other.never_began(stage).await.at("the waiter's closure")?;
        let granted = stage.transitions(waiter, &action(key), TransitionKind::Granted).await?;
        ensure_eq!(granted, 1, "how often {key} was granted");
        doing.say(Word::not_applied());
        Ok(ran)
    }
}

async fn outcomes(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let (holder, waiter) = (stage.seat("holder").await?, stage.seat("waiter").await?);
    let scene = Scene { stage, holder, waiter };
    let ran = scene.play("completed", Some(Word::value("v"))).await.at("the holder completes")?;
    match &ran {
        Ok(RunOutcome::Replayed(completed)) if completed.result().is_some_and(|result| result == "v") => {}
        ran => fail!("saw {ran:?} when the holder had completed"),
    }
    let ran = scene.play("withdrawn", Some(Word::not_applied())).await.at("the holder withdraws")?;
    ensure_matches!(ran, Ok(RunOutcome::InFlight(_)), "waiting for a holder that withdrew");
    let ran = scene.play("unknown", Some(Word::unknown())).await.at("the holder does not know")?;
    ensure_matches!(
        ran,
        Ok(RunOutcome::Uncertain { doubt: Doubt::Earlier(_), .. }),
        "waiting for a holder that does not know"
    );
    let ran = scene.play("limit", None).await.at("the holder goes on")?;
    match &ran {
        Ok(RunOutcome::InFlight(seen)) if seen.agent.as_str() == "holder" => {}
        ran => fail!("saw {ran:?} at the limit"),
    }
    dies(&scene.stage, &scene.waiter).await.at("the holder dies")?;
    busy(&scene.stage, &scene.holder, &scene.waiter).await.at("another action has the resource")
}

async fn dies(stage: &Stage, waiter: &Seat) -> Outcome {
    let granted = waiter.store.acquire(&action("dead"), TTL).await?;
    ensure_matches!(granted, Acquired::Granted(_), "a new action");
    let (act, mut other) = puppet();
    other.say(Word::value("not to be done"));
    let options = stage.options().wait(Wait::ForOutcome(TTL * 2));
    let mut waiting = stage.run(waiter, action("dead"), options, act);
    let ran = stage.pump(&mut waiting, None).await?;
    ensure_matches!(
        ran,
        Ok(RunOutcome::Uncertain { doubt: Doubt::Earlier(_), .. }),
        "waiting for a holder that is not heard of again"
    );
    other.never_began(stage).await
}

async fn busy(stage: &Stage, holder: &Seat, waiter: &Seat) -> Outcome {
    let (act, mut doing) = puppet();
    let mut run = stage.run(holder, on_resource("one", "busy"), stage.options(), act);
    doing.began(stage).await?;
    let (act, mut other) = puppet();
    let options = stage.options().wait(Wait::ForOutcome(LIMIT));
    let mut waiting = stage.run(waiter, on_resource("two", "busy"), options, act);
    let ran = stage.outcome(&mut waiting).await.at("told without waiting")?;
    ensure_matches!(ran, Ok(RunOutcome::Contended(_)), "another key on a resource that is held");
    other.never_began(stage).await?;
    doing.say(Word::not_applied());
    stage.outcome(&mut run).await?.at("the holder's run")?;
    Ok(())
}

async fn turns(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let (holder, waiter) = (stage.seat("holder").await?, stage.seat("waiter").await?);
    for (what, ours, theirs, word, executes) in [
        ("it withdrew", action("a"), action("a"), Word::not_applied(), true),
        ("it completed", action("b"), action("b"), Word::value("v"), false),
        ("it freed", on_resource("c", "r"), on_resource("d", "r"), Word::value("v"), true),
    ] {
        let (act, mut first) = puppet();
        let mut run = stage.run(&holder, theirs, stage.options(), act);
        first.began(&stage).await?;
        let (act, mut second) = puppet();
        second.say(Word::value("w"));
        let options = stage.options().wait(Wait::ForTurn(LIMIT));
        let mut waiting = stage.run(&waiter, ours.clone(), options, act);
        // It does not begin while the holder is at it.
        for _ in 0..10 {
            breathe().await;
        }
        ensure!(!waiting.is_finished(), "saw a run that waits for its turn end at once: {what}");
        first.say(word);
        stage.outcome(&mut run).await?.at("the holder's run")?;
        let ran = stage.pump(&mut waiting, None).await.at(what)?;
        match (&ran, executes) {
            (Ok(RunOutcome::Executed { .. }), true) | (Ok(RunOutcome::Replayed(_)), false) => {}
            _ => fail!("saw {ran:?}: {what}"),
        }
        let status = stage.status(&waiter, &ours).await?;
        ensure_eq!(status.state, ActionState::Completed, "the state: {what}");
    }
    Ok(())
}

/// Runs within a run, and says what came of it.
fn nesting(
    guard: Arc<dyn GuardHarness>,
    store: Arc<dyn EffectStore>,
    inner: Action,
    options: RunOptions,
    said: tokio::sync::oneshot::Sender<Ran>,
) -> Act {
    Box::new(move |_| {
        Box::pin(async move {
            let act: Act = Box::new(|_| Box::pin(async { Ok(Bytes::from_static(b"inner")) }));
            let _ = said.send(guard.run(store, inner, options, act).await);
            Ok(Bytes::from_static(b"outer"))
        })
    })
}

async fn nested(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let seat = stage.seat("holder").await?;
    let hour = Duration::from_secs(3_600);
    for (n, wait) in [Wait::No, Wait::ForOutcome(hour), Wait::ForTurn(hour)].into_iter().enumerate() {
        for same_key in [true, false] {
            let outer = on_resource(&format!("outer {n} {same_key}"), &format!("resource {n} {same_key}"));
            let inner = if same_key {
                outer.clone()
            } else {
                on_resource(&format!("inner {n}"), outer.resource.as_str())
            };
            let (said, heard) = tokio::sync::oneshot::channel();
            let options = stage.options().wait(wait);
            let act = nesting(stage.guard.clone(), seat.store.clone(), inner, options, said);
            let mut run = stage.run(&seat, outer, stage.options(), act);
            let ran = stage.outcome(&mut run).await.at("a run within which another one is run")?;
            ensure_matches!(ran, Ok(RunOutcome::Executed { .. }), "the outer run, {wait:?}");
            match (heard.await, same_key) {
                (Ok(Ok(RunOutcome::InFlight(_))), true) | (Ok(Ok(RunOutcome::Contended(_))), false) => {}
                (said, _) => fail!("saw {said:?} of the inner run, {wait:?}, the same key: {same_key}"),
            }
        }
    }
    Ok(())
}
