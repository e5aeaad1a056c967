//! The transaction: one call of the function in the database.

use std::collections::BTreeMap;
use std::pin::pin;

use coord_core::token::mint_incarnation;
use coord_core::{ErrorKind, Key, Mutation, Operation, Txn, TxnOutcome, Version};
use futures::TryStreamExt as _;
use tokio_postgres::types::{ToSql, Type};

use crate::call::Work;
use crate::config::PostgresConfig;
use crate::connection::Connection;
use crate::error::{Stage, Trouble, classify};
use crate::schema::statement;

const LEAVE: i16 = 0;
const PUT: i16 = 1;
const DELETE: i16 = 2;

/// A transaction as the function takes it: one place a key, in ascending order of the keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'t> {
    keys: Vec<&'t [u8]>,
    incarnations: Vec<Option<i64>>,
    counts: Vec<Option<i64>>,
    actions: Vec<i16>,
    values: Vec<Option<&'t [u8]>>,
    held: i32,
}

impl<'t> Request<'t> {
    /// `None` if one key is asserted with two versions, which holds at no instant.
    pub(crate) fn new(txn: &'t Txn) -> Option<Self> {
        let mut places: BTreeMap<&Key, (Option<Version>, Option<&Mutation>)> = BTreeMap::new();
        for assert in txn.asserts() {
            let (asserted, _) = places.entry(&assert.key).or_default();
            if asserted.is_some_and(|version| version != assert.version) {
                return None;
            }
            *asserted = Some(assert.version);
        }
        for mutation in txn.mutations() {
            places.entry(mutation.key()).or_default().1 = Some(mutation);
        }
        let mut request = Request {
            keys: Vec::with_capacity(places.len()),
            incarnations: Vec::with_capacity(places.len()),
            counts: Vec::with_capacity(places.len()),
            actions: Vec::with_capacity(places.len()),
            values: Vec::with_capacity(places.len()),
            held: 0,
        };
        for (key, (asserted, mutation)) in places {
            request.keys.push(key.as_bytes());
            // Both halves of a version have 63 bits.
            request.incarnations.push(asserted.map(|version| version.incarnation() as i64));
            request.counts.push(asserted.map(|version| version.count() as i64));
            request.actions.push(match mutation {
                None => LEAVE,
                Some(Mutation::Put { .. }) => PUT,
                Some(Mutation::Delete { .. }) => DELETE,
            });
            request.values.push(mutation.and_then(Mutation::value).map(|value| &value[..]));
            request.held += i32::from(asserted.is_none_or(Version::is_missing));
        }
        Some(request)
    }
}

/// The call of the function of one schema.
#[derive(Debug)]
pub(crate) struct Write {
    sql: String,
    durability: &'static str,
    lock_timeout: String,
}

impl Write {
    pub(crate) fn new(config: &PostgresConfig) -> Self {
        Write {
            sql: statement("SELECT {schema}.txn($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)", config.schema()),
            durability: config.durability().as_str(),
            // Before the statement as a whole has used up its time, so that the caller learns what it waited for.
            lock_timeout: format!("{}ms", (config.statement_timeout() * 3 / 4).as_millis()),
        }
    }
}

/// One transaction.
pub(crate) struct Transact<'a> {
    pub(crate) write: &'a Write,
    pub(crate) namespace: &'a str,
    pub(crate) request: Request<'a>,
}

impl Work for Transact<'_> {
    type Answer = TxnOutcome;
    const OPERATION: Operation = Operation::Txn;

    /// Each try has an incarnation of its own.
    async fn run(&self, connection: &Connection) -> Result<TxnOutcome, Trouble> {
        let (request, write) = (&self.request, self.write);
        let fresh = mint_incarnation() as i64;
        let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
            (&self.namespace, Type::TEXT),
            (&request.keys, Type::BYTEA_ARRAY),
            (&request.incarnations, Type::INT8_ARRAY),
            (&request.counts, Type::INT8_ARRAY),
            (&request.actions, Type::INT2_ARRAY),
            (&request.values, Type::BYTEA_ARRAY),
            (&request.held, Type::INT4),
            (&fresh, Type::INT8),
            (&write.durability, Type::TEXT),
            (&write.lock_timeout, Type::TEXT),
        ];
        let doubts = connection.doubts();
        // The row of the answer comes when the function has returned, the end of the answer after the commit. What fails in between is an
        // error of the commit.
        let rows = connection.client().query_typed_raw(&write.sql, parameters).await;
        let mut rows = pin!(rows.map_err(|error| classify(Stage::Execute, error))?);
        let row = rows.try_next().await.map_err(|error| classify(Stage::Execute, error))?;
        while rows.try_next().await.map_err(|error| classify(Stage::Commit, error))?.is_some() {}
        let outcome = match row.map(|row| row.try_get::<_, i32>(0)) {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => return Err(classify(Stage::Commit, error)),
            None => return Err(not_ours()),
        };
        match outcome {
            0 => Ok(TxnOutcome::Rejected),
            1 if connection.doubts() != doubts => Err(Trouble::new(
                ErrorKind::Indeterminate,
                "the transaction is committed on the primary, but the server gave up waiting for its standby",
            )),
            1 => Ok(TxnOutcome::Applied),
            2 => Err(Trouble::new(
                ErrorKind::Unavailable,
                "others created and deleted the same keys all the time",
            )
            .again()),
            _ => Err(not_ours()),
        }
    }
}

fn not_ours() -> Trouble {
    Trouble::new(ErrorKind::Indeterminate, "the function in the database is not that of this version")
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::Assert;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn asserts_and_mutations_of_a_key_share_one_place_in_one_order() {
        let version = Version::new(7, 3).unwrap();
        let txn = Txn::new(
            [
                Assert::version(key("c"), version),
                Assert::missing(key("b")),
                Assert::version(key("c"), version),
                Assert::version(key("d"), version),
            ],
            [
                Mutation::put(key("e"), "new"),
                Mutation::delete(key("a")),
                Mutation::put(key("b"), ""),
                Mutation::put(key("d"), "next"),
            ],
        )
        .unwrap();
        let request = Request::new(&txn).unwrap();
        assert_eq!(request.keys, [b"a", b"b", b"c", b"d", b"e"]);
        assert_eq!(request.incarnations, [None, Some(0), Some(7), Some(7), None]);
        assert_eq!(request.counts, [None, Some(0), Some(3), Some(3), None]);
        assert_eq!(request.actions, [DELETE, PUT, LEAVE, PUT, PUT]);
        assert_eq!(request.values, [None, Some(&b""[..]), None, Some(&b"next"[..]), Some(&b"new"[..])]);
        // All but those that are asserted as present.
        assert_eq!(request.held, 3);
    }

    #[test]
    fn a_contradiction_is_seen_before_anything_is_sent() {
        let version = Version::new(7, 3).unwrap();
        let txn = Txn::new([Assert::missing(key("a")), Assert::version(key("a"), version)], []).unwrap();
        assert_eq!(Request::new(&txn), None);
    }
}
