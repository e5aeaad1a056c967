//! The contract suite as a command: is the backend behind this URL right?

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use contract_suite::{
    Harness, Layer, MemoryHarness, Options, Subject, UrlHarness, clauses, process, run_subject,
};

/// Runs the contract suite against a store. It touches only random namespaces of its own and removes them at the end.
///
/// Ends with 0 if clauses passed and none failed, with 1 if one failed or none could be tried, with 2 for wrong usage.
#[derive(Parser)]
#[command(name = "contract-suite", version)]
struct Arguments {
    /// The store, as any program of coord names it: `memory:`, `sqlite:PATH`, `redis://HOST`, ..
    #[arg(long, required_unless_present = "list", env = "COORD_SUITE_URL")]
    url: Option<String>,
    /// Only clauses whose id begins with one of these, separated by commas: `B1`, `B05,B06`
    #[arg(long)]
    filter: Option<String>,
    /// Only the clauses of this layer
    #[arg(long)]
    layer: Option<LayerName>,
    /// The seed of every choice that the clauses make (random if left out; every report shows it)
    #[arg(long)]
    seed: Option<u64>,
    /// How many seconds one clause may take
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// How many clauses run at a time
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// Shows the clauses and runs nothing
    #[arg(long)]
    list: bool,
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum LayerName {
    Backend,
    Board,
    Effects,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    /// Lines for people
    Text,
    /// One JSON document, and nothing else on standard output
    Json,
    /// The contract as a document; only with --list
    Markdown,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut options = Options {
        filter: arguments.filter.clone(),
        layer: arguments.layer.map(|layer| match layer {
            LayerName::Backend => Layer::Backend,
            LayerName::Board => Layer::Board,
            LayerName::Effects => Layer::Effects,
        }),
        seed: arguments.seed,
        timeout: Duration::from_secs(arguments.timeout),
        // On standard error, so that it is also seen where standard output is one document.
        progress: Some(|row| {
            let _ = writeln!(std::io::stderr(), "{:7} {} ({} ms)", row.result.as_str(), row.id, row.ms);
        }),
        ..Options::default()
    };
    if let Some(workers) = arguments.workers {
        options.workers = workers.into();
    }
    if !clauses().iter().any(|clause| options.selects(clause)) {
        return usage("no clause matches --filter and --layer; --list shows them all");
    }
    if arguments.format == Format::Markdown && !arguments.list {
        return usage("--format markdown shows the contract, not a run: use it with --list");
    }
    if arguments.list {
        return print(&list(&options, arguments.format));
    }
    let url = arguments.url.unwrap_or_default();
    let harness: Arc<dyn Harness> = match url.as_str() {
        "memory:" => Arc::new(MemoryHarness::default()),
        #[cfg(feature = "sqlite")]
        _ if url.starts_with("sqlite:") => match contract_suite::SqliteHarness::from_url(&url) {
            Ok(harness) => Arc::new(harness),
            Err(error) => return usage(&error.to_string()),
        },
        _ => match UrlHarness::from_url(&url) {
            Ok(harness) => Arc::new(harness),
            Err(error) => return usage(&error.to_string()),
        },
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(1, &format!("no asynchronous runtime: {error}")),
    };
    let code = runtime.block_on(async {
        if let Some(code) = process::serve(harness.clone()).await {
            return code;
        }
        let report = run_subject(&Subject::new(harness), &options).await;
        let text = match arguments.format {
            Format::Text | Format::Markdown => report.to_string(),
            Format::Json => match serde_json::to_string_pretty(&report) {
                Ok(json) => json + "\n",
                Err(error) => return complain(1, &format!("the report cannot be written as JSON: {error}")),
            },
        };
        let printed = print(&text);
        if report.is_right() { printed } else { ExitCode::FAILURE }
    });
    // A wrong backend may have left a thread that never ends.
    runtime.shutdown_background();
    code
}

fn list(options: &Options, format: Format) -> String {
    let selected = clauses().iter().filter(|clause| options.selects(clause));
    match format {
        Format::Text => selected
            .map(|clause| format!("{:<14} {:<8} {}\n", clause.id, clause.layer, clause.promise))
            .collect(),
        Format::Markdown => contract_suite::markdown(selected),
        Format::Json => {
            let rows: Vec<_> = selected
                .map(|clause| {
                    serde_json::json!({ "id": clause.id, "layer": clause.layer, "promise": clause.promise })
                })
                .collect();
            format!("{:#}\n", serde_json::Value::from(rows))
        }
    }
}

fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn usage(text: &str) -> ExitCode {
    complain(2, text)
}

fn complain(code: u8, text: &str) -> ExitCode {
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(std::io::stderr(), "contract-suite: {text}");
    ExitCode::from(code)
}
