//! What the clauses about calls that are not answered share: the faults that a call meets, and the judgement of what comes of it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::{self, Debug};
use std::time::Duration;

use coord_core::layer::{Cell, Faults, When};
use coord_core::{Clock, SystemClock};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::ensure;
use crate::staging::{Place, Step, with_step};

/// When a copy of the request that was held back arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrives {
    Never,
    BeforeRival,
    AfterRival,
    BeforeNextTxn,
    AfterAnswer,
}

/// By which way the call comes to the transaction that meets the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Approach {
    /// It is the first one.
    First,
    /// The first one was lost.
    AfterLost,
    /// The first one was rejected.
    AfterRejected,
    /// The first one was applied, and its reply lost: what follows is done about that.
    AfterReplyLost,
}

pub(crate) type NewCell = fn() -> Cell;

pub(crate) struct Fault {
    pub(crate) approach: Approach,
    pub(crate) cell: NewCell,
    pub(crate) arrives: Arrives,
    /// Whether the store is gone from then on.
    pub(crate) gone: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// Every cell at the transactions to which these ways lead.
pub(crate) fn faults(approaches: &[Approach]) -> Vec<Fault> {
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
    for &approach in approaches {
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

/// How a call met a fault.
pub(crate) struct Met<A, R> {
    /// Whether it came to the transaction at all.
    pub(crate) reached: bool,
    pub(crate) answer: A,
    /// What the rival said, if the call came to its step.
    pub(crate) said: Option<R>,
}

impl Fault {
    /// Lets a call meet this fault and a rival's step right after it. `nudge` makes the first transaction a rejected one, where that is the way.
    ///
    /// # Errors
    /// What went wrong in the rival's step.
    pub(crate) async fn meet<A, R, N, NF, S, SF>(
        &self,
        faults: &Faults,
        nudge: N,
        rival: S,
        call: impl Future<Output = A>,
    ) -> Result<Met<A, R>, Verdict>
    where
        R: Send + 'static,
        N: Fn() -> NF + Send + Sync + 'static,
        NF: Future<Output = Result<Vec<String>, Verdict>> + Send + 'static,
        S: Fn() -> SF + Send + Sync + 'static,
        SF: Future<Output = Result<R, Verdict>> + Send + 'static,
    {
        let place = match self.approach {
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
                let (cell, _) = with_step(Cell::pass(), Place::Before, move |_| nudge());
                faults.on(When::txn(), cell);
                2
            }
        };
        let arrives = self.arrives;
        let (mut cell, said) = with_step((self.cell)(), Place::After, move |faults| {
            let step = rival();
            async move {
                if arrives == Arrives::BeforeRival {
                    faults.release_held().await;
                }
                let said = step.await?;
                if arrives == Arrives::AfterRival {
                    faults.release_held().await;
                }
                Ok(said)
            }
        });
        if self.gone {
            cell = cell.then_gone();
        }
        let rule = faults.on(When::txn().nth(place), cell);
        if arrives == Arrives::BeforeNextTxn {
            let release = Cell::pass().before(|faults| async move {
                faults.release_held().await;
            });
            faults.on(When::txn().nth(place + 1), release);
        }
        let answer = call.await;
        let reached = faults.hits_of(rule) > 0;
        faults.heal();
        if arrives == Arrives::AfterAnswer {
            faults.release_held().await;
        }
        // Nothing arrives any more.
        while faults.take_held().is_some() {}
        faults.clear();
        Ok(Met { reached, answer, said: Step::new(said).taken()? })
    }
}

/// What came of a call that met a fault.
pub(crate) struct Seen<E, N> {
    pub(crate) reached: bool,
    pub(crate) answer: Result<String, E>,
    pub(crate) ending: N,
}

/// What comes of a scene in one order of call and rival, where nothing goes wrong.
pub(crate) struct Known<O, E, N> {
    pub(crate) order: O,
    /// What the call was answered, if it happened.
    pub(crate) answer: Option<Result<String, E>>,
    pub(crate) ending: N,
}

/// What comes of a scene in each order.
type Orders<P> = Vec<Known<<P as Repertoire>::Order, <P as Repertoire>::Error, <P as Repertoire>::Ending>>;

/// Scenes, each of them a call and the rivals that may come between. They are told by their number.
pub(crate) trait Repertoire: Sync + Sized {
    /// What a rival does, step by step.
    type Op: Debug + Sync + 'static;
    /// The orders in which a call and a rival may come.
    type Order: Debug + Send + Sync;
    /// What a call is refused with.
    type Error: Debug + Send + Sync;
    /// What is left when all is over.
    type Ending: Debug + Send + Sync;

    /// The rivals of each scene.
    fn rivals(&self) -> impl Iterator<Item = &'static [&'static [Self::Op]]>;

    /// The call of a scene, for whoever reads of it.
    fn describe(&self, scene: usize) -> String;

    /// Plays a scene in every order, where nothing goes wrong.
    fn known(
        &self,
        scene: usize,
        rival: &'static [Self::Op],
        nudged: bool,
    ) -> impl Future<Output = Result<Orders<Self>, Verdict>> + Send;

    /// Plays a scene with a fault.
    fn play(
        &self,
        scene: usize,
        rival: &'static [Self::Op],
        fault: &Fault,
    ) -> impl Future<Output = Result<Seen<Self::Error, Self::Ending>, Verdict>> + Send;

    /// Whether what was seen is what comes of an order of call and rival.
    fn is_explained(
        &self,
        scene: usize,
        rival: &[Self::Op],
        seen: &Seen<Self::Error, Self::Ending>,
        known: &Known<Self::Order, Self::Error, Self::Ending>,
    ) -> bool;

    /// Whether what the call is to do may have been done before anybody asks, so that it has no transaction.
    fn may_be_settled(&self, _scene: usize) -> bool {
        false
    }

    /// Whether an error says that it is not known whether the call has happened.
    fn is_unknown(error: &Self::Error) -> bool;
}

/// How long the plays go on that are some of very many, from the beginning of all.
pub(crate) struct Budget {
    /// Those with rivals.
    pub(crate) rivals: Duration,
    /// Those with two faults.
    pub(crate) doubles: Duration,
}

/// How many broken cells are looked for: one tells little of the pattern.
const SHOWN: usize = 6;

/// Plays every scene with every fault, alone and with every rival, as far as the budget goes; in an order by the seed.
pub(crate) async fn every_cell<P: Repertoire>(
    repertoire: &P,
    faults: &[Fault],
    budget: Budget,
    mut rng: StdRng,
) -> Outcome {
    let mut plays: Vec<(usize, &'static [P::Op], &Fault)> = Vec::new();
    for (scene, rivals) in repertoire.rivals().enumerate() {
        for rival in std::iter::once(&[][..]).chain(rivals.iter().copied()) {
            plays.extend(faults.iter().map(|fault| (scene, rival, fault)));
        }
    }
    plays.shuffle(&mut rng);
    plays.sort_by_key(|(_, rival, fault)| (fault.approach != Approach::First, !rival.is_empty()));
    // What a scene comes to is the same whatever goes wrong, so it is played out once.
    let mut references: BTreeMap<(usize, String, bool), Orders<P>> = BTreeMap::new();
    let mut broken = Vec::new();
    let clock = SystemClock::new();
    let start = clock.monotonic();
    for (scene, rival, fault) in plays {
        let budget = match fault.approach {
            Approach::First if rival.is_empty() => Duration::MAX,
            Approach::First => budget.rivals,
            _ => budget.doubles,
        };
        if clock.monotonic() - start > budget {
            continue;
        }
        let nudged = fault.approach == Approach::AfterRejected;
        let place = format!("{} with {fault}, and {rival:?} by a rival", repertoire.describe(scene));
        let orders = match references.entry((scene, format!("{rival:?}"), nudged)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(repertoire.known(scene, rival, nudged).await.at(&place)?),
        };
        let seen = repertoire.play(scene, rival, fault).await.at(&place)?;
        match judge(repertoire, (scene, rival, fault), &seen, orders).at(&place) {
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

fn judge<P: Repertoire>(
    repertoire: &P,
    (scene, rival, fault): (usize, &[P::Op], &Fault),
    seen: &Seen<P::Error, P::Ending>,
    orders: &[Known<P::Order, P::Error, P::Ending>],
) -> Outcome {
    ensure!(
        seen.reached || fault.approach != Approach::First || repertoire.may_be_settled(scene),
        "saw {:?} without a transaction that could meet a fault",
        seen.answer
    );
    if !orders.iter().any(|known| repertoire.is_explained(scene, rival, seen, known)) {
        let mut text = format!("saw {:?}, and then {:?}, which no order explains", seen.answer, seen.ending);
        for known in orders {
            text.push_str(&format!("\n  {:?}: {:?}, and then {:?}", known.order, known.answer, known.ending));
        }
        return Err(Verdict::Failed(text));
    }
    // Where the store answers and nobody interferes, the call finds out.
    if rival.is_empty() && !fault.gone && fault.arrives == Arrives::Never && fault.approach == Approach::First
    {
        let unknown = seen.answer.as_ref().is_err_and(P::is_unknown);
        ensure!(!unknown, "saw OutcomeUnknown, although the store answers and nobody interferes");
    }
    Ok(())
}
