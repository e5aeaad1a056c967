//! The handle.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use coord_core::{Backend, BackendError, Key, KeyRange, KeySet, Namespace, Snapshot, Txn, TxnOutcome};
use deadpool::managed::Pool;

use crate::NAME;
use crate::call::call;
use crate::config::PostgresConfig;
use crate::connection::{Connector, pool};
use crate::read::{ListKeys, Reads, TakeSnapshot};
use crate::schema::Prepare;
use crate::write::{Request, Transact, Write};

/// A handle on one namespace of a store in a PostgreSQL database, with a pool of connections of its own. Clones are the same handle.
///
/// It needs a tokio runtime with its timer and its input and output. A call whose future is dropped leaves nothing locked: its
/// statement ends in the server by itself, after `statement_timeout` at the latest, and its connection serves the next call.
#[derive(Clone)]
pub struct PostgresBackend {
    namespace: Namespace,
    pool: Pool<Connector>,
    statements: Arc<Statements>,
}

struct Statements {
    reads: Reads,
    write: Write,
}

impl PostgresBackend {
    /// Opens a namespace of the store in the configured database. Schema, tables and function are made if they are not there, and
    /// upgraded if they are of an older version.
    ///
    /// # Errors
    /// [`Config`](coord_core::ErrorKind::Config) if the server does not accept the user or the encryption, is older than PostgreSQL 13, is a
    /// standby, runs with settings that lose what it acknowledged, if the schema holds tables of others or is of a newer version, or if the
    /// user may not make it. [`Unavailable`](coord_core::ErrorKind::Unavailable) if no server answers in time.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn open(config: &PostgresConfig, namespace: &Namespace) -> Result<Self, BackendError> {
        let backend = PostgresBackend {
            namespace: namespace.clone(),
            pool: pool(config)?,
            statements: Arc::new(Statements {
                reads: Reads::new(config.schema()),
                write: Write::new(config),
            }),
        };
        let connector = backend.pool.manager();
        call(&backend.pool, &Prepare { connector }).await?;
        connector.set_prepared();
        Ok(backend)
    }

    /// The namespace of this handle.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The configuration of this handle.
    #[must_use]
    pub fn config(&self) -> &PostgresConfig {
        self.pool.manager().config()
    }
}

#[async_trait]
impl Backend for PostgresBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let (reads, namespace) = (&self.statements.reads, self.namespace.as_str());
        call(&self.pool, &TakeSnapshot { reads, namespace, keys }).await
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let Some(request) = Request::new(txn) else { return Ok(TxnOutcome::Rejected) };
        let (write, namespace) = (&self.statements.write, self.namespace.as_str());
        call(&self.pool, &Transact { write, namespace, request }).await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let (reads, namespace) = (&self.statements.reads, self.namespace.as_str());
        call(&self.pool, &ListKeys { reads, namespace, range }).await
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend")
            .field("namespace", &self.namespace)
            .field("config", self.config())
            .finish_non_exhaustive()
    }
}
