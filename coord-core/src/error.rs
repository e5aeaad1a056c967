//! The one error of the contract: what went wrong, and whether it may have happened.

use std::error::Error as StdError;
use std::fmt;

/// What a [`BackendError`] means for the caller. A new kind is only added where callers would act differently.
///
/// Treat a kind that you do not know as [`Indeterminate`](ErrorKind::Indeterminate).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// It did not happen. Reads that fail because of the infrastructure always say this. The caller may retry.
    Unavailable,
    /// Only from [`txn`](crate::Backend::txn): it may have happened, or may yet. The caller must read again before it
    /// decides anything, and nothing below the adapters may retry it.
    Indeterminate,
    /// The request breaks a rule or a limit. The caller must change it.
    Invalid,
    /// What the store holds under our keys was not written by us. Stop; never judge it as missing.
    Corrupt,
    /// Wrong URL, wrong credentials, or a server setting that loses data. Fix the deployment.
    Config,
}

impl ErrorKind {
    /// The kind as one lower-case word, for logs and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Indeterminate => "indeterminate",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Config => "config",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Building a request: nothing was sent.
    Request,
    /// Opening a handle.
    Connect,
    /// [`Backend::snapshot`](crate::Backend::snapshot).
    Snapshot,
    /// [`Backend::txn`](crate::Backend::txn).
    Txn,
    /// [`Backend::keys`](crate::Backend::keys).
    Keys,
}

impl Operation {
    /// The operation as one lower-case word, for logs and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Request => "request",
            Operation::Connect => "connect",
            Operation::Snapshot => "snapshot",
            Operation::Txn => "txn",
            Operation::Keys => "keys",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type Source = Box<dyn StdError + Send + Sync + 'static>;

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    backend: &'static str,
    operation: Operation,
    message: String,
    source: Option<Source>,
}

/// An error about the infrastructure or the request, never about a lost race: a rejected transaction is
/// [`TxnOutcome::Rejected`](crate::TxnOutcome::Rejected), an ordinary answer.
///
/// The kind says whether the operation may have happened. The message is for people and not part of the API; the
/// driver's own error stays reachable through [`source`](StdError::source), and `Display` does not repeat it. Messages must
/// not contain credentials, tokens or values.
///
/// ```
/// use coord_core::{BackendError, ErrorKind, Operation};
///
/// let error = BackendError::new(ErrorKind::Unavailable, "mystore", Operation::Snapshot, "no connection within 2 s");
/// assert!(error.is_retryable() && !error.is_indeterminate());
/// assert_eq!(error.to_string(), "mystore snapshot: unavailable: no connection within 2 s");
/// ```
pub struct BackendError(Box<Inner>);

impl BackendError {
    /// A new error. `backend` is the name of the backend as its [`name`](crate::Backend::name) gives it.
    pub fn new(
        kind: ErrorKind,
        backend: &'static str,
        operation: Operation,
        message: impl Into<String>,
    ) -> Self {
        BackendError(Box::new(Inner { kind, backend, operation, message: message.into(), source: None }))
    }

    /// The same error with the driver's own error as its source.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// An [`Invalid`](ErrorKind::Invalid) request, found before anything was sent.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        BackendError::new(ErrorKind::Invalid, "coord-core", Operation::Request, message)
    }

    /// What this error means for the caller.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The name of the backend that failed.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        self.0.backend
    }

    /// The call that failed.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// The text for people, without kind, backend and operation.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the transaction may have happened, or may yet.
    #[must_use]
    pub fn is_indeterminate(&self) -> bool {
        !matches!(
            self.0.kind,
            ErrorKind::Unavailable | ErrorKind::Invalid | ErrorKind::Corrupt | ErrorKind::Config
        )
    }

    /// Whether the same request may be sent again as it is: it certainly did not happen, and nothing has to be fixed first.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.kind == ErrorKind::Unavailable
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendError")
            .field("kind", &self.0.kind)
            .field("backend", &self.0.backend)
            .field("operation", &self.0.operation)
            .field("message", &self.0.message)
            .field("source", &self.0.source)
            .finish()
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}: {}", self.0.backend, self.0.operation, self.0.kind, self.0.message)
    }
}

impl StdError for BackendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_pointer_and_does_not_repeat_its_source() {
        assert_eq!(size_of::<BackendError>(), size_of::<usize>());
        let error = BackendError::new(ErrorKind::Indeterminate, "x", Operation::Txn, "no answer")
            .with_source(std::io::Error::other("connection reset"));
        assert!(!error.to_string().contains("reset"));
        assert_eq!(StdError::source(&error).map(ToString::to_string).as_deref(), Some("connection reset"));
    }

    #[test]
    fn only_unavailable_is_retryable_and_only_unknown_is_indeterminate() {
        for (kind, retryable, indeterminate) in [
            (ErrorKind::Unavailable, true, false),
            (ErrorKind::Indeterminate, false, true),
            (ErrorKind::Invalid, false, false),
            (ErrorKind::Corrupt, false, false),
            (ErrorKind::Config, false, false),
        ] {
            let error = BackendError::new(kind, "x", Operation::Txn, "");
            assert_eq!(
                (error.is_retryable(), error.is_indeterminate()),
                (retryable, indeterminate),
                "{kind}"
            );
        }
    }
}
