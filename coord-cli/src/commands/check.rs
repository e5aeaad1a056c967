//! `coord check`.

use coord_core::board::{BoardError, check};
use serde_json::json;

use crate::args::CheckArgs;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::plan;
use crate::standing::{Counts, standings};

/// `coord check`.
pub(crate) async fn run(args: &CheckArgs) -> Result<u8, Failure> {
    let format = args.board.store.format;
    if let Some(path) = &args.plan {
        let file = plan::read(path)?;
        let tasks = file.plan.tasks();
        let edges: usize = tasks.iter().map(|task| task.deps.len()).sum();
        let board = args.board.board.as_ref().or(file.board.as_ref());
        match format {
            Format::Json => output::json(&json!({
                "plan": path, "board": board.map(|board| board.as_str()), "tasks": tasks.len(),
                "dependencies": edges, "problems": [],
            })),
            Format::Text => output::line(&format!(
                "{}: {}, {edges} {}, nothing wrong",
                path.display(),
                output::tasks(tasks.len()),
                if edges == 1 { "dependency" } else { "dependencies" }
            )),
        }
        return Ok(exit::OK);
    }
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    // What is read at several instants contradicts itself without being wrong, so a board that is too large for one is read once more.
    let (tasks, problems) = match opened.board.list().await {
        Err(BoardError::TooLarge { .. }) => (opened.list().await?, opened.board.check().await?),
        listed => {
            let tasks = listed?;
            let problems = check(&tasks);
            (tasks, problems)
        }
    };
    let counts = Counts::of(standings(&tasks));
    match format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(),
            "counts": counts.to_json(),
            "problems": problems.iter().map(|problem| json!({
                "task": problem.task.as_str(), "code": problem.code.as_str(), "text": problem.text,
            })).collect::<Vec<_>>(),
        })),
        Format::Text => {
            for problem in &problems {
                output::line(&output::clean(&problem.to_string()));
            }
            let found = if problems.is_empty() {
                "nothing wrong".into()
            } else {
                format!("{} problems", problems.len())
            };
            output::line(&format!("board {}: {counts}; {found}", opened.name));
        }
    }
    Ok(if problems.is_empty() { exit::OK } else { exit::FAILED })
}
