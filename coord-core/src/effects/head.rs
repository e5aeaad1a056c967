//! What is true of the head of an action, and how it changes.

use bytes::Bytes;

use super::action::{Action, ActionState, RulingKind, result_digest};
use super::history::{Transition, TransitionKind};
use super::names::{ActionKey, Note, limits};
use super::record::{
    Attempt, Floor, Head, KnownEvidence, KnownRuling, Phase, Verdict, encode_payload, evidence_key,
};
use crate::board::AgentId;
use crate::clock::Timestamp;
use crate::codec::RecordKind;
use crate::recent::Recent;
use crate::token::{self, OperationId, Token};
use crate::txn::Mutation;

impl Head {
    /// The head of an action that nobody has attempted: it gets its first attempt before it is stored.
    pub(super) fn new(action: &Action, floor: &Floor, agent: &AgentId, now: Timestamp) -> Self {
        Head {
            resource: action.resource.clone(),
            fingerprint: action.fingerprint,
            downstream_key: floor.downstream_key(action),
            phase: Phase::Idle,
            since: now,
            attempts: Vec::new(),
            agent: agent.clone(),
            episode: 0,
            reason: Note::default(),
            claim: None,
            rulings: Vec::new(),
            completion: None,
            maybe_applied: false,
            maybe_twice: false,
            evidence: Vec::new(),
            more_evidence: 0,
            transitions: Vec::new(),
            dropped_transitions: 0,
            touched: now,
            recent: Recent::default(),
        }
    }

    pub(super) fn downstream_key(&self) -> String {
        token::to_hex(&self.downstream_key)
    }

    pub(super) fn newest(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// The fence of the newest attempt.
    pub(super) fn fence(&self) -> u64 {
        self.newest().map_or(0, |attempt| attempt.fence)
    }

    pub(super) fn attempt(&self, token: &Token) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.token == *token)
    }

    pub(super) fn is_newest(&self, attempt: &Attempt) -> bool {
        self.fence() == attempt.fence
    }

    /// Whether the action is the one that this head is about.
    pub(super) fn is_about(&self, action: &Action) -> bool {
        let same = match (&self.fingerprint, &action.fingerprint) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => ours.is_same_action(theirs),
            _ => false,
        };
        same && self.resource == action.resource
    }

    pub(super) fn enter(&mut self, phase: Phase, now: Timestamp) {
        if self.phase != phase {
            self.phase = phase;
            self.since = now;
        }
    }

    /// Ends the episode and the right to judge it, if there is one, and begins a new one.
    pub(super) fn become_uncertain(&mut self, reason: Note, now: Timestamp) {
        self.enter(Phase::Uncertain, now);
        self.episode += 1;
        self.reason = reason;
        self.claim = None;
    }

    /// Ends the episode and the right to judge it.
    pub(super) fn settle(&mut self, phase: Phase, now: Timestamp) {
        self.enter(phase, now);
        self.claim = None;
    }

    /// Says something of the newest attempt, if nothing was said of it yet.
    pub(super) fn judge_newest(&mut self, verdict: Verdict) -> Option<u64> {
        let newest = self.attempts.last_mut().filter(|attempt| attempt.verdict == Verdict::Open)?;
        newest.verdict = verdict;
        Some(newest.fence)
    }

    /// Makes room for another attempt: of abandoned ones only the last few are kept, others never dropped.
    pub(super) fn has_room(&mut self) -> bool {
        let droppable = |head: &Head, attempt: &Attempt| {
            attempt.verdict == Verdict::Abandoned
                && !head.evidence.iter().any(|evidence| evidence.fence == attempt.fence)
        };
        let mut abandoned = self.attempts.iter().filter(|attempt| droppable(self, attempt)).count();
        let mut kept = Vec::with_capacity(self.attempts.len());
        for attempt in &self.attempts {
            if droppable(self, attempt) && abandoned > limits::ABANDONED_ATTEMPTS {
                abandoned -= 1;
            } else {
                kept.push(attempt.clone());
            }
        }
        self.attempts = kept;
        self.attempts.len() < limits::ATTEMPTS
    }

    pub(super) fn note(
        &mut self,
        kind: TransitionKind,
        agent: &AgentId,
        fence: u64,
        at: Timestamp,
        note: Note,
    ) {
        self.transitions.push(Transition { at, kind, agent: agent.clone(), fence, note });
        self.drop_transitions(limits::TRANSITIONS);
    }

    pub(super) fn drop_transitions(&mut self, keep: usize) {
        let more = self.transitions.len().saturating_sub(keep);
        self.transitions.drain(..more);
        self.dropped_transitions += more as u64;
    }

    pub(super) fn rule(&mut self, ruling: RulingKind, at: Timestamp) {
        self.rulings.push(KnownRuling { episode: self.episode, kind: ruling, at });
        let more = self.rulings.len().saturating_sub(limits::RULINGS);
        self.rulings.drain(..more);
    }

    /// Notes a result that is not the first or comes too late. Says whether it is new, and how to keep it.
    pub(super) fn add_evidence(
        &mut self,
        key: &ActionKey,
        fence: u64,
        result: &Bytes,
        at: Timestamp,
    ) -> (bool, Option<Mutation>) {
        let digest = result_digest(result);
        if self.evidence.iter().any(|known| known.fence == fence && known.digest == digest) {
            return (false, None);
        }
        if self.evidence.len() >= limits::EVIDENCE_KNOWN {
            self.more_evidence += 1;
            return (true, None);
        }
        let free = (0..limits::EVIDENCE_KEPT as u8)
            .find(|slot| !self.evidence.iter().any(|known| known.slot == Some(*slot)))
            .filter(|_| result.len() <= limits::RESULT_BYTES && self.evidence.len() < limits::EVIDENCE_KEPT);
        self.evidence.push(KnownEvidence { fence, at, len: result.len() as u64, digest, slot: free });
        (
            true,
            free.map(|slot| {
                Mutation::put(evidence_key(key, slot), encode_payload(RecordKind::ActionEvidence, result))
            }),
        )
    }

    /// Whether the action is attempted or uncertain, and so belongs to the index.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::InFlight | Phase::Uncertain)
    }

    pub(super) fn state(&self, is_live: bool) -> ActionState {
        match self.phase {
            Phase::Idle => ActionState::Idle,
            Phase::InFlight if is_live => ActionState::InFlight,
            Phase::InFlight => ActionState::Lapsed,
            Phase::Uncertain => ActionState::Uncertain,
            Phase::Completed => ActionState::Completed,
        }
    }

    /// Notes one change: time and operation.
    pub(super) fn touch(&mut self, operation: OperationId, now: Timestamp) {
        self.touched = now;
        self.recent.push(operation);
    }
}
