//! B19, B20: clients that assert the same versions at one instant.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coord_core::{Assert, Backend, Entry, Key, Mutation, Version, criteria};

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
        let mut contest = Contest::new(&cx, 3, 600, Duration::from_millis(1_500));
        while let Some(round) = contest.another() {
            let steps = abreast(&cx, &handles, &mut threads, racers, round)
                .await
                .at(format!("{racers} racers, round {round}"))?;
            contest.count(&steps);
        }
    }
    applied_once(&cx, 1).await
}

/// Clients that look, and write what they have looked at, without a pause: no two of them may be applied on the same versions. With one key
/// this is the race for a version, with two, of which each client writes its own, write skew. Where threads seldom run at the same time,
/// one is stopped between check and write sooner or later, and others pass it by.
async fn applied_once(cx: &Context, keys: usize) -> Outcome {
    const CLIENTS: usize = 6;
    const LOST: usize = 300;
    let lost = Arc::new(AtomicUsize::new(0));
    let names: Vec<Key> = (0..keys).map(|n| key(format!("once/{keys}/{n}"))).collect();
    let handles = cx.handles(CLIENTS).await?;
    let puts: Vec<Mutation> = names.iter().map(|name| Mutation::put(name.clone(), "0")).collect();
    handles[0].commit(&[], &puts).await?;
    let legs: Vec<Leg<Vec<Vec<Version>>>> = (0..CLIENTS)
        .map(|client| -> Leg<Vec<Vec<Version>>> {
            let (handle, names, cx) = (handles[client].clone(), names.clone(), cx.clone());
            let lost = lost.clone();
            Box::pin(async move {
                let own = names[client % names.len()].clone();
                let mut applied = Vec::new();
                for round in cx.rounds_within(Duration::from_secs(3), 20, usize::MAX) {
                    // Enough races were lost, so they were races.
                    if round > 200 && lost.load(Ordering::Relaxed) >= LOST {
                        break;
                    }
                    let snapshot = handle.look(&names).await?;
                    let asserts: Vec<Assert> = (snapshot.iter())
                        .map(|(name, entry)| Assert::version(name.clone(), entry.version()))
                        .collect();
                    let put = Mutation::put(own.clone(), format!("{client} {round}"));
                    if handle.attempt(&asserts, &[put]).await?.is_applied() {
                        applied.push(asserts.into_iter().map(|assert| assert.version).collect());
                    } else {
                        lost.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok(applied)
            })
        })
        .collect();
    let mut applied = Racers::new(cx, CLIENTS).run(legs).await?.concat();
    applied.sort();
    if let Some(twice) = applied.windows(2).find(|pair| pair[0] == pair[1]) {
        fail!("saw two transactions applied that both asserted {:?} and wrote one of them", twice[0]);
    }
    ensure!(!applied.is_empty(), "saw no transaction applied of all that were tried");
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
    applied_once(&cx, 2).await
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
