//! What goes to standard output: text for people or one JSON document, whole or not at all.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use console::Style;
use coord_core::board::State;
use serde_json::Value;

use crate::standing::Standing;

/// How a command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON document on standard output, and nothing else there.
    Json,
}

static CLOSED: AtomicBool = AtomicBool::new(false);
static FAILED: AtomicBool = AtomicBool::new(false);

/// Switches colors off where `NO_COLOR` asks for it or nobody would see them.
pub(crate) fn init_colors() {
    let asked_for_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    console::set_colors_enabled(!asked_for_none && io::stdout().is_terminal());
    console::set_colors_enabled_stderr(!asked_for_none && io::stderr().is_terminal());
}

/// Writes to standard output. A reader that went away (as in `coord ls | head`) is no error: the rest is not written, and the
/// exit code is what it would have been.
pub(crate) fn text(text: &str) {
    if CLOSED.load(Ordering::Relaxed) {
        return;
    }
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = written {
        CLOSED.store(true, Ordering::Relaxed);
        if error.kind() != io::ErrorKind::BrokenPipe {
            FAILED.store(true, Ordering::Relaxed);
            note(&format!("error: standard output cannot be written: {error}"));
        }
    }
}

/// Whether something that should be on standard output is not, although somebody reads it.
pub(crate) fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// Writes a line to standard output, as [`text`] does.
pub(crate) fn line(line: &str) {
    text(&format!("{line}\n"));
}

/// Writes one JSON document to standard output.
pub(crate) fn json(value: &Value) {
    let rendered = if io::stdout().is_terminal() { format!("{value:#}\n") } else { format!("{value}\n") };
    text(&rendered);
}

/// Writes a line to standard error. Nobody is told if that fails: there is nobody left.
pub(crate) fn note(line: &str) {
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "{line}");
}

/// So many tasks, in words.
pub(crate) fn tasks(count: usize) -> String {
    self::count(count as u64, "task")
}

/// So many things, in words.
pub(crate) fn count(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// The text with control characters written as escapes, so that a title cannot move the cursor, hide what follows, or look like another one.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_invisible(c) { cleaned.extend(c.escape_default()) } else { cleaned.push(c) }
    }
    cleaned
}

/// A line of output, cleaned; a tab in it is only a gap.
pub(crate) fn clean_line(line: &str) -> String {
    clean(&line.replace('\t', "    "))
}

/// How wide the text is once it is cleaned.
pub(crate) fn width(text: &str) -> usize {
    console::measure_text_width(&clean(text))
}

/// Characters that turn the direction of the text around them, break a line, or cannot be seen.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The text, cleaned and at most so wide.
pub(crate) fn fit(text: &str, width: usize) -> String {
    console::truncate_str(&clean(text), width, "…").into_owned()
}

/// The text, cleaned, and filled up to this width.
pub(crate) fn pad(text: &str, width: usize) -> String {
    console::pad_str(&fit(text, width), width, console::Alignment::Left, None).into_owned()
}

/// The style of a state of a task.
pub(crate) fn style(standing: Standing) -> Style {
    match standing {
        Standing::Skipped => Style::new().dim(),
        Standing::Done => Style::new().green(),
        Standing::Failed | Standing::Cancelled | Standing::Blocked | Standing::Unknown => Style::new().red(),
        Standing::Running => Style::new().cyan(),
        Standing::Ready => Style::new().bold(),
        Standing::Waiting => Style::new().dim(),
    }
}

/// Whether a state needs somebody to look.
pub(crate) fn is_bad(state: State) -> bool {
    matches!(state, State::Failed | State::Cancelled | State::Unknown(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\tc\n\u{202e}é"), r"a\u{1b}[2Jb\tc\n\u{202e}é");
        assert_eq!(clean_line("a\tb\r"), r"a    b\r");
        assert_eq!(width("a\u{1b}"), 7);
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(pad("ab", 4), "ab  ");
    }
}
