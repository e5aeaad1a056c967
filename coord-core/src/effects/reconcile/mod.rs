//! Settles uncertain actions by itself, with a probe that looks downstream.

mod options;
mod probe;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};

pub use options::ReconcilerOptions;
pub use probe::{Finding, Inquiry, Probe, ProbeError};

use super::guard::is_transient;
use super::{
    Action, ActionKey, ActionState, ActionStatus, EffectError, EffectStore, ListFilter, Reconciliation,
    Resolution, RulingKind,
};
use crate::cas::Backoff;
use crate::clock::Timestamp;
use crate::token;

/// What a pass of a [`Reconciler`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconcileReport {
    /// Actions that were uncertain or lapsed for long enough.
    pub listed: usize,
    /// Ruled to have been done.
    pub applied: usize,
    /// Ruled not to have been done.
    pub not_applied: usize,
    /// The probe could not tell, failed, or took too long.
    pub unknown: usize,
    /// Too early to look, or to look again.
    pub not_yet: usize,
    /// Somebody else looks into it, or has judged it.
    pub elsewhere: usize,
    /// The store failed.
    pub failed: usize,
    /// Actions whose records cannot be read, in whatever state they are.
    pub damaged: usize,
}

/// How one action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Ruled(RulingKind),
    Unknown,
    /// Not before so long from now.
    NotYet(Duration),
    Elsewhere,
    Failed,
}

/// Settles uncertain actions: lists those that have been so for long enough, claims the right to judge each, asks the probe, and rules what it found. Any
/// number of reconcilers may work on one store; an action is looked into by one at a time.
///
/// The settle delay is counted from the end of the attempt's hold, in the store's time, of which the reconciler always assumes the earliest that it
/// can be. A probe that says unknown, fails, panics or takes too long changes nothing, and is asked again later.
///
/// ```
/// use std::sync::Arc;
/// use coord_core::effects::{
///     EffectAdapter, EffectOptions, Finding, Inquiry, Probe, ProbeError, Reconciler, ReconcilerOptions,
/// };
/// # use coord_core::{Namespace, async_trait};
/// # use coord_memory::MemoryStore;
/// # struct Ledger;
/// # #[async_trait]
/// # impl Probe for Ledger {
/// #     async fn look(&self, _: &Inquiry) -> Result<Finding, ProbeError> { Ok(Finding::Unknown) }
/// # }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let backend = MemoryStore::new().open(&Namespace::new("shop")?);
/// let effects = Arc::new(EffectAdapter::open(backend, EffectOptions::default()).await?);
/// let reconciler = Reconciler::new(effects, Arc::new(Ledger), ReconcilerOptions::default())?;
/// let report = reconciler.run_once().await?;
/// assert_eq!(report.listed, 0);
/// # Ok::<(), coord_core::effects::EffectError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Reconciler {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn EffectStore>,
    probe: Arc<dyn Probe>,
    options: ReconcilerOptions,
    memory: Mutex<Memory>,
}

/// What is kept between two passes; nothing is lost with it.
#[derive(Default)]
struct Memory {
    /// The store's time less our monotonic time, at least: what the last claim taught.
    ahead: Option<Duration>,
    later: HashMap<ActionKey, Later>,
}

#[derive(Clone, Copy)]
struct Later {
    not_before: Duration,
    pause: Duration,
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler")
            .field("store", &self.inner.store)
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl Reconciler {
    /// A reconciler of this store with this probe.
    ///
    /// # Errors
    /// [`EffectError::Invalid`] if the right to judge is claimed for less time than sealing and looking may take, or if nothing may be
    /// looked into at all.
    pub fn new(
        store: Arc<dyn EffectStore>,
        probe: Arc<dyn Probe>,
        options: ReconcilerOptions,
    ) -> Result<Self, EffectError> {
        if options.claim_ttl <= options.probe_limit.saturating_mul(2) {
            return Err(EffectError::Invalid(format!(
                "the right to judge is claimed for {:?}, and looking may take twice {:?}",
                options.claim_ttl, options.probe_limit
            )));
        }
        if options.concurrency == 0 {
            return Err(EffectError::Invalid("no action may be looked into at a time".into()));
        }
        Ok(Reconciler { inner: Arc::new(Inner { store, probe, options, memory: Mutex::default() }) })
    }

    /// One pass over all actions that are overdue. Dropped, it stops looking; rights that it claimed expire by themselves.
    ///
    /// # Errors
    /// Those of [`list`](EffectStore::list). What goes wrong with one action is counted and logged, and does not end the pass.
    pub async fn run_once(&self) -> Result<ReconcileReport, EffectError> {
        let Inner { store, options, .. } = &*self.inner;
        let mut report = ReconcileReport::default();
        let mut seen = HashSet::new();
        let (mut tasks, mut keys) = (JoinSet::new(), HashMap::new());
        let mut filter = ListFilter::overdue(options.settle);
        loop {
            let page = store.list(&filter).await?;
            for key in &page.damaged {
                tracing::warn!(%key, "an action cannot be read");
            }
            report.damaged += page.damaged.len();
            for status in page.actions {
                report.listed += 1;
                seen.insert(status.action.key.clone());
                if self.inner.is_early(&status) {
                    report.not_yet += 1;
                    continue;
                }
                while tasks.len() >= options.concurrency {
                    self.reap(&mut tasks, &mut keys, &mut report).await;
                }
                let (inner, key) = (self.inner.clone(), status.action.key.clone());
                let task = tasks.spawn(async move { inner.settle(status).await });
                keys.insert(task.id(), key);
            }
            let Some(next) = page.next else { break };
            filter = filter.after(Some(next));
        }
        while !tasks.is_empty() {
            self.reap(&mut tasks, &mut keys, &mut report).await;
        }
        self.inner.lock().later.retain(|key, _| seen.contains(key));
        Ok(report)
    }

    /// Passes, with rests in between, until `shutdown` ends. What is under way is then dropped: nothing is half ruled, and rights that were claimed
    /// expire by themselves. A store that is away is waited for.
    pub async fn run_until(&self, shutdown: impl Future<Output = ()>) {
        let options = &self.inner.options;
        let passes = async {
            loop {
                let rest = match self.run_once().await {
                    Ok(_) => options.interval,
                    Err(error) => {
                        tracing::warn!(%error, "uncertain actions could not be listed");
                        options.interval.max(options.first_pause)
                    }
                };
                options.clock.sleep(jittered(rest)).await;
            }
        };
        tokio::select! {
            biased;
            () = shutdown => {}
            () = passes => {}
        }
    }

    /// Waits for one of the actions that are looked into.
    async fn reap(
        &self,
        tasks: &mut JoinSet<Ending>,
        keys: &mut HashMap<Id, ActionKey>,
        report: &mut ReconcileReport,
    ) {
        let Some(joined) = tasks.join_next_with_id().await else { return };
        let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(key) = keys.remove(&id) else { return };
        let ending = match joined {
            Ok((_, ending)) => ending,
            Err(error) => {
                tracing::warn!(%key, %error, "a probe panicked");
                Ending::Unknown
            }
        };
        match ending {
            Ending::Ruled(RulingKind::Applied) => report.applied += 1,
            Ending::Ruled(_) => report.not_applied += 1,
            Ending::Unknown => report.unknown += 1,
            Ending::NotYet(_) => report.not_yet += 1,
            Ending::Elsewhere => report.elsewhere += 1,
            Ending::Failed => report.failed += 1,
        }
        self.inner.remember(key, ending);
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is certainly too early to claim the right to judge this: nobody else could look meanwhile.
    fn is_early(&self, status: &ActionStatus) -> bool {
        let now = self.options.clock.monotonic();
        let memory = self.lock();
        if memory.later.get(&status.action.key).is_some_and(|later| now < later.not_before) {
            return true;
        }
        let (Some(ahead), Some(until)) = (memory.ahead, status.hold_until) else { return false };
        let due = micros(until).saturating_add(self.options.settle);
        // What is due soon is waited for with the right to judge in hand.
        status.state == ActionState::Uncertain
            && due > ahead.saturating_add(now).saturating_add(self.patience())
    }

    /// How long a claim may wait before the probe is asked.
    fn patience(&self) -> Duration {
        (self.options.claim_ttl.saturating_sub(self.options.probe_limit * 2)) / 2
    }

    fn remember(&self, key: ActionKey, ending: Ending) {
        let Inner { options, .. } = self;
        let now = options.clock.monotonic();
        let mut memory = self.lock();
        let pause = memory
            .later
            .get(&key)
            .map_or(options.first_pause, |later| later.pause.saturating_mul(2))
            .min(options.longest_pause);
        let (wait, pause) = match ending {
            Ending::NotYet(wait) => (wait, options.first_pause / 2),
            _ => (jittered(pause), pause),
        };
        memory.later.insert(key, Later { not_before: now.saturating_add(wait), pause });
    }

    async fn settle(&self, status: ActionStatus) -> Ending {
        let Inner { store, probe, options, .. } = self;
        let (clock, action) = (&*options.clock, status.action);
        let claim = match store.begin_reconcile(&action, options.claim_ttl).await {
            Ok(claim) => claim,
            Err(error) => return ending_of(&action, &error),
        };
        let claimed = clock.monotonic();
        // The store judged before it answered, so at this instant its time is at least this.
        let now = micros(claim.until).saturating_sub(options.claim_ttl);
        self.lock().ahead = Some(now.saturating_sub(claimed));
        let due = match self.hold_end(&action, &claim).await {
            Ok(end) => micros(end).saturating_add(options.settle),
            Err(ending) => return ending,
        };
        let at = claimed.saturating_add(due.saturating_sub(now));
        let wait = at.saturating_sub(clock.monotonic());
        if wait > self.patience() {
            return Ending::NotYet(wait);
        }
        clock.sleep_until(at).await;
        let inquiry = Inquiry::new(action.clone(), claim.fence, claim.downstream_key.clone());
        if let Err(why) = within(options, probe.seal(&inquiry)).await {
            tracing::warn!(key = %action.key, why, "a resource could not be sealed");
            return Ending::Unknown;
        }
        let (resolution, evidence) = match within(options, probe.look(&inquiry)).await {
            Ok(Finding::Applied { result, evidence }) => (Resolution::Applied(result), evidence),
            Ok(Finding::NotApplied { evidence }) => (Resolution::NotApplied, evidence),
            Ok(Finding::Unknown) => return Ending::Unknown,
            Err(why) => {
                tracing::warn!(key = %action.key, why, "a probe could not look");
                return Ending::Unknown;
            }
        };
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            match store.resolve_owned(&action, claim.episode, &resolution, &evidence, &claim.token).await {
                Ok(ruled) if ruled.yours => return Ending::Ruled(ruled.ruling),
                Ok(_) => return Ending::Elsewhere,
                // Told again, it is the same ruling; once the right has expired it is refused.
                Err(error)
                    if is_transient(&error)
                        && clock.monotonic().saturating_sub(claimed) < options.claim_ttl =>
                {
                    backoff.wait(clock).await;
                }
                Err(error) => return ending_of(&action, &error),
            }
        }
    }

    /// When the attempt's hold has ended or will, or the latest that it can have.
    async fn hold_end(&self, action: &Action, claim: &Reconciliation) -> Result<Timestamp, Ending> {
        if let Some(until) = claim.hold_until {
            return Ok(until);
        }
        let status = self.store.get(&action.key).await.map_err(|error| ending_of(action, &error))?;
        match status.and_then(|status| status.uncertain) {
            Some(info) if info.episode == claim.episode => {
                Ok(info.since.saturating_add(self.options.longest_hold))
            }
            _ => Err(Ending::Elsewhere),
        }
    }
}

fn ending_of(action: &Action, error: &EffectError) -> Ending {
    match error {
        EffectError::NotUncertain { .. }
        | EffectError::Reconciling { .. }
        | EffectError::EpisodeOver { .. }
        | EffectError::ReconcileLost { .. }
        | EffectError::NeverAcquired { .. } => Ending::Elsewhere,
        error => {
            tracing::warn!(key = %action.key, %error, "an action could not be reconciled");
            Ending::Failed
        }
    }
}

/// What a probe says within its time, or why it says nothing.
async fn within<T>(
    options: &ReconcilerOptions,
    asked: impl Future<Output = Result<T, ProbeError>>,
) -> Result<T, String> {
    tokio::select! {
        biased;
        said = asked => said.map_err(|error| error.to_string()),
        () = options.clock.sleep(options.probe_limit) => {
            Err(format!("it took longer than {:?}", options.probe_limit))
        }
    }
}

fn micros(time: Timestamp) -> Duration {
    time.saturating_since(Timestamp::EPOCH)
}

/// Between a half and all of it.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let micros = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
    half.saturating_add(Duration::from_micros(token::seed() % micros.saturating_add(1)))
}
