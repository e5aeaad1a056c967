//! Charges cards through a service that is as bad as the world: it answers slowly, twice, not at all, or does late what it never answered. Every order
//! is charged exactly once, as the service's own ledger shows at the end.
//!
//! `cargo run -p coord-core --example charge_card`

#![allow(clippy::print_stdout, reason = "it tells what happens")]

mod service;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use coord_core::effects::{
    Action, ActionKey, EffectAdapter, EffectOptions, EffectStore, Failure, Finding, Fingerprint, Guard,
    Inquiry, Probe, ProbeError, Reconciler, ReconcilerOptions, RunContext, RunOptions, RunOutcome, Wait,
};
use coord_core::{Clock, Namespace, SystemClock, async_trait};
use coord_memory::MemoryStore;
use service::{Mood, Reply, Service};

type Ran = Result<RunOutcome<String>, Box<dyn Error + Send + Sync>>;

/// How long a lease lasts. It is renewed as long as its process lives, so it may be short.
const TTL: Duration = Duration::from_secs(3);
/// How long a client waits for the service.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whoever has the order wants it charged: a web server, its retry, a job that cleans up.
async fn charge(effects: Arc<dyn EffectStore>, service: Service, order: &'static str, cents: u32) -> Ran {
    // The same order with another amount is refused: it would be another action under the same name.
    let action = Action::new(ActionKey::new(format!("charge/{order}"))?)
        .fingerprint(Fingerprint::of(&(order, cents))?);
    let options = RunOptions::default().ttl(TTL).wait(Wait::ForOutcome(Duration::from_secs(10)));
    let ran = effects.run(action, options, move |lease| send(service, lease, cents)).await?;
    Ok(ran)
}

async fn send(service: Service, lease: RunContext, cents: u32) -> Result<String, Failure<String>> {
    let clock = SystemClock::new();
    let answer = tokio::select! {
        answer = service.charge(lease.downstream_key(), lease.fence(), cents) => answer,
        () = clock.sleep(PATIENCE) => return Err(Failure::Unknown("no answer in time".into())),
        why = lease.lost() => return Err(Failure::Unknown(format!("the lease is lost: {why:?}"))),
    };
    match answer {
        Ok(Reply::Charged(receipt)) => Ok(receipt),
        Ok(Reply::Refused(why)) => Err(Failure::NotApplied(why)),
        // Without a connection nothing was sent.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            Err(Failure::NotApplied(error.to_string()))
        }
        // Whatever else went wrong, the card may have been charged.
        Err(error) => Err(Failure::Unknown(error.to_string())),
    }
}

/// Looks into the service's books.
struct Books(Service);

#[async_trait]
impl Probe for Books {
    async fn seal(&self, inquiry: &Inquiry) -> Result<(), ProbeError> {
        Ok(self.0.seal(&inquiry.downstream_key, inquiry.sealing_fence()).await?)
    }

    async fn look(&self, inquiry: &Inquiry) -> Result<Finding, ProbeError> {
        Ok(match self.0.find(&inquiry.downstream_key).await? {
            Some(receipt) => Finding::applied(receipt, "the service has the charge in its books"),
            None => Finding::not_applied("the service has no such charge, and refuses a late one"),
        })
    }
}

async fn scenes() -> Result<(), Box<dyn Error + Send + Sync>> {
    let service = Service::start().await?;
    let backend = MemoryStore::new().open(&Namespace::new("shop")?);
    let effects: Arc<dyn EffectStore> =
        Arc::new(EffectAdapter::open(backend, EffectOptions::default()).await?);

    // Four callers at a time want each of these orders charged.
    for (order, mood) in [("prompt", Mood::Prompt), ("slow", Mood::Slow), ("twice", Mood::Twice)] {
        service.next(mood);
        let callers = (0..4).map(|_| tokio::spawn(charge(effects.clone(), service.clone(), order, 1_995)));
        let mut receipts = Vec::new();
        let mut executed = 0;
        for caller in callers.collect::<Vec<_>>() {
            let ran = caller.await??;
            executed += usize::from(matches!(ran, RunOutcome::Executed { .. }));
            receipts.push(ran.result().cloned());
        }
        println!("{order}: executed {executed} time, receipts {receipts:?}");
        assert_eq!(executed, 1);
        assert!(receipts[0].is_some() && receipts.iter().all(|receipt| *receipt == receipts[0]));
    }

    // These two look alike from here: no answer. One is charged, the other one is not, not yet.
    for (order, mood) in [("unanswered", Mood::ChargesSilently), ("late", Mood::ChargesLate)] {
        service.next(mood);
        let ran = charge(effects.clone(), service.clone(), order, 1_995).await?;
        println!("{order}: {}", ran.as_str());
        assert!(matches!(ran, RunOutcome::Uncertain { episode: Ok(_), .. }));
    }

    // Somebody has to look. The delay lets what is under way arrive; here nothing is under way for a second.
    let options = ReconcilerOptions::default()
        .settle(Duration::from_secs(1))
        .longest_hold(TTL)
        .probe_limit(Duration::from_secs(1))
        .claim_ttl(Duration::from_secs(5))
        .interval(Duration::from_millis(50));
    let reconciler = Reconciler::new(effects.clone(), Arc::new(Books(service.clone())), options)?;
    reconciler
        .run_until(async {
            // Until nothing is open any more.
            while effects.list(&Default::default()).await.is_ok_and(|page| !page.actions.is_empty()) {
                SystemClock::new().sleep(Duration::from_millis(20)).await;
            }
        })
        .await;

    let unanswered = charge(effects.clone(), service.clone(), "unanswered", 1_995).await?;
    println!("unanswered, again: {}", unanswered.as_str());
    assert!(matches!(unanswered, RunOutcome::Replayed(_)));
    let late = charge(effects.clone(), service.clone(), "late", 1_995).await?;
    println!("late, again: {}", late.as_str());
    assert!(matches!(late, RunOutcome::Executed { .. }));

    // Now the first request of `late` is carried out after all, and refused: its fence is too small.
    service.carry_out_late();
    service.until_refused(1).await;
    let ledger = service.ledger();
    println!("the ledger of the service: {ledger:?}");
    assert_eq!(ledger.len(), 5, "five orders");
    assert!(ledger.values().all(|charges| *charges == 1), "each of them charged once");
    Ok(())
}

/// Runs it.
pub(crate) fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(scenes())
}
