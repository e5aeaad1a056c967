//! Redis for the suite: a server of this machine behind a wire that can be cut, or a given one.

pub mod topology;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::{Backend, BackendError, Key, Namespace, Version};
use coord_redis::{RedisBackend, RedisConfig};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Launch, Place, Ready, ServerProcess, Store, free_port, fresh_folder};
use crate::harness::{Control, ControlError, Cut, Harness, Misconfiguration, ServerControl};
use crate::wire::{Forwarder, Turns};

/// Where Redis is found.
pub const REDIS: Store = Store {
    name: "redis",
    variable: "COORD_REDIS_URL",
    programs: &["redis-server"],
    folders: &["/usr/bin", "/usr/local/bin"],
    image: super::Image {
        name: "redis",
        tag: "7.0",
        port: 6379,
        command: &["--appendonly", "yes", "--appendfsync", "always", "--save", ""],
        environment: &[],
        url: "redis://127.0.0.1:PORT",
    },
};

/// The settings with which nothing that was acknowledged is lost.
pub const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// The suite's Redis. The several processes of a clause are given its URL by `COORD_REDIS_URL`.
#[derive(Debug)]
pub struct RedisHarness {
    /// Where handles connect.
    url: Result<String, String>,
    local: Option<LocalRedis>,
    /// Servers with a fault in their settings, kept until the end.
    faulty: Mutex<Vec<ServerProcess>>,
}

/// One server of this machine, and the wire to it.
#[derive(Debug)]
struct LocalRedis {
    program: PathBuf,
    server: ServerProcess,
    port: u16,
    wire: Forwarder,
}

impl RedisHarness {
    /// The server that the environment names or allows to start.
    ///
    /// # Errors
    /// If a server that should start does not.
    pub async fn from_environment() -> Result<Self, ControlError> {
        match Place::of(&REDIS) {
            Place::Given(url) => Ok(RedisHarness::given(url)),
            Place::Local(programs) => {
                let [program] = programs.try_into().map_err(|_| "Redis is one program")?;
                let local = LocalRedis::start(program).await?;
                let url = format!("redis://{}/?response_timeout=8s&connect_timeout=2s", local.wire.address());
                Ok(RedisHarness { url: Ok(url), local: Some(local), faulty: Mutex::default() })
            }
            Place::Container => Ok(RedisHarness::nowhere("no container has been started".into())),
            Place::Nowhere(why) => Ok(RedisHarness::nowhere(why)),
        }
    }

    /// No server: why.
    #[must_use]
    pub fn nowhere(why: String) -> Self {
        RedisHarness { url: Err(why), local: None, faulty: Mutex::default() }
    }

    /// A server that runs already.
    #[must_use]
    pub fn given(url: String) -> Self {
        RedisHarness { url: Ok(url), local: None, faulty: Mutex::default() }
    }
}

impl LocalRedis {
    async fn start(program: PathBuf) -> Result<Self, ControlError> {
        let port = free_port(0, 0)?;
        let server = ServerProcess::start(launch(&program, port, DURABLE)?).await?;
        let wire = Forwarder::start(format!("127.0.0.1:{port}"), || Box::new(Turns::default())).await?;
        Ok(LocalRedis { program, server, port, wire })
    }
}

/// How to start a server that listens on this port of loopback and writes no snapshots, with these settings on top.
///
/// # Errors
/// If its folder cannot be made.
pub fn launch(program: &Path, port: u16, settings: &[&str]) -> Result<Launch, ControlError> {
    let port_text = port.to_string();
    let own = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"];
    Ok(Launch {
        name: format!("redis-server on port {port}"),
        program: program.to_owned(),
        arguments: own.iter().chain(settings).map(Into::into).collect(),
        folder: fresh_folder("redis")?,
        ready: ready(port),
        ready_within: Duration::from_secs(30),
    })
}

/// Whether a Redis server or sentinel answers on this port. A refusal without a password is an answer.
fn ready(port: u16) -> Ready {
    Arc::new(move || {
        Box::pin(async move {
            let ask = async {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
                stream.write_all(b"PING\r\n").await?;
                let mut answer = [0; 64];
                let length = stream.read(&mut answer).await?;
                std::io::Result::Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
            };
            let answer = tokio::time::timeout(Duration::from_secs(1), ask).await??;
            if answer.starts_with("+PONG") || answer.starts_with("-NOAUTH") {
                Ok(())
            } else {
                Err(format!("it says {:?}", answer.trim_end()).into())
            }
        })
    })
}

/// A connection to the server on this port of loopback, past the backend.
///
/// # Errors
/// If there is none.
pub async fn client(port: u16) -> Result<MultiplexedConnection, ControlError> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/?protocol=resp3"))?;
    let settings = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(10)));
    Ok(client.get_multiplexed_async_connection_with_config(&settings).await?)
}

/// Runs one command past the backend: words separated by blanks.
///
/// # Errors
/// If the server cannot be asked, or answers with an error.
pub async fn command(port: u16, words: &str) -> Result<Value, ControlError> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    for word in words {
        command.arg(word);
    }
    Ok(command.query_async(&mut client(port).await?).await?)
}

/// Where the backend keeps a key, and the index of its namespace.
fn physical(namespace: &str, key: &Key) -> (String, String) {
    (format!("{{{namespace}}}:k:{key}"), format!("{{{namespace}}}:index"))
}

#[async_trait]
impl Harness for RedisHarness {
    fn name(&self) -> &str {
        REDIS.name
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let url = self.url.as_deref().unwrap_or_default();
        let backend = RedisBackend::open(&RedisConfig::from_url(url)?, &Namespace::new(namespace)?).await?;
        Ok(Arc::new(backend))
    }

    fn unavailable(&self) -> Option<String> {
        self.url.as_ref().err().cloned()
    }

    fn server(&self) -> Option<&dyn ServerControl> {
        self.local.as_ref().map(|local| local as &dyn ServerControl)
    }

    async fn open_misconfigured(
        &self,
        fault: Misconfiguration,
    ) -> Option<Result<Arc<dyn Backend>, BackendError>> {
        let local = self.local.as_ref()?;
        let master = format!("127.0.0.1 {}", local.port);
        let settings = match fault {
            Misconfiguration::NotDurable => vec!["--appendonly", "no"],
            Misconfiguration::LazySync => vec!["--appendonly", "yes", "--appendfsync", "everysec"],
            Misconfiguration::Evicting => [DURABLE, &["--maxmemory-policy", "allkeys-lru"]].concat(),
            Misconfiguration::ReadOnly => {
                [DURABLE, &["--repl-diskless-sync-delay", "0", "--replicaof", &master]].concat()
            }
        };
        let start = async {
            let port = free_port(0, 0)?;
            let server = ServerProcess::start(launch(&local.program, port, &settings)?).await?;
            Ok::<_, ControlError>((port, server))
        };
        let (port, server) = match start.await {
            Ok(started) => started,
            Err(error) => {
                let (kind, operation) = (coord_core::ErrorKind::Unavailable, coord_core::Operation::Connect);
                return Some(Err(BackendError::new(kind, "redis", operation, error.to_string())));
            }
        };
        self.faulty.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        Some(RedisHarness::given(format!("redis://127.0.0.1:{port}")).open("misconfigured").await)
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        self.url.iter().map(|url| (REDIS.variable.to_owned(), url.clone())).collect()
    }
}

#[async_trait]
impl ServerControl for LocalRedis {
    fn can(&self, control: Control) -> bool {
        matches!(
            control,
            Control::Kill
                | Control::Pause
                | Control::Cut
                | Control::FlushScripts
                | Control::Foreign
                | Control::SetVersion
        )
    }

    async fn kill(&self) -> Result<(), ControlError> {
        self.server.kill().await
    }

    async fn restart(&self) -> Result<(), ControlError> {
        self.server.restart().await
    }

    async fn pause(&self) -> Result<(), ControlError> {
        self.server.pause()
    }

    async fn resume(&self) -> Result<(), ControlError> {
        self.server.resume()
    }

    async fn cut(&self, cut: Cut) -> Result<(), ControlError> {
        self.wire.cut(cut);
        Ok(())
    }

    async fn heal(&self) -> Result<usize, ControlError> {
        Ok(self.wire.heal())
    }

    async fn flush_scripts(&self) -> Result<(), ControlError> {
        command(self.port, "SCRIPT FLUSH SYNC").await.map(|_| ())
    }

    async fn write_foreign(&self, namespace: &str, key: &Key, variant: usize) -> Result<bool, ControlError> {
        let (place, _) = physical(namespace, key);
        let hash = |fields: &[&str]| {
            let mut command = redis::cmd("HSET");
            command.arg(&place).arg(fields);
            command
        };
        let command = match variant {
            0 => redis::cmd("SET").arg(&place).arg("not ours").to_owned(),
            1 => redis::cmd("RPUSH").arg(&place).arg("not ours").to_owned(),
            2 => redis::cmd("ZADD").arg(&place).arg(0).arg("not ours").to_owned(),
            3 => hash(&["name", "not ours"]),
            4 => hash(&["i", "1", "c", "1"]),
            5 => hash(&["i", "1", "c", "1", "x", ""]),
            6 => hash(&["i", "1", "c", "1", "v", "", "x", ""]),
            7 => hash(&["i", "1", "c", "0", "v", ""]),
            8 => hash(&["i", "0", "c", "1", "v", ""]),
            9 => hash(&["i", "1", "c", "01", "v", ""]),
            10 => hash(&["i", "1", "c", "1e+15", "v", ""]),
            11 => hash(&["i", "1", "c", "9223372036854775808", "v", ""]),
            12 => hash(&["i", "-1", "c", "1", "v", ""]),
            13 => hash(&["i", "", "c", "", "v", ""]),
            _ => return Ok(false),
        };
        let mut both = redis::pipe();
        both.atomic().cmd("DEL").arg(&place).ignore().add_command(command).ignore();
        let () = both.query_async(&mut client(self.port).await?).await?;
        Ok(true)
    }

    async fn read_raw(&self, namespace: &str, key: &Key) -> Result<Option<Vec<u8>>, ControlError> {
        let (place, _) = physical(namespace, key);
        Ok(redis::cmd("DUMP").arg(place).query_async(&mut client(self.port).await?).await?)
    }

    async fn remove_raw(&self, namespace: &str, key: &Key) -> Result<(), ControlError> {
        let (place, index) = physical(namespace, key);
        let mut both = redis::pipe();
        both.atomic().cmd("DEL").arg(place).ignore().cmd("ZREM").arg(index).arg(key.as_str()).ignore();
        Ok(both.query_async(&mut client(self.port).await?).await?)
    }

    async fn set_version(&self, namespace: &str, key: &Key, version: Version) -> Result<bool, ControlError> {
        let (place, _) = physical(namespace, key);
        let mut command = redis::cmd("HSET");
        command.arg(place).arg("i").arg(version.incarnation()).arg("c").arg(version.count());
        let added: i64 = command.query_async(&mut client(self.port).await?).await?;
        if added != 0 {
            return Err("the key was not present".into());
        }
        Ok(true)
    }
}
