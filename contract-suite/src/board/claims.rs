//! T01 to T04: who gets a task, and who does not.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{Board as _, BoardError, ClaimRequest, ExtendedBoard as _, Filter, State, TaskId};
use coord_core::criteria::concurrent_claim;
use coord_core::layer::When;
use coord_core::{Mutation, RequestId};
use tokio::sync::Barrier;

use super::stage::{Place, SKEW, Seat, Stage, TICK, TTL, agent, id, narrow, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T01",
        layer: Layer::Board,
        promise: "claim of an unknown id: NotFound; of a terminal task: Terminal; held and live: Taken, also for the \
                  same agent name; before its time: NotYet; undone, failed or missing dependency: Blocked, naming \
                  them; in this order",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(refusals(cx)),
    },
    Clause {
        id: "T02",
        layer: Layer::Board,
        promise: "a claim sets owner, fence, until (= time + ttl) and a larger seq, and gives a token, in one \
                  transaction (counted)",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(one_transaction(cx)),
    },
    Clause {
        id: "T03",
        layer: Layer::Board,
        promise: "N agents claim one task at one instant: one winner, all others Taken, and the fence moves by one",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(one_winner(cx)),
    },
    Clause {
        id: "T04",
        layer: Layer::Board,
        promise: "after expiry another agent takes over with a larger fence and a new token; the old token's renew, \
                  release, complete and fail are LeaseLost and change nothing, even if both agents bear the same name",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(takeover(cx)),
    },
];

async fn refusals(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let unknown = id("unknown");
    let open = a.open_task("open").await?;
    let held = a.open_task("held").await?;
    let claim = a.claim(&held, "w").await?;
    let forever = a.open_task("forever").await?;
    a.board.claim(&forever, &agent("w"), ClaimRequest::forever()).await?;
    let done = a.ended_task("done", "done").await?;
    let failed = a.ended_task("failed", "failed").await?;
    let cancelled = a.ended_task("cancelled", "cancelled").await?;
    let deps = [&open, &held, &done, &failed, &cancelled].map(Clone::clone);
    a.add(spec("blocked").deps(deps.clone())).await?;
    a.add(spec("waits").dep(open.clone())).await?;
    a.add(spec("cancelled and blocked").deps(deps)).await?;
    let both = id("cancelled and blocked");
    a.board.cancel(&both).await?;
    let before = a.list().await?;
    for (seat, which) in [(&a, "the first seat"), (&b, "another seat")] {
        match seat.try_claim(&unknown, "w").await {
            Err(BoardError::NotFound { id }) if id == unknown => {}
            other => fail!("saw {other:?}, not NotFound: claiming an unknown task from {which}"),
        }
        for (task, expected) in [
            (&done, State::Done),
            (&failed, State::Failed),
            (&cancelled, State::Cancelled),
            (&both, State::Cancelled),
        ] {
            match seat.try_claim(task, "w").await {
                Err(BoardError::Terminal { state }) if state == expected => {}
                other => fail!("saw {other:?}, not Terminal {expected}: claiming {task:?} from {which}"),
            }
        }
        for name in ["w", "another"] {
            let requests = [
                ClaimRequest::for_ttl(TTL),
                ClaimRequest::forever(),
                ClaimRequest::for_ttl(TTL).with_request(RequestId::mint()),
            ];
            for request in requests {
                match seat.board.claim(&held, &agent(name), request).await {
                    Err(BoardError::Taken { owner, until, fence })
                        if owner == agent("w")
                            && until == claim.lease.until
                            && fence == claim.lease.fence => {}
                    other => fail!("saw {other:?}, not Taken by \"w\": {name:?} claims it from {which}"),
                }
            }
            match seat.try_claim(&forever, name).await {
                Err(BoardError::Taken { until: None, .. }) => {}
                other => fail!("saw {other:?}, not Taken for ever: {name:?} claims it from {which}"),
            }
        }
        blocked_by(seat, &id("blocked"), &[&held, &open], &[&cancelled, &failed], &[]).await.at(which)?;
        blocked_by(seat, &id("waits"), &[&open], &[], &[]).await.at(which)?;
    }
    ensure_eq!(b.list().await?, before, "the board after refused claims");
    // Every one of them blocks by itself, too.
    for (name, dep) in [("on failed", &failed), ("on cancelled", &cancelled)] {
        a.add(spec(name).dep(dep.clone())).await?;
        blocked_by(&b, &id(name), &[], &[dep], &[]).await?;
    }
    a.add(spec("on held").dep(held.clone())).await?;
    blocked_by(&b, &id("on held"), &[&held], &[], &[]).await?;
    // A task that waits for nothing undone is given.
    a.add(spec("free").dep(done.clone())).await?;
    b.claim(&id("free"), "w").await?;
    before_its_time(&stage, &a, &b, &open).await?;
    missing_dependency(&a, &b, &open).await
}

/// A task that may not be claimed before a time: that is judged after the state and before the dependencies, and claim_next passes
/// it by.
async fn before_its_time(stage: &Stage, a: &Seat, b: &Seat, open: &TaskId) -> Outcome {
    let time = stage.now().saturating_add(Duration::from_secs(5));
    let (later, blocked, cancelled) = (id("later"), id("later and blocked"), id("later and cancelled"));
    a.add(spec("later").not_before(time).label("later")).await?;
    a.add(spec("later and blocked").not_before(time).dep(open.clone())).await?;
    a.add(spec("later and cancelled").not_before(time)).await?;
    a.board.cancel(&cancelled).await?;
    let before = a.list().await?;
    for seat in [a, b] {
        for task in [&later, &blocked] {
            match seat.try_claim(task, "w").await {
                Err(BoardError::NotYet { until }) if until == time => {}
                other => fail!("saw {other:?}, not NotYet until {time}: claiming {task:?} before its time"),
            }
        }
        match seat.try_claim(&cancelled, "w").await {
            Err(BoardError::Terminal { state: State::Cancelled }) => {}
            other => fail!("saw {other:?}, not Terminal: claiming a cancelled task before its time"),
        }
        let next = seat.board.claim_next(&agent("w"), &Filter::any().with_label("later"), TTL).await?;
        ensure!(next.is_none(), "saw claim_next take a task before its time");
    }
    ensure_eq!(b.list().await?, before, "the board after claims before their time");
    stage.advance_to(time);
    blocked_by(b, &blocked, &[open], &[], &[]).await.at("exactly at its time")?;
    b.claim(&later, "w").await.at("exactly at its time")?;
    Ok(())
}

/// A dependency can only vanish past the board, for which its records must be known: those that came with it.
async fn missing_dependency(a: &Seat, b: &Seat, open: &TaskId) -> Outcome {
    let before = a.raw_entries().await?;
    let gone = a.open_task("gone").await?;
    let after = a.raw_entries().await?;
    let came: Vec<_> = after.keys().filter(|key| !before.contains_key(*key)).cloned().collect();
    if came.is_empty() {
        // The board keeps no record of its own for a task, so none can be lost.
        return Ok(());
    }
    a.add(spec("bereft").dep(gone.clone()).dep(open.clone())).await?;
    a.raw_write(came.into_iter().map(Mutation::delete)).await?;
    for seat in [a, b] {
        blocked_by(seat, &id("bereft"), &[open], &[], &[&gone])
            .await
            .at("with the records of a task gone")?;
    }
    Ok(())
}

async fn blocked_by(
    seat: &Seat,
    task: &TaskId,
    pending: &[&TaskId],
    failed: &[&TaskId],
    missing: &[&TaskId],
) -> Outcome {
    let sorted = |ids: &[TaskId]| {
        let mut ids = ids.to_vec();
        ids.sort();
        ids
    };
    match seat.try_claim(task, "w").await {
        Err(BoardError::Blocked { pending: p, failed: f, missing: m })
            if sorted(&p).iter().eq(pending.iter().copied())
                && sorted(&f).iter().eq(failed.iter().copied())
                && sorted(&m).iter().eq(missing.iter().copied()) =>
        {
            Ok(())
        }
        other => fail!(
            "saw {other:?}, not Blocked by {pending:?} undone, {failed:?} failed, {missing:?} missing: \
             claiming {task:?}"
        ),
    }
}

async fn one_transaction(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let mut deps = Vec::new();
    for n in 0..3 {
        deps.push(a.ended_task(&format!("dep {n}"), "done").await?);
    }
    a.open_task("alone").await?;
    a.add(spec("joined").deps(deps)).await?;
    let mut tokens = Vec::new();
    for (task, ttl) in [
        (id("alone"), Some(Duration::from_micros(1_234_567))),
        (id("joined"), Some(TTL)),
        (id("alone"), None),
        (id("joined"), Some(TICK)),
    ] {
        let before = b.get(&task).await?;
        let counts = a.meter.counts();
        let request = ttl.map_or_else(ClaimRequest::forever, ClaimRequest::for_ttl);
        let claim = a.board.claim(&task, &agent("w"), request).await.at("claiming a free task")?;
        let spent = a.meter.counts().since(counts).txn;
        ensure_eq!((spent.calls, spent.applied), (1, 1), "transactions, and applied ones, of one claim");
        let after = b.get(&task).await?;
        ensure_eq!(claim.task, after, "the claim's own task, against what another seat reads");
        ensure_eq!(after.state, State::Claimed, "the state of a claimed task");
        ensure_eq!(after.owner, Some(agent("w")), "the owner of a claimed task");
        ensure!(after.seq > before.seq, "saw the seq {} after {}: a claim", after.seq, before.seq);
        ensure_eq!(after.fence, before.fence + 1, "the fence after a claim");
        let Some(lease) = after.lease else { fail!("saw a claimed task without a lease") };
        let until = ttl.and_then(|ttl| stage.now().checked_add(ttl));
        ensure_eq!(lease.until, until, "the end of a lease of {ttl:?} claimed at {}", stage.now());
        ensure_eq!(
            (claim.lease.fence, claim.lease.until, lease.fence),
            (after.fence, lease.until, after.fence),
            "the lease that the claimer got, and the fence that others see"
        );
        ensure!(
            !tokens.contains(&claim.lease.token),
            "saw a token that was given before: claiming {task:?} as the {}. claim",
            tokens.len() + 1
        );
        // The token is that of the lease.
        a.board.release(&task, &claim.lease.token).await.at("releasing with the token of the claim")?;
        tokens.push(claim.lease.token);
        stage.advance(Duration::from_micros(17_000_003));
    }
    Ok(())
}

async fn one_winner(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let seats = stage.seats(4).await?;
    let boards = narrow(&seats);
    let free = seats[0].open_task("free").await?;
    let rounds = 6;
    for round in 0..rounds {
        // A new task, one that was released, and one whose lease has expired, in turn.
        let claim = concurrent_claim(&boards, &free, 24, TTL).await.at(format!("in round {round}"))?;
        if round % 2 == 0 {
            seats[1].board.release(&free, &claim.lease.token).await.at("releasing what was won")?;
        } else {
            stage.advance(TTL);
        }
    }
    let named = seats[0].open_task("named").await?;
    let barrier = Arc::new(Barrier::new(16));
    let racers: Vec<_> = (0..16)
        .map(|n| {
            let (board, barrier, named) = (boards[n % 4].clone(), barrier.clone(), named.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                board.claim(&named, &agent(format!("racer {n}")), ClaimRequest::for_ttl(TTL)).await
            })
        })
        .collect();
    let (mut won, mut lost) = (Vec::new(), Vec::new());
    for racer in racers {
        match racer.await? {
            Ok(claim) => won.push(claim),
            Err(error) => lost.push(error),
        }
    }
    ensure_eq!(won.len(), 1, "winners of a race of 16");
    for error in lost {
        match error {
            BoardError::Taken { owner, until, fence }
                if Some(&owner) == won[0].task.owner.as_ref()
                    && until == won[0].lease.until
                    && fence == won[0].lease.fence => {}
            other => fail!("saw {other:?}, not Taken by the winner: a racer that lost"),
        }
    }
    seats[2].board.renew(&named, &won[0].lease.token, TTL).await.at("renewing with the winner's token")?;
    // A rival at every point of the claim, under another name and under the same.
    for (round, (rival, place)) in
        ["rival", "w"].iter().flat_map(|rival| Place::BOTH.map(|place| (*rival, place))).enumerate()
    {
        for k in 1.. {
            let task = seats[0].open_task(&format!("met {round} {k}")).await?;
            let step = seats[0].interpose(When::any().nth(k), place, {
                let (board, task) = (seats[1].board.clone(), task.clone());
                move || {
                    let (board, task) = (board.clone(), task.clone());
                    async move {
                        match board.claim(&task, &agent(rival), ClaimRequest::for_ttl(TTL)).await {
                            Ok(claim) => Ok(Some(claim)),
                            Err(BoardError::Taken { .. }) => Ok(None),
                            Err(error) => Err(error).at("claiming"),
                        }
                    }
                }
            });
            let claimed = seats[0].try_claim(&task, "w").await;
            let said = step.taken()?;
            let taken = said.is_some();
            let rivals = said.flatten();
            seats[0].faults.clear();
            let shown = seats[2].get(&task).await?;
            ensure_eq!(shown.fence, 1, "the fence after two claims of one task, of which one may win");
            let winner = match (claimed, rivals) {
                (Ok(claim), None) => claim,
                (Err(BoardError::Taken { owner, fence: 1, .. }), Some(claim)) if owner == agent(rival) => {
                    claim
                }
                (claimed, rivals) => {
                    fail!("saw {claimed:?}, and {rivals:?} won by a rival at its {k}. call, {place:?}")
                }
            };
            seats[2].board.renew(&task, &winner.lease.token, TTL).await.at("renewing what was won")?;
            if !taken {
                break;
            }
        }
    }
    Ok(())
}

async fn takeover(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for (n, (first, second)) in [("w1", "w2"), ("w", "w")].into_iter().enumerate() {
        let task = a.open_task(&format!("task {n}")).await?;
        let mut old = a.claim(&task, first).await?;
        for round in 0..2 {
            let Some(until) = old.lease.until else { fail!("saw no end of a lease with a ttl") };
            stage.advance_to(until);
            stage.clock.set(before(until));
            for seat in [&a, &b] {
                let early = seat.try_claim(&task, second).await;
                ensure_matches!(early, Err(BoardError::Taken { .. }), "a claim 1 us before the lease ends");
            }
            stage.clock.set(until);
            let seat = if round == 0 { &b } else { &a };
            let new = seat.claim(&task, second).await.at("taking over exactly at expiry")?;
            ensure!(
                new.lease.fence > old.lease.fence,
                "saw the fence {} after {}: a takeover",
                new.lease.fence,
                old.lease.fence
            );
            ensure!(new.lease.token != old.lease.token, "saw the old token given again: a takeover");
            ensure_eq!(new.task.owner, Some(agent(second)), "the owner after a takeover");
            ensure_eq!(new.lease.until, stage.now().checked_add(TTL), "the end of the new lease");
            for seat in [&a, &b] {
                let when = format!("with the token of {first:?}, after {second:?} took over");
                seat.is_lost(&task, &old.lease.token, new.lease.fence, &when).await?;
            }
            seat.board.renew(&task, &new.lease.token, TTL).await.at("renewing with the new token")?;
            stage.advance(SKEW);
            for seat in [&a, &b] {
                seat.is_lost(&task, &old.lease.token, new.lease.fence, "after a takeover, later").await?;
            }
            let lease = seat.board.renew(&task, &new.lease.token, TTL).await?;
            old = new;
            old.lease = lease;
        }
        b.board
            .complete(&task, &old.lease.token, super::stage::result("done"))
            .await
            .at("the last holder")?;
    }
    Ok(())
}

fn before(time: coord_core::Timestamp) -> coord_core::Timestamp {
    coord_core::Timestamp::from_micros(time.as_micros() - 1).unwrap_or(time)
}
