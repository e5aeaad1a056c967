//! T20 and T21: what a failure comes to, and who is blocked by it.

use std::time::Duration;

use coord_core::board::{
    Board as _, BoardError, ClaimRequest, ExtendedBoard as _, Filter, Retry, Standing, State, TaskId,
    TaskSpec,
};

use super::stage::{Seat, Stage, TICK, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T20",
        layer: Layer::Board,
        promise: "fail with retries left: open again, not before its backoff; none left: failed; a takeover counts as an \
                  attempt, a release does not; the claim that meets the cap writes failed and answers Terminal; reopen \
                  sets the attempts to zero",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(retries(cx)),
    },
    Clause {
        id: "T21",
        layer: Layer::Board,
        promise: "a failed or cancelled dependency blocks its dependents visibly (explain), until it is reopened and done",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(blocked(cx)),
    },
];

const REST: Duration = Duration::from_secs(600);
const ATTEMPTS: u32 = 3;

fn retried(name: &str) -> TaskSpec {
    spec(name).retry(Retry::new(ATTEMPTS).backoff(REST, REST * 3))
}

async fn retries(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    failures(&stage, &a, &b).await.at("a task that fails again and again")?;
    takeovers(&stage, &a, &b).await.at("a task whose holders are never heard of again")?;
    others(&stage, &a, &b).await.at("attempts that are not failures")?;
    spread(&Stage::fresh(&cx)).await.at("tasks that fail together")?;
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    let zero = a.board.add(spec("never").retry(Retry::new(0))).await;
    ensure_matches!(zero, Err(BoardError::Invalid(_)), "adding a task that is never attempted");
    // The number of attempts belongs to the definition.
    let other = a.board.add(spec("fails").retry(Retry::new(ATTEMPTS + 1).backoff(REST, REST * 3))).await;
    ensure_matches!(
        other,
        Err(BoardError::AlreadyExists { .. }),
        "the same task with another number of attempts"
    );
    Ok(())
}

async fn failures(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    a.add(retried("fails")).await?;
    let task = id("fails");
    ensure_eq!(
        a.get(&task).await?.retry.map(|retry| retry.attempts),
        Some(ATTEMPTS),
        "the attempts that are shown"
    );
    for round in 0..2 {
        for attempt in 1..=ATTEMPTS {
            let place = format!("failure {attempt} of round {round}");
            let claim = a.claim(&task, "w").await?;
            ensure_eq!(claim.task.attempts, attempt, "attempts at {place}");
            let reason = result(&format!("no {attempt}"));
            let kept = a.board.fail(&task, &claim.lease.token, reason.clone()).await.at("fail")?;
            ensure_eq!(kept, reason, "the answer of fail");
            let shown = b.get(&task).await?;
            ensure_eq!((&shown.owner, &shown.lease), (&None, &None), "owner and lease after {place}");
            // The same token is answered again, and nothing happens twice.
            let again = b.board.fail(&task, &claim.lease.token, result("again")).await.at("fail again")?;
            ensure_eq!(again, reason, "the answer of a repeated fail");
            b.is_unchanged(&shown, "a repeated fail").await?;
            if attempt == ATTEMPTS {
                ensure_eq!(shown.state, State::Failed, "the state after the last attempt");
                ensure_eq!(shown.outcome, Some(reason), "the outcome after the last attempt");
                let refused = b.try_claim(&task, "w").await;
                ensure_matches!(
                    refused,
                    Err(BoardError::Terminal { state: State::Failed }),
                    "a claim after {place}"
                );
                continue;
            }
            ensure_eq!(shown.state, State::Open, "the state after {place}");
            let longest = (REST * 2_u32.pow(attempt - 1)).min(REST * 3);
            let Some(until) = shown.not_before else { fail!("saw no rest after {place}") };
            let rest = until.saturating_since(stage.now());
            ensure!(
                rest >= longest / 2 && rest <= longest,
                "saw a rest of {rest:?}, of at most {longest:?}: {place}"
            );
            match b.try_claim(&task, "w").await {
                Err(BoardError::NotYet { until: told }) if told == until => {}
                other => fail!("saw {other:?}, not NotYet {until}: a claim right after {place}"),
            }
            ensure_eq!(b.board.explain(&task).await?, Standing::NotYet { until }, "explain after {place}");
            stage.advance_to(until);
            let found = b.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next")?;
            let Some(found) = found else { fail!("saw claim_next find nothing once the rest was over") };
            ensure_eq!(found.task.id, task, "what claim_next found");
            b.board.release(&task, &found.lease.token).await.at("release")?;
        }
        b.board.reopen(&task).await.at("reopen")?;
        let shown = a.get(&task).await?;
        ensure_eq!(
            (shown.state, shown.attempts, shown.not_before),
            (State::Open, 0, None),
            "state, attempts and rest after reopen"
        );
    }
    a.board.cancel(&task).await.at("cancel")
}

/// The last attempt is never ended: whoever comes next ends it.
async fn takeovers(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    for by_next in [false, true] {
        let name = format!("poison {by_next}");
        a.add(retried(&name).label(&name)).await?;
        let task = id(&name);
        let filter = Filter::any().with_label(&name);
        let mut tokens = Vec::new();
        for attempt in 1..=ATTEMPTS {
            let claim = a.claim(&task, "w").await?;
            ensure_eq!(claim.task.attempts, attempt, "attempts of a takeover");
            tokens.push(claim.lease.token);
            let held = b.try_claim(&task, "w2").await;
            ensure_matches!(
                held,
                Err(BoardError::Taken { .. }),
                "a claim of what is held, at the cap or not"
            );
            stage.advance(TTL);
        }
        let before = b.get(&task).await?;
        ensure_eq!(
            b.board.explain(&task).await?,
            Standing::Exhausted,
            "explain of a task without attempts left"
        );
        b.is_unchanged(&before, "explain").await?;
        if by_next {
            let none = b.board.claim_next(&agent("w"), &filter, TTL).await.at("claim_next")?;
            ensure!(none.is_none(), "saw {none:?} of a task that has no attempts left");
        } else {
            let refused = b.try_claim(&task, "w").await;
            ensure_matches!(
                refused,
                Err(BoardError::Terminal { state: State::Failed }),
                "the claim that meets the cap"
            );
        }
        let shown = a.get(&task).await?;
        ensure_eq!(
            (shown.state, &shown.owner),
            (State::Failed, &None),
            "state and owner after the cap was met"
        );
        ensure!(shown.outcome.is_some(), "saw no reason for a task that was given up");
        ensure!(shown.seq > before.seq, "saw the seq {} after {}", shown.seq, before.seq);
        ensure_eq!(shown.fence, before.fence, "the fence of a task that was given up");
        for token in &tokens {
            a.is_lost(&task, token, shown.fence, "after the cap was met").await?;
        }
        a.board.reopen(&task).await.at("reopen")?;
        let claim = b.claim(&task, "w").await?;
        ensure_eq!(claim.task.attempts, 1, "attempts after reopen");
        b.board.complete(&task, &claim.lease.token, result("")).await.at("complete")?;
    }
    Ok(())
}

async fn others(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    a.add(retried("patient")).await?;
    let task = id("patient");
    for _ in 0..2 * ATTEMPTS {
        let claim = a.claim(&task, "w").await?;
        ensure_eq!(claim.task.attempts, 1, "attempts after releases");
        b.board.release(&task, &claim.lease.token).await.at("release")?;
        ensure_eq!(a.get(&task).await?.attempts, 0, "attempts of a released task");
    }
    // A revoked claim was an attempt.
    let claim = a.claim(&task, "w").await?;
    b.board.revoke(&task, claim.lease.fence).await.at("revoke")?;
    ensure_eq!(a.get(&task).await?.attempts, 1, "attempts after revoke");
    // Without a policy the first failure is the last, and takeovers are not counted.
    let plain = a.open_task("plain").await?;
    for _ in 0..2 * ATTEMPTS {
        a.claim(&plain, "w").await?;
        stage.advance(TTL);
    }
    let claim = a.claim(&plain, "w").await?;
    a.board.fail(&plain, &claim.lease.token, result("no")).await.at("fail")?;
    ensure_eq!(a.get(&plain).await?.state, State::Failed, "the state of a task without retries after fail");
    // The last attempt may still succeed, also late.
    a.add(retried("at last")).await?;
    let task = id("at last");
    for _ in 1..ATTEMPTS {
        a.claim(&task, "w").await?;
        stage.advance(TTL);
    }
    let last = a.claim(&task, "w").await?;
    stage.advance(TTL + TICK);
    a.board.complete(&task, &last.lease.token, result("at last")).await.at("complete of the last attempt")?;
    Ok(())
}

/// They do not come back together.
async fn spread(stage: &Stage) -> Outcome {
    const TOGETHER: usize = 12;
    let (a, b) = stage.pair().await?;
    let mut rests = Vec::new();
    for n in 0..TOGETHER {
        let task = id(format!("n{n}"));
        a.add(retried(task.as_str())).await?;
        let claim = a.board.claim(&task, &agent("w"), ClaimRequest::forever()).await.at("claim")?;
        a.board.fail(&task, &claim.lease.token, result("no")).await.at("fail")?;
        rests.push(b.get(&task).await?.not_before);
    }
    rests.sort();
    rests.dedup();
    ensure!(
        rests.len() > TOGETHER / 2,
        "saw {} different rests of {TOGETHER} tasks that failed together",
        rests.len()
    );
    Ok(())
}

async fn explained(seat: &Seat, task: &TaskId, expected: &Standing, when: &str) -> Outcome {
    let seen = seat.board.explain(task).await.at(format!("explain {when}"))?;
    ensure_eq!(seen, *expected, "explain {when}");
    Ok(())
}

async fn blocked(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for end in ["failed", "cancelled"] {
        let dep = a.open_task(&format!("dep {end}")).await?;
        let other = a.open_task(&format!("other {end}")).await?;
        let task = id(format!("waits {end}"));
        a.add(TaskSpec::new(task.clone()).deps([dep.clone(), other.clone()]).label(end)).await?;
        let standing = |pending: &[&TaskId], failed: &[&TaskId]| Standing::Blocked {
            pending: pending.iter().map(|id| (*id).clone()).collect(),
            failed: failed.iter().map(|id| (*id).clone()).collect(),
            missing: Vec::new(),
        };
        explained(&b, &task, &standing(&[&dep, &other], &[]), "with two dependencies that are open").await?;
        a.end(&dep, end).await?;
        let ended = if end == "failed" { State::Failed } else { State::Cancelled };
        explained(&b, &dep, &Standing::Ended { state: ended }, "of what has ended").await?;
        explained(&b, &task, &standing(&[&other], &[&dep]), "with one that has ended").await?;
        a.end(&other, "done").await?;
        explained(&b, &task, &standing(&[], &[&dep]), "with one that is done").await?;
        let found =
            b.board.claim_next(&agent("w"), &Filter::any().with_label(end), TTL).await.at("claim_next")?;
        ensure!(found.is_none(), "saw a task given although a dependency has {end}");
        b.board.reopen(&dep).await.at("reopen")?;
        explained(&a, &task, &standing(&[&dep], &[]), "once it was reopened").await?;
        explained(&a, &dep, &Standing::Claimable, "of what was reopened").await?;
        let found =
            b.board.claim_next(&agent("w"), &Filter::any().with_label(end), TTL).await.at("claim_next")?;
        ensure!(found.is_none(), "saw a task given although a dependency was only reopened");
        let claim = a.claim(&dep, "w").await?;
        let held = Standing::Held { owner: agent("w"), until: claim.lease.until, fence: claim.lease.fence };
        explained(&b, &dep, &held, "of what is held").await?;
        explained(&b, &task, &standing(&[&dep], &[]), "while it is held").await?;
        a.board.complete(&dep, &claim.lease.token, result("")).await.at("complete")?;
        explained(&b, &task, &Standing::Claimable, "once all are done").await?;
        let found =
            b.board.claim_next(&agent("w"), &Filter::any().with_label(end), TTL).await.at("claim_next")?;
        ensure_eq!(found.map(|claim| claim.task.id), Some(task), "what is given once all are done");
    }
    let unknown = b.board.explain(&id("unknown")).await;
    ensure_matches!(unknown, Err(BoardError::NotFound { .. }), "explain of an unknown task");
    ensure_eq!(a.board.check_index().await?, [], "what is wrong with the index");
    Ok(())
}
