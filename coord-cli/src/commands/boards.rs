//! `coord boards`.

use coord_core::Namespace;
use serde_json::json;

use crate::args::StoreArgs;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};

/// `coord boards`.
pub(crate) async fn run(args: &StoreArgs) -> Result<u8, Failure> {
    let store = args.store();
    let boards = store.boards().await?;
    match args.format {
        Format::Json => output::json(&json!({
            "store": store.shown(), "boards": boards.iter().map(Namespace::as_str).collect::<Vec<_>>(),
        })),
        Format::Text => {
            for board in boards {
                output::line(board.as_str());
            }
        }
    }
    Ok(exit::OK)
}
