//! A whole backend: one file, one lock, one rewrite a transaction.

#![allow(clippy::disallowed_methods, reason = "the clock of the file backend is that of the host")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use coord_core::token::mint_incarnation;
use coord_core::{
    Backend, BackendError, Bytes, Entry, ErrorKind, Key, KeyRange, KeySet, Namespace, Operation, Snapshot,
    Timestamp, Txn, TxnOutcome, Version, async_trait, limits,
};

/// A handle on one namespace: a file `<namespace>.data` in a folder, and the file `<namespace>.lock` that is locked around
/// each operation.
#[derive(Clone, Debug)]
pub struct FileBackend {
    data: PathBuf,
    lock: PathBuf,
}

type Entries = BTreeMap<Key, (Version, Bytes)>;

impl FileBackend {
    /// Opens a namespace below a folder that exists.
    pub fn open(folder: &std::path::Path, namespace: &Namespace) -> FileBackend {
        FileBackend {
            data: folder.join(format!("{namespace}.data")),
            lock: folder.join(format!("{namespace}.lock")),
        }
    }

    /// Runs `work` on the entries while this process, and in it this call, holds the lock.
    fn locked<T>(
        &self,
        operation: Operation,
        work: impl FnOnce(Entries) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        // Each call opens the file anew, so that two calls of one process lock each other out too. Closing unlocks.
        let unavailable =
            |error| failure(ErrorKind::Unavailable, operation, "the files cannot be read", error);
        let lock = File::options().create(true).append(true).open(&self.lock).map_err(unavailable)?;
        lock.lock().map_err(unavailable)?;
        let bytes = match fs::read(&self.data) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(unavailable(error)),
        };
        let entries = parse(&bytes).ok_or_else(|| {
            BackendError::new(ErrorKind::Corrupt, NAME, operation, "the file is not one of ours")
        })?;
        work(entries)
    }

    /// Replaces the file. Until the rename nothing has happened; if the rename's own durability fails, nobody knows.
    fn store(&self, entries: &Entries) -> Result<(), BackendError> {
        let before = |error| failure(ErrorKind::Unavailable, Operation::Txn, "nothing was written", error);
        let after =
            |error| failure(ErrorKind::Indeterminate, Operation::Txn, "the file may be replaced", error);
        let fresh = self.data.with_extension("new");
        fs::write(&fresh, format(entries)).map_err(before)?;
        File::open(&fresh).and_then(|file| file.sync_all()).map_err(before)?;
        fs::rename(&fresh, &self.data).map_err(after)?;
        let folder = self.data.parent().map_or_else(|| ".".into(), PathBuf::from);
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(after)
    }
}

const NAME: &str = "file";

#[async_trait]
impl Backend for FileBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.locked(Operation::Snapshot, |entries| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let answer = keys.distinct().into_iter().map(|key| match entries.get(key) {
                None => (key.clone(), Entry::Absent),
                Some((version, value)) => {
                    (key.clone(), Entry::Present { version: *version, value: value.clone() })
                }
            });
            let snapshot = Snapshot::new(answer, Some(Timestamp::EPOCH.saturating_add(now)));
            if snapshot.size() > limits::SNAPSHOT_BYTES {
                let message = format!("the answer has {} bytes", snapshot.size());
                return Err(BackendError::new(ErrorKind::Invalid, NAME, Operation::Snapshot, message));
            }
            Ok(snapshot)
        })
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.locked(Operation::Txn, |mut entries| {
            let version = |key| entries.get(key).map_or(Version::MISSING, |(version, _)| *version);
            if txn.asserts().iter().any(|assert| version(&assert.key) != assert.version) {
                return Ok(TxnOutcome::Rejected);
            }
            let created = Version::first(mint_incarnation());
            for mutation in txn.mutations() {
                let Some(value) = mutation.value() else {
                    entries.remove(mutation.key());
                    continue;
                };
                let next = match entries.get(mutation.key()) {
                    Some((version, _)) => version.next(),
                    None => created,
                };
                let next = next.ok_or_else(|| {
                    BackendError::new(ErrorKind::Corrupt, NAME, Operation::Txn, "a version has no successor")
                })?;
                entries.insert(mutation.key().clone(), (next, value.clone()));
            }
            if !txn.mutations().is_empty() {
                self.store(&entries)?;
            }
            Ok(TxnOutcome::Applied)
        })
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.locked(Operation::Keys, |entries| {
            Ok(entries.into_keys().filter(|key| range.contains(key)).take(range.limit()).collect())
        })
    }
}

/// The entries one after the other: incarnation, count, the lengths of key and value, key, value.
fn format(entries: &Entries) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, (version, value)) in entries {
        let (key, lengths) = (key.as_bytes(), [key.as_bytes().len(), value.len()]);
        for number in [version.incarnation(), version.count(), lengths[0] as u64, lengths[1] as u64] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
    }
    bytes
}

fn parse(mut bytes: &[u8]) -> Option<Entries> {
    let mut entries = Entries::new();
    while !bytes.is_empty() {
        let mut number = || {
            let (number, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            Some(u64::from_be_bytes(*number))
        };
        let version = Version::new(number()?, number()?)?;
        let (key_length, value_length) = (number()?, number()?);
        let (key, rest) = bytes.split_at_checked(key_length.try_into().ok()?)?;
        let (value, rest) = rest.split_at_checked(value_length.try_into().ok()?)?;
        bytes = rest;
        entries.insert(Key::from_bytes(key).ok()?, (version, Bytes::copy_from_slice(value)));
    }
    Some(entries)
}

fn failure(kind: ErrorKind, operation: Operation, message: &str, error: io::Error) -> BackendError {
    BackendError::new(kind, NAME, operation, message).with_source(error)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    use coord_core::{Assert, Mutation, Prefix};

    let folder = std::env::temp_dir().join(format!("file-backend-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let backend = FileBackend::open(&folder, &"demo".parse()?);
    let key = Key::new("greeting")?;
    let create = Txn::new([Assert::missing(key.clone())], [Mutation::put(key.clone(), "hello")])?;
    assert_eq!(backend.txn(&create).await?, TxnOutcome::Applied);
    assert_eq!(backend.txn(&create).await?, TxnOutcome::Rejected);
    assert_eq!(backend.keys(&KeyRange::new(Prefix::all(), 10)?).await?, [key]);
    fs::remove_dir_all(&folder)?;
    Ok(())
}
