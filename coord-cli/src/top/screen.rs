//! The terminal: taken over and given back, whatever happens, and the keys that come from it.

use std::io;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event as Input};
use ratatui::layout::Rect;
use tokio::sync::mpsc;

use super::model::Model;
use super::update::Event;
use super::view::render;
use crate::failure::Failure;

/// How often the thread that reads keys looks whether anybody still wants them.
const LOOK: Duration = Duration::from_millis(200);

/// The terminal while it is ours: raw, and on its alternate screen. It is as it was once this is dropped, or a thread panics.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal over.
    pub(crate) fn enter() -> Result<Self, Failure> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                // It may have come half the way.
                let _ = ratatui::try_restore();
                Err(failed(&error))
            }
        }
    }

    /// Its width and height.
    pub(crate) fn size(&self) -> Result<(u16, u16), Failure> {
        let size = self.terminal.size().map_err(|error| failed(&error))?;
        Ok((size.width, size.height))
    }

    /// Draws what has changed.
    pub(crate) fn draw(&mut self, model: &Model) -> Result<(), Failure> {
        let drawn = self.terminal.draw(|frame| {
            let area = frame.area();
            render(model, area, frame.buffer_mut());
        });
        drawn.map(drop).map_err(|error| failed(&error))
    }

    /// Forgets what is on the screen, so that all of it is drawn.
    pub(crate) fn clear(&mut self) -> Result<(), Failure> {
        // `Terminal::clear` would ask the terminal where its cursor is, and the answer would go to the thread that reads keys.
        let (width, height) = self.size()?;
        let area = Rect { x: 0, y: 0, width, height };
        self.terminal.resize(area).map_err(|error| failed(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to give back.
        let _ = ratatui::try_restore();
    }
}

/// Reads keys on a thread of its own, until nobody wants them. A terminal that cannot be read any more is an event too.
pub(crate) fn read_keys(events: mpsc::Sender<Result<Event, Failure>>) -> Result<(), Failure> {
    let read = move || {
        loop {
            let event = match event::poll(LOOK) {
                Ok(false) if events.is_closed() => return,
                Ok(false) => continue,
                Ok(true) => match event::read() {
                    Ok(Input::Key(key)) => Ok(Event::Key(key)),
                    Ok(Input::Resize(width, height)) => Ok(Event::Resized(width, height)),
                    // No other event was asked for.
                    Ok(_) => continue,
                    Err(error) => Err(failed(&error)),
                },
                Err(error) => Err(failed(&error)),
            };
            let last = event.is_err();
            if events.blocking_send(event).is_err() || last {
                return;
            }
        }
    };
    match std::thread::Builder::new().name("keys".into()).spawn(read) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::failed(format!("the keys cannot be read: {error}"))),
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::failed(format!("the terminal cannot be used: {error}"))
        .help("`coord top --once` prints one frame as text")
}
