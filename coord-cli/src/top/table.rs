//! The lists as tables: which columns there are, how wide they are, and what stands in them.

use coord_core::board::Task;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::explain::{age, brief, standing_of};
use super::model::{Model, Tab};
use super::work::{Who, Worker};
use crate::commands::outcome_text;
use crate::output;

/// Between two columns.
const GAP: u16 = 2;

/// A column.
#[derive(Clone, Copy, Debug)]
struct Column {
    head: &'static str,
    /// Narrower than this it says nothing.
    least: u16,
    /// Wider than this it is never, save the last one.
    most: u16,
    /// Where there is no room for all columns, the largest one of these goes first.
    rank: u8,
    right: bool,
}

const fn text(head: &'static str, least: u16, most: u16, rank: u8) -> Column {
    Column { head, least, most, rank, right: false }
}

const fn number(head: &'static str, least: u16, rank: u8) -> Column {
    Column { head, least, most: 12, rank, right: true }
}

const fn columns(tab: Tab) -> &'static [Column] {
    match tab {
        Tab::Running => {
            const {
                &[
                    text("TASK", 6, 40, 0),
                    text("WORKER", 6, 30, 2),
                    number("FENCE", 5, 4),
                    number("AGE", 6, 3),
                    number("LEFT", 7, 1),
                    text("TITLE", 8, 60, 5),
                ]
            }
        }
        Tab::Ready => {
            const {
                &[
                    text("TASK", 6, 40, 0),
                    number("PRIO", 4, 1),
                    number("TRIES", 5, 3),
                    text("WHEN", 8, 12, 2),
                    text("TITLE", 8, 60, 4),
                ]
            }
        }
        Tab::Waiting => {
            const {
                &[
                    text("TASK", 6, 40, 0),
                    number("PRIO", 4, 2),
                    text("WAITS FOR", 9, 50, 1),
                    text("TITLE", 8, 60, 3),
                ]
            }
        }
        Tab::Blocked => {
            const { &[text("TASK", 6, 40, 0), number("PRIO", 4, 2), text("BY", 9, 60, 1), text("TITLE", 8, 60, 3)] }
        }
        Tab::Cancelled => {
            const {
                &[
                    text("TASK", 6, 40, 0),
                    number("AGO", 6, 2),
                    number("TRIES", 5, 3),
                    text("STATE", 9, 9, 1),
                    text("TITLE", 8, 60, 4),
                ]
            }
        }
        Tab::Failed => {
            const {
                &[
                    text("TASK", 6, 40, 0),
                    number("AGO", 6, 2),
                    number("TRIES", 5, 3),
                    text("OUTCOME", 8, 60, 1),
                    text("TITLE", 8, 60, 4),
                ]
            }
        }
        Tab::Done => {
            const {
                &[
                    text("TASK", 6, 40, 0),
                    number("AGO", 6, 1),
                    text("OUTCOME", 8, 40, 2),
                    text("TITLE", 8, 60, 3),
                ]
            }
        }
        Tab::Workers => {
            const {
                &[
                    text("WORKER", 6, 60, 0),
                    number("HOLDS", 5, 1),
                    number("DONE", 5, 3),
                    number("A MINUTE", 8, 2),
                ]
            }
        }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
struct Cell {
    text: String,
    bad: bool,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell { text: text.into(), bad: false }
    }
}

/// Draws rows of a list from this one on, under a line of heads, as many as there is room for; one of them may be selected.
pub(crate) fn table(
    model: &Model,
    tab: Tab,
    from: usize,
    selected: Option<usize>,
    area: Rect,
    buf: &mut Buffer,
) {
    let area = area.intersection(buf.area);
    if area.is_empty() {
        return;
    }
    let room = usize::from(area.height) - 1;
    let rows: Vec<Vec<Cell>> = if tab == Tab::Workers {
        model.workers().into_iter().skip(from).take(room).map(|row| worker(model, row)).collect()
    } else {
        model.rows.iter().skip(from).take(room).map(|index| cells(model, tab, &model.tasks[*index])).collect()
    };
    let places = places(columns(tab), &rows, area.width);
    let head = Style::new().add_modifier(Modifier::DIM);
    for (column, x, width) in &places {
        let column = &columns(tab)[*column];
        put(buf, area.x + x, area.y, column.head, *width, column.right, head);
    }
    for (y, row) in (area.y + 1..).zip(&rows) {
        for (column, x, width) in &places {
            let cell = &row[*column];
            let style = if cell.bad { colored(model, Color::Red) } else { Style::new() };
            put(buf, area.x + x, y, &cell.text, *width, columns(tab)[*column].right, style);
        }
    }
    if let Some(row) = selected.and_then(|row| row.checked_sub(from)).filter(|row| *row < rows.len())
        && let Ok(row) = u16::try_from(row)
    {
        let line = Rect { x: area.x, y: area.y + 1 + row, width: area.width, height: 1 };
        buf.set_style(line, Style::new().add_modifier(Modifier::REVERSED));
    }
}

/// Where the columns are that there is room for: number, first cell, width.
fn places(columns: &[Column], rows: &[Vec<Cell>], width: u16) -> Vec<(usize, u16, u16)> {
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let needed = |kept: &[usize]| {
        let gaps = GAP * u16::try_from(kept.len().saturating_sub(1)).unwrap_or(0);
        kept.iter().map(|column| columns[*column].least).sum::<u16>() + gaps
    };
    // A column of which every cell is empty is not worth its room.
    kept.retain(|column| {
        *column == 0 || rows.is_empty() || rows.iter().any(|row| !row[*column].text.is_empty())
    });
    while kept.len() > 1 && needed(&kept) > width {
        let last = kept.iter().enumerate().max_by_key(|(_, column)| columns[**column].rank);
        let Some((last, _)) = last else { break };
        kept.remove(last);
    }
    let mut spare = width.saturating_sub(needed(&kept));
    let mut widths: Vec<u16> = kept.iter().map(|column| columns[*column].least).collect();
    let mut order: Vec<usize> = (0..kept.len()).collect();
    order.sort_by_key(|at| columns[kept[*at]].rank);
    for at in order {
        let column = &columns[kept[at]];
        let widest = rows.iter().map(|row| output::width(&row[kept[at]].text)).max().unwrap_or(0);
        let widest = u16::try_from(widest).unwrap_or(u16::MAX).max(column.least);
        let wanted = if at + 1 == kept.len() { widest } else { widest.min(column.most) };
        let more = (wanted - column.least).min(spare);
        widths[at] += more;
        spare -= more;
    }
    let mut x = 0;
    let mut places = Vec::with_capacity(kept.len());
    for (column, own) in kept.into_iter().zip(widths) {
        places.push((column, x, own.min(width.saturating_sub(x))));
        x = x.saturating_add(own + GAP);
    }
    places
}

/// Writes a text, cleaned and cut to this width.
pub(crate) fn put(buf: &mut Buffer, x: u16, y: u16, text: &str, width: u16, right: bool, style: Style) {
    let area = *buf.area();
    if x >= area.right() || y >= area.bottom() || width == 0 {
        return;
    }
    let text = output::fit(text, usize::from(width));
    let used = u16::try_from(output::width(&text)).unwrap_or(width).min(width);
    let x = if right { x + (width - used) } else { x };
    buf.set_stringn(x, y, text, usize::from(width), style);
}

/// A color, if there are any.
pub(crate) fn colored(model: &Model, color: Color) -> Style {
    if model.colors { Style::new().fg(color) } else { Style::new() }
}

fn worker(model: &Model, (who, worker): (&Who, &Worker)) -> Vec<Cell> {
    vec![
        who.to_string().into(),
        worker.holds.to_string().into(),
        worker.done().to_string().into(),
        pace(model.work.a_minute(worker.done())).into(),
    ]
}

/// Tasks a minute.
pub(crate) fn pace(a_minute: Option<f64>) -> String {
    a_minute.map_or_else(|| "…".to_owned(), |a_minute| format!("{a_minute:.1}"))
}

fn cells(model: &Model, tab: Tab, task: &Task) -> Vec<Cell> {
    let id = Cell::from(task.id.as_str());
    let title = Cell::from(task.title.as_str());
    let priority = Cell::from(task.priority.to_string());
    let tries = Cell::from(task.attempts.to_string());
    let ago = Cell::from(brief(model.now().saturating_since(task.touched)));
    let outcome = Cell::from(outcome_text(task).unwrap_or_default());
    match tab {
        Tab::Running => {
            let owner = task.owner.as_ref().map(ToString::to_string).unwrap_or_default();
            let fence = task.fence.to_string();
            vec![
                id,
                owner.into(),
                fence.into(),
                age(model, task).unwrap_or_default().into(),
                left(model, task),
                title,
            ]
        }
        Tab::Ready => {
            let early = task.not_before.filter(|time| *time > model.now());
            let when = early.map(|time| format!("in {}", brief(time.saturating_since(model.now()))));
            vec![id, priority, tries, when.unwrap_or_default().into(), title]
        }
        Tab::Waiting => vec![id, priority, waits_for(model, task).into(), title],
        Tab::Blocked => {
            let by = model.blocker(&task.id).map(|blocker| standing_of(model, blocker));
            vec![id, priority, by.unwrap_or_default().into(), title]
        }
        Tab::Failed => vec![id, ago, tries, outcome, title],
        // Which of both it is: cancelled by somebody, or skipped by its rules.
        Tab::Cancelled => vec![id, ago, tries, task.state.as_str().into(), title],
        Tab::Done => vec![id, ago, outcome, title],
        Tab::Workers => vec![Cell::default(); columns(tab).len()],
    }
}

/// How long the lease of a task still lives.
fn left(model: &Model, task: &Task) -> Cell {
    match task.lease.and_then(|lease| lease.until) {
        None => "for ever".into(),
        Some(until) if until > model.now() => brief(until.saturating_since(model.now())).into(),
        Some(_) => Cell { text: "expired".into(), bad: true },
    }
}

/// What a task waits for: how many, and the first of them.
fn waits_for(model: &Model, task: &Task) -> String {
    let mut undone = task.deps.iter().filter(|dep| {
        model.find(&dep.id).is_none_or(|(found, _)| dep.rule.verdict(found.state) != Some(true))
    });
    let Some(first) = undone.next() else { return String::new() };
    match undone.count() {
        0 => first.id.to_string(),
        more => format!("{} and {more} more", first.id),
    }
}
