//! What the tests of the command share: a folder of their own, the command in it, and waiting for conditions.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Nothing takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with a store of its own.
pub(crate) struct Folder {
    dir: TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "\n--- out\n{}\n--- err\n{}", self.out, self.err);
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Ended {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Folder {
    pub(crate) fn new() -> Self {
        Folder { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.join(name), text).unwrap();
    }

    /// The text of a file, empty if there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.join(name)).unwrap_or_default()
    }

    pub(crate) fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coord"));
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        command.env_remove("COORD_STORE").env_remove("COORD_BOARD").env_remove("COORD_LOG");
        command
    }

    /// Runs the command to its end.
    pub(crate) fn coord<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Ended {
        self.command(args).output().unwrap().into()
    }

    /// Starts the command; what it says goes to the files `out` and `err`.
    pub(crate) fn start<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Process {
        self.start_as("", args)
    }

    /// Starts the command; what it says goes to the files `<name>out` and `<name>err`.
    pub(crate) fn start_as<'a>(&self, name: &str, args: impl IntoIterator<Item = &'a str>) -> Process {
        let file = |stream: &str| fs::File::create(self.join(&format!("{name}{stream}"))).unwrap();
        let child = self.command(args).stdout(file("out")).stderr(file("err")).spawn().unwrap();
        Process { child }
    }

    /// The state of each task of the only board.
    pub(crate) fn standings(&self) -> Vec<(String, String)> {
        let listed = self.coord(["ls", "--format", "json"]).expect(0).json();
        let tasks = listed["tasks"].as_array().unwrap();
        tasks
            .iter()
            .map(|task| (task["id"].as_str().unwrap().into(), task["standing"].as_str().unwrap().into()))
            .collect()
    }

    pub(crate) fn count(&self, standing: &str) -> usize {
        self.standings().iter().filter(|(_, one)| one == standing).count()
    }
}

/// A command that runs. It is killed if the test ends before it does.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    pub(crate) fn of(child: Child) -> Self {
        Process { child }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let end = now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(now() < end, "the command hangs");
            nap();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal {
    Int,
    Kill,
    Stop,
    Continue,
}

pub(crate) fn send(pid: u32, signal: Signal) {
    use rustix::process::{Pid, Signal as S, kill_process};
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let signal = match signal {
        Signal::Int => S::INT,
        Signal::Kill => S::KILL,
        Signal::Stop => S::STOP,
        Signal::Continue => S::CONT,
    };
    // A process that has just ended is as good as one that got the signal.
    let _ = kill_process(pid, signal);
}

/// Whether there is a process of this number that still runs: one that ended and was not waited for does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    use rustix::process::{Pid, test_kill_process};
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let zombie = fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')));
    test_kill_process(process).is_ok() && !zombie
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = now() + PATIENCE;
    while !condition() {
        assert!(now() < end, "this never came: {what}");
        nap();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "these tests watch real processes, which no clock of ours drives"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "between two looks at a condition")]
fn nap() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Waits. Only for what is a period by itself, such as a kill every second.
#[expect(clippy::disallowed_methods, reason = "a period, not a condition")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
