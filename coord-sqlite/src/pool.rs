//! The connections of one handle, and whose turn it is.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use coord_core::{ErrorKind, Operation};
use tokio::sync::Semaphore;

use crate::config::Durability;
use crate::connection::{Connection, Create, Role};
use crate::error::Failure;

/// How many reads of one handle run at a time. Readers wait for nobody, so more would only share the processors.
const READERS: usize = 4;

/// Every this many commits the size of the log is looked at.
const LOG_LOOK: u32 = 256;
/// A log above this size is written back at once, waiting a little for old readers.
const LOG_BYTES: u64 = 64 * 1_024 * 1_024;

/// The connections of one handle that are not in use, opened when they are needed.
#[derive(Debug)]
pub(crate) struct Pool {
    path: Arc<Path>,
    durability: Durability,
    idle: Mutex<Idle>,
    writers: Arc<Semaphore>,
    readers: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Idle {
    writer: Option<Connection>,
    readers: Vec<Connection>,
    commits: u32,
}

impl Pool {
    /// A pool with its first connection, a writer.
    pub(crate) fn new(path: Arc<Path>, durability: Durability, writer: Connection) -> Self {
        Pool {
            writers: writers_of(&path),
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

    /// The queue for a role, first in, first out. All handles of one file in this process share the one for writers.
    pub(crate) fn queue(&self, role: Role) -> &Arc<Semaphore> {
        match role {
            Role::Writer => &self.writers,
            Role::Reader => &self.readers,
        }
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
            Err(Failure::Moved) => false,
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
        if role == Role::Writer && self.is_time_to_look() && connection.file.log_size() > LOG_BYTES {
            connection.shorten_log();
        }
        let mut idle = self.lock();
        match role {
            Role::Writer => idle.writer = Some(connection),
            Role::Reader => idle.readers.push(connection),
        }
    }

    fn is_time_to_look(&self) -> bool {
        let mut idle = self.lock();
        idle.commits = (idle.commits + 1) % LOG_LOOK;
        idle.commits == 0
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

/// The queue of the writers of one file in this process. SQLite itself wakes whoever happens to look first.
fn writers_of(path: &Path) -> Arc<Semaphore> {
    static QUEUES: LazyLock<Mutex<HashMap<PathBuf, Weak<Semaphore>>>> = LazyLock::new(Mutex::default);
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queue) = queues.get(path).and_then(Weak::upgrade) {
        return queue;
    }
    queues.retain(|_, queue| queue.strong_count() > 0);
    let queue = Arc::new(Semaphore::new(1));
    queues.insert(path.to_owned(), Arc::downgrade(&queue));
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_one_queue_as_long_as_it_is_used() {
        let (a, b) = (Path::new("/queue/a"), Path::new("/queue/b"));
        let first = writers_of(a);
        assert!(Arc::ptr_eq(&first, &writers_of(a)));
        assert!(!Arc::ptr_eq(&first, &writers_of(b)));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none());
        assert_eq!(writers_of(a).available_permits(), 1);
    }
}
