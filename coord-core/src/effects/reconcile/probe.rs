//! Who looks downstream, what they are asked and what they find.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

use super::super::{Action, Note};

/// Why a probe could not look. Whatever it is, nothing is changed.
pub type ProbeError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Looks downstream whether an action was done.
///
/// A probe is asked only after the hold of the attempt has ended and the settle delay has passed, so that what was under way has arrived. It says
/// that something was not done only if it knows that: a ledger that answers "no such entry" of everything that was sent, not one that
/// may lag behind.
///
/// ```
/// use coord_core::effects::{Finding, Inquiry, Probe, ProbeError};
/// # use coord_core::async_trait;
/// # #[derive(Debug)] struct Bank;
/// # impl Bank { async fn find(&self, _: &str) -> std::io::Result<Option<String>> { Ok(None) } }
///
/// #[async_trait]
/// impl Probe for Bank {
///     async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError> {
///         Ok(match self.find(&inquiry.downstream_key).await? {
///             Some(receipt) => Finding::applied(receipt, "the bank has the charge"),
///             None => Finding::not_applied("the bank knows of no such charge"),
///         })
///     }
/// }
/// ```
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Where the resource checks fences: presents [`Inquiry::sealing_fence`] there, before the probe looks. From then on a late executor is refused,
    /// and "not done" is final. That the resource has seen a larger fence already is success too. Without such a resource there is nothing to do.
    ///
    /// # Errors
    /// It could not be presented: then nobody looks, and the action stays uncertain.
    async fn seal(&self, inquiry: &Inquiry) -> Result<(), ProbeError> {
        let _ = inquiry;
        Ok(())
    }

    /// Looks.
    ///
    /// # Errors
    /// It could not look: the action stays uncertain.
    async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError>;
}

/// What a probe is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inquiry {
    /// The action.
    pub action: Action,
    /// The fence of the attempt of which nobody knows the outcome.
    pub fence: u64,
    /// What the attempts of the action hand to the resource.
    pub downstream_key: String,
}

impl Inquiry {
    /// A question, for tests of a probe.
    #[must_use]
    pub fn new(action: Action, fence: u64, downstream_key: impl Into<String>) -> Self {
        Inquiry { action, fence, downstream_key: downstream_key.into() }
    }

    /// The fence with which a resource is sealed against the attempt: no attempt has acted with it, and none that comes has a smaller one.
    #[must_use]
    pub fn sealing_fence(&self) -> u64 {
        self.fence.saturating_add(1)
    }
}

/// What a probe has found.
#[derive(Clone, PartialEq, Eq)]
pub enum Finding {
    /// The action was done.
    Applied {
        /// Its result, as the attempt would have returned it.
        result: Bytes,
        /// What was seen, for the history.
        evidence: Note,
    },
    /// The action was not done, and nothing that was sent can do it any more.
    NotApplied {
        /// What was seen, for the history.
        evidence: Note,
    },
    /// It cannot be told.
    Unknown,
}

impl Finding {
    /// It was done, with this result; the evidence is cut to 512 bytes.
    #[must_use]
    pub fn applied(result: impl Into<Bytes>, evidence: impl AsRef<str>) -> Self {
        Finding::Applied { result: result.into(), evidence: Note::truncated(evidence) }
    }

    /// It was not done; the evidence is cut to 512 bytes.
    #[must_use]
    pub fn not_applied(evidence: impl AsRef<str>) -> Self {
        Finding::NotApplied { evidence: Note::truncated(evidence) }
    }
}

impl fmt::Debug for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Applied { result, evidence } => {
                write!(f, "Applied({} bytes, {:?})", result.len(), evidence.as_str())
            }
            Finding::NotApplied { evidence } => write!(f, "NotApplied({:?})", evidence.as_str()),
            Finding::Unknown => f.write_str("Unknown"),
        }
    }
}
