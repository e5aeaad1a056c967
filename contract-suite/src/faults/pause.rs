//! B43: a server that stops working without closing anything.

use std::sync::Arc;
use std::time::Duration;

use coord_core::{
    Backend, BackendError, ErrorKind, Key, KeyRange, KeySet, Mutation, Prefix, Snapshot, Txn, TxnOutcome,
};

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::Control;
use crate::{ensure_eq, fail};

use super::attempt::{Answer, Attempt, Write, apply};
use super::trouble::{Trouble, bounded, in_trouble, opens_in_time, pause, recovered, truth};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B43",
    layer: Layer::Backend,
    promise: "a paused server: bounded wait, then `Indeterminate`; the write happened at most once, and is never answered \
              `Rejected` when it did",
    needs: Needs::exclusive(&[Control::Pause]),
    body: |cx| Box::pin(in_trouble(cx, paused)),
}];

/// For how long the server is paused: shorter and longer than handles may wait, and until every call has given up by itself.
const PAUSES: [Option<Duration>; 4] = [
    Some(Duration::from_millis(50)),
    Some(Duration::from_millis(700)),
    Some(Duration::from_millis(2_500)),
    None,
];

/// One client of the scene: it writes, and it reads what only it has written.
struct Client {
    handle: Arc<dyn Backend>,
    request: KeySet,
    snapshot: Snapshot,
    range: KeyRange,
    listing: Vec<Key>,
}

type Answers =
    (Result<TxnOutcome, BackendError>, Result<Snapshot, BackendError>, Result<Vec<Key>, BackendError>);

impl Client {
    async fn new(cx: &Context, n: usize) -> Result<Self, Verdict> {
        let handle = cx.open().await?;
        let prefix = format!("client/{n}/");
        let key = Key::new(format!("{prefix}{n}"))?;
        apply(&*handle, &Txn::new([], [Mutation::put(key.clone(), n.to_string())])?).await?;
        let request = KeySet::new([key.clone()])?;
        let snapshot = handle.snapshot(&request).await?.with_store_time(None);
        Ok(Client {
            handle,
            request,
            snapshot,
            range: KeyRange::new(Prefix::new(prefix)?, 10)?,
            listing: vec![key],
        })
    }

    /// A transaction and both reads, at the same time.
    async fn ask(&self, cx: &Context, attempt: &Attempt) -> Result<Answers, Verdict> {
        let answers = async {
            tokio::join!(
                self.handle.txn(attempt.txn()),
                self.handle.snapshot(&self.request),
                self.handle.keys(&self.range)
            )
        };
        bounded(cx, "a transaction and two reads on a paused server", answers).await
    }

    /// The reads are the truth, or unavailable. `answered` says whether there may be an answer at all.
    fn judge(&self, answers: Answers, answered: bool) -> Result<Result<TxnOutcome, BackendError>, Verdict> {
        let (txn, snapshot, listing) = answers;
        let snapshot =
            truth("a snapshot", snapshot.map(|snapshot| snapshot.with_store_time(None)), &self.snapshot)?;
        let listing = truth("a listing", listing, &self.listing)?;
        if !answered {
            ensure_eq!(
                snapshot,
                Some(ErrorKind::Unavailable),
                "the error of a snapshot while the server was paused"
            );
            ensure_eq!(
                listing,
                Some(ErrorKind::Unavailable),
                "the error of a listing while the server was paused"
            );
            if let Ok(outcome) = txn {
                fail!("saw a transaction answered {outcome:?} while the server was paused");
            }
        }
        Ok(txn)
    }
}

async fn paused(cx: Context, trouble: Arc<Trouble>) -> Outcome {
    let observer = cx.open().await?;
    let mut clients = Vec::new();
    for n in 0..Write::ALL.len() {
        clients.push(Arc::new(Client::new(&cx, n).await?));
    }
    let mut seen: Vec<(Attempt, Result<TxnOutcome, BackendError>)> = Vec::new();
    for (round, length) in PAUSES.into_iter().enumerate() {
        let place = match length {
            Some(length) => format!("paused for {} ms", length.as_millis()),
            None => "paused until every call had ended".to_owned(),
        };
        // While the server sleeps, a handle that has given up once must give up again.
        let waves = if length.is_none() { 2 } else { 1 };
        let mut attempts = Vec::new();
        for wave in 0..waves {
            for (client, write) in clients.iter().zip(Write::ALL) {
                let name = format!("pause-{round}-{wave}-{write:?}");
                attempts.push((client.clone(), Attempt::new(&*observer, write, &name).await?));
            }
        }
        trouble.pause().await?;
        let mut answers = Vec::new();
        for wave in attempts.chunks(clients.len()) {
            let tasks: Vec<_> = wave
                .iter()
                .cloned()
                .map(|(client, attempt)| {
                    let cx = cx.clone();
                    tokio::spawn(async move { client.ask(&cx, &attempt).await })
                })
                .collect();
            if let Some(length) = length {
                pause(length).await;
                trouble.resume().await?;
            }
            for task in tasks {
                answers.push(task.await?.at(&place)?);
            }
        }
        if length.is_none() {
            opens_in_time(&cx, "paused").await?;
            trouble.resume().await?;
        }
        for client in &clients {
            recovered(&cx, &*client.handle, &place).await?;
        }
        recovered(&cx, &*observer, &place).await?;
        for ((client, attempt), answers) in attempts.into_iter().zip(answers) {
            let answer = client.judge(answers, length.is_some()).at(&place)?;
            let times = attempt.times(&*observer).await.at(&place)?;
            attempt.judge(&answer, times).at(&place)?;
            seen.push((attempt, answer));
        }
        // No late reply is taken for the answer to another request.
        for client in &clients {
            let snapshot = client.handle.snapshot(&client.request).await?.with_store_time(None);
            ensure_eq!(snapshot, client.snapshot, "the answer to a snapshot after the server was {place}");
            let listing = client.handle.keys(&client.range).await?;
            ensure_eq!(listing, client.listing, "the answer to a listing after the server was {place}");
        }
    }
    // Nothing that was sent while the server slept has happened a second time, or after it was said not to have.
    for (attempt, answer) in &seen {
        let times = attempt.times(&*observer).await.at("at the end")?;
        attempt.judge(answer, times).at(format!("at the end, answered with {}", Answer(answer)))?;
    }
    Ok(())
}
