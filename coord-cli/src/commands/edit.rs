//! `coord cancel`, `coord release` and `coord reopen`.

use coord_core::board::{BoardError, State, TaskId};
use serde_json::{Value, json};

use super::ids;
use crate::args::{BoardArgs, IdsArgs, ReleaseArgs};
use crate::effects::word;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::store::OpenBoard;

/// `coord cancel`.
pub(crate) async fn cancel(args: &IdsArgs) -> Result<u8, Failure> {
    let mut edit = Edit::new(&args.board, &args.ids).await?;
    for id in edit.ids.clone() {
        let result = edit.opened.board.cancel(&id).await;
        edit.note(&id, result.map(|()| "cancelled").map_err(Failure::from));
    }
    Ok(edit.report())
}

/// `coord reopen`.
pub(crate) async fn reopen(args: &IdsArgs) -> Result<u8, Failure> {
    let mut edit = Edit::new(&args.board, &args.ids).await?;
    for id in edit.ids.clone() {
        let result = edit.opened.board.reopen(&id).await;
        let told = result.map(|()| "open").map_err(|error| match error {
            BoardError::HasDependents { dependent } => Failure::failed(format!(
                "it stays as it is, for {dependent} has begun because it ended so; to run it anew, remove it with all that depend on it \
                 (`coord remove {} --dependents`) and add them again",
                word(id.as_str())
            )),
            error => error.into(),
        });
        edit.note(&id, told);
    }
    Ok(edit.report())
}

/// `coord release`.
pub(crate) async fn release(args: &ReleaseArgs) -> Result<u8, Failure> {
    let mut edit = Edit::new(&args.ids.board, &args.ids.ids).await?;
    for id in edit.ids.clone() {
        let result = release_one(&edit.opened, &id, args.fence).await;
        edit.note(&id, result.map_err(Failure::from));
    }
    Ok(edit.report())
}

async fn release_one(
    opened: &OpenBoard,
    id: &TaskId,
    fence: Option<u64>,
) -> Result<&'static str, BoardError> {
    let task = opened.board.get(id).await?;
    if task.state.is_terminal() {
        return Err(BoardError::Terminal { state: task.state });
    }
    if task.state != State::Claimed {
        return Ok("nobody holds it");
    }
    opened.board.revoke(id, fence.unwrap_or(task.fence)).await?;
    Ok("released")
}

struct Edit {
    opened: OpenBoard,
    format: Format,
    ids: Vec<TaskId>,
    results: Vec<Value>,
    lines: Vec<String>,
    code: u8,
    changed: bool,
}

impl Edit {
    async fn new(args: &BoardArgs, texts: &[String]) -> Result<Self, Failure> {
        let ids = ids(texts)?;
        let opened = args.store.store().existing_board(args.board.as_ref()).await?;
        let format = args.store.format;
        Ok(Edit {
            opened,
            format,
            ids,
            results: Vec::new(),
            lines: Vec::new(),
            code: exit::OK,
            changed: false,
        })
    }

    fn note(&mut self, id: &TaskId, result: Result<&'static str, Failure>) {
        match result {
            Ok(now) => {
                self.changed = true;
                self.results.push(json!({ "id": id.as_str(), "result": now }));
                self.lines.push(format!("{id}: {now}"));
            }
            Err(failure) => {
                self.code = self.code.max(failure.code());
                self.results.push(json!({ "id": id.as_str(), "error": failure.message() }));
                output::note(&format!("error: {}", output::clean(&format!("{id}: {}", failure.message()))));
            }
        }
    }

    /// Where something was changed the rest has failed, whatever was wrong with it: the codes of refusals say that nothing was.
    fn report(self) -> u8 {
        match self.format {
            Format::Json => {
                output::json(&json!({ "board": self.opened.name.as_str(), "tasks": self.results }));
            }
            Format::Text => {
                for line in &self.lines {
                    output::line(&output::clean(line));
                }
            }
        }
        if self.changed && self.code != exit::OK { exit::FAILED } else { self.code }
    }
}
