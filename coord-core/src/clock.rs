//! Time, injected: nothing else in this crate reads a clock or sleeps.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// A point in time: microseconds since the Unix epoch, 0 to 2^63 - 1.
///
/// ```
/// use std::time::Duration;
/// use coord_core::Timestamp;
///
/// let t = Timestamp::from_micros(1_000_000).unwrap();
/// assert_eq!(t.checked_add(Duration::from_secs(1)).unwrap().as_micros(), 2_000_000);
/// assert_eq!(t.to_string(), "1970-01-01T00:00:01.000000Z");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Timestamp = Timestamp(0);
    /// The last point in time that can be represented.
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// A time from microseconds since the Unix epoch, `None` if negative.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Option<Self> {
        if micros < 0 { None } else { Some(Timestamp(micros)) }
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time plus a duration (rounded down to microseconds), `None` beyond [`Timestamp::MAX`].
    #[must_use]
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        let micros = i64::try_from(duration.as_micros()).ok()?;
        self.0.checked_add(micros).map(Timestamp)
    }

    /// This time plus a duration, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        self.checked_add(duration).unwrap_or(Timestamp::MAX)
    }

    /// How long this time is after `earlier`, zero if it is not.
    #[must_use]
    pub fn saturating_since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl TryFrom<i64> for Timestamp {
    type Error = &'static str;
    fn try_from(micros: i64) -> Result<Self, Self::Error> {
        Timestamp::from_micros(micros).ok_or("a time before the Unix epoch")
    }
}

impl From<Timestamp> for i64 {
    fn from(time: Timestamp) -> i64 {
        time.0
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with microseconds. The civil date is computed with the `civil_from_days` algorithm of Howard Hinnant,
    /// "chrono-Compatible Low-Level Date Algorithms", for the proleptic Gregorian calendar.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_index = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_index + 2) / 5 + 1;
        let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z",
            second / 3_600,
            second / 60 % 60,
            second % 60
        )
    }
}

/// The source of time and of waiting for everything in this crate.
///
/// `now` is only used where the store has no clock of its own; `monotonic` never goes back and serves for measuring.
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// Time since an arbitrary fixed start, which never goes back.
    fn monotonic(&self) -> Duration;
    /// Waits.
    async fn sleep(&self, duration: Duration);
    /// Waits until [`monotonic`](Clock::monotonic) has come to this. Unlike a `sleep` for what is left, which begins when it is first polled, it
    /// does not wait longer if time has passed in between.
    async fn sleep_until(&self, at: Duration) {
        loop {
            let left = at.saturating_sub(self.monotonic());
            if left.is_zero() {
                return;
            }
            self.sleep(left).await;
        }
    }
}

/// The clock of the operating system; waits with tokio's timer.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl SystemClock {
    /// The clock of the operating system.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the source of monotonic time")]
    pub fn new() -> Self {
        SystemClock { start: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the source of wall time")]
    fn now(&self) -> Timestamp {
        // A clock set before 1970 reads as the epoch; one beyond the year 294246 as the last time.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::EPOCH.saturating_add(since)
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the source of waiting")]
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A clock that stands still until it is told to move, for tests.
///
/// `sleep` ends when the clock has been advanced far enough.
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<ManualState>,
    moved: tokio::sync::Notify,
}

#[derive(Debug)]
struct ManualState {
    now: Timestamp,
    monotonic: Duration,
}

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        ManualClock {
            state: Mutex::new(ManualState { now, monotonic: Duration::ZERO }),
            moved: tokio::sync::Notify::new(),
        }
    }

    /// Moves wall and monotonic time forward and wakes the sleepers whose time has come.
    pub fn advance(&self, duration: Duration) {
        {
            let mut state = self.lock();
            state.now = state.now.saturating_add(duration);
            state.monotonic = state.monotonic.saturating_add(duration);
        }
        self.moved.notify_waiters();
    }

    /// Sets the wall clock, also backwards; monotonic time does not move.
    pub fn set(&self, now: Timestamp) {
        self.lock().now = now;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.lock().now
    }

    fn monotonic(&self) -> Duration {
        self.lock().monotonic
    }

    async fn sleep(&self, duration: Duration) {
        let end = self.lock().monotonic.saturating_add(duration);
        self.sleep_until(end).await;
    }

    async fn sleep_until(&self, at: Duration) {
        loop {
            // Registered before the look, so that an advance in between is not missed.
            let moved = self.moved.notified();
            if self.lock().monotonic >= at {
                return;
            }
            moved.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn dates_are_right() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_796_083_199, "2026-11-30T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(Timestamp(seconds * 1_000_000).to_string(), format!("{text}.000000Z"));
        }
        assert_eq!(Timestamp(1_001).to_string(), "1970-01-01T00:00:00.001001Z");
    }

    #[test]
    fn additions_do_not_overflow() {
        assert_eq!(Timestamp::MAX.checked_add(Duration::from_micros(1)), None);
        assert_eq!(Timestamp::EPOCH.checked_add(Duration::MAX), None);
        assert_eq!(Timestamp::MAX.saturating_add(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::EPOCH.saturating_since(Timestamp::MAX), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_its_sleepers_when_their_time_has_come() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move {
                clock.sleep(Duration::from_secs(2)).await;
                clock.monotonic()
            }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        assert_eq!(sleeper.await.unwrap(), Duration::from_secs(2));
    }
}
