#![doc = include_str!("../README.md")]

mod args;
mod commands;
mod control;
mod definition;
mod diagnose;
mod effects;
mod execute;
mod failure;
mod fields;
mod graph;
mod guard;
mod logs;
mod output;
mod plan;
mod pool;
mod process;
mod progress;
mod protocol;
mod run;
mod standing;
mod store;
mod summary;
mod top;
mod worker;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command, GraphFormat};
use crate::failure::{Failure, exit};
use crate::output::Format;

/// How long the end of the command waits for stores to be closed.
const CLOSING: Duration = Duration::from_secs(2);
/// What is logged by default. What a worker of the library warns of is said as an event.
const LOG: &str = "warn,coord_core::board::worker=error,coord_core::hold=error";

fn main() -> ExitCode {
    output::init_colors();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_arguments(error),
    };
    let filter = EnvFilter::try_from_env("COORD_LOG").unwrap_or_else(|_| EnvFilter::new(LOG));
    let filter = if draws(&cli.command) { EnvFilter::new("off") } else { filter };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let format = format(&cli.command);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(dispatch(&cli.command));
            // A store that is closed may still have work on other threads, such as writing its log back.
            runtime.shutdown_timeout(CLOSING);
            result
        }
        Err(error) => Err(Failure::failed(format!("the runtime cannot be started: {error}"))),
    };
    match result {
        Ok(exit::OK) if output::has_failed() => exit::FAILED.into(),
        Ok(code) => code.into(),
        Err(failure) => {
            output::note(failure.to_string().trim_end());
            if format == Format::Json {
                output::json(&failure.to_json());
            }
            failure.code().into()
        }
    }
}

/// Help and version are answers; the rest is said to people, and as a document where one was asked for.
fn wrong_arguments(error: clap::Error) -> ExitCode {
    // Nobody is left to tell if that fails.
    let _ = error.print();
    let code = error.exit_code();
    if error.use_stderr() && wants_json(std::env::args_os().skip(1)) {
        output::json(&Failure::from(error).to_json());
    }
    u8::try_from(code).unwrap_or(exit::USAGE).into()
}

/// Whether the command draws on the terminal on which it would also log.
fn draws(command: &Command) -> bool {
    matches!(command, Command::Top(args) if !args.once)
        && top::no_terminal().is_none()
        && std::io::stderr().is_terminal()
}

/// Whether these arguments, which may be wrong otherwise, ask for JSON.
fn wants_json(args: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let mut before = std::ffi::OsString::new();
    for arg in args.take_while(|arg| arg != "--") {
        if arg == "--format=json" || (before == "--format" && arg == "json") {
            return true;
        }
        before = arg;
    }
    false
}

async fn dispatch(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => run::run(args).await,
        Command::Worker(args) => worker::run(args).await,
        Command::Add(args) => commands::add::run(args).await,
        Command::Ls(args) => commands::ls::run(args).await,
        Command::Top(args) => top::run(args).await,
        Command::Show(args) => commands::show::run(args).await,
        Command::Explain(args) => commands::explain::run(args).await,
        Command::Wait(args) => commands::wait::run(args).await,
        Command::History(args) => commands::history::run(args).await,
        Command::Archive(args) => commands::archive::run(args).await,
        Command::Check(args) => commands::check::run(args).await,
        Command::Graph(args) => commands::graph::run(args).await,
        Command::Boards(args) => commands::boards::run(args).await,
        Command::Cancel(args) => commands::edit::cancel(args).await,
        Command::Release(args) => commands::edit::release(args).await,
        Command::Reopen(args) => commands::edit::reopen(args).await,
        Command::Remove(args) => commands::remove::run(args).await,
        Command::Once(args) => effects::once::run(args).await,
        Command::Effect(command) => effects::operate::run(command).await,
        Command::Guard => match guard::run().await {
            Ok(()) => Ok(exit::OK),
            Err(error) => Err(Failure::usage(error.to_string())),
        },
    }
}

fn format(command: &Command) -> Format {
    match command {
        Command::Run(args) => args.plan.store.format,
        Command::Worker(args) if args.supervised => Format::Text,
        Command::Worker(args) => args.board.store.format,
        Command::Add(args) => args.plan.store.format,
        Command::Ls(args) => args.board.store.format,
        Command::Top(args) => args.board.store.format,
        Command::Show(args) => args.board.store.format,
        Command::Explain(args) => args.board.store.format,
        Command::Wait(args) => args.board.store.format,
        Command::History(args) => args.board.store.format,
        Command::Archive(args) => args.board.store.format,
        Command::Check(args) => args.board.store.format,
        Command::Graph(args) if args.format == GraphFormat::Json => Format::Json,
        Command::Graph(_) | Command::Guard => Format::Text,
        Command::Boards(args) => args.format,
        Command::Once(args) => args.store.format,
        Command::Effect(command) => effects::operate::format(command),
        Command::Cancel(args) | Command::Reopen(args) => args.board.store.format,
        Command::Release(args) => args.ids.board.store.format,
        Command::Remove(args) => args.board.store.format,
    }
}
