//! B21, B22, B25: clients that want the same keys again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use coord_core::{Assert, Backend, Entry, Key, Mutation, Version};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::probe::{Probe, key};
use crate::race::{Leg, Racers};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B21",
        layer: Layer::Backend,
        promise: "crossing key orders neither deadlock nor surface an error",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(crossing_orders(cx)),
    },
    Clause {
        id: "B22",
        layer: Layer::Backend,
        promise: "no lost update: N handles x M increments by compare-and-set end at exactly N x M, in value and in count",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(increments(cx)),
    },
    Clause {
        id: "B25",
        layer: Layer::Backend,
        promise: "a hot key starves nobody: every one of N clients finishes its M increments",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(nobody_starves(cx)),
    },
];

async fn crossing_orders(cx: Context) -> Outcome {
    const RACERS: usize = 4;
    let keys: Arc<Vec<Key>> = Arc::new((0..6).map(|n| key(format!("cross/{n}"))).collect());
    let handles = cx.handles(RACERS).await?;
    let puts: Vec<Mutation> = keys.iter().map(|key| Mutation::put(key.clone(), "0")).collect();
    handles[0].commit(&[], &puts).await?;
    let start = handles[0].look(&keys).await?;
    let before: u64 = start.iter().map(|(_, entry)| entry.version().count()).sum();
    let written = Arc::new(AtomicU64::new(0));
    let legs: Vec<Leg<()>> = (0..RACERS)
        .map(|racer| -> Leg<()> {
            let (handle, keys, written, cx) =
                (handles[racer].clone(), keys.clone(), written.clone(), cx.clone());
            let mut rng = cx.rng(racer as u64);
            Box::pin(async move {
                for round in cx.rounds(60, 20_000) {
                    // Even racers go up, odd ones down, or all in random orders.
                    let mut order = keys.to_vec();
                    match round % 3 {
                        0 if racer % 2 == 0 => {}
                        0 => order.reverse(),
                        1 => order.rotate_left(racer),
                        _ => order.shuffle(&mut rng),
                    }
                    let mut puts: Vec<Mutation> = order
                        .iter()
                        .take(4)
                        .map(|key| Mutation::put(key.clone(), racer.to_string()))
                        .collect();
                    let mut asserts = Vec::new();
                    if round % 2 == 1 {
                        let snapshot = handle.look(&order).await?;
                        for name in order.iter().rev() {
                            asserts.push(Assert::version(name.clone(), snapshot.require(name)?.version()));
                        }
                        puts.truncate(2);
                    }
                    // Keys of its own that come and go among the shared ones, in the middle of their order.
                    let own = key(format!("cross/{}/{racer}", racer % 3));
                    puts.insert(
                        1,
                        if rng.random_bool(0.5) { Mutation::put(own, "x") } else { Mutation::delete(own) },
                    );
                    let outcome =
                        handle.attempt(&asserts, &puts).await.at(format!("racer {racer}, round {round}"))?;
                    if outcome.is_applied() {
                        written.fetch_add(puts.len() as u64 - 1, Ordering::Relaxed);
                    } else if asserts.is_empty() {
                        fail!("saw a transaction without asserts rejected");
                    }
                }
                Ok(())
            })
        })
        .collect();
    Racers::new(&cx, RACERS).run(legs).await?;
    let end = handles[1].look(&keys).await?;
    let after: u64 = end.iter().map(|(_, entry)| entry.version().count()).sum();
    ensure_eq!(
        after - before,
        written.load(Ordering::Relaxed),
        "how far all versions moved, by the writes that were answered as applied"
    );
    Ok(())
}

/// One increment by compare-and-set: tries until it is applied, and returns how often it tried.
pub(crate) async fn increment(handle: &dyn Backend, name: &Key) -> Result<u64, Verdict> {
    let mut tries = 0;
    loop {
        tries += 1;
        if try_increment(handle, name).await? {
            return Ok(tries);
        }
        ensure!(tries < 1_000_000, "saw a million tries to increment one key rejected");
        // On a store that never waits, this is where a limit of time can end it.
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn try_increment(handle: &dyn Backend, name: &Key) -> Result<bool, Verdict> {
    let entry = handle.entry(name).await?;
    let value = number(&entry)?;
    let asserts = [Assert::version(name.clone(), entry.version())];
    let put = [Mutation::put(name.clone(), (value + 1).to_string())];
    Ok(handle.attempt(&asserts, &put).await?.is_applied())
}

fn number(entry: &Entry) -> Result<u64, Verdict> {
    let Some(value) = entry.value() else { return Ok(0) };
    let text = String::from_utf8_lossy(value);
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => fail!("saw {text:?}, not a number that was written"),
    }
}

async fn increments(cx: Context) -> Outcome {
    const CLIENTS: u64 = 4;
    let handles = cx.handles(CLIENTS as usize).await?;
    // How many fit the time of this store.
    let trial = key("trial");
    let start = cx.elapsed();
    for handle in &handles {
        increment(&**handle, &trial).await?;
    }
    let each = ((cx.elapsed() - start) / CLIENTS as u32).as_secs_f64().max(1e-6);
    let rounds = ((0.4 / each / CLIENTS as f64) as u64).clamp(20, 3_000);
    // From an absent key, and from one that another life preceded; alone, and two keys in step.
    let (one, left, right) = (key("one"), key("left"), key("right"));
    handles[0].set(&one, "7").await?;
    handles[0].unset(&one).await?;
    let legs: Vec<Leg<()>> = (0..CLIENTS as usize)
        .map(|client| -> Leg<()> {
            let (handle, one, pair) = (handles[client].clone(), one.clone(), [left.clone(), right.clone()]);
            Box::pin(async move {
                for _ in 0..rounds {
                    increment(&*handle, &one).await?;
                    while !increment_both(&*handle, &pair).await? {
                        tokio::task::yield_now().await;
                    }
                }
                Ok(())
            })
        })
        .collect();
    Racers::new(&cx, CLIENTS as usize).run(legs).await?;
    for handle in &handles {
        for name in [&one, &left, &right] {
            let entry = handle.entry(name).await?;
            let expected = CLIENTS * rounds;
            ensure_eq!(
                number(&entry)?,
                expected,
                "the value of {name:?} after {CLIENTS} x {rounds} increments"
            );
            ensure_eq!(
                entry.version().count(),
                expected,
                "the count of {name:?} after {CLIENTS} x {rounds} increments"
            );
        }
    }
    Ok(())
}

async fn increment_both(handle: &dyn Backend, pair: &[Key; 2]) -> Result<bool, Verdict> {
    let snapshot = handle.look(pair).await?;
    let (left, right) = (snapshot.require(&pair[0])?, snapshot.require(&pair[1])?);
    ensure_both(number(left)?, number(right)?)?;
    let asserts = pair.each_ref().map(|name| {
        Assert::version(name.clone(), snapshot.get(name).map_or(Version::MISSING, Entry::version))
    });
    let puts = [
        Mutation::put(pair[0].clone(), (number(left)? + 1).to_string()),
        Mutation::put(pair[1].clone(), (number(right)? + 1).to_string()),
    ];
    Ok(handle.attempt(&asserts, &puts).await?.is_applied())
}

fn ensure_both(left: u64, right: u64) -> Outcome {
    ensure_eq!(left, right, "two numbers that every transaction increments together, in one snapshot");
    Ok(())
}

/// Everybody goes on incrementing until everybody is through, so that a client that only gets its turn once the others have stopped never
/// gets it.
async fn nobody_starves(cx: Context) -> Outcome {
    const CLIENTS: usize = 6;
    const EACH: u64 = 25;
    let handles = cx.handles(CLIENTS).await?;
    let name = key("hot");
    let waiting = Arc::new(AtomicUsize::new(CLIENTS));
    let broken = Arc::new(AtomicBool::new(false));
    let deadline = cx.patience().mul_f64(0.9);
    let start = cx.elapsed();
    let legs: Vec<Leg<u64>> = (0..CLIENTS)
        .map(|client| -> Leg<u64> {
            let (handle, name, cx) = (handles[client].clone(), name.clone(), cx.clone());
            let (waiting, broken) = (waiting.clone(), broken.clone());
            Box::pin(async move {
                let mut done = 0;
                let mut tries = 0_u64;
                while waiting.load(Ordering::Acquire) > 0 && !broken.load(Ordering::Acquire) {
                    tries += 1;
                    match try_increment(&*handle, &name).await {
                        Ok(true) => {
                            done += 1;
                            if done == EACH {
                                waiting.fetch_sub(1, Ordering::AcqRel);
                            }
                        }
                        Ok(false) => {}
                        Err(verdict) => {
                            broken.store(true, Ordering::Release);
                            return Err(verdict);
                        }
                    }
                    if cx.elapsed() - start > deadline {
                        broken.store(true, Ordering::Release);
                        if done < EACH {
                            fail!(
                                "saw client {client} with {done} of its {EACH} increments after {tries} tries in {} s, while \
                                 others went on",
                                deadline.as_secs_f64()
                            );
                        }
                    }
                    tokio::task::yield_now().await;
                }
                Ok(done)
            })
        })
        .collect();
    let done = Racers::new(&cx, CLIENTS).run(legs).await?;
    ensure!(done.iter().all(|done| *done >= EACH), "saw clients with {done:?} increments, not {EACH} each");
    let entry = handles[0].entry(&name).await?;
    ensure_eq!(number(&entry)?, done.iter().sum::<u64>(), "the value after all increments");
    ensure_eq!(entry.version().count(), done.iter().sum::<u64>(), "the count after all increments");
    Ok(())
}
