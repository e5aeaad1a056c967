//! Wrong snapshots: which entries, which values, which time.

use std::sync::Arc;
use std::time::Duration;

use coord_core::{Bytes, Entry, Key, Operation, Timestamp, limits};

use super::asserts::bent;
use super::toy::{self, Bend, Cell, RIGHT, Space};
use super::{ToyHarness, Wrong};

fn changed(
    space: &Space,
    keys: &coord_core::KeySet,
    change: fn(&Bytes) -> Bytes,
) -> Vec<(coord_core::Key, Entry)> {
    let mut entries = toy::read(space, keys);
    for (_, entry) in &mut entries {
        if let Entry::Present { value, .. } = entry {
            *value = change(value);
        }
    }
    entries
}

fn cut(key: &Key) -> Key {
    let mut end = key.as_str().len().min(255);
    while !key.as_str().is_char_boundary(end) {
        end -= 1;
    }
    Key::new(&key.as_str()[..end]).unwrap_or_else(|_| key.clone())
}

pub(super) const WRONG: &[Wrong] = &[
    bent!("M35", "absent keys are left out of the snapshot", ["B01"], {
        read: |space, keys| {
            let mut entries = toy::read(space, keys);
            entries.retain(|(_, entry)| entry.is_present());
            entries
        },
    }),
    bent!("M36", "empty and absent are one", ["B02"], {
        read: |space, keys| {
            let mut entries = toy::read(space, keys);
            for (_, entry) in &mut entries {
                if entry.value().is_some_and(|value| value.is_empty()) {
                    *entry = Entry::Absent;
                }
            }
            entries
        },
    }),
    bent!("M37", "duplicates in a snapshot shift the answers", ["B01"], {
        read: |space, keys| {
            // One row a distinct key comes back, and is matched to the request by its place.
            let mut rows: Vec<Entry> = Vec::new();
            let mut seen = std::collections::BTreeSet::new();
            for key in keys {
                if seen.insert(key) {
                    rows.push(toy::entry(space, key));
                }
            }
            let places = keys.iter().enumerate().map(|(n, key)| (key.clone(), rows.get(n).cloned().unwrap_or(Entry::Absent)));
            places.collect()
        },
    }),
    bent!("M79", "`store_time` is the client's clock", ["B07"], {
        // Every second client is an hour ahead.
        time: |handle, _| {
            Some(handle.now().saturating_add(Duration::from_secs(3_600 * (handle.number % 2))))
        },
    }),
    bent!("M133", "`store_time` is the time at which the handle was opened", ["B07"], {
        time: |handle, _| Some(handle.opened),
    }),
    bent!("M134", "an empty request brings no time", ["B03"], {
        time: |handle, keys| (!keys.is_empty()).then(|| handle.now()),
    }),
    bent!("M135", "an empty request is taken for all keys", ["B03"], {
        read: |space, keys| {
            if !keys.is_empty() {
                return toy::read(space, keys);
            }
            space.cells.keys().map(|key| (key.clone(), toy::entry(space, key))).collect()
        },
    }),
    bent!("M136", "a time of whole hours, so that it stands still", ["B07"], {
        time: |handle, _| {
            let hour = 3_600_000_000;
            Timestamp::from_micros(handle.now().as_micros() / hour * hour)
        },
    }),
    bent!("M137", "values end at the first NUL", ["B02"], {
        read: |space, keys| changed(space, keys, |value| {
            value.slice(..value.iter().position(|byte| *byte == 0).unwrap_or(value.len()))
        }),
    }),
    bent!("M138", "values are made valid UTF-8", ["B02"], {
        read: |space, keys| changed(space, keys, |value| String::from_utf8_lossy(value).into_owned().into()),
    }),
    bent!("M139", "values are trimmed", ["B02"], {
        read: |space, keys| changed(space, keys, |value| value.trim_ascii().to_vec().into()),
    }),
    bent!("M140", "values are cut at 65,535 bytes", ["B02"], {
        read: |space, keys| changed(space, keys, |value| value.slice(..value.len().min(65_535))),
    }),
    bent!("M141", "a snapshot of any size is answered", ["B02.limit"], { fits: |_, _| true }),
    bent!("M142", "keys that are asked for twice count twice against the limit", ["B02.limit"], {
        fits: |size, keys| size * keys.len() / keys.distinct().len().max(1) <= limits::SNAPSHOT_BYTES,
    }),
    bent!("M143", "a snapshot answers for the first 1,000 keys", ["B01"], {
        read: |space, keys| {
            let distinct = keys.distinct();
            (distinct.iter().enumerate())
                .map(|(n, key)| {
                    ((*key).clone(), if n < 1_000 { toy::entry(space, key) } else { Entry::Absent })
                })
                .collect()
        },
    }),
    bent!("M144", "foreign bytes are read as missing, and written over", ["B45"], { sound: |_, _, _| Ok(()) }),
    bent!("M145", "foreign bytes are found by reads only", ["B45"], {
        sound: |space, keys, operation| match operation {
            Operation::Snapshot => toy::sound(space, keys, operation),
            _ => Ok(()),
        },
    }),
    bent!("M146", "foreign bytes are read as an empty value", ["B45"], {
        sound: |_, _, _| Ok(()),
        read: |space, keys| {
            let mut entries = toy::read(space, keys);
            for (key, entry) in &mut entries {
                if let (Some(Cell::Foreign(_)), Some(version)) = (space.cells.get(key), coord_core::Version::first(1)) {
                    *entry = Entry::Present { version, value: Bytes::new() };
                }
            }
            entries
        },
    }),
    bent!("M176", "`store_time` counts milliseconds", ["B07"], {
        time: |handle, _| Timestamp::from_micros(handle.now().as_micros() / 1_000),
    }),
    bent!("M177", "keys are cut at 255 bytes", ["B30", "B31.limit"], {
        read: |space, keys| {
            keys.distinct().into_iter().map(|key| (key.clone(), toy::entry(space, &cut(key)))).collect()
        },
        apply: |space, txn, mint| {
            for mutation in txn.mutations() {
                let key = cut(mutation.key());
                match mutation.value() {
                    Some(value) => space.put(&key, value, mint),
                    None => drop(space.cells.remove(&key)),
                }
            }
        },
    }),
    bent!("M178", "an answer has at most 4 MiB", ["B02.limit", "B31.limit"], {
        fits: |size, _| size <= 4 * 1_024 * 1_024,
    }),
];
