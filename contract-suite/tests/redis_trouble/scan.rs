//! The trap of this store: a listing by SCAN, which is no snapshot.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use contract_suite::servers::redis::client;
use contract_suite::{ControlError, Harness, Options, RowResult, run};
use coord_core::{
    Backend, BackendError, ErrorKind, Key, KeyRange, KeySet, Operation, Snapshot, Txn, TxnOutcome,
};
use coord_redis::RedisBackend;
use redis::aio::MultiplexedConnection;

use super::{Server, open};

/// The real backend, except that it lists by SCAN, and in the order in which SCAN finds keys if told to.
#[derive(Debug)]
struct Scanning {
    inner: RedisBackend,
    connection: MultiplexedConnection,
    sorted: bool,
}

#[async_trait]
impl Backend for Scanning {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.inner.snapshot(keys).await
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        self.inner.txn(txn).await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        let failed = |error: redis::RedisError| {
            BackendError::new(ErrorKind::Unavailable, "redis", Operation::Keys, error.to_string())
        };
        let prefix = format!("{{{}}}:k:", self.inner.namespace());
        let (mut found, mut cursor) = (Vec::<Key>::new(), 0_u64);
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(cursor).arg("COUNT").arg(10).arg("MATCH").arg(format!("{prefix}*"));
            let (next, names): (u64, Vec<String>) =
                command.query_async(&mut self.connection.clone()).await.map_err(failed)?;
            for name in &names {
                found.extend(name.strip_prefix(&prefix).map(Key::new).transpose()?);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        found.retain(|key| range.contains(key));
        if self.sorted {
            found.sort();
        }
        found.dedup();
        found.truncate(range.limit());
        Ok(found)
    }
}

struct ScanHarness {
    server: Server,
    sorted: bool,
}

#[async_trait]
impl Harness for ScanHarness {
    fn name(&self) -> &str {
        "redis by SCAN"
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let inner = open(&self.server.url(""), namespace).await?;
        let connection = client(self.server.port).await.map_err(|error| {
            BackendError::new(ErrorKind::Unavailable, "redis", Operation::Connect, error.to_string())
        })?;
        Ok(Arc::new(Scanning { inner, connection, sorted: self.sorted }))
    }
}

pub(super) async fn is_red(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    for (sorted, id) in [(false, "B31"), (true, "B32")] {
        let server = Server::durable(&programs).await;
        let options = Options { filter: Some(id.to_owned()), ..Options::default() };
        let report = run(Arc::new(ScanHarness { server, sorted }), &options).await;
        let row = report.clauses.iter().find(|row| row.id == id).ok_or("the clause is gone")?;
        assert_eq!(row.result, RowResult::Failed, "sorted: {sorted}; {row:?}");
        // Not for want of an answer: for a wrong one.
        assert!(!row.why.as_deref().unwrap_or_default().contains("saw the error"), "{row:?}");
    }
    Ok(())
}
