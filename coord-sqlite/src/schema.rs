//! How a store is told from any other file, and how a new one is made.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use coord_core::{BackendError, Operation};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use crate::NAME;
use crate::error::{Failure, Stage, config_error, corrupt, describe, is_busy};
use crate::read::{self, HEAD};
use crate::write;

/// `PRAGMA application_id` of a store: "cord" in ASCII.
pub(crate) const APPLICATION_ID: i32 = 0x636F_7264;
/// `PRAGMA user_version` of a store: the version of its tables.
pub(crate) const VERSION: i32 = 1;

const CREATE: &str = include_str!("../sql/schema.sql");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    application: i32,
    version: i32,
}

fn marks(connection: &Connection) -> rusqlite::Result<Marks> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok(Marks { application: pragma("application_id")?, version: pragma("user_version")? })
}

impl Marks {
    fn check(self, path: &Path) -> Result<(), BackendError> {
        let path = path.display();
        if self.application != APPLICATION_ID {
            return Err(config_error(format!(
                "{path} is no store of coord but a file of another application (its application_id is {:#x}); it is left as it is",
                self.application
            )));
        }
        if self.version > VERSION {
            return Err(config_error(format!(
                "{path} was written by a newer version of coord (tables of version {}, this one knows {VERSION}); it is left as it is",
                self.version
            )));
        }
        if self.version != VERSION {
            let message = format!("{path} has tables of the version {}, which never was", self.version);
            return Err(corrupt(Operation::Connect, message));
        }
        Ok(())
    }
}

/// Looks at a file that has something in it and says whether it is a store of ours, without changing a byte or a lock: it is
/// opened as immutable, so there is no recovery and no log. The marks of a store are in its first page from the first commit on,
/// which is made before the log is turned on.
///
/// A look without the log sees the file as the last checkpoint left it, and that may have been killed, or be going on: then the first page
/// speaks of pages that are not there yet. That is for the log to mend, so it is not held against the file.
pub(crate) fn probe(path: &Path) -> Result<(), BackendError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let looked = Connection::open_with_flags(immutable_uri(path), flags).and_then(|connection| {
        // With it SQLite believes the size of the file more than the first page. Nothing can be written here.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true)?;
        marks(&connection)
    });
    match looked {
        Ok(marks) => marks.check(path),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            let message = format!("{} is not a SQLite database; it is left as it is", path.display());
            Err(config_error(message).with_source(error))
        }
        Err(error) => {
            let (kind, message) = describe(Operation::Connect, Stage::Before, &error);
            let message = format!("{}: {message}", path.display());
            Err(BackendError::new(kind, NAME, Operation::Connect, message).with_source(error))
        }
    }
}

fn immutable_uri(path: &Path) -> String {
    let mut uri = String::from("file://");
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri.push_str("?immutable=1");
    uri
}

/// Makes the tables in an empty file, in one transaction, unless another process has been faster.
pub(crate) fn initialise(connection: &mut Connection, path: &Path) -> Result<(), Failure> {
    let failed = Failure::opening(path, Operation::Connect);
    let transaction = Transaction::new(connection, TransactionBehavior::Exclusive).map_err(&failed)?;
    let found = marks(&transaction).map_err(&failed)?;
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(&failed)?;
    if found != (Marks { application: 0, version: 0 }) || tables > 0 {
        // Nothing was written, and the drop rolls back.
        return found.check(path).map_err(Failure::from);
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(&failed)?;
    transaction.pragma_update(None, "user_version", VERSION).map_err(&failed)?;
    transaction.execute_batch(CREATE).map_err(&failed)?;
    transaction.commit().map_err(&failed)
}

/// Checks the marks as this connection sees them: over the log as well, if there is one.
pub(crate) fn verify_marks(connection: &Connection, path: &Path) -> Result<(), Failure> {
    marks(connection).map_err(Failure::opening(path, Operation::Connect))?.check(path).map_err(Failure::from)
}

/// Checks that the tables answer every statement, and that the log can be read.
pub(crate) fn verify(connection: &Connection, path: &Path) -> Result<(), Failure> {
    let failed = Failure::opening(path, Operation::Connect);
    for statement in read::STATEMENTS.iter().chain(write::STATEMENTS) {
        connection.prepare_cached(statement).map_err(&failed)?;
    }
    // A read opens the log and the memory beside it, so a folder that cannot be written is found now.
    connection.prepare_cached(HEAD).and_then(|mut head| head.query_row(["."], |_| Ok(()))).map_err(&failed)
}

/// Checks that the log can be written: it may belong to somebody else and be there only to be read. Who is busy has one that can.
pub(crate) fn verify_writable(connection: &Connection, path: &Path) -> Result<(), Failure> {
    match Transaction::new_unchecked(connection, TransactionBehavior::Immediate) {
        Err(error) if !is_busy(&error) => Err(Failure::opening(path, Operation::Connect)(error)),
        Ok(_) | Err(_) => Ok(()),
    }
}
