//! What a side-effect store stores: the records, their keys, and what is true of every one of them.
//!
//! `act/<key>` is the head of an action, `out/<key>` its kept result, `ev/<key>/<n>` its evidence, `open/<key>` the index of what is attempted or
//! uncertain, `res/<resource>` who holds a resource, and `floor` the guard. Keys are never escaped: what follows a key in `ev/` is one
//! digit, so that no two pairs give one key.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::EffectError;
use super::action::{Action, ActionState, RulingKind, result_digest};
use super::fingerprint::Fingerprint;
use super::history::{Transition, TransitionKind};
use super::names::{ActionKey, Note, ResourceId, limits};
use crate::board::AgentId;
use crate::clock::Timestamp;
use crate::codec::{self, RecordKind};
use crate::key::{Key, Prefix};
use crate::recent::Recent;
use crate::snapshot::Entry;
use crate::token::{OperationId, Token};
use crate::txn::Mutation;

pub(super) const HEADS: &str = "act/";
pub(super) const RESULTS: &str = "out/";
pub(super) const OPEN: &str = "open/";
pub(super) const HOLDS: &str = "res/";

/// How many transitions stay when a head would become too large.
const TRANSITIONS_KEPT: usize = 8;

/// The guard: whoever forgets writes it, and whoever creates asserts it. An absent record that was absent before is known not to have come
/// and gone exactly if this one has not moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Floor {
    /// What tells this store's actions from those of all others, also where they meet downstream.
    pub(super) identity: [u8; 16],
    /// No fence of a forgotten resource was larger.
    pub(super) fence: u64,
    /// How many actions were forgotten.
    pub(super) forgotten: u64,
    pub(super) recent: Recent,
}

impl Floor {
    /// What all attempts of an action hand to the resource. After the action was forgotten it is another one.
    pub(super) fn downstream_key(&self, action: &Action) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(b"coord downstream key 1");
        hash.update(self.identity);
        hash.update(self.forgotten.to_be_bytes());
        hash.update((action.key.as_str().len() as u64).to_be_bytes());
        hash.update(action.key.as_str());
        hash.update(action.resource.as_str());
        let digest: [u8; 32] = hash.finalize().into();
        *digest.first_chunk().expect("32 bytes begin with 16")
    }
}

/// A resource. An absent one counts as free, its last fence being that of the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Resource {
    /// The fence that was given last.
    pub(super) fence: u64,
    pub(super) held: Option<Held>,
    pub(super) touched: Timestamp,
    pub(super) recent: Recent,
}

/// Who holds a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) key: ActionKey,
    pub(super) agent: AgentId,
    pub(super) token: Token,
    pub(super) until: Timestamp,
}

/// The stored state of an action. That an attempt in flight has lapsed is not stored: it follows from the resource and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    Idle,
    InFlight,
    Uncertain,
    Completed,
}

/// What was said of an attempt: by itself, or by a ruling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// Nothing yet.
    Open,
    Completed,
    Abandoned,
    RuledApplied,
    RuledNotApplied,
    RetryAllowed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub(super) token: Token,
    pub(super) fence: u64,
    pub(super) verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReconcileClaim {
    pub(super) token: Token,
    pub(super) agent: AgentId,
    pub(super) until: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownRuling {
    pub(super) episode: u64,
    pub(super) kind: RulingKind,
    pub(super) at: Timestamp,
}

/// What is left of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kept {
    Whole,
    TooLarge,
    Purged { at: Timestamp },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Completion {
    /// The fence of the attempt that completed; `None` if a ruling said so while no attempt was unjudged.
    pub(super) fence: Option<u64>,
    pub(super) len: u64,
    pub(super) digest: [u8; 32],
    pub(super) kept: Kept,
    pub(super) at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownEvidence {
    /// The fence of the attempt that brought it.
    pub(super) fence: u64,
    pub(super) at: Timestamp,
    pub(super) len: u64,
    pub(super) digest: [u8; 32],
    /// Under which number the result itself is kept.
    pub(super) slot: Option<u8>,
}

/// The head of an action: everything but payloads. At most 16 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) resource: ResourceId,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) downstream_key: [u8; 16],
    pub(super) phase: Phase,
    /// Since when it is in it.
    pub(super) since: Timestamp,
    /// The oldest first. There is always one, and only the last one can be open.
    pub(super) attempts: Vec<Attempt>,
    /// Who made the newest attempt.
    pub(super) agent: AgentId,
    /// How often the key has become uncertain, or got new evidence while it was.
    pub(super) episode: u64,
    /// Why it is uncertain.
    pub(super) reason: Note,
    pub(super) claim: Option<ReconcileClaim>,
    pub(super) rulings: Vec<KnownRuling>,
    pub(super) completion: Option<Completion>,
    pub(super) maybe_applied: bool,
    pub(super) maybe_twice: bool,
    pub(super) evidence: Vec<KnownEvidence>,
    /// How many more pieces of evidence came than are told apart.
    pub(super) more_evidence: u64,
    pub(super) transitions: Vec<Transition>,
    pub(super) dropped_transitions: u64,
    pub(super) touched: Timestamp,
    pub(super) recent: Recent,
}

impl Head {
    /// The head of an action that nobody has attempted: it gets its first attempt before it is stored.
    pub(super) fn new(action: &Action, floor: &Floor, agent: &AgentId, now: Timestamp) -> Self {
        Head {
            resource: action.resource.clone(),
            fingerprint: action.fingerprint,
            downstream_key: floor.downstream_key(action),
            phase: Phase::Idle,
            since: now,
            attempts: Vec::new(),
            agent: agent.clone(),
            episode: 0,
            reason: Note::default(),
            claim: None,
            rulings: Vec::new(),
            completion: None,
            maybe_applied: false,
            maybe_twice: false,
            evidence: Vec::new(),
            more_evidence: 0,
            transitions: Vec::new(),
            dropped_transitions: 0,
            touched: now,
            recent: Recent::default(),
        }
    }

    pub(super) fn downstream_key(&self) -> String {
        use std::fmt::Write as _;
        self.downstream_key.iter().fold(String::with_capacity(32), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    pub(super) fn newest(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// The fence of the newest attempt.
    pub(super) fn fence(&self) -> u64 {
        self.newest().map_or(0, |attempt| attempt.fence)
    }

    pub(super) fn attempt(&self, token: &Token) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.token == *token)
    }

    pub(super) fn is_newest(&self, attempt: &Attempt) -> bool {
        self.fence() == attempt.fence
    }

    /// Whether the action is the one that this head is about.
    pub(super) fn is_about(&self, action: &Action) -> bool {
        let same = match (&self.fingerprint, &action.fingerprint) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => ours.is_same_action(theirs),
            _ => false,
        };
        same && self.resource == action.resource
    }

    pub(super) fn enter(&mut self, phase: Phase, now: Timestamp) {
        if self.phase != phase {
            self.phase = phase;
            self.since = now;
        }
    }

    /// Ends the episode and the right to judge it, if there is one, and begins a new one.
    pub(super) fn become_uncertain(&mut self, reason: Note, now: Timestamp) {
        self.enter(Phase::Uncertain, now);
        self.episode += 1;
        self.reason = reason;
        self.claim = None;
    }

    /// Ends the episode and the right to judge it.
    pub(super) fn settle(&mut self, phase: Phase, now: Timestamp) {
        self.enter(phase, now);
        self.claim = None;
    }

    /// Says something of the newest attempt, if nothing was said of it yet.
    pub(super) fn judge_newest(&mut self, verdict: Verdict) -> Option<u64> {
        let newest = self.attempts.last_mut().filter(|attempt| attempt.verdict == Verdict::Open)?;
        newest.verdict = verdict;
        Some(newest.fence)
    }

    /// Makes room for another attempt: of abandoned ones only the last few are kept, others never dropped.
    pub(super) fn has_room(&mut self) -> bool {
        let droppable = |head: &Head, attempt: &Attempt| {
            attempt.verdict == Verdict::Abandoned
                && !head.evidence.iter().any(|evidence| evidence.fence == attempt.fence)
        };
        let mut abandoned = self.attempts.iter().filter(|attempt| droppable(self, attempt)).count();
        let mut kept = Vec::with_capacity(self.attempts.len());
        for attempt in &self.attempts {
            if droppable(self, attempt) && abandoned > limits::ABANDONED_ATTEMPTS {
                abandoned -= 1;
            } else {
                kept.push(attempt.clone());
            }
        }
        self.attempts = kept;
        self.attempts.len() < limits::ATTEMPTS
    }

    pub(super) fn note(
        &mut self,
        kind: TransitionKind,
        agent: &AgentId,
        fence: u64,
        at: Timestamp,
        note: Note,
    ) {
        self.transitions.push(Transition { at, kind, agent: agent.clone(), fence, note });
        self.drop_transitions(limits::TRANSITIONS);
    }

    fn drop_transitions(&mut self, keep: usize) {
        let more = self.transitions.len().saturating_sub(keep);
        self.transitions.drain(..more);
        self.dropped_transitions += more as u64;
    }

    pub(super) fn rule(&mut self, ruling: RulingKind, at: Timestamp) {
        self.rulings.push(KnownRuling { episode: self.episode, kind: ruling, at });
        let more = self.rulings.len().saturating_sub(limits::RULINGS);
        self.rulings.drain(..more);
    }

    /// Notes a result that is not the first or comes too late. Says whether it is new, and how to keep it.
    pub(super) fn add_evidence(
        &mut self,
        key: &ActionKey,
        fence: u64,
        result: &Bytes,
        at: Timestamp,
    ) -> (bool, Option<Mutation>) {
        let digest = result_digest(result);
        if self.evidence.iter().any(|known| known.fence == fence && known.digest == digest) {
            return (false, None);
        }
        if self.evidence.len() >= limits::EVIDENCE_KNOWN {
            self.more_evidence += 1;
            return (true, None);
        }
        let free = (0..limits::EVIDENCE_KEPT as u8)
            .find(|slot| !self.evidence.iter().any(|known| known.slot == Some(*slot)))
            .filter(|_| result.len() <= limits::RESULT_BYTES && self.evidence.len() < limits::EVIDENCE_KEPT);
        self.evidence.push(KnownEvidence { fence, at, len: result.len() as u64, digest, slot: free });
        (
            true,
            free.map(|slot| {
                Mutation::put(evidence_key(key, slot), encode_payload(RecordKind::ActionEvidence, result))
            }),
        )
    }

    /// Whether the action is attempted or uncertain, and so belongs to the index.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::InFlight | Phase::Uncertain)
    }

    pub(super) fn state(&self, is_live: bool) -> ActionState {
        match self.phase {
            Phase::Idle => ActionState::Idle,
            Phase::InFlight if is_live => ActionState::InFlight,
            Phase::InFlight => ActionState::Lapsed,
            Phase::Uncertain => ActionState::Uncertain,
            Phase::Completed => ActionState::Completed,
        }
    }

    /// Notes one change: time and operation.
    pub(super) fn touch(&mut self, operation: OperationId, now: Timestamp) {
        self.touched = now;
        self.recent.push(operation);
    }
}

fn key(text: String) -> Key {
    Key::new(text).expect("a prefix and at most 200 bytes without NUL make a key")
}

pub(super) fn floor_key() -> Key {
    key("floor".to_owned())
}

pub(super) fn head_key(action: &ActionKey) -> Key {
    key(format!("{HEADS}{action}"))
}

pub(super) fn result_key(action: &ActionKey) -> Key {
    key(format!("{RESULTS}{action}"))
}

pub(super) fn open_key(action: &ActionKey) -> Key {
    key(format!("{OPEN}{action}"))
}

pub(super) fn evidence_key(action: &ActionKey, slot: u8) -> Key {
    key(format!("ev/{action}/{slot}"))
}

pub(super) fn resource_key(resource: &ResourceId) -> Key {
    key(format!("{HOLDS}{resource}"))
}

pub(super) fn prefix(text: &'static str) -> Prefix {
    Prefix::new(text).expect("a short prefix")
}

/// The action that a key under a prefix names.
pub(super) fn action_key(prefix: &'static str, key: &Key) -> Result<ActionKey, EffectError> {
    let name = key.as_str().strip_prefix(prefix).unwrap_or_default();
    ActionKey::new(name).map_err(|error| malformed(key, error))
}

pub(super) fn malformed(
    key: &Key,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> EffectError {
    EffectError::Malformed { key: key.as_str().to_owned(), source: source.into() }
}

fn decode<T: serde::de::DeserializeOwned>(
    kind: RecordKind,
    key: &Key,
    entry: &Entry,
) -> Result<Option<T>, EffectError> {
    entry.value().map(|value| codec::decode(kind, value).map_err(|error| malformed(key, error))).transpose()
}

/// Counters move by one and have half of their range left when no store will ever get there. A larger one is damage; believed, it would
/// overflow, and a fence start again.
fn check_counters<const N: usize>(key: &Key, counters: [u64; N]) -> Result<(), EffectError> {
    if counters.into_iter().any(|counter| counter > u64::MAX / 2) {
        return Err(malformed(key, "a counter is larger than any store can count"));
    }
    Ok(())
}

pub(super) fn encode_floor(floor: &Floor) -> Bytes {
    codec::encode(RecordKind::Floor, floor)
}

/// The guard, which exists in every open store.
pub(super) fn read_floor(entry: &Entry) -> Result<Floor, EffectError> {
    let key = floor_key();
    let floor: Floor = decode(RecordKind::Floor, &key, entry)?
        .ok_or_else(|| malformed(&key, "the store's guard record is gone"))?;
    check_counters(&key, [floor.fence, floor.forgotten])?;
    Ok(floor)
}

/// A head, with fewer transitions if it would become too large. What stays always fits.
pub(super) fn encode_head(head: &mut Head) -> Bytes {
    let bytes = codec::encode(RecordKind::ActionHead, head);
    if bytes.len() <= limits::HEAD_BYTES {
        return bytes;
    }
    while head.transitions.len() > TRANSITIONS_KEPT {
        head.drop_transitions(head.transitions.len() - 1);
        let bytes = codec::encode(RecordKind::ActionHead, head);
        if bytes.len() <= limits::HEAD_BYTES {
            return bytes;
        }
    }
    codec::encode(RecordKind::ActionHead, head)
}

/// The head of an action, `None` if there is no such action.
pub(super) fn read_head(action: &ActionKey, entry: &Entry) -> Result<Option<Head>, EffectError> {
    let key = head_key(action);
    let Some(head) = decode::<Head>(RecordKind::ActionHead, &key, entry)? else { return Ok(None) };
    let Some((newest, older)) = head.attempts.split_last() else {
        return Err(malformed(&key, "the action has no attempt"));
    };
    if older.iter().any(|attempt| attempt.verdict == Verdict::Open) {
        return Err(malformed(&key, "an older attempt is open"));
    }
    let open = newest.verdict == Verdict::Open;
    let fits = match head.phase {
        Phase::InFlight => open,
        Phase::Idle | Phase::Completed => !open,
        Phase::Uncertain => true,
    };
    if !fits || (head.phase == Phase::Completed) != head.completion.is_some() {
        return Err(malformed(&key, "the state of the action is not that of its newest attempt"));
    }
    if head.attempts.windows(2).any(|pair| pair[0].fence >= pair[1].fence) {
        return Err(malformed(&key, "the fences of the attempts do not grow"));
    }
    check_counters(&key, [newest.fence, head.episode, head.more_evidence])?;
    Ok(Some(head))
}

pub(super) fn encode_resource(resource: &Resource) -> Bytes {
    codec::encode(RecordKind::Resource, resource)
}

/// A resource, `None` if it was never held or has been forgotten.
pub(super) fn read_resource(name: &ResourceId, entry: &Entry) -> Result<Option<Resource>, EffectError> {
    let key = resource_key(name);
    let Some(resource) = decode::<Resource>(RecordKind::Resource, &key, entry)? else { return Ok(None) };
    check_counters(&key, [resource.fence])?;
    Ok(Some(resource))
}

/// A payload under its own envelope.
pub(super) fn encode_payload(kind: RecordKind, payload: &Bytes) -> Bytes {
    codec::encode(kind, payload)
}

/// The kept result of a completed action.
pub(super) fn read_result(action: &ActionKey, entry: &Entry) -> Result<Bytes, EffectError> {
    let key = result_key(action);
    decode(RecordKind::ActionResult, &key, entry)?.ok_or_else(|| malformed(&key, "the kept result is gone"))
}

/// A kept piece of evidence.
pub(super) fn read_evidence(action: &ActionKey, slot: u8, entry: &Entry) -> Result<Bytes, EffectError> {
    let key = evidence_key(action, slot);
    decode(RecordKind::ActionEvidence, &key, entry)?
        .ok_or_else(|| malformed(&key, "the kept evidence is gone"))
}

pub(super) fn encode_open() -> Bytes {
    codec::encode(RecordKind::OpenAction, &())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Version;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn entry(value: Bytes) -> Entry {
        Entry::Present { version: Version::first(1).unwrap(), value }
    }

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000).unwrap()
    }

    fn action() -> Action {
        Action::new(ActionKey::new("charge").unwrap())
            .resource(ResourceId::new("card").unwrap())
            .fingerprint(Fingerprint::of_bytes(b"100"))
    }

    fn recent() -> Recent {
        let mut recent = Recent::default();
        let operation: OperationId =
            codec::decode(RecordKind::OpenAction, &codec::encode(RecordKind::OpenAction, &[3_u8; 16]))
                .unwrap();
        recent.push(operation);
        recent
    }

    fn floor() -> Floor {
        Floor { identity: [9; 16], fence: 5, forgotten: 1, recent: recent() }
    }

    fn head() -> Head {
        let agent = AgentId::new("ada").unwrap();
        let token = |digit: &str| digit.repeat(32).parse::<Token>().unwrap();
        let mut head = Head::new(&action(), &floor(), &agent, time(0));
        head.attempts = vec![
            Attempt { token: token("1"), fence: 6, verdict: Verdict::RetryAllowed },
            Attempt { token: token("2"), fence: 8, verdict: Verdict::Open },
        ];
        head.phase = Phase::InFlight;
        head.note(TransitionKind::Granted, &agent, 6, time(1), Note::new("why").unwrap());
        head.become_uncertain(Note::new("reset").unwrap(), time(2));
        head.rule(RulingKind::AllowRetry, time(3));
        head.claim = Some(ReconcileClaim { token: token("3"), agent, until: time(60) });
        head.maybe_applied = true;
        head.evidence.push(KnownEvidence { fence: 6, at: time(4), len: 2, digest: [7; 32], slot: Some(0) });
        head.recent = recent();
        head
    }

    /// The bytes of every format version are kept here for ever: what was stored once must be read as the same.
    #[test]
    fn records_of_format_1_are_read_as_they_were_written() {
        let resource = Resource {
            fence: 8,
            held: Some(Held {
                key: action().key,
                agent: AgentId::new("ada").unwrap(),
                token: "2".repeat(32).parse().unwrap(),
                until: time(30),
            }),
            touched: time(1),
            recent: recent(),
        };
        let result = Bytes::from_static(b"\x00ok");
        assert_eq!(hex(&encode_floor(&floor())), FLOOR_1);
        assert_eq!(hex(&encode_head(&mut head())), HEAD_1);
        assert_eq!(hex(&encode_resource(&resource)), RESOURCE_1);
        assert_eq!(hex(&encode_payload(RecordKind::ActionResult, &result)), RESULT_1);
        assert_eq!(hex(&encode_payload(RecordKind::ActionEvidence, &result)), EVIDENCE_1);
        assert_eq!(hex(&encode_open()), OPEN_1);
        let (key, name) = (action().key, action().resource);
        assert_eq!(read_floor(&entry(encode_floor(&floor()))).unwrap(), floor());
        assert_eq!(read_head(&key, &entry(encode_head(&mut head()))).unwrap(), Some(head()));
        assert_eq!(read_resource(&name, &entry(encode_resource(&resource))).unwrap(), Some(resource));
        let stored = entry(encode_payload(RecordKind::ActionResult, &result));
        assert_eq!(read_result(&key, &stored).unwrap(), result);
        assert!(read_evidence(&key, 0, &stored).is_err() && read_result(&key, &Entry::Absent).is_err());
    }

    #[test]
    fn a_head_that_contradicts_itself_is_damage() {
        type Damage = fn(&mut Head);
        let damages: [(&str, Damage); 7] = [
            ("no attempt", |head| head.attempts.clear()),
            ("an older open attempt", |head| head.attempts[0].verdict = Verdict::Open),
            ("a fence that does not grow", |head| head.attempts[0].fence = 8),
            ("idle with an open attempt", |head| head.phase = Phase::Idle),
            ("completed without a completion", |head| head.phase = Phase::Completed),
            ("in flight without an open attempt", |head| {
                head.phase = Phase::InFlight;
                head.attempts[1].verdict = Verdict::Abandoned;
            }),
            ("a fence that no store gets to", |head| head.attempts[1].fence = u64::MAX),
        ];
        for (what, damage) in damages {
            let mut head = head();
            damage(&mut head);
            let read = read_head(&action().key, &entry(encode_head(&mut head)));
            assert!(matches!(read, Err(EffectError::Malformed { .. })), "{what}: {read:?}");
        }
    }

    #[test]
    fn no_two_actions_share_a_key() {
        let names = ["a", "a/0", "a/0/1", "0", "/", "a:b", "é", "e\u{301}", "\u{10FFFF}"];
        let mut keys = std::collections::BTreeSet::new();
        for name in names {
            let action = ActionKey::new(name).unwrap();
            let evidence = (0..limits::EVIDENCE_KEPT as u8).map(|slot| evidence_key(&action, slot));
            for key in evidence.chain([head_key(&action), result_key(&action), open_key(&action)]) {
                assert!(keys.insert(key.clone()), "{key:?}");
            }
            assert!(keys.insert(resource_key(&ResourceId::new(name).unwrap())));
            assert_eq!(action_key(HEADS, &head_key(&action)).unwrap(), action);
        }
    }

    const FLOOR_1: &str =
        "c052443101100909090909090909090909090909090905010103030303030303030303030303030303";
    const HEAD_1: &str = "c052443101110463617264012fa44b5ee65ccafe8a3d952c13b0082af4ccf9d086cdb2aacc2f801a70fea6940068fedb1ea4f0bb1ddba6e5e2cd3bac2002fd0089793048140c00021111111111111111111111111111111106052222222222222222222222222222222208000361646101057265736574013333333333333333333333333333333303616461fd008e633748140c00010102fd800d983048140c000001000106fd0092b63048140c0002070707070707070707070707070707070707070707070707070707070707070701000001fd80045b3048140c000003616461060377687900fd00803c3048140c000103030303030303030303030303030303";
    const RESOURCE_1: &str = "c052443101120801066368617267650361646122222222222222222222222222222222fd0007d03348140c00fd80045b3048140c000103030303030303030303030303030303";
    const RESULT_1: &str = "c0524431011303006f6b";
    const EVIDENCE_1: &str = "c0524431011403006f6b";
    const OPEN_1: &str = "c05244310115";
}
