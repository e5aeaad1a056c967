//! What holders do to their claims.

use std::time::Duration;

use coord_core::board::{BoardError, Lease, Outcome, Progress, State, TaskId, Verb};
use coord_core::{Timestamp, Token};

use super::claim::{check_ttl, end, record};
use super::edges::unpin;
use super::record::{Answer, Ended, Record, Settled};
use super::{Call, Judged, OneKeyBoard, WrongJudge};

pub(super) fn lost(record: &Record) -> BoardError {
    BoardError::LeaseLost { current_fence: record.fence }
}

impl OneKeyBoard {
    /// Whether this token holds the task.
    fn holds(&self, record: &Record, token: &Token) -> bool {
        if record.is_held_by(token) {
            return true;
        }
        self.is(WrongJudge::TokenByAgent)
            && record.state == State::Claimed
            && record.past.iter().any(|(past, agent)| past == token && Some(agent) == record.owner.as_ref())
    }

    pub(super) async fn renew_lease(
        &self,
        id: &TaskId,
        token: &Token,
        ttl: Duration,
    ) -> Result<Lease, BoardError> {
        let id = self.ident(id)?;
        let zero = self.is(WrongJudge::RenewZero) && ttl.is_zero();
        if !zero {
            check_ttl(ttl)?;
        }
        let call = Call::new(Verb::Renew, &id, Some(token));
        let answer = self
            .run(call, |whole, time| {
                let touched = whole.tasks.get(&id).map_or(Timestamp::EPOCH, |record| record.touched);
                let now = time.at(touched);
                let mut until = if zero { Some(now) } else { end(now, Some(ttl))? };
                let task = record(whole, &id)?;
                let held = self.holds(task, token)
                    || (self.is(WrongJudge::RenewByAnybody) && task.state == State::Claimed);
                let alive = task.until.is_none_or(|end| match self.wrong {
                    Some(WrongJudge::RenewAtExpiry) => now <= end,
                    Some(WrongJudge::RenewTooLate) => true,
                    _ => now < end,
                });
                if !held || !alive {
                    if self.is(WrongJudge::RefusedRenewMoves) && task.state == State::Claimed {
                        task.until = until;
                        task.touch(now);
                        return Ok(Judged::Write(Answer::Nothing));
                    }
                    return Err(lost(task));
                }
                match self.wrong {
                    Some(WrongJudge::RenewAdds) => until = end(task.until.unwrap_or(now), Some(ttl))?,
                    Some(WrongJudge::RenewNeverShortens) => until = until.max(task.until),
                    _ => {}
                }
                task.until = until;
                let seq = task.seq;
                task.touch(now);
                if self.is(WrongJudge::RenewKeepsSeq) {
                    task.seq = seq;
                }
                if self.is(WrongJudge::RenewalsTold) {
                    self.note(task, Verb::Renew, task.owner.clone(), None, "");
                }
                if self.is(WrongJudge::RenewNewToken) {
                    task.token = Some(self.mint());
                }
                let token = task.token.clone().unwrap_or_else(|| token.clone());
                Ok(Judged::Write(Answer::Lease { token, fence: task.fence, until }))
            })
            .await?;
        match answer.into_lease() {
            Some(lease) => Ok(lease),
            None => Err(BoardError::LeaseLost { current_fence: self.fence_of(&id).await }),
        }
    }

    pub(super) async fn tell_progress(
        &self,
        id: &TaskId,
        token: &Token,
        text: &str,
    ) -> Result<(), BoardError> {
        let id = self.ident(id)?;
        if !self.is(WrongJudge::ProgressUnbounded) {
            Progress::validate(text)?;
        }
        self.run(Call::new(Verb::Progress, &id, Some(token)), |whole, time| {
            let task = record(whole, &id)?;
            let now = time.at(task.touched);
            let anybody = self.is(WrongJudge::ProgressByAnybody) && task.state == State::Claimed;
            let late = task.until.is_some_and(|end| now >= end) && !self.is(WrongJudge::ProgressTooLate);
            if !(self.holds(task, token) || anybody) || late {
                return Err(lost(task));
            }
            let first = task.progress.take().filter(|_| self.is(WrongJudge::ProgressKeepsFirst));
            task.progress = first.or_else(|| Some(Progress::new(text, now, task.fence)));
            if self.is(WrongJudge::ProgressIsChange) {
                task.touch(now);
            }
            Ok(Judged::Write(Answer::Nothing))
        })
        .await
        .map(|_| ())
    }

    async fn fence_of(&self, id: &TaskId) -> u64 {
        match self.read().await {
            Ok(read) => read.whole.tasks.get(id).map_or(0, |record| record.fence),
            Err(_) => 0,
        }
    }

    pub(super) async fn release_claim(&self, id: &TaskId, token: &Token) -> Result<(), BoardError> {
        let id = self.ident(id)?;
        let call = Call::new(Verb::Release, &id, Some(token));
        self.run(call, |whole, time| {
            let task = record(whole, &id)?;
            let now = time.at(task.touched);
            if self.repeated(task, token, Ended::Released, now).is_some() {
                return Ok(self.repeat(task, now, Answer::Nothing));
            }
            if self.is(WrongJudge::ReleaseAfterComplete) && task.settled_by(token, Ended::Completed).is_some()
            {
                return Ok(Judged::Keep(Answer::Nothing));
            }
            let anybody = self.is(WrongJudge::ReleaseByAnybody) && task.state == State::Claimed;
            if !self.holds(task, token) && !anybody {
                return Err(lost(task));
            }
            let (owner, request) = (task.owner.clone(), task.request.clone());
            let by = owner.clone();
            task.unclaim(State::Open);
            match self.wrong {
                Some(WrongJudge::ReleaseKeepsOwner) => task.owner = owner,
                Some(WrongJudge::RequestAfterRelease) => task.request = request,
                Some(WrongJudge::FenceRestarts) => task.fence = 0,
                _ => {}
            }
            settle(task, token, Ended::Released, Outcome::default());
            task.touch(now);
            self.note(task, Verb::Release, by, None, "");
            if !self.is(WrongJudge::ReleaseCounts) {
                task.attempts = task.attempts.saturating_sub(1);
            }
            if self.is(WrongJudge::PinUntilReleased) {
                unpin(whole, &id);
            }
            Ok(Judged::Write(Answer::Nothing))
        })
        .await
        .map(|_| ())
    }

    /// The outcome that was answered when this token first did this, if it did.
    fn repeated(&self, task: &Record, token: &Token, verb: Ended, now: Timestamp) -> Option<Outcome> {
        if self.is(WrongJudge::RepeatIsLost) {
            return None;
        }
        if self.is(WrongJudge::CompleteForgotten) && verb == Ended::Completed && now > task.touched {
            return None;
        }
        if verb == Ended::Released && task.state == State::Claimed && !self.is(WrongJudge::ReleaseRemembered)
        {
            return None;
        }
        task.settled_by(token, verb).map(|settled| settled.outcome.clone())
    }

    fn repeat(&self, task: &mut Record, now: Timestamp, answer: Answer) -> Judged {
        if self.is(WrongJudge::RepeatToldTwice)
            && let Some(last) = task.events.back().cloned()
        {
            task.events.push_back(last);
            return Judged::Write(answer);
        }
        if self.is(WrongJudge::RepeatMovesSeq) {
            task.touch(now);
            return Judged::Write(answer);
        }
        Judged::Keep(answer)
    }

    pub(super) async fn complete_task(
        &self,
        id: &TaskId,
        token: &Token,
        outcome: Outcome,
    ) -> Result<Outcome, BoardError> {
        let id = self.ident(id)?;
        let call = Call::new(Verb::Complete, &id, Some(token));
        let answer = self
            .run(call, |whole, time| {
                let task = record(whole, &id)?;
                let now = time.at(task.touched);
                if self.is(WrongJudge::OutcomeOverwritten)
                    && task.settled_by(token, Ended::Completed).is_some()
                {
                    task.outcome = Some(outcome.clone());
                    settle(task, token, Ended::Completed, outcome.clone());
                    task.touch(now);
                    return Ok(Judged::Write(Answer::Outcome(outcome.clone())));
                }
                if let Some(first) = self.repeated(task, token, Ended::Completed, now) {
                    return Ok(self.repeat(task, now, Answer::Outcome(first)));
                }
                if self.is(WrongJudge::OutcomeToAnybody) && task.state == State::Done {
                    return Ok(Judged::Keep(Answer::Outcome(task.outcome.clone().unwrap_or_default())));
                }
                let settled = |verb| task.settled_by(token, verb).is_some();
                let wrongly = match self.wrong {
                    Some(WrongJudge::CompleteByAnybody) => task.state == State::Claimed,
                    Some(WrongJudge::CompleteAfterRelease) => {
                        task.state == State::Open && settled(Ended::Released)
                    }
                    Some(WrongJudge::CancelKeepsToken) => {
                        task.state == State::Cancelled && task.token.as_ref() == Some(token)
                    }
                    Some(WrongJudge::RevokeKeepsToken) => {
                        task.state == State::Open && task.token.as_ref() == Some(token)
                    }
                    _ => false,
                };
                let late = self.is(WrongJudge::CompleteTooLate) && task.until.is_some_and(|end| now >= end);
                if (!self.holds(task, token) || late) && !wrongly {
                    return Err(lost(task));
                }
                let (until, by) = (task.until, task.owner.clone());
                task.unclaim(State::Done);
                if self.is(WrongJudge::DoneCountsLate) {
                    task.until = until;
                }
                task.outcome = Some(outcome.clone());
                settle(task, token, Ended::Completed, outcome.clone());
                task.touch(now);
                self.note(task, Verb::Complete, by, None, outcome.as_str());
                if self.is(WrongJudge::PinUntilDone) {
                    unpin(whole, &id);
                }
                Ok(Judged::Write(Answer::Outcome(outcome.clone())))
            })
            .await?;
        Ok(answer.into_outcome())
    }

    pub(super) async fn fail_task(
        &self,
        id: &TaskId,
        token: &Token,
        reason: Outcome,
    ) -> Result<Outcome, BoardError> {
        let id = self.ident(id)?;
        let call = Call::new(Verb::Fail, &id, Some(token));
        let random = u64::from_str_radix(&Token::mint().reveal()[..16], 16).unwrap_or(0);
        let answer = self
            .run(call, |whole, time| {
                let task = record(whole, &id)?;
                let now = time.at(task.touched);
                if let Some(first) = self.repeated(task, token, Ended::Failed, now) {
                    return Ok(self.repeat(task, now, Answer::Outcome(first)));
                }
                let stale = self.is(WrongJudge::StaleFail) && task.state == State::Claimed;
                if !self.holds(task, token) && !stale {
                    return Err(lost(task));
                }
                let (attempts, by) = (task.attempts, task.owner.clone());
                let retry = task.retry.filter(|retry| {
                    (attempts < retry.attempts || self.is(WrongJudge::RetriesForEver))
                        && !self.is(WrongJudge::FailIgnoresRetries)
                });
                if let Some(retry) = retry {
                    let doubled = if self.is(WrongJudge::RestNotDoubled) { 1 } else { attempts };
                    let rest = match self.wrong {
                        Some(WrongJudge::RestIsNothing) => Duration::ZERO,
                        Some(WrongJudge::RestNotSpread) => retry.rest(doubled, 0),
                        Some(WrongJudge::RestTooLong) => retry.rest(doubled, random) * 3,
                        Some(WrongJudge::RestTooShort) => retry.rest(doubled, random) / 4,
                        _ => retry.rest(doubled, random),
                    };
                    task.unclaim(State::Open);
                    task.rests_until = Some(now.saturating_add(rest));
                } else {
                    let end = if self.is(WrongJudge::GivenUpIsDone) { State::Done } else { State::Failed };
                    task.unclaim(end);
                    task.outcome = Some(reason.clone());
                }
                settle(task, token, Ended::Failed, reason.clone());
                task.touch(now);
                if task.state == State::Failed || !self.is(WrongJudge::RetriesUntold) {
                    self.note(task, Verb::Fail, by, None, reason.as_str());
                }
                if self.is(WrongJudge::PinUntilFailed) {
                    unpin(whole, &id);
                }
                Ok(Judged::Write(Answer::Outcome(reason.clone())))
            })
            .await?;
        Ok(answer.into_outcome())
    }
}

fn settle(task: &mut Record, token: &Token, verb: Ended, outcome: Outcome) {
    task.settled = Some(Settled { token: token.clone(), verb, outcome });
}
