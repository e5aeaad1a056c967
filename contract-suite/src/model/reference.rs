//! The reference: a map, one step at a time.

use std::collections::BTreeMap;

use bytes::Bytes;
use coord_core::{Assert, Entry, Key, KeyRange, KeySet, Mutation, Snapshot, Txn, Version};

use super::step::{Guess, Name, Step};

#[derive(Clone, Debug)]
struct Held {
    /// The incarnation, once the store has shown it.
    incarnation: Option<u64>,
    count: u64,
    value: Bytes,
}

/// What the store should hold, and every version that it has shown.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    held: BTreeMap<Key, Held>,
    shown: BTreeMap<Key, Vec<Version>>,
}

/// A request, and the answer that is right.
#[derive(Debug)]
pub(crate) enum Request {
    Snapshot(KeySet),
    Txn { txn: Txn, applied: bool },
    Keys { range: KeyRange, keys: Vec<Key> },
}

impl Reference {
    /// The keys whose incarnation the store has not shown yet.
    pub(crate) fn unnamed(&self) -> Vec<Key> {
        self.held.iter().filter(|(_, held)| held.incarnation.is_none()).map(|(key, _)| key.clone()).collect()
    }

    /// The request of a step. The effect of a transaction is part of the reference from then on.
    pub(crate) fn step(&mut self, step: &Step) -> Request {
        let valid = "the steps of a model run are valid requests";
        match step {
            Step::Snapshot { keys } => {
                Request::Snapshot(KeySet::new(keys.iter().map(|name| name.key())).expect(valid))
            }
            Step::Keys { prefix, after, limit } => {
                let mut range = KeyRange::new(prefix.clone(), *limit).expect(valid);
                if let Some(after) = after {
                    range = range.start_after(after.key());
                }
                let keys = self.held.keys().filter(|key| range.contains(key)).take(*limit).cloned().collect();
                Request::Keys { range, keys }
            }
            Step::Txn { asserts, writes } => {
                let asserts: Vec<Assert> = asserts
                    .iter()
                    .map(|(name, guess)| Assert { key: name.key(), version: self.guess(*name, guess) })
                    .collect();
                let mutations = writes.iter().map(|(name, value)| match value {
                    Some(value) => Mutation::put(name.key(), value.clone()),
                    None => Mutation::delete(name.key()),
                });
                let txn = Txn::new(asserts, mutations).expect(valid);
                let applied = txn.asserts().iter().all(|assert| self.version(&assert.key) == assert.version);
                if applied {
                    txn.mutations().iter().for_each(|mutation| self.apply(mutation));
                }
                Request::Txn { txn, applied }
            }
        }
    }

    fn apply(&mut self, mutation: &Mutation) {
        match mutation {
            Mutation::Delete { key } => {
                self.held.remove(key);
            }
            Mutation::Put { key, value } => {
                let new = Held { incarnation: None, count: 0, value: Bytes::new() };
                let held = self.held.entry(key.clone()).or_insert(new);
                held.count += 1;
                held.value.clone_from(value);
                if let Some(version) =
                    held.incarnation.and_then(|incarnation| Version::new(incarnation, held.count))
                {
                    self.shown.entry(key.clone()).or_default().push(version);
                }
            }
        }
    }

    /// The version that the store should give a key; the incarnations of all keys that are held have been shown.
    fn version(&self, key: &Key) -> Version {
        let held = self.held.get(key);
        held.and_then(|held| Version::new(held.incarnation?, held.count)).unwrap_or(Version::MISSING)
    }

    fn guess(&self, name: Name, guess: &Guess) -> Version {
        let key = name.key();
        let right = self.version(&key);
        match guess {
            Guess::Right => right,
            Guess::Missing => Version::MISSING,
            Guess::Earlier(index) => match self.shown.get(&key).map_or(&[][..], |shown| shown) {
                [] => Version::MISSING,
                shown => *index.get(shown),
            },
            Guess::OtherLife => Version::new(right.incarnation() ^ 2, right.count().max(1)).unwrap_or(right),
            Guess::Next => right.next().unwrap_or(right),
            Guess::Of(other) => self.version(&other.key()),
        }
    }

    /// Compares a snapshot with what is held, and learns the incarnations that it shows for the first time.
    ///
    /// # Errors
    /// What differs.
    pub(crate) fn compare(&mut self, keys: &KeySet, snapshot: &Snapshot) -> Result<(), String> {
        let distinct = keys.distinct();
        if snapshot.len() != distinct.len() {
            return Err(format!("saw a snapshot of {} entries for {} keys", snapshot.len(), distinct.len()));
        }
        for key in distinct {
            let entry = snapshot.require(key).map_err(|error| format!("saw \"{error}\""))?;
            match (entry, self.held.get_mut(key)) {
                (Entry::Absent, None) => {}
                (Entry::Absent, Some(_)) => return Err(format!("saw {key:?} absent that was put")),
                (Entry::Present { version, .. }, None) => {
                    return Err(format!("saw {key:?} at {version} that is absent"));
                }
                (Entry::Present { version, value }, Some(held)) => {
                    let shown = self.shown.entry(key.clone()).or_default();
                    if held.incarnation.is_none() {
                        if shown.iter().any(|earlier| earlier.incarnation() == version.incarnation()) {
                            return Err(format!(
                                "saw {key:?}, which was created anew, with an incarnation that it had before: {version}"
                            ));
                        }
                        held.incarnation = Some(version.incarnation());
                        shown.push(*version);
                    }
                    let right =
                        held.incarnation.and_then(|incarnation| Version::new(incarnation, held.count));
                    if Some(*version) != right {
                        return Err(format!(
                            "saw {key:?} at {version}, not at count {} of its life",
                            held.count
                        ));
                    }
                    if *value != held.value {
                        return Err(format!("saw {key:?} with a value that was not put last"));
                    }
                }
            }
        }
        Ok(())
    }
}
