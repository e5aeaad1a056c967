//! What a run says at its end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use coord_core::Timestamp;
use coord_core::board::{Plan, State, Task, TaskId};
use serde_json::{Value, json};

use crate::commands::{outcome_text, task_json};
use crate::definition::{Ended, seconds};
use crate::logs::{Logs, last_lines};
use crate::output::{self, clean, is_bad};
use crate::standing::{Counts, Standing};

/// The most tasks whose durations are all shown; of more, the slowest.
const ALL: usize = 40;
const SLOWEST: usize = 10;
/// The most failed tasks whose output is shown, and the most blocked ones that are named.
const SHOWN: usize = 10;
/// The most failed tasks that the closing count names.
const NAMED: usize = 5;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All tasks are done.
    Done,
    /// A task failed, was cancelled, or cannot run.
    Failed,
    /// It was told to stop.
    Interrupted,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Verdict::Done => "done",
            Verdict::Failed => "failed",
            Verdict::Interrupted => "interrupted",
        }
    }
}

/// Everything that the end of a run tells.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    /// The board.
    pub(crate) board: &'a str,
    /// The store, without secrets.
    pub(crate) store: String,
    /// The plan as it was named.
    pub(crate) plan_path: String,
    /// The command that goes on.
    pub(crate) again: String,
    /// The plan.
    pub(crate) plan: &'a Plan,
    /// The tasks of the plan, in its order.
    pub(crate) tasks: Vec<(&'a Task, Standing)>,
    /// Where their output is.
    pub(crate) logs: &'a Logs,
    /// How it ended.
    pub(crate) verdict: Verdict,
    /// Whether everything was done before it began.
    pub(crate) already: bool,
    /// How long it took.
    pub(crate) wall: Duration,
    /// When it ended.
    pub(crate) now: Timestamp,
    /// How many workers there were.
    pub(crate) workers: usize,
    /// How many of them were started again.
    pub(crate) restarts: u32,
    /// How many lines of output are shown of a failed task.
    pub(crate) tail: usize,
}

impl Summary<'_> {
    fn counts(&self) -> Counts {
        Counts::of(self.tasks.iter().map(|(_, standing)| *standing))
    }

    /// The longest chain of tasks that had to wait for each other, by their durations.
    fn longest_chain(&self) -> (Duration, Vec<&TaskId>) {
        let took: BTreeMap<&TaskId, Duration> =
            self.tasks.iter().filter_map(|(task, _)| Some((&task.id, ended(task)?.duration()))).collect();
        let mut best: BTreeMap<&TaskId, (Duration, Option<&TaskId>)> = BTreeMap::new();
        // The plan is in dependency order, so the chains of dependencies are known when they are needed.
        for spec in self.plan.tasks() {
            let before = spec.deps.iter().filter_map(|dep| Some((best.get(&dep.id)?.0, &dep.id))).max();
            let own = took.get(&spec.id).copied().unwrap_or_default();
            let (sum, from) = before.map_or((own, None), |(sum, dep)| (sum.saturating_add(own), Some(dep)));
            best.insert(&spec.id, (sum, from));
        }
        let Some((last, (sum, _))) = best.iter().max_by_key(|(_, (sum, _))| *sum) else {
            return (Duration::ZERO, Vec::new());
        };
        let (mut chain, mut at) = (vec![*last], *last);
        while let Some((_, Some(from))) = best.get(at) {
            chain.push(from);
            at = from;
        }
        chain.reverse();
        (*sum, chain)
    }

    /// Which tasks failed or were cancelled, for the closing count.
    fn failed_ids(&self) -> String {
        let mut text = String::new();
        for (state, word) in [(State::Failed, "failed"), (State::Cancelled, "cancelled")] {
            let ids: Vec<&str> = self
                .tasks
                .iter()
                .filter(|(task, _)| task.state == state)
                .map(|(task, _)| task.id.as_str())
                .collect();
            if !ids.is_empty() {
                let named = ids.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
                let more = ids.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                text.push_str(&format!("; {word}: {named}{more}"));
            }
        }
        text
    }

    /// How many tasks had more than one attempt: after a failure, or because a worker died.
    fn retried(&self) -> usize {
        self.tasks.iter().filter(|(task, _)| task.attempts > 1).count()
    }

    /// The open tasks that rest after a failure, or may not begin yet, and until when.
    fn resting(&self) -> Vec<(&Task, Timestamp)> {
        let rests = |(task, standing): &(&'_ Task, Standing)| {
            (*standing == Standing::Ready).then_some(task.not_before?).filter(|until| *until > self.now)
        };
        self.tasks.iter().filter_map(|one| Some((one.0, rests(one)?))).collect()
    }

    fn work(&self) -> Duration {
        self.tasks.iter().filter_map(|(task, _)| ended(task)).map(|ended| ended.duration()).sum()
    }

    fn log(&self, task: &Task) -> Option<PathBuf> {
        self.logs.latest(&task.id)
    }

    /// As one JSON document.
    pub(crate) fn json(&self) -> Value {
        let (longest, chain) = self.longest_chain();
        let tasks: Vec<Value> = self
            .tasks
            .iter()
            .map(|(task, standing)| {
                let mut document = task_json(task, *standing);
                let log = self.log(task);
                if is_bad(task.state) {
                    let lines = log.as_ref().and_then(|path| last_lines(path, self.tail).ok());
                    document["output"] = json!(lines.map(|(lines, _)| lines));
                }
                document["log"] = json!(log);
                document["seconds"] = json!(ended(task).map(|ended| ended.duration().as_secs_f64()));
                document
            })
            .collect();
        json!({
            "board": self.board,
            "store": self.store,
            "plan": self.plan_path,
            "result": self.verdict.as_str(),
            "already_done": self.already,
            "seconds": self.wall.as_secs_f64(),
            "work_seconds": self.work().as_secs_f64(),
            "longest_chain": {
                "seconds": longest.as_secs_f64(), "tasks": chain.iter().map(|id| id.as_str()).collect::<Vec<_>>(),
            },
            "workers": self.workers,
            "retried": self.retried(),
            "resting": self.resting().iter().map(|(task, _)| task.id.as_str()).collect::<Vec<_>>(),
            "restarts": self.restarts,
            "counts": self.counts().to_json(),
            "tasks": tasks,
        })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut lines = Vec::new();
        let counts = self.counts();
        let total = counts.total();
        if self.already {
            let all = if total == 1 { "the only task is".into() } else { format!("all {total} tasks are") };
            lines.push(format!("board {}: {all} done already, nothing to run", self.board));
            return finish(&lines);
        }
        self.durations(&mut lines);
        self.failures(&mut lines);
        let (longest, chain) = self.longest_chain();
        let chain = match chain.as_slice() {
            [] => String::new(),
            [one] => format!("; longest task {}: {one}", seconds(longest)),
            [first, .., last] => {
                format!("; longest chain {}: {} tasks from {first} to {last}", seconds(longest), chain.len())
            }
        };
        let workers = if self.workers == 1 { "1 worker".into() } else { format!("{} workers", self.workers) };
        let restarts =
            if self.restarts > 0 { format!(", {} started again", self.restarts) } else { String::new() };
        let retried = match self.retried() {
            0 => String::new(),
            count => format!(", {} tried more than once", output::tasks(count)),
        };
        let verdict = match self.verdict {
            Verdict::Interrupted => "stopped; ",
            Verdict::Done | Verdict::Failed => "",
        };
        lines.push(format!(
            "board {}: {verdict}{counts} (of {total}{}) in {} ({} of work, {workers}{restarts}{retried}{})",
            self.board,
            clean(&self.failed_ids()),
            seconds(self.wall),
            seconds(self.work()),
            clean(&chain)
        ));
        if let [(first, until), ..] = self.resting().as_slice() {
            let count = output::tasks(self.resting().len());
            lines.push(clean(&format!(
                "at rest until they are tried: {count}, such as {} until {until}",
                first.id
            )));
        }
        match self.verdict {
            Verdict::Done => {}
            Verdict::Interrupted => lines.push(format!("`{}` goes on", clean(&self.again))),
            Verdict::Failed => lines.push(format!(
                "`{0} --retry` runs what failed again; after a change of the plan, `{0} --replace`",
                clean(&self.again)
            )),
        }
        finish(&lines)
    }

    fn durations(&self, lines: &mut Vec<String>) {
        let mut timed: Vec<(Duration, &Task, Standing)> = self
            .tasks
            .iter()
            .filter_map(|(task, standing)| Some((ended(task)?.duration(), *task, *standing)))
            .collect();
        if self.tasks.len() > ALL && timed.len() > SLOWEST {
            timed.sort_by_key(|(took, _, _)| std::cmp::Reverse(*took));
            timed.truncate(SLOWEST);
            lines.push("the slowest tasks:".into());
        }
        let width = timed.iter().map(|(_, task, _)| output::width(task.id.as_str())).max();
        let width = width.unwrap_or(0).min(40);
        for (took, task, standing) in timed {
            let state = output::style(standing).apply_to(output::pad(standing.as_str(), 9));
            let line = format!(
                "{state} {:>8}  {}  {}",
                seconds(took),
                output::pad(task.id.as_str(), width),
                output::fit(&task.title, 80)
            );
            lines.push(line.trim_end().to_owned());
        }
    }

    fn failures(&self, lines: &mut Vec<String>) {
        let failed: Vec<&Task> =
            self.tasks.iter().map(|(task, _)| *task).filter(|task| is_bad(task.state)).collect();
        for task in failed.iter().take(SHOWN) {
            let outcome = outcome_text(task).map(|text| format!(": {text}")).unwrap_or_default();
            lines.push(clean(&format!("--- {} {}{outcome}", task.state, task.id)));
            let Some(log) = self.log(task) else { continue };
            let Ok((tail, more)) = last_lines(&log, self.tail) else { continue };
            for line in &tail {
                lines.push(format!("    {}", output::clean_line(line)));
            }
            if tail.is_empty() {
                lines.push("    (no output)".into());
            } else if more {
                lines.push(clean(&format!("    (the whole output: {})", log.display())));
            }
        }
        if failed.len() > SHOWN {
            lines.push(format!(
                "--- and {} more failed or cancelled tasks: `coord ls --state failed,cancelled`",
                failed.len() - SHOWN
            ));
        }
        let blocked: Vec<&str> = self
            .tasks
            .iter()
            .filter(|(_, standing)| *standing == Standing::Blocked)
            .map(|(task, _)| task.id.as_str())
            .collect();
        if !blocked.is_empty() {
            let named = blocked.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
            let more = blocked.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            lines.push(clean(&format!("--- not run, because of that: {named}{more}")));
        }
    }
}

fn ended(task: &Task) -> Option<Ended> {
    Ended::from_outcome(task.outcome.as_ref()?)
}

fn finish(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    text.push('\n');
    text
}
