//! What is wrong with a plan, and where: file, line, column, field.

use std::fmt;
use std::ops::Range;

use serde_json::{Value, json};

use crate::output::clean;

/// The most problems that are shown of one plan to people, and the most that are kept; the rest is counted. A large file may be wrong
/// in every line.
const SHOWN: usize = 20;
const KEPT: usize = 100;
/// The widest excerpt of a line.
const EXCERPT: usize = 100;

/// One thing that is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The line, counted from 1.
    pub(crate) line: usize,
    /// The column, counted in characters from 1.
    pub(crate) column: usize,
    /// The byte, counted from 0.
    pub(crate) offset: usize,
    /// Which field, as in `task "build": deps`.
    pub(crate) field: String,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) help: Option<String>,
    excerpt: Option<(String, usize, usize)>,
}

/// The problems of one plan, in the order of the file.
#[derive(Clone, Debug)]
pub(crate) struct PlanError {
    file: String,
    problems: Vec<Problem>,
    more: usize,
}

/// Collects the problems of one plan.
#[derive(Debug)]
pub(crate) struct Problems<'a> {
    file: &'a str,
    text: &'a str,
    found: Vec<Problem>,
    more: usize,
}

impl<'a> Problems<'a> {
    /// No problem yet with this text.
    pub(crate) fn new(file: &'a str, text: &'a str) -> Self {
        Problems { file, text, found: Vec::new(), more: 0 }
    }

    /// One more problem, at these bytes of the text.
    pub(crate) fn push(
        &mut self,
        span: Range<usize>,
        field: impl Into<String>,
        message: impl Into<String>,
        help: Option<String>,
    ) {
        if self.found.len() >= KEPT {
            self.more += 1;
            return;
        }
        let offset = span.start.min(self.text.len());
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let problem = Problem {
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            offset,
            field: field.into(),
            message: message.into(),
            help,
            excerpt: Some(excerpt(self.text, line_start, offset, span.end)),
        };
        self.found.push(problem);
    }

    /// Whether the next problem is one of those that are shown, so that it is worth to look for help with it.
    pub(crate) fn wants_help(&self) -> bool {
        self.found.len() < SHOWN
    }

    /// Whether nothing is wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The error, if anything is wrong.
    pub(crate) fn into_result(self) -> Result<(), PlanError> {
        if self.found.is_empty() {
            return Ok(());
        }
        let mut problems = self.found;
        problems.sort_by_key(|problem| problem.offset);
        Err(PlanError { file: self.file.to_owned(), problems, more: self.more })
    }
}

/// The text of a line around a span, where the span begins in it, and how long it is there.
fn excerpt(text: &str, line_start: usize, offset: usize, end: usize) -> (String, usize, usize) {
    let line = text[line_start..].lines().next().unwrap_or("");
    let column = text[line_start..offset].chars().count();
    let skipped = column.saturating_sub(EXCERPT / 2);
    let shown: String = line.chars().skip(skipped).take(EXCERPT).collect();
    let marked = text.get(offset..end).map_or(1, |span| span.lines().next().unwrap_or("").chars().count());
    let start = column - skipped;
    let shown = clean(&shown);
    let room = shown.chars().count().saturating_sub(start).max(1);
    (shown, start, marked.clamp(1, room))
}

impl PlanError {
    /// A plan that is not text.
    pub(crate) fn not_utf8(file: &str, bytes: &[u8], offset: usize) -> Self {
        let before = &bytes[..offset];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let problem = Problem {
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
            offset,
            field: "the file".into(),
            message: format!("byte 0x{:02x} at offset {offset} is not UTF-8", bytes[offset]),
            help: Some("a plan is TOML, and TOML is UTF-8: convert the file, or write the byte as an escape in `run`".into()),
            excerpt: None,
        };
        PlanError { file: file.to_owned(), problems: vec![problem], more: 0 }
    }

    /// One line for machines and logs.
    pub(crate) fn summary(&self) -> String {
        let first = &self.problems[0];
        let more = match self.problems.len() - 1 + self.more {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        format!("{}:{}:{}: {}: {}{more}", self.file, first.line, first.column, first.field, first.message)
    }

    /// The problems as a JSON array.
    pub(crate) fn to_json(&self) -> Value {
        self.problems
            .iter()
            .map(|problem| {
                json!({
                    "file": self.file,
                    "line": problem.line,
                    "column": problem.column,
                    "offset": problem.offset,
                    "field": problem.field,
                    "message": problem.message,
                    "help": problem.help,
                })
            })
            .collect()
    }

    #[cfg(test)]
    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in self.problems.iter().take(SHOWN) {
            let Problem { line, column, field, message, help, .. } = problem;
            writeln!(
                f,
                "error: {}:{line}:{column}: {}: {}",
                clean(&self.file),
                clean(field),
                clean(message)
            )?;
            if let Some((text, start, length)) = &problem.excerpt {
                let gutter = line.to_string().len();
                writeln!(f, "{:gutter$} |", "")?;
                writeln!(f, "{line} | {text}")?;
                writeln!(f, "{:gutter$} | {:start$}{}", "", "", "^".repeat(*length))?;
            }
            if let Some(help) = help {
                writeln!(f, "  = help: {}", clean(help))?;
            }
        }
        let rest = self.problems.len().saturating_sub(SHOWN) + self.more;
        if rest > 0 {
            writeln!(f, "error: and {rest} more problems")?;
        }
        Ok(())
    }
}
