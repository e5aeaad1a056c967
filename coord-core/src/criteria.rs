//! The concurrency criteria of the contract, exported so that anyone can run them against a store of their own.
//!
//! Each starts its racers at a barrier and demands exactly one winner. None is a failure too, for then nobody contended. A loser must
//! have lost the race: any other error is reported as itself and never counts as a loser, or else a broken store would pass.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;

use crate::backend::Backend;
use crate::board::{AgentId, Board, BoardError, Claim, ClaimRequest, TaskId};
use crate::effects::{Action, EffectError, EffectStore, Lease, Outcome};
use crate::error::BackendError;
use crate::key::Key;
use crate::snapshot::{KeySet, Version};
use crate::txn::{Assert, Mutation, Txn, TxnOutcome};

/// Why a criterion is not met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CriterionError {
    /// There was not exactly one winner.
    #[error("{winners} of {racers} racers won, exactly one may")]
    Winners {
        /// How many won.
        winners: usize,
        /// How many raced.
        racers: usize,
    },
    /// The version or the fence did not move by exactly one.
    #[error("it moved from {before} to {after}, not by exactly one")]
    Moved {
        /// Before the race.
        before: String,
        /// After it.
        after: String,
    },
    /// What is stored is not what the winner wrote.
    #[error("what is stored is not what the winner wrote")]
    NotTheWinners,
    /// A racer got neither the win nor the loss, but this.
    #[error("a racer of the store failed")]
    Backend(#[from] BackendError),
    /// A racer got neither the win nor the loss, but this.
    #[error("a racer of the board failed")]
    Board(#[from] BoardError),
    /// A racer got neither the win nor the loss, but this.
    #[error("a racer of the side-effect store failed")]
    Effects(#[from] EffectError),
    /// A racer was answered neither with the win nor with the loss.
    #[error("a racer was answered with {0:?}")]
    Outcome(Box<Outcome>),
    /// A racer panicked.
    #[error("a racer panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

/// `workers` clients assert the same version of `key` and write their own value, all at one instant: exactly one transaction is
/// applied, all others are rejected, and the version moves by exactly one. An absent key is raced for as absent. The handles are used
/// in turn; pass several that were connected separately.
///
/// # Errors
/// The [`CriterionError`] that says what was seen.
///
/// # Panics
/// If `handles` is empty.
pub async fn concurrent_txn(
    handles: &[Arc<dyn Backend>],
    key: &Key,
    workers: usize,
) -> Result<(), CriterionError> {
    assert!(!handles.is_empty(), "the criterion needs a handle");
    let keys = KeySet::new([key.clone()])?;
    let before = handles[0].snapshot(&keys).await?.require(key)?.version();
    let barrier = Arc::new(Barrier::new(workers));
    let mut racers = Vec::with_capacity(workers);
    for worker in 0..workers {
        let (backend, barrier) = (handles[worker % handles.len()].clone(), barrier.clone());
        let txn = Txn::new(
            [Assert::version(key.clone(), before)],
            [Mutation::put(key.clone(), format!("racer {worker}"))],
        )?;
        racers.push(tokio::spawn(async move {
            barrier.wait().await;
            backend.txn(&txn).await
        }));
    }
    let mut winners = Vec::new();
    for (worker, racer) in racers.into_iter().enumerate() {
        if racer.await.map_err(CriterionError::Panicked)?? == TxnOutcome::Applied {
            winners.push(worker);
        }
    }
    let [winner] = winners[..] else {
        return Err(CriterionError::Winners { winners: winners.len(), racers: workers });
    };
    for handle in handles {
        let after = handle.snapshot(&keys).await?;
        let entry = after.require(key)?;
        let moved = match before.next() {
            Some(next) => entry.version() == next,
            // An absent key comes into being with count 1.
            None => entry.version() != Version::MISSING && entry.version().count() == 1,
        };
        if !moved {
            return Err(CriterionError::Moved {
                before: before.to_string(),
                after: entry.version().to_string(),
            });
        }
        if entry.value().map(|value| &value[..]) != Some(format!("racer {winner}").as_bytes()) {
            return Err(CriterionError::NotTheWinners);
        }
    }
    Ok(())
}

/// `workers` agents claim the same task at one instant: exactly one gets it, all others are told that it is
/// [`Taken`](BoardError::Taken), and the fence moves by exactly one. Returns the winner's claim. The boards are used in turn.
///
/// # Errors
/// The [`CriterionError`] that says what was seen.
///
/// # Panics
/// If `boards` is empty.
pub async fn concurrent_claim(
    boards: &[Arc<dyn Board>],
    id: &TaskId,
    workers: usize,
    ttl: Duration,
) -> Result<Claim, CriterionError> {
    assert!(!boards.is_empty(), "the criterion needs a board");
    let before = boards[0].get(id).await?.fence;
    let barrier = Arc::new(Barrier::new(workers));
    let mut racers = Vec::with_capacity(workers);
    for worker in 0..workers {
        let (board, barrier, id) = (boards[worker % boards.len()].clone(), barrier.clone(), id.clone());
        let agent = AgentId::new(format!("racer {worker}"))?;
        racers.push(tokio::spawn(async move {
            barrier.wait().await;
            board.claim(&id, &agent, ClaimRequest::for_ttl(ttl)).await
        }));
    }
    let mut claims = Vec::new();
    for racer in racers {
        match racer.await.map_err(CriterionError::Panicked)? {
            Ok(claim) => claims.push(claim),
            Err(BoardError::Taken { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let winners = claims.len();
    let (Some(claim), 1) = (claims.pop(), winners) else {
        return Err(CriterionError::Winners { winners, racers: workers });
    };
    for board in boards {
        let task = board.get(id).await?;
        if task.fence != before + 1 || claim.lease.fence != before + 1 {
            return Err(CriterionError::Moved { before: before.to_string(), after: task.fence.to_string() });
        }
        if task.owner != claim.task.owner {
            return Err(CriterionError::NotTheWinners);
        }
    }
    Ok(claim)
}

/// Everybody acquires one of `actions` at one instant, the first one the first, and so on in turn until all `workers` have one: exactly one is
/// granted; all others of the same key are told that it is [`InFlight`](Outcome::InFlight), those of other keys (on the same resource)
/// that they are [`Contended`](Outcome::Contended). Returns the winner's lease. The stores are used in turn.
///
/// # Errors
/// The [`CriterionError`] that says what was seen.
///
/// # Panics
/// If `stores` or `actions` is empty, or the actions are not all on one resource.
pub async fn concurrent_acquire(
    stores: &[Arc<dyn EffectStore>],
    actions: &[Action],
    workers: usize,
    ttl: Duration,
) -> Result<Lease, CriterionError> {
    assert!(!stores.is_empty(), "the criterion needs a store");
    assert!(!actions.is_empty(), "the criterion needs an action");
    assert!(
        actions.iter().all(|action| action.resource == actions[0].resource),
        "the criterion needs one resource"
    );
    let barrier = Arc::new(Barrier::new(workers));
    let mut racers = Vec::with_capacity(workers);
    for worker in 0..workers {
        let (store, barrier) = (stores[worker % stores.len()].clone(), barrier.clone());
        let action = actions[worker % actions.len()].clone();
        racers.push(tokio::spawn(async move {
            barrier.wait().await;
            let outcome = store.acquire(&action, ttl).await;
            (action, outcome)
        }));
    }
    let (mut leases, mut losers) = (Vec::new(), Vec::new());
    for racer in racers {
        match racer.await.map_err(CriterionError::Panicked)? {
            (_, Ok(Outcome::Granted(lease))) => leases.push(lease),
            (action, Ok(outcome)) => losers.push((action, outcome)),
            (_, Err(error)) => return Err(error.into()),
        }
    }
    let winners = leases.len();
    let (Some(lease), 1) = (leases.pop(), winners) else {
        return Err(CriterionError::Winners { winners, racers: workers });
    };
    for (action, outcome) in losers {
        let (Outcome::InFlight(holder) | Outcome::Contended(holder)) = &outcome else {
            return Err(CriterionError::Outcome(Box::new(outcome)));
        };
        let same_key = action.key == lease.action.key;
        if matches!(outcome, Outcome::InFlight(_)) != same_key {
            return Err(CriterionError::Outcome(Box::new(outcome)));
        }
        if holder.fence != lease.fence || holder.key != lease.action.key {
            return Err(CriterionError::NotTheWinners);
        }
    }
    Ok(lease)
}
