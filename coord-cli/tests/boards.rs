//! The commands that look at a board and change it, for people and as JSON.

mod common;

use common::{Folder, until};

const PLAN: &str = "
[plan]
name = 'demo'

[[task]]
id = 'build'
title = 'Build it'
run = 'echo built'
priority = 3

[[task]]
id = 'test'
run = 'echo tested'
deps = ['build']
labels = ['ci']

[[task]]
id = 'ship'
run = 'echo shipped'
deps = ['test']
";

fn added() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", PLAN);
    folder.coord(["add", "plan.toml"]).expect(0);
    folder
}

#[test]
fn adding_twice_changes_nothing() {
    let folder = added();
    let before = folder.coord(["ls", "--format", "json"]).expect(0).out;
    let again = folder.coord(["add", "plan.toml", "--format", "json"]).expect(0).json();
    assert_eq!(
        (again["board"].as_str(), again["added"].as_u64(), again["existed"].as_u64()),
        (Some("demo"), Some(0), Some(3))
    );
    assert_eq!(folder.coord(["ls", "--format", "json"]).expect(0).out, before);
}

#[test]
fn a_changed_definition_is_refused_until_it_is_replaced() {
    let folder = added();
    let before = folder.coord(["ls", "--format", "json"]).expect(0).out;
    folder.write("plan.toml", PLAN.replace("echo tested", "echo tested twice").replace("['ci']", "['slow']"));
    for command in ["add", "run"] {
        let refused = folder.coord([command, "plan.toml"]).expect(2);
        assert!(refused.err.contains("\"test\" (labels, run)"), "{}", refused.err);
        assert!(refused.err.contains("--replace") && refused.err.contains("--board"), "{}", refused.err);
        assert_eq!(folder.coord(["ls", "--format", "json"]).expect(0).out, before);
    }
    let replaced = folder.coord(["add", "plan.toml", "--replace", "--format", "json"]).expect(0).json();
    // What depends on the changed task is new as well, what it depends on is not.
    assert_eq!((replaced["replaced"].as_u64(), replaced["added"].as_u64()), (Some(2), Some(2)));
    let shown = folder.coord(["show", "test", "--format", "json"]).expect(0).json();
    assert_eq!(shown["definition"]["run"], "echo tested twice");
    assert_eq!(shown["labels"][0], "slow");
}

#[test]
fn plans_of_one_store_do_not_mix() {
    let folder = added();
    folder.write("other.toml", "[[task]]\nid = 'build'\nrun = 'exit 1'\n");
    folder.coord(["run", "other.toml"]).expect(1);
    assert_eq!(folder.coord(["boards"]).expect(0).out, "demo\nother\n");
    let several = folder.coord(["ls"]).expect(2);
    assert!(several.err.contains("--board: demo, other"), "{}", several.err);
    assert!(folder.coord(["ls", "--board", "demo"]).expect(0).out.contains("1 ready"));
    assert!(folder.coord(["ls", "--namespace", "other"]).expect(0).out.contains("1 failed"));
    let unknown = folder.coord(["ls", "--board", "third"]).expect(2);
    assert!(unknown.err.contains("its boards are demo, other"), "{}", unknown.err);
    let command = folder.command(["ls"]).env("COORD_BOARD", "demo").output().unwrap();
    assert!(command.status.success());
}

#[test]
fn everything_is_listed_and_shown() {
    let folder = added();
    let listed = folder.coord(["ls"]).expect(0).out;
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[0], "ready     build  priority 3; Build it");
    assert_eq!(lines[1], "waiting   test");
    assert_eq!(lines[3], "board demo: 2 waiting, 1 ready");
    assert!(!listed.contains('\u{1b}'), "colors without a terminal");
    assert_eq!(
        folder.coord(["ls", "--state", "ready", "--format", "json"]).expect(0).json()["tasks"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        folder.coord(["ls", "--label", "ci", "--format", "json"]).expect(0).json()["tasks"][0]["id"],
        "test"
    );
    let shown = folder.coord(["show", "test"]).expect(0).out;
    for part in
        ["state       open (waiting)", "waits for   build", "dependents  ship", "run         echo tested"]
    {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    let missing = folder.coord(["show", "tset"]).expect(2);
    assert!(missing.err.contains("there is no task \"tset\""), "{}", missing.err);
    let checked = folder.coord(["check", "--format", "json"]).expect(0).json();
    assert_eq!(
        (checked["problems"].as_array().unwrap().len(), checked["counts"]["total"].as_u64()),
        (0, Some(3))
    );
    assert!(
        folder.coord(["check", "plan.toml"]).expect(0).out.contains("3 tasks, 2 dependencies, nothing wrong")
    );
}

#[test]
fn graphs_are_drawn_of_boards_and_plans() {
    let folder = added();
    let of_board = folder.coord(["graph"]).expect(0).out;
    assert!(
        of_board.contains("\"build\" -> \"test\";") && of_board.contains("label=\"build\\nBuild it\""),
        "{of_board}"
    );
    let of_plan = folder.coord(["graph", "plan.toml", "--format", "mermaid"]).expect(0).out;
    assert_eq!(of_plan.lines().next(), Some("flowchart LR"));
    assert!(of_plan.contains("t0 --> t1") && of_plan.contains("t1 --> t2"), "{of_plan}");
    let json = folder.coord(["graph", "--format", "json"]).expect(0).json();
    assert_eq!((json["nodes"].as_array().unwrap().len(), json["edges"].as_array().unwrap().len()), (3, 2));
}

#[test]
fn operators_cancel_reopen_and_remove() {
    let folder = added();
    let cancelled = folder.coord(["cancel", "build", "--format", "json"]).expect(0).json();
    assert_eq!(cancelled["tasks"][0]["result"], "cancelled");
    assert_eq!((folder.count("cancelled"), folder.count("blocked")), (1, 2));
    folder.coord(["cancel", "build"]).expect(0);
    folder.coord(["reopen", "build"]).expect(0);
    assert_eq!((folder.count("ready"), folder.count("waiting")), (1, 2));
    assert!(folder.coord(["release", "build"]).expect(0).out.contains("nobody holds it"));
    let needed = folder.coord(["remove", "build"]).expect(1);
    assert!(
        needed.err.contains("\"test\" depends on it") && needed.err.contains("--dependents"),
        "{}",
        needed.err
    );
    let some = folder.coord(["cancel", "nowhere", "ship"]).expect(1);
    assert!(some.err.contains("nowhere") && some.out.contains("ship: cancelled"), "{some:?}");
    let removed = folder.coord(["remove", "test", "--dependents", "--format", "json"]).expect(0).json();
    assert_eq!(removed["removed"], serde_json::json!(["ship", "test"]));
    folder.coord(["remove", "--all"]).expect(0);
    assert_eq!(folder.standings(), []);
    folder.coord(["add", "plan.toml"]).expect(0);
    folder.coord(["run", "plan.toml"]).expect(0);
}

#[test]
fn a_held_task_is_shown_without_its_token_and_released_by_its_fence() {
    let folder = added();
    folder.write(
        "held.toml",
        "[[task]]\nid = 'held'\nrun = 'touch started; while [ ! -e go ]; do sleep 0.05; done'\n",
    );
    let store = ["--store", "sqlite:held.db"];
    folder.coord(["add", "held.toml"].into_iter().chain(store)).expect(0);
    let mut worker = folder
        .start(["worker", "--max-tasks", "1", "--name", "me", "--format", "json"].into_iter().chain(store));
    until("the task runs", || folder.join("started").exists());
    for args in [
        &["ls"][..],
        &["show", "held"],
        &["check"],
        &["graph"],
        &["ls", "--format", "json"],
        &["show", "held", "--format", "json"],
    ] {
        let said = folder.coord(args.iter().copied().chain(store)).expect(0).out;
        let words = said.split(|c: char| !c.is_ascii_hexdigit());
        assert!(words.clone().all(|word| word.len() < 32), "a token? {said}");
        assert!(!said.contains("token"), "{said}");
    }
    let shown = folder.coord(["show", "held", "--format", "json"].into_iter().chain(store)).expect(0).json();
    assert_eq!((shown["owner"].as_str(), shown["standing"].as_str()), (Some("me"), Some("running")));
    assert_eq!(shown["lease"]["fence"], 1);
    let held = folder.coord(["remove", "held"].into_iter().chain(store)).expect(1);
    assert!(held.err.contains("coord release held"), "{}", held.err);
    let wrong = folder.coord(["release", "held", "--fence", "7"].into_iter().chain(store)).expect(1);
    assert!(wrong.err.contains("fence is now 1"), "{}", wrong.err);
    folder.coord(["release", "held", "--fence", "1"].into_iter().chain(store)).expect(0);
    folder.write("go", "");
    // The worker is refused, by its renewal or by its completion, and the task is open.
    assert_eq!(worker.wait(), Some(0));
    let tally: serde_json::Value = serde_json::from_str(&folder.read("out")).unwrap();
    assert_eq!(
        (tally["claimed"].as_u64(), tally["lost"].as_u64(), tally["done"].as_u64()),
        (Some(1), Some(1), Some(0))
    );
    let shown = folder.coord(["show", "held", "--format", "json"].into_iter().chain(store)).expect(0).json();
    assert_eq!((shown["standing"].as_str(), shown["fence"].as_u64()), (Some("ready"), Some(1)));
}

#[test]
fn what_happened_is_told_and_what_finished_long_ago_goes() {
    let folder = added();
    folder.coord(["run", "plan.toml"]).expect(0);
    let told = folder.coord(["history", "build", "--format", "json"]).expect(0).json();
    let verbs: Vec<&str> =
        told["events"].as_array().unwrap().iter().map(|event| event["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["add", "claim", "complete"], "{told}");
    let text = folder.coord(["history", "build"]).expect(0).out;
    assert!(text.lines().count() == 3 && text.contains("claimed by ") && text.contains("exit 0"), "{text}");
    assert!(folder.coord(["history", "none"]).expect(2).err.contains("none"));
    let young = folder.coord(["archive", "--format", "json"]).expect(0).json();
    assert_eq!(young["archived"].as_array().map(Vec::len), Some(0), "{young}");
    let old = folder.coord(["archive", "--older-than", "0s", "--format", "json"]).expect(0).json();
    assert_eq!(old["archived"].as_array().map(Vec::len), Some(3), "{old}");
    assert_eq!(
        folder.coord(["ls", "--format", "json"]).expect(0).json()["tasks"].as_array().map(Vec::len),
        Some(0)
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    use std::process::Stdio;
    let folder = added();
    for args in [&["ls"][..], &["ls", "--format", "json"], &["graph"], &["--help"], &["show", "build"]] {
        let mut child = folder
            .command(args.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && err.is_empty(), "{args:?}: {ended:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let folder = added();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended: common::Ended = folder.command(["ls"]).stdout(full).output().unwrap().into();
    let ended = ended.expect(1);
    assert!(ended.err.contains("standard output cannot be written"), "{}", ended.err);
}

#[test]
fn help_teaches() {
    let folder = Folder::new();
    let help = folder.coord(["--help"]).expect(0).out;
    for part in [
        "[[task]]",
        "coord run plan.toml",
        "Exit codes:",
        ".coord/coord.db",
        "COORD_FENCE",
        "COORD_BOARD and COORD_STORE",
    ] {
        assert!(help.contains(part), "no {part:?} in {help}");
    }
    assert_eq!(folder.coord(["--version"]).expect(0).out, format!("coord {}\n", env!("CARGO_PKG_VERSION")));
    assert!(folder.coord(["run", "--help"]).expect(0).out.contains("--lease"));
    // No terminal breaks its lines.
    assert!(help.lines().skip_while(|line| *line != "A plan:").all(|line| line.len() < 80), "{help}");
    // The plan that the help shows is a plan.
    let plan: String = help
        .lines()
        .skip_while(|line| *line != "A plan:")
        .skip(1)
        .take_while(|line| *line != "Examples:")
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    folder.write("plan.toml", plan);
    folder.coord(["check", "plan.toml"]).expect(0);
}

/// What a cleanup has begun on cannot be undone, and operators are told so; what can never run is told apart from what was cancelled.
#[test]
fn what_others_have_begun_on_stays() {
    let folder = Folder::new();
    folder.write(
        "rules.toml",
        "[plan]\nname = \"rules\"\n[[task]]\nid = \"breaks\"\nrun = \"exit 1\"\n[[task]]\nid = \"cleans\"\nrun = \"true\"\n\
         deps = [{ id = \"breaks\", rule = \"finished\" }]\n[[task]]\nid = \"alarm\"\nrun = \"true\"\n\
         deps = [{ id = \"cleans\", rule = \"failed\" }]\n",
    );
    folder.coord(["run", "rules.toml"]).expect(1);
    let refused = folder.coord(["reopen", "breaks"]).expect(1).err;
    assert!(refused.contains("cleans has begun because it ended so"), "{refused}");
    let frame = folder.coord(["top", "--once"]).expect(0).out;
    assert!(frame.lines().any(|line| line.contains("alarm") && line.contains("skipped")), "{frame}");
}

#[test]
fn a_board_that_is_too_large_for_one_listing_is_added_checked_and_worked_at_all_the_same() {
    let folder = Folder::new();
    let tasks: String = (0..10_050)
        .map(|n| match n {
            0 => "[[task]]\nid = 'b00000'\nrun = 'true'\n".into(),
            _ => format!("[[task]]\nid = 'b{n:05}'\nrun = 'true'\ndeps = ['b{:05}']\n", n / 10),
        })
        .collect();
    folder.write("plan.toml", tasks);
    folder.coord(["add", "plan.toml"]).expect(0);
    let check = || folder.coord(["check", "--format", "json"]).expect(0).json();
    assert_eq!(check()["counts"]["total"].as_u64(), Some(10_050));
    folder.coord(["worker", "--max-tasks", "2", "--concurrency", "2"]).expect(0);
    let checked = check();
    assert_eq!(checked["problems"].as_array().map(Vec::len), Some(0), "{checked}");
    assert_eq!(checked["counts"]["done"].as_u64(), Some(2), "{checked}");
    let page = folder.coord(["ls", "--limit", "2", "--after", "b10048", "--format", "json"]).expect(0).json();
    assert_eq!(page["tasks"].as_array().map(Vec::len), Some(1), "{page}");
}
