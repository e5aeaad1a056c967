//! Reads the URL. By hand, for URLs proper know neither several hosts nor ports after them.

use std::time::Duration;

use coord_core::BackendError;
use coord_core::url::UrlError;

use super::{Address, Durability, Login, RedisConfig, Tls, Topology};
use crate::error::config_error;

const FORMS: &str = "a Redis URL is `redis://HOST:PORT/DATABASE`, `redis+cluster://HOST:PORT,..` or \
                     `redis+sentinel://HOST:PORT,../MASTER`, with `rediss` instead of `redis` for TLS";
const PARAMETERS: &str = "`durability`, `wait_replicas`, `wait_timeout`, `connect_timeout`, `response_timeout`, `tls_ca`, `tls_cert`, \
                          `tls_key`, `sentinel_user` and `sentinel_password`";

pub(super) fn parse(url: &str) -> Result<RedisConfig, BackendError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| config_error(FORMS))?;
    let (redis, kind) = scheme.split_once('+').map_or((scheme, None), |(redis, kind)| (redis, Some(kind)));
    let tls = match redis {
        "redis" => None,
        "rediss" => Some(Tls::default()),
        _ => return Err(config_error(FORMS)),
    };
    if rest.contains('#') {
        return Err(config_error("a `#` in a Redis URL is written `%23`"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        None => (Login::default(), authority),
        Some((login, hosts)) => (read_login(login)?, hosts),
    };
    let (topology, database) = match kind {
        None => match &read_hosts(hosts, 6_379)?[..] {
            [host] => (Topology::Single(host.clone()), path),
            _ => {
                return Err(config_error(
                    "a `redis://` URL has one host; several are for `redis+cluster://` or `redis+sentinel://`",
                ));
            }
        },
        Some("cluster") if !path.is_empty() => {
            return Err(config_error(
                "a `redis+cluster://` URL has no path: a Redis Cluster has one database",
            ));
        }
        Some("cluster") => (Topology::Cluster(read_hosts(hosts, 6_379)?), ""),
        Some("sentinel") => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            let (sentinels, master) = (read_hosts(hosts, 26_379)?, decode(master)?);
            if master.is_empty() {
                return Err(config_error(
                    "a `redis+sentinel://` URL names the master after the hosts, as in `redis+sentinel://HOST:PORT/mymaster`",
                ));
            }
            (Topology::Sentinel { sentinels, master, login: Login::default() }, database)
        }
        Some(_) => return Err(config_error(FORMS)),
    };
    let database = match database {
        "" => 0,
        text => {
            text.parse().map_err(|_| config_error("the database in a Redis URL is a number, 0 to 65535"))?
        }
    };
    let mut config = RedisConfig {
        topology,
        login,
        tls,
        database,
        durability: Durability::default(),
        wait_replicas: 0,
        wait_timeout: RedisConfig::DEFAULT_WAIT_TIMEOUT,
        connect_timeout: RedisConfig::DEFAULT_CONNECT_TIMEOUT,
        response_timeout: RedisConfig::DEFAULT_RESPONSE_TIMEOUT,
    };
    read_parameters(&mut config, query)?;
    if config.tls.is_some() && !cfg!(feature = "tls") {
        return Err(config_error(
            "`rediss` needs the feature `tls` of coord-redis, which is off in this build",
        ));
    }
    Ok(config)
}

fn read_login(text: &str) -> Result<Login, BackendError> {
    let Some((user, password)) = text.split_once(':') else {
        return Err(config_error(
            "a Redis URL has a user together with a password: `USER:PASSWORD@HOST`, or `:PASSWORD@HOST` for the default user",
        ));
    };
    let user = decode(user)?;
    Ok(Login { user: (!user.is_empty()).then_some(user), password: Some(decode(password)?) })
}

fn read_hosts(text: &str, default_port: u16) -> Result<Vec<Address>, BackendError> {
    // What stands here may be a part of a password that was not encoded, so it is never repeated.
    let wrong = || {
        config_error(
            "the hosts of a Redis URL are `HOST` or `HOST:PORT`, separated by commas (in a password, `/` is written `%2F`, `?` \
             `%3F`, `#` `%23` and `%` `%25`)",
        )
    };
    text.split(',')
        .map(|host| {
            let (host, port) = match host.strip_prefix('[') {
                Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
                None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
            };
            let port = match port {
                "" => default_port,
                port => port.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or_else(wrong)?,
            };
            let host = decode(host)?;
            if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
                return Err(wrong());
            }
            Ok(Address { host, port })
        })
        .collect()
}

fn read_parameters(config: &mut RedisConfig, query: &str) -> Result<(), BackendError> {
    if query.contains('@') {
        // A password with a question mark: its end is not to be shown as the name of a parameter.
        return Err(config_error(
            "a Redis URL has an `@` behind its `?`; in a password write `?` as `%3F`, in a parameter `@` as `%40`",
        ));
    }
    let (mut cert, mut key) = (None, None);
    for (name, value) in coord_core::url::parameters(query).map_err(bad_url)? {
        match name.as_str() {
            "durability" => {
                config.durability = match value.as_str() {
                    "always" => Durability::Always,
                    "everysec" => Durability::Everysec,
                    "none" => Durability::None,
                    _ => {
                        return Err(config_error(
                            "`durability` of a Redis URL is `always`, `everysec` or `none`",
                        ));
                    }
                }
            }
            "wait_replicas" => {
                config.wait_replicas =
                    value.parse().ok().filter(|n| *n <= RedisConfig::MAX_WAIT_REPLICAS).ok_or_else(|| {
                        config_error("`wait_replicas` of a Redis URL is a number, 0 to 100")
                    })?;
            }
            "wait_timeout" => config.wait_timeout = read_timeout(&name, &value)?,
            "connect_timeout" => config.connect_timeout = read_timeout(&name, &value)?,
            "response_timeout" => config.response_timeout = read_timeout(&name, &value)?,
            "tls_ca" | "tls_cert" | "tls_key" => {
                let Some(tls) = &mut config.tls else {
                    return Err(config_error(format!(
                        "`{name}` goes with `rediss`, and this URL is without TLS"
                    )));
                };
                match name.as_str() {
                    "tls_ca" => tls.authorities = Some(value.into()),
                    "tls_cert" => cert = Some(value.into()),
                    _ => key = Some(value.into()),
                }
            }
            "sentinel_user" | "sentinel_password" => {
                let Topology::Sentinel { login, .. } = &mut config.topology else {
                    return Err(config_error(format!("`{name}` goes with `redis+sentinel://`")));
                };
                if name == "sentinel_user" {
                    login.user = Some(value);
                } else {
                    login.password = Some(value);
                }
            }
            _ => {
                return Err(config_error(format!(
                    "a Redis URL has no parameter {name:?}, only {PARAMETERS}"
                )));
            }
        }
    }
    match (&mut config.tls, cert, key) {
        (_, None, None) => {}
        (Some(tls), Some(cert), Some(key)) => tls.identity = Some((cert, key)),
        _ => return Err(config_error("`tls_cert` and `tls_key` of a Redis URL go together")),
    }
    if let Topology::Sentinel { login: Login { user: Some(_), password: None }, .. } = &config.topology {
        return Err(config_error("`sentinel_user` of a Redis URL goes with `sentinel_password`"));
    }
    Ok(())
}

fn read_timeout(name: &str, value: &str) -> Result<Duration, BackendError> {
    match humantime::parse_duration(value) {
        Ok(time) if (Duration::from_millis(1)..=RedisConfig::MAX_TIMEOUT).contains(&time) => Ok(time),
        Ok(_) => Err(config_error(format!("`{name}` of a Redis URL is from 1 ms to an hour"))),
        Err(error) => {
            let message = format!("`{name}` of a Redis URL is a duration such as `500ms` or `5s`");
            Err(config_error(message).with_source(error))
        }
    }
}

fn decode(text: &str) -> Result<String, BackendError> {
    coord_core::url::decode(text).map_err(bad_url)
}

fn bad_url(error: UrlError) -> BackendError {
    config_error(format!("in a Redis URL: {error}"))
}

#[cfg(test)]
mod tests {
    use coord_core::ErrorKind;

    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn read(url: &str) -> RedisConfig {
        parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn the_three_topologies_are_read() {
        assert_eq!(read("redis://h").topology, Topology::Single(at("h", 6379)));
        assert_eq!(read("redis://[::1]:7/3").topology, Topology::Single(at("::1", 7)));
        assert_eq!(read("redis://h/3").database, 3);
        assert_eq!(
            read("redis+cluster://a,b:7,[::1]").topology,
            Topology::Cluster(vec![at("a", 6379), at("b", 7), at("::1", 6379)])
        );
        let config = read("redis+sentinel://a,b:7/my%20master/2?sentinel_user=u&sentinel_password=p%26q");
        let login = Login { user: Some("u".into()), password: Some("p&q".into()) };
        let sentinels = vec![at("a", 26_379), at("b", 7)];
        assert_eq!(config.topology, Topology::Sentinel { sentinels, master: "my master".into(), login });
        assert_eq!(config.database, 2);
    }

    #[test]
    fn user_and_password_are_decoded_and_never_shown() {
        for (url, user, password) in [
            ("redis://u:p@h", Some("u"), "p"),
            ("redis://:p@h", None, "p"),
            ("redis://u:@h", Some("u"), ""),
            ("redis://u%40x:p%2F%3F%25%3A@h", Some("u@x"), "p/?%:"),
            ("redis://u:p@p@h", Some("u"), "p@p"),
        ] {
            let config = read(url);
            assert_eq!(config.login.user.as_deref(), user, "{url}");
            assert_eq!(config.login.password.as_deref(), Some(password), "{url}");
        }
        let shown = format!("{:?}", read("redis+sentinel://boss:hunter2@h/m?sentinel_password=hunter3"));
        assert!(!shown.contains("hunter") && !shown.contains("boss"), "{shown}");
    }

    #[test]
    fn parameters_are_read() {
        let config = read(
            "redis://h?durability=none&wait_replicas=2&wait_timeout=1s&connect_timeout=2s&response_timeout=300ms",
        );
        assert_eq!(config.durability(), Durability::None);
        assert_eq!((config.wait_replicas(), config.wait_timeout()), (2, Duration::from_secs(1)));
        assert_eq!(config.connect_timeout(), Duration::from_secs(2));
        assert_eq!(config.response_timeout(), Duration::from_millis(300));
        assert_eq!(read("redis://h").durability(), Durability::Always);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_a_scheme() {
        let tls = read("rediss+cluster://h?tls_ca=/ca.pem&tls_cert=c&tls_key=k").tls.unwrap();
        assert_eq!(tls.authorities, Some("/ca.pem".into()));
        assert_eq!(tls.identity, Some(("c".into(), "k".into())));
    }

    #[test]
    fn what_is_wrong_is_refused_without_repeating_it() {
        for url in [
            "",
            "redis:h",
            "http://h",
            "redis+other://h",
            "redis://",
            "redis://h:x",
            "redis://h:70000",
            "redis://a,b",
            "redis://h,",
            "redis://h/x",
            "redis://h/70000",
            "redis://[::1",
            "redis://h#f",
            "redis+cluster://h/1",
            "redis+sentinel://h",
            "redis+sentinel://h/m/x",
            "redis://user@h",
            "redis://u:hunter2%@h",
            "redis://u:hunter2/x@h",
            "redis://u:hunter2?hunter2=1@h",
            "redis://u:hunter2#x@h",
            "redis://h?durability=off",
            "redis://h?wait_replicas=-1",
            "redis://h?wait_replicas=101",
            "redis://h?wait_timeout=0s",
            "redis://h?connect_timeout=2h",
            "redis://h?response_timeout=soon",
            "redis://h?evil=1",
            "redis://h?durability=none&durability=none",
            "redis://h?tls_ca=x",
            "redis://h?sentinel_user=x",
            "redis+sentinel://h/m?sentinel_user=x",
            "rediss://h?tls_cert=x",
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
        }
        let error = parse("redis://h?evil=1").unwrap_err();
        assert!(error.message().contains("\"evil\""), "{error}");
    }
}
