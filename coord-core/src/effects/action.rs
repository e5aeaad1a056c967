//! The types of a side-effect store: actions, leases, what is known of an action.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::EffectError;
use super::fingerprint::Fingerprint;
use super::names::{ActionKey, Note, ResourceId};
use crate::board::AgentId;
use crate::clock::Timestamp;
use crate::token::Token;

/// An action that changes the world, and what it may not share with another one.
///
/// ```
/// use coord_core::effects::{Action, ActionKey, ResourceId};
///
/// let charge = Action::new(ActionKey::new("charge/order-7")?);
/// assert_eq!(charge.resource.as_str(), "charge/order-7");
/// let deploy = Action::new(ActionKey::new("deploy/v12")?).resource(ResourceId::new("production")?);
/// assert_eq!(deploy.resource.as_str(), "production");
/// # Ok::<(), coord_core::effects::EffectError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Action {
    /// Done at most once for this key.
    pub key: ActionKey,
    /// Held by at most one action at a time. The key, if nothing else is said.
    pub resource: ResourceId,
    /// What the action is about: the same key with another one is refused.
    pub fingerprint: Option<Fingerprint>,
}

impl Action {
    /// The action of this key, on a resource of the same name.
    #[must_use]
    pub fn new(key: ActionKey) -> Self {
        let resource = ResourceId(key.0.clone());
        Action { key, resource, fingerprint: None }
    }

    /// On this resource.
    #[must_use]
    pub fn resource(mut self, resource: ResourceId) -> Self {
        self.resource = resource;
        self
    }

    /// About this.
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }
}

/// The right to do an action, given to one attempt.
///
/// It is to be handed to the resource along with the action: the `fence`, if the resource refuses smaller ones than it has seen, and the
/// `downstream_key`, if it recognises a request that it has had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The action.
    pub action: Action,
    /// What proves the attempt. Secret.
    pub token: Token,
    /// Larger than every fence that was given for the resource before.
    pub fence: u64,
    /// When the hold on the resource ends, in the store's time.
    pub until: Timestamp,
    /// The same for all attempts of one action, and for no other one's: what a vendor's own deduplication can go by.
    pub downstream_key: String,
}

/// What became of the result of a completed action.
#[derive(Clone, PartialEq, Eq)]
pub enum Replay {
    /// It is kept.
    Result(Bytes),
    /// It was dropped after its retention; that the action is done is still known.
    Purged {
        /// When it was dropped.
        at: Timestamp,
    },
    /// It was too large to be kept.
    TooLarge {
        /// Its length in bytes.
        len: u64,
        /// Its SHA-256.
        digest: [u8; 32],
    },
}

impl fmt::Debug for Replay {
    // Results belong to the caller, so they are shown by their length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Replay::Result(result) => write!(f, "Result({} bytes)", result.len()),
            Replay::Purged { at } => write!(f, "Purged({at})"),
            Replay::TooLarge { len, .. } => write!(f, "TooLarge({len} bytes)"),
        }
    }
}

/// A completed action.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completed {
    /// Its result, or what is left of it.
    pub replay: Replay,
    /// When it was completed, or ruled to be.
    pub at: Timestamp,
    /// Whether it may have been done more than once: somebody allowed a retry of an unknown outcome, or another attempt or another
    /// result of the same action turned up. The evidence is in the history.
    pub maybe_twice: bool,
}

impl Completed {
    /// A completed action, for implementations of [`EffectStore`](super::EffectStore).
    #[must_use]
    pub fn new(replay: Replay, at: Timestamp, maybe_twice: bool) -> Self {
        Completed { replay, at, maybe_twice }
    }

    /// The result, if it is kept.
    #[must_use]
    pub fn result(&self) -> Option<&Bytes> {
        match &self.replay {
            Replay::Result(result) => Some(result),
            _ => None,
        }
    }
}

/// Which time that a key became uncertain: opaque, and only good for handing it back with a ruling. A new one is given each time the key
/// becomes uncertain, and each time new evidence reaches an uncertain key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Episode {
    life: u64,
    count: u64,
}

impl Episode {
    /// An episode, for implementations of [`EffectStore`](super::EffectStore): which life of the key, and a count that grows in it.
    #[must_use]
    pub const fn new(life: u64, count: u64) -> Self {
        Episode { life, count }
    }

    pub(super) fn life(self) -> u64 {
        self.life
    }

    pub(super) fn count(self) -> u64 {
        self.count
    }
}

impl fmt::Debug for Episode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Episode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.life, self.count)
    }
}

impl FromStr for Episode {
    type Err = EffectError;
    /// Reads what `Display` gave.
    fn from_str(text: &str) -> Result<Self, EffectError> {
        let episode = text.split_once('.').and_then(|(life, count)| {
            Some(Episode { life: u64::from_str_radix(life, 16).ok()?, count: count.parse().ok()? })
        });
        episode
            .filter(|episode| episode.to_string() == text)
            .ok_or_else(|| EffectError::Invalid(format!("{text:?} is no episode")))
    }
}

impl TryFrom<String> for Episode {
    type Error = EffectError;
    fn try_from(text: String) -> Result<Self, EffectError> {
        text.parse()
    }
}

impl From<Episode> for String {
    fn from(episode: Episode) -> String {
        episode.to_string()
    }
}

/// What is known of an uncertain action.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uncertain {
    /// What a ruling has to name.
    pub episode: Episode,
    /// Since when.
    pub since: Timestamp,
    /// Who made the attempt of which nobody knows the outcome.
    pub agent: AgentId,
    /// The fence of that attempt.
    pub fence: u64,
    /// Why, in the words of who said so.
    pub reason: Note,
    /// Until when somebody is looking into it.
    pub reconciling_until: Option<Timestamp>,
}

impl Uncertain {
    /// For implementations of [`EffectStore`](super::EffectStore).
    #[must_use]
    pub fn new(episode: Episode, since: Timestamp, agent: AgentId, fence: u64, reason: Note) -> Self {
        Uncertain { episode, since, agent, fence, reason, reconciling_until: None }
    }

    /// While somebody is looking into it.
    #[must_use]
    pub fn reconciling_until(mut self, until: Option<Timestamp>) -> Self {
        self.reconciling_until = until;
        self
    }
}

/// Somebody is doing the action, or another action on the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Which action. For [`Outcome::InFlight`] the one that was asked for.
    pub key: ActionKey,
    /// Who.
    pub agent: AgentId,
    /// Under which fence.
    pub fence: u64,
    /// Until when, if it is not renewed.
    pub until: Timestamp,
}

impl Holder {
    /// For implementations of [`EffectStore`](super::EffectStore).
    #[must_use]
    pub fn new(key: ActionKey, agent: AgentId, fence: u64, until: Timestamp) -> Self {
        Holder { key, agent, fence, until }
    }
}

/// What [`acquire`](super::EffectStore::acquire) found, judged in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done. Do not do it again.
    Completed(Completed),
    /// It may have been done, and nobody knows. Somebody has to look and then [`resolve`](super::EffectStore::resolve) it.
    Uncertain(Uncertain),
    /// Somebody is doing it.
    InFlight(Holder),
    /// Somebody is doing another action on the resource.
    Contended(Holder),
    /// Do it, and then say what came of it.
    Granted(Lease),
}

/// The right to judge an uncertain action, until it expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// The action.
    pub action: Action,
    /// What the ruling has to name.
    pub episode: Episode,
    /// What proves the right. Secret.
    pub token: Token,
    /// When it ends, in the store's time.
    pub until: Timestamp,
    /// The fence of the attempt of which nobody knows the outcome.
    pub fence: u64,
    /// When that attempt's hold on the resource ends or has ended: until then it may still be acting. `None` if it holds nothing.
    pub hold_until: Option<Timestamp>,
    /// What the attempts of the action hand to the resource.
    pub downstream_key: String,
}

/// What somebody who looked decides about an uncertain action.
#[derive(Clone, PartialEq, Eq)]
pub enum Resolution {
    /// It was done, with this result.
    Applied(Bytes),
    /// It was not done, and nothing that was sent can do it any more.
    NotApplied,
    /// It is still unknown, and a second execution is accepted: the explicit unsafe override.
    AllowRetry {
        /// Why that is acceptable.
        reason: Note,
    },
}

impl Resolution {
    /// What kind of ruling this is.
    #[must_use]
    pub fn kind(&self) -> RulingKind {
        match self {
            Resolution::Applied(_) => RulingKind::Applied,
            Resolution::NotApplied => RulingKind::NotApplied,
            Resolution::AllowRetry { .. } => RulingKind::AllowRetry,
        }
    }
}

impl fmt::Debug for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resolution::Applied(result) => write!(f, "Applied({} bytes)", result.len()),
            Resolution::NotApplied => f.write_str("NotApplied"),
            Resolution::AllowRetry { reason } => write!(f, "AllowRetry({:?})", reason.as_str()),
        }
    }
}

/// The kinds of rulings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RulingKind {
    /// [`Resolution::Applied`].
    Applied,
    /// [`Resolution::NotApplied`].
    NotApplied,
    /// [`Resolution::AllowRetry`].
    AllowRetry,
}

impl RulingKind {
    /// The kind in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RulingKind::Applied => "applied",
            RulingKind::NotApplied => "not applied",
            RulingKind::AllowRetry => "retry allowed",
        }
    }
}

/// The ruling that counts for an episode: the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ruled {
    /// Which ruling counts.
    pub ruling: RulingKind,
    /// When it was made.
    pub at: Timestamp,
    /// Whether this call made it. If not, somebody was faster, and what this call wanted was not done.
    pub yours: bool,
}

impl Ruled {
    /// For implementations of [`EffectStore`](super::EffectStore).
    #[must_use]
    pub fn new(ruling: RulingKind, at: Timestamp, yours: bool) -> Self {
        Ruled { ruling, at, yours }
    }
}

/// The state of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ActionState {
    /// No attempt is under way, and none was completed: it can be acquired.
    Idle,
    /// An attempt is under way.
    InFlight,
    /// An attempt was under way, and it no longer holds the resource; nobody has written it down yet. The next one who asks makes
    /// it uncertain.
    Lapsed,
    /// Nobody knows whether it was done.
    Uncertain,
    /// It was done.
    Completed,
}

impl ActionState {
    /// The state in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ActionState::Idle => "idle",
            ActionState::InFlight => "in flight",
            ActionState::Lapsed => "lapsed",
            ActionState::Uncertain => "uncertain",
            ActionState::Completed => "completed",
        }
    }

    /// Whether the action is neither under way nor unknown: what retention may touch.
    #[must_use]
    pub fn is_settled(self) -> bool {
        matches!(self, ActionState::Idle | ActionState::Completed)
    }
}

impl fmt::Display for ActionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What operators see of an action. It never contains a token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActionStatus {
    /// The action.
    pub action: Action,
    /// Its state.
    pub state: ActionState,
    /// Since when it is in it. Of a lapsed one: since its hold ended.
    pub since: Timestamp,
    /// Who made the newest attempt.
    pub agent: AgentId,
    /// The fence of the newest attempt.
    pub fence: u64,
    /// When the newest attempt's hold on the resource ends or has ended; `None` if it holds nothing.
    pub hold_until: Option<Timestamp>,
    /// How many attempts are remembered.
    pub attempts: u32,
    /// What is unknown, if the state is uncertain.
    pub uncertain: Option<Uncertain>,
    /// What was done, if the state is completed.
    pub completed: Option<ListedResult>,
    /// The result of a completed action, or what is left of it: only from [`get`](super::EffectStore::get), never in lists.
    pub replay: Option<Replay>,
    /// Whether an earlier attempt may have been done: a retry was allowed, or evidence came late.
    pub maybe_applied: bool,
    /// How many pieces of evidence are known.
    pub evidence: u64,
    /// What the attempts of the action hand to the resource.
    pub downstream_key: String,
}

/// What [`ActionStatus`] says about a completed action.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedResult {
    /// The length of its result.
    pub len: u64,
    /// The SHA-256 of its result.
    pub digest: [u8; 32],
    /// Whether the result itself is kept.
    pub kept: bool,
    /// When it was completed, or ruled to be.
    pub at: Timestamp,
    /// As in [`Completed`].
    pub maybe_twice: bool,
}

impl ListedResult {
    /// For implementations of [`EffectStore`](super::EffectStore).
    #[must_use]
    pub fn new(len: u64, digest: [u8; 32], kept: bool, at: Timestamp, maybe_twice: bool) -> Self {
        ListedResult { len, digest, kept, at, maybe_twice }
    }
}

impl ActionStatus {
    /// A status with nothing but these, for implementations of [`EffectStore`](super::EffectStore).
    #[must_use]
    pub fn new(action: Action, state: ActionState, since: Timestamp, agent: AgentId, fence: u64) -> Self {
        ActionStatus {
            action,
            state,
            since,
            agent,
            fence,
            hold_until: None,
            attempts: 0,
            uncertain: None,
            completed: None,
            replay: None,
            maybe_applied: false,
            evidence: 0,
            downstream_key: String::new(),
        }
    }
}

/// SHA-256 of a result.
#[must_use]
pub fn result_digest(result: &[u8]) -> [u8; 32] {
    Sha256::digest(result).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_limits() {
        assert!(ActionKey::new("k".repeat(200)).is_ok());
        for bad in [String::new(), "k".repeat(201), "a\0b".into(), "é".repeat(101)] {
            assert!(matches!(ActionKey::new(&bad), Err(EffectError::Invalid(_))), "{} bytes", bad.len());
            assert!(matches!(ResourceId::new(&bad), Err(EffectError::Invalid(_))), "{} bytes", bad.len());
        }
    }

    #[test]
    fn notes_are_cut_between_characters() {
        assert_eq!(Note::truncated("é".repeat(300)).as_str().len(), 512);
        assert_eq!(Note::truncated(format!("a{}", "é".repeat(300))).as_str().len(), 511);
        assert!(Note::new("n".repeat(513)).is_err() && Note::new("n".repeat(512)).is_ok());
    }

    #[test]
    fn episodes_are_read_as_they_are_shown() {
        let episode = Episode::new(0x7fff_ffff_ffff_ffff, 3);
        assert_eq!(episode.to_string().parse::<Episode>().unwrap(), episode);
        for bad in ["", "1", "1.", ".1", "1.-1", "1.+1", "01.1", "g.1", "1.1.1", "A.1"] {
            assert!(bad.parse::<Episode>().is_err(), "{bad:?}");
        }
    }
}
