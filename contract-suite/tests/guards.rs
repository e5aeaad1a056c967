//! The clauses of the guard on the plain guard: the right one passes them, and every wrong one fails the clause that is named for it.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use contract_suite::judges::{PlainGuard, WrongGuard};
use contract_suite::{
    Clause, Harness, MemoryHarness, Options, Row, RowResult, SqliteHarness, Subject, clause, clauses,
    process, run_clause,
};
use coord_core::{Backend, BackendError, async_trait};
use libtest_mimic::{Arguments, Failed, Trial};

/// Tells a worker process which guard it is to have.
const GUARD: &str = "COORD_SUITE_GUARD";

/// A file that several processes open, all of which have the same guard.
struct Guarded {
    file: SqliteHarness,
    wrong: Option<WrongGuard>,
}

#[async_trait]
impl Harness for Guarded {
    fn name(&self) -> &str {
        self.file.name()
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        self.file.open(namespace).await
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        let mut variables = self.file.worker_env();
        variables.push((GUARD.to_owned(), format!("{:?}", self.wrong)));
        variables
    }
}

fn file(wrong: Option<WrongGuard>) -> Subject {
    let file = SqliteHarness::from_environment().expect("there is a folder for temporary files");
    Subject::new(Arc::new(Guarded { file, wrong })).with_guard(Arc::new(PlainGuard { wrong }))
}

/// Memory, where that will do.
fn subject(wrong: Option<WrongGuard>, clause: &Clause) -> Subject {
    if clause.needs.processes {
        return file(wrong);
    }
    Subject::new(Arc::new(MemoryHarness::default())).with_guard(Arc::new(PlainGuard { wrong }))
}

fn guards() -> impl Iterator<Item = &'static Clause> {
    clauses().iter().filter(|clause| clause.id.starts_with('G'))
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("the system can start threads");
    let guard = std::env::var(GUARD).ok();
    let wrong = WrongGuard::ALL.iter().copied().find(|wrong| guard == Some(format!("{:?}", Some(wrong))));
    if let Some(code) = runtime.block_on(process::serve_subject(&file(wrong))) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // Every trial runs several threads of its own, and most wrong ones are waited for in vain.
    arguments.test_threads.get_or_insert(4);
    let handle = runtime.handle().clone();
    let run = move |wrong: Option<WrongGuard>, clause: &'static Clause| -> Row {
        let mut options = Options::default();
        if wrong.is_some() {
            options.patience = Duration::from_secs(5);
        }
        handle.block_on(run_clause(&subject(wrong, clause), clause, 0x00C0_FFEE, &options))
    };
    let mut trials = Vec::new();
    for clause in guards() {
        let run = run.clone();
        trials.push(Trial::test(format!("the right guard passes {}", clause.id), move || {
            let row = run(None, clause);
            match row.result {
                RowResult::Passed => Ok(()),
                other => Err(Failed::from(format!("{}: {}", other.as_str(), row.why.unwrap_or_default()))),
            }
        }));
    }
    for wrong in WrongGuard::ALL.iter().copied() {
        let run = run.clone();
        trials.push(Trial::test(format!("{} fails on {wrong:?}", wrong.clause()), move || {
            let clause = clause(wrong.clause()).ok_or("there is no such clause")?;
            let row = run(Some(wrong), clause);
            let why = row.why.unwrap_or_default();
            if row.result != RowResult::Failed {
                let text = format!("{} on a guard where: {}: {why}", row.result.as_str(), wrong.what());
                return Err(Failed::from(text));
            }
            // A clause that gives up has noticed nothing.
            if why.contains("saw no end") || why.contains("saw a panic") {
                return Err(Failed::from(format!("it is red for another reason: {why}")));
            }
            Ok(())
        }));
    }
    trials.push(Trial::test("every clause fails on some wrong guard", || {
        let named: BTreeSet<&str> = WrongGuard::ALL.iter().map(|wrong| wrong.clause()).collect();
        let unnamed: Vec<&str> = guards().map(|clause| clause.id).filter(|id| !named.contains(id)).collect();
        if unnamed.is_empty() { Ok(()) } else { Err(Failed::from(format!("no wrong guard for {unnamed:?}"))) }
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.shutdown_background();
    conclusion.exit_code()
}
