//! G08: what a reconciler rules, and what it leaves alone.

use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    ActionState, EffectError, Finding, Inquiry, Lease, Note, Outcome as Acquired, Probe, ProbeError,
    Resolution, TransitionKind,
};
use coord_core::{Bytes, ManualClock, async_trait};

use super::probing::{Asked, SETTLE, attempt, finish, mark, pass, reconciler};
use super::stage::{Seat, Stage, TTL, action};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "G08",
        layer: Layer::Effects,
        promise: "a probe that says unknown, fails, panics or hangs changes nothing; what it finds is ruled and replayed",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(findings(cx)),
    },
    Clause {
        id: "G08.stale",
        layer: Layer::Effects,
        promise: "a finding counts only for the episode that was looked into, and only while the right to judge lasts",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(stale(cx)),
    },
];

#[derive(Clone, Copy, Debug)]
enum Mute {
    Unknown,
    Fails,
    Panics,
    Hangs,
}

#[async_trait]
impl Probe for Mute {
    async fn look(&self, _: &Inquiry) -> Result<Finding, ProbeError> {
        match self {
            Mute::Unknown => Ok(Finding::Unknown),
            Mute::Fails => Err("the ledger is away".into()),
            Mute::Panics => std::panic::resume_unwind(Box::new("told to")),
            Mute::Hangs => std::future::pending().await,
        }
    }
}

async fn findings(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let seat = stage.seat("operator").await?;
    for mute in [Mute::Unknown, Mute::Fails, Mute::Panics, Mute::Hangs] {
        let ours = action(&format!("{mute:?}"));
        let lease = attempt(&seat, &ours).await?;
        mark(&seat, &lease).await?;
        let before = stage.status(&seat, &ours).await?.uncertain.map(|info| info.episode);
        stage.clock.advance(TTL + SETTLE);
        let pass = pass(&stage, &seat, Arc::new(mute), reconciler(&stage));
        finish(&stage, pass, Duration::from_secs(1)).await.at(format!("{mute:?}"))?;
        let status = stage.status(&seat, &ours).await?;
        ensure_eq!(status.state, ActionState::Uncertain, "the action after the probe: {mute:?}");
        ensure_eq!(status.uncertain.map(|info| info.episode), before, "its episode: {mute:?}");
        // Out of the way of the next one.
        let Some(episode) = before else { fail!("saw no episode: {mute:?}") };
        let note = Note::truncated("the clause is done with it");
        seat.store.resolve(&ours, episode, &Resolution::NotApplied, &note).await?;
    }
    for (key, says, kind) in [
        ("applied", Finding::applied("receipt", "seen in the ledger"), TransitionKind::RuledApplied),
        ("not applied", Finding::not_applied("not in the ledger"), TransitionKind::RuledNotApplied),
    ] {
        attempt(&seat, &action(key)).await?;
        stage.clock.advance(TTL + SETTLE);
        let pass = pass(&stage, &seat, Arc::new(Asked::new(&stage, says)), reconciler(&stage));
        finish(&stage, pass, Duration::from_millis(10)).await.at(key)?;
        let history = stage.history(&seat, &action(key)).await?;
        let notes: Vec<&str> = history
            .transitions
            .iter()
            .filter(|transition| transition.kind == kind)
            .map(|transition| transition.note.as_str())
            .collect();
        ensure!(matches!(notes[..], [note] if note.contains("in the ledger")), "saw {notes:?}: {key}");
        match (seat.store.acquire(&action(key), TTL).await?, kind) {
            (Acquired::Granted(_), TransitionKind::RuledNotApplied) => {}
            (Acquired::Completed(completed), TransitionKind::RuledApplied) => {
                ensure_eq!(completed.result(), Some(&Bytes::from_static(b"receipt")), "what is replayed");
            }
            (other, _) => fail!("saw {other:?} of the next one: {key}"),
        }
    }
    Ok(())
}

/// While this probe looks, something happens.
struct Meanwhile {
    clock: Arc<ManualClock>,
    seat: Seat,
    /// A result of this attempt arrives.
    late: Option<Lease>,
    /// So much time passes.
    passes: Duration,
}

#[async_trait]
impl Probe for Meanwhile {
    async fn look(&self, _: &Inquiry) -> Result<Finding, ProbeError> {
        if let Some(lease) = &self.late {
            let answer = self.seat.store.complete(&lease.action, lease, Bytes::from_static(b"late")).await;
            if !matches!(answer, Err(EffectError::FenceStale { .. } | EffectError::AttemptJudged { .. })) {
                return Err(format!("the clause expected late evidence, not {answer:?}").into());
            }
        }
        self.clock.advance(self.passes);
        Ok(Finding::not_applied("not there"))
    }
}

async fn stale(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let seat = stage.seat("operator").await?;
    // Evidence of an earlier attempt reaches the key between the look and the ruling.
    let ours = action("evidence");
    let first = attempt(&seat, &ours).await?;
    mark(&seat, &first).await?;
    let Some(info) = stage.status(&seat, &ours).await?.uncertain else { fail!("saw no episode") };
    let note = Note::truncated("the clause says so");
    seat.store.resolve(&ours, info.episode, &Resolution::NotApplied, &note).await?;
    stage.clock.advance(TTL);
    let second = attempt(&seat, &ours).await?;
    mark(&seat, &second).await?;
    stage.clock.advance(TTL + SETTLE);
    let probe = Meanwhile {
        clock: stage.clock.clone(),
        seat: seat.clone(),
        late: Some(first),
        passes: Duration::ZERO,
    };
    let looking = pass(&stage, &seat, Arc::new(probe), reconciler(&stage));
    finish(&stage, looking, Duration::from_millis(10)).await.at("evidence arrives meanwhile")?;
    let status = stage.status(&seat, &ours).await?;
    ensure_eq!(status.state, ActionState::Uncertain, "an action of which evidence arrived during the look");
    ensure!(status.evidence > 0, "saw no evidence, so that nothing was tried");

    // The right to judge expires between the look and the ruling.
    let ours = action("expired");
    attempt(&seat, &ours).await?;
    stage.clock.advance(TTL + SETTLE);
    let options = reconciler(&stage);
    let probe = Meanwhile {
        clock: stage.clock.clone(),
        seat: seat.clone(),
        late: None,
        passes: options.claim_ttl + Duration::from_secs(1),
    };
    // The other one is claimed, and may be looked into again.
    let looking = pass(&stage, &seat, Arc::new(probe), options);
    finish(&stage, looking, Duration::from_millis(10)).await.at("the right expires meanwhile")?;
    let next = seat.store.acquire(&ours, TTL).await?;
    ensure_matches!(next, Acquired::Uncertain(_), "an action that was ruled without the right to");
    Ok(())
}
