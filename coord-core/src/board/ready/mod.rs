//! The ready index: which tasks can be claimed, which from when on, and which wait for what.
//!
//! Every transaction that writes a task writes its entry too ([`place`]). What a completion or the passing of time changes about
//! *other* tasks is left behind as a marker and worked off in bounded pieces by whoever comes next ([`examine`]). The index is a
//! hint that the claim verifies ([`take`]); a wrong entry costs a look and is replaced.
//!
//! Why no task is lost: a watch on a task is only put while it is asserted that the task has not come to what settles the dependency,
//! and whatever ends a task leaves a marker, which goes, at the version that it had before, once every watch has been judged. So a watch
//! that was put after the last look at them is followed by another marker. Two last ends cannot miss each other, for a task watches one
//! of them. Done and skipped are for ever. A failed or cancelled task may be reopened until a task has begun because of it; what moved on
//! before that is where it is looked at, and then judged from its first dependency on.

mod entry;
mod examine;
mod place;
mod repair;
mod take;

pub(super) use entry::{
    DUE, Needs, READY, TODO, encode_mark, mark_key, marker, place, read_mark, ready_key, todo_key, watch_key,
};
pub(super) use place::{Change, Moved, Scan, leave_line, moved, scan};
pub use repair::RepairReport;
