//! One value that is read and compared and set as a whole.

use std::sync::Arc;
use std::time::Duration;

use coord_core::{
    Assert, Backend, BackendError, Bytes, ErrorKind, Key, KeySet, Mutation, Operation, OperationId,
    Timestamp, Txn, Version, limits,
};

/// How often something is tried before it is given up.
pub(super) const TRIES: u32 = 200;
/// How much of the value stands under the first key; the rest stands under the second.
pub(super) const PART: usize = limits::VALUE_BYTES - 1_024;

/// A value under one key. A long one goes on under a second key, which is only ever written together with the first.
#[derive(Debug)]
pub(super) struct OneValue {
    pub(super) backend: Arc<dyn Backend>,
    head: Key,
    tail: Key,
}

/// The value as it was at one instant.
pub(super) struct Stored {
    pub(super) version: Version,
    pub(super) bytes: Vec<u8>,
    pub(super) store_time: Option<Timestamp>,
}

impl OneValue {
    /// The value under this name.
    pub(super) fn new(backend: Arc<dyn Backend>, name: &str) -> Result<Self, BackendError> {
        Ok(OneValue { backend, head: Key::new(name)?, tail: Key::new(format!("{name}+"))? })
    }

    /// The name of the value.
    pub(super) fn name(&self) -> String {
        self.head.to_string()
    }

    /// Puts this there if nothing is there. `false` if it was given up.
    pub(super) async fn create(&self, empty: Vec<u8>) -> Result<bool, BackendError> {
        let head = &self.head;
        let create = Txn::new([Assert::missing(head.clone())], [Mutation::put(head.clone(), empty)])?;
        // The key is never deleted, so a creation that comes late is rejected, and either answer means that the key is there.
        let keys = KeySet::new([head.clone()])?;
        for _ in 0..TRIES {
            if self.backend.snapshot(&keys).await?.require(head)?.is_present() {
                return Ok(true);
            }
            match self.backend.txn(&create).await {
                Err(error) if !error.is_indeterminate() => return Err(error),
                _ => {}
            }
        }
        Ok(false)
    }

    pub(super) async fn read(&self) -> Result<Stored, BackendError> {
        let keys = KeySet::new([self.head.clone(), self.tail.clone()])?;
        let snapshot = self.backend.snapshot(&keys).await?;
        let entry = snapshot.require(&self.head)?;
        let mut bytes = entry.value().cloned().unwrap_or_default().to_vec();
        if let Some(rest) = snapshot.require(&self.tail)?.value() {
            bytes.extend_from_slice(rest);
        }
        Ok(Stored { version: entry.version(), bytes, store_time: snapshot.store_time() })
    }

    /// Asserts that it has not been written since it had this version.
    pub(super) fn unchanged(&self, version: Version) -> Assert {
        Assert::version(self.head.clone(), version)
    }

    /// Writes this in its place.
    pub(super) fn put(&self, bytes: &Bytes) -> [Mutation; 2] {
        let split = bytes.len().min(PART);
        let rest = match bytes.slice(split..) {
            rest if rest.is_empty() => Mutation::delete(self.tail.clone()),
            rest => Mutation::put(self.tail.clone(), rest),
        };
        [Mutation::put(self.head.clone(), bytes.slice(..split)), rest]
    }

    /// What a wrong judge says of a write of which it does not know whether it happened.
    pub(super) fn unavailable(&self) -> BackendError {
        let backend = self.backend.name();
        BackendError::new(ErrorKind::Unavailable, backend, Operation::Txn, "the write did not happen")
    }
}

/// Up to 10 ms, spread by random bits.
pub(super) fn backoff(random: OperationId, attempt: u32) -> Duration {
    let spread = format!("{random:?}").bytes().fold(u64::from(attempt), |sum, byte| {
        sum.wrapping_mul(0x100_0000_01B3).wrapping_add(u64::from(byte))
    });
    let ceiling = 100 << attempt.min(7);
    Duration::from_micros(spread % ceiling)
}
