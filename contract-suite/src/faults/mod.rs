//! The clauses about faults of the wire and of the server.

mod attempt;
mod calm;
mod config;
mod cut;
mod kill;
mod pause;
mod recorded;
mod scripts;
mod trouble;

use crate::clause::Clause;
use crate::process::Job;

/// The clauses of each file.
pub(crate) const CLAUSES: &[&[Clause]] = &[
    cut::CLAUSES,
    kill::CLAUSES,
    pause::CLAUSES,
    scripts::CLAUSES,
    config::CLAUSES,
    calm::CLAUSES,
    recorded::CLAUSES,
];

/// What the worker processes of these clauses can do, of each file.
pub(crate) const JOBS: &[&[Job]] = &[];
