//! The guard and the reconciler on the memory backend: one test an outcome. What they promise in detail is in the contract suite.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use coord_core::effects::{
    Action, ActionKey, ActionState, Doubt, EffectAdapter, EffectOptions, EffectStore, Failure, Finding,
    Guard, Inquiry, OnDrop, Outcome, Place, Probe, ProbeError, Reconciler, ReconcilerOptions, RunOptions,
    RunOutcome, Wait,
};
use coord_core::{Bytes, ManualClock, Namespace, Timestamp, async_trait, layer::StoreClock};
use coord_memory::MemoryStore;
use tokio::sync::oneshot;

type Effects = Arc<dyn EffectStore>;

async fn effects() -> (Effects, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000_000_000).unwrap()));
    let memory = MemoryStore::new().open(&Namespace::new("guard").unwrap());
    let backend = StoreClock::new(memory, clock.clone());
    (Arc::new(EffectAdapter::open(backend, EffectOptions::default()).await.unwrap()), clock)
}

fn options(clock: &Arc<ManualClock>) -> RunOptions {
    RunOptions::default().clock(clock.clone())
}

fn action(key: &str) -> Action {
    Action::new(ActionKey::new(key).unwrap())
}

async fn state(effects: &Effects, key: &str) -> ActionState {
    effects.get(&ActionKey::new(key).unwrap()).await.unwrap().unwrap().state
}

#[tokio::test]
async fn a_value_is_kept_and_replayed() {
    let (effects, clock) = effects().await;
    let first = effects
        .run(action("a"), options(&clock), |given| async move {
            assert_eq!((given.fence(), given.attempt().await.unwrap()), (1, 1));
            assert!(!given.is_lost() && !given.downstream_key().is_empty());
            Ok::<_, Failure<String>>("receipt")
        })
        .await
        .unwrap();
    assert!(matches!(&first, RunOutcome::Executed { value, .. } if value == "receipt"), "{first:?}");
    let again = effects
        .run(action("a"), options(&clock), |_| async { Err::<&str, _>(Failure::NotApplied("called again")) })
        .await
        .unwrap();
    assert!(matches!(&again, RunOutcome::Replayed(_)), "{again:?}");
    assert_eq!(again.result(), first.result());
}

#[tokio::test]
async fn what_the_closure_says_decides() {
    let (effects, clock) = effects().await;
    let failed = effects
        .run(action("no"), options(&clock), |_| async { Err::<&str, _>(Failure::NotApplied("declined")) })
        .await
        .unwrap();
    assert!(matches!(failed, RunOutcome::Failed { error: "declined", withdrawn: Ok(()) }), "{failed:?}");
    assert_eq!(state(&effects, "no").await, ActionState::Idle);

    let unknown = effects
        .run(action("maybe"), options(&clock), |_| async { Err::<&str, _>("no answer".into()) })
        .await
        .unwrap();
    let doubt = Doubt::Error("no answer");
    assert!(
        matches!(&unknown, RunOutcome::Uncertain { episode: Ok(_), doubt: seen } if *seen == doubt),
        "{unknown:?}"
    );
    let panicked = effects
        .run(action("panic"), options(&clock), |_| async {
            assert!(state_of_nothing(), "told to");
            Ok::<_, Failure<String>>("")
        })
        .await
        .unwrap();
    assert!(
        matches!(&panicked, RunOutcome::Uncertain { episode: Ok(_), doubt: Doubt::Panicked(text) } if text == "told to"),
        "{panicked:?}"
    );
    for key in ["maybe", "panic"] {
        assert_eq!(state(&effects, key).await, ActionState::Uncertain, "{key}");
        let next = effects
            .run(action(key), options(&clock), |_| async { Ok::<_, Failure<String>>("never") })
            .await
            .unwrap();
        assert!(matches!(next, RunOutcome::Uncertain { doubt: Doubt::Earlier(_), .. }), "{next:?}");
    }
}

fn state_of_nothing() -> bool {
    false
}

#[tokio::test]
async fn a_nested_run_of_the_same_key_does_not_wait_for_itself() {
    let (effects, clock) = effects().await;
    let (inner, waiting) = (effects.clone(), options(&clock).wait(Wait::ForTurn(Duration::from_secs(3_600))));
    let outer = effects
        .run(action("nest"), options(&clock), move |_| async move {
            let nested = inner
                .run(action("nest"), waiting, |_| async { Ok::<_, Failure<String>>("twice") })
                .await
                .unwrap();
            assert!(matches!(nested, RunOutcome::InFlight(_)), "{nested:?}");
            Ok::<_, Failure<String>>("once")
        })
        .await
        .unwrap();
    assert_eq!(outer.result().unwrap(), "once");
}

/// On a runtime with one thread, which is all that the renewals and the store's own tasks have.
#[tokio::test]
async fn a_closure_that_blocks_its_thread_keeps_its_lease() {
    let (effects, clock) = effects().await;
    let (begin, began) = oneshot::channel();
    let (go_on, word) = mpsc::channel();
    let run = tokio::spawn(effects.clone().run(action("block"), options(&clock), move |given| async move {
        let _ = begin.send(given);
        // Blocks the thread.
        word.recv().map_err(|error| Failure::Unknown(error.to_string()))
    }));
    let given = began.await.unwrap();
    for _ in 0..6 {
        clock.advance(Duration::from_secs(10));
        // Renewed: 27 s from when it was sent.
        while given.remaining() < Duration::from_secs(27) {
            assert!(!given.is_lost());
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(state(&effects, "block").await, ActionState::InFlight);
    go_on.send("done").unwrap();
    assert_eq!(run.await.unwrap().unwrap().result().unwrap(), "done");
}

#[tokio::test]
async fn a_run_that_is_dropped_goes_on_or_is_aborted() {
    let (effects, clock) = effects().await;
    for (key, on_drop, place, ends) in [
        ("detached", OnDrop::Detach, Place::Thread, ActionState::Completed),
        ("aborted", OnDrop::Abort, Place::Thread, ActionState::Uncertain),
        ("detached inside", OnDrop::Detach, Place::Runtime, ActionState::Completed),
        ("aborted inside", OnDrop::Abort, Place::Runtime, ActionState::Uncertain),
    ] {
        let (begin, began) = oneshot::channel();
        let (go_on, word) = oneshot::channel();
        let options = options(&clock).on_drop(on_drop).place(place);
        let run = tokio::spawn(effects.clone().run(action(key), options, move |_| async move {
            let _ = begin.send(());
            word.await.map_err(|error| Failure::Unknown(error.to_string()))
        }));
        began.await.unwrap();
        run.abort();
        assert!(run.await.is_err());
        if ends == ActionState::Completed {
            go_on.send("done").unwrap();
        }
        while state(&effects, key).await != ends {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn without_a_runtime_or_with_senseless_options_nothing_is_acquired() {
    let (effects, clock) = effects().await;
    for senseless in [
        options(&clock).ttl(Duration::ZERO),
        options(&clock).margin(Duration::from_secs(20)),
        options(&clock).margin(Duration::from_secs(31)),
    ] {
        let ran = effects.run(action("x"), senseless, |_| async { Ok::<_, Failure<String>>("") }).await;
        assert!(ran.is_err());
    }
    assert_eq!(effects.get(&ActionKey::new("x").unwrap()).await.unwrap(), None);
}

struct Says(Finding);

#[async_trait]
impl Probe for Says {
    async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError> {
        assert_eq!((inquiry.fence, inquiry.sealing_fence()), (1, 2));
        Ok(self.0.clone())
    }
}

#[tokio::test]
async fn a_reconciler_rules_what_the_probe_found_and_not_before_the_delay() {
    let (effects, clock) = effects().await;
    let ttl = Duration::from_secs(30);
    for (key, finding) in
        [("done", Finding::applied("receipt", "in the ledger")), ("not", Finding::not_applied("not there"))]
    {
        let Outcome::Granted(_) = effects.acquire(&action(key), ttl).await.unwrap() else { panic!("held") };
        // 30 s of the lease, and a minute.
        for (wait, listed) in [(89, 0), (1, 1)] {
            clock.advance(Duration::from_secs(wait));
            let options = ReconcilerOptions::default().clock(clock.clone());
            let reconciler =
                Reconciler::new(effects.clone(), Arc::new(Says(finding.clone())), options).unwrap();
            let report = reconciler.run_once().await.unwrap();
            assert_eq!((report.listed, report.applied + report.not_applied), (listed, listed), "{key}");
        }
    }
    assert_eq!(state(&effects, "not").await, ActionState::Idle);
    match effects.acquire(&action("done"), ttl).await.unwrap() {
        Outcome::Completed(completed) => {
            assert_eq!(completed.result(), Some(&Bytes::from_static(b"receipt")));
        }
        other => panic!("{other:?}"),
    }
}
