//! Where the clauses of a side-effect store play: seats at one store, a clock that only the clause moves, and faults in between.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use coord_core::board::AgentId;
use coord_core::effects::{
    Action, ActionKey, ActionState, ActionStatus, Completed, EffectError, EffectStore, Episode, History,
    Lease, Note, Outcome as Acquired, Reconciliation, Resolution, ResourceId, Ruled, Uncertain,
};
use coord_core::{Backend, Bytes, Key};

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::EffectSeat;
use crate::staging::{self, Wire};
pub(super) use crate::staging::{Place, SKEW, TICK, TTL};
use crate::{ensure_eq, fail};

pub(super) fn key(text: impl AsRef<str>) -> ActionKey {
    ActionKey::new(text).expect("the suite only makes good keys")
}

pub(super) fn resource(text: impl AsRef<str>) -> ResourceId {
    ResourceId::new(text).expect("the suite only makes good resources")
}

/// The action of this key on a resource of its own.
pub(super) fn alone(text: impl AsRef<str>) -> Action {
    Action::new(key(text))
}

/// The action of this key on this resource.
pub(super) fn on(text: impl AsRef<str>, place: impl AsRef<str>) -> Action {
    Action::new(key(text)).resource(resource(place))
}

pub(super) fn note(text: &str) -> Note {
    Note::truncated(text)
}

/// One store, seen from several seats.
pub(super) struct Stage(staging::Stage);

impl Deref for Stage {
    type Target = staging::Stage;

    fn deref(&self) -> &staging::Stage {
        &self.0
    }
}

/// One client: a store over a handle of its own.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) store: Arc<dyn EffectStore>,
    wire: Wire,
}

impl Deref for Seat {
    type Target = Wire;

    fn deref(&self) -> &Wire {
        &self.wire
    }
}

impl Stage {
    pub(super) fn new(cx: &Context) -> Self {
        Stage(staging::Stage::new(cx))
    }

    /// A stage of its own beside the clause's.
    pub(super) fn fresh(cx: &Context) -> Self {
        Stage(staging::Stage::fresh(cx))
    }

    /// The same store, as soon as it is empty again, at the beginning of time. Nobody races there, so no backoff waits.
    pub(super) fn again(&self) -> Self {
        Stage(self.0.again())
    }

    /// A seat whose client's clock is right.
    pub(super) async fn seat(&self, agent: &str) -> Result<Seat, Verdict> {
        self.seat_ahead(agent, 0, true).await
    }

    /// Two seats, connected separately.
    pub(super) async fn pair(&self) -> Result<(Seat, Seat), Verdict> {
        Ok((self.seat("ada").await?, self.seat("bob").await?))
    }

    /// Several seats, connected separately.
    pub(super) async fn seats(&self, count: usize) -> Result<Vec<Seat>, Verdict> {
        let mut seats = Vec::with_capacity(count);
        for n in 0..count {
            seats.push(self.seat(&format!("client {n}")).await?);
        }
        Ok(seats)
    }

    /// A seat whose client's clock is wrong by so many microseconds, at a store with or without a clock.
    pub(super) async fn seat_ahead(
        &self,
        agent: &str,
        micros: i64,
        store_has_clock: bool,
    ) -> Result<Seat, Verdict> {
        let raw = self.open().await?;
        self.seat_on(raw, agent, micros, store_has_clock).await
    }

    /// A new client over a handle that is open already.
    pub(super) async fn seat_on(
        &self,
        raw: Arc<dyn Backend>,
        agent: &str,
        ahead: i64,
        store_has_clock: bool,
    ) -> Result<Seat, Verdict> {
        let (backend, wire) = self.wire(raw, store_has_clock);
        let seat = EffectSeat {
            clock: self.seat_clock(ahead),
            max_clock_skew: SKEW,
            agent: AgentId::unchecked(agent),
        };
        let store = self.cx.effects(backend, seat).await?;
        Ok(Seat { store, wire })
    }
}

impl Seat {
    /// What an acquire of the usual length is answered.
    pub(super) async fn ask(&self, action: &Action) -> Result<Acquired, Verdict> {
        self.store.acquire(action, TTL).await.at(format!("acquiring {:?}", action.key))
    }

    /// An acquire that must be granted.
    pub(super) async fn grant(&self, action: &Action) -> Result<Lease, Verdict> {
        self.grant_for(action, TTL).await
    }

    pub(super) async fn grant_for(&self, action: &Action, ttl: Duration) -> Result<Lease, Verdict> {
        match self.store.acquire(action, ttl).await.at(format!("acquiring {:?}", action.key))? {
            Acquired::Granted(lease) => {
                ensure_eq!(lease.action, *action, "the action that the lease is for");
                Ok(lease)
            }
            other => fail!("saw {other:?}, not a grant: acquiring {:?} on {:?}", action.key, action.resource),
        }
    }

    /// Completes with the lease's own action.
    pub(super) async fn finish(&self, lease: &Lease, result: &str) -> Result<Completed, EffectError> {
        self.store.complete(&lease.action, lease, Bytes::copy_from_slice(result.as_bytes())).await
    }

    pub(super) async fn mark(&self, lease: &Lease) -> Result<Episode, EffectError> {
        self.store.mark_uncertain(&lease.action, lease, &note("it did not answer")).await
    }

    pub(super) async fn renew(&self, lease: &Lease) -> Result<Lease, EffectError> {
        self.store.renew(&lease.action, lease, TTL).await
    }

    pub(super) async fn release(&self, lease: &Lease) -> Result<(), EffectError> {
        self.store.release(&lease.action, lease).await
    }

    pub(super) async fn abandon(&self, lease: &Lease) -> Result<(), EffectError> {
        self.store.abandon(&lease.action, lease, &note("it was refused")).await
    }

    pub(super) async fn look_into(&self, action: &Action) -> Result<Reconciliation, EffectError> {
        self.store.begin_reconcile(action, TTL).await
    }

    pub(super) async fn rule(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
    ) -> Result<Ruled, EffectError> {
        self.store.resolve(action, episode, resolution, &note("the ledger was read")).await
    }

    pub(super) async fn rule_owned(
        &self,
        right: &Reconciliation,
        resolution: &Resolution,
    ) -> Result<Ruled, EffectError> {
        let evidence = note("the ledger was read");
        self.store.resolve_owned(&right.action, right.episode, resolution, &evidence, &right.token).await
    }

    /// What is known of an action that was acquired. A lapsed attempt is written down.
    pub(super) async fn get(&self, action: &Action) -> Result<ActionStatus, Verdict> {
        let status = self.store.get(&action.key).await.at(format!("reading {:?}", action.key))?;
        let Some(status) = status else { fail!("saw nothing of {:?}, which was acquired", action.key) };
        Ok(status)
    }

    /// The same without writing anything, and what happened to it.
    pub(super) async fn history(&self, action: &Action) -> Result<History, Verdict> {
        let history = self.store.history(&action.key).await.at(format!("the history of {:?}", action.key))?;
        let Some(history) = history else { fail!("saw no history of {:?}, which was acquired", action.key) };
        Ok(history)
    }

    pub(super) async fn state(&self, action: &Action) -> Result<ActionState, Verdict> {
        Ok(self.history(action).await?.status.state)
    }

    /// What is unknown of an action that must be uncertain.
    pub(super) async fn uncertain(&self, action: &Action) -> Result<Uncertain, Verdict> {
        match self.get(action).await? {
            ActionStatus { state: ActionState::Uncertain, uncertain: Some(uncertain), .. } => Ok(uncertain),
            other => fail!("saw {other:?}, not an uncertain action with what is unknown of it"),
        }
    }

    /// The results of other attempts that are kept beside the first one, with their fences.
    pub(super) async fn evidence(&self, action: &Action) -> Result<Vec<(u64, Option<Bytes>)>, Verdict> {
        let history = self.history(action).await?;
        ensure_eq!(history.status.evidence, history.evidence.len() as u64, "the count of evidence");
        Ok(history.evidence.into_iter().map(|evidence| (evidence.fence, evidence.result)).collect())
    }

    /// Whether the resource of this action is free, seen by acquiring another key on it, and letting it go again.
    pub(super) async fn fence_of(&self, place: &ResourceId, probe: &str) -> Result<u64, Verdict> {
        let action = Action::new(key(probe)).resource(place.clone());
        let lease = self.grant(&action).await.at("probing a resource that must be free")?;
        self.abandon(&lease).await.at("letting go of a probed resource")?;
        Ok(lease.fence)
    }

    /// Fails if anything in the namespace is not as it was.
    pub(super) async fn same_entries(
        &self,
        before: &BTreeMap<Key, Bytes>,
        why: impl std::fmt::Display,
    ) -> Outcome {
        let after = self.raw_entries().await?;
        for (key, value) in &after {
            match before.get(key) {
                Some(old) if old == value => {}
                Some(_) => fail!("saw the record {key:?} changed: {why}"),
                None => fail!("saw the new record {key:?}: {why}"),
            }
        }
        if let Some(gone) = before.keys().find(|key| !after.contains_key(*key)) {
            fail!("saw the record {gone:?} gone: {why}");
        }
        Ok(())
    }
}

pub(super) fn applied(result: &str) -> Resolution {
    Resolution::Applied(Bytes::copy_from_slice(result.as_bytes()))
}

pub(super) fn allow_retry() -> Resolution {
    Resolution::AllowRetry { reason: note("twice is better than never") }
}

/// The same stores as the criteria want them.
pub(super) fn stores(seats: &[Seat]) -> Vec<Arc<dyn EffectStore>> {
    seats.iter().map(|seat| seat.store.clone()).collect()
}
