//! The statements that write, in one `BEGIN IMMEDIATE` transaction: it takes the lock before it reads, for a transaction that has
//! read first can no longer write once another one has.

use std::sync::Arc;

use coord_core::token::mint_incarnation;
use coord_core::{BackendError, ErrorKind, Mutation, Namespace, Operation, Txn, TxnOutcome, Version};
use rusqlite::{Transaction, TransactionBehavior};

use crate::NAME;
use crate::connection::Connection;
use crate::error::{Failure, Stage, corrupt, describe, is_busy};
use crate::queue::{Answer, Job};
use crate::read::Reading;

const PUT: &str = "INSERT INTO coord_entries (namespace, key, incarnation, count, value) VALUES (?1, ?2, ?3, ?4, ?5) \
    ON CONFLICT (namespace, key) DO UPDATE \
    SET incarnation = excluded.incarnation, count = excluded.count, value = excluded.value";

const DELETE: &str = "DELETE FROM coord_entries WHERE namespace = ?1 AND key = ?2";

const SAVEPOINT: &str = "SAVEPOINT one";
const RELEASE: &str = "RELEASE one";
const ROLL_BACK: &str = "ROLLBACK TO one";

/// Every statement of this module.
pub(crate) const STATEMENTS: &[&str] = &[PUT, DELETE, SAVEPOINT, RELEASE, ROLL_BACK];

/// Writes several transactions in one of SQLite, each judged and applied or not for itself, in their order. None is answered before
/// all are on the disk, for a later one may have been rejected because of an earlier one.
pub(crate) fn batch(connection: &mut Connection, jobs: &[Job]) -> Result<Vec<Answer>, Failure> {
    let transaction = Transaction::new(&mut connection.raw, TransactionBehavior::Immediate)
        .map_err(Failure::before(Operation::Txn))?;
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        answers.push(one(&transaction, job)?);
    }
    if !answers.iter().any(|answer| matches!(answer, Ok(TxnOutcome::Applied))) {
        return Ok(answers);
    }
    connection.file.check_unmoved()?;
    match transaction.commit() {
        Ok(()) => Ok(answers),
        // What has failed is rolled back by the drop.
        Err(error) if is_busy(&error) => Err(Failure::Busy(error)),
        Err(error) => Err(Failure::Commit(after_failed_commit(answers, error))),
    }
}

/// What was applied may have happened. What was rejected has certainly not, but the reason may be gone.
fn after_failed_commit(answers: Vec<Answer>, error: rusqlite::Error) -> Vec<Answer> {
    let (kind, message) = describe(Operation::Txn, Stage::Commit, &error);
    let error = Arc::new(error);
    let mut failed = Vec::with_capacity(answers.len());
    for answer in answers {
        let (kind, message) = match answer {
            Ok(TxnOutcome::Applied) => (kind, message.clone()),
            Ok(TxnOutcome::Rejected) => {
                let message =
                    format!("another transaction that was to be committed with this one failed: {message}");
                (ErrorKind::Unavailable, message)
            }
            Err(error) => {
                failed.push(Err(error));
                continue;
            }
        };
        failed.push(Err(BackendError::new(kind, NAME, Operation::Txn, message).with_source(error.clone())));
    }
    failed
}

/// One of several transactions. An error that concerns only this one takes back only this one.
fn one(transaction: &Transaction<'_>, job: &Job) -> Result<Answer, Failure> {
    let failed = Failure::before(Operation::Txn);
    let run = |sql| {
        transaction.prepare_cached(sql).and_then(|mut statement| statement.execute([])).map_err(&failed)
    };
    run(SAVEPOINT)?;
    match judge(transaction, &job.namespace, &job.txn) {
        Ok(outcome) => {
            run(RELEASE)?;
            Ok(Ok(outcome))
        }
        // SQLite itself may have rolled back everything.
        Err(Failure::Error(error)) if error.kind() == ErrorKind::Corrupt && !transaction.is_autocommit() => {
            run(ROLL_BACK)?;
            run(RELEASE)?;
            Ok(Err(error))
        }
        Err(failure) => Err(failure),
    }
}

fn judge(transaction: &Transaction<'_>, namespace: &Namespace, txn: &Txn) -> Result<TxnOutcome, Failure> {
    let reading = Reading::begin(transaction, namespace, Operation::Txn)?;
    if !reading.asserts_hold(txn)? {
        return Ok(TxnOutcome::Rejected);
    }
    apply(transaction, &reading, namespace, txn)?;
    Ok(TxnOutcome::Applied)
}

fn apply(
    transaction: &Transaction<'_>,
    reading: &Reading<'_>,
    namespace: &Namespace,
    txn: &Txn,
) -> Result<(), Failure> {
    let failed = Failure::before(Operation::Txn);
    // A new one for every try.
    let incarnation = mint_incarnation();
    let mut put = transaction.prepare_cached(PUT).map_err(&failed)?;
    let mut delete = transaction.prepare_cached(DELETE).map_err(&failed)?;
    for mutation in txn.mutations() {
        let key = mutation.key();
        let now = reading.version(key)?;
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
