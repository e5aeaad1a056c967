//! B48: after the storm every client works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use coord_core::{Backend, ErrorKind, Key, KeyRange, KeySet, Mutation, Prefix, Txn, TxnOutcome};
use rand::RngExt as _;
use rand::rngs::StdRng;

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::{Control, CutPoint};
use crate::{ensure, ensure_eq, fail, skip};

use super::attempt::{apply, entry};
use super::trouble::{Trouble, bounded, faulty, in_trouble, pause, until};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B48",
    layer: Layer::Backend,
    promise: "after all faults end, every client completes ten transactions in bounded time",
    needs: Needs::exclusive(&[]),
    body: |cx| Box::pin(in_trouble(cx, calm_after)),
}];

const CLIENTS: usize = 4;

async fn calm_after(cx: Context, trouble: Arc<Trouble>) -> Outcome {
    let controls: Vec<Control> = match cx.harness().server() {
        Some(server) => [Control::Kill, Control::Pause, Control::Cut, Control::FlushScripts]
            .into_iter()
            .filter(|control| server.can(*control))
            .collect(),
        None => Vec::new(),
    };
    if controls.is_empty() {
        skip!("the harness can do no harm to a server");
    }
    let weather = Arc::new(Weather { storming: AtomicBool::new(true), ..Weather::default() });
    let mut clients = Vec::new();
    for (n, handle) in cx.handles(CLIENTS).await?.into_iter().enumerate() {
        let key = Key::new(format!("client/{n}"))?;
        apply(&*handle, &Txn::new([], [Mutation::put(key.clone(), "0")])?).await?;
        let client = Client { handle, key, rng: cx.rng(n as u64 + 1), applied: 1, unsure: 0 };
        clients.push(tokio::spawn(client.bear(cx.clone(), weather.clone())));
    }
    let stormed = storm(&cx, &trouble, &controls, &weather).await;
    weather.storming.store(false, Ordering::SeqCst);
    let mut weathered = Vec::new();
    for client in clients {
        weathered.push(client.await?.at("during the faults")?);
    }
    stormed?;
    for client in &mut weathered {
        bounded(&cx, "ten transactions after all faults had ended", client.ten())
            .await
            .and_then(|done| done)
            .at(format!("the client of {:?}", client.key))?;
    }
    let fresh = cx.open().await?;
    for client in &weathered {
        client.check(&*fresh).await?;
    }
    Ok(())
}

/// What the clients and the faults know of each other.
#[derive(Default)]
struct Weather {
    storming: AtomicBool,
    /// Clients give up every write after a moment.
    hurried: AtomicBool,
    /// The calls of all clients that have ended or been dropped.
    calls: AtomicUsize,
}

impl Weather {
    /// Waits for this many more calls of each client.
    async fn work(&self, cx: &Context, calls: usize) -> Outcome {
        let end = self.calls.load(Ordering::SeqCst) + calls * CLIENTS;
        until(cx, "the clients work", || self.calls.load(Ordering::SeqCst) >= end).await
    }

    /// Waits until every client has met a fault, and, if calls fail fast, has done so more often than a pool has places.
    async fn met(&self, cx: &Context) -> Outcome {
        self.work(cx, 2).await?;
        let (start, end) = (cx.elapsed(), self.calls.load(Ordering::SeqCst) + 10 * CLIENTS);
        let enough =
            || self.calls.load(Ordering::SeqCst) >= end || cx.elapsed() - start > Duration::from_secs(1);
        until(cx, "the clients meet the fault", enough).await
    }
}

/// One fault after the other, each among the calls of the clients, each ended.
async fn storm(cx: &Context, trouble: &Trouble, controls: &[Control], weather: &Weather) -> Outcome {
    let mut rng = cx.rng(0);
    for round in 0..10 {
        for control in controls {
            // A fault that nobody meets is none: there is work before it and in it.
            weather.work(cx, 1).await?;
            match control {
                Control::Kill if round % 3 == 0 => {
                    trouble.kill().await?;
                    weather.met(cx).await?;
                    trouble.restart().await?;
                }
                Control::Pause if round % 3 == 1 => {
                    trouble.pause().await?;
                    // Callers that lose their patience drop their calls.
                    weather.hurried.store(true, Ordering::SeqCst);
                    let met = weather.met(cx).await;
                    weather.hurried.store(false, Ordering::SeqCst);
                    met?;
                    // Nobody else need notice: a pause may be shorter than the patience of a handle.
                    pause(Duration::from_millis(rng.random_range(20..400))).await;
                    trouble.resume().await?;
                }
                Control::Cut => {
                    let point = match rng.random_range(0..3) {
                        0 => CutPoint::BeforeSend,
                        1 => CutPoint::BeforeReply,
                        _ => CutPoint::DelayReply(Duration::from_millis(30)),
                    };
                    for request in 1..=CLIENTS as u64 {
                        trouble.cut(request * rng.random_range(1..4), point).await?;
                    }
                    weather.work(cx, 3).await?;
                    trouble.heal().await?;
                }
                Control::FlushScripts => trouble.flush_scripts().await?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// A client that alone writes its key and keeps account of what it was told.
struct Client {
    handle: Arc<dyn Backend>,
    key: Key,
    rng: StdRng,
    applied: u64,
    unsure: u64,
}

impl Client {
    async fn write(&mut self) -> Result<bool, Verdict> {
        let txn = Txn::new([], [Mutation::put(self.key.clone(), self.applied.to_string())])?;
        match self.handle.txn(&txn).await {
            Ok(TxnOutcome::Applied) => {
                self.applied += 1;
                Ok(true)
            }
            Ok(TxnOutcome::Rejected) => fail!("saw a transaction without asserts rejected"),
            Err(error) => {
                self.unsure += u64::from(faulty(error)? == ErrorKind::Indeterminate);
                Ok(false)
            }
        }
    }

    /// Writes and reads and, now and then, drops a call in its midst.
    async fn bear(mut self, cx: Context, weather: Arc<Weather>) -> Result<Self, Verdict> {
        let request = KeySet::new([self.key.clone()])?;
        let range = KeyRange::new(Prefix::new("client/")?, 10)?;
        while weather.storming.load(Ordering::SeqCst) {
            let hurried = weather.hurried.load(Ordering::SeqCst);
            match self.rng.random_range(0..8) {
                choice if hurried || choice == 0 => {
                    let limit = Duration::from_micros(self.rng.random_range(0..3_000));
                    let unsure = self.unsure;
                    match tokio::time::timeout(limit, self.write()).await {
                        Ok(written) => {
                            written?;
                        }
                        // Dropped: it may have happened.
                        Err(_) => self.unsure = unsure + 1,
                    }
                }
                1 => {
                    if let Err(error) = bounded(&cx, "a snapshot", self.handle.snapshot(&request)).await? {
                        ensure_eq!(
                            error.kind(),
                            ErrorKind::Unavailable,
                            "the kind of a read's error: \"{error}\""
                        );
                    }
                }
                2 => {
                    if let Err(error) = bounded(&cx, "a listing", self.handle.keys(&range)).await? {
                        ensure_eq!(
                            error.kind(),
                            ErrorKind::Unavailable,
                            "the kind of a read's error: \"{error}\""
                        );
                    }
                }
                _ => {
                    bounded(&cx, "a transaction", self.write()).await??;
                }
            }
            weather.calls.fetch_add(1, Ordering::SeqCst);
            // Clients that are told of an error try again, but not at once.
            pause(Duration::from_micros(500)).await;
        }
        Ok(self)
    }

    /// Completes ten transactions. A line that broke may still be noticed, so errors are tried again.
    async fn ten(&mut self) -> Outcome {
        let mut done = 0;
        while done < 10 {
            if self.write().await? {
                done += 1;
            } else {
                pause(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }

    /// The key was written as often as the client was told, and at most as often as it could not know.
    async fn check(&self, fresh: &dyn Backend) -> Outcome {
        let count = entry(fresh, &self.key).await?.version().count();
        ensure!(
            (self.applied..=self.applied + self.unsure).contains(&count),
            "saw {:?} written {count} times, where {} writes were acknowledged and {} more were in doubt",
            self.key,
            self.applied,
            self.unsure
        );
        Ok(())
    }
}
