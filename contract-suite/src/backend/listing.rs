//! B32, B33: a listing is one instant, and has only what was put.

use std::sync::Arc;

use coord_core::{Assert, Backend, Entry, Key, Mutation};
use rand::RngExt as _;

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::probe::{Contents, Probe, key, put, same_contents};
use crate::race::Storm;
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B32",
        layer: Layer::Backend,
        promise: "a listing is one instant: while a marker moves from key to key in one transaction, it is seen exactly once; also among \
                  9,000 keys",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(one_instant(cx)),
    },
    Clause {
        id: "B33",
        layer: Layer::Backend,
        promise: "nothing internal is listed (indexes, placeholders); a rejected create leaves no trace",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(nothing_internal(cx)),
    },
];

async fn one_instant(cx: Context) -> Outcome {
    for (count, prefix) in [(2, "two/"), (300, "some/"), (9_000, "many/")] {
        moving_marker(&cx, count, prefix).await.at(format!("among {count} keys"))?;
    }
    Ok(())
}

async fn moving_marker(cx: &Context, count: usize, prefix: &'static str) -> Outcome {
    let handles = cx.handles(3).await?;
    let fixed: Vec<Key> = (0..count).map(|n| key(format!("{prefix}{n:05}"))).collect();
    for part in fixed.chunks(2_500) {
        let puts: Vec<Mutation> = part.iter().map(|key| Mutation::put(key.clone(), "")).collect();
        handles[0].commit(&[], &puts).await?;
    }
    // The marker's place is after the n-th fixed key, so it moves through the whole listing.
    let place = move |n: usize| key(format!("{prefix}{n:05}+marker"));
    handles[0].commit(&[], &[Mutation::put(place(0), "")]).await?;
    let (writer, mut rng, mut at) = (handles[0].clone(), cx.rng(count as u64), 0);
    let mut storm = Storm::new(cx).writer(move |_| {
        let from = at;
        at = (from + rng.random_range(1..count)) % count;
        let (writer, to) = (writer.clone(), at);
        Box::pin(async move {
            let version = writer.version(&place(from)).await?;
            writer
                .commit(
                    &[Assert::version(place(from), version), Assert::missing(place(to))],
                    &[Mutation::put(place(to), ""), Mutation::delete(place(from))],
                )
                .await
        })
    });
    // The number of writes tells the states apart, for the places repeat.
    for handle in &handles[1..] {
        let (handle, fixed) = (handle.clone(), Arc::new(fixed.clone()));
        let (mut last, mut moves) = (None, 0_u64);
        let seen = Arc::new(std::sync::Mutex::new(String::new()));
        storm = storm.reader(move |_| {
            let now = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            if last.as_ref() != Some(&now) {
                last = Some(now);
                moves += 1;
            }
            let (handle, fixed, seen, moves) = (handle.clone(), fixed.clone(), seen.clone(), moves);
            Box::pin(async move {
                let listed = handle.list(prefix).await?;
                let (markers, rest): (Vec<&Key>, Vec<&Key>) =
                    listed.iter().partition(|key| key.as_str().ends_with("+marker"));
                ensure!(
                    markers.len() == 1,
                    "saw the marker {} times in one listing: {markers:?}",
                    markers.len()
                );
                ensure!(
                    rest.iter().copied().eq(fixed.iter()),
                    "saw {} of the {} keys that stay in one listing",
                    rest.len(),
                    fixed.len()
                );
                *seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = markers[0].to_string();
                Ok(moves)
            })
        });
    }
    storm.blow().await
}

async fn nothing_internal(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let mut expected = Contents::new();
    for handle in &handles {
        same_contents(&handle.contents().await?, &expected).at("a new namespace")?;
    }
    let absent: Vec<Key> = (0..8).map(|n| key(format!("absent/{n}"))).collect();
    let missing: Vec<Assert> = absent.iter().map(|key| Assert::missing(key.clone())).collect();
    handles[0].look(&absent).await?;
    handles[0].commit(&missing, &[]).await.at("a check of absent keys")?;
    handles[1].commit(&[], &[Mutation::delete(absent[0].clone())]).await?;
    for handle in &handles {
        same_contents(&handle.contents().await?, &expected)
            .at("after reads, checks and deletes of absent keys")?;
    }
    handles[0].set(&key("there"), "v").await?;
    expected = handles[1].contents().await?;
    ensure_eq!(
        expected.keys().map(Key::as_str).collect::<Vec<_>>(),
        ["there"],
        "all keys of a namespace with one key"
    );
    // Creations rejected by an assert before, after and between those that hold, of one key and of many.
    for position in 0..missing.len() {
        let mut asserts = missing.clone();
        asserts[position] = Assert::missing(key("there"));
        let creates: Vec<Mutation> = absent.iter().map(|key| Mutation::put(key.clone(), "x")).collect();
        for mutations in [&creates[..], &creates[position..=position], &[][..]] {
            handles[position % 2].refuse(&asserts, mutations).await?;
            for handle in &handles {
                same_contents(&handle.contents().await?, &expected).at("after a rejected creation")?;
                let snapshot = handle.look(&absent).await?;
                ensure!(
                    snapshot.iter().all(|(_, entry)| *entry == Entry::Absent),
                    "saw a trace of a rejected creation in a snapshot: {snapshot:?}"
                );
            }
        }
        // Under every prefix, the empty one and the one that would name what is internal included.
        for prefix in ["", "a", "absent/", "_", "__", "{", "$", ".", "\u{1}", "idx", "index", "meta", "key"] {
            let listed = handles[0].list(prefix).await?;
            ensure!(
                listed.is_empty() || prefix.is_empty(),
                "saw {listed:?} listed under {prefix:?}, where only \"there\" was put"
            );
        }
    }
    // The rejected ones come into being as if nothing had been.
    for name in &absent {
        handles[1].commit(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), "x")]).await?;
        ensure_eq!(
            handles[0].version(name).await?.count(),
            1,
            "the count of {name:?}, whose creation was rejected before"
        );
        handles[0].unset(name).await?;
    }
    same_contents(&handles[1].contents().await?, &expected).at("after all were created and deleted")?;
    while_others_check(&cx, &expected).await.at("while others check and are rejected")
}

/// What a backend puts down for the time of a transaction is not seen from outside either.
async fn while_others_check(cx: &Context, expected: &Contents) -> Outcome {
    let handles = cx.handles(3).await?;
    let counter = key("counter");
    handles[0].set(&counter, "0").await?;
    let mut storm = Storm::new(cx);
    for (writer, handle) in handles[..2].iter().enumerate() {
        let (handle, counter) = (handle.clone(), counter.clone());
        storm = storm.writer(move |n| {
            let (handle, counter): (Arc<dyn Backend>, Key) = (handle.clone(), counter.clone());
            Box::pin(async move {
                let ghost = |m: u64| key(format!("ghost/{writer}/{m}"));
                let missing: Vec<Assert> = (0..6).map(|m| Assert::missing(ghost(m))).collect();
                match n % 3 {
                    0 => handle.commit(&missing, &[]).await?,
                    1 => handle.commit(&missing[..3], &[Mutation::put(counter, n.to_string())]).await?,
                    _ => {
                        let mut asserts = missing;
                        asserts.insert(4, Assert::missing(counter));
                        handle
                            .refuse(&asserts, &[Mutation::put(ghost(0), "x"), put("ghost/other", "x")])
                            .await?;
                    }
                }
                Ok(())
            })
        });
    }
    let reader = handles[2].clone();
    let mut names: Vec<Key> = expected.keys().cloned().collect();
    names.push(counter.clone());
    names.sort();
    storm
        .reader(move |n| {
            let (reader, names, counter) = (reader.clone(), names.clone(), counter.clone());
            Box::pin(async move {
                let listed = reader.list("").await?;
                ensure_eq!(listed, names, "the listing, where no other key is ever put");
                let ghosts: Vec<Key> = (0..6).map(|m| key(format!("ghost/{}/{m}", n % 2))).collect();
                let mut request = ghosts.clone();
                request.push(counter.clone());
                let snapshot = reader.look(&request).await?;
                for ghost in &ghosts {
                    ensure_eq!(
                        *snapshot.require(ghost)?,
                        Entry::Absent,
                        "the entry of a key that is only asserted to be absent"
                    );
                }
                Ok(snapshot.require(&counter)?.version().count())
            })
        })
        .blow()
        .await
}
