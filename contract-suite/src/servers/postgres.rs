//! PostgreSQL for the suite: a server of this machine behind a wire that can be cut, or a given one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::{Backend, BackendError, Key, Namespace, Version};
use coord_postgres::{PostgresBackend, PostgresConfig};
use tokio_postgres::{Client, NoTls};

use super::{Launch, Place, Ready, ServerProcess, Store, free_port, fresh_folder};
use crate::harness::{Control, ControlError, Cut, Harness, Misconfiguration, ServerControl};
use crate::wire::{Forwarder, Turns};

/// Where PostgreSQL is found.
pub const POSTGRES: Store = Store {
    name: "postgres",
    variable: "COORD_POSTGRES_URL",
    programs: &["postgres", "initdb", "pg_basebackup"],
    folders: &["/usr/lib/postgresql/*/bin", "/usr/pgsql/bin", "/usr/local/pgsql/bin"],
    image: super::Image {
        name: "postgres",
        tag: "15",
        port: 5432,
        command: &["-c", "fsync=on"],
        // For a store on loopback that lives as long as a test.
        environment: &[("POSTGRES_PASSWORD", "coord")],
        url: "postgres://postgres:coord@127.0.0.1:PORT/postgres",
    },
};

/// The programs of PostgreSQL on this machine, and the user that they run as.
#[derive(Clone, Debug)]
pub struct Programs {
    postgres: PathBuf,
    initdb: PathBuf,
    basebackup: PathBuf,
    /// PostgreSQL refuses to run as root.
    user: Option<User>,
}

#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

impl Programs {
    /// The programs in the order of [`POSTGRES`], as [`Place::of`] found them.
    ///
    /// # Errors
    /// If this process is root's and there is no user `postgres` to run them as.
    pub fn new(programs: Vec<PathBuf>) -> Result<Self, ControlError> {
        let [postgres, initdb, basebackup] =
            programs.try_into().map_err(|_| "PostgreSQL is three programs")?;
        let user = if rustix::process::geteuid().is_root() { Some(user("postgres")?) } else { None };
        Ok(Programs { postgres, initdb, basebackup, user })
    }

    /// A program and its arguments, run as the user of the server.
    #[must_use]
    pub fn command(&self, program: &Path, arguments: &[&str]) -> (PathBuf, Vec<OsString>) {
        let arguments = arguments.iter().map(OsString::from);
        match self.user {
            None => (program.to_owned(), arguments.collect()),
            Some(User { uid, gid }) => {
                let mut all: Vec<OsString> = vec![
                    format!("--reuid={uid}").into(),
                    format!("--regid={gid}").into(),
                    "--clear-groups".into(),
                ];
                all.push(program.into());
                all.extend(arguments);
                // It replaces itself by the program.
                ("setpriv".into(), all)
            }
        }
    }

    async fn run(&self, program: &Path, arguments: &[&str], folder: &Path) -> Result<(), ControlError> {
        let (program, arguments) = self.command(program, arguments);
        let output = tokio::process::Command::new(&program)
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C")
            .kill_on_drop(true)
            .output()
            .await?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into())
    }

    /// A folder for the data, which belongs to the user of the server.
    fn data(&self, folder: &Path) -> Result<PathBuf, ControlError> {
        let data = folder.join("data");
        std::fs::create_dir(&data)?;
        std::fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        if let Some(User { uid, gid }) = self.user {
            std::os::unix::fs::chown(&data, Some(uid), Some(gid))?;
        }
        Ok(data)
    }

    /// A new server without data. `settings` are written `name=value`.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn primary(&self, settings: &[&str]) -> Result<PostgresServer, ControlError> {
        let folder = fresh_folder("postgres")?;
        let data = self.data(&folder)?;
        let arguments = [
            "-N",
            "-E",
            "UTF8",
            "--locale=C",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-D",
            &data.to_string_lossy(),
        ];
        self.run(&self.initdb, &arguments, &folder).await.map_err(|error| format!("initdb: {error}"))?;
        self.start(folder, settings).await
    }

    /// A new server that follows another one under this name, as a hot standby.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn standby(
        &self,
        primary: &PostgresServer,
        name: &str,
        settings: &[&str],
    ) -> Result<PostgresServer, ControlError> {
        let folder = fresh_folder("postgres")?;
        let data = self.data(&folder)?;
        let source = format!("host=127.0.0.1 port={} user=postgres application_name={name}", primary.port);
        let arguments =
            ["-d", &source, "-D", &data.to_string_lossy(), "-R", "-c", "fast", "-X", "stream", "-N"];
        self.run(&self.basebackup, &arguments, &folder)
            .await
            .map_err(|error| format!("pg_basebackup: {error}"))?;
        self.start(folder, settings).await
    }

    async fn start(&self, folder: PathBuf, settings: &[&str]) -> Result<PostgresServer, ControlError> {
        let port = free_port(0, 0)?;
        let port_text = port.to_string();
        let mut arguments = vec![
            "-D",
            "data",
            "-p",
            &port_text,
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
            "-c",
            "max_connections=300",
        ];
        for setting in settings {
            arguments.extend(["-c", setting]);
        }
        let (program, arguments) = self.command(&self.postgres, &arguments);
        let ready: Ready = Arc::new(move || {
            Box::pin(async move {
                tokio::time::timeout(Duration::from_secs(1), async {
                    client(port).await?.simple_query("SELECT 1").await?;
                    Ok(())
                })
                .await?
            })
        });
        let launch = Launch {
            name: format!("postgres on port {port}"),
            program,
            arguments,
            folder,
            ready,
            ready_within: Duration::from_secs(60),
        };
        Ok(PostgresServer { process: ServerProcess::start(launch).await?, port })
    }
}

fn user(name: &str) -> Result<User, ControlError> {
    let users = std::fs::read_to_string("/etc/passwd")?;
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        Some(User { uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    });
    found.ok_or_else(|| format!("PostgreSQL does not run as root, and there is no user {name}").into())
}

/// One server of this machine, on loopback, which lets everyone in as `postgres` without a password.
#[derive(Debug)]
pub struct PostgresServer {
    process: ServerProcess,
    port: u16,
}

impl PostgresServer {
    /// Its process, to hurt.
    #[must_use]
    pub fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// The port of loopback that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A connection past the backend.
    ///
    /// # Errors
    /// If there is none.
    pub async fn client(&self) -> Result<Client, ControlError> {
        client(self.port).await
    }

    /// Statements past the backend.
    ///
    /// # Errors
    /// What the server says.
    pub async fn execute(&self, sql: &str) -> Result<(), ControlError> {
        Ok(self.client().await?.batch_execute(sql).await?)
    }

    /// The first column of the first row that a statement brings, as text.
    ///
    /// # Errors
    /// What the server says, or that there is no row.
    pub async fn value(&self, sql: &str) -> Result<String, ControlError> {
        for message in self.client().await?.simple_query(sql).await? {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                return Ok(row.try_get(0)?.unwrap_or("").to_owned());
            }
        }
        Err(format!("no row: {sql}").into())
    }
}

/// A connection to a server of this machine, as `postgres`.
async fn client(port: u16) -> Result<Client, ControlError> {
    let settings = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout=5");
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await?;
    // Ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

/// The suite's PostgreSQL. The several processes of a clause are given its URL by `COORD_POSTGRES_URL`.
pub struct PostgresHarness {
    /// Where handles connect.
    url: Result<String, String>,
    local: Option<LocalPostgres>,
}

/// One server of this machine, and the wire to it.
pub struct LocalPostgres {
    programs: Programs,
    server: PostgresServer,
    wire: Forwarder,
    schema: String,
    /// Servers with a wrong setting: kept until the end, for their folders are removed with them.
    faulty: Mutex<Vec<PostgresServer>>,
}

impl PostgresHarness {
    /// The server that the environment names or allows to start.
    ///
    /// # Errors
    /// If a server that should start does not.
    pub async fn from_environment() -> Result<Self, ControlError> {
        match Place::of(&POSTGRES) {
            Place::Given(url) => Ok(PostgresHarness::given(url)),
            Place::Local(programs) => {
                let programs = Programs::new(programs)?;
                let server = programs.primary(&[]).await?;
                PostgresHarness::local(programs, server, "").await
            }
            Place::Container => Ok(PostgresHarness::nowhere("no container has been started".into())),
            Place::Nowhere(why) => Ok(PostgresHarness::nowhere(why)),
        }
    }

    /// No server: why.
    #[must_use]
    pub fn nowhere(why: String) -> Self {
        PostgresHarness { url: Err(why), local: None }
    }

    /// A server that runs already.
    #[must_use]
    pub fn given(url: String) -> Self {
        PostgresHarness { url: Ok(url), local: None }
    }

    /// A server of this machine, behind a wire of its own. `parameters` are added to the URL, each with its `&`.
    ///
    /// # Errors
    /// If the wire cannot be made or the parameters are none.
    pub async fn local(
        programs: Programs,
        server: PostgresServer,
        parameters: &str,
    ) -> Result<Self, ControlError> {
        let wire =
            Forwarder::start(format!("127.0.0.1:{}", server.port), || Box::new(Turns::default())).await?;
        let url = format!(
            "postgres://postgres@{}/postgres?connect_timeout=2s&timeout=6s&pool_size=6{parameters}",
            wire.address()
        );
        let schema = PostgresConfig::from_url(&url)?.schema().to_owned();
        let faulty = Mutex::default();
        Ok(PostgresHarness {
            url: Ok(url),
            local: Some(LocalPostgres { programs, server, wire, schema, faulty }),
        })
    }

    /// The URL that handles are opened with, if there is a server.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        self.url.as_deref().ok()
    }

    /// The server of this machine, if it is one.
    #[must_use]
    pub fn server_process(&self) -> Option<&PostgresServer> {
        self.local.as_ref().map(|local| &local.server)
    }
}

#[async_trait]
impl Harness for PostgresHarness {
    fn name(&self) -> &str {
        POSTGRES.name
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let url = self.url.as_deref().unwrap_or_default();
        let backend =
            PostgresBackend::open(&PostgresConfig::from_url(url)?, &Namespace::new(namespace)?).await?;
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
        let started = match fault {
            Misconfiguration::NotDurable => local.programs.primary(&["fsync=off"]).await,
            Misconfiguration::ReadOnly => local.programs.standby(&local.server, "reader", &[]).await,
            // Nothing is evicted, and a server that syncs now and then is told to sync for each transaction.
            _ => return None,
        };
        let server = match started {
            Ok(server) => server,
            Err(error) => {
                let (kind, operation) = (coord_core::ErrorKind::Unavailable, coord_core::Operation::Connect);
                return Some(Err(BackendError::new(kind, POSTGRES.name, operation, error.to_string())));
            }
        };
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
        local.faulty.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        Some(PostgresHarness::given(url).open("misconfigured").await)
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        self.url.iter().map(|url| (POSTGRES.variable.to_owned(), url.clone())).collect()
    }
}

impl LocalPostgres {
    fn entry(&self) -> String {
        format!("\"{}\".entry", self.schema)
    }
}

#[async_trait]
impl ServerControl for LocalPostgres {
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
        self.server.process.kill().await
    }

    async fn restart(&self) -> Result<(), ControlError> {
        self.server.process.restart().await
    }

    async fn pause(&self) -> Result<(), ControlError> {
        self.server.process.pause()
    }

    async fn resume(&self) -> Result<(), ControlError> {
        self.server.process.resume()
    }

    async fn cut(&self, cut: Cut) -> Result<(), ControlError> {
        self.wire.cut(cut);
        Ok(())
    }

    async fn heal(&self) -> Result<usize, ControlError> {
        Ok(self.wire.heal())
    }

    /// A change of the table drops every plan that a session has made for it; a change of the function, what a session has compiled.
    async fn flush_scripts(&self) -> Result<(), ControlError> {
        let (entry, schema) = (self.entry(), &self.schema);
        let client = self.server.client().await?;
        let definition = client
            .query_one(&format!("SELECT pg_get_functiondef('\"{schema}\".txn'::regproc)"), &[])
            .await?
            .try_get::<_, String>(0)?;
        Ok(client.batch_execute(&format!("ALTER TABLE {entry} SET (fillfactor = 80); {definition}")).await?)
    }

    async fn write_foreign(&self, namespace: &str, key: &Key, variant: usize) -> Result<bool, ControlError> {
        let versions: [(i64, i64); 6] = [(1, 0), (0, 1), (0, 0), (-1, 1), (1, -1), (i64::MIN, i64::MIN)];
        let Some((incarnation, count)) = versions.get(variant) else { return Ok(false) };
        self.server
            .client()
            .await?
            .execute(
                &format!(
                    "INSERT INTO {} AS e (namespace, key, incarnation, count, value) VALUES ($1, $2, $3, $4, 'not ours') \
                     ON CONFLICT (namespace, key) DO UPDATE \
                     SET incarnation = excluded.incarnation, count = excluded.count, value = excluded.value",
                    self.entry()
                ),
                &[&namespace, &key.as_bytes(), incarnation, count],
            )
            .await?;
        Ok(true)
    }

    async fn read_raw(&self, namespace: &str, key: &Key) -> Result<Option<Vec<u8>>, ControlError> {
        let row = self
            .server
            .client()
            .await?
            .query_opt(
                // The transaction that wrote the row is in it, so that a row written again with the same bytes is seen.
                &format!(
                    "SELECT concat_ws(' ', xmin, incarnation, count, encode(value, 'hex')) FROM {} \
                     WHERE namespace = $1 AND key = $2",
                    self.entry()
                ),
                &[&namespace, &key.as_bytes()],
            )
            .await?;
        Ok(row.map(|row| row.try_get::<_, String>(0)).transpose()?.map(String::into_bytes))
    }

    async fn remove_raw(&self, namespace: &str, key: &Key) -> Result<(), ControlError> {
        let sql = format!("DELETE FROM {} WHERE namespace = $1 AND key = $2", self.entry());
        self.server.client().await?.execute(&sql, &[&namespace, &key.as_bytes()]).await?;
        Ok(())
    }

    async fn set_version(&self, namespace: &str, key: &Key, version: Version) -> Result<bool, ControlError> {
        let sql = format!(
            "UPDATE {} SET incarnation = $3, count = $4 WHERE namespace = $1 AND key = $2",
            self.entry()
        );
        let (incarnation, count) = (i64::try_from(version.incarnation())?, i64::try_from(version.count())?);
        let client = self.server.client().await?;
        match client.execute(&sql, &[&namespace, &key.as_bytes(), &incarnation, &count]).await? {
            1 => Ok(true),
            _ => Err("the key was not present".into()),
        }
    }
}
