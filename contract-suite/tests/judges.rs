//! The clauses of the board on the board under one key: the right one passes them, and every wrong one fails the clause that is named
//! for it.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use contract_suite::judges::{OneKeyHarness, WrongIndex, WrongIndexHarness, WrongJudge};
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
    wrong: Option<WrongJudge>,
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

fn file(wrong: Option<WrongJudge>) -> Subject {
    let file = SqliteHarness::from_environment().expect("there is a folder for temporary files");
    Subject::new(Arc::new(Judged { file, wrong })).with_boards(Arc::new(OneKeyHarness { wrong }))
}

/// Memory, where that will do.
fn subject(wrong: Option<WrongJudge>, clause: &Clause) -> Subject {
    if clause.needs.processes {
        return file(wrong);
    }
    Subject::new(Arc::new(MemoryHarness::default())).with_boards(Arc::new(OneKeyHarness { wrong }))
}

/// The clause that must fail on each wrong board; those with several processes have some of the same.
fn killed() -> impl Iterator<Item = (WrongJudge, &'static str)> {
    let alone = WrongJudge::ALL.iter().map(|wrong| (*wrong, wrong.clause()));
    alone.chain([
        (WrongJudge::ClaimUnasserted, "T03.processes"),
        (WrongJudge::FenceByTwo, "T03.processes"),
        (WrongJudge::FenceInHandle, "T19.processes"),
        (WrongJudge::FenceForgotten, "T19.processes"),
        (WrongJudge::AnyNumberOfDeps, "T26"),
    ])
}

/// It costs as much as the whole board to look for a task on the board under one key: the one clause that it does not pass.
const TOO_DEAR: &str = "T24";

fn boards() -> impl Iterator<Item = &'static Clause> {
    clauses().iter().filter(|clause| clause.layer == Layer::Board)
}

fn is_red(row: Row, what: &str) -> Result<(), Failed> {
    let why = row.why.unwrap_or_default();
    if row.result != RowResult::Failed {
        return Err(Failed::from(format!("{} on a board where: {what}: {why}", row.result.as_str())));
    }
    // A clause that gives up has noticed nothing.
    if why.contains("saw no end") || why.contains("saw a panic") {
        return Err(Failed::from(format!("it is red for another reason: {why}")));
    }
    Ok(())
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("the system can start threads");
    let judge = std::env::var(JUDGE).ok();
    let wrong = WrongJudge::ALL.iter().copied().find(|wrong| judge == Some(format!("{:?}", Some(wrong))));
    if let Some(code) = runtime.block_on(process::serve_subject(&file(wrong))) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // Every trial runs several threads of its own.
    arguments.test_threads.get_or_insert(2);
    let handle = runtime.handle().clone();
    let try_on = move |subject: Subject, clause: &'static Clause| -> Row {
        handle.block_on(run_clause(&subject, clause, 0x00C0_FFEE, &Options::default()))
    };
    let run = {
        let try_on = try_on.clone();
        move |wrong: Option<WrongJudge>, clause: &'static Clause| try_on(subject(wrong, clause), clause)
    };
    let mut trials = Vec::new();
    for clause in boards().filter(|clause| clause.id != TOO_DEAR) {
        let run = run.clone();
        trials.push(Trial::test(format!("the right board passes {}", clause.id), move || {
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
            is_red(run(Some(wrong), clause), wrong.what())
        }));
    }
    for wrong in WrongIndex::ALL.iter().copied() {
        let try_on = try_on.clone();
        let id = wrong.clause();
        trials.push(Trial::test(format!("{id} fails on the index {wrong:?}"), move || {
            let clause = clause(id).ok_or("there is no such clause")?;
            let memory = Subject::new(Arc::new(MemoryHarness::default()));
            let subject = memory.with_boards(Arc::new(WrongIndexHarness(wrong)));
            is_red(try_on(subject, clause), &format!("{wrong:?}"))
        }));
    }
    let dear = run.clone();
    trials.push(Trial::test(format!("{TOO_DEAR} fails on the board under one key"), move || {
        is_red(
            dear(None, clause(TOO_DEAR).ok_or("there is no such clause")?),
            "every verb reads the whole board",
        )
    }));
    trials.push(Trial::test("every clause fails on some wrong board", || {
        let indices = WrongIndex::ALL.iter().map(|wrong| wrong.clause());
        let named: BTreeSet<&str> = killed().map(|(_, id)| id).chain(indices).chain([TOO_DEAR]).collect();
        let unnamed: Vec<&str> = boards().map(|clause| clause.id).filter(|id| !named.contains(id)).collect();
        if unnamed.is_empty() { Ok(()) } else { Err(Failed::from(format!("no wrong board for {unnamed:?}"))) }
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.shutdown_background();
    conclusion.exit_code()
}
