//! Running the command of one claimed task.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use coord_core::Clock;
use coord_core::board::Job;
use coord_core::effects::RunContext;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::definition::{Definition, Ended};
use crate::effects::variables;
use crate::guard::{Guard, Guards};
use crate::logs::{Log, Logs};
use crate::process::{self, Group, OUTPUT_END, Start, Started, code_and_signal};

/// The signal with which a guard kills.
const KILLED: i32 = 9;
/// The shortest time between two words to the guard.
const WORD: Duration = Duration::from_millis(100);

/// How the run of a command ended.
#[derive(Debug)]
pub(crate) enum Run {
    /// By itself, by its timeout, or it was not started.
    Ended(Ended),
    /// The lease was lost; the command has been killed.
    LeaseLost,
    /// Somebody asked to stop; the command has been killed.
    Stopped,
}

/// What the commands of one worker share.
#[derive(Debug)]
pub(crate) struct Executor {
    /// The name of the board.
    pub(crate) name: String,
    /// The clock.
    pub(crate) clock: Arc<dyn Clock>,
    /// Where output is kept.
    pub(crate) logs: Logs,
    /// What kills the commands if this process dies.
    pub(crate) guards: Guards,
    /// The URL of the store, if it may be handed on.
    pub(crate) store: Option<String>,
    /// The name of this machine.
    pub(crate) host: String,
}

/// Why the wait for a command ended.
#[derive(Debug)]
pub(crate) enum Reason {
    Exited(io::Result<std::process::ExitStatus>),
    Timeout,
    LeaseLost,
    /// The hold of the action is lost, in these words.
    HoldLost(String),
    Stopped,
}

impl Executor {
    /// Runs the command of a claimed task to its end.
    pub(crate) async fn run(&self, job: &Job, definition: Result<&Definition, &String>) -> Run {
        let began = self.clock.monotonic();
        let mut ended = Ended { host: Some(self.host.clone()), ..Ended::default() };
        let ran = match definition {
            Ok(definition) => self.run_definition(job, definition, None).await,
            Err(error) => Err(error.clone()),
        };
        ended.ms =
            u64::try_from(self.clock.monotonic().saturating_sub(began).as_millis()).unwrap_or(u64::MAX);
        match ran {
            Err(error) => ended.error = Some(error),
            Ok((Reason::HoldLost(why), _)) => ended.error = Some(why),
            Ok((Reason::LeaseLost, _)) => return Run::LeaseLost,
            Ok((Reason::Stopped, _)) => return Run::Stopped,
            Ok((Reason::Timeout, status)) => {
                ended.timeout = true;
                if let Some(status) = status {
                    (ended.exit, ended.signal) = code_and_signal(status);
                }
            }
            Ok((Reason::Exited(Ok(status)), _)) => (ended.exit, ended.signal) = code_and_signal(status),
            Ok((Reason::Exited(Err(error)), _)) => {
                ended.error = Some(format!("the command was not seen to end: {error}"));
            }
        }
        Run::Ended(ended)
    }

    /// Runs the command of a task, under the hold of an action if it is one.
    pub(crate) async fn run_definition(
        &self,
        job: &Job,
        definition: &Definition,
        action: Option<&(RunContext, u32)>,
    ) -> Result<(Reason, Option<std::process::ExitStatus>), String> {
        let task = job.task();
        let log = self
            .logs
            .create(&task.id, job.fence())
            .map_err(|error| format!("its output cannot be kept: {error}"))?;
        let fence = job.fence().to_string();
        let mut env: Vec<(&str, &str)> =
            definition.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        env.extend([
            ("COORD_TASK", task.id.as_str()),
            ("COORD_FENCE", fence.as_str()),
            ("COORD_BOARD", self.name.as_str()),
        ]);
        if let Some(store) = &self.store {
            env.push(("COORD_STORE", store.as_str()));
        }
        let variables = action.map(|(context, attempt)| variables(context, *attempt)).unwrap_or_default();
        env.extend(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let start = Start { run: &definition.run, cwd: definition.cwd.as_deref(), env };
        let mut guard =
            self.guards.take().map_err(|error| format!("its guard cannot be started: {error}"))?;
        let mut started = Started::new(&start).map_err(|error| format!("it cannot be started: {error}"))?;
        let group = started.group;
        tell(&mut guard, group, job)?;
        let began = self.clock.monotonic();
        if let Err(error) = started.word.go().await {
            tracing::debug!(%error, "the shell ended before it was told to go");
        }
        let output = tokio::spawn(copy(started.output, log));
        let (lost, stopping) = (job.lost(), job.stopping());
        tokio::pin!(lost, stopping);
        let hold_lost = async {
            match action {
                Some((context, _)) => context.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(hold_lost);
        let reason = loop {
            let until = definition.timeout().map(|timeout| began.saturating_add(timeout));
            tokio::select! {
                biased;
                status = started.child.wait() => break Reason::Exited(status),
                _ = &mut lost => break Reason::LeaseLost,
                lost = &mut hold_lost => {
                    break Reason::HoldLost(format!("the hold of its action was lost ({lost:?}), and it was killed"));
                }
                () = &mut stopping => break Reason::Stopped,
                () = sleep_until(&*self.clock, until) => break Reason::Timeout,
                () = self.clock.sleep((job.remaining() / 4).max(WORD)) => {
                    if let Err(error) = tell(&mut guard, group, job) {
                        tracing::warn!(%error, "the guard of the command is gone");
                    }
                }
            }
        };
        // The guard kills at the end of the lease, and that may be seen before the end of the lease is: the command has not failed by itself.
        let reason = match reason {
            Reason::Exited(Ok(status)) if job.is_lost() && code_and_signal(status).1 == Some(KILLED) => {
                Reason::LeaseLost
            }
            other => other,
        };
        let ask = matches!(reason, Reason::Timeout | Reason::Stopped);
        let ended = process::end(&mut started.child, group, &*self.clock, ask).await;
        let status = if matches!(reason, Reason::Exited(_)) { None } else { ended.ok() };
        self.guards.give_back(guard);
        self.end_output(output).await;
        Ok((reason, status))
    }

    async fn end_output(&self, mut output: JoinHandle<()>) {
        tokio::select! {
            _ = &mut output => {}
            () = self.clock.sleep(OUTPUT_END) => {
                tracing::warn!("a process that left its group still holds the output of the task");
                output.abort();
            }
        }
    }
}

/// Lets the guard know for how long the command may run.
fn tell(guard: &mut Guard, group: Group, job: &Job) -> Result<(), String> {
    guard.keep(group, job.remaining()).map_err(|error| {
        group.kill();
        format!("its guard cannot be started: {error}")
    })
}

/// Waits for an instant of the clock's monotonic time, for ever if there is none.
pub(crate) async fn sleep_until(clock: &dyn Clock, instant: Option<Duration>) {
    match instant {
        Some(instant) => clock.sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Copies the output of a command to its log. It is read to its end whatever happens to the log, so that the command never blocks.
async fn copy(mut output: pipe::Receiver, log: Log) {
    let mut kept = Keep(Some(log));
    let mut buffer = vec![0; 16 * 1_024];
    loop {
        match output.read(&mut buffer).await {
            Ok(0) => break,
            Ok(read) => kept.write(&buffer[..read]),
            Err(error) => {
                tracing::warn!(%error, "the output of the task cannot be read");
                break;
            }
        }
    }
}

/// Writes the end of the log also if the copying is given up.
struct Keep(Option<Log>);

impl Keep {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(log) = &mut self.0
            && let Err(error) = log.write(bytes)
        {
            tracing::warn!(%error, "the output of the task cannot be kept");
            self.0 = None;
        }
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        if let Some(log) = self.0.take()
            && let Err(error) = log.finish()
        {
            tracing::warn!(%error, "the end of the output of the task cannot be kept");
        }
    }
}
