//! `coord once`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use coord_core::effects::{
    Action, ActionKey, Completed, Doubt, EffectError, Failure as Told, Fingerprint, Guard as _, Holder,
    Replay, ResourceId, RunContext, RunOptions, RunOutcome, Uncertain, Wait,
};
use coord_core::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::args::{EffectStoreArgs, OnceArgs};
use super::command::{Command, End, Showing, find_program, show};
use super::kept::Kept;
use super::{FOR_EVER, variables, with_key};
use crate::control::Signals;
use crate::failure::{Failure, chain, exit};
use crate::output::{self, Format};
use crate::store::Effects;

/// How long the end waits until an attempt that was not begun is taken back.
const WITHDRAWAL: Duration = Duration::from_secs(5);
/// How long the end waits for whoever reads the output, after a signal.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Whether the command is started or the run stopped before, decided exactly once.
#[derive(Debug, Default)]
struct Begin(AtomicU8);

impl Begin {
    const STARTED: u8 = 1;
    const STOPPED: u8 = 2;

    fn decide(&self, what: u8) -> bool {
        self.0.compare_exchange(0, what, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// What the command said if it left nothing that is kept.
#[derive(Debug)]
enum Why {
    /// In words.
    Text(String),
    /// By an exit code.
    Exit(Kept),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Text(text) => f.write_str(text),
            Why::Exit(kept) => {
                write!(f, "it ended with exit code {}", kept.exit)?;
                let last = |stream: &[u8]| {
                    let text = String::from_utf8_lossy(stream);
                    text.trim_end().lines().next_back().map(|line| line.chars().take(120).collect::<String>())
                };
                match last(&kept.stderr).filter(|line| !line.trim().is_empty()).or_else(|| last(&kept.stdout))
                {
                    Some(line) if !line.trim().is_empty() => {
                        write!(f, "; its last words: {}", output::clean(&line))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

/// `coord once`.
pub(crate) async fn run(args: &OnceArgs) -> Result<u8, Failure> {
    let action = action(args)?;
    let store = args.store.store();
    let effects = store.create_effects(&args.store.namespace).await.map_err(of_coord)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let stop = stop_on_signal()?;
    let within = is_within(&effects, &action).await;
    let options = RunOptions::default().ttl(args.ttl).clock(clock.clone()).wait(match args.wait {
        _ if within => Wait::No,
        Some(wait) if wait.is_zero() => Wait::No,
        Some(wait) => Wait::ForTurn(wait),
        None => Wait::ForTurn(FOR_EVER),
    });
    let showing = Showing::default();
    let command = Command {
        argv: args.command.clone(),
        env: Vec::new(),
        timeout: args.timeout,
        shown: (args.store.format == Format::Text).then(|| showing.clone()),
    };
    let (uncertain, abandon) = (args.uncertain_exit.clone(), args.abandon_exit.clone());
    let begin = Arc::new(Begin::default());
    let begin_or_stop = begin.clone();
    let (act_stop, act_clock) = (stop.clone(), clock.clone());
    let key = action.key.clone();
    let run = effects.run(action, options, move |context| async move {
        let command = with_variables(command, &context).await?;
        if !begin.decide(Begin::STARTED) {
            return Err(Told::NotApplied(Why::Text("stopped by a signal".to_owned())));
        }
        match command.run(&context, &*act_clock, act_stop).await {
            End::Exited(kept) if abandon.contains(&kept.exit) => Err(Told::NotApplied(Why::Exit(kept))),
            End::Exited(kept) if uncertain.contains(&kept.exit) => Err(Told::Unknown(Why::Exit(kept))),
            End::Exited(kept) => Ok(kept.encode()),
            End::Unknown(why) => Err(Told::Unknown(Why::Text(why))),
            End::NotStarted(why) => Err(Told::NotApplied(Why::Text(why))),
        }
    });
    let mut stop_waiting = stop;
    let outcome = tokio::select! {
        outcome = run => Some(outcome),
        // Once the command has started, it is told to stop, and what came of it is settled.
        () = stopped_before(&mut stop_waiting, &begin_or_stop) => None,
    };
    let Some(outcome) = outcome else {
        withdrawn(&effects, &*clock).await;
        return Err(Failure::failed("stopped by a signal before the command was started")
            .with_code(exit::INTERRUPTED));
    };
    tokio::select! {
        () = showing.end() => {}
        () = async {
            let _ = stop_waiting.wait_for(|stop| *stop).await;
            clock.sleep(LAST_OUTPUT).await;
        } => {}
    }
    let outcome = outcome.map_err(of_coord)?;
    if let RunOutcome::Failed { error, withdrawn: Ok(()) } = &outcome
        && let Ok(Some(status)) = effects.get(&key).await
        && let Some(uncertain) = status.uncertain
    {
        let failure = Failure::failed(format!(
            "{error}, and nothing was done; but an earlier attempt may have been done, so that nobody knows whether {key:?} was"
        ));
        let episode = uncertain.episode.to_string();
        let failure = command_fact(failure, error).fact("uncertain", uncertain_json(&uncertain));
        return Err(failure.with_code(exit::UNCERTAIN).help(resolve_help(&args.store, &key, Some(episode))));
    }
    answer(args, &key, outcome)
}

/// What a command left that is not kept, for programs.
fn command_fact(failure: Failure, why: &Why) -> Failure {
    match why {
        Why::Exit(kept) => failure.fact("command", kept_json(kept)),
        Why::Text(_) => failure,
    }
}

fn kept_json(kept: &Kept) -> Value {
    json!({
        "exit": kept.exit, "stdout": String::from_utf8_lossy(&kept.stdout),
        "stderr": String::from_utf8_lossy(&kept.stderr),
    })
}

fn uncertain_json(uncertain: &Uncertain) -> Value {
    json!({
        "episode": uncertain.episode.to_string(), "since": uncertain.since.to_string(),
        "agent": uncertain.agent.as_str(), "fence": uncertain.fence, "reason": uncertain.reason.as_str(),
    })
}

fn holder_json(holder: &Holder) -> Value {
    json!({
        "key": holder.key.as_str(), "agent": holder.agent.as_str(), "fence": holder.fence,
        "until": holder.until.to_string(),
    })
}

fn action(args: &OnceArgs) -> Result<Action, Failure> {
    if let Some(both) = args.uncertain_exit.iter().find(|code| args.abandon_exit.contains(code)) {
        return Err(Failure::usage(format!(
            "the exit code {both} cannot mean both that nothing was done and that nobody knows"
        )));
    }
    let key = ActionKey::new(&args.key).map_err(|error| Failure::from(error).context("--key"))?;
    let mut action = Action::new(key);
    if let Some(resource) = &args.resource {
        let resource =
            ResourceId::new(resource).map_err(|error| Failure::from(error).context("--resource"))?;
        action = action.resource(resource);
    }
    if let Some(fingerprint) = &args.fingerprint {
        action = action.fingerprint(Fingerprint::of_bytes(fingerprint.as_bytes()));
    }
    Ok(action)
}

/// Whether this is run by the command of the same action, or of another one on its resource: it would wait for itself.
async fn is_within(effects: &Effects, action: &Action) -> bool {
    let variable = |name| std::env::var(name).ok();
    let (Some(key), Some(downstream_key)) = (variable("COORD_KEY"), variable("COORD_DOWNSTREAM_KEY")) else {
        return false;
    };
    let Ok(key) = ActionKey::new(key) else { return false };
    // The downstream key is that of one action in one store.
    match effects.get(&key).await {
        Ok(Some(around)) => {
            around.downstream_key == downstream_key
                && (around.action.key == action.key || around.action.resource == action.resource)
        }
        _ => false,
    }
}

/// Failures that are coord's own have an exit code of their own, apart from arguments that make no sense.
fn of_coord(error: impl Into<Failure>) -> Failure {
    let failure = error.into();
    if failure.code() == exit::FAILED { failure.with_code(exit::COORD_FAILED) } else { failure }
}

fn stop_on_signal() -> Result<watch::Receiver<bool>, Failure> {
    let mut signals = Signals::new()?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        signals.next().await;
        stop.send_replace(true);
        // Kept, so that nobody takes its end for a signal.
        std::future::pending::<()>().await;
    });
    Ok(stopped)
}

async fn stopped_before(stop: &mut watch::Receiver<bool>, begin: &Begin) {
    let _ = stop.wait_for(|stop| *stop).await;
    if !begin.decide(Begin::STOPPED) {
        std::future::pending::<()>().await;
    }
}

/// Waits until the run, which nobody waits for any more, has taken back what it was granted: as long as it is at it, it uses the store.
async fn withdrawn(effects: &Effects, clock: &dyn Clock) {
    let begin = clock.monotonic();
    while Arc::strong_count(effects) > 1 && clock.monotonic().saturating_sub(begin) < WITHDRAWAL {
        clock.sleep(Duration::from_millis(10)).await;
    }
}

async fn with_variables(mut command: Command, context: &RunContext) -> Result<Command, Told<Why>> {
    let not_applied = |why: String| Told::NotApplied(Why::Text(why));
    let program = command.argv.first().map(String::as_str).unwrap_or_default();
    find_program(program).map_err(not_applied)?;
    let attempt = context.attempt().await.map_err(|error| not_applied(chain(&error)))?;
    command.env = variables(context, attempt);
    Ok(command)
}

fn answer(args: &OnceArgs, key: &ActionKey, outcome: RunOutcome<Why>) -> Result<u8, Failure> {
    let word = outcome.as_str();
    match outcome {
        RunOutcome::Executed { value, completed } => {
            let kept = Kept::decode(&value);
            // What was shown as it came is not shown again.
            tell(args, key, word, &kept, false, &completed);
            Ok(kept.exit)
        }
        RunOutcome::Replayed(completed) => replay(args, key, word, &completed),
        RunOutcome::Stale { instead: Ok(completed), .. } => {
            output::note(
                "coord: the lease was lost, and the action had been completed otherwise: this is the result that counts",
            );
            replay(args, key, word, &completed)
        }
        RunOutcome::Stale { instead: Err(error), value } => {
            let kept = Kept::decode(&value);
            Err(Failure::failed(format!(
                "the command ended with exit code {}, but its lease was lost, and that does not count: {}",
                kept.exit,
                chain(&error)
            ))
            .with_code(exit::UNCERTAIN)
            .help(format!(
                "`{}` shows what was kept as evidence",
                with_key("coord effect history", key.as_str(), &args.store.repeated())
            )))
        }
        RunOutcome::Unsettled { value, error } => {
            let kept = Kept::decode(&value);
            Err(Failure::failed(format!(
                "the command ended with exit code {}, but the store could not be told: {}",
                kept.exit,
                chain(&error)
            ))
            .with_code(exit::UNCERTAIN)
            .fact("command", kept_json(&kept))
            .help(format!(
                "unless the store was told after all, {key:?} becomes uncertain at the end of its hold"
            ))
            .help(resolve_help(&args.store, key, None)))
        }
        RunOutcome::InFlight(holder) => Err(busy(&holder, key, "is being done").with_code(exit::IN_FLIGHT)),
        RunOutcome::Contended(holder) => {
            let resource = args.resource.as_deref().unwrap_or(&args.key);
            Err(busy(
                &holder,
                key,
                &format!("cannot be done now: its resource {resource:?} is busy with {:?}", holder.key),
            )
            .with_code(exit::CONTENDED))
        }
        RunOutcome::Uncertain { episode, doubt } => Err(uncertain(&args.store, key, episode, doubt)),
        RunOutcome::Failed { error, withdrawn } => {
            let (code, failure) = match &error {
                Why::Exit(kept) => (kept.exit, Failure::failed("the command says that nothing was done")),
                Why::Text(why) => (exit::NOT_STARTED, Failure::failed(why)),
            };
            let failure = command_fact(failure, &error);
            let failure = match withdrawn {
                Ok(()) => failure.help("nothing was done, and that is known: the same command tries again"),
                Err(error) => failure.help(format!(
                    "nothing was done, but the store could not be told ({}): the action becomes uncertain at the end of its hold",
                    chain(&error)
                )),
            };
            Err(failure.with_code(code))
        }
        _ => Err(Failure::failed("the run ended in a way that this version does not know")
            .with_code(exit::UNCERTAIN)),
    }
}

fn tell(args: &OnceArgs, key: &ActionKey, word: &str, kept: &Kept, shown: bool, completed: &Completed) {
    match args.store.format {
        Format::Json => output::json(&document(key, word, kept, completed)),
        Format::Text if shown => {
            // A reader that went away is no error.
            let _ = show(&mut std::io::stderr().lock(), &kept.stderr);
            let _ = show(&mut std::io::stdout().lock(), &kept.stdout);
        }
        Format::Text => {}
    }
    if completed.maybe_twice && args.store.format == Format::Text {
        output::note("coord: it may have been done more than once; `coord effect history` shows why");
    }
}

fn document(key: &ActionKey, word: &str, kept: &Kept, completed: &Completed) -> Value {
    json!({
        "key": key.as_str(), "outcome": word, "exit": kept.exit,
        "stdout": String::from_utf8_lossy(&kept.stdout), "stderr": String::from_utf8_lossy(&kept.stderr),
        "completed": completed.at.to_string(), "maybe_twice": completed.maybe_twice,
    })
}

fn replay(args: &OnceArgs, key: &ActionKey, word: &str, completed: &Completed) -> Result<u8, Failure> {
    let gone = |why: String| {
        Failure::failed(format!(
            "{key:?} was done at {}, and its output is no longer kept: {why}",
            completed.at
        ))
        .with_code(exit::GONE)
    };
    match &completed.replay {
        Replay::Result(result) => {
            let kept = Kept::decode(result);
            tell(args, key, word, &kept, true, completed);
            Ok(kept.exit)
        }
        Replay::Purged { at } => Err(gone(format!("it was purged at {at}"))),
        Replay::TooLarge { len, .. } => Err(gone(format!("it had {len} bytes"))),
    }
}

fn busy(holder: &Holder, key: &ActionKey, how: &str) -> Failure {
    Failure::failed(format!("{key:?} {how} by {}, until {} if not renewed", holder.agent, holder.until))
        .fact("holder", holder_json(holder))
        .help("--wait says how long to wait for that")
}

/// How somebody who has looked decides.
fn resolve_help(store: &EffectStoreArgs, key: &ActionKey, episode: Option<String>) -> String {
    let episode = episode.map(|episode| format!(" --episode {episode}")).unwrap_or_default();
    let options =
        format!("{episode}{} --evidence '...' (--applied | --not-applied | --allow-retry)", store.repeated());
    format!("look whether it was done, then: {}", with_key("coord effect resolve", key.as_str(), &options))
}

fn uncertain(
    store: &EffectStoreArgs,
    key: &ActionKey,
    episode: Result<coord_core::effects::Episode, EffectError>,
    doubt: Doubt<Why>,
) -> Failure {
    let text = match &doubt {
        Doubt::Earlier(Uncertain { agent, fence, since, reason, .. }) => {
            format!("tried by {agent} (fence {fence}), uncertain since {since}: {reason}")
        }
        doubt => doubt.to_string(),
    };
    let failure =
        Failure::failed(format!("nobody knows whether {key:?} was done: {text}")).with_code(exit::UNCERTAIN);
    let failure = match (&doubt, &episode) {
        (Doubt::Earlier(earlier), _) => failure.fact("uncertain", uncertain_json(earlier)),
        (_, Ok(episode)) => {
            failure.fact("uncertain", json!({ "episode": episode.to_string(), "reason": text }))
        }
        _ => failure,
    };
    let failure = match &doubt {
        Doubt::Error(why) => command_fact(failure, why),
        _ => failure,
    };
    match episode {
        Ok(episode) => failure.help(resolve_help(store, key, Some(episode.to_string()))),
        Err(error) => failure
            .help(format!(
                "the store could not be told ({}): it becomes uncertain at the end of its hold",
                chain(&error)
            ))
            .help(resolve_help(store, key, None)),
    }
}
