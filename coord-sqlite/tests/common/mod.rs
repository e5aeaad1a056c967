//! What the tests of this crate share.

// Each test program uses a part of it.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use coord_core::{Assert, Backend, Entry, Key, KeySet, Mutation, Namespace, Txn, TxnOutcome};
use coord_sqlite::{SqliteBackend, SqliteConfig};
use tempfile::TempDir;

/// A store in a folder of its own, with a namespace of its own.
pub struct Store {
    folder: TempDir,
    pub namespace: Namespace,
}

impl Store {
    pub fn new() -> Store {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Store {
            folder: tempfile::tempdir().unwrap(),
            namespace: Namespace::new(format!("test-{number}")).unwrap(),
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub fn config(&self) -> SqliteConfig {
        SqliteConfig::new(self.path())
    }

    pub async fn open(&self) -> SqliteBackend {
        SqliteBackend::open(&self.config(), &self.namespace).await.unwrap()
    }

    /// Plain SQL on the file, past the backend.
    pub fn sql(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.execute_batch(sql).unwrap();
    }
}

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub async fn entry(store: &SqliteBackend, key: &Key) -> Entry {
    let snapshot = store.snapshot(&KeySet::new([key.clone()]).unwrap()).await.unwrap();
    snapshot.require(key).unwrap().clone()
}

pub async fn put(store: &SqliteBackend, key: &Key, value: &str) {
    let txn = Txn::new([], [Mutation::put(key.clone(), value.to_owned())]).unwrap();
    assert_eq!(store.txn(&txn).await.unwrap(), TxnOutcome::Applied);
}

/// Adds one to a number by compare-and-set, until it is applied. Returns the number that was written.
pub async fn increment(store: &SqliteBackend, key: &Key) -> u64 {
    loop {
        let before = entry(store, key).await;
        let number: u64 = before.value().map_or(0, |v| std::str::from_utf8(v).unwrap().parse().unwrap());
        let txn = Txn::new(
            [Assert::version(key.clone(), before.version())],
            [Mutation::put(key.clone(), (number + 1).to_string())],
        )
        .unwrap();
        if store.txn(&txn).await.unwrap().is_applied() {
            return number + 1;
        }
    }
}
