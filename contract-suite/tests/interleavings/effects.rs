//! What must be true of side effects in every order of what two or three clients do.

use std::time::Duration;

use coord_core::Bytes;
use coord_core::effects::{
    Action, ActionKey, ActionState, ActionStatus, EffectError, EffectStore as _, Episode, Lease, Note,
    Outcome, Resolution, ResourceId,
};
use shuttle::future::spawn;

use crate::world::{Effects, World, ended};

const TTL: Duration = Duration::from_secs(60);

fn action(name: &str) -> Action {
    let resource = ResourceId::new("gate").expect("the test's names are good");
    Action::new(ActionKey::new(name).expect("the test's names are good")).resource(resource)
}

fn note() -> Note {
    Note::truncated("the test wants it")
}

/// The lease, if it was granted. A client that has no luck may not know.
async fn acquire(store: &Effects, action: &Action) -> Option<Lease> {
    match store.acquire(action, TTL).await {
        Ok(Outcome::Granted(lease)) => Some(lease),
        Ok(_) | Err(EffectError::OutcomeUnknown { .. } | EffectError::TxnConflict { .. }) => None,
        Err(error) => panic!("acquire: {error:?}"),
    }
}

async fn grant(world: &World, action: &Action) -> Lease {
    acquire(&world.still_effects().await, action).await.expect("nobody else is there")
}

async fn status(world: &World, action: &Action) -> Option<ActionStatus> {
    world.still_effects().await.get(&action.key).await.expect("it can be read")
}

/// Granted, and marked by its attempt.
async fn marked(world: &World, action: &Action) -> (Lease, Episode) {
    let lease = grant(world, action).await;
    let store = world.still_effects().await;
    let episode = store.mark_uncertain(action, &lease, &note()).await.expect("its own attempt may mark");
    (lease, episode)
}

pub(crate) async fn one_grant(world: World) {
    drop(world.still_effects().await);
    let clients = [world.effects().await, world.effects().await, world.unlucky_effects().await];
    let calls: Vec<_> = clients
        .into_iter()
        .map(|store| spawn(async move { acquire(&store, &action("mail")).await }))
        .collect();
    let mut leases = Vec::new();
    for call in calls {
        leases.extend(ended(call).await);
    }
    assert!(leases.len() <= 1, "{} grants of one key", leases.len());
    if let Some(lease) = leases.first() {
        let status = status(&world, &action("mail")).await.expect("it was granted");
        assert_eq!(
            (status.state, status.fence),
            (ActionState::InFlight, lease.fence),
            "the attempt that was told"
        );
        world.still_effects().await.renew(&lease.action, lease, TTL).await.expect("the lease is live");
    }
}

pub(crate) async fn one_holder(world: World) {
    drop(world.still_effects().await);
    let clients = [(world.effects().await, "mail"), (world.unlucky_effects().await, "charge")];
    let calls: Vec<_> = clients
        .into_iter()
        .map(|(store, name)| spawn(async move { acquire(&store, &action(name)).await }))
        .collect();
    let mut leases = Vec::new();
    for call in calls {
        leases.extend(ended(call).await);
    }
    assert!(leases.len() <= 1, "{} keys hold one resource", leases.len());
}

pub(crate) async fn expiry_against_renew(world: World) {
    let lease = grant(&world, &action("mail")).await;
    let (holder, other) = (world.effects().await, world.effects().await);
    let renew = {
        let lease = lease.clone();
        spawn(async move { holder.renew(&lease.action, &lease, TTL * 10).await })
    };
    let take = spawn(async move { acquire(&other, &action("charge")).await });
    world.pass(TTL);
    let (renewed, taken) = (ended(renew).await, ended(take).await);
    match (renewed, taken) {
        (Ok(_), None) | (Err(_), _) => {}
        (Ok(_), Some(_)) => panic!("a hold was renewed and given away"),
    }
}

pub(crate) async fn expiry_against_complete(world: World) {
    let lease = grant(&world, &action("mail")).await;
    world.pass(TTL);
    let (holder, other) = (world.effects().await, world.effects().await);
    let complete = {
        let lease = lease.clone();
        spawn(async move { holder.complete(&lease.action, &lease, Bytes::from_static(b"done")).await })
    };
    let take = spawn(async move { acquire(&other, &action("charge")).await });
    let (completed, taken) = (ended(complete).await, ended(take).await);
    assert!(taken.is_some(), "an expired hold is in nobody's way");
    let history = world.still_effects().await.history(&lease.action.key).await.expect("it can be read");
    let history = history.expect("it was granted");
    match completed {
        Ok(_) => assert_eq!(history.status.state, ActionState::Completed, "it was told as completed"),
        Err(EffectError::FenceStale { .. }) => {
            assert_eq!(history.status.state, ActionState::Uncertain, "its result came too late");
            assert_eq!(history.evidence.len(), 1, "the late result");
        }
        Err(error) => panic!("complete: {error:?}"),
    }
    let taken = taken.expect("it was granted");
    world
        .still_effects()
        .await
        .renew(&taken.action, &taken, TTL)
        .await
        .expect("the other key holds the resource");
}

pub(crate) async fn ruling_against_complete(world: World) {
    let (lease, episode) = marked(&world, &action("mail")).await;
    let (holder, judge) = (world.effects().await, world.effects().await);
    let complete = {
        let lease = lease.clone();
        spawn(async move { holder.complete(&lease.action, &lease, Bytes::from_static(b"done")).await })
    };
    let rule =
        spawn(async move { judge.resolve(&action("mail"), episode, &Resolution::NotApplied, &note()).await });
    let (completed, ruled) = (ended(complete).await, ended(rule).await);
    let status = status(&world, &lease.action).await.expect("it was granted");
    match (completed, ruled) {
        (Ok(_), Err(EffectError::NotUncertain { .. } | EffectError::EpisodeOver { .. })) => {
            assert_eq!(status.state, ActionState::Completed, "the completion came first");
        }
        (Err(EffectError::AttemptJudged { .. }), Ok(ruled)) => {
            assert!(ruled.yours, "nobody else ruled");
            assert_eq!((status.state, status.evidence), (ActionState::Uncertain, 1), "the ruling came first");
        }
        other => panic!("{other:?}"),
    }
}

/// A client that is told nothing, time, and one who rules what it finds: no second grant without a ruling.
pub(crate) async fn lost_acquire(world: World) {
    drop(world.still_effects().await);
    let (unlucky, other) = (world.unlucky_effects().await, world.effects().await);
    let first = spawn(async move { acquire(&unlucky, &action("mail")).await });
    let second = spawn(async move {
        let name = action("mail");
        let (mut leases, mut ruled) = (Vec::new(), false);
        for _ in 0..3 {
            match other.acquire(&name, TTL).await.expect("nothing goes wrong here") {
                Outcome::Granted(lease) => leases.push(lease),
                Outcome::Uncertain(uncertain) => {
                    let answer =
                        other.resolve(&name, uncertain.episode, &Resolution::NotApplied, &note()).await;
                    ruled |= answer.is_ok();
                }
                _ => {}
            }
            if !leases.is_empty() {
                break;
            }
        }
        (leases, ruled)
    });
    world.pass(TTL * 2);
    let (first, (second, ruled)) = (ended(first).await, ended(second).await);
    if let (Some(first), Some(second)) = (&first, second.first()) {
        assert!(ruled, "two grants without a ruling: fences {} and {}", first.fence, second.fence);
        assert_ne!(first.fence, second.fence, "one fence twice");
    }
}

pub(crate) async fn lost_completion(world: World) {
    let lease = grant(&world, &action("mail")).await;
    world.pass(TTL);
    let (unlucky, other) = (world.unlucky_effects().await, world.effects().await);
    let complete = {
        let lease = lease.clone();
        spawn(async move { unlucky.complete(&lease.action, &lease, Bytes::from_static(b"done")).await })
    };
    let settle = spawn(async move {
        let name = action("mail");
        if let Ok(Outcome::Uncertain(uncertain)) = other.acquire(&name, TTL).await {
            let ruled = other.resolve(&name, uncertain.episode, &Resolution::NotApplied, &note()).await;
            if ruled.is_ok() {
                return acquire(&other, &name).await;
            }
        }
        None
    });
    let (completed, again) = (ended(complete).await, ended(settle).await);
    let history = world.still_effects().await.history(&lease.action.key).await.expect("it can be read");
    let history = history.expect("it was granted");
    match completed {
        Ok(completed) => {
            assert!(again.is_none(), "it was completed and granted again");
            assert_eq!(history.status.state, ActionState::Completed, "it was told as completed");
            assert!(!completed.maybe_twice, "it was done once");
        }
        Err(EffectError::AttemptJudged { .. } | EffectError::FenceStale { .. }) => {
            assert_eq!(history.evidence.len(), 1, "the late result");
            assert_ne!(history.status.state, ActionState::Idle, "a late result is a fact");
        }
        Err(EffectError::OutcomeUnknown { .. }) => {}
        Err(error) => panic!("complete: {error:?}"),
    }
}

pub(crate) async fn lost_ruling(world: World) {
    let (lease, episode) = marked(&world, &action("mail")).await;
    world.pass(TTL);
    let (unlucky, other) = (world.unlucky_effects().await, world.effects().await);
    let rule =
        spawn(
            async move { unlucky.resolve(&action("mail"), episode, &Resolution::NotApplied, &note()).await },
        );
    let again = spawn(async move {
        let applied = Resolution::Applied(Bytes::from_static(b"seen"));
        let ruled = other.resolve(&action("mail"), episode, &applied, &note()).await;
        ruled.expect("nothing goes wrong here").yours
    });
    let (ruled, others) = (ended(rule).await, ended(again).await);
    let status = status(&world, &lease.action).await.expect("it was granted");
    let expected = if others { ActionState::Completed } else { ActionState::Idle };
    assert_eq!(status.state, expected, "the first ruling counts");
    match ruled {
        Ok(ruled) => assert_ne!(ruled.yours, others, "one ruling is the first"),
        Err(EffectError::OutcomeUnknown { .. }) => {}
        Err(error) => panic!("resolve: {error:?}"),
    }
}

pub(crate) async fn forget_against_acquire(world: World) {
    let lease = grant(&world, &action("mail")).await;
    let store = world.still_effects().await;
    store.abandon(&lease.action, &lease, &note()).await.expect("its own attempt may abandon");
    let (unlucky, other) = (world.unlucky_effects().await, world.effects().await);
    let forget = spawn(async move { unlucky.forget(&action("mail").key).await });
    let ask = spawn(async move { acquire(&other, &action("mail")).await });
    let (forgotten, granted) = (ended(forget).await, ended(ask).await);
    let granted = granted.expect("nobody else is there");
    assert!(granted.fence > lease.fence, "the fence {} after {}", granted.fence, lease.fence);
    match forgotten {
        Ok(()) | Err(EffectError::NotSettled { .. } | EffectError::OutcomeUnknown { .. }) => {}
        Err(error) => panic!("forget: {error:?}"),
    }
    let status =
        status(&world, &granted.action).await.expect("an attempt that is under way is not forgotten");
    assert_eq!(
        (status.state, status.fence),
        (ActionState::InFlight, granted.fence),
        "the attempt that was told"
    );
}
