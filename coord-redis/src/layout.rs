//! Where a namespace is kept. `lua/common.lua` says what is in each key.

use coord_core::{Key, KeyRange, Namespace};
use redis::Cmd;

/// The value of the marker: whose, and in which format.
const MARKER: &str = "coord 1";

/// The physical keys of a namespace. All begin with the hash tag of the namespace, so that a cluster keeps them in one slot. Braces in the
/// caller's keys come later and mean nothing.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    marker: String,
    index: String,
    prefix: String,
}

impl Layout {
    pub(crate) fn new(namespace: &Namespace) -> Layout {
        Layout {
            marker: format!("{{{namespace}}}:meta"),
            index: format!("{{{namespace}}}:index"),
            prefix: format!("{{{namespace}}}:k:"),
        }
    }

    pub(crate) fn marker(&self) -> &str {
        &self.marker
    }

    /// Adds the keys of a script, and the arguments that every script takes.
    pub(crate) fn keys(&self, command: &mut Cmd, names: &[&Key]) {
        command.arg(names.len() + 2).arg(&self.marker).arg(&self.index);
        for name in names {
            command.arg([self.prefix.as_bytes(), name.as_bytes()].concat());
        }
        command.arg(MARKER).arg(self.prefix.len());
    }

    /// As [`keys`](Layout::keys), with a key that stands for any.
    pub(crate) fn any_key(&self, command: &mut Cmd) {
        command.arg(3).arg(&self.marker).arg(&self.index).arg(format!("{}any", self.prefix));
        command.arg(MARKER).arg(self.prefix.len());
    }
}

/// The bounds of a listing, as `ZRANGEBYLEX` takes them: by bytes, and nothing in a prefix has a meaning.
pub(crate) fn bounds(range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
    let bound = |sign: u8, bytes: &[u8]| [&[sign], bytes].concat();
    let prefix = range.prefix().as_bytes();
    let from = match range.after() {
        Some(after) if after.as_bytes() >= prefix => bound(b'(', after.as_bytes()),
        _ if prefix.is_empty() => b"-".to_vec(),
        _ => bound(b'[', prefix),
    };
    let to = range.prefix().upper_bound().map_or(b"+".to_vec(), |above| bound(b'(', &above));
    (from, to)
}

#[cfg(test)]
mod tests {
    use coord_core::Prefix;

    use super::*;

    #[test]
    fn bounds_are_bytes() {
        let range = |prefix: &str, after: Option<&str>| {
            let range = KeyRange::new(Prefix::new(prefix).unwrap(), 10).unwrap();
            let range = match after {
                Some(after) => range.start_after(Key::new(after).unwrap()),
                None => range,
            };
            let (from, to) = bounds(&range);
            (String::from_utf8(from).unwrap(), String::from_utf8(to).unwrap())
        };
        for (prefix, after, from, to) in [
            ("", None, "-", "+"),
            ("", Some("a"), "(a", "+"),
            ("a*", None, "[a*", "(a+"),
            ("b", Some("a"), "[b", "(c"),
            ("b", Some("b"), "(b", "(c"),
            ("b", Some("bx"), "(bx", "(c"),
            ("b", Some("c"), "(c", "(c"),
        ] {
            assert_eq!(range(prefix, after), (from.to_owned(), to.to_owned()), "{prefix:?} after {after:?}");
        }
    }

    #[test]
    fn one_namespace_is_one_slot_and_no_other_begins_with_it() {
        let (a, ab) = (Layout::new(&"a".parse().unwrap()), Layout::new(&"ab".parse().unwrap()));
        assert_eq!([&a.marker, &a.index, &a.prefix], ["{a}:meta", "{a}:index", "{a}:k:"]);
        assert!(!ab.prefix.starts_with(&a.prefix[..3]));
    }
}
