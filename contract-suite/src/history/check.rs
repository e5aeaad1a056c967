//! The judgement: is there one order of all events that explains every answer and keeps real time?

use std::collections::{BTreeSet, VecDeque};
use std::fmt::{self, Write as _};

use super::attribute::{Known, Traced};
use super::choice::{Choice, Conflict, solve};
use super::event::{Action, Answer, History};
use super::graph::{Cycle, Graph, Link};
use super::rules::{Rule, Rules};

/// Why a history is not strictly serialisable. `Display` shows what was seen, a cycle as a list of events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Violation {
    /// The broken rule, where one rule alone says it; `None` for a cycle.
    pub rule: Option<Rule>,
    /// The events of the cycle, by their place in the history; empty if it is none.
    pub cycle: Vec<usize>,
    text: String,
    /// The keys that it is about.
    keys: BTreeSet<usize>,
    /// Whether the assumption that more of the unknown transactions have happened cannot mend it.
    certain: bool,
}

impl Violation {
    pub(crate) fn new(rule: Rule, text: String) -> Violation {
        let text = format!("{text}\n(the rule: {rule})");
        Violation { rule: Some(rule), cycle: Vec::new(), text, keys: BTreeSet::new(), certain: false }
    }

    /// The history says too little to be judged.
    pub(crate) fn unusable(text: String) -> Violation {
        let text = format!("the history cannot be judged: {text}");
        Violation { rule: None, cycle: Vec::new(), text, keys: BTreeSet::new(), certain: true }
    }

    pub(crate) fn about(mut self, keys: impl IntoIterator<Item = usize>) -> Violation {
        self.keys.extend(keys);
        self
    }
}

/// How many sets of unknown transactions are assumed to have happened before the check gives up.
const ASSUMPTIONS: usize = 600;

/// Judges a history by all rules.
///
/// Every write must assert the version that it replaces, and every put must carry a value that is put once under its key, or
/// the history cannot be judged, which is a violation too.
///
/// # Errors
/// The [`Violation`], if no order explains the history.
pub fn check(history: &History) -> Result<(), Violation> {
    check_by(history, Rules::ALL)
}

/// Judges a history by some of the rules; only all of them judge a backend.
///
/// # Errors
/// As [`check`].
pub fn check_by(history: &History, rules: Rules) -> Result<(), Violation> {
    if rules.has(Rule::Shape) {
        history.0.iter().try_for_each(|event| check_shape(&event.action, &event.to_string()))?;
    }
    let traced = Traced::new(history, rules)?;
    if !rules.has(Rule::Unknown) {
        return check_assuming(&traced, &BTreeSet::new(), rules);
    }
    let certain = traced.seen_unknown.clone();
    let first = match check_assuming(&traced, &certain, rules) {
        Ok(()) => return Ok(()),
        Err(violation) if violation.certain => return Err(violation),
        Err(violation) => violation,
    };
    assume(&traced, rules, certain, first)
}

/// Some of the unknown transactions that nobody saw are assumed to have happened, depth first, those first that write the keys which
/// are in question.
struct Assumption {
    happened: BTreeSet<usize>,
    violation: Violation,
    /// What may be assumed besides, the likely ones last.
    next: Vec<usize>,
}

fn assume(
    traced: &Traced<'_>,
    rules: Rules,
    certain: BTreeSet<usize>,
    first: Violation,
) -> Result<(), Violation> {
    // A version is replaced once, so what would replace one again is out from the start.
    let known = traced.known(&certain, rules.without(Rule::Made))?;
    let candidates: Vec<usize> = traced
        .unknown()
        .filter(|event| !certain.contains(event) && !traced.replaces_again(*event, &known))
        .collect();
    let step = |happened: BTreeSet<usize>, violation: Violation| {
        let mut next: Vec<usize> =
            candidates.iter().copied().filter(|event| !happened.contains(event)).collect();
        next.sort_by_key(|event| !traced.written(*event).is_disjoint(&violation.keys));
        Assumption { happened, violation, next }
    };
    let mut tried = BTreeSet::from([certain.clone()]);
    let (mut stack, mut later) = (vec![step(certain, first.clone())], VecDeque::new());
    loop {
        let Some(top) = stack.last_mut() else {
            let Some(next) = later.pop_front() else { return Err(first) };
            stack.push(next);
            continue;
        };
        let Some(event) = top.next.pop() else {
            stack.pop();
            continue;
        };
        let happened: BTreeSet<usize> = top.happened.iter().copied().chain([event]).collect();
        if !tried.insert(happened.clone()) {
            continue;
        }
        if tried.len() > ASSUMPTIONS {
            let text =
                format!("{}\n(given up after {ASSUMPTIONS} assumptions on unknown outcomes)", first.text);
            return Err(Violation { text, ..first });
        }
        match check_assuming(traced, &happened, rules) {
            Ok(()) => return Ok(()),
            Err(violation) if violation.certain => {}
            // It has changed nothing by itself; perhaps it does with others.
            Err(violation) if violation.text == top.violation.text => {
                later.push_back(step(happened, violation))
            }
            Err(violation) => stack.push(step(happened, violation)),
        }
    }
}

fn check_shape(action: &Action, line: &str) -> Result<(), Violation> {
    let Action::List { prefix, after, limit, keys } = action else { return Ok(()) };
    let wrong = if !keys.is_sorted_by(|a, b| a < b) {
        "is not ascending, or has duplicates"
    } else if keys.len() > *limit {
        "has more keys than its limit"
    } else if keys.iter().any(|key| !key.as_str().starts_with(prefix.as_str()) || after.as_ref() >= Some(key))
    {
        "has a key outside its range"
    } else {
        return Ok(());
    };
    Err(Violation::new(Rule::Shape, format!("a listing {wrong}:\n  {line}")))
}

/// Judges the history as if of the transactions of unknown outcome exactly `happened` have happened.
fn check_assuming(traced: &Traced<'_>, happened: &BTreeSet<usize>, rules: Rules) -> Result<(), Violation> {
    let known = traced.known(happened, rules)?;
    let mut graph = Graph::new(traced.history, rules.has(Rule::RealTime));
    for (key, known) in known.iter().enumerate() {
        add_versions(&mut graph, key, known, rules);
    }
    if let Err(cycle) = graph.reach() {
        return Err(Violation { certain: true, ..cycle_violation(traced, cycle) });
    }
    let mut choices = Vec::new();
    for (key, known) in known.iter().enumerate() {
        add_life_choices(&mut choices, key, known, rules);
    }
    if rules.has(Rule::Rejected) {
        choices.extend(rejections(traced, &known));
    }
    if rules.has(Rule::RealTime) {
        choices.iter_mut().for_each(|choice| drop_impossible(traced.history, choice));
        choices.retain(|choice| !is_explained_by_time(traced.history, choice));
    }
    solve(graph, choices, &traced.history.0).map_err(|conflict| describe(traced, conflict))
}

/// The edges that the versions of a key give.
fn add_versions(graph: &mut Graph, key: usize, known: &Known, rules: Rules) {
    for (place, slot) in &known.slots {
        let version = known.version(*place);
        let before = slot.readers.iter().chain(&slot.replacers);
        for &replacer in &slot.replacers {
            if let Some(writer) = slot.writer.filter(|_| rules.has(Rule::WriteWrite)) {
                graph.add(writer, replacer, Link::Replaced(key, version));
            }
            for &reader in before.clone().filter(|reader| **reader != replacer && rules.has(Rule::ReadWrite))
            {
                graph.add(reader, replacer, Link::Before(key, version));
            }
        }
        if let Some(writer) = slot.writer.filter(|_| rules.has(Rule::WriteRead)) {
            slot.readers.iter().for_each(|reader| graph.add(writer, *reader, Link::Saw(key, version)));
        }
    }
}

fn add_life_choices(choices: &mut Vec<Choice>, key: usize, known: &Known, rules: Rules) {
    let mut add = |event, fact: String, alternatives| {
        choices.push(Choice { event, keys: vec![key], fact, alternatives });
    };
    let fact = |text: &str| format!("{text} key {key}");
    if rules.has(Rule::Absent) {
        for &event in &known.absent {
            for life in &known.lives {
                let after = life.enders.iter().map(|ender| vec![(*ender, event, Link::AbsentAfter(key))]);
                let before = vec![(event, life.creator, Link::AbsentBefore(key))];
                add(event, fact("saw absent"), std::iter::once(before).chain(after).collect());
            }
        }
    }
    if rules.has(Rule::Lives) {
        for (number, one) in known.lives.iter().enumerate() {
            for other in &known.lives[number + 1..] {
                let order = |a: &super::attribute::Life, b: usize| -> Vec<_> {
                    a.enders.iter().map(|ender| vec![(*ender, b, Link::NextLife(key))]).collect()
                };
                let ways = [order(one, other.creator), order(other, one.creator)].concat();
                add(other.creator, fact("created, although another life had begun, the absent"), ways);
            }
        }
    }
    if rules.has(Rule::Listed) {
        for &event in &known.listed {
            add(event, fact("listed"), presences(key, known, event));
        }
    }
}

/// The ways in which a key can have been present at an event: in each of its lives.
fn presences(key: usize, known: &Known, event: usize) -> Vec<Vec<(usize, usize, Link)>> {
    let within = |life: &super::attribute::Life| {
        let begun = (life.creator, event, Link::PresentAfter(key));
        let ended = life.enders.first().map(|ender| (event, *ender, Link::PresentBefore(key)));
        std::iter::once(begun).chain(ended).collect()
    };
    known.lives.iter().map(within).collect()
}

/// The choices that rejected transactions give: one of the asserts did not hold.
fn rejections(traced: &Traced<'_>, known: &[Known]) -> Vec<Choice> {
    let mut choices = Vec::new();
    for (event, entry) in traced.history.0.iter().enumerate() {
        let Action::Txn { asserts, answer: Answer::Rejected, .. } = &entry.action else { continue };
        let mut alternatives = Vec::new();
        let mut explained = false;
        for (name, version) in asserts {
            let key = traced.key(name);
            if version.is_missing() {
                alternatives.extend(presences(key, &known[key], event));
                continue;
            }
            // A version that nobody made, as far as is known, does not hold.
            let slot = known[key].slot(*version);
            let Some((slot, writer)) = slot.and_then(|slot| Some((slot, slot.writer?))) else {
                explained = true;
                break;
            };
            alternatives.push(vec![(event, writer, Link::RejectedBefore(key, *version))]);
            let after = |replacer: &usize| vec![(*replacer, event, Link::RejectedAfter(key, *version))];
            alternatives.extend(slot.replacers.iter().map(after));
        }
        if !explained {
            let keys = asserts.iter().map(|(name, _)| traced.key(name)).collect();
            choices.push(Choice { event, keys, fact: "was rejected".to_owned(), alternatives });
        }
    }
    choices
}

/// Drops the ways that real time alone rules out, but for one, so that a fact without any can still be told.
fn drop_impossible(history: &History, choice: &mut Choice) {
    let returned =
        |first: usize, second: usize| history.0[first].ret.is_some_and(|ret| ret < history.0[second].call);
    let ruled_out = |ways: &Vec<(usize, usize, Link)>| ways.iter().any(|(from, to, _)| returned(*to, *from));
    if !choice.alternatives.iter().all(ruled_out) {
        choice.alternatives.retain(|ways| !ruled_out(ways));
    } else {
        // The last ones are the nearest in time, for lives are numbered as they were begun.
        let surplus = choice.alternatives.len().saturating_sub(3);
        choice.alternatives.drain(..surplus);
    }
}

fn is_explained_by_time(history: &History, choice: &Choice) -> bool {
    let returned =
        |first: usize, second: usize| history.0[first].ret.is_some_and(|ret| ret < history.0[second].call);
    choice.alternatives.iter().any(|ways| ways.iter().all(|(from, to, _)| returned(*from, *to)))
}

/// What a link means, as a remark below its event.
struct Remark<'a>(&'a Traced<'a>, Link);

impl fmt::Display for Remark<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |key: usize| &self.0.names[key];
        match self.1 {
            Link::Replaced(key, version) => {
                write!(f, "wrote {}@{version}, which the next replaced", name(key))
            }
            Link::Saw(key, version) => write!(f, "wrote {}@{version}, which the next saw", name(key)),
            Link::Before(key, version) => {
                write!(f, "saw {}@{version}, before the next replaced it", name(key))
            }
            Link::Time => f.write_str("had returned before the next was called"),
            Link::AbsentBefore(key) => write!(f, "saw {} absent, so before the next created it", name(key)),
            Link::AbsentAfter(key) => write!(f, "deleted {}, so before the next saw it absent", name(key)),
            Link::NextLife(key) => write!(f, "deleted {}, so before the next created it again", name(key)),
            Link::PresentAfter(key) => {
                write!(f, "created {}, so before the next found it present", name(key))
            }
            Link::PresentBefore(key) => {
                write!(f, "found {} present, so before the next deleted it", name(key))
            }
            Link::RejectedBefore(key, version) => {
                write!(f, "was rejected, so before the next made {}@{version}", name(key))
            }
            Link::RejectedAfter(key, version) => {
                write!(
                    f,
                    "replaced {}@{version}, so before the next, which asserted it, was rejected",
                    name(key)
                )
            }
        }
    }
}

fn cycle_text(traced: &Traced<'_>, cycle: &Cycle) -> String {
    let mut text = String::new();
    for (event, link) in cycle {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {}\n      {}", traced.history.0[*event], Remark(traced, *link));
    }
    if let Some((event, _)) = cycle.first() {
        let _ = write!(text, "\n  {} (as above)", traced.history.0[*event]);
    }
    text
}

fn cycle_violation(traced: &Traced<'_>, cycle: Cycle) -> Violation {
    let text = format!(
        "not strictly serialisable: each of these came before the next, in a circle \
         (client call..return what):{}",
        cycle_text(traced, &cycle)
    );
    let cycle = cycle.into_iter().map(|(event, _)| event).collect();
    Violation { rule: None, cycle, text, keys: BTreeSet::new(), certain: false }
}

fn describe(traced: &Traced<'_>, conflict: Conflict) -> Violation {
    let name_keys = |choice: &Choice| match &choice.keys[..] {
        [key] => choice.fact.replace(&format!("key {key}"), traced.names[*key].as_str()),
        _ => choice.fact.clone(),
    };
    match conflict {
        Conflict::Cycle(cycle) => cycle_violation(traced, cycle),
        Conflict::Unexplained(choice, cycles) => {
            let mut text = format!(
                "not strictly serialisable: nothing explains that this one {}:\n  {}",
                name_keys(&choice),
                traced.history.0[choice.event]
            );
            if cycles.is_empty() {
                text.push_str("\n  (no other event could be the reason)");
            }
            for cycle in cycles.iter().take(3) {
                let _ = write!(text, "\nif so, then in a circle:{}", cycle_text(traced, cycle));
            }
            let cycle = cycles.into_iter().min_by_key(Vec::len).unwrap_or_default();
            let cycle = cycle.into_iter().map(|(event, _)| event).collect();
            Violation { rule: None, cycle, text, keys: BTreeSet::new(), certain: false }.about(choice.keys)
        }
        Conflict::Together(choices, cycle) => {
            let mut violation = cycle_violation(traced, cycle);
            violation.text.push_str("\nEvery other way to explain these together fails as well:");
            for choice in choices.iter().take(12) {
                let _ =
                    write!(violation.text, "\n  {} {}", traced.history.0[choice.event], name_keys(choice));
            }
            violation.about(choices.into_iter().flat_map(|choice| choice.keys))
        }
        Conflict::GivenUp(choices) => Violation::unusable(format!(
            "the search over {} answers that can be explained in several ways took too long; use fewer clients or keys",
            choices.len()
        )),
    }
}
