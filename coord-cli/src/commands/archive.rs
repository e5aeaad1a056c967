//! `coord archive`.

use coord_core::board::{Archive, TaskId};
use serde_json::json;

use crate::args::ArchiveArgs;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};

/// How many tasks are looked at in one call.
const PAGE: usize = 500;

/// `coord archive`.
pub(crate) async fn run(args: &ArchiveArgs) -> Result<u8, Failure> {
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    let mut request = Archive::older_than(args.older_than).most(PAGE);
    if args.failed {
        request = request.failed();
    }
    if args.cancelled {
        request = request.cancelled();
    }
    let mut archived: Vec<TaskId> = Vec::new();
    loop {
        // What depended on others is looked at in another page than these, so it is gone through until nothing goes any more.
        let before = archived.len();
        let mut after = None;
        loop {
            let report = opened.board.archive(&request.clone().after(after)).await.map_err(|error| {
                let gone = format!("{} archived before", output::tasks(archived.len()));
                Failure::from(error).context(gone).help("the same command goes on where it stopped")
            })?;
            archived.extend(report.archived);
            after = report.next;
            if after.is_none() {
                break;
            }
        }
        if archived.len() == before {
            break;
        }
    }
    match args.board.store.format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(), "archived": archived.iter().map(TaskId::as_str).collect::<Vec<_>>(),
        })),
        Format::Text => {
            output::line(&format!("board {}: {} archived", opened.name, output::tasks(archived.len())));
        }
    }
    Ok(exit::OK)
}
