//! Names of tasks and of those who claim them, and the limits of a board.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::board::BoardError;
use crate::text::text_type;

/// The limits of a board, the same on every backend.
pub mod limits {
    /// The longest task id, in bytes.
    pub const ID_BYTES: usize = 200;
    /// The longest agent name, in bytes.
    pub const AGENT_BYTES: usize = 200;
    /// The longest title, in bytes.
    pub const TITLE_BYTES: usize = 4_096;
    /// The longest outcome, in bytes. Heads stay small, so that a board of 9,999 tasks is listed at one instant.
    pub const OUTCOME_BYTES: usize = 512;
    /// The most dependencies of one task, so that every change of the graph stays one transaction.
    pub const DEPENDENCIES: usize = 1_024;
    /// The most dependencies of one task that have another rule than to be done: a claim pins those that failed or were cancelled.
    pub const RULED_DEPENDENCIES: usize = 40;
    /// The most labels of one task.
    pub const LABELS: usize = 64;
    /// The longest label, in bytes.
    pub const LABEL_BYTES: usize = 200;
    /// The largest payload, in bytes.
    pub const PAYLOAD_BYTES: usize = 256 * 1_024;
    /// The longest progress, in bytes.
    pub const PROGRESS_BYTES: usize = 512;
    /// How many events the history of a task keeps.
    pub const HISTORY_EVENTS: usize = 32;
    /// The longest text of an event, in bytes.
    pub const EVENT_BYTES: usize = 120;
    /// The most tasks that [`list`](crate::board::Board::list) returns at one instant.
    pub const LISTED_TASKS: usize = 9_999;
    /// The most tasks of which somebody may wait for the first one to end.
    pub const AWAITED: usize = 1_024;
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $limit:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            #[doc = concat!("A checked ", $what, ".")]
            ///
            /// # Errors
            /// [`BoardError::Invalid`] if it is empty or contains NUL, [`BoardError::TooLarge`] if it has more than 200 bytes.
            pub fn new(text: impl AsRef<str>) -> Result<Self, BoardError> {
                let name = $name::unchecked(text);
                name.validate()?;
                Ok(name)
            }

            /// One that is checked by whoever uses it: verbs refuse a bad one, [`check`](crate::board::check()) reports it.
            #[must_use]
            pub fn unchecked(text: impl AsRef<str>) -> Self {
                $name(text.as_ref().into())
            }

            /// Checks the limits.
            ///
            /// # Errors
            /// As [`new`](Self::new).
            pub fn validate(&self) -> Result<(), BoardError> {
                if self.0.is_empty() {
                    return Err(BoardError::Invalid(concat!("the ", $what, " is empty").into()));
                }
                if self.0.contains('\0') {
                    return Err(BoardError::Invalid(concat!("the ", $what, " contains a NUL character").into()));
                }
                if self.0.len() > $limit {
                    return Err(BoardError::TooLarge {
                        what: concat!("the ", $what),
                        size: self.0.len(),
                        limit: $limit,
                    });
                }
                Ok(())
            }
        }

        text_type!($name, BoardError);
    };
}

name_type! {
    /// The name of a task: 1 to 200 bytes of UTF-8 without NUL, compared as bytes.
    TaskId, "task id", limits::ID_BYTES
}

name_type! {
    /// The name of whoever claims: 1 to 200 bytes of UTF-8 without NUL. It is shown to people and proves nothing; the token does.
    AgentId, "agent name", limits::AGENT_BYTES
}
