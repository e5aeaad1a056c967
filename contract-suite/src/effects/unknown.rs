//! E26: calls that are not answered.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::effects::EffectError;

use super::plays::{self, Actor, Answer, Ending, Known, Op, Order, Theatre, refusal};
use super::repertoire::{SCENES, Scene};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict};
use crate::context::Context;
use crate::unanswered::{Approach, Budget, Fault, Repertoire, every_cell, faults};
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "E26",
    layer: Layer::Effects,
    promise: "every verb, every fault cell, at every transaction, with rivals in between and with the store gone after: right \
              answer or OutcomeUnknown, at most one grant without a ruling (each cell of each verb; of those with rivals as \
              many as the store does in thirty seconds, of double faults in ten, by the seed)",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(every_verb(cx)),
}];

type Seen = crate::unanswered::Seen<EffectError, Ending>;

async fn play(
    theatre: &Theatre,
    scene: &Scene,
    rival: &'static [Op],
    fault: &Fault,
) -> Result<Seen, Verdict> {
    let play = theatre.begin(scene, false).await?;
    let mut caller = play.caller();
    // The one who nudges, too.
    let other = Arc::new(Mutex::new(play.first.clone()));
    let performing = |ops: &'static [Op]| {
        let actor = other.clone();
        move || {
            let actor = actor.clone();
            async move { perform_by(&actor, ops).await }
        }
    };
    let (nudging, interfering) = (performing(scene.nudge), performing(rival));
    let met = fault.meet(&play.a.faults, nudging, interfering, caller.perform(scene.call)).await?;
    let said = match met.said {
        Some(said) => said,
        // The call ended before it came to the fault, so the rival comes last.
        None => perform_by(&other, rival).await?,
    };
    named(scene, &met.answer, &play.first)?;
    let rivals = other.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let ending = play.end(said, &caller, &rivals).await?;
    Ok(Seen { reached: met.reached, answer: met.answer, ending })
}

/// Performs with what the actor knows, which is not locked meanwhile.
async fn perform_by(actor: &Mutex<Actor>, ops: &[Op]) -> Result<Vec<String>, Verdict> {
    let mut acting = actor.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let said = acting.perform_all(ops).await;
    *actor.lock().unwrap_or_else(PoisonError::into_inner) = acting;
    said
}

/// `OutcomeUnknown` says of what: the verb, the key or the resource, and the token that was presented or would have been given.
fn named(scene: &Scene, answer: &Answer, held: &Actor) -> Outcome {
    let Err(EffectError::OutcomeUnknown { verb, subject, token }) = answer else { return Ok(()) };
    ensure_eq!(*verb, scene.verb, "the verb whose outcome is unknown");
    match scene.call {
        Op::Purge => {}
        Op::ForgetResource => {
            ensure_eq!(subject, "r", "the resource for which the outcome of {verb} is unknown")
        }
        _ => ensure_eq!(subject, "t", "the key for which the outcome of {verb} is unknown"),
    }
    if scene.call == Op::Acquire {
        ensure!(token.is_some(), "saw no token in the unknown outcome of an acquire");
    }
    if scene.presents() {
        let presented = held.lease.as_ref().map(|lease| &lease.token);
        ensure!(token.as_ref() == presented, "saw another token than that which {verb} presented");
    }
    Ok(())
}

/// Whether what was seen is what comes of an order of call and rival.
fn is_explained(scene: &Scene, rival: &[Op], seen: &Seen, known: &Known) -> bool {
    let unknown = matches!(seen.answer, Err(EffectError::OutcomeUnknown { .. }));
    let mut ending = seen.ending.clone();
    if unknown && scene.call == Op::Acquire {
        // Whoever is told this has no lease to try.
        ending.holds[1] = known.ending.holds[1];
    }
    // A read that failed after it wrote down a lapsed attempt has done nothing that counts.
    if ending != known.ending {
        return false;
    }
    match (&seen.answer, &known.answer) {
        // It may have happened or not.
        (_, _) if known.order == Order::TooLate => unknown,
        (Err(EffectError::OutcomeUnknown { .. }), _) => true,
        // An error of the store, or giving up, says that nothing has happened.
        (Err(EffectError::Backend(_) | EffectError::TxnConflict { .. }), _) => {
            matches!(known.order, Order::RivalOnly | Order::Withdrawn)
        }
        (Ok(seen), Some(Ok(known))) => seen == known,
        (Err(seen), Some(Err(known))) => refusal(seen) == refusal(known),
        // Somebody forgot what the call wanted forgotten.
        (Ok(_), _) => matches!(scene.call, Op::Forget | Op::ForgetResource) && rival.contains(&scene.call),
        _ => false,
    }
}

impl Repertoire for Theatre {
    type Op = Op;
    type Order = Order;
    type Error = EffectError;
    type Ending = Ending;

    fn rivals(&self) -> impl Iterator<Item = &'static [&'static [Op]]> {
        SCENES.iter().map(|scene| scene.rivals)
    }

    fn describe(&self, scene: usize) -> String {
        format!("{:?} after {:?}", SCENES[scene].call, SCENES[scene].setup)
    }

    async fn known(&self, scene: usize, rival: &'static [Op], nudged: bool) -> Result<Vec<Known>, Verdict> {
        plays::known(self, &SCENES[scene], rival, nudged).await
    }

    async fn play(&self, scene: usize, rival: &'static [Op], fault: &Fault) -> Result<Seen, Verdict> {
        play(self, &SCENES[scene], rival, fault).await
    }

    fn is_explained(&self, scene: usize, rival: &[Op], seen: &Seen, known: &Known) -> bool {
        is_explained(&SCENES[scene], rival, seen, known)
    }

    fn is_unknown(error: &EffectError) -> bool {
        matches!(error, EffectError::OutcomeUnknown { .. })
    }
}

async fn every_verb(cx: Context) -> Outcome {
    let theatre = Theatre::open(&cx).await?;
    let approaches =
        [Approach::First, Approach::AfterLost, Approach::AfterRejected, Approach::AfterReplyLost];
    let budget = Budget { rivals: BUDGET, doubles: BUDGET + BUDGET / 3 };
    every_cell(&theatre, &faults(&approaches), budget, cx.rng(26)).await
}

/// How long plays go on that are one of very many.
const BUDGET: Duration = Duration::from_secs(30);
