//! The guard: a small process beside each command of a worker, which kills the command's process group when the worker dies, or when
//! it does not say in time that the lease goes on. So a command does not outlive its claim, also if the worker is killed with -9 or
//! stopped.
//!
//! It reads lines from the worker: `keep GROUP MILLISECONDS`, `done`. The end of the input is the end of the worker.

use std::io::{self, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use coord_core::{Clock, SystemClock};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use crate::process::Group;

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    input: Option<ChildStdin>,
}

impl Guard {
    /// Starts a guard.
    pub(crate) fn start() -> io::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("guard")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Neither Ctrl-C nor what kills the worker's group reaches it.
            .process_group(0)
            .spawn()?;
        let input = child.stdin.take();
        Ok(Guard { child, input })
    }

    /// This group may run for so long from now, unless more is said.
    pub(crate) fn keep(&mut self, group: Group, rest: Duration) -> io::Result<()> {
        self.say(&format!("keep {} {}\n", group.as_raw(), rest.as_millis()))
    }

    /// The group has ended.
    pub(crate) fn done(&mut self) -> io::Result<()> {
        self.say("done\n")
    }

    /// A guard that somebody has killed is replaced.
    fn say(&mut self, line: &str) -> io::Result<()> {
        let said = match &mut self.input {
            Some(input) => input.write_all(line.as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        if said.is_ok() {
            return Ok(());
        }
        *self = Guard::start()?;
        match &mut self.input {
            Some(input) => input.write_all(line.as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It ends with its input. A guard that has been replaced is gone, and only has to be waited for.
        self.input = None;
        let _ = self.child.wait();
    }
}

/// The guards of a worker: one for each command that runs at a time.
#[derive(Debug)]
pub(crate) struct Guards(Mutex<Vec<Guard>>);

impl Guards {
    /// Starts the first one.
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Guards(Mutex::new(vec![Guard::start()?])))
    }

    /// One that guards nothing.
    pub(crate) fn take(&self) -> io::Result<Guard> {
        let idle = self.lock().pop();
        idle.map_or_else(Guard::start, Ok)
    }

    /// Its command has ended. One that is dropped instead kills its command.
    pub(crate) fn give_back(&self, mut guard: Guard) {
        match guard.done() {
            Ok(()) => self.lock().push(guard),
            Err(error) => tracing::warn!(%error, "the guard of the command is gone"),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Guard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Keep(Group, Duration),
    Done,
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split_ascii_whitespace();
    match (words.next()?, words.next(), words.next(), words.next()) {
        ("done", None, None, None) => Some(Line::Done),
        ("keep", Some(group), Some(millis), None) => {
            let group = Group::from_raw(group.parse().ok()?)?;
            Some(Line::Keep(group, Duration::from_millis(millis.parse().ok()?)))
        }
        _ => None,
    }
}

/// The guard's own end: `coord guard`.
pub(crate) async fn run() -> io::Result<()> {
    use std::os::fd::AsFd as _;
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let input = tokio::net::unix::pipe::Receiver::from_owned_fd(input).map_err(|error| {
        io::Error::new(error.kind(), "coord guard is started by workers, with a pipe as its input")
    })?;
    watch(input, &SystemClock::new(), Group::kill).await;
    Ok(())
}

async fn watch(input: impl AsyncRead + Unpin, clock: &impl Clock, mut kill: impl FnMut(Group)) {
    let mut lines = BufReader::new(input).lines();
    let mut held: Option<(Group, Duration)> = None;
    loop {
        let line = match held {
            None => lines.next_line().await,
            Some((group, end)) => {
                let rest = end.saturating_sub(clock.monotonic());
                tokio::select! {
                    // What the worker said counts before what has passed in the meantime.
                    biased;
                    line = lines.next_line() => line,
                    () = clock.sleep(rest) => {
                        if clock.monotonic() >= end {
                            kill(group);
                            held = None;
                        }
                        continue;
                    }
                }
            }
        };
        match line {
            Ok(Some(line)) => match parse(&line) {
                Some(Line::Keep(group, rest)) => held = Some((group, clock.monotonic().saturating_add(rest))),
                Some(Line::Done) => held = None,
                None => {}
            },
            Ok(None) | Err(_) => break,
        }
    }
    if let Some((group, _)) = held {
        kill(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::{ManualClock, Timestamp};
    use std::sync::Arc;
    use tokio::io::AsyncWriteExt as _;

    fn group(number: i32) -> Group {
        Group::from_raw(number).unwrap()
    }

    async fn killed_by(input: &str) -> Vec<Group> {
        let mut killed = Vec::new();
        watch(input.as_bytes(), &ManualClock::new(Timestamp::EPOCH), |group| killed.push(group)).await;
        killed
    }

    #[tokio::test]
    async fn the_group_that_is_held_when_the_worker_dies_is_killed() {
        assert_eq!(killed_by("keep 77 1000\nkeep 77 1000\n").await, [group(77)]);
        assert_eq!(killed_by("keep 77 1000\ndone\nkeep 78 5\n").await, [group(78)]);
        assert_eq!(killed_by("keep 77 1000\ndone\n").await, []);
        assert_eq!(killed_by("").await, []);
        // Neither every process (-1, 0) nor the first one is ever killed, whatever the input says.
        assert_eq!(killed_by("keep 1 9\nkeep 0 9\nkeep -1 9\nkeep x 9\nkeep 7\nkeep 7 7 7 7\n").await, []);
    }

    #[tokio::test]
    async fn a_worker_that_says_nothing_in_time_loses_its_group() {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let killed = Arc::new(Mutex::new(Vec::new()));
        let (mut worker, input) = tokio::io::duplex(1_000);
        let guard = tokio::spawn({
            let (clock, killed) = (clock.clone(), killed.clone());
            async move { watch(input, &*clock, |group| killed.lock().unwrap().push(group)).await }
        });
        let settle = || async {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        };
        worker.write_all(b"keep 77 1000\n").await.unwrap();
        settle().await;
        clock.advance(Duration::from_millis(900));
        worker.write_all(b"keep 77 1000\n").await.unwrap();
        settle().await;
        clock.advance(Duration::from_millis(900));
        settle().await;
        assert!(killed.lock().unwrap().is_empty());
        clock.advance(Duration::from_millis(100));
        settle().await;
        assert_eq!(*killed.lock().unwrap(), [group(77)]);
        drop(worker);
        guard.await.unwrap();
        assert_eq!(killed.lock().unwrap().len(), 1);
    }
}
