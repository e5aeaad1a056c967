//! Waiting without a subscription: looks that become rarer the longer nothing comes.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::BoardError;
use super::adapter::{BoardAdapter, heads_prefix};
use super::record::{head_id, head_key, read_head, topology_key};
use super::task::{State, TaskId, limits};
use crate::backend::Backend;
use crate::clock::Timestamp;
use crate::key::Key;
use crate::snapshot::{KeyRange, KeySet, Version};
use crate::token;

/// What somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// This task has ended: it is done, failed, cancelled or skipped.
    Ended(TaskId),
    /// One of these has ended, at most [`limits::AWAITED`] of them.
    AnyEnded(BTreeSet<TaskId>),
    /// There is something to be had for [`claim_next`](super::ExtendedBoard::claim_next), or something that only it can tell. Whoever
    /// claims first has it.
    Ready,
    /// Nothing is left that could run, now or later: no task can be claimed, none is held, none rests, and none waits for one of
    /// these. What is left has ended, or waits for something that has failed.
    Idle,
}

impl Awaited {
    /// Checks the limits.
    ///
    /// # Errors
    /// [`BoardError::Invalid`] for ids that cannot be, and for none at all; [`BoardError::TooLarge`] for too many of them.
    pub fn validate(&self) -> Result<(), BoardError> {
        match self {
            Awaited::Ended(id) => id.validate(),
            Awaited::AnyEnded(ids) if ids.is_empty() => {
                Err(BoardError::Invalid("one of no tasks never ends".into()))
            }
            Awaited::AnyEnded(ids) if ids.len() > limits::AWAITED => Err(BoardError::TooLarge {
                what: "the number of tasks that are waited for",
                size: ids.len(),
                limit: limits::AWAITED,
            }),
            Awaited::AnyEnded(ids) => ids.iter().try_for_each(TaskId::validate),
            Awaited::Ready | Awaited::Idle => Ok(()),
        }
    }
}

/// How long to wait between two looks: a quarter of the time that has been waited already, from 20 ms to 5 s, and of that a random part
/// of at least a half. So nobody waits much longer than is needed, and who waits for long costs little: 200 who have waited for 20 s, some
/// 55 looks a second.
#[derive(Debug)]
pub struct Pace {
    random: StdRng,
}

impl Pace {
    const SHORTEST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(5);

    /// A pace of its own.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "every one is another one")]
    pub fn new() -> Self {
        Pace { random: StdRng::seed_from_u64(token::seed()) }
    }

    /// How long to wait until the next look, when so long has been waited.
    pub fn pause(&mut self, waited: Duration) -> Duration {
        let longest = (waited / 4).clamp(Self::SHORTEST, Self::LONGEST);
        longest.mul_f64(self.random.random_range(0.5..=1.0))
    }
}

/// How often a look for ready tasks looks also for what is due and what must be examined, where that is not known to be needed.
const THOROUGH: u32 = 8;
/// How often in a row the index has to be found empty before all tasks are read. What is in it goes round, from ready to due to what must be
/// examined to ready, and is looked for in this order: to be missed it has to go on between any two of the looks. For somebody who looks
/// more slowly than others work, that happens.
const EMPTY: usize = 3;
/// How many heads are read at a time.
const PAGE: usize = 5_000;

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn wait_for(&self, awaited: &Awaited, patience: Duration) -> Result<bool, BoardError> {
        awaited.validate()?;
        let clock = self.clock();
        let start = clock.monotonic();
        let mut pace = Pace::new();
        let (mut looks, mut thorough, mut begin) = (0_u32, true, 0);
        // When the first task becomes due, as a thorough look has last shown.
        let mut due_at: Option<Duration> = None;
        loop {
            thorough |= looks.is_multiple_of(THOROUGH);
            let seen = match awaited {
                Awaited::Ended(id) => self.has_ended(std::iter::once(id)).await?,
                Awaited::AnyEnded(ids) => self.has_ended(ids).await?,
                Awaited::Ready => self.is_ready(thorough).await?,
                Awaited::Idle => self.is_idle(thorough, &mut begin).await?,
            };
            let now = clock.monotonic();
            match seen {
                Look::Come => return Ok(true),
                Look::DueIn(time) => due_at = Some(now.saturating_add(time)),
                Look::Nothing if thorough => due_at = None,
                Look::Nothing => {}
            }
            let waited = now.saturating_sub(start);
            let Some(left) = patience.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Ok(false);
            };
            let pause = pace.pause(waited);
            // When something is known to become due, the next look comes right then.
            let until_due = due_at.map(|time| time.saturating_sub(now)).filter(|time| *time <= pause);
            thorough = until_due.is_some();
            looks = looks.wrapping_add(1);
            clock.sleep(until_due.unwrap_or(pause).max(Duration::from_millis(1)).min(left)).await;
        }
    }

    /// Whether one of these has ended. If none has, all of them have to be there.
    async fn has_ended(&self, ids: impl IntoIterator<Item = &TaskId> + Clone) -> Result<Look, BoardError> {
        let snapshot = self.backend().snapshot(&KeySet::new(ids.clone().into_iter().map(head_key))?).await?;
        let mut wrong = None;
        for id in ids {
            match read_head(id, snapshot.require(&head_key(id))?) {
                Ok(Some(head)) if head.state().is_terminal() => return Ok(Look::Come),
                Ok(Some(_)) => {}
                Ok(None) => wrong = wrong.or_else(|| Some(BoardError::NotFound { id: id.clone() })),
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        wrong.map_or(Ok(Look::Nothing), Err)
    }

    /// Begins where the last look has found something: mostly it is still there, and one look is enough.
    async fn is_idle(&self, thorough: bool, begin: &mut usize) -> Result<Look, BoardError> {
        use super::ready::{DUE, READY, TODO};
        const ROUND: [&str; 3] = [READY, DUE, TODO];
        let first = *begin;
        for place in (0..ROUND.len()).cycle().skip(first).take(EMPTY * ROUND.len()) {
            let prefix = ROUND[place];
            let mut found = self.has_entry(prefix).await?;
            if found && thorough && prefix == TODO {
                // Whoever left it may be gone, and where nobody looks for tasks nobody else examines it.
                self.examine_some().await?;
                found = self.has_entry(prefix).await?;
            }
            if found {
                *begin = place;
                return Ok(Look::Nothing);
            }
        }
        Ok(if self.is_at_rest().await? { Look::Come } else { Look::Nothing })
    }

    /// Whether there was an instant at which no task was held and none was in the index but by what it waits for.
    ///
    /// The heads of all tasks that may still change are read before and after the index. If none has moved, and no task has come or gone, they
    /// were all the same while the index was read, and then a task only goes on there in the order in which it is read here, from what
    /// must be examined to due to ready, where it stays.
    async fn is_at_rest(&self) -> Result<bool, BoardError> {
        use super::ready::{DUE, READY, TODO};
        let Some(before) = self.unsettled().await? else { return Ok(false) };
        for prefix in [TODO, DUE, READY] {
            if self.has_entry(prefix).await? {
                return Ok(false);
            }
        }
        for page in before.chunks(PAGE) {
            let keys = KeySet::new(page.iter().map(|(key, _)| key.clone()))?;
            let after = self.backend().snapshot(&keys).await?;
            for (key, version) in page {
                if after.require(key)?.version() != *version {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The guard and the heads that may still change, each at some version; `None` if one is held.
    async fn unsettled(&self) -> Result<Option<Vec<(Key, Version)>>, BoardError> {
        let guard = topology_key();
        let snapshot = self.backend().snapshot(&KeySet::new([guard.clone()])?).await?;
        // Read first and compared last.
        let version = snapshot.require(&guard)?.version();
        let (mut range, mut unsettled) = (KeyRange::new(heads_prefix(), PAGE)?, Vec::new());
        loop {
            let keys = self.backend().keys(&range).await?;
            let snapshot = self.backend().snapshot(&KeySet::new(keys.iter().cloned())?).await?;
            for key in &keys {
                let entry = snapshot.require(key)?;
                let head = head_id(key).and_then(|id| read_head(&id, entry).ok().flatten());
                match head.map(|head| head.state()) {
                    Some(State::Claimed) => return Ok(None),
                    Some(State::Done | State::Skipped) => {}
                    _ => unsettled.push((key.clone(), entry.version())),
                }
            }
            match keys.last() {
                Some(last) if keys.len() == PAGE => range = range.start_after(last.clone()),
                _ => break,
            }
        }
        unsettled.push((guard, version));
        Ok(Some(unsettled))
    }

    async fn is_ready(&self, thorough: bool) -> Result<Look, BoardError> {
        if self.has_entry(super::ready::READY).await? {
            return Ok(Look::Come);
        }
        if !thorough {
            return Ok(Look::Nothing);
        }
        if self.has_entry(super::ready::TODO).await? {
            return Ok(Look::Come);
        }
        let Some(due) = self.first_due().await? else { return Ok(Look::Nothing) };
        let snapshot = self.backend().snapshot(&KeySet::empty()).await?;
        let now: Timestamp = self.view(&snapshot).now();
        Ok(if due <= now { Look::Come } else { Look::DueIn(due.saturating_since(now)) })
    }
}

/// What a look has shown.
enum Look {
    Come,
    DueIn(Duration),
    Nothing,
}
