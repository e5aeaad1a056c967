//! What has happened to a task: a short record of its own, beside the head, so that heads stay small.
//!
//! It is read with the head and written in the transaction that writes the head, by every verb but renew. (That another task rests on
//! this one from now on is no event of it, though its head says so.) The assert on the head covers
//! it, for nobody writes the one without the other. Nothing is ever judged by it, so one that cannot be read stops nobody: it begins
//! anew, and says so.
//!
//! Adding a task writes none, for the head of a task that nothing has happened to yet tells when it was added.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::adapter::BoardAdapter;
use super::record::{Head, StoredState, head_key, read_head};
use super::task::{AgentId, State, TaskId, limits};
use super::{BoardError, Verb};
use crate::backend::Backend;
use crate::cas::View;
use crate::clock::Timestamp;
use crate::codec::{self, RecordKind};
use crate::key::Key;
use crate::snapshot::{Entry, KeySet};
use crate::txn::Mutation;

/// One thing that happened to a task. It never contains a token or a request id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// When: the time of the judgement.
    pub at: Timestamp,
    /// What was done.
    pub verb: Verb,
    /// The state that the task was in afterwards. A failure with attempts left leaves it open; the claim that finds none left leaves it
    /// failed.
    pub state: State,
    /// The agent that did it, where it was one that claims: operators and planners have no name.
    pub by: Option<AgentId>,
    /// Whose claim ended by it, if not by its own holder: who was taken over from, cancelled or revoked.
    pub from: Option<AgentId>,
    /// The fence that was given last, then.
    pub fence: u64,
    /// How many attempts had been made, then.
    pub attempts: u32,
    /// What was said, cut to [`limits::EVENT_BYTES`]: the outcome of a completion, the reason of a failure, the change of dependencies.
    pub text: String,
}

impl Event {
    /// For implementations of [`ExtendedBoard`](super::ExtendedBoard): something that happened, by nobody's name.
    #[must_use]
    pub fn new(at: Timestamp, verb: Verb, state: State) -> Self {
        Event { at, verb, state, by: None, from: None, fence: 0, attempts: 0, text: String::new() }
    }

    /// A text as an event keeps it: cut to the limit, at a character boundary.
    #[must_use]
    pub fn cut(text: &str) -> String {
        text[..text.floor_char_boundary(limits::EVENT_BYTES)].to_owned()
    }
}

/// The last things that happened to a task, renewals aside: at most [`limits::HISTORY_EVENTS`] of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct History {
    /// They, the oldest first.
    pub events: Vec<Event>,
    /// How many older ones were dropped.
    pub dropped: u64,
    /// Whether what was before the first event is not known: the record was damaged, or the task is from a version that kept none.
    pub damaged: bool,
}

impl History {
    /// For implementations of [`ExtendedBoard`](super::ExtendedBoard).
    #[must_use]
    pub fn new(events: Vec<Event>, dropped: u64, damaged: bool) -> Self {
        History { events, dropped, damaged }
    }
}

/// The stored form of a verb. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
struct StoredVerb(Verb);

const CODES: [(Verb, u8); 11] = [
    (Verb::Add, 1),
    (Verb::SetDeps, 2),
    (Verb::Claim, 3),
    (Verb::Release, 4),
    (Verb::Complete, 5),
    (Verb::Fail, 6),
    (Verb::Cancel, 7),
    (Verb::Reopen, 8),
    (Verb::Revoke, 9),
    (Verb::Archive, 10),
    (Verb::Skip, 11),
];

impl TryFrom<u8> for StoredVerb {
    type Error = String;

    fn try_from(code: u8) -> Result<Self, String> {
        let known = CODES.iter().find(|(_, known)| *known == code);
        known
            .map(|(verb, _)| StoredVerb(*verb))
            .ok_or_else(|| format!("no event of this version has the code {code}"))
    }
}

impl From<StoredVerb> for u8 {
    fn from(verb: StoredVerb) -> u8 {
        CODES.iter().find(|(known, _)| *known == verb.0).map_or(0, |(_, code)| *code)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredEvent {
    at: Timestamp,
    verb: StoredVerb,
    state: StoredState,
    by: Option<AgentId>,
    from: Option<AgentId>,
    fence: u64,
    attempts: u32,
    text: String,
}

impl From<Event> for StoredEvent {
    fn from(event: Event) -> Self {
        let Event { at, verb, state, by, from, fence, attempts, text } = event;
        let (verb, state) = (StoredVerb(verb), StoredState(state));
        StoredEvent { at, verb, state, by, from, fence, attempts, text }
    }
}

impl From<StoredEvent> for Event {
    fn from(event: StoredEvent) -> Self {
        let StoredEvent { at, verb, state, by, from, fence, attempts, text } = event;
        Event { at, verb: verb.0, state: state.0, by, from, fence, attempts, text }
    }
}

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Past {
    events: VecDeque<StoredEvent>,
    dropped: u64,
    damaged: bool,
}

impl Past {
    /// What the record tells, or else the head that goes with it.
    fn read(id: &TaskId, entry: &Entry, head: &Head) -> Past {
        match codec::read(RecordKind::History, &past_key(id), entry) {
            Ok(Some(past)) => past,
            Ok(None) if head.recent.is_only(head.created.operation) => {
                let added = Event { fence: head.fence, ..Event::new(head.touched, Verb::Add, head.state()) };
                Past { events: VecDeque::from([added.into()]), ..Past::default() }
            }
            Ok(None) | Err(_) => Past { damaged: true, ..Past::default() },
        }
    }

    fn push(&mut self, event: Event) {
        // That dependencies were archived, one after the other, is one thing that happened.
        let again = |last: &StoredEvent| event.verb == Verb::Archive && last.verb.0 == Verb::Archive;
        if self.events.back().is_some_and(again) {
            self.events.pop_back();
        }
        self.events.push_back(event.into());
        while self.events.len() > limits::HISTORY_EVENTS {
            self.events.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

pub(crate) fn past_key(id: &TaskId) -> Key {
    Key::new(format!("past/{id}")).expect("ids of at most 200 bytes without NUL make a key")
}

fn encode(past: &Past) -> Bytes {
    codec::encode(RecordKind::History, past)
}

/// What a verb has done, as the heads before and after it tell.
pub(crate) fn event(verb: Verb, before: &Head, after: &Head) -> Event {
    let holder = |head: &Head| head.held.as_ref().map(|held| held.owner.clone());
    let said = after.settled.as_ref().filter(|_| matches!(verb, Verb::Complete | Verb::Fail));
    let (by, from) = match verb {
        Verb::Release | Verb::Complete | Verb::Fail => (holder(before), None),
        _ => (holder(after), holder(before)),
    };
    Event {
        by,
        from,
        fence: after.fence,
        // A release takes its attempt back, and is told with it.
        attempts: if verb == Verb::Release { before.attempts } else { after.attempts },
        text: said.map(|settled| Event::cut(settled.answer.as_str())).unwrap_or_default(),
        ..Event::new(after.touched, verb, after.state())
    }
}

/// The write of a history to which this is added. The record has been read with the head.
pub(crate) fn noted(
    view: &View<'_>,
    id: &TaskId,
    before: &Head,
    event: Event,
) -> Result<Mutation, BoardError> {
    Ok(Mutation::put(past_key(id), with(view, id, before, event)?))
}

/// A history to which this is added.
pub(crate) fn with(view: &View<'_>, id: &TaskId, before: &Head, event: Event) -> Result<Bytes, BoardError> {
    let mut past = Past::read(id, view.entry(&past_key(id))?, before);
    past.push(event);
    Ok(encode(&past))
}

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn history_of(&self, id: &TaskId) -> Result<History, BoardError> {
        id.validate()?;
        let (head_key, past_key) = (head_key(id), past_key(id));
        let snapshot = self.backend().snapshot(&KeySet::new([head_key.clone(), past_key.clone()])?).await?;
        let head = read_head(id, snapshot.require(&head_key)?)?
            .ok_or_else(|| BoardError::NotFound { id: id.clone() })?;
        let past = Past::read(id, snapshot.require(&past_key)?, &head);
        Ok(History {
            events: past.events.into_iter().map(Event::from).collect(),
            dropped: past.dropped,
            damaged: past.damaged,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: i64, verb: Verb) -> Event {
        Event {
            by: Some(AgentId::new("w1").unwrap()),
            from: Some(AgentId::new("w2").unwrap()),
            fence: 7,
            attempts: 2,
            text: Event::cut("exit 1"),
            ..Event::new(Timestamp::from_micros(at).unwrap(), verb, State::Open)
        }
    }

    #[test]
    fn the_last_thirty_two_events_are_kept_and_the_others_counted() {
        let mut past = Past::default();
        for at in 0..40 {
            past.push(event(at, Verb::Claim));
        }
        assert_eq!((past.events.len(), past.dropped), (32, 8));
        assert_eq!(past.events.front().map(|event| event.at), Timestamp::from_micros(8));
        for at in 50..150 {
            past.push(event(at, Verb::Archive));
        }
        assert_eq!((past.events.len(), past.dropped), (32, 9));
        assert_eq!(past.events.back().map(|event| event.at), Timestamp::from_micros(149));
    }

    #[test]
    fn a_text_is_cut_at_a_character() {
        let cut = Event::cut(&"é".repeat(400));
        assert!(cut.len() <= limits::EVENT_BYTES && cut.chars().all(|c| c == 'é'), "{cut}");
    }

    #[test]
    fn the_largest_history_is_small() {
        let name = AgentId::new("a".repeat(limits::AGENT_BYTES)).unwrap();
        let mut past = Past::default();
        for _ in 0..limits::HISTORY_EVENTS {
            past.push(Event {
                by: Some(name.clone()),
                from: Some(name.clone()),
                fence: u64::MAX,
                attempts: u32::MAX,
                text: "t".repeat(limits::EVENT_BYTES),
                ..Event::new(Timestamp::MAX, Verb::Claim, State::Claimed)
            });
        }
        let size = encode(&past).len();
        assert!(size <= 20 * 1_024, "{size}");
    }

    /// What was stored once must be read as the same, for ever.
    #[test]
    fn a_history_of_format_1_is_read_as_it_was_written() {
        let mut past = Past { damaged: true, dropped: 3, ..Past::default() };
        past.push(event(1_700_000_000_000_000, Verb::Fail));
        let bytes = encode(&past);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, HISTORY_1);
        assert_eq!(codec::decode::<Past>(RecordKind::History, &bytes).unwrap(), past);
        for (verb, code) in CODES {
            assert_eq!(
                (u8::from(StoredVerb(verb)), StoredVerb::try_from(code)),
                (code, Ok(StoredVerb(verb)))
            );
        }
        assert!(StoredVerb::try_from(0).is_err());
    }

    const HISTORY_1: &str = "c0524431010e01fd00803c3048140c00060001027731010277320702066578697420310301";
}
