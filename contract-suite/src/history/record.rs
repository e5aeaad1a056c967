//! Handles that write down what they are asked and what they answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use coord_core::{
    Backend, BackendError, Bytes, Entry, ErrorKind, Key, KeyRange, KeySet, Snapshot, Txn, TxnOutcome, Version,
};

use super::event::{Action, Answer, Event, History, Seen};

/// Collects the events of all recorded handles of one run. Clones are the same one.
///
/// Moments are drawn from one counter before a call and after its answer, so they order all that does not overlap, with no
/// clock whose resolution would blur it.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    log: Arc<Log>,
}

#[derive(Debug, Default)]
struct Log {
    moment: AtomicU64,
    events: Mutex<Vec<Event>>,
    errors: Mutex<Vec<BackendError>>,
}

impl Log {
    fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn errors(&self) -> MutexGuard<'_, Vec<BackendError>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    /// A recorder without events.
    #[must_use]
    pub fn new() -> Self {
        Recorder::default()
    }

    /// A handle that records what goes through it, as one client. A client makes one call at a time.
    #[must_use]
    pub fn wrap(&self, backend: Arc<dyn Backend>, client: usize) -> Arc<dyn Backend> {
        Arc::new(Recorded { inner: backend, client, log: self.log.clone() })
    }

    /// The events so far, ordered by their calls.
    #[must_use]
    pub fn history(&self) -> History {
        let mut events = self.log.events().clone();
        events.sort_by_key(|event| event.call);
        History(events)
    }

    /// The errors so far that a store never answers to a right request: neither unavailable nor indeterminate.
    #[must_use]
    pub fn take_errors(&self) -> Vec<BackendError> {
        std::mem::take(&mut *self.log.errors())
    }
}

#[derive(Debug)]
struct Recorded {
    inner: Arc<dyn Backend>,
    client: usize,
    log: Arc<Log>,
}

impl Recorded {
    fn push(&self, call: u64, ret: Option<u64>, action: Action) {
        self.log.events().push(Event { client: self.client, call, ret, action });
    }

    /// A failed read says nothing of the data, so only odd errors are kept.
    fn note<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        answer.inspect_err(|error| {
            if error.kind() != ErrorKind::Unavailable && !error.is_indeterminate() {
                let copy =
                    BackendError::new(error.kind(), error.backend(), error.operation(), error.message());
                self.log.errors().push(copy);
            }
        })
    }
}

type Asserts = Vec<(Key, Version)>;
type Writes = Vec<(Key, Option<String>)>;

/// The transaction whose answer is awaited. Dropped in the middle, it is one of unknown outcome.
struct Pending<'a> {
    recorded: &'a Recorded,
    call: u64,
    asked: Option<(Asserts, Writes)>,
}

impl Pending<'_> {
    fn end(&mut self, ret: Option<u64>, answer: Answer) {
        if let Some((asserts, writes)) = self.asked.take() {
            self.recorded.push(self.call, ret, Action::Txn { asserts, writes, answer });
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.end(None, Answer::Unknown);
    }
}

/// A value as one word: what the workload puts is unchanged, and anything else is no value of the workload.
fn word(value: &Bytes) -> String {
    value.escape_ascii().to_string().replace(' ', "\\x20")
}

#[async_trait]
impl Backend for Recorded {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let call = self.log.now();
        let answer = self.inner.snapshot(keys).await;
        let ret = self.log.now();
        let snapshot = self.note(answer)?;
        let entries = keys.distinct().into_iter().map(|key| {
            let seen = match snapshot.get(key) {
                None => Seen::LeftOut,
                Some(Entry::Absent) => Seen::Absent,
                Some(Entry::Present { version, value }) => Seen::Present(*version, word(value)),
            };
            (key.clone(), seen)
        });
        self.push(call, Some(ret), Action::Read(entries.collect()));
        Ok(snapshot)
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let asserts = txn.asserts().iter().map(|assert| (assert.key.clone(), assert.version)).collect();
        let writes = txn.mutations().iter().map(|m| (m.key().clone(), m.value().map(word))).collect();
        let mut pending = Pending { recorded: self, call: self.log.now(), asked: Some((asserts, writes)) };
        let answer = self.inner.txn(txn).await;
        let ret = self.log.now();
        match &answer {
            Ok(TxnOutcome::Applied) => pending.end(Some(ret), Answer::Applied),
            Ok(TxnOutcome::Rejected) => pending.end(Some(ret), Answer::Rejected),
            Err(error) if error.is_indeterminate() => pending.end(None, Answer::Unknown),
            Err(_) => pending.end(Some(ret), Answer::Refused),
        }
        self.note(answer)
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let call = self.log.now();
        let answer = self.inner.keys(range).await;
        let ret = self.log.now();
        let keys = self.note(answer)?;
        let action = Action::List {
            prefix: range.prefix().as_str().to_owned(),
            after: range.after().cloned(),
            limit: range.limit(),
            keys: keys.clone(),
        };
        self.push(call, Some(ret), action);
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use coord_core::{Assert, Mutation, Namespace, Prefix};
    use coord_memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn what_goes_through_is_recorded() {
        let (recorder, namespace) = (Recorder::new(), Namespace::default());
        let handle = recorder.wrap(Arc::new(MemoryStore::new().open(&namespace)), 3);
        let key = Key::new("x").unwrap();
        let create =
            Txn::new([Assert::missing(key.clone())], [Mutation::put(key.clone(), "one two")]).unwrap();
        for _ in 0..2 {
            let _ = handle.txn(&create).await.unwrap();
        }
        handle.snapshot(&KeySet::new([key]).unwrap()).await.unwrap();
        handle.keys(&KeyRange::new(Prefix::all(), 5).unwrap()).await.unwrap();
        drop(handle.txn(&create));
        let text = recorder.history().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "3 0..1 txn x@- : x=one\\x20two -> applied");
        assert_eq!(lines[1], "3 2..3 txn x@- : x=one\\x20two -> rejected");
        assert!(lines[2].starts_with("3 4..5 read x@") && lines[2].ends_with(".1=one\\x20two"), "{text}");
        assert_eq!(lines[3..], ["3 6..7 list * limit=5 -> x"], "a call that never began is no event");
    }

    #[derive(Debug)]
    struct Silent;

    #[async_trait]
    impl Backend for Silent {
        fn name(&self) -> &'static str {
            "silent"
        }
        async fn snapshot(&self, _: &KeySet) -> Result<Snapshot, BackendError> {
            std::future::pending().await
        }
        async fn txn(&self, _: &Txn) -> Result<TxnOutcome, BackendError> {
            std::future::pending().await
        }
        async fn keys(&self, _: &KeyRange) -> Result<Vec<Key>, BackendError> {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn a_dropped_transaction_is_of_unknown_outcome() {
        let recorder = Recorder::new();
        let handle = recorder.wrap(Arc::new(Silent), 0);
        let txn = Txn::default();
        tokio::select! {
            biased;
            _ = handle.txn(&txn) => unreachable!("the backend never answers"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(recorder.history().to_string(), "0 0..? txn : -> unknown\n");
    }
}
