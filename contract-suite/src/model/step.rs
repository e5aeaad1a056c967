//! The operations of a model run, and how they are chosen.

use std::fmt;

use bytes::Bytes;
use coord_core::{Key, Prefix};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any};
use proptest::sample::{Index, select};
use proptest::strategy::Union;

/// The keys of a model run: such as begin with one another, differ in case, in normal form, or by what means something in a pattern.
const KEYS: &[&str] = &[
    "a",
    "a/",
    "a/b",
    "aXb",
    "a_b",
    "A",
    "a%",
    "a*",
    "é",
    "e\u{301}",
    "a\u{10FFFF}",
    "b",
    "\\",
    "[a]",
    " a",
    "a.",
];

/// What listings begin with, besides the keys themselves.
const PREFIXES: &[&str] = &["", "", "", "a", "a_", "a%", "%", "e", "é", "a\u{10FFFF}", "[", "c", "a/b"];

/// A key, by its place in the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(pub(crate) usize);

impl Name {
    pub(crate) fn all() -> impl Iterator<Item = Name> {
        (0..KEYS.len()).map(Name)
    }

    pub(crate) fn key(self) -> Key {
        Key::new(KEYS[self.0]).expect("the keys of the model run are keys")
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(KEYS[self.0], f)
    }
}

/// Which version an assert names.
#[derive(Clone, Debug)]
pub(crate) enum Guess {
    /// The one that the key has.
    Right,
    /// None.
    Missing,
    /// One that the key once had, of this life or an earlier one.
    Earlier(Index),
    /// The count that the key has, of an incarnation that it never had.
    OtherLife,
    /// The one after.
    Next,
    /// The one of another key.
    Of(Name),
}

/// One operation.
#[derive(Clone)]
pub(crate) enum Step {
    Snapshot { keys: Vec<Name> },
    Txn { asserts: Vec<(Name, Guess)>, writes: Vec<(Name, Option<Bytes>)> },
    Keys { prefix: Prefix, after: Option<Name>, limit: usize },
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Snapshot { keys } => write!(f, "snapshot {keys:?}"),
            Step::Txn { asserts, writes } => {
                f.write_str("txn assert [")?;
                for (place, (name, guess)) in asserts.iter().enumerate() {
                    f.write_str(if place == 0 { "" } else { ", " })?;
                    match guess {
                        Guess::Right => write!(f, "{name:?} is as it is")?,
                        Guess::Missing => write!(f, "{name:?} is missing")?,
                        Guess::Earlier(_) => write!(f, "{name:?} is as it once was")?,
                        Guess::OtherLife => write!(f, "{name:?} has its count, but another incarnation")?,
                        Guess::Next => write!(f, "{name:?} has the next version")?,
                        Guess::Of(other) => write!(f, "{name:?} has the version of {other:?}")?,
                    }
                }
                f.write_str("] then [")?;
                for (place, (name, value)) in writes.iter().enumerate() {
                    f.write_str(if place == 0 { "" } else { ", " })?;
                    match value {
                        None => write!(f, "delete {name:?}")?,
                        Some(value) if value.len() > 16 => write!(f, "put {name:?} = {} bytes", value.len())?,
                        Some(value) => write!(f, "put {name:?} = \"{}\"", value.escape_ascii())?,
                    }
                }
                f.write_str("]")
            }
            Step::Keys { prefix, after, limit } => {
                write!(f, "keys {prefix:?}")?;
                if let Some(after) = after {
                    write!(f, " after {after:?}")?;
                }
                write!(f, " limit {limit}")
            }
        }
    }
}

fn name() -> impl Strategy<Value = Name> + Clone {
    // Most of the time the first few keys, so that steps meet.
    Union::new_weighted(vec![(3, (0..4_usize).boxed()), (1, (0..KEYS.len()).boxed())]).prop_map(Name)
}

fn guess() -> impl Strategy<Value = Guess> {
    Union::new_weighted(vec![
        (10, Just(Guess::Right).boxed()),
        (2, Just(Guess::Missing).boxed()),
        (2, any::<Index>().prop_map(Guess::Earlier).boxed()),
        (1, Just(Guess::OtherLife).boxed()),
        (1, Just(Guess::Next).boxed()),
        (1, name().prop_map(Guess::Of).boxed()),
    ])
}

fn value() -> impl Strategy<Value = Bytes> + Clone {
    // Few, so that equal bytes are written again.
    let small = select(vec![&b"v"[..], b"w", b"", b"\0\xff\n\r\"'\\", b"null"]).prop_map(Bytes::from_static);
    let large = (1_000..5_000_usize).prop_map(|size| Bytes::from(vec![7; size]));
    Union::new_weighted(vec![(8, small.boxed()), (1, large.boxed())])
}

fn txn() -> impl Strategy<Value = Step> {
    let write = Union::new_weighted(vec![(5, value().prop_map(Some).boxed()), (2, Just(None).boxed())]);
    (vec((name(), guess()), 0..4), vec((name(), write), 0..4)).prop_map(|(asserts, mut writes)| {
        writes.sort_by_key(|(name, _)| *name);
        writes.dedup_by_key(|(name, _)| *name);
        Step::Txn { asserts, writes }
    })
}

fn listing() -> impl Strategy<Value = Step> {
    let prefix = select(PREFIXES.iter().chain(KEYS).copied().collect::<Vec<_>>());
    let limit = Union::new(vec![(1..5_usize).boxed(), Just(10_000).boxed()]);
    (prefix, option::weighted(0.3, name()), limit).prop_map(|(prefix, after, limit)| Step::Keys {
        prefix: Prefix::new(prefix).expect("the prefixes of the model run are prefixes"),
        after,
        limit,
    })
}

/// A sequence of operations, each through one of two handles.
pub(crate) fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let snapshot = vec(name(), 0..6).prop_map(|keys| Step::Snapshot { keys });
    let step = Union::new_weighted(vec![(6, txn().boxed()), (2, snapshot.boxed()), (2, listing().boxed())]);
    vec((0..2_usize, step), 1..40)
}
