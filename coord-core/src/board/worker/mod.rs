//! A worker: claims tasks, runs a handler on each, keeps the leases alive, and settles what came of it.

mod claimed;
mod event;
mod handle;
mod job;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

pub use event::{Settled, WorkerEvent, WorkerReport};
pub use handle::WorkerHandle;
pub use job::{Answer, Job};

use self::claimed::Claimed;
use self::event::Observer;
use self::handle::Wish;
use super::task::{AgentId, Claim, Filter, Task, TaskId};
use super::{Awaited, BoardError, ExtendedBoard};
use crate::cas::{Backoff, check_ttl};
use crate::clock::{Clock, SystemClock};
use crate::hold::Hold;
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
/// It ends when it is told to, see [`run`](Worker::run) and [`WorkerHandle`]; after so many tasks ([`max_tasks`](Worker::max_tasks)); when nothing
/// is left ([`until_idle`](Worker::until_idle)); or when the store has been away for too long ([`outage`](Worker::outage)).
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
    handle: WorkerHandle,
}

#[derive(Clone, Debug)]
struct Options {
    concurrency: usize,
    filter: Filter,
    ttl: Duration,
    time_limit: Option<Duration>,
    look: (Duration, Duration),
    /// Whether it may wait for whatever becomes ready, instead of looking now and then.
    waits: bool,
    grace: Duration,
    notice: Duration,
    settle_for: Duration,
    outage: Option<Duration>,
    max_tasks: Option<u64>,
    until_idle: bool,
    observer: Observer,
    clock: Arc<dyn Clock>,
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
            waits: true,
            grace: Duration::from_secs(30),
            notice: Duration::from_millis(100),
            settle_for: Duration::from_secs(60),
            outage: None,
            max_tasks: None,
            until_idle: false,
            observer: Observer::default(),
            clock: Arc::new(SystemClock::new()),
        };
        Worker { board: Arc::new(board), agent, options, handle: WorkerHandle::default() }
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

    /// How long it waits before it looks again while there is nothing to do: first, and at most. It looks at once when one of its own tasks
    /// has ended.
    ///
    /// By default it [waits](ExtendedBoard::wait) for [`Awaited::Ready`] instead, mostly with one listing of one key, at the end every 2.5 to
    /// 5 s: 200 workers who wait together read some 75 times a second, and a new task is seen by the first of them, on average, after 5 s
    /// divided by their number, by a lone one after 5 s at most. With a [`filter`](Worker::filter), or [until the board is
    /// idle](Worker::until_idle), it looks after 50 ms at first, and every 8 s at most; a look costs at least three listings.
    pub fn look(mut self, first: Duration, most: Duration) -> Self {
        self.options.look = (first, most);
        self.options.waits = false;
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

    /// How long a handler that lost its lease, or is told that the worker stops, may take to end what it does before its future is dropped. By
    /// default 100 ms.
    pub fn notice(mut self, notice: Duration) -> Self {
        self.options.notice = notice;
        self
    }

    /// Gives up when no task could be looked for during this time because the store failed. By default it never does.
    pub fn outage(mut self, bound: Duration) -> Self {
        self.options.outage = Some(bound);
        self
    }

    /// Ends after so many tasks, whatever became of them.
    pub fn max_tasks(mut self, tasks: u64) -> Self {
        self.options.max_tasks = Some(tasks);
        self
    }

    /// Ends when nothing is left on the board that could run, now or later: what it could claim, what others hold, what rests, and what waits for
    /// one of these. With a [`filter`](Worker::filter), it ends also when nothing that passes it is open or claimed.
    pub fn until_idle(mut self) -> Self {
        self.options.until_idle = true;
        self
    }

    /// Has this called for all that happens, in the order in which it happens to each task. It is called in between, so it has to return at once.
    pub fn observe(mut self, observer: impl Fn(WorkerEvent<'_>) + Send + Sync + 'static) -> Self {
        self.options.observer = Observer(Some(Arc::new(observer)));
        self
    }

    /// What can be told to this worker while it works.
    #[must_use]
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
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
    /// [`Invalid`](BoardError::Invalid) for an agent name, a concurrency of 0 or a ttl that make no sense; nothing was claimed. What the store
    /// said last, if it was away for longer than an [`outage`](Worker::outage) may last; what was running has ended by then.
    pub async fn run<H, F>(
        self,
        handler: H,
        shutdown: impl Future<Output = ()>,
    ) -> Result<WorkerReport, BoardError>
    where
        H: Fn(Job) -> F + 'static,
        F: Future<Output: Into<Answer> + Send + 'static> + Send + 'static,
    {
        self.agent.validate()?;
        check_ttl(self.options.ttl)?;
        if self.options.concurrency == 0 {
            return Err(BoardError::Invalid("a worker with a concurrency of 0 never works".into()));
        }
        let mut work = Work {
            left: self.options.max_tasks.unwrap_or(u64::MAX),
            idle: Pause::new(self.options.look),
            wish: self.handle.wish.subscribe(),
            worker: &self,
            running: JoinSet::new(),
            report: WorkerReport::default(),
            unsure: Vec::new(),
            failing_since: None,
            vain: false,
        };
        let worked = work.work(&handler, shutdown).await;
        work.drain().await;
        for (id, token) in work.unsure {
            // What was perhaps claimed ends with its lease otherwise.
            let _ = self.board.release(&id, &token).await;
        }
        worked.map(|()| work.report)
    }

    fn start<H, F>(
        &self,
        claim: Claim,
        sent: Duration,
        handler: &H,
    ) -> impl Future<Output = Settled> + Send + use<H, F>
    where
        H: Fn(Job) -> F + 'static,
        F: Future<Output: Into<Answer> + Send + 'static> + Send + 'static,
    {
        let options = self.options.clone();
        let trusted = options.ttl.saturating_sub(options.ttl / 10);
        let hold = Arc::new(Hold::new(options.clock.clone(), trusted, sent));
        let (wish, fence) = (self.handle.wish.subscribe(), claim.lease.fence);
        let (progress, told) = watch::channel(String::new());
        let task = Arc::new(claim.task);
        let job = Job { fence, task, hold: hold.clone(), wish: wish.clone(), progress };
        self.options.observer.see(WorkerEvent::Claimed { task: &job.task, fence });
        let task = job.task.clone();
        let claimed =
            Claimed { board: self.board.clone(), task, fence, token: claim.lease.token, hold, options };
        // The handler is called here, by whoever runs the worker; only its future goes elsewhere. If it panics before there is one, that is the end of
        // this task and of no other.
        let called = catch_unwind(AssertUnwindSafe(|| handler(job)));
        let handling = async move {
            match called {
                Ok(future) => future.await.into(),
                Err(panic) => claimed::panicked(&*panic),
            }
        };
        claimed.work(handling, sent, wish, told)
    }

    /// Whether nothing is left that it could run, now or later.
    async fn is_over(&self) -> Result<bool, BoardError> {
        if self.board.wait(&Awaited::Idle, Duration::ZERO).await? {
            return Ok(true);
        }
        if self.options.filter.is_any() {
            return Ok(false);
        }
        let tasks = match self.board.list().await {
            // Then it ends only once the whole board is idle.
            Err(BoardError::TooLarge { .. }) => return Ok(false),
            listed => listed?,
        };
        let left = |task: &Task| !task.state.is_terminal() && self.options.filter.matches(&task.labels);
        Ok(!tasks.iter().any(left))
    }
}

/// A worker at work.
struct Work<'a> {
    worker: &'a Worker,
    wish: watch::Receiver<Wish>,
    running: JoinSet<Settled>,
    report: WorkerReport,
    /// Claims that were perhaps made: the store failed before it answered.
    unsure: Vec<(TaskId, Token)>,
    idle: Pause,
    /// How many tasks it may still claim.
    left: u64,
    failing_since: Option<Duration>,
    /// Whether it has waited until there was something to be had, and has not found anything since.
    vain: bool,
}

impl Work<'_> {
    async fn work<H, F>(&mut self, handler: &H, shutdown: impl Future<Output = ()>) -> Result<(), BoardError>
    where
        H: Fn(Job) -> F + 'static,
        F: Future<Output: Into<Answer> + Send + 'static> + Send + 'static,
    {
        let options = &self.worker.options;
        let (clock, look) = (&*options.clock, &*self.worker.handle.look);
        tokio::pin!(shutdown);
        while *self.wish.borrow() == Wish::Work {
            let left = usize::try_from(self.left).unwrap_or(usize::MAX);
            let free = (options.concurrency - self.running.len()).min(left);
            let mut found = 0;
            if free > 0 {
                let sent = clock.monotonic();
                // Not given up in the middle: what it claims is known only once it has answered.
                let looked = self.look_for(free).await;
                let now = clock.monotonic();
                match looked {
                    Ok(Some(claims)) => {
                        self.failing_since = None;
                        for claim in claims {
                            let Some(sent) = self.relied_on(&claim, sent).await else { continue };
                            found += 1;
                            (self.left, self.report.claimed) = (self.left - 1, self.report.claimed + 1);
                            self.running.spawn(self.worker.start(claim, sent, handler));
                        }
                    }
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        tracing::warn!(agent = %self.worker.agent, %error, "no task could be looked for");
                        options.observer.see(WorkerEvent::Trouble { task: None, error: &error });
                        if matches!(error, BoardError::Malformed { .. }) {
                            // The store has answered: there is nothing but what cannot be read.
                            (self.failing_since, self.vain) = (None, true);
                        } else {
                            let since = *self.failing_since.get_or_insert(sent);
                            if options.outage.is_some_and(|bound| now.saturating_sub(since) >= bound) {
                                return Err(error);
                            }
                        }
                    }
                }
                self.idle.took(now.saturating_sub(sent));
            } else if self.running.is_empty() {
                return Ok(());
            }
            if found > 0 {
                self.idle.reset();
                self.vain = false;
            }
            let waits = options.waits && options.filter.is_any() && !options.until_idle;
            // What the board calls ready may be nothing that can be claimed; then it looks now and then.
            let board = (waits && !self.vain && self.failing_since.is_none()).then_some(&*self.worker.board);
            // It looks again when there is room and a reason: a task of its own that ended may have made others ready.
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = Wish::Drain.is_wished(&mut self.wish) => break,
                Some(ended) = self.running.join_next() => {
                    self.report.count(ended);
                    self.idle.reset();
                }
                () = look.notified(), if found < free => self.idle.reset(),
                come = self.idle.wait_on(board, clock), if found < free => self.vain = come,
            }
        }
        Ok(())
    }

    /// Looks for tasks once; `None` if there will be none any more.
    async fn look_for(&mut self, free: usize) -> Result<Option<Vec<Claim>>, BoardError> {
        let Worker { board, agent, options, .. } = self.worker;
        // What was perhaps claimed while the store failed. It ends with its lease, but nobody needs to wait for that.
        while let Some((id, token)) = self.unsure.last() {
            match board.release(id, token).await {
                Err(error) if is_transient(&error) => return Err(error),
                Ok(()) | Err(_) => self.unsure.pop(),
            };
        }
        let claimed = board.claim_up_to(free, agent, &options.filter, options.ttl).await;
        if let Err(BoardError::OutcomeUnknown { id, token: Some(token), .. }) = &claimed {
            self.unsure.push((id.clone(), token.clone()));
        }
        let claims = claimed?;
        if claims.is_empty() && self.running.is_empty() && options.until_idle && self.worker.is_over().await?
        {
            return Ok(None);
        }
        if claims.len() < free {
            options.observer.see(WorkerEvent::Idle);
        }
        Ok(Some(claims))
    }

    /// From when on the lease of a claim counts that was asked for then. If the look took so long that the lease may be over, it is renewed
    /// first; `None` if that fails, and then the task is given back before the next look.
    async fn relied_on(&mut self, claim: &Claim, sent: Duration) -> Option<Duration> {
        let Worker { board, options, .. } = self.worker;
        let now = options.clock.monotonic();
        if now.saturating_sub(sent) < options.ttl / 2 {
            return Some(sent);
        }
        let (id, token) = (&claim.task.id, &claim.lease.token);
        match board.renew(id, token, options.ttl).await {
            Ok(_) => Some(now),
            Err(error) => {
                tracing::warn!(task = %id, %error, "a task was claimed too slowly to be begun");
                options.observer.see(WorkerEvent::Trouble { task: Some(id), error: &error });
                self.unsure.push((id.clone(), token.clone()));
                None
            }
        }
    }

    async fn drain(&mut self) {
        let Worker { options, handle, .. } = self.worker;
        let end = options.clock.monotonic().saturating_add(options.grace);
        while !self.running.is_empty() {
            let stopping = *self.wish.borrow() == Wish::Stop;
            tokio::select! {
                biased;
                Some(ended) = self.running.join_next() => self.report.count(ended),
                () = options.clock.sleep_until(end), if !stopping => handle.stop(),
            }
        }
    }
}

/// Waits before the next look: exponentially longer, with the last quarter by chance, so that idle workers do not look all at once.
struct Pause {
    first: Duration,
    most: Duration,
    next: Duration,
    /// How long the last look took: a board that takes long to look at is looked at less often.
    took: Duration,
    jitter: Backoff,
}

impl Pause {
    fn new((first, most): (Duration, Duration)) -> Self {
        Pause { first, most, next: first, took: Duration::ZERO, jitter: Backoff::new(first / 4, most / 4) }
    }

    fn reset(&mut self) {
        *self = Pause::new((self.first, self.most));
    }

    fn took(&mut self, took: Duration) {
        self.took = took;
    }

    /// Waits until it is time to look again, by the board if there is one. Returns whether the board has said so.
    async fn wait_on(&mut self, board: Option<&dyn ExtendedBoard>, clock: &dyn Clock) -> bool {
        const LONG: Duration = Duration::from_secs(3_600);
        let Some(board) = board else {
            self.wait(clock).await;
            return false;
        };
        // It has just looked.
        clock.sleep(self.first).await;
        // If the store fails, the next look says so.
        !matches!(board.wait(&Awaited::Ready, LONG).await, Ok(false))
    }

    async fn wait(&mut self, clock: &dyn Clock) {
        let next = self.next.max(self.took.saturating_mul(4));
        self.next = self.next.saturating_mul(2).min(self.most);
        clock.sleep(next.mul_f64(0.75)).await;
        self.jitter.wait(clock).await;
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
