//! How far a task is, as its holder tells: a small record of its own, so that telling it does not get in the way of renewals.
//!
//! The head is asserted and not written: only whoever holds the task tells, and nobody else's judgement is upset. The record bears the fence
//! of the claim; one of another claim is as good as none.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::adapter::{BoardAdapter, commit, outcome_unknown};
use super::one_head::{held_by, lease_lost, not_found};
use super::record::{Head, head_key, read_head};
use super::task::{TaskId, limits};
use super::{BoardError, Verb};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::clock::Timestamp;
use crate::codec::{self, RecordKind};
use crate::key::Key;
use crate::snapshot::Entry;
use crate::token::Token;
use crate::txn::{Assert, Mutation};

/// How far a task is, as its holder told last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// What was told: at most [`limits::PROGRESS_BYTES`].
    pub text: String,
    /// When: the time of the judgement.
    pub at: Timestamp,
    /// The fence of the claim in whose name it was told.
    pub fence: u64,
}

impl Progress {
    /// For implementations of [`ExtendedBoard`](super::ExtendedBoard).
    #[must_use]
    pub fn new(text: impl Into<String>, at: Timestamp, fence: u64) -> Self {
        Progress { text: text.into(), at, fence }
    }

    /// Checks a text that is to be told.
    ///
    /// # Errors
    /// [`BoardError::TooLarge`] above [`limits::PROGRESS_BYTES`].
    pub fn validate(text: &str) -> Result<(), BoardError> {
        if text.len() > limits::PROGRESS_BYTES {
            let (size, limit) = (text.len(), limits::PROGRESS_BYTES);
            return Err(BoardError::TooLarge { what: "the progress", size, limit });
        }
        Ok(())
    }
}

pub(crate) fn progress_key(id: &TaskId) -> Key {
    Key::new(format!("now/{id}")).expect("ids of at most 200 bytes without NUL make a key")
}

fn encode(progress: &Progress) -> Bytes {
    codec::encode(RecordKind::Progress, progress)
}

/// What the last claim of a task has told. Nothing rests on it, so a record that cannot be read is none.
pub(crate) fn read_progress(entry: &Entry, head: &Head) -> Option<Progress> {
    let progress: Progress = codec::decode(RecordKind::Progress, entry.value()?).ok()?;
    (progress.fence == head.fence).then_some(progress)
}

struct Telling<'a> {
    id: &'a TaskId,
    token: &'a Token,
    text: &'a str,
}

impl Judge for Telling<'_> {
    type Answer = Progress;
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        vec![head_key(self.id), progress_key(self.id)]
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<Progress>, BoardError> {
        let (key, own) = (head_key(self.id), progress_key(self.id));
        let entry = view.entry(&key)?;
        let head = read_head(self.id, entry)?.ok_or_else(|| not_found(self.id))?;
        let time = view.time(head.touched);
        if held_by(&head, self.token).is_none_or(|held| time.is_over(held.until)) {
            return Err(lease_lost(&head));
        }
        let progress = Progress::new(self.text, time.now, head.fence);
        // Its own record is asserted too, so that an older word that arrives late does not replace a newer one.
        let asserts = vec![
            Assert::version(key, entry.version()),
            Assert::version(own.clone(), view.entry(&own)?.version()),
        ];
        Ok(Step::Commit(commit(asserts, vec![Mutation::put(own, encode(&progress))])?, progress))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<Progress>) -> Result<Fate<Progress>, BoardError> {
        let own = progress_key(self.id);
        let entry = view.entry(&own)?;
        let told = entry.value().and_then(|value| codec::decode(RecordKind::Progress, value).ok());
        if told.as_ref() == Some(&pending.answer) {
            return Ok(Fate::Applied(pending.answer.clone()));
        }
        // With the task its progress is gone too: where this is another life of the id, nobody can tell any more whether it was told.
        let head = head_key(self.id);
        let life = view.entry(&head)?.version().incarnation();
        if pending.asserted(&head).is_none_or(|before| before.incarnation() != life) {
            return Ok(Fate::Lost);
        }
        // Somebody has told something since, perhaps after this was told.
        if pending.asserted(&own) != Some(entry.version()) {
            return Ok(Fate::Lost);
        }
        // What was to be told is not there, and once the head has moved it never will be.
        Ok(if pending.has_moved(view)? { Fate::Dead } else { Fate::Open })
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        BoardError::TxnConflict { attempts }
    }

    fn unknown(&self) -> BoardError {
        outcome_unknown(Verb::Progress, self.id, Some(self.token))
    }
}

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn tell_progress(
        &self,
        id: &TaskId,
        token: &Token,
        text: &str,
    ) -> Result<(), BoardError> {
        id.validate()?;
        Progress::validate(text)?;
        self.run(&mut Telling { id, token, text }).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was stored once must be read as the same, for ever.
    #[test]
    fn a_progress_of_format_1_is_read_as_it_was_written() {
        let at = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
        let progress = Progress::new("7 of 9", at, 300);
        let bytes = encode(&progress);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, PROGRESS_1);
        assert_eq!(codec::decode::<Progress>(RecordKind::Progress, &bytes).unwrap(), progress);
        assert!(Progress::validate(&"p".repeat(limits::PROGRESS_BYTES)).is_ok());
        let long = Progress::validate(&"p".repeat(limits::PROGRESS_BYTES + 1));
        assert!(matches!(long, Err(BoardError::TooLarge { .. })), "{long:?}");
    }

    const PROGRESS_1: &str = "c0524431010f0637206f662039fd00803c3048140c00fb2c01";
}
