//! Why a task can or cannot be claimed, in words: the order is that in which a claim is judged.

use std::collections::HashSet;
use std::time::Duration;

use coord_core::board::{Dep, State, Task, TaskId};

use super::model::Model;
use crate::commands::outcome_text;
use crate::definition::seconds;
use crate::output;
use crate::standing::Standing;

/// The most tasks that are named in one list.
const NAMED: usize = 12;

/// The lines of an explanation.
pub(crate) fn explain(model: &Model, id: &TaskId) -> Vec<String> {
    let Some((task, standing)) = model.find(id) else {
        return vec![format!("{id}"), String::new(), "It is not on the board any more.".into()];
    };
    let mut lines = vec![id.to_string()];
    if !task.title.is_empty() {
        lines.push(task.title.clone());
    }
    lines.push(String::new());
    match task.state {
        State::Open => open(model, task, standing, &mut lines),
        _ => lines.push(sentence(&status(model, task, standing))),
    }
    match task.state {
        State::Failed | State::Cancelled if !model.read_only => {
            lines.push("r opens it again, unless another task has begun because of that end.".into());
        }
        State::Unknown(_) => {
            lines.push("A newer coord has written it; it is never claimed by this one.".into())
        }
        _ => {}
    }
    lines.push(String::new());
    let waiting = model.tasks.iter().filter(|other| !other.state.is_terminal() && other.depends_on(id));
    match waiting.count() {
        0 => {}
        count => lines.push(format!("{} that it holds up directly.", output::tasks(count))),
    }
    let mut facts = vec![format!("priority {}", task.priority), format!("attempts {}", task.attempts)];
    if task.fence > 0 {
        facts.push(format!("last fence {}", task.fence));
    }
    if !task.labels.is_empty() {
        facts.push(format!("labels {}", task.labels.join(", ")));
    }
    lines.push(facts.join("; "));
    lines
}

/// Why an open task can, or cannot, be claimed.
fn open(model: &Model, task: &Task, standing: Standing, lines: &mut Vec<String>) {
    let early = task.not_before.filter(|time| *time > model.now());
    if let Some(time) = early {
        let left = brief(time.saturating_since(model.now()));
        lines.push(format!("It may not be claimed before {time}, in {left}."));
    }
    let undone: Vec<&TaskId> = task
        .deps
        .iter()
        .filter(|dep| {
            model.find(&dep.id).is_none_or(|(found, _)| dep.rule.verdict(found.state) != Some(true))
        })
        .map(|dep| &dep.id)
        .collect();
    if undone.is_empty() {
        if early.is_none() {
            lines.push("Nobody holds it and it waits for nothing: it can be claimed now.".into());
            lines.push(match before_it(model, task) {
                0 => "It is the next one to be handed out, to a worker that takes its labels.".into(),
                count => format!("{} handed out before it.", are(count)),
            });
        }
        return;
    }
    let is_never = |id: &&TaskId| {
        let dep = task.deps.iter().find(|dep| dep.id == **id);
        let state = model.find(id).map(|(found, _)| found.state);
        dep.zip(state).is_some_and(|(dep, state)| dep.rule.verdict(state) == Some(false))
    };
    let (never, undone): (Vec<&TaskId>, Vec<&TaskId>) = undone.into_iter().partition(is_never);
    if !never.is_empty() {
        let when =
            if undone.is_empty() { "by whoever looks for a task next" } else { "once the others have ended" };
        lines.push(format!(
            "It never begins, and is skipped {when}, for these ended otherwise than it needs:"
        ));
        for dep in never.iter().take(NAMED) {
            lines.push(format!("  {}", standing_of(model, dep)));
        }
        more(lines, never.len());
    }
    if !undone.is_empty() {
        lines.push(format!("It waits for {} of its {}:", undone.len(), deps(task.deps.len())));
        for dep in undone.iter().take(NAMED) {
            lines.push(format!("  {}", standing_of(model, dep)));
        }
        more(lines, undone.len());
    }
    if standing == Standing::Blocked {
        let causes = causes(model, task);
        let indirect: Vec<&TaskId> = causes.into_iter().filter(|id| !undone.contains(id)).collect();
        if !indirect.is_empty() {
            lines.push("They wait, directly or not, for what cannot become done by itself:".into());
            lines.extend(indirect.iter().take(NAMED).map(|id| format!("  {}", standing_of(model, id))));
            more(lines, indirect.len());
        }
    }
}

fn more(lines: &mut Vec<String>, count: usize) {
    if count > NAMED {
        lines.push(format!("  … and {} more", count - NAMED));
    }
}

/// How many ready tasks are handed out before this one.
fn before_it(model: &Model, task: &Task) -> usize {
    let rank = |task: &Task| (std::cmp::Reverse(task.priority), task.order);
    let ready =
        model.tasks.iter().zip(&model.standings).filter(|(_, standing)| **standing == Standing::Ready);
    ready
        .filter(|(other, _)| other.not_before.is_none_or(|time| time <= model.now()))
        .filter(|(other, _)| (rank(other), &other.id) < (rank(task), &task.id))
        .count()
}

/// The dependencies of a task that may still come to something else, the last one first.
fn unsettled<'a>(model: &'a Model, task: &'a Task) -> impl Iterator<Item = &'a TaskId> {
    let is_open =
        |dep: &&Dep| model.find(&dep.id).is_none_or(|(found, _)| dep.rule.verdict(found.state).is_none());
    task.deps.iter().rev().filter(is_open).map(|dep| &dep.id)
}

/// What makes that a task cannot run: tasks below it that failed, were cancelled or are missing.
fn causes<'a>(model: &'a Model, task: &'a Task) -> Vec<&'a TaskId> {
    let mut found = Vec::new();
    let mut seen: HashSet<&TaskId> = HashSet::new();
    let mut next: Vec<&TaskId> = unsettled(model, task).collect();
    while let Some(id) = next.pop() {
        if !seen.insert(id) {
            continue;
        }
        match model.find(id) {
            None | Some((_, Standing::Failed | Standing::Cancelled | Standing::Unknown)) => found.push(id),
            Some((dep, Standing::Blocked)) => next.extend(unsettled(model, dep)),
            Some(_) => {}
        }
    }
    found
}

/// A task and how it stands.
pub(crate) fn standing_of(model: &Model, id: &TaskId) -> String {
    match model.find(id) {
        Some((task, standing)) => format!("{id}: {}", status(model, task, standing)),
        None => format!("{id}: missing, there is no such task"),
    }
}

/// How a task stands, in a few words.
fn status(model: &Model, task: &Task, standing: Standing) -> String {
    let ago = brief(model.now().saturating_since(task.touched));
    let outcome = outcome_text(task).map(|text| format!(": {text}")).unwrap_or_default();
    match standing {
        Standing::Running => held(model, task),
        Standing::Ready => match task.not_before.filter(|time| *time > model.now()) {
            Some(time) => format!("not before {time}"),
            None => "ready, and nobody has claimed it yet".into(),
        },
        Standing::Waiting => "waits for others itself".into(),
        Standing::Blocked => "is blocked itself".into(),
        Standing::Failed | Standing::Done | Standing::Cancelled | Standing::Skipped => {
            format!("{} {ago} ago{outcome}", standing.as_str())
        }
        Standing::Unknown => "in a state that this version does not know".into(),
    }
}

/// Who holds a task, since when and until when.
fn held(model: &Model, task: &Task) -> String {
    let owner = task.owner.as_ref().map_or_else(|| "somebody".to_owned(), ToString::to_string);
    let age = age(model, task).map(|age| format!(" for {age}")).unwrap_or_default();
    let until = match task.lease.and_then(|lease| lease.until) {
        None => "for ever: only `coord release` frees it".to_owned(),
        Some(until) if until > model.now() => {
            format!("until {until}, in {}, unless it is renewed", brief(until.saturating_since(model.now())))
        }
        Some(until) => format!(
            "but its lease ended {} ago: whoever comes next takes it over",
            brief(model.now().saturating_since(until))
        ),
    };
    format!("held by {owner}{age} under fence {}, {until}", task.fence)
}

/// How long a task is held; with a sign in front where it may be longer.
pub(crate) fn age(model: &Model, task: &Task) -> Option<String> {
    let held = model.work.held(task)?;
    let age = brief(model.now().saturating_since(held.since));
    Some(if held.exact { age } else { format!("≥{age}") })
}

/// A duration in whole seconds, or as [`seconds`] says it from a minute on.
pub(crate) fn brief(duration: Duration) -> String {
    if duration.as_secs() < 60 { format!("{}s", duration.as_secs()) } else { seconds(duration) }
}

fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}

fn are(count: usize) -> String {
    if count == 1 { "1 ready task is".into() } else { format!("{count} ready tasks are") }
}

fn deps(count: usize) -> String {
    if count == 1 { "1 dependency".into() } else { format!("{count} dependencies") }
}
