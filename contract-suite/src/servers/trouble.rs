//! What the test programs of servers in trouble share: one key that is counted up, and errors that come in time and tell no secret.

use std::error::Error as _;
use std::fmt::Debug;
use std::time::Duration;

use coord_core::{
    Assert, Backend, BackendError, Clock as _, Entry, Key, KeySet, Mutation, SystemClock, Txn, TxnOutcome,
};

/// The password of whoever has one: what must be in no error.
pub const SECRET: &str = "hunter2";

/// The error of opening what this URL names, which must come within so many seconds and show no [`SECRET`].
///
/// # Panics
/// If it is opened, if that takes longer, or if the error shows the secret.
pub async fn refusal<B: Debug>(
    url: &str,
    opening: impl Future<Output = Result<B, BackendError>>,
    within: u64,
) -> BackendError {
    let error = bounded(within, opening).await.expect_err(url);
    show(&error);
    error
}

/// Looks for the [`SECRET`], on any way to print an error.
///
/// # Panics
/// If it is in there.
pub fn show(error: &BackendError) {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!("{cause} {cause:?}"));
        source = cause.source();
    }
    assert!(!text.contains(SECRET), "{text}");
}

/// Waits for a call, which must end within so many seconds.
///
/// # Panics
/// If it does not.
pub async fn bounded<T>(seconds: u64, call: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(seconds);
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| panic!("no end within {limit:?}"))
}

/// Waits for a call, and says how long it took.
pub async fn elapsed<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let clock = SystemClock::new();
    let start = clock.monotonic();
    (call.await, clock.monotonic() - start)
}

/// The key of this name.
///
/// # Panics
/// If it is none.
pub fn key(text: &str) -> Key {
    Key::new(text).expect("a valid key")
}

/// A transaction that writes this key without a condition.
///
/// # Panics
/// If it is no key.
pub fn put(text: &str) -> Txn {
    Txn::new([], [Mutation::put(key(text), "value")]).expect("one small write")
}

/// What is there under this key.
///
/// # Errors
/// What the backend says.
pub async fn entry(backend: &dyn Backend, text: &str) -> Result<Entry, BackendError> {
    Ok(backend.snapshot(&KeySet::new([key(text)])?).await?.require(&key(text))?.clone())
}

/// One write by compare-and-set of a key that nobody else writes. Returns the count of the key after it.
///
/// # Errors
/// What the backend says.
///
/// # Panics
/// If it is rejected.
pub async fn step(backend: &dyn Backend, text: &str) -> Result<u64, BackendError> {
    let before = entry(backend, text).await?.version();
    let txn = Txn::new([Assert::version(key(text), before)], [Mutation::put(key(text), "value")])?;
    assert_eq!(backend.txn(&txn).await?, TxnOutcome::Applied, "nobody else writes {text}");
    Ok(before.count() + 1)
}
