//! G05 and G07: runtimes that shut down, processes that are killed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    Action, ActionState, EffectStore, Failure, Finding, Inquiry, Outcome as Acquired, Probe, ProbeError,
    RunOutcome,
};
use coord_core::layer::{Cell, Fault, StoreClock, When};
use coord_core::{Bytes, Clock, ManualClock, Timestamp, async_trait};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::harness::{Act, Given};
use super::probing::{SETTLE, pass, reconciler};
use super::stage::{MARGIN, Stage, THIRD, TRUSTED, TTL, action, breathe, effect_seat, puppet};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::process::{Job, Seat as ProcessSeat, Worker};
use crate::{ensure, ensure_eq, ensure_matches, fail, skip};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "G05",
        layer: Layer::Effects,
        promise: "a runtime that shuts down in the middle writes nothing and drops the closure; the action is uncertain once the lease has expired",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(shut_down(cx)),
    },
    Clause {
        id: "G07",
        layer: Layer::Effects,
        promise: "processes that are killed with -9 before and after each transaction of a run, and those that come after them with a reconciler: an external \
                  ledger counts one execution of each action",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(killed(cx)),
    },
];

pub(crate) const JOBS: &[Job] = &[RUN];
const RUN: Job = Job { name: "guard run", body: run_and_die };

async fn shut_down(cx: Context) -> Outcome {
    let stage = Stage::new(cx)?;
    let observer = stage.seat("observer").await?;
    let (act, mut puppet) = puppet();
    let (begun, wait) = tokio::sync::oneshot::channel::<()>();
    let theirs = stage.clone();
    let thread = std::thread::spawn(move || -> Result<(), Verdict> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(async {
            let seat = theirs.seat("mortal").await?;
            drop(theirs.run(&seat, action("cut short"), theirs.options(), act));
            // The clause says when.
            let _ = wait.await;
            Ok::<_, Verdict>(())
        })?;
        runtime.shutdown_timeout(Duration::from_secs(10));
        Ok(())
    });
    puppet.began(&stage).await?;
    drop(begun);
    puppet.gone(&stage).await?;
    stage.until("the runtime is gone", || async { Ok(thread.is_finished().then_some(())) }).await?;
    match thread.join() {
        Ok(ended) => ended?,
        Err(_) => fail!("saw the thread of the runtime panic"),
    }
    let ours = action("cut short");
    for _ in 0..20 {
        let state = stage.status(&observer, &ours).await?.state;
        ensure_eq!(state, ActionState::InFlight, "the action before its lease has expired");
        breathe().await;
    }
    stage.clock.advance(TTL);
    let next = observer.store.acquire(&ours, TTL).await?;
    ensure_matches!(next, Acquired::Uncertain(_), "what the next one is told after the lease");
    Ok(())
}

/// How a closure of a process ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Way {
    Value,
    Unknown,
    NotApplied,
}

/// What a process is to do, and when it stops, to be killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    key: String,
    way: Way,
    /// Before or after the how-manieth transaction.
    txn: u64,
    before: bool,
    now: Timestamp,
    ledger: PathBuf,
    /// Written once it has stopped.
    marker: PathBuf,
}

/// The action itself: a line in a file.
fn execute(ledger: &Path, key: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(ledger)?;
    file.write_all(format!("{key}\n").as_bytes())?;
    file.sync_all()
}

fn executions(ledger: &Path) -> std::io::Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    if ledger.exists() {
        for line in std::fs::read_to_string(ledger)?.lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
    }
    Ok(counts)
}

async fn store_at(
    seat: &ProcessSeat,
    clock: Arc<ManualClock>,
    order: &Order,
) -> Result<Arc<dyn EffectStore>, Verdict> {
    let fault = Fault::new(seat.backend.clone());
    let faults = fault.faults();
    let backend = Arc::new(StoreClock::new(fault, clock.clone()));
    let Some(effects) = &seat.effects else { skip!("this program has no harness of side-effect stores") };
    let store =
        effects.open(backend, effect_seat(clock, "victim")).await.at("opening a side-effect store")?;
    let marker = order.marker.clone();
    let stop = move |_| {
        let marker = marker.clone();
        async move {
            // If this fails the clause waits in vain, and says so.
            let _ = std::fs::write(marker, "");
            std::future::pending::<()>().await;
        }
    };
    let when = When::txn().nth(order.txn);
    let cell = if order.before { Cell::pass().before(stop) } else { Cell::pass().then(stop) };
    faults.on(when, cell);
    Ok(store)
}

fn run_and_die(seat: ProcessSeat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let order: Order = serde_json::from_value(seat.request.clone())?;
        let clock = Arc::new(ManualClock::new(order.now));
        let store = store_at(&seat, clock.clone(), &order).await?;
        let guard = seat.guard.clone();
        let options = coord_core::effects::RunOptions::default().ttl(TTL).margin(MARGIN).clock(clock.clone());
        let (ours, way, ledger) = (action(&order.key), order.way, order.ledger.clone());
        let act: Act =
            Box::new(move |given| Box::pin(async move { act(given, clock, way, &ledger, &order.key).await }));
        guard.run(store, ours, options, act).await?;
        crate::fail!("saw the run end, though it was to be stopped at a transaction")
    })
}

/// Acts, and lets its lease be renewed once: that is a transaction too.
async fn act(
    given: Arc<dyn Given>,
    clock: Arc<ManualClock>,
    way: Way,
    ledger: &Path,
    key: &str,
) -> Result<Bytes, Failure<String>> {
    if !matches!(way, Way::NotApplied) {
        execute(ledger, key).map_err(|error| Failure::NotApplied(error.to_string()))?;
    }
    clock.advance(THIRD);
    while given.remaining() < TRUSTED {
        breathe().await;
    }
    match way {
        Way::Value => Ok(Bytes::from_static(b"done")),
        Way::Unknown => Err(Failure::Unknown("nobody knows".to_owned())),
        Way::NotApplied => Err(Failure::NotApplied("nothing was done".to_owned())),
    }
}

/// Looks into the ledger.
struct LedgerProbe(PathBuf);

#[async_trait]
impl Probe for LedgerProbe {
    async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError> {
        Ok(match executions(&self.0)?.get(inquiry.action.key.as_str()) {
            Some(_) => Finding::applied("done", "in the ledger"),
            None => Finding::not_applied("not in the ledger"),
        })
    }
}

async fn killed(cx: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let ledger = folder.path().join("ledger");
    let stage = Stage::new(cx)?;
    let mut keys = Vec::new();
    for way in [Way::Value, Way::Unknown, Way::NotApplied] {
        // Acquire, renew, and what comes of it.
        for txn in 1..=3 {
            for before in [true, false] {
                let key = format!("{way:?} {txn} {before}");
                let marker = folder.path().join(&key);
                let now = stage.clock.now();
                let order = Order { key: key.clone(), way, txn, before, now, ledger: ledger.clone(), marker };
                kill_at(&stage, &order).await.at(&key)?;
                keys.push(key);
            }
        }
    }
    stage.clock.advance(TTL * 2);
    let seat = stage.seat("successor").await?;
    for key in &keys {
        succeed(&stage, &seat, key, &ledger).await.at(key)?;
    }
    stage.clock.advance(SETTLE + TTL);
    let looking = pass(&stage, &seat, Arc::new(LedgerProbe(ledger.clone())), reconciler(&stage));
    super::probing::finish(&stage, looking, Duration::from_millis(10)).await.at("reconciling")?;
    for key in &keys {
        succeed(&stage, &seat, key, &ledger).await.at(key)?;
        let state = stage.status(&seat, &action(key)).await?.state;
        ensure_eq!(state, ActionState::Completed, "{key} in the end");
    }
    let counts = executions(&ledger)?;
    for key in &keys {
        ensure_eq!(counts.get(key), Some(&1), "executions of {key}, as the ledger counts them");
    }
    Ok(())
}

async fn kill_at(stage: &Stage, order: &Order) -> Outcome {
    let mut worker = Worker::start(&stage.cx, &RUN, serde_json::to_value(order)?).await?;
    worker.go().await?;
    let begin = stage.cx.elapsed();
    while !order.marker.exists() {
        ensure!(
            stage.cx.elapsed() - begin < stage.cx.patience(),
            "waited in vain for a process to come to its transaction"
        );
        breathe().await;
    }
    // It stands still at its transaction, and is killed with -9 where it stands.
    drop(worker);
    Ok(())
}

/// Somebody runs the action again.
async fn succeed(stage: &Stage, seat: &super::stage::Seat, key: &str, ledger: &Path) -> Outcome {
    let (ours, path): (Action, PathBuf) = (action(key), ledger.to_owned());
    let name = key.to_owned();
    let act: Act = Box::new(move |_| {
        Box::pin(async move {
            execute(&path, &name).map_err(|error| Failure::NotApplied(error.to_string()))?;
            Ok(Bytes::from_static(b"done"))
        })
    });
    let mut run = stage.run(seat, ours, stage.options(), act);
    match stage.outcome(&mut run).await? {
        Ok(RunOutcome::Executed { .. } | RunOutcome::Replayed(_) | RunOutcome::Uncertain { .. }) => Ok(()),
        ran => fail!("saw {ran:?} of the one who came after"),
    }
}
