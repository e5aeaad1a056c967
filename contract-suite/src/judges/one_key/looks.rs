//! Looking at tasks without changing anything: showing, explaining and waiting.

use std::time::Duration;

use coord_core::board::{
    AgentId, Awaited, BoardError, ClaimRequest, Dep, History, Outcome, Pace, Problem, Standing, State, Task,
    TaskId, TaskPage, Verb, check,
};

use super::claim::Claimer;
use super::record::{Answer, Record};
use super::{Judged, OneKeyBoard, Read, WrongJudge};

/// What a claim would come to.
fn standing(judged: Result<Judged, BoardError>) -> Result<Standing, BoardError> {
    Ok(match judged {
        Ok(Judged::Write(Answer::Failed)) => Standing::Exhausted,
        Ok(_) => Standing::Claimable,
        Err(BoardError::Terminal { state }) => Standing::Ended { state },
        Err(BoardError::Taken { owner, until, fence }) => Standing::Held { owner, until, fence },
        Err(BoardError::NotYet { until }) => Standing::NotYet { until },
        Err(BoardError::Blocked { pending, failed, missing }) => {
            Standing::Blocked { pending, failed, missing }
        }
        Err(error) => return Err(error),
    })
}

impl OneKeyBoard {
    pub(super) async fn page_of(&self, after: Option<&TaskId>, limit: usize) -> Result<TaskPage, BoardError> {
        if !(1..=1_000).contains(&limit) && !self.is(WrongJudge::PageOfAnySize) {
            return Err(BoardError::Invalid(format!("a page has 1 to 1,000 tasks, not {limit}")));
        }
        let mut whole = self.read().await?.whole;
        if self.is(WrongJudge::TornPage) {
            let later = self.read().await?.whole;
            let middle = whole.tasks.keys().nth(whole.tasks.len() / 2).cloned();
            if let Some(middle) = middle {
                whole.tasks.split_off(&middle);
                whole.tasks.extend(later.tasks.into_iter().filter(|(id, _)| *id >= middle));
            }
        }
        let gone = after.is_some_and(|after| !whole.tasks.contains_key(after));
        let rest = whole.tasks.iter().filter(|(id, _)| match after {
            Some(after) if self.is(WrongJudge::PageRepeatsLast) => *id >= after,
            Some(after) => *id > after,
            None => true,
        });
        let skipped = usize::from(gone && self.is(WrongJudge::PageSkipsAfterGone));
        let mut tasks: Vec<Task> =
            rest.skip(skipped).take(limit + 1).map(|(id, record)| self.shown(id, record)).collect();
        for task in tasks.iter_mut().filter(|task| task.state != State::Claimed) {
            task.progress = None;
        }
        let more = match self.wrong {
            Some(WrongJudge::PageNextOfFull) => tasks.len() >= limit,
            _ => tasks.len() > limit,
        };
        tasks.truncate(limit);
        match self.wrong {
            Some(WrongJudge::PageLosesTail) if after.is_some() && tasks.len() < limit => tasks.clear(),
            Some(WrongJudge::PageUnsorted) => tasks.sort_by_key(|task| task.order),
            _ => {}
        }
        let next = if more { tasks.iter().map(|task| &task.id).max().cloned() } else { None };
        Ok(TaskPage { tasks, next })
    }

    pub(super) async fn check_all(&self) -> Result<Vec<Problem>, BoardError> {
        if self.is(WrongJudge::CheckRefusesLarge) {
            return Ok(check(&self.list_all().await?));
        }
        if self.is(WrongJudge::CheckBelievesPages) {
            let mut tasks = Vec::new();
            let mut after: Option<TaskId> = None;
            loop {
                let page = self.page_of(after.as_ref(), 1_000).await?;
                tasks.extend(page.tasks);
                after = page.next;
                if after.is_none() {
                    return Ok(check(&tasks));
                }
            }
        }
        let whole = self.read().await?.whole;
        let tasks: Vec<Task> = whole.tasks.iter().map(|(id, record)| self.shown(id, record)).collect();
        Ok(check(&tasks))
    }

    /// A task as this board shows it.
    pub(super) fn shown(&self, id: &TaskId, record: &Record) -> Task {
        let mut task = record.task(id);
        if self.is(WrongJudge::RulesNotShown) {
            task.deps = Dep::all(task.deps.into_iter().map(|dep| dep.id));
        }
        match (&record.token, &record.owner) {
            (Some(token), _) if self.is(WrongJudge::TokenInTitle) => task.title.push_str(&token.reveal()),
            (Some(token), Some(owner)) if self.is(WrongJudge::TokenInOwner) => {
                task.owner = Some(AgentId::unchecked(format!("{owner} {}", token.reveal())));
            }
            _ => {}
        }
        if let (Some(settled), true) = (&record.settled, self.is(WrongJudge::TokenInOutcome)) {
            task.outcome = Some(Outcome::truncated(&settled.token.reveal()));
        }
        if let (Some(request), true) = (&record.request, self.is(WrongJudge::RequestInLabels)) {
            task.labels.push(request.reveal());
        }
        task
    }

    /// Notes what has just happened to a task.
    pub(super) fn note(
        &self,
        task: &mut Record,
        verb: Verb,
        by: Option<AgentId>,
        from: Option<AgentId>,
        text: &str,
    ) {
        task.note(verb, by, from, text);
        if !self.is(WrongJudge::HistoryGrows) {
            task.forget();
        }
    }

    pub(super) async fn history_of(&self, id: &TaskId) -> Result<History, BoardError> {
        let id = self.ident(id)?;
        let read = self.read().await?;
        read.whole.tasks.get(&id).map(Record::history).ok_or(BoardError::NotFound { id })
    }

    /// A claim that nobody makes, of what was read.
    fn would_be(&self, read: &Read, id: &TaskId) -> Result<Standing, BoardError> {
        let agent = AgentId::unchecked("nobody");
        let (request, token) = (ClaimRequest::forever(), self.mint());
        let mut claimer =
            Claimer { id: id.clone(), agent, request, token, first_deps: None, first_ends: None };
        standing(self.judge_claim(&mut read.whole.clone(), read.time, &mut claimer))
    }

    pub(super) async fn explain_task(&self, id: &TaskId) -> Result<Standing, BoardError> {
        let id = self.ident(id)?;
        let read = self.read().await?;
        let standing = self.would_be(&read, &id)?;
        let pinned_by = read.whole.tasks.get(&id).and_then(|record| record.pinned_by.clone());
        let standing = match (standing, pinned_by) {
            (Standing::Ended { state }, Some(dependent)) if !self.is(WrongJudge::ExplainForgetsPin) => {
                Standing::Pinned { state, dependent }
            }
            (standing, _) => standing,
        };
        Ok(match standing {
            Standing::Blocked { mut pending, failed, missing } if self.is(WrongJudge::ExplainHidesFailed) => {
                pending.extend(failed);
                Standing::Blocked { pending, failed: Vec::new(), missing }
            }
            Standing::Blocked { .. } if self.is(WrongJudge::ExplainForgetsDeps) => Standing::Claimable,
            standing => standing,
        })
    }

    pub(super) async fn wait_for(&self, awaited: &Awaited, patience: Duration) -> Result<bool, BoardError> {
        let start = self.clock.monotonic();
        let mut pace = Pace::new();
        loop {
            let read = self.read().await?;
            let mut due = None;
            match awaited {
                Awaited::Ended(id) => {
                    let id = self.ident(id)?;
                    let task = read.whole.tasks.get(&id).ok_or(BoardError::NotFound { id })?;
                    let hidden = task.state == State::Cancelled && self.is(WrongJudge::WaitMissesCancelled);
                    if task.state.is_terminal() && !hidden {
                        return Ok(true);
                    }
                }
                Awaited::AnyEnded(ids) => {
                    awaited.validate()?;
                    let mut ended = 0;
                    let mut gone = None;
                    for id in ids {
                        match read.whole.tasks.get(&self.ident(id)?) {
                            Some(task) => ended += usize::from(task.state.is_terminal()),
                            None => gone = gone.or_else(|| Some(id.clone())),
                        }
                    }
                    let enough = if self.is(WrongJudge::WaitAnyMeansAll) { ids.len() } else { 1 };
                    if ended >= enough {
                        return Ok(true);
                    }
                    if let Some(id) = gone {
                        return Err(BoardError::NotFound { id });
                    }
                }
                Awaited::Idle => {
                    let mut left = false;
                    let held = |task: &Record| task.state == State::Claimed;
                    if self.is(WrongJudge::WaitIdleInPieces) {
                        left = self.read().await?.whole.tasks.values().any(held);
                    }
                    for (id, task) in &read.whole.tasks {
                        if self.is(WrongJudge::WaitIdleInPieces) && held(task) {
                            continue;
                        }
                        left |= match self.would_be(&read, id)? {
                            Standing::Ended { .. } | Standing::Blocked { .. } => false,
                            Standing::Held { .. } => !self.is(WrongJudge::WaitIdleForgetsHeld),
                            Standing::NotYet { .. } => !self.is(WrongJudge::WaitIdleForgetsResting),
                            _ => true,
                        };
                        let blocked = task.state == State::Open && !task.deps.is_empty();
                        left |= blocked && self.is(WrongJudge::WaitIdleCountsBlocked);
                    }
                    if !left {
                        return Ok(true);
                    }
                }
                _ => {
                    for (id, task) in &read.whole.tasks {
                        match self.would_be(&read, id)? {
                            _ if task.earliest().is_some() && self.is(WrongJudge::WaitMissesDue) => {}
                            Standing::Claimable => return Ok(true),
                            Standing::NotYet { until } | Standing::Held { until: Some(until), .. } => {
                                let left = until.saturating_since(read.time.now);
                                due = Some(due.map_or(left, |due: Duration| due.min(left)));
                            }
                            _ => {}
                        }
                    }
                }
            }
            let waited = self.clock.monotonic().saturating_sub(start);
            if waited >= patience {
                return Ok(false);
            }
            let pause = match self.wrong {
                Some(WrongJudge::WaitStorms) => Duration::from_millis(200),
                Some(WrongJudge::WaitHurries) => Duration::from_millis(50),
                _ => pace.pause(waited).min(due.unwrap_or(patience)).max(Duration::from_millis(1)),
            };
            self.clock.sleep(pause.min(patience - waited)).await;
        }
    }
}
