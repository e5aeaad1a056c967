//! Whoever waits until nothing is left to run reads the ready index several times, and others work in between: at no instant is a board
//! told to be idle on which some task is ready, held, resting or about to be found ready.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    AgentId, Awaited, Board, BoardAdapter, BoardOptions, Claim, ExtendedBoard, Filter, Outcome, Plan, Retry,
    TaskId, TaskSpec,
};
use coord_core::layer::{Cell, Fault, When};
use coord_memory::{MemoryBackend, MemoryStore};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Mutex;

const TTL: Duration = Duration::from_secs(3_600);
const TASKS: usize = 60;

fn id(text: impl AsRef<str>) -> TaskId {
    TaskId::new(text).unwrap()
}

fn name(n: usize) -> TaskId {
    id(format!("t{n}"))
}

/// How a claim ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Done,
    /// Nobody sees to the marker: whoever completed it dies right then.
    Unexamined,
    Released,
    Failed,
    /// The handler has added the next task before.
    Added,
}

/// Works off a chain of tasks, of which exactly one can run at any time, a verb at a time.
struct Runner {
    board: BoardAdapter<MemoryBackend>,
    dying: BoardAdapter<Fault<MemoryBackend>>,
    held: Option<Claim>,
    rng: StdRng,
    ends: &'static [End],
    left: usize,
}

impl Runner {
    async fn go_on(&mut self) {
        let Some(held) = self.held.take() else {
            let agent = AgentId::new("w").unwrap();
            self.held = self.board.claim_next(&agent, &Filter::any(), TTL).await.unwrap();
            return;
        };
        let (task, token) = (held.task.id, held.lease.token);
        let end = self.ends[self.rng.random_range(0..self.ends.len())];
        match end {
            End::Released => return self.board.release(&task, &token).await.unwrap(),
            End::Failed => return drop(self.board.fail(&task, &token, Outcome::default()).await.unwrap()),
            End::Added if self.left > 1 => {
                // Names run against the order in which they are added.
                self.board.add(TaskSpec::new(name(self.left - 2))).await.unwrap();
            }
            _ => {}
        }
        self.left -= 1;
        if end == End::Unexamined {
            let faults = self.dying.backend().faults();
            faults.clear();
            faults.on(When::keys().always(), Cell::refused());
            self.dying.complete(&task, &token, Outcome::default()).await.unwrap();
        } else {
            self.board.complete(&task, &token, Outcome::default()).await.unwrap();
        }
    }
}

/// Waits again and again while a random number of verbs comes before each listing.
async fn play(seed: u64, ends: &'static [End]) {
    let store = MemoryStore::new();
    let open = || store.open(&"idle".parse().unwrap());
    let board = BoardAdapter::open(open(), BoardOptions::default()).await.unwrap();
    let dying = BoardAdapter::open(Fault::new(open()), BoardOptions::default()).await.unwrap();
    if ends.contains(&End::Added) {
        board.add(TaskSpec::new(name(TASKS - 1))).await.unwrap();
    } else {
        let retry = Retry::new(1_000).backoff(Duration::from_micros(1), Duration::from_micros(1));
        let link = |n: usize| {
            let task = TaskSpec::new(name(n)).retry(retry);
            if n == 0 { task } else { task.dep(name(n - 1)) }
        };
        board.add_plan(&Plan::new((0..TASKS).map(link)).unwrap()).await.unwrap();
    }
    let rng = StdRng::seed_from_u64(seed);
    let runner = Arc::new(Mutex::new(Runner { board, dying, held: None, rng, ends, left: TASKS }));
    let waiting = Fault::new(open());
    let faults = waiting.faults();
    let waiter = BoardAdapter::open(waiting, BoardOptions::default()).await.unwrap();
    let others = runner.clone();
    let step = move |_| {
        let others = others.clone();
        async move {
            let mut runner = others.lock().await;
            let steps = runner.rng.random_range(0..3);
            for _ in 0..steps {
                if runner.left > 0 {
                    runner.go_on().await;
                }
            }
        }
    };
    faults.on(When::any().always(), Cell::pass().before(step));
    loop {
        let idle = waiter.wait(&Awaited::Idle, Duration::ZERO).await.unwrap();
        let left = runner.lock().await.left;
        assert!(!idle || left == 0, "with the seed {seed}, {ends:?}: idle, and {left} tasks are left");
        if idle {
            return;
        }
    }
}

#[tokio::test]
async fn a_chain_that_others_work_off_is_idle_at_its_end_and_not_before() {
    for seed in 0..10 {
        play(seed, &[End::Done]).await;
        play(seed, &[End::Done, End::Unexamined]).await;
        play(seed, &[End::Done, End::Unexamined, End::Released, End::Failed]).await;
        play(seed, &[End::Added]).await;
    }
}
