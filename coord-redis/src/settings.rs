//! What a server says about itself when it is connected to, and whether that will do.

use coord_core::BackendError;
use redis::{Cmd, Value};

use crate::config::{Address, Durability, RedisConfig, Topology};
use crate::error::{config_error, unavailable};
use crate::reply::{pairs, text};

/// The oldest major version whose scripts can be refused before they begin.
const OLDEST_MAJOR: u32 = 7;
/// The settings that decide what is lost, as `CONFIG GET` names them.
const NAMES: [&str; 4] = ["appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy"];

/// The questions, to be sent together. `HELLO` is allowed to every user; the others may be forbidden.
pub(crate) fn questions() -> [Cmd; 3] {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg(&NAMES);
    let mut info = redis::cmd("INFO");
    info.arg("persistence").arg("memory");
    [redis::cmd("HELLO"), config, info]
}

/// What `HELLO` answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    version: String,
    mode: String,
    is_master: bool,
}

impl Greeting {
    fn read(answer: &Value) -> Option<Greeting> {
        let fields = pairs(answer)?;
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        Some(Greeting {
            version: field("version")?,
            mode: field("mode")?,
            is_master: field("role")? == "master",
        })
    }
}

/// What could be read of the settings; `None` for what could not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    append_only: Option<bool>,
    fsync: Option<String>,
    fsync_pauses: Option<bool>,
    policy: Option<String>,
}

impl Settings {
    fn read(config: &Value, info: &Value) -> Settings {
        let config = pairs(config).unwrap_or_default();
        let set = |name: &str| config.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let info = text(info).unwrap_or_default();
        let told = |name: &str| {
            info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
        };
        let is_yes = |value: String| value == "yes";
        Settings {
            append_only: set("appendonly")
                .map(is_yes)
                .or_else(|| told("aof_enabled").map(|value| value == "1")),
            fsync: set("appendfsync"),
            fsync_pauses: set("no-appendfsync-on-rewrite").map(is_yes),
            policy: set("maxmemory-policy").or_else(|| told("maxmemory_policy")),
        }
    }

    /// Refuses what would silently lose more than the configuration allows.
    fn check(&self, server: &Address, demanded: Durability) -> Result<(), BackendError> {
        let unreadable = |what: &str| {
            config_error(format!(
                "cannot read {what} of {server}: allow its user `+config|get` (and `+info`), or say `durability=none` in the URL to accept \
                 that a restart loses everything"
            ))
        };
        match self.policy.as_deref() {
            Some("noeviction") => {}
            Some(policy) => {
                return Err(config_error(format!(
                    "{server} drops keys when its memory is full (`maxmemory-policy {policy}`), which no setting of the URL \
                     makes safe: set `maxmemory-policy noeviction`"
                )));
            }
            None if demanded == Durability::None => {}
            None => return Err(unreadable("`maxmemory-policy`")),
        }
        if demanded == Durability::None {
            return Ok(());
        }
        match self.append_only {
            Some(true) => {}
            Some(false) => {
                return Err(config_error(format!(
                    "{server} loses what it has acknowledged when it restarts (`appendonly no`): set `appendonly yes` and `appendfsync \
                     {}`, or say `durability=none` in the URL to accept that",
                    if demanded == Durability::Always { "always" } else { "everysec" }
                )));
            }
            None => return Err(unreadable("`appendonly`")),
        }
        match (self.fsync.as_deref(), demanded) {
            (Some("always"), _) | (Some("everysec"), Durability::Everysec) => {}
            (Some("everysec"), _) => {
                return Err(config_error(format!(
                    "{server} loses the last second before a crash (`appendfsync everysec`): set `appendfsync always`, or say \
                     `durability=everysec` in the URL to accept that"
                )));
            }
            (Some(other), _) => {
                return Err(config_error(format!(
                    "{server} leaves it to its system when to write to the disk (`appendfsync {other}`): set `appendfsync always`, or say \
                     `durability=none` in the URL to accept what that loses"
                )));
            }
            (None, _) => return Err(unreadable("`appendfsync`")),
        }
        match self.fsync_pauses {
            Some(false) => Ok(()),
            Some(true) => Err(config_error(format!(
                "{server} does not wait for the disk while it rewrites its file (`no-appendfsync-on-rewrite yes`): set it to `no`, or \
                 say `durability=none` in the URL to accept that"
            ))),
            None => Err(unreadable("`no-appendfsync-on-rewrite`")),
        }
    }
}

/// Judges the answers to the [`questions`].
pub(crate) fn check(server: &Address, config: &RedisConfig, answers: &[Value]) -> Result<(), BackendError> {
    let [hello, settings, info] = answers else {
        return Err(unavailable(
            coord_core::Operation::Connect,
            format!("{server} left questions unanswered"),
        ));
    };
    let Some(greeting) = Greeting::read(hello) else {
        return Err(config_error(format!("{server} does not answer HELLO as Redis does")));
    };
    let major = greeting.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < OLDEST_MAJOR) {
        return Err(config_error(format!(
            "{server} is of version {:?}: coord needs Redis 7.0 or later, or Valkey",
            greeting.version
        )));
    }
    match (greeting.mode.as_str(), &config.topology) {
        ("sentinel", _) => {
            return Err(config_error(format!(
                "{server} is a sentinel: the URL for it is `redis+sentinel://{server}/MASTER`"
            )));
        }
        ("cluster", Topology::Single(_) | Topology::Sentinel { .. }) => {
            return Err(config_error(format!(
                "{server} is a node of a Redis Cluster: the URL for it is `redis+cluster://{server}`"
            )));
        }
        _ => {}
    }
    if !greeting.is_master {
        return Err(match config.topology {
            Topology::Single(_) => config_error(format!(
                "{server} is a replica, which cannot be written to: name its master, or use `redis+sentinel://`"
            )),
            // A failover is going on, and the next look will find the new master.
            _ => unavailable(coord_core::Operation::Connect, format!("{server} is no master at the moment")),
        });
    }
    Settings::read(settings, info).check(server, config.durability())
}

#[cfg(test)]
mod tests {
    use coord_core::ErrorKind;

    use super::*;

    fn map(fields: &[(&str, &str)]) -> Value {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Map(fields.iter().map(|(key, value)| (bulk(key), bulk(value))).collect())
    }

    fn info(text: &str) -> Value {
        Value::VerbatimString { format: redis::VerbatimFormat::Text, text: text.to_owned() }
    }

    fn forbidden() -> Value {
        redis::parse_redis_value(b"-NOPERM no\r\n").unwrap()
    }

    fn judge(url: &str, answers: [Value; 3]) -> Result<(), BackendError> {
        let server = Address { host: "h".into(), port: 1 };
        check(&server, &RedisConfig::from_url(url).unwrap(), &answers)
    }

    fn hello(version: &str, mode: &str, role: &str) -> Value {
        map(&[("server", "redis"), ("version", version), ("mode", mode), ("role", role)])
    }

    fn settings(append_only: &str, fsync: &str, pauses: &str, policy: &str) -> Value {
        map(&[
            ("appendonly", append_only),
            ("appendfsync", fsync),
            ("no-appendfsync-on-rewrite", pauses),
            ("maxmemory-policy", policy),
        ])
    }

    #[test]
    fn what_loses_acknowledged_state_is_refused_unless_the_url_says_so() {
        let (always, everysec, none) =
            ("redis://h", "redis://h?durability=everysec", "redis://h?durability=none");
        for (settings, allowed) in [
            (settings("yes", "always", "no", "noeviction"), [true, true, true]),
            (settings("yes", "everysec", "no", "noeviction"), [false, true, true]),
            (settings("yes", "no", "no", "noeviction"), [false, false, true]),
            (settings("yes", "always", "yes", "noeviction"), [false, false, true]),
            (settings("no", "always", "no", "noeviction"), [false, false, true]),
            (settings("yes", "always", "no", "allkeys-lru"), [false, false, false]),
            (settings("yes", "always", "no", "volatile-lru"), [false, false, false]),
        ] {
            for (url, allowed) in [always, everysec, none].into_iter().zip(allowed) {
                let answer =
                    judge(url, [hello("7.0.15", "standalone", "master"), settings.clone(), forbidden()]);
                match answer {
                    Ok(()) => assert!(allowed, "{url} {settings:?}"),
                    Err(error) => {
                        assert!(!allowed, "{url} {settings:?}: {error}");
                        assert_eq!(error.kind(), ErrorKind::Config);
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_what_to_set() {
        let hello = || hello("7.2.4", "standalone", "master");
        let told = "aof_enabled:1\r\nmaxmemory_policy:noeviction\r\n";
        let error = judge("redis://h", [hello(), forbidden(), info(told)]).unwrap_err();
        assert!(
            error.message().contains("appendfsync") && error.message().contains("+config|get"),
            "{error}"
        );
        // INFO alone tells that nothing is kept, and that keys are dropped.
        let error =
            judge("redis://h", [hello(), forbidden(), info("aof_enabled:0\nmaxmemory_policy:noeviction")])
                .unwrap_err();
        assert!(error.message().contains("appendonly no"), "{error}");
        let error =
            judge("redis://h?durability=none", [hello(), forbidden(), info("maxmemory_policy:allkeys-lru")])
                .unwrap_err();
        assert!(error.message().contains("allkeys-lru"), "{error}");
        let error = judge("redis://h", [hello(), forbidden(), forbidden()]).unwrap_err();
        assert!(error.message().contains("maxmemory-policy"), "{error}");
        assert!(judge("redis://h?durability=none", [hello(), forbidden(), forbidden()]).is_ok());
    }

    #[test]
    fn version_mode_and_role_must_fit() {
        let good = || settings("yes", "always", "no", "noeviction");
        for (url, version, mode, role, kind) in [
            ("redis://h", "7.0.0", "standalone", "master", None),
            ("redis://h", "8.1.3", "standalone", "master", None),
            ("redis://h", "6.2.14", "standalone", "master", Some(ErrorKind::Config)),
            ("redis://h", "unknown", "standalone", "master", Some(ErrorKind::Config)),
            ("redis://h", "7.0.0", "standalone", "replica", Some(ErrorKind::Config)),
            ("redis://h", "7.0.0", "cluster", "master", Some(ErrorKind::Config)),
            ("redis://h", "7.0.0", "sentinel", "master", Some(ErrorKind::Config)),
            ("redis+cluster://h", "7.0.0", "cluster", "master", None),
            ("redis+cluster://h", "7.0.0", "cluster", "replica", Some(ErrorKind::Unavailable)),
            ("redis+sentinel://h/m", "7.0.0", "standalone", "replica", Some(ErrorKind::Unavailable)),
        ] {
            let answer = judge(url, [hello(version, mode, role), good(), forbidden()]);
            assert_eq!(answer.err().map(|error| error.kind()), kind, "{url} {version} {mode} {role}");
        }
        let silent = judge("redis://h", [forbidden(), good(), forbidden()]);
        assert_eq!(silent.unwrap_err().kind(), ErrorKind::Config);
    }
}
