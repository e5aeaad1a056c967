//! B52: random operations answer as the reference does.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use coord_core::{Backend, Clock as _, KeyRange, KeySet, Prefix, SystemClock};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use rand::Rng as _;
use tokio::runtime::Handle;

use super::reference::{Reference, Request};
use super::step::{Name, Step, steps};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict};
use crate::context::Context;
use crate::fail;

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B52",
    layer: Layer::Backend,
    promise: "any sequence of operations answers as a simple map does: snapshots, listings, transactions on right, \
              earlier, missing and foreign versions",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(model_run(cx)),
}];

/// So many sequences, unless the store is slow.
const CASES: u32 = 300;
/// After this time no further sequence is begun.
const LONG: Duration = Duration::from_secs(15);
/// With fewer the run has proved nothing.
const FEWEST: u32 = 20;
const SHRINKING: u32 = 3_000;
const SHRINKING_MS: u32 = 20_000;

async fn model_run(cx: Context) -> Outcome {
    let runtime = Handle::current();
    // Proptest is synchronous, so it gets a thread of its own, and each sequence runs on the runtime.
    match tokio::task::spawn_blocking(move || run_cases(&cx, &runtime)).await {
        Ok(outcome) => outcome,
        Err(error) => fail!("saw the model run end with {error}"),
    }
}

fn run_cases(cx: &Context, runtime: &Handle) -> Outcome {
    let mut seed = [0; 32];
    cx.rng(0).fill_bytes(&mut seed);
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_iters: SHRINKING,
        max_shrink_time: SHRINKING_MS,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let clock = SystemClock::new();
    let (run, skipped) = (Cell::new(0), RefCell::new(None));
    let result = runner.run(&steps(), |steps| {
        if clock.monotonic() > LONG && run.get() >= FEWEST || skipped.borrow().is_some() {
            return Ok(());
        }
        run.set(run.get() + 1);
        match runtime.block_on(compare(cx, &steps)) {
            Ok(()) => Ok(()),
            Err(Verdict::Failed(why)) => Err(TestCaseError::fail(why)),
            Err(skip) => {
                *skipped.borrow_mut() = Some(skip);
                Ok(())
            }
        }
    });
    if let Some(skip) = skipped.into_inner() {
        return Err(skip);
    }
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, steps)) => {
            fail!("{why}\nshrunk to {} steps:\n{}", steps.len(), listed(&steps))
        }
        Err(TestError::Abort(why)) => fail!("saw the model run given up: {why}"),
    }
}

fn listed(steps: &[(usize, Step)]) -> String {
    let line = |(place, (handle, step)): (usize, &(usize, Step))| {
        format!("  {}. handle {handle}: {step:?}\n", place + 1)
    };
    steps.iter().enumerate().map(line).collect()
}

/// Runs one sequence in a namespace of its own and compares every answer, and at the end everything.
async fn compare(cx: &Context, steps: &[(usize, Step)]) -> Outcome {
    let namespace = cx.fresh_namespace();
    let handles = [cx.open_in(&namespace).await?, cx.open_in(&namespace).await?];
    let mut reference = Reference::default();
    for (place, (handle, step)) in steps.iter().enumerate() {
        let compared = compare_step(&handles, *handle, step, &mut reference).await;
        compared.map_err(|verdict| verdict.context(format_args!("step {}", place + 1)))?;
    }
    let everything = compare_everything(&handles[0], &mut reference).await;
    everything.map_err(|verdict| verdict.context("after the last step"))
}

async fn compare_step(
    handles: &[Arc<dyn Backend>; 2],
    handle: usize,
    step: &Step,
    reference: &mut Reference,
) -> Outcome {
    match reference.step(step) {
        Request::Snapshot(keys) => {
            let snapshot = handles[handle].snapshot(&keys).await?;
            reference.compare(&keys, &snapshot).map_err(Verdict::Failed)?;
        }
        Request::Txn { txn, applied } => {
            let outcome = handles[handle].txn(&txn).await?;
            if outcome.is_applied() != applied {
                fail!(
                    "saw {outcome:?} of a transaction whose asserts {}",
                    if applied { "hold" } else { "do not all hold" }
                );
            }
            // Asserts need the incarnations; the other handle must see them as well.
            let unnamed = KeySet::new(reference.unnamed())?;
            if !unnamed.is_empty() {
                let snapshot = handles[1 - handle].snapshot(&unnamed).await?;
                reference.compare(&unnamed, &snapshot).map_err(Verdict::Failed)?;
            }
        }
        Request::Keys { range, keys } => {
            let listed = handles[handle].keys(&range).await?;
            if listed != keys {
                fail!("saw the keys {listed:?}, not {keys:?}");
            }
        }
    }
    Ok(())
}

async fn compare_everything(handle: &Arc<dyn Backend>, reference: &mut Reference) -> Outcome {
    let keys = KeySet::new(Name::all().map(Name::key))?;
    let snapshot = handle.snapshot(&keys).await?;
    reference.compare(&keys, &snapshot).map_err(Verdict::Failed)?;
    let listed = handle.keys(&KeyRange::new(Prefix::all(), 10_000)?).await?;
    let present: Vec<_> =
        snapshot.iter().filter(|(_, entry)| entry.is_present()).map(|(key, _)| key.clone()).collect();
    if listed != present {
        fail!("saw the keys {listed:?}, not {present:?}");
    }
    Ok(())
}
