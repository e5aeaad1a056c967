//! How often a task is tried.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::BoardError;

/// How often a task is tried, and how long it rests in between.
///
/// An attempt is a claim. One that was released is not counted; one that was taken over after its lease, or revoked, is. After the last
/// one the task has failed, and somebody has to reopen it.
///
/// ```
/// use std::time::Duration;
/// use coord_core::board::Retry;
///
/// // Three attempts. After the first failure 5 to 10 seconds pass, after the second 10 to 20.
/// let retry = Retry::new(3).backoff(Duration::from_secs(10), Duration::from_secs(60));
/// assert_eq!(retry.attempts, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Retry {
    /// How many attempts there are, at least one.
    pub attempts: u32,
    /// The longest wait after the first failure. It doubles with each one; the real wait is chosen at random from its upper half.
    pub backoff: Duration,
    /// What it does not grow beyond; at most a year.
    pub max_backoff: Duration,
}

impl Retry {
    /// So many attempts, with up to a second of rest after the first failure, and up to five minutes later on.
    #[must_use]
    pub fn new(attempts: u32) -> Self {
        Retry { attempts, backoff: Duration::from_secs(1), max_backoff: Duration::from_secs(300) }
    }

    /// With this longest rest after the first failure, and this longest one at all.
    #[must_use]
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        (self.backoff, self.max_backoff) = (first, longest);
        self
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// [`BoardError::Invalid`] for no attempts, or a rest of more than a year.
    pub fn validate(&self) -> Result<(), BoardError> {
        const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);
        if self.attempts == 0 {
            return Err(BoardError::Invalid("a task that is never attempted".into()));
        }
        if self.backoff > YEAR || self.max_backoff > YEAR {
            return Err(BoardError::Invalid("a task rests for more than a year between two attempts".into()));
        }
        Ok(())
    }

    /// How long the task rests after so many attempts have failed, at least one. The random bits spread those that failed together.
    #[must_use]
    pub fn rest(&self, attempts: u32, random: u64) -> Duration {
        let doubled = 2_u32.saturating_pow(attempts.saturating_sub(1).min(31));
        let longest = self.backoff.saturating_mul(doubled).min(self.max_backoff);
        let half = longest / 2;
        // The upper 32 bits as a fraction.
        let micros = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
        let part = (u128::from(micros) * u128::from(random >> 32)) >> 32;
        longest - half + Duration::from_micros(u64::try_from(part).unwrap_or(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_double_and_are_spread_over_their_upper_half() {
        let retry = Retry::new(9).backoff(Duration::from_secs(10), Duration::from_secs(60));
        for (attempts, longest) in [(1, 10), (2, 20), (3, 40), (4, 60), (u32::MAX, 60)] {
            let longest = Duration::from_secs(longest);
            assert_eq!(retry.rest(attempts, 0), longest / 2);
            let most = retry.rest(attempts, u64::MAX);
            assert!(most <= longest && most > longest - Duration::from_millis(1), "{most:?}");
        }
        assert_eq!(Retry::new(1).backoff(Duration::ZERO, Duration::ZERO).rest(5, 7), Duration::ZERO);
        assert!(Retry::new(0).validate().is_err());
        assert!(Retry::new(1).backoff(Duration::MAX, Duration::MAX).validate().is_err());
    }
}
