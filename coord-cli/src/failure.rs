//! Why a command did not do what it was asked, and the exit code that says so.

use std::error::Error as StdError;
use std::fmt;

use coord_core::board::BoardError;
use coord_core::effects::EffectError;
use coord_core::{BackendError, ErrorKind};
use serde_json::{Value, json};

use crate::diagnose::PlanError;
use crate::output::clean;

/// The exit codes of the command; `--help` explains them.
pub(crate) mod exit {
    /// Everything is done.
    pub(crate) const OK: u8 = 0;
    /// A task failed or cannot run, or the store failed.
    pub(crate) const FAILED: u8 = 1;
    /// A bad plan, a bad argument: nothing was changed.
    pub(crate) const USAGE: u8 = 2;
    /// `coord once`: it was done, and its output is no longer kept.
    pub(crate) const GONE: u8 = 119;
    /// `coord once`: nobody knows whether it was done.
    pub(crate) const UNCERTAIN: u8 = 120;
    /// `coord once`: somebody is doing it.
    pub(crate) const IN_FLIGHT: u8 = 121;
    /// `coord once`: the resource is busy.
    pub(crate) const CONTENDED: u8 = 122;
    /// `coord once`: the key is in use for something else.
    pub(crate) const MISMATCH: u8 = 123;
    /// `coord wait`: it has not come in time.
    pub(crate) const TIMEOUT: u8 = 124;
    /// `coord once`: coord itself failed.
    pub(crate) const COORD_FAILED: u8 = 125;
    /// `coord once`: the command cannot be started.
    pub(crate) const NOT_STARTED: u8 = 126;
    /// Stopped by Ctrl-C or a signal.
    pub(crate) const INTERRUPTED: u8 = 130;
}

/// A failure of a command: a message, what to do about it, and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    help: Vec<String>,
    plan: Option<PlanError>,
    facts: Box<serde_json::Map<String, Value>>,
}

impl Failure {
    /// Something failed on the way.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Failure {
            code: exit::FAILED,
            message: message.into(),
            help: Vec::new(),
            plan: None,
            facts: Box::default(),
        }
    }

    /// What was asked makes no sense; nothing was changed.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure {
            code: exit::USAGE,
            message: message.into(),
            help: Vec::new(),
            plan: None,
            facts: Box::default(),
        }
    }

    /// The same failure with another exit code.
    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// With one more line that says what to do.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// With something that programs are told besides.
    pub(crate) fn fact(mut self, name: &str, value: Value) -> Self {
        self.facts.insert(name.to_owned(), value);
        self
    }

    /// The same failure, with what was being done in front.
    pub(crate) fn context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }

    /// What went wrong, in one line.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The failure as the document that `--format json` prints instead of a result.
    pub(crate) fn to_json(&self) -> Value {
        let problems = self.plan.as_ref().map(PlanError::to_json);
        let mut error = json!({ "message": self.message, "help": self.help, "exit": self.code });
        if let Some(problems) = problems {
            error["problems"] = problems;
        }
        let mut document = serde_json::Map::from_iter([("error".to_owned(), error)]);
        document.extend(self.facts.iter().map(|(name, value)| (name.clone(), value.clone())));
        Value::Object(document)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.plan {
            Some(plan) => write!(f, "{plan}")?,
            // Names, reasons and what a store says come from others, and must do nothing to the terminal.
            None => writeln!(f, "error: {}", clean(&self.message))?,
        }
        for help in &self.help {
            writeln!(f, "  = help: {}", clean(help))?;
        }
        Ok(())
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
        let message = message.trim().strip_prefix("error: ").unwrap_or(message.trim());
        // A list of what is missing has a line each.
        let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let failure = Failure::usage(message);
        rest.lines().map(str::trim).filter(|line| !line.is_empty()).fold(failure, Failure::help)
    }
}

impl From<PlanError> for Failure {
    fn from(plan: PlanError) -> Self {
        Failure {
            code: exit::USAGE,
            message: plan.summary(),
            help: Vec::new(),
            plan: Some(plan),
            facts: Box::default(),
        }
    }
}

/// What an error says, without the name of the crate, the call and the kind that a backend puts in front for programs.
fn said(error: &(dyn StdError + 'static)) -> String {
    if let Some(error) = error.downcast_ref::<BackendError>() {
        return error.message().to_owned();
    }
    if let Some(EffectError::Invalid(why)) = error.downcast_ref::<EffectError>() {
        return why.clone();
    }
    match error.downcast_ref::<BoardError>() {
        Some(BoardError::Invalid(why)) => why.clone(),
        _ => error.to_string(),
    }
}

/// An error and its sources in one line. Sources that a message repeats are left out.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = said(error);
    let mut source = error.source();
    while let Some(error) = source {
        let next = said(error);
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

fn is_usage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Invalid | ErrorKind::Config)
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let code = if is_usage(error.kind()) { exit::USAGE } else { exit::FAILED };
        Failure { code, message: chain(&error), help: Vec::new(), plan: None, facts: Box::default() }
    }
}

impl From<BoardError> for Failure {
    fn from(error: BoardError) -> Self {
        let failure = Failure::failed(chain(&error));
        match error {
            BoardError::Backend(error) => error.into(),
            BoardError::NotFound { .. } => {
                Failure { code: exit::USAGE, ..failure }.help("`coord ls` lists the tasks of the board")
            }
            BoardError::Invalid(_) | BoardError::TooLarge { .. } | BoardError::AlreadyExists { .. } => {
                Failure { code: exit::USAGE, ..failure }
            }
            BoardError::TxnConflict { .. } => failure.help("nothing has happened; try again"),
            BoardError::OutcomeUnknown { .. } => failure.help("look with `coord ls`, then try again"),
            _ => failure,
        }
    }
}

impl From<EffectError> for Failure {
    fn from(error: EffectError) -> Self {
        let failure = Failure::failed(chain(&error));
        match error {
            EffectError::Backend(error) => error.into(),
            EffectError::NeverAcquired { .. } => {
                Failure { code: exit::USAGE, ..failure }.help("`coord effect ls` lists the actions")
            }
            EffectError::Invalid(_) => Failure { code: exit::USAGE, ..failure },
            EffectError::Mismatch { .. } => Failure { code: exit::MISMATCH, ..failure },
            EffectError::TxnConflict { .. } => failure.help("nothing has happened; try again"),
            EffectError::OutcomeUnknown { .. } => failure.help("look with `coord effect ls`, then try again"),
            EffectError::EpisodeOver { .. } | EffectError::NotUncertain { .. } => {
                failure.help("`coord effect show KEY` tells how it stands now")
            }
            EffectError::NotSettled { .. } => {
                failure.help("`coord effect show KEY` tells who is at it; resolve it first")
            }
            _ => failure,
        }
    }
}
