//! The worker: what it claims, keeps and tells, and what it does when told to stop.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coord_core::board::{
    AgentId, Board, BoardAdapter, BoardError, BoardOptions, ClaimRequest, ExtendedBoard, Filter, Job,
    Outcome, State, TaskId, TaskSpec, Worker, WorkerReport,
};
use coord_core::effects::Lost;
use coord_core::{ManualClock, Timestamp};
use coord_memory::{MemoryBackend, MemoryStore};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;

type TestBoard = BoardAdapter<MemoryBackend>;

async fn board() -> TestBoard {
    let backend = MemoryStore::new().open(&"worker".parse().unwrap());
    BoardAdapter::open(backend, BoardOptions::default()).await.unwrap()
}

fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

fn worker(board: &TestBoard) -> Worker {
    let quick = (Duration::from_millis(1), Duration::from_millis(5));
    Worker::new(board.clone(), AgentId::new("w").unwrap()).look(quick.0, quick.1)
}

fn outcome(text: &str) -> Outcome {
    Outcome::new(text).unwrap()
}

struct Running {
    stop: oneshot::Sender<()>,
    working: JoinHandle<Result<WorkerReport, BoardError>>,
}

impl Running {
    fn start<F>(worker: Worker, handler: impl Fn(Job) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Outcome, String>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let working = tokio::spawn(worker.run(handler, async {
            let _ = stopped.await;
        }));
        Running { stop, working }
    }

    async fn stop(self) -> WorkerReport {
        self.stop.send(()).unwrap();
        self.working.await.unwrap().unwrap()
    }
}

async fn state(board: &TestBoard, task: &str) -> State {
    board.get(&id(task)).await.unwrap().state
}

async fn until(board: &TestBoard, task: &str, wanted: State) {
    while state(board, task).await != wanted {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_a_handler_does_is_what_the_board_is_told() {
    let board = board().await;
    for name in ["fine", "error", "panic", "slow"] {
        board.add(TaskSpec::new(id(name))).await.unwrap();
    }
    let handler = |job: Job| async move {
        match job.task().id.as_str() {
            "fine" => Ok(outcome("42 pages")),
            "error" => Err("the printer is out of paper".to_owned()),
            "panic" => panic!("at the printer"),
            _ => std::future::pending().await,
        }
    };
    let running =
        Running::start(worker(&board).concurrency(4).time_limit(Duration::from_millis(50)), handler);
    until(&board, "fine", State::Done).await;
    for name in ["error", "panic", "slow"] {
        until(&board, name, State::Failed).await;
    }
    let report = running.stop().await;
    assert_eq!((report.completed, report.failed, report.lost), (1, 3, 0));
    let said = async |name| board.get(&id(name)).await.unwrap().outcome.unwrap().to_string();
    assert_eq!(said("fine").await, "42 pages");
    assert_eq!(said("error").await, "the printer is out of paper");
    assert_eq!(said("panic").await, "panicked: at the printer");
    assert_eq!(said("slow").await, "ran out of time after 50ms");
}

#[tokio::test]
async fn it_never_claims_more_than_it_can_run_and_always_as_much_as_it_can() {
    let board = board().await;
    for n in 0..40 {
        board.add(TaskSpec::new(id(&format!("t{n:02}")))).await.unwrap();
    }
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let full = Arc::new(Semaphore::new(0));
    let handler = {
        let (at_once, most, full) = (at_once.clone(), most.clone(), full.clone());
        move |_: Job| {
            let (at_once, most, full) = (at_once.clone(), most.clone(), full.clone());
            async move {
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                full.acquire().await.unwrap().forget();
                at_once.fetch_sub(1, Ordering::SeqCst);
                Ok(Outcome::default())
            }
        }
    };
    let running = Running::start(worker(&board).concurrency(5), handler);
    for done in 0..8 {
        while at_once.load(Ordering::SeqCst) < 5 {
            tokio::task::yield_now().await;
        }
        let claimed =
            board.list().await.unwrap().into_iter().filter(|task| task.state == State::Claimed).count();
        assert_eq!(claimed, 5, "after {done} rounds");
        full.add_permits(5);
        while board.list().await.unwrap().iter().filter(|task| task.state == State::Done).count()
            < (done + 1) * 5
        {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(running.stop().await.completed, 40);
    assert_eq!(most.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn it_works_off_a_graph_and_only_what_passes_its_filter() {
    let board = board().await;
    board.add(TaskSpec::new(id("a")).label("mine")).await.unwrap();
    board.add(TaskSpec::new(id("b")).label("mine").dep(id("a"))).await.unwrap();
    board.add(TaskSpec::new(id("c")).dep(id("a"))).await.unwrap();
    board.add(TaskSpec::new(id("d")).label("mine").dep(id("b"))).await.unwrap();
    let running = Running::start(worker(&board).filter(Filter::any().with_label("mine")), |_| async {
        Ok(Outcome::default())
    });
    until(&board, "d", State::Done).await;
    assert_eq!(running.stop().await.completed, 3);
    assert_eq!(state(&board, "c").await, State::Open);
}

#[tokio::test]
async fn told_to_stop_it_lets_what_runs_end_and_gives_the_rest_back() {
    let board = board().await;
    for name in ["ends", "stays"] {
        board.add(TaskSpec::new(id(name))).await.unwrap();
    }
    let go = Arc::new(Notify::new());
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Note(Arc<AtomicUsize>);
    impl Drop for Note {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let handler = {
        let (go, dropped) = (go.clone(), dropped.clone());
        move |job: Job| {
            let (go, note) = (go.clone(), Note(dropped.clone()));
            async move {
                let _note = note;
                if job.task().id.as_str() == "ends" {
                    go.notified().await;
                    return Ok(Outcome::default());
                }
                std::future::pending().await
            }
        }
    };
    let running = Running::start(worker(&board).concurrency(2).grace(Duration::from_millis(100)), handler);
    until(&board, "ends", State::Claimed).await;
    until(&board, "stays", State::Claimed).await;
    board.add(TaskSpec::new(id("late"))).await.unwrap();
    running.stop.send(()).unwrap();
    go.notify_one();
    let report = running.working.await.unwrap().unwrap();
    assert_eq!((report.completed, report.released), (1, 1));
    assert_eq!(dropped.load(Ordering::SeqCst), 2, "a handler still runs");
    assert_eq!((state(&board, "ends").await, state(&board, "stays").await), (State::Done, State::Open));
    assert_eq!(state(&board, "late").await, State::Open);
    // A release is no attempt.
    assert_eq!(board.get(&id("stays")).await.unwrap().attempts, 0);
}

#[tokio::test]
async fn a_lost_lease_is_told_to_the_handler_and_nothing_to_the_board() {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000).unwrap()));
    let backend = MemoryStore::with_clock(clock.clone()).open(&"worker".parse().unwrap());
    let board = BoardAdapter::open(backend, BoardOptions::default().clock(clock.clone())).await.unwrap();
    board.add(TaskSpec::new(id("t"))).await.unwrap();
    let (seen, mut told) = tokio::sync::mpsc::channel(4);
    let handler = move |job: Job| {
        let seen = seen.clone();
        async move {
            seen.send((job.fence(), None)).await.unwrap();
            let why = job.lost().await;
            assert!(job.is_lost() && job.remaining().is_zero());
            seen.send((job.fence(), Some(why))).await.unwrap();
            Ok(outcome("too late"))
        }
    };
    let worker = worker(&board).clock(clock.clone()).lease(Duration::from_secs(30));
    let running = Running::start(worker, handler);
    assert_eq!(told.recv().await, Some((1, None)));
    // Renewed at a third of its ttl, it outlives it.
    for _ in 0..9 {
        let before = board.get(&id("t")).await.unwrap().lease.unwrap().until;
        clock.advance(Duration::from_secs(10));
        while board.get(&id("t")).await.unwrap().lease.unwrap().until == before {
            tokio::task::yield_now().await;
        }
    }
    // An operator frees it, and somebody else takes it.
    board.revoke(&id("t"), 1).await.unwrap();
    let other = board
        .claim(&id("t"), &AgentId::new("other").unwrap(), ClaimRequest::for_ttl(Duration::from_secs(3_600)))
        .await
        .unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(told.recv().await, Some((1, Some(Lost::Refused))));
    board.complete(&id("t"), &other.lease.token, outcome("by the other one")).await.unwrap();
    let report = running.stop().await;
    assert_eq!((report.completed, report.lost), (0, 1));
    assert_eq!(board.get(&id("t")).await.unwrap().outcome.unwrap().as_str(), "by the other one");
}

#[tokio::test]
async fn senseless_options_are_refused() {
    let board = board().await;
    let handler = |_: Job| async { Ok::<_, String>(Outcome::default()) };
    let refused = [
        worker(&board).concurrency(0),
        worker(&board).lease(Duration::ZERO),
        Worker::new(board.clone(), AgentId::unchecked("")),
    ];
    for worker in refused {
        let error = worker.run(handler, std::future::pending()).await.unwrap_err();
        assert!(matches!(error, BoardError::Invalid(_)), "{error:?}");
    }
}
