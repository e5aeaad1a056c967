//! Tasks of plans that are actions: run at most once for their key, whatever becomes of the task and whichever plan asks.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use common::{Ended, Folder, Signal, is_alive, send, until};
use serde_json::Value;

fn plan(name: &str, effect: &str, run: &str) -> String {
    format!(
        "[plan]\nname = '{name}'\n[[task]]\nid = 'charge'\neffect = {{ {effect} }}\nrun = '''\necho \"$COORD_KEY $COORD_FENCE $COORD_ATTEMPT\" >> ledger\n{run}\n'''\n[[task]]\nid = 'mail'\ndeps = ['charge']\nrun = 'true'\n"
    )
}

fn run(folder: &Folder, plan: &str, options: &[&str]) -> Ended {
    folder.coord([&["run", plan, "--workers", "2", "--lease", "2s"], options].concat())
}

fn task(folder: &Folder, board: &str) -> Value {
    folder.coord(["show", "charge", "--board", board, "--format", "json"]).expect(0).json()
}

#[test]
fn two_plans_do_one_action_once() {
    let folder = Folder::new();
    for name in ["a", "b"] {
        folder.write(
            &format!("{name}.toml"),
            plan(name, "key = 'charge/7', resource = 'card'", "echo receipt"),
        );
        run(&folder, &format!("{name}.toml"), &[]).expect(0);
        let task = task(&folder, name);
        assert_eq!(task["state"], "done");
        assert_eq!(task["ended"]["replayed"].as_bool(), (name == "b").then_some(true));
        assert_eq!(task["output"], serde_json::json!(["receipt"]));
    }
    assert_eq!(folder.read("ledger"), "charge/7 1 1\n");
    // And so does a command.
    let once = ["once", "--key", "charge/7", "--resource", "card", "--", "false"];
    assert_eq!(folder.coord(once).expect(0).out, "receipt\n");
}

#[test]
fn a_failure_is_kept_and_a_withdrawal_is_not() {
    let folder = Folder::new();
    folder.write("kept.toml", plan("kept", "key = 'kept'", "exit 5"));
    run(&folder, "kept.toml", &[]).expect(1);
    run(&folder, "kept.toml", &["--retry"]).expect(1);
    assert_eq!(folder.read("ledger"), "kept 1 1\n");
    assert_eq!(task(&folder, "kept")["ended"]["exit"], 5);
    folder.write("drawn.toml", plan("drawn", "key = 'drawn', abandon_exit = [5]", "test -e ready || exit 5"));
    run(&folder, "drawn.toml", &[]).expect(1);
    folder.write("ready", "");
    run(&folder, "drawn.toml", &["--retry"]).expect(0);
    assert_eq!(folder.read("ledger"), "kept 1 1\ndrawn 1 1\ndrawn 2 2\n");
}

#[test]
fn what_nobody_knows_fails_the_task_until_somebody_has_looked() {
    let folder = Folder::new();
    folder.write("p.toml", plan("p", "key = 'k'", "echo $PPID >> workers; echo $$ > pid; exec sleep 600"));
    let mut running = folder.start(["run", "p.toml", "--workers", "1", "--lease", "2s"]);
    until("it runs", || !folder.read("pid").is_empty());
    let command: u32 = folder.read("pid").trim().parse().unwrap();
    // What kills the worker that runs it leaves the action as it is; the task is taken over by the next worker.
    let listed = folder.coord(["ls", "--format", "json"]).expect(0).json();
    let owner = listed["tasks"][0]["owner"].as_str().unwrap().to_owned();
    let worker: u32 = owner.rsplit(':').find_map(|part| part.parse().ok()).unwrap();
    send(worker, Signal::Kill);
    until("its command is gone with it", || !is_alive(command));
    assert_eq!(running.wait(), Some(1));
    let shown = task(&folder, "p");
    assert!(shown["ended"]["error"].as_str().unwrap().contains("uncertain"), "{shown}");
    assert!(shown["output"].to_string().contains("coord effect resolve"), "{shown}");
    folder.coord(["effect", "resolve", "k", "--applied", "--evidence", "the bank says so"]).expect(0);
    run(&folder, "p.toml", &["--retry"]).expect(0);
    assert_eq!(folder.read("ledger"), "k 1 1\n");
}
