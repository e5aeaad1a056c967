//! The client: a model of how the errors of a line are told.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use coord_core::token::mint_incarnation;
use coord_core::{
    Backend, BackendError, ErrorKind, Key, KeyRange, KeySet, Namespace, Operation, Snapshot, Txn, TxnOutcome,
};
use tokio::sync::Mutex;

use super::server::{Call, Connection, LinkError, Reply, Request, Script, Server, Settings, Sync};

pub(crate) const NAME: &str = "sim";

/// How a client behaves. All but [`Manner::RIGHT`] are for backends that are wrong on purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// How long a call may take.
    pub(crate) deadline: Duration,
    /// Refuses servers that lose what they acknowledged.
    pub(crate) checks_settings: bool,
    /// Prepares a script again that the server has dropped.
    pub(crate) prepares_again: bool,
}

impl Manner {
    pub(crate) const RIGHT: Manner =
        Manner { deadline: Duration::from_secs(1), checks_settings: true, prepares_again: true };
}

/// A handle on one namespace. It has one line at a time, opened when it is needed, over which any number of calls go at once.
pub(crate) struct SimBackend {
    server: Server,
    namespace: Namespace,
    manner: Manner,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl fmt::Debug for SimBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimBackend").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Why a call has no reply.
enum Failure {
    /// Nothing that does anything has reached the server.
    NotSent(&'static str),
    /// The request may have reached the server, and may do so yet.
    Unknown(&'static str),
    /// The server must not be used.
    Refused(&'static str),
}

impl SimBackend {
    /// Connects.
    pub(crate) async fn open(
        server: Server,
        namespace: Namespace,
        manner: Manner,
    ) -> Result<Self, BackendError> {
        let backend = SimBackend { server, namespace, manner, connection: Mutex::new(None) };
        match tokio::time::timeout(manner.deadline, backend.connection()).await {
            Ok(Ok(_)) => Ok(backend),
            Ok(Err(failure)) => Err(classify(Operation::Connect, failure)),
            Err(_) => Err(classify(Operation::Connect, Failure::NotSent("no answer within the deadline"))),
        }
    }

    /// The line, opened first if there is none.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        let connection = self.server.connect().ok_or(Failure::NotSent("nobody listens"))?;
        let broken = |_| Failure::NotSent("the line broke while it was opened");
        if self.manner.checks_settings {
            let Reply::Settings(settings) = connection.call(Request::Settings).await.map_err(broken)? else {
                return Err(Failure::NotSent("the server does not tell its settings"));
            };
            check(settings)?;
        }
        for script in Script::ALL {
            connection.call(Request::Prepare(script)).await.map_err(broken)?;
        }
        Ok(slot.insert(Arc::new(connection)).clone())
    }

    /// Forgets a line that is broken or too slow, unless another call has done so already.
    async fn forget(&self, broken: &Arc<Connection>) {
        let mut slot = self.connection.lock().await;
        if slot.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, broken)) {
            *slot = None;
        }
    }

    /// `sent` is true while a request is on its way of which it is not known what becomes of it.
    async fn exchange(
        &self,
        call: &(dyn Fn() -> Call + Send + std::marker::Sync),
        sent: &AtomicBool,
    ) -> Result<Reply, Failure> {
        // A line that broke while it was idle is noticed before anything is sent, so a new one may be tried at once.
        for _ in 0..2 {
            let connection = self.connection().await?;
            sent.store(true, Ordering::SeqCst);
            let reply = connection.call(Request::Run(self.namespace.clone(), call())).await;
            match reply {
                Ok(Reply::NotPrepared) if self.manner.prepares_again => {
                    // Certainly not done, so it may be sent again: a new try, which mints anew. This one cannot find the script missing.
                    let again = Request::PrepareAndRun(self.namespace.clone(), call());
                    match connection.call(again).await {
                        Ok(reply) => return Ok(reply),
                        Err(LinkError::NotSent) => sent.store(false, Ordering::SeqCst),
                        Err(LinkError::Lost) => {
                            self.forget(&connection).await;
                            return Err(Failure::Unknown("the line broke"));
                        }
                    }
                }
                Ok(reply) => return Ok(reply),
                Err(LinkError::NotSent) => sent.store(false, Ordering::SeqCst),
                Err(LinkError::Lost) => {
                    self.forget(&connection).await;
                    return Err(Failure::Unknown("the line broke"));
                }
            }
            self.forget(&connection).await;
        }
        Err(Failure::NotSent("the line broke"))
    }

    async fn call(
        &self,
        operation: Operation,
        call: &(dyn Fn() -> Call + Send + std::marker::Sync),
    ) -> Result<Reply, BackendError> {
        let sent = AtomicBool::new(false);
        let failure = match tokio::time::timeout(self.manner.deadline, self.exchange(call, &sent)).await {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(failure)) => failure,
            Err(_) => {
                // The reply may come yet, so nobody may wait for another one on the same line. If somebody is opening a new line just
                // now, this one is forgotten already.
                if let Ok(mut slot) = self.connection.try_lock() {
                    *slot = None;
                }
                if sent.load(Ordering::SeqCst) {
                    Failure::Unknown("no reply within the deadline")
                } else {
                    Failure::NotSent("no line within the deadline")
                }
            }
        };
        Err(classify(operation, failure))
    }
}

/// Refuses a server that would lose what it has acknowledged, or that takes no writes.
fn check(settings: Settings) -> Result<(), Failure> {
    if settings.sync != Sync::BeforeReply {
        return Err(Failure::Refused("the server acknowledges writes before they are on disk"));
    }
    if settings.evicts {
        return Err(Failure::Refused("the server drops keys when memory is short"));
    }
    if settings.read_only {
        return Err(Failure::Refused("the server takes no writes"));
    }
    Ok(())
}

/// The one place where a failure of the line becomes an error of the contract.
fn classify(operation: Operation, failure: Failure) -> BackendError {
    let (kind, message) = match failure {
        // A read changes nothing, so that it is not known what became of it does not matter.
        Failure::Unknown(message) if operation == Operation::Txn => (ErrorKind::Indeterminate, message),
        Failure::Unknown(message) | Failure::NotSent(message) => (ErrorKind::Unavailable, message),
        Failure::Refused(message) => (ErrorKind::Config, message),
    };
    BackendError::new(kind, NAME, operation, message)
}

/// The one place where a reply that is no answer becomes an error of the contract. All of these were definite.
fn refusal(operation: Operation, reply: &Reply) -> BackendError {
    let (kind, message) = match reply {
        Reply::Foreign(key, what) => {
            (ErrorKind::Corrupt, format!("what lies under the key {key:?} is not ours: {what}"))
        }
        Reply::TooLarge(size) => {
            (ErrorKind::Invalid, format!("the snapshot has {size} bytes, which is too many"))
        }
        Reply::ReadOnly => (ErrorKind::Unavailable, "the server takes no writes".to_owned()),
        Reply::NotPrepared => (ErrorKind::Unavailable, "the server does not know the script".to_owned()),
        Reply::Settings(_) | Reply::Prepared | Reply::Snapshot(_) | Reply::Txn(_) | Reply::Keys(_) => {
            (ErrorKind::Corrupt, "the server answers another question".to_owned())
        }
    };
    BackendError::new(kind, NAME, operation, message)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for SimBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        match self.call(Operation::Snapshot, &|| Call::Snapshot(keys.clone())).await? {
            Reply::Snapshot(snapshot) => Ok(snapshot),
            other => Err(refusal(Operation::Snapshot, &other)),
        }
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        match self.call(Operation::Txn, &|| Call::Txn(txn.clone(), mint_incarnation())).await? {
            Reply::Txn(outcome) => Ok(outcome),
            other => Err(refusal(Operation::Txn, &other)),
        }
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        match self.call(Operation::Keys, &|| Call::Keys(range.clone())).await? {
            Reply::Keys(keys) => Ok(keys),
            other => Err(refusal(Operation::Keys, &other)),
        }
    }
}
