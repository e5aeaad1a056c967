//! `coord once` and `coord effect`, on the embedded store. What was executed is counted by a ledger that the command itself writes.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use common::{Ended, Folder, Process, Signal, is_alive, until};
use serde_json::Value;

/// Notes in the ledger that it runs, and prints something on both streams.
const NOTED: &str = "echo \"$COORD_KEY $COORD_FENCE $COORD_ATTEMPT\" >> ledger; echo out; echo err >&2";

fn once(folder: &Folder, options: &[&str], script: &str) -> Ended {
    let args = [&["once"], options, &["--", "sh", "-c", script]].concat();
    folder.coord(args)
}

fn executions(folder: &Folder) -> usize {
    folder.read("ledger").lines().count()
}

fn state(folder: &Folder, key: &str) -> Value {
    folder.coord(["effect", "show", key, "--format", "json"]).expect(0).json()
}

#[test]
fn twenty_at_one_instant_run_it_once_and_all_print_the_same() {
    let folder = Folder::new();
    let gate = folder.join("gate");
    // They wait for the gate before they ask, so that they ask at one instant.
    let script = format!("until [ -e '{}' ]; do sleep 0.02; done; exec \"$0\" \"$@\"", gate.display());
    let mut racers: Vec<Process> = (0..20)
        .map(|n| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_coord"), "once", "--key", "report", "--"]);
            command.args(["sh", "-c", &format!("{NOTED}; sleep 0.5; exit 7")]);
            command.current_dir(folder.path()).env_remove("COORD_STORE").stdin(std::process::Stdio::null());
            let file = |stream: &str| std::fs::File::create(folder.join(&format!("{n}.{stream}"))).unwrap();
            Process::of(command.stdout(file("out")).stderr(file("err")).spawn().unwrap())
        })
        .collect();
    folder.write("gate", "");
    for (n, racer) in racers.iter_mut().enumerate() {
        assert_eq!(racer.wait(), Some(7), "{n}: {}", folder.read(&format!("{n}.err")));
        assert_eq!(folder.read(&format!("{n}.out")), "out\n", "{n}");
        assert_eq!(folder.read(&format!("{n}.err")), "err\n", "{n}");
    }
    assert_eq!(executions(&folder), 1);
    // And so it stays, for whoever asks later.
    let later = once(&folder, &["--key", "report"], NOTED).expect(7);
    assert_eq!((later.out.as_str(), later.err.as_str()), ("out\n", "err\n"));
    assert_eq!(executions(&folder), 1);
}

#[test]
fn a_run_that_was_killed_is_uncertain_and_says_how_to_resolve_it() {
    let folder = Folder::new();
    let long = format!("{NOTED}; echo $$ > pid; exec sleep 600");
    let mut run = folder.start(["once", "--key", "it's", "--ttl", "1s", "--", "sh", "-c", &long]);
    until("it runs", || !folder.read("pid").is_empty());
    let command: u32 = folder.read("pid").trim().parse().unwrap();
    let in_flight = once(&folder, &["--key", "it's", "--wait", "0s"], NOTED).expect(121);
    assert!(in_flight.err.contains(&format!(":{}", run.id())), "{}", in_flight.err);
    run.signal(Signal::Kill);
    run.wait();
    until("its command is gone with it", || !is_alive(command));
    // Whoever waits is told as soon as the hold has ended.
    let told = once(&folder, &["--key", "it's"], NOTED).expect(120);
    assert!(
        told.err.contains(&format!(":{}", run.id())) && told.err.contains("uncertain since"),
        "{}",
        told.err
    );
    assert_eq!(executions(&folder), 1);
    // The command that it names is the one that resolves it.
    let shown = told.err.lines().find_map(|line| line.split_once("coord effect resolve ")).unwrap().1;
    let shown = shown
        .replace("'...'", "'looked'")
        .replace("(--applied | --not-applied | --allow-retry)", "--not-applied");
    let resolve = format!("exec '{}' effect resolve {shown}", env!("CARGO_BIN_EXE_coord"));
    let status =
        std::process::Command::new("sh").args(["-c", &resolve]).current_dir(folder.path()).status().unwrap();
    assert!(status.success(), "{resolve}");
    once(&folder, &["--key", "it's"], NOTED).expect(0);
    assert_eq!(folder.read("ledger"), "it's 1 1\nit's 2 2\n");
    let history = folder.coord(["effect", "history", "it's", "--format", "json"]).expect(0).json();
    let kinds: Vec<&str> =
        history["transitions"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["granted", "lapsed", "ruled_not_applied", "granted", "completed"]);
    assert_eq!(history["transitions"][2]["note"], "looked");
}

#[test]
fn what_an_exit_code_means_is_said_by_options() {
    let folder = Folder::new();
    let options = |key| ["--key", key, "--uncertain-exit", "7,28", "--abandon-exit", "3"];
    // Failed, and that is known: kept like a success.
    once(&folder, &options("failed"), &format!("{NOTED}; exit 1")).expect(1);
    once(&folder, &options("failed"), NOTED).expect(1);
    assert_eq!(executions(&folder), 1);
    // Nothing was done: the next one tries again.
    let nothing = once(&folder, &options("nothing"), &format!("{NOTED}; exit 3")).expect(3);
    assert!(nothing.err.contains("nothing was done"), "{}", nothing.err);
    assert_eq!(state(&folder, "nothing")["state"], "idle");
    once(&folder, &options("nothing"), NOTED).expect(0);
    assert_eq!(executions(&folder), 3);
    // Nobody knows: nobody does it again.
    for (key, script) in [("unknown", "exit 28"), ("signal", "kill -9 $$")] {
        once(&folder, &options(key), &format!("{NOTED}; {script}")).expect(120);
        once(&folder, &options(key), NOTED).expect(120);
        assert_eq!(state(&folder, key)["state"], "uncertain");
    }
    let slow = once(&folder, &["--key", "slow", "--timeout", "200ms"], &format!("{NOTED}; exec sleep 600"))
        .expect(120);
    assert!(slow.err.contains("ran out of time after 0.20s"), "{}", slow.err);
    assert_eq!(executions(&folder), 6);
    // It cannot be started: nothing was done.
    let missing = folder.coord(["once", "--key", "missing", "--", "no-such-program"]).expect(126);
    assert!(missing.err.contains("no-such-program"), "{}", missing.err);
    assert_eq!(state(&folder, "missing")["state"], "idle");
    let both =
        once(&folder, &["--key", "k", "--uncertain-exit", "3", "--abandon-exit", "3"], NOTED).expect(2);
    assert!(both.err.contains("exit code 3"), "{}", both.err);
}

#[test]
fn one_resource_is_held_by_one() {
    let folder = Folder::new();
    let mut holder = folder.start([
        "once",
        "--key",
        "deploy-1",
        "--resource",
        "production",
        "--",
        "sh",
        "-c",
        "touch on; while [ -e on ]; do sleep 0.05; done",
    ]);
    until("it runs", || folder.join("on").exists());
    let other = ["--key", "deploy-2", "--resource", "production"];
    let busy = once(&folder, &[&other[..], &["--wait", "0s"]].concat(), NOTED).expect(122);
    assert!(busy.err.contains("deploy-1") && busy.err.contains("production"), "{}", busy.err);
    let busy = once(&folder, &[&other[..], &["--wait", "200ms"]].concat(), NOTED).expect(122);
    assert!(busy.err.contains(&format!(":{}", holder.id())), "{}", busy.err);
    let mut waiting = folder.start_as(
        "waiting.",
        ["once", "--key", "deploy-2", "--resource", "production", "--", "sh", "-c", NOTED],
    );
    std::fs::remove_file(folder.join("on")).unwrap();
    assert_eq!((holder.wait(), waiting.wait()), (Some(0), Some(0)));
    assert_eq!(folder.read("ledger"), "deploy-2 2 1\n");
}

#[test]
fn a_key_is_not_used_for_two_things() {
    let folder = Folder::new();
    once(&folder, &["--key", "charge", "--fingerprint", "100"], "echo receipt").expect(0);
    for other in [&["--fingerprint", "200"][..], &[], &["--fingerprint", "100", "--resource", "card"]] {
        let refused = once(&folder, &[&["--key", "charge"], other].concat(), NOTED).expect(123);
        assert!(!refused.out.contains("receipt") && !refused.err.contains("receipt"), "{refused:?}");
    }
    once(&folder, &["--key", "charge", "--fingerprint", "100"], NOTED).expect(0);
    assert_eq!(executions(&folder), 0);
}

#[test]
fn programs_get_documents() {
    let folder = Folder::new();
    let json =
        |options: &[&str], script: &str| once(&folder, &[&["--format", "json"], options].concat(), script);
    let ran = json(&["--key", "k"], &format!("{NOTED}; exit 4")).expect(4).json();
    assert_eq!((ran["outcome"].as_str(), ran["exit"].as_u64()), (Some("executed"), Some(4)));
    assert_eq!((ran["stdout"].as_str(), ran["stderr"].as_str()), (Some("out\n"), Some("err\n")));
    let replayed = json(&["--key", "k"], NOTED).expect(4).json();
    assert_eq!(
        (replayed["outcome"].as_str(), replayed["stdout"].as_str()),
        (Some("replayed"), Some("out\n"))
    );
    let uncertain = json(&["--key", "u"], "kill -9 $$").expect(120).json();
    assert_eq!(uncertain["error"]["exit"], 120);
    assert_eq!(executions(&folder), 1);
    let listed = folder.coord(["effect", "ls", "--format", "json"]).expect(0).json();
    assert_eq!(listed["actions"].as_array().unwrap().len(), 2);
    assert!(listed["next"].is_null(), "{listed}");
    let first = folder.coord(["effect", "ls", "--limit", "1", "--format", "json"]).expect(0).json();
    assert_eq!((first["actions"][0]["key"].as_str(), first["next"].as_str()), (Some("k"), Some("k")));
    let rest = folder.coord(["effect", "ls", "--after", "k", "--format", "json"]).expect(0).json();
    assert_eq!((rest["actions"][0]["key"].as_str(), rest["more"].as_bool()), (Some("u"), Some(false)));
    let open = folder.coord(["effect", "ls", "--open", "--format", "json"]).expect(0).json();
    assert_eq!(open["actions"][0]["key"], "u");
    assert_eq!(open["actions"].as_array().unwrap().len(), 1);
    let overdue = folder.coord(["effect", "ls", "--overdue", "1h", "--format", "json"]).expect(0).json();
    assert_eq!(overdue["actions"].as_array().unwrap().len(), 0);
}

#[test]
fn a_probe_settles_what_nobody_knows() {
    let folder = Folder::new();
    for key in ["done", "undone", "unclear"] {
        once(&folder, &["--key", key, "--ttl", "1s"], &format!("{NOTED}; kill -9 $$")).expect(120);
    }
    folder.write("probe", "#!/bin/sh\n[ -n \"$COORD_FENCE$COORD_DOWNSTREAM_KEY\" ] || exit 9\ncase $COORD_KEY in done) echo receipt;; undone) exit 10;; *) exit 1;; esac\n");
    let probe = ["effect", "reconcile", "--settle", "1ms", "--format", "json", "--", "sh", "probe"];
    let mut ruled = 0;
    until("the holds have ended", || {
        let report = folder.coord(probe).expect(0).json();
        ruled += report["applied"].as_u64().unwrap() + report["not_applied"].as_u64().unwrap();
        ruled == 2
    });
    let replayed = once(&folder, &["--key", "done"], NOTED).expect(0);
    assert_eq!(replayed.out, "receipt\n");
    once(&folder, &["--key", "undone"], NOTED).expect(0);
    once(&folder, &["--key", "unclear"], NOTED).expect(120);
    assert_eq!(executions(&folder), 4);
}

#[test]
fn what_is_past_its_retention_is_still_known_to_be_done() {
    let folder = Folder::new();
    once(&folder, &["--key", "k"], NOTED).expect(0);
    let purge =
        |age| folder.coord(["effect", "purge", "--older-than", age, "--format", "json"]).expect(0).json();
    assert_eq!(purge("1h")["purged"], 0);
    assert_eq!(purge("0s")["purged"], 1);
    let gone = once(&folder, &["--key", "k"], NOTED).expect(119);
    assert!(gone.err.contains("was done at") && gone.err.contains("purged"), "{}", gone.err);
    assert_eq!(executions(&folder), 1);
    folder.coord(["effect", "forget", "k"]).expect(0);
    folder.coord(["effect", "forget", "--resource", "k"]).expect(0);
    once(&folder, &["--key", "k"], NOTED).expect(0);
    assert_eq!(folder.read("ledger"), "k 1 1\nk 2 1\n");
    folder.coord(["effect", "forget", "unknown"]).expect(2);
    once(&folder, &["--key", "u"], "kill -9 $$").expect(120);
    let refused = folder.coord(["effect", "forget", "u"]).expect(1);
    assert!(refused.err.contains("uncertain"), "{}", refused.err);
}

#[test]
fn by_hand_the_first_ruling_counts() {
    let folder = Folder::new();
    once(&folder, &["--key", "k"], "kill -9 $$").expect(120);
    let resolve = |args: &[&str]| {
        folder.coord([&["effect", "resolve", "k", "--evidence", "the bank says so"], args].concat())
    };
    resolve(&[]).expect(2);
    resolve(&["--applied", "--not-applied"]).expect(2);
    resolve(&["--not-applied", "--episode", "1.1"]).expect(1);
    let episode = state(&folder, "k")["uncertain"]["episode"].as_str().unwrap().to_owned();
    folder.write("receipt", "receipt 7\n");
    resolve(&["--applied", "--result", "receipt", "--episode", &episode]).expect(0);
    resolve(&["--applied", "--episode", &episode]).expect(0);
    let late = resolve(&["--not-applied", "--episode", &episode]).expect(1);
    assert!(late.out.contains("already: applied"), "{}", late.out);
    assert_eq!(once(&folder, &["--key", "k"], NOTED).expect(0).out, "receipt 7\n");
    assert_eq!(executions(&folder), 0);
    // Allowing a retry is remembered.
    once(&folder, &["--key", "r", "--ttl", "1s"], "kill -9 $$").expect(120);
    folder.coord(["effect", "resolve", "r", "--allow-retry", "--evidence", "twice is harmless"]).expect(0);
    let twice = once(&folder, &["--key", "r", "--wait", "5m"], NOTED).expect(0);
    assert!(twice.err.contains("more than once"), "{}", twice.err);
    assert_eq!(state(&folder, "r")["completed"]["maybe_twice"], true);
}

#[test]
fn a_signal_stops_the_command_and_leaves_it_uncertain() {
    let folder = Folder::new();
    let script = format!("{NOTED}; echo $$ > pid; exec sleep 600");
    let mut run = folder.start(["once", "--key", "k", "--", "sh", "-c", &script]);
    until("it runs", || !folder.read("pid").is_empty());
    run.signal(Signal::Int);
    assert_eq!(run.wait(), Some(120));
    assert!(folder.read("err").contains("stopped by a signal"), "{}", folder.read("err"));
    assert!(!is_alive(folder.read("pid").trim().parse().unwrap()));
    assert_eq!(state(&folder, "k")["state"], "uncertain");
    // Whoever only waits is just stopped.
    let mut holder = folder.start([
        "once",
        "--key",
        "h",
        "--",
        "sh",
        "-c",
        "touch on; while [ -e on ]; do sleep 0.05; done",
    ]);
    until("it runs", || folder.join("on").exists());
    let mut waiting = folder.start_as("waiting.", ["once", "--key", "h", "--", "sh", "-c", NOTED]);
    common::pause(std::time::Duration::from_millis(500));
    waiting.signal(Signal::Int);
    assert_eq!(waiting.wait(), Some(130));
    std::fs::remove_file(folder.join("on")).unwrap();
    assert_eq!(holder.wait(), Some(0));
    assert_eq!(executions(&folder), 1);
}

#[test]
fn what_is_not_kept_is_told_to_programs_and_in_the_history() {
    let folder = Folder::new();
    let ran = once(
        &folder,
        &["--key", "k", "--uncertain-exit", "7", "--format", "json"],
        "echo request-42; exit 7",
    );
    let document = ran.expect(120).json();
    assert_eq!(
        (document["command"]["exit"].as_u64(), document["command"]["stdout"].as_str()),
        (Some(7), Some("request-42\n"))
    );
    assert!(document["uncertain"]["episode"].is_string(), "{document}");
    let earlier = once(&folder, &["--key", "k", "--format", "json"], NOTED).expect(120).json();
    assert_eq!(
        earlier["uncertain"]["reason"],
        "failed: it ended with exit code 7; its last words: request-42"
    );
    // After a retry was allowed, a withdrawal does not make it known that nothing was done.
    folder.coord(["effect", "resolve", "k", "--allow-retry", "--evidence", " "]).expect(2);
    folder.coord(["effect", "resolve", "k", "--allow-retry", "--evidence", "harmless"]).expect(0);
    let told = once(&folder, &["--key", "k", "--ttl", "1s", "--abandon-exit", "3"], "exit 3").expect(120);
    assert!(
        told.err.contains("an earlier attempt may have been done") && told.err.contains("resolve"),
        "{}",
        told.err
    );
    assert_eq!(executions(&folder), 0);
    // What was changed is not said to be unchanged.
    once(&folder, &["--key", "done"], NOTED).expect(0);
    folder.coord(["effect", "forget", "nobody", "done"]).expect(1);
}
