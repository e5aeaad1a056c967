//! Small histories of a right store under a random schedule, and small lies.

use std::collections::BTreeMap;

use contract_suite::history::{Action, Answer, Event, History, Seen};
use coord_core::{Key, Version};
use rand::RngExt as _;
use rand::rngs::StdRng;

const KEYS: [&str; 3] = ["x", "y", "z"];

struct Call {
    event: usize,
    /// Whether it has taken effect.
    done: bool,
}

#[derive(Default)]
struct Run {
    events: Vec<Event>,
    store: BTreeMap<Key, (Version, String)>,
    /// Every version that anybody saw, so that asserts are stale now and then.
    seen: BTreeMap<Key, Vec<Version>>,
    /// Transactions whose client has given up and that may still happen.
    ghosts: Vec<usize>,
    created: u64,
    values: u64,
    now: u64,
}

fn key(name: &str) -> Key {
    Key::new(name).expect("the names of the test are keys")
}

/// A history of at most 14 events by 4 clients.
pub(crate) fn run(rng: &mut StdRng) -> History {
    let mut run = Run::default();
    let mut calls: [Option<Call>; 4] = Default::default();
    loop {
        run.now += 1;
        let client = rng.random_range(0..calls.len());
        match &mut calls[client] {
            None if run.events.len() < 14 => {
                let action = run.choose(rng);
                run.events.push(Event { client, call: run.now, ret: None, action });
                calls[client] = Some(Call { event: run.events.len() - 1, done: false });
            }
            None => {
                if calls.iter().all(Option::is_none) {
                    break;
                }
            }
            Some(call) if !call.done => {
                call.done = true;
                let event = call.event;
                let is_txn = matches!(run.events[event].action, Action::Txn { .. });
                if is_txn && rng.random_ratio(1, 8) {
                    // The answer is lost: it happens now, later, or never.
                    run.set_answer(event, Answer::Unknown);
                    match rng.random_range(0..3) {
                        0 => drop(run.apply(event)),
                        1 => run.ghosts.push(event),
                        _ => {}
                    }
                    calls[client] = None;
                } else if is_txn && rng.random_ratio(1, 20) {
                    run.set_answer(event, Answer::Refused);
                } else {
                    run.answer(event);
                }
            }
            Some(call) => {
                run.events[call.event].ret = Some(run.now);
                calls[client] = None;
            }
        }
        if !run.ghosts.is_empty() && rng.random_ratio(1, 4) {
            let event = run.ghosts.swap_remove(rng.random_range(0..run.ghosts.len()));
            run.apply(event);
        }
    }
    History(run.events)
}

impl Run {
    fn choose(&mut self, rng: &mut StdRng) -> Action {
        let mut names: Vec<&str> = KEYS.iter().copied().filter(|_| rng.random_bool(0.5)).collect();
        if names.is_empty() {
            names.push(KEYS[rng.random_range(0..KEYS.len())]);
        }
        match rng.random_range(0..10) {
            0..3 => Action::Read(names.into_iter().map(|name| (key(name), Seen::Absent)).collect()),
            3 => Action::List {
                prefix: if rng.random_ratio(1, 4) { "x".to_owned() } else { String::new() },
                after: rng.random_ratio(1, 4).then(|| key("x")),
                limit: rng.random_range(1..4),
                keys: Vec::new(),
            },
            _ => {
                let (mut asserts, mut writes) = (Vec::new(), Vec::new());
                for name in names {
                    let name = key(name);
                    let known = self.seen.entry(name.clone()).or_default();
                    let current = self.store.get(&name).map_or(Version::MISSING, |(version, _)| *version);
                    // What nobody has seen, nobody can assert.
                    let version = match rng.random_range(0..8) {
                        0 => Version::MISSING,
                        1 if !known.is_empty() => known[rng.random_range(0..known.len())],
                        _ if current.is_missing() || known.contains(&current) => current,
                        _ => Version::MISSING,
                    };
                    asserts.push((name.clone(), version));
                    self.values += 1;
                    match rng.random_range(0..6) {
                        0..3 => writes.push((name, Some(format!("v{}", self.values)))),
                        3 if !version.is_missing() => writes.push((name, None)),
                        _ => {}
                    }
                }
                Action::Txn { asserts, writes, answer: Answer::Unknown }
            }
        }
    }

    fn set_answer(&mut self, event: usize, to: Answer) {
        if let Action::Txn { answer, .. } = &mut self.events[event].action {
            *answer = to;
        }
    }

    fn answer(&mut self, event: usize) {
        let applied = self.apply(event);
        match &mut self.events[event].action {
            Action::Txn { answer, .. } => *answer = if applied { Answer::Applied } else { Answer::Rejected },
            Action::Read(entries) => {
                for (key, seen) in entries {
                    if let Some((version, value)) = self.store.get(key) {
                        *seen = Seen::Present(*version, value.clone());
                        self.seen.entry(key.clone()).or_default().push(*version);
                    }
                }
            }
            Action::List { prefix, after, limit, keys } => {
                *keys = self
                    .store
                    .keys()
                    .filter(|key| key.as_str().starts_with(prefix.as_str()))
                    .filter(|key| after.as_ref().is_none_or(|after| *key > after))
                    .take(*limit)
                    .cloned()
                    .collect();
            }
        }
    }

    fn apply(&mut self, event: usize) -> bool {
        let Action::Txn { asserts, writes, .. } = &self.events[event].action else { return false };
        let version = |key: &Key| self.store.get(key).map_or(Version::MISSING, |(version, _)| *version);
        if asserts.iter().any(|(key, asserted)| version(key) != *asserted) {
            return false;
        }
        for (key, value) in writes {
            match value {
                None => {
                    self.store.remove(key);
                }
                Some(value) => {
                    self.created += 1;
                    let fresh = Version::first(self.created).expect("created is counted from 1");
                    let next = self.store.get(key).and_then(|(version, _)| version.next()).unwrap_or(fresh);
                    self.store.insert(key.clone(), (next, value.clone()));
                }
            }
        }
        true
    }
}

/// The same history with one to three answers or times changed.
pub(crate) fn change(history: &History, rng: &mut StdRng) -> History {
    let mut changed = history.clone();
    for _ in 0..rng.random_range(1..4) {
        let event = rng.random_range(0..changed.0.len());
        let entries: Vec<(Key, Seen)> = changed.0.iter().flat_map(entries_of).collect();
        let Event { call, ret, action, .. } = &mut changed.0[event];
        if rng.random_ratio(1, 4) {
            // Called a little later, or answered a little earlier.
            match ret {
                Some(ret) if rng.random_bool(0.5) => *ret = rng.random_range(*call + 1..*ret + 1),
                Some(ret) => *call = rng.random_range(*call..*ret),
                None => *call += rng.random_range(0..6),
            }
            continue;
        }
        match action {
            Action::Read(seen) => {
                let entry = rng.random_range(0..seen.len());
                let (key, seen) = &mut seen[entry];
                let others: Vec<_> = entries.iter().filter(|(other, _)| other == key).collect();
                *seen = match others.len() {
                    0 => Seen::Absent,
                    count => others[rng.random_range(0..count)].1.clone(),
                };
            }
            Action::List { keys, .. } => {
                if keys.is_empty() || rng.random_bool(0.5) {
                    let extra = key(KEYS[rng.random_range(0..KEYS.len())]);
                    if !keys.contains(&extra) {
                        keys.push(extra);
                        keys.sort();
                    }
                } else {
                    keys.remove(rng.random_range(0..keys.len()));
                }
            }
            Action::Txn { answer, .. } => {
                *answer = match (*answer, rng.random_range(0..3)) {
                    (Answer::Applied, 0) => Answer::Rejected,
                    (Answer::Rejected, 0) => Answer::Applied,
                    (Answer::Unknown, _) => Answer::Unknown,
                    _ => {
                        *ret = None;
                        Answer::Unknown
                    }
                };
            }
        }
    }
    changed
}

fn entries_of(event: &Event) -> Vec<(Key, Seen)> {
    match &event.action {
        Action::Read(entries) => entries.clone(),
        _ => Vec::new(),
    }
}
