//! The handle: connections to the endpoints, and the three primitives.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::{
    Backend, BackendError, Clock, Entry, ErrorKind, Key, KeyRange, KeySet, Namespace, Operation, Snapshot,
    SystemClock, Txn, TxnOutcome, limits,
};
use etcd_client::{Channel, Client, ConnectOptions, Error, GetOptions, KvClient};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::{Mutex, OnceCell};
use tonic::transport::Endpoint;

use crate::NAME;
use crate::config::EtcdConfig;
use crate::error::{Peer, classify, corrupt, refuses, says_not_now};
use crate::request::{self, Answer, Space};
use crate::tries::Tries;

/// The largest answer: what a snapshot may hold, and for each of its keys what etcd says besides.
const ANSWER_BYTES: usize = limits::SNAPSHOT_BYTES + limits::SNAPSHOT_KEYS * 256;
/// The most bytes of keys in one request. A server takes 1.5 MiB with default settings.
const REQUEST_KEY_BYTES: usize = 1024 * 1024;
/// How many single reads of one large snapshot are under way at a time.
const READS_UNDER_WAY: usize = 32;
/// How often each endpoint is tried for one request, while it certainly has not been sent.
const ROUNDS: usize = 2;
/// How long is waited after every endpoint has been asked.
const PAUSE: Duration = Duration::from_millis(50);
/// After how long without a word from a host its connection is tested, how often, and at which intervals. This is for connections that are
/// being made; those that are in use are tested by HTTP/2.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
/// How often a snapshot begins again because the server has compacted its revision meanwhile.
const RESTARTS: usize = 3;
/// The oldest release with everything that is used here.
const OLDEST: (u64, u64) = (3, 4);

/// A handle on one namespace in etcd. Clones share the connections.
#[derive(Clone)]
pub struct EtcdBackend {
    inner: Arc<Inner>,
}

struct Inner {
    space: Space,
    namespace: Namespace,
    request_timeout: Duration,
    options: ConnectOptions,
    has_user: bool,
    tls: bool,
    endpoints: Vec<Connection>,
    /// Which endpoint is used.
    current: AtomicUsize,
    clock: SystemClock,
}

struct Connection {
    address: String,
    endpoint: Endpoint,
    /// Made at the first use; it connects again by itself whenever it has to.
    client: OnceCell<Client>,
    /// How many tokens have been got after the first.
    token: AtomicU64,
    renewing: Mutex<()>,
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<&str> = self.inner.endpoints.iter().map(|endpoint| &*endpoint.address).collect();
        f.debug_struct("EtcdBackend")
            .field("namespace", &self.inner.namespace)
            .field("endpoints", &endpoints)
            .finish()
    }
}

fn config_error(message: impl Into<String>) -> BackendError {
    BackendError::new(ErrorKind::Config, NAME, Operation::Connect, message)
}

impl EtcdBackend {
    /// Connects and looks at the server and the namespace.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) for a file that cannot be read, wrong credentials, or a server that is too old;
    /// [`Unavailable`](ErrorKind::Unavailable) if no endpoint answers; [`Corrupt`](ErrorKind::Corrupt) if the namespace holds
    /// what is not ours.
    pub async fn open(config: &EtcdConfig, namespace: &Namespace) -> Result<Self, BackendError> {
        // It gets no new token by itself: what is sent again, and when, is decided in one place, which is `call`.
        let mut options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(false);
        if let Some((user, password)) = &config.user {
            options = options.with_user(user, password);
        }
        let mut endpoints = Vec::with_capacity(config.endpoints.len());
        for address in &config.endpoints {
            let endpoint = endpoint(config, address).await?;
            endpoints.push(Connection {
                address: address.clone(),
                endpoint,
                client: OnceCell::new(),
                token: AtomicU64::new(0),
                renewing: Mutex::new(()),
            });
        }
        let backend = EtcdBackend {
            inner: Arc::new(Inner {
                space: Space::new(namespace),
                namespace: namespace.clone(),
                request_timeout: config.request_timeout,
                options,
                has_user: config.user.is_some(),
                tls: config.tls.is_some(),
                endpoints,
                current: AtomicUsize::new(0),
                clock: SystemClock::new(),
            }),
        };
        backend.check_version().await?;
        let (key, options) = backend.inner.space.sample(16);
        let sample = backend.get(Operation::Connect, key, options).await?;
        if !sample.kvs().iter().all(request::is_ours) {
            let message = format!("the namespace {namespace:?} holds entries that coord did not write");
            return Err(corrupt(Operation::Connect, message));
        }
        Ok(backend)
    }

    async fn check_version(&self) -> Result<(), BackendError> {
        let status =
            self.call(Operation::Connect, |mut client: Client| async move { client.status().await }).await;
        let status = match status {
            Ok(status) => status,
            // A user that may only use its own keys may not ask; the first read tells whether it may do that.
            Err(error) if error.kind() == ErrorKind::Config && self.inner.has_user => return Ok(()),
            Err(error) => return Err(error),
        };
        let version = status.version();
        let mut parts = version.split('.').map(|part| part.parse::<u64>());
        let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
            return Err(config_error(format!("the server says that its version is {version:?}")));
        };
        if (major, minor) < OLDEST {
            return Err(config_error(format!("the server is etcd {version}; 3.4 or later is needed")));
        }
        let patch = parts.next().and_then(Result::ok);
        if may_serve_stale_reads(major, minor, patch) {
            tracing::warn!(
                version,
                "this release of etcd can serve one stale read after a pause of its process (etcd issue 20418); \
                 writes are safe"
            );
        }
        Ok(())
    }

    /// Makes one request, within its time.
    ///
    /// It goes to another endpoint if it certainly has not happened (for a read: whatever went wrong). Endpoints that cannot be reached
    /// are asked [`ROUNDS`] times; where servers are there and cannot serve yet, as between two leaders, a read waits for them.
    async fn call<T, F, R>(&self, operation: Operation, request: F) -> Result<T, BackendError>
    where
        F: Fn(Client) -> R + Send + Sync,
        R: Future<Output = Result<T, Error>> + Send,
    {
        let inner = &self.inner;
        let start = inner.clock.monotonic();
        let left = || {
            let spent = inner.clock.monotonic().saturating_sub(start);
            inner.request_timeout.saturating_sub(spent)
        };
        let (mut tries, mut renewed) = (Tries::new(inner.endpoints.len()), false);
        // A call goes round by itself: if it followed the calls beside it, it could miss the one endpoint that works.
        let mut index = inner.current.load(Ordering::Relaxed);
        loop {
            let peer = inner.peer(index);
            let attempt = async {
                let connecting = |error| (Operation::Connect, error);
                // Only the credentials are sent for it.
                let (client, token) = inner.client(index).await.map_err(connecting)?;
                match request(client.clone()).await {
                    Err(error) if inner.has_user && !renewed && refuses(&error) => {
                        // Perhaps for its token, and nothing has happened.
                        renewed = true;
                        inner.renew(index, &client, token).await.map_err(connecting)?;
                        request(client).await.map_err(|error| (operation, error))
                    }
                    answer => answer.map_err(|error| (operation, error)),
                }
            };
            let (at, error) = match tokio::time::timeout(left(), attempt).await {
                Ok(Ok(answer)) => {
                    if tries.any() {
                        inner.current.store(index, Ordering::Relaxed);
                    }
                    return Ok(answer);
                }
                Ok(Err(failed)) => failed,
                Err(_) => {
                    inner.leave(index);
                    return Err(tries.into_timeout(operation, peer.address, inner.request_timeout));
                }
            };
            let not_now = says_not_now(&error);
            let error = classify(error, at, peer);
            if error.is_retryable() || error.is_indeterminate() {
                inner.leave(index);
            }
            if !error.is_retryable() {
                return Err(error);
            }
            tries.failed(index, error, not_now);
            index = inner.after(index);
            if tries.rounds() >= ROUNDS && !tries.may_pass() {
                return Err(tries.into_error(operation));
            }
            if tries.rounds() > 0 {
                // Everybody has been asked; give a restarting server or an election a moment.
                inner.clock.sleep(PAUSE.min(left())).await;
            }
            if left().is_zero() {
                return Err(tries.into_error(operation));
            }
        }
    }

    async fn get(
        &self,
        operation: Operation,
        key: Vec<u8>,
        options: GetOptions,
    ) -> Result<etcd_client::GetResponse, BackendError> {
        self.call(operation, |client| {
            let (mut kv, key, options) = (key_values(&client), key.clone(), options.clone());
            async move { kv.get(key, Some(options)).await }
        })
        .await
    }

    async fn run(
        &self,
        operation: Operation,
        txn: etcd_client::Txn,
    ) -> Result<etcd_client::TxnResponse, BackendError> {
        self.call(operation, |client| {
            let (mut kv, txn) = (key_values(&client), txn.clone());
            async move { kv.txn(txn).await }
        })
        .await
    }

    /// The entries of these keys at one revision; `None` if the server has compacted it before all were read.
    async fn read(&self, keys: &[&Key]) -> Result<Option<Vec<(Key, Entry)>>, BackendError> {
        let physical: Vec<Vec<u8>> = keys.iter().map(|key| self.inner.space.key(key)).collect();
        let mut size = 0;
        let first = physical
            .iter()
            .take_while(|key| {
                size += key.len();
                size <= REQUEST_KEY_BYTES
            })
            .count();
        let response = self.run(Operation::Snapshot, request::read(&physical[..first])).await?;
        let mut found = request::found(&response);
        if found.len() != first {
            return Err(corrupt(
                Operation::Snapshot,
                "the server answered another number of reads than were asked",
            ));
        }
        if first < keys.len() {
            // More keys than one request holds: the rest one by one, at the revision of the first ones.
            let revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
            let options = GetOptions::new().with_revision(revision);
            let mut reads = Vec::with_capacity(keys.len() - first);
            for key in physical.into_iter().skip(first) {
                reads.push(self.get(Operation::Snapshot, key, options.clone()));
            }
            let rest: Result<Vec<_>, BackendError> =
                futures::stream::iter(reads).buffered(READS_UNDER_WAY).try_collect().await;
            match rest {
                Ok(rest) => found.extend(rest.into_iter().map(|mut response| response.take_kvs().pop())),
                // One value is never too large, so the revision is out of range.
                Err(error) if error.kind() == ErrorKind::Invalid => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        keys.iter()
            .zip(found)
            .map(|(key, found)| Ok(((*key).clone(), request::entry(key, found)?)))
            .collect::<Result<_, BackendError>>()
            .map(Some)
    }
}

impl Inner {
    /// The client of an endpoint, and the number of its token.
    async fn client(&self, index: usize) -> Result<(Client, u64), Error> {
        let connection = &self.endpoints[index];
        let client = connection
            .client
            .get_or_try_init(|| {
                let channel = Channel::Tonic(connection.endpoint.connect_lazy());
                Client::from_channel(channel, Some(self.options.clone()))
            })
            .await?;
        Ok((client.clone(), connection.token.load(Ordering::Acquire)))
    }

    /// Gets a new token in the place of this one, unless another call has.
    async fn renew(&self, index: usize, client: &Client, token: u64) -> Result<(), Error> {
        let connection = &self.endpoints[index];
        let _one_at_a_time = connection.renewing.lock().await;
        if connection.token.load(Ordering::Acquire) == token {
            client.refresh_token().await?;
            connection.token.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    fn peer(&self, index: usize) -> Peer<'_> {
        Peer { address: &self.endpoints[index].address, tls: self.tls }
    }

    fn after(&self, index: usize) -> usize {
        (index + 1) % self.endpoints.len()
    }

    /// Later calls begin with the next endpoint, unless somebody else has seen to it.
    fn leave(&self, index: usize) {
        let next = self.after(index);
        let _ = self.current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn key_values(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(ANSWER_BYTES)
}

/// The releases that can serve a stale read after a pause, by etcd's changelogs: the fix is in 3.4.42, 3.5.28 and 3.6.9.
fn may_serve_stale_reads(major: u64, minor: u64, patch: Option<u64>) -> bool {
    match (major, minor, patch) {
        (3, 4, Some(patch)) => (20..42).contains(&patch),
        (3, 5, Some(patch)) => (5..28).contains(&patch),
        (3, 6, Some(patch)) => patch < 9,
        _ => false,
    }
}

async fn endpoint(config: &EtcdConfig, address: &str) -> Result<Endpoint, BackendError> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(|error| config_error(format!("{address:?} is not an endpoint")).with_source(error))?
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(KEEP_ALIVE.0))
        .tcp_keepalive_interval(Some(KEEP_ALIVE.1))
        .tcp_keepalive_retries(Some(KEEP_ALIVE.2))
        .http2_keep_alive_interval(config.request_timeout)
        .keep_alive_timeout(config.request_timeout)
        .keep_alive_while_idle(true);
    secure(config, endpoint).await
}

#[cfg(feature = "tls")]
async fn secure(config: &EtcdConfig, endpoint: Endpoint) -> Result<Endpoint, BackendError> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};

    let Some(files) = &config.tls else { return Ok(endpoint) };
    let mut tls = ClientTlsConfig::new();
    tls = match &files.ca {
        Some(path) => tls.ca_certificate(Certificate::from_pem(read_file("ca", path).await?)),
        None => tls.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
        tls = tls.identity(Identity::from_pem(read_file("cert", cert).await?, read_file("key", key).await?));
    }
    endpoint.tls_config(tls).map_err(|error| config_error("the TLS files cannot be used").with_source(error))
}

#[cfg(feature = "tls")]
async fn read_file(parameter: &str, path: &std::path::Path) -> Result<Vec<u8>, BackendError> {
    tokio::fs::read(path).await.map_err(|error| {
        config_error(format!("the file {} of the parameter {parameter} cannot be read", path.display()))
            .with_source(error)
    })
}

#[cfg(not(feature = "tls"))]
async fn secure(_: &EtcdConfig, endpoint: Endpoint) -> Result<Endpoint, BackendError> {
    Ok(endpoint)
}

#[async_trait]
impl Backend for EtcdBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let keys = keys.distinct();
        if keys.is_empty() {
            return Ok(Snapshot::default());
        }
        for _ in 0..RESTARTS {
            let Some(entries) = self.read(&keys).await? else { continue };
            let snapshot = Snapshot::new(entries, None);
            if snapshot.size() > limits::SNAPSHOT_BYTES {
                let message = format!(
                    "the snapshot has {} bytes, more than {}",
                    snapshot.size(),
                    limits::SNAPSHOT_BYTES
                );
                return Err(BackendError::new(ErrorKind::Invalid, NAME, Operation::Snapshot, message));
            }
            return Ok(snapshot);
        }
        let message = "the server compacts revisions faster than the snapshot is read";
        Err(BackendError::new(ErrorKind::Unavailable, NAME, Operation::Snapshot, message))
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        if txn.asserts().is_empty() && txn.mutations().is_empty() {
            return Ok(TxnOutcome::Applied);
        }
        let mut request = self.inner.space.txn(txn);
        let foreign = || corrupt(Operation::Txn, "what is stored under a key of the transaction is not ours");
        if let Some(probes) = request.probes.take() {
            let answer = self.run(Operation::Snapshot, probes).await?;
            if request::any_foreign(&answer) {
                return Err(foreign());
            }
        }
        let response = self.run(Operation::Txn, request.txn.clone()).await?;
        match request.answer(&response) {
            Some(Answer::Applied) => Ok(TxnOutcome::Applied),
            Some(Answer::Rejected) => Ok(TxnOutcome::Rejected),
            Some(Answer::Foreign) => Err(foreign()),
            None => {
                let message = "the server's answer is not that of the transaction";
                Err(BackendError::new(ErrorKind::Indeterminate, NAME, Operation::Txn, message))
            }
        }
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let (start, options) = self.inner.space.listing(range);
        let response = self.get(Operation::Keys, start, options).await?;
        response.kvs().iter().map(|found| self.inner.space.logical(found.key(), Operation::Keys)).collect()
    }
}
