//! What a right board answers and comes to, by the words of the contract alone: a few maps, one caller at a time, and nothing that is stored.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use coord_core::Timestamp;
use coord_core::board::{AgentId, Dep, Rule, State, Task, TaskId, TaskSpec};

use super::super::stage::TTL;

/// Which of the tokens that were given, in the order in which they were.
pub(super) type TokenNumber = usize;

/// The token that nobody has.
const NOBODY: TokenNumber = usize::MAX;

/// How a claim ended that its holder has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Release,
    Complete,
    Fail,
}

pub(super) struct Holder {
    pub(super) agent: AgentId,
    pub(super) token: TokenNumber,
    pub(super) until: Option<Timestamp>,
}

/// A task as it should be.
pub(super) struct Known {
    pub(super) spec: TaskSpec,
    pub(super) deps: Vec<Dep>,
    pub(super) state: State,
    pub(super) holder: Option<Holder>,
    pub(super) order: u64,
    pub(super) attempts: u32,
    pub(super) not_before: Option<Timestamp>,
    /// The token that ended the last claim, how, and what was answered.
    pub(super) settled: Option<(TokenNumber, End, String)>,
    pub(super) touched: Timestamp,
    pub(super) pinned_by: Option<TaskId>,
    pub(super) progress: Option<String>,
}

/// What the dependencies of a task make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Met,
    Never,
    Waits,
}

pub(in super::super) fn satisfies(rule: Rule, state: State) -> bool {
    match rule {
        Rule::Finished => state.is_terminal(),
        Rule::Failed => state == State::Failed,
        _ => state == State::Done,
    }
}

fn is_impossible(rule: Rule, state: State) -> bool {
    match rule {
        Rule::Finished => false,
        Rule::Failed => matches!(state, State::Done | State::Skipped),
        _ => state == State::Skipped,
    }
}

pub(super) fn names<'a>(ids: impl IntoIterator<Item = &'a TaskId>) -> String {
    let ids: BTreeSet<&TaskId> = ids.into_iter().collect();
    format!("{ids:?}")
}

/// The words for a task that waits for others.
pub(super) fn blocked_by(pending: &[TaskId], failed: &[TaskId], missing: &[TaskId]) -> String {
    format!("Blocked by {}, {}, {}", names(pending), names(failed), names(missing))
}

/// The words for a task that somebody holds.
pub(super) fn held_by(owner: &AgentId, until: Option<Timestamp>) -> String {
    format!("Taken by {owner:?} until {until:?}")
}

/// All of a task that two right boards agree on: the numbers are not among it, of which each has its own.
pub(super) fn shown(task: &Task) -> String {
    format!(
        "{:?} {} by {:?} until {:?}, needs {:?}, {} attempts, {:?}, not before {:?}, {:?}, touched {}",
        task.id,
        task.state,
        task.owner,
        task.lease.map(|lease| lease.until),
        task.deps,
        task.attempts,
        task.outcome.as_ref().map(ToString::to_string),
        task.not_before,
        task.progress.as_ref().map(|progress| &progress.text),
        task.touched
    )
}

/// What is answered where nothing else can be.
pub(super) type Said = Result<String, String>;

/// The board as it should be.
pub(super) struct Reference {
    pub(super) tasks: BTreeMap<TaskId, Known>,
    pub(super) orders: u64,
    /// How many tokens were given.
    tokens: TokenNumber,
    pub(super) now: Timestamp,
    /// What the last verb has changed, progress aside.
    pub(super) changed: BTreeSet<TaskId>,
}

impl Reference {
    pub(super) fn new(now: Timestamp) -> Self {
        Reference { tasks: BTreeMap::new(), orders: 0, tokens: 0, now, changed: BTreeSet::new() }
    }

    pub(super) fn get(&self, id: &TaskId) -> Result<&Known, String> {
        self.tasks.get(id).ok_or_else(|| "NotFound".to_owned())
    }

    pub(super) fn write(&mut self, id: &TaskId, change: impl FnOnce(&mut Known)) {
        let now = self.now;
        if let Some(task) = self.tasks.get_mut(id) {
            change(task);
            task.touched = task.touched.max(now);
            self.changed.insert(id.clone());
        }
    }

    /// Ends what is remembered of the last verb.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.now = now;
        self.changed.clear();
    }

    pub(super) fn has_changed(&self, id: &TaskId) -> bool {
        self.changed.contains(id)
    }

    pub(super) fn shown(&self) -> Vec<String> {
        self.tasks.iter().map(|(id, known)| known.shown(id)).collect()
    }

    /// The tasks that somebody may want reopened.
    pub(super) fn reopenable(&self) -> Vec<TaskId> {
        let ended = |known: &Known| matches!(known.state, State::Failed | State::Cancelled);
        self.tasks.iter().filter(|(_, known)| ended(known)).map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn ids(&self) -> Vec<TaskId> {
        self.tasks.keys().cloned().collect()
    }

    fn state_of(&self, id: &TaskId) -> Option<State> {
        self.tasks.get(id).map(|known| known.state)
    }

    /// Those that stand in the way: not ended yet; ended otherwise, impossible ones included; missing.
    fn standing_in_the_way(&self, deps: &[Dep]) -> [Vec<TaskId>; 3] {
        let (mut pending, mut failed, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for dep in deps {
            match self.state_of(&dep.id) {
                None => missing.push(dep.id.clone()),
                Some(state) if satisfies(dep.rule, state) => {}
                Some(state) if state.is_terminal() => failed.push(dep.id.clone()),
                Some(_) => pending.push(dep.id.clone()),
            }
        }
        [pending, failed, missing]
    }

    fn needs(&self, deps: &[Dep]) -> Needs {
        let mut needs = Needs::Met;
        for dep in deps {
            match self.state_of(&dep.id) {
                Some(state) if satisfies(dep.rule, state) => {}
                Some(state) if is_impossible(dep.rule, state) => needs = Needs::Never,
                _ => return Needs::Waits,
            }
        }
        needs
    }

    /// Whether nobody holds it, and its time has come.
    fn is_free(&self, known: &Known) -> bool {
        let held = match (known.state, &known.holder) {
            (State::Open, _) => false,
            (State::Claimed, Some(holder)) => holder.until.is_none_or(|until| self.now < until),
            _ => true,
        };
        !held && known.not_before.is_none_or(|time| time <= self.now)
    }

    fn is_exhausted(known: &Known) -> bool {
        known.spec.retry.is_some_and(|retry| known.attempts >= retry.attempts)
    }

    /// Why a claim comes to nothing, in the order of the contract; or what it comes to.
    fn judge_claim(&self, id: &TaskId) -> Result<Verdict, String> {
        let known = self.get(id)?;
        if known.state.is_terminal() {
            return Err(format!("Terminal {}", known.state));
        }
        match &known.holder {
            Some(holder) if holder.until.is_none_or(|until| self.now < until) => {
                return Err(held_by(&holder.agent, holder.until));
            }
            _ => {}
        }
        if let Some(time) = known.not_before.filter(|time| *time > self.now) {
            return Err(format!("NotYet until {time}"));
        }
        if Self::is_exhausted(known) {
            return Ok(Verdict::GivenUp);
        }
        match self.needs(&known.deps) {
            Needs::Met => Ok(Verdict::Begins),
            Needs::Never => Ok(Verdict::Skips),
            Needs::Waits => {
                let [pending, failed, missing] = self.standing_in_the_way(&known.deps);
                Err(blocked_by(&pending, &failed, &missing))
            }
        }
    }

    fn give(&mut self, id: &TaskId, agent: &AgentId, until: Option<Timestamp>) {
        let Some(known) = self.tasks.get(id) else { return };
        let rests_on = known.deps.iter().filter(|dep| {
            let state = self.state_of(&dep.id);
            dep.rule != Rule::Done && matches!(state, Some(State::Failed | State::Cancelled))
        });
        for dep in rests_on.map(|dep| dep.id.clone()).collect::<Vec<_>>() {
            if self.tasks.get(&dep).is_some_and(|known| known.pinned_by.is_none()) {
                self.write(&dep, |known| known.pinned_by = Some(id.clone()));
            }
        }
        let holder = Holder { agent: agent.clone(), token: self.tokens, until };
        self.tokens += 1;
        self.write(id, |known| {
            known.state = State::Claimed;
            known.holder = Some(holder);
            known.attempts += 1;
            known.settled = None;
            known.progress = None;
        });
    }

    pub(super) fn leave(&mut self, id: &TaskId, state: State) {
        self.write(id, |known| {
            known.state = state;
            known.holder = None;
        });
    }

    /// Nobody has told the failure, so its reason is what the board shows.
    fn give_up(&mut self, id: &TaskId, seen: &[Task]) {
        let shown = seen.iter().find(|task| task.id == *id).and_then(|task| task.outcome.as_ref());
        let reason = shown.map(ToString::to_string).unwrap_or_default();
        self.leave(id, State::Failed);
        self.write(id, |known| known.settled = Some((NOBODY, End::Fail, reason)));
    }

    pub(super) fn claim(
        &mut self,
        id: &TaskId,
        agent: &AgentId,
        ttl: Option<Duration>,
        seen: &[Task],
    ) -> Said {
        let until = ttl.map(|ttl| self.now.saturating_add(ttl));
        match self.judge_claim(id)? {
            Verdict::Begins => {
                self.give(id, agent, until);
                Ok(format!("claimed {id:?}"))
            }
            Verdict::Skips => {
                self.leave(id, State::Skipped);
                Err("Terminal skipped".into())
            }
            Verdict::GivenUp => {
                self.give_up(id, seen);
                Err("Terminal failed".into())
            }
        }
    }

    /// The first in line of those that may begin.
    fn first(&self) -> Option<TaskId> {
        let begins = |id: &&TaskId| self.judge_claim(id) == Ok(Verdict::Begins);
        let rank =
            |id: &&TaskId| self.tasks.get(*id).map(|known| (Reverse(known.spec.priority), known.order));
        self.tasks.keys().filter(begins).min_by_key(rank).cloned()
    }

    /// Somebody has looked for a task. What he met on his way is seen by what the board shows afterwards.
    pub(super) fn claim_next(&mut self, agent: &AgentId, seen: &[Task], given: Option<&TaskId>) -> Said {
        let before = self.first();
        self.catch_up(seen);
        let exhausted = |id: &TaskId| self.judge_claim(id) == Ok(Verdict::GivenUp);
        let given_up: Vec<TaskId> = seen
            .iter()
            .filter(|task| task.state == State::Failed && exhausted(&task.id))
            .map(|task| task.id.clone())
            .collect();
        for id in &given_up {
            self.give_up(id, seen);
        }
        self.catch_up(seen);
        let after = self.first();
        match given {
            Some(given) if [&before, &after].contains(&&Some(given.clone())) => {
                self.give(given, agent, Some(self.now.saturating_add(TTL)));
                Ok(format!("claimed {given:?}"))
            }
            // What was the first before may have been overtaken by one that could begin only since.
            Some(_) => Ok(format!("claimed {:?}", before.or(after))),
            None => match (after, self.left_undone()) {
                (Some(first), _) => Ok(format!("claimed {first:?}")),
                (None, Some(left)) => Ok(format!("nothing, and {left:?} ended that can never begin")),
                (None, None) => Ok("nothing".into()),
            },
        }
    }

    /// A task that whoever has found nothing should have ended.
    fn left_undone(&self) -> Option<&TaskId> {
        let ends = |known: &Known| match self.needs(&known.deps) {
            Needs::Never => known.state == State::Open,
            Needs::Met => Self::is_exhausted(known),
            Needs::Waits => false,
        };
        self.tasks.iter().find(|(_, known)| self.is_free(known) && ends(known)).map(|(id, _)| id)
    }

    /// Whoever comes upon a task that can never begin may skip it, in the course of any verb, or leave it to others.
    pub(super) fn catch_up(&mut self, seen: &[Task]) {
        loop {
            let skipped = seen.iter().find(|task| {
                task.state == State::Skipped
                    && self.tasks.get(&task.id).is_some_and(|known| {
                        known.state == State::Open && self.needs(&known.deps) == Needs::Never
                    })
            });
            let Some(skipped) = skipped else { return };
            self.leave(&skipped.id, State::Skipped);
        }
    }

    pub(super) fn explain(&self, id: &TaskId) -> Said {
        let known = self.get(id)?;
        if let Some(dependent) = &known.pinned_by {
            return Ok(format!("{}, pinned by {dependent:?}", known.state));
        }
        Ok(match self.judge_claim(id) {
            Ok(Verdict::Begins) => "claimable".into(),
            Ok(Verdict::Skips) => "to be skipped".into(),
            Ok(Verdict::GivenUp) => "exhausted".into(),
            Err(why) => return Err(why),
        })
    }
}

/// What a claim comes to that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Begins,
    Skips,
    GivenUp,
}

impl Known {
    /// As [`shown`] shows a task.
    fn shown(&self, id: &TaskId) -> String {
        let settled = self.settled.as_ref().map(|(_, _, text)| text.as_str());
        let outcome = settled.filter(|_| matches!(self.state, State::Done | State::Failed));
        format!(
            "{id:?} {} by {:?} until {:?}, needs {:?}, {} attempts, {outcome:?}, not before {:?}, {:?}, touched {}",
            self.state,
            self.holder.as_ref().map(|holder| &holder.agent),
            self.holder.as_ref().map(|holder| holder.until),
            self.deps,
            self.attempts,
            self.not_before,
            // Lists tell it of claimed tasks only.
            self.progress.as_ref().filter(|_| self.state == State::Claimed),
            self.touched
        )
    }
}
