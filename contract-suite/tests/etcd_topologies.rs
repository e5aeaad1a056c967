//! Three members of etcd, as processes of this machine: the suite on them, and failovers in the middle of work.
//!
//! What is promised: whatever happens to a minority, everything that was acknowledged is there, nothing happens twice or after it was answered
//! that it did not, and handles go on by themselves. Without a majority nothing is answered but clear errors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contract_suite::servers::etcd::topology::Cluster;
use contract_suite::servers::etcd::{ETCD, EtcdHarness};
use contract_suite::servers::{trials, wait_until};
use contract_suite::{ControlError, Harness as _};
use coord_core::{
    Assert, Backend, BackendError, Clock as _, ErrorKind, Key, KeyRange, KeySet, Mutation, Prefix,
    SystemClock, Txn, TxnOutcome, limits,
};
use tokio::task::JoinHandle;

const TESTS: &[(&str, trials::Test)] = &[
    ("three members: the suite", |programs| Box::pin(suite_on_cluster(programs))),
    ("three members: the leader is killed", |programs| Box::pin(leader_falls(programs, Fall::Kill))),
    ("three members: the leader stands still", |programs| Box::pin(leader_falls(programs, Fall::Pause))),
    ("three members: the one that clients are connected to is killed", |programs| {
        Box::pin(follower_killed(programs))
    }),
    ("three members: each is started again in its turn", |programs| Box::pin(rolling(programs))),
    ("three members: the majority is lost for a while", |programs| Box::pin(majority_lost(programs))),
];

/// How long a leader may say nothing.
const ELECTION: Duration = Duration::from_millis(500);
const PARAMETERS: &str = "request_timeout=2s&connect_timeout=500ms";

fn main() -> ExitCode {
    // The suite's clauses start this program again as a worker, with the URL of the cluster in the environment.
    let worker = EtcdHarness::given(std::env::var(ETCD.variable).unwrap_or_default());
    // Elections need processors that are not busy with other tests.
    trials::main(&ETCD, worker, TESTS, 1, Duration::from_secs(900))
}

async fn suite_on_cluster(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let cluster = Cluster::start(&programs[0], Duration::from_secs(4)).await?;
    let harness = EtcdHarness::given(cluster.url(&[0, 1, 2], "request_timeout=10s&connect_timeout=1s"));
    // etcd shows its clock to nobody.
    trials::whole_suite(harness, &[]).await
}

/// How a leader falls.
#[derive(Clone, Copy, PartialEq)]
enum Fall {
    Kill,
    /// It stands still, and comes back in the belief that it leads.
    Pause,
}

async fn leader_falls(programs: Vec<PathBuf>, fall: Fall) -> Result<(), ControlError> {
    let cluster = Cluster::start(&programs[0], ELECTION).await?;
    let leader = cluster.leader().await?;
    let (second, third) = ((leader + 1) % 3, (leader + 2) % 3);
    // Some are connected to the leader, some to one that hands on to it.
    let orders = [[leader, second, third], [second, leader, third], [third, second, leader]];
    let work = Work::start(&cluster, &orders).await?;
    work.reach(100).await?;
    let process = &cluster.members[leader].process;
    match fall {
        Fall::Kill => process.kill().await?,
        Fall::Pause => process.pause()?,
    }
    cluster.another_leader(leader).await?;
    work.reach(work.acknowledged() + 100).await?;
    match fall {
        Fall::Kill => process.restart().await?,
        Fall::Pause => process.resume()?,
    }
    // The one that fell has everything too.
    work.end(&cluster, &[leader]).await
}

async fn follower_killed(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let cluster = Cluster::start(&programs[0], ELECTION).await?;
    let leader = cluster.leader().await?;
    let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let work = Work::start(&cluster, &[[follower, other, leader]]).await?;
    work.reach(100).await?;
    cluster.members[follower].process.kill().await?;
    work.reach(work.acknowledged() + 100).await?;
    // A new handle gets past the dead one too.
    let clock = SystemClock::new();
    let harness = EtcdHarness::given(cluster.url(&[follower, leader], PARAMETERS));
    harness.open("late").await?.snapshot(&KeySet::new([shared()])?).await?;
    if clock.monotonic() > Duration::from_secs(2) {
        return Err(format!("a new handle took {:?}", clock.monotonic()).into());
    }
    work.end(&cluster, &[other]).await
}

/// As an upgrade does it.
async fn rolling(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let cluster = Cluster::start(&programs[0], ELECTION).await?;
    let work = Work::start(&cluster, &[[0, 1, 2], [1, 2, 0], [2, 0, 1]]).await?;
    for member in &cluster.members {
        work.reach(work.acknowledged() + 50).await?;
        member.process.terminate().await?;
        work.reach(work.acknowledged() + 50).await?;
        member.process.restart().await?;
    }
    work.end(&cluster, &[0]).await
}

async fn majority_lost(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let cluster = Cluster::start(&programs[0], ELECTION).await?;
    let work = Work::start(&cluster, &[[0, 1, 2], [1, 2, 0], [2, 0, 1]]).await?;
    work.reach(100).await?;
    let leader = cluster.leader().await?;
    let gone = [leader, (leader + 1) % 3];
    for index in gone {
        cluster.members[index].process.kill().await?;
    }
    // Whatever was under way has been answered, and nothing is acknowledged from then on.
    work.troubles(2 * CLIENTS as u64).await?;
    let acknowledged = work.acknowledged();
    let write = Txn::new([], [Mutation::put(name("lost"), "")])?;
    let read = KeySet::new([shared()])?;
    let (all, harness) =
        (KeyRange::new(Prefix::all(), 10)?, EtcdHarness::given(cluster.url(&[0, 1, 2], PARAMETERS)));
    for round in 0..2 {
        let clock = SystemClock::new();
        let took = |error: Option<BackendError>| error.map(|error| (error, clock.monotonic()));
        let (reading, listing, writing, opening) = tokio::join!(
            async { took(work.observer.snapshot(&read).await.err()) },
            async { took(work.observer.keys(&all).await.err()) },
            async { took(work.observer.txn(&write).await.err()) },
            async { took(harness.open("new").await.err()) },
        );
        for (what, error) in
            [("read", reading), ("listing", listing), ("write", writing), ("handle", opening)]
        {
            let (error, took) = error.ok_or_else(|| format!("a {what} without a majority"))?;
            // A write may have been sent, and may happen yet.
            let kind =
                error.kind() == ErrorKind::Unavailable || (what == "write" && error.is_indeterminate());
            let says = error.message().contains("127.0.0.1:")
                && (error.message().contains("within 2s") || error.message().contains("etcdserver"));
            if !kind || !says || took > Duration::from_secs(4) {
                return Err(format!("round {round}, a {what}, after {took:?}: {error:?}").into());
            }
        }
    }
    if work.acknowledged() != acknowledged {
        return Err("something was acknowledged without a majority".into());
    }
    for index in gone {
        cluster.members[index].process.restart().await?;
    }
    work.end(&cluster, &gone).await
}

const CLIENTS: usize = 6;

/// What a client was told of one of its transactions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Applied,
    /// Rejected, or an error that says that it did not happen.
    Not,
    Unknown,
}

/// Clients that count up a shared key by compare-and-set, each time with a key of that transaction's own; and that put another key of its own
/// without a condition.
struct Work {
    observer: Arc<dyn Backend>,
    shared: Arc<Counts>,
    clients: Vec<JoinHandle<Result<(), BackendError>>>,
}

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    /// Calls that ended with an error.
    troubles: AtomicU64,
    told: Mutex<BTreeMap<Key, Told>>,
}

fn name(text: impl AsRef<str>) -> Key {
    Key::new(text).expect("a valid key")
}

fn shared() -> Key {
    name("shared")
}

impl Work {
    /// Clients whose handles have the members in one of these orders each.
    async fn start(cluster: &Cluster, orders: &[[usize; 3]]) -> Result<Work, ControlError> {
        let mut work = Work {
            observer: EtcdHarness::given(cluster.url(&[0, 1, 2], PARAMETERS)).open("work").await?,
            shared: Arc::default(),
            clients: Vec::new(),
        };
        let first = Txn::new([Assert::missing(shared())], [Mutation::put(shared(), "")])?;
        if !work.observer.txn(&first).await?.is_applied() {
            return Err("the key is not put".into());
        }
        for client in 0..CLIENTS {
            let url = cluster.url(&orders[client % orders.len()], PARAMETERS);
            let (backend, counts) = (EtcdHarness::given(url).open("work").await?, work.shared.clone());
            work.clients.push(tokio::spawn(async move { counts.work(&*backend, client).await }));
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

    /// Waits until work goes on after all faults, with the handles that were open before, and compares what clients were told with what is
    /// there, as seen by handles on each of these members.
    async fn end(self, cluster: &Cluster, members: &[usize]) -> Result<(), ControlError> {
        self.reach(self.acknowledged() + 100).await?;
        self.shared.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.await??;
        }
        let told = std::mem::take(&mut *self.shared.told.lock().unwrap_or_else(PoisonError::into_inner));
        compare(&*self.observer, &told).await?;
        for member in members {
            let url = cluster.url(&[*member], "request_timeout=10s&connect_timeout=1s");
            compare(&*EtcdHarness::given(url).open("work").await?, &told).await?;
        }
        Ok(())
    }
}

async fn compare(backend: &dyn Backend, told: &BTreeMap<Key, Told>) -> Result<(), ControlError> {
    let there = backend.keys(&KeyRange::new(Prefix::new("done/")?, limits::LISTING_KEYS)?).await?;
    if there.len() == limits::LISTING_KEYS {
        return Err("more transactions than one listing holds".into());
    }
    for key in &there {
        // Every attempt is kept before it is made.
        if told.get(key).is_none_or(|told| *told == Told::Not) {
            return Err(format!("{key:?} has happened, and was answered as {:?}", told.get(key)).into());
        }
    }
    for (key, told) in told {
        if *told == Told::Applied && there.binary_search(key).is_err() {
            return Err(format!("{key:?} was acknowledged, and is not there").into());
        }
    }
    let snapshot = backend.snapshot(&KeySet::new(there.iter().cloned().chain([shared()]))?).await?;
    for key in &there {
        let count = snapshot.require(key)?.version().count();
        if count != 1 {
            return Err(format!("{key:?} has happened {count} times").into());
        }
    }
    let conditional = there.iter().filter(|key| key.as_str().starts_with("done/cas/")).count() as u64;
    // The first write made the key.
    let count = snapshot.require(&shared())?.version().count() - 1;
    if count != conditional {
        return Err(
            format!("the shared key was counted up {count} times by {conditional} transactions").into()
        );
    }
    Ok(())
}

impl Counts {
    async fn work(&self, backend: &dyn Backend, client: usize) -> Result<(), BackendError> {
        let clock = SystemClock::new();
        let keys = KeySet::new([shared()])?;
        for number in 0_u64.. {
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
            let blind = name(format!("done/blind/{client}/{number}"));
            let mut failed =
                self.attempt(backend, &blind, &Txn::new([], [Mutation::put(blind.clone(), "")])?).await?;
            match backend.snapshot(&keys).await {
                Ok(snapshot) => {
                    let own = name(format!("done/cas/{client}/{number}"));
                    let assert = Assert::version(shared(), snapshot.require(&shared())?.version());
                    let puts = [Mutation::put(shared(), ""), Mutation::put(own.clone(), "")];
                    failed |= self.attempt(backend, &own, &Txn::new([assert], puts)?).await?;
                }
                Err(error) => {
                    self.trouble(error)?;
                    failed = true;
                }
            }
            if failed {
                clock.sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Makes a transaction and keeps what is told of it. Whether that was an error.
    async fn attempt(&self, backend: &dyn Backend, own: &Key, txn: &Txn) -> Result<bool, BackendError> {
        let keep = |told| self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(own.clone(), told);
        keep(Told::Unknown);
        match backend.txn(txn).await {
            Ok(TxnOutcome::Applied) => {
                keep(Told::Applied);
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
                Ok(false)
            }
            Ok(TxnOutcome::Rejected) => {
                keep(Told::Not);
                Ok(false)
            }
            Err(error) => {
                if !error.is_indeterminate() {
                    keep(Told::Not);
                }
                self.trouble(error)?;
                Ok(true)
            }
        }
    }

    fn trouble(&self, error: BackendError) -> Result<(), BackendError> {
        self.troubles.fetch_add(1, Ordering::SeqCst);
        if error.is_retryable() || error.is_indeterminate() { Ok(()) } else { Err(error) }
    }
}
