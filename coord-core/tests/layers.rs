//! The layers over the memory backend.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use coord_core::layer::{Cell, Counts, Fault, Faults, Meter, Observe, When};
use coord_core::{
    Assert, Backend, BackendError, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation, Namespace, Operation,
    Prefix, Snapshot, Txn, TxnOutcome, Version,
};
use coord_memory::{MemoryBackend, MemoryStore};

fn memory() -> MemoryBackend {
    MemoryStore::new().open(&Namespace::new("layers").unwrap())
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn create(text: &str) -> Txn {
    Txn::new([Assert::missing(key(text))], [Mutation::put(key(text), "1234")]).unwrap()
}

fn write(text: &str) -> Txn {
    Txn::new([], [Mutation::put(key(text), "1234")]).unwrap()
}

async fn entry(backend: &impl Backend, text: &str) -> Entry {
    let keys = KeySet::new([key(text)]).unwrap();
    backend.snapshot(&keys).await.unwrap().require(&key(text)).unwrap().clone()
}

async fn version(backend: &impl Backend, text: &str) -> Version {
    entry(backend, text).await.version()
}

fn all() -> KeyRange {
    KeyRange::new(Prefix::all(), 10).unwrap()
}

#[tokio::test]
async fn observe_counts_every_primitive() {
    let backend = Observe::new(memory());
    assert_eq!(backend.name(), "memory");
    assert!(backend.txn(&create("ab")).await.unwrap().is_applied());
    assert!(!backend.txn(&create("ab")).await.unwrap().is_applied());
    let request = KeySet::new([key("ab"), key("ab"), key("none")]).unwrap();
    backend.snapshot(&request).await.unwrap();
    let range = KeyRange::new(Prefix::new("a").unwrap(), 10).unwrap().start_after(key("aa"));
    backend.keys(&range).await.unwrap();
    let counts = backend.counts();
    let txn = counts.txn;
    assert_eq!((txn.calls, txn.answered, txn.applied, txn.rejected), (2, 2, 1, 1));
    // Twice: an assert and a mutation, each of the key "ab", and four bytes of value.
    assert_eq!((txn.keys_sent, txn.bytes_sent, txn.bytes_answered), (4, 16, 0));
    let snapshot = counts.snapshot;
    assert_eq!((snapshot.keys_sent, snapshot.bytes_sent), (3, 8));
    assert_eq!((snapshot.keys_answered, snapshot.bytes_answered), (1, 6));
    let keys = counts.keys;
    assert_eq!((keys.keys_sent, keys.bytes_sent, keys.keys_answered, keys.bytes_answered), (0, 3, 1, 2));
    assert_eq!(counts.total().calls, 4);
    assert_eq!(counts.total().bytes(), 16 + 8 + 6 + 3 + 2);
    assert_eq!(counts.since(counts), Counts::default());
    backend.reset();
    assert_eq!(backend.counts(), Counts::default());
}

#[tokio::test]
async fn observe_counts_errors_by_kind_and_drops_as_unanswered() {
    let fault = Fault::new(memory());
    let faults = fault.faults();
    let backend = Observe::with_meter(fault, Meter::default());
    faults.on(When::txn(), Cell::refused());
    faults.on(When::txn().nth(2), Cell::request_lost());
    faults.on(When::txn().nth(3), Cell::hangs());
    faults.on(When::keys(), Cell::refused());
    backend.txn(&write("a")).await.unwrap_err();
    backend.txn(&write("a")).await.unwrap_err();
    backend.keys(&all()).await.unwrap_err();
    {
        let txn = write("a");
        let call = backend.txn(&txn);
        tokio::select! {
            biased;
            _ = call => panic!("a call that hangs has ended"),
            () = faults.until_hits(4) => {}
        }
    }
    let counts = backend.meter().counts();
    assert_eq!((counts.txn.calls, counts.txn.answered, counts.txn.errors()), (3, 0, 2));
    assert_eq!((counts.txn.unavailable, counts.txn.indeterminate), (1, 1));
    assert_eq!((counts.keys.calls, counts.keys.unavailable), (1, 1));
    // What hung was applied.
    assert_eq!(version(&backend, "a").await.count(), 1);
}

#[tokio::test]
async fn without_a_plan_everything_is_forwarded() {
    let backend = Fault::new(memory());
    assert!(backend.txn(&create("a")).await.unwrap().is_applied());
    assert_eq!(version(&backend, "a").await.count(), 1);
    assert_eq!(backend.keys(&all()).await.unwrap(), [key("a")]);
    assert_eq!(backend.name(), "memory");
    assert!(backend.faults().hits().is_empty());
    assert_eq!(backend.faults().calls(), 3);
}

/// What each cell does to a transaction: what the caller is told, whether it has happened then, and whether it happens later.
#[tokio::test]
async fn every_cell_does_what_its_table_says() {
    for (cell, told, now, later) in [
        (Cell::pass(), Ok(TxnOutcome::Applied), true, None),
        (Cell::refused(), Err(ErrorKind::Unavailable), false, None),
        (Cell::request_lost(), Err(ErrorKind::Indeterminate), false, None),
        (Cell::reply_lost(), Err(ErrorKind::Indeterminate), true, None),
        (Cell::late(), Err(ErrorKind::Indeterminate), false, Some(TxnOutcome::Applied)),
        (Cell::twice(), Ok(TxnOutcome::Applied), true, Some(TxnOutcome::Rejected)),
        (Cell::twice_reply_lost(), Err(ErrorKind::Indeterminate), true, Some(TxnOutcome::Rejected)),
    ] {
        let backend = Fault::new(memory());
        let faults = backend.faults();
        let rule = faults.on(When::txn(), cell.clone());
        assert_eq!(backend.txn(&create("a")).await.map_err(|error| error.kind()), told, "{cell}");
        assert_eq!(faults.hits_of(rule), 1, "{cell}");
        assert_eq!(entry(&backend, "a").await.is_present(), now, "{cell}");
        let held = faults.take_held();
        assert_eq!(held.is_some(), later.is_some(), "{cell}");
        if let Some(held) = held {
            assert_eq!(held.txn(), &create("a"));
            assert_eq!(held.release().await.unwrap(), later.unwrap(), "{cell}");
        }
        // The second call is not touched.
        assert!(backend.txn(&write("b")).await.unwrap().is_applied(), "{cell}");
        assert_eq!(faults.hits().len(), 1);
    }
}

#[tokio::test]
async fn a_held_transaction_lands_as_a_try_of_its_own_or_never() {
    let backend = Fault::new(memory());
    let faults = backend.faults();
    faults.on(When::txn().always(), Cell::late());
    backend.txn(&create("a")).await.unwrap_err();
    backend.txn(&create("b")).await.unwrap_err();
    // The caller's second try gets through, is deleted, and then the first one lands.
    let inner = backend.inner();
    assert!(inner.txn(&create("a")).await.unwrap().is_applied());
    let second = version(inner, "a").await;
    let delete = Txn::new([], [Mutation::delete(key("a"))]).unwrap();
    assert!(inner.txn(&delete).await.unwrap().is_applied());
    assert_eq!(faults.take_held().unwrap().release().await.unwrap(), TxnOutcome::Applied);
    assert_ne!(version(inner, "a").await, second);
    drop(faults.take_held().unwrap());
    assert_eq!(faults.held(), 0);
    assert!(!entry(inner, "b").await.is_present());
}

#[tokio::test]
async fn nothing_is_held_of_what_the_caller_was_told_did_not_happen() {
    let backend = Fault::new(memory());
    let faults = backend.faults();
    assert!(backend.txn(&write("a")).await.unwrap().is_applied());
    faults.on(When::txn().always(), Cell::twice());
    assert_eq!(backend.txn(&create("a")).await.unwrap(), TxnOutcome::Rejected);
    assert_eq!(faults.held(), 0);
    // With the reply lost, the caller knows that it may happen yet.
    faults.clear();
    faults.on(When::txn().always(), Cell::twice_reply_lost());
    assert!(backend.txn(&create("a")).await.unwrap_err().is_indeterminate());
    assert_eq!(faults.held(), 1);
    // Below, the store is gone: the true answer is that it did not happen.
    let outer = Fault::new(backend.clone());
    outer.faults().on(When::txn(), Cell::twice_reply_lost());
    faults.gone();
    let error = outer.txn(&write("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(outer.faults().held(), 0);
}

#[tokio::test]
async fn reads_are_unavailable_whatever_the_cell() {
    for cell in [Cell::refused(), Cell::request_lost(), Cell::reply_lost(), Cell::late()] {
        let backend = Fault::new(memory());
        let faults = backend.faults();
        faults.on(When::snapshot(), cell.clone());
        faults.on(When::keys(), cell.clone());
        let snapshot = backend.snapshot(&KeySet::empty()).await.unwrap_err();
        assert_eq!((snapshot.kind(), snapshot.operation()), (ErrorKind::Unavailable, Operation::Snapshot));
        let keys = backend.keys(&all()).await.unwrap_err();
        assert_eq!((keys.kind(), keys.operation()), (ErrorKind::Unavailable, Operation::Keys));
        assert_eq!((faults.hits().len(), faults.held()), (2, 0));
    }
}

#[tokio::test]
async fn rules_count_the_calls_that_match_them_from_when_they_were_added() {
    let backend = Fault::new(memory());
    let faults = backend.faults();
    assert!(backend.txn(&write("a")).await.unwrap().is_applied());
    let second_txn = faults.on(When::txn().nth(2), Cell::refused());
    let of_b = faults.on(When::txn_where(|txn| txn.mutations()[0].key() == &key("b")), Cell::request_lost());
    let fourth = faults.on(When::any().nth(4), Cell::refused());
    backend.snapshot(&KeySet::empty()).await.unwrap();
    assert!(backend.txn(&write("a")).await.unwrap().is_applied());
    // Both rules are due; the one that was added first is followed.
    assert_eq!(backend.txn(&write("b")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(backend.keys(&all()).await.is_err());
    assert!(backend.txn(&write("b")).await.unwrap().is_applied());
    assert_eq!((faults.hits_of(second_txn), faults.hits_of(of_b), faults.hits_of(fourth)), (1, 0, 1));
    let hits = faults.hits();
    assert_eq!((hits[0].call, hits[0].operation, hits[0].cell), (4, Operation::Txn, "refused"));
    assert_eq!((hits[1].call, hits[1].operation), (5, Operation::Keys));

    let from = faults.on(When::txn().from(2), Cell::refused());
    for n in 1..=4 {
        assert_eq!(backend.txn(&write("c")).await.is_err(), n >= 2);
    }
    assert_eq!(faults.hits_of(from), 3);
    faults.clear();
    assert!(backend.txn(&write("c")).await.unwrap().is_applied());
    assert_ne!(faults.on(When::any(), Cell::refused()), from);
}

#[tokio::test]
async fn a_rivals_step_runs_between_the_fault_and_the_next_call() {
    let backend = Fault::new(memory());
    let faults = backend.faults();
    let rival = backend.inner().clone();
    let cell = Cell::late().then(move |faults: Faults| {
        let rival = rival.clone();
        async move {
            assert!(rival.txn(&create("a")).await.unwrap().is_applied());
            let answers = faults.release_held().await;
            assert!(matches!(answers[..], [Ok(TxnOutcome::Rejected)]));
        }
    });
    faults.on(When::txn(), cell);
    assert!(backend.txn(&create("a")).await.unwrap_err().is_indeterminate());
    assert_eq!(version(&backend, "a").await.count(), 1);
}

#[tokio::test]
async fn a_step_before_runs_before_the_call_reaches_the_store() {
    let backend = Fault::new(memory());
    let rival = backend.inner().clone();
    backend.faults().on(
        When::txn(),
        Cell::pass().before(move |_| {
            let rival = rival.clone();
            async move {
                assert!(rival.txn(&create("a")).await.unwrap().is_applied());
            }
        }),
    );
    assert_eq!(backend.txn(&create("a")).await.unwrap(), TxnOutcome::Rejected);
}

#[tokio::test]
async fn a_store_that_is_gone_comes_back_when_healed() {
    let backend = Fault::new(memory());
    let faults = backend.faults();
    faults.on(When::txn(), Cell::reply_lost().then_gone());
    assert!(backend.txn(&create("a")).await.unwrap_err().is_indeterminate());
    assert_eq!(backend.txn(&create("b")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(backend.snapshot(&KeySet::empty()).await.is_err());
    assert!(backend.keys(&all()).await.is_err());
    assert_eq!(faults.refused_while_gone(), 3);
    faults.heal();
    assert_eq!(backend.keys(&all()).await.unwrap(), [key("a")]);
}

#[tokio::test]
async fn paused_calls_wait_until_they_are_resumed() {
    let backend = Fault::new(memory());
    let faults = backend.faults();
    faults.pause();
    let calls: Vec<_> = (0..3)
        .map(|n| {
            let backend = backend.clone();
            tokio::spawn(async move { backend.txn(&create(&n.to_string())).await })
        })
        .collect();
    faults.until_waiting(3).await;
    assert!(backend.inner().keys(&all()).await.unwrap().is_empty());
    assert_eq!(faults.calls(), 0);
    // A caller that gives up is no longer waited for, and its call never happens.
    calls[2].abort();
    faults.resume();
    let mut applied = 0;
    for call in calls {
        match call.await {
            Ok(outcome) => applied += usize::from(outcome.unwrap().is_applied()),
            Err(error) => assert!(error.is_cancelled()),
        }
    }
    assert_eq!(applied, 2);
    assert_eq!(backend.keys(&all()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_seeded_plan_is_a_function_of_its_seed() {
    async fn run(seed: u64) -> Vec<(u64, &'static str)> {
        let backend = Fault::new(memory());
        backend.faults().seeded(seed, 3, Cell::all());
        for _ in 0..200 {
            // Whatever happens is within the plan; the hits are compared.
            drop(backend.txn(&write("a")).await);
        }
        backend.faults().hits().into_iter().map(|hit| (hit.call, hit.cell)).collect()
    }
    let first = run(1).await;
    assert_eq!(first, run(1).await);
    assert_ne!(first, run(2).await);
    assert!((40..100).contains(&first.len()), "{} of 200 calls went wrong", first.len());
    for cell in Cell::all() {
        assert!(first.iter().any(|(_, name)| *name == cell.name()), "{cell} was never chosen");
    }
}

/// A plan is shared by handles, and a backend behind `Arc<dyn Backend>` can be wrapped.
#[tokio::test]
async fn handles_share_a_plan() {
    let faults = Faults::new();
    let inner: Arc<dyn Backend> = Arc::new(memory());
    let a = Fault::with_faults(inner.clone(), faults.clone());
    let b = Fault::with_faults(inner, faults.clone());
    let steps = Arc::new(AtomicUsize::new(0));
    faults.on(
        When::any().nth(2),
        Cell::pass().then({
            let steps = steps.clone();
            move |_| {
                let steps = steps.clone();
                async move {
                    steps.fetch_add(1, Ordering::SeqCst);
                }
            }
        }),
    );
    assert!(a.txn(&write("a")).await.unwrap().is_applied());
    assert_eq!(steps.load(Ordering::SeqCst), 0);
    assert!(b.txn(&write("a")).await.unwrap().is_applied());
    assert_eq!(steps.load(Ordering::SeqCst), 1);
}

/// A backend whose calls are answered with a fixed error: the layers pass it on as it is.
#[derive(Debug)]
struct Broken;

#[coord_core::async_trait]
impl Backend for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }
    async fn snapshot(&self, _: &KeySet) -> Result<Snapshot, BackendError> {
        Err(BackendError::new(ErrorKind::Corrupt, "broken", Operation::Snapshot, "always"))
    }
    async fn txn(&self, _: &Txn) -> Result<TxnOutcome, BackendError> {
        Err(BackendError::new(ErrorKind::Config, "broken", Operation::Txn, "always"))
    }
    async fn keys(&self, _: &KeyRange) -> Result<Vec<Key>, BackendError> {
        Err(BackendError::new(ErrorKind::Invalid, "broken", Operation::Keys, "always"))
    }
}

#[tokio::test]
async fn the_stores_own_errors_pass_through() {
    let backend = Observe::new(Fault::new(Broken));
    assert_eq!(backend.snapshot(&KeySet::empty()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(backend.txn(&write("a")).await.unwrap_err().kind(), ErrorKind::Config);
    assert_eq!(backend.keys(&all()).await.unwrap_err().kind(), ErrorKind::Invalid);
    let counts = backend.counts();
    assert_eq!((counts.snapshot.corrupt, counts.txn.config, counts.keys.invalid), (1, 1, 1));
    // A lost reply of what failed for certain changes nothing about it.
    backend.inner().faults().on(When::txn(), Cell::reply_lost());
    assert_eq!(backend.txn(&write("a")).await.unwrap_err().kind(), ErrorKind::Config);
}
