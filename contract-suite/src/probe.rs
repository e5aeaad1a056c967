//! Reading and writing through a handle in the words of the clauses, with failures that say what was seen.

use std::collections::BTreeMap;

use async_trait::async_trait;
use coord_core::{
    Assert, Backend, Bytes, Entry, Key, KeyRange, KeySet, Mutation, Prefix, Snapshot, Txn, TxnOutcome,
    Version, limits,
};

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::{ensure_eq, fail};

/// A key of the suite's own making.
///
/// # Panics
/// If the text is no key.
pub(crate) fn key(text: impl AsRef<str>) -> Key {
    Key::new(text).expect("the suite only makes good keys")
}

/// A put of such a key.
pub(crate) fn put(text: impl AsRef<str>, value: impl Into<Bytes>) -> Mutation {
    Mutation::put(key(text), value)
}

/// What a namespace holds.
pub(crate) type Contents = BTreeMap<Key, Entry>;

/// What clauses do with a handle.
#[async_trait]
pub(crate) trait Probe: Backend {
    /// A snapshot, which must have exactly the keys that were asked for.
    async fn look(&self, keys: &[Key]) -> Result<Snapshot, Verdict> {
        let request = KeySet::new(keys.iter().cloned())?;
        let snapshot = self.snapshot(&request).await?;
        let seen: Vec<&Key> = snapshot.iter().map(|(key, _)| key).collect();
        let asked = request.distinct();
        if seen != asked {
            let left_out: Vec<_> = asked.iter().filter(|key| snapshot.get(key).is_none()).take(3).collect();
            let added: Vec<_> = seen.iter().filter(|key| asked.binary_search(key).is_err()).take(3).collect();
            fail!(
                "saw a snapshot of {} keys, of which {} distinct ones, with {} entries: left out {left_out:?}, added {added:?}",
                request.len(),
                asked.len(),
                seen.len()
            );
        }
        Ok(snapshot)
    }

    /// The entry of one key.
    async fn entry(&self, key: &Key) -> Result<Entry, Verdict> {
        Ok(self.look(std::slice::from_ref(key)).await?.require(key)?.clone())
    }

    /// The version of one key.
    async fn version(&self, key: &Key) -> Result<Version, Verdict> {
        Ok(self.entry(key).await?.version())
    }

    /// A transaction.
    async fn attempt(&self, asserts: &[Assert], mutations: &[Mutation]) -> Result<TxnOutcome, Verdict> {
        Ok(self.txn(&Txn::new(asserts.iter().cloned(), mutations.iter().cloned())?).await?)
    }

    /// A transaction that must be applied.
    async fn commit(&self, asserts: &[Assert], mutations: &[Mutation]) -> Outcome {
        let outcome = self.attempt(asserts, mutations).await?;
        ensure_eq!(
            outcome,
            TxnOutcome::Applied,
            "the answer to a transaction whose asserts hold: {}",
            Shown(asserts, mutations)
        );
        Ok(())
    }

    /// A transaction that must be rejected.
    async fn refuse(&self, asserts: &[Assert], mutations: &[Mutation]) -> Outcome {
        let outcome = self.attempt(asserts, mutations).await?;
        ensure_eq!(
            outcome,
            TxnOutcome::Rejected,
            "the answer to a transaction with an assert that does not hold: {}",
            Shown(asserts, mutations)
        );
        Ok(())
    }

    /// Puts one key unconditionally and returns the version that it then has.
    async fn set(&self, key: &Key, value: &str) -> Result<Version, Verdict> {
        self.commit(&[], &[Mutation::put(key.clone(), value.to_owned())]).await?;
        let entry = self.entry(key).await?;
        ensure_eq!(
            entry.value().map(|value| &value[..]),
            Some(value.as_bytes()),
            "the value of {key:?}, which has just been put"
        );
        Ok(entry.version())
    }

    /// Deletes one key unconditionally.
    async fn unset(&self, key: &Key) -> Outcome {
        self.commit(&[], &[Mutation::delete(key.clone())]).await
    }

    /// One listing of a prefix, of at most 10,000 keys.
    async fn list(&self, prefix: &str) -> Result<Vec<Key>, Verdict> {
        Ok(self.keys(&KeyRange::new(Prefix::new(prefix)?, limits::LISTING_KEYS)?).await?)
    }

    /// Everything in the namespace: every key that is listed, with its entry.
    async fn contents(&self) -> Result<Contents, Verdict> {
        let mut contents = Contents::new();
        let mut after = None;
        loop {
            let mut range = KeyRange::new(Prefix::all(), limits::LISTING_KEYS)?;
            if let Some(after) = after.take() {
                range = range.start_after(after);
            }
            let page = self.keys(&range).await?;
            for keys in page.chunks(1_000) {
                for (key, entry) in self.look(keys).await.at("reading what is listed")?.iter() {
                    if !entry.is_present() {
                        fail!("saw the key {key:?} listed, but absent in a snapshot");
                    }
                    contents.insert(key.clone(), entry.clone());
                }
            }
            if page.len() < limits::LISTING_KEYS {
                return Ok(contents);
            }
            after = page.last().cloned();
        }
    }
}

impl<B: Backend + ?Sized> Probe for B {}

/// Fails with the first difference between what is there and what should be.
pub(crate) fn same_contents(seen: &Contents, expected: &Contents) -> Outcome {
    for (key, entry) in expected {
        match seen.get(key) {
            Some(now) if now == entry => {}
            Some(now) if now.version() == entry.version() => {
                fail!(
                    "saw {key:?} with the version {} that it should have, but another value",
                    entry.version()
                )
            }
            Some(now) => fail!("saw {key:?} as {now:?}, not {entry:?}"),
            None => fail!("saw no {key:?}, which should be {entry:?}"),
        }
    }
    if let Some((key, entry)) = seen.iter().find(|(key, _)| !expected.contains_key(*key)) {
        fail!("saw {key:?} as {entry:?}, which should not be there");
    }
    Ok(())
}

/// A transaction in a failure text: its beginning, if it is long.
struct Shown<'a>(&'a [Assert], &'a [Mutation]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (asserts, mutations) = (&self.0[..self.0.len().min(4)], &self.1[..self.1.len().min(4)]);
        write!(f, "{} asserts {asserts:?}, {} mutations {mutations:?}", self.0.len(), self.1.len())
    }
}
