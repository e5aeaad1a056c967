//! Clauses with several processes: the program starts itself again as a worker, which opens the same store with the same harness.
//!
//! A worker is told its job by an environment variable. It opens its handle, says `ready`, waits for `go` on its standard input, does
//! its job, and answers with one line of JSON. So all workers of a clause start at one instant, as at a barrier.

use std::io::Write as _;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use coord_core::Backend;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::clause::{Verdict, VerdictContext};
use crate::context::Context;
use crate::guard::GuardHarness;
use crate::harness::{BoardHarness, EffectsHarness, Harness};
use crate::run::Subject;

/// The environment variable that makes this program a worker, and tells it its job.
const ORDER: &str = "COORD_SUITE_WORKER";

/// Set once this program has shown that it serves as a worker when it is asked to. Without it, starting it again would run the whole
/// program again, this suite included.
static SERVES: AtomicBool = AtomicBool::new(false);

pub(crate) fn can_spawn() -> bool {
    SERVES.load(Ordering::Relaxed)
}

/// What a worker is given.
pub struct Seat {
    /// The handle that it has opened.
    pub backend: Arc<dyn Backend>,
    /// The harness, to open more.
    pub harness: Arc<dyn Harness>,
    /// The boards above it, if the program has any.
    pub boards: Option<Arc<dyn BoardHarness>>,
    /// The side-effect stores above it, if the program has any.
    pub effects: Option<Arc<dyn EffectsHarness>>,
    /// The guard above those.
    pub guard: Arc<dyn GuardHarness>,
    /// The namespace of the clause.
    pub namespace: String,
    /// What the clause asks for.
    pub request: Value,
}

/// Something that a worker process can do. Its answer goes back to the clause.
#[derive(Clone, Copy)]
pub struct Job {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub body: fn(Seat) -> BoxFuture<'static, Result<Value, Verdict>>,
}

#[derive(Serialize, Deserialize)]
struct Order {
    job: String,
    namespace: String,
    request: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Done(Value),
    Failed(String),
}

fn jobs() -> impl Iterator<Item = &'static Job> {
    [crate::backend::JOBS, crate::faults::JOBS, crate::board::JOBS, crate::effects::JOBS, crate::guard::JOBS]
        .into_iter()
        .flatten()
        .copied()
        .flatten()
}

/// If this process was started as a worker: does its job and returns the code to exit with. Else `None`, and from now on the clauses
/// with several processes can start this program again. Call it first in `main`, before anything is printed.
pub async fn serve(harness: Arc<dyn Harness>) -> Option<ExitCode> {
    serve_subject(&Subject::new(harness)).await
}

/// As [`serve`], with boards or side-effect stores of your own.
pub async fn serve_subject(subject: &Subject) -> Option<ExitCode> {
    let Ok(order) = std::env::var(ORDER) else {
        SERVES.store(true, Ordering::Relaxed);
        return None;
    };
    let answer = match work(subject, &order).await {
        Ok(value) => Answer::Done(value),
        Err(Verdict::Failed(why) | Verdict::Skipped(why)) => Answer::Failed(why),
    };
    Some(match say(&serde_json::to_string(&answer).unwrap_or_default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

async fn work(subject: &Subject, order: &str) -> Result<Value, Verdict> {
    let order: Order = serde_json::from_str(order)?;
    let Some(job) = jobs().find(|job| job.name == order.job) else {
        crate::fail!("saw the unknown job {:?}: the worker is another program than the clause", order.job);
    };
    let (harness, boards, effects) =
        (subject.harness.clone(), subject.boards.clone(), subject.effects.clone());
    let backend = harness.open(&order.namespace).await.at("opening a handle in a worker process")?;
    say("ready")?;
    // Reading blocks this thread, which has nothing else to do yet.
    let mut go = String::new();
    std::io::stdin().read_line(&mut go)?;
    if go.trim() != "go" {
        crate::fail!("saw the clause end before the worker was told to go");
    }
    let Order { namespace, request, .. } = order;
    (job.body)(Seat { backend, harness, boards, effects, guard: subject.guard.clone(), namespace, request })
        .await
}

/// A worker process that has opened its handle and waits.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a worker process with a job and waits until it is ready. It is killed when it is dropped.
    ///
    /// # Errors
    /// Failed if the process cannot be started or cannot open its handle.
    pub async fn start(cx: &Context, job: &Job, request: Value) -> Result<Worker, Verdict> {
        let order = Order { job: job.name.to_owned(), namespace: cx.namespace().to_owned(), request };
        let mut child = Command::new(std::env::current_exe()?)
            .envs(cx.harness().worker_env())
            .env(ORDER, serde_json::to_string(&order)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .at("starting a worker process")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            crate::fail!("saw a worker process without pipes");
        };
        let mut worker = Worker { child, input, output: BufReader::new(output).lines() };
        match worker.output.next_line().await? {
            Some(line) if line == "ready" => Ok(worker),
            Some(line) => match serde_json::from_str(&line) {
                Ok(Answer::Failed(why)) => crate::fail!("{why}"),
                _ => crate::fail!("saw {line:?} from a worker process that should be ready"),
            },
            None => crate::fail!("saw a worker process end before it was ready"),
        }
    }

    /// Lets the worker begin.
    ///
    /// # Errors
    /// Failed if the process is gone.
    pub async fn go(&mut self) -> Result<(), Verdict> {
        self.input.write_all(b"go\n").await.at("telling a worker process to go")?;
        self.input.flush().await.at("telling a worker process to go")
    }

    /// Waits for the worker's answer and for its end.
    ///
    /// # Errors
    /// Failed if the job failed or the process ended without an answer.
    pub async fn answer(mut self) -> Result<Value, Verdict> {
        let line = self.output.next_line().await?;
        let status = self.child.wait().await?;
        let Some(line) = line else { crate::fail!("saw a worker process end without an answer: {status}") };
        match serde_json::from_str(&line)? {
            Answer::Done(value) => Ok(value),
            Answer::Failed(why) => Err(Verdict::Failed(why).context("in a worker process")),
        }
    }
}

/// Starts a worker for each request, lets all go at one instant, and returns their answers in order.
///
/// # Errors
/// The first failure.
pub async fn run_workers(cx: &Context, job: &Job, requests: Vec<Value>) -> Result<Vec<Value>, Verdict> {
    let started = requests.into_iter().map(|request| Worker::start(cx, job, request));
    let mut workers = futures::future::try_join_all(started).await?;
    for worker in &mut workers {
        worker.go().await?;
    }
    futures::future::try_join_all(workers.into_iter().map(Worker::answer)).await
}
