//! `coord once` where the world around it is unkind: readers that do not read, signals at any moment, keys that mean something to a shell.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Folder, Signal, until};
use serde_json::Value;

fn state(folder: &Folder, key: &str) -> Value {
    folder.coord(["effect", "show", "--format", "json", "--", key]).expect(0).json()
}

/// Nobody reads what it prints for longer than its lease lives: it is kept alive, and its output is kept whole.
#[test]
fn a_reader_that_does_not_read_costs_no_lease_and_no_output() {
    let folder = Folder::new();
    let script = "echo x >> ledger; seq 1 30000; seq 1 30000 >&2";
    let mut run = folder
        .command(["once", "--key", "k", "--ttl", "1s", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is recorded although nobody has read any of it, longer than the lease lives without being renewed.
    until("it is completed", || {
        folder
            .coord(["effect", "show", "k"])
            .out
            .lines()
            .any(|line| line.starts_with("state        completed"))
    });
    common::pause(Duration::from_millis(1_500));
    let errors = run.stderr.take().unwrap();
    let errors = std::thread::spawn(move || std::io::read_to_string(errors).unwrap());
    let out = std::io::read_to_string(run.stdout.take().unwrap()).unwrap();
    let whole: String = (1..=30_000).map(|n| format!("{n}\n")).collect();
    assert!(out == whole && errors.join().unwrap() == whole, "{} bytes", out.len());
    assert_eq!(run.wait().unwrap().code(), Some(0));
    let again = folder.coord(["once", "--key", "k", "--", "false"]).expect(0);
    assert!(again.out.ends_with("\n29999\n30000\n") && again.err.ends_with("\n30000\n"));
    assert_eq!(folder.read("ledger"), "x\n");
}

/// A run whose command waits for its reader is alive.
#[test]
fn a_command_that_waits_for_its_reader_keeps_its_lease() {
    let folder = Folder::new();
    let script = "seq 1 500000; seq 1 500000 >&2; echo x >> ledger";
    let mut run = folder
        .command(["once", "--key", "k", "--ttl", "1s", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    common::pause(Duration::from_millis(2_500));
    assert_eq!(state(&folder, "k")["state"], "in_flight");
    let errors = run.stderr.take().unwrap();
    let errors = std::thread::spawn(move || std::io::read_to_string(errors).unwrap());
    let out = std::io::read_to_string(run.stdout.take().unwrap()).unwrap();
    assert!(out.ends_with("\n500000\n") && errors.join().unwrap().ends_with("\n500000\n"));
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(folder.read("ledger"), "x\n");
}

/// Whoever is told that the command was not started can rely on it, and so can the next one.
#[test]
fn a_signal_before_the_command_is_started_leaves_nothing_in_flight() {
    let folder = Folder::new();
    folder.coord(["once", "--key", "first", "--", "true"]).expect(0);
    for n in 0_u64..40 {
        let key = format!("k{n}");
        let script = format!("echo x >> {key}; exec sleep 600");
        let mut run = folder.start_as("run.", ["once", "--key", &key, "--", "sh", "-c", &script]);
        common::pause(Duration::from_millis(n * 2));
        run.signal(Signal::Int);
        let code = run.wait();
        let shown = folder.coord(["effect", "show", "--format", "json", "--", &key]);
        let state = if shown.code == Some(0) { shown.json()["state"].clone() } else { "none".into() };
        match code {
            // By the signal itself, before anything is done.
            None => assert_eq!(state, "none", "{n}"),
            Some(120) => assert_eq!(state, "uncertain", "{n}"),
            Some(130 | 126) => {
                assert!(state == "none" || state == "idle", "{n}: {state}");
                assert_eq!(folder.read(&key), "", "{n}");
            }
            other => panic!("{n}: {other:?}"),
        }
    }
}

/// The command that it names can be given to a shell as it is, and shows nothing that moves the cursor.
#[test]
fn the_command_that_resolves_it_is_right_for_every_key() {
    let folder = Folder::new();
    for key in [
        "-x",
        "--applied",
        "it's",
        "a b\"$(touch bad)`touch bad`\\",
        "two\nlines",
        "\u{1b}[31mred\u{202e}",
        "é",
    ] {
        let told =
            folder.coord(["once", &format!("--key={key}"), "--", "sh", "-c", "kill -9 $$"]).expect(120);
        assert!(!told.err.contains(['\u{1b}', '\u{202e}']), "{}", told.err);
        let shown = told.err.lines().find_map(|line| line.split_once("then: coord ")).unwrap().1;
        let shown = shown.replace("(--applied | --not-applied | --allow-retry)", "--not-applied");
        let script = format!("exec '{}' {shown}", env!("CARGO_BIN_EXE_coord"));
        let resolved =
            Command::new("bash").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
        assert!(resolved.status.success(), "{key:?}: {script}\n{resolved:?}");
        assert_eq!(state(&folder, key)["state"], "idle", "{key:?}");
    }
    assert!(!folder.join("bad").exists());
}

/// What a probe is given may hold secrets, and the history is for everybody.
#[test]
fn what_a_probe_is_given_is_not_kept() {
    let folder = Folder::new();
    folder.coord(["once", "--key", "k", "--ttl", "1s", "--", "sh", "-c", "kill -9 $$"]).expect(120);
    let probe = [
        "effect",
        "reconcile",
        "--settle",
        "1ms",
        "--format",
        "json",
        "--",
        "sh",
        "-c",
        "echo done",
        "sesame",
    ];
    until("the hold has ended", || folder.coord(probe).expect(0).json()["applied"] == 1);
    let history = folder.coord(["effect", "history", "k"]).expect(0).out;
    assert!(history.contains("found it done") && !history.contains("sesame"), "{history}");
}

/// A script whose interpreter is not there is a command that cannot be started: nothing was done, and that is not kept as a result.
#[test]
fn a_script_without_its_interpreter_is_not_done() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new();
    for (name, line) in
        [("no", "#!/no/such/interpreter -x\n"), ("dos", "#!/bin/sh\r\n"), ("ok", "#! /bin/sh -e\n")]
    {
        folder.write(name, format!("{line}echo x >> ledger\n"));
        std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["no", "dos"] {
        let told = folder.coord(["once", "--key", name, "--", &format!("./{name}")]).expect(126);
        assert!(told.err.contains("which its first line names"), "{}", told.err);
        assert_eq!(state(&folder, name)["state"], "idle");
    }
    folder.coord(["once", "--key", "ok", "--", "./ok"]).expect(0);
    assert_eq!(folder.read("ledger"), "x\n");
}

/// A command that asks for the action that it is, or for its resource, would wait for itself.
#[test]
fn a_run_within_a_run_does_not_wait_for_itself() {
    let folder = Folder::new();
    let coord = env!("CARGO_BIN_EXE_coord");
    let once = |outer: &[&'static str], inner: &str, code| {
        let script = format!("exec '{coord}' once {inner} -- touch inner");
        folder.coord([&["once"], outer, &["--", "sh", "-c", &script]].concat()).expect(code)
    };
    let told = once(&["--key", "k"], "--key k", 121);
    assert!(told.err.contains("is being done"), "{}", told.err);
    once(&["--key", "a", "--resource", "r"], "--key b --resource r --wait 1h", 122);
    assert!(!folder.join("inner").exists());
    // Another namespace is another store, and another key another action.
    once(&["--key", "n"], "--key n --namespace other", 0);
    once(&["--key", "x"], "--key y", 0);
}
