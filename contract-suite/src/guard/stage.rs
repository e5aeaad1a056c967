//! Where the clauses of the guard play: a clock that only the clause moves, seats with faults, and closures that do what the clause says.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::AgentId;
use coord_core::effects::{
    Action, ActionKey, ActionState, ActionStatus, EffectStore, Failure, History, ResourceId, RunOptions,
    TransitionKind,
};
use coord_core::layer::{Fault, Faults, StoreClock};
use coord_core::{Bytes, ManualClock, Timestamp};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::harness::{Act, Given, GuardHarness, Ran};
use crate::clause::{Verdict, VerdictContext};
use crate::context::Context;
use crate::fail;
use crate::harness::EffectSeat;
use crate::staging::SeatClock;

pub(super) const TTL: Duration = Duration::from_secs(30);
pub(super) const MARGIN: Duration = Duration::from_secs(3);
pub(super) const TRUSTED: Duration = Duration::from_secs(27);
pub(super) const THIRD: Duration = Duration::from_secs(10);
const SKEW: Duration = Duration::from_secs(1);

/// The pace of everything that looks again and again.
#[expect(clippy::disallowed_methods, reason = "what is waited for happens in real time")]
pub(super) async fn breathe() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// One side-effect store, seen from several seats.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) cx: Context,
    pub(super) clock: Arc<ManualClock>,
    pub(super) guard: Arc<dyn GuardHarness>,
}

/// One client, and what can go wrong between it and the store.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) store: Arc<dyn EffectStore>,
    pub(super) faults: Faults,
}

pub(super) fn action(key: &str) -> Action {
    Action::new(ActionKey::new(key).expect("the suite only makes good keys"))
}

pub(super) fn on_resource(key: &str, resource: &str) -> Action {
    action(key).resource(ResourceId::new(resource).expect("the suite only makes good names"))
}

impl Stage {
    pub(super) fn new(cx: Context) -> Result<Self, Verdict> {
        let start = Timestamp::EPOCH.saturating_add(Duration::from_secs(1_000_000_000));
        Stage::at_time(cx, start)
    }

    pub(super) fn at_time(cx: Context, start: Timestamp) -> Result<Self, Verdict> {
        let guard = cx.guard();
        Ok(Stage { cx, clock: Arc::new(ManualClock::new(start)), guard })
    }

    /// A client on a handle of its own.
    pub(super) async fn seat(&self, name: &str) -> Result<Seat, Verdict> {
        let fault = Fault::new(self.cx.open().await?);
        let faults = fault.faults();
        let backend = Arc::new(StoreClock::new(fault, self.clock.clone()));
        let store = self.cx.effects(backend, effect_seat(self.clock.clone(), name)).await?;
        Ok(Seat { store, faults })
    }

    pub(super) fn options(&self) -> RunOptions {
        RunOptions::default()
            .ttl(TTL)
            .margin(MARGIN)
            .clock(self.clock.clone())
            .settle_for(Duration::from_secs(600))
    }

    /// A run in a task: aborting it drops the run.
    pub(super) fn run(&self, seat: &Seat, action: Action, options: RunOptions, act: Act) -> JoinHandle<Ran> {
        let (guard, store) = (self.guard.clone(), seat.store.clone());
        tokio::spawn(async move { guard.run(store, action, options, act).await })
    }

    /// Waits, in real time, until something is so.
    pub(super) async fn until<T, F: Future<Output = Result<Option<T>, Verdict>>>(
        &self,
        what: &str,
        mut look: impl FnMut() -> F,
    ) -> Result<T, Verdict> {
        let begin = self.cx.elapsed();
        loop {
            if let Some(seen) = look().await? {
                return Ok(seen);
            }
            if self.cx.elapsed() - begin > self.cx.patience() {
                fail!("waited in vain until {what}");
            }
            breathe().await;
        }
    }

    /// What a run ends with, while nobody moves the clock.
    pub(super) async fn outcome(&self, run: &mut JoinHandle<Ran>) -> Result<Ran, Verdict> {
        match tokio::time::timeout(self.cx.patience(), run).await {
            Ok(joined) => joined.at("the task of a run"),
            Err(_) => fail!("waited in vain for the end of a run"),
        }
    }

    /// What a run ends with, while the clock goes on; but never so fast that a lease that is kept alive would be lost.
    pub(super) async fn pump(
        &self,
        run: &mut JoinHandle<Ran>,
        holder: Option<&dyn Given>,
    ) -> Result<Ran, Verdict> {
        let begin = self.cx.elapsed();
        while !run.is_finished() {
            if self.cx.elapsed() - begin > self.cx.patience() {
                fail!("waited in vain for the end of a run");
            }
            if holder.is_none_or(|given| given.remaining() > TRUSTED / 2) {
                self.clock.advance(Duration::from_millis(100));
            }
            breathe().await;
        }
        run.await.at("the task of a run")
    }

    pub(super) async fn status(&self, seat: &Seat, action: &Action) -> Result<ActionStatus, Verdict> {
        match seat.store.get(&action.key).await.at("reading an action")? {
            Some(status) => Ok(status),
            None => fail!("saw no action {}", action.key),
        }
    }

    /// Waits until the action is in this state.
    pub(super) async fn until_state(
        &self,
        seat: &Seat,
        action: &Action,
        state: ActionState,
    ) -> Result<ActionStatus, Verdict> {
        self.until(&format!("{} is {state}", action.key), || async {
            let status = seat.store.get(&action.key).await?;
            Ok(status.filter(|status| status.state == state))
        })
        .await
    }

    pub(super) async fn history(&self, seat: &Seat, action: &Action) -> Result<History, Verdict> {
        match seat.store.history(&action.key).await.at("reading a history")? {
            Some(history) => Ok(history),
            None => fail!("saw no history of {}", action.key),
        }
    }

    /// How often such a transition happened.
    pub(super) async fn transitions(
        &self,
        seat: &Seat,
        action: &Action,
        kind: TransitionKind,
    ) -> Result<usize, Verdict> {
        let history = self.history(seat, action).await?;
        Ok(history.transitions.iter().filter(|transition| transition.kind == kind).count())
    }
}

pub(super) fn effect_seat(clock: Arc<ManualClock>, name: &str) -> EffectSeat {
    EffectSeat {
        // The store itself waits between two tries: shortly, but really.
        clock: Arc::new(SeatClock::new(clock, 0, Duration::from_millis(1))),
        max_clock_skew: SKEW,
        agent: AgentId::new(name).expect("the suite only makes good names"),
    }
}

/// What a closure is told to do.
pub(super) enum Word {
    Return(Result<Bytes, Failure<String>>),
    Panic,
}

impl Word {
    pub(super) fn value(text: &'static str) -> Word {
        Word::Return(Ok(Bytes::from_static(text.as_bytes())))
    }

    pub(super) fn unknown() -> Word {
        Word::Return(Err(Failure::Unknown("nobody knows".to_owned())))
    }

    pub(super) fn not_applied() -> Word {
        Word::Return(Err(Failure::NotApplied("nothing was done".to_owned())))
    }
}

/// A closure on strings.
pub(super) struct Puppet {
    began: oneshot::Receiver<Arc<dyn Given>>,
    say: Option<oneshot::Sender<Word>>,
    gone: oneshot::Receiver<()>,
}

/// A closure that says that it has begun, and then waits for its word.
pub(super) fn puppet() -> (Act, Puppet) {
    let (begin, began) = oneshot::channel();
    let (say, word) = oneshot::channel();
    let (go, gone) = oneshot::channel::<()>();
    let act: Act = Box::new(move |given| {
        Box::pin(async move {
            // Dropped with this future.
            let _go = go;
            let _ = begin.send(given);
            match word.await {
                Ok(Word::Return(returned)) => returned,
                // Without the words and the backtrace of a panic that nobody wanted.
                Ok(Word::Panic) => std::panic::resume_unwind(Box::new("told to")),
                Err(_) => std::future::pending().await,
            }
        })
    });
    (act, Puppet { began, say: Some(say), gone })
}

impl Puppet {
    pub(super) async fn began(&mut self, stage: &Stage) -> Result<Arc<dyn Given>, Verdict> {
        match tokio::time::timeout(stage.cx.patience(), &mut self.began).await {
            Ok(Ok(given)) => Ok(given),
            Ok(Err(_)) => fail!("saw the closure dropped before it was polled"),
            Err(_) => fail!("waited in vain until the closure was polled"),
        }
    }

    /// Waits until the closure is dropped, which never began.
    pub(super) async fn never_began(&mut self, stage: &Stage) -> Result<(), Verdict> {
        match tokio::time::timeout(stage.cx.patience(), &mut self.began).await {
            Ok(Ok(_)) => fail!("saw the closure polled"),
            Ok(Err(_)) => Ok(()),
            Err(_) => fail!("waited in vain until the closure was dropped"),
        }
    }

    pub(super) fn say(&mut self, word: Word) {
        if let Some(say) = self.say.take() {
            // A closure that was dropped hears nothing; the clause sees what comes of that.
            let _ = say.send(word);
        }
    }

    /// Waits until the future of the closure is dropped.
    pub(super) async fn gone(&mut self, stage: &Stage) -> Result<(), Verdict> {
        match tokio::time::timeout(stage.cx.patience(), &mut self.gone).await {
            Ok(_) => Ok(()),
            Err(_) => fail!("waited in vain until the future of the closure was dropped"),
        }
    }
}
