//! What a run ends with.

use std::fmt;

use bytes::Bytes;

use super::super::{Completed, EffectError, Episode, Holder, Replay, Uncertain, limits, result_digest};

/// What the closure of a run says if it has no value. An error that is passed on with `?` is [`Unknown`](Failure::Unknown).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// Nothing was done, and nothing that was sent can do it any more. The action may be run again.
    NotApplied(E),
    /// It may have been done. Nobody runs the action again before somebody has looked.
    Unknown(E),
}

impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Self {
        Failure::Unknown(error)
    }
}

/// What a run ended with.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunOutcome<E> {
    /// This run did it, and its value is kept.
    Executed {
        /// What the closure returned.
        value: Bytes,
        /// As it was kept.
        completed: Completed,
    },
    /// It was done already; the closure was not called.
    Replayed(Completed),
    /// This run did it, but its value does not count: the lease was lost, and the action or the resource went on, or the attempt was
    /// judged in the meantime. The value is kept as evidence and handed back.
    Stale {
        /// What the closure returned.
        value: Bytes,
        /// The result that counts, if there is one, or else why this one does not.
        instead: Result<Completed, EffectError>,
    },
    /// This run did it, and could not tell the store in the time that it had for that. The action is uncertain once its lease has
    /// expired. Completing it later is accepted unless somebody has ruled.
    Unsettled {
        /// What the closure returned.
        value: Bytes,
        /// What the store said last.
        error: EffectError,
    },
    /// Somebody is doing it; the closure was not called.
    InFlight(Holder),
    /// Somebody is doing another action on the resource; the closure was not called.
    Contended(Holder),
    /// Nobody knows whether it was done.
    Uncertain {
        /// What a ruling has to name. An error says why the store could not be told: then the action becomes uncertain at the end of its
        /// lease, or was judged otherwise in the meantime.
        episode: Result<Episode, EffectError>,
        /// Why.
        doubt: Doubt<E>,
    },
    /// The closure said that nothing was done.
    Failed {
        /// What it said.
        error: E,
        /// Whether that is on record, so that the action can be run again at once. If it could not be recorded the action becomes
        /// uncertain at the end of its lease.
        withdrawn: Result<(), EffectError>,
    },
}

/// Why nobody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doubt<E> {
    /// An earlier attempt left it so; the closure was not called.
    Earlier(Uncertain),
    /// The closure said so.
    Error(E),
    /// The closure panicked, with this text.
    Panicked(String),
    /// The closure passed its time limit. It may still be at it.
    TimedOut,
}

impl<E> RunOutcome<E> {
    /// The result of the action, if it was done, now or earlier, and its result is known and counts.
    #[must_use]
    pub fn result(&self) -> Option<&Bytes> {
        match self {
            RunOutcome::Executed { value, .. } => Some(value),
            RunOutcome::Replayed(completed) | RunOutcome::Stale { instead: Ok(completed), .. } => {
                completed.result()
            }
            _ => None,
        }
    }

    /// What the run says in one word, for logs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            RunOutcome::Executed { .. } => "executed",
            RunOutcome::Replayed(_) => "replayed",
            RunOutcome::Stale { .. } => "stale",
            RunOutcome::Unsettled { .. } => "unsettled",
            RunOutcome::InFlight(_) => "in flight",
            RunOutcome::Contended(_) => "contended",
            RunOutcome::Uncertain { .. } => "uncertain",
            RunOutcome::Failed { .. } => "failed",
        }
    }

    pub(super) fn of_value(value: Bytes, answer: Result<Completed, EffectError>) -> Self {
        match answer {
            Ok(completed) if is_kept(&completed, &value) => RunOutcome::Executed { value, completed },
            Ok(completed) => RunOutcome::Stale { value, instead: Ok(completed) },
            Err(error) if is_refusal(&error) => RunOutcome::Stale { value, instead: Err(error) },
            Err(error) => RunOutcome::Unsettled { value, error },
        }
    }
}

/// Whether what was kept is this value.
fn is_kept(completed: &Completed, value: &Bytes) -> bool {
    match &completed.replay {
        Replay::Result(kept) => kept == value,
        Replay::TooLarge { len, digest } => *len == value.len() as u64 && *digest == result_digest(value),
        // Purged between the completion and a repeated answer: a value that was completed in this run, or an older one that nobody can compare.
        Replay::Purged { .. } => value.len() <= limits::RESULT_BYTES && !completed.maybe_twice,
    }
}

/// Whether the store has judged, so that asking again gets the same answer.
fn is_refusal(error: &EffectError) -> bool {
    matches!(
        error,
        EffectError::NeverAcquired { .. }
            | EffectError::Mismatch { .. }
            | EffectError::LeaseLost
            | EffectError::FenceStale { .. }
            | EffectError::AttemptJudged { .. }
            | EffectError::StillUncertain { .. }
    )
}

impl<E: fmt::Display> fmt::Display for Doubt<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Earlier(uncertain) => write!(f, "an earlier attempt: {}", uncertain.reason),
            Doubt::Error(error) => write!(f, "failed: {error}"),
            Doubt::Panicked(text) => write!(f, "panicked: {text}"),
            Doubt::TimedOut => f.write_str("passed its time limit"),
        }
    }
}
