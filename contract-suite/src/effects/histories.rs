//! E26 again, at random: many clients, keys and faults, against a ledger of what was really done.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use coord_core::effects::{
    Action, ActionState, EffectError, EffectStore, Lease, Outcome as Acquired, PurgeRequest, Reconciliation,
    Resolution, RulingKind, result_digest,
};
use coord_core::layer::{Cell, Faults};
use coord_core::{
    Backend, BackendError, Bytes, Key, KeyRange, KeySet, Snapshot, Txn, TxnOutcome, async_trait,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::stage::{Stage, TTL, alone, applied, note, on};
use super::world::{Stored, Totals, World};
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::{Context, clause_seed, remove_all};
use crate::run::Subject;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "E26.histories",
    layer: Layer::Effects,
    promise: "random histories (crashes, lost replies, late requests, expiry, late completions, reconcilers, purge, forget) \
              against a ledger of executions: never a second execution without a ruling or a forget in between, never a \
              lost result that was reported as stored",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(some(cx)),
}];

/// Plays so many random histories of side effects, and fails with the first one that a right store cannot have, and its number.
///
/// # Errors
/// What was seen in it.
pub async fn effect_histories(subject: &Subject, seed: u64, runs: usize) -> Outcome {
    let clause = &CLAUSES[0];
    let cx = Context::new(subject.clone(), clause, clause_seed(seed, clause.id), Duration::from_secs(30));
    let outcome = many(&cx, 0..runs).await;
    cx.clean().await?;
    outcome
}

async fn some(cx: Context) -> Outcome {
    let rounds = cx.rounds_within(Duration::from_secs(8), 25, 400);
    many(&cx, rounds).await
}

async fn many(cx: &Context, runs: impl Iterator<Item = usize>) -> Outcome {
    let handles = cx.handles(CLIENTS).await?;
    let mut totals = Totals::default();
    let mut count = 0;
    for run in runs {
        remove_all(&*handles[0]).await?;
        totals.add(&history(cx, &handles, run as u64).await.at(format!("history {run}"))?);
        count += 1;
    }
    // Histories without trouble prove nothing.
    ensure!(
        totals.executions > count
            && totals.uncertain > count / 2
            && totals.faults > count
            && totals.rulings > count / 4,
        "saw only {totals:?} in {count} histories"
    );
    Ok(())
}

const CLIENTS: usize = 4;
const STEPS: usize = 45;

/// A backend that lets others go first, now and then, by a seed.
#[derive(Debug)]
struct Yielding {
    inner: Arc<dyn Backend>,
    random: Mutex<StdRng>,
}

impl Yielding {
    async fn wait(&self) {
        let times = self.random.lock().unwrap_or_else(PoisonError::into_inner).random_range(0..4_u8);
        for _ in 0..times {
            let mut first = true;
            std::future::poll_fn(|cx| {
                if std::mem::take(&mut first) {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
        }
    }
}

#[async_trait]
impl Backend for Yielding {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.wait().await;
        self.inner.snapshot(keys).await
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.wait().await;
        self.inner.txn(txn).await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.wait().await;
        self.inner.keys(range).await
    }
}

/// What a client has in hand.
#[derive(Default)]
struct Hand {
    lease: Option<(Lease, usize)>,
    /// Leases of before: paused holders that may come back.
    old: Vec<(Lease, usize)>,
    right: Option<Reconciliation>,
    /// The forget that is under way, by its place among those of its key.
    forgetting: Option<(String, usize)>,
}

struct Client {
    store: Arc<dyn EffectStore>,
    hand: Mutex<Hand>,
}

/// A future that dies after so many polls.
struct Mortal<F> {
    inner: Pin<Box<F>>,
    polls: Option<usize>,
}

impl<F: Future> Future for Mortal<F> {
    type Output = Option<F::Output>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        if let Some(polls) = &mut self.polls {
            if *polls == 0 {
                return Poll::Ready(None);
            }
            *polls -= 1;
        }
        self.inner.as_mut().poll(cx).map(Some)
    }
}

fn actions() -> Vec<Action> {
    vec![on("mail", "gate"), on("charge", "gate"), alone("deploy")]
}

async fn history(cx: &Context, handles: &[Arc<dyn Backend>], run: u64) -> Result<Totals, Verdict> {
    let mut random = cx.rng(run.wrapping_mul(2).wrapping_add(1));
    let stage = Stage::new(cx).again();
    let (mut clients, mut plans): (Vec<Client>, Vec<Faults>) = (Vec::new(), Vec::new());
    for (n, handle) in handles.iter().enumerate() {
        let random_yields = Mutex::new(StdRng::seed_from_u64(random.random()));
        let yielding: Arc<dyn Backend> = Arc::new(Yielding { inner: handle.clone(), random: random_yields });
        let seat = stage.seat_on(yielding, &format!("client {n}"), 0, true).await?;
        let cells = [
            Cell::request_lost(),
            Cell::reply_lost(),
            Cell::reply_lost(),
            Cell::late(),
            Cell::late(),
            Cell::twice(),
            Cell::twice_reply_lost(),
            Cell::refused(),
        ];
        seat.faults.seeded(random.random(), 7, cells);
        plans.push(seat.faults.clone());
        clients.push(Client { store: seat.store, hand: Mutex::default() });
    }
    let world = Mutex::new(World::default());
    for _ in 0..STEPS {
        match random.random_range(0..10_u8) {
            0 | 1 => stage.advance(TTL / 4),
            2 => stage.advance(TTL),
            3 => stage.advance(TTL * 3),
            _ => {}
        }
        if random.random_ratio(1, 3) {
            let plan = &plans[random.random_range(0..plans.len())];
            if let Some(held) = plan.take_held()
                && random.random_ratio(2, 3)
            {
                // What the store answers to a late request nobody gets to know.
                let _ = held.release().await;
            }
        }
        // Some clients do something at one time.
        let mut turns = Vec::new();
        for client in &clients {
            if random.random_ratio(1, 2) {
                let polls = random.random_ratio(1, 14).then(|| random.random_range(1..8));
                turns.push((client, StdRng::seed_from_u64(random.random()), polls));
            }
        }
        let turns = turns.into_iter().map(|(client, mut random, polls)| {
            let world = &world;
            async move {
                let turn = async { turn(client, world, &mut random).await };
                match (Mortal { inner: Box::pin(turn), polls }).await {
                    Some(outcome) => outcome,
                    None => {
                        // It is dead, and somebody else is in its place who knows nothing.
                        let hand =
                            std::mem::take(&mut *client.hand.lock().unwrap_or_else(PoisonError::into_inner));
                        let mut world = lock(world);
                        world.end_forget(hand.forgetting);
                        world.totals.crashes += 1;
                        Ok(())
                    }
                }
            }
        });
        for outcome in futures::future::join_all(turns).await {
            outcome?;
        }
    }
    // The end: whatever is late comes or not, and everything is settled by who reads the ledger.
    for plan in &plans {
        plan.clear();
        while let Some(held) = plan.take_held() {
            if random.random_ratio(1, 2) {
                let _ = held.release().await;
            }
        }
    }
    settle(&stage, &clients, &world).await?;
    let mut world = world.into_inner().unwrap_or_else(PoisonError::into_inner);
    world.totals.faults = plans.iter().map(|plan| plan.hits().len()).sum();
    Ok(world.totals)
}

fn lock(world: &Mutex<World>) -> std::sync::MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error that says nothing of the action.
fn is_trouble(error: &EffectError) -> bool {
    matches!(
        error,
        EffectError::Backend(_) | EffectError::OutcomeUnknown { .. } | EffectError::TxnConflict { .. }
    )
}

/// What a client does next.
async fn turn(client: &Client, world: &Mutex<World>, random: &mut StdRng) -> Outcome {
    let hand = || client.hand.lock().unwrap_or_else(PoisonError::into_inner);
    let held = hand().lease.clone();
    if let Some((lease, index)) = held {
        return hold(client, world, random, &lease, index).await;
    }
    let old = hand().old.last().cloned();
    if let Some((lease, index)) = old
        && random.random_ratio(1, 3)
    {
        // A holder that was paused comes back, does it now, and says so.
        hand().old.pop();
        if !lock(world).grants[index].executed {
            if random.random_ratio(1, 2) {
                return Ok(());
            }
            lock(world).execute(index)?;
        }
        return finish(client, world, &lease, index).await;
    }
    let action = actions().swap_remove(random.random_range(0..3));
    let name = action.key.to_string();
    match random.random_range(0..20_u8) {
        0..=10 => ask(client, world, &action).await,
        11..=14 => look(client, world, random, &action).await,
        15 => {
            let began = lock(world).tick();
            match client.store.get(&action.key).await {
                Ok(Some(status)) => {
                    lock(world).told(&name, began, status.replay.as_ref(), &format!("{:?}", status.state))
                }
                Ok(None) => lock(world).told(&name, began, None, "nothing"),
                Err(error) if is_trouble(&error) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        16 => {
            lock(world).purged = true;
            match client.store.purge(&PurgeRequest::older_than(TTL * 2)).await {
                Ok(_) => Ok(()),
                Err(error) if is_trouble(&error) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        17 if random.random_ratio(1, 3) => {
            let now = lock(world).tick();
            let place = {
                let mut world = lock(world);
                let times = world.forgotten.entry(name.clone()).or_default();
                times.push((now, None));
                times.len() - 1
            };
            hand().forgetting = Some((name.clone(), place));
            lock(world).excuse(&name);
            let answer = client.store.forget(&action.key).await;
            let forgetting = hand().forgetting.take();
            lock(world).end_forget(forgetting);
            match answer {
                Ok(()) | Err(EffectError::NeverAcquired { .. } | EffectError::NotSettled { .. }) => Ok(()),
                Err(error) if is_trouble(&error) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        18 => match client.store.forget_resource(&action.resource).await {
            Ok(()) | Err(EffectError::NotSettled { .. }) => Ok(()),
            Err(error) if is_trouble(&error) => Ok(()),
            Err(error) => Err(error.into()),
        },
        _ => Ok(()),
    }
}

async fn ask(client: &Client, world: &Mutex<World>, action: &Action) -> Outcome {
    let name = action.key.to_string();
    let began = lock(world).tick();
    match client.store.acquire(action, TTL).await {
        Ok(Acquired::Granted(lease)) => {
            let index = lock(world).grant(&lease, began)?;
            client.hand.lock().unwrap_or_else(PoisonError::into_inner).lease = Some((lease, index));
            Ok(())
        }
        Ok(Acquired::Completed(kept)) => {
            lock(world).told(&name, began, Some(&kept.replay), &format!("{kept:?}"))
        }
        Ok(other) => {
            let mut world = lock(world);
            world.totals.uncertain += usize::from(matches!(other, Acquired::Uncertain(_)));
            world.told(&name, began, None, &format!("{other:?}"))
        }
        Err(error) if is_trouble(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What a holder does next.
async fn hold(
    client: &Client,
    world: &Mutex<World>,
    random: &mut StdRng,
    lease: &Lease,
    index: usize,
) -> Outcome {
    let hand = || client.hand.lock().unwrap_or_else(PoisonError::into_inner);
    let executed = lock(world).grants[index].executed;
    let why = note("as it is");
    let answer = match random.random_range(0..12_u8) {
        0..=2 if !executed => return lock(world).execute(index),
        3 | 4 if !executed => {
            // It knows that it has done nothing, and will not.
            let now = lock(world).tick();
            lock(world).returned.entry(lease.action.key.to_string()).or_default().push(now);
            hand().lease = None;
            client.store.abandon(&lease.action, lease, &why).await
        }
        0..=5 if executed => {
            hand().lease = None;
            return finish(client, world, lease, index).await;
        }
        6 => {
            hand().lease = None;
            hand().old.push((lease.clone(), index));
            client.store.mark_uncertain(&lease.action, lease, &why).await.map(drop)
        }
        7 => {
            hand().lease = None;
            hand().old.push((lease.clone(), index));
            client.store.release(&lease.action, lease).await
        }
        8 => {
            // Paused.
            hand().lease = None;
            hand().old.push((lease.clone(), index));
            Ok(())
        }
        9 => client.store.renew(&lease.action, lease, TTL).await.map(drop),
        _ => Ok(()),
    };
    match answer {
        Ok(())
        | Err(
            EffectError::FenceStale { .. }
            | EffectError::AttemptJudged { .. }
            | EffectError::LeaseLost
            | EffectError::StillUncertain { .. }
            | EffectError::NeverAcquired { .. },
        ) => Ok(()),
        Err(error) if is_trouble(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Says what came of it.
async fn finish(client: &Client, world: &Mutex<World>, lease: &Lease, index: usize) -> Outcome {
    let name = lease.action.key.to_string();
    let result = Bytes::from(format!("{name} by attempt {index}"));
    let began = lock(world).tick();
    match client.store.complete(&lease.action, lease, result.clone()).await {
        Ok(kept) => {
            let mut world = lock(world);
            world.told(&name, began, Some(&kept.replay), &format!("{kept:?}"))?;
            if let Some(kept) = kept.result() {
                let now = world.tick();
                let since = world.grants[index].began;
                if !world.is_forgotten(&name, since) {
                    world.stored.insert(name, Stored { at: now, since, result: kept.clone() });
                }
            }
            Ok(())
        }
        Err(EffectError::FenceStale { .. } | EffectError::AttemptJudged { .. }) => {
            let mut world = lock(world);
            let since = world.grants[index].began;
            if !world.is_forgotten(&name, since) {
                world.late.entry(name).or_default().insert((since, result.to_vec()));
                world.totals.evidence += 1;
            }
            Ok(())
        }
        // The key was forgotten.
        Err(EffectError::LeaseLost | EffectError::NeverAcquired { .. }) => {
            ensure!(
                lock(world).is_forgotten(&name, 0),
                "saw a genuine lease of {name:?} refused although it was never forgotten"
            );
            Ok(())
        }
        Err(error) if is_trouble(&error) => {
            // It tries again, later.
            client.hand.lock().unwrap_or_else(PoisonError::into_inner).old.push((lease.clone(), index));
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Somebody looks at the ledger and rules.
async fn look(client: &Client, world: &Mutex<World>, random: &mut StdRng, action: &Action) -> Outcome {
    let name = action.key.to_string();
    let hand = || client.hand.lock().unwrap_or_else(PoisonError::into_inner);
    let right = hand().right.take();
    let right = match right {
        Some(right) if random.random_ratio(2, 3) => right,
        _ => match client.store.begin_reconcile(action, TTL).await {
            Ok(right) => {
                if random.random_ratio(1, 3) {
                    // It takes its time.
                    hand().right = Some(right);
                    return Ok(());
                }
                right
            }
            Err(
                EffectError::NeverAcquired { .. }
                | EffectError::NotUncertain { .. }
                | EffectError::Reconciling { .. },
            ) => return Ok(()),
            Err(error) if is_trouble(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        },
    };
    let name = if right.action == *action { name } else { right.action.key.to_string() };
    let done = lock(world).was_done(&name);
    let resolution = match random.random_range(0..8_u8) {
        0 => Resolution::AllowRetry { reason: note("twice is better than never") },
        _ if done => applied(&format!("{name} by the ledger")),
        _ => Resolution::NotApplied,
    };
    if resolution.kind() != RulingKind::Applied {
        lock(world).excuse(&name);
    }
    let evidence = note("the ledger");
    let answer = if random.random_ratio(1, 2) {
        client.store.resolve_owned(&right.action, right.episode, &resolution, &evidence, &right.token).await
    } else {
        client.store.resolve(&right.action, right.episode, &resolution, &evidence).await
    };
    match answer {
        Ok(ruled) => {
            lock(world).totals.rulings += usize::from(ruled.yours);
            Ok(())
        }
        Err(
            EffectError::EpisodeOver { .. }
            | EffectError::NotUncertain { .. }
            | EffectError::ReconcileLost { .. }
            | EffectError::NeverAcquired { .. },
        ) => Ok(()),
        Err(error) if is_trouble(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Nothing goes wrong any more: everything can be settled, and nothing was lost.
async fn settle(stage: &Stage, clients: &[Client], world: &Mutex<World>) -> Outcome {
    stage.advance(TTL * 4);
    let store = &clients[0].store;
    for action in actions() {
        let name = action.key.to_string();
        let began = lock(world).tick();
        let Some(status) = store.get(&action.key).await.at("at the end")? else {
            lock(world).told(&name, began, None, "nothing at the end")?;
            continue;
        };
        lock(world).told(&name, began, status.replay.as_ref(), &format!("{:?} at the end", status.state))?;
        ensure!(
            status.state != ActionState::InFlight && status.state != ActionState::Lapsed,
            "saw {name:?} {} at the end of all holds",
            status.state
        );
        let Some(history) = store.history(&action.key).await? else { fail!("saw no history of {name:?}") };
        let late = lock(world).late.get(&name).cloned().unwrap_or_default();
        for (at, result) in late {
            if lock(world).is_forgotten(&name, at) {
                continue;
            }
            let digest = result_digest(&result);
            ensure!(
                history.evidence.iter().any(|evidence| evidence.digest == digest),
                "saw no evidence of {:?}, which was refused as late: {:?}",
                String::from_utf8_lossy(&result),
                history.evidence
            );
        }
        if let Some(uncertain) = status.uncertain {
            let done = lock(world).was_done(&name);
            let resolution = if done { applied("by the ledger") } else { Resolution::NotApplied };
            if !done {
                lock(world).excuse(&name);
            }
            let ruled = store.resolve(&action, uncertain.episode, &resolution, &note("the end")).await?;
            ensure!(ruled.yours, "saw another one's ruling at the end");
        }
        let began = lock(world).tick();
        match store.acquire(&action, TTL).await.at("at the end")? {
            Acquired::Granted(lease) => {
                let index = lock(world).grant(&lease, began)?;
                lock(world).execute(index)?;
                let kept =
                    store.complete(&action, &lease, Bytes::from_static(b"the end")).await.at("at the end")?;
                ensure_eq!(kept.result(), Some(&Bytes::from_static(b"the end")), "the last completion");
            }
            Acquired::Completed(kept) => {
                lock(world).told(&name, began, Some(&kept.replay), &format!("{kept:?}"))?
            }
            other => fail!("saw {other:?} at the end, when everything is settled"),
        }
    }
    Ok(())
}
