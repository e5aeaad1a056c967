//! The ready index: which tasks can be claimed, which from when on, and which wait for what.
//!
//! Every transaction that writes a task writes its entry too ([`place`]). What a completion or the passing of time changes about
//! *other* tasks is left behind as a marker and worked off in bounded pieces by whoever comes next ([`examine`]). The index is a
//! hint that the claim verifies ([`take`]); a wrong entry costs a look and is replaced.
//!
//! Why no task is lost: done is for ever, so the scan of a task's dependencies only goes forward. A watch on a task is only put
//! while that is asserted not to be done, and every completion leaves a marker, so no watch is put after the last look at the
//! page of watches. Two last completions cannot miss each other, for the task watches one of them.

mod entry;
mod examine;
mod place;
mod repair;
mod take;

pub(super) use entry::{
    DUE, READY, TODO, encode_mark, mark_key, marker, place, read_mark, ready_key, todo_key, watch_key,
};
pub(super) use place::{Change, Moved, Scan, leave_line, moved, scan};
pub use repair::RepairReport;
