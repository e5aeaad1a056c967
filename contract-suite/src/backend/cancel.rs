//! B24: a dropped future.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use coord_core::{Assert, Backend, Entry, Key, KeyRange, KeySet, Mutation, Prefix, Txn, limits};
use futures::FutureExt as _;
use rand::RngExt as _;

use super::hot::try_increment;
use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::probe::{Probe, key};
use crate::race::{Leg, Racers};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B24",
    layer: Layer::Backend,
    promise: "a dropped future leaves all or nothing, and the handle works on",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(dropped(cx)),
}];

async fn dropped(cx: Context) -> Outcome {
    for contended in [false, true] {
        let place = if contended { "while another client writes the same keys" } else { "alone" };
        dropped_at_every_poll(&cx, contended).await.at(place)?;
    }
    Ok(())
}

/// Polls a future so often, letting others run in between, and drops it. Whether it had ended.
async fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize, pause: usize) -> Option<T> {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if let Poll::Ready(value) = poll_fn(|task| Poll::Ready(future.poll_unpin(task))).await {
            return Some(value);
        }
        for _ in 0..pause {
            tokio::task::yield_now().await;
        }
    }
    None
}

async fn dropped_at_every_poll(cx: &Context, contended: bool) -> Outcome {
    let handles = cx.handles(3).await?;
    let keys: Arc<Vec<Key>> = Arc::new((0..20).map(|n| key(format!("whole/{n:02}"))).collect());
    let puts: Vec<Mutation> = keys.iter().map(|key| Mutation::put(key.clone(), "start")).collect();
    handles[0].commit(&[], &puts).await?;
    let done = Arc::new(AtomicBool::new(false));
    let mut legs: Vec<Leg<()>> = Vec::new();
    if contended {
        // Others hold whatever a backend locks, so that a dropped future is one that waits.
        let (rival, keys, done) = (handles[2].clone(), keys.clone(), done.clone());
        legs.push(Box::pin(async move {
            let mut n = 0_u64;
            while !done.load(Ordering::Acquire) {
                let puts: Vec<Mutation> =
                    keys.iter().rev().map(|key| Mutation::put(key.clone(), format!("rival {n}"))).collect();
                rival.commit(&[], &puts).await.at("a rival of the dropped ones")?;
                n += 1;
                tokio::task::yield_now().await;
            }
            Ok(())
        }));
    }
    let (cx_, finished) = (cx.clone(), done.clone());
    legs.push(Box::pin(async move {
        let result = drops(&cx_, &handles, &keys, contended).await;
        finished.store(true, Ordering::Release);
        result
    }));
    Racers::new(cx, legs.len()).run(legs).await?;
    Ok(())
}

async fn drops(cx: &Context, handles: &[Arc<dyn Backend>], keys: &[Key], contended: bool) -> Outcome {
    let mut sent = 1;
    let mut rng = cx.rng(1);
    let counter = key("after");
    for round in cx.rounds(40, 400) {
        // The same handle is read from and written to afterwards, and another one.
        let (victim, witness) = (&handles[0], &handles[1]);
        let polls = round % 14;
        let pause = rng.random_range(0..4);
        match round % 4 {
            3 => {
                let set = KeySet::new(keys.iter().cloned())?;
                drop(poll_and_drop(victim.snapshot(&set), polls, pause).await);
                let range = KeyRange::new(Prefix::new("whole/")?, limits::LISTING_KEYS)?;
                drop(poll_and_drop(victim.keys(&range), polls, pause).await);
            }
            kind => {
                let mut puts: Vec<Mutation> =
                    keys.iter().map(|key| Mutation::put(key.clone(), format!("round {round}"))).collect();
                let mut asserts = Vec::new();
                if kind == 2 {
                    // With an assert that holds unless the rival is faster.
                    asserts.push(Assert::version(keys[7].clone(), witness.version(&keys[7]).await?));
                }
                if round % 8 == 1 {
                    puts.reverse();
                }
                let txn = Txn::new(asserts, puts)?;
                sent += 1;
                if let Some(ended) = poll_and_drop(victim.txn(&txn), polls, pause).await {
                    // Lost races are nothing new here, and errors are.
                    let _ = ended?;
                }
            }
        }
        if !contended {
            let count = witness.version(&keys[0]).await?.count();
            ensure!(count <= sent, "saw {count} writes of {sent} transactions, dropped ones included");
        }
        for (place, handle) in [("the handle whose future was dropped", victim), ("another handle", witness)]
        {
            whole(&**handle, keys)
                .await
                .at(place)
                .at(format!("dropped after {polls} polls, round {round}"))?;
            let mut tries = 0;
            while !bounded(cx, try_increment(&**handle, &counter)).await.at(place)? {
                tries += 1;
                ensure!(tries < 10_000, "saw {place} rejected 10,000 times");
            }
        }
    }
    // Nothing that was dropped is still at work for ever: the last state is whole, and stays.
    for handle in handles {
        whole(&**handle, keys).await?;
        // All keys at once: the rival may still be at work.
        let mut end: Vec<Mutation> = keys.iter().map(|key| Mutation::put(key.clone(), "end")).collect();
        end.push(Mutation::delete(counter.clone()));
        bounded(cx, handle.commit(&[], &end)).await.at("a transaction after all drops")?;
    }
    Ok(())
}

async fn bounded<T>(cx: &Context, call: impl Future<Output = Result<T, Verdict>>) -> Result<T, Verdict> {
    let limit = cx.patience().mul_f64(0.5);
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => fail!("saw a call hang for {} s after a future was dropped", limit.as_secs_f64()),
    }
}

async fn whole(handle: &dyn Backend, keys: &[Key]) -> Outcome {
    let snapshot = handle.look(keys).await?;
    let first = snapshot.require(&keys[0])?;
    for (name, entry) in snapshot.iter() {
        ensure_eq!(entry.value(), first.value(), "the value of {name:?} beside that of {:?}", keys[0]);
        ensure_eq!(
            entry.version().count(),
            first.version().count(),
            "how often {name:?} was written, beside {:?}: every transaction writes all",
            keys[0]
        );
    }
    ensure!(matches!(first, Entry::Present { .. }), "saw {:?} absent, which was never deleted", keys[0]);
    Ok(())
}
