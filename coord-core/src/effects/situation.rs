//! What a judgement sees of an action, and what it writes.

use super::EffectError;
use super::action::{
    Action, ActionState, ActionStatus, Completed, Episode, Holder, Lease, ListedResult, Replay, Uncertain,
};
use super::history::TransitionKind;
use super::names::{ActionKey, Note, ResourceId};
use super::record::{
    self, Attempt, Floor, Head, Held, Kept, Phase, Resource, encode_floor, encode_head, encode_open,
    encode_resource, floor_key, head_key, open_key, read_floor, read_head, read_resource, read_result,
    resource_key, result_key,
};
use crate::board::AgentId;
use crate::cas::{Time, View};
use crate::clock::Timestamp;
use crate::key::Key;
use crate::snapshot::Version;
use crate::token::{OperationId, Token};
use crate::txn::{Assert, Mutation, Txn};

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
        head.note(TransitionKind::Lapsed, agent, fence, now, reason);
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
