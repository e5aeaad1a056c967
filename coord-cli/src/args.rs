//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use coord_core::Namespace;
use coord_core::board::Filter;

use crate::effects::args::{EffectCommand, OnceArgs};
use crate::output::Format;
use crate::store::{DEFAULT_STORE, Store};

const LONG_ABOUT: &str = "\
Runs plans of tasks with many workers. A plan is a TOML file; its tasks go to a board, which is kept in a store. \
Workers claim tasks under leases: what a dead worker held, another one takes over, and what the dead one still \
tries to write is refused.";

// No line is wider than 78 characters, so that no terminal breaks it.
const EXAMPLES: &str = "\
A plan:
  [plan]                # optional: name, and defaults of
  name = \"demo\"         # priority, labels, timeout, env, cwd, retry

  [[task]]
  id = \"build\"
  run = \"make\"          # `sh -c` gets it; it sees COORD_TASK, COORD_FENCE,
                        # COORD_BOARD and COORD_STORE
  [[task]]
  id = \"test\"
  title = \"Run the tests\"
  run = \"make test\"
  deps = [\"build\"]      # starts when these are done; or
                        # { id = \"build\", rule = \"finished\" } or \"failed\":
                        # when it has ended, or failed. One that failed
                        # blocks who needs it done; who is blocked has
                        # not ended
  priority = 5          # higher ones first
  labels = [\"ci\"]
  timeout = \"10m\"
  env = { RUST_LOG = \"debug\" }
  cwd = \"sub/folder\"    # relative to where coord was started
  retry = 3             # attempts in all, with a rest in between; or
                        # { attempts = 3, backoff = \"10s\",
                        # max_backoff = \"5m\" }: up to so long after the
                        # first failure, doubled each time, at most so long
  not_before = 2026-12-01T03:00:00Z  # in UTC
  effect = { key = \"charge-7\", resource = \"card\" }
                        # at most once for this key, also by other plans;
                        # also uncertain_exit = [7], abandon_exit = [3]; as
                        # `coord once`, whose --help tells the rest

Examples:
  coord run plan.toml                run it, as many workers as processors
  coord run plan.toml                again: goes on where it stopped
  coord run plan.toml --retry        open what failed again, and go on
  coord run plan.toml --replace      after a change of the plan
  coord check plan.toml              only check the plan
  coord graph plan.toml | dot -Tsvg  draw it
  coord ls                           where the tasks stand
  coord top                          watch them, cancel and retry with keys
  coord show test                    one task, and the end of its output
  coord explain test                 why it does not run, and what helps
  coord wait test --timeout 10m      until it has ended; see its --help
  coord history test                 what has happened to it
  coord archive --older-than 7d      take what finished long ago off the board
  coord add plan.toml                only add it; run it by ...
  coord worker                       ... this, in as many terminals as you like
  coord once --key K -- COMMAND      at most once, on all hosts; see its --help

Exit codes:
  0    all tasks are done
  1    a task failed, was cancelled or cannot run; the store failed;
       `check` found a problem
  2    bad plan or bad arguments; nothing was changed
  130  stopped by Ctrl-C or a signal; the same command goes on later

Where state lives:
  In the store: the file .coord/coord.db in the working folder, or what
  --store or COORD_STORE names. Each plan has a board of its own in it, by the
  name of the plan ([plan] name, else the file's name without .toml), so that
  several plans share a store. The output of each task is kept beside the
  store, in .coord/logs/BOARD/TASK/. To begin anew: `coord remove --all`, or
  another name with --board.

What happens when something dies:
  A worker that dies loses its claim after the lease, and another one takes
  the task over; what the dead one still says is refused. Its command is
  killed with it, and so is whatever the command started. Should a command
  outlive its claim all the same (its machine was cut off), COORD_FENCE tells
  its writes from newer ones: let what it writes to refuse a smaller one.
  COORD_LOG=debug shows more.";

const WAIT_HELP: &str = "\
Exit codes:
  0    all tasks that were named are done; with --any, one of them is; with
       --idle, every task of the board is done or skipped
  1    it has come, but not all of that is done; or the store failed
  2    bad arguments, or there is no such task
  124  it has not come within --timeout";

const TOP_HELP: &str = "\
Keys:
  Up Down k j      select a task; PageUp PageDown Home End too
  Tab Left Right   next list, one back, one on; 1 to 8 go to it
  e Enter          explain: who holds it, what it waits for, until when
  c                cancel the task, after a question
  r                retry: open a failed or cancelled task again
  /                show only what contains a text; Esc shows all again
  ?                help
  q Ctrl-C         quit";

/// Runs plans of tasks with many workers.
#[derive(Debug, Parser)]
#[command(name = "coord", version, about, long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[command(after_help = "`coord --help` shows a plan, examples, exit codes, and where state lives.")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add a plan to its board and run it to its end; run it again to go on where it stopped
    Run(RunArgs),
    /// Claim and run tasks of a board, until Ctrl-C
    Worker(WorkerArgs),
    /// Add a plan to its board; workers run it
    Add(AddArgs),
    /// List the tasks of a board
    Ls(LsArgs),
    /// Watch a board as it changes: who runs what, what waits and why, how much gets done; cancel and retry with keys
    Top(TopArgs),
    /// Show one task and the end of its output
    Show(ShowArgs),
    /// Tell why a task can be claimed or not: who holds it, what it waits for, until when; and which command helps
    Explain(ExplainArgs),
    /// Wait until tasks have ended, or until nothing is left that could run
    Wait(WaitArgs),
    /// Tell what has happened to a task: the last 32 events
    History(HistoryArgs),
    /// Take finished tasks, and their histories, off a board on which nothing unfinished depends
    Archive(ArchiveArgs),
    /// Check a plan, or without one the invariants of a board
    Check(CheckArgs),
    /// Draw a plan or a board, for Graphviz or Mermaid
    Graph(GraphArgs),
    /// List the boards of a store
    Boards(StoreArgs),
    /// Cancel tasks: nobody may claim or complete them any more; a command that runs is killed within a third of its lease
    Cancel(IdsArgs),
    /// Take tasks from whoever holds them: the holder's token is refused from then on, and the attempt counts
    Release(ReleaseArgs),
    /// Open failed or cancelled tasks again
    Reopen(IdsArgs),
    /// Remove tasks that nothing depends on and nobody holds
    Remove(RemoveArgs),
    /// Run a command at most once for a key, on all hosts, and replay its output and exit code to everybody else
    Once(OnceArgs),
    /// Look at, settle and forget actions that were done with `coord once`
    #[command(subcommand)]
    Effect(EffectCommand),
    /// Kills the process group of a command when its worker dies. Started by workers
    #[command(hide = true)]
    Guard,
}

/// Which store, and how to answer.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArgs {
    /// The store, as a URL
    #[arg(long, value_name = "URL", env = "COORD_STORE", hide_env_values = true, default_value = DEFAULT_STORE)]
    pub(crate) store: String,
    /// The folder for the output of tasks; by default `logs` beside the store
    #[arg(long, value_name = "DIR")]
    pub(crate) logs: Option<PathBuf>,
    /// How to answer; json is one document on standard output, and nothing else there
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

impl StoreArgs {
    /// The store.
    pub(crate) fn store(&self) -> Store {
        Store::new(&self.store, self.logs.as_deref())
    }
}

/// Which board of a store.
#[derive(Clone, Debug, Args)]
pub(crate) struct BoardArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The board; not needed if the store has only one
    #[arg(long, alias = "namespace", value_name = "NAME", env = "COORD_BOARD", value_parser = board)]
    pub(crate) board: Option<Namespace>,
}

/// A plan and where it goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    /// The plan, a TOML file; `-` is standard input
    #[arg(value_name = "PLAN.toml")]
    pub(crate) plan: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The board; by default the name of the plan: `[plan] name`, else the file's name without .toml
    #[arg(long, alias = "namespace", value_name = "NAME", value_parser = board)]
    pub(crate) board: Option<Namespace>,
    /// Where the plan defines a task otherwise than the board: remove the task, and all that depend on it, and add them anew
    #[arg(long)]
    pub(crate) replace: bool,
}

impl PlanArgs {
    /// This plan on this board as `coord run` would name it, to be shown to people.
    pub(crate) fn run_again(&self) -> String {
        let mut command = format!("coord run {}", self.plan.display());
        let from_environment = std::env::var("COORD_STORE").is_ok_and(|store| store == self.store.store);
        if self.store.store != DEFAULT_STORE && !from_environment {
            command.push_str(&format!(" --store {}", coord_connect::redact(&self.store.store)));
        }
        if let Some(board) = &self.board {
            command.push_str(&format!(" --board {board}"));
        }
        command
    }
}

/// `coord run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// How many worker processes; by default as many as processors
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: Option<u16>,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// Open tasks of the plan that failed or were cancelled again
    #[arg(long)]
    pub(crate) retry: bool,
    /// After Ctrl-C, how long running tasks may go on before they are stopped and released
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) grace: Duration,
    /// How many lines of the output of a failed task are shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) tail: usize,
}

/// How long a claim lives.
#[derive(Clone, Debug, Args)]
pub(crate) struct LeaseArgs {
    /// How long a claim lives without being renewed: what a dead worker held is taken over after this time
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    pub(crate) lease: Duration,
}

/// Which tasks, by their labels.
#[derive(Clone, Debug, Args)]
pub(crate) struct FilterArgs {
    /// Only tasks that have all of these labels, with commas between them or several times
    #[arg(long = "label", value_name = "LABEL", value_delimiter = ',')]
    pub(crate) labels: Vec<String>,
    /// Only tasks that have at least one of these labels, with commas between them or several times
    #[arg(long = "any-label", value_name = "LABEL", value_delimiter = ',')]
    pub(crate) any_of: Vec<String>,
    /// Only tasks that have none of these labels, with commas between them or several times
    #[arg(long = "no-label", value_name = "LABEL", value_delimiter = ',')]
    pub(crate) none_of: Vec<String>,
}

impl FilterArgs {
    /// As a filter.
    pub(crate) fn filter(&self) -> Filter {
        let mut filter = Filter::any();
        for label in &self.labels {
            filter = filter.with_label(label);
        }
        if !self.any_of.is_empty() {
            filter = filter.with_any_of(&self.any_of);
        }
        for label in &self.none_of {
            filter = filter.without_label(label);
        }
        filter
    }
}

/// `coord worker`.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) board: BoardArgs,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// How many tasks it runs at a time
    #[arg(long, short = 'j', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) concurrency: u16,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// End when nothing is left that could run, now or later
    #[arg(long)]
    pub(crate) until_done: bool,
    /// End after so many tasks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tasks: Option<u64>,
    /// After a signal to end, how long running tasks may go on before they are stopped and released; by default until they have ended
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// The name under which it claims; by default the host's and the process's
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Take commands from standard input and say what happens on standard output. Used by `coord run`
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}

/// `coord add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
}

/// `coord ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) board: BoardArgs,
    /// Only tasks that this worker holds, by its name
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// At most so many tasks, in the order of their ids
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Only tasks whose ids come after this one: the `next` of the page before
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<String>,
    /// Only tasks that stand so: running, ready (also at rest until a time), waiting, blocked, failed, cancelled, skipped, done, unknown
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub(crate) state: Vec<StandingArg>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// A standing, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StandingArg {
    Running,
    Ready,
    Waiting,
    Blocked,
    Failed,
    Cancelled,
    Skipped,
    Done,
    Unknown,
}

/// `coord top`.
#[derive(Debug, Args)]
#[command(after_help = TOP_HELP)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) board: BoardArgs,
    /// No key changes anything on the board
    #[arg(long)]
    pub(crate) read_only: bool,
    /// How often the board is listed; one that takes long to list is listed less often
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print one frame as text, and end; so it is where standard output is no terminal, too
    #[arg(long)]
    pub(crate) once: bool,
}

/// `coord show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The task
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) board: BoardArgs,
    /// How many lines of its output are shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) tail: usize,
}

/// `coord explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The task
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) board: BoardArgs,
}

/// `coord wait`.
#[derive(Debug, Args)]
#[command(
    override_usage = "coord wait [OPTIONS] <ID>...\n       coord wait [OPTIONS] --any <ID>...\n       coord wait [OPTIONS] --idle",
    after_help = WAIT_HELP
)]
pub(crate) struct WaitArgs {
    /// The tasks; it waits until all of them have ended
    #[arg(value_name = "ID", required_unless_present = "idle")]
    pub(crate) ids: Vec<String>,
    /// Until one of them has ended
    #[arg(long)]
    pub(crate) any: bool,
    /// Until nothing is left on the board that could run, now or later: what is left has ended, or waits for what has failed
    #[arg(long, conflicts_with_all = ["ids", "any"])]
    pub(crate) idle: bool,
    /// At most so long; by default for ever
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) board: BoardArgs,
}

/// `coord history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The task
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) board: BoardArgs,
}

/// `coord archive`.
#[derive(Debug, Args)]
#[command(
    after_help = "Tasks that are done or skipped go, and their histories with them. An archived task is unknown: a plan that is run again runs it again."
)]
pub(crate) struct ArchiveArgs {
    #[command(flatten)]
    pub(crate) board: BoardArgs,
    /// Only tasks that were last touched at least so long ago
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = duration)]
    pub(crate) older_than: Duration,
    /// Also tasks that failed
    #[arg(long)]
    pub(crate) failed: bool,
    /// Also tasks that were cancelled
    #[arg(long)]
    pub(crate) cancelled: bool,
}

/// `coord check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// A plan to check instead of the board; no store is touched
    #[arg(value_name = "PLAN.toml")]
    pub(crate) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) board: BoardArgs,
}

/// How a graph is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// For Graphviz
    #[value(alias = "text")]
    Dot,
    /// For Markdown
    Mermaid,
    /// Nodes and edges
    Json,
}

/// `coord graph`.
#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// A plan to draw instead of the board; no store is touched
    #[arg(value_name = "PLAN.toml")]
    pub(crate) plan: Option<PathBuf>,
    /// The store, as a URL
    #[arg(long, value_name = "URL", env = "COORD_STORE", hide_env_values = true, default_value = DEFAULT_STORE)]
    pub(crate) store: String,
    /// The board; not needed if the store has only one
    #[arg(long, alias = "namespace", value_name = "NAME", env = "COORD_BOARD", value_parser = board)]
    pub(crate) board: Option<Namespace>,
    /// How to write it
    #[arg(long, value_enum, default_value_t = GraphFormat::Dot)]
    pub(crate) format: GraphFormat,
}

/// `coord cancel` and `coord reopen`.
#[derive(Debug, Args)]
pub(crate) struct IdsArgs {
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) board: BoardArgs,
}

/// `coord release`.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) ids: IdsArgs,
    /// Only if the claim still has this fence, as `coord show` told it
    #[arg(long, value_name = "FENCE", allow_hyphen_values = true, value_parser = fence)]
    pub(crate) fence: Option<u64>,
}

/// `coord remove`.
#[derive(Debug, Args)]
#[command(override_usage = "coord remove [OPTIONS] <ID>...\n       coord remove [OPTIONS] --all")]
pub(crate) struct RemoveArgs {
    /// The tasks
    #[arg(value_name = "ID", required_unless_present = "all")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) board: BoardArgs,
    /// Also what depends on them, directly or not
    #[arg(long)]
    pub(crate) dependents: bool,
    /// All tasks of the board
    #[arg(long, conflicts_with_all = ["ids", "dependents"])]
    pub(crate) all: bool,
}

fn fence(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(fence) if fence > 0 => Ok(fence),
        _ => Err("a fence is a whole number, 1 or more; `coord show` tells it".into()),
    }
}

pub(crate) fn board(text: &str) -> Result<Namespace, String> {
    Namespace::new(text).map_err(|error| error.message().to_owned())
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 30s, 5m or 1h"))
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < Duration::from_millis(100) || interval > Duration::from_secs(3_600) {
        return Err("an interval is from 100ms to 1h".into());
    }
    Ok(interval)
}

pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    if lease < Duration::from_secs(1) || lease > Duration::from_secs(24 * 3_600) {
        return Err("a lease lasts from 1s to 24h".into());
    }
    Ok(lease)
}
