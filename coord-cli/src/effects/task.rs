//! A task of a plan that is an action: its command runs at most once for the action's key, whatever becomes of the task.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::process::ExitStatus;
use std::time::Duration;

use coord_core::board::Job;
use coord_core::effects::{
    Action, ActionKey, Completed, EffectError, Episode, Failure as Told, Guard as _, Replay, ResourceId,
    RunContext, RunOptions, RunOutcome, Wait,
};
use tokio::sync::oneshot;

use super::kept::{Kept, Stream};
use super::{FOR_EVER, with_key, word};
use crate::definition::{Definition, EffectDefinition, Ended};
use crate::execute::{Executor, Reason, Run};
use crate::failure::chain;
use crate::process::code_and_signal;
use crate::store::Effects;

/// What the command said if it left nothing that is kept.
#[derive(Debug)]
struct Why(Box<Ended>);

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn action(effect: &EffectDefinition) -> Result<Action, EffectError> {
    let action = Action::new(ActionKey::new(&effect.key)?);
    Ok(match &effect.resource {
        Some(resource) => action.resource(ResourceId::new(resource)?),
        None => action,
    })
}

/// The action that a claimed task is, and who runs it.
pub(crate) struct TaskAction<'a> {
    pub(crate) executor: &'a Executor,
    pub(crate) job: &'a Job,
    pub(crate) definition: &'a Definition,
    pub(crate) effect: &'a EffectDefinition,
}

impl TaskAction<'_> {
    /// Runs the action, or replays what is kept of it.
    pub(crate) async fn run(self, effects: &Effects, ttl: Duration) -> Run {
        let began = self.executor.clock.monotonic();
        let mut ended = match self.guarded(effects, ttl).await {
            Ok(ended) => ended,
            Err(run) => return run,
        };
        let took = self.executor.clock.monotonic().saturating_sub(began);
        ended.ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        ended.host = Some(self.executor.host.clone());
        Run::Ended(ended)
    }

    async fn guarded(&self, effects: &Effects, ttl: Duration) -> Result<Ended, Run> {
        let failed = |why: String| Ended { error: Some(why), ..Ended::default() };
        let action = match action(self.effect) {
            Ok(action) => action,
            Err(error) => return Ok(failed(chain(&error))),
        };
        let options =
            RunOptions::default().ttl(ttl).clock(self.executor.clock.clone()).wait(Wait::ForTurn(FOR_EVER));
        // The closure only passes the word on: the command runs here, beside the lease of the task.
        let (granted, mut grant) = oneshot::channel::<RunContext>();
        let (done, outcome) = oneshot::channel::<Result<Kept, Told<Why>>>();
        let run = effects.run(action, options, move |context| async move {
            let gone = || {
                Told::Unknown(Why(Box::new(Ended {
                    error: Some("its worker gave up".into()),
                    ..Ended::default()
                })))
            };
            granted.send(context).map_err(|_| gone())?;
            outcome.await.map_err(|_| gone())?.map(|kept| kept.encode())
        });
        tokio::pin!(run);
        let (lost, stopping) = (self.job.lost(), self.job.stopping());
        tokio::pin!(lost, stopping);
        let context = tokio::select! {
            biased;
            Ok(context) = &mut grant => context,
            // Nothing was run: dropping the run before takes the attempt back.
            ended = &mut run => return self.settled(ended, None),
            _ = &mut lost => return Err(Run::LeaseLost),
            () = &mut stopping => return Err(Run::Stopped),
        };
        let (told, instead) = self.execute(context).await;
        // Nobody is left to tell only if the runtime shuts down.
        let _ = done.send(told);
        let ended = run.await;
        self.settled(ended, instead)
    }

    /// Runs the command, and says what is to be told of it. What the task itself comes to is said besides, if that is something else.
    async fn execute(&self, context: RunContext) -> (Result<Kept, Told<Why>>, Option<Run>) {
        let why = |ended: Ended| Why(Box::new(ended));
        let error = |text: String| why(Ended { error: Some(text), ..Ended::default() });
        let attempt = match context.attempt().await {
            Ok(attempt) => attempt,
            Err(e) => return (Err(Told::NotApplied(error(chain(&e)))), Some(Run::Stopped)),
        };
        if context.is_lost() {
            let text = "the hold was lost before the command was started".to_owned();
            return (Err(Told::NotApplied(error(text))), Some(Run::Stopped));
        }
        let action = Some((context, attempt));
        let began = self.executor.clock.monotonic();
        let ran = self.executor.run_definition(self.job, self.definition, action.as_ref()).await;
        let took = self.executor.clock.monotonic().saturating_sub(began);
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        match ran {
            Err(text) => (Err(Told::NotApplied(error(text))), None),
            Ok((Reason::Exited(Ok(status)), _)) => (self.judge(status, ms), None),
            Ok((Reason::Exited(Err(e)), _)) => {
                (Err(Told::Unknown(error(format!("it was not seen to end: {e}")))), None)
            }
            Ok((Reason::Timeout, status)) => {
                let (exit, signal) = status.map(code_and_signal).unwrap_or_default();
                let ended = Ended { timeout: true, exit, signal, ms, ..Ended::default() };
                (Err(Told::Unknown(why(ended))), None)
            }
            Ok((Reason::HoldLost(text), _)) => (Err(Told::Unknown(error(text))), None),
            Ok((Reason::LeaseLost, _)) => (
                Err(Told::Unknown(error("the lease of its task was lost, and it was killed".into()))),
                Some(Run::LeaseLost),
            ),
            Ok((Reason::Stopped, _)) => (
                Err(Told::Unknown(error("its worker was stopped, and it was killed".into()))),
                Some(Run::Stopped),
            ),
        }
    }

    fn judge(&self, status: ExitStatus, ms: u64) -> Result<Kept, Told<Why>> {
        let (exit, signal) = code_and_signal(status);
        let ended = || Why(Box::new(Ended { exit, signal, ms, ..Ended::default() }));
        let Some(code) = exit.and_then(|code| u8::try_from(code).ok()) else {
            return Err(Told::Unknown(ended()));
        };
        if self.effect.abandon_exit.contains(&code) {
            return Err(Told::NotApplied(ended()));
        }
        if self.effect.uncertain_exit.contains(&code) {
            return Err(Told::Unknown(ended()));
        }
        Ok(Kept { exit: code, stdout: self.logged(), stderr: Vec::new() })
    }

    /// The output of this attempt, as it is kept with the action.
    fn logged(&self) -> Vec<u8> {
        let mut stream = Stream::default();
        let path = self.executor.logs.path(&self.job.task().id, self.job.fence());
        let read = File::open(path).and_then(|mut file| {
            let mut buffer = vec![0; 64 * 1_024];
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(()),
                    read => stream.write(&buffer[..read]),
                }
            }
        });
        if let Err(error) = read {
            tracing::warn!(%error, "the output of the task cannot be kept with its action");
        }
        stream.finish()
    }

    /// What the task comes to.
    fn settled(
        &self,
        outcome: Result<RunOutcome<Why>, EffectError>,
        instead: Option<Run>,
    ) -> Result<Ended, Run> {
        if let Some(run) = instead {
            return Err(run);
        }
        let failed = |why: &str| Ended { error: Some(why.to_owned()), ..Ended::default() };
        let log = |text: String| self.note(format!("coord: {text}\n").as_bytes());
        Ok(match outcome {
            Ok(RunOutcome::Executed { value, .. }) => {
                Ended { exit: Some(i32::from(Kept::decode(&value).exit)), ..Ended::default() }
            }
            Ok(RunOutcome::Replayed(completed) | RunOutcome::Stale { instead: Ok(completed), .. }) => {
                self.replay(&completed)
            }
            Ok(RunOutcome::Failed { error: Why(ended), withdrawn: Ok(()) }) => *ended,
            Ok(
                RunOutcome::Failed { withdrawn: Err(error), .. }
                | RunOutcome::Stale { instead: Err(error), .. },
            )
            | Ok(RunOutcome::Unsettled { error, .. }) => {
                log(format!(
                    "the action {:?} ran, and the store did not take what came of it: {}. {}",
                    self.effect.key,
                    chain(&error),
                    self.what_to_do(None)
                ));
                self.uncertain()
            }
            Ok(RunOutcome::Uncertain { doubt, episode }) => {
                log(format!(
                    "nobody knows whether the action {:?} was done ({doubt}). {}",
                    self.effect.key,
                    self.what_to_do(episode.ok())
                ));
                self.uncertain()
            }
            Ok(other) => failed(&format!("the action is {}", other.as_str())),
            Err(EffectError::Mismatch { .. }) => failed("the action's key is in use for something else"),
            Err(EffectError::Invalid(why)) => failed(&why),
            Err(error @ EffectError::Malformed { .. }) => failed(&chain(&error)),
            // The store is away, or nobody can tell: the task is given back and tried again.
            Err(error) => {
                tracing::warn!(%error, "the action of the task was not acquired");
                return Err(Run::Stopped);
            }
        })
    }

    /// How a task ends whose action is uncertain. An outcome is short; the log says the rest.
    fn uncertain(&self) -> Ended {
        let error = format!("uncertain: {}", with_key("coord effect show", &self.effect.key, ""));
        Ended { error: Some(error), ..Ended::default() }
    }

    /// How somebody who has looked decides.
    fn what_to_do(&self, episode: Option<Episode>) -> String {
        let episode = episode.map(|episode| format!(" --episode {episode}")).unwrap_or_default();
        let store =
            self.executor.store.as_ref().map(|store| format!(" --store {}", word(store))).unwrap_or_default();
        let options =
            format!("{episode}{store} --evidence '...' (--applied | --not-applied | --allow-retry)");
        format!(
            "Look whether it was done, then: {}. After that, run the plan with --retry",
            with_key("coord effect resolve", &self.effect.key, &options)
        )
    }

    /// Says something in the log of this attempt, after what its command said.
    fn note(&self, bytes: &[u8]) {
        if let Err(error) = self.executor.logs.append(&self.job.task().id, self.job.fence(), bytes) {
            tracing::warn!(%error, "the log of the task cannot be written");
        }
    }

    fn replay(&self, completed: &Completed) -> Ended {
        match &completed.replay {
            Replay::Result(result) => {
                let kept = Kept::decode(result);
                self.note(&kept.stderr);
                self.note(&kept.stdout);
                Ended { exit: Some(i32::from(kept.exit)), replayed: true, ..Ended::default() }
            }
            // That it was done is all that a task needs.
            _ => Ended { exit: Some(0), replayed: true, ..Ended::default() },
        }
    }
}
