//! A server as a process of this machine.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coord_core::{Clock, SystemClock};
use futures::future::BoxFuture;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::watchdog;
use crate::harness::ControlError;

/// Whether a server accepts requests, else why not yet. Each call must end by itself, within a second or so.
pub type Ready = Arc<dyn Fn() -> BoxFuture<'static, Result<(), ControlError>> + Send + Sync>;

/// How one server is started: every start runs the same command in the same folder.
#[derive(Clone)]
pub struct Launch {
    /// What errors call it.
    pub name: String,
    /// The program. It must stay in the foreground and in the process group that it is started in (`setpriv` and the like, which replace
    /// themselves by the server, are fine).
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its working folder, which holds its data, its `log` and its `pid`; from [`fresh_folder`]. Removed when the server is dropped.
    pub folder: PathBuf,
    /// Whether it accepts requests.
    pub ready: Ready,
    /// How long that may take.
    pub ready_within: Duration,
}

impl fmt::Debug for Launch {
    // Not the arguments, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("name", &self.name)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// A new, empty folder for one server. It disappears when this program ends, also by `kill -9`.
///
/// # Errors
/// If the folder cannot be made.
pub fn fresh_folder(name: &str) -> Result<PathBuf, ControlError> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = watchdog::folder()?.join(format!("{name}-{number}"));
    fs::create_dir(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o711))?;
    Ok(folder)
}

/// A server that runs as a process of this machine, in a process group of its own. Dropping it kills it and removes its data; the end of
/// this program, in whatever way, does the same.
#[derive(Debug)]
pub struct ServerProcess {
    launch: Launch,
    child: Mutex<Option<Child>>,
}

impl ServerProcess {
    /// Starts a server and waits until it accepts requests.
    ///
    /// # Errors
    /// If it cannot be started, ends again, or does not accept requests in time; the text has the end of its log.
    pub async fn start(launch: Launch) -> Result<ServerProcess, ControlError> {
        let server = ServerProcess { launch, child: Mutex::new(None) };
        server.restart().await?;
        Ok(server)
    }

    /// How it is started.
    #[must_use]
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// The id of the process, `None` if it does not run.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Starts the server again on its data, and waits until it accepts requests. Nothing happens to one that runs, except that it is
    /// waited for.
    ///
    /// # Errors
    /// As [`start`](ServerProcess::start).
    pub async fn restart(&self) -> Result<(), ControlError> {
        self.spawn()?;
        let ready = self.launch.ready.clone();
        let waited = wait_until(self.launch.ready_within, || {
            let (ready, ended) = (ready(), self.ended());
            async move {
                match ended {
                    Some(status) => Ok(Err(format!("it has ended: {status}").into())),
                    None => ready.await.map(Ok),
                }
            }
        })
        .await;
        match waited {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) | Err(why) => {
                Err(format!("{} does not start: {why}\n{}", self.launch.name, self.log_end()).into())
            }
        }
    }

    /// Kills it at once (`SIGKILL`, the whole tree of its processes), and returns when it is gone.
    ///
    /// # Errors
    /// If it is not gone after ten seconds.
    pub async fn kill(&self) -> Result<(), ControlError> {
        self.stop(Signal::KILL).await
    }

    /// Asks it to end (`SIGTERM`), and returns when it is gone.
    ///
    /// # Errors
    /// If it is not gone after ten seconds.
    pub async fn terminate(&self) -> Result<(), ControlError> {
        self.stop(Signal::TERM).await
    }

    /// Stops it without closing anything (`SIGSTOP`, the whole tree of its processes).
    ///
    /// # Errors
    /// If it does not run.
    pub fn pause(&self) -> Result<(), ControlError> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused one work on (`SIGCONT`).
    ///
    /// # Errors
    /// If it does not run.
    pub fn resume(&self) -> Result<(), ControlError> {
        self.signal(Signal::CONT)
    }

    /// The end of its log, for errors.
    #[must_use]
    pub fn log_end(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(self.launch.folder.join("log"))?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(2_000)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self) -> Result<(), ControlError> {
        let mut child = self.child();
        if let Some(running) = child.as_mut() {
            match running.try_wait()? {
                None => return Ok(()),
                Some(_) => watchdog::forget(running.id()),
            }
        }
        let log = OpenOptions::new().create(true).append(true).open(self.launch.folder.join("log"))?;
        let started = Command::new(&self.launch.program)
            .args(&self.launch.arguments)
            .current_dir(&self.launch.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", self.launch.program.display()))?;
        let id = started.id();
        // Kept first, so that it is killed whatever fails from here on.
        *child = Some(started);
        watchdog::watch(id)?;
        fs::write(self.launch.folder.join("pid"), id.to_string())?;
        Ok(())
    }

    /// How it has ended, if it has.
    fn ended(&self) -> Option<String> {
        let mut child = self.child();
        match child.as_mut()?.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    async fn stop(&self, signal: Signal) -> Result<(), ControlError> {
        let Some(id) = self.id() else { return Ok(()) };
        if self.ended().is_none() {
            self.signal(signal)?;
            // A stopped process does not hear a request to end.
            self.signal(Signal::CONT)?;
        }
        wait_until(Duration::from_secs(10), || {
            let gone = self.ended().is_some();
            async move { if gone { Ok(()) } else { Err("it still runs".into()) } }
        })
        .await
        .map_err(|why| format!("{} does not end: {why}", self.launch.name))?;
        *self.child() = None;
        watchdog::forget(id);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<(), ControlError> {
        let Some(id) = self.id() else { return Err(format!("{} does not run", self.launch.name).into()) };
        send(id, signal);
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child().take() {
            if matches!(child.try_wait(), Ok(None)) {
                send(child.id(), Signal::KILL);
            }
            // Only fails if it has been waited for already.
            let _ = child.wait();
            watchdog::forget(child.id());
        }
        // What is left is removed at the end of the program.
        let _ = fs::remove_dir_all(&self.launch.folder);
    }
}

/// Sends a signal to a process group and to every descendant of its leader that has left it.
fn send(leader: u32, signal: Signal) {
    let Some(group) = pid(leader) else { return };
    let mut others = Vec::new();
    if signal == Signal::KILL || signal == Signal::STOP {
        // Each is stopped before its children are looked for, so that none is born while the others end, and lives on.
        let _ = kill_process(group, Signal::STOP);
        loop {
            let found: Vec<u32> = descendants(leader).into_iter().filter(|id| !others.contains(id)).collect();
            if found.is_empty() {
                break;
            }
            for id in found.iter().copied().filter_map(pid) {
                let _ = kill_process(id, Signal::STOP);
            }
            others.extend(found);
        }
    } else {
        others = descendants(leader);
    }
    // A process that is gone needs no signal.
    let _ = kill_process_group(group, signal);
    for other in others.into_iter().filter_map(pid) {
        let _ = kill_process(other, signal);
    }
}

fn pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// The processes below a process, by `/proc`.
fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).ok()?;
            // The name, which may hold anything, ends with the last parenthesis; then come the state and the parent.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((id, parent))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, above)| *above == parent).map(|(id, _)| *id));
        next += 1;
    }
    found.split_off(1)
}

/// Tries again every few milliseconds until it succeeds.
///
/// # Errors
/// The last error, if that takes longer than `limit`.
pub async fn wait_until<T, F>(limit: Duration, mut attempt: impl FnMut() -> F) -> Result<T, ControlError>
where
    F: Future<Output = Result<T, ControlError>>,
{
    let clock = SystemClock::new();
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(why) if clock.monotonic() >= limit => {
                return Err(format!("not within {} s: {why}", limit.as_secs_f64()).into());
            }
            Err(_) => clock.sleep(Duration::from_millis(20)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(script: &str) -> Launch {
        let folder = fresh_folder("shell").unwrap();
        let file = folder.join("ready");
        let ready: Ready = Arc::new(move || {
            let there = file.exists();
            Box::pin(async move { if there { Ok(()) } else { Err("no file yet".into()) } })
        });
        Launch {
            name: "a shell".into(),
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            folder,
            ready,
            ready_within: Duration::from_secs(5),
        }
    }

    fn state(id: u32) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }

    #[tokio::test]
    async fn a_server_is_paused_resumed_killed_and_started_again_with_all_its_processes() {
        // The second process leaves the process group, as those of PostgreSQL do.
        let script = "setsid sleep 1000 & echo $! > other; touch ready; wait";
        let server = ServerProcess::start(launch(script)).await.unwrap();
        let (first, folder) = (server.id().unwrap(), server.launch().folder.clone());
        let other: u32 = fs::read_to_string(folder.join("other")).unwrap().trim().parse().unwrap();
        server.pause().unwrap();
        wait_until(Duration::from_secs(5), || async {
            if state(first) == Some('T') && state(other) == Some('T') { Ok(()) } else { Err("runs".into()) }
        })
        .await
        .unwrap();
        server.resume().unwrap();
        wait_until(Duration::from_secs(5), || async {
            if state(first) == Some('S') && state(other) == Some('S') { Ok(()) } else { Err("stands".into()) }
        })
        .await
        .unwrap();
        server.kill().await.unwrap();
        wait_until(Duration::from_secs(5), || async {
            match (state(first), state(other)) {
                (None, None | Some('Z')) => Ok(()),
                states => Err(format!("{states:?}").into()),
            }
        })
        .await
        .unwrap();
        fs::remove_file(folder.join("ready")).unwrap();
        server.restart().await.unwrap();
        let second = server.id().unwrap();
        assert_ne!(first, second);
        let other: u32 = fs::read_to_string(folder.join("other")).unwrap().trim().parse().unwrap();
        drop(server);
        assert_eq!(state(second), None);
        wait_until(Duration::from_secs(5), || async {
            if matches!(state(other), None | Some('Z')) { Ok(()) } else { Err("a process is left".into()) }
        })
        .await
        .unwrap();
        assert!(!folder.exists());
    }

    #[tokio::test]
    async fn a_server_that_ends_says_why_at_once() {
        let error =
            ServerProcess::start(launch("echo no such option; exit 3")).await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such option"), "{error}");
    }

    #[tokio::test]
    async fn waiting_is_bounded() {
        let error = wait_until(Duration::from_millis(50), || async { Err::<(), _>("not yet".into()) }).await;
        assert!(error.unwrap_err().to_string().contains("not yet"));
    }
}
