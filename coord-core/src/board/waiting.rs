//! Waiting without a subscription: looks that become rarer the longer nothing comes.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::BoardError;
use super::adapter::BoardAdapter;
use super::record::{head_key, read_head};
use super::task::TaskId;
use crate::backend::Backend;
use crate::clock::Timestamp;
use crate::snapshot::KeySet;
use crate::token;

/// What somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// This task has ended: it is done, failed or cancelled.
    Ended(TaskId),
    /// There is something to be had for [`claim_next`](super::ExtendedBoard::claim_next), or something that only it can tell. Whoever
    /// claims first has it.
    Ready,
}

/// How long to wait between two looks: an eighth of the time that has been waited already, from 20 ms to 5 s, and of that a random part
/// of at least a half. So nobody waits much longer than is needed, and who waits for long costs little: 200 who do, some 50 looks a
/// second.
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
        let longest = (waited / 8).clamp(Self::SHORTEST, Self::LONGEST);
        longest.mul_f64(self.random.random_range(0.5..=1.0))
    }
}

/// How often a look for ready tasks looks also for what is due and what must be examined, where that is not known to be needed.
const THOROUGH: u32 = 8;

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn wait_for(&self, awaited: &Awaited, patience: Duration) -> Result<bool, BoardError> {
        if let Awaited::Ended(id) = awaited {
            id.validate()?;
        }
        let clock = self.clock();
        let start = clock.monotonic();
        let mut pace = Pace::new();
        let (mut looks, mut thorough) = (0_u32, true);
        // When the first task becomes due, as a thorough look has last shown.
        let mut due_at: Option<Duration> = None;
        loop {
            thorough |= looks.is_multiple_of(THOROUGH);
            let seen = match awaited {
                Awaited::Ended(id) => self.has_ended(id).await?,
                Awaited::Ready => self.is_ready(thorough).await?,
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

    async fn has_ended(&self, id: &TaskId) -> Result<Look, BoardError> {
        let key = head_key(id);
        let snapshot = self.backend().snapshot(&KeySet::new([key.clone()])?).await?;
        let head = read_head(id, snapshot.require(&key)?)?;
        let head = head.ok_or_else(|| BoardError::NotFound { id: id.clone() })?;
        Ok(if head.state().is_terminal() { Look::Come } else { Look::Nothing })
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
