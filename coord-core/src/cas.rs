//! The loop of every verb: snapshot, judge, transaction, and again if somebody was faster.
//!
//! A judgement is a pure function over entries and a time ([`Judge::judge`]). What it rests on is asserted by the transaction that it
//! returns, so a judgement on old entries changes nothing. A transaction whose answer was lost is a *pending* try: every later
//! snapshot of the call is first searched for its trace ([`Judge::fate`]), and until the try is known applied or dead, the call ends in
//! no definite error.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::backend::Backend;
use crate::clock::{Clock, Timestamp};
use crate::error::BackendError;
use crate::key::Key;
use crate::snapshot::{Entry, KeyRange, KeySet, Snapshot, Version};
use crate::token;
use crate::txn::{Txn, TxnOutcome};

/// What a judgement rests on: the entries of one instant, and the time.
pub(crate) struct View<'a> {
    pub(crate) snapshot: &'a Snapshot,
    /// The injected clock, for stores without one.
    pub(crate) clock: Timestamp,
    /// How far two injected clocks may be apart.
    pub(crate) max_clock_skew: Duration,
}

impl View<'_> {
    pub(crate) fn entry(&self, key: &Key) -> Result<&Entry, BackendError> {
        self.snapshot.require(key)
    }

    /// The time of this view, whatever record it is about.
    pub(crate) fn now(&self) -> Timestamp {
        self.snapshot.store_time().unwrap_or(self.clock)
    }

    /// The keys of `wanted` that this view does not hold.
    pub(crate) fn lacks<'k>(&self, wanted: impl IntoIterator<Item = &'k Key>) -> Vec<Key> {
        wanted.into_iter().filter(|key| self.snapshot.get(key).is_none()).cloned().collect()
    }

    /// The time of a judgement about a record that was last written at `touched`.
    ///
    /// With a store clock it never goes back behind the last write. Without one, `touched` was written by another client's clock,
    /// which is believed up to the margin, and who takes something over waits the margin longer than its holder may act.
    pub(crate) fn time(&self, touched: Timestamp) -> Time {
        match self.snapshot.store_time() {
            Some(now) => Time { now: now.max(touched), margin: Duration::ZERO },
            None => Time {
                now: self.clock.max(touched.min(self.clock.saturating_add(self.max_clock_skew))),
                margin: self.max_clock_skew,
            },
        }
    }
}

/// The time of a judgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    pub(crate) now: Timestamp,
    margin: Duration,
}

impl Time {
    /// Whether the holder of a lease may no longer act as such. Exactly at expiry is too late.
    pub(crate) fn is_over(&self, until: Option<Timestamp>) -> bool {
        until.is_some_and(|until| self.now >= until)
    }

    /// Whether somebody else may take over.
    pub(crate) fn may_take_over(&self, until: Option<Timestamp>) -> bool {
        until.is_some_and(|until| self.now >= until.saturating_add(self.margin))
    }
}

/// Why there is no lease of such a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TtlError {
    #[error("the ttl is less than a microsecond")]
    Nothing,
    #[error("the ttl ends beyond the representable time")]
    Overflow,
}

/// A ttl that is longer than nothing and can be represented at all.
pub(crate) fn check_ttl(ttl: Duration) -> Result<(), TtlError> {
    if ttl < Duration::from_micros(1) {
        return Err(TtlError::Nothing);
    }
    lease_end(Timestamp::EPOCH, ttl).map(|_| ())
}

/// When a lease ends that begins now.
pub(crate) fn lease_end(now: Timestamp, ttl: Duration) -> Result<Timestamp, TtlError> {
    now.checked_add(ttl).ok_or(TtlError::Overflow)
}

/// What a judgement says.
pub(crate) enum Step<A> {
    /// These keys have to be read too.
    Read(Vec<Key>),
    /// This listing has to be made too; what it returns goes to [`Judge::listed`], and the judgement is repeated on the same view.
    List(KeyRange),
    /// The answer, without a write.
    Answer(A),
    /// The answer if this transaction is applied.
    Commit(Txn, A),
}

/// A try whose answer was lost.
pub(crate) struct Pending<A> {
    pub(crate) txn: Txn,
    pub(crate) answer: A,
}

impl<A> Pending<A> {
    /// Whether a *present* key that the try asserted has another version now: then the try is dead, or has been applied. An assert
    /// of `missing` proves nothing, for the key may have come and gone.
    pub(crate) fn has_moved(&self, view: &View<'_>) -> Result<bool, BackendError> {
        for assert in self.txn.asserts().iter().filter(|assert| !assert.version.is_missing()) {
            if view.entry(&assert.key)?.version() != assert.version {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The version that the try asserted of a key.
    pub(crate) fn asserted(&self, key: &Key) -> Option<Version> {
        self.txn.asserts().iter().find(|assert| assert.key == *key).map(|assert| assert.version)
    }
}

/// What has become of a pending try.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate<A> {
    /// It was applied.
    Applied(A),
    /// Nothing that it asserted has moved: it may still be applied, and may be sent again.
    Open,
    /// It was not applied and never can be.
    Dead,
    /// It cannot be told any more.
    Lost,
}

/// One verb: what it reads, how it judges, how it finds its own write again.
pub(crate) trait Judge: Send {
    type Answer: Clone + Send;
    type Error: From<BackendError> + Send;

    /// The keys to read first.
    fn keys(&self) -> Vec<Key>;
    /// Forgets what was learnt from an earlier view, for there is a new one.
    fn restart(&mut self) {}
    /// Judges.
    fn judge(&mut self, view: &View<'_>) -> Result<Step<Self::Answer>, Self::Error>;
    /// Takes the keys that [`Step::List`] asked for.
    fn listed(&mut self, _keys: Vec<Key>) {}
    /// Looks for the trace of a pending try. An error counts as [`Fate::Lost`].
    fn fate(
        &self,
        view: &View<'_>,
        pending: &Pending<Self::Answer>,
    ) -> Result<Fate<Self::Answer>, Self::Error>;
    /// Whether a try that was sent again and then applied is only believed after another look: for verbs whose answer may be over
    /// by the time that it is given.
    fn looks_again(&self) -> bool {
        false
    }
    /// The error after too many conflicts.
    fn conflict(&self, attempts: u32) -> Self::Error;
    /// The error when a pending try may have been applied.
    fn unknown(&self) -> Self::Error;
}

/// How often the loop tries again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Conflicts until [`Judge::conflict`].
    pub(crate) conflicts: u32,
    /// Failures of the store while a try is pending, until [`Judge::unknown`].
    pub(crate) failures: u32,
}

/// Waits between tries: exponential with full jitter, as in "Exponential Backoff And Jitter" (Marc Brooker, AWS Architecture Blog,
/// 2015).
pub(crate) struct Backoff {
    ceiling: Duration,
    cap: Duration,
    random: Option<StdRng>,
}

impl Backoff {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        Backoff { ceiling: first, cap, random: None }
    }

    pub(crate) async fn wait(&mut self, clock: &dyn Clock) {
        let random = self.random.get_or_insert_with(|| StdRng::seed_from_u64(token::seed()));
        let micros = random.random_range(0..=self.ceiling.as_micros().min(u128::from(u32::MAX)) as u64);
        self.ceiling = self.ceiling.saturating_mul(2).min(self.cap);
        clock.sleep(Duration::from_micros(micros)).await;
    }
}

/// Makes the guard record of an adapter if there is none yet, and reads `keys`, of which it is one, with it. It is never deleted, so whoever
/// creates it, and however often, it is there in the end.
pub(crate) async fn open(
    backend: &dyn Backend,
    clock: &dyn Clock,
    max_failures: u32,
    keys: &KeySet,
    guard: &Key,
    create: &Txn,
) -> Result<Snapshot, BackendError> {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    let mut failures = 0;
    loop {
        let snapshot = backend.snapshot(keys).await?;
        if snapshot.require(guard)?.is_present() {
            return Ok(snapshot);
        }
        match backend.txn(create).await {
            Ok(TxnOutcome::Applied | TxnOutcome::Rejected) => {}
            Err(error) if !error.is_indeterminate() => return Err(error),
            Err(error) => {
                failures += 1;
                if failures > max_failures {
                    return Err(error);
                }
                backoff.wait(clock).await;
            }
        }
    }
}

/// Runs a verb to its answer.
pub(crate) async fn run<J: Judge>(
    backend: &dyn Backend,
    clock: &dyn Clock,
    max_clock_skew: Duration,
    bounds: Bounds,
    judge: &mut J,
) -> Result<J::Answer, J::Error> {
    let mut keys: BTreeSet<Key> = judge.keys().into_iter().collect();
    let mut pending: Option<Pending<J::Answer>> = None;
    let (mut conflicts, mut failures) = (0, 0);
    let mut after_conflict = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
    let mut after_failure = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        // While a try is pending, only what tells its fate may end the call, and the store's failures are waited out.
        macro_rules! wait_out {
            ($error:expr) => {{
                failures += 1;
                if failures > bounds.failures || !($error.is_retryable() || $error.is_indeterminate()) {
                    return Err(judge.unknown());
                }
                after_failure.wait(clock).await;
                continue;
            }};
        }
        let asserted = pending.iter().flat_map(|pending| pending.txn.asserts()).map(|assert| &assert.key);
        let wanted = KeySet::new(keys.iter().chain(asserted.filter(|key| !keys.contains(*key))).cloned());
        let snapshot = match async { backend.snapshot(&wanted?).await }.await {
            Ok(snapshot) => snapshot,
            Err(error) if pending.is_some() => wait_out!(error),
            Err(error) => return Err(error.into()),
        };
        let view = View { snapshot: &snapshot, clock: clock.now(), max_clock_skew };
        if let Some(tried) = &pending {
            match judge.fate(&view, tried) {
                Ok(Fate::Applied(answer)) => return Ok(answer),
                Ok(Fate::Dead) => pending = None,
                Ok(Fate::Lost) | Err(_) => return Err(judge.unknown()),
                // The same transaction again, byte for byte, with nothing judged anew: a late duplicate then fails its asserts, or
                // it is the one that is found.
                Ok(Fate::Open) => match backend.txn(&tried.txn).await {
                    Ok(TxnOutcome::Applied) if !judge.looks_again() => return Ok(tried.answer.clone()),
                    // Either the first one has landed after all, or somebody was faster: the next snapshot tells.
                    Ok(TxnOutcome::Applied | TxnOutcome::Rejected) => {
                        conflicts += 1;
                        if conflicts >= bounds.conflicts {
                            return Err(judge.unknown());
                        }
                        continue;
                    }
                    Err(error) => wait_out!(error),
                },
            }
        }
        judge.restart();
        let commit = loop {
            match judge.judge(&view)? {
                Step::Answer(answer) => return Ok(answer),
                Step::Commit(txn, answer) => break Some((txn, answer)),
                Step::List(range) => judge.listed(backend.keys(&range).await?),
                Step::Read(more) => {
                    keys.extend(more);
                    break None;
                }
            }
        };
        let Some((txn, answer)) = commit else { continue };
        match backend.txn(&txn).await {
            Ok(TxnOutcome::Applied) => return Ok(answer),
            Ok(TxnOutcome::Rejected) => {
                conflicts += 1;
                if conflicts >= bounds.conflicts {
                    return Err(judge.conflict(conflicts));
                }
                after_conflict.wait(clock).await;
            }
            Err(error) if error.is_indeterminate() => pending = Some(Pending { txn, answer }),
            Err(error) => return Err(error.into()),
        }
    }
}
