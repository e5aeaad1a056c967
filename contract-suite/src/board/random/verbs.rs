//! The verbs of holders, planners and operators on the board as it should be.

use std::cmp::Reverse;
use std::time::Duration;

use coord_core::board::{Dep, Retry, State, Task, TaskId, TaskSpec};

use super::super::stage::TTL;
use super::reference::{End, Holder, Known, Reference, Said, TokenNumber, held_by, names};

impl Reference {
    fn holder(&self, id: &TaskId, token: Option<TokenNumber>) -> Result<&Holder, String> {
        let holder = self.get(id)?.holder.as_ref();
        holder.filter(|holder| Some(holder.token) == token).ok_or_else(|| "LeaseLost".to_owned())
    }

    /// The same, where the lease has to live.
    fn living(&self, id: &TaskId, token: Option<TokenNumber>) -> Result<(), String> {
        let alive = self.holder(id, token)?.until.is_none_or(|until| self.now < until);
        if alive { Ok(()) } else { Err("LeaseLost".into()) }
    }

    pub(super) fn renew(&mut self, id: &TaskId, token: Option<TokenNumber>) -> Said {
        self.living(id, token)?;
        let until = Some(self.now.saturating_add(TTL));
        self.write(id, |known| {
            if let Some(holder) = &mut known.holder {
                holder.until = until;
            }
        });
        Ok("ok".into())
    }

    pub(super) fn progress(&mut self, id: &TaskId, token: Option<TokenNumber>, text: &str) -> Said {
        self.living(id, token)?;
        if let Some(known) = self.tasks.get_mut(id) {
            known.progress = Some(text.to_owned());
        }
        Ok("ok".into())
    }

    /// Ends a claim by its token, with what a failure that is tried again has to rest as the board shows it.
    pub(super) fn settle(
        &mut self,
        id: &TaskId,
        token: Option<TokenNumber>,
        end: End,
        text: &str,
        seen: &[Task],
    ) -> Said {
        match &self.get(id)?.settled {
            Some((by, how, first)) if Some(*by) == token && *how == end => return Ok(first.clone()),
            _ => {}
        }
        let number = self.holder(id, token)?.token;
        let now = self.now;
        let rests_until = seen.iter().find(|task| task.id == *id).and_then(|task| task.not_before);
        self.write(id, |known| {
            known.holder = None;
            known.settled = Some((number, end, text.to_owned()));
            match (end, known.spec.retry) {
                (End::Complete, _) => known.state = State::Done,
                (End::Release, _) => {
                    known.state = State::Open;
                    known.attempts = known.attempts.saturating_sub(1);
                }
                (End::Fail, Some(retry)) if known.attempts < retry.attempts => {
                    known.state = State::Open;
                    let longest = longest_rest(retry, known.attempts);
                    let range = now.saturating_add(longest / 2)..=now.saturating_add(longest);
                    // What is out of range is not what the board shows, and so is seen.
                    known.not_before = rests_until.filter(|time| range.contains(time)).or(Some(*range.end()));
                }
                (End::Fail, _) => known.state = State::Failed,
            }
        });
        Ok(text.to_owned())
    }

    pub(super) fn cancel(&mut self, id: &TaskId) -> Said {
        match self.get(id)?.state {
            State::Open | State::Claimed => self.leave(id, State::Cancelled),
            State::Cancelled => {}
            state => return Err(format!("Terminal {state}")),
        }
        Ok("ok".into())
    }

    pub(super) fn reopen(&mut self, id: &TaskId) -> Said {
        let known = self.get(id)?;
        match (known.state, &known.pinned_by, &known.holder) {
            (State::Open, ..) => return Ok("ok".into()),
            (State::Failed | State::Cancelled, Some(dependent), _) => {
                return Err(format!("HasDependents {dependent:?}"));
            }
            (State::Failed | State::Cancelled, None, _) => {}
            (State::Claimed, _, Some(holder)) => return Err(held_by(&holder.agent, holder.until)),
            (state, ..) => return Err(format!("Terminal {state}")),
        }
        self.leave(id, State::Open);
        self.write(id, |known| (known.attempts, known.not_before) = (0, None));
        Ok("ok".into())
    }

    /// By the fence that stands, or by an older one.
    pub(super) fn revoke(&mut self, id: &TaskId, older: bool) -> Said {
        match (&self.get(id)?.holder, older) {
            (None, _) => {}
            (Some(_), true) => return Err("LeaseLost".into()),
            (Some(_), false) => self.leave(id, State::Open),
        }
        Ok("ok".into())
    }

    fn check_deps(&self, deps: &[Dep]) -> Result<(), String> {
        match deps.iter().find(|dep| !self.tasks.contains_key(&dep.id)) {
            Some(dep) => Err(format!("UnknownDep {:?}", dep.id)),
            None => Ok(()),
        }
    }

    pub(super) fn add(&mut self, spec: &TaskSpec) -> Said {
        if spec.deps.iter().any(|dep| dep.id == spec.id) {
            return Err("Cycle".into());
        }
        match self.tasks.get(&spec.id) {
            Some(known) if known.spec == *spec => return Ok("existed".into()),
            Some(_) => return Err("AlreadyExists".into()),
            None => {}
        }
        self.check_deps(&spec.deps)?;
        let known = Known {
            spec: spec.clone(),
            deps: spec.deps.clone(),
            state: State::Open,
            holder: None,
            order: self.orders,
            attempts: 0,
            not_before: spec.not_before,
            settled: None,
            touched: self.now,
            pinned_by: None,
            progress: None,
        };
        self.orders += 1;
        self.tasks.insert(spec.id.clone(), known);
        self.changed.insert(spec.id.clone());
        Ok("new".into())
    }

    fn dependents<'a>(&'a self, id: &'a TaskId) -> impl Iterator<Item = (&'a TaskId, &'a Known)> {
        self.tasks.iter().filter(move |(_, known)| known.deps.iter().any(|dep| dep.id == *id))
    }

    /// With whom a refusal names.
    pub(super) fn remove(&mut self, id: &TaskId, named: Option<&TaskId>) -> Said {
        if let Some(holder) = &self.get(id)?.holder {
            return Err(held_by(&holder.agent, holder.until));
        }
        let dependents: Vec<&TaskId> = self.dependents(id).map(|(dependent, _)| dependent).collect();
        if let Some(first) = dependents.first() {
            // Any of them will do.
            let named = dependents.iter().find(|dependent| Some(**dependent) == named).unwrap_or(first);
            return Err(format!("HasDependents {named:?}"));
        }
        self.tasks.remove(id);
        Ok("ok".into())
    }

    fn reaches(&self, from: &TaskId, to: &TaskId) -> bool {
        from == to
            || self
                .tasks
                .get(from)
                .is_some_and(|known| known.deps.iter().any(|dep| self.reaches(&dep.id, to)))
    }

    pub(super) fn set_deps(&mut self, id: &TaskId, deps: &[Dep]) -> Said {
        if deps.iter().any(|dep| dep.id == *id) {
            return Err("Cycle".into());
        }
        let known = self.get(id)?;
        match (known.state, &known.holder) {
            (State::Open, _) => {}
            (State::Claimed, Some(holder)) => return Err(held_by(&holder.agent, holder.until)),
            (state, _) => return Err(format!("Terminal {state}")),
        }
        self.check_deps(deps)?;
        if deps.iter().any(|dep| self.reaches(&dep.id, id)) {
            return Err("Cycle".into());
        }
        self.write(id, |known| known.deps = deps.to_vec());
        Ok("ok".into())
    }

    pub(super) fn archive(&mut self, age: Duration, failed: bool, cancelled: bool) -> Said {
        let mut line: Vec<(Reverse<u64>, TaskId)> =
            self.tasks.iter().map(|(id, known)| (Reverse(known.order), id.clone())).collect();
        line.sort();
        let mut archived = Vec::new();
        for (_, id) in line {
            let Some(known) = self.tasks.get(&id) else { continue };
            let wanted = match known.state {
                State::Done | State::Skipped => true,
                State::Failed => failed,
                State::Cancelled => cancelled,
                _ => false,
            };
            let settled = |known: &Known| matches!(known.state, State::Done | State::Skipped);
            let old = self.now.saturating_since(known.touched) >= age;
            if !wanted || !old || !self.dependents(&id).all(|(_, known)| settled(known)) {
                continue;
            }
            let dependents: Vec<TaskId> =
                self.dependents(&id).map(|(dependent, _)| dependent.clone()).collect();
            for dependent in dependents {
                if let Some(known) = self.tasks.get_mut(&dependent) {
                    // Its seq moves, and its time of touching stays.
                    known.deps.retain(|dep| dep.id != id);
                    self.changed.insert(dependent);
                }
            }
            self.tasks.remove(&id);
            self.changed.remove(&id);
            archived.push(id);
        }
        Ok(format!("archived {}", names(&archived)))
    }
}

/// The longest rest after so many attempts.
fn longest_rest(retry: Retry, attempts: u32) -> Duration {
    let doubled = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    retry.backoff.saturating_mul(doubled).min(retry.max_backoff)
}
