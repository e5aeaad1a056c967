//! B23: the largest transactions are as whole as the smallest.

use std::sync::Arc;

use coord_core::{Assert, Key, Mutation, TxnOutcome, limits};
use rand::Rng as _;
use rand::seq::SliceRandom as _;

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::probe::{Contents, Probe, key, same_contents};
use crate::race::{Leg, Racers, Storm};
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B23",
    layer: Layer::Backend,
    promise: "48 asserts and 3,000 mutations apply or reject as one, also from 8 clients at a time",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(as_one(cx)),
}];

const MUTATIONS: usize = limits::TXN_MUTATIONS;

fn name(n: usize) -> Key {
    key(format!("large/{n:04}"))
}

fn stamped(stamp: &str) -> Vec<Mutation> {
    (0..MUTATIONS).map(|n| Mutation::put(name(n), stamp.to_owned())).collect()
}

async fn as_one(cx: Context) -> Outcome {
    alone(&cx).await?;
    bytes(&cx).await?;
    in_sight(&cx).await.at("in the sight of readers")?;
    eight_clients(&cx).await.at("8 clients")
}

/// 48 asserts, half on present keys and half on absent ones; 3,000 mutations that create, change and delete.
async fn alone(cx: &Context) -> Outcome {
    let handles = cx.handles(2).await?;
    // Every third key is there to be changed, every third one to be deleted, every third one to be created.
    let there: Vec<Mutation> =
        (0..MUTATIONS).filter(|n| n % 3 != 2).map(|n| Mutation::put(name(n), format!("old {n}"))).collect();
    handles[0].commit(&[], &there).await?;
    let guards: Vec<Key> = (0..24).map(|n| key(format!("guard/{n:02}"))).collect();
    let puts: Vec<Mutation> = guards.iter().map(|key| Mutation::put(key.clone(), "x")).collect();
    handles[0].commit(&[], &puts).await?;
    let before = handles[1].contents().await?;
    ensure_eq!(before.len(), 2_000 + 24, "the keys that are there");

    let mut rng = cx.rng(1);
    let mut mutations: Vec<Mutation> =
        (0..MUTATIONS)
            .map(|n| {
                if n % 3 == 0 {
                    Mutation::delete(name(n))
                } else {
                    Mutation::put(name(n), format!("new {n}"))
                }
            })
            .collect();
    mutations.shuffle(&mut rng);
    let mut asserts: Vec<Assert> = guards
        .iter()
        .map(|key| Assert::version(key.clone(), before[key].version()))
        .chain((0..12).map(|n| Assert::missing(key(format!("none/{n:02}")))))
        // Some are on keys that are written, wherever those are among the 3,000.
        .chain([2_999, 2_000, 5, 1_001].map(|n| Assert::missing(name(n)).or_version(&before)))
        .chain([0, 1_500, 1, 2_998].map(|n| Assert::missing(name(n)).or_version(&before)))
        .chain((12..16).map(|n| Assert::missing(key(format!("none/{n:02}")))))
        .collect();
    asserts.shuffle(&mut rng);
    ensure_eq!(asserts.len(), limits::TXN_ASSERTS, "asserts that the suite makes");

    for failing in [0, 1, 23, 46, 47] {
        let mut wrong = asserts.clone();
        let version = &mut wrong[failing];
        *version = if version.version.is_missing() {
            Assert::version(version.key.clone(), before[&guards[0]].version())
        } else {
            Assert::missing(version.key.clone())
        };
        handles[failing % 2].refuse(&wrong, &mutations).await.at(format!("assert {failing} fails"))?;
        same_contents(&handles[(failing + 1) % 2].contents().await?, &before)
            .at(format!("assert {failing} fails"))?;
    }
    handles[1].commit(&asserts, &mutations).await?;
    let after = handles[0].contents().await?;
    for n in 0..MUTATIONS {
        let (was, is) = (before.get(&name(n)), after.get(&name(n)));
        if n % 3 == 0 {
            ensure!(is.is_none(), "saw {:?} after it was deleted among 3,000", name(n));
            continue;
        }
        let Some(is) = is else { crate::fail!("saw no {:?} after it was put among 3,000", name(n)) };
        ensure_eq!(
            is.value().map(|v| &v[..]),
            Some(format!("new {n}").as_bytes()),
            "the value of {:?}",
            name(n)
        );
        match was {
            Some(was) => ensure_eq!(Some(is.version()), was.version().next(), "the version of {:?}", name(n)),
            None => ensure_eq!(is.version().count(), 1, "the count of {:?}, created among 3,000", name(n)),
        }
    }
    for guard in &guards {
        ensure_eq!(after[guard], before[guard], "the entry of {guard:?}, which was only asserted");
    }
    ensure_eq!(after.len(), 2_000 + 24, "the keys that are there afterwards");
    let all: Vec<Mutation> = after.keys().map(|key| Mutation::delete(key.clone())).collect();
    handles[0].commit(&[], &all).await.at("deleting all")?;
    same_contents(&handles[1].contents().await?, &Contents::new()).at("after all were deleted")
}

trait OrVersion {
    fn or_version(self, contents: &Contents) -> Assert;
}

impl OrVersion for Assert {
    /// The version that the key has in these contents, `missing` if it is not there.
    fn or_version(self, contents: &Contents) -> Assert {
        match contents.get(&self.key) {
            Some(entry) => Assert::version(self.key, entry.version()),
            None => self,
        }
    }
}

/// Exactly 1 MiB of keys and values: as two large values, as 1,024 keys of 1,024 bytes, as 48 asserted keys and 1,900 small values.
async fn bytes(cx: &Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let mut rng = cx.rng(2);
    let mut random = vec![0; limits::VALUE_BYTES];
    rng.fill_bytes(&mut random);
    let (a, b) = (key("a"), key("b"));
    let pair = [
        Mutation::put(a.clone(), random[..limits::VALUE_BYTES - 1].to_vec()),
        Mutation::put(b.clone(), random[1..].to_vec()),
    ];
    handles[0].commit(&[], &pair).await.at("1 MiB in two values")?;
    let contents = handles[1].contents().await?;
    ensure!(
        contents[&a].value().is_some_and(|value| value[..] == random[..limits::VALUE_BYTES - 1])
            && contents[&b].value().is_some_and(|value| value[..] == random[1..]),
        "saw other values than those of 1 MiB that were put in one transaction"
    );
    // A rejection of the same size.
    handles[1]
        .refuse(
            &[Assert::missing(a.clone())],
            &[pair[0].clone(), Mutation::put(b.clone(), random[..limits::VALUE_BYTES - 2].to_vec())],
        )
        .await?;
    same_contents(&handles[0].contents().await?, &contents).at("after 1 MiB was rejected")?;
    handles[0].commit(&[], &[Mutation::delete(a), Mutation::delete(b)]).await?;

    let long = |n: usize| {
        let mut text = format!("{n:04}/");
        // Not compressible, and of more than one byte a character here and there.
        let mut state = n as u64 + 1;
        while text.len() < limits::KEY_BYTES {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let letter = char::from(b'!' + (state >> 33) as u8 % 94);
            text.push(if state >> 60 == 0 && text.len() + 2 <= limits::KEY_BYTES { 'é' } else { letter });
        }
        key(text)
    };
    let keys: Vec<Key> = (0..1_024).map(long).collect();
    let puts: Vec<Mutation> = keys.iter().map(|key| Mutation::put(key.clone(), "")).collect();
    handles[0].commit(&[], &puts).await.at("1 MiB in 1,024 keys")?;
    let contents = handles[1].contents().await.at("1,024 keys of 1,024 bytes")?;
    ensure!(
        contents.keys().eq(&keys),
        "saw {} other keys than the 1,024 long ones that were put",
        contents.len()
    );
    let asserts: Vec<Assert> =
        keys[..48].iter().map(|key| Assert::version(key.clone(), contents[key].version())).collect();
    let deletes: Vec<Mutation> = keys[..976].iter().map(|key| Mutation::delete(key.clone())).collect();
    handles[1].commit(&asserts, &deletes).await.at("1 MiB in 48 asserted and 976 deleted keys")?;
    let rest = handles[0].contents().await?;
    ensure!(rest.keys().eq(&keys[976..]), "saw {} keys left, not those that were not deleted", rest.len());
    let deletes: Vec<Mutation> = keys[976..].iter().map(|key| Mutation::delete(key.clone())).collect();
    handles[1].commit(&[], &deletes).await
}

/// Readers never see a part of a large transaction, neither in a snapshot nor in a listing.
async fn in_sight(cx: &Context) -> Outcome {
    let handles = cx.handles(3).await?;
    let probes: Vec<Key> =
        [0, 1, 40, 63, 64, 99, 127, 128, 255, 256, 499, 500, 511, 512, 999, 1_000, 1_001, 1_499, 1_500]
            .into_iter()
            .chain((1_600..MUTATIONS).step_by(133))
            .chain([2_046, 2_048, 2_998, 2_999])
            .map(name)
            .collect();
    // Odd rounds delete what even rounds create, so that listings change too.
    let writer = handles[0].clone();
    let (reader, lister) = (handles[1].clone(), handles[2].clone());
    Storm::new(cx)
        .writer(move |n| {
            let writer = writer.clone();
            Box::pin(async move {
                if n % 3 == 2 {
                    let all: Vec<Mutation> = (0..MUTATIONS).map(|n| Mutation::delete(name(n))).collect();
                    writer.commit(&[], &all).await
                } else {
                    writer.commit(&[], &stamped(&n.to_string())).await
                }
            })
        })
        .reader(move |_| {
            let (reader, probes) = (reader.clone(), probes.clone());
            Box::pin(async move {
                let snapshot = reader.look(&probes).await?;
                let first = snapshot.require(&probes[0])?.value().cloned();
                for (name, entry) in snapshot.iter() {
                    ensure_eq!(
                        entry.value(),
                        first.as_ref(),
                        "the value of {name:?} in one snapshot with {:?}, where each transaction writes 3,000 keys",
                        probes[0]
                    );
                }
                Ok(first.map_or(0, |value| value.iter().fold(1, |sum, byte| sum * 31 + u64::from(*byte))))
            })
        })
        .reader(move |n| {
            let lister = lister.clone();
            Box::pin(async move {
                let listed = lister.list("large/").await?;
                ensure!(
                    listed.is_empty() || listed.len() == MUTATIONS,
                    "saw {} of 3,000 keys listed, which one transaction creates or deletes",
                    listed.len()
                );
                // Only snapshots tell the states apart.
                Ok(n)
            })
        })
        .blow()
        .await?;
    let all: Vec<Mutation> = (0..MUTATIONS).map(|n| Mutation::delete(name(n))).collect();
    handles[0].commit(&[], &all).await
}

/// Eight clients write all 3,000 keys at one instant: with asserts one of them is applied; without any, all are, each whole.
async fn eight_clients(cx: &Context) -> Outcome {
    const CLIENTS: usize = 8;
    let handles = cx.handles(CLIENTS).await?;
    let guards: Arc<Vec<Key>> =
        Arc::new((0..limits::TXN_ASSERTS).map(|n| key(format!("gen/{n:02}"))).collect());
    let puts: Vec<Mutation> = guards.iter().map(|key| Mutation::put(key.clone(), "0")).collect();
    handles[0].commit(&[], &puts).await?;
    let mut threads = Racers::new(cx, CLIENTS);
    let mut count = 0;
    for round in cx.rounds(6, 12) {
        let conditional = round % 2 == 0;
        let snapshot = handles[0].look(&guards).await?;
        let mut asserts = Vec::new();
        for guard in guards.iter().filter(|_| conditional) {
            asserts.push(Assert::version(guard.clone(), snapshot.require(guard)?.version()));
        }
        let legs: Vec<Leg<TxnOutcome>> = (0..CLIENTS)
            .map(|client| -> Leg<TxnOutcome> {
                let (handle, asserts) = (handles[client].clone(), asserts.clone());
                let mut puts = stamped(&format!("{round} {client}"));
                // One of the asserted keys is written in place of the last one, so that the next one to come is rejected.
                if conditional {
                    puts[MUTATIONS - 1] = Mutation::put(guards[client * 6].clone(), "1");
                }
                // In another order by each client.
                puts.rotate_left(client * 371);
                Box::pin(async move { handle.attempt(&asserts, &puts).await })
            })
            .collect();
        let outcomes = threads.run(legs).await?;
        let applied = outcomes.iter().filter(|outcome| outcome.is_applied()).count();
        ensure_eq!(
            applied,
            if conditional { 1 } else { CLIENTS },
            "how many of 8 clients were applied in round {round}"
        );
        count += applied as u64;
        let names: Vec<Key> = (0..MUTATIONS - 1).map(name).collect();
        let snapshot = handles[round % CLIENTS].look(&names).await?;
        let first = snapshot.require(&names[0])?.value().cloned();
        for (name, entry) in snapshot.iter() {
            ensure_eq!(entry.value(), first.as_ref(), "the value of {name:?} beside that of {:?}", names[0]);
            ensure_eq!(
                entry.version().count(),
                count,
                "the count of {name:?} after {count} large transactions"
            );
        }
    }
    Ok(())
}
