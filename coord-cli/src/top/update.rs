//! How the state changes: a function of the state and of what happened, which does nothing but say what is to be done.

use std::time::Duration;

use coord_core::board::{State, TaskId};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Change, Listing, Mode, Model, Notice, Tab, Trouble};
use super::view;
use crate::standing::Standing;

/// The longest filter, in characters.
const FILTER: usize = 200;

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A key was pressed.
    Key(KeyEvent),
    /// The screen has this width and height.
    Resized(u16, u16),
    /// The board is being asked.
    Asking,
    /// It has answered.
    Listed(Box<Listing>),
    /// It could not be listed.
    Failed(String),
    /// A change was made, or why it was not.
    Changed(Change, TaskId, Result<(), String>),
    /// Time has passed.
    Tick,
}

/// Something that is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// End.
    Quit,
    /// End, as by Ctrl-C.
    Interrupt,
    /// Change the board.
    Change(Change, TaskId),
    /// List the board without waiting.
    List,
    /// Draw everything anew.
    Redraw,
}

/// Something happened at this time, on the clock that measures.
pub(crate) fn update(model: &mut Model, event: Event, at: Duration) -> Option<Action> {
    model.at = model.at.max(at);
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Release => None,
        Event::Key(key) => pressed(model, key),
        Event::Resized(width, height) => {
            model.size = (width, height);
            None
        }
        Event::Asking => {
            model.asking = Some(model.at);
            None
        }
        Event::Listed(listing) => {
            model.listed(*listing);
            None
        }
        Event::Failed(error) => {
            model.asking = None;
            let since = model.trouble.as_ref().map_or(model.at, |trouble| trouble.since);
            model.trouble = Some(Trouble { since, error });
            None
        }
        Event::Changed(change, id, result) => {
            model.doing = None;
            let (text, bad) = match (result, change) {
                (Ok(()), Change::Cancel) => (format!("{id} is cancelled"), false),
                (Ok(()), Change::Retry) => (format!("{id} is open again"), false),
                (Err(error), _) => (format!("{} {id}: {error}", change.as_str()), true),
            };
            model.notice = Some(Notice { text, bad });
            Some(Action::List)
        }
        Event::Tick => None,
    }
}

fn pressed(model: &mut Model, key: KeyEvent) -> Option<Action> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => return Some(Action::Interrupt),
        KeyCode::Char('l') if control => return Some(Action::Redraw),
        // No other key does something with Control or Alt that it does without.
        _ if control || key.modifiers.contains(KeyModifiers::ALT) => return None,
        _ => {}
    }
    model.notice = None;
    match model.mode.clone() {
        Mode::List => in_list(model, key.code),
        Mode::Filter { before } => {
            in_filter(model, key.code, before);
            None
        }
        Mode::Confirm(id) => in_question(model, key.code, id),
        Mode::Explain { id, scroll } => {
            match in_overlay(model, key.code, scroll) {
                // What is explained may well be what one wants to change.
                Over::Scrolled(scroll) => model.mode = Mode::Explain { id, scroll },
                Over::Closed => model.mode = Mode::List,
                Over::Quit => return Some(Action::Quit),
                Over::Nothing if key.code == KeyCode::Char('c') => return wish(model, Change::Cancel, &id),
                Over::Nothing if key.code == KeyCode::Char('r') => return wish(model, Change::Retry, &id),
                Over::Nothing => {}
            }
            None
        }
        Mode::Help { scroll } => {
            match in_overlay(model, key.code, scroll) {
                Over::Scrolled(scroll) => model.mode = Mode::Help { scroll },
                Over::Closed => model.mode = Mode::List,
                Over::Quit => return Some(Action::Quit),
                Over::Nothing => {}
            }
            None
        }
    }
}

fn in_list(model: &mut Model, key: KeyCode) -> Option<Action> {
    let page = view::page(model);
    let left = model.left.take();
    match key {
        KeyCode::Char('q') => return Some(Action::Quit),
        KeyCode::Up | KeyCode::Char('k') => model.select(model.cursor.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => model.select(model.cursor + 1),
        KeyCode::PageUp => model.select(model.cursor.saturating_sub(page)),
        KeyCode::PageDown => model.select(model.cursor + page),
        KeyCode::Home | KeyCode::Char('g') => model.select(0),
        KeyCode::End | KeyCode::Char('G') => model.select(usize::MAX),
        KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => turn(model, 1),
        KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => turn(model, Tab::ALL.len() - 1),
        KeyCode::Char(digit @ '1'..='8') => {
            let index = digit.to_digit(10).map_or(0, |digit| digit as usize - 1);
            model.show(Tab::ALL[index]);
        }
        KeyCode::Char('/') => model.mode = Mode::Filter { before: model.filter.clone() },
        KeyCode::Esc if !model.filter.is_empty() => {
            model.filter.clear();
            model.restart();
        }
        KeyCode::Char('?') => model.mode = Mode::Help { scroll: 0 },
        KeyCode::Char('e') | KeyCode::Enter => {
            if let Some(id) = selected(model) {
                model.mode = Mode::Explain { id, scroll: 0 };
            }
        }
        KeyCode::Char(key @ ('c' | 'r')) => {
            let id = selected(model)?;
            // The list may have moved under the finger.
            if let Some(left) = left.filter(|_| !model.read_only) {
                refuse(
                    model,
                    format!("{left} has left this list, and {id} is selected now: press {key} again"),
                );
                return None;
            }
            return wish(model, if key == 'c' { Change::Cancel } else { Change::Retry }, &id);
        }
        _ => {}
    }
    None
}

/// The selected task, or a notice that there is none.
fn selected(model: &mut Model) -> Option<TaskId> {
    let id = model.selected().map(|(task, _)| task.id.clone());
    if id.is_none() {
        refuse(model, "no task is selected".into());
    }
    id
}

fn refuse(model: &mut Model, text: String) {
    model.notice = Some(Notice { text, bad: true });
}

/// Somebody wants to change a task.
fn wish(model: &mut Model, change: Change, id: &TaskId) -> Option<Action> {
    if model.read_only {
        refuse(model, "read-only: no key changes the board".into());
        return None;
    }
    if let Some((doing, other)) = &model.doing {
        refuse(model, format!("wait for the answer to {} {other}", doing.as_str()));
        return None;
    }
    let Some((task, standing)) = model.find(id) else {
        refuse(model, format!("{id} is not on the board any more"));
        return None;
    };
    let state = task.state;
    match change {
        Change::Cancel if state.is_terminal() => {
            refuse(model, format!("{id} is {state}, and cannot be cancelled"));
            None
        }
        Change::Cancel => {
            model.mode = Mode::Confirm(id.clone());
            None
        }
        Change::Retry if matches!(state, State::Failed | State::Cancelled) => {
            model.doing = Some((change, id.clone()));
            model.mode = Mode::List;
            Some(Action::Change(change, id.clone()))
        }
        Change::Retry => {
            let hint = if standing == Standing::Blocked { "; retry what blocks it, e tells" } else { "" };
            refuse(
                model,
                format!(
                    "{id} is {}: only what failed or was cancelled can be retried{hint}",
                    standing.as_str()
                ),
            );
            None
        }
    }
}

fn in_question(model: &mut Model, key: KeyCode, id: TaskId) -> Option<Action> {
    model.mode = Mode::List;
    if matches!(key, KeyCode::Char('y' | 'Y')) {
        model.doing = Some((Change::Cancel, id.clone()));
        return Some(Action::Change(Change::Cancel, id));
    }
    model.notice = Some(Notice { text: format!("{id} was not cancelled"), bad: false });
    None
}

fn in_filter(model: &mut Model, key: KeyCode, before: String) {
    match key {
        KeyCode::Enter => model.mode = Mode::List,
        KeyCode::Esc => {
            model.filter = before;
            model.mode = Mode::List;
            model.restart();
        }
        KeyCode::Backspace if model.filter.pop().is_some() => model.restart(),
        KeyCode::Backspace => model.mode = Mode::List,
        KeyCode::Char(c) if !c.is_control() && model.filter.chars().count() < FILTER => {
            model.filter.push(c);
            model.restart();
        }
        // A list can be looked at while the filter is typed.
        KeyCode::Up => model.select(model.cursor.saturating_sub(1)),
        KeyCode::Down => model.select(model.cursor + 1),
        _ => {}
    }
    model.left = None;
}

fn turn(model: &mut Model, by: usize) {
    let next = (model.tab.index() + by) % Tab::ALL.len();
    model.show(Tab::ALL[next]);
}

/// What a key does to a text that lies over the list.
enum Over {
    Scrolled(usize),
    Closed,
    Quit,
    Nothing,
}

fn in_overlay(model: &Model, key: KeyCode, scroll: usize) -> Over {
    let page = view::page(model);
    let last = view::overlay_end(model);
    let scroll = scroll.min(last);
    match key {
        KeyCode::Char('q') => Over::Quit,
        KeyCode::Esc | KeyCode::Enter | KeyCode::Char('e' | '?') => Over::Closed,
        KeyCode::Up | KeyCode::Char('k') => Over::Scrolled(scroll.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => Over::Scrolled((scroll + 1).min(last)),
        KeyCode::PageUp => Over::Scrolled(scroll.saturating_sub(page)),
        KeyCode::PageDown => Over::Scrolled((scroll + page).min(last)),
        KeyCode::Home | KeyCode::Char('g') => Over::Scrolled(0),
        KeyCode::End | KeyCode::Char('G') => Over::Scrolled(last),
        _ => Over::Nothing,
    }
}
