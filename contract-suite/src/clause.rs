//! What a clause is, and the registry of all of them.

use std::fmt;
use std::sync::LazyLock;

use futures::future::BoxFuture;
use serde::Serialize;

use crate::context::Context;
use crate::harness::Control;

/// Which part of the project a clause is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Layer {
    /// The three primitives of a [`Backend`](coord_core::Backend).
    Backend,
    /// The task board.
    Board,
    /// Side effects.
    Effects,
}

impl Layer {
    /// The layer as one lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Layer::Backend => "backend",
            Layer::Board => "board",
            Layer::Effects => "effects",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What must be there so that a clause can run; else it is skipped, with the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// What the harness must be able to do to the server.
    pub controls: &'static [Control],
    /// Several processes on one store.
    pub processes: bool,
    /// Runs alone, after all others: it kills, pauses or cuts the server that they share.
    pub exclusive: bool,
}

impl Needs {
    /// Two handles, and nothing else.
    pub const NOTHING: Needs = Needs { controls: &[], processes: false, exclusive: false };
    /// Several processes on one store.
    pub const PROCESSES: Needs = Needs { processes: true, ..Needs::NOTHING };

    /// These controls of the server, beside other clauses.
    #[must_use]
    pub const fn controls(controls: &'static [Control]) -> Needs {
        Needs { controls, ..Needs::NOTHING }
    }

    /// These controls of the server, alone and last.
    #[must_use]
    pub const fn exclusive(controls: &'static [Control]) -> Needs {
        Needs { controls, exclusive: true, ..Needs::NOTHING }
    }
}

/// Why a clause has not passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The promise is broken: what was seen.
    Failed(String),
    /// It could not be tried here: why.
    Skipped(String),
}

impl Verdict {
    /// The same verdict, its text preceded by where it was seen.
    #[must_use]
    pub fn context(self, place: impl fmt::Display) -> Verdict {
        match self {
            Verdict::Failed(why) => Verdict::Failed(format!("{place}: {why}")),
            Verdict::Skipped(why) => Verdict::Skipped(format!("{place}: {why}")),
        }
    }
}

/// Any error that a clause does not expect is a failure, with the whole chain of its sources.
impl<E: std::error::Error> From<E> for Verdict {
    fn from(error: E) -> Self {
        let mut text = format!("saw the error \"{error}\"");
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(&format!(", because \"{cause}\""));
            source = cause.source();
        }
        Verdict::Failed(text)
    }
}

/// What became of a clause.
pub type Outcome = Result<(), Verdict>;

/// Adds the place to a verdict on its way up.
pub trait VerdictContext<T> {
    /// Says where it was seen.
    ///
    /// # Errors
    /// The verdict that it was called on, with the place.
    fn at(self, place: impl fmt::Display) -> Result<T, Verdict>;
}

impl<T, E: Into<Verdict>> VerdictContext<T> for Result<T, E> {
    fn at(self, place: impl fmt::Display) -> Result<T, Verdict> {
        self.map_err(|verdict| verdict.into().context(place))
    }
}

/// The test of a clause.
pub type Body = fn(Context) -> BoxFuture<'static, Outcome>;

/// One promise, and the test that holds an implementation to it.
#[derive(Clone, Copy)]
pub struct Clause {
    /// The stable id. A part of a clause that needs more than the rest of it has an id of its own, as `B19.processes`.
    pub id: &'static str,
    /// What it is about.
    pub layer: Layer,
    /// The promise, whole.
    pub promise: &'static str,
    /// What must be there so that it can run.
    pub needs: Needs,
    /// The test.
    pub body: Body,
}

impl fmt::Debug for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clause").field("id", &self.id).field("layer", &self.layer).finish_non_exhaustive()
    }
}

/// Every clause, in the order of layers and ids.
#[must_use]
pub fn clauses() -> &'static [Clause] {
    static CLAUSES: LazyLock<Vec<Clause>> = LazyLock::new(|| {
        let slices = [
            crate::backend::CLAUSES,
            crate::faults::CLAUSES,
            crate::board::CLAUSES,
            crate::effects::CLAUSES,
            crate::guard::CLAUSES,
            &[crate::history::CLAUSES, crate::model::CLAUSES],
        ];
        let mut all: Vec<Clause> =
            slices.iter().flat_map(|files| files.iter().copied().flatten()).copied().collect();
        all.sort_by_key(|clause| (clause.layer, clause.id));
        all
    });
    &CLAUSES
}

/// The clause with this id.
#[must_use]
pub fn clause(id: &str) -> Option<&'static Clause> {
    clauses().iter().find(|clause| clause.id == id)
}

/// Ends a clause as failed. The text says what was seen.
#[macro_export]
macro_rules! fail {
    ($($text:tt)+) => {
        return ::core::result::Result::Err($crate::Verdict::Failed(::std::format!($($text)+)))
    };
}

/// Ends a clause as skipped. The text says why.
#[macro_export]
macro_rules! skip {
    ($($text:tt)+) => {
        return ::core::result::Result::Err($crate::Verdict::Skipped(::std::format!($($text)+)))
    };
}

/// Goes on if the condition holds, else ends the clause as failed. The text says what was seen.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            $crate::fail!($($text)+);
        }
    };
}

/// Goes on if both are equal, else ends the clause as failed: "saw .., not ..", then the text that says of what.
#[macro_export]
macro_rules! ensure_eq {
    ($seen:expr, $expected:expr, $($text:tt)+) => {
        match (&$seen, &$expected) {
            (seen, expected) => {
                if *seen != *expected {
                    $crate::fail!("saw {:?}, not {:?}: {}", seen, expected, ::std::format!($($text)+));
                }
            }
        }
    };
}

/// Goes on if the value matches the pattern, else ends the clause as failed: "saw .., not ..", then the text that says of what.
#[macro_export]
macro_rules! ensure_matches {
    ($seen:expr, $pattern:pat $(if $guard:expr)?, $($text:tt)+) => {
        match &$seen {
            $pattern $(if $guard)? => {}
            seen => $crate::fail!(
                "saw {:?}, not {}: {}", seen, ::core::stringify!($pattern $(if $guard)?), ::std::format!($($text)+)
            ),
        }
    };
}
