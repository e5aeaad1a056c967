//! Recorded histories: several clients work on few keys, and a checker judges whether all their answers can be explained by one
//! order that keeps real time, which is what *strictly serialisable* means.
//!
//! Since a version moves by exactly one a write, and every write asserts the version that it replaces, the order of the writes of a
//! key is known. So the checker does not search for an order, but builds the graph of what must have come before what and looks for
//! a cycle. Only where an answer can be explained in several ways (a rejection, an absence, an unknown outcome), it searches.

mod attribute;
mod check;
mod choice;
mod clauses;
mod event;
mod graph;
mod measure;
mod record;
mod rules;
mod workload;

pub use check::{Violation, check, check_by};
pub use event::{Action, Answer, Event, History, ParseHistoryError, Seen};
pub use measure::Measure;
pub use record::Recorder;
pub use rules::{Rule, Rules};
pub use workload::Workload;

pub(crate) use clauses::{CLAUSES, judge};
