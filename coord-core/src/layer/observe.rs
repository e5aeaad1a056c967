//! Counting and tracing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tracing::{Instrument as _, debug, debug_span};

use crate::backend::Backend;
use crate::error::{BackendError, ErrorKind, Operation};
use crate::key::Key;
use crate::snapshot::{KeyRange, KeySet, Snapshot};
use crate::txn::{Txn, TxnOutcome};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one primitive has cost so far.
        ///
        /// A call whose future was dropped is in `calls` and in nothing that stands for an answer.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct CallCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl CallCounts {
            /// What was added since `earlier`, which is an older reading of the same meter; after a reset in between, zero
            /// instead of less than nothing.
            #[must_use]
            pub fn since(self, earlier: CallCounts) -> CallCounts {
                CallCounts { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }

            /// The sum of two readings, for instance of two primitives.
            #[must_use]
            pub fn plus(self, other: CallCounts) -> CallCounts {
                CallCounts { $($name: self.$name.saturating_add(other.$name),)* }
            }
        }

        #[derive(Debug, Default)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            // The counts are statistics that order nothing, so relaxed accesses do.
            fn read(&self) -> CallCounts {
                CallCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            fn reset(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counts! {
    /// Calls, the failed and the dropped ones included: round trips, as the caller sees them.
    calls,
    /// Keys sent: those asked for, duplicates counted; asserts plus mutations of transactions; none for listings.
    keys_sent,
    /// Bytes sent: keys and values, prefix and start of a listing. What the protocol adds is not counted.
    bytes_sent,
    /// Keys answered: the present ones of snapshots, the listed ones of listings.
    keys_answered,
    /// Bytes answered: keys and values of what is in `keys_answered`.
    bytes_answered,
    /// Calls that were answered, rejected transactions included.
    answered,
    /// Transactions that were answered as applied.
    applied,
    /// Transactions that were answered as rejected.
    rejected,
    /// Errors of the kind [`Unavailable`](ErrorKind::Unavailable).
    unavailable,
    /// Errors of the kind [`Indeterminate`](ErrorKind::Indeterminate), or of one that is not known here.
    indeterminate,
    /// Errors of the kind [`Invalid`](ErrorKind::Invalid).
    invalid,
    /// Errors of the kind [`Corrupt`](ErrorKind::Corrupt).
    corrupt,
    /// Errors of the kind [`Config`](ErrorKind::Config).
    config,
}

impl CallCounts {
    /// Errors of all kinds.
    #[must_use]
    pub fn errors(self) -> u64 {
        self.unavailable + self.indeterminate + self.invalid + self.corrupt + self.config
    }

    /// Bytes in both directions.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes_sent + self.bytes_answered
    }
}

impl Counters {
    fn sent(&self, keys: usize, bytes: usize) {
        add(&self.calls, 1);
        add(&self.keys_sent, keys);
        add(&self.bytes_sent, bytes);
    }

    fn answered(&self, keys: usize, bytes: usize) {
        add(&self.answered, 1);
        add(&self.keys_answered, keys);
        add(&self.bytes_answered, bytes);
    }

    fn failed(&self, error: &BackendError) {
        let counter = match error.kind() {
            ErrorKind::Unavailable => &self.unavailable,
            ErrorKind::Indeterminate => &self.indeterminate,
            ErrorKind::Invalid => &self.invalid,
            ErrorKind::Corrupt => &self.corrupt,
            ErrorKind::Config => &self.config,
        };
        add(counter, 1);
    }
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

/// A reading of a [`Meter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Of [`snapshot`](Backend::snapshot).
    pub snapshot: CallCounts,
    /// Of [`txn`](Backend::txn).
    pub txn: CallCounts,
    /// Of [`keys`](Backend::keys).
    pub keys: CallCounts,
}

impl Counts {
    /// What was added since `earlier`, which is an older reading of the same meter.
    #[must_use]
    pub fn since(self, earlier: Counts) -> Counts {
        Counts {
            snapshot: self.snapshot.since(earlier.snapshot),
            txn: self.txn.since(earlier.txn),
            keys: self.keys.since(earlier.keys),
        }
    }

    /// All three primitives together.
    #[must_use]
    pub fn total(self) -> CallCounts {
        self.snapshot.plus(self.txn).plus(self.keys)
    }
}

#[derive(Debug, Default)]
struct Primitives {
    snapshot: Counters,
    txn: Counters,
    keys: Counters,
}

/// The counters of an [`Observe`], to be read where the backend itself is out of reach. Clones are the same meter.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Primitives>);

impl Meter {
    /// The counts so far. Calls that run meanwhile may be counted in part.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { snapshot: self.0.snapshot.read(), txn: self.0.txn.read(), keys: self.0.keys.read() }
    }

    /// Sets all counts to zero.
    pub fn reset(&self) {
        self.0.snapshot.reset();
        self.0.txn.reset();
        self.0.keys.reset();
    }
}

/// A backend that counts what passes through it, and traces it with `tracing` at debug level: a span a call (`snapshot`, `txn` or
/// `keys`) and an event with its outcome. Only numbers are counted and traced, never keys, values or tokens.
///
/// Clones share their meter.
///
/// ```
/// use coord_core::layer::Observe;
/// use coord_core::{Assert, Backend, Key, KeySet, Mutation, Namespace, Txn};
/// use coord_memory::MemoryStore;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let backend = Observe::new(MemoryStore::new().open(&Namespace::new("example")?));
/// let key = Key::new("greeting")?;
/// let create = Txn::new([Assert::missing(key.clone())], [Mutation::put(key.clone(), "hello")])?;
/// assert!(backend.txn(&create).await?.is_applied());
/// let before = backend.counts();
/// assert!(!backend.txn(&create).await?.is_applied());
/// backend.snapshot(&KeySet::new([key])?).await?;
///
/// let counts = backend.counts().since(before);
/// assert_eq!((counts.txn.calls, counts.txn.applied, counts.txn.rejected), (1, 0, 1));
/// assert_eq!(counts.snapshot.bytes_answered, 13);
/// assert_eq!(counts.total().calls, 2);
/// # Ok::<(), coord_core::BackendError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Observe<B> {
    inner: B,
    meter: Meter,
}

impl<B: Backend> Observe<B> {
    /// A backend with a meter of its own, at zero.
    #[must_use]
    pub fn new(inner: B) -> Self {
        Observe { inner, meter: Meter::default() }
    }

    /// A backend that adds to a meter that others add to as well.
    #[must_use]
    pub fn with_meter(inner: B, meter: Meter) -> Self {
        Observe { inner, meter }
    }

    /// The wrapped backend.
    #[must_use]
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The meter.
    #[must_use]
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.meter.counts()
    }

    /// Sets all counts to zero.
    pub fn reset(&self) {
        self.meter.reset();
    }
}

fn trace_error(operation: Operation, error: &BackendError) {
    // The kind only: a driver's text is not ours, and might quote what was sent.
    debug!(operation = operation.as_str(), kind = error.kind().as_str(), "failed");
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for Observe<B> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let counters = &self.meter.0.snapshot;
        let bytes = keys.iter().map(|key| key.as_bytes().len()).sum();
        counters.sent(keys.len(), bytes);
        let span = debug_span!("snapshot", backend = self.name(), keys = keys.len(), bytes);
        async {
            let result = self.inner.snapshot(keys).await;
            match &result {
                Ok(snapshot) => {
                    let present = snapshot.iter().filter(|(_, entry)| entry.is_present()).count();
                    let bytes = snapshot.size();
                    counters.answered(present, bytes);
                    debug!(present, bytes, "answered");
                }
                Err(error) => {
                    counters.failed(error);
                    trace_error(Operation::Snapshot, error);
                }
            }
            result
        }
        .instrument(span)
        .await
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let counters = &self.meter.0.txn;
        let (asserts, mutations, bytes) = (txn.asserts().len(), txn.mutations().len(), txn.size());
        counters.sent(asserts + mutations, bytes);
        let span = debug_span!("txn", backend = self.name(), asserts, mutations, bytes);
        async {
            let result = self.inner.txn(txn).await;
            match &result {
                Ok(outcome) => {
                    let applied = outcome.is_applied();
                    counters.answered(0, 0);
                    add(if applied { &counters.applied } else { &counters.rejected }, 1);
                    debug!(applied, "answered");
                }
                Err(error) => {
                    counters.failed(error);
                    trace_error(Operation::Txn, error);
                }
            }
            result
        }
        .instrument(span)
        .await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let counters = &self.meter.0.keys;
        let bytes = range.prefix().as_bytes().len() + range.after().map_or(0, |key| key.as_bytes().len());
        counters.sent(0, bytes);
        let span = debug_span!("keys", backend = self.name(), limit = range.limit(), bytes);
        async {
            let result = self.inner.keys(range).await;
            match &result {
                Ok(keys) => {
                    let bytes = keys.iter().map(|key| key.as_bytes().len()).sum();
                    counters.answered(keys.len(), bytes);
                    debug!(keys = keys.len(), bytes, "answered");
                }
                Err(error) => {
                    counters.failed(error);
                    trace_error(Operation::Keys, error);
                }
            }
            result
        }
        .instrument(span)
        .await
    }
}
