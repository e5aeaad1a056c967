//! Tries and time limits around a statement.

use std::time::Duration;

use coord_core::token::mint_incarnation;
use coord_core::{BackendError, Clock, ErrorKind, Operation, SystemClock};
use deadpool::managed::Pool;
use tokio::time::timeout;

use crate::connection::{Connection, Connector, Lease};
use crate::error::Trouble;

/// How often at most one call is tried. Only what certainly did not happen is tried again.
const TRIES: u32 = 12;
/// The first wait between two tries. It doubles, up to the longest one.
const FIRST_WAIT: Duration = Duration::from_millis(4);
const LONGEST_WAIT: Duration = Duration::from_millis(400);

/// Something to do on a connection.
pub(crate) trait Work: Sync {
    /// What it brings.
    type Answer: Send;
    /// The operation of the contract that it is.
    const OPERATION: Operation;

    /// One try.
    fn run(&self, connection: &Connection) -> impl Future<Output = Result<Self::Answer, Trouble>> + Send;
}

/// Borrows a connection and does the work on it, again if it certainly did not happen, until the time of the call is over.
pub(crate) async fn call<W: Work>(pool: &Pool<Connector>, work: &W) -> Result<W::Answer, BackendError> {
    let clock = SystemClock::new();
    let end = clock.monotonic() + pool.manager().config().timeout();
    let mut wait = FIRST_WAIT;
    let mut tries = 0;
    loop {
        let trouble = match attempt(pool, work, &clock, end).await {
            Ok(answer) => return Ok(answer),
            Err(trouble) => trouble,
        };
        tries += 1;
        // Between half of the wait and all of it, so that those who met do not meet again.
        let half = wait.as_micros() as u64 / 2;
        let jittered = Duration::from_micros(half + mint_incarnation() % (half + 1));
        if !trouble.again || tries == TRIES || clock.monotonic() + jittered >= end {
            return Err(trouble.report(W::OPERATION));
        }
        tracing::debug!(operation = %W::OPERATION, tries, "trying again: {}", trouble.message);
        clock.sleep(jittered).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn attempt<W: Work>(
    pool: &Pool<Connector>,
    work: &W,
    clock: &SystemClock,
    end: Duration,
) -> Result<W::Answer, Trouble> {
    let rest = || end.saturating_sub(clock.monotonic());
    let limit = pool.manager().config().timeout();
    let Ok(lease) = timeout(rest(), Lease::take(pool)).await else {
        let text = format!("no connection became free or could be opened within {limit:?}");
        return Err(Trouble::new(ErrorKind::Unavailable, text));
    };
    let mut lease = lease?;
    let Some(connection) = lease.begin() else {
        lease.close();
        return Err(Trouble::new(ErrorKind::Unavailable, "the server closed the connection").again());
    };
    match timeout(rest(), work.run(connection)).await {
        Ok(Ok(answer)) => {
            lease.settle();
            Ok(answer)
        }
        Ok(Err(trouble)) => {
            if trouble.broken {
                lease.close();
            } else {
                lease.settle();
            }
            Err(trouble)
        }
        // The lease sees to the connection.
        Err(_) => {
            let kind = match W::OPERATION {
                Operation::Txn => ErrorKind::Indeterminate,
                _ => ErrorKind::Unavailable,
            };
            Err(Trouble::new(kind, format!("no answer of the server within {limit:?}")))
        }
    }
}
