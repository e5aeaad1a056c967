//! What is read: versions, entries, sets of keys, snapshots, ranges.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{BackendError, ErrorKind, Operation};
use crate::key::{Key, Prefix, limits};

/// Which write of which life of a key: equal versions mean "untouched since".
///
/// A key that comes into being gets an *incarnation* that it never had before and the *count* 1; each successful write, also of
/// equal bytes, adds exactly 1 to the count. No version is ever used again, also not after delete and re-create, after a restart or
/// by another process. [`Version::MISSING`] stands for an absent key and says only "absent now".
///
/// ```
/// use coord_core::Version;
///
/// let created = Version::first(7).unwrap();
/// assert_eq!(created.next(), Version::new(7, 2));
/// assert_eq!(Version::MISSING.next(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    incarnation: u64,
    count: u64,
}

impl Version {
    /// The version of an absent key.
    pub const MISSING: Version = Version { incarnation: 0, count: 0 };
    /// The largest incarnation and the largest count: both halves have 63 bits, so that every store can keep them.
    pub const MAX_HALF: u64 = i64::MAX as u64;

    /// The version of a present key, or `None` if a half is 0 or has more than 63 bits.
    #[must_use]
    pub const fn new(incarnation: u64, count: u64) -> Option<Version> {
        if incarnation == 0 || count == 0 || incarnation > Self::MAX_HALF || count > Self::MAX_HALF {
            return None;
        }
        Some(Version { incarnation, count })
    }

    /// The version of a key that has just come into being: count 1.
    #[must_use]
    pub const fn first(incarnation: u64) -> Option<Version> {
        Version::new(incarnation, 1)
    }

    /// Which life of the key: 0 if absent.
    #[must_use]
    pub const fn incarnation(self) -> u64 {
        self.incarnation
    }

    /// How many writes this life has seen: 0 if absent.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Whether this is [`Version::MISSING`].
    #[must_use]
    pub const fn is_missing(self) -> bool {
        self.incarnation == 0
    }

    /// The version after one more write. `None` for [`Version::MISSING`], whose successor only the store knows, and at the end of
    /// the 63 bits.
    #[must_use]
    pub const fn next(self) -> Option<Version> {
        if self.is_missing() { None } else { Version::new(self.incarnation, self.count + 1) }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_missing() {
            f.write_str("missing")
        } else {
            write!(f, "{:x}.{}", self.incarnation, self.count)
        }
    }
}

/// The state of one key at the instant of a snapshot.
#[derive(Clone, PartialEq, Eq)]
pub enum Entry {
    /// There is no such key.
    Absent,
    /// The key is there. An empty value is not an absent key.
    Present {
        /// Its version.
        version: Version,
        /// Its value.
        value: Bytes,
    },
}

impl Entry {
    /// The version, [`Version::MISSING`] if absent.
    #[must_use]
    pub fn version(&self) -> Version {
        match self {
            Entry::Absent => Version::MISSING,
            Entry::Present { version, .. } => *version,
        }
    }

    /// The value, `None` if absent.
    #[must_use]
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Entry::Absent => None,
            Entry::Present { value, .. } => Some(value),
        }
    }

    /// Whether the key is there.
    #[must_use]
    pub fn is_present(&self) -> bool {
        matches!(self, Entry::Present { .. })
    }
}

impl fmt::Debug for Entry {
    // Values may hold secrets of the caller (tokens above all), so they are shown by their length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Absent => f.write_str("Absent"),
            Entry::Present { version, value } => write!(f, "Present({version}, {} bytes)", value.len()),
        }
    }
}

/// The keys of one snapshot request: at most 10,000, in the caller's order, duplicates kept.
///
/// A backend answers each distinct key once. It may be empty: the answer then holds only the store's time.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KeySet(Vec<Key>);

impl KeySet {
    /// A request for these keys.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there are more than 10,000, duplicates counted.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Result<Self, BackendError> {
        let keys: Vec<Key> = keys.into_iter().take(limits::SNAPSHOT_KEYS + 1).collect();
        if keys.len() > limits::SNAPSHOT_KEYS {
            return Err(BackendError::invalid(format!(
                "a snapshot has at most {} keys",
                limits::SNAPSHOT_KEYS
            )));
        }
        Ok(KeySet(keys))
    }

    /// A request for no keys, which only brings the store's time.
    #[must_use]
    pub fn empty() -> Self {
        KeySet(Vec::new())
    }

    /// The keys in the caller's order, duplicates kept.
    pub fn iter(&self) -> std::slice::Iter<'_, Key> {
        self.0.iter()
    }

    /// The keys in ascending order, each once.
    #[must_use]
    pub fn distinct(&self) -> Vec<&Key> {
        let mut keys: Vec<&Key> = self.0.iter().collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// How many keys, duplicates counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a KeySet {
    type Item = &'a Key;
    type IntoIter = std::slice::Iter<'a, Key>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The state of the requested keys at one instant, and the store's time at that instant.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Snapshot {
    entries: BTreeMap<Key, Entry>,
    store_time: Option<Timestamp>,
}

impl Snapshot {
    /// A snapshot. A backend passes one entry for each distinct key that was asked for, [`Entry::Absent`] included, and the time
    /// of the *store's* clock, read in the same atomic read, or `None` if the store has none. Never the client's clock.
    pub fn new(entries: impl IntoIterator<Item = (Key, Entry)>, store_time: Option<Timestamp>) -> Self {
        Snapshot { entries: entries.into_iter().collect(), store_time }
    }

    /// The entry of a key, `None` if the key was not asked for.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The entry of a key that was asked for.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if the answer does not contain it: a backend that leaves out a key must not be taken for
    /// one that says "absent".
    pub fn require(&self, key: &Key) -> Result<&Entry, BackendError> {
        self.entries.get(key).ok_or_else(|| {
            BackendError::new(
                ErrorKind::Corrupt,
                "coord-core",
                Operation::Snapshot,
                format!("the backend's answer leaves out the key {key:?} that was asked for"),
            )
        })
    }

    /// The store's clock at the instant of this snapshot, if the store has one.
    #[must_use]
    pub fn store_time(&self) -> Option<Timestamp> {
        self.store_time
    }

    /// The same snapshot with another store time (for layers and tests).
    #[must_use]
    pub fn with_store_time(mut self, store_time: Option<Timestamp>) -> Self {
        self.store_time = store_time;
        self
    }

    /// The entries in ascending order of their keys.
    pub fn iter(&self) -> std::collections::btree_map::Iter<'_, Key, Entry> {
        self.entries.iter()
    }

    /// How many distinct keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no key was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes of the keys and values of the entries that are present, as [`limits::SNAPSHOT_BYTES`] counts them.
    #[must_use]
    pub fn size(&self) -> usize {
        self.entries.iter().filter_map(|(key, entry)| Some(key.as_bytes().len() + entry.value()?.len())).sum()
    }
}

/// One listing: the keys that begin with `prefix` and come after `start_after`, at most `limit` of them, in ascending byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    prefix: Prefix,
    start_after: Option<Key>,
    limit: usize,
}

impl KeyRange {
    /// A listing of the first `limit` keys under `prefix`.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if `limit` is not 1 to 10,000.
    pub fn new(prefix: Prefix, limit: usize) -> Result<Self, BackendError> {
        if !(1..=limits::LISTING_KEYS).contains(&limit) {
            return Err(BackendError::invalid(format!(
                "a listing has a limit of 1 to {}, not {limit}",
                limits::LISTING_KEYS
            )));
        }
        Ok(KeyRange { prefix, start_after: None, limit })
    }

    /// The same listing from the first key above `key` on, which need not exist nor begin with the prefix.
    #[must_use]
    pub fn start_after(mut self, key: Key) -> Self {
        self.start_after = Some(key);
        self
    }

    /// What the keys begin with.
    #[must_use]
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The key after which the listing starts.
    #[must_use]
    pub fn after(&self) -> Option<&Key> {
        self.start_after.as_ref()
    }

    /// The most keys to return.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Whether a key belongs to this listing, the limit aside.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.prefix.matches(key) && self.start_after.as_ref().is_none_or(|after| key > after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn versions_have_63_bits_a_half() {
        let last = Version::new(1, Version::MAX_HALF).unwrap();
        assert_eq!(last.next(), None);
        assert_eq!(Version::new(1, Version::MAX_HALF - 1).unwrap().next(), Some(last));
        for (incarnation, count) in [(0, 1), (1, 0), (0, 0), (1 << 63, 1), (1, 1 << 63)] {
            assert_eq!(Version::new(incarnation, count), None);
        }
    }

    #[test]
    fn a_key_set_keeps_duplicates_and_lists_them_once() {
        let set = KeySet::new([key("b"), key("a"), key("b")]).unwrap();
        assert_eq!(set.len(), 3);
        assert_eq!(set.distinct(), [&key("a"), &key("b")]);
        assert!(KeySet::new((0..10_000).map(|n| key(&n.to_string()))).is_ok());
        assert_eq!(KeySet::new((0..10_001).map(|_| key("k"))).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_left_out_key_is_not_an_absent_one() {
        let snapshot = Snapshot::new([(key("a"), Entry::Absent)], None);
        assert_eq!(snapshot.require(&key("a")).unwrap(), &Entry::Absent);
        assert_eq!(snapshot.require(&key("b")).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_range_has_a_bounded_limit() {
        for bad in [0, 10_001] {
            assert_eq!(KeyRange::new(Prefix::all(), bad).unwrap_err().kind(), ErrorKind::Invalid);
        }
        let range = KeyRange::new(Prefix::new("a").unwrap(), 10_000).unwrap().start_after(key("ab"));
        assert!(range.contains(&key("ac")) && !range.contains(&key("ab")) && !range.contains(&key("b")));
    }

    #[test]
    fn values_are_not_shown() {
        let entry =
            Entry::Present { version: Version::first(1).unwrap(), value: Bytes::from_static(b"secret") };
        assert_eq!(format!("{entry:?}"), "Present(1.1, 6 bytes)");
    }
}
