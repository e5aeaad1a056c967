//! A write that meets a fault, and how often it has happened.

use coord_core::{
    Assert, Backend, BackendError, Entry, ErrorKind, Key, KeySet, Mutation, Txn, TxnOutcome, Version,
};

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::{ensure, ensure_eq, fail};

/// What a write does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// Creates an absent key, asserting that it is absent.
    Create,
    /// Writes a key, asserting its version.
    Update,
    /// Writes a key, asserting nothing.
    Put,
    /// Deletes a key, asserting its version.
    Delete,
    /// Asserts a version that is gone, and must be rejected.
    Stale,
}

impl Write {
    pub(super) const ALL: [Write; 5] =
        [Write::Create, Write::Update, Write::Put, Write::Delete, Write::Stale];
}

/// A transaction of which one can see how often it has happened: besides its key it writes a second one, without an assert on it, whose
/// count says so.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    write: Write,
    name: String,
    key: Key,
    tally: Key,
    before: Version,
    tally_before: Version,
    value: String,
    txn: Txn,
}

impl Attempt {
    /// Prepares the keys and the transaction. `name` must be new in the namespace.
    pub(super) async fn new(observer: &dyn Backend, write: Write, name: &str) -> Result<Self, Verdict> {
        let (key, tally) = (Key::new(format!("{name}/key"))?, Key::new(format!("{name}/tally"))?);
        let mut start = vec![Mutation::put(tally.clone(), "before")];
        if write != Write::Create {
            start.push(Mutation::put(key.clone(), "before"));
        }
        apply(observer, &Txn::new([], start)?).await.at("preparing the keys of a write")?;
        let (entry, tally_entry) = entries(observer, &key, &tally).await?;
        let (before, tally_before) = (entry.version(), tally_entry.version());
        let value = format!("{name} was here");
        let assert = match write {
            Write::Create => Some(Assert::missing(key.clone())),
            Write::Update | Write::Delete => Some(Assert::version(key.clone(), before)),
            Write::Stale => Some(Assert::missing(key.clone())),
            Write::Put => None,
        };
        let change = match write {
            Write::Delete => Mutation::delete(key.clone()),
            _ => Mutation::put(key.clone(), value.clone()),
        };
        let txn = Txn::new(assert, [change, Mutation::put(tally.clone(), value.clone())])?;
        Ok(Attempt { write, name: name.to_owned(), key, tally, before, tally_before, value, txn })
    }

    pub(super) fn txn(&self) -> &Txn {
        &self.txn
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// The answer that is right if there is one.
    pub(super) fn right(&self) -> TxnOutcome {
        if self.write == Write::Stale { TxnOutcome::Rejected } else { TxnOutcome::Applied }
    }

    /// How often it has happened, by what is stored. Torn writes are failures.
    pub(super) async fn times(&self, observer: &dyn Backend) -> Result<u64, Verdict> {
        let (entry, tally) =
            entries(observer, &self.key, &self.tally).await.at("looking at what is stored")?;
        ensure_eq!(
            tally.version().incarnation(),
            self.tally_before.incarnation(),
            "the incarnation of {:?}, which was only written",
            self.tally
        );
        let times = tally.version().count().saturating_sub(self.tally_before.count());
        let after = match (self.write, times) {
            (_, 0) => entry.version() == self.before,
            (Write::Delete, _) => !entry.is_present(),
            (Write::Create, _) => entry.version().count() == times,
            _ => {
                Version::new(self.before.incarnation(), self.before.count() + times) == Some(entry.version())
            }
        };
        ensure!(
            after,
            "saw {:?} at {} (before: {}) and {:?}, which is written with it, moved by {times}: the write of {self} is torn or \
             repeated in part",
            self.key,
            entry.version(),
            self.before,
            self.tally
        );
        if times > 0 && self.write != Write::Delete {
            let value = entry.value().map(|value| &value[..]);
            ensure_eq!(
                value,
                Some(self.value.as_bytes()),
                "the value of {:?} after the write of {self}",
                self.key
            );
        }
        Ok(times)
    }

    /// Judges an answer by how often the write has happened: an answer must be the right one and true, an error must not say more than is
    /// true. Returns the kind of the error.
    pub(super) fn judge(
        &self,
        answer: &Result<TxnOutcome, BackendError>,
        times: u64,
    ) -> Result<Option<ErrorKind>, Verdict> {
        if times > 1 {
            fail!(
                "saw the write of {self} happen {times} times, answered with {}: something sent it again",
                Answer(answer)
            );
        }
        if times == 1 && self.write == Write::Stale {
            fail!("saw the write of {self} happen, whose assert does not hold");
        }
        match answer {
            Ok(outcome) => {
                ensure_eq!(
                    *outcome,
                    self.right(),
                    "the answer to the write of {self}, which happened {times} times"
                );
                let happens = u64::from(self.right().is_applied());
                ensure_eq!(
                    times,
                    happens,
                    "how often the write of {self} happened that was answered {outcome:?}"
                );
                Ok(None)
            }
            Err(error) => match error.kind() {
                ErrorKind::Unavailable => {
                    ensure_eq!(
                        times,
                        0,
                        "how often the write of {self} happened that \"did not happen\": \"{error}\""
                    );
                    Ok(Some(ErrorKind::Unavailable))
                }
                ErrorKind::Indeterminate => Ok(Some(ErrorKind::Indeterminate)),
                kind => fail!(
                    "saw an error of the kind {kind} for the write of {self}, which met a fault: \"{error}\""
                ),
            },
        }
    }
}

impl std::fmt::Display for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} ({:?})", self.name, self.write)
    }
}

/// An answer in a failure text.
pub(super) struct Answer<'a>(pub(super) &'a Result<TxnOutcome, BackendError>);

impl std::fmt::Display for Answer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Ok(outcome) => write!(f, "{outcome:?}"),
            Err(error) => write!(f, "\"{error}\""),
        }
    }
}

/// A transaction that must be applied.
pub(super) async fn apply(handle: &dyn Backend, txn: &Txn) -> Outcome {
    let outcome = handle.txn(txn).await?;
    ensure_eq!(outcome, TxnOutcome::Applied, "the answer to a transaction whose asserts hold");
    Ok(())
}

/// The entries of two keys at one instant.
pub(super) async fn entries(handle: &dyn Backend, a: &Key, b: &Key) -> Result<(Entry, Entry), Verdict> {
    let snapshot = handle.snapshot(&KeySet::new([a.clone(), b.clone()])?).await?;
    Ok((snapshot.require(a)?.clone(), snapshot.require(b)?.clone()))
}

/// The entry of a key.
pub(super) async fn entry(handle: &dyn Backend, key: &Key) -> Result<Entry, Verdict> {
    Ok(entries(handle, key, key).await?.0)
}
