//! One run of a plain guard.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use coord_core::Bytes;
use coord_core::effects::{
    Action, ActionKey, ActionState, Completed, Doubt, EffectError, EffectStore, Episode, Failure, Holder,
    Lease, Note, OnDrop, Outcome, Replay, Resolution, RunOptions, RunOutcome, Uncertain, Wait,
};
use futures::FutureExt as _;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::super::WrongGuard;
use super::hold::{Hold, Stopper};
use super::{PlainGuard, breathe, may_pass};
use crate::guard::{Act, Given as _, Ran};

tokio::task_local! {
    static KEYS: Vec<ActionKey>;
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const LEFT: u8 = 2;

/// Tells that the caller has left before the closure began.
struct Caller(Arc<AtomicU8>);

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.0.compare_exchange(WAITING, LEFT, Ordering::SeqCst, Ordering::SeqCst);
    }
}

struct Run {
    guard: PlainGuard,
    store: Arc<dyn EffectStore>,
    action: Action,
    options: RunOptions,
    keys: Vec<ActionKey>,
}

enum Ended {
    Said(Result<Bytes, Failure<String>>),
    Panicked,
    NotBegun,
}

pub(super) async fn run(
    guard: PlainGuard,
    store: Arc<dyn EffectStore>,
    action: Action,
    options: RunOptions,
    act: Act,
) -> Ran {
    let keys = KEYS.try_with(Clone::clone).unwrap_or_default();
    let state = Arc::new(AtomicU8::new(WAITING));
    let _caller = Caller(state.clone());
    let (answer, answered) = oneshot::channel();
    let task = tokio::spawn(Run { guard, store, action, options, keys }.drive(act, state, answer));
    let _dies = guard.is(WrongGuard::DiesWithCaller).then(|| Kill(task.abort_handle()));
    match answered.await {
        Ok(ran) => ran,
        Err(_) => Err(EffectError::LeaseLost),
    }
}

struct Kill(tokio::task::AbortHandle);

impl Drop for Kill {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn earlier(info: Uncertain) -> Ran {
    Ok(RunOutcome::Uncertain { episode: Ok(info.episode), doubt: Doubt::Earlier(info) })
}

impl Run {
    fn is(&self, wrong: WrongGuard) -> bool {
        self.guard.is(wrong)
    }

    fn now(&self) -> Duration {
        self.options.clock.monotonic()
    }

    async fn drive(self, act: Act, state: Arc<AtomicU8>, answer: oneshot::Sender<Ran>) {
        if self.is(WrongGuard::ActsFirst) {
            return self.act_first(act, answer).await;
        }
        let (lease, sent) = match self.obtain(&answer).await {
            Ok(granted) => granted,
            Err(ran) => return drop(answer.send(ran)),
        };
        let hold = Arc::new(Hold::new(self.guard, &self.options, lease.clone(), sent));
        let stop = Arc::new(AtomicBool::new(false));
        let stopper = Stopper(stop.clone());
        if !self.is(WrongGuard::RenewsInClosure) {
            let (hold, store, stop) = (hold.clone(), self.store.clone(), stop.clone());
            tokio::spawn(async move { hold.keep(&*store, sent, &stop).await });
        }
        let shutdown = Shutdown(&self, &lease, Arc::new(AtomicBool::new(false)));
        let (abort, aborted) = oneshot::channel::<()>();
        let mut ended = self.begin(act, &hold, state.clone(), aborted, sent, stop);
        let ran = match self.attend(&state, &mut ended, &answer, &stopper).await {
            Some(ended) => self.settle(&lease, &hold, ended).await,
            None => {
                let left = answer.is_closed();
                if !self.is(WrongGuard::LimitWithoutSignal) {
                    hold.lose();
                }
                // Dropped now, or once the closure has ended.
                let abort = (!left || self.is(WrongGuard::AbortsNothing)).then_some(abort);
                let episode = self.give_up(&lease, left).await;
                let _ = answer.send(Ok(RunOutcome::Uncertain { episode, doubt: Doubt::TimedOut }));
                match ended.await {
                    Ok(Ended::Said(Ok(value))) if !self.is(WrongGuard::DropsValueAfterLimit) => {
                        let _ = self.complete(&lease, &value).await;
                    }
                    Ok(Ended::Said(Err(Failure::NotApplied(_)))) => drop(self.abandon(&lease).await),
                    _ => {}
                }
                drop(abort);
                return shutdown.settled();
            }
        };
        shutdown.settled();
        let _ = answer.send(ran);
    }

    /// Says that nobody knows, because the time is over or the caller has left.
    async fn give_up(&self, lease: &Lease, left: bool) -> Result<Episode, EffectError> {
        if self.is(if left { WrongGuard::AbortWritesNothing } else { WrongGuard::LimitWritesNothing }) {
            return Ok(Episode::new(1, 1));
        }
        if self.is(WrongGuard::AbandonsOnLimit) {
            return self.abandon(lease).await.map(|()| Episode::new(1, 1));
        }
        self.mark(lease).await
    }

    /// Waits for the end of the closure; `None` at the time limit, or if it is to be aborted.
    async fn attend(
        &self,
        state: &AtomicU8,
        ended: &mut oneshot::Receiver<Ended>,
        answer: &oneshot::Sender<Ran>,
        stopper: &Stopper,
    ) -> Option<Ended> {
        let begin = self.now();
        loop {
            match ended.try_recv() {
                Ok(ended) => return Some(ended),
                Err(TryRecvError::Closed) => return Some(Ended::Panicked),
                Err(TryRecvError::Empty) => {}
            }
            let begun = state.load(Ordering::SeqCst) == BEGUN;
            if answer.is_closed() && begun {
                if self.is(WrongGuard::DropAbandonsAfterStart) {
                    return Some(Ended::NotBegun);
                }
                if self.is(WrongGuard::DetachedNotRenewed) {
                    stopper.0.store(true, Ordering::SeqCst);
                }
                if self.options.on_drop == OnDrop::Abort {
                    return None;
                }
            }
            if begun && self.options.time_limit.is_some_and(|limit| self.now() >= begin + limit) {
                return None;
            }
            breathe().await;
        }
    }

    /// Starts the closure on a thread of its own.
    fn begin(
        &self,
        act: Act,
        hold: &Arc<Hold>,
        state: Arc<AtomicU8>,
        aborted: oneshot::Receiver<()>,
        sent: Duration,
        stop: Arc<AtomicBool>,
    ) -> oneshot::Receiver<Ended> {
        let (end, ended) = oneshot::channel();
        let (guard, hold, store) = (self.guard, hold.clone(), self.store.clone());
        let mut keys = self.keys.clone();
        keys.push(self.action.key.clone());
        let outlives = self.is(WrongGuard::OutlivesRuntime);
        let body = KEYS.scope(keys, async move {
            let too_late = hold.is_lost() && !guard.is(WrongGuard::BeginsTooLate);
            let begins = state.compare_exchange(WAITING, BEGUN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
                || guard.is(WrongGuard::UnpolledBegins);
            if too_late || !begins {
                drop(act);
                let _ = end.send(Ended::NotBegun);
                return;
            }
            let acting = AssertUnwindSafe(act(hold.clone())).catch_unwind();
            let beside = async {
                if guard.is(WrongGuard::RenewsInClosure) {
                    hold.keep(&*store, sent, &stop).await;
                }
                std::future::pending::<()>().await;
            };
            let aborted = async {
                if aborted.await.is_err() && outlives {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                () = aborted => {}
                said = acting => drop(end.send(said.map_or(Ended::Panicked, Ended::Said))),
                () = beside => {}
            }
        });
        let handle = tokio::runtime::Handle::current();
        if self.is(WrongGuard::RenewsInClosure) {
            tokio::spawn(body);
        } else {
            std::thread::spawn(move || handle.block_on(body));
        }
        ended
    }

    /// The lease and when it was asked for, or what the run ends with.
    async fn obtain(&self, answer: &oneshot::Sender<Ran>) -> Result<(Lease, Duration), Ran> {
        let begin = self.now();
        loop {
            let sent = self.now();
            let holder = match self.store.acquire(&self.action, self.options.ttl).await {
                Err(error) => return Err(Err(error)),
                Ok(Outcome::Granted(lease)) => return Ok((lease, sent)),
                Ok(Outcome::Completed(completed)) => return Err(Ok(RunOutcome::Replayed(completed))),
                Ok(Outcome::Uncertain(info)) if self.is(WrongGuard::RetriesUncertain) => {
                    self.allow(&info).await.map_err(Err)?;
                    continue;
                }
                Ok(Outcome::Uncertain(info)) => return Err(earlier(info)),
                Ok(Outcome::InFlight(holder)) => {
                    if let Wait::ForOutcome(limit) = self.options.wait
                        && !self.is_own(&holder)
                        && !self.is(WrongGuard::WaitingAcquires)
                    {
                        return Err(self.outcome(holder, limit, answer).await);
                    }
                    RunOutcome::InFlight(holder)
                }
                Ok(Outcome::Contended(holder)) => RunOutcome::Contended(holder),
            };
            let limit = match self.options.wait {
                Wait::ForTurn(_) if self.is(WrongGuard::TurnDoesNotWait) => Duration::ZERO,
                Wait::ForTurn(limit) => limit,
                Wait::ForOutcome(limit) if self.is(WrongGuard::WaitingAcquires) => limit,
                Wait::ForOutcome(limit) if self.is(WrongGuard::WaitsForResource) => limit,
                _ => Duration::ZERO,
            };
            let own =
                matches!(&holder, RunOutcome::InFlight(by) | RunOutcome::Contended(by) if self.is_own(by));
            if own || self.now() >= begin + limit || answer.is_closed() {
                return Err(Ok(holder));
            }
            if self.is(WrongGuard::TurnNeverComes) {
                while self.now() < begin + limit {
                    breathe().await;
                }
                return Err(Ok(holder));
            }
            breathe().await;
        }
    }

    fn is_own(&self, holder: &Holder) -> bool {
        self.keys.contains(&holder.key) && !self.is(WrongGuard::NestedWaits)
    }

    async fn allow(&self, info: &Uncertain) -> Result<(), EffectError> {
        let reason = Note::truncated("it may be done twice");
        let retry = Resolution::AllowRetry { reason: reason.clone() };
        self.store.resolve(&self.action, info.episode, &retry, &reason).await.map(drop)
    }

    async fn outcome(&self, holder: Holder, limit: Duration, answer: &oneshot::Sender<Ran>) -> Ran {
        let begin = self.now();
        while self.now() < begin + limit || self.is(WrongGuard::WaitsForEver) {
            if answer.is_closed() {
                break;
            }
            let status = self.store.get(&self.action.key).await?;
            let Some(status) = status else { break };
            match (status.state, status.uncertain, status.completed, status.replay) {
                (ActionState::Completed, _, Some(kept), Some(replay)) => {
                    return Ok(RunOutcome::Replayed(Completed::new(replay, kept.at, kept.maybe_twice)));
                }
                (ActionState::Uncertain, Some(info), _, _) if !self.is(WrongGuard::WaitSeesNoDoubt) => {
                    return earlier(info);
                }
                (ActionState::Idle, ..) => break,
                _ => breathe().await,
            }
        }
        Ok(RunOutcome::InFlight(holder))
    }

    async fn settle(&self, lease: &Lease, hold: &Hold, ended: Ended) -> Ran {
        let doubt = match ended {
            Ended::Said(Ok(value)) if !(self.is(WrongGuard::DropsValueOnceLost) && hold.is_lost()) => {
                return self.value(value.clone(), self.complete(lease, &value).await);
            }
            Ended::Said(Err(Failure::NotApplied(error))) if !self.is(WrongGuard::MarksKnownFailure) => {
                return Ok(RunOutcome::Failed { error, withdrawn: self.abandon(lease).await });
            }
            Ended::NotBegun if self.is(WrongGuard::UnpolledMarks) => {
                self.mark(lease).await?;
                return Err(EffectError::LeaseLost);
            }
            Ended::NotBegun => {
                self.abandon(lease).await?;
                return Err(EffectError::LeaseLost);
            }
            Ended::Said(Ok(_)) => Doubt::TimedOut,
            Ended::Said(Err(Failure::NotApplied(error) | Failure::Unknown(error))) => Doubt::Error(error),
            Ended::Panicked => Doubt::Panicked("told to".to_owned()),
        };
        let withdraws = match &doubt {
            Doubt::Panicked(_) => self.is(WrongGuard::AbandonsOnPanic),
            _ => self.is(WrongGuard::AbandonsOnError),
        };
        let episode = if withdraws {
            self.abandon(lease).await.map(|()| Episode::new(1, 1))
        } else {
            self.mark(lease).await
        };
        Ok(RunOutcome::Uncertain { episode, doubt })
    }

    fn value(&self, value: Bytes, answer: Result<Completed, EffectError>) -> Ran {
        match answer {
            Ok(completed)
                if completed.result() == Some(&value) || self.is(WrongGuard::OtherValueIsExecuted) =>
            {
                Ok(RunOutcome::Executed { value, completed })
            }
            Ok(completed) => Ok(RunOutcome::Stale { value, instead: Ok(completed) }),
            Err(error) if may_pass(&error) => Ok(RunOutcome::Unsettled { value, error }),
            Err(error) if self.is(WrongGuard::StaleValueLost) => Err(error),
            Err(_) if self.is(WrongGuard::StaleIsExecuted) => {
                let completed =
                    Completed::new(Replay::Result(value.clone()), self.options.clock.now(), false);
                Ok(RunOutcome::Executed { value, completed })
            }
            Err(error) => Ok(RunOutcome::Stale { value, instead: Err(error) }),
        }
    }

    async fn complete(&self, lease: &Lease, value: &Bytes) -> Result<Completed, EffectError> {
        let begin = self.now();
        loop {
            match self.store.complete(&self.action, lease, value.clone()).await {
                Err(error)
                    if may_pass(&error)
                        && self.now() < begin + self.options.settle_for
                        && !self.is(WrongGuard::CompletesOnce) =>
                {
                    breathe().await;
                }
                settled => return settled,
            }
        }
    }

    async fn mark(&self, lease: &Lease) -> Result<Episode, EffectError> {
        loop {
            match self.store.mark_uncertain(&self.action, lease, &Note::truncated("nobody knows")).await {
                Err(error) if may_pass(&error) => breathe().await,
                settled => return settled,
            }
        }
    }

    async fn abandon(&self, lease: &Lease) -> Result<(), EffectError> {
        loop {
            match self.store.abandon(&self.action, lease, &Note::truncated("nothing was done")).await {
                Err(error) if may_pass(&error) => breathe().await,
                settled => return settled,
            }
        }
    }

    /// Wrong: does the action, and then asks whether it may. It renews once, as a right one does in the meantime.
    async fn act_first(self, act: Act, answer: oneshot::Sender<Ran>) {
        let known = self.store.get(&self.action.key).await;
        let done = matches!(&known, Ok(Some(status)) if status.state == ActionState::Completed);
        let granted = if done { self.obtain(&answer).await } else { Err(Err(EffectError::LeaseLost)) };
        if done {
            return drop(answer.send(granted.map_or_else(|ran| ran, |_| Err(EffectError::LeaseLost))));
        }
        // The closure wants a lease in hand, so it is given one that nobody has granted.
        let lease = Lease {
            action: self.action.clone(),
            token: coord_core::Token::mint(),
            fence: 1,
            until: self.options.clock.now(),
            downstream_key: String::new(),
        };
        let hour = Duration::from_secs(3_600);
        let hold = Arc::new(Hold::new(self.guard, &self.options, lease, self.now() + hour));
        let said = act(hold).await;
        let ran = match (self.obtain(&answer).await, said) {
            (Ok((lease, _)), Ok(value)) => {
                let _ = self.store.renew(&self.action, &lease, self.options.ttl).await;
                let kept = self.complete(&lease, &value).await;
                self.value(value, kept)
            }
            (Ok(_), Err(_)) => Err(EffectError::LeaseLost),
            (Err(ran), _) => ran,
        };
        let _ = answer.send(ran);
    }
}

/// What a task of a wrong guard does when its runtime drops it.
struct Shutdown<'a>(&'a Run, &'a Lease, Arc<AtomicBool>);

impl Shutdown<'_> {
    fn settled(&self) {
        self.2.store(true, Ordering::SeqCst);
    }
}

impl Drop for Shutdown<'_> {
    fn drop(&mut self) {
        let (abandons, marks) =
            (self.0.is(WrongGuard::ShutdownAbandons), self.0.is(WrongGuard::ShutdownMarks));
        if self.2.load(Ordering::SeqCst) || !(abandons || marks) {
            return;
        }
        let (store, lease) = (self.0.store.clone(), self.1.clone());
        let thread = std::thread::spawn(move || {
            let note = Note::truncated("the runtime shuts down");
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async {
                if abandons {
                    let _ = store.abandon(&lease.action, &lease, &note).await;
                } else {
                    let _ = store.mark_uncertain(&lease.action, &lease, &note).await;
                }
            });
        });
        let _ = thread.join();
    }
}
