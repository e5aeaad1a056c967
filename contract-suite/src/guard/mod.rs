//! The clauses of the guard and of the reconciler, one file a group.

mod death;
mod harness;
mod probing;
mod rulings;
mod settling;
mod signal;
mod stage;
mod values;
mod waiting;

pub use harness::{Act, CoreGuard, Given, GuardHarness, Ran};

use crate::clause::Clause;
use crate::process::Job;

/// The clauses of each file.
pub(crate) const CLAUSES: &[&[Clause]] = &[
    death::CLAUSES,
    probing::CLAUSES,
    rulings::CLAUSES,
    settling::CLAUSES,
    signal::CLAUSES,
    values::CLAUSES,
    waiting::CLAUSES,
];

/// What the worker processes of these clauses can do, of each file.
pub(crate) const JOBS: &[&[Job]] = &[death::JOBS];
