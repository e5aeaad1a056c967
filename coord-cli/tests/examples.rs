//! The scripts among the examples run as they are, and check themselves.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

use std::path::Path;
use std::process::Command;

fn run(name: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name);
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .arg(script)
        .current_dir(folder.path())
        .env("COORD", env!("CARGO_BIN_EXE_coord"))
        .env_remove("COORD_STORE")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn a_cron_job_on_three_hosts_runs_once() {
    let said = run("cron.sh");
    assert!(said.contains("executions: 1") && said.contains("three: report sent to 42 readers"), "{said}");
}

#[test]
fn a_probe_looks_whether_a_card_was_charged() {
    assert!(run("probe.sh").contains("charges: 2"));
}
