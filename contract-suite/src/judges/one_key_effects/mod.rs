//! The whole side-effect store as one JSON value under one key.

mod attempt;
mod completion;
mod operators;
mod record;
mod ruling;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::board::AgentId;
use coord_core::effects::{
    Action, ActionKey, ActionStatus, Completed, EffectError, EffectStore, EffectVerb, Episode, History,
    Lease, ListFilter, ListPage, Note, Outcome, PurgeReport, PurgeRequest, Reconciliation, Replay,
    Resolution, ResourceId, Ruled, result_digest,
};
use coord_core::{
    Backend, Bytes, Clock, Key, KeySet, Mutation, OperationId, Timestamp, Token, Txn, TxnOutcome, Version,
};

use self::record::{Done, Payload, Time, Whole};
use super::WrongEffects;
use super::one_value::{OneValue, PART, TRIES, backoff};

/// A side-effect store in the simplest way that is right: everything is one JSON value, every verb reads it, judges, and compares and
/// sets. It has nothing in common with the adapter but the contract, so that the suite is seen to ask for the contract and for
/// nothing else. On demand it judges wrongly ([`WrongEffects`]), so that every clause is seen to fail.
///
/// A value has at most 512 KiB, so a long one goes on under a second key, and results of more than a kilobyte stand under keys of their
/// own; both are only ever written together with the first key. It remembers every write that was ever made, so it is for tests.
pub struct OneKeyEffects {
    value: OneValue,
    clock: Arc<dyn Clock>,
    max_clock_skew: Duration,
    agent: AgentId,
    wrong: Option<WrongEffects>,
    /// For the judge that keeps fences in the wrong place.
    fences: Mutex<BTreeMap<ResourceId, u64>>,
}

impl fmt::Debug for OneKeyEffects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneKeyEffects")
            .field("backend", &self.value.backend)
            .field("wrong", &self.wrong)
            .finish()
    }
}

/// What a judgement that is not an error wants.
enum Judged<T> {
    /// Nothing is written.
    Keep(T),
    /// Nothing is written, and this is why.
    Refuse(EffectError),
    /// What was changed is written, and then this is the answer, which may be a refusal.
    Write(Result<T, EffectError>),
    /// What was changed is written, and then the verb is judged again.
    WriteFirst,
}

/// What was read at one instant.
struct Read {
    version: Version,
    whole: Whole,
    time: Time,
}

/// Which verb of what with which token, for `OutcomeUnknown`.
#[derive(Clone)]
struct Call {
    verb: EffectVerb,
    subject: String,
    token: Option<Token>,
}

impl Call {
    fn new(verb: EffectVerb, subject: &str, token: Option<&Token>) -> Self {
        Call { verb, subject: subject.to_owned(), token: token.cloned() }
    }

    fn unknown(&self) -> EffectError {
        EffectError::OutcomeUnknown {
            verb: self.verb,
            subject: self.subject.clone(),
            token: self.token.clone(),
        }
    }
}

/// A write of which it is not known whether it has happened.
struct Try<T> {
    operation: OperationId,
    base: Version,
    txn: Txn,
    /// `None`: it is judged again.
    answer: Option<Result<T, EffectError>>,
}

impl OneKeyEffects {
    /// Opens the store in the backend's namespace. `clock` counts only where the store has none: then clients may be
    /// `max_clock_skew` apart.
    ///
    /// # Errors
    /// [`EffectError::Backend`] if the store fails.
    pub async fn open(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        max_clock_skew: Duration,
        agent: AgentId,
    ) -> Result<Self, EffectError> {
        let store = OneKeyEffects {
            value: OneValue::new(backend, "effects")?,
            clock,
            max_clock_skew,
            agent,
            wrong: None,
            fences: Mutex::default(),
        };
        if store.value.create(encode(&Whole::default())?).await? {
            Ok(store)
        } else {
            Err(EffectError::TxnConflict { attempts: TRIES })
        }
    }

    /// The same store judging wrongly.
    #[must_use]
    pub fn judging(mut self, wrong: WrongEffects) -> Self {
        self.wrong = Some(wrong);
        self
    }

    fn is(&self, wrong: WrongEffects) -> bool {
        self.wrong == Some(wrong)
    }

    async fn read(&self) -> Result<Read, EffectError> {
        let stored = self.value.read().await?;
        let whole: Whole = match serde_json::from_slice(&stored.bytes) {
            Ok(whole) => whole,
            Err(_) if self.is(WrongEffects::GarbageIsEmpty) => Whole::default(),
            Err(source) => {
                return Err(EffectError::Malformed { key: self.value.name(), source: source.into() });
            }
        };
        let client = self.clock.now();
        let touched = whole.touched.unwrap_or(Timestamp::EPOCH);
        let time = match stored.store_time {
            Some(now) if !self.is(WrongEffects::ClientClock) => {
                Time { now: now.max(touched), margin: Duration::ZERO }
            }
            Some(_) => Time { now: client, margin: Duration::ZERO },
            None => {
                let margin =
                    if self.is(WrongEffects::NoMargin) { Duration::ZERO } else { self.max_clock_skew };
                let ceiling = client.saturating_add(self.max_clock_skew);
                Time { now: client.max(touched.min(ceiling)), margin }
            }
        };
        Ok(Read { version: stored.version, whole, time })
    }

    /// The transaction that replaces what was read.
    fn replace(&self, call: &Call, read: &mut Read, operation: OperationId) -> Result<Txn, EffectError> {
        read.whole.operations.push(operation);
        read.whole.touched = read.whole.touched.max(Some(read.time.now));
        let bytes = Bytes::from(encode(&read.whole)?);
        if bytes.len() > 2 * PART {
            return Err(EffectError::Invalid("the store is full".to_owned()));
        }
        let mut mutations = Vec::from(self.value.put(&bytes));
        mutations.extend(read.whole.put.drain(..).map(|(key, value)| Mutation::put(key, value)));
        mutations.extend(read.whole.delete.drain(..).map(Mutation::delete));
        let asserted = match call.verb {
            EffectVerb::Acquire => !self.is(WrongEffects::AcquireUnasserted),
            EffectVerb::Resolve => !self.is(WrongEffects::RulingUnasserted),
            EffectVerb::Complete => !self.is(WrongEffects::CompletionUnasserted),
            _ => true,
        };
        let asserts = asserted.then(|| self.value.unchanged(read.version));
        Ok(Txn::new(asserts, mutations)?)
    }

    /// Reads, judges, compares and sets, until the answer is known. An acquire never takes its answer from the log: it looks for its
    /// token.
    async fn run<T: Send>(
        &self,
        call: Call,
        mut judge: impl FnMut(&mut Whole, Time) -> Result<Judged<T>, EffectError> + Send,
    ) -> Result<T, EffectError> {
        let by_token = call.verb == EffectVerb::Acquire;
        let mut unknown: Option<Try<T>> = None;
        for attempt in 0..TRIES {
            if attempt > 0 {
                self.clock.sleep(backoff(OperationId::mint(), attempt)).await;
            }
            let mut read = match self.read().await {
                Ok(read) => read,
                Err(error) if unknown.is_none() || self.is(WrongEffects::GoneIsUnavailable) => {
                    return Err(error);
                }
                Err(_) => return Err(call.unknown()),
            };
            if let Some(sent) = unknown.take() {
                if self.is(WrongEffects::UnknownIsJudgedAgain) {
                    // Forgotten.
                } else if read.whole.operations.contains(&sent.operation) {
                    match sent.answer {
                        Some(answer) if !by_token => return answer,
                        Some(answer) if self.is(WrongEffects::GrantedFromLog) => return answer,
                        _ => {}
                    }
                } else if read.version == sent.base {
                    if self.is(WrongEffects::UnseenIsDead) {
                        return Err(self.value.unavailable().into());
                    }
                    match self.value.backend.txn(&sent.txn).await {
                        Ok(TxnOutcome::Applied) if !by_token && sent.answer.is_some() => {
                            return sent.answer.unwrap_or_else(|| Err(call.unknown()));
                        }
                        // Rejected: the first try has arrived, or a rival has. The next look tells.
                        Ok(_) => {}
                        Err(error) if error.is_indeterminate() => {}
                        Err(_) => return Err(call.unknown()),
                    }
                    unknown = Some(sent);
                    continue;
                }
                // The version that it asserts is gone for ever, and it has left no trace: it is dead.
            }
            let operation = OperationId::mint();
            let answer = match judge(&mut read.whole, read.time)? {
                Judged::Keep(answer) => return Ok(answer),
                Judged::Refuse(error) => return Err(error),
                Judged::Write(answer) => Some(answer),
                Judged::WriteFirst => None,
            };
            let base = read.version;
            let txn = self.replace(&call, &mut read, operation)?;
            match self.value.backend.txn(&txn).await {
                Ok(TxnOutcome::Applied) => {
                    if let Some(answer) = answer {
                        return answer;
                    }
                }
                Ok(TxnOutcome::Rejected) => {}
                Err(error) if error.is_indeterminate() => {
                    if self.is(WrongEffects::UnknownIsUnavailable) {
                        return Err(self.value.unavailable().into());
                    }
                    match answer {
                        Some(answer) if self.is(WrongEffects::UnknownIsApplied) => return answer,
                        answer => unknown = Some(Try { operation, base, txn, answer }),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        if unknown.is_some() {
            Err(call.unknown())
        } else {
            Err(EffectError::TxnConflict { attempts: TRIES })
        }
    }
}

/// A completed action, its result not yet looked up.
struct Found {
    done: Done,
}

impl OneKeyEffects {
    /// The name as this store understands it.
    fn ident(&self, text: &str) -> String {
        let text = match self.wrong {
            Some(WrongEffects::NamesTrimmed) => text.trim().to_owned(),
            Some(WrongEffects::NamesFolded) => text.to_lowercase(),
            Some(WrongEffects::NamesNormalised) => {
                text.chars().filter(|c| !('\u{300}'..'\u{370}').contains(c)).collect()
            }
            Some(WrongEffects::NamesCut) => text.split(':').next().unwrap_or_default().to_owned(),
            _ => text.to_owned(),
        };
        if text.is_empty() { "?".to_owned() } else { text }
    }

    fn key(&self, key: &ActionKey) -> Result<ActionKey, EffectError> {
        ActionKey::new(self.ident(key.as_str()))
    }

    fn resource(&self, resource: &ResourceId) -> Result<ResourceId, EffectError> {
        ResourceId::new(self.ident(resource.as_str()))
    }

    fn action(&self, action: &Action) -> Result<Action, EffectError> {
        let mut own = action.clone();
        own.key = self.key(&action.key)?;
        own.resource = self.resource(&action.resource)?;
        if self.is(WrongEffects::NamesJoined) {
            let joined = format!("{}:{}", own.key, own.resource);
            own.key = ActionKey::new(&joined)?;
            own.resource = ResourceId::new(&joined)?;
        }
        Ok(own)
    }

    fn mint(&self) -> Token {
        Token::mint()
    }

    /// Payloads as they are now; those that are gone are left out.
    async fn payloads(&self, keys: Vec<String>) -> Result<BTreeMap<String, Bytes>, EffectError> {
        let mut found = BTreeMap::new();
        if keys.is_empty() {
            return Ok(found);
        }
        let snapshot = self
            .value
            .backend
            .snapshot(&KeySet::new(keys.iter().map(Key::new).collect::<Result<Vec<_>, _>>()?)?)
            .await?;
        for (key, entry) in snapshot.iter() {
            if let Some(value) = entry.value() {
                found.insert(key.as_str().to_owned(), value.clone());
            }
        }
        Ok(found)
    }

    /// What is replayed; `None` if it was dropped meanwhile, so that the verb has to look again.
    async fn replay(&self, done: &Done) -> Result<Option<Completed>, EffectError> {
        let replay = match &done.payload {
            Payload::Here(bytes) => Replay::Result(Bytes::from(bytes.clone())),
            Payload::Apart(key) => match self.payloads(vec![key.clone()]).await?.remove(key) {
                Some(bytes) if result_digest(&bytes) == done.digest => Replay::Result(bytes),
                Some(_) => {
                    let source = "the result is another one than was kept".into();
                    return Err(EffectError::Malformed { key: key.clone(), source });
                }
                None => return Ok(None),
            },
            Payload::Purged(at) => Replay::Purged { at: *at },
            Payload::TooLarge | Payload::NotKept => Replay::TooLarge { len: done.len, digest: done.digest },
        };
        Ok(Some(Completed::new(replay, done.at, done.maybe_twice)))
    }

    fn fence_in_handle(&self, resource: &ResourceId, fence: u64) -> u64 {
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        let last = fences.entry(resource.clone()).or_insert(fence);
        *last += 1;
        *last
    }
}

/// The end of a lease.
fn end(now: Timestamp, ttl: Duration) -> Result<Timestamp, EffectError> {
    now.checked_add(ttl)
        .ok_or_else(|| EffectError::Invalid(format!("the ttl {ttl:?} ends beyond the representable time")))
}

fn check_ttl(ttl: Duration) -> Result<(), EffectError> {
    if ttl < Duration::from_micros(1) {
        return Err(EffectError::Invalid(format!("the ttl {ttl:?} is less than a microsecond")));
    }
    Ok(())
}

fn encode(whole: &Whole) -> Result<Vec<u8>, EffectError> {
    serde_json::to_vec(whole)
        .map_err(|error| EffectError::Invalid(format!("the store cannot be written: {error}")))
}

#[async_trait]
impl EffectStore for OneKeyEffects {
    async fn acquire(&self, action: &Action, ttl: Duration) -> Result<Outcome, EffectError> {
        let answer = self.acquire_action(&self.action(action)?, ttl).await?;
        Ok(match answer {
            Outcome::Granted(mut lease) => {
                lease.action = action.clone();
                Outcome::Granted(lease)
            }
            other => other,
        })
    }

    async fn complete(
        &self,
        action: &Action,
        lease: &Lease,
        result: Bytes,
    ) -> Result<Completed, EffectError> {
        self.complete_action(&self.action(action)?, lease, result).await
    }

    async fn mark_uncertain(
        &self,
        action: &Action,
        lease: &Lease,
        reason: &Note,
    ) -> Result<Episode, EffectError> {
        self.mark_action(&self.action(action)?, lease, reason).await
    }

    async fn renew(&self, action: &Action, lease: &Lease, ttl: Duration) -> Result<Lease, EffectError> {
        self.renew_action(&self.action(action)?, lease, ttl).await
    }

    async fn release(&self, action: &Action, lease: &Lease) -> Result<(), EffectError> {
        self.release_action(&self.action(action)?, lease).await
    }

    async fn abandon(&self, action: &Action, lease: &Lease, reason: &Note) -> Result<(), EffectError> {
        self.abandon_action(&self.action(action)?, lease, reason).await
    }

    async fn begin_reconcile(&self, action: &Action, ttl: Duration) -> Result<Reconciliation, EffectError> {
        let mut right = self.claim_judgement(&self.action(action)?, ttl).await?;
        right.action = action.clone();
        Ok(right)
    }

    async fn resolve(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
    ) -> Result<Ruled, EffectError> {
        self.rule(&self.action(action)?, episode, resolution, evidence, None).await
    }

    async fn resolve_owned(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
        holder: &Token,
    ) -> Result<Ruled, EffectError> {
        self.rule(&self.action(action)?, episode, resolution, evidence, Some(holder)).await
    }

    async fn get(&self, key: &ActionKey) -> Result<Option<ActionStatus>, EffectError> {
        self.status_of(key).await
    }

    async fn list(&self, filter: &ListFilter) -> Result<ListPage, EffectError> {
        self.list_actions(filter).await
    }

    async fn history(&self, key: &ActionKey) -> Result<Option<History>, EffectError> {
        self.history_of(key).await
    }

    async fn purge(&self, request: &PurgeRequest) -> Result<PurgeReport, EffectError> {
        self.purge_batch(request).await
    }

    async fn forget(&self, key: &ActionKey) -> Result<(), EffectError> {
        self.forget_key(key).await
    }

    async fn forget_resource(&self, resource: &ResourceId) -> Result<(), EffectError> {
        self.forget_place(resource).await
    }
}
