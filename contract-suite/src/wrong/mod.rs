//! Backends that are wrong on purpose, each to be turned red by a named clause: the proof that the clauses prove something.
//!
//! Those of the three primitives are variations of one small store in memory, which is right if nothing is bent; those about faults lie
//! over the simulated store.

mod answers;
mod asserts;
mod bent;
mod commits;
mod faults;
mod file;
mod flaw;
mod harness;
mod history;
mod listings;
mod timing;
mod toy;

use std::fmt;
use std::sync::Arc;

use crate::harness::Harness;

pub use harness::ToyHarness;

/// A backend that is wrong in one way.
#[derive(Clone, Copy)]
pub struct Wrong {
    /// Its stable id.
    pub id: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
    /// The clause that must be red.
    pub clause: &'static str,
    /// Clauses that must be red, too.
    pub also: &'static [&'static str],
    /// Makes one, with a store of its own.
    pub harness: fn() -> Arc<dyn Harness>,
}

impl Wrong {
    /// Every clause that must be red.
    pub fn clauses(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.clause).chain(self.also.iter().copied())
    }
}

impl fmt::Debug for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrong").field("id", &self.id).field("clause", &self.clause).finish_non_exhaustive()
    }
}

/// All of them, file by file.
const FILES: &[&[Wrong]] = &[
    asserts::WRONG,
    commits::WRONG,
    answers::WRONG,
    listings::WRONG,
    timing::WRONG,
    file::WRONG,
    faults::WRONG,
    history::WRONG,
];

/// All of them.
pub fn backends() -> impl Iterator<Item = &'static Wrong> {
    FILES.iter().copied().flatten()
}

/// The small right store of which many of them are variations. Every clause that it can be tried on passes.
#[must_use]
pub fn right() -> Arc<dyn Harness> {
    Arc::new(ToyHarness::new(&toy::RIGHT))
}

/// A small right store that several processes open.
#[must_use]
pub fn right_for_processes() -> Arc<dyn Harness> {
    file::right()
}

/// The harness that this process was started for as a worker, if it was: what a test program that tries these backends passes to
/// [`process::serve`](crate::process::serve).
#[must_use]
pub fn of_this_worker() -> Option<Arc<dyn Harness>> {
    file::of_this_worker()
}
