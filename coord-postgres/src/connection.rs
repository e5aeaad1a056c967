//! Connections: how one is opened and checked, and how it is borrowed and given back.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use coord_core::{BackendError, ErrorKind, Operation};
use deadpool::managed::{Manager, Metrics, Object, Pool, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use tokio::time::timeout;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Socket};

use crate::config::{Durability, PostgresConfig, SslMode};
use crate::error::{Stage, Trouble, classify, doubts_commit};
use crate::schema;

/// The oldest server that the statements were written for: 13, the oldest with everything they use that was supported in the last years.
const OLDEST_SERVER: i32 = 130_000;

/// A connection that was not used for so long is asked before it is used again: what lies between may have forgotten it.
const IDLE: Duration = Duration::from_secs(30);

/// How long an idle connection may take to answer before another one is opened.
const IDLE_ANSWER: Duration = Duration::from_secs(2);

/// How long a connection whose caller has gone may take to finish its statement before it is closed.
const SETTLE: Duration = Duration::from_secs(60);

/// One connection to the database.
pub(crate) struct Connection {
    client: ClientWrapper,
    /// How often the server said, while it committed, that it gave up waiting for a standby.
    doubts: Arc<AtomicU64>,
}

impl Connection {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Acquire)
    }

    /// Waits until the statements that were sent before are done.
    async fn finish(&self) -> Result<(), Trouble> {
        match self.client.simple_query("").await {
            Ok(_) => Ok(()),
            Err(error) => Err(classify(Stage::Connect, error)),
        }
    }
}

/// Opens and checks the connections of one handle.
pub(crate) struct Connector {
    config: PostgresConfig,
    driver: Config,
    /// The same without settings of the session, for a pooler that takes none.
    plain_driver: Config,
    pooler: AtomicBool,
    #[cfg(feature = "tls")]
    tls: Option<tokio_postgres_rustls::MakeRustlsConnect>,
    /// Set once the schema is known to be there, and from then on looked at with every new connection.
    prepared: AtomicBool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Connector {
    pub(crate) fn new(config: &PostgresConfig) -> Result<Self, BackendError> {
        let mut plain_driver = Config::new();
        for server in &config.servers {
            plain_driver.host(&server.host).port(server.port);
        }
        plain_driver
            .user(&config.user)
            .dbname(&config.database)
            .application_name("coord")
            .connect_timeout(config.connect_timeout)
            .tcp_user_timeout(config.timeout)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .ssl_mode(match config.ssl_mode {
                SslMode::Disable => tokio_postgres::config::SslMode::Disable,
                SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
                SslMode::Require | SslMode::VerifyFull => tokio_postgres::config::SslMode::Require,
            });
        if let Some(password) = &config.password {
            plain_driver.password(password);
        }
        if config.servers.len() > 1 {
            plain_driver.target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
        }
        let mut driver = plain_driver.clone();
        // The server gives up before the caller does, so that the caller is told what became of it. One level of isolation for all: the
        // function needs it. Our statements are too short for just-in-time compilation to pay.
        driver.options(format!(
            "-c statement_timeout={} -c default_transaction_isolation=read\\ committed -c jit=off",
            config.statement_timeout().as_millis()
        ));
        #[cfg(not(feature = "tls"))]
        if matches!(config.ssl_mode, SslMode::Require | SslMode::VerifyFull) {
            return Err(crate::error::config_error(
                "this program was built without TLS; build it with the feature `tls` of coord-postgres, or use `sslmode=disable`",
            ));
        }
        Ok(Connector {
            config: config.clone(),
            driver,
            plain_driver,
            pooler: AtomicBool::new(false),
            #[cfg(feature = "tls")]
            tls: crate::tls::connector(config)?,
            prepared: AtomicBool::new(false),
        })
    }

    pub(crate) fn config(&self) -> &PostgresConfig {
        &self.config
    }

    /// The schema is there: from now on every new connection makes sure that it is still the one we know.
    pub(crate) fn set_prepared(&self) {
        self.prepared.store(true, Ordering::Release);
    }

    async fn open(&self) -> Result<Connection, Trouble> {
        if !self.pooler.load(Ordering::Relaxed) {
            match self.open_with(&self.driver).await {
                // A pooler such as PgBouncer refuses settings of the session in this way. Without them the waits for locks are bounded
                // all the same, and the caller by its own clock.
                Err(error) if error.code().is_some_and(|code| code.code() == "08P01") => {
                    let connection =
                        self.open_with(&self.plain_driver).await.map_err(|error| self.explain(error))?;
                    self.pooler.store(true, Ordering::Relaxed);
                    return Ok(connection);
                }
                other => return other.map_err(|error| self.explain(error)),
            }
        }
        self.open_with(&self.plain_driver).await.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: tokio_postgres::Error) -> Trouble {
        let trouble = classify(Stage::Connect, error);
        let message = format!("{}: {}", self.config.place(), trouble.message);
        Trouble { message, ..trouble }
    }

    async fn open_with(&self, driver: &Config) -> Result<Connection, tokio_postgres::Error> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return connect(driver, tls.clone()).await;
        }
        connect(driver, NoTls).await
    }

    /// What the server is. Refuses one that would lose what it acknowledges, or cannot do what the statements need.
    pub(crate) async fn look(&self, connection: &Connection) -> Result<Server, Trouble> {
        let schema = self.config.schema.as_str();
        let rows = connection
            .client
            .query_typed(include_str!("../sql/server.sql"), &[(&schema, Type::TEXT)])
            .await
            .map_err(|error| classify(Stage::Connect, error))?;
        let server = Server::read(&rows)?;
        // A deployment that has worked before is in the middle of a failover.
        if server.read_only && self.prepared.load(Ordering::Acquire) {
            return Err(Trouble::new(ErrorKind::Unavailable, "the server does not take writes now").again());
        }
        server.check(self.config.durability)?;
        Ok(server)
    }

    /// Looks at the server and, once it is known to be there, at the schema: somebody may have upgraded it. Both are asked together, so
    /// in one round trip.
    async fn check(&self, connection: &Connection) -> Result<(), Trouble> {
        if !self.prepared.load(Ordering::Acquire) {
            return self.look(connection).await.map(drop);
        }
        let schema = self.config.schema.as_str();
        let (server, version) =
            futures::future::join(self.look(connection), schema::read_version(connection.client(), schema))
                .await;
        server?;
        schema::check_version(schema, version?)
    }
}

/// Connects, and drives the connection in a task of its own.
async fn connect<T>(driver: &Config, tls: T) -> Result<Connection, tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket> + Send + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let (client, mut driven) = driver.connect(tls).await?;
    let doubts = Arc::new(AtomicU64::new(0));
    let task = tokio::spawn({
        let doubts = doubts.clone();
        async move {
            loop {
                match poll_fn(|cx| driven.poll_message(cx)).await {
                    // A notice is handled before the answer that follows it on the wire.
                    Some(Ok(AsyncMessage::Notice(notice))) => {
                        tracing::debug!(
                            code = notice.code().code(),
                            "the server notes: {}",
                            notice.message()
                        );
                        if doubts_commit(&notice) {
                            doubts.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        tracing::debug!("a connection broke: {error}");
                        return;
                    }
                    None => return,
                }
            }
        }
    });
    Ok(Connection { client: ClientWrapper::new(client, task), doubts })
}

/// What a server says about itself.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    version: i32,
    read_only: bool,
    fsync: bool,
    full_page_writes: bool,
    isolation: String,
    /// There is a schema of the configured name.
    pub(crate) has_schema: bool,
    /// It has a table of the name of ours that says which version it is.
    pub(crate) has_format: bool,
    /// It has something else.
    pub(crate) has_others: bool,
}

impl Server {
    fn read(rows: &[tokio_postgres::Row]) -> Result<Self, Trouble> {
        let [row] = rows else {
            return Err(Trouble::new(ErrorKind::Config, "the server does not answer what it is"));
        };
        let read = || -> Result<Server, tokio_postgres::Error> {
            Ok(Server {
                version: row.try_get(0)?,
                read_only: row.try_get(1)?,
                fsync: row.try_get(2)?,
                full_page_writes: row.try_get(3)?,
                isolation: row.try_get(4)?,
                has_schema: row.try_get(5)?,
                has_format: row.try_get(6)?,
                has_others: row.try_get(7)?,
            })
        };
        read().map_err(|error| classify(Stage::Connect, error))
    }

    fn check(&self, durability: Durability) -> Result<(), Trouble> {
        let config = |text: String| Err(Trouble::new(ErrorKind::Config, text));
        if self.version < OLDEST_SERVER {
            return config(format!(
                "the server has version {}.{}; coord needs PostgreSQL {} or newer",
                self.version / 10_000,
                self.version % 10_000,
                OLDEST_SERVER / 10_000
            ));
        }
        if self.read_only {
            return config(
                "the server is a standby or takes no writes; name the primary, or all servers".to_owned(),
            );
        }
        if self.isolation != "read committed" {
            return config(format!(
                "`default_transaction_isolation` is `{}`; coord needs `read committed` for this role",
                self.isolation
            ));
        }
        if durability != Durability::None {
            for (setting, on) in [("fsync", self.fsync), ("full_page_writes", self.full_page_writes)] {
                if !on {
                    return config(format!(
                        "the server runs with `{setting}=off` and may lose what it has acknowledged; turn it on, or accept \
                         that with `durability=none` in the URL"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Manager for Connector {
    type Type = Connection;
    type Error = Trouble;

    async fn create(&self) -> Result<Connection, Trouble> {
        // The driver bounds the opening of the socket only; a server that accepts and says nothing is bounded here.
        let limit = self.config.connect_timeout * u32::try_from(self.config.servers.len()).unwrap_or(1);
        let opened = timeout(limit, async {
            let connection = self.open().await?;
            self.check(&connection).await?;
            Ok(connection)
        });
        opened.await.unwrap_or_else(|_| {
            let message = format!("{}: no answer to a new connection within {limit:?}", self.config.place());
            Err(Trouble::new(ErrorKind::Unavailable, message))
        })
    }

    async fn recycle(&self, connection: &mut Connection, metrics: &Metrics) -> RecycleResult<Trouble> {
        if connection.client.is_closed() {
            return Err(RecycleError::message("closed"));
        }
        if metrics.last_used() > IDLE {
            match timeout(IDLE_ANSWER, connection.finish()).await {
                Ok(Ok(())) => {}
                _ => return Err(RecycleError::message("idle and gone")),
            }
        }
        Ok(())
    }
}

/// A connection that is borrowed for one statement.
///
/// If it is dropped before the statement's answer came, because the caller has gone or waits no longer, the statement goes on in the
/// server, bounded by its timeout. Then the connection goes back to the pool only after the statement has ended.
pub(crate) struct Lease {
    object: Option<Object<Connector>>,
    settled: bool,
}

impl Lease {
    /// Borrows a connection, or opens one.
    pub(crate) async fn take(pool: &Pool<Connector>) -> Result<Self, Trouble> {
        use deadpool::managed::PoolError;
        match pool.get().await {
            Ok(object) => Ok(Lease { object: Some(object), settled: true }),
            Err(PoolError::Backend(trouble)) => Err(trouble),
            Err(_) => Err(Trouble::new(ErrorKind::Unavailable, "the pool of connections is closed")),
        }
    }

    /// The connection, from now on with a statement under way. `None` if it is known to be closed.
    pub(crate) fn begin(&mut self) -> Option<&Connection> {
        let connection = self.object.as_deref()?;
        if connection.client.is_closed() {
            return None;
        }
        self.settled = false;
        Some(connection)
    }

    /// The statement has ended.
    pub(crate) fn settle(&mut self) {
        self.settled = true;
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self) {
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else { return };
        if self.settled {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            drop(Object::take(object));
            return;
        };
        runtime.spawn(async move {
            match timeout(SETTLE, object.finish()).await {
                Ok(Ok(())) => drop(object),
                _ => drop(Object::take(object)),
            }
        });
    }
}

/// A pool for one handle.
pub(crate) fn pool(config: &PostgresConfig) -> Result<Pool<Connector>, BackendError> {
    Pool::builder(Connector::new(config)?)
        .max_size(config.pool_size)
        .runtime(deadpool::Runtime::Tokio1)
        .build()
        .map_err(|error| {
            BackendError::new(ErrorKind::Config, crate::NAME, Operation::Connect, error.to_string())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Server {
        Server {
            version: 150_020,
            read_only: false,
            fsync: true,
            full_page_writes: true,
            isolation: "read committed".to_owned(),
            has_schema: true,
            has_format: true,
            has_others: true,
        }
    }

    #[test]
    fn a_server_that_loses_data_or_cannot_work_is_refused() {
        assert!(good().check(Durability::Full).is_ok());
        for (server, says) in [
            (Server { version: 120_022, ..good() }, "version 12.22"),
            (Server { read_only: true, ..good() }, "standby"),
            (Server { fsync: false, ..good() }, "`fsync=off`"),
            (Server { full_page_writes: false, ..good() }, "`full_page_writes=off`"),
            (Server { isolation: "serializable".to_owned(), ..good() }, "`serializable`"),
        ] {
            for durability in [Durability::Full, Durability::Local] {
                let trouble = server.check(durability).unwrap_err();
                assert_eq!(trouble.kind, ErrorKind::Config);
                assert!(trouble.message.contains(says), "{}", trouble.message);
            }
        }
    }

    #[test]
    fn losing_data_can_be_asked_for_and_nothing_else() {
        assert!(Server { fsync: false, full_page_writes: false, ..good() }.check(Durability::None).is_ok());
        assert!(Server { read_only: true, ..good() }.check(Durability::None).is_err());
        assert!(Server { version: 90_600, ..good() }.check(Durability::None).is_err());
    }
}
