//! What stands under the one key.

use std::collections::BTreeMap;

use coord_core::board::AgentId;
use coord_core::effects::{
    Action, ActionKey, ActionState, ActionStatus, Episode, Evidence, History, Holder, ListedResult, Note,
    ResourceId, RulingKind, Transition, TransitionKind, Uncertain, limits,
};
use coord_core::{Bytes, Key, OperationId, Timestamp, Token};
use serde::{Deserialize, Serialize};

/// The whole store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whole {
    /// What the last fence of a resource counts as of which nothing is known.
    pub(super) floor: u64,
    /// How many keys have come into being.
    pub(super) lives: u64,
    /// The time of the judgement of the last write.
    pub(super) touched: Option<Timestamp>,
    pub(super) actions: BTreeMap<ActionKey, Record>,
    pub(super) resources: BTreeMap<ResourceId, Hold>,
    /// Every write that was ever applied.
    pub(super) operations: Vec<OperationId>,
    /// Payloads that come and go with the next write.
    #[serde(skip)]
    pub(super) put: Vec<(Key, Bytes)>,
    #[serde(skip)]
    pub(super) delete: Vec<Key>,
}

/// What is known of a resource.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hold {
    /// The fence that was given last.
    pub(super) fence: u64,
    pub(super) holder: Option<Held>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Held {
    pub(super) key: ActionKey,
    pub(super) agent: AgentId,
    pub(super) token: Token,
    pub(super) until: Timestamp,
}

/// What is known of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) action: Action,
    pub(super) downstream_key: String,
    pub(super) life: u64,
    /// How often it has become uncertain, or more so.
    pub(super) episodes: u64,
    pub(super) state: Stored,
    pub(super) since: Timestamp,
    pub(super) attempts: Vec<Attempt>,
    pub(super) maybe_applied: bool,
    pub(super) evidence: Vec<Late>,
    pub(super) evidence_count: u64,
    pub(super) claim: Option<Claim>,
    pub(super) rulings: Vec<(u64, RulingKind, Timestamp)>,
    pub(super) transitions: Vec<Transition>,
    pub(super) dropped: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Stored {
    Idle,
    InFlight,
    Uncertain { since: Timestamp, agent: AgentId, fence: u64, reason: Note },
    Completed(Done),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Done {
    pub(super) payload: Payload,
    pub(super) len: u64,
    pub(super) digest: [u8; 32],
    pub(super) at: Timestamp,
    pub(super) maybe_twice: bool,
    /// Which attempt it was, by its fence.
    pub(super) fence: u64,
}

/// Where bytes are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Payload {
    Here(Vec<u8>),
    /// Under a key of its own, which comes and goes with the record.
    Apart(String),
    TooLarge,
    NotKept,
    Purged(Timestamp),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attempt {
    pub(super) token: Token,
    pub(super) agent: AgentId,
    pub(super) fence: u64,
    pub(super) until: Timestamp,
    pub(super) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    Open,
    Completed,
    Abandoned,
    Ruled(RulingKind),
}

/// A result that was not the first, or came too late.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Late {
    pub(super) fence: u64,
    pub(super) at: Timestamp,
    pub(super) len: u64,
    pub(super) digest: [u8; 32],
    pub(super) payload: Payload,
}

/// The right to judge.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    pub(super) token: Token,
    pub(super) until: Timestamp,
}

/// The time of a judgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) now: Timestamp,
    /// How much longer than the holder may a taker waits.
    pub(super) margin: std::time::Duration,
}

impl Time {
    /// Whether something that holds until then is over for everybody.
    pub(super) fn is_past(self, until: Timestamp) -> bool {
        self.now >= until.saturating_add(self.margin)
    }
}

impl Whole {
    /// The last fence of a resource.
    pub(super) fn last_fence(&self, resource: &ResourceId) -> u64 {
        self.resources.get(resource).map_or(self.floor, |hold| hold.fence)
    }

    /// Who holds a resource, live or not.
    pub(super) fn held(&self, resource: &ResourceId) -> Option<&Held> {
        self.resources.get(resource).and_then(|hold| hold.holder.as_ref())
    }

    pub(super) fn is_holder(&self, record: &Record, attempt: &Attempt) -> bool {
        self.held(&record.action.resource).is_some_and(|held| held.token == attempt.token)
    }

    /// Whether an attempt holds its resource and its time is not over.
    pub(super) fn is_live(&self, record: &Record, attempt: &Attempt, time: Time) -> bool {
        self.held(&record.action.resource)
            .is_some_and(|held| held.token == attempt.token && !time.is_past(held.until))
    }

    /// Frees the resource if this attempt holds it.
    pub(super) fn free(&mut self, resource: &ResourceId, token: &Token) {
        if let Some(hold) = self.resources.get_mut(resource)
            && hold.holder.as_ref().is_some_and(|held| held.token == *token)
        {
            hold.holder = None;
        }
    }

    pub(super) fn state(&self, record: &Record, time: Time) -> ActionState {
        match &record.state {
            Stored::Idle => ActionState::Idle,
            Stored::Uncertain { .. } => ActionState::Uncertain,
            Stored::Completed(_) => ActionState::Completed,
            Stored::InFlight if self.is_live(record, record.newest(), time) => ActionState::InFlight,
            Stored::InFlight => ActionState::Lapsed,
        }
    }

    pub(super) fn status(&self, record: &Record, time: Time) -> ActionStatus {
        let (state, newest) = (self.state(record, time), record.newest());
        let since = if state == ActionState::Lapsed { newest.until } else { record.since };
        let mut status =
            ActionStatus::new(record.action.clone(), state, since, newest.agent.clone(), newest.fence);
        status.hold_until = self
            .held(&record.action.resource)
            .filter(|held| held.token == newest.token)
            .map(|held| held.until);
        status.attempts = u32::try_from(record.attempts.len()).unwrap_or(u32::MAX);
        status.uncertain = record.uncertain();
        if let Stored::Completed(done) = &record.state {
            let kept = matches!(done.payload, Payload::Here(_) | Payload::Apart(_));
            status.completed =
                Some(ListedResult::new(done.len, done.digest, kept, done.at, done.maybe_twice));
        }
        status.maybe_applied = record.maybe_applied;
        status.evidence = record.evidence_count;
        status.downstream_key.clone_from(&record.downstream_key);
        status
    }

    pub(super) fn holder_of(&self, resource: &ResourceId) -> Option<Holder> {
        let hold = self.resources.get(resource)?;
        let held = hold.holder.as_ref()?;
        Some(Holder::new(held.key.clone(), held.agent.clone(), hold.fence, held.until))
    }

    /// Keeps bytes for as long as the record says so.
    pub(super) fn keep(&mut self, bytes: &Bytes) -> Payload {
        if bytes.len() > limits::RESULT_BYTES {
            return Payload::TooLarge;
        }
        if bytes.len() <= 1_024 {
            return Payload::Here(bytes.to_vec());
        }
        match Key::new(format!("payload/{}", Token::mint().reveal())) {
            Ok(key) => {
                self.put.push((key.clone(), bytes.clone()));
                Payload::Apart(key.as_str().to_owned())
            }
            Err(_) => Payload::NotKept,
        }
    }

    pub(super) fn drop_payload(&mut self, payload: &Payload) {
        if let Payload::Apart(key) = payload {
            self.delete.extend(Key::new(key).ok());
        }
    }
}

impl Record {
    pub(super) fn new(action: Action, life: u64, now: Timestamp) -> Self {
        let downstream_key = format!("{}-{}", Token::mint().reveal(), life);
        Record {
            action,
            downstream_key,
            life,
            episodes: 0,
            state: Stored::Idle,
            since: now,
            attempts: Vec::new(),
            maybe_applied: false,
            evidence: Vec::new(),
            evidence_count: 0,
            claim: None,
            rulings: Vec::new(),
            transitions: Vec::new(),
            dropped: 0,
        }
    }

    /// The newest attempt. A record is only ever written together with its first one.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn newest(&self) -> &Attempt {
        self.attempts.last().expect("a record has an attempt")
    }

    pub(super) fn newest_mut(&mut self) -> &mut Attempt {
        self.attempts.last_mut().expect("a record has an attempt")
    }

    pub(super) fn attempt(&self, token: &Token) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.token == *token)
    }

    pub(super) fn is_newest(&self, token: &Token) -> bool {
        self.newest().token == *token
    }

    pub(super) fn episode(&self) -> Episode {
        Episode::new(self.life, self.episodes)
    }

    pub(super) fn uncertain(&self) -> Option<Uncertain> {
        let Stored::Uncertain { since, agent, fence, reason } = &self.state else { return None };
        let uncertain = Uncertain::new(self.episode(), *since, agent.clone(), *fence, reason.clone());
        Some(uncertain.reconciling_until(self.claim.as_ref().map(|claim| claim.until)))
    }

    /// Makes it uncertain, in a new episode.
    pub(super) fn become_uncertain(&mut self, now: Timestamp, agent: AgentId, fence: u64, reason: Note) {
        self.episodes += 1;
        self.claim = None;
        self.state = Stored::Uncertain { since: now, agent, fence, reason };
        self.since = now;
    }

    pub(super) fn enter(&mut self, state: Stored, now: Timestamp) {
        self.state = state;
        self.since = now;
        self.claim = None;
    }

    pub(super) fn note(
        &mut self,
        at: Timestamp,
        kind: TransitionKind,
        agent: &AgentId,
        fence: u64,
        note: &Note,
    ) {
        self.transitions.push(Transition { at, kind, agent: agent.clone(), fence, note: note.clone() });
        while self.transitions.len() > limits::TRANSITIONS {
            self.transitions.remove(0);
            self.dropped += 1;
        }
    }

    pub(super) fn history(&self, status: ActionStatus, payloads: &BTreeMap<String, Bytes>) -> History {
        let evidence = self.evidence.iter().map(|late| Evidence {
            fence: late.fence,
            at: late.at,
            len: late.len,
            digest: late.digest,
            result: match &late.payload {
                Payload::Here(bytes) => Some(Bytes::from(bytes.clone())),
                Payload::Apart(key) => payloads.get(key).cloned(),
                _ => None,
            },
        });
        History::new(status, self.transitions.clone(), self.dropped, evidence.collect())
    }

    /// The keys of all payloads that stand apart.
    pub(super) fn payload_keys(&self) -> Vec<String> {
        let done = match &self.state {
            Stored::Completed(done) => Some(&done.payload),
            _ => None,
        };
        let all = done.into_iter().chain(self.evidence.iter().map(|late| &late.payload));
        all.filter_map(|payload| match payload {
            Payload::Apart(key) => Some(key.clone()),
            _ => None,
        })
        .collect()
    }
}
