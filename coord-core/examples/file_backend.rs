//! A whole backend: one file, one lock, one rewrite a transaction.

#![allow(clippy::disallowed_methods, reason = "the clock of the file backend is that of the host")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
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
        let text = match fs::read_to_string(&self.data) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(unavailable(error)),
        };
        let entries = parse(&text).ok_or_else(|| {
            BackendError::new(ErrorKind::Corrupt, NAME, operation, "a line is not one of ours")
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

/// One line an entry: incarnation, count, key and value, the last two in hexadecimal.
fn format(entries: &Entries) -> String {
    let mut text = String::new();
    for (key, (version, value)) in entries {
        let _ = write!(text, "{} {} ", version.incarnation(), version.count());
        for bytes in [key.as_bytes(), &value[..]] {
            bytes.iter().for_each(|byte| text.push_str(&HEX[usize::from(*byte)]));
            text.push(' ');
        }
        text.push('\n');
    }
    text
}

static HEX: std::sync::LazyLock<Vec<String>> =
    std::sync::LazyLock::new(|| (0..=255_u8).map(|byte| format!("{byte:02x}")).collect());

fn parse(text: &str) -> Option<Entries> {
    let mut entries = Entries::new();
    for line in text.lines() {
        let mut fields = line.split(' ');
        let version = Version::new(fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)?;
        let key = Key::from_bytes(&unhex(fields.next()?)?).ok()?;
        let value = unhex(fields.next()?)?;
        entries.insert(key, (version, value.into()));
    }
    Some(entries)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
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
