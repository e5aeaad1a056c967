//! What operators ask for.

use coord_core::effects::{
    ActionKey, ActionState, ActionStatus, EffectError, EffectVerb, History, ListFilter, ListPage, Note,
    PurgeReport, PurgeRequest, ResourceId, TransitionKind, limits,
};

use super::record::{Payload, Record, Stored, Time, Whole};
use super::{Call, Judged, OneKeyEffects, WrongEffects};

impl OneKeyEffects {
    pub(super) async fn status_of(&self, key: &ActionKey) -> Result<Option<ActionStatus>, EffectError> {
        let key = &self.key(key)?;
        loop {
            let call = Call::new(EffectVerb::Get, key.as_str(), None);
            let found = self
                .run(call, |whole, time| {
                    let Some(record) = whole.actions.get(key) else { return Ok(Judged::Keep(None)) };
                    if whole.state(record, time) == ActionState::Lapsed
                        && !self.is(WrongEffects::GetLeavesLapsed)
                    {
                        let action = record.action.clone();
                        self.lapse(whole, time, &action);
                        return Ok(Judged::WriteFirst);
                    }
                    let done = match &record.state {
                        Stored::Completed(done) => Some(done.clone()),
                        _ => None,
                    };
                    Ok(Judged::Keep(Some((self.shown(whole, record, time), done))))
                })
                .await?;
            let Some((mut status, done)) = found else { return Ok(None) };
            let Some(done) = done else { return Ok(Some(status)) };
            if let Some(completed) = self.replay(&done).await? {
                status.replay = Some(completed.replay);
                return Ok(Some(status));
            }
        }
    }

    /// A status as this store shows it.
    fn shown(&self, whole: &Whole, record: &Record, time: Time) -> ActionStatus {
        let mut status = whole.status(record, time);
        if self.is(WrongEffects::TokenInDownstreamKey) {
            status.downstream_key = record.newest().token.reveal();
        }
        status
    }

    pub(super) async fn list_actions(&self, filter: &ListFilter) -> Result<ListPage, EffectError> {
        filter.validate()?;
        let read = self.read().await?;
        let mut page = ListPage::default();
        let after = |key: &ActionKey| filter.after.as_ref().is_none_or(|after| key > after);
        let mut rest = read.whole.actions.iter().filter(|(key, _)| after(key));
        for (key, record) in rest.by_ref().take(filter.limit) {
            let mut status = self.shown(&read.whole, record, read.time);
            if status.state == ActionState::Lapsed && self.is(WrongEffects::LapsedListedInFlight) {
                status.state = ActionState::InFlight;
            }
            if filter.wants(status.state, read.time.now.saturating_since(status.since))
                || self.is(WrongEffects::ListIgnoresAge) && filter.states.contains(&status.state)
            {
                page.actions.push(status);
            }
            page.next = Some(key.clone());
        }
        if rest.next().is_none() {
            page.next = None;
        }
        Ok(page)
    }

    pub(super) async fn history_of(&self, key: &ActionKey) -> Result<Option<History>, EffectError> {
        let key = &self.key(key)?;
        // Payloads that are gone were purged after the record was read.
        let read = self.read().await?;
        let Some(record) = read.whole.actions.get(key) else { return Ok(None) };
        let payloads = self.payloads(record.payload_keys()).await?;
        Ok(Some(record.history(self.shown(&read.whole, record, read.time), &payloads)))
    }

    pub(super) async fn purge_batch(&self, request: &PurgeRequest) -> Result<PurgeReport, EffectError> {
        if !(1..=limits::PAGE).contains(&request.limit) {
            return Err(EffectError::Invalid(format!("a batch has 1 to {} actions", limits::PAGE)));
        }
        let call = Call::new(EffectVerb::Purge, "", None);
        self.run(call, |whole, time| {
            let after = |key: &ActionKey| request.after.as_ref().is_none_or(|after| key > after);
            let keys: Vec<ActionKey> =
                whole.actions.keys().filter(|key| after(key)).take(request.limit + 1).cloned().collect();
            let more = keys.len() > request.limit;
            let mut report = PurgeReport::default();
            for key in keys.iter().take(request.limit) {
                report.examined += 1;
                if self.purge_one(whole, time, key, request) {
                    report.purged += 1;
                }
            }
            if more {
                report.next = keys.get(request.limit - 1).cloned();
            }
            Ok(if report.purged > 0 { Judged::Write(Ok(report)) } else { Judged::Keep(report) })
        })
        .await
    }

    fn purge_one(&self, whole: &mut Whole, time: Time, key: &ActionKey, request: &PurgeRequest) -> bool {
        let Some(record) = whole.actions.get(key) else { return false };
        if !matches!(record.state, Stored::Completed(_)) && self.is(WrongEffects::PurgeOpen) {
            whole.actions.remove(key);
            return true;
        }
        let Stored::Completed(done) = &record.state else { return false };
        let over =
            time.now.saturating_since(done.at) >= request.retention || self.is(WrongEffects::PurgeEarly);
        if !over || matches!(done.payload, Payload::Purged(_)) {
            return false;
        }
        if self.is(WrongEffects::PurgeDropsVerdict) {
            whole.actions.remove(key);
            return true;
        }
        let mut record = record.clone();
        let fence = record.newest().fence;
        if let Stored::Completed(done) = &mut record.state {
            whole.drop_payload(&done.payload);
            done.payload = Payload::Purged(time.now);
        }
        for late in &mut record.evidence {
            whole.drop_payload(&late.payload);
            if !self.is(WrongEffects::PurgeKeepsEvidence) {
                late.payload = Payload::NotKept;
            }
        }
        record.note(time.now, TransitionKind::Purged, &self.agent, fence, &Note::default());
        whole.actions.insert(key.clone(), record);
        if self.is(WrongEffects::PurgeDropsFence) {
            whole.resources.clear();
        }
        true
    }

    pub(super) async fn forget_key(&self, key: &ActionKey) -> Result<(), EffectError> {
        let key = &self.key(key)?;
        let call = Call::new(EffectVerb::Forget, key.as_str(), None);
        self.run(call, |whole, time| {
            let Some(record) = whole.actions.get(key) else {
                return Err(EffectError::NeverAcquired { key: key.clone() });
            };
            let state = whole.state(record, time);
            if !state.is_settled() && !self.is(WrongEffects::ForgetOpen) {
                return Err(EffectError::NotSettled { state });
            }
            let payloads: Vec<Payload> = record.payload_keys().into_iter().map(Payload::Apart).collect();
            for payload in &payloads {
                whole.drop_payload(payload);
            }
            whole.actions.remove(key);
            if self.is(WrongEffects::ForgetDropsFence) {
                whole.resources.clear();
            }
            Ok(Judged::Write(Ok(())))
        })
        .await
    }

    pub(super) async fn forget_place(&self, resource: &ResourceId) -> Result<(), EffectError> {
        let resource = &self.resource(resource)?;
        let call = Call::new(EffectVerb::Forget, resource.as_str(), None);
        self.run(call, |whole, time| {
            let Some(hold) = whole.resources.get(resource) else { return Ok(Judged::Keep(())) };
            if let Some(held) = &hold.holder
                && !time.is_past(held.until)
                && !self.is(WrongEffects::ForgetHeldResource)
            {
                let state = whole
                    .actions
                    .get(&held.key)
                    .map_or(ActionState::InFlight, |record| whole.state(record, time));
                return Err(EffectError::NotSettled { state });
            }
            if !self.is(WrongEffects::ForgetWithoutFloor) {
                whole.floor = whole.floor.max(hold.fence);
            }
            whole.resources.remove(resource);
            Ok(Judged::Write(Ok(())))
        })
        .await
    }
}
