//! The verbs that change which tasks there are and what depends on what. All of them read, assert and write the guard record, so
//! that the existence of ids, edges, dependents and the absence of cycles are protected by one assert.

mod add;
mod reconnect;
mod remove;

use super::BoardError;
use super::record::{Topology, edge_key, encode_edge, read_topology, topology_key};
use super::task::TaskId;
use crate::cas::View;
use crate::txn::{Assert, Mutation};

fn edge_put(dependency: &TaskId, dependent: &TaskId) -> Mutation {
    Mutation::put(edge_key(dependency, dependent), encode_edge())
}

/// The guard as a view shows it, with the assert that rests on it.
pub(super) fn guard(view: &View<'_>) -> Result<(Topology, Assert), BoardError> {
    let key = topology_key();
    let entry = view.entry(&key)?;
    let version = entry.version();
    Ok((read_topology(entry)?, Assert::version(key, version)))
}
