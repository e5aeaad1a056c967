//! Test programs whose tests start servers of their own.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use super::{Place, Store};
use crate::harness::{ControlError, Harness};
use crate::{Options, Row, RowResult, clause, is_required, process, run};

/// A test: it is given the programs of the store, in the order of [`Store::programs`].
pub type Test = fn(Vec<PathBuf>) -> LocalBoxFuture<'static, Result<(), ControlError>>;

/// Runs tests that start servers of their own, with the command line of libtest. Where the environment does not allow to start any, they are
/// shown as ignored with the reason, or as failed if `COORD_REQUIRE` names the store.
///
/// `worker` opens the store of a clause with several processes, for this program is started again by such clauses. `limit` is how long one test may
/// take; `threads` how many run at a time.
///
/// # Panics
/// If no asynchronous runtime can be started.
pub fn main(
    store: &Store,
    worker: impl Harness,
    tests: &[(&'static str, Test)],
    threads: usize,
    limit: Duration,
) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("the system can start threads");
    if let Some(code) = runtime.block_on(process::serve(Arc::new(worker))) {
        return code;
    }
    let runtime = Arc::new(runtime);
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(threads);
    let (place, name) = (Place::of(store), store.name);
    let trials = tests
        .iter()
        .map(|(title, test)| {
            let (runtime, place, test) = (runtime.clone(), place.clone(), *test);
            Trial::ignorable_test(*title, move || match place {
                Place::Local(programs) => {
                    let run = async { tokio::time::timeout(limit, test(programs)).await };
                    match runtime.block_on(run) {
                        Ok(Ok(())) => Ok(Completion::Completed),
                        Ok(Err(error)) => Err(Failed::from(error.to_string())),
                        Err(_) => Err(Failed::from(format!("it has not ended within {} s", limit.as_secs()))),
                    }
                }
                Place::Nowhere(why) if is_required(name) => Err(Failed::from(why)),
                Place::Nowhere(why) => Ok(Completion::ignored_with(why)),
                Place::Given(_) | Place::Container => Ok(Completion::ignored_with(
                    "it starts servers of its own, which needs COORD_LOCAL_SERVERS=1 and no URL of a given one",
                )),
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs the clauses of stores and boards on servers to which nothing can be done. What hurts the server, or looks behind the backend, cannot be
/// tried there, nor the clauses with these ids, for which the store has no means; nothing else may be skipped.
///
/// Side effects are judged above the same primitives, and their clauses run on one server of each kind.
///
/// # Errors
/// The report, if a clause has failed or was skipped without such a reason.
pub async fn whole_suite(harness: impl Harness, without: &[&str]) -> Result<(), ControlError> {
    // Servers in a topology wait for each other most of the time, and what has to try each cell of each verb takes as much longer.
    let timeout = Duration::from_secs(400);
    let options = Options { workers: 4, filter: Some("B,T".into()), timeout, ..Options::default() };
    let report = run(Arc::new(harness), &options).await;
    let excused = |row: &Row| {
        let hurts = clause(row.id).is_some_and(|clause| !clause.needs.controls.is_empty());
        row.id.starts_with("B4") || hurts || without.contains(&row.id)
    };
    let wrong: Vec<_> = report
        .clauses
        .iter()
        .filter(|row| match row.result {
            RowResult::Passed => false,
            RowResult::Failed => true,
            RowResult::Skipped => !excused(row),
        })
        .map(|row| row.id)
        .collect();
    if wrong.is_empty() && report.passed >= 34 { Ok(()) } else { Err(format!("{report}\n{wrong:?}").into()) }
}
