//! The names of actions and resources, notes, and the limits of all of them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::EffectError;
use crate::text::text_type;

/// The limits of a side-effect store, the same on every backend.
pub mod limits {
    /// The longest action key, in bytes.
    pub const KEY_BYTES: usize = 200;
    /// The longest resource name, in bytes.
    pub const RESOURCE_BYTES: usize = 200;
    /// The longest note (a reason, or the evidence of a ruling), in bytes.
    pub const NOTE_BYTES: usize = 512;
    /// The largest result that is kept whole, in bytes. Of a larger one the length and the digest are kept.
    pub const RESULT_BYTES: usize = 256 * 1_024;
    /// How many pieces of evidence are kept whole for one action. Of later ones the length and the digest are kept.
    pub const EVIDENCE_KEPT: usize = 4;
    /// How many pieces of evidence are told apart for one action. Later ones are counted.
    pub const EVIDENCE_KNOWN: usize = 64;
    /// How many abandoned attempts of one action are remembered.
    pub const ABANDONED_ATTEMPTS: usize = 32;
    /// How many attempts of one action are remembered in all; an action that cannot hold another one is not granted any more.
    pub const ATTEMPTS: usize = 96;
    /// How many transitions the history of one action holds at most.
    pub const TRANSITIONS: usize = 32;
    /// How many rulings of one action are remembered.
    pub const RULINGS: usize = 16;
    /// The largest head of an action, in bytes.
    pub const HEAD_BYTES: usize = 16 * 1_024;
    /// The most actions of one page of [`list`](super::super::EffectStore::list) or of one batch of
    /// [`purge`](super::super::EffectStore::purge).
    pub const PAGE: usize = 1_000;
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $limit:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub(super) Arc<str>);

        impl $name {
            #[doc = concat!("A checked ", $what, ".")]
            ///
            /// # Errors
            /// [`EffectError::Invalid`] if it is empty, contains NUL or has more than 200 bytes.
            pub fn new(text: impl AsRef<str>) -> Result<Self, EffectError> {
                let text = text.as_ref();
                let refuse = |why: String| Err(EffectError::Invalid(format!(concat!("the ", $what, " {}"), why)));
                if text.is_empty() {
                    return refuse("is empty".into());
                }
                if text.contains('\0') {
                    return refuse("contains a NUL character".into());
                }
                if text.len() > $limit {
                    return refuse(format!("has {} bytes, at most {} are allowed", text.len(), $limit));
                }
                Ok($name(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = EffectError;
            fn try_from(text: String) -> Result<Self, EffectError> {
                $name::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        text_type!($name, EffectError);
    };
}

name_type! {
    /// What an action is done at most once for: 1 to 200 bytes of UTF-8 without NUL, compared as bytes.
    ActionKey, "action key", limits::KEY_BYTES
}

name_type! {
    /// What only one action at a time may touch: 1 to 200 bytes of UTF-8 without NUL, compared as bytes.
    ResourceId, "resource name", limits::RESOURCE_BYTES
}

/// A few words that are kept in the history of an action: a reason, or what somebody found when they looked. At most 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Note(String);

impl Note {
    /// A note.
    ///
    /// # Errors
    /// [`EffectError::Invalid`] if it has more than 512 bytes.
    pub fn new(text: impl Into<String>) -> Result<Self, EffectError> {
        let text = text.into();
        if text.len() > limits::NOTE_BYTES {
            return Err(EffectError::Invalid(format!(
                "the note has {} bytes, at most {} are allowed",
                text.len(),
                limits::NOTE_BYTES
            )));
        }
        Ok(Note(text))
    }

    /// A note cut to the limit, at a character boundary.
    #[must_use]
    pub fn truncated(text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        Note(text[..text.floor_char_boundary(limits::NOTE_BYTES)].to_owned())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
