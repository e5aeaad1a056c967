//! Clients that meet on a board, and what must be so however they interleave.

use std::collections::BTreeSet;
use std::time::Duration;

use coord_core::board::{
    Added, Board as _, BoardError, Claim, ClaimRequest, Dep, ExtendedBoard as _, Filter, Plan, State,
};
use shuttle::future::spawn;

use crate::world::{Client, World, agent, ended, id, outcome, spec};

const TTL: Duration = Duration::from_secs(10);

async fn claim(board: &Client, task: &str, who: &str) -> Result<Claim, BoardError> {
    board.claim(&id(task), &agent(who), ClaimRequest::for_ttl(TTL)).await
}

/// A claim that a test begins with.
async fn held(world: &World, task: &str) -> Claim {
    claim(&world.still().await, task, "holder").await.expect("an open task can be claimed")
}

/// Three agents of one name claim one task: one gets it, and the fence moves by one.
pub(crate) async fn one_winner(world: World) {
    world.add(&[("t", &[])]).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let board = world.board().await;
        clients.push(spawn(async move { claim(&board, "t", "worker").await }));
    }
    let mut fences = Vec::new();
    for client in clients {
        match ended(client).await {
            Ok(claim) => fences.push(claim.lease.fence),
            Err(BoardError::Taken { fence, .. }) => assert_eq!(fence, 1, "the fence of the winner"),
            Err(error) => panic!("a loser got {error:?}"),
        }
    }
    assert_eq!(fences, [1], "the fences that were given");
    assert_eq!(world.task("t").await.fence, 1);
}

/// Agents claim and give back by turns: every claim has a fence of its own, larger than those that were given before it was made.
pub(crate) async fn fences_grow(world: World) {
    world.add(&[("t", &[])]).await;
    let given = std::sync::Arc::new(std::sync::Mutex::new(Vec::<u64>::new()));
    let mut clients = Vec::new();
    for number in 0..3 {
        let (board, given) = (world.board().await, given.clone());
        clients.push(spawn(async move {
            for _ in 0..2 {
                let before = given.lock().expect("nobody panics with it").iter().max().copied().unwrap_or(0);
                let Ok(claim) = claim(&board, "t", "worker").await else { continue };
                let fence = claim.lease.fence;
                assert!(fence > before, "the fence {fence} was given after {before}");
                given.lock().expect("nobody panics with it").push(fence);
                let token = &claim.lease.token;
                if number == 0 {
                    board.fail(&id("t"), token, outcome("no")).await.expect("the holder may fail");
                    board.reopen(&id("t")).await.expect("a failed task can be reopened");
                } else {
                    board.release(&id("t"), token).await.expect("the holder may release");
                }
            }
        }));
    }
    for client in clients {
        ended(client).await;
    }
    let given = given.lock().expect("nobody panics with it").clone();
    let distinct: BTreeSet<u64> = given.iter().copied().collect();
    assert_eq!(distinct.len(), given.len(), "a fence was given twice: {given:?}");
    assert_eq!(world.task("t").await.fence, given.len() as u64, "the fence moves by one a claim");
}

/// A task is removed and added again while agents claim it: fences go on.
pub(crate) async fn fences_survive_removal(world: World) {
    world.add(&[("t", &[])]).await;
    let first = held(&world, "t").await;
    world.still().await.release(&id("t"), &first.lease.token).await.expect("the holder may release");
    let (operator, worker) = (world.board().await, world.board().await);
    let operator = spawn(async move {
        let removed = operator.remove(&id("t")).await;
        if removed.is_ok() {
            operator.add(spec("t", &[])).await.expect("a removed task can be added again");
        }
        removed.is_ok()
    });
    let worker = spawn(async move { claim(&worker, "t", "worker").await });
    let (removed, claimed) = (ended(operator).await, ended(worker).await);
    let task = world.task("t").await;
    match &claimed {
        Ok(claim) => assert_eq!(claim.lease.fence, 2, "the fence after the first"),
        Err(error) => {
            assert!(removed && matches!(error, BoardError::NotFound { .. }), "the claim got {error:?}")
        }
    }
    let still = world.still().await;
    if let Ok(claim) = &claimed {
        assert_eq!(task.state, State::Claimed, "a held task was removed, or the claim lost: {task:?}");
        still.release(&id("t"), &claim.lease.token).await.expect("the holder may release");
    }
    let next = claim_still(&world).await;
    assert_eq!(next, 2 + u64::from(claimed.is_ok()), "the fence of the next claim");
}

async fn claim_still(world: &World) -> u64 {
    held(world, "t").await.lease.fence
}

/// What was completed stays completed, whatever others do meanwhile.
pub(crate) async fn no_lost_completion(world: World) {
    world.add(&[("d", &[]), ("t", &["d"])]).await;
    let first = held(&world, "d").await;
    let (worker, operator, other) = (world.board().await, world.board().await, world.board().await);
    let token = first.lease.token.clone();
    let worker = spawn(async move { worker.complete(&id("d"), &token, outcome("good")).await });
    let operator = spawn(async move { operator.cancel(&id("d")).await });
    let other = spawn(async move {
        // It is held, or done, or cancelled: never open.
        let deps = other.set_deps(&id("d"), &[], None).await;
        (deps, other.remove(&id("d")).await)
    });
    let (completed, cancelled) = (ended(worker).await, ended(operator).await);
    let (deps, removed) = ended(other).await;
    assert!(
        matches!(deps, Err(BoardError::Taken { .. } | BoardError::Terminal { .. })),
        "set_deps got {deps:?}"
    );
    assert!(
        matches!(removed, Err(BoardError::Taken { .. } | BoardError::HasDependents { .. })),
        "remove got {removed:?}"
    );
    let task = world.task("d").await;
    match (completed, cancelled) {
        (Ok(kept), Err(BoardError::Terminal { state: State::Done })) => {
            assert_eq!((task.state, task.outcome), (State::Done, Some(kept)));
        }
        (Err(BoardError::LeaseLost { .. }), Ok(())) => assert_eq!(task.state, State::Cancelled),
        other => panic!("complete and cancel got {other:?}, and the task is {task:?}"),
    }
}

/// Two clients make two tasks depend on each other: one of them may.
pub(crate) async fn no_cycle_of_two(world: World) {
    world.add(&[("a", &[]), ("b", &[])]).await;
    let (one, two) = (world.board().await, world.board().await);
    let one = spawn(async move { one.set_deps(&id("a"), &Dep::all([id("b")]), None).await });
    let two = spawn(async move { two.set_deps(&id("b"), &Dep::all([id("a")]), None).await });
    let results = [ended(one).await, ended(two).await];
    world.end().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    assert!(results.iter().any(|result| matches!(result, Err(BoardError::Cycle { .. }))), "{results:?}");
}

/// Two plans, each with one half of a cycle, added at one instant: one of them is.
pub(crate) async fn no_cycle_of_plans(world: World) {
    let (one, two) = (world.board().await, world.board().await);
    let plan = |tasks: [(&str, &[&str]); 2]| {
        Plan::new(tasks.map(|(name, deps)| spec(name, deps))).expect("each half alone is sound")
    };
    let one = spawn(async move { one.add_plan(&plan([("b", &[]), ("a", &["b"])])).await });
    let two = spawn(async move { two.add_plan(&plan([("a", &[]), ("b", &["a"])])).await });
    let results = [ended(one).await, ended(two).await];
    assert_eq!(world.end().await.len(), 2);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    assert!(
        results.iter().any(|result| matches!(result, Err(BoardError::AlreadyExists { .. }))),
        "{results:?}"
    );
}

/// A dependency completes while its dependent is claimed: blocked or claimed, as if one came first.
pub(crate) async fn dependency_completes_during_claim(world: World) {
    world.add(&[("d", &[]), ("t", &["d"])]).await;
    let first = held(&world, "d").await;
    let (worker, other, looker) = (world.board().await, world.board().await, world.board().await);
    let worker = spawn(async move { worker.complete(&id("d"), &first.lease.token, outcome("good")).await });
    let other = spawn(async move { claim(&other, "t", "worker").await });
    let looker = spawn(async move { looker.list().await.expect("a board can be listed") });
    ended(worker).await.expect("the holder may complete");
    let claimed = ended(other).await;
    let seen = ended(looker).await;
    let state = |name| seen.iter().find(|task| task.id == id(name)).map(|task| task.state);
    assert!(
        state("t") == Some(State::Open) || state("d") == Some(State::Done),
        "a listing shows a claimed task whose dependency is not done"
    );
    let blocked = match claimed {
        Ok(_) => false,
        Err(BoardError::Blocked { pending, .. }) => pending == [id("d")],
        Err(error) => panic!("the claim got {error:?}"),
    };
    let task = world.task("t").await;
    assert_eq!(task.state, if blocked { State::Open } else { State::Claimed });
    if blocked {
        held(&world, "t").await;
    }
}

/// Dependencies are edited while the task is claimed: no claim on old ones.
pub(crate) async fn dependencies_edited_during_claim(world: World) {
    world.add(&[("d", &[]), ("t", &[])]).await;
    let (planner, worker) = (world.board().await, world.board().await);
    let planner = spawn(async move { planner.set_deps(&id("t"), &Dep::all([id("d")]), None).await });
    let worker = spawn(async move { claim(&worker, "t", "worker").await });
    match (ended(planner).await, ended(worker).await) {
        (Ok(()), Err(BoardError::Blocked { .. })) | (Err(BoardError::Taken { .. }), Ok(_)) => {}
        other => panic!("set_deps and claim got {other:?}"),
    }
    world.end().await;
}

/// A lease expires while its holder completes and another agent claims: one of them does.
pub(crate) async fn takeover_against_complete(world: World) {
    world.add(&[("t", &[])]).await;
    let first = held(&world, "t").await;
    let (holder, rival, time) = (world.board().await, world.board().await, world.clone());
    let time = spawn(async move { time.pass(TTL) });
    let token = first.lease.token.clone();
    let holder = spawn(async move { holder.complete(&id("t"), &token, outcome("good")).await });
    // Under the same agent name, which proves nothing.
    let rival = spawn(async move { claim(&rival, "t", "holder").await });
    ended(time).await;
    let task = match (ended(holder).await, ended(rival).await) {
        (Ok(_), Err(BoardError::Terminal { state: State::Done } | BoardError::Taken { .. })) => {
            let task = world.task("t").await;
            assert_eq!(task.state, State::Done);
            task
        }
        (Err(BoardError::LeaseLost { current_fence: 2 }), Ok(claim)) => {
            assert_eq!(claim.lease.fence, 2);
            let task = world.task("t").await;
            assert_eq!(task.state, State::Claimed);
            task
        }
        other => panic!("complete and takeover got {other:?}"),
    };
    assert_eq!(task.fence, if task.state == State::Done { 1 } else { 2 });
}

/// A lease expires while its holder renews it and another agent claims: what one of them was told holds.
pub(crate) async fn takeover_against_renew(world: World) {
    world.add(&[("t", &[])]).await;
    let first = held(&world, "t").await;
    let (holder, rival, time) = (world.board().await, world.board().await, world.clone());
    let time = spawn(async move { time.pass(TTL) });
    let token = first.lease.token.clone();
    let renewed = spawn(async move { holder.renew(&id("t"), &token, TTL * 2).await });
    let rival = spawn(async move { claim(&rival, "t", "rival").await });
    ended(time).await;
    let (renewed, claimed) = (ended(renewed).await, ended(rival).await);
    if let Err(error) = &renewed {
        assert!(matches!(error, BoardError::LeaseLost { .. }), "renew got {error:?}");
    }
    match &claimed {
        // The lease was renewed for longer than time went on, so nobody can have taken over.
        Ok(claim) => {
            assert!(renewed.is_err() && claim.lease.fence == 2, "both hold it: {renewed:?}, {claim:?}")
        }
        Err(error) => assert!(matches!(error, BoardError::Taken { .. }), "the takeover got {error:?}"),
    }
    // The old token is worth something exactly if nobody took over.
    let completed = world.still().await.complete(&id("t"), &first.lease.token, outcome("good")).await;
    assert_eq!(completed.is_ok(), claimed.is_err(), "{completed:?} after {claimed:?}");
    world.end().await;
}

/// An operator revokes a claim while its holder completes: done if the holder was told so, open if it was not.
pub(crate) async fn revoke_against_complete(world: World) {
    world.add(&[("t", &[])]).await;
    let first = held(&world, "t").await;
    let (holder, operator) = (world.board().await, world.board().await);
    let holder = spawn(async move { holder.complete(&id("t"), &first.lease.token, outcome("good")).await });
    let operator = spawn(async move { operator.revoke(&id("t"), 1).await });
    let completed = ended(holder).await;
    ended(operator).await.expect("revoking a claim that is over is success too");
    match completed {
        Ok(_) => assert_eq!(world.task("t").await.state, State::Done),
        Err(BoardError::LeaseLost { .. }) => assert_eq!(world.task("t").await.state, State::Open),
        Err(error) => panic!("complete got {error:?}"),
    }
}

/// A revoke of a claim never frees the next one.
pub(crate) async fn revoke_against_next_claim(world: World) {
    world.add(&[("t", &[])]).await;
    let first = held(&world, "t").await;
    let (holder, operator, next) = (world.board().await, world.board().await, world.board().await);
    let holder = spawn(async move { holder.release(&id("t"), &first.lease.token).await });
    let operator = spawn(async move { operator.revoke(&id("t"), 1).await });
    let next = spawn(async move { claim(&next, "t", "next").await });
    let (released, revoked, claimed) = (ended(holder).await, ended(operator).await, ended(next).await);
    assert!(matches!(released, Ok(()) | Err(BoardError::LeaseLost { .. })), "release got {released:?}");
    assert!(matches!(revoked, Ok(()) | Err(BoardError::LeaseLost { .. })), "revoke got {revoked:?}");
    let task = world.task("t").await;
    match claimed {
        Ok(claim) => assert_eq!((task.state, task.fence), (State::Claimed, claim.lease.fence)),
        Err(BoardError::Taken { .. }) => assert_eq!((task.state, task.fence), (State::Open, 1)),
        Err(error) => panic!("the claim got {error:?}"),
    }
}

/// A task is removed while another one is added that depends on it: one of both.
pub(crate) async fn remove_against_add(world: World) {
    world.add(&[("d", &[])]).await;
    let (operator, planner) = (world.board().await, world.board().await);
    let operator = spawn(async move { operator.remove(&id("d")).await });
    let planner = spawn(async move { planner.add(spec("t", &["d"])).await });
    let results = (ended(operator).await, ended(planner).await);
    let names: Vec<_> = world.end().await.into_iter().map(|task| task.id).collect();
    match results {
        (Ok(()), Err(BoardError::UnknownDep { .. })) => assert_eq!(names, []),
        (Err(BoardError::HasDependents { .. }), Ok(Added::New)) => assert_eq!(names, [id("d"), id("t")]),
        other => panic!("remove and add got {other:?}"),
    }
}

/// A task is removed while it is claimed: one of both.
pub(crate) async fn remove_against_claim(world: World) {
    world.add(&[("t", &[])]).await;
    let (operator, worker) = (world.board().await, world.board().await);
    let operator = spawn(async move { operator.remove(&id("t")).await });
    let worker = spawn(async move { claim(&worker, "t", "worker").await });
    match (ended(operator).await, ended(worker).await) {
        (Ok(()), Err(BoardError::NotFound { .. })) => assert!(world.find("t").await.is_none()),
        (Err(BoardError::Taken { .. }), Ok(_)) => assert_eq!(world.task("t").await.state, State::Claimed),
        other => panic!("remove and claim got {other:?}"),
    }
}

/// Two clients add one id with two definitions: one of them does.
pub(crate) async fn one_definition(world: World) {
    let (one, two, same) = (world.board().await, world.board().await, world.board().await);
    let one = spawn(async move { one.add(spec("t", &[]).priority(1)).await });
    let two = spawn(async move { two.add(spec("t", &[]).priority(2)).await });
    let same = spawn(async move { same.add(spec("t", &[]).priority(1)).await });
    let results = [ended(one).await, ended(two).await, ended(same).await];
    let new = results.iter().filter(|result| matches!(result, Ok(Added::New))).count();
    assert_eq!(new, 1, "{results:?}");
    let priority = world.task("t").await.priority;
    for (place, result) in results.iter().enumerate() {
        let fits = match result {
            Ok(_) => (priority == 2) == (place == 1),
            Err(BoardError::AlreadyExists { .. }) => (priority == 2) != (place == 1),
            Err(_) => false,
        };
        assert!(fits, "the priority is {priority}, and the answers were {results:?}");
    }
}

/// As many agents as tasks ask for the next one: each gets another one.
pub(crate) async fn claim_next_shares_out(world: World) {
    world.add(&[("a", &[]), ("b", &[]), ("c", &[])]).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let board = world.board().await;
        clients.push(spawn(async move { board.claim_next(&agent("worker"), &Filter::any(), TTL).await }));
    }
    let mut claimed = BTreeSet::new();
    for client in clients {
        let claim = ended(client).await.expect("a claim of the next task").expect("there is a task for each");
        assert!(claimed.insert(claim.task.id.clone()), "{:?} was given twice", claim.task.id);
    }
    assert!(world.end().await.iter().all(|task| task.state == State::Claimed && task.fence == 1));
}

/// A claim whose answer is lost, against a rival of the same name: at most one of them holds the task, and knows it.
pub(crate) async fn lost_claim(world: World) {
    world.add(&[("t", &[])]).await;
    let (unlucky, rival) = (world.unlucky().await, world.board().await);
    let unlucky = spawn(async move { claim(&unlucky, "t", "worker").await });
    let rival = spawn(async move { claim(&rival, "t", "worker").await });
    let results = [ended(unlucky).await, ended(rival).await];
    let task = world.task("t").await;
    let won: Vec<_> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
    assert!(won.len() <= 1, "both hold the task: {results:?}");
    for result in &results {
        let known = matches!(result, Ok(_) | Err(BoardError::Taken { .. }));
        assert!(known || matches!(result, Err(BoardError::OutcomeUnknown { .. })), "{result:?}");
    }
    assert_eq!((task.state, task.fence), (State::Claimed, 1), "after {results:?}");
    let still = world.still().await;
    match (&won[..], &results[0]) {
        ([claim], _) => still.release(&id("t"), &claim.lease.token).await.expect("the winner holds the task"),
        // The token of the error is the one that holds, for the rival has lost to it.
        (_, Err(BoardError::OutcomeUnknown { token: Some(token), .. })) => {
            still.release(&id("t"), token).await.expect("the token of the unknown claim holds the task");
        }
        _ => panic!("nobody knows who holds the task: {results:?}"),
    }
}

/// A release whose answer is lost never frees the next claim.
pub(crate) async fn lost_release(world: World) {
    world.add(&[("t", &[])]).await;
    let first = held(&world, "t").await;
    let (unlucky, next) = (world.unlucky().await, world.board().await);
    let unlucky = spawn(async move { unlucky.release(&id("t"), &first.lease.token).await });
    let next = spawn(async move { claim(&next, "t", "holder").await });
    let (released, claimed) = (ended(unlucky).await, ended(next).await);
    let task = world.task("t").await;
    assert!(matches!(released, Ok(()) | Err(BoardError::OutcomeUnknown { .. })), "release got {released:?}");
    match claimed {
        Ok(claim) => {
            assert_eq!((task.state, task.fence), (State::Claimed, claim.lease.fence), "after {released:?}")
        }
        Err(BoardError::Taken { .. }) => {
            assert!(task.state == State::Open || released.is_err(), "released, and still {task:?}");
        }
        Err(error) => panic!("the claim got {error:?}"),
    }
}

/// A completion whose answer is lost, against a revoke and the next claim: it has happened if its caller was told so, and never later.
pub(crate) async fn lost_complete(world: World) {
    world.add(&[("t", &[])]).await;
    let first = held(&world, "t").await;
    let (unlucky, next) = (world.unlucky().await, world.board().await);
    let unlucky = spawn(async move { unlucky.complete(&id("t"), &first.lease.token, outcome("good")).await });
    let next = spawn(async move {
        next.revoke(&id("t"), 1).await.expect("revoking a claim that is over is success too");
        claim(&next, "t", "holder").await
    });
    let (completed, claimed) = (ended(unlucky).await, ended(next).await);
    let task = world.task("t").await;
    match (&completed, &claimed) {
        (Ok(_), Err(BoardError::Terminal { state: State::Done })) => assert_eq!(task.state, State::Done),
        (Err(BoardError::LeaseLost { .. } | BoardError::OutcomeUnknown { .. }), Ok(claim)) => {
            assert_eq!((task.state, task.fence), (State::Claimed, claim.lease.fence));
        }
        (Err(BoardError::OutcomeUnknown { .. }), Err(BoardError::Terminal { .. })) => {
            assert_eq!(task.state, State::Done);
        }
        other => panic!("complete and claim got {other:?}, and the task is {task:?}"),
    }
}

/// A removal whose answer is lost never removes the task that was added after it.
pub(crate) async fn lost_remove(world: World) {
    world.add(&[("t", &[])]).await;
    let (unlucky, planner) = (world.unlucky().await, world.board().await);
    let unlucky = spawn(async move { unlucky.remove(&id("t")).await });
    let planner = spawn(async move {
        for _ in 0..3 {
            if let Ok(Added::New) = planner.add(spec("t", &[])).await {
                return true;
            }
        }
        false
    });
    let (removed, added) = (ended(unlucky).await, ended(planner).await);
    assert!(matches!(removed, Ok(()) | Err(BoardError::OutcomeUnknown { .. })), "remove got {removed:?}");
    let found = world.find("t").await;
    assert!(!added || found.is_some(), "the task that was added after the removal is gone");
    assert!(added || found.is_none() || removed.is_err(), "removed, and still there: {found:?}");
}

/// An addition whose answer is lost, against another definition: one of them is there, and both clients know it.
pub(crate) async fn lost_add(world: World) {
    let (unlucky, rival) = (world.unlucky().await, world.board().await);
    let unlucky = spawn(async move { unlucky.add(spec("t", &[]).priority(1)).await });
    let rival = spawn(async move { rival.add(spec("t", &[]).priority(2)).await });
    let results = (ended(unlucky).await, ended(rival).await);
    let priority = world.task("t").await.priority;
    match &results {
        (Ok(Added::New), Err(BoardError::AlreadyExists { .. })) => assert_eq!(priority, 1),
        (Err(BoardError::AlreadyExists { .. }), Ok(Added::New)) => assert_eq!(priority, 2),
        (Err(BoardError::OutcomeUnknown { .. }), Ok(Added::New)) => assert_eq!(priority, 2),
        (Err(BoardError::OutcomeUnknown { .. }), Err(BoardError::AlreadyExists { .. })) => {
            assert_eq!(priority, 1)
        }
        other => panic!("the two adds got {other:?}"),
    }
}
