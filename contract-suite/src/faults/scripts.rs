//! B44: a server that drops what its clients have prepared.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coord_core::{Assert, Backend, Key, KeyRange, KeySet, Mutation, Prefix, Txn, TxnOutcome, Version};

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::harness::Control;
use crate::{ensure, ensure_eq, fail};

use super::attempt::entry;
use super::trouble::{Trouble, bounded, in_trouble, pause};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B44",
    layer: Layer::Backend,
    promise: "cache of prepared scripts or statements dropped by the server between any two calls: no effect",
    needs: Needs::exclusive(&[Control::FlushScripts]),
    body: |cx| Box::pin(in_trouble(cx, flushed)),
}];

async fn flushed(cx: Context, trouble: Arc<Trouble>) -> Outcome {
    let handles = cx.handles(2).await?;
    between_calls(&cx, &trouble, &handles).await?;
    under_load(&cx, &trouble).await.at("with several clients at work")
}

/// One call after the other, on alternating handles, with the cache empty before each.
async fn between_calls(cx: &Context, trouble: &Trouble, handles: &[Arc<dyn Backend>]) -> Outcome {
    let turn = AtomicUsize::new(0);
    let next = async || -> Result<&Arc<dyn Backend>, crate::Verdict> {
        trouble.flush_scripts().await?;
        Ok(&handles[turn.fetch_add(1, Ordering::Relaxed) % handles.len()])
    };
    let txn = async |asserts: Vec<Assert>, mutations: Vec<Mutation>, right: TxnOutcome| -> Outcome {
        let txn = Txn::new(asserts, mutations)?;
        let seen = bounded(cx, "a transaction", next().await?.txn(&txn)).await??;
        ensure_eq!(seen, right, "the answer to {txn:?}");
        Ok(())
    };
    for round in 0..10 {
        let place = format!("round {round}");
        let key = Key::new(format!("scripts/{round}"))?;
        let put = |value: &str| Mutation::put(key.clone(), value.to_owned());
        txn(vec![Assert::missing(key.clone())], vec![put("1")], TxnOutcome::Applied).await.at(&place)?;
        let created = entry(&**next().await?, &key).await.at(&place)?.version();
        ensure_eq!(created.count(), 1, "the count of a key that was just created");
        txn(vec![Assert::version(key.clone(), created)], vec![put("2")], TxnOutcome::Applied)
            .await
            .at(&place)?;
        txn(vec![Assert::version(key.clone(), created)], vec![put("3")], TxnOutcome::Rejected)
            .await
            .at(&place)?;
        txn(vec![Assert::missing(key.clone())], vec![], TxnOutcome::Rejected).await.at(&place)?;
        let now = entry(&**next().await?, &key).await.at(&place)?;
        ensure_eq!(Some(now.version()), created.next(), "the version after one more write");
        let range = KeyRange::new(Prefix::new("scripts/")?, 100)?;
        let listed = next().await?.keys(&range).await.at(&place)?;
        ensure_eq!(listed, vec![key.clone()], "what is listed");
        txn(vec![], vec![Mutation::delete(key.clone())], TxnOutcome::Applied).await.at(&place)?;
        let listed = next().await?.keys(&range).await.at(&place)?;
        ensure!(listed.is_empty(), "saw {listed:?} listed after it was deleted");
        let gone = entry(&**next().await?, &key).await.at(&place)?;
        ensure_eq!(gone.version(), Version::MISSING, "the version after the delete");
    }
    Ok(())
}

/// Several clients count one key up while the cache is emptied all the time.
async fn under_load(cx: &Context, trouble: &Trouble) -> Outcome {
    const CLIENTS: usize = 4;
    const INCREMENTS: u64 = 25;
    let key = Key::new("counter")?;
    let clients: Vec<_> = cx
        .handles(CLIENTS)
        .await?
        .into_iter()
        .map(|handle| {
            let key = key.clone();
            tokio::spawn(async move { count_up(&*handle, &key, INCREMENTS).await })
        })
        .collect();
    let work = async {
        while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
            trouble.flush_scripts().await?;
            pause(Duration::from_millis(1)).await;
        }
        Outcome::Ok(())
    };
    bounded(cx, "the counting", work).await??;
    for client in clients {
        client.await??;
    }
    let total = CLIENTS as u64 * INCREMENTS;
    let entry = entry(&*cx.open().await?, &key).await?;
    ensure_eq!(entry.version().count(), total, "the count of a key that was written {total} times");
    let value = entry.value().map(|value| String::from_utf8_lossy(value).into_owned());
    ensure_eq!(value, Some(total.to_string()), "the value of a key that was counted up {total} times");
    Ok(())
}

async fn count_up(handle: &dyn Backend, key: &Key, times: u64) -> Outcome {
    let request = KeySet::new([key.clone()])?;
    let mut done = 0;
    while done < times {
        let snapshot = handle.snapshot(&request).await?;
        let entry = snapshot.require(key)?;
        let now = match entry.value() {
            None => 0,
            Some(value) => match std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok()) {
                Some(now) => now,
                None => fail!("saw a counter that is no number"),
            },
        };
        let assert = Assert::version(key.clone(), entry.version());
        let txn = Txn::new([assert], [Mutation::put(key.clone(), (now + 1).to_string())])?;
        if handle.txn(&txn).await?.is_applied() {
            done += 1;
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}
