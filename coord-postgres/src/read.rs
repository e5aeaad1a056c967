//! The two reads: one statement each.

use bytes::Bytes;
use coord_core::{Entry, ErrorKind, Key, KeyRange, KeySet, Operation, Snapshot, Timestamp, Version, limits};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::call::Work;
use crate::connection::Connection;
use crate::error::{Stage, Trouble, classify};
use crate::schema::statement;

/// The statements of one schema.
#[derive(Debug)]
pub(crate) struct Reads {
    snapshot: String,
    keys: String,
}

impl Reads {
    pub(crate) fn new(schema: &str) -> Self {
        Reads {
            snapshot: statement(include_str!("../sql/snapshot.sql"), schema),
            keys: statement(include_str!("../sql/keys.sql"), schema),
        }
    }
}

/// The entries of some keys at one instant.
pub(crate) struct TakeSnapshot<'a> {
    pub(crate) reads: &'a Reads,
    pub(crate) namespace: &'a str,
    pub(crate) keys: &'a KeySet,
}

impl Work for TakeSnapshot<'_> {
    type Answer = Snapshot;
    const OPERATION: Operation = Operation::Snapshot;

    async fn run(&self, connection: &Connection) -> Result<Snapshot, Trouble> {
        let wanted = self.keys.distinct();
        let bytes: Vec<&[u8]> = wanted.iter().map(|key| key.as_bytes()).collect();
        let limit = limits::SNAPSHOT_BYTES as i64;
        let rows = connection
            .client()
            .query_typed(
                &self.reads.snapshot,
                &[(&self.namespace, Type::TEXT), (&bytes, Type::BYTEA_ARRAY), (&limit, Type::INT8)],
            )
            .await
            .map_err(|error| classify(Stage::Read, error))?;
        let mut entries = vec![Entry::Absent; wanted.len()];
        let mut head = None;
        for row in &rows {
            match column::<Option<&[u8]>>(row, 0)? {
                None => head = Some(Head::read(row)?),
                Some(key) => {
                    let Ok(place) = wanted.binary_search_by(|wanted| wanted.as_bytes().cmp(key)) else {
                        return Err(corrupt("the database answers with a key that it was not asked for"));
                    };
                    entries[place] = present(row, wanted[place])?;
                }
            }
        }
        let Some(head) = head else {
            return Err(corrupt("the database answers a snapshot without its time"));
        };
        if head.standby {
            return Err(standby());
        }
        if head.size > limit {
            let message = format!("the snapshot has {} bytes, more than {limit}", head.size);
            return Err(Trouble::new(ErrorKind::Invalid, message));
        }
        Ok(Snapshot::new(wanted.into_iter().cloned().zip(entries), Some(head.time)))
    }
}

/// The keys of a range at one instant.
pub(crate) struct ListKeys<'a> {
    pub(crate) reads: &'a Reads,
    pub(crate) namespace: &'a str,
    pub(crate) range: &'a KeyRange,
}

impl Work for ListKeys<'_> {
    type Answer = Vec<Key>;
    const OPERATION: Operation = Operation::Keys;

    async fn run(&self, connection: &Connection) -> Result<Vec<Key>, Trouble> {
        let range = self.range;
        // No key is empty, and none contains the byte 0xFF, which is no UTF-8.
        let after = range.after().map_or(&b""[..], Key::as_bytes);
        let from = range.prefix().as_bytes();
        let below = range.prefix().upper_bound().unwrap_or_else(|| vec![0xFF]);
        let limit = range.limit() as i64;
        let rows = connection
            .client()
            .query_typed(
                &self.reads.keys,
                &[
                    (&self.namespace, Type::TEXT),
                    (&after, Type::BYTEA),
                    (&from, Type::BYTEA),
                    (&below, Type::BYTEA),
                    (&limit, Type::INT8),
                ],
            )
            .await
            .map_err(|error| classify(Stage::Read, error))?;
        let mut keys = Vec::with_capacity(rows.len());
        let mut head = None;
        for row in &rows {
            match column::<Option<&[u8]>>(row, 0)? {
                None => head = Some(column::<bool>(row, 1)?),
                Some(key) => {
                    keys.push(Key::from_bytes(key).map_err(|_| corrupt("there is a row whose key is none"))?);
                }
            }
        }
        match head {
            Some(false) => {}
            Some(true) => return Err(standby()),
            None => return Err(corrupt("the database answers a listing without its head")),
        }
        // The database sorts within the listing; that the parts of a union come one after the other is only how it is.
        keys.sort_unstable();
        Ok(keys)
    }
}

/// The first row of a snapshot.
struct Head {
    size: i64,
    time: Timestamp,
    standby: bool,
}

impl Head {
    fn read(row: &Row) -> Result<Head, Trouble> {
        Ok(Head {
            size: column(row, 1)?,
            time: Timestamp::from_micros(column(row, 2)?)
                .ok_or_else(|| Trouble::new(ErrorKind::Config, "the server's clock is before 1970"))?,
            standby: column(row, 4)?,
        })
    }
}

fn present(row: &Row, key: &Key) -> Result<Entry, Trouble> {
    let (incarnation, count) = (column::<i64>(row, 1)?, column::<i64>(row, 2)?);
    let version = match (u64::try_from(incarnation), u64::try_from(count)) {
        (Ok(incarnation), Ok(count)) => Version::new(incarnation, count),
        _ => None,
    };
    let version = version.ok_or_else(|| {
        corrupt(format!(
            "the key {key:?} has the impossible version {incarnation}, {count}: coord did not write it"
        ))
    })?;
    Ok(Entry::Present { version, value: Bytes::copy_from_slice(column(row, 3)?) })
}

fn column<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, Trouble> {
    row.try_get(at).map_err(|error| classify(Stage::Read, error))
}

fn corrupt(message: impl Into<String>) -> Trouble {
    Trouble::new(ErrorKind::Corrupt, message)
}

/// What a standby answers may be old.
fn standby() -> Trouble {
    Trouble::new(ErrorKind::Unavailable, "the server has become a standby").again().broken()
}
