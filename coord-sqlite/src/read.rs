//! The statements that read, each whole operation in one read transaction.

use coord_core::{
    BackendError, Bytes, Entry, ErrorKind, Key, KeyRange, KeySet, Namespace, Operation, Snapshot, Timestamp,
    Txn, TxnOutcome, Version, limits,
};
use rusqlite::types::ValueRef;
use rusqlite::{Row, Transaction, TransactionBehavior};

use crate::NAME;
use crate::connection::Connection;
use crate::error::{Failure, corrupt};

/// The store's time in milliseconds, which is as exact as SQLite's clock, and whether the namespace has a row whose key is no BLOB. Such
/// a row sorts before every BLOB and equals none, so without a closer look its key would pass for an absent one.
pub(crate) const HEAD: &str = "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER), \
    EXISTS (SELECT 1 FROM coord_entries WHERE namespace = ?1 AND key < x'')";

/// Whether a row whose key is no BLOB stands where a key of ours would.
const FOREIGN: &str = "SELECT EXISTS (SELECT 1 FROM coord_entries \
    WHERE namespace = ?1 AND key < x'' AND CAST(key AS BLOB) = ?2)";

/// The same for the keys of a listing.
const FOREIGN_RANGE: &str = "SELECT EXISTS (SELECT 1 FROM coord_entries WHERE namespace = ?1 AND key < x'' \
    AND CAST(key AS BLOB) >= ?2 AND (?3 IS NULL OR CAST(key AS BLOB) < ?3))";

/// One key: its version, the type and the length of its value, and the value if it fits what is left of the answer.
const ENTRY: &str = "SELECT incarnation, count, typeof(value), length(value), \
    CASE WHEN typeof(value) = 'blob' AND length(value) <= ?3 THEN value END \
    FROM coord_entries WHERE namespace = ?1 AND key = ?2";

/// One key without its value.
const VERSION: &str = "SELECT incarnation, count, typeof(value), length(value) \
    FROM coord_entries WHERE namespace = ?1 AND key = ?2";

const KEYS: &str =
    "SELECT key FROM coord_entries WHERE namespace = ?1 AND key >= ?2 AND key < ?3 ORDER BY key LIMIT ?4";

const KEYS_TO_END: &str =
    "SELECT key FROM coord_entries WHERE namespace = ?1 AND key >= ?2 ORDER BY key LIMIT ?3";

/// Every statement of this module.
pub(crate) const STATEMENTS: &[&str] = &[HEAD, FOREIGN, FOREIGN_RANGE, ENTRY, VERSION, KEYS, KEYS_TO_END];

/// A transaction of SQLite that has read its head: from there on everything it reads is of one instant.
pub(crate) struct Reading<'t> {
    transaction: &'t Transaction<'t>,
    namespace: &'t Namespace,
    operation: Operation,
    time: Timestamp,
    /// Whether the namespace has keys that are no BLOB.
    has_foreign: bool,
}

impl<'t> Reading<'t> {
    /// Reads the head.
    pub(crate) fn begin(
        transaction: &'t Transaction<'t>,
        namespace: &'t Namespace,
        operation: Operation,
    ) -> Result<Self, Failure> {
        let (millis, has_foreign): (i64, bool) = transaction
            .prepare_cached(HEAD)
            .and_then(|mut head| head.query_row([namespace.as_str()], |row| Ok((row.get(0)?, row.get(1)?))))
            .map_err(Failure::before(operation))?;
        // A clock before 1970 reads as the epoch.
        let micros = millis.max(0).saturating_mul(1_000);
        let time = Timestamp::from_micros(micros).unwrap_or(Timestamp::EPOCH);
        Ok(Reading { transaction, namespace, operation, time, has_foreign })
    }

    /// The version of a key.
    pub(crate) fn version(&self, key: &Key) -> Result<Version, Failure> {
        let failed = Failure::before(self.operation);
        let mut statement = self.transaction.prepare_cached(VERSION).map_err(&failed)?;
        let mut rows = statement.query((self.namespace.as_str(), key.as_bytes())).map_err(&failed)?;
        match rows.next().map_err(&failed)? {
            None => self.absent(key).map(|()| Version::MISSING),
            Some(row) => self.checked(row, key).map(|(version, _)| version),
        }
    }

    /// Whether all asserts hold. All are looked at, so that a foreign row among them is always found.
    pub(crate) fn asserts_hold(&self, txn: &Txn) -> Result<bool, Failure> {
        let mut hold = true;
        for assert in txn.asserts() {
            hold &= self.version(&assert.key)? == assert.version;
        }
        Ok(hold)
    }

    fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, Failure> {
        let failed = Failure::before(self.operation);
        let mut statement = self.transaction.prepare_cached(ENTRY).map_err(&failed)?;
        let mut left = limits::SNAPSHOT_BYTES;
        let mut entries = Vec::with_capacity(keys.len());
        for key in keys.distinct() {
            // The key counts as well. A value that does not fit is not even loaded.
            let room = left.checked_sub(key.as_bytes().len());
            let most = room.map_or(-1, |room| room as i64);
            let mut rows =
                statement.query((self.namespace.as_str(), key.as_bytes(), most)).map_err(&failed)?;
            let Some(row) = rows.next().map_err(&failed)? else {
                self.absent(key)?;
                entries.push((key.clone(), Entry::Absent));
                continue;
            };
            let (version, length) = self.checked(row, key)?;
            left = match room.and_then(|room| room.checked_sub(length)) {
                Some(left) => left,
                None => {
                    let message = format!("the snapshot has more than {} bytes", limits::SNAPSHOT_BYTES);
                    return Err(BackendError::new(ErrorKind::Invalid, NAME, self.operation, message).into());
                }
            };
            let ValueRef::Blob(value) = row.get_ref(4).map_err(&failed)? else {
                return Err(self.foreign(key, "its value cannot be read"));
            };
            entries.push((key.clone(), Entry::Present { version, value: Bytes::copy_from_slice(value) }));
        }
        Ok(Snapshot::new(entries, Some(self.time)))
    }

    fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, Failure> {
        let failed = Failure::before(self.operation);
        let (lower, upper) = (lower_bound(range), range.prefix().upper_bound());
        let limit = range.limit() as i64;
        if self.has_foreign {
            let mut statement = self.transaction.prepare_cached(FOREIGN_RANGE).map_err(&failed)?;
            let bounds = (self.namespace.as_str(), &lower, &upper);
            if statement.query_row(bounds, |row| row.get(0)).map_err(&failed)? {
                let message = format!("the namespace {} has a row whose key is no BLOB", self.namespace);
                return Err(corrupt(self.operation, message).into());
            }
        }
        let statement = if upper.is_some() { KEYS } else { KEYS_TO_END };
        let mut statement = self.transaction.prepare_cached(statement).map_err(&failed)?;
        let mut rows = match upper {
            Some(upper) => statement.query((self.namespace.as_str(), lower, upper, limit)),
            None => statement.query((self.namespace.as_str(), lower, limit)),
        }
        .map_err(&failed)?;
        let mut keys = Vec::new();
        while let Some(row) = rows.next().map_err(&failed)? {
            let key = match row.get_ref(0).map_err(&failed)? {
                ValueRef::Blob(bytes) => Key::from_bytes(bytes),
                _ => return Err(corrupt(self.operation, "a key is not a BLOB").into()),
            };
            keys.push(key.map_err(|error| {
                let message =
                    format!("the namespace {} has a key that coord cannot have written", self.namespace);
                corrupt(self.operation, message).with_source(error)
            })?);
        }
        Ok(keys)
    }

    /// A row of `ENTRY` or `VERSION`: its version and the length of its value, if they are of the types and sizes that we write.
    fn checked(&self, row: &Row<'_>, key: &Key) -> Result<(Version, usize), Failure> {
        let failed = Failure::before(self.operation);
        let half = |column| match row.get_ref(column) {
            Ok(ValueRef::Integer(half)) => Ok(u64::try_from(half).unwrap_or(0)),
            Ok(other) => Err(self.foreign(key, &format!("half of its version is {}", other.data_type()))),
            Err(error) => Err(failed(error)),
        };
        let version = Version::new(half(0)?, half(1)?)
            .ok_or_else(|| self.foreign(key, "a half of its version is not positive"))?;
        match (row.get_ref(2).map_err(&failed)?, row.get_ref(3).map_err(&failed)?) {
            (ValueRef::Text(b"blob"), ValueRef::Integer(length)) => match usize::try_from(length) {
                Ok(length) if length <= limits::VALUE_BYTES => Ok((version, length)),
                _ => Err(self.foreign(key, "its value is longer than a value can be")),
            },
            _ => Err(self.foreign(key, "its value is no BLOB")),
        }
    }

    /// Makes sure that a key that was not found is absent.
    fn absent(&self, key: &Key) -> Result<(), Failure> {
        if !self.has_foreign {
            return Ok(());
        }
        let failed = Failure::before(self.operation);
        let mut statement = self.transaction.prepare_cached(FOREIGN).map_err(&failed)?;
        let place = (self.namespace.as_str(), key.as_bytes());
        if statement.query_row(place, |row| row.get(0)).map_err(&failed)? {
            return Err(self.foreign(key, "it is there, but not as a BLOB"));
        }
        Ok(())
    }

    fn foreign(&self, key: &Key, what: &str) -> Failure {
        corrupt(self.operation, format!("the row of the key {key:?} was not written by coord: {what}")).into()
    }
}

fn begin<'c>(connection: &'c mut Connection, operation: Operation) -> Result<Transaction<'c>, Failure> {
    Transaction::new(&mut connection.raw, TransactionBehavior::Deferred).map_err(Failure::before(operation))
}

/// A transaction without mutations: nothing is written, so no writer has to wait for it.
pub(crate) fn check(
    connection: &mut Connection,
    namespace: &Namespace,
    txn: &Txn,
) -> Result<TxnOutcome, Failure> {
    let transaction = begin(connection, Operation::Txn)?;
    let hold = Reading::begin(&transaction, namespace, Operation::Txn)?.asserts_hold(txn)?;
    Ok(if hold { TxnOutcome::Applied } else { TxnOutcome::Rejected })
}

/// [`Backend::snapshot`](coord_core::Backend::snapshot).
pub(crate) fn snapshot(
    connection: &mut Connection,
    namespace: &Namespace,
    keys: &KeySet,
) -> Result<Snapshot, Failure> {
    let transaction = begin(connection, Operation::Snapshot)?;
    Reading::begin(&transaction, namespace, Operation::Snapshot)?.snapshot(keys)
}

/// [`Backend::keys`](coord_core::Backend::keys).
pub(crate) fn keys(
    connection: &mut Connection,
    namespace: &Namespace,
    range: &KeyRange,
) -> Result<Vec<Key>, Failure> {
    let transaction = begin(connection, Operation::Keys)?;
    Reading::begin(&transaction, namespace, Operation::Keys)?.keys(range)
}

/// The smallest key that a listing may answer, inclusive.
fn lower_bound(range: &KeyRange) -> Vec<u8> {
    let prefix = range.prefix().as_bytes();
    match range.after() {
        Some(after) if after.as_bytes() >= prefix => {
            // The next byte string after a key is the key and a NUL.
            let mut next = after.as_bytes().to_vec();
            next.push(0);
            next
        }
        _ => prefix.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::Prefix;

    #[test]
    fn a_listing_begins_at_the_prefix_or_right_after_a_key() {
        let range = |prefix: &str| KeyRange::new(Prefix::new(prefix).unwrap(), 1).unwrap();
        let key = |text: &str| Key::new(text).unwrap();
        assert_eq!(lower_bound(&range("")), b"");
        assert_eq!(lower_bound(&range("b")), b"b");
        assert_eq!(lower_bound(&range("b").start_after(key("a"))), b"b");
        assert_eq!(lower_bound(&range("b").start_after(key("b"))), b"b\0");
        assert_eq!(lower_bound(&range("b").start_after(key("c"))), b"c\0");
    }

    #[test]
    fn every_statement_searches_an_index_and_a_listing_reads_no_row() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../sql/schema.sql")).unwrap();
        for statement in STATEMENTS {
            let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
            let lines = explain.raw_query().mapped(|row| row.get::<_, String>(3));
            let plan: String = lines.map(|line| line.unwrap() + "\n").collect();
            assert!(
                !plan.contains("SCAN coord_entries") && !plan.contains("TEMP B-TREE"),
                "{statement}: {plan}"
            );
            let covered = ![ENTRY, VERSION].contains(statement);
            assert_eq!(plan.contains("COVERING INDEX"), covered, "{statement}: {plan}");
        }
    }
}
