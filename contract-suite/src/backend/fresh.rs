//! B06: what was applied is seen by everybody, at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coord_core::{Assert, Key, KeyRange, Mutation, Prefix, Version};
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::probe::{Contents, Probe, key, same_contents};
use crate::race::Storm;
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B06",
    layer: Layer::Backend,
    promise: "after `Applied`, snapshot and listing of every handle see the write, in real time (no stale read, no client cache, no \
              lagging index)",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(seen_at_once(cx)),
}];

async fn seen_at_once(cx: Context) -> Outcome {
    step_by_step(&cx).await?;
    while_written(&cx).await.at("while another client writes")
}

/// Creates, changes and deletes through one handle after the other; after each step every handle must see exactly the new state, by
/// snapshot, by listing, by pages, and in what its own transactions assert.
async fn step_by_step(cx: &Context) -> Outcome {
    let handles = cx.handles(3).await?;
    let keys: Vec<Key> = (0..6).map(|n| key(format!("k/{n}"))).collect();
    let mut expected = Contents::new();
    let mut rng = cx.rng(1);
    for round in cx.rounds(60, 600) {
        let writer = round % handles.len();
        let chosen: Vec<Key> = keys.sample(&mut rng, 1 + round % 3).cloned().collect();
        let before = expected.clone();
        let asserts: Vec<Assert> = chosen
            .iter()
            .map(|key| {
                let version = before.get(key).map_or(Version::MISSING, |entry| entry.version());
                Assert::version(key.clone(), version)
            })
            .collect();
        let mutations: Vec<Mutation> = chosen
            .iter()
            .map(|key| {
                if before.contains_key(key) && rng.random_bool(0.4) {
                    Mutation::delete(key.clone())
                } else {
                    Mutation::put(key.clone(), format!("round {round}"))
                }
            })
            .collect();
        // The assert proves, too, that this handle's transactions judge what the others have written.
        handles[writer].commit(&asserts, &mutations).await.at("by a handle that did not write last")?;
        let fresh = handles[writer].look(&chosen).await?;
        for mutation in &mutations {
            let (name, entry) = (mutation.key(), fresh.require(mutation.key())?);
            ensure_eq!(
                entry.value(),
                mutation.value(),
                "the value of {name:?} right after it was written, by its writer"
            );
            if entry.is_present() {
                expected.insert(name.clone(), entry.clone());
            } else {
                expected.remove(name);
            }
        }
        for n in 1..=handles.len() {
            let reader = (writer + n) % handles.len();
            let place = || {
                format!("handle {reader} after handle {writer} had been answered `Applied`, round {round}")
            };
            let handle = &handles[reader];
            // Each kind of read comes first in some rounds, for one read may refresh what another one uses.
            for kind in 0..3 {
                match (kind + round) % 3 {
                    0 => same_contents(&handle.contents().await.at(place())?, &expected).at(place())?,
                    1 => {
                        let listed = handle.list("k/").await?;
                        ensure!(listed.iter().eq(expected.keys()), "saw {listed:?} listed by {}", place());
                    }
                    _ => {
                        let after = KeyRange::new(Prefix::new("k/")?, 3)?.start_after(keys[1].clone());
                        let page = handle.keys(&after).await?;
                        let wanted: Vec<&Key> =
                            expected.range(keys[2].clone()..).take(3).map(|(key, _)| key).collect();
                        ensure!(page.iter().eq(wanted), "saw {page:?} as a page by {}", place());
                        let snapshot = handle.look(&keys).await?;
                        for (key, entry) in snapshot.iter() {
                            ensure_eq!(
                                entry.version(),
                                expected.get(key).map_or(Version::MISSING, |entry| entry.version()),
                                "the version of {key:?} in a snapshot by {}",
                                place()
                            );
                        }
                    }
                }
            }
            let stale: Vec<Assert> = asserts.clone();
            handle.refuse(&stale, &[]).await.at("asserting what was there before").at(place())?;
        }
    }
    Ok(())
}

/// A writer counts up in one key, and moves another key on, and says after each answer how far it is. What a reader then sees is not
/// older than what the writer had said before the read began.
async fn while_written(cx: &Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let said = Arc::new(AtomicU64::new(0));
    let counter = key("counter");
    let mark = |n: u64| key(format!("mark/{n:012}"));
    handles[0].commit(&[], &[Mutation::put(counter.clone(), "0"), Mutation::put(mark(0), "")]).await?;
    let (writer, reader) = (handles[0].clone(), handles[1].clone());
    let (heard, name) = (said.clone(), counter.clone());
    Storm::new(cx)
        .writer(move |n| {
            let (writer, counter, said) = (writer.clone(), counter.clone(), said.clone());
            Box::pin(async move {
                let step = [
                    Mutation::put(counter, (n + 1).to_string()),
                    Mutation::delete(mark(n)),
                    Mutation::put(mark(n + 1), ""),
                ];
                writer.commit(&[], &step).await?;
                said.store(n + 1, Ordering::Release);
                Ok(())
            })
        })
        .reader(move |n| {
            let (reader, counter, heard) = (reader.clone(), name.clone(), heard.clone());
            Box::pin(async move {
                let at_least = heard.load(Ordering::Acquire);
                if n.is_multiple_of(2) {
                    let entry = reader.entry(&counter).await?;
                    let seen = entry.version().count().saturating_sub(1);
                    ensure!(
                        seen >= at_least,
                        "saw the count {seen} in a snapshot after {at_least} had been applied"
                    );
                } else {
                    let marks: BTreeSet<Key> = reader.list("mark/").await?.into_iter().collect();
                    ensure!(
                        marks.len() == 1 && marks.first() >= Some(&mark(at_least)),
                        "saw {marks:?} listed after {:?} had been applied",
                        mark(at_least)
                    );
                }
                Ok(at_least)
            })
        })
        .blow()
        .await
}
