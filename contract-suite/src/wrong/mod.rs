//! Backends that are wrong on purpose, each to be turned red by a named clause: the proof that the clauses prove something.

mod bent;
mod faults;
mod flaw;
mod history;

use std::fmt;
use std::sync::Arc;

use crate::harness::Harness;

/// A backend that is wrong in one way.
#[derive(Clone, Copy)]
pub struct Wrong {
    /// Its stable id.
    pub id: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
    /// The clause that must be red.
    pub clause: &'static str,
    /// Makes one, with a store of its own.
    pub harness: fn() -> Arc<dyn Harness>,
}

impl fmt::Debug for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wrong").field("id", &self.id).field("clause", &self.clause).finish_non_exhaustive()
    }
}

/// All of them, file by file.
const FILES: &[&[Wrong]] = &[faults::WRONG, history::WRONG];

/// All of them.
pub fn backends() -> impl Iterator<Item = &'static Wrong> {
    FILES.iter().copied().flatten()
}
