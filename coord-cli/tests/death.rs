//! Workers that are killed, stopped, or orphaned in the middle of a task.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use common::{Folder, Signal, is_alive, pause, send, until};

/// The processes that a process has started and that still run: the workers of a run; the guard and the command of a worker.
fn children(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name in parentheses may contain anything; after it come the state and the parent.
        let after: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_ascii_whitespace().collect();
        let is_child = after.get(1).and_then(|ppid| ppid.parse().ok()) == Some(parent);
        if is_child && after.first() != Some(&"Z") {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}

/// The ledger's lines: what happened, the task, the fence.
fn ledger(folder: &Folder) -> Vec<(String, String, u64)> {
    let text = folder.read("ledger");
    text.lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.into(), words.next()?.into(), words.next()?.parse().ok()?))
        })
        .collect()
}

#[test]
fn with_a_worker_killed_every_second_every_task_is_completed_once() {
    const TASKS: usize = 200;
    let folder = Folder::new();
    // Tasks wait for some of those before them, so that a lost one would be seen to hold up others.
    let plan: String = (0..TASKS)
        .map(|n| {
            let deps = if n >= 40 { format!("'t{}', 't{}'", n - 40, n - 23) } else { String::new() };
            format!(
                "[[task]]\nid='t{n}'\ndeps=[{deps}]\nrun='echo \"begin $COORD_TASK $COORD_FENCE\" >> ledger; sleep 0.4; echo \"end $COORD_TASK $COORD_FENCE\" >> ledger'\n"
            )
        })
        .collect();
    folder.write("plan.toml", plan);
    let args = ["run", "plan.toml", "--workers", "8", "--lease", "2s", "--format", "json"];
    let mut run = folder.start(args);
    until("all workers work", || children(run.id()).len() == 8 && ledger(&folder).len() >= 8);

    // One worker is only stopped, in the middle of a command, so that it comes back when its lease is over.
    let mut frozen = 0;
    until("a worker is stopped while it runs a command", || {
        frozen = children(run.id())[7];
        send(frozen, Signal::Stop);
        let runs = children(frozen).len() == 2;
        if !runs {
            send(frozen, Signal::Continue);
        }
        runs
    });
    let mut kills: u32 = 0;
    let mut victims = 0..;
    while run.is_running() {
        if kills == 5 {
            send(frozen, Signal::Continue);
        }
        let alive: Vec<u32> = children(run.id()).into_iter().filter(|pid| *pid != frozen).collect();
        if let Some(victim) = victims.next().and_then(|n: usize| alive.get(n % alive.len().max(1))) {
            send(*victim, Signal::Kill);
            kills += 1;
        }
        pause(Duration::from_secs(1));
    }
    assert_eq!(run.wait(), Some(0), "{}", folder.read("err"));
    assert!(kills >= 6, "the run was over after {kills} kills");

    let document: serde_json::Value = serde_json::from_str(&folder.read("out")).unwrap();
    assert_eq!(
        (document["counts"]["done"].as_u64(), document["counts"]["total"].as_u64()),
        (Some(200), Some(200))
    );
    assert!(document["restarts"].as_u64().unwrap() >= 6, "{}", document["restarts"]);
    let lines = ledger(&folder);
    let mut fences: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (what, task, fence) in &lines {
        if what == "begin" {
            fences.entry(task).or_default().push(*fence);
        }
    }
    for task in document["tasks"].as_array().unwrap() {
        let id = task["id"].as_str().unwrap();
        let fence = task["fence"].as_u64().unwrap();
        assert_eq!(
            (task["state"].as_str(), task["ended"]["exit"].as_i64()),
            (Some("done"), Some(0)),
            "{task}"
        );
        // The claim that completed the task is the last one, and its command ran once, and to its end.
        let begun = &fences[id];
        assert_eq!(begun.iter().max(), Some(&fence), "{id}: {begun:?}");
        let mut once = begun.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), begun.len(), "{id}: a claim ran its command twice: {begun:?}");
        let ends: Vec<u64> = lines
            .iter()
            .filter(|(what, of, _)| what == "end" && of == id)
            .map(|(_, _, fence)| *fence)
            .collect();
        assert_eq!(ends.iter().filter(|end| **end == fence).count(), 1, "{id}: {ends:?}");
    }
    let taken_over = fences.values().filter(|fences| fences.len() > 1).count();
    assert!(taken_over >= 2, "only {taken_over} tasks were taken over");
    // The one that came back was refused: it lost its task, and nothing that it said was taken.
    assert!(folder.read("err").contains("lease lost"), "{}", folder.read("err"));
    assert!(folder.coord(["check"]).expect(0).out.contains("nothing wrong"));
}

#[test]
fn the_command_of_a_killed_worker_is_killed_and_its_task_is_taken_over() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "[[task]]\nid='t'\nrun='echo $$ >> pids; sleep 600 & echo $! >> pids; [ $COORD_FENCE -gt 1 ] || wait'\n",
    );
    let mut run = folder.start(["run", "plan.toml", "--lease", "2s"]);
    let pids = || -> Vec<u32> { folder.read("pids").lines().filter_map(|pid| pid.parse().ok()).collect() };
    until("the command runs", || pids().len() == 2);
    let [shell, sleeper] = pids()[..] else { panic!("{:?}", pids()) };
    send(children(run.id())[0], Signal::Kill);
    // At once, and not when the lease is over.
    until("the whole process group is dead", || !is_alive(shell) && !is_alive(sleeper));
    assert_eq!(pids().len(), 2, "the task was taken over before the lease was over");
    assert_eq!(run.wait(), Some(0), "{}", folder.read("err"));
    assert!(
        folder.read("err").contains("was killed by signal 9 while it ran t (fence 1)"),
        "{}",
        folder.read("err")
    );
    let shown = folder.coord(["show", "t", "--format", "json"]).expect(0).json();
    assert_eq!((shown["state"].as_str(), shown["fence"].as_u64()), (Some("done"), Some(2)));
}

#[test]
fn a_stopped_worker_loses_its_command_before_its_task_is_taken_over() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "[[task]]\nid='t'\nrun='if [ $COORD_FENCE -gt 1 ]; then ps -o pid= -p $(cat first) > seen; exit 0; fi; echo $$ > first; while :; do sleep 0.05; done'\n",
    );
    folder.coord(["add", "plan.toml"]).expect(0);
    let mut first = folder.start_as("1", ["worker", "--max-tasks", "1", "--lease", "2s", "--format", "json"]);
    until("the command runs", || !folder.read("first").is_empty());
    first.signal(Signal::Stop);
    let mut second = folder.start_as("2", ["worker", "--until-done", "--lease", "2s"]);
    assert_eq!(second.wait(), Some(0), "{}", folder.read("2err"));
    let command: u32 = folder.read("first").trim().parse().unwrap();
    assert!(!is_alive(command));
    first.signal(Signal::Continue);
    assert_eq!(first.wait(), Some(0), "{}", folder.read("1err"));
    let tally: serde_json::Value = serde_json::from_str(&folder.read("1out")).unwrap();
    assert_eq!(
        (tally["done"].as_u64(), tally["failed"].as_u64(), tally["lost"].as_u64()),
        (Some(0), Some(0), Some(1))
    );
    let shown = folder.coord(["show", "t", "--format", "json"]).expect(0).json();
    assert_eq!((shown["state"].as_str(), shown["ended"]["exit"].as_i64()), (Some("done"), Some(0)));
    assert_eq!(shown["fence"], 2);
}

#[test]
fn a_command_that_was_killed_at_the_end_of_its_lease_has_not_failed() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "[[task]]\nid='t'\nrun='[ $COORD_FENCE -eq 1 ] || exit 0; echo $$ > pid; while :; do sleep 0.05; done'\n",
    );
    folder.coord(["add", "plan.toml"]).expect(0);
    let mut worker = folder.start(["worker", "--max-tasks", "1", "--lease", "2s", "--format", "json"]);
    until("the command runs", || !folder.read("pid").is_empty());
    worker.signal(Signal::Stop);
    let command: u32 = folder.read("pid").trim().parse().unwrap();
    // Nobody takes the task over, so the store would take whatever the worker says of it.
    until("its guard has killed it", || !is_alive(command));
    worker.signal(Signal::Continue);
    assert_eq!(worker.wait(), Some(0), "{}", folder.read("err"));
    let tally: serde_json::Value = serde_json::from_str(&folder.read("out")).unwrap();
    assert_eq!((tally["failed"].as_u64(), tally["lost"].as_u64()), (Some(0), Some(1)), "{tally}");
    folder.coord(["run", "plan.toml"]).expect(0);
}

#[test]
fn if_the_run_itself_is_killed_its_workers_stop_and_give_back_what_they_hold() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "[[task]]\nid='t'\nrun='echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done'\n",
    );
    let mut run = folder.start(["run", "plan.toml"]);
    until("the command runs", || !folder.read("pid").is_empty());
    let worker = children(run.id())[0];
    run.signal(Signal::Kill);
    run.wait();
    let command: u32 = folder.read("pid").trim().parse().unwrap();
    until("the worker is gone", || !is_alive(worker));
    assert!(!is_alive(command));
    assert_eq!(folder.count("ready"), 1);
    folder.write("go", "");
    folder.coord(["run", "plan.toml"]).expect(0);
}

#[test]
fn a_run_says_whom_it_waits_for() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "[[task]]\nid='t'\nrun='echo $COORD_FENCE >> begun; [ $COORD_FENCE -gt 1 ] || sleep 600'\n",
    );
    folder.coord(["add", "plan.toml"]).expect(0);
    let mut worker = folder.start_as("worker", ["worker", "--name", "elsewhere", "--lease", "3s"]);
    until("the command runs", || !folder.read("begun").is_empty());
    worker.signal(Signal::Kill);
    worker.wait();
    let ran = folder.coord(["run", "plan.toml"]).expect(0);
    assert!(ran.err.contains("held by other workers: 1 task, such as t by elsewhere until "), "{}", ran.err);
    assert_eq!(folder.read("begun"), "1\n2\n");
}

#[test]
fn workers_that_cannot_live_end_the_run_with_a_reason() {
    let folder = Folder::new();
    folder.write("plan.toml", "[[task]]\nid='t'\nrun='true'\n");
    // A worker without room for its output fails its task, and says why.
    folder.write("logs", "no folder");
    let failed = folder.coord(["run", "plan.toml", "--logs", "logs"]).expect(1);
    assert!(failed.out.contains("its output cannot be kept"), "{}", failed.out);
}
