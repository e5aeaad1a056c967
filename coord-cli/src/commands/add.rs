//! `coord add`, and the adding that `coord run` begins with.

use std::collections::BTreeMap;

use coord_core::Namespace;
use coord_core::board::{BoardError, Plan, PlanReport, Task, TaskId};
use serde_json::json;

use super::remove::remove_with_dependents;
use crate::args::{AddArgs, PlanArgs};
use crate::definition::differences;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::plan;
use crate::store::OpenBoard;

/// The most tasks that are named one by one.
const NAMED: usize = 10;

/// A plan that is on its board.
#[derive(Debug)]
pub(crate) struct AddedPlan {
    /// The board.
    pub(crate) opened: OpenBoard,
    /// The plan.
    pub(crate) plan: Plan,
    /// What was new.
    pub(crate) report: PlanReport,
    /// How many tasks were removed because the plan defines them otherwise.
    pub(crate) replaced: usize,
}

/// Reads a plan, checks it whole, and only then opens the store and adds it.
pub(crate) async fn add_plan(args: &PlanArgs) -> Result<AddedPlan, Failure> {
    let file = plan::read(&args.plan)?;
    let name: Namespace = args.board.clone().or(file.board).ok_or_else(|| {
        Failure::usage(format!("the board of {} has no name", args.plan.display())).help(
            "add a line `name = \"...\"` in [plan], or give --board NAME: at most 64 of A-Z a-z 0-9 _ . -",
        )
    })?;
    let opened = args.store.store().create_board(name).await?;
    let mut replaced = 0;
    let mut changed = changed(&opened, &file.plan).await?;
    if args.replace && !changed.is_empty() {
        let ids: Vec<TaskId> = changed.iter().map(|(id, _)| id.clone()).collect();
        replaced = remove_with_dependents(&opened, &ids).await?.len();
        changed.clear();
    }
    if !changed.is_empty() {
        return Err(refusal(&opened, args, &changed));
    }
    let report = match opened.board.add_plan(&file.plan).await {
        Ok(report) => report,
        // Somebody else was faster with another plan.
        Err(BoardError::AlreadyExists { id }) => {
            return Err(refusal(&opened, args, &[(id, vec!["definition"])]));
        }
        Err(error) => {
            return Err(
                Failure::from(error).context(format!("the plan cannot be added to board {}", opened.name))
            );
        }
    };
    Ok(AddedPlan { opened, plan: file.plan, report, replaced })
}

/// The tasks that the board has with another definition, and what differs.
async fn changed(opened: &OpenBoard, plan: &Plan) -> Result<Vec<(TaskId, Vec<&'static str>)>, Failure> {
    let tasks = opened.list().await?;
    let found: BTreeMap<&TaskId, &Task> = tasks.iter().map(|task| (&task.id, task)).collect();
    let compare = |wanted: &coord_core::board::TaskSpec| {
        let fields = differences(wanted, found.get(&wanted.id)?);
        if fields.is_empty() { None } else { Some((wanted.id.clone(), fields)) }
    };
    Ok(plan.tasks().iter().filter_map(compare).collect())
}

fn refusal(opened: &OpenBoard, args: &PlanArgs, changed: &[(TaskId, Vec<&'static str>)]) -> Failure {
    let named: Vec<String> = changed
        .iter()
        .take(NAMED)
        .map(|(id, fields)| format!("{:?} ({})", id.as_str(), fields.join(", ")))
        .collect();
    let more = match changed.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let plan = args.plan.display();
    Failure::usage(format!(
        "{plan}: board {} has {} of these tasks with another definition: {}{more}",
        opened.name,
        changed.len(),
        named.join(", ")
    ))
    .help(format!("to run the new definition: the same command with --replace removes these tasks and all that depend on them, and adds them anew (`coord remove ID --dependents --board {}` does one by hand)", opened.name))
    .help("to keep the old run as it is: the same command with --board and another name")
}

/// `coord add`.
pub(crate) async fn run(args: &AddArgs) -> Result<u8, Failure> {
    let AddedPlan { opened, report, replaced, .. } = add_plan(&args.plan).await?;
    match args.plan.store.format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(), "added": report.added, "existed": report.existed, "replaced": replaced,
        })),
        Format::Text => {
            output::line(&format!(
                "board {}: {} added, {} there already",
                opened.name,
                output::tasks(report.added),
                report.existed
            ));
        }
    }
    Ok(exit::OK)
}
