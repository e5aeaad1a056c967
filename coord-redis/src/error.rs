//! What the driver's and the server's errors mean for the caller: by code, never by text.

use coord_core::{BackendError, ErrorKind, Operation};
use redis::{RedisError, ServerError};

use crate::NAME;
use crate::config::Address;

/// An error about the deployment, found before anything is asked of a namespace.
pub(crate) fn config_error(message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Config, NAME, Operation::Connect, message)
}

/// The operation did not happen.
pub(crate) fn unavailable(operation: Operation, message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Unavailable, NAME, operation, message)
}

/// What the store holds is not ours.
pub(crate) fn corrupt(operation: Operation, message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Corrupt, NAME, operation, message)
}

/// A failure of which it is not known whether the server had acted before it: in doubt a transaction may have happened, and a read is
/// only not answered.
pub(crate) fn unknown(operation: Operation, message: impl Into<String>) -> BackendError {
    let kind = match operation {
        Operation::Txn => ErrorKind::Indeterminate,
        _ => ErrorKind::Unavailable,
    };
    BackendError::new(kind, NAME, operation, message)
}

/// What an error that the server answered to a script means. The scripts let no error out that comes up inside them (see
/// `lua/common.lua`), so each of the known ones was given before the script began: it certainly did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server does not know the script: send its text.
    NoScript,
    /// Another node of the cluster has the namespace. `None` for an address that cannot be read.
    Moved(Option<Address>),
    /// Another node of the cluster has the namespace already, for this one request.
    Ask(Option<Address>),
    /// The same server can soon do it.
    Later,
    /// Another server can do it, or this one after a new connection: it is a replica now, or has lost its cluster.
    Elsewhere,
    /// It did not happen, and waiting does not help within one call.
    Refused,
    /// Credentials or rights are missing.
    Denied,
    /// Anything else: nothing is known.
    Unknown,
}

pub(crate) fn classify(error: &ServerError, asked: &Address) -> Refusal {
    match error.code() {
        "NOSCRIPT" => Refusal::NoScript,
        "MOVED" => Refusal::Moved(redirection(error, asked)),
        "ASK" => Refusal::Ask(redirection(error, asked)),
        "TRYAGAIN" | "LOADING" | "BUSY" => Refusal::Later,
        "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" => Refusal::Elsewhere,
        "OOM" | "MISCONF" | "NOREPLICAS" => Refusal::Refused,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => Refusal::Denied,
        _ => Refusal::Unknown,
    }
}

/// The address in `MOVED 3999 127.0.0.1:6381`. Without a host it is another port of the server that was asked.
fn redirection(error: &ServerError, asked: &Address) -> Option<Address> {
    let (host, port) = error.details()?.split_whitespace().nth(1)?.rsplit_once(':')?;
    let host = if host.is_empty() || host == "?" { &asked.host } else { host };
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

/// The server's error in its own words.
pub(crate) fn words(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default()).trim_end().to_owned()
}

/// Why a server cannot be connected to: its own fault if it was reached and refused us, else nothing but absence.
pub(crate) fn cannot_connect(server: &Address, error: RedisError) -> BackendError {
    let message = match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            format!("{server} refuses the user or the password of the URL")
        }
        redis::ErrorKind::RESP3NotSupported => {
            format!("{server} does not speak RESP3: coord needs Redis 7.0 or later, or Valkey")
        }
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => match error.code() {
            Some("NOAUTH") => format!("{server} demands a password, and the URL has none"),
            Some("WRONGPASS") => format!("{server} refuses the user or the password of the URL"),
            // Too many clients is an ERR like any other, and passes.
            Some("ERR" | "LOADING" | "BUSY" | "MASTERDOWN") => {
                let message = format!("{server} does not accept connections for the moment");
                return unavailable(Operation::Connect, message).with_source(error);
            }
            _ => format!("{server} refuses the connection"),
        },
        redis::ErrorKind::InvalidClientConfig | redis::ErrorKind::Client => {
            format!("cannot set up a connection to {server}")
        }
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
            format!(
                "what {server} answers is not Redis's protocol; if it speaks TLS, the URL begins with `rediss`"
            )
        }
        _ if is_tls_failure(&error) => {
            format!(
                "no TLS with {server}: the URL's `rediss` means TLS, and the server's certificate must be for this host and signed \
                 by an authority that is trusted (`tls_ca`)"
            )
        }
        _ => {
            return unavailable(Operation::Connect, format!("cannot connect to {server}")).with_source(error);
        }
    };
    config_error(message).with_source(error)
}

/// rustls reports what it does not understand, and certificates that it does not trust, as invalid data.
fn is_tls_failure(error: &RedisError) -> bool {
    // The driver keeps its cause behind an `Arc`, which is the error that `source` gives.
    let cause = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Cause>());
    let io = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::InvalidData)
}

type Cause = std::sync::Arc<dyn std::error::Error + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    fn server_error(line: &str) -> ServerError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        match value {
            redis::Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refusals_are_told_by_their_code() {
        let asked = Address { host: "a".into(), port: 1 };
        let at = |host: &str, port| Some(Address { host: host.into(), port });
        for (line, refusal) in [
            ("NOSCRIPT No matching script.", Refusal::NoScript),
            ("MOVED 3999 127.0.0.1:6381", Refusal::Moved(at("127.0.0.1", 6381))),
            ("MOVED 3999 ::1:6381", Refusal::Moved(at("::1", 6381))),
            ("MOVED 3999 :6381", Refusal::Moved(at("a", 6381))),
            ("MOVED 3999", Refusal::Moved(None)),
            ("ASK 3999 b:7", Refusal::Ask(at("b", 7))),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Refusal::Later),
            ("LOADING Redis is loading the dataset in memory", Refusal::Later),
            ("BUSY Redis is busy running a script.", Refusal::Later),
            ("READONLY Can not run script with write flag on readonly replica.", Refusal::Elsewhere),
            ("MASTERDOWN Link with MASTER is down", Refusal::Elsewhere),
            ("CLUSTERDOWN The cluster is down", Refusal::Elsewhere),
            ("OOM allow-oom flag is not set on the script", Refusal::Refused),
            ("MISCONF Errors writing to the AOF file", Refusal::Refused),
            ("NOREPLICAS Not enough good replicas to write.", Refusal::Refused),
            ("NOPERM this user has no permissions to run the 'eval' command", Refusal::Denied),
            ("ERR anything", Refusal::Unknown),
            ("EXECABORT anything", Refusal::Unknown),
            ("NEWCODE anything", Refusal::Unknown),
        ] {
            assert_eq!(classify(&server_error(line), &asked), refusal, "{line}");
        }
    }

    #[test]
    fn in_doubt_only_a_transaction_is_indeterminate() {
        assert_eq!(unknown(Operation::Txn, "").kind(), ErrorKind::Indeterminate);
        for operation in [Operation::Snapshot, Operation::Keys, Operation::Connect] {
            assert_eq!(unknown(operation, "").kind(), ErrorKind::Unavailable);
        }
    }
}
