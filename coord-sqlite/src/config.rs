//! Where the file is and how it is used, from code or from a URL.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use coord_core::BackendError;
use coord_core::url::{self, UrlError};

use crate::error::config_error;

/// What an acknowledged transaction survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// A crash of the process, of the system, and a loss of power: each commit waits for the disk (`synchronous=FULL`).
    #[default]
    Full,
    /// A crash of the process only (`synchronous=NORMAL`). A loss of power may take back the last acknowledged transactions, and
    /// with them versions and fences that were already handed out. It must be asked for by name.
    Normal,
}

/// Where the file is and how it is used.
///
/// ```
/// use coord_sqlite::{Durability, SqliteConfig};
///
/// let config: SqliteConfig = "sqlite:.coord/coord.db?busy_timeout=2s&durability=normal".parse()?;
/// assert_eq!(config.path(), std::path::Path::new(".coord/coord.db"));
/// assert_eq!(config.busy_timeout(), std::time::Duration::from_secs(2));
/// assert_eq!(config.durability(), Durability::Normal);
/// # Ok::<(), coord_core::BackendError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteConfig {
    path: PathBuf,
    busy_timeout: Duration,
    durability: Durability,
}

impl SqliteConfig {
    /// How long a call waits for its turn, unless something else is asked for.
    pub const DEFAULT_BUSY_TIMEOUT: Duration = Duration::from_secs(10);
    /// The longest wait that can be asked for.
    pub const MAX_BUSY_TIMEOUT: Duration = Duration::from_secs(3_600);

    /// The file at `path`, relative to the working folder, with the defaults: full durability, ten seconds of waiting.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SqliteConfig {
            path: path.into(),
            busy_timeout: Self::DEFAULT_BUSY_TIMEOUT,
            durability: Durability::default(),
        }
    }

    /// Reads a URL: `sqlite:relative/path`, `sqlite:/absolute/path` or `sqlite:///absolute/path`, with `%XX` for bytes that have
    /// a meaning in URLs (`?` is `%3F`, `#` is `%23`, `%` is `%25`), and these parameters after a `?`:
    ///
    /// - `busy_timeout`, a duration such as `500ms` or `5s`, at most an hour;
    /// - `durability`, `full` or `normal`.
    ///
    /// # Errors
    /// [`Config`](coord_core::ErrorKind::Config) if it is no such URL, names `:memory:`, or has another parameter or one twice.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let Some(rest) = url.strip_prefix("sqlite:") else {
            return Err(config_error("a SQLite URL begins with `sqlite:`, as in `sqlite:.coord/coord.db`"));
        };
        if rest.contains('#') {
            return Err(config_error("a `#` in the path of a SQLite URL is written `%23`"));
        }
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let path = match path.strip_prefix("//") {
            None => path,
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => {
                return Err(config_error(
                    "a SQLite URL has no host: write `sqlite:relative/path` or `sqlite:///absolute/path`",
                ));
            }
        };
        let path = decode(path)?;
        if path.is_empty() {
            return Err(config_error("the SQLite URL names no file, as in `sqlite:.coord/coord.db`"));
        }
        let mut config = SqliteConfig::new(path);
        config.check_path()?;
        config.read_parameters(query.unwrap_or_default())?;
        Ok(config)
    }

    fn read_parameters(&mut self, query: &str) -> Result<(), BackendError> {
        for (name, value) in url::parameters(query).map_err(bad_url)? {
            match name.as_str() {
                "busy_timeout" => self.busy_timeout = read_timeout(&value)?,
                "durability" => {
                    self.durability = match value.as_str() {
                        "full" => Durability::Full,
                        "normal" => Durability::Normal,
                        _ => return Err(config_error("`durability` of a SQLite URL is `full` or `normal`")),
                    };
                }
                _ => {
                    return Err(config_error(format!(
                        "a SQLite URL has no parameter {name:?}, only `busy_timeout` and `durability`"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Waits at most this long for a turn (at most [`SqliteConfig::MAX_BUSY_TIMEOUT`]). Zero tries once.
    #[must_use]
    pub fn with_busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout.min(Self::MAX_BUSY_TIMEOUT);
        self
    }

    /// Promises this much for what is acknowledged.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long a call waits for its turn among the other writers, of this process and of others, before it is `Unavailable`.
    #[must_use]
    pub fn busy_timeout(&self) -> Duration {
        self.busy_timeout
    }

    /// What an acknowledged transaction survives.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Refuses what SQLite would take for something else than a file.
    pub(crate) fn check_path(&self) -> Result<(), BackendError> {
        let bytes = self.path.as_os_str().as_encoded_bytes();
        if bytes.starts_with(b":memory:") {
            return Err(config_error(
                "`:memory:` is refused: each connection would have a database of its own. Name a file, or use the memory backend",
            ));
        }
        if bytes.contains(&0) {
            return Err(config_error("the path of the SQLite file contains a NUL byte"));
        }
        Ok(())
    }
}

impl FromStr for SqliteConfig {
    type Err = BackendError;
    /// The same as [`SqliteConfig::from_url`].
    fn from_str(url: &str) -> Result<Self, BackendError> {
        SqliteConfig::from_url(url)
    }
}

fn read_timeout(text: &str) -> Result<Duration, BackendError> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= SqliteConfig::MAX_BUSY_TIMEOUT => Ok(duration),
        Ok(_) => Err(config_error("`busy_timeout` of a SQLite URL is at most an hour")),
        Err(error) => {
            Err(config_error("`busy_timeout` of a SQLite URL is a duration such as `500ms` or `5s`")
                .with_source(error))
        }
    }
}

fn decode(text: &str) -> Result<String, BackendError> {
    url::decode(text).map_err(bad_url)
}

fn bad_url(error: UrlError) -> BackendError {
    config_error(format!("in a SQLite URL: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coord_core::ErrorKind;

    #[test]
    fn paths_are_read_as_they_are_written() {
        for (url, path) in [
            ("sqlite:x.db", "x.db"),
            ("sqlite:.coord/coord.db", ".coord/coord.db"),
            ("sqlite:/a/b.db", "/a/b.db"),
            ("sqlite:///a/b.db", "/a/b.db"),
            ("sqlite:a%20b%3Fc%23d%25.db", "a b?c#d%.db"),
            ("sqlite:a b+c.db", "a b+c.db"),
            ("sqlite:%C3%A9.db", "é.db"),
            ("sqlite:file:x.db", "file:x.db"),
            ("sqlite:x.db?", "x.db"),
            ("sqlite:x.db?&", "x.db"),
        ] {
            assert_eq!(SqliteConfig::from_url(url).unwrap(), SqliteConfig::new(path), "{url}");
        }
    }

    #[test]
    fn parameters_are_read() {
        let config = SqliteConfig::from_url("sqlite:x?busy_timeout=1m%2030s&durability=full").unwrap();
        assert_eq!((config.busy_timeout().as_secs(), config.durability()), (90, Durability::Full));
        let config = SqliteConfig::from_url("sqlite:x?busy_timeout=1h").unwrap();
        assert_eq!(config.busy_timeout(), SqliteConfig::MAX_BUSY_TIMEOUT);
        let config = SqliteConfig::new("x").with_busy_timeout(Duration::MAX);
        assert_eq!(config.busy_timeout(), SqliteConfig::MAX_BUSY_TIMEOUT);
    }

    #[test]
    fn everything_else_is_refused_with_what_to_write_instead() {
        for (url, says) in [
            ("", "begins with `sqlite:`"),
            ("x.db", "begins with `sqlite:`"),
            ("sqlite:", "names no file"),
            ("sqlite://", "no host"),
            ("sqlite://x.db", "no host"),
            ("sqlite:?durability=full", "names no file"),
            ("sqlite::memory:", "database of its own"),
            ("sqlite:%3Amemory:", "database of its own"),
            ("sqlite:a#b", "%23"),
            ("sqlite:100%", "%25"),
            ("sqlite:%zz", "%25"),
            ("sqlite:%+1", "%25"),
            ("sqlite:%FF", "UTF-8"),
            ("sqlite:%00", "NUL"),
            ("sqlite:x?durability=off", "`full` or `normal`"),
            ("sqlite:x?durability", "`full` or `normal`"),
            ("sqlite:x?busy_timeout=5", "duration"),
            ("sqlite:x?busy_timeout=-1s", "duration"),
            ("sqlite:x?busy_timeout=61m", "at most an hour"),
            ("sqlite:x?namespace=a", "no parameter \"namespace\""),
            ("sqlite:x?mode=ro", "no parameter \"mode\""),
            ("sqlite:x?durability=full&durability=full", "twice"),
        ] {
            let error = SqliteConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.message().contains(says), "{url}: {}", error.message());
        }
    }
}
