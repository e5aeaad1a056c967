//! Keys, prefixes and namespaces, and the limits that hold on every backend.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::BackendError;

/// The limits that hold on every backend, so that changing the backend never changes what is accepted.
///
/// They are checked by the constructors of the request types, before a backend sees the request.
pub mod limits {
    /// The longest key, in bytes.
    pub const KEY_BYTES: usize = 1_024;
    /// The longest value, in bytes.
    pub const VALUE_BYTES: usize = 512 * 1_024;
    /// The most asserts of one transaction.
    pub const TXN_ASSERTS: usize = 48;
    /// The most mutations of one transaction.
    pub const TXN_MUTATIONS: usize = 3_000;
    /// The most bytes of keys and values (asserted keys, mutated keys, values) of one transaction.
    pub const TXN_BYTES: usize = 1_024 * 1_024;
    /// The most keys of one snapshot, duplicates counted.
    pub const SNAPSHOT_KEYS: usize = 10_000;
    /// The most bytes that one snapshot may answer: the keys and values of those that are present, each once.
    pub const SNAPSHOT_BYTES: usize = 16 * 1_024 * 1_024;
    /// The most keys of one listing.
    pub const LISTING_KEYS: usize = 10_000;
    /// The longest namespace, in bytes.
    pub const NAMESPACE_BYTES: usize = 64;
}

fn check_text(what: &str, text: &str) -> Result<(), BackendError> {
    if text.len() > limits::KEY_BYTES {
        return Err(BackendError::invalid(format!(
            "a {what} of {} bytes is longer than {} bytes",
            text.len(),
            limits::KEY_BYTES
        )));
    }
    if text.as_bytes().contains(&0) {
        return Err(BackendError::invalid(format!("a {what} contains a NUL byte")));
    }
    Ok(())
}

/// The name of one entry: 1 to 1,024 bytes of UTF-8 without NUL. Compared and ordered as bytes, never folded or trimmed.
///
/// Cloning is cheap.
///
/// ```
/// use coord_core::Key;
///
/// let key = Key::new("task/42")?;
/// assert_eq!(key.as_str(), "task/42");
/// assert!(Key::new("").is_err());
/// # Ok::<(), coord_core::BackendError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// A key.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is empty, longer than 1,024 bytes, or contains NUL.
    pub fn new(text: impl AsRef<str>) -> Result<Self, BackendError> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(BackendError::invalid("a key is empty"));
        }
        check_text("key", text)?;
        Ok(Key(text.into()))
    }

    /// A key from the bytes that a store returned.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the bytes are no key; a backend reports that as
    /// [`Corrupt`](crate::ErrorKind::Corrupt).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BackendError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Key::new(text),
            Err(error) => Err(BackendError::invalid("a key is not UTF-8").with_source(error)),
        }
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = BackendError;
    fn from_str(text: &str) -> Result<Self, BackendError> {
        Key::new(text)
    }
}

/// What the keys of a listing begin with: 0 to 1,024 bytes of UTF-8 without NUL, taken literally. The empty prefix matches
/// every key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(Arc<str>);

impl Prefix {
    /// A prefix.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is longer than 1,024 bytes or contains NUL.
    pub fn new(text: impl AsRef<str>) -> Result<Self, BackendError> {
        let text = text.as_ref();
        check_text("prefix", text)?;
        Ok(Prefix(text.into()))
    }

    /// The empty prefix, which every key begins with.
    #[must_use]
    pub fn all() -> Self {
        Prefix("".into())
    }

    /// The prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The prefix as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether `key` begins with this prefix, byte for byte.
    #[must_use]
    pub fn matches(&self, key: &Key) -> bool {
        key.as_bytes().starts_with(self.as_bytes())
    }

    /// The smallest byte string above every string that begins with this prefix: the exclusive upper bound of a range scan.
    /// `None` for the empty prefix, which has no upper bound. (UTF-8 has no byte 0xFF, so one increment always suffices; the
    /// bound itself need not be UTF-8.)
    ///
    /// ```
    /// use coord_core::Prefix;
    ///
    /// assert_eq!(Prefix::new("job/")?.upper_bound(), Some(b"job0".to_vec()));
    /// assert_eq!(Prefix::all().upper_bound(), None);
    /// # Ok::<(), coord_core::BackendError>(())
    /// ```
    #[must_use]
    pub fn upper_bound(&self) -> Option<Vec<u8>> {
        let mut bound = self.as_bytes().to_vec();
        *bound.last_mut()? += 1;
        Some(bound)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of one set of keys in a store, 1 to 64 bytes of `[A-Za-z0-9_.-]`. A handle sees one namespace, and namespaces are
/// disjoint, also when one name begins with the other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// A namespace.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is empty, longer than 64 bytes, or contains another character.
    pub fn new(text: impl AsRef<str>) -> Result<Self, BackendError> {
        let text = text.as_ref();
        if text.is_empty() || text.len() > limits::NAMESPACE_BYTES {
            return Err(BackendError::invalid(format!(
                "a namespace has 1 to {} bytes, not {}",
                limits::NAMESPACE_BYTES,
                text.len()
            )));
        }
        if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "_.-".contains(*c))) {
            return Err(BackendError::invalid(format!(
                "a namespace has only the characters A-Z a-z 0-9 _ . -, not {bad:?}"
            )));
        }
        Ok(Namespace(text.into()))
    }

    /// The namespace as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    /// The namespace `coord`.
    fn default() -> Self {
        Namespace("coord".into())
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Namespace {
    type Err = BackendError;
    fn from_str(text: &str) -> Result<Self, BackendError> {
        Namespace::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn key_limits_are_exact() {
        assert!(Key::new("k".repeat(limits::KEY_BYTES)).is_ok());
        for bad in [String::new(), "k".repeat(limits::KEY_BYTES + 1), "a\0b".into(), "é".repeat(513)] {
            assert_eq!(Key::new(&bad).unwrap_err().kind(), ErrorKind::Invalid, "{} bytes", bad.len());
        }
        assert_eq!(Key::from_bytes(b"\xff").unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Key::from_bytes("clé".as_bytes()).unwrap().as_str(), "clé");
    }

    #[test]
    fn a_prefix_may_be_empty_and_bounds_its_keys() {
        assert!(Prefix::new("").is_ok() && Prefix::new("p".repeat(limits::KEY_BYTES)).is_ok());
        assert!(Prefix::new("p".repeat(limits::KEY_BYTES + 1)).is_err() && Prefix::new("\0").is_err());
        for text in ["a", "é", "a\u{10FFFF}", "\u{7f}"] {
            let bound = Prefix::new(text).unwrap().upper_bound().unwrap();
            assert!(format!("{text}\u{10FFFF}\u{10FFFF}").as_bytes() < bound.as_slice(), "{text:?}");
            assert!(text.as_bytes() < bound.as_slice());
        }
    }

    #[test]
    fn namespaces_are_plain_names() {
        assert!(Namespace::new("n".repeat(64)).is_ok() && Namespace::new("A-b_c.9").is_ok());
        for bad in [String::new(), "n".repeat(65), "a/b".into(), "a b".into(), "é".into(), "a{".into()] {
            assert_eq!(Namespace::new(&bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }
}
