//! B19, B20 and B22 again, with several processes instead of several handles.

use coord_core::{Assert, Backend, Clock, Key, Mutation, SystemClock, Version};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::time::Duration;

use super::hot::increment;
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict};
use crate::context::Context;
use crate::probe::{Probe, key};
use crate::process::{Job, Seat, run_workers};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B19.processes",
        layer: Layer::Backend,
        promise: "several processes assert one version, or create one absent key: exactly one wins and the version moves by one",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(one_winner(cx)),
    },
    Clause {
        id: "B20.processes",
        layer: Layer::Backend,
        promise: "write skew between processes: of two transactions that assert both keys and write (or delete) one each, absent or \
                  present, exactly one is applied",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(write_skew(cx)),
    },
    Clause {
        id: "B22.processes",
        layer: Layer::Backend,
        promise: "no lost update between processes: N processes x M increments by compare-and-set end at exactly N x M, in value and in \
                  count",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(increments(cx)),
    },
];

pub(crate) const JOBS: &[Job] = &[RACE, SKEW, ONCE, INCREMENT];

const RACE: Job = Job { name: "race", body: race };
const SKEW: Job = Job { name: "skew", body: skew };
const ONCE: Job = Job { name: "once", body: once };
const INCREMENT: Job = Job { name: "increment", body: increment_many };

const WORKERS: u64 = 3;
const ROUNDS: u64 = 24;

fn field(request: &Value, name: &str) -> u64 {
    request[name].as_u64().unwrap_or(0)
}

/// Waits until every worker has come to this gate, which is kept in the store itself.
async fn gate(backend: &dyn Backend, name: &str, worker: u64, workers: u64) -> Outcome {
    backend.commit(&[], &[Mutation::put(key(format!("gate/{name}/{worker}")), "")]).await?;
    let all: Vec<Key> = (0..workers).map(|worker| key(format!("gate/{name}/{worker}"))).collect();
    let clock = SystemClock::new();
    let start = clock.monotonic();
    while backend.look(&all).await?.iter().any(|(_, entry)| !entry.is_present()) {
        ensure!(
            clock.monotonic() - start < Duration::from_secs(60),
            "saw a worker process wait at a gate for a minute: another one has failed, or its writes are not seen"
        );
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn race(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let (worker, workers) = (field(&seat.request, "worker"), field(&seat.request, "workers"));
        let mut won = Vec::new();
        for round in 0..field(&seat.request, "rounds") {
            let name = key(format!("race/{round}"));
            let before = seat.backend.version(&name).await?;
            gate(&*seat.backend, &format!("race{round}"), worker, workers).await?;
            let asserts = [Assert::version(name.clone(), before)];
            let put = [Mutation::put(name, format!("worker {worker}"))];
            if seat.backend.attempt(&asserts, &put).await?.is_applied() {
                won.push(round);
            }
        }
        Ok(json!(won))
    })
}

async fn one_winner(cx: Context) -> Outcome {
    let handle = cx.open().await?;
    // Every second key is there already.
    let mut before = Vec::new();
    for round in 0..ROUNDS {
        let name = key(format!("race/{round}"));
        before.push(if round % 2 == 0 { handle.set(&name, "0").await? } else { Version::MISSING });
    }
    let requests = (0..WORKERS)
        .map(|worker| json!({ "worker": worker, "workers": WORKERS, "rounds": ROUNDS }))
        .collect();
    let won: Vec<Vec<u64>> = run_workers(&cx, &RACE, requests)
        .await?
        .into_iter()
        .map(serde_json::from_value)
        .collect::<Result<_, _>>()?;
    for round in 0..ROUNDS {
        let winners: Vec<usize> = (0..won.len()).filter(|worker| won[*worker].contains(&round)).collect();
        ensure!(winners.len() == 1, "saw {} of {WORKERS} processes win in round {round}", winners.len());
        let entry = handle.entry(&key(format!("race/{round}"))).await?;
        let (was, is) = (before[round as usize], entry.version());
        ensure!(
            was.next().map_or(is.count() == 1, |next| is == next),
            "saw the version move from {was} to {is}, not by one"
        );
        ensure_eq!(
            entry.value().map(|value| &value[..]),
            Some(format!("worker {}", winners[0]).as_bytes()),
            "the value, which must be the winner's"
        );
    }
    applied_once(&cx, 1).await
}

/// The two keys of a round are present, absent, or one of each; what is present is deleted in some rounds.
fn skew(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let worker = field(&seat.request, "worker") as usize;
        let mut applied = Vec::new();
        for round in 0..field(&seat.request, "rounds") {
            let names = [key(format!("skew/{round}/0")), key(format!("skew/{round}/1"))];
            let snapshot = seat.backend.look(&names).await?;
            let versions = [snapshot.require(&names[0])?.version(), snapshot.require(&names[1])?.version()];
            gate(&*seat.backend, &format!("skew{round}"), worker as u64, 2).await?;
            let mut asserts: Vec<Assert> =
                (0..2).map(|n| Assert::version(names[n].clone(), versions[n])).collect();
            if worker == 1 {
                asserts.reverse();
            }
            let own = names[worker].clone();
            let mutation = if round % 2 == 1 && !versions[worker].is_missing() {
                Mutation::delete(own)
            } else {
                Mutation::put(own, format!("worker {worker}"))
            };
            if seat.backend.attempt(&asserts, &[mutation]).await?.is_applied() {
                applied.push(round);
            }
        }
        Ok(json!(applied))
    })
}

async fn write_skew(cx: Context) -> Outcome {
    let handle = cx.open().await?;
    for round in 0..ROUNDS {
        for side in 0..2 {
            if [round % 3 == 0, round % 3 == 0 || round % 3 == 1][side] {
                handle.set(&key(format!("skew/{round}/{side}")), "0").await?;
            }
        }
    }
    let requests = (0..2).map(|worker| json!({ "worker": worker, "rounds": ROUNDS })).collect();
    let applied: Vec<Vec<u64>> = run_workers(&cx, &SKEW, requests)
        .await?
        .into_iter()
        .map(serde_json::from_value)
        .collect::<Result<_, _>>()?;
    for round in 0..ROUNDS {
        let count = applied.iter().filter(|rounds| rounds.contains(&round)).count();
        ensure!(
            count == 1,
            "saw {count} of two processes applied in round {round}, where each asserts what the other one writes"
        );
    }
    applied_once(&cx, 2).await
}

/// Looks, and writes what it has looked at, without a pause, until it has lost enough races; returns the versions on which it was applied.
fn once(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let worker = field(&seat.request, "worker") as usize;
        let names = shared(field(&seat.request, "keys"));
        let own = names[worker % names.len()].clone();
        gate(&*seat.backend, &format!("once{}", names.len()), worker as u64, WORKERS).await?;
        let clock = SystemClock::new();
        let start = clock.monotonic();
        let (mut applied, mut lost) = (Vec::new(), 0);
        for round in 0.. {
            if round >= 50 && (lost >= 100 || clock.monotonic() - start > Duration::from_secs(3)) {
                break;
            }
            let snapshot = seat.backend.look(&names).await?;
            let asserts: Vec<Assert> = (snapshot.iter())
                .map(|(name, entry)| Assert::version(name.clone(), entry.version()))
                .collect();
            let put = Mutation::put(own.clone(), format!("{worker} {round}"));
            if seat.backend.attempt(&asserts, &[put]).await?.is_applied() {
                applied
                    .push(asserts.into_iter().map(|assert| assert.version.to_string()).collect::<Vec<_>>());
            } else {
                lost += 1;
            }
        }
        Ok(json!(applied))
    })
}

fn shared(keys: u64) -> Vec<Key> {
    (0..keys).map(|n| key(format!("once/{keys}/{n}"))).collect()
}

/// No two processes are applied on the same versions: of one key, or of two of which each process writes its own.
async fn applied_once(cx: &Context, keys: u64) -> Outcome {
    let handle = cx.open().await?;
    for name in shared(keys) {
        handle.set(&name, "0").await?;
    }
    let requests = (0..WORKERS).map(|worker| json!({ "worker": worker, "keys": keys })).collect();
    let mut applied: Vec<Vec<String>> = Vec::new();
    for answer in run_workers(cx, &ONCE, requests).await? {
        applied.extend(serde_json::from_value::<Vec<Vec<String>>>(answer)?);
    }
    applied.sort();
    if let Some(twice) = applied.windows(2).find(|pair| pair[0] == pair[1]) {
        fail!("saw two transactions applied that both asserted {:?} and wrote one of them", twice[0]);
    }
    ensure!(!applied.is_empty(), "saw no transaction applied of all that were tried");
    Ok(())
}

fn increment_many(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let mut tries = 0;
        for _ in 0..field(&seat.request, "increments") {
            tries += increment(&*seat.backend, &key("counter")).await?;
        }
        Ok(json!(tries))
    })
}

async fn increments(cx: Context) -> Outcome {
    let handle = cx.open().await?;
    let counter = key("counter");
    // How many fit the time of this store.
    let start = cx.elapsed();
    for _ in 0..3 {
        increment(&*handle, &key("trial")).await?;
    }
    let each = ((cx.elapsed() - start) / 3).as_secs_f64().max(1e-6);
    let rounds = ((1.0 / each / WORKERS as f64) as u64).clamp(40, 2_000);
    run_workers(&cx, &INCREMENT, vec![json!({ "increments": rounds }); WORKERS as usize]).await?;
    let entry = handle.entry(&counter).await?;
    let expected = WORKERS * rounds;
    ensure_eq!(
        entry.value().map(|value| &value[..]),
        Some(expected.to_string().as_bytes()),
        "the value after {WORKERS} x {rounds} increments"
    );
    ensure_eq!(entry.version().count(), expected, "the count after {WORKERS} x {rounds} increments");
    Ok(())
}
