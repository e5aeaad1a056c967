//! B26: many requests in flight on one handle.

use std::sync::Arc;

use coord_core::{Assert, Backend, Key, Mutation, TxnOutcome, Version};
use futures::future::{BoxFuture, join_all};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use tokio::sync::Barrier;

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::probe::{Probe, key, put};
use crate::race::Racers;
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B26",
    layer: Layer::Backend,
    promise: "64 tagged requests in flight over clones of one handle: every answer is its own",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(own_answers(cx)),
}];

const FLIGHT: usize = 64;

#[derive(Clone)]
struct Tagged {
    handle: Arc<dyn Backend>,
    versions: Arc<Vec<Version>>,
}

fn tag(n: usize) -> Key {
    key(format!("tag/{n:02}"))
}

async fn own_answers(cx: Context) -> Outcome {
    let handle = cx.open().await?;
    // The n-th key has a value and a length of its own, and the n-th prefix holds n keys.
    let puts: Vec<Mutation> =
        (0..FLIGHT).map(|n| Mutation::put(tag(n), format!("{n}-").repeat(n + 1))).collect();
    handle.commit(&[], &puts).await?;
    let puts: Vec<Mutation> =
        (0..FLIGHT).flat_map(|n| (0..n % 9).map(move |m| put(format!("list/{n:02}/{m}"), ""))).collect();
    handle.commit(&[], &puts).await?;
    let tags: Vec<Key> = (0..FLIGHT).map(tag).collect();
    let snapshot = handle.look(&tags).await?;
    let versions =
        tags.iter().map(|tag| snapshot.get(tag).map_or(Version::MISSING, |entry| entry.version())).collect();
    let tagged = Tagged { handle, versions: Arc::new(versions) };
    let mut rng = cx.rng(1);
    for round in cx.rounds(8, 60) {
        let mut order: Vec<usize> = (0..FLIGHT).collect();
        order.shuffle(&mut rng);
        let kinds: Vec<u32> =
            order.iter().map(|_| if round % 4 == 0 { 0 } else { rng.random_range(0..4) }).collect();
        let calls = order.iter().zip(kinds).map(|(n, kind)| tagged.clone().call(*n, kind, round));
        if round % 2 == 0 {
            // Interleaved in one task.
            for result in join_all(calls).await {
                result?;
            }
        } else {
            // A task each, all let go at one instant.
            let barrier = Arc::new(Barrier::new(FLIGHT));
            let tasks: Vec<_> = calls
                .map(|call| {
                    let barrier = barrier.clone();
                    tokio::spawn(async move {
                        barrier.wait().await;
                        call.await
                    })
                })
                .collect();
            for task in tasks {
                task.await??;
            }
        }
    }
    // Threads, for a handle that only mixes answers up when two calls are in it at the very same time.
    let mut threads = Racers::new(&cx, 4);
    for round in cx.rounds(40, 1_500) {
        let kind = round as u32 % 4;
        threads
            .run(
                (0..4)
                    .map(|n| tagged.clone().call(n * 13 + round % 13, kind, 1_000 + round))
                    .collect::<Vec<_>>(),
            )
            .await?;
    }
    Ok(())
}

impl Tagged {
    fn call(self, n: usize, kind: u32, round: usize) -> BoxFuture<'static, Result<(), Verdict>> {
        Box::pin(async move {
            let place = format!("request {n} of {FLIGHT} in flight");
            match kind {
                0 => self.snapshot(n).await,
                1 => self.listing(n).await,
                2 => self.check(n, round).await,
                _ => self.create(n, round).await,
            }
            .at(place)
        })
    }

    async fn snapshot(&self, n: usize) -> Outcome {
        // As many keys as no other request asks for in the same way: its own, absent ones, a neighbour.
        let mut keys: Vec<Key> = (0..n % 7).map(|m| key(format!("no/{n}/{m}"))).collect();
        keys.push(tag(n));
        let snapshot = self.handle.look(&keys).await?;
        let expected = format!("{n}-").repeat(n + 1);
        let entry = snapshot.require(&tag(n))?;
        if entry.value().map(|value| &value[..]) != Some(expected.as_bytes()) {
            fail!(
                "saw {:?} as the value of {:?}",
                entry.value().map(|value| String::from_utf8_lossy(&value[..value.len().min(9)]).into_owned()),
                tag(n)
            );
        }
        ensure_eq!(entry.version(), self.versions[n], "the version of {:?}", tag(n));
        Ok(())
    }

    async fn listing(&self, n: usize) -> Outcome {
        let listed = self.handle.list(&format!("list/{n:02}/")).await?;
        let expected: Vec<Key> = (0..n % 9).map(|m| key(format!("list/{n:02}/{m}"))).collect();
        ensure_eq!(listed, expected, "the keys of a listing");
        Ok(())
    }

    /// Half of the transactions must be rejected.
    async fn check(&self, n: usize, round: usize) -> Outcome {
        let holds = (n + round).is_multiple_of(2);
        let assert = if holds { Assert::version(tag(n), self.versions[n]) } else { Assert::missing(tag(n)) };
        let outcome = self.handle.attempt(&[assert], &[]).await?;
        let expected = if holds { TxnOutcome::Applied } else { TxnOutcome::Rejected };
        ensure_eq!(outcome, expected, "the answer to a check");
        Ok(())
    }

    /// Creates a key of its own, or is rejected, and then sees that this and nothing else has happened.
    async fn create(&self, n: usize, round: usize) -> Outcome {
        let own = key(format!("own/{round}/{n}"));
        let holds = (n / 2 + round).is_multiple_of(2);
        let mut asserts = vec![Assert::missing(own.clone())];
        if !holds {
            asserts.push(Assert::missing(tag(n)));
        }
        let value = format!("{round} {n}");
        let outcome = self.handle.attempt(&asserts, &[Mutation::put(own.clone(), value.clone())]).await?;
        let expected = if holds { TxnOutcome::Applied } else { TxnOutcome::Rejected };
        ensure_eq!(outcome, expected, "the answer to a creation");
        let entry = self.handle.entry(&own).await?;
        ensure_eq!(
            entry.value().map(|value| String::from_utf8_lossy(value).into_owned()),
            holds.then_some(value),
            "the value that this request has put"
        );
        if holds {
            self.handle
                .commit(&[Assert::version(own.clone(), entry.version())], &[Mutation::delete(own.clone())])
                .await?;
            ensure!(!self.handle.entry(&own).await?.is_present(), "saw {own:?} after it was deleted");
        }
        Ok(())
    }
}
