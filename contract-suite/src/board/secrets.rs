//! T35 and T36: tokens and request ids.

use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{
    AgentId, Board as _, BoardError, Claim, ClaimRequest, ExtendedBoard as _, Filter, State, TaskId, check,
};
use coord_core::layer::{Cell, When};
use coord_core::{RequestId, Token};
use tokio::sync::Notify;

use super::stage::{HOLDER_VERBS, Place, Seat, Stage, TICK, TTL, agent, id, result, spec, with_step};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "T35",
        layer: Layer::Board,
        promise: "no answer but the claimer's contains a token or a request id",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(hidden(cx)),
    },
    Clause {
        id: "T36",
        layer: Layer::Board,
        promise: "the same request id gets the same lease while it lives; without it a ghost claim ends at its ttl or by \
                  revoke",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(requests(cx)),
    },
];

/// Everything that was ever secret, and a search for it in what others see.
#[derive(Default)]
struct Secrets(Vec<String>);

impl Secrets {
    fn token(&mut self, token: &Token) {
        self.0.push(token.reveal());
    }

    /// Fails if a text shows a secret, whole or half, in hexadecimal digits of either case.
    fn are_not_in(&self, what: &str, text: &str) -> Outcome {
        let text = text.to_lowercase();
        for secret in &self.0 {
            let (first, second) = secret.split_at(16);
            if text.contains(first) || text.contains(second) {
                fail!("saw a secret in {what}");
            }
        }
        Ok(())
    }

    /// What anybody may do and read at any time, answers and errors, in every form in which they can be shown.
    async fn are_hidden_from(&self, seat: &Seat, when: &str) -> Outcome {
        let tasks = seat.board.list().await.at("listing")?;
        let json = serde_json::to_string(&tasks)?;
        self.are_not_in(&format!("the listing {when}"), &format!("{tasks:?} {json} {:?}", check(&tasks)))?;
        self.are_not_in(&format!("the board itself {when}"), &format!("{:?}", seat.board))?;
        for task in &tasks {
            let told = seat.board.history(&task.id).await.at("reading a history")?;
            self.are_not_in(
                &format!("the history {when}"),
                &format!("{told:?} {}", serde_json::to_string(&told)?),
            )?;
            let got = seat.get(&task.id).await?;
            self.are_not_in(&format!("get {when}"), &format!("{got:?} {}", serde_json::to_string(&got)?))?;
        }
        Ok(())
    }

    async fn are_not_in_refusals(&self, seat: &Seat, task: &TaskId, when: &str) -> Outcome {
        let mut errors: Vec<(&str, BoardError)> = Vec::new();
        let mut keep =
            |verb, answer: Result<(), BoardError>| errors.extend(answer.err().map(|error| (verb, error)));
        for request in [None, Some(RequestId::mint())] {
            for name in ["w", "another"] {
                let mut claim = ClaimRequest::for_ttl(TTL);
                claim.request.clone_from(&request);
                keep("claim", seat.board.claim(task, &agent(name), claim).await.map(|_| ()));
            }
        }
        for verb in HOLDER_VERBS {
            keep(verb, seat.hold(verb, task, &Token::mint(), "text").await.map(|_| ()));
        }
        keep("remove", seat.board.remove(task).await);
        keep("set_deps", seat.board.set_deps(task, &[], None).await);
        keep("revoke", seat.board.revoke(task, u64::MAX).await);
        keep("reopen", seat.board.reopen(task).await);
        keep("add", seat.board.add(spec(task.as_str()).title("another")).await.map(|_| ()));
        ensure!(errors.len() >= 6, "saw {errors:?}, which are fewer refusals than were asked for: {when}");
        for (verb, error) in errors {
            let mut text = format!("{error:?} {error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text.push_str(&format!(" {cause:?} {cause}"));
                source = cause.source();
            }
            self.are_not_in(&format!("what {verb} is refused with {when}"), &text)?;
        }
        Ok(())
    }
}

async fn hidden(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let mut secrets = Secrets::default();
    for ending in ["release", "complete", "fail", "cancel", "revoke", "takeover"] {
        let task = a.open_task(&format!("task {ending}")).await?;
        a.add(spec(format!("after {ending}")).dep(task.clone()).title("waits")).await?;
        let request = RequestId::mint();
        secrets.0.push(request.reveal());
        let claim = a
            .board
            .claim(&task, &agent("w"), ClaimRequest::for_ttl(TTL).with_request(request))
            .await
            .at("claiming with a request id")?;
        let token = claim.lease.token.clone();
        secrets.token(&token);
        // The claimer itself is shown its lease as such, and nothing else.
        secrets.are_not_in("the task that a claim returns", &format!("{:?}", claim.task))?;
        secrets.are_not_in("the debug form of a claim", &format!("{claim:?}"))?;
        secrets.are_hidden_from(&b, &format!("while claimed, before {ending}")).await?;
        secrets.are_not_in_refusals(&b, &task, &format!("while claimed, before {ending}")).await?;
        let blocked = b.try_claim(&id(format!("after {ending}")), "w").await;
        secrets.are_not_in("what a blocked claim is told", &format!("{blocked:?}"))?;
        let lease = a.board.renew(&task, &token, TTL).await?;
        secrets.are_not_in("the debug form of a lease", &format!("{lease:?}"))?;
        let said = match ending {
            "cancel" => b.board.cancel(&task).await.map(|()| String::new()),
            "revoke" => b.board.revoke(&task, lease.fence).await.map(|()| String::new()),
            "takeover" => {
                stage.advance(TTL);
                b.claim(&task, "w2").await?;
                Ok(String::new())
            }
            verb => a.hold(verb, &task, &token, "the outcome").await,
        };
        secrets.are_not_in(&format!("the answer of {ending}"), &said.at(ending)?)?;
        secrets.are_hidden_from(&b, &format!("after {ending}")).await?;
        let lost = a.board.renew(&task, &token, TTL).await;
        secrets.are_not_in("what a lost holder is told", &format!("{lost:?}"))?;
        if matches!(ending, "complete" | "takeover") {
            secrets.are_not_in_refusals(&b, &task, &format!("after {ending}")).await?;
        }
    }
    let next = a.board.claim_next(&agent("w"), &Filter::any(), TTL).await?;
    let Some(next) = next else { fail!("saw claim_next find nothing, although tasks are ready") };
    secrets.token(&next.lease.token);
    secrets.are_not_in("the task that claim_next returns", &format!("{:?}", next.task))?;
    secrets.are_hidden_from(&b, "after claim_next").await?;
    // An outcome that is unknown brings its token to nobody but the caller, and not into a log.
    let task = a.open_task("unknown").await?;
    a.faults.on(When::txn(), Cell::reply_lost().then_gone());
    let unknown = a.try_claim(&task, "w").await;
    a.faults.clear();
    match &unknown {
        Err(BoardError::OutcomeUnknown { token: Some(token), .. }) => {
            secrets.token(token);
            let Err(error) = &unknown else { return Ok(()) };
            secrets.are_not_in("the text of an unknown outcome", &format!("{error:?} {error}"))?;
        }
        other => fail!(
            "saw {other:?}, not OutcomeUnknown with a token: a claim whose reply was lost with the store"
        ),
    }
    secrets.are_hidden_from(&b, "after an unknown claim").await
}

async fn claim(
    seat: &Seat,
    task: &TaskId,
    agent: &AgentId,
    request: &RequestId,
    ttl: Duration,
) -> Result<Claim, BoardError> {
    seat.board.claim(task, agent, ClaimRequest::for_ttl(ttl).with_request(request.clone())).await
}

async fn requests(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let me = agent("w");
    let request = RequestId::mint();
    let task = a.open_task("task").await?;
    let first = claim(&a, &task, &me, &request, TTL).await.at("the first claim")?;
    let held = a.get(&task).await?;
    for ttl in [TTL, TTL * 2, TICK] {
        stage.advance(TTL / 4);
        for seat in [&a, &b] {
            let again = claim(seat, &task, &me, &request, ttl).await.at("the same request again")?;
            same_lease(&first, &again)?;
            ensure_eq!(again.task, held, "the task that the same request gets");
            seat.is_unchanged(&held, "the same request again").await?;
        }
    }
    // Neither the name nor the id is enough.
    for (what, name, request) in [
        ("another agent with the same request id", agent("w2"), request.clone()),
        ("the same agent with another request id", me.clone(), RequestId::mint()),
        ("another agent with another request id", agent("w2"), RequestId::mint()),
    ] {
        let taken = claim(&b, &task, &name, &request, TTL).await;
        ensure_matches!(taken, Err(BoardError::Taken { .. }), "a claim by {what}");
    }
    let taken = b.try_claim(&task, "w").await;
    ensure_matches!(taken, Err(BoardError::Taken { .. }), "a claim by the same agent without a request id");
    b.is_unchanged(&held, "claims of others").await?;
    // The lease goes on, and so does the request.
    let lease = a.board.renew(&task, &first.lease.token, TTL).await?;
    let again = claim(&b, &task, &me, &request, TTL).await.at("the same request after a renewal")?;
    ensure!(again.lease == lease, "saw {:?}, not the renewed {lease:?}", again.lease);
    stage.advance(TTL - TICK);
    claim(&b, &task, &me, &request, TTL).await.at("the same request 1 us before the end")?;
    // Once it has expired it is a claim like any other.
    stage.advance(TICK);
    let second = claim(&b, &task, &me, &request, TTL).await.at("the same request at the end of the lease")?;
    new_lease(&first, &second, "the same request at the end of the lease")?;
    a.is_lost(&task, &first.lease.token, second.lease.fence, "after the same request took over").await?;
    a.board.release(&task, &second.lease.token).await?;
    let third = claim(&a, &task, &me, &request, TTL).await.at("the same request after a release")?;
    new_lease(&second, &third, "the same request after a release")?;
    b.board.revoke(&task, third.lease.fence).await?;
    let fourth = claim(&a, &task, &me, &request, TTL).await.at("the same request after revoke")?;
    new_lease(&third, &fourth, "the same request after revoke")?;
    // A lease that somebody else took is not found by an older request.
    stage.advance(TTL);
    let fifth = b.claim(&task, "w").await?;
    let taken = claim(&a, &task, &me, &request, TTL).await;
    ensure_matches!(taken, Err(BoardError::Taken { .. }), "the same request after a takeover without one");
    b.board.complete(&task, &fifth.lease.token, result("")).await?;
    let ended = claim(&a, &task, &me, &request, TTL).await;
    ensure_matches!(
        ended,
        Err(BoardError::Terminal { state: State::Done }),
        "the same request on a done task"
    );
    // One request id finds each task's own lease.
    let other = a.open_task("other").await?;
    let elsewhere = claim(&a, &other, &me, &request, TTL).await.at("the same request on another task")?;
    let again = claim(&b, &other, &me, &request, TTL).await?;
    same_lease(&elsewhere, &again)?;
    lost_answers(&stage, &a, &b).await
}

fn same_lease(one: &Claim, other: &Claim) -> Outcome {
    ensure!(one.lease == other.lease, "saw {:?}, not the same lease {:?}", other.lease, one.lease);
    Ok(())
}

fn new_lease(old: &Claim, new: &Claim, what: &str) -> Outcome {
    ensure!(new.lease.token != old.lease.token, "saw the old token: {what}");
    ensure!(
        new.lease.fence > old.lease.fence,
        "saw the fence {} after {}: {what}",
        new.lease.fence,
        old.lease.fence
    );
    Ok(())
}

/// A claim whose answer never comes: found by its request, or a ghost that ends with its ttl.
async fn lost_answers(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    for (n, with_request) in [true, false, true, false].into_iter().enumerate() {
        let task = a.open_task(&format!("ghost {n}")).await?;
        let request = RequestId::mint();
        let mut asked = ClaimRequest::for_ttl(TTL);
        if with_request {
            asked = asked.with_request(request.clone());
        }
        // The claim is applied, and its caller is gone before it hears of it.
        let applied = Arc::new(Notify::new());
        let (cell, _) = with_step(Cell::hangs(), Place::After, {
            let applied = applied.clone();
            move |_| {
                let applied = applied.clone();
                async move {
                    applied.notify_one();
                    Ok(())
                }
            }
        });
        a.faults.on(When::txn(), cell);
        let call = tokio::spawn({
            let (board, task) = (a.board.clone(), task.clone());
            async move { board.claim(&task, &agent("w"), asked).await }
        });
        applied.notified().await;
        call.abort();
        ensure!(call.await.is_err(), "saw an answer of a claim that hangs");
        a.faults.clear();
        let ghost = b.get(&task).await?;
        ensure_eq!(
            (ghost.state, ghost.fence),
            (State::Claimed, 1),
            "state and fence after a claim that was dropped"
        );
        if with_request {
            let found =
                claim(b, &task, &agent("w"), &request, TTL).await.at("the same request after a drop")?;
            ensure_eq!(
                found.task,
                ghost,
                "the task that the same request finds: it must not be claimed again"
            );
            b.board.renew(&task, &found.lease.token, TTL).await.at("renewing what the request has found")?;
            continue;
        }
        let taken = b.try_claim(&task, "w").await;
        ensure_matches!(taken, Err(BoardError::Taken { .. }), "a claim while the ghost lives");
        if n == 1 {
            stage.advance(TTL);
        } else {
            b.board.revoke(&task, ghost.fence).await.at("revoking a ghost")?;
        }
        let next = b.claim(&task, "w").await.at("after the ghost")?;
        ensure!(next.lease.fence > ghost.fence, "saw the fence {} after {}", next.lease.fence, ghost.fence);
    }
    Ok(())
}
