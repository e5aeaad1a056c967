//! T33: calls that nobody waits for any more.

use std::sync::Arc;

use coord_core::Clock as _;
use coord_core::board::{Board as _, ExtendedBoard as _, Plan};
use coord_core::layer::{Cell, When};
use tokio::sync::Notify;

use super::next::finds_all;
use super::scenes::{Op, SCENES, Scene, Theatre};
use super::stage::{id, result, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T33",
    layer: Layer::Board,
    promise: "every verb dropped after its k-th transaction, for each k: another client's claim_next still finds every \
              claimable task",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(dropped(cx)),
}];

async fn dropped(cx: Context) -> Outcome {
    let theatre = Theatre::open(&cx).await?;
    for scene in SCENES {
        for k in 1..20 {
            let place = format!("{:?} dropped after its {k}. transaction", scene.call);
            if !drop_after(&theatre, scene, k).await.at(place)? {
                ensure!(
                    k > 1 || scene.skips,
                    "saw {:?} without a transaction after which it could be dropped",
                    scene.call
                );
                break;
            }
        }
    }
    Ok(())
}

/// Plays one scene; `false` if the call has no such transaction.
async fn drop_after(theatre: &Theatre, scene: &Scene, k: u64) -> Result<bool, crate::Verdict> {
    let play = theatre.begin(scene, false).await?;
    // What waits for the task: more than one transaction moves on, and one that waits for two.
    if !matches!(scene.call, Op::Remove(_) | Op::Archive) {
        let waits = (0..25).map(|n| spec(format!("waits {n}")).dep(id("t")));
        let last = spec("waits for both").deps([id("t"), id("open")]);
        play.b.board.add_plan(&Plan::new(waits.chain([last]))?).await.at("adding dependents")?;
    }
    let mut caller = play.caller();
    let reached = Arc::new(Notify::new());
    let hangs = {
        let reached = reached.clone();
        Cell::hangs().then(move |_| {
            reached.notify_one();
            std::future::ready(())
        })
    };
    play.a.faults.on(When::txn().nth(k), hangs);
    let was_reached = tokio::select! {
        biased;
        () = reached.notified() => true,
        // What it answers is the matter of other clauses.
        _ = caller.perform(scene.call) => false,
    };
    play.a.faults.clear();
    if !was_reached {
        return Ok(false);
    }
    for round in 0..3 {
        let given =
            finds_all(play.first.clock.now(), &play.b, &format!("looking for tasks the {}. time", round + 1))
                .await?;
        for claim in &given {
            play.b.board.complete(&claim.task.id, &claim.lease.token, result("")).await.at("complete")?;
        }
    }
    ensure_eq!(play.b.board.check_index().await?, [], "what is wrong with the index");
    Ok(true)
}
