//! B05: a snapshot is one instant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use coord_core::{Assert, Backend, Entry, Key, Mutation, Snapshot};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::probe::{Probe, key};
use crate::race::Storm;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B05",
    layer: Layer::Backend,
    promise: "a snapshot is one instant: while writers move amounts between keys, or set N keys to one number, every snapshot is \
              whole; also with 10,000 keys",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(one_instant(cx)),
}];

async fn one_instant(cx: Context) -> Outcome {
    transfers(&cx).await.at("amounts that move between 8 keys")?;
    let few: Vec<Key> = (0..16).map(|n| key(format!("few/{n:02}"))).collect();
    stamps(&cx, &few, few.clone()).await.at("16 keys set to one number")?;
    pairs(&cx).await.at("keys of which one comes as the other goes")?;
    // 10,000 keys, of which every 101st is written, so that the written ones are spread over any pages of the answer.
    let many: Vec<Key> = (0..10_000).map(|n| key(format!("many/{n:04}"))).collect();
    let written: Vec<Key> = many.iter().step_by(101).cloned().collect();
    let handle = cx.open().await?;
    for part in many.chunks(2_500) {
        let puts: Vec<Mutation> = part.iter().map(|key| Mutation::put(key.clone(), "0")).collect();
        handle.commit(&[], &puts).await?;
    }
    stamps(&cx, &many, written).await.at("100 of 10,000 keys set to one number")
}

fn number(entry: &Entry) -> Result<u64, Verdict> {
    let text = entry.value().map(|value| String::from_utf8_lossy(value).into_owned());
    match text.as_ref().and_then(|text| text.parse().ok()) {
        Some(number) => Ok(number),
        None => fail!("saw {text:?}, not a number that was written"),
    }
}

async fn transfers(cx: &Context) -> Outcome {
    const TOTAL: u64 = 8_000;
    let accounts: Arc<Vec<Key>> = Arc::new((0..8).map(|n| key(format!("account/{n}"))).collect());
    let handles = cx.handles(4).await?;
    let puts: Vec<Mutation> = accounts.iter().map(|key| Mutation::put(key.clone(), "1000")).collect();
    handles[0].commit(&[], &puts).await?;
    let mut storm = Storm::new(cx);
    for (writer, handle) in handles[..2].iter().enumerate() {
        let (handle, accounts, mut rng) = (handle.clone(), accounts.clone(), cx.rng(writer as u64));
        storm = storm.writer(move |_| {
            let (handle, accounts) = (handle.clone(), accounts.clone());
            let from = rng.random_range(0..accounts.len());
            let to = (from + rng.random_range(1..accounts.len())) % accounts.len();
            let part = rng.random_range(1..=100);
            Box::pin(async move {
                let (from, to) = (&accounts[from], &accounts[to]);
                let snapshot = handle.look(&[from.clone(), to.clone()]).await?;
                let (source, target) = (snapshot.require(from)?, snapshot.require(to)?);
                let amount = number(source)? * part / 100;
                let asserts = [
                    Assert::version(from.clone(), source.version()),
                    Assert::version(to.clone(), target.version()),
                ];
                let puts = [
                    Mutation::put(from.clone(), (number(source)? - amount).to_string()),
                    Mutation::put(to.clone(), (number(target)? + amount).to_string()),
                ];
                // A lost race is nothing to do about: the next transfer looks again.
                let _ = handle.attempt(&asserts, &puts).await?;
                Ok(())
            })
        });
    }
    for (reader, handle) in handles[2..].iter().enumerate() {
        let (handle, accounts, mut rng) = (handle.clone(), accounts.clone(), cx.rng(2 + reader as u64));
        storm = storm.reader(move |_| {
            let handle = handle.clone();
            let mut order = accounts.to_vec();
            order.shuffle(&mut rng);
            Box::pin(async move {
                let snapshot = handle.look(&order).await?;
                let mut sum = 0;
                for (_, entry) in snapshot.iter() {
                    sum += number(entry)?;
                }
                ensure_eq!(sum, TOTAL, "the sum of all accounts in one snapshot");
                Ok(snapshot.iter().map(|(_, entry)| entry.version().count()).sum())
            })
        });
    }
    storm.blow().await
}

/// Writers set all of `written` to one number, unconditionally; readers look at all of `asked` and must see one number, and each
/// key moved as often as any other.
async fn stamps(cx: &Context, asked: &[Key], written: Vec<Key>) -> Outcome {
    let handles = cx.handles(4).await?;
    let (asked, written) = (Arc::new(asked.to_vec()), Arc::new(written));
    let first: Vec<Mutation> = written.iter().map(|key| Mutation::put(key.clone(), "0")).collect();
    handles[0].commit(&[], &first).await?;
    let mut storm = Storm::new(cx);
    for (writer, handle) in handles[..2].iter().enumerate() {
        let (handle, written, mut rng) = (handle.clone(), written.clone(), cx.rng(10 + writer as u64));
        storm = storm.writer(move |n| {
            let handle = handle.clone();
            let stamp = (n * 2 + writer as u64 + 1).to_string();
            let mut puts: Vec<Mutation> =
                written.iter().map(|key| Mutation::put(key.clone(), stamp.clone())).collect();
            puts.shuffle(&mut rng);
            Box::pin(async move { handle.commit(&[], &puts).await })
        });
    }
    let known: Arc<Mutex<BTreeMap<u64, u64>>> = Arc::default();
    // One reader has a handle of its own, the other one shares that of a writer.
    for (reader, handle) in [(0, handles[2].clone()), (1, handles[1].clone())] {
        let (asked, written, mut rng) = (asked.clone(), written.clone(), cx.rng(20 + reader));
        let known = known.clone();
        storm = storm.reader(move |_| {
            let (handle, written, known) = (handle.clone(), written.clone(), known.clone());
            let mut order = asked.to_vec();
            order.shuffle(&mut rng);
            Box::pin(async move {
                let (count, stamp) = one_number(&handle.look(&order).await?, &written)?;
                let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                let first = *known.entry(count).or_insert(stamp);
                ensure_eq!(
                    stamp,
                    first,
                    "the number that belongs to the count {count}, which was another one before"
                );
                Ok(count)
            })
        });
    }
    storm.blow().await
}

/// How often all keys were written, by their versions, and the number that they all have.
fn one_number(snapshot: &Snapshot, written: &[Key]) -> Result<(u64, u64), Verdict> {
    let first = snapshot.require(&written[0])?;
    let (stamp, count) = (number(first)?, first.version().count());
    for key in written {
        let entry = snapshot.require(key)?;
        ensure_eq!(
            number(entry)?,
            stamp,
            "the number of {key:?} in one snapshot with {:?}, where every transaction writes both",
            written[0]
        );
        ensure_eq!(entry.version().count(), count, "how often {key:?} was written, by the same snapshot");
    }
    Ok((count, stamp))
}

/// Of each two keys one is there at any instant: a transaction deletes one and creates the other, for all pairs.
async fn pairs(cx: &Context) -> Outcome {
    const PAIRS: usize = 6;
    let name = |pair: usize, side: usize| key(format!("pair/{pair}/{side}"));
    let handles = cx.handles(3).await?;
    let flip = move |to: usize| -> Vec<Mutation> {
        (0..PAIRS)
            .flat_map(|pair| {
                [Mutation::delete(name(pair, 1 - to)), Mutation::put(name(pair, to), to.to_string())]
            })
            .collect()
    };
    handles[0].commit(&[], &flip(0)).await?;
    let keys: Vec<Key> = (0..PAIRS).flat_map(|pair| [name(pair, 0), name(pair, 1)]).collect();
    let (writer, reader): (Arc<dyn Backend>, Arc<dyn Backend>) = (handles[1].clone(), handles[2].clone());
    Storm::new(cx)
        .writer(move |n| {
            let (writer, flip) = (writer.clone(), flip(usize::from(n.is_multiple_of(2))));
            Box::pin(async move { writer.commit(&[], &flip).await })
        })
        .reader(move |_| {
            let (reader, keys) = (reader.clone(), keys.clone());
            Box::pin(async move {
                let snapshot = reader.look(&keys).await?;
                let there: Vec<&Key> =
                    snapshot.iter().filter(|(_, entry)| entry.is_present()).map(|(key, _)| key).collect();
                let side = usize::from(there.first().is_some_and(|key| key.as_str().ends_with('1')));
                let whole: Vec<Key> = (0..PAIRS).map(|pair| name(pair, side)).collect();
                ensure!(
                    there.iter().copied().eq(&whole),
                    "saw {there:?} in one snapshot, where at any instant all keys of one side are there"
                );
                let entry = snapshot.require(&whole[0])?;
                // A new life each time, so the incarnation tells the states apart.
                Ok(entry.version().incarnation())
            })
        })
        .blow()
        .await
}
