//! Wrappers around a [`Backend`](crate::Backend) that are backends themselves: for counting and tracing, and for tests.
//!
//! - [`Observe`] counts calls, keys, bytes and outcomes, and traces every call.
//! - [`Fault`] loses, repeats, delays and refuses calls by a plan.
//! - [`StoreClock`] replaces the store's clock by one that a test moves.
//!
//! Layers stack: `Observe::new(Fault::new(backend))` counts what the caller asks for, `Fault::new(Observe::new(backend))` what
//! reaches the store.

mod fault;
mod observe;
mod plan;
mod store_clock;

pub use fault::{Fault, Faults, Held, Hit, RuleId};
pub use observe::{CallCounts, Counts, Meter, Observe};
pub use plan::{Call, Cell, When};
pub use store_clock::StoreClock;
