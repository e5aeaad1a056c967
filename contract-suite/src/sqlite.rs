//! SQLite for the suite: a file that anybody on this host can open.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coord_core::{Backend, BackendError, Key, Namespace, Version};
use coord_sqlite::{SqliteBackend, SqliteConfig};
use rusqlite::{Connection, OptionalExtension as _};
use tempfile::TempDir;

use crate::harness::{Control, ControlError, Harness, ServerControl};

/// The environment variable that names the file of the tests, and that tells the several processes of a clause where it is.
const VARIABLE: &str = "COORD_SQLITE_URL";

/// The same for the binary.
const BINARY_VARIABLE: &str = "COORD_SUITE_URL";

/// A store in a SQLite file. There is no server that could be killed, paused or cut off.
#[derive(Debug)]
pub struct SqliteHarness {
    url: String,
    config: SqliteConfig,
    /// The folder of a file of our own, removed at the end.
    _folder: Option<TempDir>,
}

impl SqliteHarness {
    /// The file that a URL names.
    ///
    /// # Errors
    /// What the backend says about the URL.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        Ok(SqliteHarness { url: url.to_owned(), config: SqliteConfig::from_url(url)?, _folder: None })
    }

    /// The file that `COORD_SQLITE_URL` names, else a new one.
    ///
    /// # Errors
    /// What the backend says about the URL, or if there is no folder for a new file.
    pub fn from_environment() -> Result<Self, ControlError> {
        if let Ok(url) = std::env::var(VARIABLE) {
            return Ok(SqliteHarness::from_url(&url)?);
        }
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("suite.db");
        let url = format!("sqlite:{}", path.to_str().ok_or("the temporary folder is not UTF-8")?);
        Ok(SqliteHarness { _folder: Some(folder), ..SqliteHarness::from_url(&url)? })
    }

    /// Runs something on the file, past the backend, off the asynchronous threads.
    async fn past<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ControlError> {
        let path = self.config.path().to_owned();
        let work = move || {
            let connection = Connection::open(path)?;
            connection.busy_timeout(Duration::from_secs(30))?;
            work(&connection)
        };
        Ok(tokio::task::spawn_blocking(work).await??)
    }
}

/// Foreign content, as what replaces one column of the row of a key.
const FOREIGN: &[(&str, &str)] = &[
    ("value", "'not ours'"),
    ("value", "7"),
    ("value", "zeroblob(524289)"),
    ("incarnation", "'not ours'"),
    ("incarnation", "0"),
    ("count", "-1"),
    ("count", "1.5"),
    ("key", "CAST(key AS TEXT)"),
];

#[async_trait]
impl Harness for SqliteHarness {
    fn name(&self) -> &str {
        "sqlite"
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        Ok(Arc::new(SqliteBackend::open(&self.config, &Namespace::new(namespace)?).await?))
    }

    fn server(&self) -> Option<&dyn ServerControl> {
        Some(self)
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        [VARIABLE, BINARY_VARIABLE].map(|variable| (variable.to_owned(), self.url.clone())).into()
    }
}

#[async_trait]
impl ServerControl for SqliteHarness {
    fn can(&self, control: Control) -> bool {
        matches!(control, Control::Foreign | Control::SetVersion)
    }

    async fn write_foreign(&self, namespace: &str, key: &Key, variant: usize) -> Result<bool, ControlError> {
        let Some((column, content)) = FOREIGN.get(variant) else { return Ok(false) };
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.past(move |connection| {
            let place = (&namespace, key.as_bytes());
            let row = "INSERT OR IGNORE INTO coord_entries VALUES (?1, ?2, 5, 5, x'00')";
            connection.execute(row, place)?;
            let change =
                format!("UPDATE coord_entries SET {column} = {content} WHERE namespace = ?1 AND key = ?2");
            connection.execute(&change, place).map(|changed| changed == 1)
        })
        .await
    }

    async fn read_raw(&self, namespace: &str, key: &Key) -> Result<Option<Vec<u8>>, ControlError> {
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.past(move |connection| {
            let row = "SELECT quote(key) || quote(incarnation) || quote(count) || quote(value) FROM coord_entries \
                WHERE namespace = ?1 AND CAST(key AS BLOB) = ?2";
            let read = |row: &rusqlite::Row<'_>| row.get::<_, String>(0).map(String::into_bytes);
            connection.query_row(row, (&namespace, key.as_bytes()), read).optional()
        })
        .await
    }

    async fn remove_raw(&self, namespace: &str, key: &Key) -> Result<(), ControlError> {
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.past(move |connection| {
            let row = "DELETE FROM coord_entries WHERE namespace = ?1 AND CAST(key AS BLOB) = ?2";
            connection.execute(row, (&namespace, key.as_bytes())).map(|_| ())
        })
        .await
    }

    async fn set_version(&self, namespace: &str, key: &Key, version: Version) -> Result<bool, ControlError> {
        let (namespace, key) = (namespace.to_owned(), key.clone());
        // Both halves have 63 bits.
        let (incarnation, count) = (version.incarnation() as i64, version.count() as i64);
        self.past(move |connection| {
            let row =
                "UPDATE coord_entries SET incarnation = ?3, count = ?4 WHERE namespace = ?1 AND key = ?2";
            connection
                .execute(row, (&namespace, key.as_bytes(), incarnation, count))
                .map(|changed| changed == 1)
        })
        .await
    }
}
