//! The clauses of the task board, one file a group.

mod archives;
mod claims;
mod counters;
mod dropped;
mod edges;
mod fleet;
mod foreign;
mod histories;
mod holders;
mod invariants;
mod listing;
mod names;
mod next;
mod operators;
mod pins;
mod plans;
mod processes;
mod progress;
mod races;
mod random;
mod retries;
mod rules;
mod scale;
mod scenes;
mod scripts;
mod secrets;
mod settled;
mod skipped;
mod stage;
mod times;
mod unknown;
mod waits;

use crate::clause::Clause;
use crate::process::Job;

/// The clauses of each file.
pub(crate) const CLAUSES: &[&[Clause]] = &[
    archives::CLAUSES,
    claims::CLAUSES,
    counters::CLAUSES,
    dropped::CLAUSES,
    edges::CLAUSES,
    fleet::CLAUSES,
    foreign::CLAUSES,
    histories::CLAUSES,
    holders::CLAUSES,
    invariants::CLAUSES,
    listing::CLAUSES,
    names::CLAUSES,
    next::CLAUSES,
    operators::CLAUSES,
    pins::CLAUSES,
    plans::CLAUSES,
    processes::CLAUSES,
    progress::CLAUSES,
    races::CLAUSES,
    retries::CLAUSES,
    rules::CLAUSES,
    scale::CLAUSES,
    secrets::CLAUSES,
    settled::CLAUSES,
    skipped::CLAUSES,
    times::CLAUSES,
    unknown::CLAUSES,
    waits::CLAUSES,
];

/// What the worker processes of these clauses can do, of each file.
pub(crate) const JOBS: &[&[Job]] = &[fleet::JOBS, processes::JOBS];
