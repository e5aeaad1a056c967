//! The connection of a handle: found, kept, given up and found again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use coord_core::{BackendError, ErrorKind, Operation};
use redis::Value;

use crate::NAME;
use crate::config::{Address, Login, RedisConfig, Topology};
use crate::error::{cannot_connect, config_error, unavailable, words};
use crate::link::Link;
use crate::reply::text;

/// Keeps one connection to the server that holds the namespace, and makes a new one when a call needs it. Nothing runs in the
/// background: a handle that nobody uses does not reconnect.
#[derive(Debug)]
pub(crate) struct Links {
    config: RedisConfig,
    /// A key of the namespace, for its slot in a cluster.
    marker: String,
    state: Mutex<State>,
    /// Whoever holds it connects; the others wait for what comes of it.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    link: Option<Link>,
    /// The connection to the node that a cluster moves the namespace to.
    guest: Option<Link>,
    /// Where a node of the cluster said that the namespace is.
    hint: Option<Address>,
    /// The nodes that the cluster named.
    nodes: Vec<Address>,
    /// How often connecting has failed, and how it did last.
    failures: usize,
    failure: Option<(ErrorKind, String)>,
}

impl Links {
    pub(crate) fn new(config: RedisConfig, marker: String) -> Links {
        Links { config, marker, state: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.config
    }

    /// The connection, a new one if need be.
    pub(crate) async fn current(&self) -> Result<Link, BackendError> {
        if let Some(link) = self.live() {
            return Ok(link);
        }
        let failures = self.lock().failures;
        let _turn = self.turn.lock().await;
        if let Some(link) = self.live() {
            return Ok(link);
        }
        // Who waited while another call failed to connect fails with it. So nobody waits for more than two tries, however many wait.
        if let State { failures: now, failure: Some((kind, message)), .. } = &*self.lock()
            && *now != failures
        {
            return Err(BackendError::new(*kind, NAME, Operation::Connect, message.clone()));
        }
        let found = self.find().await;
        let mut state = self.lock();
        match found {
            Ok(link) => {
                tracing::debug!(server = %link.server, "connected");
                state.link = Some(link.clone());
                Ok(link)
            }
            Err(error) => {
                state.failures += 1;
                state.failure = Some((error.kind(), error.message().to_owned()));
                Err(error)
            }
        }
    }

    /// Gives a connection up. Who still waits on it gets its answer or its end.
    pub(crate) fn discard(&self, link: &Link) {
        let State { link: current, guest, .. } = &mut *self.lock();
        for kept in [current, guest] {
            if kept.as_ref().is_some_and(|kept| kept.id == link.id) {
                *kept = None;
            }
        }
    }

    /// The cluster has moved the namespace.
    pub(crate) fn moved(&self, link: &Link, to: Option<Address>) {
        self.discard(link);
        self.lock().hint = to;
    }

    /// The node to which the cluster is moving the namespace.
    pub(crate) async fn guest(&self, server: &Address) -> Result<Link, BackendError> {
        if let Some(link) = self.lock().guest.clone()
            && link.is_alive()
            && link.server == *server
        {
            return Ok(link);
        }
        let link = Link::join(&self.config, server).await?;
        self.lock().guest = Some(link.clone());
        Ok(link)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the state is half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> Option<Link> {
        self.lock().link.clone().filter(Link::is_alive)
    }

    async fn find(&self) -> Result<Link, BackendError> {
        let limit = self.config.connect_timeout().saturating_mul(3);
        tokio::time::timeout(limit, async {
            match &self.config.topology {
                Topology::Single(server) => Link::join(&self.config, server).await,
                Topology::Cluster(seeds) => self.find_in_cluster(seeds).await,
                Topology::Sentinel { sentinels, master, login } => {
                    self.find_by_sentinel(sentinels, master, login).await
                }
            }
        })
        .await
        .unwrap_or_else(|_| {
            let message =
                format!("no server could be connected to within {}", humantime::format_duration(limit));
            Err(unavailable(Operation::Connect, message))
        })
    }

    async fn find_in_cluster(&self, seeds: &[Address]) -> Result<Link, BackendError> {
        let (hint, mut nodes, failures) = {
            let mut state = self.lock();
            (state.hint.take(), state.nodes.clone(), state.failures)
        };
        // The seeds too, for the nodes that were named last may all be gone.
        nodes.extend(seeds.iter().filter(|seed| !nodes.contains(seed)).cloned().collect::<Vec<_>>());
        // With another one first each time, so that one that does not answer is not always waited for.
        let start = failures % nodes.len();
        nodes.rotate_left(start);
        let mut search = Search::default();
        if let Some(hint) = hint
            && let Some(link) = search.join(&self.config, &hint).await?
        {
            return Ok(link);
        }
        for node in &nodes {
            match self.locate(node).await {
                Ok((owner, named)) => {
                    self.lock().nodes = named;
                    if let Some(link) = search.join(&self.config, &owner).await? {
                        return Ok(link);
                    }
                }
                Err(error) => search.failed(error)?,
            }
        }
        Err(search.end())
    }

    /// Asks a node of the cluster who has the namespace. Returns that, and all nodes.
    async fn locate(&self, node: &Address) -> Result<(Address, Vec<Address>), BackendError> {
        let link = Link::open(&self.config, node, &self.config.login, 0).await?;
        let (mut slot, mut slots) = (redis::cmd("CLUSTER"), redis::cmd("CLUSTER"));
        slot.arg("KEYSLOT").arg(&self.marker);
        slots.arg("SLOTS");
        let answers = link.run_all([slot, slots]).await.map_err(|error| cannot_connect(node, error))?;
        let [Value::Int(slot), Value::Array(ranges)] = &answers[..] else {
            let error = answers.iter().find_map(|answer| match answer {
                Value::ServerError(error) => Some(error.clone()),
                _ => None,
            });
            return Err(match error {
                Some(error) if matches!(error.code(), "LOADING" | "CLUSTERDOWN" | "BUSY" | "MASTERDOWN") => {
                    unavailable(Operation::Connect, format!("{node} says: {}", words(&error)))
                }
                // `ERR This instance has cluster support disabled`, or no right to ask.
                Some(error) => config_error(format!(
                    "{node} is no node of a Redis Cluster for this user: it says {}",
                    words(&error)
                )),
                None => config_error(format!("{node} does not answer CLUSTER SLOTS as Redis does")),
            });
        };
        let mut nodes = Vec::new();
        let mut owner = None;
        for range in ranges {
            let Value::Array(range) = range else { continue };
            let [Value::Int(first), Value::Int(last), members @ ..] = &range[..] else { continue };
            for (n, member) in members.iter().enumerate() {
                let Some(member) = read_member(member, node) else { continue };
                // The first one named is the master.
                if n == 0 && (first..=last).contains(&slot) {
                    owner = Some(member.clone());
                }
                if !nodes.contains(&member) {
                    nodes.push(member);
                }
            }
        }
        owner.map(|owner| (owner, nodes)).ok_or_else(|| {
            unavailable(
                Operation::Connect,
                format!("{node} knows no node that has slot {slot} of the cluster"),
            )
        })
    }

    async fn find_by_sentinel(
        &self,
        sentinels: &[Address],
        master: &str,
        login: &Login,
    ) -> Result<Link, BackendError> {
        let start = self.lock().failures % sentinels.len();
        let mut search = Search::default();
        for sentinel in sentinels[start..].iter().chain(&sentinels[..start]) {
            match self.ask(sentinel, master, login).await {
                Ok(server) => {
                    if let Some(link) = search.join(&self.config, &server).await? {
                        return Ok(link);
                    }
                }
                // One that was just set up may not know the master yet.
                Err(error) => search.failures.push(error),
            }
        }
        Err(search.end())
    }

    /// Asks a sentinel who the master is.
    async fn ask(&self, sentinel: &Address, master: &str, login: &Login) -> Result<Address, BackendError> {
        let link = Link::open(&self.config, sentinel, login, 0).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(master);
        let answer = link.run(&command).await.map_err(|error| cannot_connect(sentinel, error))?;
        match answer {
            Value::Nil => {
                Err(config_error(format!("the sentinel {sentinel} knows no master of the name {master:?}")))
            }
            Value::ServerError(error) => Err(config_error(format!(
                "{sentinel} is no sentinel for this user: it says {}",
                words(&error)
            ))),
            answer => read_member(&answer, sentinel)
                .ok_or_else(|| config_error(format!("{sentinel} does not answer as a sentinel does"))),
        }
    }
}

/// Reads host and port. Without a host it is another port of the server that was asked.
fn read_member(member: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(member) = member else { return None };
    let [host, port, ..] = &member[..] else { return None };
    let host =
        text(host).filter(|host| !host.is_empty() && host != "?").unwrap_or_else(|| asked.host.clone());
    Some(Address { host, port: text(port)?.parse().ok()? })
}

/// What came of the servers that were tried so far.
#[derive(Default)]
struct Search {
    tried: Vec<Address>,
    failures: Vec<BackendError>,
}

impl Search {
    /// Joins a server, each only once. `None` if it cannot be reached.
    async fn join(&mut self, config: &RedisConfig, server: &Address) -> Result<Option<Link>, BackendError> {
        if self.tried.contains(server) {
            return Ok(None);
        }
        self.tried.push(server.clone());
        match Link::join(config, server).await {
            Ok(link) => Ok(Some(link)),
            Err(error) => self.failed(error).map(|()| None),
        }
    }

    /// Only servers that cannot be reached are a reason to try others.
    fn failed(&mut self, error: BackendError) -> Result<(), BackendError> {
        if error.kind() != ErrorKind::Unavailable {
            return Err(error);
        }
        self.failures.push(error);
        Ok(())
    }

    /// The error of a search without success: the last one, which is that of the master if one was named.
    fn end(mut self) -> BackendError {
        self.failures.pop().unwrap_or_else(|| unavailable(Operation::Connect, "no server was named"))
    }
}
