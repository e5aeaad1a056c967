//! The board above the memory backend: a first look at every verb. The contract suite proves the rest.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    Added, AgentId, Board, BoardAdapter, BoardError, BoardOptions, ClaimRequest, Dep, ExtendedBoard, Filter,
    Outcome, Plan, State, TaskId, TaskSpec, check,
};
use coord_core::layer::{Cell, Fault, When};
use coord_core::{Clock, ManualClock, Timestamp, Token};
use coord_memory::{MemoryBackend, MemoryStore};

const TTL: Duration = Duration::from_secs(30);

fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

fn agent(text: &str) -> AgentId {
    AgentId::new(text).unwrap()
}

fn outcome(text: &str) -> Outcome {
    Outcome::new(text).unwrap()
}

async fn board() -> (BoardAdapter<MemoryBackend>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000_000).unwrap()));
    let backend = MemoryStore::with_clock(clock.clone()).open(&"test".parse().unwrap());
    (BoardAdapter::open(backend, BoardOptions::default()).await.unwrap(), clock)
}

#[tokio::test]
async fn a_task_goes_from_open_to_done() {
    let (board, clock) = board().await;
    assert_eq!(board.add(TaskSpec::new(id("a"))).await.unwrap(), Added::New);
    assert_eq!(board.add(TaskSpec::new(id("a"))).await.unwrap(), Added::Existed);
    let claim = board.claim(&id("a"), &agent("w"), ClaimRequest::for_ttl(TTL)).await.unwrap();
    assert_eq!((claim.lease.fence, claim.task.attempts), (1, 1));
    assert_eq!(claim.lease.until, Some(clock.now().saturating_add(TTL)));
    let again = board.claim(&id("a"), &agent("w"), ClaimRequest::for_ttl(TTL)).await;
    assert!(matches!(again, Err(BoardError::Taken { fence: 1, .. })), "{again:?}");
    clock.advance(Duration::from_secs(10));
    let renewed = board.renew(&id("a"), &claim.lease.token, TTL).await.unwrap();
    assert_eq!(renewed.until, Some(clock.now().saturating_add(TTL)));
    let stranger = board.complete(&id("a"), &Token::mint(), outcome("no")).await;
    assert!(matches!(stranger, Err(BoardError::LeaseLost { current_fence: 1 })), "{stranger:?}");
    assert_eq!(board.complete(&id("a"), &claim.lease.token, outcome("yes")).await.unwrap(), outcome("yes"));
    assert_eq!(board.complete(&id("a"), &claim.lease.token, outcome("other")).await.unwrap(), outcome("yes"));
    let task = board.get(&id("a")).await.unwrap();
    assert_eq!((task.state, task.outcome, task.owner), (State::Done, Some(outcome("yes")), None));
    assert!(check(&board.list().await.unwrap()).is_empty());
}

#[tokio::test]
async fn an_expired_lease_is_taken_over_and_the_old_token_is_worthless() {
    let (board, clock) = board().await;
    board.add(TaskSpec::new(id("a"))).await.unwrap();
    let first = board.claim(&id("a"), &agent("w"), ClaimRequest::for_ttl(TTL)).await.unwrap();
    clock.advance(TTL);
    assert!(matches!(
        board.renew(&id("a"), &first.lease.token, TTL).await,
        Err(BoardError::LeaseLost { current_fence: 1 })
    ));
    let second = board.claim(&id("a"), &agent("w"), ClaimRequest::for_ttl(TTL)).await.unwrap();
    assert_eq!((second.lease.fence, second.task.attempts), (2, 2));
    for lost in [
        board.release(&id("a"), &first.lease.token).await,
        board.complete(&id("a"), &first.lease.token, outcome("late")).await.map(|_| ()),
        board.fail(&id("a"), &first.lease.token, outcome("late")).await.map(|_| ()),
    ] {
        assert!(matches!(lost, Err(BoardError::LeaseLost { current_fence: 2 })), "{lost:?}");
    }
    board.release(&id("a"), &second.lease.token).await.unwrap();
    board.release(&id("a"), &second.lease.token).await.unwrap();
    assert!(matches!(
        board.complete(&id("a"), &second.lease.token, outcome("x")).await,
        Err(BoardError::LeaseLost { .. })
    ));
}

#[tokio::test]
async fn dependencies_block_until_they_are_done() {
    let (board, _) = board().await;
    let plan = Plan::new([
        TaskSpec::new(id("c")).dep(id("a")).dep(id("b")),
        TaskSpec::new(id("a")).priority(1),
        TaskSpec::new(id("b")).label("gpu"),
    ])
    .unwrap();
    assert_eq!(plan.cost().transactions, 1);
    assert_eq!(board.add_plan(&plan).await.unwrap().added, 3);
    let blocked = board.claim(&id("c"), &agent("w"), ClaimRequest::forever()).await;
    let Err(BoardError::Blocked { pending, failed, missing }) = blocked else { panic!("{blocked:?}") };
    assert_eq!((pending, failed.len(), missing.len()), (vec![id("a"), id("b")], 0, 0));
    let filter = Filter::any().with_label("gpu");
    let gpu = board.claim_next(&agent("w"), &filter, TTL).await.unwrap().unwrap();
    assert_eq!(gpu.task.id, id("b"));
    let next = board.claim_next(&agent("w"), &Filter::any(), TTL).await.unwrap().unwrap();
    assert_eq!(next.task.id, id("a"));
    assert!(board.claim_next(&agent("w"), &Filter::any(), TTL).await.unwrap().is_none());
    board.complete(&id("a"), &next.lease.token, outcome("")).await.unwrap();
    board.fail(&id("b"), &gpu.lease.token, outcome("broken")).await.unwrap();
    let blocked = board.claim(&id("c"), &agent("w"), ClaimRequest::forever()).await;
    assert!(
        matches!(&blocked, Err(BoardError::Blocked { failed, .. }) if *failed == [id("b")]),
        "{blocked:?}"
    );
    board.reopen(&id("b")).await.unwrap();
    let again = board.claim_next(&agent("w"), &Filter::any(), TTL).await.unwrap().unwrap();
    board.complete(&id("b"), &again.lease.token, outcome("")).await.unwrap();
    let last = board.claim_next(&agent("w"), &Filter::any(), TTL).await.unwrap().unwrap();
    assert_eq!(last.task.id, id("c"));
}

#[tokio::test]
async fn the_graph_stays_a_graph_without_cycles() {
    let (board, _) = board().await;
    board.add(TaskSpec::new(id("a"))).await.unwrap();
    board.add(TaskSpec::new(id("b")).dep(id("a"))).await.unwrap();
    board.add(TaskSpec::new(id("c")).dep(id("b"))).await.unwrap();
    let cycle = board.set_deps(&id("a"), &Dep::all([id("c")]), None).await;
    let Err(BoardError::Cycle { path }) = cycle else { panic!("{cycle:?}") };
    assert_eq!(path.len(), 4);
    assert_eq!(path.first(), path.last());
    assert!(
        matches!(board.remove(&id("a")).await, Err(BoardError::HasDependents { dependent }) if dependent == id("b"))
    );
    let unknown = board.add(TaskSpec::new(id("d")).dep(id("nobody"))).await;
    assert!(matches!(unknown, Err(BoardError::UnknownDep { .. })), "{unknown:?}");
    board.set_deps(&id("c"), &Dep::all([id("a")]), None).await.unwrap();
    board.set_deps(&id("b"), &Dep::all([id("c")]), None).await.unwrap();
    assert!(check(&board.list().await.unwrap()).is_empty());
    // Fence and seq go on over removal and re-adding.
    let claim = board.claim(&id("a"), &agent("w"), ClaimRequest::forever()).await.unwrap();
    assert!(matches!(board.remove(&id("a")).await, Err(BoardError::Taken { .. })));
    board.revoke(&id("a"), claim.lease.fence).await.unwrap();
    board.remove(&id("b")).await.unwrap();
    board.remove(&id("c")).await.unwrap();
    let before = board.get(&id("a")).await.unwrap();
    board.remove(&id("a")).await.unwrap();
    assert!(matches!(board.remove(&id("a")).await, Err(BoardError::NotFound { .. })));
    board.add(TaskSpec::new(id("a"))).await.unwrap();
    let after = board.claim(&id("a"), &agent("w"), ClaimRequest::forever()).await.unwrap();
    assert!(after.lease.fence > before.fence && after.task.seq > before.seq);
}

#[tokio::test]
async fn a_large_plan_is_added_in_pieces() {
    let (board, _) = board().await;
    let name = |n: usize| id(&format!("task-{n:05}"));
    let tasks = (0..5_000_usize).map(|n| {
        let deps = [n.checked_sub(1), n.checked_sub(70)].into_iter().flatten().map(name);
        TaskSpec::new(name(n)).deps(deps)
    });
    let plan = Plan::new(tasks).unwrap();
    assert!(plan.cost().transactions > 1);
    let report = board.add_plan(&plan).await.unwrap();
    assert_eq!((report.added, report.existed), (5_000, 0));
    assert_eq!(board.add_plan(&plan).await.unwrap().existed, 5_000);
    let tasks = board.list().await.unwrap();
    assert_eq!(tasks.len(), 5_000);
    assert!(check(&tasks).is_empty());
    let mut seen = 0;
    let mut after = None;
    loop {
        let page = board.page(after.as_ref(), 999).await.unwrap();
        seen += page.tasks.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, 5_000);
}

#[tokio::test]
async fn a_lost_completion_answers_the_outcome_that_was_kept() {
    for verb in ["complete", "fail"] {
        let backend = Arc::new(Fault::new(MemoryStore::new().open(&"test".parse().unwrap())));
        let board = BoardAdapter::open(backend.clone(), BoardOptions::default()).await.unwrap();
        board.add(TaskSpec::new(id("a"))).await.unwrap();
        let claim = board.claim(&id("a"), &agent("w"), ClaimRequest::for_ttl(TTL)).await.unwrap();
        let end = move |board: BoardAdapter<_>, token: Token, text: &'static str| async move {
            match verb {
                "complete" => board.complete(&id("a"), &token, outcome(text)).await.unwrap(),
                _ => board.fail(&id("a"), &token, outcome(text)).await.unwrap(),
            }
        };
        // The first try is never applied, and before it is looked for, the same token ends the claim from elsewhere.
        let (rival, token) = (board.clone(), claim.lease.token.clone());
        let rule = backend.faults().on(
            When::txn(),
            Cell::late().then(move |_| {
                let (rival, token) = (rival.clone(), token.clone());
                async move {
                    assert_eq!(end(rival, token, "rival").await, outcome("rival"));
                }
            }),
        );
        assert_eq!(end(board.clone(), claim.lease.token.clone(), "call").await, outcome("rival"), "{verb}");
        assert_eq!(backend.faults().hits_of(rule), 1);
        assert_eq!(board.get(&id("a")).await.unwrap().outcome, Some(outcome("rival")));
    }
}
