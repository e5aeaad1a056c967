//! The contract's requests as etcd's, and its answers back.

use std::collections::BTreeSet;

use bytes::Bytes;
use coord_core::{Assert, BackendError, Entry, Key, KeyRange, Mutation, Namespace, Operation, Txn, Version};
use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::error::corrupt;

/// The most operations, and the most compares, of one level of a transaction with etcd's default settings. A nested level has what
/// the outer one has left.
const LEVEL: usize = 128;

/// What every value of ours begins with. etcd has no place for an owner, so this tells ours from what others put there. The largest
/// byte, so that one compare tells: what is not ours is less.
const MARK: u8 = 0xFF;

/// The most guards of one transaction. A guard and its answer are two messages deep: this crate switches off the limit of a hundred that
/// the decoder of answers has by default, for an answer is as deep as the request that it answers.
const GUARDS: usize = 64;

/// The keys of one namespace in etcd.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// `coord/<namespace>/`; a namespace has no slash, so none is the beginning of another.
    prefix: Vec<u8>,
}

impl Space {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        Space { prefix: format!("coord/{namespace}/").into_bytes() }
    }

    fn physical(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    /// Where one key is.
    pub(crate) fn key(&self, key: &Key) -> Vec<u8> {
        self.physical(key.as_bytes())
    }

    /// The first key after all of the namespace.
    fn end(&self) -> Vec<u8> {
        let mut end = self.prefix.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }

    /// Where a listing starts, and what it asks for.
    pub(crate) fn listing(&self, range: &KeyRange) -> (Vec<u8>, GetOptions) {
        let prefix = self.physical(range.prefix().as_bytes());
        let start = match range.after() {
            // The smallest key above it: keys have no NUL.
            Some(after) => prefix.clone().max([&self.key(after)[..], &[0]].concat()),
            None => prefix,
        };
        let end = range.prefix().upper_bound().map_or_else(|| self.end(), |bound| self.physical(&bound));
        let limit = i64::try_from(range.limit()).unwrap_or(i64::MAX);
        (start.clone(), GetOptions::new().with_range(end.max(start)).with_limit(limit).with_keys_only())
    }

    /// A read of some entries of the namespace, whatever they are.
    pub(crate) fn sample(&self, limit: i64) -> (Vec<u8>, GetOptions) {
        (self.prefix.clone(), GetOptions::new().with_range(self.end()).with_limit(limit))
    }

    /// The key that etcd returned.
    pub(crate) fn logical(&self, physical: &[u8], operation: Operation) -> Result<Key, BackendError> {
        physical
            .strip_prefix(&self.prefix[..])
            .and_then(|key| Key::from_bytes(key).ok())
            .ok_or_else(|| corrupt(operation, "a key in the namespace is not one of ours"))
    }

    fn compares(&self, assert: &Assert) -> Vec<Compare> {
        let key = self.key(&assert.key);
        if assert.version.is_missing() {
            return vec![Compare::version(key, CompareOp::Equal, 0)];
        }
        // Both halves have 63 bits.
        let half = |half: u64| i64::try_from(half).unwrap_or(i64::MAX);
        vec![
            Compare::create_revision(key.clone(), CompareOp::Equal, half(assert.version.incarnation())),
            Compare::version(key, CompareOp::Equal, half(assert.version.count())),
        ]
    }

    fn operation(&self, mutation: &Mutation) -> TxnOp {
        match mutation {
            Mutation::Put { key, value } => TxnOp::put(self.key(key), [&[MARK], &value[..]].concat(), None),
            Mutation::Delete { key } => TxnOp::delete(self.key(key), None::<DeleteOptions>),
        }
    }

    /// A compare that holds if the key is there and what it holds is not ours. (A compare of values never holds for an absent key.)
    fn foreign(&self, key: &Key) -> Compare {
        Compare::value(self.key(key), CompareOp::Less, vec![MARK])
    }

    /// A transaction that does nothing, and succeeds if what the key holds is not ours.
    fn probe(&self, key: &Key) -> TxnOp {
        TxnOp::txn(etcd_client::Txn::new().when(vec![self.foreign(key)]))
    }

    /// The whole transaction.
    ///
    /// Innermost are the asserts as compares, then the operations there too if they fit, else in nested transactions without compares.
    /// Those are part of the same one: they happen if the compares hold, at the same revision. If the compares do not hold, the asserted
    /// keys are probed.
    ///
    /// Around it, for each key that is written without being asserted, a guard: if the key holds what is not ours, nothing is done, else
    /// what is inside. Where the levels do not suffice for that, these keys have to be probed before.
    pub(crate) fn txn(&self, txn: &Txn) -> Request {
        let compares: Vec<Compare> = txn.asserts().iter().flat_map(|assert| self.compares(assert)).collect();
        let asserted: BTreeSet<&Key> = txn.asserts().iter().map(|assert| &assert.key).collect();
        let unasserted: Vec<&Key> =
            txn.mutations().iter().map(Mutation::key).filter(|key| !asserted.contains(key)).collect();
        let mut operations: Vec<TxnOp> =
            txn.mutations().iter().map(|mutation| self.operation(mutation)).collect();
        let mut inner = 1;
        let groups = if operations.len() > LEVEL / 2 {
            Some(LEVEL / 2)
        } else if unasserted.is_empty() {
            None
        } else {
            // Two levels of about the same size leave the most for guards.
            Some(operations.len().isqrt().max(1))
        };
        if let Some(groups) = groups {
            let groups = compares.len().max(groups);
            inner = operations.len().div_ceil(groups).max(1);
            operations = nest(operations, groups);
        }
        let outer = compares.len().max(operations.len()).max(asserted.len());
        let mut whole = etcd_client::Txn::new()
            .when(compares)
            .and_then(operations)
            .or_else(asserted.iter().map(|key| self.probe(key)).collect::<Vec<TxnOp>>());
        let left = LEVEL.saturating_sub(outer + inner).min(GUARDS);
        if unasserted.len() > left {
            let probes = unasserted.iter().map(|key| self.probe(key)).collect();
            return Request { txn: whole, guards: 0, probes: Some(only(probes)) };
        }
        for key in &unasserted {
            whole = etcd_client::Txn::new().when(vec![self.foreign(key)]).or_else(vec![TxnOp::txn(whole)]);
        }
        Request { txn: whole, guards: unasserted.len(), probes: None }
    }
}

/// A transaction of the contract as etcd's.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) txn: etcd_client::Txn,
    /// How many guards are around it.
    guards: usize,
    /// What has to be asked before, if there are too many keys to guard.
    pub(crate) probes: Option<etcd_client::Txn>,
}

/// What the answer of a transaction says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Applied,
    Rejected,
    /// A key that the transaction meets holds what is not ours; nothing was done.
    Foreign,
}

impl Request {
    pub(crate) fn answer(&self, response: &TxnResponse) -> Option<Answer> {
        let mut response = response.clone();
        for _ in 0..self.guards {
            if response.succeeded() {
                return Some(Answer::Foreign);
            }
            match response.op_responses().pop()? {
                TxnOpResponse::Txn(inner) => response = inner,
                _ => return None,
            }
        }
        if response.succeeded() {
            return Some(Answer::Applied);
        }
        Some(if any_foreign(&response) { Answer::Foreign } else { Answer::Rejected })
    }
}

/// Whether one of the probes in an answer, at whatever level, says that its key is foreign.
pub(crate) fn any_foreign(response: &TxnResponse) -> bool {
    response.op_responses().iter().any(|response| match response {
        // A probe has no operations of its own; a group of probes has no compares, and always succeeds.
        TxnOpResponse::Txn(probe) if probe.op_responses().is_empty() => probe.succeeded(),
        TxnOpResponse::Txn(group) => any_foreign(group),
        _ => false,
    })
}

/// One transaction of these operations, without compares.
fn only(operations: Vec<TxnOp>) -> etcd_client::Txn {
    let count = operations.len();
    // Two levels hold 64 groups of 63, and leave one for a probe's compare; more reads than that take a third level.
    let operations = if count <= LEVEL / 2 {
        operations
    } else if count <= (LEVEL / 2) * (LEVEL / 2 - 1) {
        nest(operations, LEVEL / 2)
    } else {
        let leaves = count.div_ceil(READ_GROUPS * READ_GROUPS);
        nest(nest(operations, count.div_ceil(leaves)), READ_GROUPS)
    };
    etcd_client::Txn::new().and_then(operations)
}

/// Puts operations into `groups` nested transactions of about the same size.
///
/// With `max(compares, groups)` used on the outer level, each group may have 128 less that: with the most compares of the contract,
/// 96, that makes 96 groups of 32, which hold its 3,000 mutations.
fn nest(operations: Vec<TxnOp>, groups: usize) -> Vec<TxnOp> {
    let size = operations.len().div_ceil(groups);
    let mut operations = operations.into_iter();
    let mut nested = Vec::with_capacity(groups);
    loop {
        let group: Vec<TxnOp> = operations.by_ref().take(size).collect();
        if group.is_empty() {
            return nested;
        }
        nested.push(TxnOp::txn(etcd_client::Txn::new().and_then(group)));
    }
}

/// How many reads one read-only transaction nests: 42 groups of 42 groups of 44, each level having what the outer ones left of 128.
const READ_GROUPS: usize = 42;

/// One read-only transaction that reads these physical keys at one revision.
pub(crate) fn read(keys: &[Vec<u8>]) -> etcd_client::Txn {
    only(keys.iter().map(|key| TxnOp::get(key.clone(), None)).collect())
}

/// What each read of a transaction found, in the order of the reads.
pub(crate) fn found(response: &TxnResponse) -> Vec<Option<KeyValue>> {
    let mut found = Vec::new();
    for response in response.op_responses() {
        match response {
            TxnOpResponse::Get(mut get) => found.push(get.take_kvs().pop()),
            // Three levels at most.
            TxnOpResponse::Txn(nested) => found.extend(self::found(&nested)),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) => {}
        }
    }
    found
}

/// The entry that etcd returned for a key.
pub(crate) fn entry(key: &Key, found: Option<KeyValue>) -> Result<Entry, BackendError> {
    let Some(found) = found else { return Ok(Entry::Absent) };
    let foreign =
        |what| corrupt(Operation::Snapshot, format!("what is stored under {key:?} is not ours: {what}"));
    if found.lease() != 0 {
        return Err(foreign("it expires with a lease"));
    }
    let half = |half: i64| u64::try_from(half).unwrap_or(0);
    let version = Version::new(half(found.create_revision()), half(found.version()))
        .ok_or_else(|| foreign("its version is impossible"))?;
    let value = Bytes::from(found.into_key_value().1);
    match value.first() {
        Some(&MARK) => Ok(Entry::Present { version, value: value.slice(1..) }),
        _ => Err(foreign("it does not begin as ours do")),
    }
}

/// Whether an entry of the namespace is one of ours.
pub(crate) fn is_ours(found: &KeyValue) -> bool {
    found.lease() == 0 && found.value().first() == Some(&MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth_and_widest(count: usize, groups: usize) -> (usize, usize) {
        let size = count.div_ceil(groups);
        (count.div_ceil(size), size)
    }

    #[test]
    fn the_largest_transaction_fits_two_levels() {
        // 96 compares on the outer level leave 32 for the inner one.
        let (outer, inner) = depth_and_widest(coord_core::limits::TXN_MUTATIONS, 96);
        assert!(outer <= 96 && inner <= LEVEL - 96, "{outer} groups of {inner}");
        // Without compares, 64 groups leave 64.
        let (outer, inner) = depth_and_widest(coord_core::limits::TXN_MUTATIONS, 64);
        assert!(outer <= 64 && inner <= LEVEL - 64, "{outer} groups of {inner}");
    }

    #[test]
    fn the_largest_snapshot_fits_three_levels() {
        let count = coord_core::limits::SNAPSHOT_KEYS;
        let leaves = count.div_ceil(READ_GROUPS * READ_GROUPS);
        let (middle, leaf) = depth_and_widest(count, count.div_ceil(leaves));
        let (outer, inner) = depth_and_widest(middle, READ_GROUPS);
        assert!(outer + inner + leaf <= LEVEL, "{outer} + {inner} + {leaf}");
    }
}
