//! B40, B41: what a handle says when its wire is cut before a request is sent, and before a reply arrives.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coord_core::{Backend, ErrorKind, Key, KeyRange, KeySet, Mutation, Prefix, Snapshot, Txn};

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::{Control, CutPoint};
use crate::{ensure, ensure_eq, fail};

use super::attempt::{Answer, Attempt, Write, apply, entry};
use super::trouble::{Trouble, bounded, in_trouble, recovered, truth};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B40",
        layer: Layer::Backend,
        promise: "cut before the request is sent: `Unavailable` or `Indeterminate`, never an answer",
        needs: Needs::exclusive(&[Control::Cut]),
        body: |cx| Box::pin(in_trouble(cx, before_send)),
    },
    Clause {
        id: "B41",
        layer: Layer::Backend,
        promise: "cut after the server applied and before its reply: `Indeterminate`; applied once; nothing below retried it",
        needs: Needs::exclusive(&[Control::Cut]),
        body: |cx| Box::pin(in_trouble(cx, before_reply)),
    },
];

/// No primitive takes more requests than this.
const REQUESTS: u64 = 32;

/// The handle that meets the cuts, and another one that looks at what has happened.
struct Scene {
    cx: Context,
    trouble: Arc<Trouble>,
    victim: Arc<dyn Backend>,
    observer: Arc<dyn Backend>,
    /// What the reads of the victim must answer if they answer.
    snapshot: (KeySet, Snapshot),
    listing: (KeyRange, Vec<Key>),
}

impl Scene {
    async fn new(cx: Context, trouble: Arc<Trouble>) -> Result<Self, Verdict> {
        let (victim, observer) = (cx.open().await?, cx.open().await?);
        let keys: Vec<Key> =
            ["read/a", "read/b", "read/c"].into_iter().map(Key::new).collect::<Result<_, _>>()?;
        apply(&*observer, &Txn::new([], keys.iter().map(|key| Mutation::put(key.clone(), "as it is")))?)
            .await?;
        let request = KeySet::new(keys.iter().cloned().chain([Key::new("read/none")?]))?;
        let answer = observer.snapshot(&request).await?.with_store_time(None);
        let range = KeyRange::new(Prefix::new("read/")?, 100)?;
        Ok(Scene { cx, trouble, victim, observer, snapshot: (request, answer), listing: (range, keys) })
    }

    /// One write of the victim, which meets the cut at its `request`-th request. Returns the write, its answer, and whether the cut
    /// was met at all.
    async fn write(
        &self,
        write: Write,
        request: u64,
        point: CutPoint,
    ) -> Result<(Attempt, Result<coord_core::TxnOutcome, coord_core::BackendError>, bool), Verdict> {
        let place = format!("{write:?} with {point:?} at request {request}");
        recovered(&self.cx, &*self.victim, &place).await?;
        let attempt = Attempt::new(&*self.observer, write, &place.replace(' ', "-")).await?;
        self.trouble.cut(request, point).await?;
        let answer = bounded(&self.cx, "a transaction", self.victim.txn(attempt.txn())).await.at(&place)?;
        let met = self.trouble.heal().await?;
        if !met {
            let times = attempt.times(&*self.observer).await.at(&place)?;
            attempt.judge(&answer, times).at(&place)?;
            ensure!(answer.is_ok(), "{place}: saw {} although no cut was met", Answer(&answer));
        }
        Ok((attempt, answer, met))
    }

    /// How many requests such a write takes: replies that are not delayed at all tell, and harm nothing.
    async fn cost(&self, write: Write) -> Result<u64, Verdict> {
        for request in 1..=REQUESTS {
            let (_, answer, met) = self.write(write, request, CutPoint::DelayReply(Duration::ZERO)).await?;
            ensure!(answer.is_ok(), "saw {} although nothing was cut", Answer(&answer));
            if !met {
                ensure!(request > 1, "saw no request of a transaction on the wire that the harness cuts");
                return Ok(request - 1);
            }
        }
        fail!("saw a transaction take more than {REQUESTS} requests")
    }

    /// Both reads of the victim, each with a cut at each of its requests.
    async fn reads(&self, point: CutPoint) -> Outcome {
        for request in 1..=REQUESTS {
            let place = format!("a snapshot with {point:?} at request {request}");
            recovered(&self.cx, &*self.victim, &place).await?;
            self.trouble.cut(request, point).await?;
            let answer =
                bounded(&self.cx, "a snapshot", self.victim.snapshot(&self.snapshot.0)).await.at(&place)?;
            let met = self.trouble.heal().await?;
            let answer = answer.map(|snapshot| snapshot.with_store_time(None));
            let error = truth(&place, answer, &self.snapshot.1)?;
            if !met {
                ensure_eq!(error, None, "the error of {place}, which met no cut");
                ensure!(request > 1, "saw no request of a snapshot on the wire that the harness cuts");
                break;
            }
        }
        for request in 1..=REQUESTS {
            let place = format!("a listing with {point:?} at request {request}");
            recovered(&self.cx, &*self.victim, &place).await?;
            self.trouble.cut(request, point).await?;
            let answer =
                bounded(&self.cx, "a listing", self.victim.keys(&self.listing.0)).await.at(&place)?;
            let met = self.trouble.heal().await?;
            let error = truth(&place, answer, &self.listing.1)?;
            if !met {
                ensure_eq!(error, None, "the error of {place}, which met no cut");
                ensure!(request > 1, "saw no request of a listing on the wire that the harness cuts");
                break;
            }
        }
        Ok(())
    }
}

async fn before_send(cx: Context, trouble: Arc<Trouble>) -> Outcome {
    let scene = Scene::new(cx, trouble).await?;
    let mut seen = Vec::new();
    for write in Write::ALL {
        let cost = scene.cost(write).await?;
        for request in 1..=cost {
            let (attempt, answer, met) = scene.write(write, request, CutPoint::BeforeSend).await?;
            if !met {
                break;
            }
            let times = attempt.times(&*scene.observer).await?;
            let error = attempt.judge(&answer, times)?;
            if cost == 1 {
                // What was not sent cannot be answered. (With several requests, one that is lost before the commit may be tried again.)
                ensure!(
                    error.is_some(),
                    "saw {} for {attempt}, whose only request was never sent",
                    Answer(&answer)
                );
                ensure_eq!(
                    times,
                    0,
                    "how often the write of {attempt} happened, whose only request was never sent"
                );
            }
            seen.push((attempt, answer));
        }
    }
    scene.reads(CutPoint::BeforeSend).await?;
    settled(&scene, &seen).await
}

async fn before_reply(cx: Context, trouble: Arc<Trouble>) -> Outcome {
    let scene = Scene::new(cx, trouble).await?;
    let mut seen = Vec::new();
    for write in Write::ALL {
        let cost = scene.cost(write).await?;
        let mut kinds = Vec::new();
        for request in 1..=cost {
            let (attempt, answer, met) = scene.write(write, request, CutPoint::BeforeReply).await?;
            if !met {
                break;
            }
            let times = attempt.times(&*scene.observer).await?;
            let error = attempt.judge(&answer, times)?;
            if cost == 1 {
                ensure!(error.is_some(), "saw {} for {attempt}, whose only reply was lost", Answer(&answer));
                let happens = u64::from(attempt.right().is_applied());
                ensure_eq!(
                    times,
                    happens,
                    "how often the write of {attempt} happened, of which only the reply was lost"
                );
            }
            kinds.push(error);
            if write == Write::Create && times == 1 {
                mints_anew(&scene, &attempt).await.at(&attempt)?;
            } else {
                seen.push((attempt, answer));
            }
        }
        ensure!(
            write == Write::Stale || kinds.contains(&Some(ErrorKind::Indeterminate)),
            "saw no `Indeterminate` for {write:?} although the reply to each of its {cost} requests was lost, but {kinds:?}"
        );
    }
    // A reply that is only late is the answer to its own request and to no other one.
    for write in Write::ALL {
        let delay = CutPoint::DelayReply(Duration::from_millis(150));
        let (attempt, answer, _) = scene.write(write, 1, delay).await?;
        scene.reads(CutPoint::DelayReply(Duration::ZERO)).await.at("after a late reply")?;
        let times = attempt.times(&*scene.observer).await?;
        attempt.judge(&answer, times)?;
        seen.push((attempt, answer));
    }
    scene.reads(CutPoint::BeforeReply).await?;
    settled(&scene, &seen).await
}

/// The caller that was left in doubt sends the same transaction again, after the key has been deleted: the key that comes into being is
/// another one, although not a byte of the request is.
async fn mints_anew(scene: &Scene, attempt: &Attempt) -> Outcome {
    let mut versions = BTreeSet::from([entry(&*scene.observer, attempt.key()).await?.version()]);
    recovered(&scene.cx, &*scene.victim, "after a lost reply").await?;
    for _ in 0..3 {
        apply(&*scene.observer, &Txn::new([], [Mutation::delete(attempt.key().clone())])?).await?;
        apply(&*scene.victim, attempt.txn()).await.at("the same transaction again")?;
        let version = entry(&*scene.observer, attempt.key()).await?.version();
        ensure!(versions.insert(version), "saw the version {version} again after delete and re-create");
    }
    Ok(())
}

/// Once more at the end: nothing that happened once may have happened again since, nor anything that "did not happen".
async fn settled(
    scene: &Scene,
    seen: &[(Attempt, Result<coord_core::TxnOutcome, coord_core::BackendError>)],
) -> Outcome {
    recovered(&scene.cx, &*scene.victim, "at the end").await?;
    for (attempt, answer) in seen {
        let times = attempt.times(&*scene.observer).await.at("at the end")?;
        attempt.judge(answer, times).at("at the end")?;
    }
    Ok(())
}
