//! One frame as text, for whoever has no terminal.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde_json::{Value, json};

use super::model::{Model, Tab};
use super::table::table;
use super::update::{Event, update};
use crate::commands::task_json;
use crate::output;
use crate::standing::Standing;

/// How many tasks of a list are shown: of the running ones, and of the others.
const ROWS: (usize, usize) = (100, 10);

/// All lists that are not empty, save what is done.
pub(crate) fn frame(model: &mut Model, width: u16) -> String {
    let mut text = format!("board {} of {}: {}\n", model.board, model.store, model.counts);
    text = output::clean(text.trim_end()) + "\n";
    for tab in Tab::ALL {
        model.show(tab);
        let count = model.len();
        if tab == Tab::Done || count == 0 {
            continue;
        }
        let most = if tab == Tab::Running { ROWS.0 } else { ROWS.1 };
        let height = u16::try_from(count.min(most) + 1).unwrap_or(u16::MAX);
        let area = Rect { x: 0, y: 0, width, height };
        let mut buf = Buffer::empty(area);
        table(model, tab, 0, None, area, &mut buf);
        text.push_str(&format!("\n{} {count}\n", tab.as_str()));
        for line in lines(&buf) {
            text.push_str(format!("  {line}").trim_end());
            text.push('\n');
        }
        if count > most {
            text.push_str(&format!("  … and {} more\n", count - most));
        }
    }
    text
}

/// The lines of a buffer, without what only fills them.
pub(crate) fn lines(buf: &Buffer) -> Vec<String> {
    let area = *buf.area();
    (area.top()..area.bottom())
        .map(|y| {
            let mut line = String::new();
            let mut x = area.left();
            while x < area.right() {
                let symbol = buf[(x, y)].symbol();
                line.push_str(symbol);
                // A wide character covers the cells after it.
                x += u16::try_from(output::width(symbol)).unwrap_or(1).max(1);
            }
            line.trim_end().to_owned()
        })
        .collect()
}

/// The same as a document.
pub(crate) fn document(model: &Model) -> Value {
    let running =
        model.tasks.iter().zip(&model.standings).filter(|(_, standing)| **standing == Standing::Running);
    json!({
        "board": model.board,
        "store": model.store,
        "time": model.now().to_string(),
        "counts": model.counts.to_json(),
        "running": running.map(|(task, standing)| task_json(task, *standing)).collect::<Vec<Value>>(),
    })
}

/// A model that has been listed once.
pub(crate) fn listed(mut model: Model, listing: super::model::Listing) -> Model {
    let at = listing.at;
    update(&mut model, Event::Listed(Box::new(listing)), at);
    model
}
