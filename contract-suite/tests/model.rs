//! The model run (B52), with a fixed seed, and what it says of backends that are wrong on purpose: a few steps.

use std::sync::Arc;

use contract_suite::{
    Harness, MemoryHarness, Options, Row, RowResult, SimHarness, Subject, clause, run_clause, wrong,
};

const SEED: u64 = 52;

async fn model_run(harness: Arc<dyn Harness>, seed: u64) -> Row {
    let clause = clause("B52").expect("the model run is a clause");
    run_clause(&Subject::new(harness), clause, seed, &Options::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_backend_answers_as_the_reference_does() {
    let row = model_run(Arc::new(MemoryHarness::default()), SEED).await;
    assert_eq!(row.result, RowResult::Passed, "{:?}", row.why);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulated_store_answers_as_the_reference_does() {
    let row = model_run(Arc::new(SimHarness::new()), SEED).await;
    assert_eq!(row.result, RowResult::Passed, "{:?}", row.why);
}

/// The steps that a failure was shrunk to.
fn steps(why: &str) -> Option<usize> {
    why.split_once("shrunk to ")?.1.split_once(" steps")?.0.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_shrunk_to_a_few_steps() {
    // The ones that are wrong now and then depend on how many steps there were before, so they do not shrink well.
    let always = wrong::backends().filter(|wrong| wrong.clause == "B52" && wrong.id != "H51");
    let mut tried = 0;
    for wrong in always {
        tried += 1;
        let row = model_run((wrong.harness)(), SEED).await;
        let why = row.why.unwrap_or_default();
        assert_eq!(row.result, RowResult::Failed, "{}: {}", wrong.id, wrong.what);
        assert!(steps(&why).is_some_and(|steps| steps <= 4), "{}: {}: {why}", wrong.id, wrong.what);
    }
    assert!(tried >= 10, "only {tried} wrong backends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_seed_finds_the_same_case() {
    let wild =
        wrong::backends().find(|wrong| wrong.id == "H45").expect("there is a backend with wild prefixes");
    let why = async |seed| model_run((wild.harness)(), seed).await.why.unwrap_or_default();
    assert_eq!(why(7).await, why(7).await);
}
