//! `coord run`: to the end, again, after failures, after Ctrl-C.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use std::path::Path;

use common::{Folder, Signal, is_alive, until};

#[test]
fn the_quickstart_runs_to_its_end_and_says_so_the_second_time() {
    let folder = Folder::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let store = format!("sqlite:{}", folder.join("coord.db").display());
    let run = |format: &str| -> common::Ended {
        let args =
            ["run", "examples/quickstart.toml", "--workers", "4", "--store", &store, "--format", format];
        folder.command(args).current_dir(root).output().unwrap().into()
    };
    let first = run("json").expect(0).json();
    let tasks = first["tasks"].as_array().unwrap();
    assert!(tasks.len() >= 20, "{}", tasks.len());
    assert!(tasks.iter().all(|task| task["state"] == "done" && task["ended"]["exit"] == 0), "{first}");
    assert_eq!((first["result"].as_str(), first["already_done"].as_bool()), (Some("done"), Some(false)));
    assert!(first["seconds"].as_f64().unwrap() < 30.0);
    assert!(root.join("target/quickstart/report.md").metadata().unwrap().len() > 1_000);
    let again = run("text").expect(0);
    assert_eq!(
        again.out,
        format!("board quickstart: all {} tasks are done already, nothing to run\n", tasks.len())
    );
    let again = run("json").expect(0).json();
    assert_eq!((again["already_done"].as_bool(), again["workers"].as_u64()), (Some(true), Some(0)));
}

#[test]
fn a_command_gets_what_its_definition_says() {
    let folder = Folder::new();
    std::fs::create_dir(folder.join("sub")).unwrap();
    folder.write(
        "plan.toml",
        r#"
[plan]
env = { FROM = "plan", BOTH = "plan" }

[[task]]
id = "a/b: \"c\" é"
cwd = "sub"
env = { BOTH = "task" }
run = '''
printf '%s\n' "$COORD_TASK" "$COORD_FENCE" "$COORD_BOARD" "$FROM" "$BOTH" > said
cat >> said
coord_ls=$(COORD_LOG=error "$COORD" ls --format json)
case $coord_ls in *'"standing":"running"'*) echo inside >> said ;; esac
'''
"#,
    );
    let mut command = folder.command(["run", "plan.toml"]);
    let ended: common::Ended = command.env("COORD", env!("CARGO_BIN_EXE_coord")).output().unwrap().into();
    ended.expect(0);
    // Standard input is empty, and `coord` inside a command finds the store and the board.
    assert_eq!(folder.read("sub/said"), "a/b: \"c\" é\n1\nplan\nplan\ntask\ninside\n");
}

#[test]
fn failures_are_shown_block_what_needs_them_and_run_again_when_asked() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "
[[task]]
id = 'fine'
run = 'echo fine'
[[task]]
id = 'broken'
run = 'seq 1 100; echo the reason >&2; test -e repaired'
[[task]]
id = 'slow'
timeout = '200ms'
run = 'test -e repaired && exit; sleep 600 & echo $! > sleeper; trap \"\" TERM; while :; do sleep 1; done'
[[task]]
id = 'lost'
cwd = 'sub'
run = 'true'
[[task]]
id = 'last'
run = 'echo last'
deps = ['broken', 'fine']
",
    );
    let failed = folder.coord(["run", "plan.toml", "--tail", "3"]).expect(1);
    for part in [
        "--- failed broken: exit 1 after",
        "    99\n    100\n    the reason\n    (the whole output: .coord/logs/plan/broken/1.log)",
        "--- failed slow: ran out of time after",
        "--- failed lost: it cannot be started: cwd \"sub\" is no folder",
        "--- not run, because of that: last",
        "(of 5; failed: broken, slow, lost) in ",
        "`coord run plan.toml --retry` runs what failed again",
    ] {
        assert!(failed.out.contains(part), "no {part:?} in {}", failed.out);
    }
    assert!(!failed.out.contains("\n    98\n"));
    // What the command left behind in its process group is gone.
    let sleeper: u32 = folder.read("sleeper").trim().parse().unwrap();
    until("the process in the background is killed", || !is_alive(sleeper));

    let shown = folder.coord(["show", "slow", "--format", "json"]).expect(0).json();
    assert_eq!((shown["ended"]["timeout"].as_bool(), shown["state"].as_str()), (Some(true), Some("failed")));

    // Once more: nothing is run, and it says what to do.
    let again = folder.coord(["run", "plan.toml", "--format", "json"]).expect(1);
    assert!(
        again.err.contains("failed or cancelled earlier, and still so: 3 tasks (broken, slow, lost)"),
        "{}",
        again.err
    );
    let document = again.json();
    assert_eq!((document["result"].as_str(), document["workers"].as_u64()), (Some("failed"), Some(0)));
    let broken = document["tasks"].as_array().unwrap().iter().find(|task| task["id"] == "broken").unwrap();
    assert_eq!(broken["output"].as_array().unwrap().last().unwrap(), "the reason");

    std::fs::create_dir(folder.join("sub")).unwrap();
    folder.write("repaired", "");
    let retried = folder.coord(["run", "plan.toml", "--retry", "--format", "json"]).expect(0).json();
    assert_eq!(retried["counts"]["done"], 5);
    // What was done was not done again.
    let fence = |id: &str| {
        let tasks = retried["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["id"] == id).unwrap()["fence"].as_u64()
    };
    assert_eq!((fence("fine"), fence("broken"), fence("last")), (Some(1), Some(2), Some(1)));
}

/// Two tasks that run until a file is there, and two that are never begun before.
fn gated(folder: &Folder) {
    let task = |id: &str, deps: &str| {
        format!(
            "[[task]]\nid='{id}'\ndeps=[{deps}]\nrun='echo $$ > {id}.pid; echo {id} >> ledger; while [ ! -e go ]; do sleep 0.05; done'\n"
        )
    };
    let plan = [task("a", ""), task("b", ""), task("c", "'a'"), task("d", "'b'")].concat();
    folder.write("plan.toml", plan);
}

fn ledger(folder: &Folder) -> Vec<String> {
    let mut lines: Vec<String> = folder.read("ledger").lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn pid(folder: &Folder, task: &str) -> u32 {
    folder.read(&format!("{task}.pid")).trim().parse().unwrap()
}

#[test]
fn ctrl_c_lets_what_runs_finish_and_the_next_run_goes_on() {
    let folder = Folder::new();
    gated(&folder);
    let mut run = folder.start(["run", "plan.toml", "--workers", "2"]);
    until("two tasks run", || ledger(&folder) == ["a", "b"]);
    run.signal(Signal::Int);
    until("the signal is answered", || folder.read("err").contains("no new tasks are started"));
    assert!(run.is_running());
    folder.write("go", "");
    assert_eq!(run.wait(), Some(130));
    assert_eq!(ledger(&folder), ["a", "b"]);
    assert_eq!((folder.count("done"), folder.count("ready")), (2, 2));
    assert!(folder.read("out").contains("`coord run plan.toml` goes on"), "{}", folder.read("out"));
    folder.coord(["run", "plan.toml"]).expect(0);
    assert_eq!(ledger(&folder), ["a", "b", "c", "d"]);
}

#[test]
fn ctrl_c_twice_stops_what_runs_and_gives_it_back() {
    let folder = Folder::new();
    gated(&folder);
    let mut run = folder.start(["run", "plan.toml", "--workers", "2", "--format", "json"]);
    until("two tasks run", || ledger(&folder) == ["a", "b"]);
    run.signal(Signal::Int);
    until("the signal is answered", || folder.read("err").contains("no new tasks are started"));
    run.signal(Signal::Int);
    assert_eq!(run.wait(), Some(130));
    assert!(!is_alive(pid(&folder, "a")) && !is_alive(pid(&folder, "b")));
    let document: serde_json::Value = serde_json::from_str(&folder.read("out")).unwrap();
    assert_eq!(document["result"], "interrupted");
    // Nobody has to wait for the leases.
    assert_eq!((folder.count("ready"), folder.count("waiting")), (2, 2));
    folder.write("go", "");
    folder.coord(["run", "plan.toml"]).expect(0);
}

#[test]
fn after_the_grace_what_still_runs_is_given_back() {
    let folder = Folder::new();
    gated(&folder);
    let mut run = folder.start(["run", "plan.toml", "--workers", "2", "--grace", "100ms"]);
    until("two tasks run", || ledger(&folder) == ["a", "b"]);
    run.signal(Signal::Int);
    assert_eq!(run.wait(), Some(130));
    assert_eq!(folder.count("ready"), 2);
    assert!(!is_alive(pid(&folder, "a")) && !is_alive(pid(&folder, "b")));
}

#[test]
fn two_runs_of_one_plan_share_the_work() {
    let folder = Folder::new();
    let tasks: String = (0..30)
        .map(|n| format!("[[task]]\nid='t{n}'\nrun='echo $COORD_TASK >> ledger; sleep 0.05'\n"))
        .collect();
    folder.write("plan.toml", tasks);
    let mut first = folder.start_as("1", ["run", "plan.toml", "--workers", "2"]);
    let mut second = folder.start_as("2", ["run", "plan.toml", "--workers", "2"]);
    assert_eq!((first.wait(), second.wait()), (Some(0), Some(0)));
    let lines = ledger(&folder);
    assert_eq!(lines.len(), 30, "{lines:?}");
}

#[test]
fn a_worker_by_itself_works_off_what_was_added() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "[[task]]\nid='a'\nrun='true'\nlabels=['x']\n[[task]]\nid='b'\nrun='true'\ndeps=['a']\nlabels=['y']\n[[task]]\nid='c'\nrun='exit 4'\nlabels=['x']\n",
    );
    folder.coord(["add", "plan.toml"]).expect(0);
    let worked =
        folder.coord(["worker", "--label", "x", "--until-done", "--format", "json"]).expect(1).json();
    assert_eq!((worked["done"].as_u64(), worked["failed"].as_u64()), (Some(1), Some(1)));
    assert_eq!((folder.count("ready"), folder.count("failed")), (1, 1));
    let worked = folder.coord(["worker", "--until-done"]).expect(0);
    assert!(worked.out.contains("1 claimed, 1 done") && worked.err.contains("claimed b"), "{worked:?}");
}

#[test]
fn a_task_with_attempts_left_is_tried_again_after_a_rest_and_the_run_waits_for_it() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "
[plan]
retry = { attempts = 3, backoff = '600ms' }
[[task]]
id = 'third'
run = 'echo x >> tries; test $(wc -l < tries) = 3'
[[task]]
id = 'after'
deps = ['third']
run = 'true'
[[task]]
id = 'poison'
retry = { attempts = 2, backoff = '1ms', max_backoff = '1ms' }
run = 'echo x >> poison; exit 7'
",
    );
    let run = folder.coord(["run", "plan.toml", "--workers", "2", "--format", "json"]).expect(1);
    let document = run.json();
    let of = |id: &str| {
        document["tasks"].as_array().unwrap().iter().find(|task| task["id"] == id).unwrap().clone()
    };
    let (third, poison) = (of("third"), of("poison"));
    assert_eq!((third["state"].as_str(), third["attempts"].as_u64()), (Some("done"), Some(3)), "{third}");
    assert_eq!(
        (third["attempts_left"].as_u64(), third["retry"]["backoff_ms"].as_u64()),
        (Some(0), Some(600))
    );
    assert_eq!(of("after")["state"], "done");
    assert_eq!(
        (poison["state"].as_str(), poison["attempts"].as_u64()),
        (Some("failed"), Some(2)),
        "{poison}"
    );
    assert_eq!(folder.read("poison").lines().count(), 2);
    assert_eq!(document["retried"], 2);
    // It rested: at least 300 ms, and then 600.
    assert!(document["seconds"].as_f64().unwrap() > 0.9, "{}", document["seconds"]);
    assert!(run.err.contains("tried again after a rest"), "{}", run.err);
    assert!(run.err.contains("at rest: 1 task; the next one is third"), "{}", run.err);
    let shown = folder.coord(["show", "poison"]).expect(0);
    assert!(shown.out.contains("attempts    2 of 2\n"), "{}", shown.out);

    // A worker alone counts an attempt that has failed apart from a task that has.
    folder.write("two.toml", "[[task]]\nid='t'\nretry={attempts=2, backoff='0s'}\nrun='mkdir twice'\n[[task]]\nid='u'\nretry={attempts=2, backoff='0s'}\nrun='test -e again || { touch again; exit 1; }'\n");
    folder.coord(["add", "two.toml"]).expect(0);
    let worked = folder
        .coord(["worker", "--board", "two", "--until-done", "--concurrency", "2", "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(
        (worked["done"].as_u64(), worked["again"].as_u64(), worked["failed"].as_u64()),
        (Some(2), Some(1), Some(0))
    );
}

#[test]
fn a_worker_runs_as_many_tasks_at_a_time_as_it_is_told_to() {
    let folder = Folder::new();
    // Each of them waits for the others to begin.
    let plan: String = (0..3)
        .map(|n| format!("[[task]]\nid='t{n}'\nlabels=['all', 'n{n}']\ntimeout='20s'\nrun='touch b{n}; until test -e b0 -a -e b1 -a -e b2; do sleep 0.05; done'\n"))
        .collect();
    folder.write("plan.toml", plan + "[[task]]\nid='not'\nlabels=['all', 'no']\nrun='true'\n");
    folder.coord(["add", "plan.toml"]).expect(0);
    let args =
        ["worker", "-j", "3", "--until-done", "--any-label", "all", "--no-label", "no", "--format", "json"];
    let worked = folder.coord(args).expect(0).json();
    assert_eq!((worked["claimed"].as_u64(), worked["done"].as_u64()), (Some(3), Some(3)));
    assert_eq!(
        folder.coord(["ls", "--state", "ready", "--format", "json"]).expect(0).json()["tasks"][0]["id"],
        "not"
    );
}
