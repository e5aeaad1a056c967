//! A store that several processes open: a folder with a file a key. Right, or wrong as soon as there is a second process.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use coord_core::token::mint_incarnation;
use coord_core::{
    Backend, BackendError, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation, Operation, Snapshot, Txn,
    TxnOutcome, Version,
};
use tempfile::TempDir;

use super::Wrong;
use crate::harness::Harness;

const NAME: &str = "folder";
/// Tells a worker process which store to open, and how it is wrong.
const VARIABLE: &str = "COORD_SUITE_FOLDER";

/// How it is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    Right,
    /// Its lock is one of the process.
    OwnLock,
    /// Its incarnations are counted from the start of the process.
    OwnIncarnations,
}

const FLAWS: [(&str, Flaw); 3] =
    [("right", Flaw::Right), ("own-lock", Flaw::OwnLock), ("own-incarnations", Flaw::OwnIncarnations)];

pub(super) const WRONG: &[Wrong] = &[
    Wrong {
        id: "M180",
        what: "transactions are locked within one process only",
        clause: "B19.processes",
        also: &["B20.processes", "B22.processes"],
        harness: || made(Flaw::OwnLock),
    },
    Wrong {
        id: "M181",
        what: "incarnations are counted from the start of the process",
        clause: "B18.processes",
        also: &[],
        harness: || made(Flaw::OwnIncarnations),
    },
];

pub(super) fn right() -> Arc<dyn Harness> {
    made(Flaw::Right)
}

fn made(flaw: Flaw) -> Arc<dyn Harness> {
    let folder = TempDir::new().expect("the system has a folder for temporary files");
    Arc::new(FolderHarness { path: folder.path().to_owned(), _folder: Some(folder), flaw })
}

/// The harness that a worker process was started for.
pub(super) fn of_this_worker() -> Option<Arc<dyn Harness>> {
    let text = std::env::var(VARIABLE).ok()?;
    let (name, path) = text.split_once(':')?;
    let (_, flaw) = FLAWS.iter().find(|(known, _)| *known == name)?;
    Some(Arc::new(FolderHarness { path: path.into(), _folder: None, flaw: *flaw }))
}

struct FolderHarness {
    path: PathBuf,
    /// Removed with the harness, in the process that made it.
    _folder: Option<TempDir>,
    flaw: Flaw,
}

#[async_trait]
impl Harness for FolderHarness {
    fn name(&self) -> &str {
        NAME
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let folder = self.path.join(namespace);
        fs::create_dir_all(&folder).map_err(|error| failed(Operation::Connect, error))?;
        Ok(Arc::new(Folder { lock: self.path.join(format!("{namespace}.lock")), folder, flaw: self.flaw }))
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        let name = FLAWS.iter().find(|(_, flaw)| *flaw == self.flaw).map_or("right", |(name, _)| name);
        vec![(VARIABLE.to_owned(), format!("{name}:{}", self.path.display()))]
    }
}

struct Folder {
    folder: PathBuf,
    lock: PathBuf,
    flaw: Flaw,
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder").field("flaw", &self.flaw).finish_non_exhaustive()
    }
}

fn failed(operation: Operation, error: io::Error) -> BackendError {
    BackendError::new(ErrorKind::Unavailable, NAME, operation, "the folder cannot be used").with_source(error)
}

impl Folder {
    /// Works alone: among all processes, or only among the threads of this one.
    fn alone<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        static OWN: Mutex<()> = Mutex::new(());
        let _own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        if self.flaw == Flaw::OwnLock {
            return work();
        }
        // Held until the file is closed.
        let lock = File::options().create(true).append(true).open(&self.lock)?;
        lock.lock()?;
        work()
    }

    fn path(&self, key: &Key) -> PathBuf {
        let name: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(name)
    }

    fn read(&self, key: &Key) -> io::Result<Entry> {
        let bytes = match fs::read(self.path(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Entry::Absent),
            other => other?,
        };
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8).and_then(<[u8]>::first_chunk::<8>);
            bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
        };
        let version = Version::new(number(0), number(8)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Entry::Present { version, value: bytes[16..].to_vec().into() })
    }

    /// Through another file and a new name, so that nobody reads half of it.
    fn write(&self, key: &Key, version: Version, value: &[u8]) -> io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let other = Path::with_extension(&self.lock, format!("{}-{number}", std::process::id()));
        let head = [version.incarnation().to_be_bytes(), version.count().to_be_bytes()].concat();
        fs::write(&other, [&head[..], value].concat())?;
        fs::rename(other, self.path(key))
    }

    fn apply(&self, txn: &Txn) -> io::Result<TxnOutcome> {
        for assert in txn.asserts() {
            if self.read(&assert.key)?.version() != assert.version {
                return Ok(TxnOutcome::Rejected);
            }
        }
        static MINTED: AtomicU64 = AtomicU64::new(0);
        let mint = match self.flaw {
            Flaw::OwnIncarnations => MINTED.fetch_add(1, Ordering::Relaxed) + 1,
            _ => mint_incarnation(),
        };
        for mutation in txn.mutations() {
            let key = mutation.key();
            match mutation {
                Mutation::Put { value, .. } => {
                    let next = self.read(key)?.version().next().or(Version::first(mint));
                    self.write(key, next.ok_or(io::ErrorKind::InvalidData)?, value)?;
                }
                Mutation::Delete { .. } => match fs::remove_file(self.path(key)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                },
            }
        }
        Ok(TxnOutcome::Applied)
    }

    fn list(&self, range: &KeyRange) -> io::Result<Vec<Key>> {
        let mut keys = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let name = file?.file_name().into_string().unwrap_or_default();
            let bytes: Option<Vec<u8>> = (0..name.len() / 2)
                .map(|n| u8::from_str_radix(name.get(n * 2..n * 2 + 2)?, 16).ok())
                .collect();
            keys.extend(
                bytes.and_then(|bytes| Key::from_bytes(&bytes).ok()).filter(|key| range.contains(key)),
            );
        }
        keys.sort();
        keys.truncate(range.limit());
        Ok(keys)
    }
}

#[async_trait]
impl Backend for Folder {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let read = || keys.distinct().into_iter().map(|key| Ok((key.clone(), self.read(key)?))).collect();
        let entries: Vec<(Key, Entry)> =
            self.alone(read).map_err(|error| failed(Operation::Snapshot, error))?;
        Ok(Snapshot::new(entries, None))
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.alone(|| self.apply(txn)).map_err(|error| failed(Operation::Txn, error))
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.alone(|| self.list(range)).map_err(|error| failed(Operation::Keys, error))
    }
}
