//! Boards that are too large to be listed at one instant.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coord_core::board::{
    AgentId, Board, BoardAdapter, BoardError, BoardOptions, ClaimRequest, Dep, ExtendedBoard, Outcome, Plan,
    ProblemCode, TaskId, TaskSpec, limits,
};
use coord_core::{Backend, KeyRange, KeySet, Mutation, Prefix, Txn, TxnOutcome};
use coord_memory::{MemoryBackend, MemoryStore};

fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

async fn board(store: &MemoryStore, namespace: &str) -> BoardAdapter<MemoryBackend> {
    let backend = store.open(&namespace.parse().unwrap());
    BoardAdapter::open(backend, BoardOptions::default()).await.unwrap()
}

/// Copies every record of a task from one board over that of another.
async fn plant(from: &MemoryBackend, to: &MemoryBackend, task: &str) {
    let keys = from.keys(&KeyRange::new(Prefix::all(), 10_000).unwrap()).await.unwrap();
    let of_task = keys.into_iter().filter(|key| {
        key.as_str().rsplit_once('/').is_some_and(|(kind, name)| name == task && !kind.contains('/'))
    });
    let snapshot = from.snapshot(&KeySet::new(of_task).unwrap()).await.unwrap();
    let puts: Vec<Mutation> = snapshot
        .iter()
        .filter_map(|(key, entry)| Some(Mutation::put(key.clone(), entry.value()?.clone())))
        .collect();
    assert!(puts.len() >= 2, "{task} has at least a head and a definition");
    let outcome = to.txn(&Txn::new([], puts).unwrap()).await.unwrap();
    assert!(outcome == TxnOutcome::Applied, "{outcome:?}");
}

#[tokio::test]
async fn what_is_wrong_is_found_and_nothing_else() {
    let store = MemoryStore::new();
    let (board, other) = (board(&store, "large").await, board(&store, "other").await);
    let filler = (0..limits::LISTED_TASKS).map(|n| TaskSpec::new(id(&format!("m{n:05}"))));
    board.add_plan(&Plan::new(filler).unwrap()).await.unwrap();
    for (task, dep) in [("z held", "a open"), ("c", "d")] {
        for board in [&board, &other] {
            board.add(TaskSpec::new(id(dep))).await.unwrap();
        }
        other.add(TaskSpec::new(id(task)).dep(id(dep))).await.unwrap();
        board.add(TaskSpec::new(id(task))).await.unwrap();
    }
    assert!(matches!(board.list().await, Err(BoardError::TooLarge { .. })));
    assert_eq!(board.check().await.unwrap(), []);

    let claim = |task: &'static str| {
        let other = other.clone();
        async move {
            let request = ClaimRequest::for_ttl(Duration::from_secs(60));
            other.claim(&id(task), &AgentId::new("w").unwrap(), request).await.unwrap()
        }
    };
    let token = claim("a open").await.lease.token;
    other.complete(&id("a open"), &token, Outcome::default()).await.unwrap();
    claim("z held").await;
    plant(other.backend(), board.backend(), "z held").await;
    board.set_deps(&id("d"), &[Dep::from(&id("c"))], None).await.unwrap();
    plant(other.backend(), board.backend(), "c").await;

    let problems = board.check().await.unwrap();
    let found: Vec<_> = problems.iter().map(|problem| (problem.code, problem.task.as_str())).collect();
    assert_eq!(found, [(ProblemCode::BlockedClaim, "z held"), (ProblemCode::DepCycle, "c")]);
}
