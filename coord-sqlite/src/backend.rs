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
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config::SqliteConfig;
use crate::connection::{Connection, Create, Role};
use crate::error::{Failure, Stage, classify};
use crate::pool::Pool;
use crate::{NAME, location, read, write};

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
        let tries = Tries::new(&clock, config.busy_timeout(), Operation::Connect);
        let writer = tries
            .run(|| {
                let path = path.clone();
                async move {
                    blocking(Operation::Connect, move || {
                        Connection::open(
                            &path,
                            Role::Writer,
                            durability,
                            Create::IfMissing,
                            Operation::Connect,
                        )
                    })
                    .await?
                }
            })
            .await?;
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

    /// Waits for a turn, does the work on a thread for blocking work, and does it again as long as others are in the way.
    async fn call<T, W>(&self, role: Role, operation: Operation, work: W) -> Result<T, BackendError>
    where
        T: Send + 'static,
        W: Fn(&mut Connection, &Namespace) -> Result<T, Failure> + Send + Sync + 'static,
    {
        let tries = Tries::new(&self.clock, self.busy_timeout, operation);
        let turn = self.turn(role, operation).await?;
        let (turn, work) = (Arc::new(turn), Arc::new(work));
        tries
            .run(|| {
                let (pool, namespace, work, turn) =
                    (self.pool.clone(), self.namespace.clone(), work.clone(), turn.clone());
                async move {
                    blocking(operation, move || {
                        let result =
                            pool.with_connection(role, operation, |connection| work(connection, &namespace));
                        // The turn ends with the work and not with the future, which may have been dropped.
                        drop(turn);
                        result
                    })
                    .await?
                }
            })
            .await
    }

    async fn turn(&self, role: Role, operation: Operation) -> Result<OwnedSemaphorePermit, BackendError> {
        let turn = self.pool.queue(role).clone().acquire_owned();
        match timeout(self.busy_timeout, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            // Zero is a wait too: a free turn is always taken.
            Ok(Err(_)) | Err(_) => Err(BackendError::new(
                ErrorKind::Unavailable,
                NAME,
                operation,
                format!("no turn within {:?}: other calls of this process are in front", self.busy_timeout),
            )),
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
        self.call(Role::Reader, Operation::Snapshot, move |connection, namespace| {
            read::snapshot(connection, namespace, &keys)
        })
        .await
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let txn = txn.clone();
        let role = if txn.mutations().is_empty() { Role::Reader } else { Role::Writer };
        self.call(role, Operation::Txn, move |connection, namespace| match role {
            Role::Reader => read::check(connection, namespace, &txn),
            Role::Writer => write::txn(connection, namespace, &txn),
        })
        .await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let range = range.clone();
        self.call(Role::Reader, Operation::Keys, move |connection, namespace| {
            read::keys(connection, namespace, &range)
        })
        .await
    }
}

/// Runs work on a thread for blocking work. The work goes on if this future is dropped.
async fn blocking<T: Send + 'static>(
    operation: Operation,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BackendError> {
    // Whether it has happened is not known, unless nothing can have happened.
    let kind = if operation == Operation::Txn { ErrorKind::Indeterminate } else { ErrorKind::Unavailable };
    match timeout(STUCK, spawn_blocking(work)).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => {
            let message = "the thread that did the work is gone";
            Err(BackendError::new(kind, NAME, operation, message).with_source(error))
        }
        Err(_) => {
            let message =
                format!("no answer within {STUCK:?}: the disk or the threads for blocking work are stuck");
            Err(BackendError::new(kind, NAME, operation, message))
        }
    }
}

/// Tries until a time limit. Every try that is repeated has certainly not happened.
struct Tries<'a> {
    clock: &'a SystemClock,
    operation: Operation,
    busy_timeout: Duration,
    end: Duration,
}

impl<'a> Tries<'a> {
    fn new(clock: &'a SystemClock, busy_timeout: Duration, operation: Operation) -> Self {
        Tries { clock, operation, busy_timeout, end: clock.monotonic().saturating_add(busy_timeout) }
    }

    async fn run<T, F>(&self, mut try_once: impl FnMut() -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut moved = false;
        loop {
            match try_once().await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Busy(error)) if self.clock.monotonic() >= self.end => {
                    let error = classify(self.operation, Stage::Before, error);
                    tracing::debug!(%error, waited = ?self.busy_timeout, "gave up waiting for the lock");
                    return Err(error);
                }
                Err(Failure::Busy(_)) => self.clock.sleep(pause()).await,
                // Another file may have taken the place of the one that was open: the next try opens it.
                Err(Failure::Moved) if !moved => moved = true,
                Err(Failure::Moved) => {
                    let message = "the file was moved or removed while it was in use; it is not made anew";
                    return Err(BackendError::new(ErrorKind::Unavailable, NAME, self.operation, message));
                }
            }
        }
    }
}

/// One to three milliseconds at random. The lock is free only for moments while other processes write one transaction after the other, so
/// whoever looks often and out of step finds one; a pause that grows would starve those who wait longest.
fn pause() -> Duration {
    Duration::from_micros(1_000 + mint_incarnation() % 2_000)
}
