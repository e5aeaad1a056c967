//! `coord explain`: why a task can be claimed or not, and what to do about it.

use std::collections::{BTreeMap, VecDeque};

use coord_core::board::{BoardError, Dep, Standing, State, Task, TaskId};
use coord_core::{Clock as _, SystemClock, Timestamp};
use serde_json::{Value, json};

use super::{outcome_text, task_json};
use crate::args::ExplainArgs;
use crate::definition::{Definition, seconds};
use crate::effects::word;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::store::OpenBoard;

/// The most tasks that are named in one list.
const NAMED: usize = 12;
/// The most tasks below a blocked one that are looked at.
const LOOKED_AT: usize = 256;

/// `coord explain`.
pub(crate) async fn run(args: &ExplainArgs) -> Result<u8, Failure> {
    let id = TaskId::new(&args.id)?;
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    let standing = opened.board.explain(&id).await?;
    let task = opened.get(&id).await?;
    let below = match &standing {
        Standing::Blocked { pending, failed, missing } => {
            Below::of(&opened, pending.iter().chain(failed).chain(missing)).await?
        }
        _ => Below::default(),
    };
    let never = match task.state {
        State::Skipped => never(&opened, &task).await?,
        _ => Vec::new(),
    };
    let now = opened.time().await?.unwrap_or_else(|| SystemClock::new().now());
    let explained = Explained { task: &task, standing: &standing, below: &below, never: &never, now };
    let (lines, help) = explained.text();
    match args.board.store.format {
        Format::Json => {
            let ids = |ids: &[TaskId]| ids.iter().map(|id| id.as_str().to_owned()).collect::<Vec<_>>();
            let (pending, failed, missing) = match &standing {
                Standing::Blocked { pending, failed, missing } => (ids(pending), ids(failed), ids(missing)),
                _ => Default::default(),
            };
            output::json(&json!({
                "board": opened.name.as_str(),
                "id": id.as_str(),
                "claimable": standing == Standing::Claimable,
                "why": explained.word(),
                "until": explained.until().map(|time| time.to_string()),
                "pending": pending,
                "failed": failed,
                "missing": missing,
                "causes": below.causes().map(|(id, why)| json!({ "id": id.as_str(), "why": why })).collect::<Vec<Value>>(),
                "text": lines,
                "help": help,
                "task": task_json(&task, explained.shown()),
            }));
        }
        Format::Text => {
            for line in &lines {
                output::line(&output::clean(line));
            }
            for command in &help {
                output::line(&format!("  help: {}", output::clean(command)));
            }
        }
    }
    Ok(exit::OK)
}

/// What a task waits for in the end: tasks that do not wait for others themselves.
#[derive(Debug, Default)]
struct Below {
    found: BTreeMap<TaskId, Standing>,
    missing: Vec<TaskId>,
    /// There are more than were looked at.
    more: bool,
}

impl Below {
    async fn of(opened: &OpenBoard, first: impl Iterator<Item = &TaskId>) -> Result<Self, Failure> {
        let mut below = Below::default();
        let mut next: VecDeque<TaskId> = first.cloned().collect();
        let mut looked_at = 0;
        while let Some(id) = next.pop_front() {
            if below.found.contains_key(&id) || below.missing.contains(&id) {
                continue;
            }
            if looked_at == LOOKED_AT {
                below.more = true;
                break;
            }
            looked_at += 1;
            match opened.board.explain(&id).await {
                Ok(standing) => {
                    if let Standing::Blocked { pending, failed, missing } = &standing {
                        next.extend(pending.iter().chain(failed).chain(missing).cloned());
                    }
                    below.found.insert(id, standing);
                }
                Err(BoardError::NotFound { id }) => below.missing.push(id),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(below)
    }

    /// Those that do not wait for others themselves, each with why it is not done yet.
    fn causes(&self) -> impl Iterator<Item = (&TaskId, String)> {
        let found = self.found.iter().filter_map(|(id, standing)| {
            Some((
                id,
                match standing {
                    Standing::Blocked { .. } | Standing::Ended { state: State::Done } => return None,
                    Standing::Claimable => "ready, and nobody has claimed it yet".into(),
                    Standing::Held { owner, until, .. } => {
                        let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
                        format!("held by {owner}{until}")
                    }
                    Standing::NotYet { until } => format!("rests until {until}"),
                    // What is skipped is no cause: whoever waits for it is skipped himself, once the others have ended.
                    Standing::Ended { state: State::Skipped } => return None,
                    Standing::Ended { state } => state.to_string(),
                    Standing::Pinned { state, dependent } => {
                        format!("{state}, and stays so, for {dependent} has begun because of that")
                    }
                    Standing::Exhausted => "has no attempts left".into(),
                    Standing::Skippable => "can never begin, and is to be skipped".into(),
                    _ => "cannot be claimed".into(),
                },
            ))
        });
        found.chain(self.missing.iter().map(|id| (id, "missing: there is no such task".to_owned())))
    }
}

/// Whether a task that others wait for has ended in a way that does not count for them, and might come to another end. What is done or
/// skipped is so for ever.
fn is_stuck(standing: &Standing) -> bool {
    match standing {
        Standing::Ended { state } | Standing::Pinned { state, .. } => {
            matches!(state, State::Failed | State::Cancelled)
        }
        _ => false,
    }
}

/// The dependencies that a skipped task can never have as its rules want them, each with how it has ended.
async fn never(opened: &OpenBoard, task: &Task) -> Result<Vec<(Dep, State)>, Failure> {
    let mut never = Vec::new();
    for dep in task.deps.iter().take(LOOKED_AT) {
        match opened.board.get(&dep.id).await {
            Ok(found) if dep.rule.verdict(found.state) == Some(false) => {
                never.push((dep.clone(), found.state))
            }
            Ok(_) | Err(BoardError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(never)
}

fn never_text(dep: &Dep, state: State) -> String {
    format!("  {} is {state}, and it was to be {}", dep.id, dep.rule)
}

struct Explained<'a> {
    task: &'a Task,
    standing: &'a Standing,
    below: &'a Below,
    never: &'a [(Dep, State)],
    now: Timestamp,
}

impl Explained<'_> {
    /// Why, in one word.
    fn word(&self) -> &'static str {
        match self.standing {
            Standing::Claimable => "claimable",
            Standing::Ended { .. } => "ended",
            Standing::Pinned { .. } => "pinned",
            Standing::Held { .. } => "held",
            Standing::NotYet { .. } => "not_yet",
            Standing::Blocked { .. } => "blocked",
            Standing::Exhausted => "exhausted",
            Standing::Skippable => "skippable",
            _ => "other",
        }
    }

    fn until(&self) -> Option<Timestamp> {
        match self.standing {
            Standing::Held { until, .. } => *until,
            Standing::NotYet { until } => Some(*until),
            _ => None,
        }
    }

    /// How the task stands, in the words of `coord ls`.
    fn shown(&self) -> crate::standing::Standing {
        use crate::standing::Standing as Shown;
        match self.standing {
            Standing::Claimable | Standing::NotYet { .. } | Standing::Exhausted => Shown::Ready,
            Standing::Held { .. } => Shown::Running,
            // As `standings` has it, until somebody has written it.
            Standing::Skippable => Shown::Waiting,
            Standing::Ended { state } | Standing::Pinned { state, .. } => {
                Shown::of_state(*state).unwrap_or(Shown::Unknown)
            }
            Standing::Blocked { missing, .. } => {
                // What can never come to what its rule wants blocks nobody: the task is skipped once the others have ended.
                let stuck = self.below.found.values().any(is_stuck);
                if stuck || !self.below.missing.is_empty() || !missing.is_empty() {
                    Shown::Blocked
                } else {
                    Shown::Waiting
                }
            }
            _ => Shown::Unknown,
        }
    }

    /// What there is to say, and the commands that help.
    fn text(&self) -> (Vec<String>, Vec<String>) {
        let id = &self.task.id;
        let own = word(id.as_str());
        let left = |until: Timestamp| seconds(until.saturating_since(self.now));
        let outcome = outcome_text(self.task).map(|text| format!(": {text}")).unwrap_or_default();
        let mut lines = Vec::new();
        let mut help = Vec::new();
        match self.standing {
            Standing::Claimable => match (&self.task.owner, self.task.lease) {
                (Some(owner), Some(lease)) => {
                    let until = lease.until.map(|until| format!(" at {until}")).unwrap_or_default();
                    lines.push(format!(
                        "{id} can be claimed: {owner} held it under fence {}, but the lease has ended{until}",
                        lease.fence
                    ));
                }
                _ => {
                    lines.push(format!("{id} can be claimed: nobody holds it, and it waits for nothing"));
                    let labels = &self.task.labels;
                    if !labels.is_empty() {
                        lines.push(format!("a worker has to take its labels: {}", labels.join(", ")));
                    }
                    help.push("`coord worker` claims and runs what is ready".into());
                }
            },
            Standing::Held { owner, until, fence } => {
                let until = match until {
                    Some(until) => {
                        format!("until {until}, in {}, unless it renews the lease", left(*until))
                    }
                    None => "for ever".into(),
                };
                lines.push(format!("{id} is held by {owner} under fence {fence}, {until}"));
                lines.push(format!("the claim was made or renewed last at {}", self.task.touched));
                help.push(format!(
                    "`coord release {own} --fence {fence}` frees it now; its holder can complete it no more"
                ));
            }
            Standing::NotYet { until } => {
                let why = if self.task.attempts > 0 {
                    "rests after an attempt that failed"
                } else {
                    "may not begin yet"
                };
                lines.push(format!("{id} {why}, until {until}, in {}{outcome}", left(*until)));
            }
            Standing::Ended { state: State::Done } => lines.push(format!("{id} is done{outcome}")),
            Standing::Ended { state } => {
                lines.push(format!("{id} has ended: {state}{outcome}"));
                list(&mut lines, self.never.iter().map(|(dep, state)| never_text(dep, *state)).collect());
                if matches!(state, State::Failed | State::Cancelled) {
                    self.reopen(&own, &outcome, &mut help);
                }
            }
            Standing::Pinned { state, dependent } => {
                lines.push(format!("{id} has ended: {state}{outcome}"));
                lines.push(format!("it stays so, for {dependent} has begun because of that"));
                help.push(format!(
                    "`coord remove {own} --dependents` removes it with all that depend on it; added again, they run anew"
                ));
            }
            Standing::Exhausted => {
                lines.push(format!("{id} has no attempts left, and the last one ended without an answer"));
                lines.push("whoever looks for a task next makes it a failed one".into());
                help.push(format!("`coord reopen {own}` opens it again after that"));
            }
            Standing::Skippable => {
                lines.push(format!(
                    "{id} can never begin, for a dependency has ended otherwise than its rule wants"
                ));
                lines.push("whoever looks for a task next makes it a skipped one".into());
            }
            Standing::Blocked { pending, failed, missing } => {
                self.blocked([pending, failed, missing], &mut lines, &mut help)
            }
            other => lines.push(format!("{id} cannot be claimed: {other:?}")),
        }
        if let (Some(retry), Some(left)) = (self.task.retry, self.task.attempts_left()) {
            lines.push(format!("attempt {} of {}; {left} left", self.task.attempts, retry.attempts));
        }
        (lines, help)
    }

    /// What helps a task that has failed or was cancelled.
    fn reopen(&self, own: &str, outcome: &str, help: &mut Vec<String>) {
        match Definition::from_payload(&self.task.payload).ok().and_then(|definition| definition.effect) {
            Some(effect) if outcome.starts_with(": uncertain") => {
                let key = word(&effect.key);
                help.push(format!(
                    "`coord effect show {key}` tells what is known of its action, and how to say whether it was done"
                ));
                help.push(format!(
                    "after that `coord reopen {own}` opens it again; before, it only fails again"
                ));
            }
            Some(effect) => help.push(format!(
                "`coord reopen {own}` opens it again, and then it is told once more what came of its action; \
                 `coord effect forget {}` before that lets the action be done again",
                word(&effect.key)
            )),
            None => help.push(format!("`coord reopen {own}` opens it again")),
        }
    }

    fn blocked(
        &self,
        [pending, failed, missing]: [&Vec<TaskId>; 3],
        lines: &mut Vec<String>,
        help: &mut Vec<String>,
    ) {
        let id = &self.task.id;
        let direct = pending.len() + failed.len() + missing.len();
        lines.push(format!(
            "{id} waits for {direct} of the {} that it depends on:",
            output::tasks(self.task.deps.len())
        ));
        let mut named = Vec::new();
        let never = |id: &&TaskId| self.below.found.get(*id).is_some_and(|standing| !is_stuck(standing));
        let (never, failed): (Vec<&TaskId>, Vec<&TaskId>) = failed.iter().partition(never);
        named.extend(failed.iter().map(|id| format!("  {id} cannot come to what is wanted by itself")));
        named.extend(never.iter().map(|id| format!("  {id} can never come to what is wanted")));
        named.extend(missing.iter().map(|id| format!("  {id} is missing")));
        named.extend(pending.iter().map(|id| format!("  {id} has not ended")));
        list(lines, named);
        if !never.is_empty() {
            lines.push("so it never begins: it is skipped once the others have ended".into());
        }
        let causes: Vec<(&TaskId, String)> = self.below.causes().collect();
        lines.push("in the end it waits for:".into());
        list(lines, causes.iter().map(|(id, why)| format!("  {id}: {why}")).collect());
        if self.below.more {
            lines.push(format!("  (only {LOOKED_AT} tasks below it were looked at)"));
        }
        let hopeless: Vec<String> = self
            .below
            .found
            .iter()
            .filter(|(_, standing)| {
                matches!(standing, Standing::Ended { state: State::Failed | State::Cancelled })
            })
            .map(|(id, _)| word(id.as_str()))
            .collect();
        if !hopeless.is_empty() {
            let some = hopeless.iter().take(NAMED).cloned().collect::<Vec<_>>().join(" ");
            help.push(format!(
                "`coord reopen {some}` opens what failed again, `coord show` tells why it failed"
            ));
        }
        let pinned =
            self.below.found.iter().filter(|(_, standing)| matches!(standing, Standing::Pinned { .. }));
        for (id, _) in pinned.take(NAMED) {
            help.push(format!(
                "{id} cannot be reopened: what waits for it needs other dependencies, or {id} has to be removed and added again"
            ));
        }
    }
}

fn list(lines: &mut Vec<String>, mut named: Vec<String>) {
    let more = named.len().saturating_sub(NAMED);
    named.truncate(NAMED);
    lines.append(&mut named);
    if more > 0 {
        lines.push(format!("  … and {more} more"));
    }
}
