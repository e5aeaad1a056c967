//! G09: when a reconciler looks, and where it seals.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::effects::{
    Action, ActionState, EffectError, Finding, Inquiry, Lease, Note, Outcome as Acquired, Probe, ProbeError,
    ReconcilerOptions,
};
use coord_core::{Clock, ManualClock, Timestamp, async_trait};
use tokio::task::JoinHandle;

use super::stage::{Seat, Stage, TTL, action, breathe};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "G09",
        layer: Layer::Effects,
        promise: "the probe is asked only once the settle delay has passed, counted from the end of the attempt's hold and not from when the action became \
                  uncertain; nothing is ruled before it",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(delay(cx)),
    },
    Clause {
        id: "G09.seal",
        layer: Layer::Effects,
        promise: "a probe that seals presents the attempt's fence + 1 before it looks; if that fails nobody looks",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(seal(cx)),
    },
];

pub(super) const SETTLE: Duration = Duration::from_secs(60);
const MARKED_AFTER: Duration = Duration::from_secs(5);

pub(super) fn reconciler(stage: &Stage) -> ReconcilerOptions {
    ReconcilerOptions::default()
        .settle(SETTLE)
        .longest_hold(TTL)
        .probe_limit(Duration::from_secs(20))
        .claim_ttl(Duration::from_secs(120))
        .concurrency(2)
        .clock(stage.clock.clone())
}

/// An attempt that nobody hears of again.
pub(super) async fn attempt(seat: &Seat, action: &Action) -> Result<Lease, Verdict> {
    match seat.store.acquire(action, TTL).await.at("acquiring")? {
        Acquired::Granted(lease) => Ok(lease),
        other => fail!("saw {other:?} of a new attempt"),
    }
}

pub(super) async fn mark(seat: &Seat, lease: &Lease) -> Outcome {
    let reason = Note::truncated("the clause says so");
    seat.store.mark_uncertain(&lease.action, lease, &reason).await.at("marking")?;
    Ok(())
}

pub(super) type Pass = JoinHandle<Result<(), EffectError>>;

/// One pass of a new reconciler, in a task.
pub(super) fn pass(stage: &Stage, seat: &Seat, probe: Arc<dyn Probe>, options: ReconcilerOptions) -> Pass {
    let (guard, store) = (stage.guard.clone(), seat.store.clone());
    tokio::spawn(async move { guard.reconcile(store, probe, options).await })
}

/// Waits for the end of a pass while the clock goes on by these steps.
pub(super) async fn finish(stage: &Stage, pass: Pass, step: Duration) -> Outcome {
    finish_while(stage, pass, step, || true).await
}

/// The same, while this is so; else the clock stands still.
async fn finish_while(stage: &Stage, mut pass: Pass, step: Duration, goes_on: impl Fn() -> bool) -> Outcome {
    let begin = stage.cx.elapsed();
    while !pass.is_finished() {
        ensure!(stage.cx.elapsed() - begin < stage.cx.patience(), "waited in vain for the end of a pass");
        if goes_on() {
            stage.clock.advance(step);
        }
        breathe().await;
    }
    (&mut pass).await.at("the task of a reconciler")?.at("a pass")
}

/// What a probe was asked, in order.
#[derive(Debug)]
pub(super) struct Asked {
    clock: Arc<ManualClock>,
    pub(super) calls: Mutex<Vec<(&'static str, Timestamp, u64)>>,
    says: Finding,
    seals: bool,
}

impl Asked {
    pub(super) fn new(stage: &Stage, says: Finding) -> Self {
        Asked { clock: stage.clock.clone(), calls: Mutex::default(), says, seals: true }
    }

    fn note(&self, what: &'static str, fence: u64) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push((what, self.clock.now(), fence));
    }

    pub(super) fn calls(&self) -> Vec<(&'static str, Timestamp, u64)> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Probe for Asked {
    async fn seal(&self, inquiry: &Inquiry) -> Result<(), ProbeError> {
        self.note("seal", inquiry.sealing_fence());
        if self.seals { Ok(()) } else { Err("the resource is away".into()) }
    }

    async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError> {
        self.note("look", inquiry.fence);
        Ok(self.says.clone())
    }
}

async fn delay(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let seat = stage.seat("operator").await?;
    for (key, marked) in [("lapsed", false), ("marked", true)] {
        let lease = attempt(&seat, &action(key)).await?;
        if marked {
            stage.clock.advance(MARKED_AFTER);
            mark(&seat, &lease).await?;
        }
        let due = lease.until.saturating_add(SETTLE);
        let probe = Arc::new(Asked::new(&stage, Finding::not_applied("not there")));
        let begin = stage.cx.elapsed();
        // A pass that the clock has overtaken has lost its right to judge, and leaves the action to the next one.
        while stage.status(&seat, &action(key)).await?.state != ActionState::Idle {
            ensure!(stage.cx.elapsed() - begin < stage.cx.patience(), "waited in vain for a ruling on {key}");
            let (pass, asked) = (pass(&stage, &seat, probe.clone(), reconciler(&stage)), probe.calls().len());
            // While it rules, the clock stands still.
            finish_while(&stage, pass, Duration::from_millis(500), || probe.calls().len() == asked)
                .await
                .at(key)?;
            stage.clock.advance(Duration::from_millis(500));
        }
        ensure!(!probe.calls().is_empty(), "saw a ruling on {key} without a look");
        for (what, at, _) in probe.calls() {
            ensure!(at >= due, "saw the probe asked to {what} at {at}, which is before {due}: {key}");
        }
        stage.clock.advance(TTL);
    }
    Ok(())
}

async fn seal(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let seat = stage.seat("operator").await?;
    for (key, seals) in [("sealed", true), ("not sealed", false)] {
        let lease = attempt(&seat, &action(key)).await?;
        stage.clock.advance(TTL + SETTLE);
        let mut probe = Asked::new(&stage, Finding::not_applied("not there"));
        probe.seals = seals;
        let probe = Arc::new(probe);
        let pass = pass(&stage, &seat, probe.clone(), reconciler(&stage));
        finish(&stage, pass, Duration::from_millis(10)).await.at(key)?;
        let calls: Vec<_> = probe.calls().into_iter().map(|(what, _, fence)| (what, fence)).collect();
        let mut expected = vec![("seal", lease.fence + 1), ("look", lease.fence)];
        expected.truncate(if seals { 2 } else { 1 });
        ensure_eq!(calls, expected, "what the probe was asked, and with which fences: {key}");
        let state = if seals { ActionState::Idle } else { ActionState::Uncertain };
        ensure_eq!(stage.status(&seat, &action(key)).await?.state, state, "{key}");
    }
    Ok(())
}
