//! `coord show`.

use coord_core::board::{State, Task, TaskId};
use serde_json::json;

use super::{outcome_text, task_json};
use crate::args::ShowArgs;
use crate::definition::{Definition, seconds};
use crate::failure::{Failure, exit};
use crate::logs::last_lines;
use crate::output::{self, Format};
use crate::standing::{Standing, standings};

/// `coord show`.
pub(crate) async fn run(args: &ShowArgs) -> Result<u8, Failure> {
    let id = TaskId::new(&args.id)?;
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    // First the task, so that an unknown one is said even on a board that is too large to list.
    let task = opened.get(&id).await?;
    let tasks = opened.list().await?;
    let standing_of = |id: &TaskId| {
        let found = standings(&tasks).into_iter().zip(&tasks).find(|(_, task)| task.id == *id);
        found.map(|(standing, _)| standing)
    };
    let standing = standing_of(&id).unwrap_or(Standing::Unknown);
    let waits: Vec<&str> = task
        .deps
        .iter()
        .filter(|dep| {
            !tasks.iter().any(|task| task.id == dep.id && dep.rule.verdict(task.state) == Some(true))
        })
        .map(|dep| dep.id.as_str())
        .collect();
    let dependents: Vec<&str> =
        tasks.iter().filter(|task| task.depends_on(&id)).map(|task| task.id.as_str()).collect();
    // What was skipped never began: whatever is there is of an earlier life.
    let log = if task.state == State::Skipped { None } else { opened.logs.latest(&id) };
    let output = log.as_ref().and_then(|path| last_lines(path, args.tail).ok());
    match args.board.store.format {
        Format::Json => {
            let mut document = task_json(&task, standing);
            document["board"] = opened.name.as_str().into();
            document["waits_for"] = json!(waits);
            document["dependents"] = json!(dependents);
            document["log"] = json!(log);
            document["output"] = json!(output.map(|(lines, _)| lines));
            output::json(&document);
        }
        Format::Text => {
            output::text(&facts(&task, standing, &waits, &dependents));
            if let (Some(log), Some((lines, more))) = (log, output) {
                let what = if more { "the last lines of its output" } else { "its output" };
                output::line(&format!("{what}, from {}:", log.display()));
                for line in lines {
                    output::line(&format!("  {}", output::clean_line(&line)));
                }
            }
        }
    }
    Ok(exit::OK)
}

/// How often it was tried, and how often and when it is tried again.
fn attempts(task: &Task) -> String {
    let (Some(retry), Some(left)) = (task.retry, task.attempts_left()) else {
        return task.attempts.to_string();
    };
    let rest = if left == 0 || task.state.is_terminal() {
        String::new()
    } else {
        let [first, longest] = [retry.backoff, retry.max_backoff].map(humantime::format_duration);
        format!("; {left} left, after rests of up to {first}, doubling to {longest}")
    };
    format!("{} of {}{rest}", task.attempts, retry.attempts)
}

fn facts(task: &Task, standing: Standing, waits: &[&str], dependents: &[&str]) -> String {
    let mut lines = Vec::new();
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("{name:<11} {}", output::clean(&value)));
        }
    };
    fact("task", task.id.to_string());
    fact("title", task.title.clone());
    fact("state", format!("{} ({standing})", task.state, standing = standing.as_str()));
    fact("outcome", outcome_text(task).unwrap_or_default());
    if let Some(owner) = &task.owner {
        fact("held by", owner.to_string());
    }
    if let Some(lease) = task.lease {
        let until = lease.until.map_or_else(|| "for ever".to_owned(), |until| format!("until {until}"));
        fact("lease", format!("fence {}, {until}", lease.fence));
    }
    if let Some(told) = &task.progress {
        fact("progress", format!("{} ({})", told.text, told.at));
    }
    fact("deps", task.deps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    fact("waits for", waits.join(", "));
    fact("dependents", dependents.join(", "));
    fact("labels", task.labels.join(", "));
    fact("priority", task.priority.to_string());
    fact("attempts", attempts(task));
    fact("not before", task.not_before.map(|time| time.to_string()).unwrap_or_default());
    fact("fence", task.fence.to_string());
    fact("seq", task.seq.to_string());
    fact("touched", task.touched.to_string());
    match Definition::from_payload(&task.payload) {
        Ok(definition) => {
            fact("timeout", definition.timeout().map(seconds).unwrap_or_default());
            fact("cwd", definition.cwd.clone().unwrap_or_default());
            let env: Vec<String> =
                definition.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            fact("env", env.join(" "));
            if let Some(effect) = &definition.effect {
                let resource =
                    effect.resource.as_ref().map(|resource| format!(" on {resource}")).unwrap_or_default();
                fact("effect", format!("{}{resource}", effect.key));
            }
            for (at, line) in definition.run.trim_end().lines().enumerate() {
                fact(if at == 0 { "run" } else { "" }, line.to_owned());
            }
        }
        Err(error) => fact("payload", format!("{} bytes; {error}", task.payload.len())),
    }
    lines.push(String::new());
    lines.join("\n")
}
