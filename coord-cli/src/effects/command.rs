//! Running a command under the hold of an action.

use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::Clock;
use coord_core::effects::RunContext;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::kept::{Kept, Stream};
use crate::execute::sleep_until;
use crate::guard::Guard;
use crate::process::{self, Group, OUTPUT_END, StartedArgv, code_and_signal};

/// The shortest time between two words to the guard process.
const WORD: Duration = Duration::from_millis(100);
/// How many pieces of output, of at most 16 KiB each, may wait for whoever reads them before the command has to.
const AHEAD: usize = 64;
/// How much output may wait once the command has ended: more than the pipe can still hold.
const LATE: usize = 4 * 1_024 * 1_024;

/// A command, and how long it may take.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) timeout: Option<Duration>,
    /// Where its output is shown as it comes, if it is.
    pub(crate) shown: Option<Showing>,
}

/// Output that is being shown. Whoever reads it may take as long as they like: it is written by threads of its own, so that the lease is kept
/// alive and the result recorded meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Showing(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Showing {
    fn start(&self, to: To) -> mpsc::Sender<Vec<u8>> {
        let (shown, mut to_show) = mpsc::channel::<Vec<u8>>(AHEAD);
        self.add(tokio::task::spawn_blocking(move || {
            while let Some(bytes) = to_show.blocking_recv() {
                let written = match to {
                    To::Stdout => show(&mut io::stdout().lock(), &bytes),
                    To::Stderr => show(&mut io::stderr().lock(), &bytes),
                };
                if written.is_err() {
                    // Whoever read it went away; it is still kept.
                    return;
                }
            }
        }));
        shown
    }

    fn add(&self, task: JoinHandle<()>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// Waits until all of it is written.
    pub(crate) async fn end(&self) {
        loop {
            let task = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(task) = task else { return };
            let _ = task.await;
        }
    }
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
        Some(PathBuf::from(program)).filter(|path| is_program(path))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| is_program(path))
    };
    let Some(found) = found else {
        return Err(format!("{program:?} cannot be started: there is no such program"));
    };
    match interpreter(&found) {
        Some(interpreter) if !is_program(Path::new(&interpreter)) => Err(format!(
            "{program:?} cannot be started: there is no {interpreter:?}, which its first line names"
        )),
        _ => Ok(()),
    }
}

/// What the first line of a script names, `None` if it is no script.
fn interpreter(program: &Path) -> Option<String> {
    let mut line = Vec::new();
    std::fs::File::open(program).ok()?.take(256).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    line.trim_matches([' ', '\t']).split([' ', '\t']).next().map(str::to_owned)
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
        // It may have taken long to get here. From the word on it is being done.
        if context.is_lost() {
            return End::NotStarted("its lease was lost before it was started".to_owned());
        }
        if *stop.borrow() {
            return End::NotStarted("coord was stopped by a signal before it was started".to_owned());
        }
        let (over, is_over) = watch::channel(false);
        let out = self.copy(started.output, &streams[0], To::Stdout, &is_over);
        let err = self.copy(started.errors, &streams[1], To::Stderr, &is_over);
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
                () = sleep_until(clock, timeout) => {
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
        let _ = process::end(&mut started.child, group, clock, why.is_err()).await;
        if let Err(error) = guard.done() {
            tracing::warn!(%error, "the guard of the command is gone");
        }
        over.send_replace(true);
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

/// A stream that is being read to its end.
struct Reading {
    ended: oneshot::Receiver<()>,
    abort: oneshot::Sender<()>,
}

async fn end_output(clock: &dyn Clock, streams: [Reading; 2]) {
    let (ends, aborts): (Vec<_>, Vec<_>) = streams.into_iter().map(|one| (one.ended, one.abort)).unzip();
    let ends = async {
        for end in ends {
            let _ = end.await;
        }
    };
    tokio::select! {
        () = ends => {}
        () = clock.sleep(OUTPUT_END) => {
            tracing::warn!("a process that left its group still holds the output of the command");
        }
    }
    drop(aborts);
}

#[derive(Clone, Copy)]
enum To {
    Stdout,
    Stderr,
}

fn take(stream: &Mutex<Stream>) -> Stream {
    std::mem::take(&mut *stream.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Command {
    fn copy(
        &self,
        from: pipe::Receiver,
        stream: &Arc<Mutex<Stream>>,
        to: To,
        over: &watch::Receiver<bool>,
    ) -> Reading {
        let (end, ended) = oneshot::channel();
        let (abort, aborted) = oneshot::channel::<()>();
        let (stream, over) = (stream.clone(), over.clone());
        let mut to = self.shown.as_ref().map(|showing| showing.start(to));
        let task = tokio::spawn(async move {
            let mut late = Vec::new();
            tokio::select! {
                biased;
                () = copy(from, &stream, &mut to, &mut late, over) => {}
                _ = aborted => {}
            }
            let _ = end.send(());
            if let Some(to) = to
                && !late.is_empty()
            {
                let _ = to.send(late).await;
            }
        });
        if let Some(showing) = &self.shown {
            showing.add(task);
        }
        Reading { ended, abort }
    }
}

/// Copies a stream, and has it shown as it comes. It is read to its end also if nobody reads what is shown any more. While the command runs, it
/// waits for a reader that is slow, as it would without us; what is left when it has ended is read at once, and what could not be shown yet
/// is put into `late`.
async fn copy(
    mut from: pipe::Receiver,
    stream: &Mutex<Stream>,
    to: &mut Option<mpsc::Sender<Vec<u8>>>,
    late: &mut Vec<u8>,
    mut over: watch::Receiver<bool>,
) {
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
        let Some(shown) = to.clone() else { continue };
        if late.is_empty() {
            let room = tokio::select! {
                biased;
                room = shown.reserve() => Some(room),
                // A sender that is gone is the end of the command too.
                _ = over.wait_for(|over| *over) => None,
            };
            match room {
                Some(Ok(room)) => room.send(read.to_vec()),
                Some(Err(_)) => *to = None,
                None => late.extend_from_slice(read),
            }
        } else if late.len() < LATE || shown.send(std::mem::take(late)).await.is_ok() {
            late.extend_from_slice(read);
        } else {
            *to = None;
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
