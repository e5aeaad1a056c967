//! The handle: turns, tries and time limits around the blocking work.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coord_core::token::mint_incarnation;
use coord_core::{
    Backend, BackendError, Clock, ErrorKind, Key, KeyRange, KeySet, Namespace, Operation, Snapshot,
    SystemClock, Txn, TxnOutcome,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::oneshot::error::{RecvError, TryRecvError};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config::SqliteConfig;
use crate::connection::{Connection, Create, Role};
use crate::error::{Failure, Stage, classify};
use crate::pool::Pool;
use crate::queue::{Answer, Ticket};
use crate::{NAME, location, read};

/// How long one try may take once it has its turn, before the disk counts as stuck.
const STUCK: Duration = Duration::from_secs(30);

/// A handle on one namespace of a store in a SQLite file. Clones are the same handle.
///
/// It needs a tokio runtime with its timer; the work itself runs on the threads for blocking work. Dropping the future of a call
/// leaves nothing locked: what has begun ends by itself and releases its lock.
#[derive(Clone)]
pub struct SqliteBackend {
    namespace: Namespace,
    busy_timeout: Duration,
    clock: SystemClock,
    pool: Arc<Pool>,
}

impl SqliteBackend {
    /// Opens a namespace of the store at the configured path. The file and its missing folders are created.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) if the path is no usable file: a folder, a file that is not a SQLite database or belongs to
    /// another application or to a newer version of coord (which is left as it is), a file on a network file system, one that
    /// cannot be written, or one for which SQLite does not grant the write-ahead log. [`Corrupt`](ErrorKind::Corrupt) if it
    /// is ours but damaged. [`Unavailable`](ErrorKind::Unavailable) if another process keeps it locked.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn open(config: &SqliteConfig, namespace: &Namespace) -> Result<Self, BackendError> {
        config.check_path()?;
        let clock = SystemClock::new();
        let (wanted, durability) = (config.path().to_owned(), config.durability());
        let path: Arc<Path> = blocking(Operation::Connect, move || location::resolve(&wanted)).await??.into();
        let mut tries = Tries::new(&clock, config.busy_timeout(), Operation::Connect);
        let writer = loop {
            let path = path.clone();
            let opened = blocking(Operation::Connect, move || {
                Connection::open(&path, Role::Writer, durability, Create::IfMissing, Operation::Connect)
            });
            match opened.await? {
                Ok(connection) => break connection,
                Err(failure) => tries.again(failure).await?,
            }
        };
        Ok(SqliteBackend {
            namespace: namespace.clone(),
            busy_timeout: config.busy_timeout(),
            clock,
            pool: Arc::new(Pool::new(path, durability, writer)),
        })
    }

    /// The real path of the file, all symbolic links resolved.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.pool.path()
    }

    /// The namespace of this handle.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Waits for a turn to read, does the work on a thread for blocking work, and does it again as long as others are in the way.
    async fn read<T, W>(&self, operation: Operation, work: W) -> Result<T, BackendError>
    where
        T: Send + 'static,
        W: Fn(&mut Connection, &Namespace) -> Result<T, Failure> + Send + Sync + 'static,
    {
        let mut tries = Tries::new(&self.clock, self.busy_timeout, operation);
        let turn = self.pool.readers().clone().acquire_owned();
        let Ok(Ok(turn)) = timeout(self.busy_timeout, turn).await else { return Err(tries.no_turn()) };
        let (turn, work) = (Arc::new(turn), Arc::new(work));
        loop {
            let (pool, namespace, work, turn) =
                (self.pool.clone(), self.namespace.clone(), work.clone(), turn.clone());
            let result = blocking(operation, move || {
                let result =
                    pool.with_connection(Role::Reader, operation, |connection| work(connection, &namespace));
                // The turn ends with the work and not with the future, which may have been dropped.
                drop(turn);
                result
            })
            .await?;
            match result {
                Ok(answer) => return Ok(answer),
                Err(failure) => tries.again(failure).await?,
            }
        }
    }

    /// Lets a transaction wait in the queue until somebody who has the turn has written it, or it is this one's turn to write all that wait.
    async fn write(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let tries = Tries::new(&self.clock, self.busy_timeout, Operation::Txn);
        let queue = self.pool.writers();
        let mut ticket = queue.join(self.namespace.clone(), txn.clone());
        tokio::select! {
            biased;
            answer = &mut ticket.answer => answered(answer),
            turn = queue.turn().clone().acquire_owned() => match turn {
                Ok(turn) => self.lead(turn, ticket, tries).await,
                // The queue is never closed.
                Err(_) => Err(tries.no_turn()),
            },
            () = self.clock.sleep(self.busy_timeout) => {
                self.give_up(ticket, &tries).await
            }
        }
    }

    /// Leaves the queue, or waits for the answer if somebody is at it. Each try of whoever has the turn is short, and what it could not
    /// write is in the queue again.
    async fn give_up(&self, mut ticket: Ticket, tries: &Tries<'_>) -> Result<TxnOutcome, BackendError> {
        let end = self.clock.monotonic().saturating_add(STUCK);
        loop {
            if ticket.withdraw() {
                return Err(tries.no_turn());
            }
            match timeout(pause(), &mut ticket.answer).await {
                Ok(answer) => return answered(answer),
                Err(_) if self.clock.monotonic() >= end => return Err(stuck(Operation::Txn)),
                Err(_) => {}
            }
        }
    }

    /// Writes the transactions that wait, until the own one is among them.
    async fn lead(
        &self,
        turn: OwnedSemaphorePermit,
        mut ticket: Ticket,
        mut tries: Tries<'_>,
    ) -> Result<TxnOutcome, BackendError> {
        let turn = Arc::new(turn);
        loop {
            let (pool, turn) = (self.pool.clone(), turn.clone());
            let result = blocking(Operation::Txn, move || {
                let result = pool.write_waiting();
                drop(turn);
                result
            })
            .await?;
            match ticket.answer.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(answer) => return answer,
                Err(TryRecvError::Closed) => return Err(lost(Operation::Txn)),
            }
            if let Err(failure) = result
                && let Err(error) = tries.again(failure).await
            {
                // The turn is still ours, so nobody can have taken the transaction off the queue.
                return Err(if ticket.withdraw() { error } else { lost(Operation::Txn) });
            }
        }
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBackend")
            .field("path", &self.path())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let keys = keys.clone();
        self.read(Operation::Snapshot, move |connection, namespace| {
            read::snapshot(connection, namespace, &keys)
        })
        .await
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        if !txn.mutations().is_empty() {
            return self.write(txn).await;
        }
        let txn = txn.clone();
        self.read(Operation::Txn, move |connection, namespace| read::check(connection, namespace, &txn)).await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let range = range.clone();
        self.read(Operation::Keys, move |connection, namespace| read::keys(connection, namespace, &range))
            .await
    }
}

/// Runs work on a thread for blocking work. The work goes on if this future is dropped.
async fn blocking<T: Send + 'static>(
    operation: Operation,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BackendError> {
    match timeout(STUCK, spawn_blocking(work)).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(lost(operation).with_source(error)),
        Err(_) => Err(stuck(operation)),
    }
}

/// The answer for the ticket of a transaction.
fn answered(answer: Result<Answer, RecvError>) -> Answer {
    answer.unwrap_or_else(|_| Err(lost(Operation::Txn)))
}

/// Work has begun and nobody knows how it ended.
fn unknown(operation: Operation, message: impl Into<String>) -> BackendError {
    let kind = if operation == Operation::Txn { ErrorKind::Indeterminate } else { ErrorKind::Unavailable };
    BackendError::new(kind, NAME, operation, message)
}

fn lost(operation: Operation) -> BackendError {
    unknown(operation, "the thread that did the work is gone")
}

fn stuck(operation: Operation) -> BackendError {
    unknown(
        operation,
        format!("no answer within {STUCK:?}: the disk or the threads for blocking work are stuck"),
    )
}

/// Tries until a time limit. Every try that is repeated has certainly not happened.
struct Tries<'a> {
    clock: &'a SystemClock,
    operation: Operation,
    busy_timeout: Duration,
    end: Duration,
    tries: u32,
    moved: bool,
}

impl<'a> Tries<'a> {
    fn new(clock: &'a SystemClock, busy_timeout: Duration, operation: Operation) -> Self {
        let end = clock.monotonic().saturating_add(busy_timeout);
        Tries { clock, operation, busy_timeout, end, tries: 0, moved: false }
    }

    /// Returns when it is time for another try, or the error to end with.
    async fn again(&mut self, failure: Failure) -> Result<(), BackendError> {
        match failure {
            Failure::Busy(error) if self.clock.monotonic() >= self.end => {
                let error = classify(self.operation, Stage::Before, error);
                tracing::debug!(%error, waited = ?self.busy_timeout, "gave up waiting for the lock");
                Err(error)
            }
            Failure::Busy(_) => {
                self.tries = self.tries.saturating_add(1);
                let pause =
                    if self.operation == Operation::Connect { longer_pause(self.tries) } else { pause() };
                self.clock.sleep(pause).await;
                Ok(())
            }
            // Another file may have taken the place of the one that was open: the next try opens it.
            Failure::Moved if !self.moved => {
                self.moved = true;
                Ok(())
            }
            Failure::Moved => {
                let message = "the file was moved or removed while it was in use; it is not made anew";
                Err(BackendError::new(ErrorKind::Unavailable, NAME, self.operation, message))
            }
            Failure::Error(error) => Err(error),
            // Those who wait have been answered.
            Failure::Commit(_) => Err(lost(self.operation)),
        }
    }

    fn no_turn(&self) -> BackendError {
        let message =
            format!("no turn within {:?}: other calls of this process are in front", self.busy_timeout);
        BackendError::new(ErrorKind::Unavailable, NAME, self.operation, message)
    }
}

/// One to three milliseconds at random. The lock is free only for moments while other processes write one transaction after the other, so
/// whoever looks often and out of step finds one; a pause that grows would starve those who wait longest.
fn pause() -> Duration {
    Duration::from_micros(1_000 + mint_incarnation() % 2_000)
}

/// A pause at random that grows to a quarter of a second. Making a new file needs it for oneself, and a try holds it a little: many who try
/// often would keep it from each other.
fn longer_pause(tries: u32) -> Duration {
    let most = 2_000_u64 << tries.min(7);
    Duration::from_micros(1_000 + mint_incarnation() % most)
}
