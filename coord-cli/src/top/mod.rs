//! `coord top`: a board as it changes, and keys to change it.
//!
//! What is known ([`model`]), how it changes ([`mod@update`]) and what is on the screen ([`view`]) are apart from the terminal, the store
//! and the clock, which are only here.

mod explain;
mod model;
mod poll;
mod screen;
mod table;
mod text;
mod update;
mod view;
mod work;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use coord_core::board::{BoardError, TaskId};
use coord_core::{Clock as _, SystemClock};
use tokio::sync::mpsc;

use self::model::{Change, Model};
use self::screen::Screen;
use self::update::{Action, Event, update};
use crate::args::TopArgs;
use crate::control::Signals;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::store::OpenBoard;

/// Ages and times left are drawn anew this often.
const TICK: Duration = Duration::from_secs(1);
/// How long the end waits for the answer to a change.
const LAST_ANSWER: Duration = Duration::from_secs(5);
/// How wide text is where no terminal says it.
const TEXT_WIDTH: u16 = 118;

/// `coord top`.
pub(crate) async fn run(args: &TopArgs) -> Result<u8, Failure> {
    let store = args.board.store.store();
    let opened = store.existing_board(args.board.board.as_ref()).await?;
    let mut model = Model::new(opened.name.as_str(), &store.shown(), args.read_only);
    model.colors = console::colors_enabled();
    let clock = SystemClock::new();
    let why = (!args.once).then(no_terminal).flatten();
    if args.once || why.is_some() || args.board.store.format == Format::Json {
        return once(args, opened, model, clock, why).await;
    }
    watch(args.interval, opened, model, clock).await
}

/// Whether frames cannot be drawn over each other.
pub(crate) fn no_terminal() -> Option<&'static str> {
    if !io::stdout().is_terminal() {
        Some("standard output is no terminal")
    } else if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        Some("TERM says that this terminal is dumb")
    } else {
        None
    }
}

async fn once(
    args: &TopArgs,
    opened: OpenBoard,
    model: Model,
    clock: SystemClock,
    why: Option<&str>,
) -> Result<u8, Failure> {
    let mut model = text::listed(model, poll::look(&opened, &clock, false).await?);
    if args.board.store.format == Format::Json {
        output::json(&text::document(&model));
        return Ok(exit::OK);
    }
    if let Some(why) = why {
        output::note(&format!("{why}: one frame as text, as with --once"));
    }
    let terminal = io::stdout().is_terminal().then(ratatui::crossterm::terminal::size);
    let width =
        terminal.and_then(Result::ok).map_or(TEXT_WIDTH, |(width, _)| width.saturating_sub(2).max(20));
    output::text(&text::frame(&mut model, width));
    Ok(exit::OK)
}

async fn watch(
    interval: Duration,
    opened: OpenBoard,
    mut model: Model,
    clock: SystemClock,
) -> Result<u8, Failure> {
    let mut signals = Signals::new()?;
    let (send, mut events) = mpsc::channel(16);
    let (list, wanted) = mpsc::channel(1);
    let poller = tokio::spawn(poll::poll(opened.clone(), clock, interval, send, wanted));
    let (answer, mut answers) = mpsc::channel(1);
    let mut screen = Screen::enter()?;
    let (press, mut keys) = mpsc::channel(64);
    screen::read_keys(press)?;
    model.size = screen.size()?;
    let code = loop {
        screen.draw(&model)?;
        let event = tokio::select! {
            biased;
            () = signals.next() => break exit::INTERRUPTED,
            key = keys.recv() => match key {
                Some(key) => key?,
                None => return Err(Failure::failed("the keys are not read any more")),
            },
            Some((change, id, result)) = answers.recv() => Event::Changed(change, id, result),
            event = events.recv() => match event {
                Some(event) => event,
                None => return Err(Failure::failed("the board is not listed any more")),
            },
            () = clock.sleep(TICK) => Event::Tick,
        };
        match update(&mut model, event, clock.monotonic()) {
            None => {}
            Some(Action::Quit) => break exit::OK,
            Some(Action::Interrupt) => break exit::INTERRUPTED,
            Some(Action::Redraw) => screen.clear()?,
            Some(Action::List) => list_now(&list),
            Some(Action::Change(change, id)) => {
                let (opened, answer) = (opened.clone(), answer.clone());
                tokio::spawn(async move {
                    let result = make(&opened, change, &id).await;
                    // If nobody waits for it any more, nobody can be told.
                    let _ = answer.send((change, id, result)).await;
                });
            }
        }
    };
    drop(screen);
    poller.abort();
    if let Some((change, id)) = model.doing.take() {
        last_answer(change, &id, &mut answers, &clock).await;
    }
    Ok(code)
}

fn list_now(list: &mpsc::Sender<()>) {
    // If a wish is there already, it is as good as this one.
    let _ = list.try_send(());
}

async fn make(opened: &OpenBoard, change: Change, id: &TaskId) -> Result<(), String> {
    let result = match change {
        Change::Cancel => opened.board.cancel(id).await,
        Change::Retry => opened.board.reopen(id).await,
    };
    result.map_err(|error: BoardError| Failure::from(error).message().to_owned())
}

/// Says what became of a change whose answer had not come when the screen was left.
async fn last_answer(
    change: Change,
    id: &TaskId,
    answers: &mut mpsc::Receiver<(Change, TaskId, Result<(), String>)>,
    clock: &SystemClock,
) {
    let what = format!("{} {id}", change.as_str());
    let said = tokio::select! {
        Some((_, _, result)) = answers.recv() => match result {
            Ok(()) => format!("{what}: done"),
            Err(error) => format!("{what}: {error}"),
        },
        () = clock.sleep(LAST_ANSWER) => format!("{what}: no answer; look with `coord show`"),
    };
    output::note(&output::clean(&said));
}
