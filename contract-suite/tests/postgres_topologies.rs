//! PostgreSQL with a synchronous standby, as processes of this machine: the suite on it, and failovers in the middle of work.
//!
//! What is promised: after a failover to a synchronous standby everything that was acknowledged is there, whole transactions are, and
//! versions go on.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use contract_suite::servers::postgres::{POSTGRES, PostgresHarness, PostgresServer, Programs};
use contract_suite::servers::{trials, wait_until};
use contract_suite::{ControlError, Harness as _};
use coord_core::{
    Assert, Backend, BackendError, Clock as _, Key, KeySet, Mutation, SystemClock, Txn, TxnOutcome,
};
use tokio::task::JoinHandle;

const TESTS: &[(&str, trials::Test)] = &[
    ("synchronous standby: the suite", |programs| Box::pin(suite_on_pair(programs))),
    ("synchronous standby: the primary is killed", |programs| Box::pin(failover(programs, Fall::Kill))),
    ("synchronous standby: the primary stands still, and is fenced off", |programs| {
        Box::pin(failover(programs, Fall::Pause))
    }),
    ("synchronous standby: it is away for a while", |programs| Box::pin(standby_away(programs))),
];

fn main() -> ExitCode {
    // The suite's clauses start this program again as a worker, with the URL of the pair in the environment.
    let worker = PostgresHarness::given(std::env::var(POSTGRES.variable).unwrap_or_default());
    // Each starts many processes; one at a time.
    trials::main(&POSTGRES, worker, TESTS, 1, Duration::from_secs(900))
}

/// A primary, and a standby without which nothing is acknowledged.
struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
}

impl Pair {
    async fn start(programs: Vec<PathBuf>) -> Result<Pair, ControlError> {
        let programs = Programs::new(programs)?;
        let primary = programs.primary(&[]).await?;
        let standby = programs.standby(&primary, "second", &[]).await?;
        // Only now, so that the standby, once it is the primary, waits for nobody.
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'second'").await?;
        primary.execute("SELECT pg_reload_conf()").await?;
        let pair = Pair { primary, standby };
        pair.in_step().await?;
        Ok(pair)
    }

    /// Waits until the standby follows, and the primary waits for it.
    async fn in_step(&self) -> Result<(), ControlError> {
        wait_until(Duration::from_secs(30), || async {
            let names = self.primary.value("SHOW synchronous_standby_names").await?;
            let state = self.primary.value("SELECT sync_state FROM pg_stat_replication").await?;
            if names == "second" && state == "sync" {
                Ok(())
            } else {
                Err(format!("{names:?} is {state}").into())
            }
        })
        .await
    }

    fn url(&self, parameters: &str) -> String {
        // The standby first: it is not taken for the primary.
        format!(
            "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?{parameters}",
            self.standby.port(),
            self.primary.port()
        )
    }
}

async fn suite_on_pair(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let pair = Pair::start(programs).await?;
    trials::whole_suite(PostgresHarness::given(pair.url("timeout=20s&pool_size=4")), &[]).await
}

/// How a primary falls.
#[derive(Clone, Copy)]
enum Fall {
    Kill,
    /// It stands still, another one takes over, and it is killed before it can go on.
    Pause,
}

async fn failover(programs: Vec<PathBuf>, fall: Fall) -> Result<(), ControlError> {
    let pair = Pair::start(programs).await?;
    let work = Work::start(&pair.url("timeout=4s&connect_timeout=1s")).await?;
    work.reach(60).await?;
    match fall {
        Fall::Kill => pair.primary.process().kill().await?,
        Fall::Pause => {
            pair.primary.process().pause()?;
            // The callers have given up at least once.
            work.troubles(8).await?;
        }
    }
    pair.standby.value("SELECT pg_promote(true, 30)").await?;
    if let Fall::Pause = fall {
        pair.primary.process().kill().await?;
    }
    work.end().await
}

/// The standby is gone: nothing is acknowledged, for it would be on one disk only; the work goes on when it is back, over the same handles.
async fn standby_away(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let pair = Pair::start(programs).await?;
    let work = Work::start(&pair.url("timeout=2s&connect_timeout=1s")).await?;
    work.reach(60).await?;
    pair.standby.process().kill().await?;
    // Every client has a transaction of which it does not know whether it happened.
    work.troubles(8).await?;
    let acknowledged = work.acknowledged();
    work.troubles(8).await?;
    if work.acknowledged() != acknowledged {
        return Err("a transaction was acknowledged without its standby".into());
    }
    pair.standby.process().restart().await?;
    work.end().await
}

const CLIENTS: usize = 4;

/// Clients that count up a key that they share and one of their own, both in one transaction.
struct Work {
    observer: Arc<dyn Backend>,
    shared: Arc<Counts>,
    clients: Vec<JoinHandle<Result<u64, String>>>,
}

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    /// Calls that ended with an error.
    troubles: AtomicU64,
}

fn name(text: String) -> Key {
    Key::new(text).expect("a valid key")
}

fn all() -> Key {
    name("all".to_owned())
}

fn own(client: usize) -> Key {
    name(format!("own/{client}"))
}

impl Work {
    async fn start(url: &str) -> Result<Work, ControlError> {
        let harness = PostgresHarness::given(url.to_owned());
        let observer = harness.open("work").await?;
        let keys = (0..CLIENTS).map(own).chain([all()]);
        if !observer.txn(&Txn::new([], keys.map(|key| Mutation::put(key, "")))?).await?.is_applied() {
            return Err("the keys are not put".into());
        }
        let mut work = Work { observer, shared: Arc::default(), clients: Vec::new() };
        for client in 0..CLIENTS {
            let (backend, shared) = (harness.open("work").await?, work.shared.clone());
            work.clients.push(tokio::spawn(async move {
                count_up(&*backend, client, &shared)
                    .await
                    .map_err(|error| format!("client {client}: {error}"))
            }));
        }
        Ok(work)
    }

    fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::SeqCst)
    }

    async fn until(&self, what: &str, counter: &AtomicU64, count: u64) -> Result<(), ControlError> {
        wait_until(Duration::from_secs(120), || async {
            let now = counter.load(Ordering::SeqCst);
            // The error of a client that has ended is shown at the end.
            if now >= count || self.clients.iter().any(JoinHandle::is_finished) {
                return Ok(());
            }
            Err(format!("{now} of {count} {what}").into())
        })
        .await
    }

    /// Waits until so many transactions were acknowledged in all.
    async fn reach(&self, count: u64) -> Result<(), ControlError> {
        self.until("transactions", &self.shared.acknowledged, count).await
    }

    /// Waits for so many more errors.
    async fn troubles(&self, more: u64) -> Result<(), ControlError> {
        let now = self.shared.troubles.load(Ordering::SeqCst);
        self.until("errors", &self.shared.troubles, now + more).await
    }

    /// Waits until work goes on after all faults, with the handles that were open before, and compares what was acknowledged with what is there.
    async fn end(self) -> Result<(), ControlError> {
        self.reach(self.acknowledged() + 100).await?;
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut acknowledged = Vec::new();
        for client in self.clients {
            acknowledged.push(client.await??);
        }
        let keys: Vec<Key> = (0..CLIENTS).map(own).chain([all()]).collect();
        let snapshot = self.observer.snapshot(&KeySet::new(keys)?).await?;
        let mut sum = 0;
        for (client, acknowledged) in acknowledged.into_iter().enumerate() {
            // The first write made the key.
            let count = snapshot.require(&own(client))?.version().count() - 1;
            if count < acknowledged {
                return Err(format!(
                    "client {client} was told of {acknowledged} writes, and {count} are there"
                )
                .into());
            }
            sum += count;
        }
        let together = snapshot.require(&all())?.version().count() - 1;
        if together != sum {
            return Err(
                format!("{together} writes of the shared key, {sum} of the others: one was torn").into()
            );
        }
        Ok(())
    }
}

/// Returns how many writes were acknowledged.
async fn count_up(backend: &dyn Backend, client: usize, shared: &Counts) -> Result<u64, BackendError> {
    let clock = SystemClock::new();
    let keys = KeySet::new([all(), own(client)])?;
    let mut acknowledged = 0;
    while !shared.stop.load(Ordering::SeqCst) {
        let outcome = increment(backend, client, &keys, acknowledged).await;
        match outcome {
            Ok(TxnOutcome::Applied) => {
                acknowledged += 1;
                shared.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Ok(TxnOutcome::Rejected) => {}
            Err(error) if error.is_retryable() || error.is_indeterminate() => {
                shared.troubles.fetch_add(1, Ordering::SeqCst);
                clock.sleep(Duration::from_millis(5)).await;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(acknowledged)
}

async fn increment(
    backend: &dyn Backend,
    client: usize,
    keys: &KeySet,
    acknowledged: u64,
) -> Result<TxnOutcome, BackendError> {
    let snapshot = backend.snapshot(keys).await?;
    let mut asserts = Vec::new();
    for key in [all(), own(client)] {
        asserts.push(Assert::version(key.clone(), snapshot.require(&key)?.version()));
    }
    let count = snapshot.require(&own(client))?.version().count() - 1;
    if count < acknowledged {
        let text = format!("saw {count} writes where {acknowledged} were acknowledged");
        return Err(BackendError::new(
            coord_core::ErrorKind::Corrupt,
            "test",
            coord_core::Operation::Snapshot,
            text,
        ));
    }
    let puts = [all(), own(client)].map(|key| Mutation::put(key, count.to_string()));
    backend.txn(&Txn::new(asserts, puts)?).await
}
