//! The suite as a test program of its own (`harness = false`), with the command line of libtest.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::sync::RwLock;

use crate::clause::clauses;
use crate::context::system_random;
use crate::harness::Harness;
use crate::process;
use crate::report::RowResult;
use crate::run::{Options, Subject, run_clause};

/// Runs the suite as a test program: a test a clause, named by its id and promise, in the group of its layer. A clause that cannot run
/// here is shown as ignored with the reason, or as failed if `COORD_REQUIRE` names the backend. The environment variable
/// `COORD_SUITE_SEED` fixes the seed.
///
/// Call it first in `main`: the same program is started again as a worker by the clauses with several processes.
///
/// # Panics
/// If no asynchronous runtime can be started.
pub fn main(harness: impl Harness) -> ExitCode {
    main_subject(Subject::new(Arc::new(harness)))
}

/// As [`main`], with boards or side-effect stores of your own.
///
/// # Panics
/// If no asynchronous runtime can be started.
pub fn main_subject(subject: Subject) -> ExitCode {
    main_with(subject, Options::default())
}

/// As [`main_subject`], with options of your own: a store that is slow by design needs more time for the clauses with large boards. Filter, layer
/// and workers are those of the command line. The environment variable `COORD_SUITE_TIMEOUT` says how many seconds a clause may take.
///
/// # Panics
/// If no asynchronous runtime can be started.
pub fn main_with(subject: Subject, mut options: Options) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("the system can start threads");
    if let Some(code) = runtime.block_on(process::serve_subject(&subject)) {
        return code;
    }
    let arguments = Arguments::from_args();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("COORD_SUITE_SEED").or(options.seed).unwrap_or_else(system_random);
    if let Some(seconds) = number("COORD_SUITE_TIMEOUT") {
        options.timeout = Duration::from_secs(seconds);
    }
    let options = Arc::new(options);
    // The exclusive clauses come last and take the lock alone; it is fair, so they wait for those that have begun.
    let turn = Arc::new(RwLock::new(()));
    let mut ordered: Vec<_> = clauses().iter().collect();
    ordered.sort_by_key(|clause| clause.needs.exclusive);
    let trials = ordered
        .into_iter()
        .map(|clause| {
            let (subject, turn, options) = (subject.clone(), turn.clone(), options.clone());
            let handle = runtime.handle().clone();
            let name = format!("{} {}", clause.id, headline(clause.promise));
            Trial::ignorable_test(name, move || {
                let row = handle.block_on(async {
                    if clause.needs.exclusive {
                        let _turn = turn.write().await;
                        run_clause(&subject, clause, seed, &options).await
                    } else {
                        let _turn = turn.read().await;
                        run_clause(&subject, clause, seed, &options).await
                    }
                });
                let why = row.why.unwrap_or_default();
                match row.result {
                    RowResult::Passed => Ok(Completion::Completed),
                    RowResult::Skipped => Ok(Completion::ignored_with(why)),
                    RowResult::Failed => Err(Failed::from(why)),
                }
            })
            .with_kind(clause.layer.as_str())
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // A wrong backend may have left a thread that never ends.
    runtime.shutdown_background();
    conclusion.exit_code()
}

/// The first part of a promise, short enough for the name of a test.
fn headline(promise: &str) -> &str {
    let end = promise.find([';', ':', '(']).unwrap_or(promise.len());
    promise[..end].trim_end()
}
