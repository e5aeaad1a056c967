//! Looking at a board: why a task does not run, waiting for what comes, and lists in pages.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use std::time::Duration;

use common::{Folder, Signal, until};

fn board(folder: &Folder) {
    folder.write(
        "plan.toml",
        "
[[task]]
id = 'fails'
labels = ['a', 'b']
run = 'exit 3'
[[task]]
id = 'middle'
labels = ['b']
deps = ['fails']
run = 'true'
[[task]]
id = 'last'
deps = ['middle', 'fine']
run = 'true'
[[task]]
id = 'fine'
labels = ['a']
run = 'true'
[[task]]
id = 'later'
not_before = 2100-01-01T00:00:00Z
run = 'true'
",
    );
    folder.coord(["add", "plan.toml"]).expect(0);
}

#[test]
fn explain_says_why_a_task_does_not_run_and_what_helps() {
    let folder = Folder::new();
    board(&folder);
    let explain = |id: &str| folder.coord(["explain", id]).expect(0).out;
    let json = |id: &str| folder.coord(["explain", id, "--format", "json"]).expect(0).json();
    assert!(explain("fine").starts_with("fine can be claimed: nobody holds it"), "{}", explain("fine"));
    assert_eq!(
        (json("fine")["claimable"].as_bool(), json("fine")["why"].as_str()),
        (Some(true), Some("claimable"))
    );
    assert!(
        explain("later").contains("later may not begin yet, until 2100-01-01T00:00:00"),
        "{}",
        explain("later")
    );
    assert_eq!(json("later")["until"], "2100-01-01T00:00:00.000000Z");
    let last = explain("last");
    assert!(last.starts_with("last waits for 2 of the 2 tasks that it depends on:\n"), "{last}");
    // What it waits for in the end is not what it depends on.
    assert!(last.contains("  fails: ready, and nobody has claimed it yet"), "{last}");

    folder.coord(["worker", "--max-tasks", "2"]).expect(1);
    let last = json("last");
    assert_eq!(
        (last["why"].as_str(), last["pending"][0].as_str()),
        (Some("blocked"), Some("middle")),
        "{last}"
    );
    assert_eq!(
        (last["causes"][0]["id"].as_str(), last["causes"][0]["why"].as_str()),
        (Some("fails"), Some("failed"))
    );
    assert_eq!(last["task"]["standing"], "blocked");
    assert!(last["help"][0].as_str().unwrap().contains("coord reopen 'fails'"), "{last}");
    assert!(explain("fails").contains("fails has ended: failed: exit 3"), "{}", explain("fails"));
    assert!(explain("fine").starts_with("fine is done: exit 0"), "{}", explain("fine"));
    folder.coord(["explain", "unknown"]).expect(2);

    folder.write("held.toml", "[[task]]\nid='held'\nrun='sleep 60'\n");
    folder.coord(["add", "held.toml"]).expect(0);
    let worker = folder.start(["worker", "--board", "held", "--name", "w7"]);
    until("it is held", || {
        folder.coord(["explain", "held", "--board", "held"]).out.contains("held by w7 under fence 1")
    });
    let held = folder.coord(["explain", "held", "--board", "held"]).expect(0).out;
    assert!(held.contains("`coord release 'held' --fence 1` frees it now"), "{held}");
    let listed = |owner: &str| {
        let args = ["ls", "--board", "held", "--owner", owner, "--format", "json"];
        folder.coord(args).expect(0).json()["tasks"].as_array().unwrap().len()
    };
    assert_eq!((listed("w7"), listed("w8")), (1, 0));
    worker.signal(Signal::Kill);
}

#[test]
fn explain_says_what_stays_as_it_is_and_what_never_begins() {
    let folder = Folder::new();
    folder.write(
        "plan.toml",
        "
[[task]]
id = 'build'
run = 'exit 3'
[[task]]
id = 'deploy'
deps = ['build']
run = 'true'
[[task]]
id = 'clean up'
deps = [{ id = 'build', rule = 'finished' }]
run = 'true'
[[task]]
id = 'last'
labels = ['never']
run = 'true'
[[task]]
id = 'repair'
deps = [{ id = 'clean up', rule = 'failed' }, 'last']
run = 'true'
",
    );
    folder.coord(["add", "plan.toml"]).expect(0);
    let explain = |id: &str| folder.coord(["explain", id]).expect(0).out;
    let json = |id: &str| folder.coord(["explain", id, "--format", "json"]).expect(0).json();
    folder.coord(["worker", "--max-tasks", "1"]).expect(1);
    assert!(explain("build").contains("`coord reopen 'build'` opens it again"), "{}", explain("build"));
    folder.coord(["worker", "--max-tasks", "1"]).expect(0);

    // What has begun because it failed keeps it from being reopened.
    let build = explain("build");
    assert!(build.contains("it stays so, for clean up has begun because of that"), "{build}");
    assert!(
        build.contains("`coord remove 'build' --dependents`") && !build.contains("coord reopen"),
        "{build}"
    );
    assert_eq!(
        (json("build")["why"].as_str(), json("build")["task"]["standing"].as_str()),
        (Some("pinned"), Some("failed"))
    );
    let deploy = explain("deploy");
    assert!(
        deploy.contains("build: failed, and stays so, for clean up has begun because of that"),
        "{deploy}"
    );
    assert!(deploy.contains("build cannot be reopened") && !deploy.contains("coord reopen"), "{deploy}");
    assert_eq!(json("deploy")["task"]["standing"], "blocked");

    // Its one dependency can never fail any more, and so it is not blocked: it will be skipped.
    let repair = explain("repair");
    assert!(repair.contains("  clean up can never come to what is wanted"), "{repair}");
    assert!(repair.contains("so it never begins: it is skipped once the others have ended"), "{repair}");
    assert!(!repair.contains("coord reopen"), "{repair}");
    assert_eq!(
        (json("repair")["why"].as_str(), json("repair")["task"]["standing"].as_str()),
        (Some("blocked"), Some("waiting"))
    );
}

#[test]
fn wait_ends_when_it_has_come_and_says_by_its_exit_code_what_has() {
    let folder = Folder::new();
    board(&folder);
    folder.coord(["wait", "fine", "--timeout", "0s"]).expect(124);
    let late = folder.coord(["wait", "fine", "--timeout", "300ms"]).expect(124);
    assert!(late.err.contains("still open: fine; `coord explain fine` tells why"), "{}", late.err);
    folder.coord(["wait", "--idle", "--timeout", "0s"]).expect(124);
    folder.coord(["wait", "unknown"]).expect(2);
    folder.coord(["wait"]).expect(2);
    folder.coord(["wait", "--idle", "fine"]).expect(2);
    let mut all = folder.start_as("all", ["wait", "fine", "fails"]);
    let mut any = folder.start_as("any", ["wait", "--any", "fine", "middle", "--format", "json"]);
    folder.coord(["worker", "--max-tasks", "2"]).expect(1);
    // One of the two has failed; of the others one is done.
    assert_eq!((all.wait(), any.wait()), (Some(1), Some(0)));
    folder.coord(["wait", "fine"]).expect(0);
    let done = folder.coord(["wait", "fine", "fails", "--format", "json"]).expect(1).json();
    assert_eq!(done["come"], true);
    assert_eq!(
        (done["tasks"][0]["state"].as_str(), done["tasks"][1]["state"].as_str()),
        (Some("done"), Some("failed"))
    );
    // What may run later is no end; what waits for what failed is one.
    folder.coord(["wait", "--idle", "--timeout", "300ms"]).expect(124);
    folder.coord(["cancel", "later"]).expect(0);
    let idle = folder.coord(["wait", "--idle", "--format", "json"]).expect(1).json();
    assert_eq!(
        (idle["counts"]["done"].as_u64(), idle["counts"]["blocked"].as_u64()),
        (Some(1), Some(2)),
        "{idle}"
    );
    folder.write("fine.toml", "[[task]]\nid='t'\nrun='true'\n");
    folder.coord(["run", "fine.toml"]).expect(0);
    folder.coord(["wait", "--idle", "--board", "fine"]).expect(0);
}

#[test]
fn a_list_is_filtered_by_labels_and_read_in_pages() {
    let folder = Folder::new();
    board(&folder);
    let ids = |args: &[&str]| -> (Vec<String>, Option<String>) {
        let args = ["ls", "--format", "json"].iter().chain(args).copied();
        let document = folder.coord(args).expect(0).json();
        let tasks = document["tasks"].as_array().unwrap();
        let ids = tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect();
        (ids, document["next"].as_str().map(str::to_owned))
    };
    let only = |args: &[&str]| ids(args).0.join(" ");
    assert_eq!(only(&["--label", "a", "--label", "b"]), "fails");
    assert_eq!(only(&["--any-label", "a", "--any-label", "b", "--limit", "9"]), "fails fine middle");
    assert_eq!(only(&["--no-label", "b", "--state", "ready", "--limit", "9"]), "fine later");
    // A page goes on where the one before ended, whether all of the board is looked at for it or not.
    for filter in [&[][..], &["--state", "ready,waiting"]] {
        let mut seen = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut args = vec!["--limit", "2"];
            args.extend(filter);
            args.extend(after.iter().flat_map(|after| ["--after", after]));
            let (page, next) = ids(&args);
            assert!(page.len() <= 2);
            seen.extend(page);
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen.join(" "), "fails fine last later middle");
    }
    folder.coord(["cancel", "fails", "fine", "later"]).expect(0);
    let args = ["--state", "cancelled,done", "--limit", "2"];
    assert_eq!(ids(&args), (vec!["fails".into(), "fine".into()], Some("fine".into())));
    assert_eq!(ids(&[&args[..], &["--after", "fine"]].concat()), (vec!["later".into()], None));
    let text = folder.coord(["ls", "--limit", "2"]).expect(0).out;
    assert!(text.contains("there are more: the same command with --after 'fine'"), "{text}");
}

#[test]
fn a_board_that_is_too_large_for_one_list_is_shown_all_the_same() {
    let folder = Folder::new();
    for part in ["a", "b"] {
        let plan: String = (0..5_050)
            .map(|n| format!("[[task]]\nid='{part}{n:04}'\nlabels=['{part}']\nrun='true'\n"))
            .collect();
        folder.write(&format!("{part}.toml"), plan);
        folder.coord(["add", &format!("{part}.toml"), "--board", "large"]).expect(0);
    }
    let began = common::now();
    let page = folder.coord(["ls", "--limit", "3", "--label", "b", "--format", "json"]).expect(0).json();
    assert_eq!((page["next"].as_str(), page["counts"]["ready"].as_u64()), (Some("b0002"), Some(10_100)));
    folder.coord(["cancel", "b5000"]).expect(0);
    let page =
        folder.coord(["ls", "--state", "cancelled", "--limit", "1", "--format", "json"]).expect(0).json();
    assert_eq!((page["tasks"][0]["id"].as_str(), page["next"].as_str()), (Some("b5000"), None));
    let shown = folder.coord(["show", "b5000"]).expect(0).out;
    assert!(shown.contains("state       cancelled"), "{shown}");
    folder.coord(["explain", "a0001"]).expect(0);
    let top = folder.coord(["top", "--once"]).expect(0).out;
    assert!(top.contains("10099") || top.contains("10,099"), "{top}");
    // The same plan again is compared with what is there.
    folder.coord(["add", "b.toml", "--board", "large"]).expect(0);
    assert!(began.elapsed() < Duration::from_secs(120));
}
