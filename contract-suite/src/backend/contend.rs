//! B19 to B22, B25: clients that want the same keys at one instant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use coord_core::{Assert, Backend, Entry, Key, Mutation, Version, criteria};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::probe::{Probe, key};
use crate::race::{Contest, Leg, Lockstep, Racers, Step};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B19",
        layer: Layer::Backend,
        promise: "N racers assert one version: exactly one wins and the version moves by one (the exported `concurrent_txn` criterion); \
                  likewise N racers that create one absent key",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(one_winner(cx)),
    },
    Clause {
        id: "B20",
        layer: Layer::Backend,
        promise: "write skew: two transactions that assert both keys and write (or delete) one each, absent or present: exactly one is \
                  applied",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(write_skew(cx)),
    },
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

async fn one_winner(cx: Context) -> Outcome {
    let handles = cx.handles(4).await?;
    // The exported criterion, over tasks of one runtime: the key is absent in its first round and present in the next ones.
    for name in 0..3 {
        let name = key(format!("criterion/{name}"));
        for round in cx.rounds(5, 40) {
            criteria::concurrent_txn(&handles, &name, 16)
                .await
                .at(format!("concurrent_txn, round {round}"))?;
            criteria::concurrent_txn(&handles[..1], &name, 8).await.at("concurrent_txn over one handle")?;
        }
    }
    // The same over threads that are abreast at each of many keys: puts of present keys, creations of absent ones, deletes.
    for racers in [2, 3] {
        let mut threads = Racers::new(&cx, racers);
        let mut contest = Contest::new(&cx, 3, 2_000, Duration::from_secs(1));
        while let Some(round) = contest.another() {
            let steps = abreast(&cx, &handles, &mut threads, racers, round)
                .await
                .at(format!("{racers} racers, round {round}"))?;
            contest.count(&steps);
        }
    }
    Ok(())
}

const ABREAST: usize = 12;

async fn abreast(
    cx: &Context,
    handles: &[Arc<dyn Backend>],
    threads: &mut Racers<Vec<Step>>,
    racers: usize,
    round: usize,
) -> Result<Vec<Vec<Step>>, Verdict> {
    // Of each three keys one is put, one put or created, and one deleted or created.
    let names: Vec<Key> = (0..ABREAST).map(|n| key(format!("race/{n}"))).collect();
    let snapshot = handles[0].look(&names).await?;
    let before: Vec<Version> =
        names.iter().map(|name| snapshot.get(name).map_or(Version::MISSING, Entry::version)).collect();
    let deletes = |n: usize| n % 3 == 2 && !before[n].is_missing();
    let steps = Lockstep::new(cx, racers, ABREAST);
    let legs: Vec<Leg<Vec<Step>>> = (0..racers)
        .map(|racer| -> Leg<Vec<Step>> {
            let (handle, steps) = (handles[racer].clone(), steps.clone());
            let todo: Vec<(Assert, Mutation)> = (names.iter().enumerate())
                .map(|(n, name)| {
                    let mutation = if deletes(n) {
                        Mutation::delete(name.clone())
                    } else {
                        Mutation::put(name.clone(), format!("{racer} {round}"))
                    };
                    (Assert::version(name.clone(), before[n]), mutation)
                })
                .collect();
            Box::pin(async move {
                let mut outcomes = Vec::with_capacity(todo.len());
                for (n, (assert, mutation)) in todo.into_iter().enumerate() {
                    outcomes.push(steps.step(n, &*handle, &[assert], mutation).await?);
                }
                Ok(outcomes)
            })
        })
        .collect();
    let outcomes = threads.run(legs).await?;
    for handle in &handles[..2] {
        let snapshot = handle.look(&names).await?;
        for (n, name) in names.iter().enumerate() {
            let won: Vec<usize> =
                (0..racers).filter(|racer| outcomes[*racer][n].outcome.is_applied()).collect();
            let [winner] = won[..] else {
                fail!("saw {} of {racers} racers win that asserted {}", won.len(), before[n]);
            };
            let entry = snapshot.require(name)?;
            if deletes(n) {
                ensure_eq!(
                    *entry,
                    Entry::Absent,
                    "the entry of a key that one of {racers} racers has deleted"
                );
                continue;
            }
            let version = entry.version();
            let moved = before[n].next().map_or(version.count() == 1, |next| version == next);
            ensure!(moved, "saw the version move from {} to {version}, not by one", before[n]);
            ensure_eq!(
                entry.value().map(|value| &value[..]),
                Some(format!("{winner} {round}").as_bytes()),
                "the value, which must be the winner's"
            );
        }
    }
    Ok(outcomes)
}

/// What two keys are before the race.
#[derive(Clone, Copy, Debug)]
enum Before {
    Present,
    Absent,
    OneOfEach,
}

/// What each of two racers asserts.
#[derive(Clone, Copy, Debug)]
enum Asserted {
    /// Both keys.
    Both,
    /// Only the key that the other one writes.
    TheOthers,
    /// Both keys, after 46 others that nobody writes.
    BothAndMore,
}

/// How many pairs of keys two racers go through abreast in one round.
const PAIRS: usize = 12;

async fn write_skew(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let more: Vec<Key> = (0..46).map(|n| key(format!("more/{n:02}"))).collect();
    let puts: Vec<Mutation> = more.iter().step_by(2).map(|key| Mutation::put(key.clone(), "x")).collect();
    handles[0].commit(&[], &puts).await?;
    let snapshot = handles[0].look(&more).await?;
    let more: Vec<Assert> =
        snapshot.iter().map(|(name, entry)| Assert::version(name.clone(), entry.version())).collect();
    let mut threads = Racers::new(&cx, 2);
    for before in [Before::Present, Before::Absent, Before::OneOfEach] {
        for deleting in [false, true] {
            if deleting && matches!(before, Before::Absent) {
                continue;
            }
            for asserted in [Asserted::Both, Asserted::TheOthers, Asserted::BothAndMore] {
                let skew = Skew { before, deleting, asserted, more: more.clone() };
                let place = format!(
                    "{before:?}, {}, asserting {asserted:?}",
                    if deleting { "deleting" } else { "putting" }
                );
                skew.run(&cx, &handles, &mut threads).await.at(place)?;
            }
        }
    }
    Ok(())
}

struct Skew {
    before: Before,
    deleting: bool,
    asserted: Asserted,
    more: Vec<Assert>,
}

impl Skew {
    async fn run(
        &self,
        cx: &Context,
        handles: &[Arc<dyn Backend>],
        threads: &mut Racers<Vec<Step>>,
    ) -> Outcome {
        let pairs: Vec<[Key; 2]> =
            (0..PAIRS).map(|n| [key(format!("skew/{n}/x")), key(format!("skew/{n}/y"))]).collect();
        let names = pairs.as_flattened();
        let mut contest = Contest::new(cx, 3, 400, Duration::from_millis(300));
        while let Some(round) = contest.another() {
            let setup: Vec<Mutation> = (names.iter().enumerate())
                .map(|(n, name)| {
                    let present = match self.before {
                        Before::Present => true,
                        Before::Absent => false,
                        Before::OneOfEach => (n + n / 2 + round) % 2 == 0,
                    };
                    if present { Mutation::put(name.clone(), "0") } else { Mutation::delete(name.clone()) }
                })
                .collect();
            handles[0].commit(&[], &setup).await?;
            let snapshot = handles[1].look(names).await?;
            let versions: Vec<[Version; 2]> = (pairs.iter())
                .map(|pair| {
                    pair.each_ref().map(|name| snapshot.get(name).map_or(Version::MISSING, Entry::version))
                })
                .collect();
            let steps = Lockstep::new(cx, 2, PAIRS);
            let legs: Vec<Leg<Vec<Step>>> = (0..2)
                .map(|racer| self.leg(handles[racer].clone(), &pairs, &versions, racer, steps.clone()))
                .collect();
            let outcomes = threads.run(legs).await?;
            contest.count(&outcomes);
            let after = handles[round % 2].look(names).await?;
            for (n, (pair, versions)) in pairs.iter().zip(&versions).enumerate() {
                let won: Vec<usize> =
                    (0..2).filter(|racer| outcomes[*racer][n].outcome.is_applied()).collect();
                let [winner] = won[..] else {
                    fail!(
                        "saw {} of two transactions applied in round {round}, where each asserts what the other one writes",
                        won.len()
                    );
                };
                let (theirs, ours) = (&pair[1 - winner], &pair[winner]);
                ensure_eq!(
                    after.require(theirs)?.version(),
                    versions[1 - winner],
                    "the version of the key that the loser wanted to write"
                );
                ensure!(
                    after.require(ours)?.version() != versions[winner],
                    "saw the winner's key unmoved at {}",
                    versions[winner]
                );
            }
        }
        Ok(())
    }

    /// One racer's way through all pairs. The racers name the keys in opposite orders.
    fn leg(
        &self,
        handle: Arc<dyn Backend>,
        pairs: &[[Key; 2]],
        versions: &[[Version; 2]],
        racer: usize,
        steps: Arc<Lockstep>,
    ) -> Leg<Vec<Step>> {
        let mut todo = Vec::new();
        for (pair, versions) in pairs.iter().zip(versions) {
            let mut asserts = match self.asserted {
                Asserted::BothAndMore => self.more.clone(),
                _ => Vec::new(),
            };
            let order = if racer == 0 { [0, 1] } else { [1, 0] };
            for n in
                order.into_iter().filter(|n| !matches!(self.asserted, Asserted::TheOthers) || *n != racer)
            {
                asserts.push(Assert::version(pair[n].clone(), versions[n]));
            }
            let own = pair[racer].clone();
            // A delete of an absent key changes nothing, so it would not be in the other one's way.
            let mutation = if self.deleting && !versions[racer].is_missing() {
                Mutation::delete(own)
            } else {
                Mutation::put(own, racer.to_string())
            };
            todo.push((asserts, mutation));
        }
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(todo.len());
            for (n, (asserts, mutation)) in todo.into_iter().enumerate() {
                outcomes.push(steps.step(n, &*handle, &asserts, mutation).await?);
            }
            Ok(outcomes)
        })
    }
}

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
