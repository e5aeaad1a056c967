//! The clauses of side effects on the store under one key: the right one passes them, and every wrong one fails the clause that is
//! named for it.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use contract_suite::judges::{OneKeyEffectsHarness, WrongEffects};
use contract_suite::{
    Clause, Harness, Layer, MemoryHarness, Options, Row, RowResult, SqliteHarness, Subject, clause, clauses,
    process, run_clause,
};
use coord_core::{Backend, BackendError, async_trait};
use libtest_mimic::{Arguments, Failed, Trial};

/// Tells a worker process which judge it is to be.
const JUDGE: &str = "COORD_SUITE_JUDGE";

/// A file that several processes open, all of which judge in the same way.
struct Judged {
    file: SqliteHarness,
    wrong: Option<WrongEffects>,
}

#[async_trait]
impl Harness for Judged {
    fn name(&self) -> &str {
        self.file.name()
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        self.file.open(namespace).await
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        let mut variables = self.file.worker_env();
        variables.push((JUDGE.to_owned(), format!("{:?}", self.wrong)));
        variables
    }
}

fn file(wrong: Option<WrongEffects>) -> Subject {
    let file = SqliteHarness::from_environment().expect("there is a folder for temporary files");
    Subject::new(Arc::new(Judged { file, wrong })).with_effects(Arc::new(OneKeyEffectsHarness { wrong }))
}

/// Memory, where that will do.
fn subject(wrong: Option<WrongEffects>, clause: &Clause) -> Subject {
    if clause.needs.processes {
        return file(wrong);
    }
    Subject::new(Arc::new(MemoryHarness::default())).with_effects(Arc::new(OneKeyEffectsHarness { wrong }))
}

/// The clause that must fail on each wrong store; some have several.
fn killed() -> impl Iterator<Item = (WrongEffects, &'static str)> {
    let alone = WrongEffects::ALL.iter().map(|wrong| (*wrong, wrong.clause()));
    alone.chain([
        (WrongEffects::LapsedGrantedAgain, "E26.histories"),
        (WrongEffects::ReleasedGrantedAgain, "E26.histories"),
        (WrongEffects::EvidenceDropped, "E26.histories"),
        (WrongEffects::AcquireUnasserted, "E26.histories"),
        (WrongEffects::UnknownIsApplied, "E26.histories"),
        (WrongEffects::AcquireUnasserted, "E30"),
        (WrongEffects::LapsedGrantedAgain, "E30.killed"),
        (WrongEffects::MarkInTwo, "E30.killed"),
    ])
}

fn effects() -> impl Iterator<Item = &'static Clause> {
    clauses().iter().filter(|clause| clause.layer == Layer::Effects)
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("the system can start threads");
    let judge = std::env::var(JUDGE).ok();
    let wrong = WrongEffects::ALL.iter().copied().find(|wrong| judge == Some(format!("{:?}", Some(wrong))));
    if let Some(code) = runtime.block_on(process::serve_subject(&file(wrong))) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // Every trial runs several threads of its own.
    arguments.test_threads.get_or_insert(2);
    let handle = runtime.handle().clone();
    let run = move |wrong: Option<WrongEffects>, clause: &'static Clause| -> Row {
        let (subject, options) = (subject(wrong, clause), Options::default());
        handle.block_on(run_clause(&subject, clause, 0x00C0_FFEE, &options))
    };
    let mut trials = Vec::new();
    for clause in effects() {
        let run = run.clone();
        trials.push(Trial::test(format!("the right store passes {}", clause.id), move || {
            let row = run(None, clause);
            match row.result {
                RowResult::Passed => Ok(()),
                other => Err(Failed::from(format!("{}: {}", other.as_str(), row.why.unwrap_or_default()))),
            }
        }));
    }
    for (wrong, id) in killed() {
        let run = run.clone();
        trials.push(Trial::test(format!("{id} fails on {wrong:?}"), move || {
            let clause = clause(id).ok_or("there is no such clause")?;
            let row = run(Some(wrong), clause);
            let why = row.why.unwrap_or_default();
            if row.result != RowResult::Failed {
                let text = format!("{} on a store where: {}: {why}", row.result.as_str(), wrong.what());
                return Err(Failed::from(text));
            }
            // A clause that gives up has noticed nothing.
            if why.contains("saw no end") || why.contains("saw a panic") {
                return Err(Failed::from(format!("it is red for another reason: {why}")));
            }
            Ok(())
        }));
    }
    trials.push(Trial::test("every clause fails on some wrong store", || {
        let named: BTreeSet<&str> = killed().map(|(_, id)| id).collect();
        // The clauses of the guard have wrong guards.
        let ours = effects().map(|clause| clause.id).filter(|id| id.starts_with('E'));
        let unnamed: Vec<&str> = ours.filter(|id| !named.contains(id)).collect();
        if unnamed.is_empty() { Ok(()) } else { Err(Failed::from(format!("no wrong store for {unnamed:?}"))) }
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.shutdown_background();
    conclusion.exit_code()
}
