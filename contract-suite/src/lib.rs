#![doc = include_str!("../README.md")]

mod adapter;
mod backend;
mod board;
mod clause;
mod context;
mod document;
mod effects;
mod faults;
mod guard;
mod harness;
pub mod history;
pub mod judges;
mod memory;
mod mimic;
mod model;
mod probe;
pub mod process;
mod race;
mod report;
mod run;
#[cfg(feature = "servers")]
pub mod servers;
mod sim;
#[cfg(feature = "sqlite")]
mod sqlite;
mod staging;
mod unanswered;
mod url;
pub mod wire;
pub mod wrong;

pub use adapter::{AdapterBoards, AdapterEffects};
pub use clause::{Body, Clause, Layer, Needs, Outcome, Verdict, VerdictContext, clause, clauses};
pub use context::{Context, remove_all};
pub use document::{contract_markdown, markdown};
pub use effects::effect_histories;
pub use guard::{Act, CoreGuard, Given, GuardHarness, Ran};
pub use harness::{
    BoardHarness, BoardSeat, Control, ControlError, Cut, CutPoint, EffectSeat, EffectsHarness, Harness,
    Misconfiguration, ServerControl,
};
pub use memory::MemoryHarness;
pub use mimic::{main, main_subject, main_with};
pub use report::{Report, Row, RowResult};
pub use run::{Options, Subject, check, is_required, run, run_clause, run_subject};
pub use sim::SimHarness;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteHarness;
pub use url::UrlHarness;
