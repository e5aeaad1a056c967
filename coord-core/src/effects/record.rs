//! What a side-effect store stores: the records, their keys, and what is true of every one of them.
//!
//! `act/<key>` is the head of an action, `out/<key>` its kept result, `ev/<key>/<n>` its evidence, `open/<key>` the index of what is attempted or
//! uncertain, `res/<resource>` who holds a resource, and `floor` the guard. Keys are never escaped: what follows a key in `ev/` is one
//! digit, so that no two pairs give one key.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::EffectError;
use super::action::{Action, RulingKind};
use super::fingerprint::Fingerprint;
use super::history::Transition;
use super::names::{ActionKey, Note, ResourceId, limits};
use crate::board::AgentId;
use crate::clock::Timestamp;
use crate::codec::{self, DamagedRecord, RecordKind};
use crate::key::{Key, Prefix};
use crate::recent::Recent;
use crate::snapshot::Entry;
use crate::token::Token;

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
    DamagedRecord::new(key, source).into()
}

pub(super) fn encode_floor(floor: &Floor) -> Bytes {
    codec::encode(RecordKind::Floor, floor)
}

/// The guard, which exists in every open store.
pub(super) fn read_floor(entry: &Entry) -> Result<Floor, EffectError> {
    let key = floor_key();
    let floor: Floor = codec::read(RecordKind::Floor, &key, entry)?
        .ok_or_else(|| malformed(&key, "the store's guard record is gone"))?;
    codec::check_counters(&key, [floor.fence, floor.forgotten])?;
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
    let Some(head) = codec::read::<Head>(RecordKind::ActionHead, &key, entry)? else { return Ok(None) };
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
    codec::check_counters(&key, [newest.fence, head.episode, head.more_evidence])?;
    Ok(Some(head))
}

pub(super) fn encode_resource(resource: &Resource) -> Bytes {
    codec::encode(RecordKind::Resource, resource)
}

/// A resource, `None` if it was never held or has been forgotten.
pub(super) fn read_resource(name: &ResourceId, entry: &Entry) -> Result<Option<Resource>, EffectError> {
    let key = resource_key(name);
    let Some(resource) = codec::read::<Resource>(RecordKind::Resource, &key, entry)? else { return Ok(None) };
    codec::check_counters(&key, [resource.fence])?;
    Ok(Some(resource))
}

/// A payload under its own envelope.
pub(super) fn encode_payload(kind: RecordKind, payload: &Bytes) -> Bytes {
    codec::encode(kind, payload)
}

/// The kept result of a completed action.
pub(super) fn read_result(action: &ActionKey, entry: &Entry) -> Result<Bytes, EffectError> {
    let key = result_key(action);
    codec::read(RecordKind::ActionResult, &key, entry)?
        .ok_or_else(|| malformed(&key, "the kept result is gone"))
}

/// A kept piece of evidence.
pub(super) fn read_evidence(action: &ActionKey, slot: u8, entry: &Entry) -> Result<Bytes, EffectError> {
    let key = evidence_key(action, slot);
    codec::read(RecordKind::ActionEvidence, &key, entry)?
        .ok_or_else(|| malformed(&key, "the kept evidence is gone"))
}

pub(super) fn encode_open() -> Bytes {
    codec::encode(RecordKind::OpenAction, &())
}

#[cfg(test)]
mod tests {
    use super::super::history::TransitionKind;
    use super::*;
    use crate::snapshot::Version;
    use crate::token::OperationId;

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
