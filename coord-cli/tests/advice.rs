//! What helps where a task is stuck: the advice that is given must work.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use common::{Folder, Signal, until};

#[test]
fn what_another_task_has_begun_because_of_is_run_anew_as_the_advice_says() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "
[[task]]
id = 'deploy'
run = 'test -e fixed'
[[task]]
id = 'roll back'
deps = [{ id = 'deploy', rule = 'failed' }]
run = 'echo back again'
",
    );
    folder.coord(["run", "plan.toml"]).expect(1);
    let again = folder.coord(["run", "plan.toml", "--retry"]).expect(1).err;
    let advice = "`coord remove 'deploy' --dependents`";
    assert!(again.contains(advice), "{again}");
    let refused = folder.coord(["reopen", "deploy"]).expect(1).err;
    assert!(refused.contains(advice), "{refused}");
    let explained = folder.coord(["explain", "deploy"]).expect(0).out;
    assert!(
        explained.contains("`coord remove 'deploy' --dependents`") && !explained.contains("reopen"),
        "{explained}"
    );

    folder.write("fixed", "");
    folder.coord(["remove", "deploy", "--dependents"]).expect(0);
    folder.coord(["run", "plan.toml"]).expect(0);
    let skipped = folder.coord(["explain", "roll back"]).expect(0).out;
    assert!(skipped.contains("deploy is done, and it was to be failed"), "{skipped}");
    // What it said in its earlier life it does not say now.
    let shown = folder.coord(["show", "roll back"]).expect(0).out;
    assert!(!shown.contains("output") && shown.contains("skipped"), "{shown}");
}

#[test]
fn explain_names_what_to_do_about_the_action_of_a_task() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "
[[task]]
id = 'unknown'
run = 'exit 7'
effect = { key = 'a key', uncertain_exit = [7] }
[[task]]
id = 'known'
run = 'test -e fixed'
effect = { key = 'another' }
",
    );
    folder.coord(["run", "plan.toml"]).expect(1);
    let unknown = folder.coord(["explain", "unknown"]).expect(0).out;
    assert!(unknown.contains("`coord effect show 'a key'`"), "{unknown}");
    let known = folder.coord(["explain", "known"]).expect(0).out;
    assert!(known.contains("`coord effect forget 'another'`"), "{known}");
    folder.write("fixed", "");
    folder.coord(["effect", "forget", "another"]).expect(0);
    folder.coord(["reopen", "known"]).expect(0);
    folder.coord(["worker", "--until-done"]).expect(0);
    folder.coord(["wait", "known"]).expect(0);
}

#[test]
fn whoever_waits_in_vain_is_told() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "[[task]]\nid='bad'\nrun='exit 1'\n[[task]]\nid='next'\ndeps=['bad']\nrun='true'\n",
    );
    folder.coord(["run", "plan.toml"]).expect(1);
    let mut wait = folder.start(["wait", "bad", "next"]);
    until("it is told", || folder.read("err").contains("next waits behind something that failed"));
    assert!(wait.is_running());
    folder.coord(["cancel", "next"]).expect(0);
    assert_eq!(wait.wait(), Some(1));
    assert_eq!(folder.read("err").matches("waits behind").count(), 1);
}

#[test]
fn an_edit_that_changed_something_is_no_refusal() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "[[task]]\nid='a'\nrun='true'\nlabels=['x']\n[[task]]\nid='b'\nrun='true'\nlabels=['y']\n",
    );
    folder.coord(["add", "plan.toml"]).expect(0);
    folder.coord(["cancel", "nope"]).expect(2);
    let said = folder.coord(["cancel", "a", "nope", "--format", "json"]).expect(1).json();
    assert_eq!(said["tasks"][0]["result"], "cancelled", "{said}");
    assert!(said["tasks"][1]["error"].is_string(), "{said}");
    // Labels have commas between them, or are given several times.
    let count = |args: &[&str]| {
        let listed = folder.coord(["ls", "--format", "json"].iter().chain(args).copied()).expect(0).json();
        listed["tasks"].as_array().unwrap().len()
    };
    assert_eq!(count(&["--any-label", "x,y"]), 2);
    assert_eq!(count(&["--label", "x,y"]), 0);
    assert_eq!(count(&["--no-label", "x", "--no-label", "y"]), 0);
}

#[test]
fn a_worker_stops_what_runs_when_its_grace_is_over() {
    let folder = Folder::new();
    folder.write("plan.toml", "[[task]]\nid='long'\nrun='echo $$ > pid; sleep 600'\n");
    folder.coord(["add", "plan.toml"]).expect(0);
    let mut worker = folder.start(["worker", "--grace", "100ms"]);
    until("the command runs", || folder.read("pid").ends_with('\n'));
    worker.signal(Signal::Int);
    assert_eq!(worker.wait(), Some(0), "{}", folder.read("err"));
    assert!(!common::is_alive(folder.read("pid").trim().parse().unwrap()));
    let shown = folder.coord(["show", "long", "--format", "json"]).expect(0).json();
    assert_eq!((shown["state"].as_str(), shown["attempts"].as_u64()), (Some("open"), Some(0)), "{shown}");
}

#[test]
fn reconcile_says_which_actions_it_looked_for() {
    let folder = Folder::new();
    let once = folder.coord([
        "once",
        "--key",
        "k",
        "--ttl",
        "1s",
        "--uncertain-exit",
        "9",
        "--",
        "sh",
        "-c",
        "exit 9",
    ]);
    assert_eq!(once.code, Some(120), "{once:?}");
    let early = folder.coord(["effect", "reconcile", "--settle", "1h", "--", "true"]).expect(0).out;
    assert!(early.starts_with("0 uncertain actions for at least 1h:"), "{early}");
}
