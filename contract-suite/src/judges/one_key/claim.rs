//! Claims.

use std::collections::BTreeMap;
use std::time::Duration;

use coord_core::board::{
    AgentId, BoardError, Claim, ClaimRequest, Dep, Filter, Outcome, State, TaskId, Verb,
};
use coord_core::{Timestamp, Token};

use super::record::{Answer, Record, Whole};
use super::{Call, Judged, OneKeyBoard, Time, WrongJudge};

/// The end of a lease.
pub(super) fn end(now: Timestamp, ttl: Option<Duration>) -> Result<Option<Timestamp>, BoardError> {
    let Some(ttl) = ttl else { return Ok(None) };
    check_ttl(ttl)?;
    match now.checked_add(ttl) {
        Some(until) => Ok(Some(until)),
        None => Err(BoardError::Invalid(format!("the ttl {ttl:?} ends beyond the representable time"))),
    }
}

pub(super) fn check_ttl(ttl: Duration) -> Result<(), BoardError> {
    if ttl < Duration::from_micros(1) {
        return Err(BoardError::Invalid(format!("the ttl {ttl:?} is less than a microsecond")));
    }
    Ok(())
}

pub(super) fn taken(record: &Record) -> BoardError {
    let owner = record.owner.clone().unwrap_or_else(|| AgentId::unchecked("nobody"));
    BoardError::Taken { owner, until: record.until, fence: record.fence }
}

pub(super) fn record<'a>(whole: &'a mut Whole, id: &TaskId) -> Result<&'a mut Record, BoardError> {
    whole.tasks.get_mut(id).ok_or_else(|| BoardError::NotFound { id: id.clone() })
}

/// Everything about one claim that does not change between two judgements of it.
pub(super) struct Claimer {
    pub(super) id: TaskId,
    pub(super) agent: AgentId,
    pub(super) request: ClaimRequest,
    pub(super) token: Token,
    /// The dependencies that the first judgement saw.
    pub(super) first_deps: Option<Vec<Dep>>,
    /// The states of the dependencies that the first judgement saw, for the judge that goes by them.
    pub(super) first_ends: Option<BTreeMap<TaskId, State>>,
}

impl OneKeyBoard {
    pub(super) fn mint(&self) -> Token {
        let token = Token::mint();
        if !self.is(WrongJudge::SmallTokens) {
            return token;
        }
        // Sixteen random bits and 112 zeros.
        format!("{}{:0>28}", &token.reveal()[..4], "").parse().unwrap_or(token)
    }

    pub(super) async fn claim_one(
        &self,
        id: &TaskId,
        agent: &AgentId,
        request: ClaimRequest,
    ) -> Result<Claim, BoardError> {
        let id = self.ident(id)?;
        agent.validate()?;
        if !self.is(WrongJudge::ZeroTtl) {
            request.ttl.map_or(Ok(()), check_ttl)?;
        }
        let token = self.mint();
        let mut call = Call::new(Verb::Claim, &id, Some(&token));
        call.agent = Some(agent.clone());
        let mut claimer =
            Claimer { id, agent: agent.clone(), request, token, first_deps: None, first_ends: None };
        if self.is(WrongJudge::PinBefore) {
            self.pin_alone(&call, &claimer.id).await?;
        }
        let answer = self.run(call.clone(), |whole, time| self.judge_claim(whole, time, &mut claimer)).await;
        match (&answer, self.wrong) {
            (Ok(_), Some(WrongJudge::PinInTwo))
            | (Err(BoardError::Blocked { .. }), Some(WrongJudge::PinThoughBlocked)) => {
                self.pin_alone(&call, &claimer.id).await?;
            }
            (Err(BoardError::Taken { .. }), Some(WrongJudge::LoserStored)) => {
                let token = claimer.token.clone();
                let store = move |whole: &mut Whole, _: Time| {
                    whole.junk.push(token.clone());
                    Ok(Judged::Write(Answer::Nothing))
                };
                self.run(call, store).await?;
            }
            (Ok(_), Some(WrongJudge::ClaimInTwo)) => {
                let id = claimer.id.clone();
                let again = move |whole: &mut Whole, time: Time| {
                    let record = record(whole, &id)?;
                    record.touch(time.at(record.touched));
                    Ok(Judged::Write(Answer::Nothing))
                };
                self.run(call, again).await?;
            }
            _ => {}
        }
        match answer? {
            Answer::Failed => Err(BoardError::Terminal { state: State::Failed }),
            answer => answer.into_claim().ok_or(BoardError::NotFound { id: claimer.id }),
        }
    }

    pub(super) fn judge_claim(
        &self,
        whole: &mut Whole,
        time: Time,
        claimer: &mut Claimer,
    ) -> Result<Judged, BoardError> {
        let (id, agent, token) = (claimer.id.clone(), claimer.agent.clone(), claimer.token.clone());
        let touched = whole.tasks.get(&id).map_or(Timestamp::EPOCH, |record| record.touched);
        let now = time.at(touched);
        let until = match end(now, claimer.request.ttl) {
            Err(_) if self.is(WrongJudge::TtlSaturates) => Some(Timestamp::MAX),
            Err(_) if self.is(WrongJudge::ZeroTtl) => Some(now),
            Ok(Some(until)) if self.is(WrongJudge::UntilRounded) => {
                Timestamp::from_micros(until.as_micros() / 1_000_000 * 1_000_000)
            }
            Ok(None) if self.is(WrongJudge::ForeverIsAnHour) => {
                Some(now.saturating_add(Duration::from_secs(3_600)))
            }
            until => until?,
        };
        let Some(task) = whole.tasks.get(&id) else {
            if self.is(WrongJudge::UnknownIsInvalid) {
                return Err(BoardError::Invalid("what is that?".into()));
            }
            return Err(BoardError::NotFound { id });
        };
        let mut deps = task.deps.clone();
        match &claimer.first_deps {
            Some(first) if self.is(WrongJudge::OldDefinition) => deps.clone_from(first),
            _ => claimer.first_deps = Some(deps.clone()),
        }
        if self.is(WrongJudge::BlockedBeforeTerminal) {
            self.judge_deps(whole, &deps, claimer, now)?;
        }
        let claimed = task.state == State::Skipped && self.is(WrongJudge::SkippedClaimed);
        if (task.state.is_terminal() && !claimed) || matches!(task.state, State::Unknown(_)) {
            return Err(BoardError::Terminal { state: task.state });
        }
        if let Some(judged) = self.judge_holder(task, time, now, claimer, until)? {
            if let Judged::Write(_) = judged {
                let task = record(whole, &id)?;
                task.until = until;
                task.touch(now);
                let held = task.token.clone().unwrap_or(token);
                return Ok(Judged::Write(Answer::claim(&id, task, &held)));
            }
            return Ok(judged);
        }
        if self.is(WrongJudge::BlockedBeforeNotYet) {
            self.judge_deps(whole, &deps, claimer, now)?;
        }
        match task.earliest() {
            Some(until) if now < until && !self.is(WrongJudge::GivenBeforeItsTime) => {
                return Err(BoardError::NotYet { until });
            }
            Some(until) if now == until && self.is(WrongJudge::NotYetAtItsTime) => {
                return Err(BoardError::NotYet { until });
            }
            _ => {}
        }
        if task.retry.is_some_and(|retry| task.attempts >= retry.attempts)
            && !self.is(WrongJudge::TakeoverNotCounted)
        {
            if self.is(WrongJudge::CapWritesNothing) {
                return Err(BoardError::Terminal { state: State::Failed });
            }
            let task = record(whole, &id)?;
            let from = task.owner.clone();
            task.unclaim(State::Failed);
            task.outcome = Some(Outcome::truncated("no attempt is left"));
            task.settled = None;
            task.touch(now);
            self.note(task, Verb::Claim, Some(agent), from, "no attempt is left");
            return Ok(Judged::Write(Answer::Failed));
        }
        self.judge_deps(whole, &deps, claimer, now)?;
        let takeover = task.state == State::Claimed;
        if !self.is(WrongJudge::PinInTwo) {
            self.pin(whole, &id, time);
        }
        let keeps_seq = self.is(WrongJudge::ClaimKeepsSeq);
        let task = record(whole, &id)?;
        let old_token = task.token.take();
        let token = match old_token {
            Some(old) if takeover && self.is(WrongJudge::TakeoverKeepsToken) => old,
            _ => token,
        };
        if self.is(WrongJudge::TokenByAgent) {
            task.past.push((token.clone(), agent.clone()));
        }
        task.begin_history();
        task.fence += match self.wrong {
            Some(WrongJudge::TakeoverKeepsFence) if takeover => 0,
            Some(WrongJudge::FenceByTwo) => 2,
            _ => 1,
        };
        task.state = State::Claimed;
        let from = task.owner.replace(agent.clone());
        if !self.is(WrongJudge::ProgressOutlivesClaim) {
            task.progress = None;
        }
        task.token = Some(token.clone());
        task.request.clone_from(&claimer.request.request);
        task.until = until;
        task.attempts += 1;
        if !self.is(WrongJudge::ReleaseRemembered) && !self.is(WrongJudge::RequestAfterRelease) {
            task.settled = None;
        }
        let seq = task.seq;
        task.touch(now);
        if keeps_seq {
            task.seq = seq;
        }
        let text = if self.is(WrongJudge::TokenInHistory) { token.reveal() } else { String::new() };
        let from = from.filter(|_| !self.is(WrongJudge::TakeoverUntold));
        self.note(task, Verb::Claim, Some(agent), from, &text);
        let mut answer = Answer::claim(&id, task, &token);
        if let (Answer::Claim { fence, .. }, true) = (&mut answer, self.is(WrongJudge::FenceAnsweredWrong)) {
            *fence += 1;
        }
        Ok(Judged::Write(answer))
    }

    /// Judges whoever holds the task. `Some(Write)` moves the end of the lease.
    fn judge_holder(
        &self,
        task: &Record,
        time: Time,
        now: Timestamp,
        claimer: &Claimer,
        until: Option<Timestamp>,
    ) -> Result<Option<Judged>, BoardError> {
        let same_agent = task.owner.as_ref() == Some(&claimer.agent);
        let same_request = claimer.request.request.is_some() && task.request == claimer.request.request;
        if self.is(WrongJudge::RequestAfterRelease)
            && let (State::Open, true, Some(settled)) = (task.state, same_request, &task.settled)
        {
            return Ok(Some(Judged::Keep(Answer::claim(&claimer.id, task, &settled.token))));
        }
        let (State::Claimed, Some(token)) = (task.state, &task.token) else { return Ok(None) };
        let alive = task.until.is_none_or(|until| now < until);
        let mine = match self.wrong {
            Some(WrongJudge::RequestOfAnybody) => same_request && alive,
            Some(WrongJudge::RequestOutlivesLease) => same_request && same_agent,
            Some(WrongJudge::RequestIsTaken) => false,
            Some(WrongJudge::SameNameOwns) => same_agent && alive,
            Some(WrongJudge::LoserGetsLease) => alive && claimer.request.request.is_none(),
            _ => same_request && same_agent && alive,
        };
        if mine {
            if self.is(WrongJudge::RequestRenews) && task.until != until {
                return Ok(Some(Judged::Write(Answer::Nothing)));
            }
            return Ok(Some(Judged::Keep(Answer::claim(&claimer.id, task, token))));
        }
        let free = match task.until {
            None => false,
            Some(_) if self.is(WrongJudge::NeverExpires) => false,
            Some(until) if self.is(WrongJudge::ExpiresOneLater) => now > until,
            Some(until) => now >= until.saturating_add(time.margin),
        };
        if free {
            return Ok(None);
        }
        match taken(task) {
            BoardError::Taken { owner, until, fence } if self.is(WrongJudge::TokenInTaken) => {
                let owner = AgentId::unchecked(format!("{owner} {}", token.reveal()));
                Err(BoardError::Taken { owner, until, fence })
            }
            error => Err(error),
        }
    }

    pub(super) async fn claim_first(
        &self,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
    ) -> Result<Option<Claim>, BoardError> {
        agent.validate()?;
        check_ttl(ttl)?;
        let token = self.mint();
        let request = ClaimRequest::for_ttl(ttl);
        let id = TaskId::unchecked("(the next one)");
        let call = Call { agent: Some(agent.clone()), ..Call::new(Verb::Claim, &id, Some(&token)) };
        let mut attempts = 0;
        let answer = self
            .run(call, |whole, time| {
                let mut line: Vec<_> = whole
                    .tasks
                    .iter()
                    .filter(|(_, record)| {
                        filter.matches(&record.labels) || self.is(WrongJudge::NextIgnoresLabels)
                    })
                    .filter(|(_, record)| match self.wrong {
                        Some(WrongJudge::NextSkipsExpired) => record.state == State::Open,
                        Some(WrongJudge::NextLosesReleased) => record.seq <= 1,
                        _ => true,
                    })
                    .map(|(id, record)| {
                        let priority = match self.wrong {
                            Some(WrongJudge::NextIgnoresPriority) => 0,
                            _ => record.priority,
                        };
                        let order = if self.is(WrongJudge::NextByName) { 0 } else { record.order };
                        (std::cmp::Reverse(priority), order, id.clone())
                    })
                    .collect();
                line.sort();
                let gives_up = attempts > 0 && self.is(WrongJudge::NextGivesUp);
                attempts += 1;
                if gives_up {
                    return Ok(Judged::Keep(Answer::NoTask));
                }
                for (_, _, id) in line {
                    if self.is(WrongJudge::NextTwice)
                        && let Some(record) = whole.tasks.get_mut(&id)
                        && record.state == State::Claimed
                        && record.attempts < 2
                    {
                        record.unclaim(State::Open);
                    }
                    let (agent, token) = (agent.clone(), token.clone());
                    let mut claimer = Claimer {
                        id,
                        agent,
                        request: request.clone(),
                        token,
                        first_deps: None,
                        first_ends: None,
                    };
                    match self.judge_claim(whole, time, &mut claimer) {
                        Ok(judged) => return Ok(judged),
                        Err(error @ BoardError::Invalid(_)) => return Err(error),
                        Err(_) => {}
                    }
                }
                Ok(Judged::Keep(Answer::NoTask))
            })
            .await?;
        match answer {
            // That one is not to be had any more, so there may be another one.
            Answer::Failed => Box::pin(self.claim_first(agent, filter, ttl)).await,
            answer => Ok(answer.into_claim()),
        }
    }
}
