//! The trait that a store implements.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::BackendError;
use crate::key::Key;
use crate::snapshot::{KeyRange, KeySet, Snapshot};
use crate::txn::{Txn, TxnOutcome};

/// A store of bytes under keys, in one namespace, with three primitives. A value of this type is a *handle*: one connected
/// instance of a backend. Handles of one namespace, in whatever process, see the same data.
///
/// # Contract
///
/// All three primitives together are **strictly serialisable**: each takes effect at one instant between its call and its answer, and
/// listings take part like snapshots. The contract suite (`contract-suite`) has a clause for each promise; run it against
/// yours.
///
/// Requests are checked by their constructors ([`Key`], [`KeySet`], [`Txn`], [`KeyRange`]), so a backend is never handed a bad one and
/// must accept every good one. The one limit that needs a look into the store is [`limits::SNAPSHOT_BYTES`]
/// (`limits` is [`coord_core::limits`](crate::limits)): a snapshot whose answer would be larger is
/// [`Invalid`](crate::ErrorKind::Invalid).
///
/// Versions are the backend's to keep, as [`Version`](crate::Version) says: a put of an absent key gives it an incarnation that it
/// never had, minted with [`mint_incarnation`](crate::token::mint_incarnation) anew for every try, unless the store has one of its
/// own that never repeats; every further put adds one to the count.
///
/// Errors say whether the operation may have happened ([`ErrorKind`](crate::ErrorKind)). In doubt a failed `txn` is
/// [`Indeterminate`](crate::ErrorKind::Indeterminate), a failed read [`Unavailable`](crate::ErrorKind::Unavailable). A backend
/// never sends a transaction again once it may have been received. It may retry what certainly did not happen, within a bounded time.
///
/// Dropping the future of a call leaves the handle usable and nothing locked; a dropped `txn` may have happened. Calls may run
/// concurrently on one handle. Every call ends within a bounded time. A handle recovers by itself once the store is back.
///
/// No method has a default, for a wrapper silently loses what it does not forward.
///
/// [`limits::SNAPSHOT_BYTES`]: crate::limits::SNAPSHOT_BYTES
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// The name of the backend in errors and reports: one lower-case word.
    fn name(&self) -> &'static str;

    /// Reads several keys at one instant.
    ///
    /// The answer has exactly one entry for each distinct key, absent ones included, and the store's clock at that instant where the
    /// store has one, also if no key is asked for.
    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError>;

    /// Applies all mutations at one instant if all asserts hold at that instant, else changes nothing.
    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError>;

    /// Lists the keys of a range at one instant, in ascending byte order, at most `limit` of them.
    ///
    /// Only keys that were put are listed, never what the backend keeps for itself.
    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError>;
}

macro_rules! forward {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<B: Backend + ?Sized> Backend for $pointer<B> {
            fn name(&self) -> &'static str {
                (**self).name()
            }
            async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
                (**self).snapshot(keys).await
            }
            async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
                (**self).txn(txn).await
            }
            async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
                (**self).keys(range).await
            }
        }
    };
}

forward!(Arc);
forward!(Box);
