//! Actions that are done at most once: `coord once`, and `coord effect` for who has to look at them.

pub(crate) mod args;
mod command;
mod kept;
pub(crate) mod once;
pub(crate) mod operate;
mod probe;
mod shown;
