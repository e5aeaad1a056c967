//! One worker: claims, runs, keeps the lease, settles; one task at a time.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use coord_core::board::{AgentId, BoardError, Claim, Filter, TaskId};
use coord_core::{Clock, SystemClock, Token};

use crate::args::WorkerArgs;
use crate::control::{self, Control, Wish};
use crate::definition::{Definition, Ended};
use crate::effects::task::TaskAction;
use crate::execute::{Executor, Run};
use crate::failure::{Failure, chain, exit};
use crate::guard::Guard;
use crate::lease::Keeper;
use crate::output::{self, Format};
use crate::process::host;
use crate::protocol::{Event, Settled};
use crate::standing::standings;
use crate::store::{Effects, OpenBoard, Store, effects_namespace};

/// The shortest and the longest wait before looking again for something to claim.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the store may fail before the worker gives up.
const OUTAGE: Duration = Duration::from_secs(60);
/// How long a worker that was told to stop tries to give its task back.
const RELEASE: Duration = Duration::from_secs(3);

/// What came of a look for a task.
enum Look {
    /// There was one.
    Worked,
    /// There is none now.
    Nothing,
    /// There will be none.
    Over,
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    claimed: u64,
    done: u64,
    failed: u64,
    released: u64,
    lost: u64,
}

/// `coord worker`.
pub(crate) async fn run(args: &WorkerArgs) -> Result<u8, Failure> {
    let store = args.board.store.store();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut control = if args.supervised { control::from_parent()? } else { control::from_signals()? };
    let opened = open(args, &store, &*clock, &mut control).await?;
    let host = host();
    let name = args.name.clone().unwrap_or_else(|| format!("{host}:{}", std::process::id()));
    let agent = AgentId::new(&name).map_err(|error| Failure::usage(format!("--name: {error}")))?;
    let guard =
        Guard::start().map_err(|error| Failure::failed(format!("no guard can be started: {error}")))?;
    let mut filter = Filter::any();
    for label in &args.labels {
        filter = filter.with_label(label);
    }
    let executor = Executor {
        name: opened.name.to_string(),
        clock: clock.clone(),
        logs: opened.logs.clone(),
        guard,
        store: store.for_commands(),
        host,
        stop: control.stop(),
    };
    let mut worker = Worker {
        opened,
        clock,
        control,
        executor,
        store,
        effects: None,
        agent,
        filter,
        ttl: args.lease.lease,
        until_done: args.until_done,
        left: args.max_tasks,
        supervised: args.supervised,
        unsure: Vec::new(),
        tally: Tally::default(),
    };
    let result = worker.work().await;
    if !args.supervised {
        worker.report(args.board.store.format);
    }
    result?;
    Ok(if worker.tally.failed > 0 { exit::FAILED } else { exit::OK })
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

struct Worker {
    opened: OpenBoard,
    clock: Arc<dyn Clock>,
    control: Control,
    executor: Executor,
    store: Store,
    /// The actions of the store, opened for the first task that is one.
    effects: Option<Effects>,
    agent: AgentId,
    filter: Filter,
    ttl: Duration,
    until_done: bool,
    left: Option<u64>,
    supervised: bool,
    /// Claims that were perhaps made: the store failed before it answered.
    unsure: Vec<(TaskId, Token)>,
    tally: Tally,
}

impl Worker {
    async fn work(&mut self) -> Result<(), Failure> {
        let mut failing_since = None;
        let mut wait = LOOK.0;
        while self.control.wish() == Wish::Work && self.left != Some(0) {
            let asked = self.clock.monotonic();
            let looked = self.look(asked).await;
            let now = self.clock.monotonic();
            let pause = match looked {
                Ok(Look::Worked) => {
                    (failing_since, wait) = (None, LOOK.0);
                    continue;
                }
                Ok(Look::Over) => return Ok(()),
                Ok(Look::Nothing) => {
                    failing_since = None;
                    // A board that takes long to look at is looked at less often.
                    wait.max(now.saturating_sub(asked).saturating_mul(4))
                }
                Err(failure) => {
                    self.say(&Event::Trouble { message: failure.message().to_owned() });
                    if now.saturating_sub(*failing_since.get_or_insert(asked)) >= OUTAGE {
                        return Err(failure.context("the store keeps failing"));
                    }
                    wait
                }
            };
            wait = wait.saturating_mul(3).div_f64(2.0).min(LOOK.1);
            tokio::select! {
                () = self.clock.sleep(pause) => {}
                () = self.control.changed() => wait = LOOK.0,
            }
        }
        Ok(())
    }

    /// Looks for a task once, and works on it if there is one.
    async fn look(&mut self, asked: Duration) -> Result<Look, Failure> {
        // What was perhaps claimed while the store failed. It ends with its lease, but nobody needs to wait for that.
        while let Some((id, token)) = self.unsure.last() {
            match self.opened.board.release(id, token).await {
                Err(error @ (BoardError::Backend(_) | BoardError::OutcomeUnknown { .. })) => {
                    return Err(error.into());
                }
                Ok(()) | Err(_) => self.unsure.pop(),
            };
        }
        match self.opened.board.claim_next(&self.agent, &self.filter, self.ttl).await {
            Ok(Some(claim)) => {
                self.left = self.left.map(|left| left - 1);
                self.work_on(claim, asked).await;
                Ok(Look::Worked)
            }
            Ok(None) if self.until_done && !self.anything_left().await? => Ok(Look::Over),
            Ok(None) => {
                self.say(&Event::Idle);
                Ok(Look::Nothing)
            }
            Err(error) => {
                if let BoardError::OutcomeUnknown { id, token: Some(token), .. } = &error {
                    self.unsure.push((id.clone(), token.clone()));
                }
                Err(error.into())
            }
        }
    }

    async fn anything_left(&self) -> Result<bool, Failure> {
        let tasks = self.opened.list().await?;
        let wanted = |labels: &[String]| self.filter.matches(labels);
        Ok(standings(&tasks).iter().zip(&tasks).any(|(one, task)| one.is_alive() && wanted(&task.labels)))
    }

    async fn work_on(&mut self, claim: Claim, asked: Duration) {
        let (id, token, fence) = (claim.task.id.clone(), claim.lease.token.clone(), claim.lease.fence);
        self.tally.claimed += 1;
        self.say(&Event::Claimed { task: id.to_string(), title: claim.task.title.clone(), fence });
        let (board, clock) = (self.opened.board.clone(), self.clock.clone());
        let keeper = Keeper::start(board, clock, id.clone(), token.clone(), self.ttl, asked);
        let ran = self.execute(&claim, &keeper).await;
        let (how, ended) = match ran {
            Run::LeaseLost => (Settled::Lost, None),
            Run::Stopped => (self.release(&id, &token).await, None),
            Run::Ended(ended) => (self.settle(&id, &token, &ended).await, Some(ended)),
        };
        drop(keeper);
        match how {
            Settled::Done => self.tally.done += 1,
            Settled::Failed => self.tally.failed += 1,
            Settled::Released => self.tally.released += 1,
            Settled::Lost | Settled::Unknown => self.tally.lost += 1,
        }
        self.say(&Event::Settled { task: id.to_string(), fence, how, ended });
    }

    /// Runs the command of a claimed task, under the hold of its action if it is one.
    async fn execute(&mut self, claim: &Claim, keeper: &Keeper) -> Run {
        let definition = Definition::from_payload(&claim.task.payload);
        let (definition, effect) = match &definition {
            Ok(definition @ Definition { effect: Some(effect), .. }) => (definition, effect),
            plain => return self.executor.run(claim, plain.as_ref(), keeper).await,
        };
        let effects = match &self.effects {
            Some(effects) => effects.clone(),
            None => match self.store.create_effects(&effects_namespace()).await {
                Ok(effects) => self.effects.insert(effects).clone(),
                Err(failure) => {
                    self.say(&Event::Trouble { message: failure.message().to_owned() });
                    if failure.code() == exit::FAILED {
                        // The store is away: the task is given back.
                        self.clock.sleep(LOOK.1).await;
                        return Run::Stopped;
                    }
                    let error = Some(failure.message().to_owned());
                    return Run::Ended(Ended { error, ..Ended::default() });
                }
            },
        };
        let executor = &mut self.executor;
        let action = TaskAction { executor, claim, definition, effect, keeper };
        action.run(&effects, self.ttl).await
    }

    /// Completes or fails the task. The same token may say it as often as it likes, so whatever is not an answer is asked again. The
    /// lease is renewed meanwhile.
    async fn settle(&self, id: &TaskId, token: &Token, ended: &Ended) -> Settled {
        let outcome = ended.to_outcome();
        let give_up = self.clock.monotonic().saturating_add(self.ttl.saturating_mul(3));
        let mut wait = LOOK.0;
        loop {
            let (answer, how) = if ended.is_success() {
                (self.opened.board.complete(id, token, outcome.clone()).await, Settled::Done)
            } else {
                (self.opened.board.fail(id, token, outcome.clone()).await, Settled::Failed)
            };
            match answer {
                Ok(_) => return how,
                Err(BoardError::LeaseLost { .. } | BoardError::NotFound { .. }) => return Settled::Lost,
                Err(error) => {
                    self.say(&Event::Trouble { message: format!("task {id}: {}", chain(&error)) });
                    if self.clock.monotonic() >= give_up {
                        return Settled::Unknown;
                    }
                }
            }
            self.clock.sleep(wait).await;
            wait = wait.saturating_mul(2).min(LOOK.1);
        }
    }

    async fn release(&self, id: &TaskId, token: &Token) -> Settled {
        let give_up = self.clock.monotonic().saturating_add(RELEASE);
        loop {
            match self.opened.board.release(id, token).await {
                Ok(()) => return Settled::Released,
                Err(BoardError::LeaseLost { .. } | BoardError::NotFound { .. }) => return Settled::Lost,
                Err(_) if self.clock.monotonic() < give_up => self.clock.sleep(LOOK.0).await,
                Err(_) => return Settled::Unknown,
            }
        }
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

    fn report(&self, format: Format) {
        let Tally { claimed, done, failed, released, lost } = self.tally;
        match format {
            Format::Json => output::json(&serde_json::json!({
                "board": self.opened.name.as_str(), "worker": self.agent.as_str(), "claimed": claimed,
                "done": done, "failed": failed, "released": released, "lost": lost,
            })),
            Format::Text => output::line(&format!(
                "worker {}: {claimed} claimed, {done} done, {failed} failed, {released} released, {lost} lost",
                output::clean(self.agent.as_str())
            )),
        }
    }
}
