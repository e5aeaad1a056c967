//! What a worker does about handlers that panic before they begin, records that nobody can read, and looks that take longer than leases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coord_core::board::{
    AgentId, Board, BoardAdapter, BoardError, BoardOptions, ExtendedBoard, Job, Outcome, State, TaskId,
    TaskSpec, Worker, WorkerEvent,
};
use coord_core::layer::{Cell, Fault, StoreClock, When};
use coord_core::{Backend, Clock, Key, ManualClock, Mutation, Timestamp, Txn};
use coord_memory::{MemoryBackend, MemoryStore};

const QUICK: Duration = Duration::from_millis(1);

fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

fn backend() -> MemoryBackend {
    MemoryStore::new().open(&"trouble".parse().unwrap())
}

async fn done(_: Job) -> Result<Outcome, String> {
    Ok(Outcome::default())
}

#[tokio::test]
async fn a_handler_that_panics_before_there_is_a_future_fails_its_task_and_no_other() {
    let board = BoardAdapter::open(backend(), BoardOptions::default()).await.unwrap();
    for name in ["bad", "good", "last"] {
        board.add(TaskSpec::new(id(name))).await.unwrap();
    }
    let handler = |job: Job| {
        assert!(job.task().id != id("bad"), "nothing to be read in {}", job.task().id);
        async { Ok::<_, String>(Outcome::default()) }
    };
    let worker = Worker::new(board.clone(), AgentId::new("w").unwrap()).look(QUICK, QUICK).until_idle();
    let report = worker.concurrency(2).run(handler, std::future::pending()).await.unwrap();
    assert_eq!((report.completed, report.failed), (2, 1));
    let bad = board.get(&id("bad")).await.unwrap();
    assert_eq!(bad.state, State::Failed);
    assert_eq!(bad.outcome.unwrap().as_str(), "panicked: nothing to be read in bad");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_no_outage() {
    let backend = backend();
    let board = BoardAdapter::open(backend.clone(), BoardOptions::default()).await.unwrap();
    let foreign = Mutation::put(Key::new("rdy/00000000/foreign").unwrap(), "foreign");
    assert!(backend.txn(&Txn::new([], [foreign]).unwrap()).await.unwrap().is_applied());
    let (told, mut trouble) = tokio::sync::mpsc::unbounded_channel();
    let worker = Worker::new(board.clone(), AgentId::new("w").unwrap())
        .look(QUICK, QUICK)
        .outage(Duration::ZERO)
        .max_tasks(1)
        .observe(move |event| {
            if let WorkerEvent::Trouble { error, .. } = event {
                told.send(matches!(error, BoardError::Malformed { .. })).ok();
            }
        });
    let working = tokio::spawn(worker.run(done, std::future::pending()));
    for _ in 0..3 {
        assert_eq!(trouble.recv().await, Some(true));
    }
    board.add(TaskSpec::new(id("t"))).await.unwrap();
    assert_eq!(working.await.unwrap().unwrap().completed, 1);
}

/// A worker whose first look takes longer than a lease, and perhaps its renewal fails as well.
async fn after_a_long_look(refused: bool) -> (u64, u32, usize) {
    let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
    let fault = Fault::new(backend());
    let faults = fault.faults();
    let store = StoreClock::new(fault, clock.clone() as Arc<dyn Clock>);
    let board = BoardAdapter::open(store, BoardOptions::default()).await.unwrap();
    board.add(TaskSpec::new(id("t"))).await.unwrap();
    let time = clock.clone();
    let slow = Cell::pass().before(move |_| {
        time.advance(Duration::from_secs(60));
        std::future::ready(())
    });
    faults.on(When::keys(), slow);
    if refused {
        // The claim is the first transaction.
        faults.on(When::txn().nth(2), Cell::refused());
    }
    let begun = Arc::new(AtomicUsize::new(0));
    let handler = {
        let begun = begun.clone();
        move |job: Job| {
            begun.fetch_add(1, Ordering::Relaxed);
            done(job)
        }
    };
    let worker = Worker::new(board.clone(), AgentId::new("w").unwrap()).clock(clock.clone()).max_tasks(1);
    let working = tokio::spawn(worker.run(handler, std::future::pending()));
    while !working.is_finished() {
        clock.advance(QUICK);
        tokio::task::yield_now().await;
    }
    let report = working.await.unwrap().unwrap();
    (report.completed, board.get(&id("t")).await.unwrap().attempts, begun.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_look_that_takes_longer_than_a_lease_costs_no_attempt() {
    assert_eq!(after_a_long_look(false).await, (1, 1, 1));
    // Where it is not known whether the lease lives, nothing is begun; the task is given back, and taken again.
    assert_eq!(after_a_long_look(true).await, (1, 1, 1));
}
