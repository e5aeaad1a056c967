//! Redis Cluster and Redis behind Sentinel, as processes of this machine: the suite on each, and failovers in the middle of work.
//!
//! What is promised with `wait_replicas=1` and one replica: after a failover everything that was acknowledged is there, and no version that was
//! acknowledged is given again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use contract_suite::servers::redis::topology::{Cluster, Node, Sentinels, wait_for};
use contract_suite::servers::redis::{REDIS, RedisHarness};
use contract_suite::servers::{trials, wait_until};
use contract_suite::{ControlError, Harness as _};
use coord_core::{
    Assert, Backend, Bytes, Clock as _, Entry, Key, KeySet, Mutation, SystemClock, Txn, TxnOutcome, Version,
};

const TESTS: &[(&str, trials::Test)] = &[
    ("cluster: the suite", |programs| Box::pin(suite_on_cluster(programs))),
    ("cluster: the master is killed", |programs| Box::pin(cluster_failover(programs, Fall::Kill))),
    ("cluster: the master stands still", |programs| Box::pin(cluster_failover(programs, Fall::Pause))),
    ("cluster: slots move to another master", |programs| Box::pin(slots_move(programs))),
    ("sentinel: the suite", |programs| Box::pin(suite_by_sentinel(programs))),
    ("sentinel: the master is killed", |programs| Box::pin(sentinel_failover(programs, Fall::Kill))),
    ("sentinel: the master stands still", |programs| Box::pin(sentinel_failover(programs, Fall::Pause))),
];

fn main() -> ExitCode {
    // The suite's clauses start this program again as a worker, with the URL of the topology in the environment.
    let worker = RedisHarness::given(std::env::var(REDIS.variable).unwrap_or_default());
    // Each starts many processes; one at a time.
    trials::main(&REDIS, worker, TESTS, 1, Duration::from_secs(900))
}

async fn suite_on_cluster(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let cluster = Cluster::start(&programs[0]).await?;
    trials::whole_suite(RedisHarness::given(cluster.url("wait_replicas=1&wait_timeout=10s")), &[]).await
}

async fn suite_by_sentinel(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let sentinels = Sentinels::start(&programs[0]).await?;
    trials::whole_suite(RedisHarness::given(sentinels.url("wait_replicas=1&wait_timeout=10s")), &[]).await
}

/// How a master falls.
#[derive(Clone, Copy)]
enum Fall {
    Kill,
    /// It stands still, and comes back in the belief that it is the master.
    Pause,
}

impl Fall {
    async fn down(self, node: &Node) -> Result<(), ControlError> {
        match self {
            Fall::Kill => node.process.kill().await,
            Fall::Pause => node.process.pause(),
        }
    }

    async fn up(self, node: &Node) -> Result<(), ControlError> {
        match self {
            Fall::Kill => node.process.restart().await,
            Fall::Pause => node.process.resume(),
        }
    }
}

async fn cluster_failover(programs: Vec<PathBuf>, fall: Fall) -> Result<(), ControlError> {
    let cluster = Cluster::start(&programs[0]).await?;
    let url = cluster.url("wait_replicas=1&wait_timeout=1s&response_timeout=1s&connect_timeout=1s");
    let work = Work::start(&url, "failover").await?;
    work.reach(40).await?;
    let old = cluster.master_of("failover").await?;
    fall.down(old).await?;
    wait_until(Duration::from_secs(60), || async {
        let now = cluster.master_known_by_others(old, "failover").await?;
        if now.port == old.port { Err("nobody has taken over".into()) } else { Ok(()) }
    })
    .await?;
    fall.up(old).await?;
    wait_for(old.port, "INFO replication", &["role:slave", "master_link_status:up"]).await?;
    work.end().await
}

async fn sentinel_failover(programs: Vec<PathBuf>, fall: Fall) -> Result<(), ControlError> {
    let sentinels = Sentinels::start(&programs[0]).await?;
    let url = sentinels.url("wait_replicas=1&wait_timeout=1s&response_timeout=1s&connect_timeout=1s");
    let work = Work::start(&url, "failover").await?;
    work.reach(40).await?;
    let old = sentinels.master().await?;
    fall.down(old).await?;
    wait_until(Duration::from_secs(60), || async {
        let now = sentinels.master().await?;
        if now.port == old.port { Err("the sentinels have named no other master".into()) } else { Ok(()) }
    })
    .await?;
    fall.up(old).await?;
    wait_for(old.port, "INFO replication", &["role:slave", "master_link_status:up"]).await?;
    work.end().await
}

/// The slot of the namespace is moved, key by key, while clients work in it.
async fn slots_move(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let cluster = Cluster::start(&programs[0]).await?;
    let url = cluster.url("response_timeout=2s&connect_timeout=1s");
    let work = Work::start(&url, "moving").await?;
    work.reach(40).await?;
    for _ in 0..3 {
        let from = cluster.master_of("moving").await?;
        // Nobody fails here, so the first three nodes are the masters.
        let to = cluster.nodes[..3].iter().find(|node| node.port != from.port).ok_or("one master only")?;
        cluster.move_slot("moving", from, to).await?;
        let reached = work.acknowledged();
        work.reach(reached + 40).await?;
    }
    work.end().await
}

/// Clients that count up, each in a key of its own, and check at every step that nothing that was acknowledged is lost.
struct Work {
    backend: Arc<dyn Backend>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<Result<Log, String>>>,
    seen: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

/// What one client was told: every version that was acknowledged, with what was written under it.
#[derive(Default)]
struct Log {
    versions: BTreeMap<Version, String>,
    last: Option<Version>,
}

const CLIENTS: usize = 4;

fn counter(client: usize) -> Key {
    Key::new(format!("counter/{client}")).expect("a valid key")
}

impl Work {
    async fn start(url: &str, namespace: &str) -> Result<Work, ControlError> {
        let harness = RedisHarness::given(url.to_owned());
        let mut work = Work {
            backend: harness.open(namespace).await?,
            stop: Arc::default(),
            acknowledged: Arc::default(),
            clients: Vec::new(),
            seen: Arc::default(),
        };
        for client in 0..CLIENTS {
            let backend = harness.open(namespace).await?;
            let (stop, acknowledged, seen) =
                (work.stop.clone(), work.acknowledged.clone(), work.seen.clone());
            work.clients.push(tokio::spawn(async move {
                let outcome = count_up(&*backend, client, &stop, &acknowledged, &seen).await;
                outcome.map_err(|error| format!("client {client}: {error}"))
            }));
        }
        Ok(work)
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits until so many writes were acknowledged.
    async fn reach(&self, count: u64) -> Result<(), ControlError> {
        wait_until(Duration::from_secs(90), || async {
            let (now, seen) = (self.acknowledged(), self.seen.lock().map_err(|_| "a client panicked")?);
            if self.clients.iter().any(tokio::task::JoinHandle::is_finished) {
                // Its error is shown at the end.
                return Ok(());
            }
            if now >= count { Ok(()) } else { Err(format!("{now} of {count} writes; {seen:?}").into()) }
        })
        .await
    }

    /// Waits until work goes on after all faults, with the handles that were open before, and compares what was acknowledged with what is there.
    async fn end(self) -> Result<(), ControlError> {
        self.reach(self.acknowledged() + 80).await?;
        self.stop.store(true, Ordering::SeqCst);
        let mut logs = Vec::new();
        for client in self.clients {
            logs.push(client.await??);
        }
        let keys: Vec<Key> = (0..CLIENTS).map(counter).collect();
        let snapshot = self.backend.snapshot(&KeySet::new(keys.clone())?).await?;
        for (key, log) in keys.iter().zip(&logs) {
            let Entry::Present { version, value } = snapshot.require(key)? else {
                return Err(format!("{key} is gone").into());
            };
            let last = log.last.ok_or_else(|| format!("{key} was never written"))?;
            if version.incarnation() != last.incarnation() || version.count() < last.count() {
                return Err(format!("{key} is at {version}, and {last} was acknowledged").into());
            }
            // Each value is the list of all writes that led to it.
            let text = String::from_utf8_lossy(value);
            let history: Vec<&str> = text.split(' ').collect();
            let lost: Vec<_> =
                log.versions.iter().filter(|(_, mark)| !history.contains(&mark.as_str())).collect();
            if !lost.is_empty() {
                return Err(format!("{key} has lost acknowledged writes: {lost:?}").into());
            }
        }
        Ok(())
    }
}

async fn count_up(
    backend: &dyn Backend,
    client: usize,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
    seen: &Mutex<BTreeMap<&'static str, u64>>,
) -> Result<Log, String> {
    let (clock, key, mut log) = (SystemClock::new(), counter(client), Log::default());
    let keys = KeySet::new([key.clone()]).map_err(|error| error.to_string())?;
    let note = |what: &'static str| {
        *seen.lock().expect("no client panics while it holds this").entry(what).or_default() += 1;
    };
    let mut attempt = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        let entry = match backend.snapshot(&keys).await {
            Ok(snapshot) => snapshot.require(&key).map_err(|error| error.to_string())?.clone(),
            Err(error) if error.is_retryable() => {
                note("unavailable reads");
                clock.sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(error) => return Err(format!("a read: {error:?}")),
        };
        let version = entry.version();
        if let Some(last) = log.last
            && (version.incarnation() != last.incarnation() || version.count() < last.count())
        {
            return Err(format!("{key} is at {version} after {last} was acknowledged"));
        }
        attempt += 1;
        let mark = format!("{client}.{attempt}");
        let text = match entry.value() {
            Some(value) => format!("{} {mark}", String::from_utf8_lossy(value)),
            None => mark.clone(),
        };
        let txn = Txn::new(
            [Assert::version(key.clone(), version)],
            [Mutation::put(key.clone(), Bytes::from(text))],
        )
        .map_err(|error| error.to_string())?;
        match backend.txn(&txn).await {
            Ok(TxnOutcome::Applied) => {
                acknowledged.fetch_add(1, Ordering::SeqCst);
                note("applied");
                // What a creation is called, the next read tells.
                if let Some(next) = version.next() {
                    log.last = Some(next);
                    if let Some(other) = log.versions.insert(next, mark.clone()) {
                        return Err(format!("{next} was given to {other} and again to {mark}"));
                    }
                }
            }
            // A write of this client whose answer was lost has landed after all.
            Ok(TxnOutcome::Rejected) => note("rejected"),
            Err(error) if error.is_indeterminate() => note("unknown"),
            Err(error) if error.is_retryable() => {
                note("unavailable");
                clock.sleep(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(format!("a write: {error:?}")),
        }
    }
    Ok(log)
}
