//! Several processes on one file, also killed ones. This program starts itself again as a worker, so it has no test harness.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this is a test")]

#[path = "common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use common::{Store, entry, increment, key, put};
use coord_core::Namespace;
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
    for _ in 0..times.parse::<u64>().unwrap() {
        println!("{}", increment(&handle, &key("hot")).await);
    }
}

struct Worker {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn spawn(store: &Store, times: u64) -> Worker {
        let job = format!("{}\n{}\n{times}", store.path().display(), store.namespace);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(WORKER, job)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
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
        let mut workers: Vec<Worker> = (0..6).map(|_| Worker::spawn(&store, 1)).collect();
        workers.iter_mut().for_each(Worker::go);
        for worker in workers {
            worker.finish();
        }
        let end = entry(&store.open().await, &key("hot")).await;
        assert_eq!((end.value().unwrap(), end.version().count()), (&"6".into(), 6));
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
