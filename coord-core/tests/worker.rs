//! The worker: what it claims, keeps and tells, and what it does when told to stop.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use std::collections::BTreeSet;
use std::sync::Mutex;

use coord_core::board::{
    AgentId, Answer, Awaited, Board, BoardAdapter, BoardError, BoardOptions, ClaimRequest, ExtendedBoard,
    Filter, Job, Outcome, Retry, Settled, State, TaskId, TaskSpec, Worker, WorkerEvent, WorkerReport,
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

#[tokio::test]
async fn a_handler_may_answer_anything_and_whoever_observes_sees_all_of_it() {
    let board = board().await;
    for name in ["done", "failed", "back"] {
        board.add(TaskSpec::new(id(name))).await.unwrap();
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let seen = seen.clone();
        move |event: WorkerEvent<'_>| {
            let line = match event {
                WorkerEvent::Claimed { task, fence } => format!("claimed {} {fence}", task.id),
                WorkerEvent::Settled { task, fence, how, said } => {
                    let said = said.map(|said| format!(" {said}")).unwrap_or_default();
                    format!("{how:?} {} {fence}{said}", task.id)
                }
                WorkerEvent::Idle => "idle".into(),
                other => panic!("{other:?}"),
            };
            seen.lock().unwrap().push(line);
        }
    };
    let handler = |job: Job| async move {
        match job.task().id.as_str() {
            "done" => Answer::Complete(outcome("well")),
            "failed" => Answer::Fail(outcome("badly")),
            _ => Answer::Release,
        }
    };
    // What is given back is there again, so that it ends by the number of tasks alone.
    let report =
        worker(&board).max_tasks(4).observe(observer).run(handler, std::future::pending()).await.unwrap();
    assert_eq!((report.claimed, report.completed, report.failed, report.released), (4, 1, 1, 2));
    assert_eq!(
        *seen.lock().unwrap(),
        [
            "claimed done 1",
            "Completed done 1 well",
            "claimed failed 1",
            "Failed failed 1 badly",
            "claimed back 1",
            "Released back 1",
            "claimed back 2",
            "Released back 2"
        ]
    );
}

#[tokio::test]
async fn it_ends_when_nothing_is_left_that_could_run() {
    let board = board().await;
    board.add(TaskSpec::new(id("fails")).label("mine")).await.unwrap();
    board.add(TaskSpec::new(id("blocked")).label("mine").dep(id("fails"))).await.unwrap();
    let retry = Retry::new(2).backoff(Duration::from_millis(40), Duration::from_millis(40));
    board.add(TaskSpec::new(id("twice")).retry(retry)).await.unwrap();
    let handler = |job: Job| async move {
        let again = job.task().id.as_str() == "twice" && job.task().attempts == 2;
        if again { Ok(Outcome::default()) } else { Err("no".to_owned()) }
    };
    // Somebody else holds one that this worker does not want: it does not wait for it.
    board.add(TaskSpec::new(id("theirs"))).await.unwrap();
    let other = AgentId::new("other").unwrap();
    let theirs = board.claim(&id("theirs"), &other, ClaimRequest::forever()).await.unwrap();
    board.add(TaskSpec::new(id("only")).label("few")).await.unwrap();
    let few = worker(&board).until_idle().filter(Filter::any().with_label("few"));
    let report = few.run(handler, std::future::pending()).await.unwrap();
    assert_eq!((report.claimed, report.failed), (1, 1));
    // One that wants all waits for it, and for what rests.
    let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let observer = move |event: WorkerEvent<'_>| {
        if let WorkerEvent::Settled { task, how: Settled::Completed, .. } = event {
            let _ = sender.send(task.id.to_string());
        }
    };
    let working =
        tokio::spawn(worker(&board).until_idle().observe(observer).run(handler, std::future::pending()));
    assert_eq!(seen.recv().await.as_deref(), Some("twice"));
    assert!(!working.is_finished());
    board.complete(&id("theirs"), &theirs.lease.token, Outcome::default()).await.unwrap();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.claimed, report.completed, report.failed), (3, 1, 2));
    assert_eq!(state(&board, "blocked").await, State::Open);
    assert!(board.wait(&Awaited::Idle, Duration::ZERO).await.unwrap());
}

#[tokio::test]
async fn told_to_stop_at_once_it_hears_what_the_handlers_answer_within_the_notice() {
    let board = board().await;
    for name in ["answers", "deaf", "also-deaf"] {
        board.add(TaskSpec::new(id(name))).await.unwrap();
    }
    let handler = |job: Job| async move {
        if job.task().id.as_str() == "answers" {
            job.stopping().await;
            return Ok::<_, String>(outcome("cut short"));
        }
        std::future::pending().await
    };
    let worker = worker(&board).concurrency(3).grace(Duration::MAX).notice(Duration::from_millis(20));
    let handle = worker.handle();
    let working = tokio::spawn(worker.run(handler, std::future::pending()));
    for name in ["answers", "deaf", "also-deaf"] {
        until(&board, name, State::Claimed).await;
    }
    // A drain waits for what runs, however long; a stop does not.
    handle.drain();
    tokio::task::yield_now().await;
    assert!(!working.is_finished());
    handle.stop();
    let report = working.await.unwrap().unwrap();
    assert_eq!((report.completed, report.released), (1, 2));
    assert_eq!(board.get(&id("answers")).await.unwrap().outcome.unwrap().as_str(), "cut short");
    assert_eq!(state(&board, "deaf").await, State::Open);
}

#[tokio::test]
async fn an_idle_worker_looks_at_once_when_it_is_told_to() {
    let board = board().await;
    let hour = Duration::from_secs(3_600);
    let (sender, mut idle) = tokio::sync::mpsc::unbounded_channel();
    let worker = Worker::new(board.clone(), AgentId::new("w").unwrap())
        .look(hour, hour)
        .max_tasks(1)
        .observe(move |event| {
            if matches!(event, WorkerEvent::Idle) {
                let _ = sender.send(());
            }
        });
    let handle = worker.handle();
    let handler = |_: Job| async { Ok::<_, String>(Outcome::default()) };
    let working = tokio::spawn(worker.run(handler, std::future::pending()));
    idle.recv().await.unwrap();
    board.add(TaskSpec::new(id("t"))).await.unwrap();
    handle.look();
    assert_eq!(working.await.unwrap().unwrap().completed, 1);
}

#[tokio::test]
async fn waiting_for_the_first_of_several_and_for_an_idle_board() {
    let board = board().await;
    let names = ["a", "b"];
    for name in names {
        board.add(TaskSpec::new(id(name))).await.unwrap();
    }
    let any = Awaited::AnyEnded(names.map(id).into());
    assert!(!board.wait(&any, Duration::ZERO).await.unwrap());
    let waiting = tokio::spawn({
        let board = board.clone();
        async move { board.wait(&any, Duration::from_secs(3_600)).await }
    });
    board.cancel(&id("b")).await.unwrap();
    assert!(waiting.await.unwrap().unwrap());
    // One that has ended is enough, also where another is not there.
    let known = |names: &[&str]| Awaited::AnyEnded(names.iter().map(|name| id(name)).collect());
    assert!(board.wait(&known(&["b", "gone"]), Duration::ZERO).await.unwrap());
    let error = board.wait(&known(&["a", "gone"]), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, BoardError::NotFound { .. }), "{error:?}");
    let error = board.wait(&Awaited::AnyEnded(BTreeSet::new()), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, BoardError::Invalid(_)), "{error:?}");
    let many = (0..1_025).map(|n| id(&format!("t{n}"))).collect();
    let error = board.wait(&Awaited::AnyEnded(many), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, BoardError::TooLarge { .. }), "{error:?}");

    let idle = async || board.wait(&Awaited::Idle, Duration::ZERO).await.unwrap();
    assert!(!idle().await, "a can be claimed");
    let other = AgentId::new("other").unwrap();
    let claim = board.claim(&id("a"), &other, ClaimRequest::forever()).await.unwrap();
    assert!(!idle().await, "a is held");
    board.add(TaskSpec::new(id("after-b")).dep(id("b"))).await.unwrap();
    board.complete(&id("a"), &claim.lease.token, Outcome::default()).await.unwrap();
    assert!(idle().await, "what is left waits for what was cancelled");
    board.reopen(&id("b")).await.unwrap();
    assert!(!idle().await, "b can be claimed");
}

#[tokio::test]
async fn progress_is_told_at_most_once_a_second_and_the_last_word_counts() {
    let board = board().await;
    board.add(TaskSpec::new(id("t"))).await.unwrap();
    let (more, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (more, end) = (more.clone(), end.clone());
        move |job: Job| {
            let (more, end) = (more.clone(), end.clone());
            async move {
                job.progress("é".repeat(400));
                more.notified().await;
                for n in 1..=100 {
                    job.progress(format!("{n} of 100"));
                    tokio::task::yield_now().await;
                }
                end.notified().await;
                Ok(outcome("fine"))
            }
        }
    };
    let running = Running::start(worker(&board), handler);
    let told = async |wanted: &dyn Fn(&str) -> bool| loop {
        let task = board.get(&id("t")).await.unwrap();
        if let Some(progress) = &task.progress
            && wanted(&progress.text)
        {
            return (task.seq, progress.at, progress.text.clone());
        }
        tokio::task::yield_now().await;
    };
    // What is too long is cut, and not refused.
    let (seq, first, cut) = told(&|_| true).await;
    assert_eq!(cut, "é".repeat(256));
    more.notify_one();
    // None of those in between is told, for they come within the same second.
    let (later, last, text) = told(&|text| text != cut).await;
    assert_eq!((text.as_str(), later), ("100 of 100", seq));
    assert!(last.saturating_since(first) >= Duration::from_millis(900), "{first} {last}");
    end.notify_one();
    until(&board, "t", State::Done).await;
    assert_eq!(running.stop().await.completed, 1);
}
