//! One pass of a plain reconciler.

use std::sync::Arc;
use std::time::Duration;

use coord_core::Timestamp;
use coord_core::effects::{
    ActionStatus, EffectError, EffectStore, Finding, Inquiry, ListFilter, Note, Probe, ProbeError,
    ReconcilerOptions, Resolution,
};

use super::super::WrongGuard;
use super::{PlainGuard, breathe, may_pass};

pub(super) async fn pass(
    guard: PlainGuard,
    store: &dyn EffectStore,
    probe: &Arc<dyn Probe>,
    options: &ReconcilerOptions,
) -> Result<(), EffectError> {
    let age = match guard.wrong {
        Some(WrongGuard::ProbesAtOnce | WrongGuard::ProbesWithoutDelay) => Duration::ZERO,
        _ => options.settle,
    };
    let mut filter = ListFilter::overdue(age);
    loop {
        let page = store.list(&filter).await?;
        for status in page.actions {
            match settle(guard, store, probe, options, &status).await {
                Err(error) if !may_pass(&error) && !is_elsewhere(&error) => return Err(error),
                _ => {}
            }
        }
        let Some(next) = page.next else { return Ok(()) };
        filter = filter.after(Some(next));
    }
}

fn is_elsewhere(error: &EffectError) -> bool {
    matches!(
        error,
        EffectError::NotUncertain { .. }
            | EffectError::Reconciling { .. }
            | EffectError::EpisodeOver { .. }
            | EffectError::ReconcileLost { .. }
    )
}

async fn settle(
    guard: PlainGuard,
    store: &dyn EffectStore,
    probe: &Arc<dyn Probe>,
    options: &ReconcilerOptions,
    status: &ActionStatus,
) -> Result<(), EffectError> {
    let action = &status.action;
    let claim = store.begin_reconcile(action, options.claim_ttl).await?;
    let claimed = options.clock.monotonic();
    let held = claim.hold_until.unwrap_or_else(|| status.since.saturating_add(options.longest_hold));
    let due = match guard.wrong {
        Some(WrongGuard::ProbesAtOnce) => Timestamp::EPOCH,
        Some(WrongGuard::ProbesWithoutDelay) => held,
        Some(WrongGuard::DelayFromMark) => status.since.saturating_add(options.settle),
        _ => held.saturating_add(options.settle),
    };
    // The right was given for `claim_ttl` from the store's time then.
    let wait = due.saturating_add(options.claim_ttl).saturating_since(claim.until);
    while options.clock.monotonic() < claimed + wait {
        breathe().await;
    }
    let inquiry = Inquiry::new(action.clone(), claim.fence, claim.downstream_key.clone());
    let Some(finding) = ask(guard, probe, options, inquiry).await else { return Ok(()) };
    let (resolution, evidence) = match finding {
        Finding::Applied { .. } if guard.is(WrongGuard::ResultForgotten) => {
            (Resolution::Applied(coord_core::Bytes::new()), Note::truncated("seen in the ledger"))
        }
        Finding::Applied { result, evidence } => (Resolution::Applied(result), evidence),
        Finding::NotApplied { evidence } => (Resolution::NotApplied, evidence),
        Finding::Unknown if guard.is(WrongGuard::UnknownIsNotApplied) => {
            (Resolution::NotApplied, Note::default())
        }
        Finding::Unknown => return Ok(()),
    };
    let evidence = if guard.is(WrongGuard::EvidenceForgotten) { Note::default() } else { evidence };
    let mut episode = claim.episode;
    if guard.is(WrongGuard::RulesCurrentEpisode)
        && let Some(info) = store.get(&action.key).await?.and_then(|status| status.uncertain)
    {
        episode = info.episode;
    }
    if matches!(guard.wrong, Some(WrongGuard::RulesWithoutRight | WrongGuard::RulesCurrentEpisode)) {
        store.resolve(action, episode, &resolution, &evidence).await.map(drop)
    } else {
        store.resolve_owned(action, episode, &resolution, &evidence, &claim.token).await.map(drop)
    }
}

/// What the probe finds; `None` if it can tell nothing.
async fn ask(
    guard: PlainGuard,
    probe: &Arc<dyn Probe>,
    options: &ReconcilerOptions,
    inquiry: Inquiry,
) -> Option<Finding> {
    let probe = probe.clone();
    let sealing = if guard.is(WrongGuard::SealsWithOwnFence) {
        Inquiry::new(inquiry.action.clone(), inquiry.fence - 1, inquiry.downstream_key.clone())
    } else {
        inquiry.clone()
    };
    let asking = tokio::spawn(async move {
        let first = !matches!(guard.wrong, Some(WrongGuard::NeverSeals | WrongGuard::SealsAfterLook));
        if first {
            let sealed = probe.seal(&sealing).await;
            if !guard.is(WrongGuard::LooksUnsealed) {
                sealed?;
            }
        }
        let found = probe.look(&inquiry).await;
        if guard.is(WrongGuard::SealsAfterLook) {
            probe.seal(&sealing).await?;
        }
        found
    });
    let begin = options.clock.monotonic();
    while !asking.is_finished() {
        if options.clock.monotonic() >= begin + options.probe_limit
            && !guard.is(WrongGuard::ProbeWithoutLimit)
        {
            asking.abort();
            return None;
        }
        breathe().await;
    }
    let said: Result<Finding, ProbeError> = asking.await.unwrap_or_else(|error| Err(error.into()));
    match said {
        Ok(finding) => Some(finding),
        Err(_) if guard.is(WrongGuard::FailureIsNotApplied) => Some(Finding::not_applied("")),
        Err(_) => None,
    }
}
