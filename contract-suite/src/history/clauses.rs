//! B50: recorded histories are strictly serialisable.

use std::sync::Arc;
use std::time::Duration;

use coord_core::{Backend, Clock as _, SystemClock};

use super::check::check;
use super::event::History;
use super::measure::Measure;
use super::workload::Workload;
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict};
use crate::context::Context;
use crate::fail;

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B50",
    layer: Layer::Backend,
    promise: "recorded histories of 6 clients are strictly serialisable: snapshots, listings and transactions on few \
              keys, with unwritten asserts, stale guesses, deletes and re-creations",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(recorded_histories(cx)),
}];

/// So many rounds, each with a history of its own, unless the store is slow.
const ROUNDS: u64 = 30;
/// At most so many, until there was enough contention.
const MOST_ROUNDS: u64 = 60;
/// After this time there are no more rounds than contention demands.
const LONG: Duration = Duration::from_secs(10);

async fn recorded_histories(cx: Context) -> Outcome {
    let handles = cx.handles(Workload::default().clients).await?;
    let clock = SystemClock::new();
    let start = clock.monotonic();
    let mut measure = Measure::default();
    for round in 0..MOST_ROUNDS {
        let workload = Workload { seed: cx.seed().wrapping_add(round), ..Workload::default() };
        measure = measure.plus(round_of(&workload, &handles, &format!("h{round}/")).await?);
        let last = round + 1 >= ROUNDS || clock.monotonic() - start >= LONG;
        if last && measure.is_enough() {
            return Ok(());
        }
    }
    fail!("saw too little contention in {MOST_ROUNDS} rounds to prove anything: {measure}")
}

/// Runs one workload and judges what was recorded.
async fn round_of(
    workload: &Workload,
    handles: &[Arc<dyn Backend>],
    prefix: &str,
) -> Result<Measure, Verdict> {
    let history = workload.run(handles, prefix).await?;
    judge(history).await
}

/// Judges what was recorded, and measures it.
pub(crate) async fn judge(history: History) -> Result<Measure, Verdict> {
    // The check only computes, so it must not hold up the other tasks of its thread.
    let judged = tokio::task::spawn_blocking(move || check(&history).map(|()| Measure::of(&history))).await;
    match judged.map_err(|error| Verdict::Failed(format!("saw the check end with {error}")))? {
        Ok(measure) => Ok(measure),
        Err(violation) => Err(Verdict::Failed(format!("saw a history that is {violation}"))),
    }
}
