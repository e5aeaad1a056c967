//! `coord graph`.

use crate::args::{GraphArgs, GraphFormat};
use crate::failure::{Failure, exit};
use crate::graph::Graph;
use crate::output;
use crate::plan;
use crate::standing::standings;
use crate::store::Store;

/// `coord graph`.
pub(crate) async fn run(args: &GraphArgs) -> Result<u8, Failure> {
    let graph = if let Some(path) = &args.plan {
        let file = plan::read(path)?;
        let name =
            args.board.as_ref().or(file.board.as_ref()).map_or("plan", |board| board.as_str()).to_owned();
        Graph::of_plan(&name, &file.plan)
    } else {
        let opened = Store::new(&args.store, None).existing_board(args.board.as_ref()).await?;
        let mut tasks = opened.list().await?;
        tasks.sort_by(|a, b| (a.order, &a.id).cmp(&(b.order, &b.id)));
        Graph::of_board(opened.name.as_str(), &tasks, &standings(&tasks))
    };
    match args.format {
        GraphFormat::Dot => output::text(&graph.dot()),
        GraphFormat::Mermaid => output::text(&graph.mermaid()),
        GraphFormat::Json => output::json(&graph.json()),
    }
    Ok(exit::OK)
}
