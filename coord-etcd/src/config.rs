//! The URL, and what it says.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use coord_core::url::{self, UrlError};
use coord_core::{BackendError, ErrorKind, Operation};

use crate::NAME;

/// Where etcd is and how to talk to it. `Debug` hides the password.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `host:port`, at least one.
    pub(crate) endpoints: Vec<String>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) tls: Option<Tls>,
    pub(crate) request_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

/// The files of a TLS connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user.as_ref().map(|(user, _)| user))
            .field("tls", &self.tls)
            .field("request_timeout", &self.request_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

fn bad(message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Config, NAME, Operation::Connect, message)
}

impl EtcdConfig {
    /// Reads a URL as the crate's documentation describes it.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) that names the part that is wrong, never the password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("the URL has no scheme"))?;
        let mut tls = match scheme {
            "etcd" => None,
            "etcds" => Some(Tls::default()),
            _ => return Err(bad(format!("the scheme {scheme:?} is neither etcd nor etcds"))),
        };
        if rest.contains('#') {
            return Err(bad("the URL has a fragment"));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        if query.contains('@') {
            // A password with a question mark: its end is not to be shown as the name of a parameter.
            return Err(bad("the URL has an `@` behind its `?`; in a password write `?` as `%3F`"));
        }
        let (authority, path) =
            rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
        if !path.is_empty() {
            return Err(bad("the URL has a path; the namespace is not part of it"));
        }
        let (user, hosts) = match authority.rsplit_once('@') {
            None => (None, authority),
            Some((user, hosts)) => {
                let (user, password) =
                    user.split_once(':').ok_or_else(|| bad("the URL has a user and no password"))?;
                (Some((decode(user)?, decode(password)?)), hosts)
            }
        };
        let endpoints = hosts.split(',').map(endpoint).collect::<Result<Vec<String>, BackendError>>()?;
        let (mut request_timeout, mut connect_timeout) = (Duration::from_secs(5), Duration::from_secs(2));
        for (name, value) in url::parameters(query).map_err(bad_url)? {
            match (name.as_str(), tls.as_mut()) {
                ("request_timeout", _) => request_timeout = duration(&name, &value)?,
                ("connect_timeout", _) => connect_timeout = duration(&name, &value)?,
                ("ca", Some(tls)) => tls.ca = Some(value.into()),
                ("cert", Some(tls)) => tls.cert = Some(value.into()),
                ("key", Some(tls)) => tls.key = Some(value.into()),
                ("ca" | "cert" | "key", None) => {
                    return Err(bad(format!("the parameter {name} is for TLS: the scheme is etcds")));
                }
                _ => {
                    return Err(bad(format!(
                        "the parameter {name:?} is unknown; known are request_timeout, connect_timeout, ca, cert, key"
                    )));
                }
            }
        }
        if tls.as_ref().is_some_and(|tls| tls.cert.is_some() != tls.key.is_some()) {
            return Err(bad("the parameters cert and key come together"));
        }
        if tls.is_some() && !cfg!(feature = "tls") {
            return Err(bad("TLS needs the cargo feature `tls` of coord-etcd"));
        }
        Ok(EtcdConfig { endpoints, user, tls, request_timeout, connect_timeout })
    }
}

fn decode(text: &str) -> Result<String, BackendError> {
    url::decode(text).map_err(bad_url)
}

fn bad_url(error: UrlError) -> BackendError {
    bad(error.to_string())
}

/// `host` or `host:port`, an IPv6 address in brackets; with the port that etcd has by default.
fn endpoint(host: &str) -> Result<String, BackendError> {
    let after_address = host.rfind(']').map_or(0, |end| end + 1);
    let (name, port) = match host[after_address..].rfind(':') {
        Some(colon) => (&host[..after_address + colon], &host[after_address + colon + 1..]),
        None => (host, "2379"),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._[]:%".contains(c);
    if name.is_empty() || !name.chars().all(plain) || (name.contains(':') && !name.starts_with('[')) {
        return Err(bad(format!("{host:?} is not a host")));
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(format!("{name}:{port}")),
        _ => Err(bad(format!("{port:?} is not a port"))),
    }
}

fn duration(name: &str, text: &str) -> Result<Duration, BackendError> {
    // An hour is longer than any request may take.
    match humantime::parse_duration(text) {
        Ok(time) if (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(&time) => Ok(time),
        Ok(_) => Err(bad(format!("the parameter {name} is from 1ms to 1h"))),
        Err(error) => {
            Err(bad(format!("the parameter {name} is a duration such as `500ms` or `5s`")).with_source(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_how() {
        let config =
            EtcdConfig::from_url("etcd://ro%40ot:p%3Aw@a:1,[::1]:2,c/?request_timeout=250ms").unwrap();
        assert_eq!(config.endpoints, ["a:1", "[::1]:2", "c:2379"]);
        assert_eq!(config.user, Some(("ro@ot".into(), "p:w".into())));
        assert_eq!(config.request_timeout, Duration::from_millis(250));
        assert!(!format!("{config:?}").contains("p:w"));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_has_its_own_scheme() {
        let config = EtcdConfig::from_url("etcds://a?ca=%2Fca.pem&cert=c&key=k").unwrap();
        assert_eq!(config.tls.unwrap().ca, Some("/ca.pem".into()));
        assert!(EtcdConfig::from_url("etcds://a?cert=c").is_err());
    }

    #[test]
    fn what_is_wrong_is_named_and_the_password_is_not() {
        for (url, part) in [
            ("a:1", "scheme"),
            ("http://a", "scheme"),
            ("etcd://", "host"),
            ("etcd://a,", "host"),
            ("etcd://::1", "host"),
            ("etcd://a:0", "port"),
            ("etcd://a:x", "port"),
            ("etcd://user@a", "password"),
            ("etcd://u:sesame@a/ns", "path"),
            ("etcd://u:sesame@a?x=1", "unknown"),
            ("etcd://u:sesame@a?request_timeout=5", "request_timeout"),
            ("etcd://u:sesame@a?request_timeout=0s", "request_timeout"),
            ("etcd://u:sesame@a?connect_timeout=99999999999999999999s", "connect_timeout"),
            ("etcd://u:sesame@a?ca=x", "etcds"),
            ("etcd://u:%ff@a", "UTF-8"),
            ("etcd://u:sesame%@a", "%25"),
            ("etcd://u:x?sesame@a", "%3F"),
            ("etcd://u:sesame@a?request_timeout=1s&request_timeout=2s", "twice"),
            ("etcd://u:sesame@a#f", "fragment"),
        ] {
            let error = EtcdConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(!error.to_string().contains("sesame"), "{error}");
        }
    }
}
