//! Wrong listings and wrong names: prefixes, order, pages, namespaces.

use std::sync::Arc;

use coord_core::{Entry, Key, KeyRange};

use super::asserts::bent;
use super::toy::{self, Bend, RIGHT, Space};
use super::{ToyHarness, Wrong};

/// The keys above `start_after` whose name this takes for one under the prefix.
fn matching(space: &Space, range: &KeyRange, matches: fn(&str, &str) -> bool) -> Vec<Key> {
    (space.cells.keys())
        .filter(|key| {
            range.after().is_none_or(|after| *key > after) && matches(key.as_str(), range.prefix().as_str())
        })
        .take(range.limit())
        .cloned()
        .collect()
}

/// SQL's LIKE, with `%` and `_`.
fn like(text: &[char], pattern: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['%', rest @ ..] => (0..=text.len()).any(|skipped| like(&text[skipped..], rest)),
        ['_', rest @ ..] => !text.is_empty() && like(&text[1..], rest),
        [letter, rest @ ..] => text.first() == Some(letter) && like(&text[1..], rest),
    }
}

fn glob(text: &[char], pattern: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['*', rest @ ..] => (0..=text.len()).any(|skipped| glob(&text[skipped..], rest)),
        ['?', rest @ ..] => !text.is_empty() && glob(&text[1..], rest),
        ['\\', letter, rest @ ..] => text.first() == Some(letter) && glob(&text[1..], rest),
        [letter, rest @ ..] => text.first() == Some(letter) && glob(&text[1..], rest),
    }
}

fn letters(text: &str) -> Vec<char> {
    text.chars().collect()
}

fn sorted_by<K: Ord>(space: &Space, range: &KeyRange, order: fn(&Key) -> K) -> Vec<Key> {
    let mut keys: Vec<Key> = (space.cells.keys())
        .filter(|key| {
            range.prefix().matches(key) && range.after().is_none_or(|after| order(key) > order(after))
        })
        .cloned()
        .collect();
    keys.sort_by_key(order);
    keys.truncate(range.limit());
    keys
}

fn folded(key: &Key) -> Key {
    Key::new(key.as_str().to_lowercase()).unwrap_or_else(|_| key.clone())
}

pub(super) const WRONG: &[Wrong] = &[
    bent!("M41", "prefix with LIKE wildcards", ["B30"], {
        list: |space, range| matching(space, range, |text, prefix| {
            like(&letters(text), &[letters(prefix), vec!['%']].concat())
        }),
    }),
    bent!("M42", "prefix as a glob", ["B30"], {
        list: |space, range| matching(space, range, |text, prefix| {
            glob(&letters(text), &[letters(prefix), vec!['*']].concat())
        }),
    }),
    bent!("M43", "prefix without case", ["B30"], {
        list: |space, range| matching(space, range, |text, prefix| {
            text.to_lowercase().starts_with(&prefix.to_lowercase())
        }),
    }),
    bent!("M45", "the key that equals the prefix is left out", ["B30"], {
        list: |space, range| matching(space, range, |text, prefix| text.starts_with(prefix) && text != prefix),
    }),
    bent!("M48", "listing unsorted", ["B31"], {
        list: |space, range| {
            let mut keys = toy::list(space, range);
            if keys.len() > 2 {
                keys.rotate_left(1);
            }
            keys
        },
    }),
    bent!("M49", "listing cut at the first page", ["B31", "B32"], {
        list: |space, range| {
            let mut keys = toy::list(space, range);
            keys.truncate(1_000);
            keys
        },
    }),
    bent!("M51", "placeholders are listed", ["B33"], {
        apply: |space, txn, mint| {
            toy::apply(space, txn, mint);
            space.ghosts.extend(txn.asserts().iter().map(|assert| assert.key.clone()));
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
    bent!("M147", "the prefix is trimmed", ["B30"], {
        list: |space, range| matching(space, range, |text, prefix| text.starts_with(prefix.trim())),
    }),
    bent!("M148", "keys are folded to lower case", ["B30"], {
        read: |space, keys| {
            keys.distinct().into_iter().map(|key| (key.clone(), toy::entry(space, &folded(key)))).collect()
        },
        apply: |space, txn, mint| {
            for mutation in txn.mutations() {
                let key = folded(mutation.key());
                match mutation.value() {
                    Some(value) => space.put(&key, value, mint),
                    None => drop(space.cells.remove(&key)),
                }
            }
        },
    }),
    bent!("M149", "the prefix ends below U+FFFF", ["B30"], {
        list: |space, range| matching(space, range, |text, prefix| {
            text.starts_with(prefix) && !text[prefix.len()..].starts_with('\u{10FFFF}')
        }),
    }),
    bent!("M150", "the order is that of UTF-16", ["B31"], {
        list: |space, range| sorted_by(space, range, |key| key.as_str().encode_utf16().collect::<Vec<u16>>()),
    }),
    bent!("M151", "the order is that of lower case", ["B31"], {
        list: |space, range| sorted_by(space, range, |key| (key.as_str().to_lowercase(), key.clone())),
    }),
    bent!("M152", "`start_after` is listed too", ["B31"], {
        list: |space, range| {
            (space.cells.keys())
                .filter(|key| range.prefix().matches(key) && range.after().is_none_or(|after| *key >= after))
                .take(range.limit())
                .cloned()
                .collect()
        },
    }),
    bent!("M153", "a `start_after` that is not there starts over", ["B31"], {
        list: |space, range| {
            let known = range.after().is_none_or(|after| space.cells.contains_key(after));
            (space.cells.keys())
                .filter(|key| range.prefix().matches(key) && (!known || range.contains(key)))
                .take(range.limit())
                .cloned()
                .collect()
        },
    }),
    bent!("M154", "the limit is applied before `start_after`", ["B31"], {
        list: |space, range| {
            let mut keys: Vec<Key> =
                space.cells.keys().filter(|key| range.prefix().matches(key)).take(range.limit()).cloned().collect();
            keys.retain(|key| range.contains(key));
            keys
        },
    }),
    bent!("M155", "a listing has one key more than its limit", ["B31"], {
        list: |space, range| {
            space.cells.keys().filter(|key| range.contains(key)).take(range.limit() + 1).cloned().collect()
        },
    }),
    bent!("M156", "keys that were written again are listed twice", ["B31"], {
        list: |space, range| {
            let mut keys: Vec<Key> = toy::list(space, range);
            let again: Vec<Key> = keys.iter().filter(|key| space.version(key).count() > 1).cloned().collect();
            keys.extend(again);
            keys.sort();
            keys.truncate(range.limit());
            keys
        },
    }),
    bent!("M157", "a record of the store's own is listed in each namespace", ["B33"], {
        list: |space, range| {
            let own = Key::new("_meta").into_iter().filter(|key| range.contains(key));
            let mut keys: Vec<Key> = toy::list(space, range).into_iter().chain(own).collect();
            keys.sort();
            keys.truncate(range.limit());
            keys
        },
        read: |space, keys| {
            let mut entries = toy::read(space, keys);
            for (key, entry) in &mut entries {
                if let ("_meta", Some(version)) = (key.as_str(), coord_core::Version::first(1)) {
                    *entry = Entry::Present { version, value: "1".into() };
                }
            }
            entries
        },
    }),
    bent!("M158", "namespaces without case", ["B34"], { space: |namespace| namespace.to_lowercase() }),
    bent!("M159", "namespaces are cut at 63 bytes", ["B34"], {
        space: |namespace| namespace[..namespace.len().min(63)].to_owned(),
    }),
    bent!("M160", "`.` and `-` in a namespace are `_`", ["B34"], {
        space: |namespace| namespace.replace(['.', '-'], "_"),
    }),
];
