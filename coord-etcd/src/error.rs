//! What etcd's errors say about whether something happened.

use std::error::Error as StdError;

use coord_core::{BackendError, ErrorKind, Operation};
use etcd_client::Error;
use tonic::{Code, ConnectError, Status};

use crate::NAME;

/// Maps an error of the client by where and how it failed, never by its text.
///
/// A transaction that fails in a way that is not known here may have happened: a server that answers `Unavailable`, `Unknown`,
/// `DeadlineExceeded` or `ResourceExhausted` may have proposed the write before. Only what fails before anything is sent, and what the
/// server refuses by looking at the request alone, certainly did not.
pub(crate) fn classify(error: Error, operation: Operation) -> BackendError {
    let (kind, message) = match &error {
        Error::GRpcStatus(status) => classify_status(status, operation),
        Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            (ErrorKind::Config, "the connection is misconfigured")
        }
        Error::TransportError(_) | Error::IoError(_) => (unknown(operation), "the connection failed"),
        _ => (unknown(operation), "the client failed"),
    };
    BackendError::new(kind, NAME, operation, message).with_source(error)
}

fn classify_status(status: &Status, operation: Operation) -> (ErrorKind, &'static str) {
    if is_connect_error(status) {
        return (ErrorKind::Unavailable, "no connection to the endpoint");
    }
    match status.code() {
        Code::InvalidArgument => {
            (ErrorKind::Invalid, "the server refuses the request; is its --max-txn-ops below 128?")
        }
        Code::Unauthenticated => (ErrorKind::Config, "the server refuses the credentials"),
        Code::PermissionDenied => (ErrorKind::Config, "the user may not read and write the namespace"),
        Code::Unimplemented => (ErrorKind::Config, "the endpoint is no etcd 3.4 or later"),
        // The decoder's limit: an answer larger than the contract allows.
        Code::OutOfRange if operation == Operation::Snapshot => {
            (ErrorKind::Invalid, "the answer is too large")
        }
        _ => (unknown(operation), "the server did not answer the request"),
    }
}

/// The kind of a failure that says nothing about whether the operation happened.
pub(crate) fn unknown(operation: Operation) -> ErrorKind {
    if operation == Operation::Txn { ErrorKind::Indeterminate } else { ErrorKind::Unavailable }
}

/// Whether the connection could not be made, so that nothing was sent.
fn is_connect_error(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The request did not end within its time.
pub(crate) fn timed_out(operation: Operation) -> BackendError {
    BackendError::new(unknown(operation), NAME, operation, "no answer within the request timeout")
}

/// What is stored is not ours.
pub(crate) fn corrupt(operation: Operation, message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Corrupt, NAME, operation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_failure_of_a_write_is_indeterminate() {
        for code in [
            Code::Unavailable,
            Code::Unknown,
            Code::DeadlineExceeded,
            Code::Cancelled,
            Code::Internal,
            Code::ResourceExhausted,
            Code::FailedPrecondition,
            Code::Aborted,
            Code::DataLoss,
        ] {
            let error = || Error::GRpcStatus(Status::new(code, ""));
            assert_eq!(classify(error(), Operation::Txn).kind(), ErrorKind::Indeterminate, "{code:?}");
            assert_eq!(classify(error(), Operation::Snapshot).kind(), ErrorKind::Unavailable, "{code:?}");
        }
    }

    #[test]
    fn what_was_never_sent_did_not_happen() {
        let mut status = Status::unavailable("");
        status.set_source(std::sync::Arc::new(ConnectError(Box::new(std::io::Error::other("refused")))));
        assert_eq!(classify(Error::GRpcStatus(status), Operation::Txn).kind(), ErrorKind::Unavailable);
    }
}
