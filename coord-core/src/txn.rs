//! What is written: asserts, mutations, transactions.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;

use crate::error::BackendError;
use crate::key::{Key, limits};
use crate::snapshot::Version;

/// A condition of a transaction: the key has exactly this version at the instant of the commit.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Assert {
    /// The key.
    pub key: Key,
    /// The version it must have; [`Version::MISSING`] for "absent".
    pub version: Version,
}

impl Assert {
    /// The key has this version: not an older one, a newer one, or the same count of another incarnation.
    #[must_use]
    pub fn version(key: Key, version: Version) -> Self {
        Assert { key, version }
    }

    /// The key is absent.
    #[must_use]
    pub fn missing(key: Key) -> Self {
        Assert { key, version: Version::MISSING }
    }
}

/// A write of a transaction.
#[derive(Clone, PartialEq, Eq)]
pub enum Mutation {
    /// Sets the value. The version moves by one, also if the bytes are equal; an absent key comes into being.
    Put {
        /// The key.
        key: Key,
        /// Its new value.
        value: Bytes,
    },
    /// Removes the key. Nothing changes if it is absent.
    Delete {
        /// The key.
        key: Key,
    },
}

impl Mutation {
    /// Sets the value of a key.
    pub fn put(key: Key, value: impl Into<Bytes>) -> Self {
        Mutation::Put { key, value: value.into() }
    }

    /// Removes a key.
    #[must_use]
    pub fn delete(key: Key) -> Self {
        Mutation::Delete { key }
    }

    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Mutation::Put { key, .. } | Mutation::Delete { key } => key,
        }
    }

    /// The value that is written, `None` for a delete.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Mutation::Put { value, .. } => Some(value),
            Mutation::Delete { .. } => None,
        }
    }
}

impl fmt::Debug for Mutation {
    // Values may hold secrets of the caller, so they are shown by their length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mutation::Put { key, value } => write!(f, "Put({key:?}, {} bytes)", value.len()),
            Mutation::Delete { key } => write!(f, "Delete({key:?})"),
        }
    }
}

/// A conditional transaction: if all asserts hold, all mutations happen at one instant, else none does.
///
/// Asserts are conjunctive, also if one key is asserted twice. Without asserts the transaction is unconditional; without mutations it
/// is a check that moves nothing; with neither it is applied.
///
/// ```
/// use coord_core::{Assert, Key, Mutation, Txn};
///
/// let key = Key::new("greeting")?;
/// let create = Txn::new([Assert::missing(key.clone())], [Mutation::put(key, "hello")])?;
/// assert_eq!(create.asserts().len(), 1);
/// # Ok::<(), coord_core::BackendError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    asserts: Vec<Assert>,
    mutations: Vec<Mutation>,
}

impl Txn {
    /// A transaction.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if there are more than 48 asserts or 3,000 mutations, a key is mutated twice, a value
    /// has more than 512 KiB, or all keys and values together have more than 1 MiB.
    pub fn new(
        asserts: impl IntoIterator<Item = Assert>,
        mutations: impl IntoIterator<Item = Mutation>,
    ) -> Result<Self, BackendError> {
        let asserts: Vec<Assert> = asserts.into_iter().take(limits::TXN_ASSERTS + 1).collect();
        let mutations: Vec<Mutation> = mutations.into_iter().take(limits::TXN_MUTATIONS + 1).collect();
        if asserts.len() > limits::TXN_ASSERTS {
            return Err(BackendError::invalid(format!(
                "a transaction has at most {} asserts",
                limits::TXN_ASSERTS
            )));
        }
        if mutations.len() > limits::TXN_MUTATIONS {
            return Err(BackendError::invalid(format!(
                "a transaction has at most {} mutations",
                limits::TXN_MUTATIONS
            )));
        }
        let txn = Txn { asserts, mutations };
        let mut seen = BTreeSet::new();
        for mutation in &txn.mutations {
            if !seen.insert(mutation.key()) {
                return Err(BackendError::invalid(format!(
                    "a transaction mutates the key {:?} twice",
                    mutation.key()
                )));
            }
            if let Some(value) = mutation.value()
                && value.len() > limits::VALUE_BYTES
            {
                return Err(BackendError::invalid(format!(
                    "the value of the key {:?} has {} bytes, more than {}",
                    mutation.key(),
                    value.len(),
                    limits::VALUE_BYTES
                )));
            }
        }
        if txn.size() > limits::TXN_BYTES {
            return Err(BackendError::invalid(format!(
                "a transaction has {} bytes of keys and values, more than {}",
                txn.size(),
                limits::TXN_BYTES
            )));
        }
        Ok(txn)
    }

    /// The conditions.
    #[must_use]
    pub fn asserts(&self) -> &[Assert] {
        &self.asserts
    }

    /// The writes; no key twice.
    #[must_use]
    pub fn mutations(&self) -> &[Mutation] {
        &self.mutations
    }

    /// The bytes of keys and values, as [`limits::TXN_BYTES`] counts them.
    #[must_use]
    pub fn size(&self) -> usize {
        let asserts: usize = self.asserts.iter().map(|assert| assert.key.as_bytes().len()).sum();
        let mutations: usize =
            self.mutations.iter().map(|m| m.key().as_bytes().len() + m.value().map_or(0, Bytes::len)).sum();
        asserts + mutations
    }
}

/// What became of a transaction.
#[must_use = "a rejected transaction has changed nothing"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxnOutcome {
    /// All asserts held, and all mutations have happened.
    Applied,
    /// An assert did not hold, and nothing has changed. An ordinary answer, not an error.
    Rejected,
}

impl TxnOutcome {
    /// Whether the transaction was applied.
    #[must_use]
    pub fn is_applied(self) -> bool {
        self == TxnOutcome::Applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn key(n: usize) -> Key {
        Key::new(format!("{n:04}")).unwrap()
    }

    #[test]
    fn limits_are_exact() {
        let asserts = |n: usize| (0..n).map(|n| Assert::missing(key(n)));
        let puts = |n: usize, size: usize| (0..n).map(move |n| Mutation::put(key(n), vec![0; size]));
        assert!(Txn::new(asserts(48), puts(3_000, 0)).is_ok());
        assert!(Txn::new([], puts(1, 512 * 1024)).is_ok());
        // 1 MiB in all: two values of 512 KiB less the eight bytes of their keys.
        assert!(Txn::new([], puts(2, 512 * 1024 - 4)).is_ok());
        for (what, bad) in [
            ("asserts", Txn::new(asserts(49), [])),
            ("mutations", Txn::new([], puts(3_001, 0))),
            ("value", Txn::new([], puts(1, 512 * 1024 + 1))),
            ("size", Txn::new([], puts(2, 512 * 1024 - 3))),
            ("asserted keys count", Txn::new(asserts(1), puts(2, 512 * 1024 - 4))),
            ("twice", Txn::new([], [Mutation::put(key(1), ""), Mutation::delete(key(1))])),
        ] {
            assert_eq!(bad.unwrap_err().kind(), ErrorKind::Invalid, "{what}");
        }
        // The same key may be asserted twice: the asserts are a conjunction.
        assert!(Txn::new([Assert::missing(key(1)), Assert::missing(key(1))], []).is_ok());
    }
}
