//! B10, B15, B17: what an applied transaction does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coord_core::{Assert, Backend, Entry, Key, Mutation, Version};
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::{Context, remove_all};
use crate::probe::{Contents, Probe, key, put, same_contents};
use crate::race::{Leg, Racers, Storm};
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B10",
        layer: Layer::Backend,
        promise: "all asserts hold: every mutation is applied and every written key's version is the successor",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(applied(cx)),
    },
    Clause {
        id: "B15",
        layer: Layer::Backend,
        promise: "no asserts: unconditional; no mutations: a pure check that moves nothing; neither: `Applied`",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(without_asserts_or_mutations(cx)),
    },
    Clause {
        id: "B17",
        layer: Layer::Backend,
        promise: "writing equal bytes still moves the version",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(equal_bytes(cx)),
    },
];

async fn applied(cx: Context) -> Outcome {
    counts_are_each_keys_own(&cx).await?;
    kinds_of_transactions(&cx).await?;
    walk(&cx).await?;
    side_by_side(&cx).await.at("while others write")
}

/// Keys that were written a different number of times move by one each, and only those that are written.
async fn counts_are_each_keys_own(cx: &Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let keys: Vec<Key> = (0..4).map(|n| key(format!("own/{n}"))).collect();
    for (n, name) in keys.iter().enumerate() {
        for write in 0..=n * 2 {
            handles[write % 2].commit(&[], &[Mutation::put(name.clone(), write.to_string())]).await?;
        }
    }
    for (n, name) in keys.iter().enumerate() {
        let version = handles[n % 2].version(name).await?;
        let writes = n as u64 * 2 + 1;
        ensure_eq!(version.count(), writes, "the count of {name:?}, which was written {writes} times");
    }
    let before = handles[0].contents().await?;
    handles[1]
        .commit(&[], &[Mutation::put(keys[0].clone(), "x"), Mutation::put(keys[2].clone(), "y")])
        .await?;
    let mut expected = before.clone();
    for (name, value) in [(&keys[0], "x"), (&keys[2], "y")] {
        let version = before[name].version().next().expect("a count far from its end");
        expected.insert(name.clone(), Entry::Present { version, value: value.into() });
    }
    same_contents(&handles[0].contents().await?, &expected).at("after two of four keys were written")?;
    remove_all(&*handles[0]).await
}

/// Each kind of mutation, on asserted and on other keys, alone and together.
async fn kinds_of_transactions(cx: &Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let (a, b, c, d) = (key("a"), key("b"), key("c"), key("d"));
    handles[0].commit(&[Assert::missing(a.clone())], &[put("a", "1")]).await.at("creating one key")?;
    let created = handles[1].version(&a).await?;
    ensure!(created.count() == 1 && !created.is_missing(), "saw a created key with the version {created}");
    handles[1]
        .commit(
            &[Assert::version(a.clone(), created), Assert::missing(b.clone()), Assert::missing(c.clone())],
            &[put("b", "1"), put("a", "2"), put("c", "1")],
        )
        .await
        .at("changing a key and creating two")?;
    let before = handles[0].contents().await?;
    ensure_eq!(before.len(), 3, "the keys that are there");
    ensure_eq!(Some(before[&a].version()), created.next(), "the version of the changed key");
    for name in [&b, &c] {
        ensure_eq!(before[name].version().count(), 1, "the count of the created key {name:?}");
    }
    // One is deleted though asserted, one changed, one created, one only asserted, all at once.
    handles[0]
        .commit(
            &[
                Assert::version(b.clone(), before[&b].version()),
                Assert::version(c.clone(), before[&c].version()),
                Assert::missing(d.clone()),
            ],
            &[Mutation::delete(b.clone()), put("d", "1"), put("a", "3")],
        )
        .await
        .at("a delete, a creation and a change in one")?;
    let after = handles[1].contents().await?;
    ensure_eq!(after.keys().collect::<Vec<_>>(), [&a, &c, &d], "the keys that are there afterwards");
    ensure_eq!(Some(after[&a].version()), before[&a].version().next(), "the version of the changed key");
    ensure_eq!(after[&c], before[&c], "the entry of the key that was only asserted");
    ensure_eq!(after[&d].version().count(), 1, "the count of the created key");
    ensure_eq!(after[&a].value().map(|value| &value[..]), Some(&b"3"[..]), "the value of the changed key");
    // A deleted key is put again in a transaction that also writes others.
    let dead = before[&b].version();
    handles[1]
        .commit(&[Assert::missing(b.clone())], &[put("a", "4"), put("b", "again"), put("d", "2")])
        .await?;
    let again = handles[0].contents().await?;
    ensure!(
        again[&b].version().count() == 1 && again[&b].version().incarnation() != dead.incarnation(),
        "saw the version {} of a key created again, whose last life ended at {dead}",
        again[&b].version()
    );
    ensure_eq!(
        Some(again[&d].version()),
        after[&d].version().next(),
        "the version of another key written with it"
    );
    handles[0]
        .commit(
            &[
                Assert::version(a.clone(), again[&a].version()),
                Assert::version(d.clone(), again[&d].version()),
            ],
            &[Mutation::delete(a), Mutation::delete(d), Mutation::delete(b)],
        )
        .await
        .at("three deletes")?;
    let last = handles[1].contents().await?;
    ensure_eq!(last.keys().collect::<Vec<_>>(), [&c], "the keys left");
    Ok(())
}

/// Random transactions whose asserts hold, each compared with what it must do to everything that is there.
async fn walk(cx: &Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let keys: Vec<Key> = (0..7).map(|n| key(format!("walk/{n}"))).collect();
    let mut rng = cx.rng(1);
    let mut expected = handles[0].contents().await?;
    let mut used: BTreeSet<(Key, u64)> = BTreeSet::new();
    for round in cx.rounds(80, 800) {
        let (writer, reader) = (&handles[round % 2], &handles[(round + 1) % 2]);
        let (asserted, written) = (rng.random_range(0..=4), rng.random_range(0..=5));
        let asserts: Vec<Assert> = keys
            .sample(&mut rng, asserted)
            .map(|key| Assert::version(key.clone(), version_in(&expected, key)))
            .collect();
        let mutations: Vec<Mutation> = keys
            .sample(&mut rng, written)
            .map(|key| {
                if rng.random_bool(0.35) {
                    Mutation::delete(key.clone())
                } else {
                    // Few different values, so that equal bytes are written too.
                    Mutation::put(key.clone(), rng.random_range(0..3).to_string())
                }
            })
            .collect();
        writer.commit(&asserts, &mutations).await?;
        let seen = reader.contents().await?;
        for mutation in &mutations {
            let name = mutation.key();
            let Some(value) = mutation.value() else {
                expected.remove(name);
                continue;
            };
            let version = match expected.get(name) {
                Some(entry) => entry.version().next().expect("a count far from its end"),
                None => {
                    let version = version_in(&seen, name);
                    ensure_eq!(version.count(), 1, "the count of {name:?}, which has come into being");
                    ensure!(
                        used.insert((name.clone(), version.incarnation())),
                        "saw {name:?} created with the incarnation of an earlier life: {version}"
                    );
                    version
                }
            };
            expected.insert(name.clone(), Entry::Present { version, value: value.clone() });
        }
        same_contents(&seen, &expected).at(format!("after {asserts:?} and {mutations:?}"))?;
    }
    Ok(())
}

/// How often a client has put the shared key, and what it has seen there.
type Seen = (u64, Vec<(Version, Vec<u8>)>);

/// Clients put one key unconditionally, and each a key of its own by compare-and-set, which nobody else can make fail.
async fn side_by_side(cx: &Context) -> Outcome {
    const CLIENTS: usize = 3;
    let handles = cx.handles(CLIENTS).await?;
    let shared = key("shared");
    let legs: Vec<Leg<Seen>> = (0..CLIENTS)
        .map(|client| -> Leg<Seen> {
            let (handle, shared, cx) = (handles[client].clone(), shared.clone(), cx.clone());
            Box::pin(async move {
                let own = key(format!("own/{client}"));
                let (mut last, mut written, mut seen) = (Version::MISSING, 0, Vec::new());
                for round in cx.rounds(30, 3_000) {
                    let unique = format!("{client} {round}");
                    handle.commit(&[], &[Mutation::put(shared.clone(), unique.clone())]).await?;
                    written += 1;
                    let asserts = [Assert::version(own.clone(), last)];
                    handle
                        .commit(&asserts, &[Mutation::put(own.clone(), unique)])
                        .await
                        .at("a key that nobody else touches")?;
                    let snapshot = handle.look(&[own.clone(), shared.clone()]).await?;
                    let now = snapshot.require(&own)?.version();
                    ensure!(
                        last.next().map_or(now.count() == 1, |next| now == next),
                        "saw the version of a key that nobody else touches move from {last} to {now}"
                    );
                    last = now;
                    if let Entry::Present { version, value } = snapshot.require(&shared)? {
                        seen.push((*version, value.to_vec()));
                    }
                }
                Ok((written, seen))
            })
        })
        .collect();
    let results = Racers::new(cx, CLIENTS).run(legs).await?;
    let written: u64 = results.iter().map(|(written, _)| written).sum();
    ensure_eq!(
        handles[0].version(&shared).await?.count(),
        written,
        "the count of a key that was put so often, unconditionally, by several clients"
    );
    let mut values = BTreeMap::new();
    for (version, value) in results.into_iter().flat_map(|(_, seen)| seen) {
        let first = values.entry(version).or_insert_with(|| value.clone());
        ensure!(*first == value, "saw the version {version} with two values");
    }
    Ok(())
}

fn version_in(contents: &Contents, key: &Key) -> Version {
    contents.get(key).map_or(Version::MISSING, Entry::version)
}

async fn without_asserts_or_mutations(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let (a, b) = (key("a"), key("b"));
    handles[0].commit(&[], &[]).await.at("neither, in an empty namespace")?;
    ensure_eq!(handles[1].contents().await?.len(), 0, "keys after a transaction without mutations");
    // Unconditional: over an absent key, a present one, one that another handle has written, and one that was deleted.
    let mut last = handles[0].set(&a, "1").await?;
    ensure_eq!(last.count(), 1, "the count of a key that an unconditional put has created");
    for round in 0..4 {
        let now = handles[(round + 1) % 2].set(&a, &round.to_string()).await?;
        ensure_eq!(Some(now), last.next(), "the version after an unconditional put");
        last = now;
    }
    handles[1]
        .commit(&[], &[put("b", "1"), Mutation::delete(a.clone())])
        .await
        .at("an unconditional delete")?;
    ensure!(!handles[0].entry(&a).await?.is_present(), "saw a key that was deleted unconditionally");
    handles[0].set(&a, "again").await?;
    handles[0]
        .commit(&[], &[Mutation::delete(key("never"))])
        .await
        .at("an unconditional delete of an absent key")?;

    let before = handles[0].contents().await?;
    let (va, vb) = (before[&a].version(), before[&b].version());
    let none = key("none");
    let many: Vec<Assert> = (0..24)
        .flat_map(|n| [Assert::missing(key(format!("none/{n}"))), Assert::version(a.clone(), va)])
        .collect();
    for handle in &handles {
        handle.commit(&[], &[]).await.at("neither")?;
        for holds in [
            vec![Assert::version(a.clone(), va)],
            vec![Assert::missing(none.clone())],
            vec![
                Assert::version(a.clone(), va),
                Assert::missing(none.clone()),
                Assert::version(b.clone(), vb),
            ],
            many.clone(),
        ] {
            handle.commit(&holds, &[]).await.at("a check that holds")?;
            same_contents(&handles[0].contents().await?, &before).at("after a check that holds")?;
        }
        for fails in [
            vec![Assert::version(a.clone(), last)],
            vec![Assert::missing(b.clone())],
            vec![Assert::version(none.clone(), va)],
            vec![Assert::version(a.clone(), va), Assert::missing(none.clone()), Assert::missing(b.clone())],
            vec![Assert::missing(a.clone()), Assert::missing(none.clone()), Assert::version(b.clone(), vb)],
        ] {
            handle.refuse(&fails, &[]).await.at("a check that does not hold")?;
            same_contents(&handles[1].contents().await?, &before).at("after a check that does not hold")?;
        }
    }
    judged_at_one_instant(&cx).await.at("checks of two keys that always move together")
}

/// Two keys that every write moves together never have the versions of two instants, so an assert of one each never holds.
async fn judged_at_one_instant(cx: &Context) -> Outcome {
    let handles = cx.handles(3).await?;
    let pair = [key("left"), key("right")];
    let both = |value: u64| pair.clone().map(|name| Mutation::put(name, value.to_string()));
    handles[0].commit(&[], &both(0)).await?;
    // The writer waits for a check to begin, and writes a little later, each time by another little.
    let begun = Arc::new(AtomicU64::new(0));
    let (writer, names, seen) = (handles[0].clone(), pair.clone(), begun.clone());
    let mut storm = Storm::new(cx).writer(move |n| {
        let (writer, puts) = (writer.clone(), names.clone().map(|name| Mutation::put(name, n.to_string())));
        let seen = seen.clone();
        Box::pin(async move {
            let before = seen.load(Ordering::Acquire);
            for _ in 0..2_000 {
                if seen.load(Ordering::Acquire) != before {
                    break;
                }
                std::thread::yield_now();
            }
            for _ in 0..(n % 16) * 40 {
                std::hint::spin_loop();
            }
            writer.commit(&[], &puts).await
        })
    });
    for handle in &handles[1..] {
        let (handle, pair, begun) = (handle.clone(), pair.clone(), begun.clone());
        storm = storm.reader(move |n| {
            let (handle, pair, begun) = (handle.clone(), pair.clone(), begun.clone());
            Box::pin(async move {
                let snapshot = handle.look(&pair).await?;
                let [left, right] =
                    pair.each_ref().map(|name| snapshot.get(name).map_or(Version::MISSING, Entry::version));
                // The next version of one of them, which it will have at the very moment at which the other one moves on too.
                let (Some(next_left), Some(next_right)) = (left.next(), right.next()) else {
                    crate::fail!("saw {left} and {right}, of keys that are never deleted");
                };
                let [l, r] = pair;
                let mut asserts = match n % 2 {
                    0 => vec![Assert::version(l, left), Assert::version(r, next_right)],
                    _ => vec![Assert::version(l, next_left), Assert::version(r, right)],
                };
                if n / 2 % 2 == 1 {
                    asserts.reverse();
                }
                let writes = [put("third", n.to_string())];
                begun.fetch_add(1, Ordering::AcqRel);
                handle.refuse(&asserts, &writes[..(n / 4 % 2) as usize]).await?;
                Ok(left.count())
            })
        });
    }
    storm.blow().await
}

async fn equal_bytes(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    for (n, value) in ["same", "", "0", "\0"].into_iter().enumerate() {
        moves_on_equal(&*handles[0], &*handles[1], &key(format!("k{n}")), value.as_bytes().to_vec())
            .await
            .at(format!("the value {value:?}"))?;
    }
    moves_on_equal(&*handles[0], &*handles[1], &key("large"), vec![7; 200_000])
        .await
        .at("a value of 200,000 bytes")?;
    // Among others that do change.
    handles[0].commit(&[], &[put("x", "1"), put("y", "1"), put("z", "1")]).await?;
    let before = handles[0].contents().await?;
    handles[1].commit(&[], &[put("x", "1"), put("y", "2"), put("z", "1")]).await?;
    let after = handles[0].contents().await?;
    for name in [key("x"), key("y"), key("z")] {
        ensure_eq!(
            Some(after[&name].version()),
            before[&name].version().next(),
            "the version of {name:?} after it was written, with equal bytes or others, beside others"
        );
    }
    Ok(())
}

async fn moves_on_equal(a: &dyn Backend, b: &dyn Backend, name: &Key, value: Vec<u8>) -> Outcome {
    a.commit(&[], &[Mutation::put(name.clone(), value.clone())]).await?;
    let mut last = a.version(name).await?;
    for round in 0..6 {
        let handle = if round % 2 == 0 { b } else { a };
        let write = [Mutation::put(name.clone(), value.clone())];
        if round < 3 {
            handle.commit(&[], &write).await?;
        } else {
            handle.commit(&[Assert::version(name.clone(), last)], &write).await?;
            handle
                .refuse(&[Assert::version(name.clone(), last)], &write)
                .await
                .at("asserting the version before")?;
        }
        let entry = a.entry(name).await?;
        ensure_eq!(Some(entry.version()), last.next(), "the version after equal bytes were written");
        ensure_eq!(
            entry.value().map(|value| &value[..]),
            Some(&value[..]),
            "the value after equal bytes were written"
        );
        last = entry.version();
    }
    Ok(())
}
