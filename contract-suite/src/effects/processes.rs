//! E30: several processes, an external ledger, and kill -9 at each step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coord_core::board::AgentId;
use coord_core::effects::{
    Action, EffectError, EffectStore, Fingerprint, Lease, ListFilter, Outcome as Acquired, Resolution,
};
use coord_core::layer::{Cell, Fault, When};
use coord_core::{Bytes, Clock, SystemClock};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::stage::{alone, note, on};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::EffectSeat;
use crate::process::{Job, Seat, Worker, run_workers};
use crate::{ensure, ensure_eq, fail, skip};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E30",
        layer: Layer::Effects,
        promise: "several processes over one store: E04 and E08 by an external ledger that counts executions",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(ledger(cx)),
    },
    Clause {
        id: "E30.killed",
        layer: Layer::Effects,
        promise: "a process killed (-9) before or after any of its transactions, or of its own steps: at most one execution \
                  without a ruling in between, and a result that was reported as stored is there",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(killed(cx)),
    },
];

pub(crate) const JOBS: &[Job] = &[RUN, DIE];

const RUN: Job = Job { name: "effects run", body: run };
const DIE: Job = Job { name: "effects die", body: die };

const WORKERS: usize = 4;
const KEYS: usize = 12;
/// Longer than any run: the store's own clock counts here.
const TTL: Duration = Duration::from_secs(3_600);

fn seat(agent: &str) -> EffectSeat {
    EffectSeat {
        clock: Arc::new(SystemClock::new()),
        max_clock_skew: Duration::from_millis(50),
        agent: AgentId::unchecked(agent),
    }
}

async fn store(seat: &Seat, agent: &str) -> Result<Arc<dyn EffectStore>, Verdict> {
    let Some(effects) = &seat.effects else { skip!("this program has no harness of side-effect stores") };
    effects.open(seat.backend.clone(), self::seat(agent)).await.at("opening a side-effect store")
}

/// Where the outside world keeps what was done: a line an execution, appended in one write.
struct Ledger(PathBuf);

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    key: String,
    worker: u64,
    fence: u64,
    downstream_key: String,
}

impl Ledger {
    fn write(&self, line: &Line) -> Outcome {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&self.0)?;
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        file.write_all(text.as_bytes())?;
        Ok(())
    }

    fn read(&self) -> Result<Vec<Line>, Verdict> {
        let text = match std::fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

/// What one process was told of one key.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    key: String,
    result: String,
    fence: Option<u64>,
}

fn shared(n: usize) -> Action {
    // Every third key has a resource that it shares with others.
    let action =
        if n.is_multiple_of(3) { on(format!("mail {n}"), "gate") } else { alone(format!("mail {n}")) };
    action.fingerprint(Fingerprint::of_bytes(format!("to {n}").as_bytes()))
}

/// Does every key if nobody else does, and waits for its result if somebody else does.
fn run(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let worker = seat.request["worker"].as_u64().unwrap_or(0);
        let Some(path) = seat.request["ledger"].as_str() else { fail!("saw no ledger in the request") };
        let ledger = Ledger(PathBuf::from(path));
        let store = store(&seat, &format!("process {worker}")).await?;
        let clock = SystemClock::new();
        let mut answers = Vec::new();
        for n in 0..KEYS {
            let action = shared(n);
            let mut fence = None;
            let result = loop {
                ensure!(
                    clock.monotonic() < Duration::from_secs(60),
                    "saw no end of waiting for {:?}",
                    action.key
                );
                match store.acquire(&action, TTL).await.at(format!("acquiring {:?}", action.key))? {
                    Acquired::Granted(lease) => {
                        fence = Some(lease.fence);
                        execute(&*store, &ledger, worker, &lease).await?;
                    }
                    Acquired::Completed(kept) => {
                        break kept.result().map(|text| String::from_utf8_lossy(text).into_owned());
                    }
                    Acquired::InFlight(_) | Acquired::Contended(_) => tokio::task::yield_now().await,
                    Acquired::Uncertain(uncertain) => fail!("saw {uncertain:?} although nobody died"),
                }
            };
            let Some(result) = result else { fail!("saw no result of {:?}", action.key) };
            answers.push(Told { key: action.key.to_string(), result, fence });
        }
        Ok(serde_json::to_value(answers)?)
    })
}

async fn execute(store: &dyn EffectStore, ledger: &Ledger, worker: u64, lease: &Lease) -> Outcome {
    ledger.write(&Line {
        key: lease.action.key.to_string(),
        worker,
        fence: lease.fence,
        downstream_key: lease.downstream_key.clone(),
    })?;
    let result = Bytes::from(format!("by {worker} under {}", lease.fence));
    let kept = store.complete(&lease.action, lease, result.clone()).await.at("completing")?;
    ensure_eq!(kept.result(), Some(&result), "what a completion returns");
    let again = store.complete(&lease.action, lease, result.clone()).await.at("completing again")?;
    ensure_eq!(again, kept, "what a completion returns when it is repeated");
    Ok(())
}

async fn ledger(cx: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let ledger = Ledger(folder.path().join("ledger"));
    let requests = (0..WORKERS)
        .map(|worker| json!({ "worker": worker, "ledger": ledger.0.to_string_lossy() }))
        .collect();
    let answers = run_workers(&cx, &RUN, requests).await?;
    let mut done: BTreeMap<String, Vec<Line>> = BTreeMap::new();
    for line in ledger.read()? {
        done.entry(line.key.clone()).or_default().push(line);
    }
    for (worker, answer) in answers.into_iter().enumerate() {
        let told: Vec<Told> = serde_json::from_value(answer)?;
        ensure_eq!(told.len(), KEYS, "the keys that process {worker} was told of");
        for told in told {
            let [line] = &done.get(&told.key).map_or(&[][..], Vec::as_slice) else {
                fail!("saw {:?} in the ledger for {:?}, not one execution", done.get(&told.key), told.key)
            };
            ensure_eq!(
                told.result,
                format!("by {} under {}", line.worker, line.fence),
                "the result that process {worker} was told of {:?}",
                told.key
            );
            ensure!(
                told.fence.is_none() || told.fence == Some(line.fence),
                "saw a grant with the fence {:?} beside {line:?}",
                told.fence
            );
        }
    }
    // Fences of one resource are given once, by whatever process.
    let mut fences: Vec<u64> = (0..KEYS)
        .filter(|n| n.is_multiple_of(3))
        .filter_map(|n| done.get(&format!("mail {n}")).and_then(|lines| lines.first()))
        .map(|line| line.fence)
        .collect();
    let count = fences.len();
    fences.sort_unstable();
    fences.dedup();
    ensure_eq!(fences.len(), count, "the different fences that one resource gave");
    let here = cx.effects(cx.open().await?, seat("the clause")).await?;
    for n in 0..KEYS {
        let action = shared(n);
        let Some(history) = here.history(&action.key).await? else {
            fail!("saw nothing of {:?}", action.key)
        };
        ensure!(history.evidence.is_empty(), "saw evidence of another execution of {:?}", action.key);
    }
    Ok(())
}

/// How long the attempts of processes that die hold.
const SHORT: Duration = Duration::from_millis(200);

/// Does one key, and is killed at one of its steps.
fn die(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let request = seat.request.clone();
        let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
        let (ledger, step) = (Ledger(PathBuf::from(text("ledger"))), text("step"));
        let nth = request["nth"].as_u64().unwrap_or(1);
        let faulty = Fault::new(seat.backend.clone());
        let Some(effects) = &seat.effects else { skip!("this program has no harness of side-effect stores") };
        let store = effects.open(Arc::new(faulty.clone()), self::seat("mortal")).await.at("opening")?;
        let dies = |_| async { end_it() };
        match step.as_str() {
            "before a transaction" => {
                faulty.faults().on(When::txn().nth(nth), Cell::pass().before(dies));
            }
            "after a transaction" => {
                faulty.faults().on(When::txn().nth(nth), Cell::pass().then(dies));
            }
            _ => {}
        }
        let action = alone(text("key"));
        let Acquired::Granted(lease) = store.acquire(&action, SHORT).await.at("acquiring")? else {
            fail!("saw no grant")
        };
        if step == "before the execution" {
            end_it();
        }
        ledger.write(&Line {
            key: action.key.to_string(),
            worker: 0,
            fence: lease.fence,
            downstream_key: lease.downstream_key.clone(),
        })?;
        if step == "after the execution" {
            end_it();
        }
        let ending = text("ending");
        match ending.as_str() {
            "complete" => {
                store.complete(&action, &lease, Bytes::from_static(b"done")).await.at("completing")?;
                // Reported as stored.
                std::fs::write(format!("{}.stored", ledger.0.to_string_lossy()), action.key.as_str())?;
            }
            "mark" => {
                store.mark_uncertain(&action, &lease, &note("no answer")).await.at("marking")?;
            }
            _ => store.renew(&action, &lease, SHORT).await.map(drop).at("renewing")?,
        }
        end_it();
        Ok(Value::Null)
    })
}

/// Kills this process as `kill -9` does: nothing of it runs any more.
fn end_it() {
    let pid = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &pid]).status();
}

async fn killed(cx: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let here = cx.effects(cx.open().await?, seat("survivor")).await?;
    let mut steps: Vec<(&str, u64)> =
        vec![("before the execution", 0), ("after the execution", 0), ("at the end", 0)];
    for nth in 1..=2 {
        steps.extend([("before a transaction", nth), ("after a transaction", nth)]);
    }
    let mut died = Vec::new();
    for ending in ["complete", "mark", "renew"] {
        for (step, nth) in &steps {
            let name = format!("{ending}, killed {step} {nth}");
            let ledger = folder.path().join(format!("ledger {}", died.len()));
            let request = json!({ "key": name, "step": step, "nth": nth, "ending": ending, "ledger": ledger.to_string_lossy() });
            let mut worker = Worker::start(&cx, &DIE, request).await.at(&name)?;
            worker.go().await?;
            if let Ok(answer) = worker.answer().await {
                fail!("saw {answer} from a process that was to be killed: {name}");
            }
            died.push((name, ledger));
        }
    }
    for (name, ledger) in &died {
        survive(&*here, name, ledger).await.at(name)?;
    }
    let open = here.list(&ListFilter::default()).await?;
    ensure!(open.actions.is_empty(), "saw {:?} open at the end", open.actions);
    Ok(())
}

/// What comes after a process has died: the next one who asks executes only if the ledger says that nobody did, or after a ruling.
async fn survive(store: &dyn EffectStore, name: &str, path: &Path) -> Outcome {
    let ledger = Ledger(path.to_owned());
    let stored = Path::new(&format!("{}.stored", path.to_string_lossy())).exists();
    let action = alone(name);
    let clock = SystemClock::new();
    let mut ruled = false;
    loop {
        ensure!(clock.monotonic() < Duration::from_secs(30), "saw no end of what a dead process held");
        let before = ledger.read()?.len();
        match store.acquire(&action, TTL).await.at("asking after a process has died")? {
            Acquired::Granted(lease) => {
                ensure!(before == 0 || ruled, "saw a second grant after an execution, without a ruling");
                ensure!(!stored, "saw a grant although a result was reported as stored");
                execute(store, &ledger, 1, &lease).await?;
            }
            Acquired::Completed(kept) => {
                if stored {
                    ensure_eq!(
                        kept.result().map(|result| &result[..]),
                        Some(&b"done"[..]),
                        "the stored result"
                    );
                }
                ensure_eq!(ledger.read()?.len(), 1, "the executions of one key");
                return Ok(());
            }
            Acquired::Uncertain(uncertain) => {
                ensure!(!stored, "saw an uncertain action although its result was reported as stored");
                ensure_eq!(uncertain.agent.as_str(), "mortal", "who made the attempt");
                let resolution = match ledger.read()?.len() {
                    0 => Resolution::NotApplied,
                    _ => Resolution::Applied(Bytes::from_static(b"seen in the ledger")),
                };
                match store.resolve(&action, uncertain.episode, &resolution, &note("the ledger")).await {
                    Ok(_) => ruled = true,
                    Err(EffectError::EpisodeOver { .. } | EffectError::NotUncertain { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // Its hold ends by the store's own clock.
            Acquired::InFlight(_) | Acquired::Contended(_) => clock.sleep(Duration::from_millis(20)).await,
        }
    }
}
