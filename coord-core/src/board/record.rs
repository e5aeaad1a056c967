//! What a board stores: the records, their keys, and the operations that a record remembers.
//!
//! Ids are never escaped. Where something follows an id in a key, the id is preceded by its length, so that no two pairs of ids give
//! one key; at the end of a key it stands bare, so that keys sort as ids do.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::dep::{Dep, Rule};
use super::retry::Retry;
use super::task::{AgentId, LeaseInfo, Outcome, State, Task, TaskId, TaskSpec};
use super::{BoardError, Verb};
use crate::clock::Timestamp;
use crate::codec::{self, DamagedRecord, DecodeError, RecordKind};
use crate::key::{Key, Prefix};
pub(crate) use crate::recent::{REMEMBERED, Recent};
use crate::snapshot::Entry;
use crate::token::{OperationId, RequestId, Token};

/// The guard of all tasks and edges: whoever adds, removes or reconnects tasks reads, asserts and writes it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Topology {
    /// The order of the next task.
    pub(crate) next_order: u64,
    /// No fence of a removed task was larger.
    pub(crate) fence_floor: u64,
    /// No seq of a removed task was larger.
    pub(crate) seq_floor: u64,
    pub(crate) recent: Recent,
}

/// The stored form of [`State`]. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
pub(crate) struct StoredState(pub(crate) State);

impl From<u8> for StoredState {
    fn from(code: u8) -> Self {
        StoredState(match code {
            0 => State::Open,
            1 => State::Claimed,
            2 => State::Done,
            3 => State::Failed,
            4 => State::Cancelled,
            5 => State::Skipped,
            other => State::Unknown(other),
        })
    }
}

impl From<StoredState> for u8 {
    fn from(state: StoredState) -> u8 {
        match state.0 {
            State::Open => 0,
            State::Claimed => 1,
            State::Done => 2,
            State::Failed => 3,
            State::Cancelled => 4,
            State::Skipped => 5,
            State::Unknown(code) => code,
        }
    }
}

/// The head of a task: everything that claims change. Small, so that ten thousand of them are read at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) state: StoredState,
    pub(crate) held: Option<Held>,
    /// The fence that was given last.
    pub(crate) fence: u64,
    pub(crate) seq: u64,
    pub(crate) order: u64,
    pub(crate) attempts: u32,
    pub(crate) not_before: Option<Timestamp>,
    /// The time of the judgement of the last write.
    pub(crate) touched: Timestamp,
    /// How the last claim ended, until the next one; of a done task for ever.
    pub(crate) settled: Option<Settled>,
    pub(crate) created: Created,
    /// The size of the definition's record, so that definitions can be read in pages that fit.
    pub(crate) definition_bytes: u32,
    pub(crate) recent: Recent,
    /// Who has begun because this task has failed or was cancelled: it stays so for ever. Stored beside the rest, and only where there
    /// is one: most heads are as they always were.
    #[serde(skip)]
    pub(crate) pinned_by: Option<TaskId>,
}

/// Who holds a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) owner: AgentId,
    pub(crate) token: Token,
    pub(crate) request: Option<RequestId>,
    pub(crate) until: Option<Timestamp>,
}

/// How a claim ended by its own token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settled {
    pub(crate) token: Token,
    pub(crate) verb: SettledBy,
    pub(crate) answer: Outcome,
}

/// The verbs that end a claim by its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SettledBy {
    Release,
    Complete,
    Fail,
}

impl SettledBy {
    pub(crate) fn verb(self) -> Verb {
        match self {
            SettledBy::Release => Verb::Release,
            SettledBy::Complete => Verb::Complete,
            SettledBy::Fail => Verb::Fail,
        }
    }
}

/// What a creation is known by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Created {
    pub(crate) operation: OperationId,
    pub(crate) digest: [u8; 32],
}

impl Head {
    pub(crate) fn state(&self) -> State {
        self.state.0
    }

    /// Notes one change: seq, time, operation.
    pub(crate) fn touch(&mut self, operation: OperationId, now: Timestamp) {
        self.seq += 1;
        self.touched = now;
        self.recent.push(operation);
    }

    /// Leaves the claimed state, if it is in it.
    pub(crate) fn leave(&mut self, state: State) {
        self.state = StoredState(state);
        self.held = None;
    }
}

/// The definition of a task: what only topology changes change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Definition {
    pub(crate) title: String,
    /// Stored as plain ids; their rules stand beside the rest, and only where there are other ones than [`Rule::Done`].
    #[serde(with = "plain_ids")]
    pub(crate) deps: Vec<Dep>,
    pub(crate) labels: Vec<String>,
    pub(crate) priority: i32,
    pub(crate) payload: Bytes,
    /// Stored beside the rest, and only where there is one: most definitions are as they always were.
    #[serde(skip)]
    pub(crate) retry: Option<Retry>,
}

impl Definition {
    pub(crate) fn of(spec: &TaskSpec) -> Self {
        Definition {
            title: spec.title.clone(),
            deps: spec.deps.clone(),
            labels: spec.labels.clone(),
            priority: spec.priority,
            payload: spec.payload.clone(),
            retry: spec.retry,
        }
    }
}

/// Dependencies as they are stored within a definition: without their rules.
mod plain_ids {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{Dep, TaskId};

    pub(super) fn serialize<S: Serializer>(deps: &[Dep], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(deps.iter().map(|dep| &dep.id))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Dep>, D::Error> {
        Ok(Dep::all(Vec::<TaskId>::deserialize(deserializer)?))
    }
}

/// The rules of dependencies, in their order; `None` if all of them must be done.
fn rules(deps: &[Dep]) -> Option<Vec<u8>> {
    let ruled = deps.iter().any(|dep| dep.rule != Rule::Done);
    ruled.then(|| deps.iter().map(|dep| dep.rule.code()).collect())
}

/// SHA-256 of a definition, the order of dependencies and labels aside.
pub(crate) fn digest(spec: &TaskSpec) -> [u8; 32] {
    let mut spec = spec.clone();
    spec.deps.sort_unstable();
    spec.labels.sort_unstable();
    let TaskSpec { id, title, deps, labels, priority, not_before, payload, retry } = &spec;
    // What came later is hashed only where it is used, so that the digests of old definitions stay as they were.
    let ids: Vec<&TaskId> = deps.iter().map(|dep| &dep.id).collect();
    let first = (id, title, ids, labels, priority, not_before, payload);
    let mut hash = Sha256::new();
    hash.update(codec::encode(RecordKind::TaskDefinition, &first));
    if let Some(retry) = retry {
        hash.update(codec::encode(RecordKind::RetriedDefinition, retry));
    }
    if let Some(rules) = rules(deps) {
        hash.update(codec::encode(RecordKind::RuledDefinition, &rules));
    }
    hash.finalize().into()
}

/// A task as a board shows it. Tokens and request ids stay behind.
pub(crate) fn shown(id: &TaskId, head: &Head, definition: &Definition) -> Task {
    let state = head.state();
    let mut task = Task::new(id.clone());
    task.title = definition.title.clone();
    task.deps = definition.deps.clone();
    task.state = state;
    task.owner = head.held.as_ref().map(|held| held.owner.clone());
    task.lease = head.held.as_ref().map(|held| LeaseInfo { fence: head.fence, until: held.until });
    task.seq = head.seq;
    task.fence = head.fence;
    task.order = head.order;
    task.priority = definition.priority;
    task.labels = definition.labels.clone();
    task.attempts = head.attempts;
    task.not_before = head.not_before;
    task.outcome = match (&head.settled, state) {
        (Some(settled), State::Done | State::Failed) => Some(settled.answer.clone()),
        _ => None,
    };
    task.touched = head.touched;
    task.payload = definition.payload.clone();
    task.retry = definition.retry;
    task
}

/// The key of the guard.
pub(crate) fn topology_key() -> Key {
    key("topo".to_owned())
}

/// The prefix of all heads.
pub(crate) const HEADS: &str = "task/";
/// The prefix of all edges.
pub(crate) const EDGES: &str = "dep/";

pub(crate) fn head_key(id: &TaskId) -> Key {
    key(format!("{HEADS}{id}"))
}

pub(crate) fn definition_key(id: &TaskId) -> Key {
    key(format!("def/{id}"))
}

/// What the edges to the dependents of `dependency` begin with.
pub(crate) fn edges_prefix(dependency: &TaskId) -> Prefix {
    Prefix::new(edges_of(dependency)).expect("an id of at most 200 bytes without NUL makes a prefix")
}

fn edges_of(dependency: &TaskId) -> String {
    format!("{EDGES}{:03}/{dependency}/", dependency.as_str().len())
}

pub(crate) fn edge_key(dependency: &TaskId, dependent: &TaskId) -> Key {
    key(format!("{}{dependent}", edges_of(dependency)))
}

/// The id whose head a key names.
pub(crate) fn head_id(key: &Key) -> Option<TaskId> {
    TaskId::new(key.as_str().strip_prefix(HEADS)?).ok()
}

/// The dependency and the dependent whose edge a key names.
pub(crate) fn edge_ids(key: &Key) -> Option<(TaskId, TaskId)> {
    let (length, rest) = key.as_str().strip_prefix(EDGES)?.split_once('/')?;
    let (dependency, dependent) = rest.split_at_checked(length.parse().ok()?)?;
    Some((TaskId::new(dependency).ok()?, TaskId::new(dependent.strip_prefix('/')?).ok()?))
}

fn key(text: String) -> Key {
    Key::new(text).expect("ids of at most 200 bytes without NUL make a key")
}

pub(crate) fn encode_topology(record: &Topology) -> Bytes {
    codec::encode(RecordKind::Topology, record)
}

pub(crate) fn encode_head(record: &Head) -> Bytes {
    match &record.pinned_by {
        None => codec::encode(RecordKind::TaskHead, record),
        Some(dependent) => codec::encode(RecordKind::PinnedHead, &(record, dependent)),
    }
}

pub(crate) fn encode_definition(record: &Definition) -> Bytes {
    match (rules(&record.deps), &record.retry) {
        (None, None) => codec::encode(RecordKind::TaskDefinition, record),
        (None, Some(retry)) => codec::encode(RecordKind::RetriedDefinition, &(record, retry)),
        (Some(rules), retry) => codec::encode(RecordKind::RuledDefinition, &(record, retry, rules)),
    }
}

pub(crate) fn encode_edge() -> Bytes {
    codec::encode(RecordKind::Edge, &())
}

pub(crate) fn malformed(
    key: &Key,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> BoardError {
    DamagedRecord::new(key, source).into()
}

/// The guard, which exists on every open board.
pub(crate) fn read_topology(entry: &Entry) -> Result<Topology, BoardError> {
    let key = topology_key();
    let topology: Topology = codec::read(RecordKind::Topology, &key, entry)?
        .ok_or_else(|| malformed(&key, "the board's guard record is gone"))?;
    codec::check_counters(&key, [topology.next_order, topology.fence_floor, topology.seq_floor])?;
    Ok(topology)
}

/// The head of a task, `None` if there is no such task.
pub(crate) fn read_head(id: &TaskId, entry: &Entry) -> Result<Option<Head>, BoardError> {
    let key = head_key(id);
    let Some(value) = entry.value() else { return Ok(None) };
    let read = match codec::decode(RecordKind::TaskHead, value) {
        Err(DecodeError::Kind { .. }) => codec::decode(RecordKind::PinnedHead, value)
            .map(|(head, dependent)| Head { pinned_by: Some(dependent), ..head }),
        read => read,
    };
    let head: Head = read.map_err(|error| malformed(&key, error))?;
    if head.pinned_by.is_some() && !matches!(head.state(), State::Failed | State::Cancelled) {
        return Err(malformed(&key, "a task that others rest on has neither failed nor been cancelled"));
    }
    if (head.state() == State::Claimed) != head.held.is_some() {
        return Err(malformed(&key, "a task is claimed exactly if somebody holds it"));
    }
    codec::check_counters(&key, [head.fence, head.seq, head.order])?;
    Ok(Some(head))
}

/// The definition of a task whose head exists.
pub(crate) fn read_definition(id: &TaskId, entry: &Entry) -> Result<Definition, BoardError> {
    let key = definition_key(id);
    let value = entry.value().ok_or_else(|| malformed(&key, "the task has no definition"))?;
    match codec::decode(RecordKind::TaskDefinition, value) {
        Err(DecodeError::Kind { .. }) => {}
        read => return read.map_err(|error| malformed(&key, error)),
    }
    match codec::decode(RecordKind::RetriedDefinition, value) {
        Err(DecodeError::Kind { .. }) => {}
        read => {
            let (definition, retry) = read.map_err(|error| malformed(&key, error))?;
            return Ok(Definition { retry: Some(retry), ..definition });
        }
    }
    let (definition, retry, rules): (Definition, Option<Retry>, Vec<u8>) =
        codec::decode(RecordKind::RuledDefinition, value).map_err(|error| malformed(&key, error))?;
    let mut definition = Definition { retry, ..definition };
    if rules.len() != definition.deps.len() {
        return Err(malformed(&key, "the task has another number of rules than of dependencies"));
    }
    for (dep, code) in definition.deps.iter_mut().zip(rules) {
        dep.rule = Rule::of_code(code).ok_or_else(|| {
            let text = format!("a dependency has the rule {code}, which this version of coord does not know");
            malformed(&key, text)
        })?;
    }
    Ok(definition)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TaskId {
        TaskId::new(text).unwrap()
    }

    #[test]
    fn no_two_pairs_of_ids_share_an_edge_key() {
        let ids = ["a", "a/", "/a", "a/b", "b", "/", "003/a", "é", "\u{10FFFF}", "a/003/a"].map(id);
        let mut keys = std::collections::BTreeSet::new();
        for dependency in &ids {
            for dependent in &ids {
                let key = edge_key(dependency, dependent);
                assert_eq!(edge_ids(&key), Some((dependency.clone(), dependent.clone())));
                assert!(edges_prefix(dependency).matches(&key));
                assert_eq!(ids.iter().filter(|other| edges_prefix(other).matches(&key)).count(), 1, "{key}");
                assert!(keys.insert(key));
            }
        }
    }

    #[test]
    fn the_longest_ids_make_keys() {
        let long = id(&"i".repeat(200));
        assert_eq!(edge_ids(&edge_key(&long, &long)), Some((long.clone(), long.clone())));
        assert_eq!(head_id(&head_key(&long)), Some(long));
    }

    #[test]
    fn the_last_sixteen_operations_are_remembered() {
        let operations: Vec<OperationId> = (0..20).map(|_| OperationId::mint()).collect();
        let mut recent = Recent::default();
        for operation in &operations {
            recent.push(*operation);
        }
        for (n, operation) in operations.iter().enumerate() {
            assert_eq!(recent.contains(*operation), n >= 4, "{n}");
        }
    }

    #[test]
    fn a_digest_ignores_the_order_of_dependencies_and_labels() {
        let spec = |deps: [&str; 2], labels: [&str; 2]| {
            TaskSpec::new(id("t")).deps(deps.map(id)).label(labels[0]).label(labels[1])
        };
        assert_eq!(digest(&spec(["a", "b"], ["x", "y"])), digest(&spec(["b", "a"], ["y", "x"])));
        assert_ne!(digest(&spec(["a", "b"], ["x", "y"])), digest(&spec(["a", "c"], ["x", "y"])));
        assert_ne!(digest(&spec(["a", "b"], ["x", "y"])), digest(&spec(["a", "b"], ["x", "y"]).priority(1)));
    }

    #[test]
    fn a_counter_near_its_end_is_damage() {
        let version = crate::Version::first(1).unwrap();
        for (fence_floor, readable) in [(u64::MAX / 2, true), (u64::MAX / 2 + 1, false), (u64::MAX, false)] {
            let topology = Topology { fence_floor, ..Topology::default() };
            let read = read_topology(&Entry::Present { version, value: encode_topology(&topology) });
            assert_eq!(read.is_ok(), readable, "{fence_floor}: {read:?}");
        }
    }

    /// The bytes of every format version are kept here for ever: what was stored once must be read as the same.
    #[test]
    fn records_of_format_1_are_read_as_they_were_written() {
        fn hex(bytes: &[u8]) -> String {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        }
        let operation = |n: u8| -> OperationId {
            let bytes = codec::encode(RecordKind::Edge, &[n; 16]);
            codec::decode(RecordKind::Edge, &bytes).unwrap()
        };
        let mut recent = Recent::default();
        recent.push(operation(1));
        recent.push(operation(2));
        let topology =
            Topology { next_order: 300, fence_floor: 7, seq_floor: 70_000, recent: recent.clone() };
        let head = Head {
            state: StoredState(State::Claimed),
            held: Some(Held {
                owner: AgentId::new("worker").unwrap(),
                token: "000102030405060708090a0b0c0d0e0f".parse().unwrap(),
                request: Some("0f0e0d0c0b0a09080706050403020100".parse().unwrap()),
                until: Timestamp::from_micros(1_700_000_000_000_000),
            }),
            fence: 3,
            seq: 9,
            order: 1,
            attempts: 2,
            not_before: None,
            touched: Timestamp::from_micros(1_699_999_970_000_000).unwrap(),
            settled: Some(Settled {
                token: "ffffffffffffffffffffffffffffffff".parse().unwrap(),
                verb: SettledBy::Fail,
                answer: Outcome::new("exit 1").unwrap(),
            }),
            created: Created { operation: operation(1), digest: [0xAB; 32] },
            definition_bytes: 42,
            recent,
            pinned_by: None,
        };
        let definition = Definition {
            title: "Ship it".into(),
            deps: Dep::all([id("a"), id("b")]),
            labels: vec!["gpu".into()],
            priority: -5,
            payload: Bytes::from_static(&[0, 255]),
            retry: None,
        };
        let retried = Definition { retry: Some(Retry::new(3)), ..definition.clone() };
        let ruled = Definition {
            deps: vec![Dep::on(id("a"), Rule::Finished), id("b").into(), Dep::on(id("c"), Rule::Failed)],
            ..definition.clone()
        };
        let both = Definition { retry: Some(Retry::new(3)), ..ruled.clone() };
        let pinned =
            Head { state: StoredState(State::Failed), held: None, pinned_by: Some(id("x")), ..head.clone() };
        let skipped = Head { state: StoredState(State::Skipped), pinned_by: None, ..pinned.clone() };
        assert_eq!(hex(&encode_topology(&topology)), TOPOLOGY_1);
        assert_eq!(hex(&encode_head(&head)), HEAD_1);
        assert_eq!(hex(&encode_definition(&definition)), DEFINITION_1);
        assert_eq!(hex(&encode_definition(&retried)), RETRIED_1);
        assert_eq!(hex(&encode_definition(&ruled)), RULED_1);
        assert_eq!(hex(&encode_definition(&both)), RULED_AND_RETRIED_1);
        assert_eq!(hex(&encode_head(&pinned)), PINNED_1);
        assert_eq!(hex(&encode_head(&skipped)), SKIPPED_1);
        assert_eq!(hex(&encode_edge()), EDGE_1);
        let version = crate::Version::first(1).unwrap();
        let entry = |value| Entry::Present { version, value };
        assert_eq!(read_topology(&entry(encode_topology(&topology))).unwrap(), topology);
        for head in [head, pinned, skipped] {
            assert_eq!(read_head(&id("t"), &entry(encode_head(&head))).unwrap(), Some(head));
        }
        for definition in [definition, retried, ruled, both] {
            let read = read_definition(&id("t"), &entry(encode_definition(&definition)));
            assert_eq!(read.unwrap(), definition);
        }
    }

    const TOPOLOGY_1: &str =
        "c05244310101fb2c0107fc70110100020101010101010101010101010101010102020202020202020202020202020202";
    const HEAD_1: &str = "c05244310102010106776f726b6572000102030405060708090a0b0c0d0e0f010f0e0d0c0b0a0908070605040302010001fd00803c3048140c000309010200fd00f9a82c48140c0001ffffffffffffffffffffffffffffffff020665786974203101010101010101010101010101010101abababababababababababababababababababababababababababababababab2a020101010101010101010101010101010102020202020202020202020202020202";
    const DEFINITION_1: &str = "c05244310103075368697020697402016101620103677075090200ff";
    const RETRIED_1: &str = "c05244310108075368697020697402016101620103677075090200ff030100fb2c0100";
    const RULED_1: &str = "c052443101090753686970206974030161016201630103677075090200ff0003010002";
    const RULED_AND_RETRIED_1: &str =
        "c052443101090753686970206974030161016201630103677075090200ff01030100fb2c010003010002";
    const PINNED_1: &str = "c0524431010a03000309010200fd00f9a82c48140c0001ffffffffffffffffffffffffffffffff020665786974203101010101010101010101010101010101abababababababababababababababababababababababababababababababab2a0201010101010101010101010101010101020202020202020202020202020202020178";
    const SKIPPED_1: &str = "c0524431010205000309010200fd00f9a82c48140c0001ffffffffffffffffffffffffffffffff020665786974203101010101010101010101010101010101abababababababababababababababababababababababababababababababab2a020101010101010101010101010101010102020202020202020202020202020202";
    const EDGE_1: &str = "c05244310104";
}
