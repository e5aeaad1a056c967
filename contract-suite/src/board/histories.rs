//! T41: what has happened to a task.

use std::time::Duration;

use coord_core::board::{
    AgentId, Board as _, BoardError, Dep, Event, ExtendedBoard as _, Filter, History, Retry, Rule, State,
    TaskId, TaskSpec, Verb, limits,
};
use coord_core::{Bytes, Mutation};

use super::stage::{HOLDER_VERBS, Seat, Stage, TTL, agent, id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T41",
    layer: Layer::Board,
    promise: "history: every change of a task but renewals and pins once, with when, by whom, from whom, fence and attempts, the last \
              32 of them; nothing of what is refused or answered again, no token; gone with the task; a history that cannot \
              be read stops no verb, and begins anew",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(histories(cx)),
}];

async fn histories(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let none = a.board.history(&id("none")).await;
    ensure_matches!(none, Err(BoardError::NotFound { .. }), "the history of an unknown task");
    lives(&stage, &a, &b).await.at("the life of a task")?;
    attempts(&stage, &a, &b).await.at("a task that is tried several times")?;
    skipped(&stage, &a, &b).await.at("a task that is skipped")?;
    bounded(&a, &b).await.at("a task to which much happens")?;
    unreadable(&stage, &a, &b).await.at("a history that cannot be read")
}

/// What a history is expected to have got, event by event.
struct Told<'a> {
    stage: &'a Stage,
    seat: &'a Seat,
    task: TaskId,
    known: Vec<Event>,
}

fn name(agent: Option<&AgentId>) -> Option<&str> {
    agent.map(AgentId::as_str)
}

impl<'a> Told<'a> {
    async fn begin(stage: &'a Stage, seat: &'a Seat, task: &TaskId) -> Result<Self, Verdict> {
        let mut told = Told { stage, seat, task: task.clone(), known: Vec::new() };
        told.more(Verb::Add, None, None, "").await?;
        Ok(told)
    }

    /// Exactly one event more, and this one.
    async fn more(&mut self, verb: Verb, by: Option<&str>, from: Option<&str>, text: &str) -> Outcome {
        let shown = self.seat.get(&self.task).await?;
        let history = self.read().await?;
        ensure_eq!((history.dropped, history.damaged), (0, false), "what is told to be missing after {verb}");
        let Some((last, before)) = history.events.split_last() else { fail!("saw no event after {verb}") };
        ensure!(before == self.known, "saw {before:?}, not {:?}, before the event of {verb}", self.known);
        ensure_eq!(last.verb, verb, "the last event");
        ensure_eq!(last.at, self.stage.now(), "when {verb} was");
        ensure_eq!(last.state, shown.state, "the state after {verb}");
        ensure_eq!(last.fence, shown.fence, "the fence after {verb}");
        ensure_eq!(name(last.by.as_ref()), by, "who is told to have done {verb}");
        ensure_eq!(name(last.from.as_ref()), from, "whose claim is told to have ended by {verb}");
        ensure_eq!(last.text, text, "the text of {verb}");
        self.known.push(last.clone());
        self.stage.advance(Duration::from_secs(1));
        Ok(())
    }

    /// No event more.
    async fn same(&self, why: &str) -> Outcome {
        let history = self.read().await?;
        ensure!(history.events == self.known, "saw {history:?}, not {:?}: {why}", self.known);
        Ok(())
    }

    async fn read(&self) -> Result<History, Verdict> {
        self.seat.board.history(&self.task).await.at(format!("the history of {:?}", self.task))
    }
}

async fn lives(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let task = a.open_task("lives").await?;
    let mut told = Told::begin(stage, b, &task).await?;
    a.open_task("other").await?;
    a.board.set_deps(&task, &[id("other").into()], None).await.at("set_deps")?;
    let changed = told.read().await?.events.last().map(|event| event.text.clone()).unwrap_or_default();
    told.more(Verb::SetDeps, None, None, &changed).await?;
    let blocked = a.try_claim(&task, "w1").await;
    ensure_matches!(blocked, Err(BoardError::Blocked { .. }), "a claim of a task that waits");
    told.same("a claim was refused").await?;
    a.end(&id("other"), "done").await?;
    let first = a.claim(&task, "w1").await?;
    told.more(Verb::Claim, Some("w1"), None, "").await?;
    ensure_eq!(told.known.last().map(|event| event.attempts), Some(1), "the attempts of the first claim");
    a.board.renew(&task, &first.lease.token, TTL).await.at("renew")?;
    told.same("the lease was renewed").await?;
    let taken = b.try_claim(&task, "w2").await;
    ensure_matches!(taken, Err(BoardError::Taken { .. }), "a claim of a held task");
    told.same("a claim was refused").await?;
    a.board.release(&task, &first.lease.token).await.at("release")?;
    told.more(Verb::Release, Some("w1"), None, "").await?;
    a.board.release(&task, &first.lease.token).await.at("release again")?;
    told.same("a release was answered again").await?;
    let expired = a.claim(&task, "w1").await?;
    told.more(Verb::Claim, Some("w1"), None, "").await?;
    stage.advance(TTL);
    let next = b.board.claim_next(&agent("w2"), &Filter::any(), TTL).await.at("claim_next")?;
    let Some(next) = next else { fail!("saw claim_next find nothing, although a lease is over") };
    told.more(Verb::Claim, Some("w2"), Some("w1"), "").await?;
    for verb in HOLDER_VERBS {
        let late = a.hold(verb, &task, &expired.lease.token, "late").await;
        ensure_matches!(late, Err(BoardError::LeaseLost { .. }), "{verb} after a takeover");
    }
    told.same("a lost holder was refused").await?;
    b.board.revoke(&task, next.lease.fence).await.at("revoke")?;
    told.more(Verb::Revoke, None, Some("w2"), "").await?;
    b.claim(&task, "w2").await?;
    told.more(Verb::Claim, Some("w2"), None, "").await?;
    a.board.cancel(&task).await.at("cancel")?;
    told.more(Verb::Cancel, None, Some("w2"), "").await?;
    a.board.cancel(&task).await.at("cancel again")?;
    told.same("a cancelled task was cancelled").await?;
    a.board.reopen(&task).await.at("reopen")?;
    told.more(Verb::Reopen, None, None, "").await?;
    let last = a.claim(&task, "w3").await?;
    told.more(Verb::Claim, Some("w3"), None, "").await?;
    a.board.complete(&task, &last.lease.token, result("it worked")).await.at("complete")?;
    told.more(Verb::Complete, Some("w3"), None, "it worked").await?;
    a.board.complete(&task, &last.lease.token, result("again")).await.at("complete again")?;
    told.same("a completion was answered again").await?;
    let shown = format!("{:?} {}", told.read().await?, serde_json::to_string(&told.read().await?)?);
    for claim in [&first, &expired, &next, &last] {
        ensure!(!shown.contains(&claim.lease.token.reveal()), "saw a token in a history");
    }
    // Another life has another history.
    a.board.remove(&task).await.at("remove")?;
    let gone = b.board.history(&task).await;
    ensure_matches!(gone, Err(BoardError::NotFound { .. }), "the history of a removed task");
    let again = b.open_task("lives").await?;
    let mut told = Told::begin(stage, a, &again).await?;
    b.claim(&again, "w4").await?;
    told.more(Verb::Claim, Some("w4"), None, "").await?;
    b.board.cancel(&again).await?;
    Ok(())
}

async fn attempts(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let retry = Retry::new(2).backoff(Duration::from_secs(2), Duration::from_secs(2));
    a.add(spec("tried").retry(retry)).await?;
    let task = id("tried");
    let mut told = Told::begin(stage, b, &task).await?;
    for attempt in 1..=2 {
        stage.advance(Duration::from_secs(2));
        let claim = a.claim(&task, "w1").await?;
        told.more(Verb::Claim, Some("w1"), None, "").await?;
        let reason = "é".repeat(limits::EVENT_BYTES);
        a.board.fail(&task, &claim.lease.token, result(&reason)).await.at("fail")?;
        told.more(Verb::Fail, Some("w1"), None, &Event::cut(&reason)).await?;
        a.board.fail(&task, &claim.lease.token, result("again")).await.at("fail again")?;
        told.same("a failure was answered again").await?;
        let last = told.known.last().map(|event| (event.attempts, event.state));
        let state = if attempt == 2 { State::Failed } else { State::Open };
        ensure_eq!(last, Some((attempt, state)), "attempts and state of failure {attempt}");
    }
    a.board.reopen(&task).await.at("reopen")?;
    told.more(Verb::Reopen, None, None, "").await?;
    for from in [None, Some("w2")] {
        a.claim(&task, "w2").await?;
        told.more(Verb::Claim, Some("w2"), from, "").await?;
        stage.advance(TTL);
    }
    let over = b.try_claim(&task, "w3").await;
    ensure_matches!(
        over,
        Err(BoardError::Terminal { state: State::Failed }),
        "a claim without an attempt left"
    );
    let said = b.get(&task).await?.outcome.map(|outcome| outcome.to_string()).unwrap_or_default();
    told.more(Verb::Claim, Some("w3"), Some("w2"), &said).await
}

/// Skipped by whoever looks, by a claim, and behind another one.
async fn skipped(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let done = a.ended_task("done", "done").await?;
    for by_claim in [true, false] {
        let task = id(format!("skipped {by_claim}"));
        let behind = id(format!("behind {by_claim}"));
        a.add(TaskSpec::new(task.clone()).dep(Dep::on(done.clone(), Rule::Failed))).await?;
        a.add(TaskSpec::new(behind.clone()).dep(task.clone())).await?;
        if by_claim {
            let refused = b.try_claim(&task, "w1").await;
            let skipped = State::Skipped;
            ensure_matches!(refused, Err(BoardError::Terminal { state }) if *state == skipped, "what can never begin");
        }
        let given = b.board.claim_next(&agent("w1"), &Filter::any(), TTL).await.at("claim_next")?;
        ensure_eq!(given.map(|claim| claim.task.id), None, "what can be claimed");
        for task in [task, behind] {
            let told = b.board.history(&task).await?;
            let verbs: Vec<Verb> = told.events.iter().map(|event| event.verb).collect();
            ensure_eq!(verbs, vec![Verb::Add, Verb::Skip], "what is told of {task:?}");
            let shown = a.get(&task).await?;
            let last = told.events.last().map(|last| (last.state, last.at, last.fence, last.attempts));
            ensure_eq!(
                last,
                Some((State::Skipped, shown.touched, shown.fence, 0)),
                "how {task:?} was skipped"
            );
        }
        stage.advance(Duration::from_secs(1));
    }
    Ok(())
}

async fn bounded(a: &Seat, b: &Seat) -> Outcome {
    let task = a.open_task("much").await?;
    let rounds = limits::HISTORY_EVENTS;
    for _ in 0..rounds {
        let claim = a.claim(&task, "w1").await?;
        b.board.release(&task, &claim.lease.token).await.at("release")?;
    }
    let history = b.board.history(&task).await?;
    ensure_eq!(history.events.len(), limits::HISTORY_EVENTS, "events after {} of them", 2 * rounds + 1);
    ensure_eq!(history.dropped, (rounds + 1) as u64, "events that were dropped");
    let verbs: Vec<Verb> = history.events.iter().map(|event| event.verb).collect();
    let expected = [Verb::Claim, Verb::Release].into_iter().cycle().take(rounds).collect::<Vec<_>>();
    ensure_eq!(verbs, expected, "the last events");
    let fences: Vec<u64> = history.events.iter().map(|event| event.fence).collect();
    ensure!(
        fences.is_sorted() && fences.first() < fences.last(),
        "saw the fences {fences:?} in the last events"
    );
    a.board.cancel(&task).await?;
    Ok(())
}

/// Boards that keep histories apart from the tasks begin them anew where they are damaged. Where a history is kept, only the board
/// knows; each record of the task that is there without a change of what is shown is damaged in turn.
async fn unreadable(stage: &Stage, a: &Seat, b: &Seat) -> Outcome {
    let before = a.raw_entries().await?;
    let task = a.open_task("unreadable").await?;
    let mut claim = a.claim(&task, "w1").await?;
    let records: Vec<_> =
        a.raw_entries().await?.into_iter().filter(|(key, _)| !before.contains_key(key)).collect();
    for (key, value) in records.iter().filter(|(key, _)| key.as_str().contains("past")) {
        for bytes in [Bytes::new(), Bytes::from_static(b"not yours"), value.slice(..value.len() - 1)] {
            a.raw_write([Mutation::put(key.clone(), bytes)]).await?;
            let history = b.board.history(&task).await.at("a damaged history")?;
            ensure_eq!((history.damaged, history.events.len()), (true, 0), "a damaged history");
            b.board.renew(&task, &claim.lease.token, TTL).await.at("renew with a damaged history")?;
            b.board.release(&task, &claim.lease.token).await.at("release with a damaged history")?;
            let history = a.board.history(&task).await.at("a history that began anew")?;
            let verbs: Vec<Verb> = history.events.iter().map(|event| event.verb).collect();
            ensure_eq!((history.damaged, verbs), (true, vec![Verb::Release]), "a history that began anew");
            claim = a.claim(&task, "w1").await.at("claim with a history that began anew")?;
            stage.advance(Duration::from_secs(1));
        }
    }
    a.board.complete(&task, &claim.lease.token, result("")).await.at("complete")?;
    Ok(())
}
