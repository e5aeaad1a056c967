//! The statements that write, in one `BEGIN IMMEDIATE` transaction: it takes the lock before it reads, for a transaction that has
//! read first can no longer write once another one has.

use coord_core::token::mint_incarnation;
use coord_core::{Mutation, Namespace, Operation, Txn, TxnOutcome, Version};
use rusqlite::{Transaction, TransactionBehavior};

use crate::connection::Connection;
use crate::error::{Failure, Stage, classify, corrupt, is_busy};
use crate::read;

const PUT: &str = "INSERT INTO coord_entries (namespace, key, incarnation, count, value) VALUES (?1, ?2, ?3, ?4, ?5) \
    ON CONFLICT (namespace, key) DO UPDATE \
    SET incarnation = excluded.incarnation, count = excluded.count, value = excluded.value";

const DELETE: &str = "DELETE FROM coord_entries WHERE namespace = ?1 AND key = ?2";

/// Every statement of this module.
pub(crate) const STATEMENTS: &[&str] = &[PUT, DELETE];

/// [`Backend::txn`](coord_core::Backend::txn) of a transaction with mutations.
pub(crate) fn txn(
    connection: &mut Connection,
    namespace: &Namespace,
    txn: &Txn,
) -> Result<TxnOutcome, Failure> {
    let transaction = Transaction::new(&mut connection.raw, TransactionBehavior::Immediate)
        .map_err(Failure::before(Operation::Txn))?;
    read::head(&transaction, namespace, Operation::Txn)?;
    if !read::asserts_hold(&transaction, namespace, txn)? {
        return Ok(TxnOutcome::Rejected);
    }
    apply(&transaction, namespace, txn)?;
    connection.file.check_unmoved()?;
    match transaction.commit() {
        Ok(()) => Ok(TxnOutcome::Applied),
        // What has failed is rolled back by the drop.
        Err(error) if is_busy(&error) => Err(Failure::Busy(error)),
        Err(error) => Err(classify(Operation::Txn, Stage::Commit, error).into()),
    }
}

fn apply(transaction: &Transaction<'_>, namespace: &Namespace, txn: &Txn) -> Result<(), Failure> {
    let failed = Failure::before(Operation::Txn);
    // A new one for every try.
    let incarnation = mint_incarnation();
    let mut put = transaction.prepare_cached(PUT).map_err(&failed)?;
    let mut delete = transaction.prepare_cached(DELETE).map_err(&failed)?;
    for mutation in txn.mutations() {
        let key = mutation.key();
        let now = read::version(transaction, namespace, key, Operation::Txn)?;
        let (changed, expected) = match mutation {
            Mutation::Put { value, .. } => {
                let next = if now.is_missing() { Version::first(incarnation) } else { now.next() };
                let next = next.ok_or_else(|| {
                    corrupt(Operation::Txn, format!("the key {key:?} has been written 2^63 times"))
                })?;
                // Both halves have 63 bits.
                let (incarnation, count) = (next.incarnation() as i64, next.count() as i64);
                let row = (namespace.as_str(), key.as_bytes(), incarnation, count, &value[..]);
                (put.execute(row).map_err(&failed)?, 1)
            }
            Mutation::Delete { .. } => {
                let row = (namespace.as_str(), key.as_bytes());
                (delete.execute(row).map_err(&failed)?, usize::from(!now.is_missing()))
            }
        };
        if changed != expected {
            let message = format!("writing the key {key:?} changed {changed} rows instead of {expected}");
            return Err(corrupt(Operation::Txn, message).into());
        }
    }
    Ok(())
}
