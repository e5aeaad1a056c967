//! Finding a task that can be claimed, by looking at all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::adapter::{BoardAdapter, definition_pages};
use super::claim::check_ttl;
use super::record::{Definition, Head, definition_key, read_definition};
use super::task::{AgentId, Claim, ClaimRequest, Filter, State, TaskId};
use super::{Board, BoardError};
use crate::backend::Backend;
use crate::snapshot::KeySet;

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn claim_next_task(
        &self,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
    ) -> Result<Option<Claim>, BoardError> {
        agent.validate()?;
        check_ttl(ttl)?;
        let mut malformed = None;
        for (_, id) in self.candidates(filter, &mut malformed).await? {
            match self.claim(&id, agent, ClaimRequest::for_ttl(ttl)).await {
                Ok(claim) => return Ok(Some(claim)),
                // What was seen was only a hint; the claim judges for itself.
                Err(
                    BoardError::NotFound { .. }
                    | BoardError::Terminal { .. }
                    | BoardError::Taken { .. }
                    | BoardError::NotYet { .. }
                    | BoardError::Blocked { .. },
                ) => {}
                Err(error @ BoardError::Malformed { .. }) => malformed = Some(error),
                Err(error) => return Err(error),
            }
        }
        malformed.map_or(Ok(None), Err)
    }

    /// The tasks that look claimable: higher priorities first, then by their place in line.
    async fn candidates(
        &self,
        filter: &Filter,
        malformed: &mut Option<BoardError>,
    ) -> Result<BTreeMap<(std::cmp::Reverse<i32>, u64), TaskId>, BoardError> {
        let (heads, snapshot) = self.read_heads().await?;
        let view = self.view(&snapshot);
        let mut known: BTreeMap<TaskId, Head> = BTreeMap::new();
        for (id, head) in heads {
            match head {
                Ok(head) => {
                    known.insert(id, head);
                }
                Err(error) => *malformed = Some(error),
            }
        }
        let claimable = |head: &&Head| {
            let time = view.time(head.touched);
            let free = match (head.state(), &head.held) {
                (State::Open, _) => true,
                (State::Claimed, Some(held)) => time.may_take_over(held.until),
                _ => false,
            };
            free && head.not_before.is_none_or(|not_before| time.now >= not_before)
        };
        let free = known.iter().filter(|(_, head)| claimable(head));
        let mut candidates = BTreeMap::new();
        for page in definition_pages(free) {
            let snapshot = self.backend().snapshot(&KeySet::new(page.iter().map(definition_key))?).await?;
            for id in page {
                let definition: Definition =
                    match read_definition(&id, snapshot.require(&definition_key(&id))?) {
                        Ok(definition) => definition,
                        Err(error) => {
                            // Removed since the heads were read, or damaged: the claim will tell.
                            *malformed = Some(error);
                            continue;
                        }
                    };
                let done = |dep: &TaskId| known.get(dep).is_some_and(|head| head.state() == State::Done);
                if filter.matches(&definition.labels)
                    && definition.deps.iter().all(done)
                    && let Some(head) = known.get(&id)
                {
                    candidates.insert((std::cmp::Reverse(definition.priority), head.order), id);
                }
            }
        }
        Ok(candidates)
    }
}
