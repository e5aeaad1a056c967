//! The clauses of the three primitives, one file a group.

mod cancel;
mod commit;
mod contend;
mod foreign;
mod fresh;
mod hot;
mod instant;
mod large;
mod life;
mod listing;
mod namespace;
mod prefix;
mod processes;
mod reject;
mod snapshot;
mod value;
mod version;
mod wire;

use crate::clause::Clause;
use crate::process::Job;

/// The clauses of each file.
pub(crate) const CLAUSES: &[&[Clause]] = &[
    cancel::CLAUSES,
    commit::CLAUSES,
    contend::CLAUSES,
    foreign::CLAUSES,
    fresh::CLAUSES,
    hot::CLAUSES,
    instant::CLAUSES,
    large::CLAUSES,
    life::CLAUSES,
    listing::CLAUSES,
    namespace::CLAUSES,
    prefix::CLAUSES,
    processes::CLAUSES,
    reject::CLAUSES,
    snapshot::CLAUSES,
    value::CLAUSES,
    version::CLAUSES,
    wire::CLAUSES,
];

/// What the worker processes of these clauses can do, of each file.
pub(crate) const JOBS: &[&[Job]] = &[life::JOBS, processes::JOBS];
