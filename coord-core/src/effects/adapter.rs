//! The side-effect store above any backend: opening, what a judgement sees and writes, and the loop that every verb runs through.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::action::{
    Action, ActionStatus, Completed, Episode, Lease, Outcome, Reconciliation, Resolution, Ruled,
};
use super::history::{History, ListFilter, ListPage, PurgeReport, PurgeRequest};
use super::names::{ActionKey, Note, ResourceId};
use super::record::{Floor, Head, encode_floor, floor_key, read_floor};
use super::situation::{Decision, Situation};
use super::verb::{OnAction, OnActionVerb};
use super::{EffectError, EffectStore};
use crate::backend::Backend;
use crate::board::AgentId;
use crate::cas::{self, Bounds, Judge, View};
use crate::clock::{Clock, SystemClock};
use crate::recent::Recent;
use crate::snapshot::KeySet;
use crate::token::{OperationId, Token};
use crate::txn::{Assert, Mutation, Txn};

/// How a side-effect store is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EffectOptions {
    /// Who acts through this handle: shown to people, in answers and in the history. It proves nothing. Default: `unnamed`.
    pub agent: AgentId,
    /// Waits between tries, and tells the time where the store has no clock of its own. Default: the system's clock.
    pub clock: Arc<dyn Clock>,
    /// How far the clocks of two clients may be apart where the store has none: who takes something over that expired waits this much
    /// longer than its holder may act. Default: 5 s.
    pub max_clock_skew: Duration,
    /// How many conflicts with other clients a verb bears until [`EffectError::TxnConflict`]. Default: 100.
    pub max_conflicts: u32,
    /// How many failures of the store a verb waits out while one of its writes may or may not have happened, until
    /// [`EffectError::OutcomeUnknown`]. Default: 8, which with the waits in between makes about 2 seconds.
    pub max_failures: u32,
}

impl Default for EffectOptions {
    fn default() -> Self {
        EffectOptions {
            agent: AgentId::unchecked("unnamed"),
            clock: Arc::new(SystemClock::new()),
            max_clock_skew: Duration::from_secs(5),
            max_conflicts: 100,
            max_failures: 8,
        }
    }
}

impl EffectOptions {
    /// Acting under this name.
    #[must_use]
    pub fn agent(mut self, agent: AgentId) -> Self {
        self.agent = agent;
        self
    }

    /// With this clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// With this margin between clocks.
    #[must_use]
    pub fn max_clock_skew(mut self, skew: Duration) -> Self {
        self.max_clock_skew = skew;
        self
    }
}

/// The side-effect store above a [`Backend`]: one a namespace. Clones share the handle.
///
/// Every verb is a loop of snapshot, judgement and transaction; the transaction asserts action and resource. An acquire that is
/// granted, and a completion, cost one snapshot and one transaction each.
///
/// ```
/// use std::time::Duration;
/// use coord_core::effects::{Action, ActionKey, EffectAdapter, EffectOptions, EffectStore, Outcome};
/// use coord_memory::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = MemoryStore::new().open(&"demo".parse()?);
/// let store = EffectAdapter::open(backend, EffectOptions::default()).await?;
/// let charge = Action::new(ActionKey::new("charge/order-7")?);
///
/// let Outcome::Granted(lease) = store.acquire(&charge, Duration::from_secs(30)).await? else { panic!() };
/// // Somebody else is told that it is under way.
/// assert!(matches!(store.acquire(&charge, Duration::from_secs(30)).await?, Outcome::InFlight(_)));
/// // Here the card is charged, with lease.downstream_key as the vendor's idempotency key.
/// store.complete(&charge, &lease, "receipt 4711".into()).await?;
/// // And from now on everybody is told the result.
/// let Outcome::Completed(completed) = store.acquire(&charge, Duration::from_secs(30)).await? else { panic!() };
/// assert_eq!(completed.result().unwrap(), "receipt 4711");
/// # Ok(()) }
/// ```
pub struct EffectAdapter<B> {
    inner: Arc<Inner<B>>,
    agent: AgentId,
}

struct Inner<B> {
    backend: B,
    options: EffectOptions,
}

impl<B> Clone for EffectAdapter<B> {
    fn clone(&self) -> Self {
        EffectAdapter { inner: self.inner.clone(), agent: self.agent.clone() }
    }
}

impl<B: Backend> fmt::Debug for EffectAdapter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EffectAdapter")
            .field("backend", &self.inner.backend)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> EffectAdapter<B> {
    /// Opens the store of the handle's namespace, and makes it if there is none yet.
    ///
    /// # Errors
    /// [`Malformed`](EffectError::Malformed) if the namespace holds something else under the store's keys,
    /// [`Invalid`](EffectError::Invalid) for an agent name that breaks the rules.
    pub async fn open(backend: B, options: EffectOptions) -> Result<Self, EffectError> {
        let agent = options.agent.clone();
        check_agent(&agent)?;
        let store = EffectAdapter { inner: Arc::new(Inner { backend, options }), agent };
        let key = floor_key();
        let keys = KeySet::new([key.clone()])?;
        let identity = *OperationId::mint().as_bytes();
        let floor = Floor { identity, fence: 0, forgotten: 0, recent: Recent::default() };
        let create =
            Txn::new([Assert::missing(key.clone())], [Mutation::put(key.clone(), encode_floor(&floor))])?;
        let options = store.options();
        let snapshot =
            cas::open(store.backend(), &*options.clock, options.max_failures, &keys, &key, &create).await?;
        read_floor(snapshot.require(&key)?)?;
        Ok(store)
    }

    /// A handle on the same store under another agent's name.
    ///
    /// # Errors
    /// [`Invalid`](EffectError::Invalid) for a name that breaks the rules.
    pub fn named(&self, agent: AgentId) -> Result<Self, EffectError> {
        check_agent(&agent)?;
        Ok(EffectAdapter { inner: self.inner.clone(), agent })
    }

    /// The handle below.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.inner.backend
    }

    /// Under which name this handle acts.
    #[must_use]
    pub fn agent(&self) -> &AgentId {
        &self.agent
    }

    pub(super) fn options(&self) -> &EffectOptions {
        &self.inner.options
    }

    /// Runs a verb.
    pub(super) async fn run<J: Judge<Error = EffectError>>(
        &self,
        judge: &mut J,
    ) -> Result<J::Answer, EffectError> {
        let options = &self.inner.options;
        let bounds = Bounds { conflicts: options.max_conflicts, failures: options.max_failures };
        cas::run(self.backend(), &*options.clock, options.max_clock_skew, bounds, judge).await
    }

    /// Runs a verb on an action that exists.
    pub(super) async fn on_action<A: Clone + Send>(
        &self,
        verb: OnActionVerb<'_>,
        judge: impl FnMut(&View<'_>, &Situation) -> Result<Decision<A>, EffectError> + Send,
    ) -> Result<A, EffectError> {
        self.run(&mut OnAction { verb, operation: OperationId::mint(), judge, found: |_: &Head| None }).await
    }
}

pub(super) fn check_agent(agent: &AgentId) -> Result<(), EffectError> {
    agent.validate().map_err(|error| EffectError::Invalid(error.to_string()))
}

#[async_trait]
impl<B: Backend> EffectStore for EffectAdapter<B> {
    async fn acquire(&self, action: &Action, ttl: Duration) -> Result<Outcome, EffectError> {
        self.acquire_action(action, ttl).await
    }
    async fn complete(
        &self,
        action: &Action,
        lease: &Lease,
        result: Bytes,
    ) -> Result<Completed, EffectError> {
        self.complete_action(action, lease, result).await
    }
    async fn mark_uncertain(
        &self,
        action: &Action,
        lease: &Lease,
        reason: &Note,
    ) -> Result<Episode, EffectError> {
        self.mark_action(action, lease, reason).await
    }
    async fn renew(&self, action: &Action, lease: &Lease, ttl: Duration) -> Result<Lease, EffectError> {
        self.renew_action(action, lease, ttl).await
    }
    async fn release(&self, action: &Action, lease: &Lease) -> Result<(), EffectError> {
        self.release_action(action, lease).await
    }
    async fn abandon(&self, action: &Action, lease: &Lease, reason: &Note) -> Result<(), EffectError> {
        self.abandon_action(action, lease, reason).await
    }
    async fn begin_reconcile(&self, action: &Action, ttl: Duration) -> Result<Reconciliation, EffectError> {
        self.begin_to_reconcile(action, ttl).await
    }
    async fn resolve(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
    ) -> Result<Ruled, EffectError> {
        self.rule(action, episode, resolution, evidence, None).await
    }
    async fn resolve_owned(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
        holder: &Token,
    ) -> Result<Ruled, EffectError> {
        self.rule(action, episode, resolution, evidence, Some(holder)).await
    }
    async fn get(&self, key: &ActionKey) -> Result<Option<ActionStatus>, EffectError> {
        self.get_action(key).await
    }
    async fn list(&self, filter: &ListFilter) -> Result<ListPage, EffectError> {
        self.list_actions(filter).await
    }
    async fn history(&self, key: &ActionKey) -> Result<Option<History>, EffectError> {
        self.history_of(key).await
    }
    async fn purge(&self, request: &PurgeRequest) -> Result<PurgeReport, EffectError> {
        self.purge_results(request).await
    }
    async fn forget(&self, key: &ActionKey) -> Result<(), EffectError> {
        self.forget_action(key).await
    }
    async fn forget_resource(&self, resource: &ResourceId) -> Result<(), EffectError> {
        self.forget_hold(resource).await
    }
}
