//! What a run reports.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clause::{Clause, Layer};

/// What became of one clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowResult {
    /// The promise held.
    Passed,
    /// It did not.
    Failed,
    /// It could not be tried here.
    Skipped,
}

impl RowResult {
    /// The result as one lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RowResult::Passed => "passed",
            RowResult::Failed => "failed",
            RowResult::Skipped => "skipped",
        }
    }
}

/// One clause of a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The id of the clause.
    pub id: &'static str,
    /// Its layer.
    pub layer: Layer,
    /// Its promise.
    pub promise: &'static str,
    /// What became of it.
    pub result: RowResult,
    /// Why it failed, which begins with the id and the promise and says what was seen; or why it was skipped.
    pub why: Option<String>,
    /// How long it took, in milliseconds.
    pub ms: u64,
}

impl Row {
    pub(crate) fn new(clause: &'static Clause, result: RowResult, why: Option<String>, ms: u64) -> Self {
        Row { id: clause.id, layer: clause.layer, promise: clause.promise, result, why, ms }
    }

    pub(crate) fn failed(clause: &'static Clause, seen: &str, seed: u64, ms: u64) -> Self {
        let why = format!("{} {}: {seen} (seed {seed})", clause.id, clause.promise);
        Row::new(clause, RowResult::Failed, Some(why), ms)
    }
}

/// What a run of the suite saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The name of the harness.
    pub backend: String,
    /// The seed, to run it again.
    pub seed: u64,
    /// A row a clause.
    pub clauses: Vec<Row>,
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many could not be tried.
    pub skipped: usize,
}

impl Report {
    pub(crate) fn new(backend: String, seed: u64, mut clauses: Vec<Row>) -> Self {
        clauses.sort_by_key(|row| (row.layer, row.id));
        let count = |result| clauses.iter().filter(|row| row.result == result).count();
        let (passed, failed, skipped) =
            (count(RowResult::Passed), count(RowResult::Failed), count(RowResult::Skipped));
        Report { backend, seed, clauses, passed, failed, skipped }
    }

    /// Whether something was proven and nothing disproven: at least one clause passed and none failed.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.passed > 0 && self.failed == 0
    }

    /// The row of a clause.
    #[must_use]
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.clauses.iter().find(|row| row.id == id)
    }
}

impl fmt::Display for Report {
    /// A line a clause, then the failures in full, then the counts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.clauses {
            let why = match (row.result, &row.why) {
                (RowResult::Skipped, Some(why)) => format!(" (skipped: {why})"),
                _ => String::new(),
            };
            writeln!(f, "{:7} {:<14} {:>6} ms  {}{why}", row.result.as_str(), row.id, row.ms, row.promise)?;
        }
        for row in self.clauses.iter().filter(|row| row.result == RowResult::Failed) {
            writeln!(f, "\nFAILED {}", row.why.as_deref().unwrap_or(row.id))?;
        }
        writeln!(
            f,
            "\n{}: {} passed, {} failed, {} skipped (seed {})",
            self.backend, self.passed, self.failed, self.skipped, self.seed
        )
    }
}
