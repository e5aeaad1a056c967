//! The connections of one handle.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coord_core::{BackendError, ErrorKind, Operation};
use tokio::sync::Semaphore;

use crate::config::Durability;
use crate::connection::{Connection, Create, Role};
use crate::error::Failure;
use crate::queue::{self, Answer, Queue};
use crate::{NAME, write};

/// How many reads of one handle run at a time. Readers wait for nobody, so more would only share the processors.
const READERS: usize = 4;

/// A log that has grown by more than this is written back at once, waiting a little for old readers. (SQLite does the same without
/// waiting after every thousand pages, but while there is always some reader it never begins the log anew.)
const LOG_BYTES: u64 = 16 * 1_024 * 1_024;

/// The connections of one handle that are not in use, opened when they are needed.
#[derive(Debug)]
pub(crate) struct Pool {
    path: Arc<Path>,
    durability: Durability,
    idle: Mutex<Idle>,
    writers: Arc<Queue>,
    readers: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Idle {
    writer: Option<Connection>,
    readers: Vec<Connection>,
    /// The size of the log that could not be written back the last time.
    log_left: u64,
}

impl Pool {
    /// A pool with its first connection, a writer.
    pub(crate) fn new(path: Arc<Path>, durability: Durability, writer: Connection) -> Self {
        Pool {
            writers: Queue::of(&path, durability),
            readers: Arc::new(Semaphore::new(READERS)),
            path,
            durability,
            idle: Mutex::new(Idle { writer: Some(writer), ..Idle::default() }),
        }
    }

    /// Where the file lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The transactions that wait to be written to the file.
    pub(crate) fn writers(&self) -> &Arc<Queue> {
        &self.writers
    }

    /// The turns to read, first in, first out.
    pub(crate) fn readers(&self) -> &Arc<Semaphore> {
        &self.readers
    }

    /// Writes the transactions that wait and answers them, on this thread. What is in the way is returned, and then they wait on.
    pub(crate) fn write_waiting(&self) -> Result<(), Failure> {
        let jobs = self.writers.take_batch();
        match self.with_connection(Role::Writer, Operation::Txn, |connection| write::batch(connection, &jobs))
        {
            Ok(answers) | Err(Failure::Commit(answers)) => queue::answer(jobs, answers),
            Err(Failure::Error(error)) => {
                let answers = if jobs.len() == 1 { vec![Err(error)] } else { for_each(jobs.len(), error) };
                queue::answer(jobs, answers);
            }
            Err(failure) => {
                self.writers.put_back(jobs);
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Does some work on a connection, on this thread.
    pub(crate) fn with_connection<T>(
        &self,
        role: Role,
        operation: Operation,
        work: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let idle = self.take(role);
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(&self.path, role, self.durability, Create::Never, operation)?,
        };
        let result = connection.file.check_unmoved().and_then(|()| work(&mut connection));
        let sound = match &result {
            Ok(_) | Err(Failure::Busy(_)) => true,
            Err(Failure::Moved | Failure::Commit(_)) => false,
            Err(Failure::Error(error)) => error.kind() == ErrorKind::Invalid,
        };
        // A connection that has failed, or that hangs in a transaction it could not roll back, is closed, which rolls back.
        if sound && connection.raw.is_autocommit() {
            self.put_back(role, connection);
        }
        result
    }

    fn take(&self, role: Role) -> Option<Connection> {
        let mut idle = self.lock();
        match role {
            Role::Writer => idle.writer.take(),
            Role::Reader => idle.readers.pop(),
        }
    }

    fn put_back(&self, role: Role, connection: Connection) {
        if role == Role::Writer {
            self.look_after_log(&connection);
        }
        let mut idle = self.lock();
        match role {
            Role::Writer => idle.writer = Some(connection),
            Role::Reader => idle.readers.push(connection),
        }
    }

    fn look_after_log(&self, connection: &Connection) {
        let left = self.lock().log_left;
        if connection.file.log_size() <= left + LOG_BYTES {
            return;
        }
        connection.shorten_log();
        // With a reader that stays, each try would wait in vain, so the next one has to be earned.
        self.lock().log_left = connection.file.log_size();
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        // Nothing panics while the lock is held.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let idle = std::mem::take(&mut *self.lock());
        // Closing the last connection of a file writes the log back and waits for the disk, which is no work for an async thread.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(move || drop(idle)));
        }
    }
}

/// The same error for several callers.
fn for_each(callers: usize, error: BackendError) -> Vec<Answer> {
    let error = Arc::new(error);
    let share = || {
        BackendError::new(error.kind(), NAME, error.operation(), error.message()).with_source(error.clone())
    };
    (0..callers).map(|_| Err(share())).collect()
}
