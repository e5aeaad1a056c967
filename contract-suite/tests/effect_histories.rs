//! Random histories of side effects on the memory backend, some of them in every run; `COORD_EFFECT_HISTORIES=10000` for many.

use std::sync::Arc;

use contract_suite::judges::OneKeyEffectsHarness;
use contract_suite::{AdapterEffects, EffectsHarness, MemoryHarness, Subject, Verdict, effect_histories};

async fn play(effects: Arc<dyn EffectsHarness>) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let runs = number("COORD_EFFECT_HISTORIES").unwrap_or(300);
    let seed = number("COORD_SUITE_SEED").unwrap_or(0x00C0_FFEE);
    let subject = Subject::new(Arc::new(MemoryHarness::default())).with_effects(effects);
    if let Err(Verdict::Failed(why) | Verdict::Skipped(why)) =
        effect_histories(&subject, seed as u64, runs).await
    {
        panic!("{why} (seed {seed})");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_store_under_one_key() {
    play(Arc::new(OneKeyEffectsHarness::default())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_adapter() {
    play(Arc::new(AdapterEffects)).await;
}
