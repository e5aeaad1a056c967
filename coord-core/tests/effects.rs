//! The side-effect store above the memory backend: the records as they are stored, and limits that the clauses of the suite do not reach.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    Action, ActionKey, ActionState, EffectAdapter, EffectError, EffectOptions, EffectStore, Finding, Inquiry,
    Lease, ListFilter, Note, Outcome, Probe, ProbeError, PurgeRequest, Reconciler, ReconcilerOptions,
    Resolution, limits,
};
use coord_core::{Backend, Bytes, Key, KeySet, ManualClock, Mutation, Timestamp, Txn, async_trait};
use coord_memory::{MemoryBackend, MemoryStore};

const TTL: Duration = Duration::from_secs(30);

struct Bench {
    clock: Arc<ManualClock>,
    store: EffectAdapter<MemoryBackend>,
}

async fn bench() -> Bench {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000).unwrap()));
    let backend = MemoryStore::with_clock(clock.clone()).open(&"effects".parse().unwrap());
    let options = EffectOptions::default().clock(clock.clone()).agent("ada".parse().unwrap());
    Bench { clock, store: EffectAdapter::open(backend, options).await.unwrap() }
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

    async fn size(&self, key: &str) -> Option<usize> {
        let key = Key::new(key).unwrap();
        let snapshot = self.store.backend().snapshot(&KeySet::new([key.clone()]).unwrap()).await.unwrap();
        snapshot.require(&key).unwrap().value().map(Bytes::len)
    }
}

/// The largest head that there can be fits its limit, and every verb that ends something still works on it.
#[tokio::test]
async fn a_head_never_outgrows_its_limit() {
    let bench = bench().await;
    let long = |n: usize| format!("{n:0200}");
    let key = long(1);
    let action = Action::new(ActionKey::new(&key).unwrap()).resource(long(2).parse().unwrap());
    let note = Note::new("n".repeat(limits::NOTE_BYTES)).unwrap();
    let allow = Resolution::AllowRetry { reason: note.clone() };
    let mut rounds = 0;
    let refused = loop {
        let store = bench.store.named(long(rounds).parse().unwrap()).unwrap();
        let lease = match store.acquire(&action, TTL).await {
            Ok(Outcome::Granted(lease)) => lease,
            Err(error) => break error,
            other => panic!("{other:?}"),
        };
        let episode = store.mark_uncertain(&action, &lease, &note).await.unwrap();
        store.begin_reconcile(&action, TTL).await.unwrap();
        store.resolve(&action, episode, &allow, &note).await.unwrap();
        store.release(&action, &lease).await.unwrap();
        for late in 0..3_u8 {
            let error = store.complete(&action, &lease, vec![late; 10].into()).await.unwrap_err();
            assert!(
                matches!(error, EffectError::AttemptJudged { state: ActionState::Uncertain }),
                "{error:?}"
            );
            let episode = store.get(&action.key).await.unwrap().unwrap().uncertain.unwrap().episode;
            store.resolve(&action, episode, &allow, &note).await.unwrap();
        }
        assert!(bench.size(&format!("act/{key}")).await.unwrap() <= limits::HEAD_BYTES);
        rounds += 1;
    };
    assert!(matches!(refused, EffectError::Invalid(_)), "{refused:?}");
    assert_eq!(rounds, limits::ATTEMPTS);
    let history = bench.store.history(&action.key).await.unwrap().unwrap();
    assert_eq!(history.evidence.len(), limits::EVIDENCE_KNOWN);
    assert_eq!(history.status.evidence, 3 * rounds as u64);
    assert_eq!(
        history.evidence.iter().filter(|evidence| evidence.result.is_some()).count(),
        limits::EVIDENCE_KEPT
    );
    assert!(history.dropped > 0);
}

/// Abandoned attempts beyond the last few are dropped, so that a key can be tried for ever.
#[tokio::test]
async fn abandoned_attempts_do_not_pile_up() {
    let bench = bench().await;
    let action = action("try/again");
    let first = bench.grant(&action).await;
    bench.store.abandon(&action, &first, &Note::default()).await.unwrap();
    for _ in 0..3 * limits::ATTEMPTS {
        let lease = bench.grant(&action).await;
        bench.store.abandon(&action, &lease, &Note::default()).await.unwrap();
    }
    let status = bench.store.get(&action.key).await.unwrap().unwrap();
    assert_eq!(status.fence, 3 * limits::ATTEMPTS as u64 + 1);
    assert!(status.attempts as usize <= limits::ABANDONED_ATTEMPTS + 1);
    // A token that is no longer remembered is one that was never given.
    let error = bench.store.complete(&action, &first, "late".into()).await.unwrap_err();
    assert!(matches!(error, EffectError::LeaseLost), "{error:?}");
}

/// What is dropped by retention is dropped whole, and what was kept about it stays.
#[tokio::test]
async fn purging_drops_payloads_and_keeps_verdicts() {
    let bench = bench().await;
    let action = action("mail");
    let lease = bench.grant(&action).await;
    bench.store.complete(&action, &lease, vec![7; 1_000].into()).await.unwrap();
    bench.store.complete(&action, &lease, "another".into()).await.unwrap();
    assert!(bench.size("out/mail").await.is_some() && bench.size("ev/mail/0").await.is_some());
    let request = PurgeRequest::older_than(Duration::from_secs(60));
    assert_eq!(bench.store.purge(&request).await.unwrap().purged, 0);
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(bench.store.purge(&request).await.unwrap().purged, 1);
    assert!(bench.size("out/mail").await.is_none() && bench.size("ev/mail/0").await.is_none());
    let history = bench.store.history(&action.key).await.unwrap().unwrap();
    assert_eq!(history.evidence[0].len, 7);
    assert_eq!(history.status.completed.unwrap().len, 1_000);
}

/// What the vendor sees is the same for every attempt, and different for every action, store and life of a key.
#[tokio::test]
async fn downstream_keys_tell_actions_apart() {
    let (bench, other) = (bench().await, bench().await);
    let action = action("charge");
    let first = bench.grant(&action).await;
    bench.store.abandon(&action, &first, &Note::default()).await.unwrap();
    let second = bench.grant(&action).await;
    assert_eq!(first.downstream_key, second.downstream_key);
    assert_ne!(first.downstream_key, other.grant(&action).await.downstream_key);
    assert_ne!(first.downstream_key, bench.grant(&self::action("charge2")).await.downstream_key);
    bench.store.complete(&action, &second, Bytes::new()).await.unwrap();
    bench.store.forget(&action.key).await.unwrap();
    let third = bench.grant(&action).await;
    assert_ne!(first.downstream_key, third.downstream_key);
    assert!(third.fence > second.fence);
}

/// One action whose records cannot be read is named, and keeps nobody else from being listed, purged or judged.
#[tokio::test]
async fn a_damaged_action_stands_in_nobodys_way() {
    let bench = bench().await;
    for name in ["a", "b", "c"] {
        let lease = bench.grant(&action(&format!("done-{name}"))).await;
        let _ = bench
            .store
            .complete(&action(&format!("done-{name}")), &lease, Bytes::from(vec![7; 9]))
            .await
            .unwrap();
        let lease = bench.grant(&action(&format!("open-{name}"))).await;
        let note = Note::new("the line was cut").unwrap();
        bench.store.mark_uncertain(&action(&format!("open-{name}")), &lease, &note).await.unwrap();
        bench.store.release(&action(&format!("open-{name}")), &lease).await.unwrap();
    }
    for (record, damaged) in [("act/done-b", "done-b"), ("act/open-b", "open-b")] {
        let put = Mutation::put(Key::new(record).unwrap(), "{ no record }");
        let _ = bench.store.backend().txn(&Txn::new([], [put]).unwrap()).await.unwrap();
        let shown = bench.store.get(&damaged.parse().unwrap()).await;
        assert!(matches!(shown, Err(EffectError::Malformed { .. })), "{shown:?}");
    }
    let names = |keys: Vec<ActionKey>| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    let page = bench.store.list(&ListFilter::all()).await.unwrap();
    assert_eq!(names(page.damaged), ["done-b", "open-b"]);
    let listed = page.actions.into_iter().map(|status| status.action.key).collect();
    assert_eq!(names(listed), ["done-a", "done-c", "open-a", "open-c"]);
    bench.clock.advance(TTL * 100);
    let purged = bench.store.purge(&PurgeRequest::older_than(TTL)).await.unwrap();
    assert_eq!((purged.examined, purged.purged, names(purged.damaged)), (3, 2, vec!["done-b".to_owned()]));
    struct NotDone;
    #[async_trait]
    impl Probe for NotDone {
        async fn look(&self, _: &Inquiry) -> Result<Finding, ProbeError> {
            Ok(Finding::NotApplied { evidence: Note::new("it is not there").unwrap() })
        }
    }
    let options = ReconcilerOptions::default().clock(bench.clock.clone());
    let reconciler = Reconciler::new(Arc::new(bench.store), Arc::new(NotDone), options).unwrap();
    let report = reconciler.run_once().await.unwrap();
    assert_eq!((report.not_applied, report.damaged), (2, 1), "{report:?}");
}
