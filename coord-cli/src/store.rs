//! Opening a store and its boards. Each board is a namespace of the store; a namespace of its own lists them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use coord_core::board::{
    AgentId, BoardAdapter, BoardError, BoardOptions, ExtendedBoard, Task, TaskId, TaskPage,
};
use coord_core::effects::{EffectAdapter, EffectOptions, EffectStore};
use coord_core::{Assert, Backend, Key, KeyRange, KeySet, Mutation, Namespace, Prefix, Timestamp, Txn};

use crate::failure::{Failure, chain};
use crate::logs::Logs;

/// The store that is used if none is named.
pub(crate) const DEFAULT_STORE: &str = "sqlite:.coord/coord.db";
/// The namespace of the actions of `coord once`.
pub(crate) const EFFECTS: &str = "coord.effects";
/// The namespace that lists the boards of a store: `board/<name>`.
const REGISTRY: &str = "coord.boards";
const BOARD_PREFIX: &str = "board/";
/// How many tasks are read at once from a board that is too large to be listed at one instant.
const PAGE: usize = 1_000;
/// The most tasks that are listed.
const TASKS: usize = 500_000;
/// The most boards that are listed.
const BOARDS: usize = 1_000;

/// Whether a board cannot have this name.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with("coord.")
}

/// Where a store is. It has not been opened yet.
#[derive(Clone)]
pub(crate) struct Store {
    url: String,
    logs: PathBuf,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("url", &self.shown()).field("logs", &self.logs).finish()
    }
}

/// Actions that have been opened.
pub(crate) type Effects = Arc<dyn EffectStore>;

/// A board that has been opened.
#[derive(Clone, Debug)]
pub(crate) struct OpenBoard {
    /// Its name.
    pub(crate) name: Namespace,
    /// The board.
    pub(crate) board: Arc<dyn ExtendedBoard>,
    /// Where the output of its tasks is kept.
    pub(crate) logs: Logs,
    adapter: BoardAdapter<Arc<dyn Backend>>,
}

impl Store {
    /// The store of this URL; the output of tasks is kept in `logs`, or else beside the store.
    pub(crate) fn new(url: &str, logs: Option<&Path>) -> Self {
        let beside = || match sqlite_path(url).as_deref().and_then(Path::parent) {
            Some(folder) => folder.join("logs"),
            None => PathBuf::from(".coord/logs"),
        };
        Store { url: url.to_owned(), logs: logs.map_or_else(beside, Path::to_owned) }
    }

    /// The URL with everything in it. Never show it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL without its password.
    pub(crate) fn shown(&self) -> String {
        coord_connect::redact(&self.url)
    }

    /// The URL for the commands of tasks, so that they can use `coord` themselves: with an absolute path, as they may run in
    /// another folder. Only of a file: a URL with a password is not for them.
    pub(crate) fn for_commands(&self) -> Option<String> {
        let rest = self.url.strip_prefix("sqlite:")?;
        if rest.starts_with('/') {
            return Some(self.url.clone());
        }
        let folder = std::env::current_dir().ok()?;
        let folder = folder.to_str()?.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
        Some(format!("sqlite:{folder}/{rest}"))
    }

    /// The folder of the output of tasks.
    pub(crate) fn logs(&self) -> &Path {
        &self.logs
    }

    /// Several processes have to see the store.
    pub(crate) fn require_shared(&self) -> Result<(), Failure> {
        if self.url.split(':').next() == Some("memory") {
            return Err(Failure::usage(
                "the store memory: lives inside one process, and coord runs tasks in several",
            )
            .help(format!("leave --store out, for {DEFAULT_STORE}")));
        }
        Ok(())
    }

    /// A store that nobody has made yet has no boards, and looking at it must not make it.
    fn require_existing(&self) -> Result<(), Failure> {
        match sqlite_path(&self.url) {
            Some(path) if matches!(path.try_exists(), Ok(false)) => Err(Failure::usage(format!(
                "there is no store {}",
                self.shown()
            ))
            .help("`coord run PLAN.toml` or `coord add PLAN.toml` makes one; --store or COORD_STORE names another")),
            _ => Ok(()),
        }
    }

    async fn connect(&self, namespace: &Namespace) -> Result<Arc<dyn Backend>, Failure> {
        coord_connect::connect(&self.url, namespace).await.map_err(|error| {
            let failure = Failure::from(error).context(format!("the store {} cannot be used", self.shown()));
            match missing_feature(&self.url) {
                Some(feature) => failure.help(format!(
                    "in a checkout of coord: `cargo install --path coord-cli --features {feature}`"
                )),
                None => failure,
            }
        })
    }

    async fn open(&self, name: Namespace) -> Result<OpenBoard, Failure> {
        let backend = self.connect(&name).await?;
        let logs = Logs::new(self.logs.join(name.as_str()));
        let context = format!("the board {name} of {} cannot be opened", self.shown());
        OpenBoard::over(backend, name, logs).await.map_err(|error| Failure::from(error).context(context))
    }

    /// Opens a board, and makes the store and the board if they are new.
    pub(crate) async fn create_board(&self, name: Namespace) -> Result<OpenBoard, Failure> {
        self.require_shared()?;
        if is_reserved(name.as_str()) {
            return Err(Failure::usage(format!("{name} cannot be the name of a board"))
                .help("names that begin with `coord.` are coord's own"));
        }
        if let Some(path) = sqlite_path(&self.url) {
            make_folder(&path)?;
        }
        let registry = self.connect(&registry()).await?;
        let opened = self.open(name.clone()).await?;
        // Written without a condition, so that it is never rejected: it is the same whoever writes it, however often.
        let mutation = Mutation::put(Key::new(format!("{BOARD_PREFIX}{name}"))?, &b"{}"[..]);
        let _applied = registry
            .txn(&Txn::new(Vec::<Assert>::new(), [mutation])?)
            .await
            .map_err(|error| Failure::failed(chain(&error)).context("the board cannot be registered"))?;
        Ok(opened)
    }

    /// Opens the actions of a namespace under the name of this process, and makes the store if it is new.
    pub(crate) async fn create_effects(&self, namespace: &Namespace) -> Result<Effects, Failure> {
        self.require_shared()?;
        if let Some(path) = sqlite_path(&self.url) {
            make_folder(&path)?;
        }
        self.open_effects(namespace).await
    }

    /// Opens the actions of a namespace of a store that exists.
    pub(crate) async fn existing_effects(&self, namespace: &Namespace) -> Result<Effects, Failure> {
        self.require_shared()?;
        self.require_existing()?;
        self.open_effects(namespace).await
    }

    async fn open_effects(&self, namespace: &Namespace) -> Result<Effects, Failure> {
        let backend = self.connect(namespace).await?;
        let agent = AgentId::new(format!("{}:{}", crate::process::host(), std::process::id()))?;
        let effects =
            EffectAdapter::open(backend, EffectOptions::default().agent(agent)).await.map_err(|error| {
                Failure::from(error)
                    .context(format!("the actions in {namespace} of {} cannot be opened", self.shown()))
            })?;
        Ok(Arc::new(effects))
    }

    /// The names of the boards of the store, in ascending order.
    pub(crate) async fn boards(&self) -> Result<Vec<Namespace>, Failure> {
        self.require_shared()?;
        self.require_existing()?;
        let registry = self.connect(&registry()).await?;
        let keys = registry.keys(&KeyRange::new(Prefix::new(BOARD_PREFIX)?, BOARDS)?).await?;
        Ok(keys
            .iter()
            .filter_map(|key| key.as_str().strip_prefix(BOARD_PREFIX))
            .filter_map(|name| Namespace::new(name).ok())
            .collect())
    }

    /// Opens a board that exists: the named one, or the only one.
    pub(crate) async fn existing_board(&self, name: Option<&Namespace>) -> Result<OpenBoard, Failure> {
        let boards = self.boards().await?;
        let listed = boards.iter().map(Namespace::as_str).collect::<Vec<_>>().join(", ");
        let name = match (name, boards.as_slice()) {
            (Some(name), _) if boards.contains(name) => name.clone(),
            (Some(name), _) => {
                let failure =
                    Failure::usage(format!("there is no board {name} in the store {}", self.shown()));
                return Err(if boards.is_empty() {
                    failure.help("`coord add PLAN.toml` makes one")
                } else {
                    failure.help(format!("its boards are {listed}"))
                });
            }
            (None, [only]) => only.clone(),
            (None, []) => {
                return Err(Failure::usage(format!("the store {} has no board yet", self.shown()))
                    .help("`coord run PLAN.toml` or `coord add PLAN.toml` makes one"));
            }
            (None, _) => {
                return Err(Failure::usage(format!("the store {} has several boards", self.shown()))
                    .help(format!("name one with --board: {listed}")));
            }
        };
        self.open(name).await
    }
}

impl OpenBoard {
    /// The board of this namespace.
    pub(crate) async fn over(
        backend: Arc<dyn Backend>,
        name: Namespace,
        logs: Logs,
    ) -> Result<Self, BoardError> {
        let adapter = BoardAdapter::open(backend, BoardOptions::default()).await?;
        Ok(OpenBoard { name, board: Arc::new(adapter.clone()), logs, adapter })
    }

    /// All tasks; at one instant if they are few enough for that, else in pages that are not of one.
    pub(crate) async fn list(&self) -> Result<Vec<Task>, Failure> {
        match self.board.list().await {
            Err(BoardError::TooLarge { .. }) => self.pages(PAGE, TASKS).await,
            listed => Ok(listed?),
        }
    }

    /// The tasks after this one, some of them, in ascending order of their ids.
    pub(crate) async fn page(&self, after: Option<&TaskId>) -> Result<TaskPage, Failure> {
        Ok(self.board.page(after, PAGE).await?)
    }

    /// All tasks in pages of so many, each of an instant of its own; for a board that is too large to be listed at one.
    pub(crate) async fn pages(&self, page: usize, most: usize) -> Result<Vec<Task>, Failure> {
        let mut tasks = Vec::new();
        let mut after: Option<TaskId> = None;
        loop {
            let mut read = self.board.page(after.as_ref(), page).await?;
            tasks.append(&mut read.tasks);
            match read.next {
                None => return Ok(tasks),
                Some(_) if tasks.len() >= most => {
                    return Err(Failure::failed(format!("the board has more than {most} tasks")));
                }
                next => after = next,
            }
        }
    }

    /// The time of the store, if it has a clock.
    pub(crate) async fn time(&self) -> Result<Option<Timestamp>, Failure> {
        Ok(self.adapter.backend().snapshot(&KeySet::empty()).await?.store_time())
    }

    /// One task.
    pub(crate) async fn get(&self, id: &TaskId) -> Result<Task, Failure> {
        self.board.get(id).await.map_err(|error| Failure::from(error).context(format!("board {}", self.name)))
    }
}

/// The namespace of the actions of `coord once` and of plans.
pub(crate) fn effects_namespace() -> Namespace {
    Namespace::new(EFFECTS).expect("a constant name of allowed characters")
}

fn registry() -> Namespace {
    Namespace::new(REGISTRY).expect("a constant name of allowed characters")
}

/// The file of a SQLite store.
fn sqlite_path(url: &str) -> Option<PathBuf> {
    let rest = url.strip_prefix("sqlite:")?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let path = rest.split('?').next().unwrap_or(rest);
    // What cannot be decoded is for the store to refuse.
    let path = coord_core::url::decode(path).ok()?;
    if path.is_empty() { None } else { Some(PathBuf::from(path)) }
}

fn make_folder(path: &Path) -> Result<(), Failure> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    if folder.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(folder).map_err(|error| {
        Failure::failed(format!("the folder {} of the store cannot be made: {error}", folder.display()))
            .help("--store or COORD_STORE names another place")
    })?;
    // What lies in it is the state of this machine, and of no repository that it may be in.
    let _ = std::fs::write(folder.join(".gitignore"), "*\n");
    Ok(())
}

/// The cargo feature that this command would need for the store of a URL, and was built without.
fn missing_feature(url: &str) -> Option<&'static str> {
    let scheme = url.split(':').next()?.to_ascii_lowercase();
    let (feature, there) = match scheme.split('+').next()? {
        "redis" | "rediss" => ("redis", cfg!(feature = "redis")),
        "etcd" | "etcds" => ("etcd", cfg!(feature = "etcd")),
        "postgres" | "postgresql" => ("postgres", cfg!(feature = "postgres")),
        _ => return None,
    };
    (!there).then_some(feature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_that_was_not_built_in_comes_with_the_command_that_builds_it_in() {
        let cases = [
            ("redis+cluster://h", "redis", cfg!(feature = "redis")),
            ("etcds://h", "etcd", cfg!(feature = "etcd")),
            ("POSTGRES://u:secret@h/d", "postgres", cfg!(feature = "postgres")),
        ];
        for (url, feature, there) in cases {
            assert_eq!(missing_feature(url), (!there).then_some(feature), "{url}");
            if there {
                continue;
            }
            let failure =
                Store::new(url, None).connect(&Namespace::default()).await.err().unwrap().to_string();
            assert!(failure.contains(&format!("coord-cli --features {feature}`")), "{failure}");
            assert!(!failure.contains("secret"), "{failure}");
        }
        assert_eq!(missing_feature("sqlite:a.db"), None);
        assert_eq!(missing_feature("nonsense"), None);
    }

    #[test]
    fn passwords_are_not_shown() {
        let store = Store::new("redis://me:secret@host", None);
        assert!(!format!("{store:?}{}", store.shown()).contains("secret"));
    }

    #[test]
    fn output_is_kept_beside_the_store() {
        assert_eq!(Store::new("sqlite:a/b/c.db", None).logs(), Path::new("a/b/logs"));
        assert_eq!(Store::new("sqlite:c.db?x=1", None).logs(), Path::new("logs"));
        assert_eq!(Store::new("sqlite:///a%20b/c%3f.db", None).logs(), Path::new("/a b/logs"));
        assert_eq!(Store::new("redis://h", None).logs(), Path::new(".coord/logs"));
        assert_eq!(Store::new("redis://h", Some(Path::new("l"))).logs(), Path::new("l"));
    }
}
