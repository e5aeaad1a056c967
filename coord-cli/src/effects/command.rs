//! Running a command under the hold of an action.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::Clock;
use coord_core::effects::RunContext;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::kept::{Kept, Stream};
use crate::guard::Guard;
use crate::process::{Group, StartedArgv, code_and_signal};

/// How long a command that was asked to end may take to do so.
const TERMINATION: Duration = Duration::from_secs(2);
/// How long the output may go on after the process group has ended: a process that left the group may hold it open.
const OUTPUT_END: Duration = Duration::from_secs(1);
/// The shortest time between two words to the guard process.
const WORD: Duration = Duration::from_millis(100);

/// A command, and how long it may take.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) timeout: Option<Duration>,
    /// Whether its output is shown as it comes.
    pub(crate) shown: bool,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By itself.
    Exited(Kept),
    /// Nobody knows what it did; this says why.
    Unknown(String),
    /// It was not started; this says why.
    NotStarted(String),
}

/// Whether the first word of a command names a program that can be started.
pub(crate) fn find_program(program: &str) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let found = if program.contains('/') {
        is_program(Path::new(program))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| is_program(&folder.join(program)))
    };
    if found { Ok(()) } else { Err(format!("{program:?} cannot be started: there is no such program")) }
}

impl Command {
    /// Runs the command while its hold lasts.
    pub(crate) async fn run(
        self,
        context: &RunContext,
        clock: &dyn Clock,
        mut stop: watch::Receiver<bool>,
    ) -> End {
        let mut guard = match Guard::start() {
            Ok(guard) => guard,
            Err(error) => {
                return End::NotStarted(format!("the guard of the command cannot be started: {error}"));
            }
        };
        let mut started = match StartedArgv::new(&self.argv, &self.env) {
            Ok(started) => started,
            Err(error) => return End::NotStarted(format!("the command cannot be started: {error}")),
        };
        let group = started.group;
        if let Err(error) = guard.keep(group, context.remaining()) {
            group.kill();
            return End::NotStarted(format!("the guard of the command is gone: {error}"));
        }
        let streams = [Arc::new(Mutex::new(Stream::default())), Arc::new(Mutex::new(Stream::default()))];
        let out = tokio::spawn(copy(started.output, streams[0].clone(), self.shown.then_some(To::Stdout)));
        let err = tokio::spawn(copy(started.errors, streams[1].clone(), self.shown.then_some(To::Stderr)));
        if let Err(error) = started.word.go().await {
            tracing::debug!(%error, "the shell ended before it was told to go");
        }
        let began = clock.monotonic();
        let lost = context.lost();
        tokio::pin!(lost);
        let why = loop {
            let timeout = self.timeout.map(|timeout| began.saturating_add(timeout));
            let word = (context.remaining() / 4).max(WORD);
            tokio::select! {
                biased;
                status = started.child.wait() => break Ok(status),
                lost = &mut lost => break Err(format!("its lease was lost ({lost:?}), and it was killed")),
                _ = stop.wait_for(|stop| *stop) => break Err("coord was stopped by a signal, and it was killed".to_owned()),
                () = until(clock, timeout) => {
                    let seconds = crate::definition::seconds(self.timeout.unwrap_or_default());
                    break Err(format!("it ran out of time after {seconds}, and was killed"));
                }
                () = clock.sleep(word) => {
                    if let Err(error) = guard.keep(group, context.remaining()) {
                        tracing::warn!(%error, "the guard of the command is gone");
                    }
                }
            }
        };
        if why.is_err() {
            group.terminate();
            tokio::select! {
                _ = started.child.wait() => {}
                () = clock.sleep(TERMINATION) => {}
            }
        }
        // Also what the command left behind in its group: what is done has nothing running.
        group.kill();
        let _ = started.child.wait().await;
        if let Err(error) = guard.done() {
            tracing::warn!(%error, "the guard of the command is gone");
        }
        end_output(clock, [out, err]).await;
        let [stdout, stderr] = streams.map(|stream| take(&stream).finish());
        match why {
            Err(why) => End::Unknown(why),
            Ok(Err(error)) => End::Unknown(format!("it was not seen to end: {error}")),
            Ok(Ok(status)) => match code_and_signal(status) {
                (Some(code), _) => {
                    End::Exited(Kept { exit: u8::try_from(code).unwrap_or(u8::MAX), stdout, stderr })
                }
                (None, signal) => {
                    End::Unknown(format!("it was killed by signal {}", signal.unwrap_or_default()))
                }
            },
        }
    }
}

async fn until(clock: &dyn Clock, end: Option<Duration>) {
    match end {
        Some(end) => clock.sleep(end.saturating_sub(clock.monotonic())).await,
        None => std::future::pending().await,
    }
}

async fn end_output(clock: &dyn Clock, copies: [JoinHandle<()>; 2]) {
    let aborts = copies.each_ref().map(JoinHandle::abort_handle);
    let ends = async {
        for copy in copies {
            let _ = copy.await;
        }
    };
    tokio::select! {
        () = ends => {}
        () = clock.sleep(OUTPUT_END) => {
            tracing::warn!("a process that left its group still holds the output of the command");
            aborts.iter().for_each(tokio::task::AbortHandle::abort);
        }
    }
}

#[derive(Clone, Copy)]
enum To {
    Stdout,
    Stderr,
}

fn take(stream: &Mutex<Stream>) -> Stream {
    std::mem::take(&mut *stream.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Copies a stream, and shows it as it comes. It is read to its end whatever becomes of that, so that the command never blocks.
async fn copy(mut from: pipe::Receiver, stream: Arc<Mutex<Stream>>, mut to: Option<To>) {
    let mut buffer = vec![0; 16 * 1_024];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(0) => return,
            Ok(read) => &buffer[..read],
            Err(error) => {
                tracing::warn!(%error, "the output of the command cannot be read");
                return;
            }
        };
        stream.lock().unwrap_or_else(PoisonError::into_inner).write(read);
        let shown = match to {
            Some(To::Stdout) => show(&mut io::stdout().lock(), read),
            Some(To::Stderr) => show(&mut io::stderr().lock(), read),
            None => Ok(()),
        };
        if shown.is_err() {
            // Whoever read it went away; it is still kept.
            to = None;
        }
    }
}

pub(crate) fn show(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Ends a process group with what holds it.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Group);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}
