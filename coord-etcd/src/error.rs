//! What etcd's errors say about whether something happened.

use std::error::Error as StdError;

use coord_core::{BackendError, ErrorKind, Operation};
use etcd_client::Error;
use tonic::{Code, ConnectError, Status};

use crate::NAME;

/// The endpoint that an error is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer<'a> {
    pub(crate) address: &'a str,
    /// Whether TLS is spoken with it.
    pub(crate) tls: bool,
}

/// Maps an error of the client by where and how it failed, never by its text.
///
/// A transaction that fails in a way that is not known here may have happened: a server that answers `Unavailable`, `Unknown`,
/// `DeadlineExceeded` or `ResourceExhausted` may have proposed the write before. Only what fails before anything is sent, and what the
/// server refuses by looking at the request alone, certainly did not.
pub(crate) fn classify(error: Error, operation: Operation, peer: Peer<'_>) -> BackendError {
    let address = peer.address;
    let (kind, message) = match &error {
        Error::GRpcStatus(status) => match connect_error(status) {
            Some(cause) => no_connection(cause, peer),
            None => classify_status(status, operation, peer),
        },
        Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            (ErrorKind::Config, "the connection is misconfigured".to_owned())
        }
        Error::TransportError(_) | Error::IoError(_) => {
            (unknown(operation), format!("the connection to {address} failed"))
        }
        _ => (unknown(operation), format!("the client for {address} failed")),
    };
    BackendError::new(kind, NAME, operation, message).with_source(error)
}

fn classify_status(status: &Status, operation: Operation, peer: Peer<'_>) -> (ErrorKind, String) {
    let address = peer.address;
    let says = text(status);
    let config = |message: String| (ErrorKind::Config, message);
    match (status.code(), operation) {
        // Connecting asks for nothing that a right user with the right password could not have.
        (Code::InvalidArgument, Operation::Connect) => {
            config(format!("{address} refuses the user or the password{says}"))
        }
        (Code::FailedPrecondition, Operation::Connect) => {
            config(format!("{address} has no authentication, and the URL names a user{says}"))
        }
        // The contract's limits are those of a server with default settings.
        (Code::InvalidArgument, _) => config(format!(
            "{address} refuses the request{says}; it may demand a user, or have a lower --max-txn-ops or \
             --max-request-bytes than by default"
        )),
        (Code::Unauthenticated, _) => config(format!("{address} refuses the credentials{says}")),
        (Code::PermissionDenied, _) => {
            config(format!("the user may not read and write the namespace at {address}{says}"))
        }
        (Code::Unimplemented, _) => config(format!("{address} is no etcd 3.4 or later{says}")),
        // The decoder's limit: an answer larger than the contract allows. Or a revision that is compacted.
        (Code::OutOfRange, Operation::Snapshot) => (ErrorKind::Invalid, "the answer is too large".to_owned()),
        _ if is_answer(status) => (unknown(operation), format!("{address} cannot serve the request{says}")),
        (_, Operation::Connect) if !peer.tls => (
            ErrorKind::Unavailable,
            format!("{address} closes the connection; perhaps it speaks TLS (etcds://), or is no etcd"),
        ),
        _ => (unknown(operation), format!("the connection to {address} broke before the answer")),
    }
}

/// Why no connection was made.
fn no_connection(cause: &ConnectError, peer: Peer<'_>) -> (ErrorKind, String) {
    let address = peer.address;
    let mut source = cause.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            match error.kind() {
                // What rustls says about certificates and about bytes that are not TLS.
                std::io::ErrorKind::InvalidData if peer.tls => {
                    let message = format!("the TLS handshake with {address} failed: {error}");
                    return (ErrorKind::Config, message);
                }
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset if peer.tls => {
                    let message = format!(
                        "{address} closes the connection in the TLS handshake; perhaps it speaks no TLS (etcd://)"
                    );
                    return (ErrorKind::Unavailable, message);
                }
                _ => {}
            }
        }
        source = error.source();
    }
    (ErrorKind::Unavailable, format!("cannot connect to {address}"))
}

/// What the server says, for the end of a message.
fn text(status: &Status) -> String {
    let text: String = status.message().chars().filter(|c| !c.is_control()).take(200).collect();
    if is_answer(status) && !text.is_empty() { format!(": {text}") } else { String::new() }
}

/// Whether a server has sent this, and not the client made it of a failure of its own.
fn is_answer(status: &Status) -> bool {
    status.source().is_none()
}

/// Whether a server is there and says that it cannot serve at this moment, as one of a cluster that has no leader.
pub(crate) fn says_not_now(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if is_answer(status) && status.code() == Code::Unavailable)
}

/// Whether a server refuses a request so that nothing has happened, perhaps because of the token that came with it: one that has expired or
/// that the server does not know after a restart, or (JWT) one that was given before somebody changed the users.
pub(crate) fn refuses(error: &Error) -> bool {
    let codes = [Code::Unauthenticated, Code::InvalidArgument];
    matches!(error, Error::GRpcStatus(status) if is_answer(status) && codes.contains(&status.code()))
}

/// The kind of a failure that says nothing about whether the operation happened.
pub(crate) fn unknown(operation: Operation) -> ErrorKind {
    if operation == Operation::Txn { ErrorKind::Indeterminate } else { ErrorKind::Unavailable }
}

/// The error of a connection that could not be made, so that nothing was sent.
fn connect_error(status: &Status) -> Option<&ConnectError> {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        source = error.source();
    }
    None
}

/// What is stored is not ours.
pub(crate) fn corrupt(operation: Operation, message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Corrupt, NAME, operation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Peer<'static> = Peer { address: "a:1", tls: false };
    const TLS: Peer<'static> = Peer { address: "a:1", tls: true };

    fn status(code: Code, text: &str) -> Error {
        Error::GRpcStatus(Status::new(code, text))
    }

    fn not_connected(kind: std::io::ErrorKind) -> Error {
        let mut status = Status::unavailable("");
        status.set_source(std::sync::Arc::new(ConnectError(Box::new(std::io::Error::new(kind, "why")))));
        Error::GRpcStatus(status)
    }

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
            for peer in [PLAIN, TLS] {
                let kind = |operation| classify(status(code, ""), operation, peer).kind();
                assert_eq!(kind(Operation::Txn), ErrorKind::Indeterminate, "{code:?}");
                assert_eq!(kind(Operation::Snapshot), ErrorKind::Unavailable, "{code:?}");
            }
        }
    }

    #[test]
    fn what_was_never_sent_did_not_happen() {
        use std::io::ErrorKind as Io;
        for kind in [Io::ConnectionRefused, Io::TimedOut, Io::UnexpectedEof, Io::InvalidData] {
            let error = classify(not_connected(kind), Operation::Txn, PLAIN);
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{kind:?}");
            assert!(!says_not_now(&not_connected(kind)));
        }
        // A certificate that is not believed has to be fixed.
        let error = classify(not_connected(Io::InvalidData), Operation::Txn, TLS);
        assert_eq!(error.kind(), ErrorKind::Config);
    }

    #[test]
    fn what_a_server_says_is_told_and_who_said_it() {
        let no_leader = || status(Code::Unavailable, "etcdserver: no leader\u{7}");
        assert!(says_not_now(&no_leader()));
        let error = classify(no_leader(), Operation::Keys, PLAIN);
        assert!(
            error.message().contains("a:1") && error.message().ends_with(": etcdserver: no leader"),
            "{error}"
        );
    }

    #[test]
    fn refusals_have_to_be_fixed_in_the_deployment() {
        for (code, operation) in [
            (Code::InvalidArgument, Operation::Connect),
            (Code::FailedPrecondition, Operation::Connect),
            (Code::InvalidArgument, Operation::Txn),
            (Code::Unauthenticated, Operation::Txn),
            (Code::PermissionDenied, Operation::Txn),
            (Code::Unimplemented, Operation::Connect),
        ] {
            let error = classify(status(code, "so"), operation, PLAIN);
            assert_eq!(error.kind(), ErrorKind::Config, "{code:?}");
            assert!(error.message().contains(": so"), "{error}");
        }
    }
}
