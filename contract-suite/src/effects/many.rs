//! E09 again: actions that were attempted very often.

use coord_core::effects::{ActionState, EffectError, Outcome as Acquired, Resolution, limits};

use super::stage::{Stage, TTL, alone};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "E09.many",
    layer: Layer::Effects,
    promise: "abandoned attempts never fill an action; one that was ruled is never dropped, and when no other attempt fits, \
              acquire is Invalid and changes nothing",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(many(cx)),
}];

async fn many(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    // Abandoned as often as one likes.
    let action = alone("abandoned");
    let mut last = 0;
    for n in 0..limits::ATTEMPTS + 8 {
        let lease = a.grant(&action).await.at(format!("after {n} abandoned attempts"))?;
        ensure!(lease.fence > last, "saw the fence {} after {last}", lease.fence);
        last = lease.fence;
        a.abandon(&lease).await.at(format!("abandoning attempt {n}"))?;
    }
    let history = b.history(&action).await?;
    ensure_eq!(history.transitions.len(), limits::TRANSITIONS, "the transitions that are kept of very many");
    ensure!(history.dropped > 0, "saw no transition dropped of very many");
    // One that has brought evidence is not among those that are dropped.
    let lease = a.grant(&action).await?;
    a.abandon(&lease).await?;
    ensure_matches!(a.finish(&lease, "late").await, Err(EffectError::AttemptJudged { .. }), "late evidence");
    let episode = b.uncertain(&action).await?.episode;
    b.rule(&action, episode, &Resolution::NotApplied).await?;
    for _ in 0..limits::ABANDONED_ATTEMPTS + 2 {
        let next = a.grant(&action).await?;
        a.abandon(&next).await?;
    }
    let whole = b.raw_entries().await?;
    ensure_matches!(
        a.finish(&lease, "late").await,
        Err(EffectError::FenceStale { .. }),
        "the same evidence of an attempt of long ago"
    );
    b.same_entries(&whole, "the same evidence of an attempt of long ago").await?;
    // Ruled as often as fits.
    let action = alone("ruled");
    let mut leases = Vec::new();
    loop {
        ensure!(leases.len() <= limits::ATTEMPTS, "saw more than {} attempts granted", limits::ATTEMPTS);
        let whole = b.raw_entries().await?;
        match a.store.acquire(&action, TTL).await {
            Ok(Acquired::Granted(lease)) => {
                let episode = a.mark(&lease).await?;
                b.rule(&action, episode, &Resolution::NotApplied).await?;
                a.release(&lease).await?;
                leases.push(lease);
            }
            Err(EffectError::Invalid(_)) => {
                b.same_entries(&whole, "an attempt that did not fit").await?;
                break;
            }
            other => fail!("saw {other:?} after {} attempts that were ruled", leases.len()),
        }
    }
    ensure!(leases.len() >= 32, "saw only {} attempts fit", leases.len());
    ensure_eq!(b.state(&action).await?, ActionState::Idle, "the state of an action that is full");
    // All are known, the first as well as the last.
    for (n, answer) in [(0, a.finish(&leases[0], "first").await), (1, a.finish(&leases[1], "second").await)] {
        ensure_matches!(answer, Err(EffectError::FenceStale { .. }), "late evidence of attempt {n}");
    }
    let evidence: Vec<u64> = b.evidence(&action).await?.into_iter().map(|(fence, _)| fence).collect();
    ensure_eq!(evidence, [leases[0].fence, leases[1].fence], "the evidence of the first attempts");
    ensure_eq!(b.state(&action).await?, ActionState::Uncertain, "the state after late evidence");
    Ok(())
}
