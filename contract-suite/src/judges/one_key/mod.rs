//! The whole board as one JSON value under one key.

mod archive;
mod claim;
mod edges;
mod holder;
mod looks;
mod operators;
mod record;
mod topology;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::board::{
    Added, AgentId, Archive, ArchiveReport, Awaited, Board, BoardError, Claim, ClaimRequest, Dep,
    ExtendedBoard, Filter, History, Lease, Outcome, Plan, PlanReport, Problem, RepairReport, Standing, State,
    Task, TaskId, TaskPage, TaskSpec, Verb,
};
use coord_core::{Backend, Bytes, Clock, OperationId, Timestamp, Token, Txn, TxnOutcome, Version, limits};

use self::record::{Answer, Logged, Whole};
use super::WrongJudge;
use super::one_value::{OneValue, TRIES, backoff};

/// How many operations the log remembers: a try is known dead or applied while the key has moved by no more.
const LOG: usize = 16;

/// A board in the simplest way that is right: the whole board is one JSON value, every verb reads it, judges, and compares and sets. It
/// has nothing in common with [`BoardAdapter`](coord_core::board) but the contract, so that the suite is seen to ask for the
/// contract and for nothing else. On demand it judges wrongly ([`WrongJudge`]), so that every clause is seen to fail.
///
/// A value has at most 512 KiB, so a long one goes on under a second key, which is only ever written together with the first.
pub struct OneKeyBoard {
    value: OneValue,
    clock: Arc<dyn Clock>,
    max_clock_skew: Duration,
    wrong: Option<WrongJudge>,
    /// The fences of removed tasks, for the judge that keeps them in the wrong place.
    fences: Mutex<BTreeMap<TaskId, u64>>,
}

impl fmt::Debug for OneKeyBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneKeyBoard")
            .field("backend", &self.value.backend)
            .field("wrong", &self.wrong)
            .finish()
    }
}

/// The time of a judgement, as far as it does not depend on the task.
#[derive(Clone, Copy, Debug)]
struct Time {
    now: Timestamp,
    /// The latest time of a record that counts.
    ceiling: Timestamp,
    /// How much longer than the holder may the taker waits.
    margin: Duration,
}

impl Time {
    /// The time of a judgement on a task that was last written at `touched`.
    fn at(self, touched: Timestamp) -> Timestamp {
        self.now.max(touched.min(self.ceiling))
    }
}

/// What a judgement that is not an error wants.
enum Judged {
    /// Nothing is written.
    Keep(Answer),
    /// What was changed is written.
    Write(Answer),
}

/// What was read at one instant.
struct Read {
    version: Version,
    whole: Whole,
    time: Time,
}

/// Which verb of which task with which token, for `OutcomeUnknown`.
#[derive(Clone)]
struct Call {
    verb: Verb,
    id: TaskId,
    token: Option<Token>,
    agent: Option<AgentId>,
}

impl Call {
    fn new(verb: Verb, id: &TaskId, token: Option<&Token>) -> Self {
        Call { verb, id: id.clone(), token: token.cloned(), agent: None }
    }

    fn unknown(&self) -> BoardError {
        BoardError::OutcomeUnknown { verb: self.verb, id: self.id.clone(), token: self.token.clone() }
    }
}

impl OneKeyBoard {
    /// Opens the board in the backend's namespace. `clock` counts only where the store has none: then clients may be
    /// `max_clock_skew` apart.
    ///
    /// # Errors
    /// [`BoardError::Backend`] if the store fails.
    pub async fn open(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        max_clock_skew: Duration,
    ) -> Result<Self, BoardError> {
        let board = OneKeyBoard {
            value: OneValue::new(backend, "board")?,
            clock,
            max_clock_skew,
            wrong: None,
            fences: Mutex::default(),
        };
        if board.value.create(encode(&Whole::default())?).await? {
            Ok(board)
        } else {
            Err(BoardError::TxnConflict { attempts: TRIES })
        }
    }

    /// The same board judging wrongly.
    #[must_use]
    pub fn judging(mut self, wrong: WrongJudge) -> Self {
        self.wrong = Some(wrong);
        self
    }

    fn is(&self, wrong: WrongJudge) -> bool {
        self.wrong == Some(wrong)
    }

    async fn read(&self) -> Result<Read, BoardError> {
        let stored = self.value.read().await?;
        let whole = match serde_json::from_slice(&stored.bytes) {
            Ok(whole) => whole,
            Err(_) if self.is(WrongJudge::GarbageIsEmpty) => Whole::default(),
            Err(source) => {
                return Err(BoardError::Malformed { key: self.value.name(), source: source.into() });
            }
        };
        let client = self.clock.now();
        let time = match stored.store_time {
            Some(now) if !self.is(WrongJudge::ClientClock) => {
                Time { now, ceiling: Timestamp::MAX, margin: Duration::ZERO }
            }
            Some(_) => Time { now: client, ceiling: Timestamp::EPOCH, margin: Duration::ZERO },
            None => {
                let margin = if self.is(WrongJudge::NoMargin) { Duration::ZERO } else { self.max_clock_skew };
                Time { now: client, ceiling: client.saturating_add(self.max_clock_skew), margin }
            }
        };
        Ok(Read { version: stored.version, whole, time })
    }

    /// The transaction that replaces what was read.
    fn replace(&self, call: &Call, read: &Read) -> Result<Txn, BoardError> {
        let bytes = Bytes::from(encode(&read.whole)?);
        if bytes.len() > limits::TXN_BYTES - 1_024 {
            let (size, limit) = (bytes.len(), limits::TXN_BYTES - 1_024);
            return Err(BoardError::TooLarge { what: "the board", size, limit });
        }
        let unasserted = match call.verb {
            Verb::Claim => self.is(WrongJudge::ClaimUnasserted) || self.is(WrongJudge::LostCompletion),
            Verb::SetDeps => self.is(WrongJudge::EdgesUnasserted),
            Verb::Progress => self.is(WrongJudge::ProgressUnasserted),
            Verb::Archive => self.is(WrongJudge::ArchiveUnasserted),
            _ => false,
        };
        let asserts = (!unasserted).then(|| self.value.unchanged(read.version));
        Ok(Txn::new(asserts, self.value.put(&bytes))?)
    }

    /// Reads, judges, compares and sets, until the answer is known.
    async fn run(
        &self,
        call: Call,
        mut judge: impl FnMut(&mut Whole, Time) -> Result<Judged, BoardError> + Send,
    ) -> Result<Answer, BoardError> {
        let operation = OperationId::mint();
        // The try whose outcome is unknown, and the answer that it would give.
        let mut unknown: Option<(Txn, Version, Answer)> = None;
        let mut was_unknown = false;
        // What wrong judges remember of it.
        let (mut sent, mut skipped) = (None, Vec::new());
        for attempt in 0..TRIES {
            if attempt > 0 {
                self.clock.sleep(backoff(operation, attempt)).await;
            }
            let mut read = match self.read().await {
                Ok(read) => read,
                Err(error) if unknown.is_none() || self.is(WrongJudge::GoneIsUnavailable) => {
                    return Err(error);
                }
                Err(_) => return Err(call.unknown()),
            };
            if was_unknown
                && !self.runs_again(&call, &unknown)
                && let Some(logged) = read.whole.log.iter().find(|logged| logged.operation == operation)
            {
                return Ok(logged.answer.clone());
            }
            if let Some((txn, base, answer)) = &unknown {
                if let Some(wrong) = self.wrongly_resolved(&call, &read, *base, answer) {
                    return wrong;
                }
                if self.runs_again(&call, &unknown) {
                    unknown = None;
                } else if read.version == *base {
                    let (mut txn, answer) = (txn.clone(), answer.clone());
                    if let (Some(whole), Verb::Claim) = (&sent, call.verb) {
                        read.whole = Whole::clone(whole);
                        edges::unpin(&mut read.whole, &call.id);
                        txn = self.replace(&call, &read)?;
                    }
                    match self.value.backend.txn(&txn).await {
                        Ok(TxnOutcome::Applied) => return Ok(answer),
                        // Rejected: the first try has arrived, or a rival has. The next look tells.
                        Ok(TxnOutcome::Rejected) => continue,
                        Err(error) if error.is_indeterminate() => continue,
                        Err(_) => return Err(call.unknown()),
                    }
                } else if read.version.incarnation() == base.incarnation()
                    && read.version.count() - base.count() <= LOG as u64
                {
                    // The version that it asserts is gone for ever, and it has left no trace: it is dead.
                    unknown = None;
                } else {
                    return Err(call.unknown());
                }
            }
            let answer = match judge(&mut read.whole, read.time) {
                Ok(Judged::Keep(answer)) => return Ok(answer),
                Ok(Judged::Write(answer)) => answer,
                Err(error) => {
                    if self.is(WrongJudge::LostCompletion) && matches!(error, BoardError::Blocked { .. }) {
                        let _ = self.value.backend.txn(&self.replace(&call, &read)?).await?;
                    }
                    return Err(error);
                }
            };
            let skipped_now = self.skip_all(&mut read.whole, read.time);
            for id in skipped.drain(..) {
                let open = read.whole.tasks.get_mut(&id).filter(|record| record.state == State::Open);
                if let Some(record) = open {
                    record.unclaim(State::Skipped);
                    record.touch(read.time.at(record.touched));
                }
            }
            read.whole.log.push_back(Logged { operation, answer: answer.clone() });
            while read.whole.log.len() > LOG {
                read.whole.log.pop_front();
            }
            let txn = self.replace(&call, &read)?;
            match self.value.backend.txn(&txn).await {
                Ok(TxnOutcome::Applied) => return Ok(answer),
                Ok(TxnOutcome::Rejected) => {
                    if self.is(WrongJudge::ConflictAtOnce) {
                        return Err(BoardError::TxnConflict { attempts: attempt + 1 });
                    }
                }
                Err(error) if error.is_indeterminate() => {
                    if self.is(WrongJudge::UnknownIsUnavailable) {
                        return Err(self.value.unavailable().into());
                    }
                    if self.is(WrongJudge::UnknownIsApplied) {
                        return Ok(answer);
                    }
                    was_unknown = true;
                    if self.is(WrongJudge::PinForgottenOnResend) {
                        sent = Some(read.whole);
                    }
                    if self.is(WrongJudge::SkipRunAgain) {
                        skipped = skipped_now;
                    }
                    unknown = Some((txn, read.version, answer));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if unknown.is_some() { Err(call.unknown()) } else { Err(BoardError::TxnConflict { attempts: TRIES }) }
    }

    /// Whether a wrong judge forgets what it has sent.
    fn runs_again(&self, call: &Call, unknown: &Option<(Txn, Version, Answer)>) -> bool {
        unknown.is_some()
            && (self.is(WrongJudge::UnknownIsJudgedAgain)
                || match call.verb {
                    Verb::Remove => self.is(WrongJudge::RemoveRunAgain),
                    Verb::SetDeps => self.is(WrongJudge::SetDepsRunAgain),
                    Verb::Add => self.is(WrongJudge::AddRunAgain),
                    Verb::Cancel => self.is(WrongJudge::CancelRunAgain),
                    Verb::Reopen => self.is(WrongJudge::ReopenRunAgain),
                    Verb::Progress => self.is(WrongJudge::ProgressRunAgain),
                    Verb::Archive => self.is(WrongJudge::ArchiveRunAgain),
                    _ => false,
                })
    }

    fn wrongly_resolved(
        &self,
        call: &Call,
        read: &Read,
        base: Version,
        answer: &Answer,
    ) -> Option<Result<Answer, BoardError>> {
        if self.is(WrongJudge::UnknownByOwner) && call.verb == Verb::Claim {
            let owner = read.whole.tasks.get(&call.id).and_then(|record| record.owner.clone());
            if owner == call.agent {
                return Some(Ok(answer.clone()));
            }
        }
        if self.is(WrongJudge::UnseenIsDead) && read.version == base {
            return Some(Err(self.value.unavailable().into()));
        }
        None
    }

    /// The id as the board understands it.
    fn ident(&self, id: &TaskId) -> Result<TaskId, BoardError> {
        id.validate()?;
        let text = id.as_str();
        let text = match self.wrong {
            Some(WrongJudge::IdsTrimmed) => text.trim().to_owned(),
            Some(WrongJudge::IdsFolded) => text.to_lowercase(),
            Some(WrongJudge::IdsNormalised) => {
                text.chars().filter(|c| !('\u{300}'..'\u{370}').contains(c)).collect()
            }
            Some(WrongJudge::IdsDecoded) => text.replace("%2F", "/").replace("%25", "%"),
            Some(WrongJudge::IdsCut) => text.split(':').next().unwrap_or_default().to_owned(),
            _ => return Ok(id.clone()),
        };
        Ok(TaskId::unchecked(if text.is_empty() { id.as_str() } else { &text }))
    }

    fn forgotten_fence(&self, id: &TaskId, fence: Option<u64>) -> u64 {
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fence) = fence {
            fences.insert(id.clone(), fence);
        }
        fences.get(id).copied().unwrap_or(0)
    }
}

fn encode(whole: &Whole) -> Result<Vec<u8>, BoardError> {
    serde_json::to_vec(whole)
        .map_err(|error| BoardError::Invalid(format!("the board cannot be written: {error}")))
}

#[async_trait]
impl Board for OneKeyBoard {
    async fn list(&self) -> Result<Vec<Task>, BoardError> {
        self.list_all().await
    }

    async fn get(&self, id: &TaskId) -> Result<Task, BoardError> {
        let id = self.ident(id)?;
        let read = self.read().await?;
        match read.whole.tasks.get(&id) {
            Some(record) => Ok(self.shown(&id, record)),
            None => Err(BoardError::NotFound { id }),
        }
    }

    async fn claim(&self, id: &TaskId, agent: &AgentId, request: ClaimRequest) -> Result<Claim, BoardError> {
        self.claim_one(id, agent, request).await
    }

    async fn renew(&self, id: &TaskId, token: &Token, ttl: Duration) -> Result<Lease, BoardError> {
        self.renew_lease(id, token, ttl).await
    }

    async fn release(&self, id: &TaskId, token: &Token) -> Result<(), BoardError> {
        self.release_claim(id, token).await
    }

    async fn complete(&self, id: &TaskId, token: &Token, outcome: Outcome) -> Result<Outcome, BoardError> {
        self.complete_task(id, token, outcome).await
    }
}

#[async_trait]
impl ExtendedBoard for OneKeyBoard {
    async fn add(&self, task: TaskSpec) -> Result<Added, BoardError> {
        Ok(self.add_all(vec![task]).await?.into_added())
    }

    async fn add_plan(&self, plan: &Plan) -> Result<PlanReport, BoardError> {
        self.add_tasks(plan).await
    }

    async fn remove(&self, id: &TaskId) -> Result<(), BoardError> {
        self.remove_task(id).await
    }

    async fn set_deps(&self, id: &TaskId, deps: &[Dep], expected_seq: Option<u64>) -> Result<(), BoardError> {
        self.replace_deps(id, deps, expected_seq).await
    }

    async fn fail(&self, id: &TaskId, token: &Token, reason: Outcome) -> Result<Outcome, BoardError> {
        self.fail_task(id, token, reason).await
    }

    async fn cancel(&self, id: &TaskId) -> Result<(), BoardError> {
        self.cancel_task(id).await
    }

    async fn reopen(&self, id: &TaskId) -> Result<(), BoardError> {
        self.reopen_task(id).await
    }

    async fn revoke(&self, id: &TaskId, fence: u64) -> Result<(), BoardError> {
        self.revoke_claim(id, fence).await
    }

    async fn claim_next(
        &self,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
    ) -> Result<Option<Claim>, BoardError> {
        self.claim_first(agent, filter, ttl).await
    }

    async fn claim_up_to(
        &self,
        most: usize,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
    ) -> Result<Vec<Claim>, BoardError> {
        let mut given = Vec::new();
        while given.len() < most {
            match self.claim_first(agent, filter, ttl).await {
                Ok(Some(claim)) => given.push(claim),
                Ok(None) => break,
                Err(error) if given.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(given)
    }

    async fn page(&self, after: Option<&TaskId>, limit: usize) -> Result<TaskPage, BoardError> {
        self.page_of(after, limit).await
    }

    async fn check(&self) -> Result<Vec<Problem>, BoardError> {
        self.check_all().await
    }

    async fn explain(&self, id: &TaskId) -> Result<Standing, BoardError> {
        self.explain_task(id).await
    }

    async fn wait(&self, awaited: &Awaited, patience: Duration) -> Result<bool, BoardError> {
        self.wait_for(awaited, patience).await
    }

    async fn archive(&self, request: &Archive) -> Result<ArchiveReport, BoardError> {
        self.archive_tasks(request).await
    }

    async fn progress(&self, id: &TaskId, token: &Token, text: &str) -> Result<(), BoardError> {
        self.tell_progress(id, token, text).await
    }

    async fn history(&self, id: &TaskId) -> Result<History, BoardError> {
        self.history_of(id).await
    }

    /// There is nothing besides the tasks.
    async fn repair(&self) -> Result<RepairReport, BoardError> {
        Ok(RepairReport::default())
    }

    async fn check_index(&self) -> Result<Vec<Problem>, BoardError> {
        Ok(Vec::new())
    }
}
