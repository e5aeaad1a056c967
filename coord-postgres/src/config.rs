//! Where the database is and how it is used, from code or from a URL.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use coord_core::BackendError;
use coord_core::url::{self, UrlError};

use crate::error::config_error;

/// What an acknowledged transaction survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// A crash of the server and, where the server has a synchronous standby, the loss of the server: `synchronous_commit` is at least
    /// `on` for each transaction, whatever the server's default is. A server with `fsync=off` or `full_page_writes=off` is refused.
    #[default]
    Full,
    /// A crash of the server. It is not waited for a standby (`synchronous_commit=local`), so a failover may take back the last
    /// acknowledged transactions, and with them versions and fences that were already handed out.
    Local,
    /// Whatever the server's own settings give: nothing is set, and nothing is refused.
    None,
}

impl Durability {
    /// The value in a URL, which is also what the function in the database is told.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Durability::Full => "full",
            Durability::Local => "local",
            Durability::None => "none",
        }
    }
}

/// Whether the connection is encrypted, with the names of libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SslMode {
    /// Never.
    Disable,
    /// If the server offers it. The server's certificate is not checked, so this is no protection against an attacker on the wire.
    #[default]
    Prefer,
    /// Always. The server's certificate is only checked if `sslrootcert` names whom to trust.
    Require,
    /// Always, and the certificate must be for the host and from an authority of `sslrootcert`, or else of the system.
    VerifyFull,
}

/// One server of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// A name, an address, or the folder of a Unix socket.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Where the database is and how it is used.
///
/// ```
/// use coord_postgres::{Durability, PostgresConfig};
///
/// let config: PostgresConfig = "postgres://coord:secret@db.example:5432/app?schema=coord&timeout=5s".parse()?;
/// assert_eq!(config.schema(), "coord");
/// assert_eq!(config.durability(), Durability::Full);
/// // No password is ever shown.
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), coord_core::BackendError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    pub(crate) servers: Vec<Server>,
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) database: String,
    pub(crate) schema: String,
    pub(crate) ssl_mode: SslMode,
    pub(crate) ssl_root_cert: Option<PathBuf>,
    pub(crate) pool_size: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) statement_timeout: Option<Duration>,
    pub(crate) timeout: Duration,
    pub(crate) durability: Durability,
}

const PARAMETERS: &str = "`schema`, `sslmode`, `sslrootcert`, `pool_size`, `connect_timeout`, `statement_timeout`, `timeout`, `durability`";

impl PostgresConfig {
    /// The schema that coord's tables are in, unless another one is named.
    pub const DEFAULT_SCHEMA: &str = "coord";
    /// How many connections one handle has at most, unless something else is asked for.
    pub const DEFAULT_POOL_SIZE: usize = 8;
    /// The most connections that one handle can be given.
    pub const MAX_POOL_SIZE: usize = 1_024;
    /// How long one server is tried, unless something else is asked for.
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// How long one call may take in all, unless something else is asked for.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
    /// The shortest and the longest time that can be asked for.
    pub const TIMEOUTS: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(10)..=Duration::from_secs(3_600);

    /// Reads a URL: `postgres://user:password@host:port/database` (or `postgresql://`), with several `host:port` separated by commas for
    /// a primary and its standbys (the one that takes writes is used), `[::1]` for an IPv6 address, a folder with `%2F` for its
    /// slashes for a Unix socket, `%XX` for bytes that have a meaning in URLs, and these parameters after a `?`:
    ///
    /// - `schema`: the schema of coord's tables (`coord`), of small letters, digits and `_`;
    /// - `sslmode`: `disable`, `prefer` (the default), `require` or `verify-full`, see [`SslMode`]; `sslrootcert`: a file of
    ///   certificates (PEM) to trust;
    /// - `pool_size`: the most connections of the handle (8);
    /// - `connect_timeout`: for each server, a duration such as `5s` (the default);
    /// - `timeout`: for a whole call (`10s`); `statement_timeout`: after it the server gives up a statement (four fifths of `timeout`);
    /// - `durability`: `full` (the default), `local` or `none`, see [`Durability`].
    ///
    /// Without a port it is 5432, without a database the one with the name of the user.
    ///
    /// # Errors
    /// [`Config`](coord_core::ErrorKind::Config) if it is no such URL, or has another parameter or one twice. The text of the error
    /// contains no part of the URL that may hold the password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let Some(rest) = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://")) else {
            return Err(config_error(
                "a PostgreSQL URL begins with `postgres://`, as in `postgres://user@host:5432/database`",
            ));
        };
        if rest.contains('#') {
            return Err(config_error("a `#` in a PostgreSQL URL is written `%23`"));
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, query),
            None => (rest, ""),
        };
        // Else the rest of a password with a bare `?` would be taken for parameters, and shown as unknown ones.
        if query.contains('@') {
            return Err(config_error(
                "in a PostgreSQL URL a `?` before the host is written `%3F`, an `@` after it `%40`",
            ));
        }
        let (authority, database) = match rest.split_once('/') {
            Some((authority, database)) => (authority, database),
            None => (rest, ""),
        };
        let Some((login, hosts)) = authority.rsplit_once('@') else {
            return Err(config_error(
                "the PostgreSQL URL names no user, as in `postgres://user@host:5432/database`",
            ));
        };
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (decode(user)?, Some(decode(password)?)),
            None => (decode(login)?, None),
        };
        if user.is_empty() {
            return Err(config_error(
                "the PostgreSQL URL names no user, as in `postgres://user@host:5432/database`",
            ));
        }
        let database = match decode(database)? {
            database if database.is_empty() => user.clone(),
            database if database.contains('/') => {
                return Err(config_error("the path of a PostgreSQL URL is the name of the database alone"));
            }
            database => database,
        };
        let mut config = PostgresConfig {
            servers: hosts.split(',').map(read_server).collect::<Result<_, _>>()?,
            user,
            password,
            database,
            schema: Self::DEFAULT_SCHEMA.to_owned(),
            ssl_mode: SslMode::default(),
            ssl_root_cert: None,
            pool_size: Self::DEFAULT_POOL_SIZE,
            connect_timeout: Self::DEFAULT_CONNECT_TIMEOUT,
            statement_timeout: None,
            timeout: Self::DEFAULT_TIMEOUT,
            durability: Durability::default(),
        };
        config.read_parameters(query)?;
        if config.statement_timeout.is_some_and(|statement| statement > config.timeout) {
            return Err(config_error("`statement_timeout` of a PostgreSQL URL is at most its `timeout`"));
        }
        Ok(config)
    }

    fn read_parameters(&mut self, query: &str) -> Result<(), BackendError> {
        for (name, value) in url::parameters(query).map_err(bad_url)? {
            match name.as_str() {
                "schema" => self.schema = read_schema(value)?,
                "sslmode" => {
                    self.ssl_mode = match value.as_str() {
                        "disable" => SslMode::Disable,
                        "prefer" => SslMode::Prefer,
                        "require" => SslMode::Require,
                        "verify-full" => SslMode::VerifyFull,
                        _ => {
                            return Err(config_error(
                                "`sslmode` of a PostgreSQL URL is `disable`, `prefer`, `require` or `verify-full`",
                            ));
                        }
                    };
                }
                "sslrootcert" if value.is_empty() => {
                    return Err(config_error("`sslrootcert` of a PostgreSQL URL is the path of a file"));
                }
                "sslrootcert" => self.ssl_root_cert = Some(value.into()),
                "pool_size" => {
                    self.pool_size = value
                        .parse()
                        .ok()
                        .filter(|size| (1..=Self::MAX_POOL_SIZE).contains(size))
                        .ok_or_else(|| {
                            config_error("`pool_size` of a PostgreSQL URL is a number from 1 to 1024")
                        })?;
                }
                "connect_timeout" => self.connect_timeout = read_duration(&name, &value)?,
                "statement_timeout" => self.statement_timeout = Some(read_duration(&name, &value)?),
                "timeout" => self.timeout = read_duration(&name, &value)?,
                "durability" => {
                    self.durability = match value.as_str() {
                        "full" => Durability::Full,
                        "local" => Durability::Local,
                        "none" => Durability::None,
                        _ => {
                            return Err(config_error(
                                "`durability` of a PostgreSQL URL is `full`, `local` or `none`",
                            ));
                        }
                    };
                }
                _ => {
                    return Err(config_error(format!(
                        "a PostgreSQL URL has no parameter {name:?}, only {PARAMETERS}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Keeps coord's tables in this schema.
    ///
    /// # Errors
    /// [`Config`](coord_core::ErrorKind::Config) if it is not 1 to 63 small letters, digits and `_`, or begins with a digit or `pg_`.
    pub fn with_schema(mut self, schema: impl Into<String>) -> Result<Self, BackendError> {
        self.schema = read_schema(schema.into())?;
        Ok(self)
    }

    /// Promises this much for what is acknowledged.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Opens at most this many connections (1 to [`PostgresConfig::MAX_POOL_SIZE`]).
    #[must_use]
    pub fn with_pool_size(mut self, pool_size: usize) -> Self {
        self.pool_size = pool_size.clamp(1, Self::MAX_POOL_SIZE);
        self
    }

    /// Lets one call take this long in all, and the server give up a statement after four fifths of it.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.clamp(*Self::TIMEOUTS.start(), *Self::TIMEOUTS.end());
        self.statement_timeout = None;
        self
    }

    /// The schema of coord's tables.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// What an acknowledged transaction survives.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The most connections of one handle.
    #[must_use]
    pub fn pool_size(&self) -> usize {
        self.pool_size
    }

    /// How long one call may take in all.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// After how long the server gives up a statement.
    #[must_use]
    pub fn statement_timeout(&self) -> Duration {
        self.statement_timeout.unwrap_or(self.timeout * 4 / 5)
    }

    /// Where it is, for messages: without user, password and parameters.
    pub(crate) fn place(&self) -> String {
        let servers: Vec<String> = self
            .servers
            .iter()
            .map(|server| match server.host.contains(':') {
                true => format!("[{}]:{}", server.host, server.port),
                false => format!("{}:{}", server.host, server.port),
            })
            .collect();
        servers.join(",")
    }
}

impl FromStr for PostgresConfig {
    type Err = BackendError;
    /// The same as [`PostgresConfig::from_url`].
    fn from_str(url: &str) -> Result<Self, BackendError> {
        PostgresConfig::from_url(url)
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("servers", &self.place())
            .field("user", &self.user)
            .field("database", &self.database)
            .field("schema", &self.schema)
            .field("ssl_mode", &self.ssl_mode)
            .field("pool_size", &self.pool_size)
            .field("connect_timeout", &self.connect_timeout)
            .field("statement_timeout", &self.statement_timeout())
            .field("timeout", &self.timeout)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

fn read_server(text: &str) -> Result<Server, BackendError> {
    let bad =
        || config_error("a server in a PostgreSQL URL is written `host`, `host:port` or `[address]:port`");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']').ok_or_else(bad)?;
            match rest.strip_prefix(':') {
                Some(port) => (address, Some(port)),
                None if rest.is_empty() => (address, None),
                None => return Err(bad()),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let host = decode(host)?;
    if host.is_empty() {
        return Err(config_error(
            "the PostgreSQL URL names no server, as in `postgres://user@host:5432/database`",
        ));
    }
    if host.contains('\0') {
        return Err(bad());
    }
    let port = match port {
        None => 5432,
        // A sign would be a number to `parse`.
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().map_err(|_| bad())?,
        Some(_) => return Err(bad()),
    };
    if port == 0 {
        return Err(bad());
    }
    Ok(Server { host, port })
}

fn read_schema(schema: String) -> Result<String, BackendError> {
    let plain = schema.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let starts = schema.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if !plain || !starts || schema.len() > 63 || schema.starts_with("pg_") || schema == "information_schema" {
        return Err(config_error(
            "`schema` of a PostgreSQL URL is 1 to 63 small letters, digits and `_`, and begins with neither a digit nor `pg_`",
        ));
    }
    Ok(schema)
}

fn read_duration(name: &str, text: &str) -> Result<Duration, BackendError> {
    match humantime::parse_duration(text) {
        Ok(duration) if PostgresConfig::TIMEOUTS.contains(&duration) => Ok(duration),
        Ok(_) => Err(config_error(format!("`{name}` of a PostgreSQL URL is 10ms to 1h"))),
        Err(error) => {
            Err(config_error(format!("`{name}` of a PostgreSQL URL is a duration such as `500ms` or `5s`"))
                .with_source(error))
        }
    }
}

fn decode(text: &str) -> Result<String, BackendError> {
    url::decode(text).map_err(bad_url)
}

fn bad_url(error: UrlError) -> BackendError {
    config_error(format!("in a PostgreSQL URL: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::ErrorKind;

    fn read(url: &str) -> PostgresConfig {
        PostgresConfig::from_url(url).unwrap()
    }

    #[test]
    fn urls_are_read_as_they_are_written() {
        let config = read("postgres://u:p@h/d");
        assert_eq!((config.user.as_str(), config.password.as_deref()), ("u", Some("p")));
        assert_eq!((config.place().as_str(), config.database.as_str()), ("h:5432", "d"));
        assert_eq!((config.schema(), config.pool_size()), ("coord", 8));
        assert_eq!((config.timeout().as_secs(), config.statement_timeout().as_secs()), (10, 8));

        let config = read("postgresql://a%40b:%3A%2F%40p@w@h1:1,[::1]:2,h3,%2Frun%2Fpg:5/");
        assert_eq!((config.user.as_str(), config.password.as_deref()), ("a@b", Some(":/@p@w")));
        assert_eq!(
            (config.place().as_str(), config.database.as_str()),
            ("h1:1,[::1]:2,h3:5432,/run/pg:5", "a@b")
        );

        let config = read(
            "postgres://u@h/d?schema=a_1&sslmode=verify-full&sslrootcert=/a%20b&pool_size=3&connect_timeout=1s&timeout=2s\
             &statement_timeout=500ms&durability=local&",
        );
        assert_eq!((config.schema(), config.ssl_mode, config.pool_size()), ("a_1", SslMode::VerifyFull, 3));
        assert_eq!(config.ssl_root_cert.as_deref(), Some(std::path::Path::new("/a b")));
        assert_eq!(config.statement_timeout(), Duration::from_millis(500));
        assert_eq!((config.password, config.durability), (None, Durability::Local));
    }

    #[test]
    fn everything_else_is_refused_without_a_secret() {
        for (url, says) in [
            ("", "begins with `postgres://`"),
            ("mysql://u:hunter2@h", "begins with `postgres://`"),
            ("postgres:u:hunter2@h", "begins with `postgres://`"),
            ("postgres://h", "names no user"),
            ("postgres://:hunter2@h", "names no user"),
            ("postgres://u:hunter2@", "names no server"),
            ("postgres://u:hunter2@h,", "names no server"),
            ("postgres://u:hunter2@h:x", "`host:port`"),
            ("postgres://u:hunter2@h:+1", "`host:port`"),
            ("postgres://u:hunter2@h:0", "`host:port`"),
            ("postgres://u:hunter2@h:65536", "`host:port`"),
            ("postgres://u:hunter2@[::1", "`host:port`"),
            ("postgres://u:hunter2@[::1]1", "`host:port`"),
            ("postgres://u:hunter2@h/a/b", "alone"),
            ("postgres://u:hunter2%@h", "%25"),
            ("postgres://u:hunter2%FF@h", "UTF-8"),
            ("postgres://u:hunter2%00@h", "UTF-8"),
            ("postgres://u:hunter2#@h", "%23"),
            ("postgres://u:p@ss?hunter2@h", "%3F"),
            ("postgres://u:hunter2@h?schema=Coord", "small letters"),
            ("postgres://u:hunter2@h?schema=", "small letters"),
            ("postgres://u:hunter2@h?schema=1a", "small letters"),
            ("postgres://u:hunter2@h?schema=pg_a", "small letters"),
            ("postgres://u:hunter2@h?schema=a%22b", "small letters"),
            ("postgres://u:hunter2@h?sslmode=verify-ca", "`verify-full`"),
            ("postgres://u:hunter2@h?sslrootcert=", "path"),
            ("postgres://u:hunter2@h?pool_size=0", "1 to 1024"),
            ("postgres://u:hunter2@h?pool_size=1025", "1 to 1024"),
            ("postgres://u:hunter2@h?timeout=5", "duration"),
            ("postgres://u:hunter2@h?timeout=0s", "10ms to 1h"),
            ("postgres://u:hunter2@h?connect_timeout=2h", "10ms to 1h"),
            ("postgres://u:hunter2@h?timeout=1s&statement_timeout=2s", "at most its `timeout`"),
            ("postgres://u:hunter2@h?durability=on", "`full`, `local` or `none`"),
            ("postgres://u:hunter2@h?application_name=x", "no parameter \"application_name\""),
            ("postgres://u:hunter2@h?pool_size=1&pool_size=1", "twice"),
        ] {
            let error = PostgresConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.message().contains(says), "{url}: {}", error.message());
            assert!(!format!("{error:?} {error}").contains("hunter2"), "{url}");
        }
    }

    #[test]
    fn a_schema_from_code_is_checked_too() {
        let config = read("postgres://u@h");
        assert_eq!(config.clone().with_schema("other").unwrap().schema(), "other");
        assert_eq!(config.with_schema("a\"; DROP").unwrap_err().kind(), ErrorKind::Config);
    }

    #[test]
    fn no_password_is_shown() {
        assert!(!format!("{:?}", read("postgres://u:hunter2@h")).contains("hunter2"));
    }
}
