//! The arguments of `coord once` and `coord effect`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use coord_core::Namespace;
use coord_core::effects::Episode;

use crate::args::{board, duration, lease};
use crate::output::Format;
use crate::store::{DEFAULT_STORE, EFFECTS, Store};

pub(crate) const ONCE_HELP: &str = "\
Examples:
  export COORD_STORE=redis://db.internal
        a store that all hosts reach; without it, a file of the working folder
  coord once --key report-2026-11-30 -- ./send-report
        on each of three hosts, by cron: one of them sends it, and all
        three print what it printed and end with its exit code
  coord once --key deploy-v12 --resource production -- make deploy
        also keeps every other action on `production` away meanwhile
  coord once --key charge-7 --uncertain-exit 7,28 -- ./charge 7
        curl's exit codes for a lost connection: nobody knows whether it
        went through, so nobody does it again before somebody has looked

The command:
  sees COORD_KEY, COORD_RESOURCE, COORD_FENCE (larger than any that was given for the resource
  before; let the resource refuse smaller ones), COORD_ATTEMPT (1 for the
  first) and COORD_DOWNSTREAM_KEY (the same for all attempts: a vendor's
  idempotency key). Its standard input is empty. It is killed when its lease
  is lost, when it runs out of time, when coord is asked to end (SIGINT,
  SIGTERM, SIGHUP) and when coord dies; whatever it leaves behind in its
  process group is killed when it ends.

What is kept:
  Its exit code, and of standard output and standard error each the first and
  the last 60 KiB. A command that exits non-zero has failed, and that is known:
  it is kept like a success, and not run again (`coord effect forget KEY`
  makes that possible; --abandon-exit names exit codes that mean that nothing
  was done). Killed, out of time, its lease lost: uncertain.

Exit codes:
  that of the command, now or when it was run
  2    bad arguments; nothing was changed
  119  it was done, and its output is no longer kept
  120  uncertain: nobody knows whether it was done; standard error says who
       tried, since when, and which command resolves it
  121  somebody is doing it, and did not end in the time of --wait
  122  the resource is busy with another action
  123  the key is in use for another resource or fingerprint
  125  coord failed (the store, above all); the command was not run
  126  the command cannot be started; nothing was done
  130  stopped by a signal before the command was started";

/// Which store, and how to answer.
#[derive(Clone, Debug, Args)]
pub(crate) struct EffectStoreArgs {
    /// The store, as a URL
    #[arg(long, value_name = "URL", env = "COORD_STORE", hide_env_values = true, default_value = DEFAULT_STORE)]
    pub(crate) store: String,
    /// The namespace of the actions: keys in different ones have nothing to do with each other
    #[arg(long, value_name = "NAME", default_value = EFFECTS, value_parser = board)]
    pub(crate) namespace: Namespace,
    /// How to answer; json is one document on standard output, and nothing else there
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

impl EffectStoreArgs {
    /// The store.
    pub(crate) fn store(&self) -> Store {
        Store::new(&self.store, None)
    }

    /// The options that name this store, for commands that are shown to people.
    pub(crate) fn repeated(&self) -> String {
        let mut options = String::new();
        let from_environment = std::env::var("COORD_STORE").is_ok_and(|store| store == self.store);
        if self.store != DEFAULT_STORE && !from_environment {
            options.push_str(&format!(" --store {}", super::word(&coord_connect::redact(&self.store))));
        }
        if self.namespace.as_str() != EFFECTS {
            options.push_str(&format!(" --namespace {}", self.namespace));
        }
        options
    }
}

/// `coord once`.
#[derive(Debug, Args)]
#[command(after_long_help = ONCE_HELP, after_help = "`coord once --help` shows examples, what is kept, and exit codes.")]
pub(crate) struct OnceArgs {
    /// What it is done at most once for, 1 to 200 bytes
    #[arg(long, value_name = "KEY")]
    pub(crate) key: String,
    /// What only one action at a time may touch; by default the key
    #[arg(long, value_name = "NAME")]
    pub(crate) resource: Option<String>,
    /// How long the hold lives without being renewed: a run that died is noticed after this time
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    pub(crate) ttl: Duration,
    /// How long the command may run before it is killed, and its outcome uncertain
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// How long to wait for whoever is doing it, or holds the resource; by default as long as they are at it
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// What the action is about: the same key with another text is refused
    #[arg(long, value_name = "TEXT")]
    pub(crate) fingerprint: Option<String>,
    /// Exit codes of the command that leave its outcome unknown
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub(crate) uncertain_exit: Vec<u8>,
    /// Exit codes of the command that mean that nothing was done: it may be run again at once
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    pub(crate) abandon_exit: Vec<u8>,
    #[command(flatten)]
    pub(crate) store: EffectStoreArgs,
    /// The command
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<String>,
}

/// `coord effect`.
#[derive(Debug, Subcommand)]
pub(crate) enum EffectCommand {
    /// List actions: by default all
    Ls(EffectLsArgs),
    /// Show one action, and its result
    Show(KeyArgs),
    /// Show what happened to an action: who, when, why, and late results
    History(KeyArgs),
    /// Settle uncertain actions by a command that looks whether they were done
    Reconcile(ReconcileArgs),
    /// Decide an uncertain action by hand, after having looked
    Resolve(ResolveArgs),
    /// Drop the results of actions that were completed long ago; that they were is still known
    Purge(PurgeArgs),
    /// Forget actions that are completed or idle: the next one who asks does them again
    Forget(ForgetArgs),
}

/// `coord effect ls`.
#[derive(Debug, Args)]
pub(crate) struct EffectLsArgs {
    /// Only what is under way or uncertain
    #[arg(long)]
    pub(crate) open: bool,
    /// Only what is uncertain, or will be as soon as somebody asks
    #[arg(long, conflicts_with = "open")]
    pub(crate) uncertain: bool,
    /// Only what has been uncertain for at least this long
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with_all = ["open", "uncertain"])]
    pub(crate) overdue: Option<Duration>,
    /// At most so many actions
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) limit: usize,
    /// Only actions whose keys come after this one: where an earlier list ended
    #[arg(long, value_name = "KEY")]
    pub(crate) after: Option<String>,
    #[command(flatten)]
    pub(crate) store: EffectStoreArgs,
}

/// One action.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) store: EffectStoreArgs,
}

/// `coord effect resolve`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("ruling").required(true))]
pub(crate) struct ResolveArgs {
    /// The key
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// It was done
    #[arg(long, group = "ruling")]
    pub(crate) applied: bool,
    /// With --applied: the file with the result that is replayed from now on; `-` is standard input; by default an empty one
    #[arg(long, value_name = "FILE", requires = "applied")]
    pub(crate) result: Option<PathBuf>,
    /// It was not done, and nothing that was sent can do it any more
    #[arg(long, group = "ruling")]
    pub(crate) not_applied: bool,
    /// It is still unknown, and a second execution is accepted
    #[arg(long, group = "ruling")]
    pub(crate) allow_retry: bool,
    /// What was found, for the history
    #[arg(long, value_name = "TEXT")]
    pub(crate) evidence: String,
    /// Only if nothing has changed since `show` or `once` named this episode
    #[arg(long, value_name = "EPISODE")]
    pub(crate) episode: Option<Episode>,
    #[command(flatten)]
    pub(crate) store: EffectStoreArgs,
}

/// `coord effect reconcile`.
#[derive(Debug, Args)]
pub(crate) struct ReconcileArgs {
    /// How long after the end of the hold the probe is asked: longer than anything that was sent may be under way
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub(crate) settle: Duration,
    /// How long the probe may take
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Go on until Ctrl-C, with so much time between two passes; by default one pass
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) every: Option<Duration>,
    #[command(flatten)]
    pub(crate) store: EffectStoreArgs,
    /// The probe. It sees COORD_KEY, COORD_RESOURCE, COORD_FENCE, COORD_SEALING_FENCE and COORD_DOWNSTREAM_KEY, and says by its exit code what
    /// it found: 0 done (its output is the result), 10 not done and never will be, anything else: unknown
    #[arg(value_name = "PROBE", required = true, last = true)]
    pub(crate) probe: Vec<String>,
}

/// `coord effect purge`.
#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// How long results are kept after completion
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Duration,
    #[command(flatten)]
    pub(crate) store: EffectStoreArgs,
}

/// `coord effect forget`.
#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// The keys
    #[arg(value_name = "KEY", required_unless_present = "resource")]
    pub(crate) keys: Vec<String>,
    /// A resource to forget that nobody holds; its fences go on
    #[arg(long, value_name = "NAME")]
    pub(crate) resource: Option<String>,
    #[command(flatten)]
    pub(crate) store: EffectStoreArgs,
}
