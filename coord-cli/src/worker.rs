//! `coord worker`: a worker of the library whose handler runs the commands of tasks.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coord_core::board::{AgentId, Answer, Job, Settled, Worker, WorkerEvent};
use coord_core::{Clock, SystemClock};

use crate::args::WorkerArgs;
use crate::control::{self, Control, Wish};
use crate::definition::{Definition, Ended};
use crate::effects::task::TaskAction;
use crate::execute::{Executor, Run};
use crate::failure::{Failure, chain, exit};
use crate::guard::Guards;
use crate::output::{self, Format};
use crate::process::host;
use crate::protocol::{self, Event};
use crate::store::{Effects, OpenBoard, Store, effects_namespace};

/// The shortest and the longest wait before looking again for something to claim.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the store may fail before the worker gives up.
const OUTAGE: Duration = Duration::from_secs(60);
/// How long a command that is to stop, and the action that it is, may take to be ended.
const NOTICE: Duration = Duration::from_secs(10);

/// `coord worker`.
pub(crate) async fn run(args: &WorkerArgs) -> Result<u8, Failure> {
    let store = args.board.store.store();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut control = if args.supervised { control::from_parent()? } else { control::from_signals()? };
    let opened = open(args, &store, &*clock, &mut control).await?;
    let host = host();
    let name = args.name.clone().unwrap_or_else(|| format!("{host}:{}", std::process::id()));
    let agent = AgentId::new(&name).map_err(|error| Failure::usage(format!("--name: {error}")))?;
    let guards =
        Guards::start().map_err(|error| Failure::failed(format!("no guard can be started: {error}")))?;
    let executor = Executor {
        name: opened.name.to_string(),
        clock: clock.clone(),
        logs: opened.logs.clone(),
        guards,
        store: store.for_commands(),
        host,
    };
    let voice = Arc::new(Voice { supervised: args.supervised, said: Mutex::default() });
    let ttl = args.lease.lease;
    let runner =
        Runner { executor, store, effects: tokio::sync::Mutex::new(None), ttl, voice: voice.clone() };
    let mut worker = Worker::new(opened.board.clone(), agent.clone())
        .concurrency(args.concurrency.into())
        .filter(args.filter.filter())
        .lease(ttl)
        .look(LOOK.0, LOOK.1)
        // Whoever asks for more patience than the commands have asks a second time.
        .grace(args.grace.unwrap_or(Duration::MAX))
        .notice(NOTICE)
        .settle_for(ttl.saturating_mul(3))
        .outage(OUTAGE)
        .clock(clock)
        .observe({
            let voice = voice.clone();
            move |event| voice.tell(event)
        });
    if args.until_done {
        worker = worker.until_idle();
    }
    if let Some(tasks) = args.max_tasks {
        worker = worker.max_tasks(tasks);
    }
    tokio::spawn(control.pass_on(worker.handle()));
    let runner = Arc::new(runner);
    let handler = move |job: Job| {
        let runner = runner.clone();
        async move { runner.work_on(&job).await }
    };
    let worked = worker.run(handler, std::future::pending()).await;
    let tally = voice.said().tally;
    if !args.supervised {
        tally.report(args.board.store.format, &opened, &agent);
    }
    worked.map_err(|error| Failure::from(error).context("the store keeps failing"))?;
    Ok(if tally.failed > 0 { exit::FAILED } else { exit::OK })
}

/// Opens the board. A worker of a run is started again while the store may be away: it waits for it. To people it is said at once.
async fn open(
    args: &WorkerArgs,
    store: &Store,
    clock: &dyn Clock,
    control: &mut Control,
) -> Result<OpenBoard, Failure> {
    let give_up = clock.monotonic().saturating_add(OUTAGE);
    loop {
        match store.existing_board(args.board.board.as_ref()).await {
            Err(failure)
                if args.supervised
                    && failure.code() == exit::FAILED
                    && control.wish() == Wish::Work
                    && clock.monotonic() < give_up =>
            {
                tracing::debug!(error = failure.message(), "the store is not there yet");
                tokio::select! {
                    () = clock.sleep(LOOK.1) => {}
                    () = control.changed() => {}
                }
            }
            opened => return opened,
        }
    }
}

/// Runs the commands of claimed tasks.
#[derive(Debug)]
struct Runner {
    executor: Executor,
    store: Store,
    /// The actions of the store, opened for the first task that is one.
    effects: tokio::sync::Mutex<Option<Effects>>,
    ttl: Duration,
    voice: Arc<Voice>,
}

impl Runner {
    async fn work_on(&self, job: &Job) -> Answer {
        match self.execute(job).await {
            // Of a lease that is lost the worker tells nobody anything.
            Run::LeaseLost | Run::Stopped => Answer::Release,
            Run::Ended(ended) => {
                let outcome = ended.to_outcome();
                let success = ended.is_success();
                self.voice.keep(job, ended);
                if success { Answer::Complete(outcome) } else { Answer::Fail(outcome) }
            }
        }
    }

    /// Runs the command of a claimed task, under the hold of its action if it is one.
    async fn execute(&self, job: &Job) -> Run {
        let definition = Definition::from_payload(&job.task().payload);
        let (definition, effect) = match &definition {
            Ok(definition @ Definition { effect: Some(effect), .. }) => (definition, effect),
            plain => return self.executor.run(job, plain.as_ref()).await,
        };
        match self.effects().await {
            Ok(effects) => {
                let action = TaskAction { executor: &self.executor, job, definition, effect };
                action.run(&effects, self.ttl).await
            }
            Err(failure) => {
                self.voice.say(&Event::Trouble { message: failure.message().to_owned() });
                if failure.code() == exit::FAILED {
                    // The store is away: the task is given back.
                    self.executor.clock.sleep(LOOK.1).await;
                    return Run::Stopped;
                }
                let error = Some(failure.message().to_owned());
                Run::Ended(Ended { error, ..Ended::default() })
            }
        }
    }

    async fn effects(&self) -> Result<Effects, Failure> {
        let mut effects = self.effects.lock().await;
        if let Some(effects) = &*effects {
            return Ok(effects.clone());
        }
        let opened = self.store.create_effects(&effects_namespace()).await?;
        Ok(effects.insert(opened).clone())
    }
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    claimed: u64,
    done: u64,
    failed: u64,
    /// Attempts that failed, of tasks that have more of them.
    again: u64,
    released: u64,
    lost: u64,
}

impl Tally {
    fn report(self, format: Format, opened: &OpenBoard, agent: &AgentId) {
        let Tally { claimed, done, failed, again, released, lost } = self;
        match format {
            Format::Json => output::json(&serde_json::json!({
                "board": opened.name.as_str(), "worker": agent.as_str(), "claimed": claimed,
                "done": done, "failed": failed, "again": again, "released": released, "lost": lost,
            })),
            Format::Text => {
                let again =
                    if again > 0 { format!("{again} failed and tried again later, ") } else { String::new() };
                output::line(&format!(
                    "worker {}: {claimed} claimed, {done} done, {failed} failed, {again}{released} released, {lost} lost",
                    output::clean(agent.as_str())
                ));
            }
        }
    }
}

#[derive(Debug, Default)]
struct Said {
    tally: Tally,
    /// How the commands of claims have ended that are not settled yet: an outcome says it shorter.
    endings: HashMap<(String, u64), Ended>,
}

/// Says what happens: to the parent, or to people.
#[derive(Debug)]
struct Voice {
    supervised: bool,
    said: Mutex<Said>,
}

impl Voice {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, job: &Job, ended: Ended) {
        self.said().endings.insert((job.task().id.to_string(), job.fence()), ended);
    }

    /// What happens to the worker.
    fn tell(&self, event: WorkerEvent<'_>) {
        let event = match event {
            WorkerEvent::Idle => Event::Idle,
            WorkerEvent::Claimed { task, fence } => {
                self.said().tally.claimed += 1;
                Event::Claimed { task: task.id.to_string(), title: task.title.clone(), fence }
            }
            WorkerEvent::Settled { task, fence, how, .. } => {
                let again = task.attempts_left().is_some_and(|left| left > 0);
                let task = task.id.to_string();
                let mut said = self.said();
                let ended = said.endings.remove(&(task.clone(), fence));
                let how = match how {
                    Settled::Completed => protocol::Settled::Done,
                    Settled::Failed if again => protocol::Settled::Again,
                    Settled::Failed => protocol::Settled::Failed,
                    Settled::Released => protocol::Settled::Released,
                    Settled::Lost => protocol::Settled::Lost,
                    _ => protocol::Settled::Unknown,
                };
                let tally = &mut said.tally;
                *match how {
                    protocol::Settled::Done => &mut tally.done,
                    protocol::Settled::Failed => &mut tally.failed,
                    protocol::Settled::Again => &mut tally.again,
                    protocol::Settled::Released => &mut tally.released,
                    protocol::Settled::Lost | protocol::Settled::Unknown => &mut tally.lost,
                } += 1;
                Event::Settled { task, fence, how, ended }
            }
            WorkerEvent::Trouble { task: Some(task), error } => {
                Event::Trouble { message: format!("task {task}: {}", chain(error)) }
            }
            WorkerEvent::Trouble { error, .. } => Event::Trouble { message: chain(error) },
            _ => return,
        };
        self.say(&event);
    }

    fn say(&self, event: &Event) {
        if self.supervised {
            if let Ok(line) = serde_json::to_string(event) {
                // If the parent is gone, its pipe to us says so as well.
                let mut out = io::stdout().lock();
                let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            }
            return;
        }
        match event {
            Event::Idle => {}
            Event::Claimed { task, title, fence } => {
                output::note(output::clean(&format!("claimed {task} (fence {fence}) {title}")).trim_end());
            }
            Event::Settled { task, how, ended, .. } => {
                let ended = ended.as_ref().map(|ended| format!(": {ended}")).unwrap_or_default();
                output::note(&output::clean(&format!("{how} {task}{ended}")));
            }
            Event::Trouble { message } => output::note(&output::clean(&format!("trouble: {message}"))),
        }
    }
}
