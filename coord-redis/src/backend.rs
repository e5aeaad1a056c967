//! The handle, and how a call is tried.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use coord_core::token::mint_incarnation;
use coord_core::{
    Backend, BackendError, Clock, ErrorKind, Key, KeyRange, KeySet, Mutation, Namespace, Operation, Snapshot,
    SystemClock, Txn, TxnOutcome, limits,
};
use redis::{Cmd, RedisError, ServerError, Value};

use crate::NAME;
use crate::config::RedisConfig;
use crate::error::{Refusal, classify, config_error, unavailable, unknown, words};
use crate::layout::Layout;
use crate::link::Link;
use crate::links::Links;
use crate::reply::{self, Answer};
use crate::script::{self, Script};

/// How often one call follows a cluster that says that the namespace is elsewhere.
const MOST_REDIRECTIONS: u32 = 8;

/// A handle on one namespace of a Redis server, a Redis Cluster, or the master that sentinels know. It keeps one connection, which all its
/// calls share and which is made anew when it has ended.
///
/// ```no_run
/// use coord_core::{Backend, Key, Mutation, Txn};
/// use coord_redis::{RedisBackend, RedisConfig};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), coord_core::BackendError> {
/// let config = RedisConfig::from_url("redis://127.0.0.1:6379")?;
/// let backend = RedisBackend::open(&config, &"shop".parse()?).await?;
/// let txn = Txn::new([], [Mutation::put(Key::new("greeting")?, "hello")])?;
/// assert!(backend.txn(&txn).await?.is_applied());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct RedisBackend {
    namespace: Namespace,
    layout: Layout,
    links: Links,
    clock: SystemClock,
}

impl RedisBackend {
    /// Connects, and checks that the server keeps what it acknowledges, that the user may do what is needed, and that the namespace is
    /// ours or empty. Must be called inside a tokio runtime, and so must every method.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) for a server that would lose more than the configuration allows, is too old or a replica, or refuses
    /// user or password; [`Corrupt`](ErrorKind::Corrupt) if something else uses the namespace; [`Unavailable`](ErrorKind::Unavailable) if no
    /// server can be reached.
    pub async fn open(config: &RedisConfig, namespace: &Namespace) -> Result<Self, BackendError> {
        let layout = Layout::new(namespace);
        let links = Links::new(config.clone(), layout.marker().to_owned());
        let backend = RedisBackend { namespace: namespace.clone(), layout, links, clock: SystemClock::new() };
        let build = |command: &mut Cmd| backend.layout.any_key(command);
        let (answer, _) = backend.call(Operation::Connect, &script::OPEN, &build, &[]).await?;
        debug_assert_eq!(answer.word, "ok");
        Ok(backend)
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Runs a script to its answer, and returns the connection that it came over. `build` adds keys and arguments, anew for each try.
    ///
    /// What a server has refused certainly did not happen, and is tried again where that can help, for as long as an answer may take. Whatever
    /// else goes wrong after a request was handed to a connection ends the call.
    async fn call(
        &self,
        operation: Operation,
        script: &Script,
        build: &(dyn Fn(&mut Cmd) + Send + Sync),
        names: &[&Key],
    ) -> Result<(Answer, Link), BackendError> {
        let start = self.clock.monotonic();
        let mut pause = Duration::from_millis(10);
        let mut redirections = 0;
        let mut by_text = false;
        let mut guest = None;
        loop {
            let link = match &guest {
                None => self.links.current().await?,
                Some(server) => self.links.guest(server).await?,
            };
            // A guest may not know the script, and its ASKING counts for one command only.
            let mut command = if by_text || guest.is_some() || operation == Operation::Connect {
                let mut command = redis::cmd("EVAL");
                command.arg(script.text);
                command
            } else {
                let mut command = redis::cmd("EVALSHA");
                command.arg(&script.hash);
                command
            };
            build(&mut command);
            let reply = if guest.take().is_some() {
                let asked = link.run_all([redis::cmd("ASKING"), command]).await;
                asked.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
            } else {
                link.run(&command).await
            };
            let refused = match reply {
                Ok(Value::ServerError(error)) => error,
                Ok(value) => {
                    return match reply::answer(operation, value, names) {
                        Ok(answer) => Ok((answer, link)),
                        Err(error) => Err(error),
                    };
                }
                Err(error) => return Err(self.broken(operation, &link, error)),
            };
            let again = match classify(&refused, &link.server) {
                Refusal::NoScript => {
                    by_text = true;
                    continue;
                }
                Refusal::Moved(to) if redirections < MOST_REDIRECTIONS => {
                    redirections += 1;
                    self.links.moved(&link, to);
                    continue;
                }
                Refusal::Ask(Some(to)) if redirections < MOST_REDIRECTIONS => {
                    redirections += 1;
                    guest = Some(to);
                    continue;
                }
                Refusal::Moved(_) | Refusal::Ask(_) => false,
                Refusal::Later => true,
                Refusal::Elsewhere => {
                    self.links.discard(&link);
                    true
                }
                Refusal::Refused => false,
                Refusal::Denied => {
                    self.links.discard(&link);
                    let message =
                        format!("{} refuses the user of the URL: it says {}", link.server, words(&refused));
                    return Err(
                        BackendError::new(ErrorKind::Config, NAME, operation, message).with_source(refused)
                    );
                }
                Refusal::Unknown => return Err(strange(operation, &link, refused)),
            };
            let spent = self.clock.monotonic().saturating_sub(start);
            if !again || spent.saturating_add(pause) > self.links.config().response_timeout() {
                let message = format!("{} does not do it: it says {}", link.server, words(&refused));
                return Err(unavailable(operation, message).with_source(refused));
            }
            self.clock.sleep(pause).await;
            pause = pause.saturating_mul(2).min(Duration::from_millis(250));
        }
    }

    /// A request was handed to the connection, and no reply came.
    fn broken(&self, operation: Operation, link: &Link, error: RedisError) -> BackendError {
        // Also after a timeout: the server may be gone without a word, and a new connection finds that out, or its successor.
        self.links.discard(link);
        let server = &link.server;
        let limit = humantime::format_duration(self.links.config().response_timeout());
        let message = if error.is_timeout() {
            format!("{server} has not answered within {limit}")
        } else {
            format!("the connection to {server} ended before the answer")
        };
        unknown(operation, message).with_source(error)
    }

    /// Waits until enough replicas have what the transaction wrote.
    async fn wait_for_replicas(&self, link: &Link) -> Result<(), BackendError> {
        let config = self.links.config();
        let mut command = redis::cmd("WAIT");
        let millis = u64::try_from(config.wait_timeout().as_millis()).unwrap_or(u64::MAX);
        command.arg(config.wait_replicas()).arg(millis);
        let reply = link.run_slow(&command, config.response_timeout(), config.wait_timeout()).await;
        match reply {
            Ok(Value::Int(have)) if have >= i64::from(config.wait_replicas()) => Ok(()),
            Ok(Value::Int(have)) => {
                let message = format!(
                    "the transaction is on {}, but only {have} of {} replicas confirmed it within {}",
                    link.server,
                    config.wait_replicas(),
                    humantime::format_duration(config.wait_timeout())
                );
                Err(unknown(Operation::Txn, message))
            }
            Ok(Value::ServerError(error)) => {
                self.links.discard(link);
                Err(strange(Operation::Txn, link, error))
            }
            Ok(_) => Err(unknown(Operation::Txn, "the server's answer is not that of WAIT")),
            Err(error) => Err(self.broken(Operation::Txn, link, error)),
        }
    }
}

/// The server gave an error that is not known.
fn strange(operation: Operation, link: &Link, error: ServerError) -> BackendError {
    let message = format!("{} says {}", link.server, words(&error));
    match operation {
        // Nothing is asked yet, so it is the deployment that does not fit.
        Operation::Connect => config_error(message),
        _ => unknown(operation, message),
    }
    .with_source(error)
}

#[async_trait]
impl Backend for RedisBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let names = keys.distinct();
        let build = |command: &mut Cmd| {
            self.layout.keys(command, &names);
            command.arg(limits::SNAPSHOT_BYTES);
        };
        let (answer, _) = self.call(Operation::Snapshot, &script::SNAPSHOT, &build, &names).await?;
        reply::snapshot(answer, &names)
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let mut places: BTreeMap<&Key, usize> = txn
            .asserts()
            .iter()
            .map(|assert| &assert.key)
            .chain(txn.mutations().iter().map(Mutation::key))
            .map(|key| (key, 0))
            .collect();
        // Lua counts from 1, and marker and index come first.
        places.values_mut().zip(3..).for_each(|(place, number)| *place = number);
        let names: Vec<&Key> = places.keys().copied().collect();
        let build = |command: &mut Cmd| {
            self.layout.keys(command, &names);
            command.arg(mint_incarnation()).arg(txn.asserts().len());
            for assert in txn.asserts() {
                let version = assert.version;
                command.arg(places[&assert.key]).arg(version.incarnation()).arg(version.count());
            }
            for mutation in txn.mutations() {
                command.arg(places[mutation.key()]);
                match mutation.value() {
                    Some(value) => command.arg("p").arg(&value[..]),
                    None => command.arg("d"),
                };
            }
        };
        let (answer, link) = self.call(Operation::Txn, &script::TXN, &build, &names).await?;
        match answer.word.as_str() {
            "applied" => {
                if self.links.config().wait_replicas() > 0 && !txn.mutations().is_empty() {
                    self.wait_for_replicas(&link).await?;
                }
                Ok(TxnOutcome::Applied)
            }
            "rejected" => Ok(TxnOutcome::Rejected),
            _ => Err(unknown(Operation::Txn, "the server's answer is not that of the script")),
        }
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let (from, to) = crate::layout::bounds(range);
        let build = |command: &mut Cmd| {
            self.layout.keys(command, &[]);
            command.arg(&from).arg(&to).arg(range.limit());
        };
        let (answer, _) = self.call(Operation::Keys, &script::KEYS, &build, &[]).await?;
        reply::names(answer)
    }
}
