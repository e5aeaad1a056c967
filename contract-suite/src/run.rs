//! Runs clauses and collects what they say.

use std::sync::Arc;
use std::time::Duration;

use coord_core::{Clock, SystemClock};
use futures::StreamExt as _;

use crate::adapter::{AdapterBoards, AdapterEffects};
use crate::clause::{Clause, Layer, Outcome, Verdict, clauses};
use crate::context::{Context, clause_seed, system_random};
use crate::guard::{CoreGuard, GuardHarness};
use crate::harness::{BoardHarness, EffectsHarness, Harness};
use crate::process;
use crate::report::{Report, Row, RowResult};

/// What is put to the test.
#[derive(Clone)]
pub struct Subject {
    /// The backend.
    pub harness: Arc<dyn Harness>,
    /// The boards above it. `None` skips the clauses of boards.
    pub boards: Option<Arc<dyn BoardHarness>>,
    /// The side-effect stores above it. `None` skips the clauses of side effects.
    pub effects: Option<Arc<dyn EffectsHarness>>,
    /// The guard above those.
    pub guard: Arc<dyn GuardHarness>,
}

impl Subject {
    /// A backend, with the project's own boards and side-effect stores above it.
    #[must_use]
    pub fn new(harness: Arc<dyn Harness>) -> Self {
        Subject {
            harness,
            boards: Some(Arc::new(AdapterBoards)),
            effects: Some(Arc::new(AdapterEffects)),
            guard: Arc::new(CoreGuard),
        }
    }

    /// The same backend with other boards above it.
    #[must_use]
    pub fn with_boards(mut self, boards: Arc<dyn BoardHarness>) -> Self {
        self.boards = Some(boards);
        self
    }

    /// The same, with another guard above its side-effect stores.
    #[must_use]
    pub fn with_guard(mut self, guard: Arc<dyn GuardHarness>) -> Self {
        self.guard = guard;
        self
    }

    /// The same backend with these side-effect stores above it.
    #[must_use]
    pub fn with_effects(mut self, effects: Arc<dyn EffectsHarness>) -> Self {
        self.effects = Some(effects);
        self
    }
}

/// What to run, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only clauses whose id begins with one of these (parts separated by commas). `None` runs all.
    pub filter: Option<String>,
    /// Only this layer. `None` runs all.
    pub layer: Option<Layer>,
    /// The seed of every choice that the clauses make. `None` takes a random one.
    pub seed: Option<u64>,
    /// How long one clause may take.
    pub timeout: Duration,
    /// How long one call, or one round of calls that wait for each other, may take.
    pub patience: Duration,
    /// How many clauses run at a time (the exclusive ones always run alone).
    pub workers: usize,
    /// Is told of each clause when it has ended.
    pub progress: Option<fn(&Row)>,
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            filter: None,
            layer: None,
            seed: None,
            timeout: Duration::from_secs(120),
            patience: Duration::from_secs(30),
            workers: cores.min(4),
            progress: None,
        }
    }
}

impl Options {
    /// Whether this clause is to be run.
    #[must_use]
    pub fn selects(&self, clause: &Clause) -> bool {
        let filtered = self.filter.as_ref().is_none_or(|filter| {
            filter.split(',').map(str::trim).any(|part| !part.is_empty() && clause.id.starts_with(part))
        });
        filtered && self.layer.is_none_or(|layer| layer == clause.layer)
    }
}

/// Runs the selected clauses against a backend, with the project's own boards above it.
pub async fn run(harness: Arc<dyn Harness>, options: &Options) -> Report {
    run_subject(&Subject::new(harness), options).await
}

/// Runs the selected clauses against a subject: all that may run beside each other, then the exclusive ones, one by one.
pub async fn run_subject(subject: &Subject, options: &Options) -> Report {
    let seed = options.seed.unwrap_or_else(system_random);
    let selected: Vec<&'static Clause> = clauses().iter().filter(|clause| options.selects(clause)).collect();
    let (alone, beside): (Vec<_>, Vec<_>) = selected.into_iter().partition(|clause| clause.needs.exclusive);
    let mut rows: Vec<Row> = futures::stream::iter(beside)
        .map(|clause| run_and_tell(subject, clause, seed, options))
        .buffer_unordered(options.workers.max(1))
        .collect()
        .await;
    for clause in alone {
        rows.push(run_and_tell(subject, clause, seed, options).await);
    }
    Report::new(subject.harness.name().to_owned(), seed, rows)
}

async fn run_and_tell(subject: &Subject, clause: &'static Clause, seed: u64, options: &Options) -> Row {
    let row = run_clause(subject, clause, seed, options).await;
    if let Some(progress) = options.progress {
        progress(&row);
    }
    row
}

/// Runs one clause and returns its row. For use inside any test: `check(harness, "B11").await` and then look at the row's
/// [`result`](Row::result).
///
/// # Panics
/// If there is no clause with this id.
pub async fn check(harness: Arc<dyn Harness>, id: &str) -> Row {
    let options = Options::default();
    let clause = crate::clause::clause(id).unwrap_or_else(|| panic!("there is no clause {id:?}"));
    run_clause(&Subject::new(harness), clause, system_random(), &options).await
}

/// Runs one clause in a task of its own, so that a panic is caught and a clause that hangs can be given up.
pub async fn run_clause(subject: &Subject, clause: &'static Clause, seed: u64, options: &Options) -> Row {
    let clock = SystemClock::new();
    let start = clock.monotonic();
    let ms = || u64::try_from((clock.monotonic() - start).as_millis()).unwrap_or(u64::MAX);
    if let Some(why) = subject.harness.unavailable() {
        return if is_required(subject.harness.name()) {
            Row::failed(clause, &format!("COORD_REQUIRE demands this backend, but {why}"), seed, 0)
        } else {
            Row::new(clause, RowResult::Skipped, Some(why), 0)
        };
    }
    if let Some(why) = lacking(subject, clause) {
        return Row::new(clause, RowResult::Skipped, Some(why), 0);
    }
    let context = Context::new(subject.clone(), clause, clause_seed(seed, clause.id), options.patience);
    let outcome = guarded((clause.body)(context.clone()), options.timeout).await;
    let took = ms();
    // A right backend must let go of what was written. What a wrong one does afterwards does not hide what was seen before.
    let cleaned = guarded(async move { context.clean().await }, options.patience).await;
    let outcome = outcome.and_then(|()| {
        cleaned.map_err(|verdict| verdict.context("removing the keys of the clause afterwards"))
    });
    match outcome {
        Ok(()) => Row::new(clause, RowResult::Passed, None, took),
        Err(Verdict::Skipped(why)) => Row::new(clause, RowResult::Skipped, Some(why), took),
        Err(Verdict::Failed(seen)) => Row::failed(clause, &seen, seed, took),
    }
}

async fn guarded(body: impl Future<Output = Outcome> + Send + 'static, timeout: Duration) -> Outcome {
    let mut task = tokio::spawn(body);
    match tokio::time::timeout(timeout, &mut task).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => {
            let text = match error.try_into_panic() {
                Ok(panic) => panic_text(&*panic),
                Err(error) => error.to_string(),
            };
            Err(Verdict::Failed(format!("saw a panic: {text}")))
        }
        Err(_) => {
            task.abort();
            Err(Verdict::Failed(format!("saw no end after {} s", timeout.as_secs_f64())))
        }
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "without a text".to_owned()
    }
}

fn lacking(subject: &Subject, clause: &Clause) -> Option<String> {
    if clause.layer == Layer::Board && subject.boards.is_none() {
        return Some("this run has no board harness".to_owned());
    }
    if clause.layer == Layer::Effects && subject.effects.is_none() {
        return Some("this run has no harness of side-effect stores".to_owned());
    }
    for control in clause.needs.controls {
        if !subject.harness.server().is_some_and(|server| server.can(*control)) {
            return Some(format!("the harness cannot {control}"));
        }
    }
    if clause.needs.processes {
        if subject.harness.worker_env().is_empty() {
            return Some("the harness does not open its store from several processes".to_owned());
        }
        if !process::can_spawn() {
            return Some(
                "this program cannot be its own worker process: it calls neither `contract_suite::main` nor \
                 `contract_suite::process::serve`"
                    .to_owned(),
            );
        }
    }
    None
}

/// Whether `COORD_REQUIRE`, a list separated by commas, names this backend: then what cannot run has failed.
#[must_use]
pub fn is_required(name: &str) -> bool {
    std::env::var("COORD_REQUIRE").is_ok_and(|list| list.split(',').any(|part| part.trim() == name))
}
