//! `coord top`: the command itself, in a terminal that the test plays, and without one.

#![allow(clippy::unwrap_used, reason = "in a test it is the check")]

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use common::{Folder, Process, until};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const PLAN: &str = "
[plan]
name = 'demo'

[[task]]
id = 'build'
title = 'Build it'
run = 'true'

[[task]]
id = 'break'
run = 'exit 3'

[[task]]
id = 'after'
run = 'true'
deps = ['break']
";

fn added() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", PLAN);
    folder.coord(["add", "plan.toml"]).expect(0);
    folder
}

fn standing(folder: &Folder, id: &str) -> String {
    folder.standings().into_iter().find(|(task, _)| task == id).unwrap().1
}

#[test]
fn without_a_terminal_one_frame_is_printed_as_text() {
    let folder = added();
    let shown = folder.coord(["top"]).expect(0);
    assert!(shown.err.contains("standard output is no terminal: one frame as text"), "{}", shown.err);
    let frame = shown.out;
    assert!(frame.starts_with("board demo of sqlite:.coord/coord.db: 1 waiting, 2 ready\n"), "{frame}");
    assert!(frame.contains("\nready 2\n  TASK") && frame.contains("Build it"), "{frame}");
    let once = folder.coord(["top", "--once"]).expect(0);
    assert_eq!((once.err.as_str(), once.out.contains("\nwaiting 1\n")), ("", true), "{}", once.out);
    folder.coord(["run", "plan.toml", "--workers", "1"]).expect(1);
    let frame = folder.coord(["top", "--once", "--read-only"]).expect(0).out;
    assert!(frame.contains("break: failed") && frame.contains("exit 3 after"), "{frame}");
    let document = folder.coord(["top", "--format", "json"]).expect(0).json();
    assert_eq!(document["counts"]["blocked"], 1, "{document}");
    assert_eq!((&document["board"], document["running"].as_array().unwrap().len()), (&"demo".into(), 0));
}

#[test]
fn bad_arguments_are_refused() {
    let folder = added();
    for interval in ["10ms", "2h", "soon"] {
        let refused = folder.coord(["top", "--interval", interval]).expect(2);
        assert!(refused.err.contains("--interval"), "{}", refused.err);
    }
    let unknown = folder.coord(["top", "--board", "other"]).expect(2);
    assert!(unknown.err.contains("its boards are demo"), "{}", unknown.err);
}

/// A terminal, and the command in it.
struct Played {
    terminal: OwnedFd,
    seen: Arc<Mutex<Vec<u8>>>,
    command: Process,
}

impl Played {
    fn start(folder: &Folder, args: &[&str]) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(NOCTTY);
        let other_end = || Stdio::from(options.open(&name).unwrap());
        let mut command = folder.command(args.iter().copied());
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        command.stdin(other_end()).stdout(other_end()).stderr(other_end());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (File::from(terminal.try_clone().unwrap()), Arc::clone(&seen));
        let command = Process::of(command.spawn().unwrap());
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // The end of the command is an error here.
            while let Ok(read @ 1..) = from.read(&mut piece) {
                into.lock().unwrap().extend_from_slice(&piece[..read]);
            }
        });
        Played { terminal, seen, command }
    }

    /// Whether this has been written to the terminal, after what was found before.
    fn has(&self, what: &str) -> bool {
        let mut seen = self.seen.lock().unwrap();
        let found = seen.windows(what.len()).position(|window| window == what.as_bytes());
        if let Some(at) = found {
            seen.drain(..at + what.len());
        }
        found.is_some()
    }

    #[track_caller]
    fn shows(&self, what: &str) {
        until(what, || self.has(what));
    }

    fn press(&self, keys: &str) {
        File::from(self.terminal.try_clone().unwrap()).write_all(keys.as_bytes()).unwrap();
    }

    /// Whether the terminal gives keys on as they come.
    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

/// `O_NOCTTY` is what keeps the terminal that is played from becoming that of the tests.
const NOCTTY: i32 = OpenptFlags::NOCTTY.bits() as i32;
/// What makes a terminal leave its alternate screen.
const LEFT: &str = "\u{1b}[?1049l";

#[test]
fn keys_cancel_and_retry_and_the_terminal_is_given_back() {
    let folder = added();
    let mut played = Played::start(&folder, &["top", "--interval", "100ms"]);
    played.shows("ready 2");
    assert!(played.is_raw());
    played.press("2");
    played.shows("Build it");
    played.press("c");
    played.shows("cancel build? y/n");
    assert_eq!(standing(&folder, "build"), "ready");
    played.press("y");
    played.shows("is cancelled");
    assert_eq!(standing(&folder, "build"), "cancelled");
    played.press("6");
    played.shows("AGO");
    played.press("r");
    played.shows("is open again");
    assert_eq!(standing(&folder, "build"), "ready");
    // What others do is seen.
    folder.coord(["cancel", "break"]).expect(0);
    played.press("4");
    played.shows("break: cancelled");
    played.press("q");
    assert_eq!(played.command.wait(), Some(0));
    played.shows(LEFT);
    assert!(!played.is_raw());
}

#[test]
fn read_only_changes_nothing() {
    let folder = added();
    let before = folder.coord(["ls", "--format", "json"]).expect(0).out;
    let mut played = Played::start(&folder, &["top", "--read-only"]);
    played.shows("read-only");
    played.shows("ready 2");
    played.press("2cy");
    played.shows("no key changes the board");
    played.press("\u{3}");
    assert_eq!(played.command.wait(), Some(130));
    assert!(!played.is_raw());
    assert_eq!(folder.coord(["ls", "--format", "json"]).expect(0).out, before);
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let folder = added();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut played = Played::start(&folder, &["top"]);
        played.shows("ready 2");
        assert!(played.is_raw());
        let process = Pid::from_raw(i32::try_from(played.command.id()).unwrap()).unwrap();
        kill_process(process, signal).unwrap();
        assert_eq!(played.command.wait(), Some(130));
        played.shows(LEFT);
        assert!(!played.is_raw());
    }
}
