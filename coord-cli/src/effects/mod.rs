//! Actions that are done at most once: `coord once`, and `coord effect` for who has to look at them.

pub(crate) mod args;
mod command;
mod kept;
pub(crate) mod once;
pub(crate) mod operate;
mod probe;
mod shown;
pub(crate) mod task;

use coord_core::effects::RunContext;

/// What the command of an action sees.
pub(crate) fn variables(context: &RunContext, attempt: u32) -> Vec<(String, String)> {
    vec![
        ("COORD_KEY".to_owned(), context.action().key.to_string()),
        ("COORD_FENCE".to_owned(), context.fence().to_string()),
        ("COORD_ATTEMPT".to_owned(), attempt.to_string()),
        ("COORD_DOWNSTREAM_KEY".to_owned(), context.downstream_key().to_owned()),
    ]
}
