//! What somebody who looked says about an uncertain action: the right to judge, and the ruling.

use std::time::Duration;

use super::action::{Action, Episode, Reconciliation, Resolution, Ruled};
use super::adapter::EffectAdapter;
use super::history::TransitionKind;
use super::names::Note;
use super::record::{Head, Phase, ReconcileClaim, Verdict};
use super::settle::keep;
use super::situation::{Change, Decision, Situation};
use super::verb::OnActionVerb;
use super::{EffectError, EffectVerb};
use crate::backend::Backend;
use crate::cas::{View, check_ttl, lease_end};
use crate::token::Token;

impl<B: Backend> EffectAdapter<B> {
    pub(super) async fn begin_to_reconcile(
        &self,
        action: &Action,
        ttl: Duration,
    ) -> Result<Reconciliation, EffectError> {
        check_ttl(ttl)?;
        let token = Token::mint();
        let judge = |_: &View<'_>, situation: &Situation| {
            let until = lease_end(situation.now(), ttl)?;
            let mut head = situation.meant(action)?;
            if situation.has_lapsed() {
                head = situation.lapsed(head, self.agent());
            }
            if head.phase != Phase::Uncertain {
                return Err(EffectError::NotUncertain { state: situation.state() });
            }
            if let Some(claim) = &head.claim
                && !situation.time.may_take_over(Some(claim.until))
            {
                return Err(EffectError::Reconciling { until: claim.until });
            }
            head.claim = Some(ReconcileClaim { token: token.clone(), agent: self.agent().clone(), until });
            head.note(
                TransitionKind::Reconciling,
                self.agent(),
                head.fence(),
                situation.now(),
                Note::default(),
            );
            let reconciliation = Reconciliation {
                action: action.clone(),
                episode: situation.episode(&head),
                token: token.clone(),
                until,
                fence: head.fence(),
                hold_until: situation.newest_hold().map(|held| held.until),
                downstream_key: head.downstream_key(),
            };
            Ok(Decision::write(Change::of(head), reconciliation))
        };
        let verb = OnActionVerb {
            verb: EffectVerb::BeginReconcile,
            key: &action.key,
            resource: Some(&action.resource),
            token: Some(&token),
            with_result: false,
        };
        self.on_action(verb, judge).await
    }

    pub(super) async fn rule(
        &self,
        action: &Action,
        episode: Episode,
        resolution: &Resolution,
        evidence: &Note,
        holder: Option<&Token>,
    ) -> Result<Ruled, EffectError> {
        let judge = |_: &View<'_>, situation: &Situation| {
            let head = situation.meant(action)?;
            if episode.life() != situation.life() {
                return Err(EffectError::EpisodeOver { state: situation.state() });
            }
            if let Some(ruled) = head.rulings.iter().find(|ruled| ruled.episode == episode.count()) {
                return Ok(Decision::Answer(Ruled::new(ruled.kind, ruled.at, false)));
            }
            if episode.count() != head.episode {
                return Err(EffectError::EpisodeOver { state: situation.state() });
            }
            if head.phase != Phase::Uncertain {
                return Err(EffectError::NotUncertain { state: situation.state() });
            }
            if let Some(holder) = holder {
                let claim = head.claim.as_ref().filter(|claim| claim.token == *holder);
                if claim.is_none_or(|claim| situation.time.is_over(Some(claim.until))) {
                    return Err(EffectError::ReconcileLost { state: situation.state() });
                }
            }
            Ok(self.apply(situation, head, resolution, evidence))
        };
        let verb = OnActionVerb {
            verb: EffectVerb::Resolve,
            key: &action.key,
            resource: Some(&action.resource),
            token: holder,
            with_result: false,
        };
        self.on_action(verb, judge).await
    }

    fn apply(
        &self,
        situation: &Situation,
        mut head: Head,
        resolution: &Resolution,
        evidence: &Note,
    ) -> Decision<Ruled> {
        let now = situation.now();
        let ruled = Ruled::new(resolution.kind(), now, true);
        head.rule(resolution.kind(), now);
        let mut more = None;
        let (kind, note) = match resolution {
            Resolution::Applied(result) => {
                let fence = head.judge_newest(Verdict::RuledApplied);
                head.maybe_applied = false;
                more = Some(keep(situation, &mut head, fence, result).1);
                (TransitionKind::RuledApplied, evidence.clone())
            }
            Resolution::NotApplied => {
                head.judge_newest(Verdict::RuledNotApplied);
                head.maybe_applied = false;
                head.settle(Phase::Idle, now);
                (TransitionKind::RuledNotApplied, evidence.clone())
            }
            Resolution::AllowRetry { reason } => {
                head.judge_newest(Verdict::RetryAllowed);
                head.maybe_applied = true;
                head.settle(Phase::Idle, now);
                let both = match (reason.as_str(), evidence.as_str()) {
                    (reason, "") => reason.to_owned(),
                    ("", evidence) => evidence.to_owned(),
                    (reason, evidence) => format!("{reason}; {evidence}"),
                };
                (TransitionKind::RetryAllowed, Note::truncated(both))
            }
        };
        head.note(kind, self.agent(), head.fence(), now, note);
        Decision::write(Change::of(head).and(more), ruled)
    }
}
