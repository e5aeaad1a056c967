//! What the tries of one request have met so far.

use std::time::Duration;

use coord_core::{BackendError, Operation};

use crate::NAME;
use crate::error::unknown;

/// How the last try at each endpoint ended. All of them are errors that say that nothing happened.
#[derive(Debug)]
pub(crate) struct Tries {
    last: Vec<Option<Failure>>,
    made: usize,
}

#[derive(Debug)]
struct Failure {
    error: BackendError,
    /// The server is there, and cannot serve at this moment.
    not_now: bool,
    number: usize,
}

impl Tries {
    pub(crate) fn new(endpoints: usize) -> Self {
        Tries { last: (0..endpoints).map(|_| None).collect(), made: 0 }
    }

    /// Keeps how a try at an endpoint ended.
    pub(crate) fn failed(&mut self, endpoint: usize, error: BackendError, not_now: bool) {
        self.made += 1;
        self.last[endpoint] = Some(Failure { error, not_now, number: self.made });
    }

    pub(crate) fn any(&self) -> bool {
        self.made > 0
    }

    /// How often every endpoint could have been asked.
    pub(crate) fn rounds(&self) -> usize {
        self.made / self.last.len()
    }

    /// Whether a server said in the last round that it cannot serve at this moment, so that it is worth waiting for.
    pub(crate) fn may_pass(&self) -> bool {
        self.latest().any(|failure| failure.not_now)
    }

    fn latest(&self) -> impl Iterator<Item = &Failure> {
        self.last.iter().flatten().filter(|failure| failure.number + self.last.len() > self.made)
    }

    /// The error of the request, with what each endpoint answered.
    pub(crate) fn into_error(self, operation: Operation) -> BackendError {
        let text = self.text();
        let newest = self.last.into_iter().flatten().max_by_key(|failure| failure.number);
        match newest {
            Some(Failure { error, .. }) if error.message() == text => error,
            Some(Failure { error, .. }) => {
                BackendError::new(error.kind(), NAME, error.operation(), text).with_source(error)
            }
            None => BackendError::new(unknown(operation), NAME, operation, "no endpoint was asked"),
        }
    }

    /// The error of a request whose last try, at this address, did not end within the time of all of them.
    pub(crate) fn into_timeout(self, operation: Operation, address: &str, limit: Duration) -> BackendError {
        let text = self.text();
        let newest = self.last.into_iter().flatten().max_by_key(|failure| failure.number);
        match newest {
            Some(Failure { error, .. }) => {
                let message =
                    format!("no answer within {limit:?}, the last time from {address}; before: {text}");
                BackendError::new(unknown(operation), NAME, operation, message).with_source(error)
            }
            None => {
                let message = format!("no answer from {address} within {limit:?}");
                BackendError::new(unknown(operation), NAME, operation, message)
            }
        }
    }

    fn text(&self) -> String {
        let messages: Vec<&str> = self.latest().map(|failure| failure.error.message()).collect();
        messages.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::ErrorKind;

    fn error(text: &str) -> BackendError {
        BackendError::new(ErrorKind::Unavailable, NAME, Operation::Keys, text)
    }

    #[test]
    fn the_error_has_what_each_endpoint_answered() {
        let mut tries = Tries::new(3);
        tries.failed(0, error("a"), true);
        assert_eq!(tries.rounds(), 0);
        tries.failed(1, error("b"), false);
        tries.failed(2, error("c"), false);
        assert_eq!(tries.rounds(), 1);
        assert!(tries.may_pass());
        tries.failed(0, error("d"), false);
        assert!(!tries.may_pass(), "the server that was there is gone");
        let error = tries.into_error(Operation::Keys);
        assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "d; b; c"));
    }

    #[test]
    fn what_was_left_long_ago_is_not_told() {
        let mut tries = Tries::new(2);
        tries.failed(0, error("a"), true);
        tries.failed(1, error("b"), false);
        tries.failed(1, error("b"), false);
        assert!(!tries.may_pass());
        assert_eq!(tries.into_error(Operation::Keys).message(), "b");
    }

    #[test]
    fn a_request_that_took_too_long_says_what_came_before() {
        let limit = Duration::from_secs(2);
        let timeout = Tries::new(1).into_timeout(Operation::Txn, "h:1", limit);
        assert_eq!(timeout.kind(), ErrorKind::Indeterminate);
        assert_eq!(timeout.message(), "no answer from h:1 within 2s");
        let mut tries = Tries::new(2);
        tries.failed(1, error("cannot connect to h:2"), false);
        let timeout = tries.into_timeout(Operation::Keys, "h:1", limit);
        assert_eq!(timeout.kind(), ErrorKind::Unavailable);
        assert!(timeout.message().contains("h:1; before: cannot connect to h:2"), "{timeout}");
    }
}
