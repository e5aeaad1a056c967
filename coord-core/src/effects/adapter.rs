//! The side-effect store above any backend: opening, what a judgement sees and writes, and the loop that every verb runs through.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::action::{
    Action, ActionKey, ActionState, ActionStatus, Completed, Episode, Holder, Lease, ListedResult, Note,
    Outcome, Reconciliation, Replay, Resolution, ResourceId, Ruled, Uncertain,
};
use super::history::{History, ListFilter, ListPage, PurgeReport, PurgeRequest};
use super::record::{
    self, Attempt, Floor, Head, Held, Kept, Phase, Resource, encode_floor, encode_head, encode_open,
    encode_resource, floor_key, head_key, open_key, read_floor, read_head, read_resource, read_result,
    resource_key, result_key,
};
use super::{EffectError, EffectStore, EffectVerb};
use crate::backend::Backend;
use crate::board::AgentId;
use crate::cas::{self, Backoff, Bounds, Fate, Judge, Pending, Step, Time, View};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::key::Key;
use crate::recent::{REMEMBERED, Recent};
use crate::snapshot::{Entry, KeySet, Version};
use crate::token::{OperationId, Token};
use crate::txn::{Assert, Mutation, Txn, TxnOutcome};

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
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
        let mut failures = 0;
        loop {
            let snapshot = store.backend().snapshot(&keys).await?;
            let entry = snapshot.require(&key)?;
            if entry.is_present() {
                read_floor(entry)?;
                return Ok(store);
            }
            // The record is never deleted, so whoever creates it, and however often, it is there in the end.
            match store.backend().txn(&create).await {
                Ok(TxnOutcome::Applied | TxnOutcome::Rejected) => {}
                Err(error) if !error.is_indeterminate() => return Err(error.into()),
                Err(error) => {
                    failures += 1;
                    if failures > store.inner.options.max_failures {
                        return Err(error.into());
                    }
                    backoff.wait(&*store.inner.options.clock).await;
                }
            }
        }
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
        judge: impl FnMut(&View<'_>, Situation) -> Result<Decision<A>, EffectError> + Send,
    ) -> Result<A, EffectError> {
        self.run(&mut OnAction {
            verb,
            operation: OperationId::mint(),
            judge,
            found: |_: &Head, _: Option<&Resource>| None,
        })
        .await
    }
}

pub(super) fn check_agent(agent: &AgentId) -> Result<(), EffectError> {
    agent.validate().map_err(|error| EffectError::Invalid(error.to_string()))
}

/// A ttl that is longer than nothing and can be represented at all.
pub(super) fn check_ttl(ttl: Duration) -> Result<(), EffectError> {
    if ttl < Duration::from_micros(1) {
        return Err(EffectError::Invalid("the ttl is less than a microsecond".into()));
    }
    end_of(Timestamp::EPOCH, ttl).map(|_| ())
}

pub(super) fn end_of(now: Timestamp, ttl: Duration) -> Result<Timestamp, EffectError> {
    now.checked_add(ttl)
        .ok_or_else(|| EffectError::Invalid("the ttl ends beyond the representable time".into()))
}

/// What a judgement sees: the action, its resource, and the guard, at one instant.
#[derive(Clone)]
pub(super) struct Situation {
    pub(super) key: ActionKey,
    /// The resource of the action that exists, else the one that was asked for.
    pub(super) resource_name: ResourceId,
    pub(super) time: Time,
    pub(super) head: Option<Head>,
    pub(super) resource: Option<Resource>,
    pub(super) floor: Floor,
    pub(super) head_version: Version,
    pub(super) resource_version: Version,
    pub(super) floor_version: Version,
}

impl Situation {
    /// Reads a situation from a view, or says which key the view lacks.
    pub(super) fn read(
        view: &View<'_>,
        key: &ActionKey,
        asked: Option<&ResourceId>,
    ) -> Result<Result<Self, Key>, EffectError> {
        let head_entry = view.entry(&head_key(key))?;
        let floor_entry = view.entry(&floor_key())?;
        let floor = read_floor(floor_entry)?;
        let head = read_head(key, head_entry)?;
        let Some(name) = head.as_ref().map(|head| &head.resource).or(asked).cloned() else {
            // Nothing is known of it and nothing was asked for: any resource will do, and none is there.
            return Ok(Ok(Situation {
                key: key.clone(),
                resource_name: Action::new(key.clone()).resource,
                time: view.time(Timestamp::EPOCH),
                head: None,
                resource: None,
                floor,
                head_version: Version::MISSING,
                resource_version: Version::MISSING,
                floor_version: floor_entry.version(),
            }));
        };
        let resource_key = resource_key(&name);
        let Some(resource_entry) = view.snapshot.get(&resource_key) else { return Ok(Err(resource_key)) };
        let resource = read_resource(&name, resource_entry)?;
        let touched =
            [head.as_ref().map(|head| head.touched), resource.as_ref().map(|resource| resource.touched)];
        Ok(Ok(Situation {
            key: key.clone(),
            resource_name: name,
            time: view.time(touched.into_iter().flatten().max().unwrap_or(Timestamp::EPOCH)),
            head,
            resource,
            floor,
            head_version: head_entry.version(),
            resource_version: resource_entry.version(),
            floor_version: floor_entry.version(),
        }))
    }

    pub(super) fn now(&self) -> Timestamp {
        self.time.now
    }

    /// The fence of the resource that was given last. Of one that was forgotten no fence was larger than this.
    pub(super) fn last_fence(&self) -> u64 {
        self.resource.as_ref().map_or(self.floor.fence, |resource| resource.fence)
    }

    /// Who holds the resource, expired or not.
    pub(super) fn held(&self) -> Option<&Held> {
        self.resource.as_ref()?.held.as_ref()
    }

    pub(super) fn held_by(&self, token: &Token) -> Option<&Held> {
        self.held().filter(|held| held.token == *token)
    }

    /// Whether the newest attempt holds the resource, as seen by others: the one source of truth.
    pub(super) fn is_live(&self) -> bool {
        self.newest_hold().is_some_and(|held| !self.time.may_take_over(Some(held.until)))
    }

    /// The hold of the newest attempt, expired or not.
    pub(super) fn newest_hold(&self) -> Option<&Held> {
        self.held_by(&self.head.as_ref()?.newest()?.token)
    }

    /// Whether an attempt was under way and no longer is, and nobody has written it down.
    pub(super) fn has_lapsed(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.phase == Phase::InFlight) && !self.is_live()
    }

    pub(super) fn state(&self) -> ActionState {
        self.head.as_ref().map_or(ActionState::Idle, |head| head.state(self.is_live()))
    }

    /// Which life of the key this is.
    pub(super) fn life(&self) -> u64 {
        self.head_version.incarnation()
    }

    pub(super) fn episode(&self, head: &Head) -> Episode {
        Episode::new(self.life(), head.episode)
    }

    pub(super) fn never_acquired(&self) -> EffectError {
        EffectError::NeverAcquired { key: self.key.clone() }
    }

    pub(super) fn mismatch(&self) -> EffectError {
        EffectError::Mismatch { key: self.key.clone(), state: self.state() }
    }

    /// The head of an action that exists.
    pub(super) fn existing(&self) -> Result<Head, EffectError> {
        self.head.clone().ok_or_else(|| self.never_acquired())
    }

    /// The head of an action that exists and is the one that is meant.
    pub(super) fn meant(&self, action: &Action) -> Result<Head, EffectError> {
        let head = self.existing()?;
        if head.is_about(action) { Ok(head) } else { Err(self.mismatch()) }
    }

    /// The attempt of a lease: given for this key, and for the action that is meant.
    pub(super) fn attempt(&self, action: &Action, lease: &Lease) -> Result<(Head, Attempt), EffectError> {
        let head = self.existing()?;
        let attempt = head
            .attempt(&lease.token)
            .filter(|attempt| attempt.fence == lease.fence && lease.action.key == self.key)
            .cloned()
            .ok_or(EffectError::LeaseLost)?;
        if !head.is_about(action) || lease.action.resource != head.resource {
            return Err(self.mismatch());
        }
        Ok((head, attempt))
    }

    /// What is known of the uncertain head.
    pub(super) fn uncertain(&self, head: &Head) -> Uncertain {
        let reconciling = head.claim.as_ref().filter(|claim| !self.time.is_over(Some(claim.until)));
        Uncertain::new(self.episode(head), head.since, head.agent.clone(), head.fence(), head.reason.clone())
            .reconciling_until(reconciling.map(|claim| claim.until))
    }

    /// A head that has become uncertain because its attempt said nothing.
    pub(super) fn lapsed(&self, mut head: Head, agent: &AgentId) -> Head {
        let (fence, now) = (head.fence(), self.now());
        let reason = match self.newest_hold() {
            Some(held) => Note::truncated(format!("its hold ended at {} without a word", held.until)),
            None => Note::truncated("it no longer holds the resource and said nothing"),
        };
        head.become_uncertain(reason.clone(), now);
        head.note(super::TransitionKind::Lapsed, agent, fence, now, reason);
        head
    }

    /// The resource without its holder, if that is this attempt.
    pub(super) fn freed(&self, token: &Token) -> Option<Resource> {
        let mut resource = self.resource.clone()?;
        resource.held.take().filter(|held| held.token == *token)?;
        Some(resource)
    }

    pub(super) fn holder(&self, held: &Held) -> Holder {
        Holder::new(held.key.clone(), held.agent.clone(), self.last_fence(), held.until)
    }

    /// What is left of the result of the completed head.
    pub(super) fn completed(&self, view: &View<'_>, head: &Head) -> Result<Completed, EffectError> {
        let completion = head
            .completion
            .as_ref()
            .ok_or_else(|| record::malformed(&head_key(&self.key), "the action has no completion"))?;
        let replay = match completion.kept {
            Kept::Whole => Replay::Result(read_result(&self.key, view.entry(&result_key(&self.key))?)?),
            Kept::TooLarge => Replay::TooLarge { len: completion.len, digest: completion.digest },
            Kept::Purged { at } => Replay::Purged { at },
        };
        Ok(Completed::new(replay, completion.at, head.maybe_twice))
    }

    pub(super) fn status(&self, head: &Head) -> ActionStatus {
        let mut action = Action::new(self.key.clone()).resource(head.resource.clone());
        action.fingerprint = head.fingerprint;
        let state = self.state();
        let hold_until = self.newest_hold().map(|held| held.until);
        let since = match (state, hold_until) {
            (ActionState::Lapsed, Some(until)) => until,
            _ => head.since,
        };
        let mut status = ActionStatus::new(action, state, since, head.agent.clone(), head.fence());
        status.hold_until = hold_until;
        status.attempts = u32::try_from(head.attempts.len()).unwrap_or(u32::MAX);
        status.uncertain = (state == ActionState::Uncertain).then(|| self.uncertain(head));
        status.completed = head.completion.as_ref().map(|completion| {
            let kept = completion.kept == Kept::Whole;
            ListedResult::new(completion.len, completion.digest, kept, completion.at, head.maybe_twice)
        });
        status.maybe_applied = head.maybe_applied;
        status.evidence = head.evidence.len() as u64 + head.more_evidence;
        status.downstream_key = head.downstream_key();
        status
    }

    /// The transaction of a change: it asserts action and resource, and the guard where one of them is absent.
    pub(super) fn commit(&self, change: Change, operation: OperationId) -> Result<Txn, EffectError> {
        let mut asserts = self.asserts();
        let mut mutations = change.more;
        let was_open = self.head.as_ref().is_some_and(Head::is_open);
        if let Some(mut head) = change.head {
            head.touch(operation, self.now());
            match (was_open, head.is_open()) {
                (false, true) => mutations.push(Mutation::put(open_key(&self.key), encode_open())),
                (true, false) => mutations.push(Mutation::delete(open_key(&self.key))),
                _ => {}
            }
            mutations.push(Mutation::put(head_key(&self.key), encode_head(&mut head)));
        }
        if let Some(mut resource) = change.resource {
            resource.touched = self.now();
            resource.recent.push(operation);
            mutations.push(Mutation::put(resource_key(&self.resource_name), encode_resource(&resource)));
        }
        if let Some(mut floor) = change.floor {
            floor.recent.push(operation);
            mutations.push(Mutation::put(floor_key(), encode_floor(&floor)));
            if !asserts.iter().any(|assert| assert.key == floor_key()) {
                asserts.push(Assert::version(floor_key(), self.floor_version));
            }
        }
        Ok(Txn::new(asserts, mutations)?)
    }

    fn asserts(&self) -> Vec<Assert> {
        let seen = |key: Key, version: Version| {
            if version.is_missing() { Assert::missing(key) } else { Assert::version(key, version) }
        };
        let mut asserts = vec![
            seen(head_key(&self.key), self.head_version),
            seen(resource_key(&self.resource_name), self.resource_version),
        ];
        if self.head_version.is_missing() || self.resource_version.is_missing() {
            asserts.push(Assert::version(floor_key(), self.floor_version));
        }
        asserts
    }
}

/// What a judgement writes.
#[derive(Default)]
pub(super) struct Change {
    pub(super) head: Option<Head>,
    pub(super) resource: Option<Resource>,
    pub(super) floor: Option<Floor>,
    pub(super) more: Vec<Mutation>,
}

impl Change {
    pub(super) fn of(head: Head) -> Self {
        Change { head: Some(head), ..Change::default() }
    }

    pub(super) fn and_resource(mut self, resource: Option<Resource>) -> Self {
        self.resource = resource;
        self
    }

    pub(super) fn and(mut self, more: impl IntoIterator<Item = Mutation>) -> Self {
        self.more.extend(more);
        self
    }
}

/// What a judgement says.
pub(super) enum Decision<A> {
    Answer(A),
    Write(Box<Change>, A),
}

impl<A> Decision<A> {
    pub(super) fn write(change: Change, answer: A) -> Self {
        Decision::Write(Box::new(change), answer)
    }
}

/// Which verb runs on which action.
#[derive(Clone, Copy)]
pub(super) struct OnActionVerb<'a> {
    pub(super) verb: EffectVerb,
    pub(super) key: &'a ActionKey,
    /// The resource to be read along at once; that of the action is read in any case.
    pub(super) resource: Option<&'a ResourceId>,
    pub(super) token: Option<&'a Token>,
    /// Whether the kept result is read along.
    pub(super) with_result: bool,
}

impl OnActionVerb<'_> {
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut keys = vec![head_key(self.key), floor_key()];
        keys.extend(self.resource.map(resource_key));
        if self.with_result {
            keys.push(result_key(self.key));
        }
        keys
    }

    pub(super) fn unknown(&self) -> EffectError {
        EffectError::OutcomeUnknown {
            verb: self.verb,
            subject: self.key.as_str().to_owned(),
            token: self.token.cloned(),
        }
    }
}

/// A verb of one judgement and one write.
pub(super) struct OnAction<'a, J, F> {
    pub(super) verb: OnActionVerb<'a>,
    pub(super) operation: OperationId,
    pub(super) judge: J,
    /// Finds what the verb has done besides by its operation id, and the answer to that.
    pub(super) found: F,
}

impl<A, J, F> Judge for OnAction<'_, J, F>
where
    A: Clone + Send,
    J: FnMut(&View<'_>, Situation) -> Result<Decision<A>, EffectError> + Send,
    F: Fn(&Head, Option<&Resource>) -> Option<A> + Send + Sync,
{
    type Answer = A;
    type Error = EffectError;

    fn keys(&self) -> Vec<Key> {
        self.verb.keys()
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<A>, EffectError> {
        let situation = match Situation::read(view, self.verb.key, self.verb.resource)? {
            Ok(situation) => situation,
            Err(unread) => return Ok(Step::Read(vec![unread])),
        };
        match (self.judge)(view, situation.clone())? {
            Decision::Answer(answer) => Ok(Step::Answer(answer)),
            Decision::Write(change, answer) => {
                Ok(Step::Commit(situation.commit(*change, self.operation)?, answer))
            }
        }
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<A>) -> Result<Fate<A>, EffectError> {
        if let Some(head) = read_head(self.verb.key, view.entry(&head_key(self.verb.key))?)? {
            let resource = match view.snapshot.get(&resource_key(&head.resource)) {
                Some(entry) => read_resource(&head.resource, entry)?,
                None => None,
            };
            if let Some(answer) = (self.found)(&head, resource.as_ref()) {
                return Ok(Fate::Applied(answer));
            }
        }
        fate(view, pending, self.operation)
    }

    fn conflict(&self, attempts: u32) -> EffectError {
        EffectError::TxnConflict { attempts }
    }

    fn unknown(&self) -> EffectError {
        self.verb.unknown()
    }
}

/// Looks for the trace of a pending try in the records that it would have written.
///
/// - found: applied;
/// - nothing that it asserted has moved: still open. An absent record has not moved if it is absent and the guard, which is
///   asserted along with it, has not moved either;
/// - something that it asserted has moved, for ever, and a record that it would have written is known not to have been written by it, for
///   that moved by at most the length of its ring, in the same life: dead;
/// - else it cannot be told.
pub(super) fn fate<A: Clone>(
    view: &View<'_>,
    pending: &Pending<A>,
    operation: OperationId,
) -> Result<Fate<A>, EffectError> {
    let guard = pending.asserted(&floor_key());
    let guard_stands = guard == Some(view.entry(&floor_key())?.version());
    let (mut moved, mut unwritten) = (false, false);
    for assert in pending.txn.asserts() {
        let entry = view.entry(&assert.key)?;
        let now = entry.version();
        moved |= now != assert.version;
        let written = |mutation: &Mutation| mutation.key() == &assert.key && mutation.value().is_some();
        if !pending.txn.mutations().iter().any(written) {
            continue;
        }
        if recent(&assert.key, entry)?.is_some_and(|recent| recent.contains(operation)) {
            return Ok(Fate::Applied(pending.answer.clone()));
        }
        let in_reach =
            now.count().checked_sub(assert.version.count()).is_some_and(|n| n <= REMEMBERED as u64);
        unwritten |= in_reach
            && if assert.version.is_missing() {
                guard_stands
            } else {
                now.incarnation() == assert.version.incarnation()
            };
    }
    Ok(match (moved, unwritten) {
        (false, _) => Fate::Open,
        (true, true) => Fate::Dead,
        (true, false) => Fate::Lost,
    })
}

/// The ring of a record that has one.
fn recent(key: &Key, entry: &Entry) -> Result<Option<Recent>, EffectError> {
    if *key == floor_key() {
        return Ok(Some(read_floor(entry)?.recent));
    }
    let invalid = |error: EffectError| record::malformed(key, error);
    if let Some(name) = key.as_str().strip_prefix(record::HEADS) {
        let head = read_head(&ActionKey::new(name).map_err(invalid)?, entry)?;
        return Ok(head.map(|head| head.recent));
    }
    if let Some(name) = key.as_str().strip_prefix(record::HOLDS) {
        let resource = read_resource(&ResourceId::new(name).map_err(invalid)?, entry)?;
        return Ok(resource.map(|resource| resource.recent));
    }
    Ok(None)
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
