//! Rules of dependencies above the memory backend: every rule against every end, pins, and long chains of skips.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use coord_core::board::{
    AgentId, Board, BoardAdapter, BoardError, BoardOptions, Claim, ClaimRequest, Dep, ExtendedBoard, Filter,
    Outcome, Plan, Rule, Standing, State, TaskId, TaskSpec, check, limits,
};
use coord_memory::{MemoryBackend, MemoryStore};

const TTL: Duration = Duration::from_secs(3_600);

fn id(text: impl AsRef<str>) -> TaskId {
    TaskId::new(text).unwrap()
}

fn agent() -> AgentId {
    AgentId::new("w").unwrap()
}

type Memory = BoardAdapter<MemoryBackend>;

async fn board() -> Memory {
    let backend = MemoryStore::new().open(&"test".parse().unwrap());
    BoardAdapter::open(backend, BoardOptions::default()).await.unwrap()
}

async fn claim(board: &Memory, task: &str) -> Result<Claim, BoardError> {
    board.claim(&id(task), &agent(), ClaimRequest::for_ttl(TTL)).await
}

/// Brings an open task without dependencies to this end.
async fn end(board: &Memory, task: &str, state: State) {
    match state {
        State::Open => {}
        State::Cancelled => board.cancel(&id(task)).await.unwrap(),
        State::Skipped => {
            board.set_deps(&id(task), &[Dep::on(id("done"), Rule::Failed)], None).await.unwrap();
            let skipped = claim(board, task).await;
            assert!(matches!(skipped, Err(BoardError::Terminal { state: State::Skipped })), "{skipped:?}");
        }
        _ => {
            let token = claim(board, task).await.unwrap().lease.token;
            match state {
                State::Done => drop(board.complete(&id(task), &token, Outcome::default()).await.unwrap()),
                State::Failed => drop(board.fail(&id(task), &token, Outcome::default()).await.unwrap()),
                _ => {}
            }
        }
    }
    assert_eq!(board.get(&id(task)).await.unwrap().state, state);
}

async fn with_done() -> Memory {
    let board = board().await;
    board.add(TaskSpec::new(id("done"))).await.unwrap();
    end(&board, "done", State::Done).await;
    board
}

#[tokio::test]
async fn every_rule_judges_every_end() {
    let states = [State::Open, State::Claimed, State::Done, State::Failed, State::Cancelled, State::Skipped];
    for rule in Rule::ALL {
        for state in states {
            for ended_before in [false, true] {
                let board = with_done().await;
                board.add(TaskSpec::new(id("d"))).await.unwrap();
                if ended_before {
                    end(&board, "d", state).await;
                }
                board.add(TaskSpec::new(id("x")).dep((id("d"), rule))).await.unwrap();
                if !ended_before {
                    end(&board, "d", state).await;
                }
                let next = board.claim_next(&agent(), &Filter::any(), TTL).await.unwrap();
                let next = next.filter(|claim| claim.task.id == id("x"));
                let standing = board.explain(&id("x")).await.unwrap();
                let what = format!("{rule} on {state}, {ended_before}: {standing:?}");
                match rule.verdict(state) {
                    Some(true) => assert!(next.is_some(), "{what}"),
                    Some(false) => assert_eq!(standing, Standing::Ended { state: State::Skipped }, "{what}"),
                    None => {
                        let failed = matches!(state, State::Failed | State::Cancelled);
                        let (pending, failed) =
                            if failed { (vec![], vec![id("d")]) } else { (vec![id("d")], vec![]) };
                        assert_eq!(
                            standing,
                            Standing::Blocked { pending, failed, missing: vec![] },
                            "{what}"
                        );
                    }
                }
                assert_eq!(board.check_index().await.unwrap(), [], "{what}");
                assert_eq!(check(&board.list().await.unwrap()), [], "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_task_is_judged_once_all_its_dependencies_are_settled() {
    let board = with_done().await;
    for name in ["never", "open"] {
        board.add(TaskSpec::new(id(name))).await.unwrap();
    }
    end(&board, "never", State::Skipped).await;
    let deps = [Dep::from(id("never")), id("open").into()];
    board.add(TaskSpec::new(id("x")).deps(deps)).await.unwrap();
    let blocked = claim(&board, "x").await;
    let Err(BoardError::Blocked { pending, failed, missing }) = blocked else { panic!("{blocked:?}") };
    assert_eq!((pending, failed, missing), (vec![id("open")], vec![id("never")], vec![]));
    assert_eq!(board.get(&id("x")).await.unwrap().state, State::Open);
    end(&board, "open", State::Done).await;
    assert_eq!(board.get(&id("x")).await.unwrap().state, State::Skipped);
    for refused in [
        board.cancel(&id("x")).await,
        board.reopen(&id("x")).await,
        board.set_deps(&id("x"), &[], None).await,
        claim(&board, "x").await.map(|_| ()),
    ] {
        assert!(matches!(refused, Err(BoardError::Terminal { state: State::Skipped })), "{refused:?}");
    }
    board.remove(&id("x")).await.unwrap();
}

#[tokio::test]
async fn what_another_task_rests_on_stays_as_it_is() {
    for (state, rule) in
        [(State::Failed, Rule::Failed), (State::Failed, Rule::Finished), (State::Cancelled, Rule::Finished)]
    {
        let board = board().await;
        for name in ["d", "other"] {
            board.add(TaskSpec::new(id(name))).await.unwrap();
        }
        board
            .add(TaskSpec::new(id("x")).deps([(id("d"), rule), (id("other"), Rule::Finished)]))
            .await
            .unwrap();
        end(&board, "other", State::Done).await;
        end(&board, "d", state).await;
        // Nobody has begun because of it yet.
        board.reopen(&id("d")).await.unwrap();
        let blocked = claim(&board, "x").await;
        assert!(matches!(blocked, Err(BoardError::Blocked { .. })), "{blocked:?}");
        end(&board, "d", state).await;
        let before = board.get(&id("d")).await.unwrap();
        let token = claim(&board, "x").await.unwrap().lease.token;
        let pinned = board.get(&id("d")).await.unwrap();
        assert_eq!((pinned.state, pinned.seq), (state, before.seq + 1));
        assert_eq!(pinned.outcome, before.outcome);
        let held = |refused: Result<(), BoardError>| {
            let Err(BoardError::HasDependents { dependent }) = &refused else { panic!("{refused:?}") };
            assert_eq!(*dependent, id("x"));
        };
        held(board.reopen(&id("d")).await);
        board.release(&id("x"), &token).await.unwrap();
        held(board.reopen(&id("d")).await);
        // Another claim finds it pinned, and moves it no more.
        let token = claim(&board, "x").await.unwrap().lease.token;
        assert_eq!(board.get(&id("d")).await.unwrap().seq, pinned.seq);
        board.fail(&id("x"), &token, Outcome::default()).await.unwrap();
        held(board.remove(&id("d")).await);
        board.remove(&id("x")).await.unwrap();
        held(board.reopen(&id("d")).await);
        board.remove(&id("d")).await.unwrap();
        assert_eq!(board.check_index().await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_task_that_was_ready_waits_again_for_what_is_reopened() {
    let board = board().await;
    board.add(TaskSpec::new(id("d")).priority(-1)).await.unwrap();
    board.add(TaskSpec::new(id("x")).dep((id("d"), Rule::Failed))).await.unwrap();
    end(&board, "d", State::Failed).await;
    assert_eq!(board.explain(&id("x")).await.unwrap(), Standing::Claimable);
    board.reopen(&id("d")).await.unwrap();
    let next = board.claim_next(&agent(), &Filter::any(), TTL).await.unwrap().unwrap();
    assert_eq!(next.task.id, id("d"));
    assert_eq!(board.check_index().await.unwrap(), []);
    board.complete(&id("d"), &next.lease.token, Outcome::default()).await.unwrap();
    assert_eq!(board.get(&id("x")).await.unwrap().state, State::Skipped);
    assert_eq!(board.check_index().await.unwrap(), []);
}

#[tokio::test]
async fn a_chain_of_ten_thousand_skips_is_worked_off() {
    let name = |n: usize| id(format!("{n:05}"));
    for (links, repaired) in [(9_990_usize, false), (500, true)] {
        let board = with_done().await;
        board.add(TaskSpec::new(id("first"))).await.unwrap();
        // The names run against the order of the links, so no pass over the markers meets the next one.
        let link = |n: usize| {
            let dep = if n == 0 { Dep::on(id("first"), Rule::Failed) } else { name(links - n).into() };
            TaskSpec::new(name(links - 1 - n)).dep(dep)
        };
        board.add_plan(&Plan::new((0..links).map(link)).unwrap()).await.unwrap();
        end(&board, "first", State::Done).await;
        if repaired {
            board.repair().await.unwrap();
        } else {
            assert!(board.claim_next(&agent(), &Filter::any(), TTL).await.unwrap().is_none());
        }
        let tasks = board.list().await.unwrap();
        let skipped = tasks.iter().filter(|task| task.state == State::Skipped).count();
        assert_eq!(skipped, links);
        assert_eq!(board.check_index().await.unwrap(), []);
    }
}

#[tokio::test]
async fn forty_dependencies_may_have_another_rule_and_all_of_them_are_pinned() {
    let board = board().await;
    let name = |n: usize| id(format!("d{n}"));
    let most = limits::RULED_DEPENDENCIES;
    let plan = (0..most + 5).map(|n| TaskSpec::new(name(n)));
    board.add_plan(&Plan::new(plan).unwrap()).await.unwrap();
    let deps = |ruled: usize| -> Vec<Dep> {
        let rule = |n: usize| if n < ruled { Rule::Finished } else { Rule::Done };
        (0..most + 5).map(|n| Dep::on(name(n), rule(n))).collect()
    };
    let refused = board.add(TaskSpec::new(id("x")).deps(deps(most + 1))).await;
    assert!(matches!(refused, Err(BoardError::TooLarge { limit: 40, size: 41, .. })), "{refused:?}");
    board.add(TaskSpec::new(id("x")).deps(deps(most))).await.unwrap();
    for n in 0..most + 5 {
        let state = if n < most { State::Cancelled } else { State::Done };
        end(&board, name(n).as_str(), state).await;
    }
    let twice = [Dep::from(name(0)), Dep::on(name(0), Rule::Finished)];
    let refused = board.set_deps(&id("x"), &twice, None).await;
    assert!(matches!(refused, Err(BoardError::Invalid(_))), "{refused:?}");
    claim(&board, "x").await.unwrap();
    for n in 0..most {
        let pinned = board.reopen(&name(n)).await;
        assert!(matches!(pinned, Err(BoardError::HasDependents { .. })), "{n}: {pinned:?}");
    }
}

#[tokio::test]
async fn rules_are_part_of_the_definition() {
    let board = board().await;
    board.add(TaskSpec::new(id("d"))).await.unwrap();
    let spec = |rule| TaskSpec::new(id("x")).dep((id("d"), rule));
    board.add(spec(Rule::Finished)).await.unwrap();
    assert_eq!(board.add(spec(Rule::Finished)).await.unwrap(), coord_core::board::Added::Existed);
    let other = board.add(spec(Rule::Done)).await;
    assert!(matches!(other, Err(BoardError::AlreadyExists { .. })), "{other:?}");
    assert_eq!(board.get(&id("x")).await.unwrap().deps, [Dep::on(id("d"), Rule::Finished)]);
    board.set_deps(&id("x"), &Dep::all([id("d")]), None).await.unwrap();
    assert_eq!(board.get(&id("x")).await.unwrap().deps, [id("d")]);
}
