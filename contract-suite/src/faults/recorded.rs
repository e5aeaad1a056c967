//! B51: recorded histories under faults of the wire and of the server.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict};
use crate::context::Context;
use crate::fail;
use crate::harness::{Control, CutPoint};
use crate::history::{Measure, Workload, judge};

use super::trouble::{Trouble, in_trouble, pause, recovered};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B51",
    layer: Layer::Backend,
    promise: "recorded histories of 6 clients are strictly serialisable while requests and replies are lost or late and \
              the server is killed: unknown outcomes happen once, later, or never, and no other error has happened",
    needs: Needs::exclusive(&[Control::Cut]),
    body: |cx| Box::pin(in_trouble(cx, under_faults)),
}];

/// So many rounds, unless the store is slow.
const ROUNDS: u64 = 12;
/// At most so many, until there was enough contention and doubt.
const MOST_ROUNDS: u64 = 40;
/// After this time there are no more rounds than that demands.
const LONG: Duration = Duration::from_secs(20);
/// Cuts of one round.
const CUTS: usize = 60;

async fn under_faults(cx: Context, trouble: Arc<Trouble>) -> Outcome {
    let handles = cx.handles(Workload::default().clients).await?;
    let kills = cx.server(Control::Kill).is_ok();
    let mut measure = Measure::default();
    for round in 0..MOST_ROUNDS {
        arm(&cx, &trouble, round).await?;
        let workload = Workload { seed: cx.seed().wrapping_add(round), ..Workload::default() };
        let prefix = format!("h{round}/");
        let (history, killed) = tokio::join!(workload.run(&handles, &prefix), async {
            if kills && round % 3 == 2 {
                // In the middle of the run, most likely; it is right whenever it comes.
                pause(Duration::from_millis(10)).await;
                trouble.kill().await?;
                trouble.restart().await?;
            }
            Ok::<(), Verdict>(())
        });
        killed?;
        trouble.heal().await?;
        for handle in &handles {
            recovered(&cx, &**handle, "after a round").await?;
        }
        measure = measure.plus(judge(history?).await?);
        let last = round + 1 >= ROUNDS || cx.elapsed() >= LONG;
        if last && measure.is_enough() && measure.unknown >= 30 && measure.landed >= 5 {
            return Ok(());
        }
    }
    fail!("saw too little contention and doubt in {MOST_ROUNDS} rounds to prove anything: {measure}")
}

/// Arms the cuts of a round, some requests apart.
async fn arm(cx: &Context, trouble: &Trouble, round: u64) -> Outcome {
    let mut rng = cx.rng(round);
    let mut request = 0;
    for _ in 0..CUTS {
        request += rng.random_range(3..25);
        let point = match rng.random_range(0..6) {
            0 => CutPoint::BeforeSend,
            1 => CutPoint::DelayReply(Duration::from_millis(rng.random_range(1..20))),
            _ => CutPoint::BeforeReply,
        };
        trouble.cut(request, point).await?;
    }
    Ok(())
}
