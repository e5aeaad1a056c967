//! G03 and G10: the lease as the closure sees it.

use std::time::Duration;

use coord_core::effects::{ActionState, RunOutcome};
use coord_core::layer::{Cell, When};
use coord_core::{Bytes, Clock};

use super::harness::{Act, Given, Ran};
use super::stage::{Stage, THIRD, TRUSTED, TTL, Word, action, breathe, puppet};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "G03",
        layer: Layer::Effects,
        promise: "the signal of the lost lease is given at the instant before the last successful acquire or renew was sent, plus the ttl, minus the margin, also \
                  with the store cut off; it stays given",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(on_time(cx)),
    },
    Clause {
        id: "G10",
        layer: Layer::Effects,
        promise: "a closure that blocks the only thread of its runtime for twice the ttl: its lease is renewed all the same, or it is signalled, and the \
                  action is uncertain",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(blocked(cx)),
    },
];

const MICROSECOND: Duration = Duration::from_micros(1);
/// How long an answer is under way.
const DELAY: Duration = Duration::from_secs(4);

/// The answer to the next transaction takes so long.
fn delay(stage: &Stage, seat: &super::stage::Seat, delay: Duration) {
    let clock = stage.clock.clone();
    seat.faults.on(
        When::txn(),
        Cell::pass().then(move |_| {
            let clock = clock.clone();
            async move { clock.advance(delay) }
        }),
    );
}

/// The signal is given exactly at this time of the clock, and not before.
async fn signalled_at(stage: &Stage, given: &dyn Given, at: Duration) -> Outcome {
    let now = stage.clock.monotonic();
    ensure!(now < at, "the clause itself is late");
    stage.clock.advance(at - now - MICROSECOND);
    for _ in 0..10 {
        ensure!(!given.is_lost(), "saw the signal before its time");
        breathe().await;
    }
    stage.clock.advance(MICROSECOND);
    if tokio::time::timeout(stage.cx.patience(), given.lost()).await.is_err() {
        fail!("saw no signal at its time");
    }
    ensure!(given.is_lost(), "saw the signal taken back");
    Ok(())
}

async fn on_time(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    after_acquire(&stage).await.at("after the acquire")?;
    after_renewal(&stage).await.at("after a renewal")?;
    late_answer(&stage).await.at("a renewal that is answered too late")
}

async fn after_acquire(stage: &Stage) -> Outcome {
    let seat = stage.seat("first").await?;
    delay(stage, &seat, DELAY);
    let sent = stage.clock.monotonic();
    let (act, mut puppet) = puppet();
    let mut run = stage.run(&seat, action("acquired"), stage.options(), act);
    let given = puppet.began(stage).await?;
    seat.faults.gone();
    signalled_at(stage, &*given, sent + TRUSTED).await?;
    seat.faults.heal();
    puppet.say(Word::value("v"));
    let ran = stage.pump(&mut run, None).await?;
    ensure!(matches!(ran, Ok(RunOutcome::Executed { .. })), "saw {ran:?} of a value that came late");
    Ok(())
}

async fn after_renewal(stage: &Stage) -> Outcome {
    let seat = stage.seat("second").await?;
    let (act, mut puppet) = puppet();
    let mut run = stage.run(&seat, action("renewed"), stage.options(), act);
    let given = puppet.began(stage).await?;
    delay(stage, &seat, DELAY);
    let sent = stage.clock.monotonic() + THIRD;
    stage.clock.advance(THIRD);
    stage
        .until("the lease is renewed at a third of its ttl", || async {
            let renewed =
                stage.clock.monotonic() == sent + DELAY && given.remaining() > TRUSTED - THIRD - DELAY;
            Ok(renewed.then_some(()))
        })
        .await?;
    ensure_eq!(given.remaining(), TRUSTED - DELAY, "what is left of a lease whose renewal took 4 s");
    seat.faults.gone();
    signalled_at(stage, &*given, sent + TRUSTED).await?;
    seat.faults.heal();
    puppet.say(Word::value("v"));
    stage.pump(&mut run, None).await?.at("a value that came late")?;
    Ok(())
}

async fn late_answer(stage: &Stage) -> Outcome {
    let seat = stage.seat("third").await?;
    let (act, mut puppet) = puppet();
    let mut run = stage.run(&seat, action("late"), stage.options(), act);
    let given = puppet.began(stage).await?;
    delay(stage, &seat, TRUSTED - THIRD);
    stage.clock.advance(THIRD);
    if tokio::time::timeout(stage.cx.patience(), given.lost()).await.is_err() {
        fail!("saw no signal while a renewal was under way");
    }
    for _ in 0..20 {
        ensure!(given.is_lost(), "saw the signal taken back by a renewal that was answered too late");
        breathe().await;
    }
    puppet.say(Word::value("v"));
    stage.pump(&mut run, None).await?.at("a value that came late")?;
    Ok(())
}

async fn blocked(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let (begin, mut began) = tokio::sync::mpsc::unbounded_channel::<std::sync::Arc<dyn Given>>();
    let (go_on, word) = std::sync::mpsc::channel::<()>();
    let act: Act = Box::new(move |given| {
        Box::pin(async move {
            let _ = begin.send(given);
            // Blocks the thread, until told to go on or until the clause has ended.
            let _ = word.recv();
            Ok(Bytes::from_static(b"v"))
        })
    });
    // The run has a runtime of its own with one thread, on which its store is opened too.
    let (theirs, done) = (stage.clone(), tokio::sync::oneshot::channel());
    std::thread::spawn(move || {
        let ran: Result<Ran, Verdict> =
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(async {
                    let seat = theirs.seat("blocked").await?;
                    Ok(theirs.guard.run(seat.store, action("blocked"), theirs.options(), act).await)
                }),
                Err(error) => Err(error.into()),
            };
        let _ = done.0.send(ran);
    });
    let given = match tokio::time::timeout(stage.cx.patience(), began.recv()).await {
        Ok(Some(given)) => given,
        _ => fail!("waited in vain until the closure was polled"),
    };
    let observer = stage.seat("observer").await?;
    let mut renewed = true;
    for _ in 0..6 {
        stage.clock.advance(THIRD);
        let begin = stage.cx.elapsed();
        while given.remaining() < TRUSTED && stage.cx.elapsed() - begin < stage.cx.patience() / 10 {
            breathe().await;
        }
        renewed &= given.remaining() >= TRUSTED;
    }
    let status = stage.status(&observer, &action("blocked")).await?;
    if renewed {
        ensure_eq!(status.state, ActionState::InFlight, "the action while its lease is renewed");
        let left = status.hold_until.map(|until| until.saturating_since(stage.clock.now()));
        ensure_eq!(left, Some(TTL), "what is left of its hold");
    } else {
        ensure!(given.is_lost(), "saw no renewal and no signal within twice the ttl");
        ensure_eq!(status.state, ActionState::Uncertain, "the action after twice the ttl without renewal");
    }
    drop(go_on);
    match tokio::time::timeout(stage.cx.patience(), done.1).await {
        Ok(Ok(ran)) => {
            let ran = ran?;
            ensure!(
                matches!(ran, Ok(RunOutcome::Executed { .. })),
                "saw {ran:?} of what the closure returned"
            );
        }
        _ => fail!("waited in vain for the end of the run"),
    }
    Ok(())
}
