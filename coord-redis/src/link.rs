//! One connection to one server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use coord_core::{BackendError, Operation};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, Pipeline,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, Value,
};

use crate::config::{Address, Login, RedisConfig};
use crate::error::{cannot_connect, unavailable};
use crate::settings;

/// A connection that any number of requests share. The driver hands each reply to the request that it belongs to, also when the future of
/// another one was dropped, and never sends anything twice.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    alive: Arc<AtomicBool>,
    pub(crate) server: Address,
    pub(crate) id: u64,
}

impl Link {
    /// Connects to a server, whatever it is.
    pub(crate) async fn open(
        config: &RedisConfig,
        server: &Address,
        login: &Login,
        database: u16,
    ) -> Result<Link, BackendError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let alive = Arc::new(AtomicBool::new(true));
        let noticed = alive.clone();
        let settings = AsyncConnectionConfig::new()
            // Bounded as a whole by `within`, with what follows.
            .set_connection_timeout(None)
            .set_response_timeout(Some(config.response_timeout()))
            // The driver tells at once when the connection ends, so that nothing more is sent into it: what is not sent has certainly not
            // happened.
            .set_push_sender(move |info: PushInfo| {
                if info.kind == PushKind::Disconnection {
                    noticed.store(false, Ordering::Release);
                }
                Ok::<(), std::convert::Infallible>(())
            });
        let client =
            client(config, server, login, database).map_err(|error| cannot_connect(server, error))?;
        let connecting = client.get_multiplexed_async_connection_with_config(&settings);
        let connection =
            within(config, server, async { connecting.await.map_err(|error| cannot_connect(server, error)) })
                .await?;
        Ok(Link { connection, alive, server: server.clone(), id: NEXT.fetch_add(1, Ordering::Relaxed) })
    }

    /// Connects to the server that is to hold a namespace, and checks that it is fit to.
    pub(crate) async fn join(config: &RedisConfig, server: &Address) -> Result<Link, BackendError> {
        within(config, server, async {
            let link = Link::open(config, server, &config.login, config.database).await?;
            let answers =
                link.run_all(settings::questions()).await.map_err(|error| cannot_connect(server, error))?;
            settings::check(server, config, &answers)?;
            Ok(link)
        })
        .await
    }

    /// Whether the connection has not ended, as far as is known.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Sends a command and waits for its reply, which may be an error of the server.
    pub(crate) async fn run(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.connection.clone().send_packed_command(command).await
    }

    /// As [`run`](Link::run), for a command that the server answers only after `extra`.
    pub(crate) async fn run_slow(
        &self,
        command: &Cmd,
        patience: Duration,
        extra: Duration,
    ) -> Result<Value, RedisError> {
        let mut connection = self.connection.clone();
        connection.set_response_timeout(patience.saturating_add(extra));
        connection.send_packed_command(command).await
    }

    /// Sends commands in one piece, with nothing of others in between.
    pub(crate) async fn run_all(
        &self,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<Vec<Value>, RedisError> {
        let mut pipeline = Pipeline::new();
        for command in commands {
            pipeline.add_command(command);
        }
        let count = pipeline.len();
        self.connection.clone().send_packed_commands(&pipeline, 0, count).await
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("server", &self.server)
            .field("alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}

async fn within<T>(
    config: &RedisConfig,
    server: &Address,
    connecting: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let limit = config.connect_timeout();
    tokio::time::timeout(limit, connecting).await.unwrap_or_else(|_| {
        let mut message = format!("{server} does not answer within {}", humantime::format_duration(limit));
        if config.tls.is_some() {
            message.push_str(" (perhaps it speaks no TLS, and the URL begins with `redis`)");
        }
        Err(unavailable(Operation::Connect, message))
    })
}

fn client(
    config: &RedisConfig,
    server: &Address,
    login: &Login,
    database: u16,
) -> Result<Client, RedisError> {
    let mut handshake = RedisConnectionInfo::default()
        .set_db(i64::from(database))
        // The third version of the protocol, without which the driver does not tell when a connection ends.
        .set_protocol(ProtocolVersion::RESP3)
        .set_skip_set_lib_name();
    if let Some(password) = &login.password {
        handshake = handshake.set_password(password).set_username(login.user.as_deref().unwrap_or("default"));
    }
    let address = match &config.tls {
        None => ConnectionAddr::Tcp(server.host.clone(), server.port),
        Some(_) => ConnectionAddr::TcpTls {
            host: server.host.clone(),
            port: server.port,
            insecure: false,
            tls_params: None,
        },
    };
    let info = address
        .into_connection_info()?
        .set_tcp_settings(TcpSettings::default().set_nodelay(true))
        .set_redis_settings(handshake);
    with_certificates(config, info)
}

#[cfg(feature = "tls")]
fn with_certificates(config: &RedisConfig, info: ConnectionInfo) -> Result<Client, RedisError> {
    let Some(tls) = &config.tls else { return Client::open(info) };
    // Whichever provider the program has chosen stays; without a choice rustls would panic if several are compiled in.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |path: &std::path::Path| {
        std::fs::read(path)
            .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    let client_tls = match &tls.identity {
        None => None,
        Some((cert, key)) => {
            Some(redis::ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
        }
    };
    let root_cert = tls.authorities.as_deref().map(read).transpose()?;
    if client_tls.is_none() && root_cert.is_none() {
        return Client::open(info);
    }
    Client::build_with_tls(info, redis::TlsCertificates { client_tls, root_cert })
}

#[cfg(not(feature = "tls"))]
fn with_certificates(_config: &RedisConfig, info: ConnectionInfo) -> Result<Client, RedisError> {
    Client::open(info)
}
