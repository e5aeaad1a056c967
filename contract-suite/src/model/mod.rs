//! The model run: random operations, one after the other, on the backend and on a reference that is too simple to be wrong. Every
//! answer must be the same; the versions are compared up to the names of incarnations, which are the store's to choose. A failing
//! run is shrunk to a few steps.

mod clauses;
mod reference;
mod step;

pub(crate) use clauses::CLAUSES;
