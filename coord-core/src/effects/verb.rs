//! A verb of one judgement and one write, and the search for a write whose answer was lost.

use super::names::{ActionKey, ResourceId};
use super::record::{
    self, Head, floor_key, head_key, read_floor, read_head, read_resource, resource_key, result_key,
};
use super::situation::{Decision, Situation};
use super::{EffectError, EffectVerb};
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::key::Key;
use crate::recent::{REMEMBERED, Recent};
use crate::snapshot::Entry;
use crate::token::{OperationId, Token};
use crate::txn::Mutation;

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
    J: FnMut(&View<'_>, &Situation) -> Result<Decision<A>, EffectError> + Send,
    F: Fn(&Head) -> Option<A> + Send + Sync,
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
        match (self.judge)(view, &situation)? {
            Decision::Answer(answer) => Ok(Step::Answer(answer)),
            Decision::Write(change, answer) => {
                Ok(Step::Commit(situation.commit(*change, self.operation)?, answer))
            }
        }
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<A>) -> Result<Fate<A>, EffectError> {
        let head = read_head(self.verb.key, view.entry(&head_key(self.verb.key))?)?;
        if let Some(answer) = head.as_ref().and_then(&self.found) {
            return Ok(Fate::Applied(answer));
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
