//! Wrong writes: what an applied transaction does, and which versions it gives.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use coord_core::{Mutation, Version};

use super::asserts::bent;
use super::toy::{self, Bend, RIGHT};
use super::{ToyHarness, Wrong};

/// A small mixer, for generators that repeat.
fn mix(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 1 | 1
}

pub(super) const WRONG: &[Wrong] = &[
    bent!("M14", "applied is answered although nothing was", ["B10"], { apply: |_, _, _| {} }),
    bent!("M23", "the version restarts after delete", ["B18"], { mint: |_| 1 }),
    bent!("M77", "the incarnation comes from a generator that repeats after a restart", ["B18"], {
        // A handle that is opened anew is a client that was started anew.
        mint: |handle| mix(handle.minted.fetch_add(1, Ordering::Relaxed)),
    }),
    bent!("M24", "one version counter for all keys", ["B10"], {
        apply: |space, txn, mint| {
            toy::apply(space, txn, mint);
            for mutation in txn.mutations() {
                let version = Version::new(1, space.writes + 1);
                if let (Some(value), Some(version)) = (mutation.value(), version) {
                    space.put_as(mutation.key(), value, version);
                }
            }
        },
    }),
    bent!("M26", "no move on equal bytes", ["B17"], {
        apply: |space, txn, mint| {
            for mutation in txn.mutations() {
                if mutation.value().is_none() || space.value(mutation.key()) != mutation.value() {
                    space.mutate(mutation, mint);
                }
            }
        },
    }),
    bent!("M110", "a pure check moves what it asserts", ["B15"], {
        apply: |space, txn, mint| {
            toy::apply(space, txn, mint);
            for assert in txn.asserts().iter().filter(|_| txn.mutations().is_empty()) {
                if let Some(value) = space.value(&assert.key).cloned() {
                    space.put(&assert.key, &value, mint);
                }
            }
        },
    }),
    bent!("M121", "keys that are only asserted move too", ["B12", "B10"], {
        apply: |space, txn, mint| {
            toy::apply(space, txn, mint);
            for assert in txn.asserts() {
                let written = txn.mutations().iter().any(|mutation| mutation.key() == &assert.key);
                if let (false, false, Some(value)) =
                    (written, txn.mutations().is_empty(), space.value(&assert.key).cloned())
                {
                    space.put(&assert.key, &value, mint);
                }
            }
        },
    }),
    bent!("M122", "mutations beyond the first 1,000 are dropped", ["B23"], {
        apply: |space, txn, mint| {
            for mutation in txn.mutations().iter().take(1_000) {
                space.mutate(mutation, mint);
            }
        },
    }),
    bent!("M123", "deletes beside puts are dropped", ["B10"], {
        apply: |space, txn, mint| {
            let puts = txn.mutations().iter().any(|mutation| mutation.value().is_some());
            for mutation in txn.mutations().iter().filter(|mutation| !puts || mutation.value().is_some()) {
                space.mutate(mutation, mint);
            }
        },
    }),
    bent!("M124", "deleting an absent key makes it, empty", ["B18"], {
        apply: |space, txn, mint| {
            for mutation in txn.mutations() {
                match mutation {
                    Mutation::Delete { key } if space.version(key).is_missing() => space.put(key, &"".into(), mint),
                    _ => space.mutate(mutation, mint),
                }
            }
        },
    }),
    bent!("M125", "a re-created key goes on where its last life ended", ["B18"], {
        apply: |space, txn, mint| {
            for mutation in txn.mutations() {
                let (key, last) = (mutation.key(), Version::MISSING);
                let last = (space.history.range((key.clone(), last)..).take_while(|((name, _), _)| name == key))
                    .last()
                    .and_then(|((_, version), _)| version.next());
                match (mutation.value(), last) {
                    (Some(value), Some(next)) if space.version(key).is_missing() => space.put_as(key, value, next),
                    _ => space.mutate(mutation, mint),
                }
            }
        },
    }),
    bent!("M126", "a created key has count 2", ["B10"], {
        apply: |space, txn, mint| {
            for mutation in txn.mutations() {
                match (mutation.value(), Version::new(mint, 2)) {
                    (Some(value), Some(version)) if space.version(mutation.key()).is_missing() => {
                        space.put_as(mutation.key(), value, version);
                    }
                    _ => space.mutate(mutation, mint),
                }
            }
        },
    }),
    bent!("M127", "incarnations are counted, anew once the namespace is empty", ["B18"], {
        apply: |space, txn, _| {
            let mint = if space.cells.is_empty() { 1 } else { space.history.len() as u64 + 2 };
            toy::apply(space, txn, mint);
        },
    }),
    bent!("M128", "incarnations have 12 random bits", ["B18"], {
        mint: |_| (coord_core::token::mint_incarnation() & 0xFFF) | 0x1000,
    }),
    bent!("M129", "every put gives a new incarnation", ["B10", "B17"], {
        apply: |space, txn, mint| {
            for mutation in txn.mutations() {
                if mutation.value().is_some() {
                    space.cells.remove(mutation.key());
                }
                space.mutate(mutation, mint);
            }
        },
    }),
    bent!("M130", "a deleted key keeps its value in a snapshot", ["B18"], {
        apply: |space, txn, mint| {
            for mutation in txn.mutations() {
                match mutation {
                    Mutation::Delete { key } if !space.version(key).is_missing() => {
                        space.ghosts.insert(key.clone());
                    }
                    _ => {
                        space.ghosts.remove(mutation.key());
                        space.mutate(mutation, mint);
                    }
                }
            }
        },
        list: |space, range| {
            let mut keys = toy::list(space, range);
            keys.retain(|key| !space.ghosts.contains(key));
            keys
        },
    }),
    bent!("M131", "a deleted key stays in the listing", ["B18"], {
        apply: |space, txn, mint| {
            toy::apply(space, txn, mint);
            space.ghosts.extend(txn.mutations().iter().map(|mutation| mutation.key().clone()));
        },
        list: |space, range| {
            let mut keys = toy::list(space, range);
            keys.extend(space.ghosts.iter().filter(|key| range.contains(key)).cloned());
            keys.sort();
            keys.dedup();
            keys.truncate(range.limit());
            keys
        },
    }),
    bent!("M132", "a version moves by one a mutation of its transaction", ["B10"], {
        apply: |space, txn, mint| {
            let more = txn.mutations().len() as u64 - 1;
            for mutation in txn.mutations() {
                let now = space.version(mutation.key());
                match (mutation.value(), Version::new(now.incarnation(), now.count() + 1 + more)) {
                    (Some(value), Some(version)) => space.put_as(mutation.key(), value, version),
                    _ => space.mutate(mutation, mint),
                }
            }
        },
    }),
];
