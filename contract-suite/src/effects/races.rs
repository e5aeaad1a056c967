//! E04 and E20: who comes first.

use std::sync::Arc;

use coord_core::Bytes;
use coord_core::criteria::concurrent_acquire;
use coord_core::effects::{
    Action, ActionState, Completed, EffectError, Episode, Lease, Outcome as Acquired, Reconciliation,
    Resolution, Ruled, RulingKind,
};
use coord_core::layer::When;
use tokio::sync::Barrier;

use super::stage::{Place, Seat, Stage, TTL, alone, applied, on, stores};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E04",
        layer: Layer::Effects,
        promise: "N callers acquire one key: one grant, all others InFlight; N keys on one resource: one grant, all others \
                  Contended (the exported concurrent_acquire)",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(one_grant(cx)),
    },
    Clause {
        id: "E20",
        layer: Layer::Effects,
        promise: "complete races begin_reconcile and resolve, in all orders: one outcome, the other sees it",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(complete_races(cx)),
    },
];

async fn one_grant(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let seats = stage.seats(4).await?;
    let stores = stores(&seats);
    for round in cx.rounds(8, 120) {
        // One key.
        let action = on(format!("key {round}"), format!("gate {round}"));
        let lease = concurrent_acquire(&stores, std::slice::from_ref(&action), 12, TTL)
            .await
            .at(format!("one key, round {round}"))?;
        let status = seats[0].history(&action).await?.status;
        ensure_eq!(
            (status.state, status.fence, status.attempts),
            (ActionState::InFlight, lease.fence, 1),
            "what is stored after a race for one key"
        );
        seats[1].finish(&lease, "done").await.at("completing with the winner's lease")?;
        // Many keys on the same resource.
        let actions: Vec<Action> =
            (0..6).map(|n| on(format!("key {round}.{n}"), format!("gate {round}"))).collect();
        let next = concurrent_acquire(&stores, &actions, 12, TTL)
            .await
            .at(format!("keys on one resource, round {round}"))?;
        ensure_eq!(next.fence, lease.fence + 1, "the fence after a race for a resource");
        for action in &actions {
            let known = seats[2].store.get(&action.key).await?;
            ensure_eq!(
                known.is_some(),
                *action == next.action,
                "whether something is known of {:?}",
                action.key
            );
        }
        // After expiry, everybody meets the same lapsed attempt, and one of the other keys is granted.
        stage.advance(TTL);
        let others: Vec<Action> = actions.into_iter().filter(|action| *action != next.action).collect();
        let barrier = Arc::new(Barrier::new(6));
        let met: Vec<_> = (0..6)
            .map(|n| {
                let (store, barrier, action) = (stores[n % 4].clone(), barrier.clone(), next.action.clone());
                tokio::spawn(async move {
                    barrier.wait().await;
                    store.acquire(&action, TTL).await
                })
            })
            .collect();
        let mut episodes = std::collections::BTreeSet::new();
        for call in met {
            match call.await?.at("meeting a lapsed attempt at one instant")? {
                Acquired::Uncertain(uncertain) => drop(episodes.insert(uncertain.episode)),
                other => fail!("saw {other:?}, not Uncertain: meeting a lapsed attempt at one instant"),
            }
        }
        ensure_eq!(episodes.len(), 1, "the episodes that one lapsed attempt was given");
        let last =
            concurrent_acquire(&stores, &others, 10, TTL).await.at(format!("after expiry, round {round}"))?;
        ensure_eq!(last.fence, next.fence + 1, "the fence after a race for an expired hold");
    }
    Ok(())
}

/// When a rival's step comes, in words and for the plan.
type Moment = (&'static str, fn() -> When, Place);

/// Somebody beside the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rival {
    Begin,
    NotApplied,
    Applied,
    Owned,
}

enum Said {
    Right(Result<Box<Reconciliation>, EffectError>),
    Ruled(Result<Ruled, EffectError>),
}

#[derive(Clone)]
struct Scene {
    action: Action,
    lease: Lease,
    episode: Episode,
    right: Option<Reconciliation>,
}

async fn set_up(a: &Seat, b: &Seat, name: &str, rival: Rival) -> Result<Scene, Verdict> {
    let action = alone(name);
    let lease = a.grant(&action).await?;
    let episode = a.mark(&lease).await?;
    let right = if rival == Rival::Owned { Some(b.look_into(&action).await?) } else { None };
    Ok(Scene { action, lease, episode, right })
}

async fn act(seat: &Seat, scene: &Scene, rival: Rival) -> Said {
    match (rival, &scene.right) {
        (Rival::Begin, _) => Said::Right(seat.look_into(&scene.action).await.map(Box::new)),
        (Rival::Owned, Some(right)) => Said::Ruled(seat.rule_owned(right, &Resolution::NotApplied).await),
        (Rival::Applied, _) => Said::Ruled(seat.rule(&scene.action, scene.episode, &applied("ruled")).await),
        _ => Said::Ruled(seat.rule(&scene.action, scene.episode, &Resolution::NotApplied).await),
    }
}

/// Both answers and what is left must come of one order. Whether the completion came first.
async fn judge(
    seat: &Seat,
    scene: &Scene,
    rival: Rival,
    completed: Result<Completed, EffectError>,
    said: Said,
) -> Result<bool, Verdict> {
    let status = seat.history(&scene.action).await?.status;
    let evidence = seat.evidence(&scene.action).await?;
    let mine = Bytes::from_static(b"mine");
    let result = |kept: &Completed| kept.result().map(|result| result.to_vec());
    let over = |error: &EffectError| {
        matches!(
            error,
            EffectError::NotUncertain { state: ActionState::Completed }
                | EffectError::EpisodeOver { state: ActionState::Completed }
        )
    };
    let shown = format!(
        "{completed:?} and {}",
        match &said {
            Said::Right(answer) => format!("{answer:?}"),
            Said::Ruled(answer) => format!("{answer:?}"),
        }
    );
    let (first, right) = match (&completed, &said) {
        // A claim to look does not settle anything, so the completion always counts.
        (Ok(kept), Said::Right(Ok(_))) => {
            (false, status.state == ActionState::Completed && result(kept).as_deref() == Some(&b"mine"[..]))
        }
        (Ok(kept), Said::Right(Err(error))) => (
            true,
            status.state == ActionState::Completed
                && over(error)
                && result(kept).as_deref() == Some(&b"mine"[..]),
        ),
        (Ok(kept), Said::Ruled(Err(error))) => (
            true,
            over(error)
                && evidence.is_empty()
                && status.state == ActionState::Completed
                && result(kept).as_deref() == Some(&b"mine"[..]),
        ),
        (Ok(kept), Said::Ruled(Ok(ruled))) => (
            false,
            rival == Rival::Applied
                && ruled.yours
                && kept.maybe_twice
                && status.state == ActionState::Completed
                && result(kept).as_deref() == Some(&b"ruled"[..])
                && evidence == [(scene.lease.fence, Some(mine))],
        ),
        (Err(EffectError::AttemptJudged { state }), Said::Ruled(Ok(ruled))) => (
            false,
            rival != Rival::Applied
                && *state == ActionState::Uncertain
                && ruled.yours
                && ruled.ruling == RulingKind::NotApplied
                && status.state == ActionState::Uncertain
                && status.maybe_applied
                && evidence == [(scene.lease.fence, Some(mine))],
        ),
        _ => (false, false),
    };
    ensure!(
        right,
        "saw {shown}, and then {status:?} with the evidence {evidence:?}, which no order explains"
    );
    Ok(first)
}

async fn complete_races(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let judge_seat = stage.seat("cay").await?;
    let rivals = [Rival::Begin, Rival::NotApplied, Rival::Applied, Rival::Owned];
    let moments: [Moment; 4] = [
        ("before its look", When::snapshot, Place::Before),
        ("after its look", When::snapshot, Place::After),
        ("before its write", When::txn, Place::Before),
        ("after its write", When::txn, Place::After),
    ];
    for rival in rivals {
        let mut orders = std::collections::BTreeSet::new();
        for (moment, when, place) in moments {
            // The completion, and the rival within it.
            let name = format!("{rival:?} {moment} of complete");
            let scene = set_up(&a, &b, &name, rival).await.at(&name)?;
            let (seat, inner) = (b.clone(), scene.clone());
            let step = a.interpose(when(), place, move || {
                let (seat, inner) = (seat.clone(), inner.clone());
                async move { Ok(act(&seat, &inner, rival).await) }
            });
            let completed = a.finish(&scene.lease, "mine").await;
            let Some(said) = step.taken()? else { fail!("saw no moment for a rival: {name}") };
            a.faults.clear();
            orders.insert(judge(&judge_seat, &scene, rival, completed, said).await.at(&name)?);
            // The other way round.
            let name = format!("complete {moment} of {rival:?}");
            let scene = set_up(&a, &b, &name, rival).await.at(&name)?;
            let (seat, inner) = (a.clone(), scene.clone());
            let step = b.interpose(when(), place, move || {
                let (seat, inner) = (seat.clone(), inner.clone());
                async move { Ok(seat.finish(&inner.lease, "mine").await) }
            });
            let said = act(&b, &scene, rival).await;
            let Some(completed) = step.taken()? else { fail!("saw no moment for a rival: {name}") };
            b.faults.clear();
            orders.insert(judge(&judge_seat, &scene, rival, completed, said).await.at(&name)?);
        }
        ensure_eq!(orders.len(), 2, "the orders that came about for {rival:?}");
    }
    // A ruling, and the reconciler that begins meanwhile: the ruling ends the claim.
    let scene = set_up(&a, &b, "begins meanwhile", Rival::Begin).await?;
    let (seat, action) = (b.clone(), scene.action.clone());
    let step = a.interpose(When::txn(), Place::Before, move || {
        let (seat, action) = (seat.clone(), action.clone());
        async move { seat.look_into(&action).await.at("beginning") }
    });
    let ruled =
        a.rule(&scene.action, scene.episode, &applied("ruled")).await.at("with a reconciler in between")?;
    let Some(right) = step.taken()? else { fail!("saw a ruling without a transaction") };
    ensure!(ruled.yours, "saw another one's ruling");
    let told = b.rule_owned(&right, &Resolution::NotApplied).await.at("the reconciler in between")?;
    ensure_eq!(
        (told.ruling, told.yours),
        (RulingKind::Applied, false),
        "what the reconciler in between is told"
    );
    // At one instant.
    let seats = stage.seats(3).await?;
    for round in cx.rounds(10, 150) {
        let rival = rivals[round % rivals.len()];
        let name = format!("round {round} with {rival:?}");
        let scene = set_up(&seats[0], &seats[1], &name, rival).await.at(&name)?;
        let barrier = Arc::new(Barrier::new(2));
        let attempt = {
            let (seat, lease, barrier) = (seats[0].clone(), scene.lease.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                seat.finish(&lease, "mine").await
            })
        };
        let other = {
            let (seat, scene, barrier) = (seats[1].clone(), scene.clone(), barrier.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                act(&seat, &scene, rival).await
            })
        };
        let (completed, said) = (attempt.await?, other.await?);
        judge(&seats[2], &scene, rival, completed, said).await.at(&name)?;
    }
    // Many rulings at one instant: one is the first, and all are told the same.
    for round in cx.rounds(5, 60) {
        let name = format!("rulings {round}");
        let scene = set_up(&seats[0], &seats[1], &name, Rival::Begin).await.at(&name)?;
        let barrier = Arc::new(Barrier::new(6));
        let calls: Vec<_> = (0..6)
            .map(|n| {
                let (seat, scene, barrier) = (seats[n % 3].clone(), scene.clone(), barrier.clone());
                tokio::spawn(async move {
                    let resolution = if n % 2 == 0 { Resolution::NotApplied } else { applied("ruled") };
                    barrier.wait().await;
                    seat.rule(&scene.action, scene.episode, &resolution).await
                })
            })
            .collect();
        let (mut kinds, mut winners) = (std::collections::BTreeSet::new(), 0);
        for call in calls {
            let ruled = call.await?.at(&name)?;
            kinds.insert(ruled.ruling.as_str());
            winners += usize::from(ruled.yours);
        }
        ensure_eq!(
            (kinds.len(), winners),
            (1, 1),
            "the different rulings told, and the callers who made one: {name}"
        );
    }
    Ok(())
}
