//! Test programs that put the clauses on a second board, side-effect store or guard: the right one passes them, and every wrong one fails
//! the clause that is named for it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use coord_core::{Backend, BackendError, async_trait};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Handle;

use crate::clause::{Clause, clause};
use crate::harness::Harness;
use crate::memory::MemoryHarness;
use crate::process;
use crate::report::{Row, RowResult};
use crate::run::{Options, Subject, run_clause};
use crate::sqlite::SqliteHarness;

/// The seed of every choice that the clauses make here.
const SEED: u64 = 0x00C0_FFEE;

/// What the clauses are put on, and the ways in which it can be wrong.
#[derive(Debug)]
pub struct Judges<W: 'static> {
    /// What it is, in one word.
    pub kind: &'static str,
    /// The environment variable that tells a worker process in which way it is to be wrong.
    pub variable: &'static str,
    /// All the ways in which it can be wrong.
    pub wrong: &'static [W],
    /// What is done wrongly, in one sentence.
    pub what: fn(W) -> &'static str,
    /// Puts a right one, or one that is wrong in this way, above the backend of a subject.
    pub put: fn(Subject, Option<W>) -> Subject,
    /// How long a call of a wrong one may take.
    pub patience_with_wrong: Duration,
    /// How many trials run at a time, each with several threads of its own, unless the command line says so.
    pub threads: usize,
}

/// A file that several processes open, all of which judge in the same way.
struct Judged<W> {
    file: SqliteHarness,
    variable: &'static str,
    wrong: Option<W>,
}

#[async_trait]
impl<W: Debug + Send + Sync + 'static> Harness for Judged<W> {
    fn name(&self) -> &str {
        self.file.name()
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        self.file.open(namespace).await
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        let mut variables = self.file.worker_env();
        variables.push((self.variable.to_owned(), format!("{:?}", self.wrong)));
        variables
    }
}

impl<W: Copy + Debug + Send + Sync + 'static> Judges<W> {
    fn on_file(&self, wrong: Option<W>) -> Subject {
        let file = SqliteHarness::from_environment().expect("there is a folder for temporary files");
        let harness = Judged { file, variable: self.variable, wrong };
        (self.put)(Subject::new(Arc::new(harness)), wrong)
    }

    /// Memory, where that will do.
    fn subject(&self, wrong: Option<W>, clause: &Clause) -> Subject {
        if clause.needs.processes {
            return self.on_file(wrong);
        }
        (self.put)(Subject::new(Arc::new(MemoryHarness::default())), wrong)
    }

    /// The way in which this worker process is to be wrong.
    fn of_this_worker(&self) -> Option<W> {
        let told = std::env::var(self.variable).ok()?;
        self.wrong.iter().copied().find(|wrong| told == format!("{:?}", Some(wrong)))
    }
}

/// The trials of a test program.
#[expect(missing_debug_implementations, reason = "a trial shows nothing of itself")]
pub struct Trials<W: 'static> {
    judges: Arc<Judges<W>>,
    runtime: Handle,
    list: Vec<Trial>,
}

impl<W: Copy + Debug + Send + Sync + 'static> Trials<W> {
    /// A right one must pass these clauses.
    pub fn right_passes(&mut self, clauses: impl Iterator<Item = &'static Clause>) {
        for clause in clauses {
            let (judges, runtime) = (self.judges.clone(), self.runtime.clone());
            let name = format!("the right {} passes {}", judges.kind, clause.id);
            self.list.push(Trial::test(name, move || {
                let subject = judges.subject(None, clause);
                let row = runtime.block_on(run_clause(&subject, clause, SEED, &Options::default()));
                match row.result {
                    RowResult::Passed => Ok(()),
                    other => {
                        Err(Failed::from(format!("{}: {}", other.as_str(), row.why.unwrap_or_default())))
                    }
                }
            }));
        }
    }

    /// The clause with this id must fail on one that is wrong in this way.
    pub fn fails_on(&mut self, wrong: W, id: &'static str) {
        let (judges, runtime) = (self.judges.clone(), self.runtime.clone());
        self.list.push(Trial::test(format!("{id} fails on {wrong:?}"), move || {
            let clause = clause(id).ok_or("there is no such clause")?;
            let subject = judges.subject(Some(wrong), clause);
            let options = Options { patience: judges.patience_with_wrong, ..Options::default() };
            let row = runtime.block_on(run_clause(&subject, clause, SEED, &options));
            is_red(row, judges.kind, (judges.what)(wrong))
        }));
    }

    /// The clause with this id must fail on a right one all the same, for this reason.
    pub fn fails_on_right(&mut self, name: String, id: &'static str, what: &'static str) {
        let judges = self.judges.clone();
        self.fails_on_subject(name, id, what.to_owned(), move |clause| judges.subject(None, clause));
    }

    /// The clause with this id must fail on this subject, which does this wrongly.
    pub fn fails_on_subject(
        &mut self,
        name: String,
        id: &'static str,
        what: String,
        subject: impl FnOnce(&Clause) -> Subject + Send + 'static,
    ) {
        let (kind, runtime) = (self.judges.kind, self.runtime.clone());
        self.list.push(Trial::test(name, move || {
            let clause = clause(id).ok_or("there is no such clause")?;
            let (subject, options) = (subject(clause), Options::default());
            is_red(runtime.block_on(run_clause(&subject, clause, SEED, &options)), kind, &what)
        }));
    }

    /// Each of these clauses must be among the ids of those that fail on a wrong one.
    pub fn all_are_named(
        &mut self,
        clauses: impl Iterator<Item = &'static Clause> + Send + 'static,
        named: impl Iterator<Item = &'static str>,
    ) {
        let kind = self.judges.kind;
        let named: BTreeSet<&str> = named.collect();
        self.list.push(Trial::test(format!("every clause fails on some wrong {kind}"), move || {
            let unnamed: Vec<&str> =
                clauses.map(|clause| clause.id).filter(|id| !named.contains(id)).collect();
            if unnamed.is_empty() {
                Ok(())
            } else {
                Err(Failed::from(format!("no wrong {kind} for {unnamed:?}")))
            }
        }));
    }
}

fn is_red(row: Row, kind: &str, what: &str) -> Result<(), Failed> {
    let why = row.why.unwrap_or_default();
    if row.result != RowResult::Failed {
        return Err(Failed::from(format!("{} on a {kind} where: {what}: {why}", row.result.as_str())));
    }
    // A clause that gives up has noticed nothing.
    if why.contains("saw no end") || why.contains("saw a panic") {
        return Err(Failed::from(format!("it is red for another reason: {why}")));
    }
    Ok(())
}

/// Runs the trials that are asked for, with the command line of libtest. Call it first in `main`: the clauses with several processes start
/// this program again as a worker.
///
/// # Panics
/// If no asynchronous runtime can be started, or there is no folder for temporary files.
pub fn main<W>(judges: Judges<W>, ask: impl FnOnce(&mut Trials<W>)) -> ExitCode
where
    W: Copy + Debug + Send + Sync + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("the system can start threads");
    let worker = judges.on_file(judges.of_this_worker());
    if let Some(code) = runtime.block_on(process::serve_subject(&worker)) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(judges.threads);
    let mut trials = Trials { judges: Arc::new(judges), runtime: runtime.handle().clone(), list: Vec::new() };
    ask(&mut trials);
    let conclusion = libtest_mimic::run(&arguments, trials.list);
    // A wrong one may have left a thread that never ends.
    runtime.shutdown_background();
    conclusion.exit_code()
}
