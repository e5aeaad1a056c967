//! Commands in process groups of their own.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use coord_core::Clock;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

/// A process group: all processes that a command has started, unless they left it on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(Pid);

impl Group {
    /// The group of this number, `None` if a group cannot have it.
    pub(crate) fn from_raw(number: i32) -> Option<Self> {
        // 1 is the system's first process, and 0 and less mean other things than a group.
        if number > 1 { Pid::from_raw(number).map(Group) } else { None }
    }

    /// Its number.
    pub(crate) fn as_raw(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Asks all its processes to end.
    pub(crate) fn terminate(self) {
        self.signal(Signal::TERM);
    }

    /// Ends all its processes.
    pub(crate) fn kill(self) {
        self.signal(Signal::KILL);
    }

    fn signal(self, signal: Signal) {
        if let Err(error) = kill_process_group(self.0, signal) {
            // The usual case: none of its processes is left.
            tracing::debug!(group = self.as_raw(), %error, "no signal was sent");
        }
    }
}

/// What a command gets.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    /// What `sh -c` gets.
    pub(crate) run: &'a str,
    /// Its working folder.
    pub(crate) cwd: Option<&'a str>,
    /// Variables, beyond those of this process.
    pub(crate) env: Vec<(&'a str, &'a str)>,
}

/// A command that has been started but waits for the word to go.
#[derive(Debug)]
pub(crate) struct Started {
    /// Its process group.
    pub(crate) group: Group,
    /// Its shell.
    pub(crate) child: Child,
    /// Lets it run.
    pub(crate) word: Word,
    /// What it says, standard output and standard error in one.
    pub(crate) output: pipe::Receiver,
}

/// Waits for the word on standard input, and then becomes the command. If whoever would give the word dies before, nothing runs.
const WAIT_FOR_WORD: &str = r#"read -r go && exec sh -c "$1" </dev/null"#;
/// The same for a command of several words.
const WAIT_FOR_ARGV: &str = r#"read -r go && exec "$@" </dev/null"#;

/// The word that lets a command run.
#[derive(Debug)]
pub(crate) struct Word(Option<tokio::process::ChildStdin>);

impl Word {
    /// Lets the command run.
    pub(crate) async fn go(&mut self) -> io::Result<()> {
        let mut stdin = self.0.take().ok_or_else(|| io::Error::other("the word was given already"))?;
        stdin.write_all(b"go\n").await
    }
}

/// A command of several words that has been started but waits for the word to go, with its two streams apart.
#[derive(Debug)]
pub(crate) struct StartedArgv {
    /// Its process group.
    pub(crate) group: Group,
    /// Its first process.
    pub(crate) child: Child,
    /// Lets it run.
    pub(crate) word: Word,
    /// Its standard output.
    pub(crate) output: pipe::Receiver,
    /// Its standard error.
    pub(crate) errors: pipe::Receiver,
}

impl StartedArgv {
    /// Starts a shell in a process group of its own, which becomes the command once it is told to.
    pub(crate) fn new(argv: &[String], env: &[(String, String)]) -> io::Result<Self> {
        let ((out, out_end), (err, err_end)) = (io::pipe()?, io::pipe()?);
        let mut command = Command::new("sh");
        command.args(["-c", WAIT_FOR_ARGV, "coord"]).args(argv);
        command.stdin(Stdio::piped()).stdout(out_end).stderr(err_end);
        command.process_group(0).kill_on_drop(true);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn()?;
        // The writing ends of the pipes are in the command; with it they go, so that the streams end when the last process does.
        drop(command);
        let group = group_of(&child)?;
        let word = Word(child.stdin.take());
        let receiver = |reader: io::PipeReader| pipe::Receiver::from_owned_fd(OwnedFd::from(reader));
        Ok(StartedArgv { group, child, word, output: receiver(out)?, errors: receiver(err)? })
    }
}

fn group_of(child: &Child) -> io::Result<Group> {
    child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Group::from_raw)
        .ok_or_else(|| io::Error::other("the shell ended at once"))
}

impl Started {
    /// Starts a shell in a process group of its own. It does nothing before [`Word::go`].
    pub(crate) fn new(start: &Start<'_>) -> io::Result<Self> {
        if let Some(cwd) = start.cwd
            && !std::path::Path::new(cwd).is_dir()
        {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("cwd {cwd:?} is no folder")));
        }
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new("sh");
        command.args(["-c", WAIT_FOR_WORD, "coord", start.run]);
        command.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
        command.process_group(0).kill_on_drop(true);
        command.envs(start.env.iter().copied());
        if let Some(cwd) = start.cwd {
            command.current_dir(cwd);
        }
        let mut child = command.spawn()?;
        // The writing ends of the pipe are in the command; with it they go, so that the output ends when the last process does.
        drop(command);
        let group = group_of(&child)?;
        let output = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let word = Word(child.stdin.take());
        Ok(Started { group, child, word, output })
    }
}

/// How long a command that was asked to end may take to do so.
const TERMINATION: Duration = Duration::from_secs(2);
/// How long the output may go on after the process group has ended: a process that left the group may hold it open.
pub(crate) const OUTPUT_END: Duration = Duration::from_secs(1);

/// Ends a command, if it has not ended by itself, with whatever it left behind in its group: what is done has nothing running. If `ask` says so,
/// it is asked first.
pub(crate) async fn end(
    child: &mut Child,
    group: Group,
    clock: &dyn Clock,
    ask: bool,
) -> io::Result<ExitStatus> {
    if ask {
        group.terminate();
        tokio::select! {
            _ = child.wait() => {}
            () = clock.sleep(TERMINATION) => {}
        }
    }
    group.kill();
    // One that has ended tells its status again.
    child.wait().await
}

/// The exit code and the signal of a process that ended.
pub(crate) fn code_and_signal(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    use std::os::unix::process::ExitStatusExt as _;
    (status.code(), status.signal())
}

/// The name of this machine.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
