//! What SQLite's errors mean for the caller: by code, never by text.

use std::path::Path;

use coord_core::{BackendError, ErrorKind, Operation};
use rusqlite::ErrorCode;
use rusqlite::ffi;

use crate::NAME;
use crate::queue::Answer;

/// Where in an operation an error came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Before `COMMIT`, or in a read: nothing has happened, for the rollback takes everything back.
    Before,
    /// In `COMMIT` itself.
    Commit,
}

/// Why one try did not bring an answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another connection holds the lock: nothing has happened, and another try may succeed.
    Busy(rusqlite::Error),
    /// The file of this connection is no longer the one at its path. Nothing has happened.
    Moved,
    /// `COMMIT` failed: the answers for the transactions that were written at once.
    Commit(Vec<Answer>),
    /// An answer for the caller.
    Error(BackendError),
}

impl Failure {
    /// The failure that an error before `COMMIT` is.
    pub(crate) fn before(operation: Operation) -> impl Fn(rusqlite::Error) -> Failure {
        move |error| {
            if is_busy(&error) {
                Failure::Busy(error)
            } else {
                Failure::Error(classify(operation, Stage::Before, error))
            }
        }
    }

    /// The same while a file is opened. The message names it.
    pub(crate) fn opening(path: &Path, operation: Operation) -> impl Fn(rusqlite::Error) -> Failure {
        move |error| {
            if is_busy(&error) {
                return Failure::Busy(error);
            }
            let (kind, message) = describe(operation, Stage::Before, &error);
            let message = format!("{}: {message}", path.display());
            Failure::Error(BackendError::new(kind, NAME, operation, message).with_source(error))
        }
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Failure::Error(error)
    }
}

/// An error about the deployment, found while connecting.
pub(crate) fn config_error(message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Config, NAME, Operation::Connect, message)
}

/// Something under our keys that we have not written.
pub(crate) fn corrupt(operation: Operation, message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Corrupt, NAME, operation, message)
}

/// Whether another connection is in the way for the moment. `SQLITE_PROTOCOL` is what remains of many lost races for a read lock.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
    )
}

/// Maps an error of the driver.
pub(crate) fn classify(operation: Operation, stage: Stage, error: rusqlite::Error) -> BackendError {
    let (kind, message) = describe(operation, stage, &error);
    BackendError::new(kind, NAME, operation, message).with_source(error)
}

/// What an error of the driver means, and its message. Before `COMMIT` every failure is definite. In `COMMIT` only "busy" is: after
/// anything else, an I/O error or a full disk above all, the log may hold the whole transaction, and a recovery after a crash
/// may still apply it.
pub(crate) fn describe(operation: Operation, stage: Stage, error: &rusqlite::Error) -> (ErrorKind, String) {
    let (kind, what) = match (stage, meaning(operation, error)) {
        (Stage::Before, meaning) => meaning,
        (Stage::Commit, meaning) if is_busy(error) => meaning,
        (Stage::Commit, (_, what)) => (ErrorKind::Indeterminate, what),
    };
    let message = match error.sqlite_extended_error_code() {
        Some(code) => format!("{what} (SQLite code {code})"),
        None => what.to_owned(),
    };
    (kind, message)
}

fn meaning(operation: Operation, error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    let connecting = operation == Operation::Connect;
    // What a deployment has wrong when it connects may be passing trouble for a handle that has worked before.
    let deployment = if connecting { ErrorKind::Config } else { ErrorKind::Unavailable };
    let Some(failure) = error.sqlite_error() else {
        // Errors of the binding itself: all others come from columns whose type is not the one we write.
        return match error {
            rusqlite::Error::InvalidPath(_) | rusqlite::Error::NulError(_) => {
                (ErrorKind::Config, "SQLite cannot take the path")
            }
            _ => (ErrorKind::Corrupt, "the file answers with something that this version has not written"),
        };
    };
    if failure.extended_code == ffi::SQLITE_READONLY_DBMOVED {
        return (ErrorKind::Unavailable, "the file was moved or removed");
    }
    match failure.code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
            (ErrorKind::Unavailable, "another process holds the lock on the file")
        }
        ErrorCode::DatabaseCorrupt => (ErrorKind::Corrupt, "the file is damaged"),
        ErrorCode::NotADatabase => (ErrorKind::Corrupt, "the file is not a SQLite database"),
        // With fixed statements a plain error means that the table is missing or is not the one we made; a constraint or a
        // type that does not fit comes from a trigger or a rule that somebody added.
        ErrorCode::Unknown
        | ErrorCode::SchemaChanged
        | ErrorCode::ConstraintViolation
        | ErrorCode::TypeMismatch
        | ErrorCode::TooBig => (ErrorKind::Corrupt, "the tables in the file are not those of this version"),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => {
            (ErrorKind::Config, "the file cannot be written")
        }
        ErrorCode::CannotOpen => (deployment, "the file or its log beside it cannot be opened"),
        ErrorCode::NoLargeFileSupport => (ErrorKind::Config, "the system cannot handle a file of this size"),
        ErrorCode::DiskFull => (ErrorKind::Unavailable, "the disk is full"),
        ErrorCode::SystemIoFailure => (ErrorKind::Unavailable, "the disk or the file system failed"),
        ErrorCode::OutOfMemory => (ErrorKind::Unavailable, "SQLite is out of memory"),
        _ => (ErrorKind::Unavailable, "SQLite failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqlite(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("text that nobody reads".into()))
    }

    #[test]
    fn before_commit_everything_is_definite() {
        for code in 1..=101 {
            for extended in [0, 1, 7, 12, 20] {
                let error = classify(Operation::Txn, Stage::Before, sqlite(code | extended << 8));
                assert!(!error.is_indeterminate(), "{code}: {error}");
            }
        }
    }

    #[test]
    fn in_commit_only_busy_is_definite() {
        for code in 1..=101 {
            for extended in [0, 1, 2, 3] {
                let error = classify(Operation::Txn, Stage::Commit, sqlite(code | extended << 8));
                let busy = matches!(code, ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL);
                assert_eq!(error.is_indeterminate(), !busy, "{code}: {error}");
            }
        }
        let foreign = classify(Operation::Txn, Stage::Commit, rusqlite::Error::QueryReturnedNoRows);
        assert!(foreign.is_indeterminate());
    }

    #[test]
    fn codes_have_their_kinds() {
        for (operation, code, kind) in [
            (Operation::Txn, ffi::SQLITE_BUSY_SNAPSHOT, ErrorKind::Unavailable),
            (Operation::Snapshot, ffi::SQLITE_PROTOCOL, ErrorKind::Unavailable),
            (Operation::Snapshot, ffi::SQLITE_IOERR_READ, ErrorKind::Unavailable),
            (Operation::Txn, ffi::SQLITE_FULL, ErrorKind::Unavailable),
            (Operation::Keys, ffi::SQLITE_CORRUPT_INDEX, ErrorKind::Corrupt),
            (Operation::Keys, ffi::SQLITE_NOTADB, ErrorKind::Corrupt),
            (Operation::Keys, ffi::SQLITE_ERROR, ErrorKind::Corrupt),
            (Operation::Txn, ffi::SQLITE_CONSTRAINT_TRIGGER, ErrorKind::Corrupt),
            (Operation::Txn, ffi::SQLITE_READONLY_DIRECTORY, ErrorKind::Config),
            (Operation::Txn, ffi::SQLITE_READONLY_DBMOVED, ErrorKind::Unavailable),
            (Operation::Connect, ffi::SQLITE_CANTOPEN, ErrorKind::Config),
            (Operation::Snapshot, ffi::SQLITE_CANTOPEN, ErrorKind::Unavailable),
        ] {
            let error = classify(operation, Stage::Before, sqlite(code));
            assert_eq!(error.kind(), kind, "{code}");
            // The text of the driver is in the source alone.
            assert!(!error.to_string().contains("nobody reads"));
            assert!(std::error::Error::source(&error).is_some());
        }
    }
}
