//! The clauses of the side-effect store, one file a group.

mod episodes;
mod foreign;
mod histories;
mod holds;
mod late;
mod many;
mod names;
mod outcomes;
mod plays;
mod processes;
mod races;
mod repertoire;
mod replays;
mod retention;
mod rulings;
mod scenes;
mod stage;
mod times;
mod unknown;
mod world;

pub use histories::effect_histories;

use crate::clause::Clause;
use crate::process::Job;

/// The clauses of each file.
pub(crate) const CLAUSES: &[&[Clause]] = &[
    episodes::CLAUSES,
    foreign::CLAUSES,
    histories::CLAUSES,
    holds::CLAUSES,
    late::CLAUSES,
    many::CLAUSES,
    names::CLAUSES,
    outcomes::CLAUSES,
    processes::CLAUSES,
    races::CLAUSES,
    replays::CLAUSES,
    retention::CLAUSES,
    rulings::CLAUSES,
    times::CLAUSES,
    unknown::CLAUSES,
];

/// What the worker processes of these clauses can do, of each file.
pub(crate) const JOBS: &[&[Job]] = &[processes::JOBS];
