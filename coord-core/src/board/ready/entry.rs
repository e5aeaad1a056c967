//! The entries of the ready index: their keys, and what stands under them.
//!
//! Numbers in keys are hexadecimal and of fixed width, so that keys sort as numbers do. What stands under a key is a hint for whoever
//! looks for a task; nothing is ever judged by it.

use bytes::Bytes;

use super::super::record::{Definition, Head};
use super::super::task::{State, TaskId};
use crate::clock::Timestamp;
use crate::codec::{self, RecordKind};
use crate::key::{Key, Prefix};

/// Tasks that can be claimed, by priority and then by their place in line.
pub(crate) const READY: &str = "rdy/";
/// Tasks that can be claimed from a time on: when a lease ends, or when a task may begin.
pub(crate) const DUE: &str = "due/";
/// Tasks that wait for another one: a watch each, on the first dependency that was not settled.
pub(crate) const WAIT: &str = "wait/";
/// Tasks that must be examined.
pub(crate) const TODO: &str = "todo/";
/// All of them.
pub(crate) const PREFIXES: [&str; 4] = [READY, DUE, WAIT, TODO];

/// The format of the index: its mark is written once all tasks of a board are in it.
const FORMAT: u32 = 1;

pub(crate) fn prefix(text: impl AsRef<str>) -> Prefix {
    Prefix::new(text).expect("ids of at most 200 bytes without NUL make a prefix")
}

fn key(text: String) -> Key {
    Key::new(text).expect("ids of at most 200 bytes without NUL make a key")
}

/// The key under which it is noted that all tasks of the board are in the index.
pub(crate) fn mark_key() -> Key {
    key("index".to_owned())
}

pub(crate) fn encode_mark() -> Bytes {
    codec::encode(RecordKind::Index, &FORMAT)
}

/// Whether this is a mark that this version understands.
pub(crate) fn read_mark(value: &[u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    match codec::decode::<u32>(RecordKind::Index, value)? {
        FORMAT => Ok(()),
        other => {
            Err(format!("the index has format {other}, which this version of coord does not know").into())
        }
    }
}

pub(crate) fn ready_key(priority: i32, order: u64, id: &TaskId) -> Key {
    // Higher priorities come first.
    let rank = i64::from(i32::MAX) - i64::from(priority);
    key(format!("{READY}{rank:08x}/{order:016x}/{id}"))
}

pub(crate) fn due_key(time: Timestamp, id: &TaskId) -> Key {
    key(format!("{DUE}{:016x}/{id}", time.as_micros()))
}

/// What the watches on a task begin with.
pub(crate) fn watches(dependency: &TaskId) -> String {
    format!("{WAIT}{:03}/{dependency}/", dependency.as_str().len())
}

pub(crate) fn watch_key(dependency: &TaskId, id: &TaskId) -> Key {
    key(format!("{}{id}", watches(dependency)))
}

pub(crate) fn todo_key(id: &TaskId) -> Key {
    key(format!("{TODO}{id}"))
}

/// What stands under every entry but those of ready tasks: only the key counts.
pub(crate) fn marker() -> Bytes {
    codec::encode(RecordKind::Marker, &())
}

/// What stands under the entry of a ready task: its labels, so that whoever filters reads no definitions.
pub(crate) fn encode_labels(labels: &[String]) -> Bytes {
    codec::encode(RecordKind::Labels, &labels)
}

/// The labels under the entry of a ready task, if they can be read.
pub(crate) fn read_labels(value: &[u8]) -> Option<Vec<String>> {
    codec::decode(RecordKind::Labels, value).ok()
}

/// Which entry a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Ready { id: TaskId },
    Due { time: Timestamp, id: TaskId },
    Watch { dependency: TaskId, id: TaskId },
    Todo { id: TaskId },
}

impl Entry {
    /// Reads a key; `None` if it is no entry of the index.
    pub(crate) fn of(key: &Key) -> Option<Entry> {
        let text = key.as_str();
        if let Some(rest) = text.strip_prefix(READY) {
            let (_, rest) = number(rest, 8)?;
            let (_, id) = number(rest, 16)?;
            return Some(Entry::Ready { id: TaskId::new(id).ok()? });
        }
        if let Some(rest) = text.strip_prefix(DUE) {
            let (micros, id) = number(rest, 16)?;
            let time = Timestamp::from_micros(i64::try_from(micros).ok()?)?;
            return Some(Entry::Due { time, id: TaskId::new(id).ok()? });
        }
        if let Some(rest) = text.strip_prefix(WAIT) {
            let (length, rest) = rest.split_once('/')?;
            let (dependency, id) = rest.split_at_checked(length.parse().ok()?)?;
            let id = TaskId::new(id.strip_prefix('/')?).ok()?;
            return Some(Entry::Watch { dependency: TaskId::new(dependency).ok()?, id });
        }
        Some(Entry::Todo { id: TaskId::new(text.strip_prefix(TODO)?).ok()? })
    }

    /// The task that the entry is about.
    pub(crate) fn id(&self) -> &TaskId {
        match self {
            Entry::Ready { id } | Entry::Due { id, .. } | Entry::Watch { id, .. } | Entry::Todo { id } => id,
        }
    }
}

/// A number of so many digits, and what comes after the slash behind it.
fn number(text: &str, digits: usize) -> Option<(u64, &str)> {
    let (number, rest) = text.split_at_checked(digits)?;
    Some((u64::from_str_radix(number, 16).ok()?, rest.strip_prefix('/')?))
}

/// Where a task stands in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere: it has ended.
    Nowhere,
    /// It waits for this one, the first of its dependencies that is not settled.
    Watch(TaskId),
    /// It can be claimed from this time on. A lease without end has the last time.
    Due(Timestamp),
    /// It can be claimed.
    Ready,
    /// It must be examined: it will never begin, and somebody has to write that.
    Examine,
}

/// What the dependencies of a task say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs<'d> {
    /// All are settled, and it may begin.
    Met,
    /// This is the first one that is not settled.
    Waits(&'d TaskId),
    /// All are settled, and it can never begin.
    Never,
}

impl Needs<'_> {
    /// What dependencies say that are settled.
    pub(crate) fn of(impossible: bool) -> Self {
        if impossible { Needs::Never } else { Needs::Met }
    }
}

/// The place of a task, a pure function of its head and of what its dependencies say. Time does not count: a task whose time has come is
/// made ready by whoever finds its entry.
pub(crate) fn place(head: &Head, needs: Needs<'_>) -> Place {
    match (head.state(), needs) {
        // The dependencies of a claimed task are satisfied, for ever.
        (State::Claimed, _) => Place::Due(due_time(head).unwrap_or(Timestamp::MAX)),
        (State::Open, Needs::Waits(dependency)) => Place::Watch(dependency.clone()),
        (State::Open, Needs::Never) => Place::Examine,
        (State::Open, Needs::Met) => due_time(head).map_or(Place::Ready, Place::Due),
        _ => Place::Nowhere,
    }
}

/// The time under which a task is due, if it is not waiting for others.
pub(crate) fn due_time(head: &Head) -> Option<Timestamp> {
    match (head.state(), &head.held) {
        (State::Claimed, Some(held)) => Some(held.until.unwrap_or(Timestamp::MAX)),
        (State::Open, _) => head.not_before,
        _ => None,
    }
}

impl Place {
    /// The entry of a task at this place.
    pub(crate) fn key(&self, id: &TaskId, order: u64, priority: i32) -> Option<Key> {
        match self {
            Place::Nowhere => None,
            Place::Watch(dependency) => Some(watch_key(dependency, id)),
            Place::Due(time) => Some(due_key(*time, id)),
            Place::Ready => Some(ready_key(priority, order, id)),
            Place::Examine => Some(todo_key(id)),
        }
    }

    /// What stands under the entry.
    pub(crate) fn value(&self, definition: &Definition) -> Bytes {
        match self {
            Place::Ready => encode_labels(&definition.labels),
            _ => marker(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TaskId {
        TaskId::new(text).unwrap()
    }

    #[test]
    fn ready_tasks_sort_by_priority_and_then_by_order() {
        let line = [
            (i32::MAX, 7),
            (5, 0),
            (5, 1),
            (5, u64::from(u32::MAX)),
            (0, 3),
            (-1, 2),
            (i32::MIN, 0),
            (i32::MIN, u64::MAX),
        ];
        let keys: Vec<Key> =
            line.iter().map(|(priority, order)| ready_key(*priority, *order, &id("t"))).collect();
        assert!(keys.is_sorted(), "{keys:?}");
        let times = [0, 1, 255, 1_893_456_000_123_457, Timestamp::MAX.as_micros()];
        let keys: Vec<Key> =
            times.map(|micros| due_key(Timestamp::from_micros(micros).unwrap(), &id("t"))).into();
        assert!(keys.is_sorted(), "{keys:?}");
    }

    #[test]
    fn every_entry_is_read_back_from_its_key() {
        let long = "i".repeat(200);
        for name in ["t", "/", "a/b", "0000/", "é", "%2F", "\u{10FFFF}", &long] {
            let task = id(name);
            let time = Timestamp::from_micros(1_893_456_000_123_457).unwrap();
            assert_eq!(Entry::of(&ready_key(-3, 9, &task)), Some(Entry::Ready { id: task.clone() }));
            assert_eq!(Entry::of(&due_key(time, &task)), Some(Entry::Due { time, id: task.clone() }));
            assert_eq!(Entry::of(&todo_key(&task)), Some(Entry::Todo { id: task.clone() }));
            for other in ["d", "/", "é/", &long] {
                let watch = Entry::Watch { dependency: id(other), id: task.clone() };
                assert_eq!(Entry::of(&watch_key(&id(other), &task)), Some(watch));
            }
        }
        for foreign in
            ["rdy/", "rdy/00000000/x", "due/zz/x", "due/ffffffffffffffff/x", "wait/9/d/x", "todo/", "topo"]
        {
            assert_eq!(Entry::of(&Key::new(foreign).unwrap()), None, "{foreign}");
        }
    }

    #[test]
    fn labels_are_read_back_and_anything_else_is_not() {
        let labels = vec!["gpu".to_owned(), String::new()];
        assert_eq!(read_labels(&encode_labels(&labels)), Some(labels));
        assert_eq!(read_labels(&marker()), None);
        assert!(read_mark(&encode_mark()).is_ok() && read_mark(&marker()).is_err());
    }
}
