//! A worker: claims tasks, runs a handler on each, keeps the leases alive, and settles what came of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::task::{AgentId, Claim, Filter, Outcome, Task, TaskId};
use super::{BoardError, ExtendedBoard};
use crate::cas::{Backoff, check_ttl};
use crate::clock::{Clock, SystemClock};
use crate::hold::{Hold, Lost, Renewed};
use crate::panic::panic_text;
use crate::token::Token;

/// Works on a board: claims what is ready, up to its concurrency, and runs a handler on each task.
///
/// The lease of a task is renewed at a third of its ttl by a task of its own. A handler that returns an outcome completes its task; an error, a
/// panic or the time limit fails it. If the lease is lost, the handler is told, and after a moment its future is dropped; whatever it
/// returns then is not told to the board, for somebody else may have the task.
///
/// The future of a handler runs on the tokio runtime. One that computes for long belongs into `spawn_blocking`, or it keeps its own lease from
/// being renewed.
///
/// ```
/// use std::sync::Arc;
/// use coord_core::board::{AgentId, BoardAdapter, BoardOptions, ExtendedBoard, Outcome, TaskId, TaskSpec, Worker};
/// # use coord_memory::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let backend = MemoryStore::new().open(&"demo".parse()?);
/// let board = BoardAdapter::open(backend, BoardOptions::default()).await?;
/// board.add(TaskSpec::new(TaskId::new("build")?)).await?;
/// board.add(TaskSpec::new(TaskId::new("test")?).dep(TaskId::new("build")?)).await?;
///
/// let (done, mut seen) = tokio::sync::mpsc::channel(2);
/// let handler = move |job: coord_core::board::Job| {
///     let done = done.clone();
///     async move {
///         done.send(job.task().id.to_string()).await.ok();
///         // Hand job.fence() to whatever the task writes to.
///         Ok::<_, std::io::Error>(Outcome::new("fine").unwrap())
///     }
/// };
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let worker = Worker::new(board, AgentId::new("host-7")?).concurrency(4);
/// let working = tokio::spawn(worker.run(handler, async { stopped.await.ok(); }));
/// assert_eq!(seen.recv().await.as_deref(), Some("build"));
/// assert_eq!(seen.recv().await.as_deref(), Some("test"));
/// stop.send(()).ok();
/// assert_eq!(working.await??.completed, 2);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    board: Arc<dyn ExtendedBoard>,
    agent: AgentId,
    options: Options,
}

#[derive(Clone, Debug)]
struct Options {
    concurrency: usize,
    filter: Filter,
    ttl: Duration,
    time_limit: Option<Duration>,
    look: (Duration, Duration),
    grace: Duration,
    settle_for: Duration,
    clock: Arc<dyn Clock>,
}

/// How long a handler that lost its lease, or ran out of time, may take to notice before its future is dropped.
const NOTICE: Duration = Duration::from_millis(100);

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Tasks that it completed.
    pub completed: u64,
    /// Tasks whose handler failed, panicked or ran out of time, and of which the board was told.
    pub failed: u64,
    /// Tasks that it gave back, because it was told to stop.
    pub released: u64,
    /// Tasks whose lease was lost, so that nothing was told.
    pub lost: u64,
    /// Tasks of which the board could not be told in time. Their claims end with their leases.
    pub unsettled: u64,
}

/// A claimed task, as its handler sees it. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Job {
    task: Arc<Task>,
    fence: u64,
    hold: Arc<Hold>,
}

impl Job {
    /// The task.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Larger than every fence that was given for this task before. Hand it to whatever the task writes to, and let that refuse smaller
    /// ones than it has seen.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Waits until the lease is lost, and says why. From then on nothing may be done in the name of this claim.
    pub async fn lost(&self) -> Lost {
        self.hold.lost().await
    }

    /// Whether the lease is lost: it reads the clock, and needs nobody else to run.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost()
    }

    /// How much time is left until the lease is lost, unless it is renewed before.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }
}

impl Worker {
    /// A worker on this board under this name: one task at a time, any task, leases of 30 s, no time limit.
    pub fn new(board: impl ExtendedBoard, agent: AgentId) -> Self {
        let options = Options {
            concurrency: 1,
            filter: Filter::any(),
            ttl: Duration::from_secs(30),
            time_limit: None,
            look: (Duration::from_millis(50), Duration::from_secs(8)),
            grace: Duration::from_secs(30),
            settle_for: Duration::from_secs(60),
            clock: Arc::new(SystemClock::new()),
        };
        Worker { board: Arc::new(board), agent, options }
    }

    /// So many tasks at a time. It never claims more than it can run at once.
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.options.concurrency = tasks;
        self
    }

    /// Only tasks that pass this filter.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.options.filter = filter;
        self
    }

    /// Leases last so long if they are not renewed: what a dead worker held is taken over after this time.
    pub fn lease(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// A handler may take so long; then its task has failed.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.options.time_limit = Some(limit);
        self
    }

    /// How long it waits before it looks again while there is nothing to do: first, and at most. By default 50 ms and 8 s. It looks at once
    /// when one of its own tasks has ended.
    pub fn look(mut self, first: Duration, most: Duration) -> Self {
        self.options.look = (first, most);
        self
    }

    /// How long running handlers may go on after it was told to stop. Then they are dropped, and their tasks given back. By default 30 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// For how long what came of a task is told again while the store is away. By default a minute.
    pub fn settle_for(mut self, bound: Duration) -> Self {
        self.options.settle_for = bound;
        self
    }

    /// With this clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.options.clock = clock;
        self
    }

    /// Works until `shutdown` ends, and then until what is running has ended or its grace is over. A store that is away is waited for.
    /// Dropped, handlers and renewals stop at once, and the claims end with their leases.
    ///
    /// # Errors
    /// [`Invalid`](BoardError::Invalid) for an agent name, a concurrency of 0 or a ttl that make no sense; nothing was claimed.
    pub async fn run<H, F, E>(
        self,
        handler: H,
        shutdown: impl Future<Output = ()>,
    ) -> Result<WorkerReport, BoardError>
    where
        H: Fn(Job) -> F + 'static,
        F: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        self.agent.validate()?;
        check_ttl(self.options.ttl)?;
        if self.options.concurrency == 0 {
            return Err(BoardError::Invalid("a worker with a concurrency of 0 never works".into()));
        }
        let (stop, stopped) = watch::channel(false);
        let mut running: JoinSet<Ended> = JoinSet::new();
        let mut report = WorkerReport::default();
        let mut unsure: Vec<(TaskId, Token)> = Vec::new();
        let mut idle = Pause::new(self.options.look);
        tokio::pin!(shutdown);
        loop {
            let free = self.options.concurrency - running.len();
            let mut found = 0;
            if free > 0 {
                let sent = self.options.clock.monotonic();
                // Not given up in the middle: what it claims is known only once it has answered.
                match self.look_for(free, &mut unsure).await {
                    Ok(claims) => {
                        found = claims.len();
                        for claim in claims {
                            running.spawn(self.start(claim, sent, &handler, stopped.clone()));
                        }
                    }
                    Err(error) => {
                        tracing::warn!(agent = %self.agent, %error, "no task could be looked for");
                    }
                }
            }
            if found > 0 {
                idle.reset();
            }
            // It looks again when there is room and a reason: a task of its own that ended may have made others ready.
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(ended) = running.join_next() => {
                    report.count(ended);
                    idle.reset();
                }
                () = idle.wait(&*self.options.clock), if found < free => {}
            }
        }
        self.drain(running, &stop, &mut report).await;
        for (id, token) in unsure {
            // What was perhaps claimed ends with its lease otherwise.
            let _ = self.board.release(&id, &token).await;
        }
        Ok(report)
    }

    async fn look_for(
        &self,
        free: usize,
        unsure: &mut Vec<(TaskId, Token)>,
    ) -> Result<Vec<Claim>, BoardError> {
        while let Some((id, token)) = unsure.last() {
            match self.board.release(id, token).await {
                Err(error) if is_transient(&error) => return Err(error),
                Ok(()) | Err(_) => unsure.pop(),
            };
        }
        let claimed = self.board.claim_up_to(free, &self.agent, &self.options.filter, self.options.ttl).await;
        if let Err(BoardError::OutcomeUnknown { id, token: Some(token), .. }) = &claimed {
            unsure.push((id.clone(), token.clone()));
        }
        claimed
    }

    fn start<H, F, E>(
        &self,
        claim: Claim,
        sent: Duration,
        handler: &H,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = Ended> + Send + use<H, F, E>
    where
        H: Fn(Job) -> F + 'static,
        F: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let options = self.options.clone();
        let trusted = options.ttl.saturating_sub(options.ttl / 10);
        let hold = Arc::new(Hold::new(options.clock.clone(), trusted, sent));
        let job = Job { fence: claim.lease.fence, task: Arc::new(claim.task), hold: hold.clone() };
        let held = Claimed {
            board: self.board.clone(),
            id: job.task.id.clone(),
            token: claim.lease.token,
            hold,
            options,
        };
        // The handler is called here, by whoever runs the worker; only its future goes elsewhere.
        let handling = handler(job);
        async move {
            let renewing = Aborted(tokio::spawn(held.clone().keep_alive(sent)));
            let ended = held.attend(handling, stop).await;
            drop(renewing);
            ended
        }
    }

    async fn drain(
        &self,
        mut running: JoinSet<Ended>,
        stop: &watch::Sender<bool>,
        report: &mut WorkerReport,
    ) {
        let clock = &*self.options.clock;
        let end = clock.monotonic().saturating_add(self.options.grace);
        while !running.is_empty() {
            let left = end.saturating_sub(clock.monotonic());
            tokio::select! {
                biased;
                Some(ended) = running.join_next() => report.count(ended),
                () = clock.sleep(left), if !*stop.borrow() => {
                    stop.send_replace(true);
                }
            }
        }
    }
}

/// How a claim of a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Completed,
    Failed,
    Released,
    Lost,
    Unsettled,
}

impl WorkerReport {
    fn count(&mut self, ended: Result<Ended, tokio::task::JoinError>) {
        let counter = match ended {
            Ok(Ended::Completed) => &mut self.completed,
            Ok(Ended::Failed) => &mut self.failed,
            Ok(Ended::Released) => &mut self.released,
            Ok(Ended::Lost) => &mut self.lost,
            // Nothing of ours panics; a claim whose task did ends with its lease.
            Ok(Ended::Unsettled) | Err(_) => &mut self.unsettled,
        };
        *counter += 1;
    }
}

/// A task that ends with what holds it.
struct Aborted<T>(JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits before the next look: exponentially longer, with the last quarter by chance, so that idle workers do not look all at once.
struct Pause {
    first: Duration,
    most: Duration,
    next: Duration,
    jitter: Backoff,
}

impl Pause {
    fn new((first, most): (Duration, Duration)) -> Self {
        Pause { first, most, next: first, jitter: Backoff::new(first / 4, most / 4) }
    }

    fn reset(&mut self) {
        *self = Pause::new((self.first, self.most));
    }

    async fn wait(&mut self, clock: &dyn Clock) {
        let next = self.next;
        self.next = next.saturating_mul(2).min(self.most);
        clock.sleep(next.mul_f64(0.75)).await;
        self.jitter.wait(clock).await;
    }
}

/// A claim that a worker holds.
#[derive(Clone)]
struct Claimed {
    board: Arc<dyn ExtendedBoard>,
    id: TaskId,
    token: Token,
    hold: Arc<Hold>,
    options: Options,
}

impl Claimed {
    /// Renews the lease until it is lost.
    async fn keep_alive(self, sent: Duration) {
        let renew = async || {
            let renewed = self.board.renew(&self.id, &self.token, self.options.ttl).await;
            Renewed::of(renewed, is_transient, &self.id)
        };
        self.hold.keep_alive(self.options.ttl, sent, renew).await;
    }

    async fn attend<F, E>(&self, handling: F, mut stop: watch::Receiver<bool>) -> Ended
    where
        F: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let clock = &*self.options.clock;
        let mut handler = Aborted(tokio::spawn(handling));
        let began = clock.monotonic();
        let limit = async {
            match self.options.time_limit {
                Some(limit) => clock.sleep(limit.saturating_sub(clock.monotonic() - began)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = &mut handler.0 => match ended {
                Ok(Ok(outcome)) => self.settle(Ok(outcome)).await,
                Ok(Err(error)) => self.settle(Err(Outcome::truncated(&error.to_string()))).await,
                Err(error) => self.settle(Err(panicked(error))).await,
            },
            _ = self.hold.lost() => {
                self.notice(&mut handler).await;
                Ended::Lost
            }
            () = told(&mut stop) => {
                // First nothing runs any more, then the task is somebody else's.
                handler.0.abort();
                let _ = (&mut handler.0).await;
                self.release().await
            }
            () = limit => {
                handler.0.abort();
                let _ = (&mut handler.0).await;
                let limit = self.options.time_limit.unwrap_or_default();
                self.settle(Err(Outcome::truncated(&format!("ran out of time after {limit:?}")))).await
            }
        }
    }

    /// Lets a handler notice that its lease is lost, and then drops its future.
    async fn notice<T>(&self, handler: &mut Aborted<T>) {
        tokio::select! {
            biased;
            _ = &mut handler.0 => {}
            () = self.options.clock.sleep(NOTICE) => {
                handler.0.abort();
            }
        }
    }

    /// Tells the board. The same token may say it as often as it likes, so whatever is no answer is asked again; the lease is renewed
    /// meanwhile.
    async fn settle(&self, came: Result<Outcome, Outcome>) -> Ended {
        match came {
            Ok(outcome) => self.tell(Ended::Completed, outcome).await,
            Err(reason) => self.tell(Ended::Failed, reason).await,
        }
    }

    async fn release(&self) -> Ended {
        self.tell(Ended::Released, Outcome::default()).await
    }

    async fn say(&self, ended: Ended, outcome: Outcome) -> Result<(), BoardError> {
        match ended {
            Ended::Completed => self.board.complete(&self.id, &self.token, outcome).await.map(|_| ()),
            Ended::Failed => self.board.fail(&self.id, &self.token, outcome).await.map(|_| ()),
            Ended::Released | Ended::Lost | Ended::Unsettled => {
                self.board.release(&self.id, &self.token).await
            }
        }
    }

    async fn tell(&self, ended: Ended, outcome: Outcome) -> Ended {
        let clock = &*self.options.clock;
        let end = clock.monotonic().saturating_add(self.options.settle_for);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        loop {
            match self.say(ended, outcome.clone()).await {
                Ok(()) => return ended,
                Err(error) if !is_transient(&error) => {
                    tracing::warn!(task = %self.id, %error, "what came of a task was refused");
                    return Ended::Lost;
                }
                Err(error) if clock.monotonic() >= end => {
                    tracing::warn!(task = %self.id, %error, "the board could not be told what came of a task");
                    return Ended::Unsettled;
                }
                Err(error) => tracing::debug!(task = %self.id, %error, "the board could not be told yet"),
            }
            backoff.wait(clock).await;
        }
    }
}

/// Waits until the worker is told to drop what runs.
async fn told(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The worker itself is gone, and this with it.
        std::future::pending::<()>().await;
    }
}

/// Whether the same request may get another answer later.
fn is_transient(error: &BoardError) -> bool {
    match error {
        BoardError::TxnConflict { .. } | BoardError::OutcomeUnknown { .. } => true,
        BoardError::Backend(error) => error.is_retryable() || error.is_indeterminate(),
        _ => false,
    }
}

fn panicked(error: tokio::task::JoinError) -> Outcome {
    if !error.is_panic() {
        // Only a runtime that shuts down cancels it, and then nobody is told.
        return Outcome::truncated("was cancelled");
    }
    let panic = error.into_panic();
    let text = panic_text(&*panic);
    Outcome::truncated(&format!("panicked: {text}"))
}
