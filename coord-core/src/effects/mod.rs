//! The side-effect store: an action that changes the world is done at most once per key, its result is kept and replayed, only one
//! action at a time holds a resource, and an outcome that nobody knows stays *uncertain* until somebody who looked decides it.
//!
//! [`EffectStore`] is the store-neutral contract, [`EffectAdapter`] the one implementation of the judging logic, above any
//! [`Backend`](crate::Backend).
//!
//! # What an attempt does
//!
//! It *acquires* the action. If it is granted, the intent is on record before anything is done; then it acts, and *completes* with the result.
//! If it knows that nothing was done, it *abandons*; if it does not know, it *marks* the action uncertain. If it says nothing at all, because it
//! was killed, its hold expires, and the standing intent makes the action uncertain for the next one who asks.
//!
//! [`Guard::run`] does all of this around a closure. A [`Reconciler`] settles what is uncertain by itself, with a [`Probe`] that looks downstream.
//!
//! # What remains possible
//!
//! A store cannot reach into the world. This is what can still go wrong, and what helps against it.
//!
//! | how | a resource that checks fences |
//! |---|---|
//! | a paused holder acts after somebody looked and before the next attempt's first contact | accepts both, unless whoever looked presented the attempt's fence + 1 first |
//! | a paused holder acts after the next attempt did | refuses it |
//! | [`Resolution::AllowRetry`] after the first attempt had acted | accepts both: that is what was allowed; the first one acting late: refuses it |
//! | [`forget`](EffectStore::forget) of a completed key, then acquire | accepts both: that is what was asked for |
//!
//! Where nothing downstream checks fences, its own deduplication by [`Lease::downstream_key`] closes the first two.

mod acquire;
mod action;
mod adapter;
mod fingerprint;
mod guard;
mod head;
mod history;
mod names;
mod operate;
mod reconcile;
mod record;
mod ruling;
mod settle;
mod situation;
mod verb;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use crate::hold::Lost;
pub use action::{
    Action, ActionState, ActionStatus, Completed, Episode, Holder, Lease, ListedResult, Outcome,
    Reconciliation, Replay, Resolution, Ruled, RulingKind, Uncertain, result_digest,
};
pub use adapter::{EffectAdapter, EffectOptions};
pub use fingerprint::Fingerprint;
pub use guard::{Doubt, Failure, Guard, OnDrop, Place, RunContext, RunOptions, RunOutcome, Wait};
pub use history::{
    Evidence, History, ListFilter, ListPage, PurgeReport, PurgeRequest, Transition, TransitionKind,
};
pub use names::{ActionKey, Note, ResourceId, limits};
pub use reconcile::{Finding, Inquiry, Probe, ProbeError, ReconcileReport, Reconciler, ReconcilerOptions};

use crate::cas::TtlError;
use crate::clock::Timestamp;
use crate::codec::DamagedRecord;
use crate::error::BackendError;
use crate::token::Token;

/// A verb of a side-effect store, for errors and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EffectVerb {
    /// Opening a store.
    Open,
    /// [`EffectStore::acquire`].
    Acquire,
    /// [`EffectStore::complete`].
    Complete,
    /// [`EffectStore::mark_uncertain`].
    MarkUncertain,
    /// [`EffectStore::renew`].
    Renew,
    /// [`EffectStore::release`].
    Release,
    /// [`EffectStore::abandon`].
    Abandon,
    /// [`EffectStore::begin_reconcile`].
    BeginReconcile,
    /// [`EffectStore::resolve`] and [`EffectStore::resolve_owned`].
    Resolve,
    /// [`EffectStore::get`].
    Get,
    /// [`EffectStore::list`].
    List,
    /// [`EffectStore::history`].
    History,
    /// [`EffectStore::purge`].
    Purge,
    /// [`EffectStore::forget`] and [`EffectStore::forget_resource`].
    Forget,
}

impl EffectVerb {
    /// The verb as its method is called.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            EffectVerb::Open => "open",
            EffectVerb::Acquire => "acquire",
            EffectVerb::Complete => "complete",
            EffectVerb::MarkUncertain => "mark_uncertain",
            EffectVerb::Renew => "renew",
            EffectVerb::Release => "release",
            EffectVerb::Abandon => "abandon",
            EffectVerb::BeginReconcile => "begin_reconcile",
            EffectVerb::Resolve => "resolve",
            EffectVerb::Get => "get",
            EffectVerb::List => "list",
            EffectVerb::History => "history",
            EffectVerb::Purge => "purge",
            EffectVerb::Forget => "forget",
        }
    }
}

impl fmt::Display for EffectVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a verb did not do what it was asked. One set for every implementation of a side-effect store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EffectError {
    /// The request makes no sense.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Nobody ever acquired this key.
    #[error("the action {key:?} was never acquired")]
    NeverAcquired {
        /// The key.
        key: ActionKey,
    },
    /// The key is in use for another resource or for something else. The original's result is not shown to who asks like that.
    #[error(
        "the action {key:?} was acquired for another resource or with another fingerprint; it is {state}"
    )]
    Mismatch {
        /// The key.
        key: ActionKey,
        /// The state of the original.
        state: ActionState,
    },
    /// The token was never given for this action, or the attempt no longer holds the resource.
    #[error("the lease is lost")]
    LeaseLost,
    /// A newer attempt of the action, or another action, was given the resource. What this attempt brought was kept as evidence, if it
    /// brought a result.
    #[error("the resource's fence is now {current_fence}: somebody else was granted it")]
    FenceStale {
        /// The fence that was given last.
        current_fence: u64,
    },
    /// The attempt was judged already, by itself or by a ruling. What it brought was kept as evidence, if it brought a result.
    #[error("the attempt was judged already; the action is {state}")]
    AttemptJudged {
        /// The state of the action after this call.
        state: ActionState,
    },
    /// An earlier attempt may have been done, so that nothing that this attempt knows can settle the action. A ruling can.
    #[error(
        "an earlier attempt may have been done, and only a ruling settles the action (episode {episode})"
    )]
    StillUncertain {
        /// What a ruling has to name.
        episode: Episode,
    },
    /// The episode that the caller saw is over: the action went on since.
    #[error("the episode is over; the action is {state}")]
    EpisodeOver {
        /// The state of the action.
        state: ActionState,
    },
    /// The caller's right to judge has expired or went to another one.
    #[error("the right to judge is lost; the action is {state}")]
    ReconcileLost {
        /// The state of the action.
        state: ActionState,
    },
    /// Somebody else is looking into it.
    #[error("somebody is looking into the action until {until}")]
    Reconciling {
        /// Until when.
        until: Timestamp,
    },
    /// There is nothing to judge.
    #[error("the action is not uncertain; it is {state}")]
    NotUncertain {
        /// The state of the action.
        state: ActionState,
    },
    /// The action is under way or uncertain, or the resource is held, so it cannot be forgotten.
    #[error("it cannot be forgotten while it is {state}")]
    NotSettled {
        /// The state of the action, or of the action that holds the resource.
        state: ActionState,
    },
    /// What is stored under one of our keys was not written by a side-effect store, or by one that this version understands.
    #[error("the record under {key:?} cannot be read")]
    Malformed {
        /// The key.
        key: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync + 'static>,
    },
    /// Others kept changing the same records. Nothing has happened; try again later.
    #[error("gave up after {attempts} conflicts with other clients")]
    TxnConflict {
        /// How often it was tried.
        attempts: u32,
    },
    /// It may have happened, or may yet, and nobody can tell any more from within this call.
    #[error("whether {verb} of {subject:?} has happened is unknown")]
    OutcomeUnknown {
        /// The verb.
        verb: EffectVerb,
        /// The key or the resource.
        subject: String,
        /// The token that the verb presented or, for an acquire, would have given.
        token: Option<Token>,
    },
    /// The store failed, and nothing has happened.
    #[error("the store failed")]
    Backend(#[from] BackendError),
}

impl From<TtlError> for EffectError {
    fn from(error: TtlError) -> Self {
        EffectError::Invalid(error.to_string())
    }
}

impl From<DamagedRecord> for EffectError {
    fn from(DamagedRecord { key, source }: DamagedRecord) -> Self {
        EffectError::Malformed { key, source }
    }
}

/// A side-effect store. [`EffectAdapter`] implements it above any store; a host may implement it itself and run the same clauses of the
/// contract suite.
///
/// # Contract
///
/// Every verb takes effect at one instant or not at all, and an error says that it did not happen, save
/// [`OutcomeUnknown`](EffectError::OutcomeUnknown), and save that a late result is kept as evidence. Time is the store's where the store
/// has a clock. A key is granted again only after its attempt was abandoned or ruled; the fence of a resource strictly grows. An expired or
/// released attempt that said nothing makes its action uncertain, and no time, retention or restart ends that.
#[async_trait]
pub trait EffectStore: fmt::Debug + Send + Sync + 'static {
    /// Asks to do an action, and is told in one atomic judgement what is known of it, in the order of [`Outcome`]. If it is granted, the
    /// intent and the hold on the resource are on record.
    ///
    /// # Errors
    /// [`Invalid`](EffectError::Invalid), [`Mismatch`](EffectError::Mismatch) (judged before everything else).
    async fn acquire(&self, action: &Action, ttl: Duration) -> Result<Outcome, EffectError>;

    /// The action was done, with this result: it is kept, the resource is freed, and everybody who asks is answered with it. Accepted after
    /// expiry, release or a mark too, until the resource is granted to another action or the attempt is ruled. Whoever comes after a
    /// completion gets the result that was kept, which is the first one.
    ///
    /// # Errors
    /// [`NeverAcquired`](EffectError::NeverAcquired), [`LeaseLost`](EffectError::LeaseLost) for a token that was never given for the key,
    /// [`Mismatch`](EffectError::Mismatch); [`FenceStale`](EffectError::FenceStale) and [`AttemptJudged`](EffectError::AttemptJudged), and
    /// then the result is kept as evidence.
    async fn complete(&self, action: &Action, lease: &Lease, result: Bytes)
    -> Result<Completed, EffectError>;

    /// The attempt does not know whether the action was done. The hold on the resource ends with its `until`, or by release.
    ///
    /// # Errors
    /// [`NeverAcquired`](EffectError::NeverAcquired), [`LeaseLost`](EffectError::LeaseLost), [`Mismatch`](EffectError::Mismatch),
    /// [`FenceStale`](EffectError::FenceStale), [`AttemptJudged`](EffectError::AttemptJudged).
    async fn mark_uncertain(
        &self,
        action: &Action,
        lease: &Lease,
        reason: &Note,
    ) -> Result<Episode, EffectError>;

    /// Moves the end of the hold to `ttl` after the time of the judgement. Exactly at expiry is too late.
    ///
    /// # Errors
    /// [`Invalid`](EffectError::Invalid), [`NeverAcquired`](EffectError::NeverAcquired), [`LeaseLost`](EffectError::LeaseLost),
    /// [`Mismatch`](EffectError::Mismatch), [`FenceStale`](EffectError::FenceStale), [`AttemptJudged`](EffectError::AttemptJudged) (also if the
    /// action is uncertain).
    async fn renew(&self, action: &Action, lease: &Lease, ttl: Duration) -> Result<Lease, EffectError>;

    /// Frees the resource and nothing else: the intent stays, so that the key is not run again before somebody judges it. Success if
    /// the resource is free already.
    ///
    /// # Errors
    /// [`NeverAcquired`](EffectError::NeverAcquired), [`LeaseLost`](EffectError::LeaseLost), [`Mismatch`](EffectError::Mismatch),
    /// [`FenceStale`](EffectError::FenceStale).
    async fn release(&self, action: &Action, lease: &Lease) -> Result<(), EffectError>;

    /// The attempt knows that nothing was done: the intent is withdrawn, the resource freed if it is still the attempt's own. If an
    /// earlier attempt may have been done, the action is uncertain afterwards.
    ///
    /// # Errors
    /// [`NeverAcquired`](EffectError::NeverAcquired), [`LeaseLost`](EffectError::LeaseLost), [`Mismatch`](EffectError::Mismatch),
    /// [`FenceStale`](EffectError::FenceStale), [`AttemptJudged`](EffectError::AttemptJudged), [`StillUncertain`](EffectError::StillUncertain)
    /// if the action is uncertain and an earlier attempt may have been done.
    async fn abandon(&self, action: &Action, lease: &Lease, reason: &Note) -> Result<(), EffectError>;

    /// Claims the right to judge an uncertain action. One at a time; the right is lost when it expires, also if nobody took over.
    ///
    /// # Errors
    /// [`Invalid`](EffectError::Invalid), [`NeverAcquired`](EffectError::NeverAcquired), [`Mismatch`](EffectError::Mismatch),
    /// [`NotUncertain`](EffectError::NotUncertain), [`Reconciling`](EffectError::Reconciling).
    async fn begin_reconcile(&self, action: &Action, ttl: Duration) -> Result<Reconciliation, EffectError>;

    /// Judges the uncertain episode that the caller saw. The first ruling counts, and is what later ones are answered with. No fence is
    /// checked: a ruling rests on facts from downstream. It never touches the hold on the resource: a key that is ruled retryable
    /// before its hold has ended is contended until then.
    ///
    /// # Errors
    /// [`NeverAcquired`](EffectError::NeverAcquired), [`Mismatch`](EffectError::Mismatch), [`EpisodeOver`](EffectError::EpisodeOver),
    /// [`NotUncertain`](EffectError::NotUncertain), in this order.
    async fn resolve(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
    ) -> Result<Ruled, EffectError>;

    /// The same, only for the one who has the right to judge, checked in the same transaction. `holder` is
    /// [`Reconciliation::token`].
    ///
    /// # Errors
    /// As [`resolve`](EffectStore::resolve), and last [`ReconcileLost`](EffectError::ReconcileLost).
    async fn resolve_owned(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
        holder: &Token,
    ) -> Result<Ruled, EffectError>;

    /// What is known of one action, `None` if it was never acquired. An attempt that has lapsed is written down as uncertain.
    ///
    /// # Errors
    /// [`Malformed`](EffectError::Malformed).
    async fn get(&self, key: &ActionKey) -> Result<Option<ActionStatus>, EffectError>;

    /// Actions by state and age, in ascending order of their keys, a page at a time. Open ones are found without reading settled ones.
    /// Nothing is written: a lapsed attempt is shown as such and has no episode yet. An action that cannot be read is named as
    /// [damaged](ListPage::damaged).
    ///
    /// # Errors
    /// [`Invalid`](EffectError::Invalid); [`Malformed`](EffectError::Malformed) if what all actions rest on cannot be read.
    async fn list(&self, filter: &ListFilter) -> Result<ListPage, EffectError>;

    /// What happened to an action, `None` if it was never acquired: transitions with who, when and why, and all evidence.
    ///
    /// # Errors
    /// [`Malformed`](EffectError::Malformed).
    async fn history(&self, key: &ActionKey) -> Result<Option<History>, EffectError>;

    /// Drops the payloads (result and evidence) of actions that were completed before the retention, and keeps that they were. One bounded
    /// batch; never touches an action that is open, or one that cannot be read, which it names.
    ///
    /// # Errors
    /// [`Invalid`](EffectError::Invalid); [`Malformed`](EffectError::Malformed) if what all actions rest on cannot be read.
    async fn purge(&self, request: &PurgeRequest) -> Result<PurgeReport, EffectError>;

    /// Forgets an action that is completed or idle: the next acquire of the key does it again. Fences go on.
    ///
    /// # Errors
    /// [`NeverAcquired`](EffectError::NeverAcquired), [`NotSettled`](EffectError::NotSettled).
    async fn forget(&self, key: &ActionKey) -> Result<(), EffectError>;

    /// Forgets a resource that nobody live holds. Fences go on. Success if there is none.
    ///
    /// # Errors
    /// [`NotSettled`](EffectError::NotSettled).
    async fn forget_resource(&self, resource: &ResourceId) -> Result<(), EffectError>;
}

macro_rules! forward {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<S: EffectStore + ?Sized> EffectStore for $pointer<S> {
            async fn acquire(&self, action: &Action, ttl: Duration) -> Result<Outcome, EffectError> {
                (**self).acquire(action, ttl).await
            }
            async fn complete(
                &self,
                action: &Action,
                lease: &Lease,
                result: Bytes,
            ) -> Result<Completed, EffectError> {
                (**self).complete(action, lease, result).await
            }
            async fn mark_uncertain(
                &self,
                action: &Action,
                lease: &Lease,
                reason: &Note,
            ) -> Result<Episode, EffectError> {
                (**self).mark_uncertain(action, lease, reason).await
            }
            async fn renew(
                &self,
                action: &Action,
                lease: &Lease,
                ttl: Duration,
            ) -> Result<Lease, EffectError> {
                (**self).renew(action, lease, ttl).await
            }
            async fn release(&self, action: &Action, lease: &Lease) -> Result<(), EffectError> {
                (**self).release(action, lease).await
            }
            async fn abandon(
                &self,
                action: &Action,
                lease: &Lease,
                reason: &Note,
            ) -> Result<(), EffectError> {
                (**self).abandon(action, lease, reason).await
            }
            async fn begin_reconcile(
                &self,
                action: &Action,
                ttl: Duration,
            ) -> Result<Reconciliation, EffectError> {
                (**self).begin_reconcile(action, ttl).await
            }
            async fn resolve(
                &self,
                action: &Action,
                episode: Episode,
                resolution: &Resolution,
                evidence: &Note,
            ) -> Result<Ruled, EffectError> {
                (**self).resolve(action, episode, resolution, evidence).await
            }
            async fn resolve_owned(
                &self,
                action: &Action,
                episode: Episode,
                resolution: &Resolution,
                evidence: &Note,
                holder: &Token,
            ) -> Result<Ruled, EffectError> {
                (**self).resolve_owned(action, episode, resolution, evidence, holder).await
            }
            async fn get(&self, key: &ActionKey) -> Result<Option<ActionStatus>, EffectError> {
                (**self).get(key).await
            }
            async fn list(&self, filter: &ListFilter) -> Result<ListPage, EffectError> {
                (**self).list(filter).await
            }
            async fn history(&self, key: &ActionKey) -> Result<Option<History>, EffectError> {
                (**self).history(key).await
            }
            async fn purge(&self, request: &PurgeRequest) -> Result<PurgeReport, EffectError> {
                (**self).purge(request).await
            }
            async fn forget(&self, key: &ActionKey) -> Result<(), EffectError> {
                (**self).forget(key).await
            }
            async fn forget_resource(&self, resource: &ResourceId) -> Result<(), EffectError> {
                (**self).forget_resource(resource).await
            }
        }
    };
}

forward!(Arc);
forward!(Box);
