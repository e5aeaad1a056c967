//! The judgement once more, the slow and simple way: a store that is stepped through every order of the events that keeps real time.

use std::collections::{BTreeMap, HashMap, HashSet};

use contract_suite::history::{Action, Answer, Event, History, Seen};
use coord_core::{Key, Version};

/// What the store holds under a key: who created this life, how many writes it has seen, and the value.
type State = BTreeMap<Key, (usize, u64, String)>;

/// Whether some order explains the history. At most 64 events.
pub(crate) fn explains(history: &History) -> bool {
    let Some(incarnations) = incarnations(&history.0) else { return false };
    let shapes_are_right = history.0.iter().all(|event| match &event.action {
        Action::Read(entries) => entries.iter().all(|(_, seen)| *seen != Seen::LeftOut),
        _ => true,
    });
    if !shapes_are_right {
        return false;
    }
    let must: u64 = bits(&history.0, |answer| !matches!(answer, Some(Answer::Unknown | Answer::Refused)));
    let may: u64 = must | bits(&history.0, |answer| answer == Some(Answer::Unknown));
    let mut tried: HashSet<(u64, State)> = HashSet::new();
    let mut stack = vec![(0_u64, State::new())];
    while let Some((done, state)) = stack.pop() {
        if done & must == must {
            return true;
        }
        for (number, event) in history.0.iter().enumerate() {
            let bit = 1_u64 << number;
            let waits = |(other, earlier): (usize, &Event)| {
                must & !done & (1 << other) != 0 && earlier.ret.is_some_and(|ret| ret < event.call)
            };
            if may & !done & bit == 0 || history.0.iter().enumerate().any(waits) {
                continue;
            }
            if let Some(next) = step(number, event, &state, &incarnations)
                && tried.insert((done | bit, next.clone()))
            {
                stack.push((done | bit, next));
            }
        }
    }
    false
}

fn bits(events: &[Event], which: impl Fn(Option<Answer>) -> bool) -> u64 {
    let mut bits = 0;
    for (number, event) in events.iter().enumerate() {
        let answer = match &event.action {
            Action::Txn { answer, .. } => Some(*answer),
            _ => None,
        };
        if which(answer) {
            bits |= 1 << number;
        }
    }
    bits
}

/// Which incarnation each creation got, as reads of its value tell; `None` if they tell of two, or of one that two creations got.
fn incarnations(events: &[Event]) -> Option<HashMap<(usize, Key), u64>> {
    let mut found: HashMap<(usize, Key), u64> = HashMap::new();
    let mut owners: HashMap<(Key, u64), usize> = HashMap::new();
    for event in events {
        let Action::Read(entries) = &event.action else { continue };
        for (key, seen) in entries {
            let Seen::Present(version, value) = seen else { continue };
            let creates = |(_, event): &(usize, &Event)| match &event.action {
                Action::Txn { asserts, writes, .. } => {
                    writes.iter().any(|(written, put)| written == key && put.as_deref() == Some(value))
                        && asserts
                            .iter()
                            .find(|(asserted, _)| asserted == key)
                            .is_some_and(|(_, v)| v.is_missing())
                }
                _ => false,
            };
            let Some((creator, _)) = events.iter().enumerate().find(creates) else { continue };
            if *found.entry((creator, key.clone())).or_insert(version.incarnation()) != version.incarnation()
                || *owners.entry((key.clone(), version.incarnation())).or_insert(creator) != creator
            {
                return None;
            }
        }
    }
    Some(found)
}

/// The state after an event takes effect, or `None` if its answer would have been another one.
fn step(
    number: usize,
    event: &Event,
    state: &State,
    incarnations: &HashMap<(usize, Key), u64>,
) -> Option<State> {
    let version = |key: &Key| match state.get(key) {
        None => Some(Version::MISSING),
        Some((creator, count, _)) => {
            let incarnation = incarnations.get(&(*creator, key.clone()));
            incarnation.and_then(|incarnation| Version::new(*incarnation, *count))
        }
    };
    match &event.action {
        Action::Read(entries) => {
            let right = entries.iter().all(|(key, seen)| match seen {
                Seen::Absent => !state.contains_key(key),
                Seen::Present(seen, value) => {
                    version(key) == Some(*seen) && state.get(key).is_some_and(|(_, _, held)| held == value)
                }
                Seen::LeftOut => false,
            });
            right.then(|| state.clone())
        }
        Action::List { prefix, after, limit, keys } => {
            let right: Vec<&Key> = state
                .keys()
                .filter(|key| key.as_str().starts_with(prefix.as_str()))
                .filter(|key| after.as_ref().is_none_or(|after| *key > after))
                .take(*limit)
                .collect();
            (right == keys.iter().collect::<Vec<_>>()).then(|| state.clone())
        }
        Action::Txn { asserts, writes, answer } => {
            let holds = asserts.iter().all(|(key, asserted)| version(key) == Some(*asserted));
            if *answer == Answer::Rejected {
                return (!holds).then(|| state.clone());
            }
            if !holds {
                return None;
            }
            let mut next = state.clone();
            for (key, value) in writes {
                match value {
                    None => {
                        next.remove(key);
                    }
                    Some(value) => {
                        let (creator, count, held) =
                            next.entry(key.clone()).or_insert((number, 0, String::new()));
                        let _ = creator;
                        *count += 1;
                        value.clone_into(held);
                    }
                }
            }
            Some(next)
        }
    }
}
