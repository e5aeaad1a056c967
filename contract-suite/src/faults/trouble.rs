//! Doing harm to a server so that it is always undone, and waiting no longer than a while.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coord_core::{
    Backend, BackendError, Clock as _, ErrorKind, Key, KeyRange, KeySet, Mutation, Prefix, SystemClock, Txn,
    TxnOutcome,
};
use futures::FutureExt as _;

use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::{ControlError, Cut, CutPoint, ServerControl};
use crate::{ensure_eq, fail};

/// The server, with a memory of what was done to it.
pub(super) struct Trouble {
    cx: Context,
    killed: AtomicBool,
    paused: AtomicBool,
    cut: AtomicBool,
}

/// Runs the test of a clause, and then repairs what it left broken, also if it failed or panicked: the clauses after it need a whole
/// server.
pub(super) async fn in_trouble<F>(cx: Context, body: impl FnOnce(Context, Arc<Trouble>) -> F) -> Outcome
where
    F: Future<Output = Outcome>,
{
    let trouble = Arc::new(Trouble {
        cx: cx.clone(),
        killed: AtomicBool::new(false),
        paused: AtomicBool::new(false),
        cut: AtomicBool::new(false),
    });
    let result = AssertUnwindSafe(body(cx, trouble.clone())).catch_unwind().await;
    let repaired = trouble.repair().await.at("repairing the server after the clause");
    match result {
        Ok(outcome) => outcome.and(repaired),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl Trouble {
    fn server(&self) -> Result<&dyn ServerControl, Verdict> {
        match self.cx.harness().server() {
            Some(server) => Ok(server),
            None => crate::skip!("the harness has no control of a server"),
        }
    }

    pub(super) async fn kill(&self) -> Outcome {
        self.killed.store(true, Ordering::SeqCst);
        done("kill the server", self.server()?.kill().await)
    }

    pub(super) async fn restart(&self) -> Outcome {
        done("restart the server", self.server()?.restart().await)?;
        self.killed.store(false, Ordering::SeqCst);
        Ok(())
    }

    pub(super) async fn pause(&self) -> Outcome {
        self.paused.store(true, Ordering::SeqCst);
        done("pause the server", self.server()?.pause().await)
    }

    pub(super) async fn resume(&self) -> Outcome {
        done("resume the server", self.server()?.resume().await)?;
        self.paused.store(false, Ordering::SeqCst);
        Ok(())
    }

    pub(super) async fn cut(&self, request: u64, point: CutPoint) -> Outcome {
        self.cut.store(true, Ordering::SeqCst);
        done("cut the wire", self.server()?.cut(Cut { request, point }).await)
    }

    /// Whether the cut was met.
    pub(super) async fn heal(&self) -> Result<bool, Verdict> {
        let unmet = done("heal the wire", self.server()?.heal().await)?;
        self.cut.store(false, Ordering::SeqCst);
        Ok(unmet == 0)
    }

    pub(super) async fn flush_scripts(&self) -> Outcome {
        done("flush the scripts", self.server()?.flush_scripts().await)
    }

    async fn repair(&self) -> Outcome {
        if self.cut.load(Ordering::SeqCst) {
            self.heal().await?;
        }
        if self.killed.load(Ordering::SeqCst) {
            self.restart().await?;
        }
        if self.paused.load(Ordering::SeqCst) {
            self.resume().await?;
        }
        Ok(())
    }
}

/// That the harness fails to do what it says it can is a failure of the clause.
pub(super) fn done<T>(what: &str, result: Result<T, ControlError>) -> Result<T, Verdict> {
    result.map_err(|error| Verdict::Failed(format!("saw the harness fail to {what}: {error}")))
}

/// Waits for a call, which must end within the patience of the run.
pub(super) async fn bounded<T>(
    cx: &Context,
    what: &str,
    call: impl Future<Output = T>,
) -> Result<T, Verdict> {
    let patience = cx.patience();
    match tokio::time::timeout(patience, call).await {
        Ok(answer) => Ok(answer),
        Err(_) => fail!("saw {what} not end within {} s", patience.as_secs_f64()),
    }
}

/// Waits until something is so, which must come true within the patience of the run.
pub(super) async fn until(cx: &Context, what: &str, mut condition: impl FnMut() -> bool) -> Outcome {
    bounded(cx, &format!("the wait until {what}"), async {
        while !condition() {
            pause(Duration::from_millis(1)).await;
        }
    })
    .await
}

/// Lets real time pass, which is what the servers of these clauses live in.
pub(super) async fn pause(duration: Duration) {
    SystemClock::new().sleep(duration).await;
}

/// An error that a fault of the wire or of the server may cause. Any other one ends the clause.
pub(super) fn faulty(error: BackendError) -> Result<ErrorKind, Verdict> {
    match error.kind() {
        kind @ (ErrorKind::Unavailable | ErrorKind::Indeterminate) => Ok(kind),
        _ => Err(error.into()),
    }
}

/// Waits until a handle works again: one round of all three primitives without an error, each with the answer to its own question.
/// Nothing may be done for it: old handles recover by themselves.
pub(super) async fn recovered(cx: &Context, handle: &dyn Backend, place: &str) -> Outcome {
    let start = cx.elapsed();
    loop {
        let round = bounded(cx, "a call of a handle that should recover", round(handle)).await;
        let Err(error) = round.and_then(|round| round).at(place)? else { return Ok(()) };
        if cx.elapsed() - start > cx.patience() {
            fail!(
                "{place}: saw a handle not recover within {} s; its last error was \"{error}\"",
                cx.patience().as_secs_f64()
            );
        }
        faulty(error).at(place)?;
        pause(Duration::from_millis(5)).await;
    }
}

async fn round(handle: &dyn Backend) -> Result<Result<(), BackendError>, Verdict> {
    let key = Key::new("recovered")?;
    let txn = Txn::new([], [Mutation::put(key.clone(), "again")])?;
    let (request, range) = (KeySet::new([key.clone()])?, KeyRange::new(Prefix::new("recovered")?, 1)?);
    match handle.txn(&txn).await {
        Ok(outcome) => {
            ensure_eq!(outcome, TxnOutcome::Applied, "the answer to a transaction without asserts")
        }
        Err(error) => return Ok(Err(error)),
    }
    match handle.snapshot(&request).await {
        Ok(snapshot) => {
            let value = snapshot.require(&key)?.value().map(|value| &value[..]);
            ensure_eq!(value, Some(&b"again"[..]), "the value of a key that was just put");
        }
        Err(error) => return Ok(Err(error)),
    }
    match handle.keys(&range).await {
        Ok(listed) => ensure_eq!(listed, [key], "a listing of a key that was just put"),
        Err(error) => return Ok(Err(error)),
    }
    Ok(Ok(()))
}

/// Opens a handle on a server that does not work. A handle that connects only when it is used may be given; else the error is that it did
/// not happen, for the server may come back.
pub(super) async fn opens_in_time(cx: &Context, state: &str) -> Outcome {
    match bounded(
        cx,
        &format!("the opening of a handle on a {state} server"),
        cx.harness().open(cx.namespace()),
    )
    .await?
    {
        Ok(_) => Ok(()),
        Err(error) => {
            ensure_eq!(
                error.kind(),
                ErrorKind::Unavailable,
                "the kind of the error of opening a handle on a {state} server: \"{error}\""
            );
            Ok(())
        }
    }
}

/// The answer of a read during a fault: the truth, or `Unavailable`.
pub(super) fn truth<T: PartialEq + std::fmt::Debug>(
    what: &str,
    answer: Result<T, BackendError>,
    truth: &T,
) -> Result<Option<ErrorKind>, Verdict> {
    match answer {
        Ok(seen) => {
            ensure_eq!(seen, *truth, "the answer to {what}, which met a fault");
            Ok(None)
        }
        Err(error) => {
            ensure_eq!(
                error.kind(),
                ErrorKind::Unavailable,
                "the kind of the error of {what}, a read: \"{error}\""
            );
            Ok(Some(ErrorKind::Unavailable))
        }
    }
}
