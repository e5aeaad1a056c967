//! The operations that a record remembers, so that a call finds its own write again.

use serde::{Deserialize, Serialize};

use crate::token::OperationId;

/// How many operations a record remembers.
pub(crate) const REMEMBERED: usize = 16;

/// The last operations on a record, the newest last.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Recent(Vec<OperationId>);

impl Recent {
    pub(crate) fn push(&mut self, operation: OperationId) {
        if self.0.len() >= REMEMBERED {
            self.0.drain(..=self.0.len() - REMEMBERED);
        }
        self.0.push(operation);
    }

    /// Whether this is all that it remembers: nothing has happened since.
    pub(crate) fn is_only(&self, operation: OperationId) -> bool {
        self.0 == [operation]
    }

    pub(crate) fn contains(&self, operation: OperationId) -> bool {
        self.0.contains(&operation)
    }
}
