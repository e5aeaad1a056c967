//! A plan of several pieces is added while others work off and archive what is there already.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    AgentId, Archive, Board, BoardAdapter, BoardError, BoardOptions, ExtendedBoard, Filter, Outcome, Plan,
    TaskId, TaskSpec, check,
};
use coord_core::layer::{Cell, Fault, When};
use coord_memory::{MemoryBackend, MemoryStore};

const TTL: Duration = Duration::from_secs(3_600);

/// Somebody who looks for what there is not sees to what is left to be examined; then the index is right.
async fn at_rest(board: &BoardAdapter<MemoryBackend>) {
    let nothing = Filter::any().with_label("nothing");
    let found = board.claim_next(&AgentId::new("w").unwrap(), &nothing, TTL).await.unwrap();
    assert!(found.is_none());
    let problems = board.check_index().await.unwrap();
    assert!(problems.is_empty(), "{} problems: {:?}", problems.len(), problems.first());
}

#[tokio::test]
async fn a_plan_in_pieces_beside_an_archive_leaves_a_whole_board() {
    let name = |n: usize| TaskId::new(format!("{n:04}")).unwrap();
    // Each names one that comes long before, perhaps in an earlier piece.
    let specs: Vec<TaskSpec> = (0..1_600)
        .map(|n| if n < 400 { TaskSpec::new(name(n)) } else { TaskSpec::new(name(n)).dep(name(n - 400)) })
        .collect();
    let plan = Plan::new(specs).unwrap();
    for cell in [Cell::pass, Cell::request_lost, Cell::reply_lost] {
        for k in 2..4 {
            let store = MemoryStore::new();
            let open = || store.open(&"plans".parse().unwrap());
            let fault = Fault::new(open());
            let faults = fault.faults();
            let adding = BoardAdapter::open(fault, BoardOptions::default()).await.unwrap();
            let rival = Arc::new(BoardAdapter::open(open(), BoardOptions::default()).await.unwrap());
            let others = rival.clone();
            let work = move |_| {
                let board = others.clone();
                async move {
                    let agent = AgentId::new("w").unwrap();
                    let claims = board.claim_up_to(50, &agent, &Filter::any(), TTL).await.unwrap();
                    for claim in claims {
                        board.complete(&claim.task.id, &claim.lease.token, Outcome::default()).await.unwrap();
                    }
                    board.archive(&Archive::older_than(Duration::ZERO)).await.unwrap();
                }
            };
            faults.on(When::txn().nth(k), cell().before(work.clone()).then(work));
            let added = adding.add_plan(&plan).await;
            assert!(
                matches!(
                    added,
                    Ok(_) | Err(BoardError::UnknownDep { .. } | BoardError::OutcomeUnknown { .. })
                ),
                "{added:?}"
            );
            faults.clear();
            let tasks = rival.list().await.unwrap();
            assert_eq!(check(&tasks), [], "{k}");
            at_rest(&rival).await;
            // Again: what is there existed, what was archived runs again, and nothing is missing.
            let again = adding.add_plan(&plan).await.unwrap();
            assert_eq!(again.existed, tasks.len(), "{k}: {added:?}");
            let third = adding.add_plan(&plan).await.unwrap();
            assert_eq!((third.added, third.existed), (0, 1_600), "{k}");
            assert_eq!(check(&rival.list().await.unwrap()), [], "{k}");
            at_rest(&rival).await;
        }
    }
}
