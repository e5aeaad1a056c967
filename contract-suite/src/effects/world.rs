//! The world outside of the store, which random histories of side effects are judged by.

use std::collections::{BTreeMap, BTreeSet};

use coord_core::Bytes;
use coord_core::effects::{Lease, Replay};

use crate::clause::{Outcome, Verdict};
use crate::{ensure, fail};

#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) executions: usize,
    pub(super) uncertain: usize,
    pub(super) rulings: usize,
    pub(super) faults: usize,
    pub(super) crashes: usize,
    pub(super) evidence: usize,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Totals) {
        self.executions += other.executions;
        self.uncertain += other.uncertain;
        self.rulings += other.rulings;
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.evidence += other.evidence;
    }
}

/// What is known outside of the store.
#[derive(Default)]
pub(super) struct World {
    pub(super) time: u64,
    /// Every grant that a client was told of.
    pub(super) grants: Vec<Grant>,
    /// When something began that may let a key be granted again: a ruling, or a forget. Never an abandon of what was done.
    pub(super) excuses: BTreeMap<String, Vec<u64>>,
    /// When an attempt was given back by who had done nothing.
    pub(super) returned: BTreeMap<String, Vec<u64>>,
    /// What was reported as stored.
    pub(super) stored: BTreeMap<String, Stored>,
    /// When a forget of a key began, and when it ended. What it sent may land later, but only on what it has seen.
    pub(super) forgotten: BTreeMap<String, Vec<(u64, Option<u64>)>>,
    /// Whether a purge has begun.
    pub(super) purged: bool,
    /// What was refused as late, and so must be evidence.
    pub(super) late: BTreeMap<String, BTreeSet<(u64, Vec<u8>)>>,
    pub(super) totals: Totals,
}

/// A result that a client was told is stored.
pub(super) struct Stored {
    /// When it was told.
    pub(super) at: u64,
    /// When the acquire of an attempt of the same life of the key began.
    pub(super) since: u64,
    pub(super) result: Bytes,
}

pub(super) struct Grant {
    pub(super) key: String,
    pub(super) resource: String,
    pub(super) fence: u64,
    pub(super) began: u64,
    pub(super) told: u64,
    pub(super) executed: bool,
}

impl World {
    pub(super) fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Whether this attempt was done in the outside world since the key was last excused.
    pub(super) fn was_done(&self, key: &str) -> bool {
        let since = self.excuses.get(key).and_then(|times| times.last()).copied().unwrap_or(0);
        self.grants.iter().any(|grant| grant.key == key && grant.executed && grant.told > since)
    }

    pub(super) fn grant(&mut self, lease: &Lease, began: u64) -> Result<usize, Verdict> {
        let told = self.tick();
        let (key, resource) = (lease.action.key.to_string(), lease.action.resource.to_string());
        if let Some(stored) = self.stored.get(&key)
            && stored.at < began
            && !self.is_forgotten(&key, stored.since)
        {
            fail!("saw {key:?} granted although its result was reported as stored");
        }
        let within = |times: Option<&Vec<u64>>, from: u64| {
            times.is_some_and(|times| times.iter().any(|time| (from..=told).contains(time)))
        };
        for other in &self.grants {
            if other.resource == resource {
                ensure!(
                    other.fence != lease.fence,
                    "saw the fence {} of {resource:?} given twice",
                    lease.fence
                );
                ensure!(
                    other.told >= began || other.fence < lease.fence,
                    "saw the fence {} of {resource:?} after {}",
                    lease.fence,
                    other.fence
                );
            }
        }
        if let Some(last) = self.grants.iter().rev().find(|grant| grant.key == key) {
            let from = last.began;
            ensure!(
                within(self.excuses.get(&key), from)
                    || within(self.returned.get(&key), from)
                    || self.is_forgotten(&key, from),
                "saw {key:?} granted again without a ruling, a forget or an abandon in between (executed: {})",
                last.executed
            );
        }
        self.grants.push(Grant { key, resource, fence: lease.fence, began, told, executed: false });
        Ok(self.grants.len() - 1)
    }

    /// Does the action, which is seen outside.
    pub(super) fn execute(&mut self, index: usize) -> Outcome {
        let grant = &self.grants[index];
        let (key, from) = (grant.key.clone(), grant.began);
        ensure!(!grant.executed, "saw one attempt executed twice");
        let now = self.tick();
        for (n, other) in self.grants.iter().enumerate() {
            if n == index || other.key != key || !other.executed {
                continue;
            }
            // Two attempts of a key were executed: between the grant of the first and that of the second somebody accepted it.
            let (first, second) = (from.min(other.began), self.grants[index].told.max(other.told));
            let excused = self
                .excuses
                .get(&key)
                .is_some_and(|times| times.iter().any(|time| (first..=second).contains(time)));
            ensure!(
                excused || self.is_forgotten(&key, first),
                "saw a second execution of {key:?} without a ruling or a forget in between"
            );
        }
        let _ = now;
        self.grants[index].executed = true;
        self.totals.executions += 1;
        Ok(())
    }

    /// A forget has ended, whatever came of it: what it sent rests on what was there before.
    pub(super) fn end_forget(&mut self, forget: Option<(String, usize)>) {
        let now = self.tick();
        let Some((key, place)) = forget else { return };
        if let Some(time) = self.forgotten.get_mut(&key).and_then(|times| times.get_mut(place)) {
            time.1 = Some(now);
        }
    }

    pub(super) fn excuse(&mut self, key: &str) {
        let now = self.tick();
        self.excuses.entry(key.to_owned()).or_default().push(now);
    }

    /// Whether a life of the key that began no earlier than this may be over.
    pub(super) fn is_forgotten(&self, key: &str, since: u64) -> bool {
        let times = self.forgotten.get(key);
        times.is_some_and(|times| times.iter().any(|(_, end)| end.is_none_or(|end| end >= since)))
    }

    /// What a read that began then was told of a key that may be stored.
    pub(super) fn told(&self, key: &str, began: u64, replay: Option<&Replay>, shown: &str) -> Outcome {
        let Some(Stored { at, since, result }) = self.stored.get(key) else { return Ok(()) };
        if *at >= began || self.is_forgotten(key, *since) {
            return Ok(());
        }
        match replay {
            Some(Replay::Result(kept)) if kept == result => Ok(()),
            // A purge that began long ago may land late.
            Some(Replay::Purged { .. }) if self.purged => Ok(()),
            _ => fail!("saw {shown} of {key:?}, whose result {result:?} was reported as stored"),
        }
    }
}
