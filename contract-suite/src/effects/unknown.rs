//! E26: calls that are not answered.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::effects::EffectError;
use coord_core::layer::{Cell, When};
use coord_core::{Clock, SystemClock};
use rand::seq::SliceRandom as _;

use super::plays::{Actor, Answer, Ending, Known, Op, Order, Theatre, known, refusal};
use super::repertoire::{SCENES, Scene};
use super::stage::Place;
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::staging::with_step;
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "E26",
    layer: Layer::Effects,
    promise: "every verb, every fault cell, at every transaction, with rivals in between and with the store gone after: right \
              answer or OutcomeUnknown, at most one grant without a ruling (each cell of each verb; of those with rivals as \
              many as the store does in thirty seconds, of double faults in ten, by the seed)",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(every_cell(cx)),
}];

/// When a copy of the request that was held back arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrives {
    Never,
    BeforeRival,
    AfterRival,
    BeforeNextTxn,
    AfterAnswer,
}

/// By which way the call comes to the transaction that meets the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Approach {
    /// It is the first one.
    First,
    /// The first one was lost.
    AfterLost,
    /// The first one was rejected.
    AfterRejected,
    /// The first one was applied, and its reply lost: what follows is done about that.
    AfterReplyLost,
}

type NewCell = fn() -> Cell;

struct Fault {
    approach: Approach,
    cell: NewCell,
    arrives: Arrives,
    gone: bool,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", (self.cell)())?;
        match self.approach {
            Approach::First => {}
            Approach::AfterLost => write!(f, " after a lost request")?,
            Approach::AfterRejected => write!(f, " after a rejected transaction")?,
            Approach::AfterReplyLost => write!(f, " after a lost reply")?,
        }
        if self.arrives != Arrives::Never {
            write!(f, ", a copy arrives {:?}", self.arrives)?;
        }
        if self.gone {
            write!(f, ", and the store is gone")?;
        }
        Ok(())
    }
}

fn faults() -> Vec<Fault> {
    use Arrives::{AfterAnswer, AfterRival, BeforeNextTxn, BeforeRival, Never};
    let cells: [(NewCell, &[Arrives]); 6] = [
        (Cell::refused, &[Never]),
        (Cell::request_lost, &[Never]),
        (Cell::reply_lost, &[Never]),
        (Cell::late, &[BeforeRival, AfterRival, BeforeNextTxn, AfterAnswer]),
        (Cell::twice, &[AfterRival, AfterAnswer]),
        (Cell::twice_reply_lost, &[AfterRival, BeforeNextTxn, AfterAnswer]),
    ];
    let mut faults = Vec::new();
    for approach in [Approach::First, Approach::AfterLost, Approach::AfterRejected, Approach::AfterReplyLost]
    {
        for (cell, moments) in cells {
            for &arrives in moments {
                for gone in [false, true] {
                    faults.push(Fault { approach, cell, arrives, gone });
                }
            }
        }
    }
    faults
}

/// What came of a call that met a fault.
struct Seen {
    reached: bool,
    answer: Answer,
    ending: Ending,
}

async fn play(
    theatre: &Theatre,
    scene: &Scene,
    rival: &'static [Op],
    fault: &Fault,
) -> Result<Seen, Verdict> {
    let play = theatre.begin(scene, false).await?;
    let mut caller = play.caller();
    let faults = &play.a.faults;
    let other = Arc::new(Mutex::new(play.first.clone()));
    let place = match fault.approach {
        Approach::First => 1,
        Approach::AfterLost => {
            faults.on(When::txn(), Cell::request_lost());
            2
        }
        Approach::AfterReplyLost => {
            faults.on(When::txn(), Cell::reply_lost());
            2
        }
        Approach::AfterRejected => {
            let (actor, nudge) = (other.clone(), scene.nudge);
            let (cell, _) = with_step(Cell::pass(), Place::Before, move |_| {
                let actor = actor.clone();
                async move { perform_by(&actor, nudge).await }
            });
            faults.on(When::txn(), cell);
            2
        }
    };
    let (arrives, actor) = (fault.arrives, other.clone());
    let (mut cell, said) = with_step((fault.cell)(), Place::After, move |faults| {
        let other = actor.clone();
        async move {
            if arrives == Arrives::BeforeRival {
                faults.release_held().await;
            }
            let said = perform_by(&other, rival).await?;
            if arrives == Arrives::AfterRival {
                faults.release_held().await;
            }
            Ok(said)
        }
    });
    if fault.gone {
        cell = cell.then_gone();
    }
    let rule = faults.on(When::txn().nth(place), cell);
    if arrives == Arrives::BeforeNextTxn {
        let release = Cell::pass().before(|faults| async move {
            faults.release_held().await;
        });
        faults.on(When::txn().nth(place + 1), release);
    }
    let answer = caller.perform(scene.call).await;
    let reached = faults.hits_of(rule) > 0;
    faults.heal();
    if arrives == Arrives::AfterAnswer {
        faults.release_held().await;
    }
    // Nothing arrives any more.
    while faults.take_held().is_some() {}
    faults.clear();
    let said = said.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let said = match said {
        Some(said) => said.at("in a rival's step")?,
        // The call ended before it came to the fault, so the rival comes last.
        None => perform_by(&other, rival).await?,
    };
    named(scene, &answer, &play.first)?;
    let rivals = other.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let ending = play.end(said, &caller, &rivals).await?;
    Ok(Seen { reached, answer, ending })
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

async fn every_cell(cx: Context) -> Outcome {
    let theatre = Theatre::open(&cx).await?;
    let mut plays: Vec<(usize, &'static [Op], &Fault)> = Vec::new();
    let faults = faults();
    for (n, scene) in SCENES.iter().enumerate() {
        for rival in std::iter::once(&[][..]).chain(scene.rivals.iter().copied()) {
            plays.extend(faults.iter().map(|fault| (n, rival, fault)));
        }
    }
    plays.shuffle(&mut cx.rng(26));
    plays.sort_by_key(|(_, rival, fault)| (fault.approach != Approach::First, !rival.is_empty()));
    // What a scene comes to is the same whatever goes wrong, so it is played out once.
    let mut references: BTreeMap<(usize, String, bool), Vec<Known>> = BTreeMap::new();
    let mut broken = Vec::new();
    let clock = SystemClock::new();
    let start = clock.monotonic();
    for (n, rival, fault) in plays {
        let scene = &SCENES[n];
        let budget = match fault.approach {
            Approach::First if rival.is_empty() => Duration::MAX,
            Approach::First => BUDGET,
            _ => BUDGET + BUDGET / 3,
        };
        if clock.monotonic() - start > budget {
            if fault.approach == Approach::First {
                continue;
            }
            break;
        }
        let nudged = fault.approach == Approach::AfterRejected;
        let place =
            format!("{:?} after {:?} with {fault}, and {rival:?} by a rival", scene.call, scene.setup);
        let orders = match references.entry((n, format!("{rival:?}"), nudged)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(known(&theatre, scene, rival, nudged).await.at(&place)?),
        };
        let seen = play(&theatre, scene, rival, fault).await.at(&place)?;
        match judge(scene, rival, fault, &seen, orders).at(&place) {
            Err(Verdict::Failed(why)) => broken.push((place, why)),
            other => other?,
        }
        if broken.len() == SHOWN {
            break;
        }
    }
    // The first one in full, and where the others were seen.
    let mut broken = broken.into_iter();
    let Some((_, mut text)) = broken.next() else { return Ok(()) };
    for (place, _) in broken {
        text.push_str(&format!("\nalso: {place}"));
    }
    Err(Verdict::Failed(text))
}

/// How long plays go on that are one of very many.
const BUDGET: Duration = Duration::from_secs(30);

/// How many broken cells are looked for: one tells little of the pattern.
const SHOWN: usize = 6;

fn judge(scene: &Scene, rival: &[Op], fault: &Fault, seen: &Seen, orders: &[Known]) -> Outcome {
    ensure!(
        seen.reached || fault.approach != Approach::First,
        "saw {:?} without a transaction that could meet a fault",
        seen.answer
    );
    if !orders.iter().any(|known| is_explained(scene, rival, seen, known)) {
        let mut text = format!("saw {:?}, and then {:?}, which no order explains", seen.answer, seen.ending);
        for known in orders {
            text.push_str(&format!("\n  {:?}: {:?}, and then {:?}", known.order, known.answer, known.ending));
        }
        return Err(Verdict::Failed(text));
    }
    // Where the store answers and nobody interferes, the call finds out.
    if rival.is_empty() && !fault.gone && fault.arrives == Arrives::Never && fault.approach == Approach::First
    {
        let unknown = matches!(seen.answer, Err(EffectError::OutcomeUnknown { .. }));
        ensure!(!unknown, "saw OutcomeUnknown, although the store answers and nobody interferes");
    }
    Ok(())
}
