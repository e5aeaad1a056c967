//! Who wrote which version, and what each event says of which key.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use coord_core::{Key, Version};

use super::check::Violation;
use super::event::{Action, Answer, Event, History, Seen};
use super::rules::{Rule, Rules};

/// One life of a key: from its creation to its deletion.
#[derive(Debug)]
pub(crate) struct Life {
    /// The incarnation, if anybody saw it.
    pub(crate) incarnation: Option<u64>,
    /// Who created it.
    pub(crate) creator: usize,
    /// Who deleted it: one at most, if all is well.
    pub(crate) enders: Vec<usize>,
}

/// One version of a key, by its life and its count.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) writer: Option<usize>,
    /// Who put or deleted asserting it: one at most, if all is well.
    pub(crate) replacers: Vec<usize>,
    pub(crate) readers: Vec<usize>,
}

/// What is known of one key.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) lives: Vec<Life>,
    pub(crate) slots: BTreeMap<(usize, u64), Slot>,
    pub(crate) absent: Vec<usize>,
    pub(crate) listed: Vec<usize>,
}

impl Known {
    pub(crate) fn life(&self, incarnation: u64) -> Option<usize> {
        self.lives.iter().position(|life| life.incarnation == Some(incarnation))
    }

    /// The version that a slot stands for, as far as it is known.
    pub(crate) fn version(&self, (life, count): (usize, u64)) -> Version {
        let incarnation = self.lives.get(life).and_then(|life| life.incarnation);
        incarnation.and_then(|incarnation| Version::new(incarnation, count)).unwrap_or(Version::MISSING)
    }

    pub(crate) fn slot(&self, version: Version) -> Option<&Slot> {
        self.slots.get(&(self.life(version.incarnation())?, version.count()))
    }
}

/// A history with its keys numbered and its values traced to their writers, before anything is assumed of unknown outcomes.
#[derive(Debug)]
pub(crate) struct Traced<'a> {
    pub(crate) history: &'a History,
    pub(crate) names: Vec<Key>,
    index: HashMap<Key, usize>,
    /// The incarnations that creations gave, by event and key.
    incarnations: BTreeMap<(usize, usize), u64>,
    /// What snapshots saw present: event, key, and the writer of the value.
    seen: Vec<(usize, usize, usize)>,
    /// The transactions of unknown outcome that somebody saw.
    pub(crate) seen_unknown: BTreeSet<usize>,
}

/// A transaction that has happened: its event, asserts and writes.
type Happened<'a> = (usize, &'a [(Key, Version)], &'a [(Key, Option<String>)]);

/// The version that a transaction asserts of a key: its first assert on it.
fn asserted(asserts: &[(Key, Version)], key: &Key) -> Option<Version> {
    asserts.iter().find(|(asserted, _)| asserted == key).map(|(_, version)| *version)
}

impl<'a> Traced<'a> {
    pub(crate) fn new(history: &'a History, rules: Rules) -> Result<Self, Violation> {
        let mut names = BTreeSet::new();
        for event in &history.0 {
            match &event.action {
                Action::Read(entries) => names.extend(entries.iter().map(|(key, _)| key)),
                Action::Txn { asserts, writes, .. } => {
                    names.extend(asserts.iter().map(|(key, _)| key));
                    names.extend(writes.iter().map(|(key, _)| key));
                }
                Action::List { keys, .. } => names.extend(keys),
            }
        }
        let names: Vec<Key> = names.into_iter().cloned().collect();
        let index = names.iter().cloned().enumerate().map(|(number, key)| (key, number)).collect();
        let mut traced = Traced {
            history,
            names,
            index,
            incarnations: BTreeMap::new(),
            seen: Vec::new(),
            seen_unknown: BTreeSet::new(),
        };
        traced.trace(rules)?;
        Ok(traced)
    }

    pub(crate) fn key(&self, key: &Key) -> usize {
        self.index[key]
    }

    /// Every put by its key and value, which must be unique, or nothing can be told from the history.
    fn puts(&self) -> Result<HashMap<(usize, &'a str), usize>, Violation> {
        let mut puts = HashMap::new();
        for (event, entry) in self.history.0.iter().enumerate() {
            let Action::Txn { asserts, writes, .. } = &entry.action else { continue };
            for (key, value) in writes {
                let Some(replaced) = asserted(asserts, key) else {
                    return Err(Violation::unusable(format!("a write of {key} asserts no version: {entry}")));
                };
                let Some(value) = value else {
                    if replaced.is_missing() {
                        return Err(Violation::unusable(format!("{key} is deleted as absent: {entry}")));
                    }
                    continue;
                };
                if puts.insert((self.key(key), value.as_str()), event).is_some() {
                    return Err(Violation::unusable(format!(
                        "the value {value} of {key} is put twice: {entry}"
                    )));
                }
            }
        }
        Ok(puts)
    }

    fn trace(&mut self, rules: Rules) -> Result<(), Violation> {
        let puts = self.puts()?;
        let mut creations: HashMap<(usize, u64), usize> = HashMap::new();
        for (event, entry) in self.history.0.iter().enumerate() {
            let Action::Read(entries) = &entry.action else { continue };
            for (name, seen) in entries {
                let key = self.key(name);
                let (version, value) = match seen {
                    Seen::Absent => continue,
                    Seen::Present(version, value) => (*version, value.as_str()),
                    Seen::LeftOut if rules.has(Rule::Complete) => {
                        return Err(Violation::new(Rule::Complete, format!("{name} is left out of {entry}")));
                    }
                    Seen::LeftOut => continue,
                };
                let blame = |rule, text: String| Err(Violation::new(rule, format!("{text}\n  {entry}")));
                let Some(&writer) = puts.get(&(key, value)) else {
                    if rules.has(Rule::Provenance) {
                        return blame(
                            Rule::Provenance,
                            format!("nobody wrote {name}={value}, but it was read:"),
                        );
                    }
                    continue;
                };
                let Action::Txn { asserts, answer, .. } = &self.history.0[writer].action else { continue };
                let written = &self.history.0[writer];
                match answer {
                    Answer::Applied => {}
                    Answer::Unknown => {
                        self.seen_unknown.insert(writer);
                    }
                    Answer::Rejected | Answer::Refused if rules.has(Rule::Provenance) => {
                        return blame(
                            Rule::Provenance,
                            format!("{name}={value} was read, but its write was not applied:\n  {written}"),
                        );
                    }
                    Answer::Rejected | Answer::Refused => continue,
                }
                let replaced = asserted(asserts, name).unwrap_or(Version::MISSING);
                let right = if replaced.is_missing() {
                    version.count() == 1
                } else {
                    replaced.next() == Some(version)
                };
                if !right && rules.has(Rule::Successor) {
                    return blame(
                        Rule::Successor,
                        format!(
                            "{name}={value} replaced {name}@{replaced}, but was read at {version}:\n  {written}"
                        ),
                    );
                }
                if replaced.is_missing() {
                    let first = *self.incarnations.entry((writer, key)).or_insert(version.incarnation());
                    if first != version.incarnation() && rules.has(Rule::Once) {
                        return blame(
                            Rule::Once,
                            format!(
                                "{name}={value} was created once, but read as {first:x} and as another life:\n  {written}"
                            ),
                        );
                    }
                    let creator = *creations.entry((key, version.incarnation())).or_insert(writer);
                    if creator != writer && rules.has(Rule::Fresh) {
                        let other = &self.history.0[creator];
                        return blame(
                            Rule::Fresh,
                            format!("two creations of {name} got one incarnation:\n  {other}\n  {written}"),
                        );
                    }
                }
                self.seen.push((event, key, writer));
            }
        }
        Ok(())
    }

    /// What is known of each key, if of the transactions of unknown outcome exactly `happened` have happened.
    pub(crate) fn known(&self, happened: &BTreeSet<usize>, rules: Rules) -> Result<Vec<Known>, Violation> {
        let mut known: Vec<Known> = self.names.iter().map(|_| Known::default()).collect();
        let txns: Vec<Happened<'_>> = self
            .history
            .0
            .iter()
            .enumerate()
            .filter_map(|(event, entry)| match &entry.action {
                Action::Txn { asserts, writes, answer } => match answer {
                    Answer::Applied => Some((event, &asserts[..], &writes[..])),
                    Answer::Unknown if happened.contains(&event) => Some((event, &asserts[..], &writes[..])),
                    _ => None,
                },
                _ => None,
            })
            .collect();
        // Lives first, for every other version belongs to one.
        for (event, asserts, writes) in &txns {
            for (name, _) in *writes {
                if asserted(asserts, name).is_some_and(Version::is_missing) {
                    let key = self.key(name);
                    let incarnation = self.incarnations.get(&(*event, key)).copied();
                    known[key].lives.push(Life { incarnation, creator: *event, enders: Vec::new() });
                    let life = known[key].lives.len() - 1;
                    known[key].slots.entry((life, 1)).or_default().writer = Some(*event);
                }
            }
        }
        for (event, asserts, writes) in &txns {
            for (number, (name, version)) in asserts.iter().enumerate() {
                let key = self.key(name);
                if asserts[..number].contains(&asserts[number]) {
                    continue;
                }
                let first = asserts[..number].iter().all(|(other, _)| other != name);
                let write = writes.iter().find(|(written, _)| written == name).filter(|_| first);
                if write.is_none() && !rules.has(Rule::AssertOnly) {
                    continue;
                }
                if version.is_missing() {
                    if write.is_none() {
                        known[key].absent.push(*event);
                    }
                    continue;
                }
                let Some(life) = known[key].life(version.incarnation()) else { continue };
                let slot = known[key].slots.entry((life, version.count())).or_default();
                match write {
                    None => slot.readers.push(*event),
                    Some((_, value)) => {
                        slot.replacers.push(*event);
                        if value.is_some() {
                            let next = known[key].slots.entry((life, version.count() + 1)).or_default();
                            next.writer.get_or_insert(*event);
                        } else {
                            known[key].lives[life].enders.push(*event);
                        }
                    }
                }
            }
        }
        if rules.has(Rule::Made) {
            self.check_made(&known, &txns, rules)?;
        }
        self.add_reads(&mut known);
        Ok(known)
    }

    fn check_made(&self, known: &[Known], txns: &[Happened<'_>], rules: Rules) -> Result<(), Violation> {
        // Left out, the rule on unknown outcomes must not come back as this one.
        let vague = if rules.has(Rule::Unknown) { BTreeSet::new() } else { self.written_by_unknown() };
        for (event, asserts, _) in txns {
            for (name, version) in asserts.iter().filter(|(_, version)| !version.is_missing()) {
                let key = self.key(name);
                if vague.contains(&key) {
                    continue;
                }
                if known[key].slot(*version).is_none_or(|slot| slot.writer.is_none()) {
                    let entry = &self.history.0[*event];
                    let text = format!("nobody made {name}@{version}, but the assert on it held:\n  {entry}");
                    return Err(Violation::new(Rule::Made, text).about([key]));
                }
            }
        }
        Ok(())
    }

    /// The transactions of unknown outcome.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = usize> {
        let unknown = |entry: &Event| matches!(entry.action, Action::Txn { answer: Answer::Unknown, .. });
        self.history.0.iter().enumerate().filter(move |(_, entry)| unknown(entry)).map(|(event, _)| event)
    }

    /// The keys that an event writes.
    pub(crate) fn written(&self, event: usize) -> BTreeSet<usize> {
        match &self.history.0[event].action {
            Action::Txn { writes, .. } => writes.iter().map(|(name, _)| self.key(name)).collect(),
            _ => BTreeSet::new(),
        }
    }

    /// Whether an event writes over a version that another one, which has happened, has replaced already.
    pub(crate) fn replaces_again(&self, event: usize, known: &[Known]) -> bool {
        let Action::Txn { asserts, writes, .. } = &self.history.0[event].action else { return false };
        writes.iter().any(|(name, _)| {
            let version = asserted(asserts, name).unwrap_or(Version::MISSING);
            let slot = known[self.key(name)].slot(version);
            slot.is_some_and(|slot| slot.replacers.iter().any(|replacer| *replacer != event))
        })
    }

    fn written_by_unknown(&self) -> BTreeSet<usize> {
        self.unknown().flat_map(|event| self.written(event)).collect()
    }

    fn add_reads(&self, known: &mut [Known]) {
        for &(event, key, writer) in &self.seen {
            let Action::Txn { asserts, .. } = &self.history.0[writer].action else { continue };
            let replaced = asserted(asserts, &self.names[key]).unwrap_or(Version::MISSING);
            let place = if replaced.is_missing() {
                known[key].lives.iter().position(|life| life.creator == writer).map(|life| (life, 1))
            } else {
                known[key].life(replaced.incarnation()).map(|life| (life, replaced.count() + 1))
            };
            if let Some(place) = place {
                known[key].slots.entry(place).or_default().readers.push(event);
            }
        }
        for (event, entry) in self.history.0.iter().enumerate() {
            match &entry.action {
                Action::Read(entries) => {
                    for (name, _) in entries.iter().filter(|(_, seen)| *seen == Seen::Absent) {
                        known[self.key(name)].absent.push(event);
                    }
                }
                Action::List { prefix, after, limit, keys } => {
                    // A full page says nothing of what comes after its last key.
                    let last = keys.last().filter(|_| keys.len() >= *limit);
                    for (key, name) in self.names.iter().enumerate() {
                        let covered = name.as_str().starts_with(prefix.as_str())
                            && after.as_ref().is_none_or(|after| name > after)
                            && last.is_none_or(|last| name <= last);
                        if keys.contains(name) {
                            known[key].listed.push(event);
                        } else if covered {
                            known[key].absent.push(event);
                        }
                    }
                }
                Action::Txn { .. } => {}
            }
        }
    }
}
