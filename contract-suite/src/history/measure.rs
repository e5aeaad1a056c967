//! Whether a run has put anything to the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use coord_core::Key;

use super::event::{Action, Answer, Event, History, Seen};

/// What has happened in a run that a wrong store could have got wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Events.
    pub events: usize,
    /// Transactions that were applied and wrote something.
    pub writes: usize,
    /// Transactions that were rejected although they asserted what their client had just read: somebody came in between.
    pub races: usize,
    /// Events that overlapped, in time and in a key, with another client's applied write.
    pub overlaps: usize,
    /// Keys that came into being again after they had been deleted.
    pub recreations: usize,
    /// Applied transactions that asserted a key which they did not write.
    pub checks: usize,
    /// Listings.
    pub listings: usize,
    /// Transactions of unknown outcome.
    pub unknown: usize,
    /// Transactions of unknown outcome that somebody saw.
    pub landed: usize,
}

impl Measure {
    /// Measures a history whose events are ordered by their calls.
    #[must_use]
    pub fn of(history: &History) -> Measure {
        let mut measure = Measure { events: history.0.len(), ..Measure::default() };
        let mut last: BTreeMap<usize, &Action> = BTreeMap::new();
        let mut creations: BTreeMap<&Key, usize> = BTreeMap::new();
        for event in &history.0 {
            match &event.action {
                Action::List { .. } => measure.listings += 1,
                Action::Read(_) => {}
                Action::Txn { asserts, writes, answer } => {
                    let applied = *answer == Answer::Applied;
                    let unwritten = |(key, _): &(Key, _)| writes.iter().all(|(written, _)| written != key);
                    measure.writes += usize::from(applied && !writes.is_empty());
                    measure.checks += usize::from(applied && asserts.iter().any(unwritten));
                    measure.unknown += usize::from(*answer == Answer::Unknown);
                    let fresh = last.get(&event.client).is_some_and(|read| agrees(read, asserts));
                    measure.races += usize::from(*answer == Answer::Rejected && fresh);
                    for (key, version) in asserts.iter().filter(|_| applied) {
                        if version.is_missing() && writes.iter().any(|(w, put)| w == key && put.is_some()) {
                            *creations.entry(key).or_default() += 1;
                        }
                    }
                }
            }
            last.insert(event.client, &event.action);
        }
        measure.recreations = creations.values().map(|count| count - 1).sum();
        measure.overlaps = overlaps(&history.0);
        measure.landed = landed(&history.0);
        measure
    }

    /// Adds the measure of another round.
    #[must_use]
    pub fn plus(self, other: Measure) -> Measure {
        Measure {
            events: self.events + other.events,
            writes: self.writes + other.writes,
            races: self.races + other.races,
            overlaps: self.overlaps + other.overlaps,
            recreations: self.recreations + other.recreations,
            checks: self.checks + other.checks,
            listings: self.listings + other.listings,
            unknown: self.unknown + other.unknown,
            landed: self.landed + other.landed,
        }
    }

    /// Whether there was enough of everything that a wrong store could have got wrong; unknown outcomes aside.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.writes >= 200
            && self.races >= 30
            && self.overlaps >= 100
            && self.recreations >= 20
            && self.checks >= 30
            && self.listings >= 30
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} events, {} writes, {} lost races, {} overlaps with writes, {} re-creations, {} checks of unwritten keys, \
             {} listings, {} unknown outcomes, of which {} were seen",
            self.events,
            self.writes,
            self.races,
            self.overlaps,
            self.recreations,
            self.checks,
            self.listings,
            self.unknown,
            self.landed
        )
    }
}

/// Whether a snapshot saw just what is asserted.
fn agrees(read: &Action, asserts: &[(Key, coord_core::Version)]) -> bool {
    let Action::Read(entries) = read else { return false };
    asserts.iter().all(|(key, asserted)| {
        entries.iter().any(|(seen_key, seen)| match seen {
            Seen::Absent => seen_key == key && asserted.is_missing(),
            Seen::Present(version, _) => seen_key == key && version == asserted,
            Seen::LeftOut => false,
        })
    })
}

fn landed(events: &[Event]) -> usize {
    let mut seen: BTreeSet<(&Key, &str)> = BTreeSet::new();
    for event in events {
        let Action::Read(entries) = &event.action else { continue };
        seen.extend(entries.iter().filter_map(|(key, entry)| match entry {
            Seen::Present(_, value) => Some((key, value.as_str())),
            _ => None,
        }));
    }
    let was_seen = |event: &&Event| match &event.action {
        Action::Txn { writes, answer: Answer::Unknown, .. } => {
            writes.iter().any(|(key, put)| put.as_deref().is_some_and(|put| seen.contains(&(key, put))))
        }
        _ => false,
    };
    events.iter().filter(was_seen).count()
}

fn overlaps(events: &[Event]) -> usize {
    let keys = |event: &Event| -> BTreeSet<Key> {
        match &event.action {
            Action::Read(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
            Action::Txn { asserts, .. } => asserts.iter().map(|(key, _)| key.clone()).collect(),
            Action::List { .. } => BTreeSet::new(),
        }
    };
    let mut counted = BTreeSet::new();
    let mut open: Vec<usize> = Vec::new();
    for (number, event) in events.iter().enumerate() {
        open.retain(|other| events[*other].ret.is_none_or(|ret| ret > event.call));
        for &other in &open {
            let (one, two) = (&events[other], event);
            for (reader, writer, place) in [(one, two, other), (two, one, number)] {
                if reader.client != writer.client && writes_one_of(writer, &reader.action, &keys(reader)) {
                    counted.insert(place);
                }
            }
        }
        // What was never answered would overlap with everything from then on, and prove nothing.
        if event.ret.is_some() {
            open.push(number);
        }
    }
    counted.len()
}

fn writes_one_of(writer: &Event, reader: &Action, keys: &BTreeSet<Key>) -> bool {
    let Action::Txn { writes, answer: Answer::Applied, .. } = &writer.action else { return false };
    let listed = |key: &Key| match reader {
        Action::List { prefix, .. } => key.as_str().starts_with(prefix.as_str()),
        _ => keys.contains(key),
    };
    writes.iter().any(|(key, _)| listed(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_contention_counts() {
        let history: History = "
            0 1..2 txn x@- : x=1 -> applied
            1 3..4 read x@a.1=1
            0 5..9 txn x@a.1 : x=2 -> applied
            1 6..10 txn x@a.1 : x=3 -> rejected
            2 7..8 list * limit=3 -> x
            1 11..12 txn x@a.1 : x=4 -> rejected
            2 13..14 read x@a.2=2
            2 15..16 txn x@a.2 y@- : x~ -> applied
            2 17..? txn x@- : x=5 -> unknown
            3 17..? txn z@- : z=7 -> unknown
            3 17..18 read z@b.1=7
            2 18..19 txn x@- : x=6 -> applied"
            .parse()
            .unwrap();
        let expected = Measure {
            events: 12,
            writes: 4,
            races: 1,
            overlaps: 2,
            recreations: 1,
            checks: 1,
            listings: 1,
            unknown: 2,
            landed: 1,
        };
        assert_eq!(Measure::of(&history), expected);
        assert!(!Measure::of(&history).is_enough());
        assert!(!Measure::default().is_enough());
    }
}
