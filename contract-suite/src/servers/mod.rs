//! Real servers, for the project's own test targets: where they come from, and how the ones of this machine are run.
//!
//! A test target asks [`Place::of`] for a store and gets one of these, the first that applies:
//! 1. the environment variable of the store (`COORD_REDIS_URL`, ...) names a running server: it is used as it is, nothing can be done to it;
//! 2. `COORD_LOCAL_SERVERS=1`: the server's program is started on loopback, with its data in a temporary folder, and the suite
//!    may kill, pause and cut it;
//! 3. containers, where this build and this machine have them;
//! 4. nowhere: every clause is shown as ignored with the reason, or has failed if `COORD_REQUIRE` names the store.

#[cfg(feature = "containers")]
mod container;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "postgres")]
pub mod postgres;
mod process;
#[cfg(feature = "redis")]
pub mod redis;
pub mod trials;
pub mod trouble;
mod watchdog;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{ControlError, Harness};

#[cfg(feature = "containers")]
pub use container::ServerContainer;
pub use process::{Launch, Ready, ServerProcess, fresh_folder, wait_until};

/// A kind of server that the suite knows how to find.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// The name in reports and in `COORD_REQUIRE`.
    pub name: &'static str,
    /// The environment variable with the URL of a running server.
    pub variable: &'static str,
    /// The programs that a local server needs.
    pub programs: &'static [&'static str],
    /// Folders besides `PATH` where they are looked for. One `*` stands for a folder of any name; the last one by name wins.
    pub folders: &'static [&'static str],
    /// What runs in a container.
    pub image: Image,
}

/// An image of a server.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Its name.
    pub name: &'static str,
    /// Its tag, the version inside.
    pub tag: &'static str,
    /// The port that the server listens on in its container.
    pub port: u16,
    /// The command that is run in it.
    pub command: &'static [&'static str],
    /// The environment variables that it needs.
    pub environment: &'static [(&'static str, &'static str)],
    /// The URL of the server; `PORT` stands for its port on loopback.
    pub url: &'static str,
}

/// Where the server of a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It runs already, behind this URL. Nothing can be done to it.
    Given(String),
    /// As processes of this machine, from these programs, in the order of [`Store::programs`].
    Local(Vec<PathBuf>),
    /// In containers.
    Container,
    /// There is none: why.
    Nowhere(String),
}

impl Place {
    /// Where the server of this store is, by the environment.
    #[must_use]
    pub fn of(store: &Store) -> Place {
        if let Ok(url) = std::env::var(store.variable)
            && !url.is_empty()
        {
            return Place::Given(url);
        }
        if std::env::var("COORD_LOCAL_SERVERS").is_ok_and(|value| value == "1") {
            return match store.programs.iter().map(|program| find(program, store.folders)).collect() {
                Ok(programs) => Place::Local(programs),
                Err(missing) => Place::Nowhere(format!("COORD_LOCAL_SERVERS is 1, but {missing}")),
            };
        }
        match containers() {
            Ok(()) => Place::Container,
            Err(why) => Place::Nowhere(format!(
                "{} names no server, COORD_LOCAL_SERVERS is not 1, and {why}",
                store.variable
            )),
        }
    }
}

/// The suite as a test program for one kind of store: `from_environment` starts or finds the server as [`Place::of`] says, `given` makes
/// the harness of a server that runs behind a URL, `nowhere` that of none, with the reason.
pub fn main<H: Harness, F: Future<Output = Result<H, ControlError>>>(
    store: &Store,
    from_environment: impl FnOnce() -> F,
    given: impl FnOnce(String) -> H,
    nowhere: impl FnOnce(String) -> H,
) -> ExitCode {
    // The wire to the server, or what removes its container, lives on this runtime, beside that of the suite.
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(store, &error),
    };
    let _entered = runtime.enter();
    match runtime.block_on(find_server(store, from_environment, given, nowhere)) {
        // The container lives until the suite has ended.
        Ok(Found { harness, container: _container }) => crate::main(harness),
        Err(error) => failed(store, &*error),
    }
}

/// What a server lives in, if that is a container.
#[cfg(feature = "containers")]
pub type Container = Option<ServerContainer>;
/// What a server lives in, if that is a container. This build starts none.
#[cfg(not(feature = "containers"))]
pub type Container = Option<std::convert::Infallible>;

/// A harness, and the container that its server lives in, if it lives in one. It needs the asynchronous runtime that it was found on.
#[derive(Debug)]
pub struct Found<H> {
    /// The harness.
    pub harness: H,
    /// The container. Dropped, it is removed.
    pub container: Container,
}

/// The server of a store, found or started as [`Place::of`] says; the functions are those of [`main`].
///
/// # Errors
/// If a server that should start does not. (One that cannot be started here is a harness that says so.)
pub async fn find_server<H: Harness, F: Future<Output = Result<H, ControlError>>>(
    store: &Store,
    from_environment: impl FnOnce() -> F,
    given: impl FnOnce(String) -> H,
    nowhere: impl FnOnce(String) -> H,
) -> Result<Found<H>, ControlError> {
    #[cfg(feature = "containers")]
    if Place::of(store) == Place::Container {
        return Ok(match ServerContainer::start(&store.image).await {
            Ok(container) => Found { harness: given(container.url().to_owned()), container: Some(container) },
            Err(why) => Found { harness: nowhere(why.to_string()), container: None },
        });
    }
    let _ = (store, given, nowhere);
    Ok(Found { harness: from_environment().await?, container: None })
}

#[allow(clippy::print_stderr, reason = "a test program has no other way to say why it has no harness")]
fn failed(store: &Store, error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{}: {error}", store.name);
    ExitCode::FAILURE
}

/// Whether containers can be started, else why not. (Whether an engine answers is seen when one is started.)
fn containers() -> Result<(), String> {
    if cfg!(not(feature = "containers")) {
        return Err("this build starts no containers (cargo feature `containers`)".to_owned());
    }
    if std::env::var_os("DOCKER_HOST").is_none() && !Path::new("/var/run/docker.sock").exists() {
        return Err("there is no container engine (DOCKER_HOST, /var/run/docker.sock)".to_owned());
    }
    Ok(())
}

fn find(program: &str, folders: &[&str]) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders
        .iter()
        .filter_map(|folder| match folder.split_once("/*") {
            None => Some(PathBuf::from(folder)),
            Some((above, below)) => {
                let names = std::fs::read_dir(above).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
                let below = below.trim_start_matches('/');
                names.map(|name| name.join(below)).filter(|path| path.join(program).is_file()).max()
            }
        })
        .chain(std::env::split_paths(&path))
        .map(|folder: PathBuf| folder.join(program))
        .find(|path| is_program(path))
        .ok_or_else(|| format!("the program {program} is not installed"))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// A port of loopback that nothing listens on, with the `spread` ports that follow at a distance of `step` free too.
///
/// It lies below the range from which systems take the ports of outgoing connections, so that none of these takes it while the server is
/// down, and is not given out again by this process.
///
/// # Errors
/// If a hundred tries found none.
pub fn free_port(step: u16, spread: u16) -> Result<u16, crate::ControlError> {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..100 {
        // 11,000 to 21,999: with the 10,000 that Redis Cluster adds, all stay below 32,768.
        let port = 11_000 + (crate::context::system_random() % 11_000) as u16;
        let ports: Vec<u16> = (0..=spread).map(|n| port + n * step).collect();
        let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
        if ports.iter().all(|port| !given.contains(port) && free(port)) {
            given.extend(ports);
            return Ok(port);
        }
    }
    Err("saw no free port on loopback in a hundred tries".into())
}
