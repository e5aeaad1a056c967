//! B01, B03, B07: which entries a snapshot has, and its time.

use std::collections::BTreeMap;
use std::sync::Arc;

use coord_core::{Assert, Backend, Entry, Key, KeySet, Mutation, limits};
use rand::RngExt as _;

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::probe::{Probe, key, put};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B01",
        layer: Layer::Backend,
        promise: "an absent key is returned as absent; exactly the requested keys come back, duplicates once",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(requested_keys(cx)),
    },
    Clause {
        id: "B03",
        layer: Layer::Backend,
        promise: "an empty request is an empty answer (with the store's time)",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(empty_request(cx)),
    },
    Clause {
        id: "B07",
        layer: Layer::Backend,
        promise: "`store_time` is the store's: a client whose clock is an hour off gets the same one; a store without a clock never tells one",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(store_time(cx)),
    },
];

async fn requested_keys(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    for handle in &handles {
        let snapshot = handle.look(&[key("nothing"), key("at all")]).await.at("in an empty namespace")?;
        ensure!(
            snapshot.iter().all(|(_, entry)| *entry == Entry::Absent),
            "saw an entry in an empty namespace: {snapshot:?}"
        );
    }
    // Names that begin with one another, that differ in case, and that are neighbours in order.
    let names = ["a", "aa", "ab", "a/", "A", "b", "b!", "ba", "B", "c", "c/0", "c/00", "c/1", "z", "zz", "é"];
    let mut expected: BTreeMap<Key, Option<String>> = BTreeMap::new();
    for (n, name) in names.iter().enumerate() {
        // Every second one stays absent.
        let value = n.is_multiple_of(2).then(|| format!("the value of {name}"));
        if let Some(value) = &value {
            handles[n / 2 % 2].commit(&[], &[put(name, value.clone())]).await?;
        }
        expected.insert(key(name), value);
    }
    // One that was there, and one whose creation was rejected, are absent too.
    handles[0].set(&key("gone"), "x").await?;
    handles[1].unset(&key("gone")).await?;
    handles[0].refuse(&[Assert::missing(key("a"))], &[put("never", "x")]).await?;
    expected.extend([(key("gone"), None), (key("never"), None)]);
    let all: Vec<Key> = expected.keys().cloned().collect();
    let mut versions = BTreeMap::new();

    let mut requests = vec![all.clone(), all.iter().rev().cloned().collect(), vec![all[0].clone(); 7]];
    requests.extend(all.iter().map(|key| vec![key.clone()]));
    requests.extend(all.iter().map(|key| vec![key.clone(), all[0].clone(), key.clone()]));
    let mut rng = cx.rng(1);
    for _ in 0..60 {
        let length = rng.random_range(1..40);
        requests.push((0..length).map(|_| all[rng.random_range(0..all.len())].clone()).collect());
    }
    for (n, request) in requests.iter().enumerate() {
        let snapshot = handles[n % 2].look(request).await?;
        for (key, entry) in snapshot.iter() {
            let (seen, wanted) = (entry.value(), expected[key].as_ref());
            ensure_eq!(
                seen.map(|value| String::from_utf8_lossy(value).into_owned()).as_ref(),
                wanted,
                "the value of {key:?} in a snapshot of {request:?}"
            );
            let version = entry.version();
            ensure_eq!(
                *versions.entry(key.clone()).or_insert(version),
                version,
                "the version of {key:?}, unwritten"
            );
        }
    }

    // As many as one snapshot may have, all different, mostly absent; and one of them 10,000 times.
    let last = limits::SNAPSHOT_KEYS - 1;
    handles[0].commit(&[], &[put("m/00000", "first"), put(format!("m/{last:05}"), "last")]).await?;
    let many: Vec<Key> = (0..=last).map(|n| key(format!("m/{n:05}"))).collect();
    for handle in &handles {
        let snapshot = handle.look(&many).await.at("a snapshot of 10,000 keys")?;
        for (n, key) in many.iter().enumerate() {
            ensure_eq!(snapshot.require(key)?.is_present(), n == 0 || n == last, "whether {key:?} is there");
        }
        let snapshot = handle.look(&vec![many[last].clone(); many.len()]).await.at("one key 10,000 times")?;
        ensure_eq!(snapshot.require(&many[last])?.value().map(|v| &v[..]), Some(&b"last"[..]), "its value");
    }
    // Asking for absent keys has not made them.
    let listed = handles[1].list("m/").await?;
    ensure_eq!(listed, [many[0].clone(), many[last].clone()], "the keys that were put among those asked for");
    Ok(())
}

async fn empty_request(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    for state in ["an empty namespace", "a namespace with a key"] {
        for handle in &handles {
            let before = handle.look(&[key("k")]).await?.store_time();
            let snapshot = handle.snapshot(&KeySet::empty()).await.at(state)?;
            let after = handle.look(&[key("k")]).await?.store_time();
            ensure_eq!(snapshot.len(), 0, "entries in the answer to an empty request in {state}");
            let time = snapshot.store_time();
            ensure_eq!(
                time.is_some(),
                before.is_some(),
                "whether an empty request brings the store's time in {state}"
            );
            ensure!(
                before <= time && time <= after,
                "saw the time {time:?} of an empty request between {before:?} and {after:?} in {state}"
            );
        }
        handles[0].set(&key("k"), "v").await?;
    }
    Ok(())
}

async fn store_time(cx: Context) -> Outcome {
    let handles = cx.handles(4).await?;
    let Some(mut last) = handles[0].snapshot(&KeySet::empty()).await?.store_time() else {
        return no_store_time(&cx, &handles).await;
    };
    // Microseconds since 1970, not another unit: a year between 2020 and 2200.
    ensure!(
        (1_577_836_800_000_000..7_258_118_400_000_000).contains(&last.as_micros()),
        "saw the time {last}, which is hardly now, in microseconds since 1970"
    );
    // One clock: whatever handle asks, and whatever for, its times never go back. A client's own clock, be it an hour off, would.
    let first = last;
    let wanted = [key("k"), key("absent")];
    let mut opened_late = Vec::new();
    for round in cx.rounds(20, 2_000) {
        if round < 8 {
            opened_late.push(cx.open().await?);
        }
        for (n, handle) in handles.iter().chain(&opened_late).enumerate() {
            let snapshot = match (round + n) % 3 {
                0 => handle.snapshot(&KeySet::empty()).await?,
                1 => handle.look(&wanted[..1]).await?,
                _ => handle.look(&wanted).await?,
            };
            let Some(time) = snapshot.store_time() else {
                fail!("saw a snapshot without a time, where others have one");
            };
            ensure!(
                time >= last,
                "saw the time {time} from handle {n} after {last} from another one: they read different clocks"
            );
            last = time;
        }
        if round.is_multiple_of(5) {
            handles[round % 4].commit(&[], &[Mutation::put(key("k"), round.to_string())]).await?;
        }
    }
    // It is a clock, not a constant, on every handle.
    for (n, handle) in handles.iter().enumerate() {
        let start = cx.elapsed();
        while handle.snapshot(&KeySet::empty()).await?.store_time() <= Some(first) {
            ensure!(
                cx.elapsed() - start < cx.patience(),
                "saw handle {n} stand still at {first} for {} s",
                cx.patience().as_secs_f64()
            );
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// A store that has no clock says so in every answer: a time that is told now and then would be a client's.
async fn no_store_time(cx: &Context, handles: &[Arc<dyn Backend>]) -> Outcome {
    let wanted = [key("k"), key("absent")];
    for round in 0..6 {
        let late = cx.open().await?;
        for (n, handle) in handles.iter().chain([&late]).enumerate() {
            for asked in [&wanted[..0], &wanted[..1], &wanted] {
                let time = handle.look(asked).await?.store_time();
                ensure_eq!(
                    time,
                    None,
                    "the time that handle {n} tells, where another one says that the store has no clock"
                );
            }
        }
        handles[round % handles.len()].commit(&[], &[Mutation::put(key("k"), round.to_string())]).await?;
    }
    Ok(())
}
