//! The side-effect store where it is used unkindly: what comes after retention, thousands of actions, replies that are lost while rivals go on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    Action, ActionKey, ActionState, EffectAdapter, EffectError, EffectOptions, EffectStore, Lease,
    ListFilter, Note, Outcome, PurgeRequest, Replay, Resolution,
};
use coord_core::layer::{Cell, Fault, Faults, StoreClock, When};
use coord_core::{Backend, Bytes, Key, KeyRange, KeySet, ManualClock, Prefix, Timestamp};
use coord_memory::{MemoryBackend, MemoryStore};

const TTL: Duration = Duration::from_secs(30);

type Store = EffectAdapter<Fault<StoreClock<MemoryBackend>>>;

struct Bench {
    clock: Arc<ManualClock>,
    faults: Faults,
    memory: MemoryBackend,
    store: Store,
}

async fn bench() -> Bench {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000).unwrap()));
    let memory = MemoryStore::new().open(&"attack".parse().unwrap());
    let backend = Fault::new(StoreClock::new(memory.clone(), clock.clone()));
    let faults = backend.faults();
    let options = EffectOptions::default().agent("ada".parse().unwrap());
    let store = EffectAdapter::open(backend, options).await.unwrap();
    Bench { clock, faults, memory, store }
}

fn action(key: &str) -> Action {
    Action::new(ActionKey::new(key).unwrap())
}

impl Bench {
    async fn grant(&self, action: &Action) -> Lease {
        match self.store.acquire(action, TTL).await.unwrap() {
            Outcome::Granted(lease) => lease,
            other => panic!("not granted: {other:?}"),
        }
    }

    async fn is_there(&self, key: &str) -> bool {
        let key = Key::new(key).unwrap();
        let snapshot = self.memory.snapshot(&KeySet::new([key.clone()]).unwrap()).await.unwrap();
        snapshot.require(&key).unwrap().is_present()
    }

    /// The keys of payloads and of the index: everything that retention and judging have to take away again.
    async fn left(&self) -> usize {
        let mut left = 0;
        for prefix in ["out/", "ev/", "open/"] {
            let range = KeyRange::new(Prefix::new(prefix).unwrap(), 10_000).unwrap();
            left += self.memory.keys(&range).await.unwrap().len();
        }
        left
    }
}

/// A result that comes after the action was purged is kept as long as the first one was, and then dropped too.
#[tokio::test]
async fn evidence_that_comes_after_a_purge_is_purged_as_well() {
    let bench = bench().await;
    let action = action("mail");
    let lease = bench.grant(&action).await;
    bench.store.complete(&action, &lease, "first".into()).await.unwrap();
    let request = PurgeRequest::older_than(Duration::from_secs(60));
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(bench.store.purge(&request).await.unwrap().purged, 1);
    let purged_at = bench.clock_now();
    bench.clock.advance(Duration::from_secs(10));
    let late = bench.store.complete(&action, &lease, "another".into()).await.unwrap();
    assert_eq!(late.replay, Replay::Purged { at: purged_at });
    assert!(late.maybe_twice && bench.is_there("ev/mail/0").await);
    assert_eq!(bench.store.purge(&request).await.unwrap().purged, 0);
    let history = bench.store.history(&action.key).await.unwrap().unwrap();
    assert_eq!(history.evidence[0].result.as_deref(), Some(&b"another"[..]));
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(bench.store.purge(&request).await.unwrap().purged, 1);
    assert_eq!(bench.left().await, 0);
    let history = bench.store.history(&action.key).await.unwrap().unwrap();
    assert_eq!((history.evidence[0].len, history.evidence[0].result.clone()), (7, None));
    let Outcome::Completed(completed) = bench.store.acquire(&action, TTL).await.unwrap() else { panic!() };
    assert_eq!(completed.replay, Replay::Purged { at: purged_at });
}

impl Bench {
    fn clock_now(&self) -> Timestamp {
        use coord_core::Clock as _;
        self.clock.now()
    }
}

/// Pages go over more actions than one snapshot could hold, each of them once, and so do batches of retention.
#[tokio::test]
async fn thousands_of_actions_are_listed_and_purged_a_page_at_a_time() {
    let bench = bench().await;
    const ACTIONS: usize = 1_250;
    for n in 0..ACTIONS {
        let action = action(&format!("k{n:04}"));
        let lease = bench.grant(&action).await;
        match n % 5 {
            0 => {}
            1 => drop(bench.store.mark_uncertain(&action, &lease, &Note::default()).await.unwrap()),
            2 => bench.store.abandon(&action, &lease, &Note::default()).await.unwrap(),
            _ => drop(bench.store.complete(&action, &lease, vec![0; 1_000].into()).await.unwrap()),
        }
    }
    bench.clock.advance(TTL);
    let cases = [
        (ListFilter::all(), ACTIONS),
        (ListFilter::default(), 2 * ACTIONS / 5),
        (ListFilter::overdue(Duration::ZERO), 2 * ACTIONS / 5),
        (ListFilter::default().states([ActionState::Lapsed]), ACTIONS / 5),
        (ListFilter::default().states([ActionState::Idle]), ACTIONS / 5),
    ];
    for (filter, expected) in cases {
        for limit in [1_000, 333] {
            let mut filter = filter.clone().limit(limit);
            let mut keys = Vec::new();
            loop {
                let page = bench.store.list(&filter).await.unwrap();
                keys.extend(page.actions.into_iter().map(|status| status.action.key));
                let Some(next) = page.next else { break };
                filter = filter.after(Some(next));
            }
            assert!(keys.is_sorted() && keys.len() == expected, "{} of {filter:?}", keys.len());
        }
    }
    let mut request = PurgeRequest::older_than(TTL).limit(1_000);
    let mut purged = 0;
    loop {
        let report = bench.store.purge(&request).await.unwrap();
        purged += report.purged;
        let Some(next) = report.next else { break };
        request = request.after(Some(next));
    }
    assert_eq!(purged, 2 * ACTIONS / 5);
    assert_eq!(bench.left().await, 2 * ACTIONS / 5);
}

/// A completion lands long after its caller was told that nobody knows, and meanwhile the key went on: whatever happens, the truth is
/// readable afterwards and no second execution is granted without a ruling.
#[tokio::test]
async fn a_request_that_lands_late_loses_against_what_was_decided_meanwhile() {
    for rival in ["ruled", "forgotten", "purged", "completed"] {
        let bench = bench().await;
        let action = action("charge");
        let lease = bench.grant(&action).await;
        bench.faults.on(When::txn().nth(1), Cell::late().then_gone());
        let lost = bench.store.complete(&action, &lease, "receipt".into()).await;
        assert!(matches!(lost, Err(EffectError::OutcomeUnknown { .. })), "{lost:?}");
        bench.faults.heal();
        bench.faults.clear();
        bench.clock.advance(TTL);
        let held = bench.faults.take_held().unwrap();
        let Outcome::Uncertain(uncertain) = bench.store.acquire(&action, TTL).await.unwrap() else {
            panic!()
        };
        let rule = |resolution: Resolution| {
            let (store, action) = (bench.store.clone(), action.clone());
            async move { store.resolve(&action, uncertain.episode, &resolution, &Note::default()).await.unwrap() }
        };
        match rival {
            "ruled" => assert!(rule(Resolution::NotApplied).await.yours),
            "forgotten" => {
                rule(Resolution::NotApplied).await;
                bench.store.forget(&action.key).await.unwrap();
            }
            "purged" => {
                rule(Resolution::Applied("by hand".into())).await;
                bench.store.purge(&PurgeRequest::older_than(Duration::ZERO)).await.unwrap();
            }
            _ => drop(bench.store.complete(&action, &lease, "receipt".into()).await.unwrap()),
        }
        let before = bench.store.history(&action.key).await.unwrap();
        assert_eq!(held.release().await.unwrap(), coord_core::TxnOutcome::Rejected, "{rival}");
        assert_eq!(bench.store.history(&action.key).await.unwrap(), before, "{rival}");
        // The attempt tells again what it knows.
        let again = bench.store.complete(&action, &lease, "receipt".into()).await;
        let state = bench.store.get(&action.key).await.unwrap().map(|status| status.state);
        match rival {
            "ruled" => {
                assert!(matches!(again, Err(EffectError::AttemptJudged { .. })), "{again:?}");
                assert_eq!(state, Some(ActionState::Uncertain));
            }
            "forgotten" => {
                assert!(matches!(again, Err(EffectError::NeverAcquired { .. })), "{again:?}");
                assert_eq!(state, None);
            }
            "purged" => assert!(again.unwrap().maybe_twice),
            _ => assert_eq!(again.unwrap().result(), Some(&Bytes::from_static(b"receipt"))),
        }
    }
}
