//! `coord run`: adds a plan, and sees to it that workers run it to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{BoardError, Plan, State, Task, TaskId};
use coord_core::{Clock, SystemClock, Timestamp};

use crate::args::RunArgs;
use crate::commands::add::{AddedPlan, add_plan};
use crate::control::Signals;
use crate::effects::word;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::pool::{End, Heard, Pool, Recipe, Running, Secret};
use crate::process::code_and_signal;
use crate::progress::Progress;
use crate::protocol::{Event, Order};
use crate::standing::{Counts, Standing, standings};
use crate::store::{OpenBoard, Store};
use crate::summary::{Summary, Verdict};

/// How often the board is looked at, at least and at most. In between, workers say what happens.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long workers that were told to stop may take to give back what they hold.
const STOPPING: Duration = Duration::from_secs(8);
/// How long the store may fail before the run is given up.
const OUTAGE: Duration = Duration::from_secs(60);

/// `coord run`.
pub(crate) async fn run(args: &RunArgs) -> Result<u8, Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let began = clock.monotonic();
    let store = args.plan.store.store();
    let AddedPlan { opened, plan, report, replaced } = add_plan(&args.plan).await?;
    if replaced > 0 {
        output::note(&format!("removed, and added anew: {}", output::tasks(replaced)));
    }
    let mut board = BoardView::new(&opened, &plan);
    board.look().await?;
    if args.retry && reopen(&opened, &board).await? > 0 {
        board.look().await?;
    }
    if report.existed > 0 && !board.all_done() {
        output::note(&format!("board {}: going on; {}", opened.name, board.counts()));
    }
    board.note_failed(&args.plan.run_again(), args.retry);
    board.note_others();
    let already = board.all_done();
    let mut workers = 0;
    let mut restarts = 0;
    let mut interrupted = false;
    if board.alive() > 0 {
        let wanted = args.workers.map_or_else(processors, usize::from);
        workers = wanted.min(board.alive()).max(1);
        let mut session = Session::new(args, &store, board, workers, clock.clone())?;
        let result = session.run().await;
        session.progress.finish();
        restarts = session.pool.restarts;
        interrupted = session.wish > Order::Look;
        board = session.board;
        result?;
    }
    let verdict = if board.all_done() {
        Verdict::Done
    } else if interrupted && board.alive() > 0 {
        Verdict::Interrupted
    } else {
        Verdict::Failed
    };
    let summary = Summary {
        board: opened.name.as_str(),
        store: store.shown(),
        plan_path: args.plan.plan.display().to_string(),
        again: args.plan.run_again(),
        plan: &plan,
        tasks: board.plan_tasks(),
        logs: &opened.logs,
        verdict,
        already,
        wall: clock.monotonic().saturating_sub(began),
        now: clock.now(),
        workers,
        restarts,
        tail: args.tail,
    };
    match args.plan.store.format {
        Format::Json => output::json(&summary.json()),
        Format::Text => output::text(&summary.text()),
    }
    Ok(match verdict {
        Verdict::Done => exit::OK,
        Verdict::Failed => exit::FAILED,
        Verdict::Interrupted => exit::INTERRUPTED,
    })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

/// Opens what failed or was cancelled.
async fn reopen(opened: &OpenBoard, board: &BoardView<'_>) -> Result<usize, Failure> {
    let mut count = 0;
    for (task, _) in board.plan_tasks() {
        if matches!(task.state, State::Failed | State::Cancelled) {
            match opened.board.reopen(&task.id).await {
                Ok(()) => count += 1,
                Err(BoardError::HasDependents { dependent }) => output::note(&output::clean(&format!(
                    "{} stays {}, for {dependent} has begun because of that; to run it anew, remove it with all that depend on it \
                     (`coord remove {} --dependents`) and run the plan again",
                    task.id,
                    task.state,
                    word(task.id.as_str())
                ))),
                Err(error) => {
                    let context = format!("the task {} cannot be opened again", task.id);
                    return Err(Failure::from(error).context(context));
                }
            }
        }
    }
    if count > 0 {
        output::note(&format!("open again: {}", output::tasks(count)));
    }
    Ok(count)
}

/// What is known of the board.
struct BoardView<'a> {
    opened: &'a OpenBoard,
    plan: &'a Plan,
    tasks: Vec<Task>,
    standings: Vec<Standing>,
}

impl<'a> BoardView<'a> {
    fn new(opened: &'a OpenBoard, plan: &'a Plan) -> Self {
        BoardView { opened, plan, tasks: Vec::new(), standings: Vec::new() }
    }

    async fn look(&mut self) -> Result<(), Failure> {
        self.tasks = self.opened.list().await?;
        self.standings = standings(&self.tasks);
        Ok(())
    }

    /// The tasks of the plan, in its order.
    fn plan_tasks(&self) -> Vec<(&Task, Standing)> {
        let known: BTreeMap<&TaskId, (&Task, Standing)> =
            self.tasks.iter().zip(&self.standings).map(|(task, one)| (&task.id, (task, *one))).collect();
        self.plan.tasks().iter().filter_map(|spec| known.get(&spec.id).copied()).collect()
    }

    fn counts(&self) -> Counts {
        Counts::of(self.plan_tasks().into_iter().map(|(_, standing)| standing))
    }

    /// A task that somebody removed in the meantime is not done.
    fn all_done(&self) -> bool {
        let counts = self.counts();
        counts.get(Standing::Done) + counts.get(Standing::Skipped) == self.plan.tasks().len()
    }

    fn alive(&self) -> usize {
        self.plan_tasks().iter().filter(|(_, standing)| standing.is_alive()).count()
    }

    /// What failed in an earlier run stays failed until somebody says otherwise.
    fn note_failed(&self, again: &str, retried: bool) {
        let failed: Vec<&str> = self
            .plan_tasks()
            .into_iter()
            .filter(|(_, one)| matches!(one, Standing::Failed | Standing::Cancelled))
            .map(|(task, _)| task.id.as_str())
            .collect();
        if !failed.is_empty() && !retried {
            let named = failed.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            let more = if failed.len() > 5 { ", ..." } else { "" };
            output::note(&output::clean(&format!(
                "failed or cancelled earlier, and still so: {} ({named}{more}); `{again} --retry` runs what failed again",
                output::tasks(failed.len())
            )));
        }
    }

    /// What others hold is waited for, and workers take what the board has.
    fn note_others(&self) {
        let held: Vec<&Task> = self
            .plan_tasks()
            .into_iter()
            .map(|(task, _)| task)
            .filter(|task| task.state == State::Claimed)
            .collect();
        if let [first, ..] = held.as_slice()
            && let (Some(owner), Some(lease)) = (&first.owner, &first.lease)
        {
            let until = lease.until.map(|until| format!(" until {until}")).unwrap_or_default();
            output::note(&output::clean(&format!(
                "held by other workers: {}, such as {} by {owner}{until}; if they are dead, another one takes over then, or `coord release {}` frees it now",
                output::tasks(held.len()),
                first.id,
                first.id
            )));
        }
        let others = self.tasks.len().saturating_sub(self.plan_tasks().len());
        if others > 0 {
            output::note(&format!(
                "not in this plan, but on the board {}, so workers run it too: {}",
                self.opened.name,
                output::tasks(others)
            ));
        }
    }
}

/// The part of a run in which workers live.
struct Session<'a> {
    board: BoardView<'a>,
    pool: Pool,
    progress: Progress,
    clock: Arc<dyn Clock>,
    signals: Signals,
    grace: Duration,
    lease: Duration,
    /// What people asked for with signals. `Look` is nothing yet.
    wish: Order,
    /// Workers were told to end.
    ending: bool,
    /// When what still runs is stopped, and then killed.
    deadline: Option<Duration>,
    look_at: Duration,
    looked: Duration,
    cost: Duration,
    failing_since: Option<Duration>,
    /// What was said last of tasks that rest.
    resting_until: Option<Timestamp>,
    last_words: Option<String>,
}

impl<'a> Session<'a> {
    fn new(
        args: &RunArgs,
        store: &Store,
        board: BoardView<'a>,
        workers: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let recipe = Recipe {
            store: Secret(store.url().to_owned()),
            logs: store.logs().to_owned(),
            board: board.opened.name.to_string(),
            lease: args.lease.lease,
        };
        let mut progress = Progress::new(board.plan.tasks().len());
        progress.counts(&board.counts());
        let now = clock.monotonic();
        Ok(Session {
            pool: Pool::new(recipe, workers),
            progress,
            signals: Signals::new()?,
            grace: args.grace,
            lease: args.lease.lease,
            wish: Order::Look,
            ending: false,
            deadline: None,
            look_at: now.saturating_add(LOOK.1),
            looked: now,
            cost: Duration::ZERO,
            failing_since: None,
            resting_until: None,
            last_words: None,
            board,
            clock,
        })
    }

    async fn run(&mut self) -> Result<(), Failure> {
        loop {
            let now = self.clock.monotonic();
            if !self.ending {
                self.pool
                    .start_due(now)
                    .map_err(|error| Failure::failed(format!("a worker cannot be started: {error}")))?;
            }
            if now >= self.look_at {
                self.look().await?;
            }
            if !self.ending && self.board.alive() == 0 {
                self.end(Order::Drain).await;
            }
            if self.ending && self.pool.alive() == 0 {
                return self.look_last().await;
            }
            if !self.pool.has_future() {
                let said = self.last_words.take().unwrap_or_else(|| "nothing".into());
                return Err(Failure::failed(format!("all workers died; the last one said: {said}"))
                    .help("nothing is lost: the same command goes on"));
            }
            self.wait().await;
        }
    }

    async fn wait(&mut self) {
        let now = self.clock.monotonic();
        let next = [Some(self.look_at), self.deadline, self.pool.next_start().filter(|_| !self.ending)];
        let rest = next.into_iter().flatten().min().unwrap_or(self.look_at).saturating_sub(now);
        tokio::select! {
            heard = self.pool.hear() => self.heard(heard).await,
            () = self.signals.next() => self.interrupted().await,
            () = self.clock.sleep(rest) => {}
        }
        if self.deadline.is_some_and(|deadline| self.clock.monotonic() >= deadline) {
            self.deadline_passed().await;
        }
    }

    /// Looks at the board. A store that fails for a while is borne.
    async fn look(&mut self) -> Result<(), Failure> {
        let before = self.clock.monotonic();
        let result = self.board.look().await;
        let now = self.clock.monotonic();
        self.cost = now.saturating_sub(before);
        self.looked = now;
        self.look_at = now.saturating_add(LOOK.1.max(self.cost.saturating_mul(10)));
        match result {
            Ok(()) => {
                self.failing_since = None;
                self.progress.counts(&self.board.counts());
                self.note_rest();
                Ok(())
            }
            Err(failure) => {
                let since = *self.failing_since.get_or_insert(now);
                self.progress.say(&format!("the board cannot be read: {}", failure.message()));
                if now.saturating_sub(since) < OUTAGE {
                    return Ok(());
                }
                self.pool.tell_all(Order::Stop).await;
                Err(failure)
            }
        }
    }

    /// Says once what the run waits for while all that could run rests.
    fn note_rest(&mut self) {
        let now = self.clock.now();
        let tasks = self.board.plan_tasks();
        let alive =
            || tasks.iter().filter(|(_, standing)| matches!(standing, Standing::Running | Standing::Ready));
        let rests: Option<Vec<(Timestamp, &Task)>> = alive()
            .map(|(task, _)| {
                let until = task.not_before.filter(|until| task.state == State::Open && *until > now)?;
                Some((until, *task))
            })
            .collect();
        // One of the tasks that does not rest is reason enough to say nothing.
        let first = rests.as_ref().and_then(|rests| rests.iter().min_by_key(|(until, _)| *until));
        let Some((until, task)) = first else { return };
        if self.resting_until != Some(*until) {
            let count = output::tasks(rests.as_ref().map_or(0, Vec::len));
            let left =
                humantime::format_duration(Duration::from_secs(until.saturating_since(now).as_secs() + 1));
            self.progress.say(&format!("at rest: {count}; the next one is {}, within {left}", task.id));
            self.resting_until = Some(*until);
        }
    }

    /// The last look decides what the run answers.
    async fn look_last(&mut self) -> Result<(), Failure> {
        let give_up = self.clock.monotonic().saturating_add(OUTAGE);
        loop {
            match self.board.look().await {
                Ok(()) => return Ok(()),
                Err(failure) if self.clock.monotonic() >= give_up => return Err(failure),
                Err(_) => self.clock.sleep(LOOK.1).await,
            }
        }
    }

    /// Something has changed: look soon, but not again and again.
    fn look_soon(&mut self) {
        let pause = LOOK.0.max(self.cost.saturating_mul(4));
        self.look_at = self.look_at.min(self.looked.saturating_add(pause));
    }

    async fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Said(worker, event) => {
                self.pool.note(worker, &event);
                match event {
                    Event::Idle => self.look_soon(),
                    Event::Claimed { task, title, .. } => self.progress.claimed(worker, &task, &title),
                    Event::Settled { task, how, ended, .. } => {
                        self.progress.settled(worker, &task, how, ended.as_ref());
                        self.look_soon();
                        self.pool.nudge().await;
                    }
                    Event::Trouble { message } => {
                        self.progress.say(&format!("worker {}: {message}", worker + 1));
                    }
                }
            }
            Heard::Complained(worker, line) => {
                self.pool.note_complaint(worker, &line);
                self.progress.say(&format!("worker {}: {line}", worker + 1));
            }
            Heard::Ended(worker, status) => {
                self.progress.freed(worker);
                let end = self.pool.ended(worker, self.ending, self.clock.monotonic());
                let how = match status.map(code_and_signal) {
                    Some((Some(code), _)) => format!("ended with exit code {code}"),
                    Some((_, Some(signal))) => format!("was killed by signal {signal}"),
                    _ => "ended".into(),
                };
                match end {
                    End::Wanted => {}
                    End::Restarts(None) => self.progress.say(&format!("worker {} {how}; another one starts", worker + 1)),
                    End::Restarts(Some(Running { task, fence })) => self.progress.say(&format!(
                        "worker {} {how} while it ran {task} (fence {fence}); another one starts, and the task is taken over within {}",
                        worker + 1,
                        humantime::format_duration(self.lease)
                    )),
                    End::GivenUp(said) => {
                        self.progress.say(&format!("worker {} {how}, once too often; it is not started again", worker + 1));
                        self.last_words = said.or(self.last_words.take());
                    }
                }
                self.look_soon();
            }
        }
    }

    /// Tells the workers to end.
    async fn end(&mut self, order: Order) {
        self.ending = true;
        self.pool.no_restarts();
        self.pool.tell_all(order).await;
    }

    async fn interrupted(&mut self) {
        if self.wish == Order::Look {
            self.wish = Order::Drain;
            self.deadline = Some(self.clock.monotonic().saturating_add(self.grace));
            self.progress.say(&format!(
                "no new tasks are started; what runs may finish within {}; Ctrl-C again stops it now",
                humantime::format_duration(self.grace)
            ));
            self.end(Order::Drain).await;
        } else if self.wish == Order::Drain {
            self.stop().await;
        }
    }

    async fn stop(&mut self) {
        self.wish = Order::Stop;
        self.deadline = Some(self.clock.monotonic().saturating_add(STOPPING));
        self.progress.say("stopping what runs, and giving it back");
        self.end(Order::Stop).await;
    }

    async fn deadline_passed(&mut self) {
        if self.wish == Order::Stop {
            self.progress
                .say("killing the workers that do not end; their tasks are taken over after the lease");
            self.pool.kill_all();
            self.deadline = Some(self.clock.monotonic().saturating_add(STOPPING));
        } else {
            self.stop().await;
        }
    }
}
