//! Settles uncertain actions by itself, with a probe that looks downstream.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::{Id, JoinError, JoinSet};

use super::guard::is_transient;
use super::{
    Action, ActionKey, ActionState, ActionStatus, EffectError, EffectStore, ListFilter, Note, Reconciliation,
    Resolution, RulingKind,
};
use crate::cas::Backoff;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::token;

/// Why a probe could not look. Whatever it is, nothing is changed.
pub type ProbeError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Looks downstream whether an action was done.
///
/// A probe is asked only after the hold of the attempt has ended and the settle delay has passed, so that what was under way has arrived. It says
/// that something was not done only if it knows that: a ledger that answers "no such entry" of everything that was sent, not one that
/// may lag behind.
///
/// ```
/// use coord_core::effects::{Finding, Inquiry, Probe, ProbeError};
/// # use coord_core::async_trait;
/// # #[derive(Debug)] struct Bank;
/// # impl Bank { async fn find(&self, _: &str) -> std::io::Result<Option<String>> { Ok(None) } }
///
/// #[async_trait]
/// impl Probe for Bank {
///     async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError> {
///         Ok(match self.find(&inquiry.downstream_key).await? {
///             Some(receipt) => Finding::applied(receipt, "the bank has the charge"),
///             None => Finding::not_applied("the bank knows of no such charge"),
///         })
///     }
/// }
/// ```
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Where the resource checks fences: presents [`Inquiry::sealing_fence`] there, before the probe looks. From then on a late executor is refused,
    /// and "not done" is final. That the resource has seen a larger fence already is success too. Without such a resource there is nothing to do.
    ///
    /// # Errors
    /// It could not be presented: then nobody looks, and the action stays uncertain.
    async fn seal(&self, inquiry: &Inquiry) -> Result<(), ProbeError> {
        let _ = inquiry;
        Ok(())
    }

    /// Looks.
    ///
    /// # Errors
    /// It could not look: the action stays uncertain.
    async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError>;
}

/// What a probe is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inquiry {
    /// The action.
    pub action: Action,
    /// The fence of the attempt of which nobody knows the outcome.
    pub fence: u64,
    /// What the attempts of the action hand to the resource.
    pub downstream_key: String,
}

impl Inquiry {
    /// A question, for tests of a probe.
    #[must_use]
    pub fn new(action: Action, fence: u64, downstream_key: impl Into<String>) -> Self {
        Inquiry { action, fence, downstream_key: downstream_key.into() }
    }

    /// The fence with which a resource is sealed against the attempt: no attempt has acted with it, and none that comes has a smaller one.
    #[must_use]
    pub fn sealing_fence(&self) -> u64 {
        self.fence.saturating_add(1)
    }
}

/// What a probe has found.
#[derive(Clone, PartialEq, Eq)]
pub enum Finding {
    /// The action was done.
    Applied {
        /// Its result, as the attempt would have returned it.
        result: Bytes,
        /// What was seen, for the history.
        evidence: Note,
    },
    /// The action was not done, and nothing that was sent can do it any more.
    NotApplied {
        /// What was seen, for the history.
        evidence: Note,
    },
    /// It cannot be told.
    Unknown,
}

impl Finding {
    /// It was done, with this result; the evidence is cut to 512 bytes.
    #[must_use]
    pub fn applied(result: impl Into<Bytes>, evidence: impl AsRef<str>) -> Self {
        Finding::Applied { result: result.into(), evidence: Note::truncated(evidence) }
    }

    /// It was not done; the evidence is cut to 512 bytes.
    #[must_use]
    pub fn not_applied(evidence: impl AsRef<str>) -> Self {
        Finding::NotApplied { evidence: Note::truncated(evidence) }
    }
}

impl fmt::Debug for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Applied { result, evidence } => {
                write!(f, "Applied({} bytes, {:?})", result.len(), evidence.as_str())
            }
            Finding::NotApplied { evidence } => write!(f, "NotApplied({:?})", evidence.as_str()),
            Finding::Unknown => f.write_str("Unknown"),
        }
    }
}

/// How a [`Reconciler`] works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReconcilerOptions {
    /// How long after the end of the attempt's hold the probe is asked: longer than anything that was sent may be under way, and than
    /// the clocks of two clients may be apart. By default a minute.
    pub settle: Duration,
    /// How long an attempt may have held its resource after it was marked uncertain, where the store cannot tell any more because somebody
    /// else was granted it since: the longest ttl in use. By default 5 minutes.
    pub longest_hold: Duration,
    /// How long sealing may take, and how long looking. By default 20 s each.
    pub probe_limit: Duration,
    /// For how long the right to judge is claimed: longer than both. By default 2 minutes.
    pub claim_ttl: Duration,
    /// How many actions are looked into at a time. By default 4.
    pub concurrency: usize,
    /// How long an action is left alone after the first time that nothing could be told; doubled each time, up to `longest_pause`. By
    /// default 10 s.
    pub first_pause: Duration,
    /// By default 10 minutes.
    pub longest_pause: Duration,
    /// How long [`run_until`](Reconciler::run_until) rests between two passes. By default 5 s.
    pub interval: Duration,
    /// The clock by which it waits.
    pub clock: Arc<dyn Clock>,
}

impl Default for ReconcilerOptions {
    fn default() -> Self {
        ReconcilerOptions {
            settle: Duration::from_secs(60),
            longest_hold: Duration::from_secs(300),
            probe_limit: Duration::from_secs(20),
            claim_ttl: Duration::from_secs(120),
            concurrency: 4,
            first_pause: Duration::from_secs(10),
            longest_pause: Duration::from_secs(600),
            interval: Duration::from_secs(5),
            clock: Arc::new(SystemClock::new()),
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)+) => {
        impl ReconcilerOptions {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $name: $kind) -> Self {
                    self.$name = $name;
                    self
                }
            )+
        }
    };
}

setters! {
    /// The probe is asked so long after the end of the hold.
    settle: Duration,
    /// The longest ttl in use.
    longest_hold: Duration,
    /// Sealing and looking may take so long, each.
    probe_limit: Duration,
    /// The right to judge is claimed for so long.
    claim_ttl: Duration,
    /// So many actions are looked into at a time.
    concurrency: usize,
    /// The first pause after nothing could be told.
    first_pause: Duration,
    /// The longest pause after nothing could be told.
    longest_pause: Duration,
    /// The rest between two passes.
    interval: Duration,
    /// The clock.
    clock: Arc<dyn Clock>,
}

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
        let wait = due.saturating_sub(now.saturating_add(clock.monotonic().saturating_sub(claimed)));
        if wait > self.patience() {
            return Ending::NotYet(wait);
        }
        if !wait.is_zero() {
            clock.sleep(wait).await;
        }
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
