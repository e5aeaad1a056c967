//! The claim of one task.

use super::adapter::{BoardAdapter, commit, outcome_unknown};
use super::dep::Dep;
use super::one_head::{head_fate, held_by, not_found, taken, unknown_state};
use super::past::{self, Event, past_key};
use super::ready::{self, Needs};
use super::record::{
    Definition, Head, Held, Settled, SettledBy, StoredState, definition_key, encode_head, head_key,
    read_definition, read_head, shown,
};
use super::task::{AgentId, Claim, ClaimRequest, Filter, Lease, Outcome, State, TaskId};
use super::{BoardError, Verb};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, Time, View, check_ttl, lease_end};
use crate::clock::Timestamp;
use crate::key::Key;
use crate::token::{OperationId, Token};
use crate::txn::Assert;

/// How many dependencies a claim asserts besides its own head. Those that failed or were cancelled come first, for it rests on these. Done
/// is for ever, so it rests on none of the other asserts; they catch what a failover of the store has lost.
const ASSERTED_DEPENDENCIES: usize = 40;

/// A claim reads definition and dependencies besides the head.
pub(super) struct Claiming<'a> {
    id: &'a TaskId,
    agent: &'a AgentId,
    request: &'a ClaimRequest,
    hint: Option<Hint<'a>>,
    operation: OperationId,
    token: Token,
    /// What stands for the token of a failure that nobody has told.
    nobody: Token,
}

impl<'a> Claiming<'a> {
    pub(super) fn new(
        id: &'a TaskId,
        agent: &'a AgentId,
        request: &'a ClaimRequest,
        hint: Option<Hint<'a>>,
    ) -> Self {
        let (operation, token, nobody) = (OperationId::mint(), Token::mint(), Token::mint());
        Claiming { id, agent, request, hint, operation, token, nobody }
    }
}

/// Why a task is claimed that nobody has named.
#[derive(Clone, Copy)]
pub(super) struct Hint<'a> {
    /// The entry of the index by which it was found.
    pub(super) entry: &'a Key,
    /// What it must pass.
    pub(super) filter: &'a Filter,
    /// When something else is due that comes first.
    pub(super) first_due: Option<Timestamp>,
}

/// What became of a claim.
#[derive(Clone)]
pub(super) enum Found {
    /// The claim.
    Given(Box<Claim>),
    /// The entry by which the task was found is gone: somebody else was faster.
    Gone,
    /// The task does not pass the filter.
    Unwanted,
    /// Something else is due and has to be seen to first.
    DueFirst,
    /// All attempts have been made, and so the task has failed.
    Failed,
    /// It can never begin, and so the task is skipped.
    Skipped,
}

/// What a claim rests on.
struct Resting {
    asserts: Vec<Assert>,
    /// Failed and cancelled dependencies that stay so from now on, as they are to be written.
    pinned: Vec<(TaskId, Head)>,
}

impl Resting {
    /// The head of its own task, and nothing else.
    fn on(own: Assert) -> Self {
        Resting { asserts: vec![own], pinned: Vec::new() }
    }
}

impl Claiming<'_> {
    /// What a claim rests on; `None` if the task can never begin, or the error that names the dependencies that stand in the way.
    fn judge_dependencies(
        &self,
        view: &View<'_>,
        deps: &[Dep],
        own: Assert,
    ) -> Result<Option<Resting>, BoardError> {
        let (mut pending, mut failed, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let (mut resting, mut certain) = (Resting::on(own), Vec::new());
        let mut unsettled = false;
        for Dep { id: dep, rule } in deps {
            let key = head_key(dep);
            let entry = view.entry(&key)?;
            let Some(mut head) = read_head(dep, entry)? else {
                missing.push(dep.clone());
                continue;
            };
            let assert = Assert::version(key, entry.version());
            match (rule.verdict(head.state()), head.state()) {
                (Some(true), State::Failed | State::Cancelled) => {
                    resting.asserts.push(assert);
                    // It may be reopened as long as nobody has begun because of it.
                    if head.pinned_by.is_none() {
                        head.pinned_by = Some(self.id.clone());
                        head.touch(self.operation, view.time(head.touched).now);
                        resting.pinned.push((dep.clone(), head));
                    }
                }
                (Some(true), _) => certain.push(assert),
                (Some(false), _) => failed.push(dep.clone()),
                (None, State::Unknown(code)) => return Err(unknown_state(dep, code)),
                (None, State::Failed | State::Cancelled) => {
                    unsettled = true;
                    failed.push(dep.clone());
                }
                (None, _) => pending.push(dep.clone()),
            }
        }
        if unsettled || !pending.is_empty() || !missing.is_empty() {
            return Err(BoardError::Blocked { pending, failed, missing });
        }
        if !failed.is_empty() {
            return Ok(None);
        }
        let free = (1 + ASSERTED_DEPENDENCIES).saturating_sub(resting.asserts.len());
        resting.asserts.extend(certain.into_iter().take(free));
        Ok(Some(resting))
    }

    /// Writes the head, and the index and the history with it.
    fn write(
        &self,
        view: &View<'_>,
        before: &Head,
        head: &Head,
        definition: &Definition,
        resting: Resting,
        found: Found,
    ) -> Result<Step<Found>, BoardError> {
        let mut index = ready::Change::default();
        ready::leave_line(&mut index, self.id, before, definition);
        if let Some(hint) = &self.hint {
            index.delete(hint.entry.clone());
        }
        index.enter(self.id, head, definition, &ready::place(head, Needs::Met));
        if head.state().is_terminal() {
            index.put(ready::todo_key(self.id), ready::marker());
        }
        index.put(head_key(self.id), encode_head(head));
        for (dep, head) in &resting.pinned {
            index.put(head_key(dep), encode_head(head));
        }
        let event = match head.state() {
            State::Skipped => past::event(Verb::Skip, before, head),
            // A claim that finds no attempt left was made by somebody too, and says why.
            _ => Event {
                by: Some(self.agent.clone()),
                text: head.settled.as_ref().map(|by| Event::cut(by.answer.as_str())).unwrap_or_default(),
                ..past::event(Verb::Claim, before, head)
            },
        };
        let noted = past::noted(view, self.id, before, event)?;
        let (asserts, mutations) = index.into_parts(resting.asserts, [noted]);
        Ok(Step::Commit(commit(asserts, mutations)?, found))
    }

    /// The attempts are used up, the last ones by holders that were never heard of again: the task has failed.
    fn give_up(
        &self,
        view: &View<'_>,
        before: Head,
        definition: &Definition,
        time: Time,
    ) -> Result<Step<Found>, BoardError> {
        let key = head_key(self.id);
        let assert = Assert::version(key.clone(), view.entry(&key)?.version());
        let mut head = before.clone();
        head.leave(State::Failed);
        let answer = Outcome::truncated(&format!("given up after {} attempts", head.attempts));
        // Nobody has this token, so nobody is told that it was theirs.
        head.settled = Some(Settled { token: self.nobody.clone(), verb: SettledBy::Fail, answer });
        head.touch(self.operation, time.now);
        self.write(view, &before, &head, definition, Resting::on(assert), Found::Failed)
    }
}

impl Judge for Claiming<'_> {
    type Answer = Found;
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        let hinted = self.hint.map(|hint| hint.entry.clone());
        [head_key(self.id), definition_key(self.id), past_key(self.id)].into_iter().chain(hinted).collect()
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<Found>, BoardError> {
        if let Some(hint) = &self.hint {
            if !view.entry(hint.entry)?.is_present() {
                return Ok(Step::Answer(Found::Gone));
            }
            if hint.first_due.is_some_and(|due| view.now() >= due) {
                return Ok(Step::Answer(Found::DueFirst));
            }
        }
        let key = head_key(self.id);
        let entry = view.entry(&key)?;
        let before = read_head(self.id, entry)?.ok_or_else(|| not_found(self.id))?;
        let mut head = before.clone();
        let time = view.time(head.touched);
        // A ttl that makes no sense is refused before anything else is judged.
        let until = self.request.ttl.map(|ttl| lease_end(time.now, ttl)).transpose()?;
        match head.state() {
            State::Open | State::Claimed => {}
            State::Unknown(code) => return Err(unknown_state(self.id, code)),
            state => return Err(BoardError::Terminal { state }),
        }
        let definition = read_definition(self.id, view.entry(&definition_key(self.id))?)?;
        if self.hint.is_some_and(|hint| !hint.filter.matches(&definition.labels)) {
            return Ok(Step::Answer(Found::Unwanted));
        }
        if let Some(held) = &head.held
            && !time.may_take_over(held.until)
        {
            let own =
                held.request.is_some() && held.request == self.request.request && held.owner == *self.agent;
            // In the margin between clocks the lease no longer lives for its holder, and not yet for anybody else.
            if own && !time.is_over(held.until) {
                let lease = Lease { token: held.token.clone(), fence: head.fence, until: held.until };
                let claim = Claim { task: shown(self.id, &head, &definition), lease };
                return Ok(Step::Answer(Found::Given(Box::new(claim))));
            }
            return Err(taken(&head, held));
        }
        if let Some(not_before) = head.not_before
            && time.now < not_before
        {
            return Err(BoardError::NotYet { until: not_before });
        }
        if definition.retry.is_some_and(|retry| head.attempts >= retry.attempts) {
            return self.give_up(view, before, &definition, time);
        }
        let keys: Vec<Key> = definition.deps.iter().map(|dep| head_key(&dep.id)).collect();
        let unread = view.lacks(&keys);
        if !unread.is_empty() {
            return Ok(Step::Read(unread));
        }
        let own = Assert::version(key.clone(), entry.version());
        let Some(resting) = self.judge_dependencies(view, &definition.deps, own.clone())? else {
            head.leave(State::Skipped);
            head.touch(self.operation, time.now);
            return self.write(view, &before, &head, &definition, Resting::on(own), Found::Skipped);
        };
        head.state = StoredState(State::Claimed);
        head.held = Some(Held {
            owner: self.agent.clone(),
            token: self.token.clone(),
            request: self.request.request.clone(),
            until,
        });
        head.fence += 1;
        head.attempts = head.attempts.saturating_add(1);
        head.settled = None;
        head.touch(self.operation, time.now);
        let lease = Lease { token: self.token.clone(), fence: head.fence, until };
        let claim = Claim { task: shown(self.id, &head, &definition), lease };
        self.write(view, &before, &head, &definition, resting, Found::Given(Box::new(claim)))
    }

    fn fate(&self, view: &View<'_>, pending: &Pending<Found>) -> Result<Fate<Found>, BoardError> {
        let found = |head: &Head| held_by(head, &self.token).map(|_| pending.answer.clone());
        head_fate(view, pending, self.id, self.operation, found, false)
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        BoardError::TxnConflict { attempts }
    }

    fn unknown(&self) -> BoardError {
        outcome_unknown(Verb::Claim, self.id, Some(&self.token))
    }
}

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn claim_task(
        &self,
        id: &TaskId,
        agent: &AgentId,
        request: &ClaimRequest,
    ) -> Result<Claim, BoardError> {
        id.validate()?;
        agent.validate()?;
        request.ttl.map_or(Ok(()), check_ttl)?;
        match self.run(&mut Claiming::new(id, agent, request, None)).await? {
            Found::Given(claim) => Ok(*claim),
            Found::Failed => Err(BoardError::Terminal { state: State::Failed }),
            Found::Skipped => Err(BoardError::Terminal { state: State::Skipped }),
            Found::Gone | Found::Unwanted | Found::DueFirst => Err(not_found(id)),
        }
    }

    /// Claims a task that was found by an entry of the index.
    pub(super) async fn claim_hinted(
        &self,
        id: &TaskId,
        agent: &AgentId,
        request: &ClaimRequest,
        hint: Hint<'_>,
    ) -> Result<Found, BoardError> {
        self.run(&mut Claiming::new(id, agent, request, Some(hint))).await
    }
}
