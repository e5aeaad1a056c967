//! The subcommands that look at a board or change it.

pub(crate) mod add;
pub(crate) mod archive;
pub(crate) mod boards;
pub(crate) mod check;
pub(crate) mod edit;
pub(crate) mod explain;
pub(crate) mod graph;
pub(crate) mod history;
pub(crate) mod ls;
pub(crate) mod remove;
pub(crate) mod show;
pub(crate) mod wait;

use coord_core::board::{BoardError, Task, TaskId};
use serde_json::{Value, json};

use crate::definition::{Definition, Ended};
use crate::failure::Failure;
use crate::standing::Standing;

/// The ids of an argument list, each once.
fn ids(texts: &[String]) -> Result<Vec<TaskId>, Failure> {
    let mut ids = Vec::with_capacity(texts.len());
    for text in texts {
        let id = TaskId::new(text).map_err(|error: BoardError| Failure::from(error).context("ID"))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// A task as JSON: everything that everybody may know.
pub(crate) fn task_json(task: &Task, standing: Standing) -> Value {
    let lease = task
        .lease
        .map(|lease| json!({ "fence": lease.fence, "until": lease.until.map(|until| until.to_string()) }));
    let ended = task.outcome.as_ref().and_then(Ended::from_outcome);
    let definition = Definition::from_payload(&task.payload).ok();
    let progress = task
        .progress
        .as_ref()
        .map(|told| json!({ "text": told.text, "at": told.at.to_string(), "fence": told.fence }));
    json!({
        "id": task.id.as_str(),
        "title": task.title,
        "state": task.state.as_str(),
        "standing": standing.as_str(),
        "deps": task.deps,
        "owner": task.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        "lease": lease,
        "seq": task.seq,
        "fence": task.fence,
        "order": task.order,
        "priority": task.priority,
        "labels": task.labels,
        "attempts": task.attempts,
        "attempts_left": task.attempts_left(),
        "not_before": task.not_before.map(|time| time.to_string()),
        "retry": task.retry.map(|retry| json!({
            "attempts": retry.attempts,
            "backoff_ms": retry.backoff.as_millis(),
            "max_backoff_ms": retry.max_backoff.as_millis(),
        })),
        "outcome": task.outcome.as_ref().map(|outcome| outcome.as_str().to_owned()),
        "ended": ended,
        "definition": definition,
        "touched": task.touched.to_string(),
        "progress": progress,
    })
}

/// An outcome for people.
pub(crate) fn outcome_text(task: &Task) -> Option<String> {
    let outcome = task.outcome.as_ref()?;
    Some(match Ended::from_outcome(outcome) {
        Some(ended) => ended.to_string(),
        None => outcome.as_str().to_owned(),
    })
}
