//! What clients asked and were told, in a form that people read and that is read back.

use std::fmt;
use std::str::FromStr;

use coord_core::{Key, Version};

/// One call and its answer, as the client saw them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which client called. A client has one call at a time.
    pub client: usize,
    /// The moment of the call. Moments are numbered over all clients: an event whose `ret` is less than another's `call` had
    /// returned before the other was called.
    pub call: u64,
    /// The moment of the answer; `None` if none came, so that nothing bounds when the call may take effect.
    pub ret: Option<u64>,
    /// What was asked and answered.
    pub action: Action,
}

/// What was asked and answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A snapshot: for each key that was asked for, what the answer said.
    Read(Vec<(Key, Seen)>),
    /// A transaction.
    Txn {
        /// The versions it asserts.
        asserts: Vec<(Key, Version)>,
        /// The values it puts, `None` for a delete.
        writes: Vec<(Key, Option<String>)>,
        /// What became of it.
        answer: Answer,
    },
    /// A listing.
    List {
        /// What the keys begin with.
        prefix: String,
        /// The key after which it starts.
        after: Option<Key>,
        /// The most keys.
        limit: usize,
        /// The keys of the answer.
        keys: Vec<Key>,
    },
}

/// What a snapshot said of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is absent.
    Absent,
    /// It has this version and value.
    Present(Version, String),
    /// Nothing: the answer left the key out.
    LeftOut,
}

/// What a client was told of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has happened.
    Applied,
    /// An assert did not hold; it has not happened.
    Rejected,
    /// The store could not; it has not happened.
    Refused,
    /// It may have happened, or may yet.
    Unknown,
}

impl Answer {
    fn as_str(self) -> &'static str {
        match self {
            Answer::Applied => "applied",
            Answer::Rejected => "rejected",
            Answer::Refused => "refused",
            Answer::Unknown => "unknown",
        }
    }
}

/// The events of one run, in any order.
///
/// As text it has one line an event, and lines that begin with `#` are remarks:
///
/// ```text
/// client call..return  read KEY@VERSION=VALUE KEY@-        (absent)  KEY@? (left out)
/// client call..return  txn KEY@VERSION KEY@- : KEY=VALUE KEY~ -> applied      (KEY~ is a delete)
/// client call..?       txn KEY@VERSION : KEY=VALUE -> unknown
/// client call..return  list PREFIX* after=KEY limit=10 -> KEY KEY
/// ```
///
/// ```
/// use contract_suite::history::History;
///
/// let history: History = "
///     0 1..2 txn x@- : x=first -> applied
///     1 3..4 read x@7.1=first
/// ".parse().unwrap();
/// assert_eq!(history.to_string().parse::<History>().unwrap(), history);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History(pub Vec<Event>);

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Absent => f.write_str("-"),
            Seen::Present(version, value) => write!(f, "{version}={value}"),
            Seen::LeftOut => f.write_str("?"),
        }
    }
}

fn version_text(version: Version) -> String {
    if version.is_missing() { "-".to_owned() } else { version.to_string() }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Read(entries) => {
                f.write_str("read")?;
                entries.iter().try_for_each(|(key, seen)| write!(f, " {key}@{seen}"))
            }
            Action::Txn { asserts, writes, answer } => {
                f.write_str("txn")?;
                for (key, version) in asserts {
                    write!(f, " {key}@{}", version_text(*version))?;
                }
                f.write_str(" :")?;
                for (key, value) in writes {
                    match value {
                        Some(value) => write!(f, " {key}={value}")?,
                        None => write!(f, " {key}~")?,
                    }
                }
                write!(f, " -> {}", answer.as_str())
            }
            Action::List { prefix, after, limit, keys } => {
                write!(f, "list {prefix}*")?;
                if let Some(after) = after {
                    write!(f, " after={after}")?;
                }
                write!(f, " limit={limit} ->")?;
                keys.iter().try_for_each(|key| write!(f, " {key}"))
            }
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}..", self.client, self.call)?;
        match self.ret {
            Some(ret) => write!(f, "{ret}")?,
            None => f.write_str("?")?,
        }
        write!(f, " {}", self.action)
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|event| writeln!(f, "{event}"))
    }
}

/// A line is not an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not an event: {text:?}")]
pub struct ParseHistoryError {
    /// Counted from 1.
    pub line: usize,
    /// The line.
    pub text: String,
}

impl FromStr for History {
    type Err = ParseHistoryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut events = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = || ParseHistoryError { line: number + 1, text: line.to_owned() };
            events.push(parse_event(line).ok_or_else(bad)?);
        }
        Ok(History(events))
    }
}

fn parse_event(line: &str) -> Option<Event> {
    let mut words = line.split_whitespace();
    let client = words.next()?.parse().ok()?;
    let (call, ret) = words.next()?.split_once("..")?;
    let ret = if ret == "?" { None } else { Some(ret.parse().ok()?) };
    let verb = words.next()?;
    let words: Vec<&str> = words.collect();
    let action = match verb {
        "read" => Action::Read(words.into_iter().map(parse_seen).collect::<Option<_>>()?),
        "txn" => parse_txn(&words)?,
        "list" => parse_list(&words)?,
        _ => return None,
    };
    Some(Event { client, call: call.parse().ok()?, ret, action })
}

fn parse_version(text: &str) -> Option<Version> {
    if text == "-" {
        return Some(Version::MISSING);
    }
    let (incarnation, count) = text.split_once('.')?;
    Version::new(u64::from_str_radix(incarnation, 16).ok()?, count.parse().ok()?)
}

fn parse_seen(word: &str) -> Option<(Key, Seen)> {
    let (key, seen) = word.split_once('@')?;
    let seen = match seen {
        "-" => Seen::Absent,
        "?" => Seen::LeftOut,
        _ => {
            let (version, value) = seen.split_once('=')?;
            Seen::Present(parse_version(version)?, value.to_owned())
        }
    };
    Some((Key::new(key).ok()?, seen))
}

fn parse_txn(words: &[&str]) -> Option<Action> {
    let colon = words.iter().position(|word| *word == ":")?;
    let arrow = words.iter().position(|word| *word == "->")?;
    let mut asserts = Vec::new();
    for word in words.get(..colon)? {
        let (key, version) = word.split_once('@')?;
        asserts.push((Key::new(key).ok()?, parse_version(version)?));
    }
    let mut writes = Vec::new();
    for word in words.get(colon + 1..arrow)? {
        writes.push(match word.strip_suffix('~') {
            Some(key) => (Key::new(key).ok()?, None),
            None => {
                let (key, value) = word.split_once('=')?;
                (Key::new(key).ok()?, Some(value.to_owned()))
            }
        });
    }
    let [answer] = words.get(arrow + 1..)? else { return None };
    let all = [Answer::Applied, Answer::Rejected, Answer::Refused, Answer::Unknown];
    let answer = all.into_iter().find(|known| known.as_str() == *answer)?;
    Some(Action::Txn { asserts, writes, answer })
}

fn parse_list(words: &[&str]) -> Option<Action> {
    let arrow = words.iter().position(|word| *word == "->")?;
    let (prefix, options) = words.get(..arrow)?.split_first()?;
    let (mut after, mut limit) = (None, None);
    for option in options {
        match option.split_once('=')? {
            ("after", key) => after = Some(Key::new(key).ok()?),
            ("limit", number) => limit = Some(number.parse().ok()?),
            _ => return None,
        }
    }
    let keys = words[arrow + 1..].iter().map(|key| Key::new(key).ok()).collect::<Option<_>>()?;
    Some(Action::List { prefix: prefix.strip_suffix('*')?.to_owned(), after, limit: limit?, keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_event_is_read_back() {
        let text = "\
0 1..2 txn x@- y@a.3 z@- : x=v1 y~ -> applied
1 3..? txn x@ff.1 : x=v2 -> unknown
2 4..5 txn x@ff.1 : -> rejected
2 6..7 txn : x~ -> refused
3 8..9 read x@ff.2=v2 y@- z@?
4 10..11 list h/* after=h/1 limit=3 -> h/2 h/3
4 12..13 list * limit=1 ->
";
        let history: History = text.parse().unwrap();
        assert_eq!(history.0.len(), 7);
        assert_eq!(history.to_string(), text);
    }

    #[test]
    fn a_bad_line_is_named() {
        for bad in [
            "0 1..2",
            "x 1..2 read",
            "0 1 read",
            "0 1..2 write",
            "0 1..2 txn x@- : x=1",
            "0 1..2 read x@0.1=v",
        ] {
            let error = format!("# remark\n{bad}").parse::<History>().unwrap_err();
            assert_eq!(error, ParseHistoryError { line: 2, text: bad.to_owned() });
        }
    }
}
