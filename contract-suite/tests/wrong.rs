//! Every backend that is wrong on purpose is turned red by the clause that is named for it.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use contract_suite::wrong::{self, Wrong};
use contract_suite::{
    Clause, Harness, Layer, Options, RowResult, SimHarness, Subject, check, clause, clauses, process,
    run_clause,
};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("the system can start threads");
    // The clauses with several processes start this program again.
    let worker = wrong::of_this_worker().unwrap_or_else(wrong::right);
    if let Some(code) = runtime.block_on(process::serve(worker)) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // Many of them mostly wait.
    arguments.test_threads = arguments.test_threads.or(Some(4));
    let mut trials: Vec<Trial> = Vec::new();
    for wrong in wrong::backends() {
        for id in wrong.clauses() {
            let handle = runtime.handle().clone();
            let name = format!("{} is red by {id}: {}", wrong.id, wrong.what);
            trials.push(Trial::test(name, move || handle.block_on(is_red(wrong, id))));
        }
    }
    for clause in clauses().iter().filter(|clause| is_tried_on_the_small_store(clause)) {
        let handle = runtime.handle().clone();
        let name = format!("{} is green on the right small store", clause.id);
        let right = if clause.needs.processes { wrong::right_for_processes } else { wrong::right };
        trials.push(Trial::test(name, move || handle.block_on(is_green(right(), clause.id))));
    }
    trials.extend(FAULT_CLAUSES.map(|id| {
        let handle = runtime.handle().clone();
        Trial::test(format!("{id} is green on the simulated store"), move || {
            handle.block_on(is_green(Arc::new(SimHarness::new()), id))
        })
    }));
    trials.push(Trial::test("ids are unique", ids_are_unique));
    trials.push(Trial::test("every clause has a wrong backend", every_clause_has_a_wrong_backend));
    let conclusion = libtest_mimic::run(&arguments, trials);
    // A wrong backend may have left a task that never ends.
    runtime.shutdown_background();
    conclusion.exit_code()
}

#[expect(clippy::print_stderr, reason = "how each of them is red, for whoever asks")]
async fn is_red(wrong: &Wrong, id: &str) -> Result<(), Failed> {
    let clause = clause(id).ok_or("there is no such clause")?;
    let subject = Subject::new((wrong.harness)());
    // A right handle of the simulated store gives up after a second.
    let options = Options { patience: Duration::from_secs(6), ..Options::default() };
    let row = run_clause(&subject, clause, 1, &options).await;
    let why = row.why.unwrap_or_default();
    if std::env::var_os("COORD_SUITE_SHOW").is_some() {
        eprintln!("{} {}: {} in {} ms: {why}", wrong.id, wrong.what, row.result.as_str(), row.ms);
    }
    if row.result != RowResult::Failed {
        return Err(format!("it is {}: {why}", row.result.as_str()).into());
    }
    if why.contains("saw the harness fail") || why.contains("saw a panic") {
        return Err(format!("it is red for another reason: {why}").into());
    }
    Ok(())
}

fn ids_are_unique() -> Result<(), Failed> {
    let wrong: Vec<_> = wrong::backends().map(|wrong| wrong.id).collect();
    let clauses: Vec<_> = clauses().iter().map(|clause| clause.id).collect();
    for ids in [wrong, clauses] {
        let mut seen = BTreeSet::new();
        if let Some(id) = ids.iter().find(|id| !seen.insert(**id)) {
            return Err(format!("{id} is there twice").into());
        }
    }
    Ok(())
}

const FAULT_CLAUSES: [&str; 9] = ["B40", "B41", "B42", "B43", "B44", "B45", "B46", "B48", "B51"];

/// What only needs handles on one store, or several processes, and what the small store lets be done to it.
fn is_tried_on_the_small_store(clause: &Clause) -> bool {
    let number = clause.id[1..].split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    let tried = (1..40).contains(&number) || number == 45;
    clause.layer == Layer::Backend && tried && !clause.needs.exclusive
}

fn every_clause_has_a_wrong_backend() -> Result<(), Failed> {
    let here = clauses().iter().filter(|clause| is_tried_on_the_small_store(clause)).map(|clause| clause.id);
    for id in here.chain(FAULT_CLAUSES) {
        if !wrong::backends().any(|wrong| wrong.clauses().any(|clause| clause == id)) {
            return Err(format!("no backend is wrong in the way of {id}").into());
        }
    }
    Ok(())
}

/// Not skipped, above all: a clause that never runs proves nothing.
async fn is_green(harness: Arc<dyn Harness>, id: &str) -> Result<(), Failed> {
    let row = check(harness, id).await;
    match row.result {
        RowResult::Passed => Ok(()),
        other => Err(format!("it is {}: {}", other.as_str(), row.why.unwrap_or_default()).into()),
    }
}
