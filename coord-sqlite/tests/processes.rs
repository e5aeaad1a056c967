//! Several processes on one file, also killed ones. This program starts itself again as a worker, so it has no test harness.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this is a test")]

#[path = "common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use common::{Store, entry, increment, key, put};
use coord_core::{Backend, ErrorKind, Mutation, Namespace, Txn};
use coord_sqlite::{SqliteBackend, SqliteConfig};

const WORKER: &str = "COORD_SQLITE_TEST_WORKER";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    if let Ok(job) = std::env::var(WORKER) {
        work(&job).await;
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|argument| argument == "--list") {
        println!("several_processes: test");
        return ExitCode::SUCCESS;
    }
    processes_that_open_a_new_file_at_once_share_it().await;
    println!("test processes_that_open_a_new_file_at_once_share_it ... ok");
    processes_on_a_hot_key_lose_no_update_and_starve_nobody().await;
    println!("test processes_on_a_hot_key_lose_no_update_and_starve_nobody ... ok");
    a_killed_process_leaves_nothing_locked_and_nothing_lost().await;
    println!("test a_killed_process_leaves_nothing_locked_and_nothing_lost ... ok");
    a_full_disk_loses_nothing_that_was_acknowledged().await;
    println!("test a_full_disk_loses_nothing_that_was_acknowledged ... ok");
    ExitCode::SUCCESS
}

/// What a worker does: `path namespace times`. It says when it is ready, waits for a line, and then says each increment that it was
/// told is applied.
async fn work(job: &str) {
    let [path, namespace, times] = job.split('\n').collect::<Vec<_>>()[..] else { panic!("a bad job") };
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let namespace = Namespace::new(namespace).unwrap();
    let handle = SqliteBackend::open(&SqliteConfig::new(path), &namespace).await.unwrap();
    if times == "until the disk is full" {
        return fill(&handle).await;
    }
    for _ in 0..times.parse::<u64>().unwrap() {
        println!("{}", increment(&handle, &key("hot")).await);
    }
}

/// Writes until it is told that the disk is full, and then some more.
async fn fill(handle: &SqliteBackend) {
    let mut errors = 0;
    for n in 0..10_000 {
        let value = format!("{n:05}").repeat(20_000);
        let both = [Mutation::put(key("a"), value.clone()), Mutation::put(key("b"), value)];
        match handle.txn(&Txn::new([], both).unwrap()).await {
            Ok(outcome) => {
                assert!(outcome.is_applied());
                println!("{n}");
            }
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate),
                    "{error:?}"
                );
                errors += 1;
                // Reading needs no room.
                let a = entry(handle, &key("a")).await;
                let b = entry(handle, &key("b")).await;
                assert_eq!(a.value(), b.value());
                println!("error");
            }
        }
        if errors == 5 {
            return;
        }
    }
}

struct Worker {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn spawn(store: &Store, times: u64) -> Worker {
        Worker::start(Command::new(std::env::current_exe().unwrap()), store, &times.to_string())
    }

    fn start(mut command: Command, store: &Store, times: &str) -> Worker {
        let job = format!("{}\n{}\n{times}", store.path().display(), store.namespace);
        let mut child =
            command.env(WORKER, job).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Worker { child, lines }
    }

    fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }

    fn finish(mut self) -> Vec<String> {
        let lines = self.lines.map(|line| line.unwrap()).collect();
        assert!(self.child.wait().unwrap().success());
        lines
    }
}

async fn processes_that_open_a_new_file_at_once_share_it() {
    for _ in 0..5 {
        let store = Store::new();
        let mut workers: Vec<Worker> = (0..12).map(|_| Worker::spawn(&store, 1)).collect();
        workers.iter_mut().for_each(Worker::go);
        for worker in workers {
            worker.finish();
        }
        let end = entry(&store.open().await, &key("hot")).await;
        assert_eq!((end.value().unwrap(), end.version().count()), (&"12".into(), 12));
    }
}

async fn processes_on_a_hot_key_lose_no_update_and_starve_nobody() {
    const WORKERS: u64 = 6;
    const TIMES: u64 = 50;
    let store = Store::new();
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| Worker::spawn(&store, TIMES)).collect();
    workers.iter_mut().for_each(Worker::go);
    for worker in workers {
        assert_eq!(worker.finish().len() as u64, TIMES);
    }
    let end = entry(&store.open().await, &key("hot")).await;
    assert_eq!(end.value().unwrap(), (WORKERS * TIMES).to_string().as_bytes());
    assert_eq!(end.version().count(), WORKERS * TIMES);
}

async fn a_killed_process_leaves_nothing_locked_and_nothing_lost() {
    let store = Store::new();
    let handle = store.open().await;
    let mut acknowledged = 0;
    for round in 0..12 {
        let mut worker = Worker::spawn(&store, u64::MAX);
        worker.go();
        // Each round lets it live a little longer.
        for _ in 0..=round * 3 {
            acknowledged = worker.lines.next().unwrap().unwrap().parse().unwrap();
        }
        worker.child.kill().unwrap();
        worker.child.wait().unwrap();
        // What it said before it died counts as well.
        for line in worker.lines {
            acknowledged = line.unwrap().parse().unwrap();
        }
        let found = entry(&handle, &key("hot")).await;
        let number: u64 = std::str::from_utf8(found.value().unwrap()).unwrap().parse().unwrap();
        assert_eq!(number, found.version().count());
        assert!(number == acknowledged || number == acknowledged + 1, "{number} after {acknowledged}");
        // An old handle and a new one write at once.
        put(&handle, &key("other"), "v").await;
        put(&store.open().await, &key("other"), "v").await;
    }
}

async fn a_full_disk_loses_nothing_that_was_acknowledged() {
    let store = Store::new();
    let mut shell = Command::new("sh");
    // A limit on the size of a file, in units of 512 or 1,024 bytes, is as good as a full disk. Writing beyond it is an error and no
    // signal.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 8000; exec \"$0\""]).arg(std::env::current_exe().unwrap());
    let mut worker = Worker::start(shell, &store, "until the disk is full");
    worker.go();
    let lines = worker.finish();
    let acknowledged: Vec<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
    let errors = lines.iter().filter(|line| *line == "error").count();
    assert!(errors > 0 && !acknowledged.is_empty(), "{lines:?}");
    let last = acknowledged.last().unwrap();
    let handle = store.open().await;
    let (a, b) = (entry(&handle, &key("a")).await, entry(&handle, &key("b")).await);
    assert_eq!((a.value(), a.version().count()), (b.value(), b.version().count()));
    // What was answered with an error may have happened, what was acknowledged has.
    let found: u64 = std::str::from_utf8(&a.value().unwrap()[..5]).unwrap().parse().unwrap();
    assert!(found >= *last, "{found} after {last}");
    assert!(a.version().count() >= acknowledged.len() as u64);
    put(&handle, &key("a"), "there is room again").await;
}
