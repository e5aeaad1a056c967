//! What operators do: look, list, drop what is past its retention, forget.

use super::action::{ActionState, ActionStatus};
use super::adapter::EffectAdapter;
use super::history::{
    Evidence, History, ListFilter, ListPage, PurgeReport, PurgeRequest, TransitionKind, check_limit,
};
use super::names::{ActionKey, Note, ResourceId, limits};
use super::record::{
    self, Floor, HEADS, Head, Kept, OPEN, Phase, RESULTS, action_key, encode_floor, evidence_key, floor_key,
    head_key, open_key, read_evidence, read_floor, read_head, read_resource, resource_key, result_key,
};
use super::situation::{Change, Decision, Situation};
use super::verb::{OnActionVerb, fate};
use super::{EffectError, EffectVerb};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::key::Key;
use crate::snapshot::{KeyRange, KeySet, Snapshot};
use crate::token::OperationId;
use crate::txn::{Assert, Mutation, Txn};

/// How many actions are read at once: so many heads of the largest size, with their resources, fit one snapshot.
const CHUNK: usize = 400;

/// What was read of some actions.
#[derive(Default)]
struct ReadActions {
    actions: Vec<(Situation, Head)>,
    damaged: Vec<ActionKey>,
}

fn by_key(verb: EffectVerb, key: &ActionKey, with_result: bool) -> OnActionVerb<'_> {
    OnActionVerb { verb, key, resource: None, token: None, with_result }
}

/// All keys that evidence of an action may be kept under.
fn evidence_keys(key: &ActionKey) -> impl Iterator<Item = Key> {
    (0..limits::EVIDENCE_KEPT as u8).map(|slot| evidence_key(key, slot))
}

impl<B: Backend> EffectAdapter<B> {
    pub(super) async fn get_action(&self, key: &ActionKey) -> Result<Option<ActionStatus>, EffectError> {
        let judge = |view: &View<'_>, situation: &Situation| {
            let Some(head) = situation.head.clone() else { return Ok(Decision::Answer(None)) };
            if situation.has_lapsed() {
                let head = situation.lapsed(head, self.agent());
                let seen = Situation { head: Some(head.clone()), ..situation.clone() };
                return Ok(Decision::write(Change::of(head.clone()), Some(seen.status(&head))));
            }
            let mut status = situation.status(&head);
            if head.phase == Phase::Completed {
                status.replay = Some(situation.completed(view, &head)?.replay);
            }
            Ok(Decision::Answer(Some(status)))
        };
        self.on_action(by_key(EffectVerb::Get, key, true), judge).await
    }

    fn view<'a>(&self, snapshot: &'a Snapshot) -> View<'a> {
        View { snapshot, clock: self.options().clock.now(), max_clock_skew: self.options().max_clock_skew }
    }

    /// What is known of some actions at one instant; those that are gone by now are left out. One that cannot be read does not keep the
    /// others from being read.
    async fn read_actions(&self, keys: &[ActionKey]) -> Result<ReadActions, EffectError> {
        let heads = self.backend().snapshot(&KeySet::new(keys.iter().map(head_key))?).await?;
        let mut read = ReadActions::default();
        let mut wanted: Vec<Key> = vec![floor_key()];
        for key in keys {
            match read_head(key, heads.require(&head_key(key))?) {
                Ok(Some(head)) => wanted.extend([head_key(key), resource_key(&head.resource)]),
                Ok(None) => {}
                Err(_) => read.damaged.push(key.clone()),
            }
        }
        let snapshot = self.backend().snapshot(&KeySet::new(wanted)?).await?;
        // The guard is no action's own: without it nothing can be said of any.
        read_floor(snapshot.require(&floor_key())?)?;
        let view = self.view(&snapshot);
        for key in keys.iter().filter(|key| snapshot.get(&head_key(key)).is_some()) {
            match Situation::read(&view, key, None) {
                Ok(Ok(situation)) => {
                    let head = situation.head.clone();
                    read.actions.extend(head.map(|head| (situation, head)));
                }
                // An action that was forgotten and came back on another resource in between is for the next look.
                Ok(Err(_)) => {}
                Err(EffectError::Malformed { .. }) => read.damaged.push(key.clone()),
                Err(error) => return Err(error),
            }
        }
        read.damaged.sort_unstable();
        Ok(read)
    }

    /// The next keys of actions under a prefix, and where to go on.
    async fn page(
        &self,
        prefix: &'static str,
        after: Option<&ActionKey>,
        limit: usize,
    ) -> Result<(Vec<ActionKey>, Option<ActionKey>), EffectError> {
        check_limit(limit)?;
        let mut range = KeyRange::new(record::prefix(prefix), limit + 1)?;
        if let Some(after) = after {
            range = range.start_after(match prefix {
                HEADS => head_key(after),
                OPEN => open_key(after),
                _ => result_key(after),
            });
        }
        let mut keys = self.backend().keys(&range).await?;
        let more = keys.len() > limit;
        keys.truncate(limit);
        let keys = keys.iter().map(|key| action_key(prefix, key)).collect::<Result<Vec<_>, _>>()?;
        let next = if more { keys.last().cloned() } else { None };
        Ok((keys, next))
    }

    pub(super) async fn list_actions(&self, filter: &ListFilter) -> Result<ListPage, EffectError> {
        filter.validate()?;
        let prefix = if filter.states.iter().any(|state| state.is_settled()) { HEADS } else { OPEN };
        let (keys, next) = self.page(prefix, filter.after.as_ref(), filter.limit).await?;
        let (mut actions, mut damaged) = (Vec::new(), Vec::new());
        for chunk in keys.chunks(CHUNK) {
            let read = self.read_actions(chunk).await?;
            damaged.extend(read.damaged);
            for (situation, head) in read.actions {
                let status = situation.status(&head);
                if filter.wants(status.state, situation.now().saturating_since(status.since)) {
                    actions.push(status);
                }
            }
        }
        Ok(ListPage { actions, damaged, next })
    }

    pub(super) async fn history_of(&self, key: &ActionKey) -> Result<Option<History>, EffectError> {
        loop {
            let head = self.backend().snapshot(&KeySet::new([head_key(key)])?).await?;
            let Some(head) = read_head(key, head.require(&head_key(key))?)? else { return Ok(None) };
            let keys = [head_key(key), floor_key(), resource_key(&head.resource)]
                .into_iter()
                .chain(evidence_keys(key));
            let snapshot = self.backend().snapshot(&KeySet::new(keys)?).await?;
            // Forgotten and acquired anew on another resource in between: another look.
            let Ok(situation) = Situation::read(&self.view(&snapshot), key, None)? else { continue };
            let Some(head) = situation.head.clone() else { return Ok(None) };
            let mut evidence = Vec::with_capacity(head.evidence.len());
            for known in &head.evidence {
                let result = match known.slot {
                    Some(slot) => {
                        let entry = snapshot.require(&evidence_key(key, slot))?;
                        Some(read_evidence(key, slot, entry)?)
                    }
                    None => None,
                };
                let (fence, at, len, digest) = (known.fence, known.at, known.len, known.digest);
                evidence.push(Evidence { fence, at, len, digest, result });
            }
            let status = situation.status(&head);
            return Ok(Some(History::new(status, head.transitions, head.dropped_transitions, evidence)));
        }
    }

    pub(super) async fn purge_results(&self, request: &PurgeRequest) -> Result<PurgeReport, EffectError> {
        let (keys, next) = self.page(RESULTS, request.after.as_ref(), request.limit).await?;
        let mut report = PurgeReport { examined: keys.len(), next, ..PurgeReport::default() };
        let is_due = |situation: &Situation, head: &Head| {
            let Some(completion) = &head.completion else { return false };
            let since = match completion.kept {
                // What came after its result was purged is kept as long as that was.
                Kept::Purged { .. } => {
                    head.evidence.iter().filter(|known| known.slot.is_some()).map(|known| known.at).max()
                }
                _ => Some(completion.at),
            };
            since.is_some_and(|since| situation.now() >= since.saturating_add(request.retention))
        };
        for chunk in keys.chunks(CHUNK) {
            let read = self.read_actions(chunk).await?;
            report.damaged.extend(read.damaged);
            for (situation, head) in read.actions {
                if is_due(&situation, &head) && self.purge_result(&situation.key, &is_due).await? {
                    report.purged += 1;
                }
            }
        }
        Ok(report)
    }

    async fn purge_result(
        &self,
        key: &ActionKey,
        is_due: &(impl Fn(&Situation, &Head) -> bool + Sync),
    ) -> Result<bool, EffectError> {
        let judge = |_: &View<'_>, situation: &Situation| {
            let Some(mut head) = situation.head.clone() else { return Ok(Decision::Answer(false)) };
            if !is_due(situation, &head) {
                return Ok(Decision::Answer(false));
            }
            let now = situation.now();
            if let Some(completion) = &mut head.completion
                && !matches!(completion.kept, Kept::Purged { .. })
            {
                completion.kept = Kept::Purged { at: now };
            }
            head.evidence.iter_mut().for_each(|known| known.slot = None);
            head.note(TransitionKind::Purged, self.agent(), head.fence(), now, Note::default());
            let gone = [result_key(key)].into_iter().chain(evidence_keys(key)).map(Mutation::delete);
            Ok(Decision::write(Change::of(head).and(gone), true))
        };
        self.on_action(by_key(EffectVerb::Purge, key, false), judge).await
    }

    pub(super) async fn forget_action(&self, key: &ActionKey) -> Result<(), EffectError> {
        self.run(&mut Forgetting {
            verb: by_key(EffectVerb::Forget, key, false),
            operation: OperationId::mint(),
        })
        .await
    }

    pub(super) async fn forget_hold(&self, resource: &ResourceId) -> Result<(), EffectError> {
        self.run(&mut ForgettingHold { resource, operation: OperationId::mint() }).await
    }
}

/// The fate of a try to forget what is under a key: if the life of that is over, it is forgotten, whoever ended it.
fn forgotten(
    view: &View<'_>,
    pending: &Pending<()>,
    key: &Key,
    operation: OperationId,
) -> Result<Fate<()>, EffectError> {
    let before = pending.asserted(key).map(|version| version.incarnation());
    if before != Some(view.entry(key)?.version().incarnation()) {
        return Ok(Fate::Applied(()));
    }
    fate(view, pending, operation)
}

/// Forgetting an action: what is left of it afterwards is that the guard has moved.
struct Forgetting<'a> {
    verb: OnActionVerb<'a>,
    operation: OperationId,
}

impl Judge for Forgetting<'_> {
    type Answer = ();
    type Error = EffectError;

    fn keys(&self) -> Vec<Key> {
        self.verb.keys()
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<()>, EffectError> {
        let key = self.verb.key;
        let situation = match Situation::read(view, key, None)? {
            Ok(situation) => situation,
            Err(unread) => return Ok(Step::Read(vec![unread])),
        };
        situation.existing()?;
        if !situation.state().is_settled() {
            return Err(EffectError::NotSettled { state: situation.state() });
        }
        let floor = Floor { forgotten: situation.floor.forgotten + 1, ..situation.floor.clone() };
        let gone = [head_key(key), result_key(key), open_key(key)].into_iter().chain(evidence_keys(key));
        let change =
            Change { floor: Some(floor), more: gone.map(Mutation::delete).collect(), ..Change::default() };
        Ok(Step::Commit(situation.commit(change, self.operation)?, ()))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<()>) -> Result<Fate<()>, EffectError> {
        forgotten(view, pending, &head_key(self.verb.key), self.operation)
    }

    fn conflict(&self, attempts: u32) -> EffectError {
        EffectError::TxnConflict { attempts }
    }

    fn unknown(&self) -> EffectError {
        self.verb.unknown()
    }
}

/// Forgetting a resource: its last fence goes to the guard.
struct ForgettingHold<'a> {
    resource: &'a ResourceId,
    operation: OperationId,
}

impl Judge for ForgettingHold<'_> {
    type Answer = ();
    type Error = EffectError;

    fn keys(&self) -> Vec<Key> {
        vec![resource_key(self.resource), floor_key()]
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<()>, EffectError> {
        let key = resource_key(self.resource);
        let (entry, floor_entry) = (view.entry(&key)?, view.entry(&floor_key())?);
        let mut floor = read_floor(floor_entry)?;
        let Some(resource) = read_resource(self.resource, entry)? else { return Ok(Step::Answer(())) };
        let time = view.time(resource.touched);
        if resource.held.as_ref().is_some_and(|held| !time.may_take_over(Some(held.until))) {
            return Err(EffectError::NotSettled { state: ActionState::InFlight });
        }
        floor.fence = floor.fence.max(resource.fence);
        floor.recent.push(self.operation);
        let txn = Txn::new(
            [
                Assert::version(key.clone(), entry.version()),
                Assert::version(floor_key(), floor_entry.version()),
            ],
            [Mutation::delete(key), Mutation::put(floor_key(), encode_floor(&floor))],
        )?;
        Ok(Step::Commit(txn, ()))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<()>) -> Result<Fate<()>, EffectError> {
        forgotten(view, pending, &resource_key(self.resource), self.operation)
    }

    fn conflict(&self, attempts: u32) -> EffectError {
        EffectError::TxnConflict { attempts }
    }

    fn unknown(&self) -> EffectError {
        EffectError::OutcomeUnknown {
            verb: EffectVerb::Forget,
            subject: self.resource.as_str().to_owned(),
            token: None,
        }
    }
}
