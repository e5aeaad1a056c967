//! Entries of the ready index that never yield a claim, many of them, and in front of all others: they neither keep a look from
//! ending nor hide what can be claimed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coord_core::board::{
    AgentId, Awaited, Board, BoardAdapter, BoardError, BoardOptions, ClaimRequest, Dep, ExtendedBoard,
    Filter, Outcome, Plan, Rule, State, TaskId, TaskSpec,
};
use coord_core::layer::{Cell, Fault, Meter, Observe, When};
use coord_core::{Backend, Bytes, Entry, Key, KeySet, Mutation, Timestamp, Txn};
use coord_memory::{MemoryBackend, MemoryStore};

const TTL: Duration = Duration::from_secs(60);
/// More than one look works off, or lists.
const MANY: usize = 300;
/// Where the state of a task stands in its head, behind the envelope.
const STATE_AT: usize = 6;
/// A state that a later version may have.
const LATER: u8 = 77;

type Store = Fault<Observe<MemoryBackend>>;

struct Scene {
    backend: MemoryBackend,
    meter: Meter,
    board: BoardAdapter<Store>,
}

fn id(name: impl AsRef<str>) -> TaskId {
    TaskId::new(name).unwrap()
}

fn agent() -> AgentId {
    AgentId::new("worker").unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

impl Scene {
    async fn new() -> Self {
        let backend = MemoryStore::new().open(&"entries".parse().unwrap());
        let observed = Observe::new(backend.clone());
        let meter = observed.meter();
        let fault = Fault::new(observed);
        // Whoever never ends is told in the end that the store is away.
        fault.faults().on(When::any().from(50_000), Cell::refused());
        let board = BoardAdapter::open(fault, BoardOptions::default()).await.unwrap();
        Scene { backend, meter, board }
    }

    async fn entry(&self, key: &Key) -> Entry {
        let snapshot = self.backend.snapshot(&KeySet::new([key.clone()]).unwrap()).await.unwrap();
        snapshot.require(key).unwrap().clone()
    }

    async fn value(&self, name: &str) -> Bytes {
        self.entry(&key(name)).await.value().unwrap().clone()
    }

    async fn put(&self, entries: impl IntoIterator<Item = (String, Bytes)>) {
        let puts: Vec<Mutation> =
            entries.into_iter().map(|(name, value)| Mutation::put(key(&name), value)).collect();
        for page in puts.chunks(1_000) {
            assert!(self.backend.txn(&Txn::new([], page.to_vec()).unwrap()).await.unwrap().is_applied());
        }
    }

    /// Tasks without dependencies, whose names sort before most.
    async fn add_many(&self) -> Vec<String> {
        let names: Vec<String> = (0..MANY).map(|n| format!("-{n:03}")).collect();
        let plan = Plan::new(names.iter().map(|name| TaskSpec::new(id(name)))).unwrap();
        self.board.add_plan(&plan).await.unwrap();
        names
    }

    /// What somebody gets who looks once.
    async fn next(&self) -> Result<Option<TaskId>, BoardError> {
        let found = self.board.claim_next(&agent(), &Filter::any(), TTL).await?;
        Ok(found.map(|claim| claim.task.id))
    }

    async fn end(&self, name: &str, state: State) {
        let token =
            self.board.claim(&id(name), &agent(), ClaimRequest::for_ttl(TTL)).await.unwrap().lease.token;
        match state {
            State::Done => self.board.complete(&id(name), &token, Outcome::default()).await.unwrap(),
            _ => self.board.fail(&id(name), &token, Outcome::default()).await.unwrap(),
        };
    }
}

/// What stands under an entry that is nothing but its key.
async fn marker(scene: &Scene) -> Bytes {
    scene.board.add(TaskSpec::new(id("~marked"))).await.unwrap();
    scene.board.add(TaskSpec::new(id("~marks")).dep(id("~marked"))).await.unwrap();
    let marker = scene.value("wait/007/~marked/~marks").await;
    for name in ["~marks", "~marked"] {
        scene.board.remove(&id(name)).await.unwrap();
    }
    marker
}

#[tokio::test]
async fn tasks_that_a_later_version_defined_and_that_must_be_examined_keep_no_look_from_ending() {
    let scene = Scene::new().await;
    let marker = marker(&scene).await;
    let names = scene.add_many().await;
    scene.put(names.iter().map(|name| (format!("def/{name}"), Bytes::from_static(b"later")))).await;
    scene.put(names.iter().map(|name| (format!("todo/{name}"), marker.clone()))).await;
    // There is nothing else.
    let before = scene.meter.counts();
    assert!(matches!(scene.next().await, Err(BoardError::Malformed { .. })));
    let calls = scene.meter.counts().since(before).total().calls;
    assert!(calls < 4 * MANY as u64, "{calls} calls");
    // And they hide nothing.
    scene.board.add(TaskSpec::new(id("z"))).await.unwrap();
    assert_eq!(scene.next().await.unwrap(), Some(id("z")));
}

#[tokio::test]
async fn markers_that_nothing_waits_for_hide_nothing_that_waits_for_another_one() {
    for last in [State::Done, State::Failed] {
        let scene = Scene::new().await;
        let marker = marker(&scene).await;
        let names = scene.add_many().await;
        for name in &names {
            scene.end(name, State::Done).await;
        }
        let rule = if last == State::Done { Rule::Done } else { Rule::Failed };
        for (dependency, dependent) in [("-", "x"), ("~", "y")] {
            scene.board.add(TaskSpec::new(id(dependency))).await.unwrap();
            scene.board.add(TaskSpec::new(id(dependent)).dep((id(dependency), rule))).await.unwrap();
            scene.end(dependency, last).await;
            // As if whoever ended it had died right then: what waits for it still waits.
            let ready = format!(
                "rdy/7fffffff/{:016x}/{dependent}",
                scene.board.get(&id(dependent)).await.unwrap().order
            );
            let delete = [Mutation::delete(key(&ready))];
            assert!(scene.backend.txn(&Txn::new([], delete).unwrap()).await.unwrap().is_applied());
            scene
                .put([
                    (format!("wait/001/{dependency}/{dependent}"), marker.clone()),
                    (format!("todo/{dependency}"), marker.clone()),
                ])
                .await;
        }
        scene.put(names.iter().map(|name| (format!("todo/{name}"), marker.clone()))).await;
        assert_eq!(
            scene
                .board
                .check_index()
                .await
                .unwrap()
                .iter()
                .filter(|p| p.code == coord_core::board::ProblemCode::Unindexed)
                .count(),
            0
        );
        // Each look finds one, as there are two.
        let found = [scene.next().await.unwrap(), scene.next().await.unwrap()];
        assert!(found.contains(&Some(id("x"))) && found.contains(&Some(id("y"))), "{found:?}");
    }
}

#[tokio::test]
async fn what_a_later_version_has_done_with_a_task_is_left_to_it() {
    let scene = Scene::new().await;
    let marker = marker(&scene).await;
    for name in ["d", "later"] {
        scene.board.add(TaskSpec::new(id(name))).await.unwrap();
    }
    scene.board.add(TaskSpec::new(id("x")).dep(id("later"))).await.unwrap();
    scene.board.set_deps(&id("later"), &[Dep::from(id("d"))], None).await.unwrap();
    let mut head = scene.value("task/later").await.to_vec();
    head[STATE_AT] = LATER;
    scene.put([("task/later".to_owned(), head.into())]).await;
    // Where the later version wants it to be found: nobody else knows what it means.
    let own = [
        "todo/later",
        "due/0000000000000001/later",
        "rdy/00000000/0000000000000001/later",
        "wait/001/d/later",
    ];
    scene.put(own.iter().map(|name| ((*name).to_owned(), marker.clone()))).await;
    scene.end("d", State::Done).await;
    for _ in 0..3 {
        assert!(matches!(scene.next().await, Err(BoardError::Malformed { .. })));
    }
    for name in own {
        assert!(scene.entry(&key(name)).await.is_present(), "{name} is gone");
    }
}

#[tokio::test]
async fn what_is_no_entry_keeps_nobody_from_seeing_what_is_due() {
    let scene = Scene::new().await;
    scene.put([("due/!".to_owned(), Bytes::from_static(b"!"))]).await;
    let soon = Timestamp::from_micros(1).unwrap();
    scene.board.add(TaskSpec::new(id("x")).not_before(soon)).await.unwrap();
    assert!(scene.board.wait(&Awaited::Ready, Duration::from_millis(200)).await.unwrap(), "nobody sees it");
    assert_eq!(scene.next().await.unwrap(), Some(id("x")));
}

#[tokio::test]
async fn hundreds_of_stale_entries_in_front_hide_nothing() {
    let scene = Scene::new().await;
    let marker = marker(&scene).await;
    let names = scene.add_many().await;
    for name in &names {
        scene.end(name, State::Done).await;
    }
    scene.board.add(TaskSpec::new(id("d"))).await.unwrap();
    scene.board.add(TaskSpec::new(id("x")).dep(id("d"))).await.unwrap();
    let far = Timestamp::from_micros(i64::MAX / 2).unwrap();
    scene.board.add(TaskSpec::new(id("far")).not_before(far)).await.unwrap();
    scene.end("d", State::Done).await;
    let stale = |name: &str| {
        [
            (format!("rdy/00000000/0000000000000000/{name}"), marker.clone()),
            (format!("due/0000000000000001/{name}"), marker.clone()),
            (format!("todo/{name}"), marker.clone()),
        ]
    };
    scene.put(names.iter().flat_map(|name| stale(name))).await;
    // Of tasks that are gone, and of one whose time has not come.
    scene.put((0..MANY).flat_map(|n| stale(&format!(".{n}")))).await;
    scene.put(stale("far")).await;
    assert_eq!(scene.next().await.unwrap(), Some(id("x")));
    assert_eq!(scene.next().await.unwrap(), None);
    // Now they are gone, and a look costs what it always does.
    let before = scene.meter.counts();
    assert_eq!(scene.next().await.unwrap(), None);
    let calls = scene.meter.counts().since(before).total().calls;
    assert!(calls < 10, "{calls} calls");
    assert_eq!(scene.board.check_index().await.unwrap(), []);
}
