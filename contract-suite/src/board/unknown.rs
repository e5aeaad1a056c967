//! T30 and T34: calls that are not answered.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::board::{Board as _, BoardError, Task};
use coord_core::layer::{Cell, When};
use coord_core::{Clock, SystemClock, Token};
use rand::seq::SliceRandom as _;

use super::scenes::{
    Actor, Answer, Ending, Known, NEXT_LIFE, NEXT_LIFE_OPEN, Op, Order, SCENES, Scene, Theatre, known,
};
use super::stage::{Place, with_step};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T30",
        layer: Layer::Board,
        promise: "every verb, every fault cell, at every transaction, with a rival of the same agent name between fault \
                  and re-read, with the store gone after the fault: one transition, right answer or OutcomeUnknown \
                  (each cell of each verb; of those with rivals as many as the store does in forty seconds, of double \
                  faults in ten, by the seed)",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(every_cell(cx)),
    },
    Clause {
        id: "T34",
        layer: Layer::Board,
        promise: "a lost reply never acts on a later incarnation of the id and never undoes a later edit",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(lost_replies(cx)),
    },
];

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
    for approach in [Approach::First, Approach::AfterLost, Approach::AfterRejected] {
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
    /// The board as the rival left it.
    rivals_board: Vec<Task>,
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
    let place = match fault.approach {
        Approach::First => 1,
        Approach::AfterLost => {
            faults.on(When::txn(), Cell::request_lost());
            2
        }
        Approach::AfterRejected => {
            let (first, nudge) = (Arc::new(Mutex::new(play.first.clone())), scene.nudge);
            let (cell, _) = with_step(Cell::pass(), Place::Before, move |_| {
                let first = first.clone();
                async move { perform_by(&first, nudge).await }
            });
            faults.on(When::txn(), cell);
            2
        }
    };
    let other = Arc::new(Mutex::new(play.first.clone()));
    let (arrives, lister, actor) = (fault.arrives, play.b.board.clone(), other.clone());
    let (mut cell, said) = with_step((fault.cell)(), Place::After, move |faults| {
        let (lister, other) = (lister.clone(), actor.clone());
        async move {
            if arrives == Arrives::BeforeRival {
                faults.release_held().await;
            }
            let said = perform_by(&other, rival).await?;
            let board = lister.list().await.at("listing what a rival left")?;
            if arrives == Arrives::AfterRival {
                faults.release_held().await;
            }
            Ok((said, board))
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
    let (said, rivals_board) = match said {
        Some(said) => said.at("in a rival's step")?,
        // The call ended before it came to the fault, so the rival comes last.
        None => (perform_by(&other, rival).await?, Vec::new()),
    };
    let rivals = other.lock().unwrap_or_else(PoisonError::into_inner).token.clone();
    let told = match &answer {
        Err(BoardError::OutcomeUnknown { token, .. }) if scene.has_token() => token.clone(),
        _ => caller.token.clone(),
    };
    named(scene, &answer, play.first.token.as_ref())?;
    let ending = play.end(said, told.as_ref(), rivals.as_ref()).await?;
    Ok(Seen { reached, answer, ending, rivals_board })
}

/// Performs with what the actor knows, which is not locked meanwhile.
async fn perform_by(actor: &Mutex<Actor>, ops: &[Op]) -> Result<Vec<String>, Verdict> {
    let mut acting = actor.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let said = acting.perform_all(ops).await;
    *actor.lock().unwrap_or_else(PoisonError::into_inner) = acting;
    said
}

/// `OutcomeUnknown` says of what: the verb, the task, and the token that was presented or would have been given.
fn named(scene: &Scene, answer: &Answer, held: Option<&Token>) -> Outcome {
    let Err(BoardError::OutcomeUnknown { verb, id, token }) = answer else { return Ok(()) };
    ensure_eq!(*verb, scene.verb, "the verb whose outcome is unknown");
    if let Some(task) = scene.task() {
        ensure_eq!(*id, task, "the task for which the outcome of {verb} is unknown");
    }
    ensure_eq!(token.is_some(), scene.has_token(), "whether the unknown outcome of {verb} has a token");
    if scene.verb != coord_core::board::Verb::Claim && scene.has_token() {
        ensure!(token.as_ref() == held, "saw another token than that which {verb} presented");
    }
    Ok(())
}

/// Whether what was seen is what comes of an order of call and rival.
fn is_explained(scene: &Scene, rival: &[Op], seen: &Seen, known: &Known) -> bool {
    if seen.ending != known.ending {
        return false;
    }
    match (&seen.answer, &known.answer) {
        // It may have happened or not.
        (Err(BoardError::OutcomeUnknown { .. }), _) => true,
        // An error of the store, or giving up, says that nothing has happened.
        (Err(BoardError::Backend(_) | BoardError::TxnConflict { .. }), _) => known.order == Order::RivalOnly,
        (Ok(seen), Some(Ok(known))) => seen == known || same_but_told_again(scene, seen, known),
        (Err(seen), Some(Err(known))) => format!("{seen:?}") == format!("{known:?}"),
        // Somebody removed the task that the call wanted removed.
        (Ok(_), _) => matches!(scene.call, Op::Remove(_)) && rival.contains(&scene.call),
        _ => false,
    }
}

/// A task that this call has added may be told as one that existed, for the call cannot know it any more.
fn same_but_told_again(scene: &Scene, seen: &str, known: &str) -> bool {
    match scene.call {
        Op::Add(_) => seen == "Existed" && known == "New",
        Op::AddPlan => seen.contains("existed: 2") && known.contains("added: 2"),
        _ => false,
    }
}

async fn every_cell(cx: Context) -> Outcome {
    let theatre = Theatre::open(&cx).await?;
    let mut plays: Vec<(&Scene, &'static [Op], &Fault)> = Vec::new();
    let faults = faults();
    for scene in SCENES {
        for rival in std::iter::once(&[][..]).chain(scene.rivals.iter().copied()) {
            plays.extend(faults.iter().map(|fault| (scene, rival, fault)));
        }
    }
    plays.shuffle(&mut cx.rng(30));
    plays.sort_by_key(|(_, rival, fault)| (fault.approach != Approach::First, !rival.is_empty()));
    // What a scene comes to is the same whatever goes wrong, so it is played out once.
    let mut references: BTreeMap<(String, bool), Vec<Known>> = BTreeMap::new();
    let mut broken = Vec::new();
    let clock = SystemClock::new();
    let start = clock.monotonic();
    for (scene, rival, fault) in plays {
        let budget = match fault.approach {
            Approach::First if rival.is_empty() => Duration::MAX,
            Approach::First => BUDGET,
            _ => BUDGET / 4,
        };
        if clock.monotonic() - start > budget {
            break;
        }
        let nudged = fault.approach == Approach::AfterRejected;
        let place = format!("{:?} with {fault}, and {rival:?} by a rival", scene.call);
        let orders = match references.entry((format!("{:?} {rival:?}", scene.call), nudged)) {
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
const BUDGET: Duration = Duration::from_secs(40);

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
        let unknown = matches!(seen.answer, Err(BoardError::OutcomeUnknown { .. }));
        ensure!(!unknown, "saw OutcomeUnknown, although the store answers and nobody interferes");
    }
    Ok(())
}

async fn lost_replies(cx: Context) -> Outcome {
    let theatre = Theatre::open(&cx).await?;
    // The call has happened before the rival comes, whoever knows.
    let faults = [
        (Cell::reply_lost as NewCell, Arrives::Never),
        (Cell::twice_reply_lost, Arrives::AfterRival),
        (Cell::twice_reply_lost, Arrives::BeforeNextTxn),
        (Cell::twice_reply_lost, Arrives::AfterAnswer),
        (Cell::twice, Arrives::AfterRival),
        (Cell::twice, Arrives::AfterAnswer),
        (Cell::late, Arrives::BeforeRival),
    ];
    let mut plays: Vec<(&Scene, &'static [Op], Fault)> = Vec::new();
    for scene in SCENES {
        for rival in scene.rivals.iter().copied().chain([NEXT_LIFE, NEXT_LIFE_OPEN]) {
            for (cell, arrives) in faults {
                for gone in [false, true] {
                    plays.push((scene, rival, Fault { approach: Approach::First, cell, arrives, gone }));
                }
            }
        }
    }
    // Each rival of each call once with the plainest fault, and the rest by the seed.
    plays.shuffle(&mut cx.rng(34));
    let plainest = |fault: &Fault| !fault.gone && fault.arrives == Arrives::Never;
    plays.sort_by_key(|(_, _, fault)| !plainest(fault));
    let clock = SystemClock::new();
    let start = clock.monotonic();
    for (scene, rival, fault) in plays {
        if !plainest(&fault) && clock.monotonic() - start > BUDGET {
            break;
        }
        let place = format!("{:?} with {fault}, and {rival:?} by a rival", scene.call);
        let seen = play(&theatre, scene, rival, &fault).await.at(&place)?;
        ensure!(seen.reached, "saw {:?} without a transaction: {place}", seen.answer);
        if seen.ending.tasks != seen.rivals_board {
            fail!("saw {:?}, not {:?} as the rival left it: {place}", seen.ending.tasks, seen.rivals_board);
        }
        told_the_truth(&seen).at(&place)?;
    }
    Ok(())
}

/// What has happened is never told as an error that says it has not.
fn told_the_truth(seen: &Seen) -> Outcome {
    match &seen.answer {
        Ok(_) | Err(BoardError::OutcomeUnknown { .. }) => Ok(()),
        Err(other) => fail!("saw {other:?} of a call that has happened"),
    }
}
