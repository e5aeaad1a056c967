//! What PostgreSQL's errors mean for the caller: by SQLSTATE and by where in a call they came up, never by text.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use coord_core::{BackendError, ErrorKind, Operation};
use tokio_postgres::error::{DbError, Severity};

use crate::NAME;

/// The function found a row under one of our keys that we have not written.
const FOREIGN_ROW: &str = "CO001";
/// The function was called at another isolation level than READ COMMITTED.
const WRONG_ISOLATION: &str = "CO002";

/// Where in a call an error came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// While a connection was opened and checked, or before anything was sent: nothing has happened.
    Connect,
    /// In a read.
    Read,
    /// In a transaction, before the row of its answer arrived. The server sends the row after the function has returned and before it
    /// commits, so an error of the *statement* comes here and is definite.
    Execute,
    /// In a transaction, after the row of its answer: an error of the commit.
    Commit,
}

/// Why one try did not bring an answer.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) source: Option<Driver>,
    /// Nothing has happened, and another try may succeed soon.
    pub(crate) again: bool,
    /// The connection is not to be used again.
    pub(crate) broken: bool,
}

impl Trouble {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Trouble { kind, message: message.into(), source: None, again: false, broken: false }
    }

    /// Another try may succeed.
    pub(crate) fn again(mut self) -> Self {
        self.again = true;
        self
    }

    /// The connection is of no more use.
    pub(crate) fn broken(mut self) -> Self {
        self.broken = true;
        self
    }

    fn caused_by(mut self, error: tokio_postgres::Error) -> Self {
        self.source = Some(Driver(error));
        self
    }

    /// The error for the caller.
    pub(crate) fn report(self, operation: Operation) -> BackendError {
        let error = BackendError::new(self.kind, NAME, operation, self.message);
        match self.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

/// The error of the driver as a source. `Debug` shows less than the driver's own: the context of an error of the server may, with
/// some settings of the server, repeat the parameters of the statement, and so values.
pub(crate) struct Driver(tokio_postgres::Error);

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_db_error() {
            Some(error) => write!(f, "{} {}: {}", error.severity(), error.code().code(), error.message()),
            None => write!(f, "{:?}", self.0),
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_db_error() {
            Some(error) => f.write_str(error.message()),
            None => self.0.fmt(f),
        }
    }
}

impl StdError for Driver {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.0.as_db_error() {
            // The driver's own error, whose text would only say "db error".
            Some(error) => Some(error),
            None => self.0.source(),
        }
    }
}

/// An error about the deployment, found before anything was sent.
pub(crate) fn config_error(message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Config, NAME, Operation::Connect, message)
}

/// Maps an error of the driver.
pub(crate) fn classify(stage: Stage, error: tokio_postgres::Error) -> Trouble {
    if let Some(answer) = error.as_db_error() {
        return answered(stage, answer.parsed_severity(), answer.code().code(), answer).caused_by(error);
    }
    if stage == Stage::Connect {
        return unconnected(&error).caused_by(error);
    }
    if stage == Stage::Read && !error.is_closed() && !is_io(&error) {
        // The answer has columns that do not fit: the tables or the functions are not ours.
        return Trouble::new(
            ErrorKind::Corrupt,
            "the database answers with something that this version has not written",
        )
        .broken()
        .caused_by(error);
    }
    // No answer at all: the connection broke, or what came was not understood.
    lost(stage).caused_by(error)
}

/// The connection broke before the answer.
fn lost(stage: Stage) -> Trouble {
    match stage {
        Stage::Connect | Stage::Read => {
            Trouble::new(ErrorKind::Unavailable, "the connection broke before the answer").again().broken()
        }
        Stage::Execute | Stage::Commit => Trouble::new(
            ErrorKind::Indeterminate,
            "the connection broke after the transaction was sent and before its answer",
        )
        .broken(),
    }
}

/// An error that the server (or a pooler before it) sent.
fn answered(stage: Stage, severity: Option<Severity>, code: &str, error: &DbError) -> Trouble {
    let trouble = judged(stage, severity, code);
    match code {
        FOREIGN_ROW => {
            Trouble { message: format!("{}: {}", trouble.message, error.detail().unwrap_or("?")), ..trouble }
        }
        _ => trouble,
    }
}

fn judged(stage: Stage, severity: Option<Severity>, code: &str) -> Trouble {
    let meaning = meaning(stage, code);
    let fatal = severity != Some(Severity::Error);
    let trouble = match stage {
        Stage::Connect | Stage::Read => match meaning {
            Some(trouble) => trouble,
            None => Trouble::new(ErrorKind::Unavailable, "the server failed"),
        },
        // An error that ends the connection may come from a pooler, which cannot know what its server did.
        Stage::Execute => match meaning {
            Some(trouble) if !fatal => trouble,
            _ => {
                Trouble::new(ErrorKind::Indeterminate, "the server failed while it worked on the transaction")
            }
        },
        // Only these two say that a commit took everything back.
        Stage::Commit if matches!(code, "40001" | "40P01") && !fatal => {
            Trouble::new(ErrorKind::Unavailable, "the transaction met another one").again()
        }
        Stage::Commit => {
            Trouble::new(ErrorKind::Indeterminate, "the server failed while it committed the transaction")
        }
    };
    let trouble = if fatal && stage != Stage::Connect { trouble.broken() } else { trouble };
    let message = format!("{} (SQLSTATE {code})", trouble.message);
    Trouble { message, ..trouble }
}

/// What an error says that took the whole statement back. `None` for one that is not known.
fn meaning(stage: Stage, code: &str) -> Option<Trouble> {
    let new = Trouble::new;
    let connecting = stage == Stage::Connect;
    Some(match code {
        FOREIGN_ROW => {
            new(ErrorKind::Corrupt, "there is a row with an impossible version under a key of ours")
        }
        WRONG_ISOLATION => new(
            ErrorKind::Config,
            "the server runs the transaction at another level than READ COMMITTED: set `default_transaction_isolation` \
             of the role or the database to `read committed`",
        ),
        "40001" | "40P01" => new(ErrorKind::Unavailable, "the transaction met another one").again(),
        "55P03" => new(ErrorKind::Unavailable, "another transaction held a key for too long"),
        "57014" => new(ErrorKind::Unavailable, "the statement was cancelled or took too long"),
        "25006" => new(ErrorKind::Unavailable, "the server does not take writes now").again().broken(),
        "53300" => new(ErrorKind::Unavailable, "the server has no connection left").again(),
        "57P03" => new(ErrorKind::Unavailable, "the server is starting or stopping").again(),
        // With reads and while connecting nothing can have happened.
        "57P01" | "57P02" | "57P04" | "57P05" if stage != Stage::Execute => {
            new(ErrorKind::Unavailable, "the server closed the connection").again().broken()
        }
        "22003" => new(ErrorKind::Corrupt, "a key has been written 2^63 times"),
        "28P01" => new(ErrorKind::Config, "the server does not accept this user with this password"),
        "28000" => new(
            ErrorKind::Config,
            "the server does not let this user in from here in this way (its `pg_hba.conf` says so; it may demand \
             another `sslmode`)",
        ),
        "3D000" => new(ErrorKind::Config, "the server has no such database"),
        "42501" => new(
            ErrorKind::Config,
            "the user lacks a privilege (README of coord-postgres has the grants for a user who must not create tables)",
        ),
        "3F000" | "42P01" | "42883" => {
            new(ErrorKind::Config, "coord's schema, table or function is gone or of another version")
        }
        "42703" | "42804" | "42846" | "42702" | "42725" | "42P10" => {
            new(ErrorKind::Config, "there are tables of other people under the names of coord's")
        }
        "0A000" | "08P01" if connecting => new(ErrorKind::Config, "the server does not speak this protocol"),
        _ => match &code[..2] {
            "08" if stage != Stage::Execute => {
                new(ErrorKind::Unavailable, "the connection broke").again().broken()
            }
            "23" => new(ErrorKind::Corrupt, "the table has a constraint or a trigger that is not coord's"),
            "42" | "22" => new(ErrorKind::Config, "the tables or functions are not those of this version"),
            "53" => new(ErrorKind::Unavailable, "the server is out of disk, memory or another resource"),
            "54" => new(ErrorKind::Config, "a limit of the server is below what coord needs"),
            "58" => new(ErrorKind::Unavailable, "the server's disk or system failed"),
            "XX" if matches!(code, "XX001" | "XX002") => new(ErrorKind::Corrupt, "the database is damaged"),
            _ => return None,
        },
    })
}

/// No connection came about, and the server has not said why. The kinds of the driver are not public, but what is inside tells.
fn unconnected(error: &tokio_postgres::Error) -> Trouble {
    if error.is_closed() {
        return Trouble::new(ErrorKind::Unavailable, "the server closed the connection").again();
    }
    let Some(io) = error.source().and_then(|source| source.downcast_ref::<io::Error>()) else {
        // TLS that the server has not, a way of authentication that the driver has not, a message that is none.
        return Trouble::new(ErrorKind::Config, "the server and this client cannot agree on how to talk");
    };
    #[cfg(feature = "tls")]
    if io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
        return Trouble::new(ErrorKind::Config, "the server's certificate or its TLS is not accepted");
    }
    match io.kind() {
        // `target_session_attrs` has looked at every server.
        io::ErrorKind::PermissionDenied => {
            Trouble::new(ErrorKind::Unavailable, "none of the servers takes writes").again()
        }
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            Trouble::new(ErrorKind::Config, "what answers there is no PostgreSQL server, or its name is none")
        }
        _ => Trouble::new(ErrorKind::Unavailable, "no server can be reached").again(),
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|source| source.is::<io::Error>())
}

/// Whether a notice says that the server gave up waiting for a synchronous standby. It comes during the commit, which has then happened on
/// the primary alone. Nothing else in our statements warns, so every warning of these classes is taken for it.
pub(crate) fn doubts_commit(notice: &DbError) -> bool {
    let warning = matches!(notice.parsed_severity(), Some(Severity::Warning) | None);
    warning && matches!(notice.code().code(), "01000" | "57P01" | "57014")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: &[&str] = &[
        "01000", "08000", "08006", "08P01", "0A000", "22003", "22P02", "23505", "25006", "28000", "28P01",
        "3D000", "3F000", "40001", "40003", "40P01", "42501", "42703", "42883", "42P01", "53100", "53200",
        "53300", "54000", "55P03", "57014", "57P01", "57P02", "57P03", "58030", "CO001", "CO002", "P0001",
        "XX000", "XX001", "ZZZZZ",
    ];

    #[test]
    fn reads_and_connects_are_never_indeterminate() {
        for code in CODES {
            for severity in [Some(Severity::Error), Some(Severity::Fatal), None] {
                for stage in [Stage::Connect, Stage::Read] {
                    assert_ne!(judged(stage, severity, code).kind, ErrorKind::Indeterminate, "{code}");
                }
            }
        }
    }

    #[test]
    fn an_error_of_the_commit_is_indeterminate_but_for_two() {
        for code in CODES {
            let trouble = judged(Stage::Commit, Some(Severity::Error), code);
            let definite = matches!(*code, "40001" | "40P01");
            assert_eq!(trouble.kind == ErrorKind::Indeterminate, !definite, "{code}");
            assert_eq!(trouble.again, definite, "{code}");
            assert_eq!(judged(Stage::Commit, Some(Severity::Fatal), code).kind, ErrorKind::Indeterminate);
        }
    }

    #[test]
    fn what_ends_the_connection_or_is_not_known_is_indeterminate() {
        for code in CODES {
            for severity in [Some(Severity::Fatal), Some(Severity::Panic), None] {
                let trouble = judged(Stage::Execute, severity, code);
                assert!(
                    trouble.kind == ErrorKind::Indeterminate && trouble.broken && !trouble.again,
                    "{code}"
                );
            }
        }
        for code in ["08000", "08006", "08P01", "57P01", "57P02", "40003", "P0001", "XX000", "ZZZZZ"] {
            let trouble = judged(Stage::Execute, Some(Severity::Error), code);
            assert_eq!(trouble.kind, ErrorKind::Indeterminate, "{code}");
        }
    }

    #[test]
    fn errors_of_the_statement_are_definite_and_have_their_kinds() {
        for (code, kind, again) in [
            ("40001", ErrorKind::Unavailable, true),
            ("40P01", ErrorKind::Unavailable, true),
            ("25006", ErrorKind::Unavailable, true),
            ("55P03", ErrorKind::Unavailable, false),
            ("57014", ErrorKind::Unavailable, false),
            ("53100", ErrorKind::Unavailable, false),
            ("22003", ErrorKind::Corrupt, false),
            ("CO001", ErrorKind::Corrupt, false),
            ("XX001", ErrorKind::Corrupt, false),
            ("CO002", ErrorKind::Config, false),
            ("42501", ErrorKind::Config, false),
            ("42P01", ErrorKind::Config, false),
        ] {
            let trouble = judged(Stage::Execute, Some(Severity::Error), code);
            assert_eq!((trouble.kind, trouble.again), (kind, again), "{code}");
        }
    }

    #[test]
    fn only_what_certainly_did_not_happen_is_tried_again() {
        for code in CODES {
            for severity in [Some(Severity::Error), Some(Severity::Fatal)] {
                for stage in [Stage::Connect, Stage::Read, Stage::Execute, Stage::Commit] {
                    let trouble = judged(stage, severity, code);
                    assert!(!trouble.again || trouble.kind == ErrorKind::Unavailable, "{code} {stage:?}");
                }
            }
        }
    }
}
