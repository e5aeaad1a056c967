//! Wrong judgements: when a transaction is applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use coord_core::{Assert, ErrorKind, Key, Mutation, Operation, Txn, TxnOutcome, Version};

use super::toy::{self, Bend, RIGHT, Space, assert_holds};
use super::{ToyHarness, Wrong};

macro_rules! bent {
    ($id:literal, $what:literal, [$clause:literal $(, $also:literal)*], { $($part:ident: $with:expr),+ $(,)? }) => {
        Wrong {
            id: $id,
            what: $what,
            clause: $clause,
            also: &[$($also),*],
            harness: || {
                static BEND: Bend = Bend { $($part: $with,)+ ..RIGHT };
                Arc::new(ToyHarness::new(&BEND))
            },
        }
    };
}
pub(super) use bent;

fn writes(txn: &Txn, key: &Key) -> bool {
    txn.mutations().iter().any(|mutation| mutation.key() == key)
}

fn only_deletes(txn: &Txn) -> bool {
    !txn.mutations().is_empty() && txn.mutations().iter().all(|mutation| mutation.value().is_none())
}

/// All asserts hold by this comparison of what is there with what is asserted.
fn by(space: &Space, txn: &Txn, compare: fn(Version, Version) -> bool) -> bool {
    txn.asserts().iter().all(|assert| compare(space.version(&assert.key), assert.version))
}

/// Asserts collected by their keys, so that of two on one key only one is left.
fn one_a_key(txn: &Txn, last: bool) -> impl Iterator<Item = &Assert> {
    let mut map: BTreeMap<&Key, &Assert> = BTreeMap::new();
    for assert in txn.asserts() {
        if last {
            map.insert(&assert.key, assert);
        } else {
            map.entry(&assert.key).or_insert(assert);
        }
    }
    map.into_values()
}

fn floats(version: Version) -> (f64, f64) {
    (version.incarnation() as f64, version.count() as f64)
}

pub(super) const WRONG: &[Wrong] = &[
    bent!("M01", "asserts are ignored", ["B11"], { holds: |_, _| true }),
    bent!("M02", "only the first assert is checked", ["B11"], {
        holds: |space, txn| txn.asserts().first().is_none_or(|assert| assert_holds(space, assert)),
    }),
    bent!("M04", "asserts are OR-ed", ["B11"], {
        holds: |space, txn| {
            txn.asserts().is_empty() || txn.asserts().iter().any(|assert| assert_holds(space, assert))
        },
    }),
    bent!("M05", "an assert on a key that is not written is ignored", ["B12"], {
        holds: |space, txn| {
            txn.asserts().iter().all(|assert| {
                (!txn.mutations().is_empty() && !writes(txn, &assert.key)) || assert_holds(space, assert)
            })
        },
    }),
    bent!("M06", "the assert compares with at least", ["B13"], {
        holds: |space, txn| by(space, txn, |is, said| {
            is == said || (is.incarnation() == said.incarnation() && is.count() >= said.count())
        }),
    }),
    bent!("M07", "the assert compares values", ["B14"], {
        holds: |space, txn| {
            txn.asserts().iter().all(|assert| {
                let then = space.history.get(&(assert.key.clone(), assert.version));
                space.value(&assert.key) == then
            })
        },
    }),
    bent!("M09", "`missing` is not checked", ["B13"], {
        holds: |space, txn| by(space, txn, |is, said| said.is_missing() || is == said),
    }),
    bent!("M16", "a conflict is an error", ["B11"], {
        reject: |_, _| Err(toy::error(ErrorKind::Unavailable, Operation::Txn, "conflict")),
    }),
    bent!("M76", "asserts are ignored when the transaction only deletes", ["B11"], {
        holds: |space, txn| only_deletes(txn) || toy::holds(space, txn),
    }),
    bent!("M101", "only the last assert is checked", ["B11"], {
        holds: |space, txn| txn.asserts().last().is_none_or(|assert| assert_holds(space, assert)),
    }),
    bent!("M102", "only the first 32 asserts are checked", ["B11", "B23"], {
        holds: |space, txn| txn.asserts().iter().take(32).all(|assert| assert_holds(space, assert)),
    }),
    bent!("M103", "of two asserts on one key the last one counts", ["B16"], {
        holds: |space, txn| one_a_key(txn, true).all(|assert| assert_holds(space, assert)),
    }),
    bent!("M104", "of two asserts on one key the first one counts", ["B16"], {
        holds: |space, txn| one_a_key(txn, false).all(|assert| assert_holds(space, assert)),
    }),
    bent!("M105", "the assert compares the incarnation only", ["B13"], {
        holds: |space, txn| by(space, txn, |is, said| is.incarnation() == said.incarnation()),
    }),
    bent!("M106", "the assert compares the count only", ["B13"], {
        holds: |space, txn| by(space, txn, |is, said| is.count() == said.count()),
    }),
    bent!("M107", "versions are compared as floating-point numbers", ["B13", "B13.large"], {
        holds: |space, txn| by(space, txn, |is, said| floats(is) == floats(said)),
    }),
    bent!("M108", "counts are compared by their low 32 bits", ["B13", "B13.large"], {
        holds: |space, txn| by(space, txn, |is, said| {
            is.incarnation() == said.incarnation() && is.count() as u32 == said.count() as u32
        }),
    }),
    bent!("M109", "a pure check is always applied", ["B15"], {
        holds: |space, txn| txn.mutations().is_empty() || toy::holds(space, txn),
    }),
    bent!("M111", "a transaction with neither asserts nor mutations is rejected", ["B15"], {
        holds: |space, txn| !(txn.asserts().is_empty() && txn.mutations().is_empty()) && toy::holds(space, txn),
    }),
    bent!("M112", "an unconditional put does not overwrite", ["B15"], {
        holds: |space, txn| {
            let all_free = || txn.mutations().iter().all(|put| put.value().is_none() || space.value(put.key()).is_none());
            toy::holds(space, txn) && (!txn.asserts().is_empty() || all_free())
        },
    }),
    bent!("M113", "a version asserted on an absent key holds", ["B13"], {
        holds: |space, txn| by(space, txn, |is, said| is.is_missing() || is == said),
    }),
    bent!("M114", "an assert on a key that the transaction deletes is ignored", ["B11"], {
        holds: |space, txn| {
            let deletes = |key: &Key| txn.mutations().iter().any(|m| m.key() == key && m.value().is_none());
            txn.asserts().iter().all(|assert| deletes(&assert.key) || assert_holds(space, assert))
        },
    }),
    bent!("M115", "`missing` holds for an empty value", ["B02"], {
        holds: |space, txn| {
            txn.asserts().iter().all(|assert| {
                let empty = space.value(&assert.key).is_some_and(|value| value.is_empty());
                (assert.version.is_missing() && empty) || assert_holds(space, assert)
            })
        },
    }),
    bent!("M116", "`missing` fails on a key that was ever there", ["B18"], {
        holds: |space, txn| {
            let was = |key: &Key| space.history.keys().any(|(name, _)| name == key);
            txn.asserts().iter().all(|assert| {
                assert_holds(space, assert) && !(assert.version.is_missing() && was(&assert.key))
            })
        },
    }),
    bent!("M11", "a rejected transaction still moves versions", ["B11"], {
        reject: |space, txn| {
            for mutation in txn.mutations() {
                let (key, version) = (mutation.key(), space.version(mutation.key()));
                if let (Some(value), Some(next)) = (space.value(key).cloned(), version.next()) {
                    space.put_as(key, &value, next);
                }
            }
            Ok(TxnOutcome::Rejected)
        },
    }),
    bent!("M12", "a rejected transaction writes the keys whose own assert held", ["B11"], {
        reject: |space, txn| {
            let mint = coord_core::token::mint_incarnation();
            let held: Vec<&Key> = txn
                .asserts()
                .iter()
                .filter(|assert| assert_holds(space, assert))
                .map(|assert| &assert.key)
                .collect();
            for mutation in txn.mutations().iter().filter(|mutation| held.contains(&mutation.key())) {
                space.mutate(mutation, mint);
            }
            Ok(TxnOutcome::Rejected)
        },
    }),
    bent!("M117", "a rejected transaction still deletes", ["B11"], {
        reject: |space, txn| {
            for mutation in txn.mutations().iter().filter(|mutation| mutation.value().is_none()) {
                space.mutate(mutation, 1);
            }
            Ok(TxnOutcome::Rejected)
        },
    }),
    bent!("M118", "a rejected creation leaves an empty value", ["B33"], {
        reject: |space, txn| {
            for mutation in txn.mutations() {
                if let (Mutation::Put { key, .. }, true) = (mutation, space.version(mutation.key()).is_missing()) {
                    space.put(key, &"".into(), coord_core::token::mint_incarnation());
                }
            }
            Ok(TxnOutcome::Rejected)
        },
    }),
    bent!("M119", "a rejected transaction is answered as applied", ["B11"], {
        reject: |_, _| Ok(TxnOutcome::Applied),
    }),
    bent!("M120", "without mutations, only the first assert is checked", ["B15"], {
        holds: |space, txn| {
            let most = if txn.mutations().is_empty() { 1 } else { usize::MAX };
            txn.asserts().iter().take(most).all(|assert| assert_holds(space, assert))
        },
    }),
];
