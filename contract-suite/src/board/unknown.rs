//! T30 and T34: calls that are not answered.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::board::{Board as _, BoardError, State, Task, Verb};
use coord_core::layer::Cell;
use coord_core::{Clock, SystemClock, Token};
use rand::seq::SliceRandom as _;

use super::scenes::{
    self, Actor, Answer, Ending, Known, NEXT_LIFE, NEXT_LIFE_OPEN, Op, Order, SCENES, Scene, Theatre,
    skip_all,
};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::unanswered::{Approach, Arrives, Budget, Fault, NewCell, Repertoire, every_cell, faults};
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
        body: |cx| Box::pin(every_verb(cx)),
    },
    Clause {
        id: "T34",
        layer: Layer::Board,
        promise: "a lost reply never acts on a later incarnation of the id and never undoes a later edit",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(lost_replies(cx)),
    },
];

type Seen = crate::unanswered::Seen<BoardError, Ending>;

/// What came of a call that met a fault, and the board as the rival left it.
struct Played {
    seen: Seen,
    rivals_board: Vec<Task>,
}

async fn play(
    theatre: &Theatre,
    scene: &Scene,
    rival: &'static [Op],
    fault: &Fault,
) -> Result<Played, Verdict> {
    let play = theatre.begin(scene, false).await?;
    let mut caller = play.caller();
    let (first, nudge) = (Arc::new(Mutex::new(play.first.clone())), scene.nudge);
    let nudging = move || {
        let first = first.clone();
        async move { perform_by(&first, nudge).await }
    };
    let other = Arc::new(Mutex::new(play.first.clone()));
    let (lister, actor, skips) = (play.b.board.clone(), other.clone(), scene.skips);
    let interfering = move || {
        let (lister, other) = (lister.clone(), actor.clone());
        async move {
            let said = perform_by(&other, rival).await?;
            if skips {
                skip_all(&*lister).await?;
            }
            let board = lister.list().await.at("listing what a rival left")?;
            Ok((said, board))
        }
    };
    let met = fault.meet(&play.a.faults, nudging, interfering, caller.perform(scene.call)).await?;
    let (said, rivals_board) = match met.said {
        Some(said) => said,
        // The call ended before it came to the fault, so the rival comes last.
        None => (perform_by(&other, rival).await?, Vec::new()),
    };
    let answer = met.answer;
    let rivals = other.lock().unwrap_or_else(PoisonError::into_inner).token.clone();
    let told = match &answer {
        Err(BoardError::OutcomeUnknown { token, .. }) if scene.has_token() => token.clone(),
        _ => caller.token.clone(),
    };
    named(scene, &answer, play.first.token.as_ref())?;
    let ending = play.end(said, told.as_ref(), rivals.as_ref()).await?;
    Ok(Played { seen: Seen { reached: met.reached, answer, ending }, rivals_board })
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
    // Whether an archive takes its tasks one by one is the board's affair.
    if let Some(task) = scene.task().filter(|_| scene.verb != Verb::Archive) {
        ensure_eq!(*id, task, "the task for which the outcome of {verb} is unknown");
    }
    ensure_eq!(token.is_some(), scene.has_token(), "whether the unknown outcome of {verb} has a token");
    if scene.verb != Verb::Claim && scene.has_token() {
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
        // Whoever looks for a task and is given none may have skipped some all the same.
        (Err(BoardError::Backend(_) | BoardError::TxnConflict { .. }), _) if scene.seeks_and_skips() => true,
        // An error of the store, or giving up, says that nothing has happened.
        (Err(BoardError::Backend(_) | BoardError::TxnConflict { .. }), _) => known.order == Order::RivalOnly,
        (Ok(seen), Some(Ok(known))) => seen == known || same_but_told_again(scene, seen, known),
        (Err(seen), Some(Err(known))) => format!("{seen:?}") == format!("{known:?}"),
        // Somebody removed the task that the call wanted removed.
        (Ok(_), _) => match scene.call {
            Op::Remove(_) => rival.contains(&scene.call),
            Op::Archive => rival.contains(&scene.call) || rival.contains(&Op::Remove("t")),
            _ => false,
        },
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

impl Repertoire for Theatre {
    type Op = Op;
    type Order = Order;
    type Error = BoardError;
    type Ending = Ending;

    fn rivals(&self) -> impl Iterator<Item = &'static [&'static [Op]]> {
        SCENES.iter().map(|scene| scene.rivals)
    }

    fn describe(&self, scene: usize) -> String {
        format!("{:?}", SCENES[scene].call)
    }

    async fn known(&self, scene: usize, rival: &'static [Op], nudged: bool) -> Result<Vec<Known>, Verdict> {
        scenes::known(self, &SCENES[scene], rival, nudged).await
    }

    async fn play(&self, scene: usize, rival: &'static [Op], fault: &Fault) -> Result<Seen, Verdict> {
        Ok(play(self, &SCENES[scene], rival, fault).await?.seen)
    }

    fn is_explained(&self, scene: usize, rival: &[Op], seen: &Seen, known: &Known) -> bool {
        is_explained(&SCENES[scene], rival, seen, known)
    }

    fn may_be_settled(&self, scene: usize) -> bool {
        SCENES[scene].skips
    }

    fn is_unknown(error: &BoardError) -> bool {
        matches!(error, BoardError::OutcomeUnknown { .. })
    }
}

async fn every_verb(cx: Context) -> Outcome {
    let theatre = Theatre::open(&cx).await?;
    let faults = faults(&[Approach::First, Approach::AfterLost, Approach::AfterRejected]);
    let budget = Budget { rivals: BUDGET, doubles: BUDGET / 4 };
    every_cell(&theatre, &faults, budget, cx.rng(30)).await
}

/// How long plays go on that are one of very many.
const BUDGET: Duration = Duration::from_secs(40);

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
    // Whoever looks for a task goes on after a skip, and takes what a rival has left.
    for scene in SCENES.iter().filter(|scene| !scene.seeks_and_skips()) {
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
        let Played { seen, rivals_board } = play(&theatre, scene, rival, &fault).await.at(&place)?;
        ensure!(seen.reached || scene.skips, "saw {:?} without a transaction: {place}", seen.answer);
        if !seen.reached {
            continue;
        }
        if seen.ending.tasks != rivals_board {
            fail!("saw {:?}, not {rivals_board:?} as the rival left it: {place}", seen.ending.tasks);
        }
        told_the_truth(&seen).at(&place)?;
    }
    Ok(())
}

/// What has happened is never told as an error that says it has not.
fn told_the_truth(seen: &Seen) -> Outcome {
    match &seen.answer {
        // A claim of what can never begin does that by skipping it.
        Ok(_) | Err(BoardError::OutcomeUnknown { .. } | BoardError::Terminal { state: State::Skipped }) => {
            Ok(())
        }
        Err(other) => fail!("saw {other:?} of a call that has happened"),
    }
}
