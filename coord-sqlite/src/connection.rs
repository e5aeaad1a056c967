//! One connection to the file.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coord_core::Operation;
use rusqlite::OpenFlags;
use rusqlite::config::DbConfig;

use crate::config::Durability;
use crate::error::{Failure, config_error};
use crate::location::{Found, Identity, look};
use crate::schema;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Transactions that write.
    Writer,
    /// Snapshots, listings, and transactions that only assert.
    Reader,
}

/// Whether a missing store may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Create {
    /// When a handle is opened.
    IfMissing,
    /// Under a handle that had a store: a new, empty one in its place would pass for one that was never written.
    Never,
}

/// The file that a connection has open, by path and by identity.
#[derive(Debug)]
pub(crate) struct OpenFile {
    path: Arc<Path>,
    identity: Identity,
}

impl OpenFile {
    /// Fails if the path now leads to another file or to none: then nobody else would see what is written here.
    pub(crate) fn check_unmoved(&self) -> Result<(), Failure> {
        match Identity::at(&self.path) {
            Ok(identity) if identity == self.identity => Ok(()),
            _ => Err(Failure::Moved),
        }
    }

    /// The size of the write-ahead log in bytes, 0 if there is none.
    pub(crate) fn log_size(&self) -> u64 {
        let mut log = self.path.as_os_str().to_owned();
        log.push("-wal");
        fs::metadata(log).map_or(0, |metadata| metadata.len())
    }
}

/// A connection of SQLite, set up for its role. It never waits by itself: who is busy says so and is asked again.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) raw: rusqlite::Connection,
    pub(crate) file: OpenFile,
}

/// What is left of a log after a checkpoint that could restart it.
const LOG_LIMIT: i64 = 16 * 1_024 * 1_024;

/// How long shortening the log waits for readers of old instants.
const SHORTEN_WAIT: Duration = Duration::from_millis(200);

impl Connection {
    /// Opens the file at a real path.
    pub(crate) fn open(
        path: &Arc<Path>,
        role: Role,
        durability: Durability,
        create: Create,
        operation: Operation,
    ) -> Result<Connection, Failure> {
        let failed = Failure::opening(path, operation);
        let found = look(path)?;
        let before = match found {
            Found::Something => {
                let identity = Identity::at(path).map_err(|_| Failure::Moved)?;
                schema::probe(path)?;
                Some(identity)
            }
            Found::Nothing | Found::Empty if create == Create::Never => return Err(Failure::Moved),
            Found::Nothing | Found::Empty => None,
        };
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if found == Found::Nothing {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        }
        let raw = rusqlite::Connection::open_with_flags(path, flags).map_err(&failed)?;
        let identity = Identity::at(path).map_err(|_| Failure::Moved)?;
        if before.is_some_and(|before| before != identity) {
            return Err(Failure::Moved);
        }
        let mut connection = Connection { raw, file: OpenFile { path: path.clone(), identity } };
        connection.set_up(found, role, durability, operation)?;
        Ok(connection)
    }

    fn set_up(
        &mut self,
        found: Found,
        role: Role,
        durability: Durability,
        operation: Operation,
    ) -> Result<(), Failure> {
        let (raw, path) = (&mut self.raw, &*self.file.path);
        let failed = Failure::opening(path, operation);
        raw.busy_timeout(Duration::ZERO).map_err(&failed)?;
        // Until the file is known to be ours, closing must not write to it.
        raw.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(&failed)?;
        // SQLite falls back to reading only if the system refuses to open the file for writing.
        if raw.is_readonly("main").map_err(&failed)? {
            return Err(config_error(format!("{} cannot be written", path.display())).into());
        }
        raw.execute_batch(
            "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY",
        )
        .map_err(&failed)?;
        if found != Found::Something {
            schema::initialise(raw, path)?;
        }
        schema::verify_marks(raw, path)?;
        raw.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(&failed)?;
        let mode: String =
            raw.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(&failed)?;
        if mode != "wal" {
            return Err(config_error(format!(
                "{}: SQLite does not grant the write-ahead log (it answers {mode:?}); the file system lacks shared memory",
                path.display()
            ))
            .into());
        }
        schema::verify(raw, path)?;
        match role {
            Role::Writer => {
                schema::verify_writable(raw, path)?;
                let synchronous = match durability {
                    Durability::Full => "FULL",
                    Durability::Normal => "NORMAL",
                };
                raw.pragma_update(None, "synchronous", synchronous).map_err(&failed)?;
                // Only macOS knows the difference: a plain fsync leaves the data in the cache of the disk there.
                raw.execute_batch("PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON")
                    .map_err(&failed)?;
                raw.pragma_update_and_check(None, "journal_size_limit", LOG_LIMIT, |_| Ok(()))
                    .map_err(&failed)?;
            }
            Role::Reader => raw.pragma_update(None, "query_only", true).map_err(&failed)?,
        }
        Ok(())
    }

    /// Writes the log back and empties it, if its old readers are done within a moment. What fails here is left for the next time:
    /// no acknowledged transaction depends on it.
    pub(crate) fn shorten_log(&self) {
        let raw = &self.raw;
        let result = raw
            .busy_timeout(SHORTEN_WAIT)
            .and_then(|()| raw.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
            .and(raw.busy_timeout(Duration::ZERO));
        if let Err(error) = result {
            tracing::debug!(%error, "the write-ahead log could not be shortened");
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The last connection to a file writes the log back and deletes it *by name* when it closes. If another file has taken the
        // place of ours, that would be the log of the other one.
        if self.file.check_unmoved().is_err() {
            let _ = self.raw.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
    }
}
