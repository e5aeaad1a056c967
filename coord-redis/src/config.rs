//! Where the server is and what is demanded of it, from a URL.

mod url;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use coord_core::BackendError;

/// What an acknowledged transaction survives on one server. It is what the server is *demanded* to be set to: a server that promises less
/// is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Durability {
    /// Nothing: any restart may lose everything. It must be asked for by name.
    None,
    /// A crash, except for about the last second before it (`appendonly yes`, `appendfsync everysec`). With that second go
    /// versions and fences that were already handed out. It must be asked for by name.
    Everysec,
    /// A crash: each write waits for the disk (`appendonly yes`, `appendfsync always`).
    #[default]
    Always,
}

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How the server that holds a namespace is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// It is this one.
    Single(Address),
    /// Any of these nodes knows which one it is.
    Cluster(Vec<Address>),
    /// Any of these sentinels knows which one is the master of this name.
    Sentinel { sentinels: Vec<Address>, master: String, login: Login },
}

/// User and password, neither ever shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.password.is_some() { "Login(..)" } else { "Login(none)" })
    }
}

/// The files of a TLS connection, in PEM form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Who may have signed the server's certificate, instead of those that the system trusts.
    pub(crate) authorities: Option<PathBuf>,
    /// The client's certificate and key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Where the server is and what is demanded of it.
///
/// ```
/// use coord_redis::{Durability, RedisConfig};
///
/// let config: RedisConfig = "redis://user:secret@db.example:6379/2?durability=everysec&response_timeout=2s".parse()?;
/// assert_eq!(config.durability(), Durability::Everysec);
/// assert_eq!(config.response_timeout(), std::time::Duration::from_secs(2));
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), coord_core::BackendError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    pub(crate) topology: Topology,
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    pub(crate) database: u16,
    durability: Durability,
    wait_replicas: u32,
    wait_timeout: Duration,
    connect_timeout: Duration,
    response_timeout: Duration,
}

impl RedisConfig {
    /// How long connecting to one server may take, unless something else is asked for.
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
    /// How long an answer may take, unless something else is asked for.
    pub const DEFAULT_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
    /// How long replicas may take to confirm, unless something else is asked for.
    pub const DEFAULT_WAIT_TIMEOUT: Duration = Duration::from_millis(500);
    /// The longest of each of these times that can be asked for.
    pub const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);
    /// The most replicas that can be waited for.
    pub const MAX_WAIT_REPLICAS: u32 = 100;

    /// Reads a URL:
    ///
    /// - `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, one server;
    /// - `redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]..`, some nodes of a Redis Cluster;
    /// - `redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]../MASTER[/DATABASE]`, some sentinels (on port 26379 by default) and the
    ///   name under which they know the master; user and password are those of the master.
    ///
    /// `rediss` instead of `redis` speaks TLS with all of them. User, password and master are written with `%XX` for what has a meaning in URLs.
    /// These parameters may follow after a `?`:
    ///
    /// - `durability`: `always` (the default), `everysec` or `none`, see [`Durability`];
    /// - `wait_replicas`: how many replicas must confirm a transaction, 0 by default; with fewer after `wait_timeout` (`500ms`) it is
    ///   [`Indeterminate`](coord_core::ErrorKind::Indeterminate);
    /// - `connect_timeout` (`3s`) for each server that is tried, `response_timeout` (`5s`) for each answer;
    /// - `tls_ca`, a PEM file of the authorities to trust instead of the system's; `tls_cert` and `tls_key`, the PEM files of a client
    ///   certificate; only with `rediss`;
    /// - `sentinel_user` and `sentinel_password`, where sentinels demand them.
    ///
    /// # Errors
    /// [`Config`](coord_core::ErrorKind::Config) if it is no such URL, or has another parameter or one twice. Nothing of the URL but names of
    /// parameters is repeated in the error.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        url::parse(url)
    }

    /// What the server is demanded to be set to.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// How many replicas must confirm a transaction.
    #[must_use]
    pub fn wait_replicas(&self) -> u32 {
        self.wait_replicas
    }

    /// How long they may take.
    #[must_use]
    pub fn wait_timeout(&self) -> Duration {
        self.wait_timeout
    }

    /// How long connecting to one server may take, with all that is asked of it first.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// How long an answer may take.
    #[must_use]
    pub fn response_timeout(&self) -> Duration {
        self.response_timeout
    }
}

impl FromStr for RedisConfig {
    type Err = BackendError;
    /// The same as [`RedisConfig::from_url`].
    fn from_str(url: &str) -> Result<Self, BackendError> {
        RedisConfig::from_url(url)
    }
}
