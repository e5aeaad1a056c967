//! The clauses of the side-effect store, one file a group.

mod foreign;
mod histories;
mod holds;
mod late;
mod names;
mod outcomes;
mod plays;
mod processes;
mod races;
mod retention;
mod rulings;
mod scenes;
mod stage;
mod times;
mod unknown;

pub use histories::effect_histories;

use crate::clause::Clause;
use crate::process::Job;

/// The clauses of each file.
pub(crate) const CLAUSES: &[&[Clause]] = &[
    foreign::CLAUSES,
    histories::CLAUSES,
    holds::CLAUSES,
    late::CLAUSES,
    names::CLAUSES,
    outcomes::CLAUSES,
    processes::CLAUSES,
    races::CLAUSES,
    retention::CLAUSES,
    rulings::CLAUSES,
    times::CLAUSES,
    unknown::CLAUSES,
];

/// What the worker processes of these clauses can do, of each file.
pub(crate) const JOBS: &[&[Job]] = &[processes::JOBS];
