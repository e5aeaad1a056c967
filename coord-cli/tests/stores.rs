//! `coord run` on a store that several hosts share: a working folder stands for a host. Servers are found as the suite finds them: the environment
//! (`COORD_REDIS_URL`, ...), `COORD_LOCAL_SERVERS=1`, containers, else ignored with the reason, which `COORD_REQUIRE` makes a failure.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use common::{Folder, Process, pause, until};
use contract_suite::servers::{Found, Store, find_server};
use contract_suite::{ControlError, Harness, is_required};
use futures::future::BoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Runtime;

/// Whether a test can be done, or why not.
type Done = Result<Result<(), String>, ControlError>;
/// Finds the server of a store.
type Find = fn() -> BoxFuture<'static, Result<Server, ControlError>>;
type Test = fn(&Runtime, &Server) -> Done;

const TESTS: &[(&str, Test)] = &[
    ("two hosts work off one plan, each task once", two_hosts),
    ("the store dies and comes back within a lease", |runtime, server| outage(runtime, server, 30 + away())),
    ("the store is away for longer than a lease", |runtime, server| outage(runtime, server, 2)),
    ("twenty hosts do an action once and all tell the same", twenty_once),
    ("an action whose host died is uncertain, and says how to resolve it", killed_once),
];

fn main() -> ExitCode {
    let runtime = Arc::new(Runtime::new().unwrap());
    let mut arguments = Arguments::from_args();
    // Each waits most of the time, for commands and for servers.
    arguments.test_threads = arguments.test_threads.or(Some(3));
    let mut trials = Vec::new();
    for (store, find) in stores() {
        for (title, test) in TESTS {
            let runtime = runtime.clone();
            trials.push(Trial::ignorable_test(format!("{}: {title}", store.name), move || {
                let test = || -> Done {
                    let server = runtime.block_on(find())?;
                    match server.harness.unavailable() {
                        Some(why) => Ok(Err(why)),
                        None => test(&runtime, &server),
                    }
                };
                match test() {
                    Ok(Ok(())) => Ok(Completion::Completed),
                    Ok(Err(why)) if is_required(store.name) => Err(Failed::from(why)),
                    Ok(Err(why)) => Ok(Completion::ignored_with(why)),
                    Err(error) => Err(Failed::from(error.to_string())),
                }
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The stores that this build knows.
fn stores() -> Vec<(&'static Store, Find)> {
    vec![
        #[cfg(feature = "redis")]
        {
            use contract_suite::servers::redis::{REDIS, RedisHarness as H};
            (&REDIS, || Box::pin(async { server(&REDIS, H::from_environment, H::given, H::nowhere).await }))
        },
        #[cfg(feature = "etcd")]
        {
            use contract_suite::servers::etcd::{ETCD, EtcdHarness as H};
            (&ETCD, || Box::pin(async { server(&ETCD, H::from_environment, H::given, H::nowhere).await }))
        },
        #[cfg(feature = "postgres")]
        {
            use contract_suite::servers::postgres::{POSTGRES, PostgresHarness as H};
            (&POSTGRES, || {
                Box::pin(async { server(&POSTGRES, H::from_environment, H::given, H::nowhere).await })
            })
        },
    ]
}

/// A server, and what it needs to live.
struct Server {
    harness: Arc<dyn Harness>,
    url: String,
    _found: Box<dyn Send>,
}

#[cfg_attr(
    not(any(feature = "redis", feature = "etcd", feature = "postgres")),
    expect(dead_code, reason = "this build knows no store that is a server")
)]
async fn server<H: Harness, F: Future<Output = Result<H, ControlError>>>(
    store: &Store,
    from_environment: impl FnOnce() -> F,
    given: impl FnOnce(String) -> H,
    nowhere: impl FnOnce(String) -> H,
) -> Result<Server, ControlError> {
    let Found { harness, container } = find_server(store, from_environment, given, nowhere).await?;
    // What a worker process of the suite is told is what the command is told.
    let url = harness.worker_env().into_iter().find(|(name, _)| name == store.variable);
    let url = url.map(|(_, url)| url).unwrap_or_default();
    Ok(Server { harness: Arc::new(harness), url, _found: Box::new(container) })
}

/// A name that no other test has.
fn fresh_board(folder: &Folder) -> String {
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    format!("test-{}", name.trim_start_matches('.'))
}

/// The ledger, which lies in no host's folder: what happened, the task, its fence, the host.
fn ledger(shared: &Folder) -> Vec<(String, String, u64, String)> {
    let text = shared.read("ledger");
    text.lines()
        .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [what, task, fence, host] => (what.into(), task.into(), fence.parse().unwrap(), host.into()),
            _ => panic!("a line that nobody writes: {line:?}"),
        })
        .collect()
}

/// `coord` on a host, with what the commands of its tasks need to know.
fn on_host(
    host: &Folder,
    name: &str,
    shared: &Folder,
    server: &Server,
    board: &str,
    args: &[&str],
) -> Command {
    let mut command = host.command(args.iter().copied());
    command.args(["--board", board]).env("COORD_STORE", &server.url);
    command.env("HOST", name).env("SHARED", shared.path());
    command
}

fn start(host: &Folder, name: &str, mut command: Command) -> Process {
    let file = |stream: &str| fs::File::create(host.join(&format!("{name}.{stream}"))).unwrap();
    Process::of(command.stdout(file("out")).stderr(file("err")).spawn().unwrap())
}

/// The quickstart plan, whose tasks note themselves in the ledger. All but the first wait until both hosts have begun one of them, so that neither
/// works it off alone.
fn noted_quickstart(root: &Path) -> String {
    let text = fs::read_to_string(root.join("examples/quickstart.toml")).unwrap();
    let mut plan: toml::Table = toml::from_str(&text).unwrap();
    for task in plan["task"].as_array_mut().unwrap() {
        let task = task.as_table_mut().unwrap();
        let mut run = r#"printf 'begin %s %s %s\n' "$COORD_TASK" "$COORD_FENCE" "$HOST" >> "$SHARED/ledger""#
            .to_owned();
        if task.contains_key("deps") {
            run += r#"
: > "$SHARED/here-$HOST"
while [ ! -e "$SHARED/here-one" ] || [ ! -e "$SHARED/here-two" ]; do sleep 0.02; done"#;
        }
        let own = task["run"].as_str().unwrap();
        task.insert("run".into(), format!("{run}\n{own}").into());
    }
    toml::to_string(&plan).unwrap()
}

/// Copies the files of the repository, without what builds and runs leave in it.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (name, kind) = (entry.file_name(), entry.file_type().unwrap());
        if name == "target" || name == ".git" || name == ".coord" {
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(to.join(&name)).unwrap();
            copy(&entry.path(), &to.join(&name));
        } else if kind.is_file() {
            fs::copy(entry.path(), to.join(&name)).unwrap();
        }
    }
}

fn two_hosts(_: &Runtime, server: &Server) -> Done {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().into();
    let (shared, one, two) = (Folder::new(), Folder::new(), Folder::new());
    let (board, plan) = (fresh_board(&shared), noted_quickstart(&root));
    fs::create_dir(shared.join("target")).unwrap();
    for host in [&one, &two] {
        copy(&root, host.path());
        // Tasks read what others wrote: on hosts of their own they need a folder that both see.
        std::os::unix::fs::symlink(shared.join("target"), host.join("target")).unwrap();
        host.write("plan.toml", &plan);
    }
    let run = ["run", "plan.toml", "--workers", "2", "--format", "json"];
    let mut first = start(&one, "one", on_host(&one, "one", &shared, server, &board, &run));
    let mut second = start(&two, "two", on_host(&two, "two", &shared, server, &board, &run));
    assert_eq!(first.wait(), Some(0), "{}{}", one.read("one.err"), one.read("one.out"));
    assert_eq!(second.wait(), Some(0), "{}{}", two.read("two.err"), two.read("two.out"));

    let lines = ledger(&shared);
    let mut runs: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (_, task, fence, _) in &lines {
        runs.entry(task).or_default().push(*fence);
    }
    let document: serde_json::Value = serde_json::from_str(&two.read("two.out")).unwrap();
    let tasks = document["tasks"].as_array().unwrap();
    assert!(tasks.len() >= 20 && document["result"] == "done", "{document}");
    for task in tasks {
        // Run once, by its only claim.
        assert_eq!(runs.get(task["id"].as_str().unwrap()), Some(&vec![1]), "{lines:?}");
    }
    assert_eq!(runs.len(), tasks.len(), "{lines:?}");
    for host in ["one", "two"] {
        assert!(lines.iter().any(|(_, _, _, on)| on == host), "nothing ran on host {host}: {lines:?}");
    }
    assert!(shared.join("target/quickstart/report.md").metadata().unwrap().len() > 1_000);
    // Both see the same board.
    let check = |args: &[&str]| -> common::Ended {
        on_host(&two, "two", &shared, server, &board, args).output().unwrap().into()
    };
    assert!(check(&["run", "plan.toml"]).expect(0).out.contains("are done already, nothing to run"));
    assert!(check(&["check"]).expect(0).out.contains("nothing wrong"));
    let top = check(&["top", "--format", "json"]).expect(0).json();
    assert_eq!(
        (&top["counts"]["done"], &top["running"]),
        (&tasks.len().into(), &serde_json::json!([])),
        "{top}"
    );
    check(&["remove", "--all"]).expect(0);
    Ok(Ok(()))
}

/// How long the store stays away, in seconds; the environment variable `COORD_OUTAGE_SECONDS` makes it longer.
fn away() -> u64 {
    std::env::var("COORD_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// The store is killed in the middle of a run, and started again.
fn outage(runtime: &Runtime, server: &Server, lease: u64) -> Done {
    const TASKS: usize = 24;
    let Some(control) = server.harness.server() else {
        return Ok(Err(
            "it kills the server, which needs COORD_LOCAL_SERVERS=1 and no URL of a given one".into()
        ));
    };
    let (shared, one, two) = (Folder::new(), Folder::new(), Folder::new());
    let board = fresh_board(&shared);
    let plan: String = (0..TASKS)
        .map(|n| {
            let note = |what| {
                format!(
                    r#"printf '{what} %s %s %s\n' "$COORD_TASK" "$COORD_FENCE" "$HOST" >> "$SHARED/ledger""#
                )
            };
            format!("[[task]]\nid = 't{n}'\nrun = '''\n{}\nsleep 0.5\n{}\n'''\n", note("begin"), note("end"))
        })
        .collect();
    one.write("plan.toml", plan);
    let lease_text = format!("{lease}s");
    let run = ["run", "plan.toml", "--workers", "2", "--lease", &lease_text, "--format", "json"];
    let mut run = start(&one, "one", on_host(&one, "one", &shared, server, &board, &run));
    until("the first tasks run", || ledger(&shared).len() >= 3);
    let work = ["worker", "--until-done", "--name", "two", "--lease", &lease_text];
    let mut worker = start(&two, "two", on_host(&two, "two", &shared, server, &board, &work));
    until("both hosts work", || ledger(&shared).iter().any(|(_, _, _, host)| host == "two"));
    runtime.block_on(control.kill())?;
    pause(Duration::from_secs(away()));
    let said = |run: &Folder| format!("{}{}", run.read("one.err"), run.read("two.err"));
    assert!(run.is_running() && worker.is_running(), "{}{}", said(&one), said(&two));
    let begun = ledger(&shared).iter().filter(|(what, ..)| what == "begin").count();
    assert!(begun < TASKS, "the plan was over before the store died");
    runtime.block_on(control.restart())?;
    assert_eq!(run.wait(), Some(0), "{}", said(&one));
    assert_eq!(worker.wait(), Some(0), "{}", said(&two));

    let document: serde_json::Value = serde_json::from_str(&one.read("one.out")).unwrap();
    assert_eq!(document["counts"]["done"], TASKS, "{document}");
    assert_eq!(document["restarts"], 0, "a worker died of the outage: {}", said(&one));
    let lines = ledger(&shared);
    for task in document["tasks"].as_array().unwrap() {
        let (id, fence) = (task["id"].as_str().unwrap(), task["fence"].as_u64().unwrap());
        let of = |what: &str| -> Vec<u64> {
            lines.iter().filter(|line| line.0 == what && line.1 == id).map(|line| line.2).collect()
        };
        let (mut begun, ended) = (of("begin"), of("end"));
        if lease > away() {
            assert_eq!(
                (begun.len(), ended.len()),
                (1, 1),
                "{id} ran twice, and no lease was over: {lines:?}"
            );
        }
        // The claim that completed it is the last one, and its command ran once, to its end.
        assert_eq!(begun.iter().max(), Some(&fence), "{id}: {begun:?}");
        assert_eq!(ended.iter().filter(|end| **end == fence).count(), 1, "{id}: {ended:?}");
        let claims = begun.len();
        begun.sort_unstable();
        begun.dedup();
        assert_eq!(begun.len(), claims, "{id}: a claim ran its command twice: {lines:?}");
    }
    let checked: common::Ended =
        on_host(&two, "two", &shared, server, &board, &["check"]).output().unwrap().into();
    assert!(checked.expect(0).out.contains("nothing wrong"));
    Ok(Ok(()))
}

/// `coord once` on a host, in a namespace that no other test has.
fn once(
    host: &Folder,
    shared: &Folder,
    server: &Server,
    namespace: &str,
    args: &[&str],
    script: &str,
) -> Command {
    let mut command = host.command(["once", "--namespace", namespace]);
    command.args(args).args(["--", "sh", "-c", script]).env("COORD_STORE", &server.url);
    // What is said of an old release of a server is not what the command said.
    command.env("SHARED", shared.path()).env("COORD_LOG", "error");
    command
}

fn twenty_once(_: &Runtime, server: &Server) -> Done {
    let (shared, host) = (Folder::new(), Folder::new());
    let namespace = fresh_board(&shared);
    // Whoever does it waits until all have been started, and some more ask while it runs.
    let script = r#"echo "$COORD_FENCE" >> "$SHARED/ledger"; echo out; echo err >&2; while [ ! -e "$SHARED/go" ]; do sleep 0.02; done; sleep 1; exit 7"#;
    let mut racers: Vec<Process> = (0..20)
        .map(|n| {
            start(
                &host,
                &n.to_string(),
                once(&host, &shared, server, &namespace, &["--key", "report"], script),
            )
        })
        .collect();
    shared.write("go", "");
    for (n, racer) in racers.iter_mut().enumerate() {
        let said = |stream: &str| host.read(&format!("{n}.{stream}"));
        assert_eq!(racer.wait(), Some(7), "{n}: {}", said("err"));
        assert_eq!((said("out").as_str(), said("err").as_str()), ("out\n", "err\n"), "{n}");
    }
    assert_eq!(shared.read("ledger"), "1\n");
    Ok(Ok(()))
}

fn killed_once(_: &Runtime, server: &Server) -> Done {
    let (shared, one, two) = (Folder::new(), Folder::new(), Folder::new());
    let namespace = fresh_board(&shared);
    let note = r#"echo "$COORD_FENCE" >> "$SHARED/ledger""#;
    let args = ["--key", "charge", "--ttl", "2s"];
    let mut dying = start(
        &one,
        "one",
        once(&one, &shared, server, &namespace, &args, &format!("{note}; exec sleep 600")),
    );
    until("it runs", || !shared.read("ledger").is_empty());
    let pid = dying.id();
    dying.signal(common::Signal::Kill);
    dying.wait();
    let again =
        || -> common::Ended { once(&two, &shared, server, &namespace, &args, note).output().unwrap().into() };
    for _ in 0..2 {
        let told = again().expect(120);
        assert!(
            told.err.contains(&format!(":{pid} (fence 1)")) && told.err.contains("uncertain since"),
            "{}",
            told.err
        );
        assert!(told.err.contains("coord effect resolve 'charge' --episode "), "{}", told.err);
    }
    let effect = |args: &[&str]| -> common::Ended {
        let mut command = two.command(["effect"]);
        command.args(args).args(["--namespace", &namespace]).env("COORD_STORE", &server.url);
        command.output().unwrap().into()
    };
    let listed = effect(&["ls", "--uncertain", "--format", "json"]).expect(0).json();
    assert_eq!(listed["actions"][0]["key"], "charge");
    effect(&["resolve", "charge", "--not-applied", "--evidence", "the bank knows of none"]).expect(0);
    again().expect(0);
    assert_eq!(shared.read("ledger"), "1\n2\n");
    effect(&["purge", "--older-than", "0s"]).expect(0);
    effect(&["forget", "charge", "--resource", "charge"]).expect(0);
    Ok(Ok(()))
}
