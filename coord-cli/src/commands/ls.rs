//! `coord ls`.

use coord_core::board::Task;
use serde_json::{Value, json};

use super::{outcome_text, task_json};
use crate::args::{LsArgs, StandingArg};
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::standing::{Counts, Standing, standings};

impl StandingArg {
    fn standing(self) -> Standing {
        match self {
            StandingArg::Running => Standing::Running,
            StandingArg::Ready => Standing::Ready,
            StandingArg::Waiting => Standing::Waiting,
            StandingArg::Blocked => Standing::Blocked,
            StandingArg::Failed => Standing::Failed,
            StandingArg::Cancelled => Standing::Cancelled,
            StandingArg::Skipped => Standing::Skipped,
            StandingArg::Done => Standing::Done,
            StandingArg::Unknown => Standing::Unknown,
        }
    }
}

/// `coord ls`.
pub(crate) async fn run(args: &LsArgs) -> Result<u8, Failure> {
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    let tasks = opened.list().await?;
    let standings = standings(&tasks);
    let counts = Counts::of(standings.iter().copied());
    let filter = args.filter.filter();
    let wanted: Vec<Standing> = args.state.iter().map(|state| state.standing()).collect();
    let mut shown: Vec<(&Task, Standing)> = tasks
        .iter()
        .zip(standings)
        .filter(|(_, standing)| wanted.is_empty() || wanted.contains(standing))
        .filter(|(task, _)| filter.matches(&task.labels))
        .collect();
    // The order in which they were added is that of the plan, which people know.
    shown.sort_by(|(a, _), (b, _)| (a.order, &a.id).cmp(&(b.order, &b.id)));
    match args.board.store.format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(),
            "counts": counts.to_json(),
            "tasks": shown.iter().map(|(task, standing)| task_json(task, *standing)).collect::<Vec<Value>>(),
        })),
        Format::Text => {
            output::text(&table(&shown));
            output::line(&format!("board {}: {counts}", opened.name));
        }
    }
    Ok(exit::OK)
}

fn table(shown: &[(&Task, Standing)]) -> String {
    let width = shown.iter().map(|(task, _)| output::width(task.id.as_str())).max();
    let width = width.unwrap_or(0).clamp(2, 40);
    let mut text = String::new();
    for (task, standing) in shown {
        let state = output::style(*standing).apply_to(output::pad(standing.as_str(), 9));
        let id = output::pad(task.id.as_str(), width);
        let mut facts = Vec::new();
        if task.priority != 0 {
            facts.push(format!("priority {}", task.priority));
        }
        if let Some(owner) = &task.owner {
            let until = task.lease.and_then(|lease| lease.until);
            let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
            facts.push(format!("{owner} (fence {}{until})", task.fence));
        }
        if let Some(outcome) = outcome_text(task) {
            facts.push(outcome);
        }
        if !task.title.is_empty() {
            facts.push(task.title.clone());
        }
        text.push_str(format!("{state} {id}  {}", output::fit(&facts.join("; "), 120)).trim_end());
        text.push('\n');
    }
    text
}
