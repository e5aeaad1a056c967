//! What workers cost who have nothing to do, and how soon they begin: on a clock that the tests move.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    AgentId, BoardAdapter, BoardOptions, ExtendedBoard, Job, Outcome, TaskId, TaskSpec, Worker,
};
use coord_core::layer::{Meter, Observe};
use coord_core::{Clock, ManualClock, Timestamp};
use coord_memory::MemoryStore;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const STEP: Duration = Duration::from_millis(20);

struct Fleet {
    clock: Arc<ManualClock>,
    meter: Meter,
    board: BoardAdapter<Observe<coord_memory::MemoryBackend>>,
    begun: mpsc::UnboundedReceiver<TaskId>,
    _working: JoinSet<()>,
}

impl Fleet {
    /// Workers who share nothing but the store, as in processes of their own.
    async fn of(workers: usize) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let observed = Observe::new(MemoryStore::new().open(&"idle".parse().unwrap()));
        let (meter, mut working) = (observed.meter(), JoinSet::new());
        let open = || BoardAdapter::open(observed.clone(), BoardOptions::default().clock(clock.clone()));
        let (begin, begun) = mpsc::unbounded_channel();
        for n in 0..workers {
            let begin = begin.clone();
            let handler = move |job: Job| {
                begin.send(job.task().id.clone()).unwrap();
                async { Ok::<_, std::io::Error>(Outcome::default()) }
            };
            let agent = AgentId::new(format!("worker {n}")).unwrap();
            let worker = Worker::new(open().await.unwrap(), agent).clock(clock.clone());
            working.spawn(async move {
                worker.run(handler, std::future::pending()).await.unwrap();
            });
        }
        let board = open().await.unwrap();
        Fleet { clock, meter, board, begun, _working: working }
    }

    /// Lets time pass, in small steps, each of which is seen by everybody.
    async fn pass(&self, time: Duration) {
        let end = self.clock.monotonic() + time;
        while self.clock.monotonic() < end {
            self.clock.advance(STEP);
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn calls(&self) -> u64 {
        self.meter.counts().total().calls
    }

    /// How long it takes until a new task is begun.
    async fn begins_after(&mut self, name: &str) -> Duration {
        let (id, start) = (TaskId::new(name).unwrap(), self.clock.monotonic());
        self.board.add(TaskSpec::new(id.clone())).await.unwrap();
        loop {
            if let Ok(seen) = self.begun.try_recv() {
                assert_eq!(seen, id);
                return self.clock.monotonic() - start;
            }
            self.pass(STEP).await;
            assert!(self.clock.monotonic() - start < Duration::from_secs(60), "{name} is never begun");
        }
    }
}

#[tokio::test]
async fn two_hundred_who_wait_read_less_than_a_hundred_times_a_second_and_begin_within_one() {
    let mut fleet = Fleet::of(200).await;
    fleet.pass(Duration::from_secs(20)).await;
    let before = fleet.calls();
    fleet.pass(Duration::from_secs(20)).await;
    let calls = fleet.calls() - before;
    assert!(calls > 0 && calls < 100 * 20, "{calls} calls in 20 s");
    for name in ["first", "second", "third"] {
        let late = fleet.begins_after(name).await;
        assert!(late < Duration::from_secs(1), "{name} begins after {late:?}");
    }
}

#[tokio::test]
async fn one_who_waits_alone_reads_seldom_and_begins_within_some_seconds() {
    let mut fleet = Fleet::of(1).await;
    fleet.pass(Duration::from_secs(60)).await;
    let before = fleet.calls();
    fleet.pass(Duration::from_secs(60)).await;
    let calls = fleet.calls() - before;
    assert!(calls > 0 && calls < 50, "{calls} calls in a minute");
    let late = fleet.begins_after("late").await;
    assert!(late < Duration::from_secs(6), "it begins after {late:?}");
    // It has just been busy, so it looks often again.
    let soon = fleet.begins_after("soon").await;
    assert!(soon < Duration::from_millis(200), "the next one begins after {soon:?}");
}
