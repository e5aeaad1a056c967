//! T27: what `check` finds, and what random verbs never leave behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    Added, BoardError, ClaimRequest, Dep, ExtendedBoard, Filter, LeaseInfo, ProblemCode, State, Task, TaskId,
    TaskSpec, check,
};
use coord_core::layer::StoreClock;
use coord_core::{Backend, Clock, ManualClock, Namespace, Token};
use coord_memory::MemoryStore;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use super::stage::{SKEW, Stage, TTL, agent, id, result};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::{Context, remove_all};
use crate::judges::OneKeyBoard;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T27",
    layer: Layer::Board,
    promise: "check finds each of its ten problems in a crafted board, and nothing on any board reached by random verbs, \
              which answer as the simplest right board does",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(invariants(cx)),
}];

async fn invariants(cx: Context) -> Outcome {
    crafted()?;
    let handle = tokio::runtime::Handle::current();
    let handles = [cx.open().await?, cx.open().await?];
    // The property test is not asynchronous, so it has a thread of its own, from which it comes back for every verb.
    tokio::task::spawn_blocking(move || random_verbs(&cx, &handle, &handles)).await?
}

fn task(name: &str, deps: &[&str]) -> Task {
    let mut task = Task::new(id(name));
    task.deps = deps.iter().map(|dep| id(dep).into()).collect();
    task
}

fn held(name: &str, deps: &[&str]) -> Task {
    let mut task = task(name, deps);
    task.state = State::Claimed;
    task.owner = Some(agent("w"));
    task.lease = Some(LeaseInfo { fence: 1, until: None });
    task
}

fn with(mut task: Task, change: fn(&mut Task)) -> Task {
    change(&mut task);
    task
}

fn crafted() -> Outcome {
    let good = || {
        vec![
            with(task("done", &[]), |task| task.state = State::Done),
            with(task("failed", &[]), |task| task.state = State::Failed),
            task("open", &["done", "failed"]),
            held("held", &["done"]),
            with(task("cancelled", &["open"]), |task| task.state = State::Cancelled),
        ]
    };
    ensure_eq!(check(&good()), [], "the problems of a board without any");
    ensure_eq!(check(&[]), [], "the problems of an empty board");
    let ring: Vec<Task> =
        (0..5_000).map(|n| task(&format!("r{n}"), &[&format!("r{}", (n + 1) % 5_000)])).collect();
    let cases: Vec<(ProblemCode, &str, Vec<Task>)> = vec![
        (ProblemCode::EmptyId, "", vec![task("", &[])]),
        (ProblemCode::DuplicateId, "x", vec![task("x", &[]), task("x", &[])]),
        (ProblemCode::DuplicateId, "open", vec![task("open", &[])]),
        (ProblemCode::UnknownState, "x", vec![with(task("x", &[]), |task| task.state = State::Unknown(7))]),
        (ProblemCode::UnknownDep, "x", vec![task("x", &["done", "nowhere"])]),
        (ProblemCode::UnknownDep, "x", vec![with(task("x", &["nowhere"]), |task| task.state = State::Done)]),
        (ProblemCode::SelfDep, "x", vec![task("x", &["x"])]),
        (ProblemCode::DepCycle, "", vec![task("x", &["y"]), task("y", &["x"])]),
        (
            ProblemCode::DepCycle,
            "",
            vec![task("x", &["y", "open"]), task("y", &["z"]), task("z", &["done", "x"])],
        ),
        (ProblemCode::DepCycle, "", ring),
        (ProblemCode::ClaimedWithoutLease, "x", vec![with(held("x", &[]), |task| task.lease = None)]),
        (ProblemCode::ClaimedWithoutLease, "x", vec![with(held("x", &[]), |task| task.owner = None)]),
        (ProblemCode::LeaseWithoutClaim, "x", vec![with(held("x", &[]), |task| task.state = State::Open)]),
        (
            ProblemCode::LeaseWithoutClaim,
            "x",
            vec![with(task("x", &[]), |task| task.owner = Some(agent("w")))],
        ),
        (
            ProblemCode::LeaseWithoutClaim,
            "x",
            vec![with(held("x", &[]), |task| (task.state, task.owner) = (State::Done, None))],
        ),
        (ProblemCode::BlockedClaim, "x", vec![held("x", &["open"])]),
        (ProblemCode::BlockedClaim, "x", vec![held("x", &["held"])]),
        (ProblemCode::BlockedClaim, "x", vec![held("x", &["done", "failed"])]),
        (ProblemCode::BlockedClaim, "x", vec![held("x", &["cancelled"])]),
        (
            ProblemCode::TerminalClaimed,
            "x",
            vec![with(task("x", &[]), |task| (task.state, task.owner) = (State::Done, Some(agent("w"))))],
        ),
        (
            ProblemCode::TerminalClaimed,
            "x",
            vec![with(task("x", &[]), |task| {
                (task.state, task.owner) = (State::Cancelled, Some(agent("w")))
            })],
        ),
    ];
    let mut found = BTreeMap::new();
    for (code, name, bad) in cases {
        for first in [true, false] {
            let mut tasks = good();
            let bad = bad.clone();
            tasks = if first {
                bad.into_iter().chain(tasks).collect()
            } else {
                tasks.into_iter().chain(bad).collect()
            };
            let problems = check(&tasks);
            match &problems[..] {
                [problem] if problem.code == code => {
                    ensure!(
                        name.is_empty() || problem.task == id(name),
                        "saw {problem}, not of the task {name:?}: a crafted board"
                    );
                }
                other => fail!("saw {other:?}, not {code} alone: a crafted board"),
            }
            *found.entry(code.as_str()).or_insert(0) += 1;
        }
    }
    ensure_eq!(found.len(), 10, "the codes that were found: {found:?}");
    // All at once: no problem hides another.
    let everything = vec![
        task("", &[]),
        task("twice", &[]),
        task("twice", &[]),
        with(task("odd", &["nowhere", "odd"]), |task| task.state = State::Unknown(9)),
        with(held("no lease", &["odd"]), |task| task.lease = None),
        with(held("no claim", &[]), |task| task.state = State::Open),
        with(task("ended", &[]), |task| (task.state, task.owner) = (State::Failed, Some(agent("w")))),
        task("x", &["y"]),
        task("y", &["x"]),
    ];
    let mut codes: Vec<&str> = check(&everything).iter().map(|problem| problem.code.as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    ensure_eq!(codes.len(), 10, "the codes on a board with all ten problems: {codes:?}");
    Ok(())
}

/// One verb with arguments that mean something whatever was before.
#[derive(Clone, Debug)]
enum Op {
    Add {
        task: u8,
        deps: Vec<u8>,
    },
    Remove {
        task: u8,
    },
    SetDeps {
        task: u8,
        deps: Vec<u8>,
    },
    Claim {
        task: u8,
        agent: u8,
        ttl: Option<u8>,
    },
    ClaimNext {
        agent: u8,
    },
    /// By one of the tokens that were given, counted from the last.
    Renew {
        token: u8,
    },
    Release {
        token: u8,
    },
    Complete {
        token: u8,
    },
    Fail {
        token: u8,
    },
    Cancel {
        task: u8,
    },
    Reopen {
        task: u8,
    },
    /// With the fence that stands, or an older one.
    Revoke {
        task: u8,
        older: bool,
    },
    Wait {
        seconds: u8,
    },
}

const TASKS: u8 = 6;

fn ops() -> impl Strategy<Value = Vec<(bool, Op)>> {
    let task = || 0..TASKS;
    let deps = || proptest::collection::vec(0..TASKS, 0..3);
    // Mostly the last token, for otherwise nearly all are lost.
    let token = || prop_oneof![5 => Just(0_u8), 2 => 1..3_u8, 1 => 3..20_u8];
    let op = prop_oneof![
        6 => (task(), deps()).prop_map(|(task, deps)| Op::Add { task, deps }),
        2 => task().prop_map(|task| Op::Remove { task }),
        3 => (task(), deps()).prop_map(|(task, deps)| Op::SetDeps { task, deps }),
        8 => (task(), 0..2_u8, proptest::option::weighted(0.9, 1..60_u8))
            .prop_map(|(task, agent, ttl)| Op::Claim { task, agent, ttl }),
        2 => (0..2_u8).prop_map(|agent| Op::ClaimNext { agent }),
        2 => token().prop_map(|token| Op::Renew { token }),
        3 => token().prop_map(|token| Op::Release { token }),
        6 => token().prop_map(|token| Op::Complete { token }),
        2 => token().prop_map(|token| Op::Fail { token }),
        2 => task().prop_map(|task| Op::Cancel { task }),
        2 => task().prop_map(|task| Op::Reopen { task }),
        1 => (task(), any::<bool>()).prop_map(|(task, older)| Op::Revoke { task, older }),
        3 => (1..60_u8).prop_map(|seconds| Op::Wait { seconds }),
    ];
    proptest::collection::vec((any::<bool>(), op), 1..60)
}

fn name(task: u8) -> TaskId {
    id(format!("task {task}"))
}

/// A board from two seats, and the tokens that it has given.
struct Player {
    seats: [Arc<dyn ExtendedBoard>; 2],
    tokens: Vec<(TaskId, Token)>,
}

impl Player {
    /// Performs it and says what was answered, in words that no number depends on.
    async fn perform(&mut self, other: bool, op: &Op) -> Result<&'static str, Verdict> {
        let board = self.seats[usize::from(other)].clone();
        let names = |deps: &[u8]| {
            let mut names: Vec<TaskId> = deps.iter().map(|dep| name(*dep)).collect();
            names.sort();
            names.dedup();
            names
        };
        let given = |token: u8| {
            let index = self.tokens.len().checked_sub(usize::from(token) + 1);
            index.map_or_else(|| (name(0), Token::mint()), |index| self.tokens[index].clone())
        };
        let mut claimed = None;
        let answer = match op {
            Op::Add { task, deps } => {
                let spec = TaskSpec::new(name(*task)).deps(names(deps));
                board.add(spec).await.map(|added| match added {
                    Added::New => "new",
                    Added::Existed => "existed",
                })
            }
            Op::Remove { task } => board.remove(&name(*task)).await.map(|()| "ok"),
            Op::SetDeps { task, deps } => {
                board.set_deps(&name(*task), &Dep::all(names(deps)), None).await.map(|()| "ok")
            }
            Op::Claim { task, agent: who, ttl } => {
                let request = match ttl {
                    Some(ttl) => ClaimRequest::for_ttl(Duration::from_secs((*ttl).into())),
                    None => ClaimRequest::forever(),
                };
                board.claim(&name(*task), &agent(format!("agent {who}")), request).await.map(|claim| {
                    claimed = Some(claim);
                    "claimed"
                })
            }
            Op::ClaimNext { agent: who } => {
                board.claim_next(&agent(format!("agent {who}")), &Filter::any(), TTL).await.map(|claim| {
                    claimed = claim;
                    if claimed.is_some() { "claimed" } else { "nothing" }
                })
            }
            Op::Renew { token } => {
                let (task, token) = given(*token);
                board.renew(&task, &token, TTL).await.map(|_| "ok")
            }
            Op::Release { token } => {
                let (task, token) = given(*token);
                board.release(&task, &token).await.map(|()| "ok")
            }
            Op::Complete { token: n } => {
                let (task, token) = given(*n);
                board.complete(&task, &token, result(&format!("done {n}"))).await.map(|_| "ok")
            }
            Op::Fail { token: n } => {
                let (task, token) = given(*n);
                board.fail(&task, &token, result(&format!("failed {n}"))).await.map(|_| "ok")
            }
            Op::Cancel { task } => board.cancel(&name(*task)).await.map(|()| "ok"),
            Op::Reopen { task } => board.reopen(&name(*task)).await.map(|()| "ok"),
            Op::Revoke { task, older } => {
                let fence = match board.get(&name(*task)).await {
                    Ok(task) if *older => task.fence.saturating_sub(1),
                    Ok(task) => task.fence,
                    Err(_) => 1,
                };
                board.revoke(&name(*task), fence).await.map(|()| "ok")
            }
            Op::Wait { .. } => Ok("ok"),
        };
        if let Some(claim) = claimed {
            self.tokens.push((claim.task.id, claim.lease.token));
        }
        Ok(match answer {
            Ok(said) => said,
            Err(BoardError::NotFound { .. }) => "NotFound",
            Err(BoardError::Terminal { .. }) => "Terminal",
            Err(BoardError::Taken { .. }) => "Taken",
            Err(BoardError::NotYet { .. }) => "NotYet",
            Err(BoardError::Blocked { .. }) => "Blocked",
            Err(BoardError::LeaseLost { .. }) => "LeaseLost",
            Err(BoardError::AlreadyExists { .. }) => "AlreadyExists",
            Err(BoardError::UnknownDep { .. }) => "UnknownDep",
            Err(BoardError::Cycle { .. }) => "Cycle",
            Err(BoardError::HasDependents { .. }) => "HasDependents",
            Err(other) => return Err(Verdict::from(other).context(format!("{op:?}"))),
        })
    }
}

/// What two right boards agree on: all but the numbers, of which each has its own.
fn shown(task: &Task) -> String {
    format!(
        "{:?} {} by {:?} until {:?}, needs {:?}, {} attempts, {:?}, touched {}",
        task.id,
        task.state,
        task.owner,
        task.lease.map(|lease| lease.until),
        task.deps,
        task.attempts,
        task.outcome,
        task.touched
    )
}

/// What has been seen of an id, in all its lives.
#[derive(Default)]
struct Past {
    fence: u64,
    seq: u64,
    last: Option<Task>,
}

async fn run(cx: &Context, handles: &[Arc<dyn Backend>; 2], ops: &[(bool, Op)]) -> Outcome {
    remove_all(&*handles[0]).await?;
    let stage = Stage::new(cx).again();
    let subject_seats = [
        stage.seat_on(handles[0].clone(), 0, true).await?,
        stage.seat_on(handles[1].clone(), 0, true).await?,
    ];
    let mut subject =
        Player { seats: subject_seats.each_ref().map(|seat| seat.board.clone()), tokens: Vec::new() };
    let mut model = model(&stage.clock).await?;
    let mut past: BTreeMap<TaskId, Past> = BTreeMap::new();
    let mut before: Vec<Task> = Vec::new();
    for (n, (other, op)) in ops.iter().enumerate() {
        if let Op::Wait { seconds } = op {
            stage.advance(Duration::from_secs((*seconds).into()));
        }
        let place = format!("{op:?} as the {}. of these verbs", n + 1);
        let said = subject.perform(*other, op).await.at(&place)?;
        let expected = model.perform(*other, op).await.at("the reference")?;
        ensure_eq!(said, expected, "the answer of {place}");
        let tasks = subject_seats[usize::from(!other)].list().await.at(&place)?;
        let reference = model.seats[0].list().await.at("the reference")?;
        let (seen, right): (Vec<String>, Vec<String>) =
            (tasks.iter().map(shown).collect(), reference.iter().map(shown).collect());
        ensure_eq!(seen, right, "the board after {place}");
        let refused =
            said.chars().next().is_some_and(char::is_uppercase) || said == "existed" || said == "nothing";
        ensure!(!refused || tasks == before, "saw the board changed by {place}, which was answered {said:?}");
        for task in &tasks {
            let past = past.entry(task.id.clone()).or_default();
            if past.last.as_ref() != Some(task) {
                ensure!(task.seq > past.seq, "saw the seq {} after {}: {place}", task.seq, past.seq);
                ensure!(
                    task.fence >= past.fence,
                    "saw the fence {} after {}: {place}",
                    task.fence,
                    past.fence
                );
                let new_claim = task.state == State::Claimed
                    && past.last.as_ref().is_none_or(|last| last.fence != task.fence || last.lease.is_none());
                ensure!(
                    !new_claim || task.fence > past.fence,
                    "saw a claim with the fence {} after {}: {place}",
                    task.fence,
                    past.fence
                );
            }
            *past = Past { fence: task.fence, seq: task.seq, last: Some(task.clone()) };
        }
        for (id, past) in &mut past {
            if !tasks.iter().any(|task| task.id == *id) {
                past.last = None;
            }
        }
        before = tasks;
    }
    Ok(())
}

/// The simplest right board, over memory.
async fn model(clock: &Arc<ManualClock>) -> Result<Player, Verdict> {
    let memory = MemoryStore::new().open(&Namespace::default());
    let backend: Arc<dyn Backend> = Arc::new(StoreClock::new(memory, clock.clone() as Arc<dyn Clock>));
    let board = OneKeyBoard::open(backend, clock.clone(), SKEW).await.at("opening the reference")?;
    let board: Arc<dyn ExtendedBoard> = Arc::new(board);
    Ok(Player { seats: [board.clone(), board], tokens: Vec::new() })
}

fn random_verbs(cx: &Context, handle: &tokio::runtime::Handle, handles: &[Arc<dyn Backend>; 2]) -> Outcome {
    let mut seed = [0; 32];
    for (n, chunk) in seed.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&(cx.seed().wrapping_add(n as u64)).to_le_bytes());
    }
    let config = Config { cases: 64, max_shrink_iters: 400, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&ops(), |ops| match handle.block_on(run(cx, handles, &ops)) {
        Ok(()) => Ok(()),
        Err(Verdict::Failed(why) | Verdict::Skipped(why)) => Err(TestCaseError::fail(why)),
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, ops)) => {
            let ops: Vec<String> =
                ops.iter().map(|(other, op)| format!("{op:?} at seat {}", u8::from(*other))).collect();
            fail!("{}, the verbs being {}", why.message(), ops.join(", "))
        }
        Err(TestError::Abort(why)) => fail!("saw the property test give up: {}", why.message()),
    }
}
