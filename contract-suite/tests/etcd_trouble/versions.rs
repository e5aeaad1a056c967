//! The trap of this store: versions by a key's `version` alone, which begins again when the key is deleted and created anew.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use contract_suite::servers::etcd::topology::EtcdServer;
use contract_suite::{ControlError, Harness, RowResult, check};
use coord_core::{
    Backend, BackendError, Entry, ErrorKind, Key, KeyRange, KeySet, Mutation, Namespace, Operation, Snapshot,
    Txn, TxnOutcome, Version,
};
use coord_etcd::{EtcdBackend, EtcdConfig};
use etcd_client::{Client, Compare, CompareOp, TxnOp};

use super::{server, url};

/// The real backend, except that `create_revision` is neither told nor compared, unless it is told to be right.
struct CountsAlone {
    inner: EtcdBackend,
    client: Client,
    namespace: String,
    right: bool,
}

impl std::fmt::Debug for CountsAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl CountsAlone {
    fn physical(&self, key: &Key) -> String {
        format!("coord/{}/{key}", self.namespace)
    }

    fn half(half: u64) -> i64 {
        i64::try_from(half).unwrap_or(i64::MAX)
    }
}

#[async_trait]
impl Backend for CountsAlone {
    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        let snapshot = self.inner.snapshot(keys).await?;
        let entries = snapshot.iter().map(|(key, entry)| {
            let entry = match entry {
                Entry::Present { version, value } if !self.right => {
                    let version =
                        Version::new(1, version.count()).expect("it is there, so it has been written");
                    Entry::Present { version, value: value.clone() }
                }
                entry => entry.clone(),
            };
            (key.clone(), entry)
        });
        Ok(Snapshot::new(entries.collect::<Vec<_>>(), snapshot.store_time()))
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let mut compares = Vec::new();
        for assert in txn.asserts() {
            let (key, version) = (self.physical(&assert.key), assert.version);
            compares.push(Compare::version(key.clone(), CompareOp::Equal, Self::half(version.count())));
            if self.right {
                compares.push(Compare::create_revision(
                    key,
                    CompareOp::Equal,
                    Self::half(version.incarnation()),
                ));
            }
        }
        let operations: Vec<TxnOp> = txn
            .mutations()
            .iter()
            .map(|mutation| match mutation {
                Mutation::Put { key, value } => {
                    TxnOp::put(self.physical(key), [&[0xFF], &value[..]].concat(), None)
                }
                Mutation::Delete { key } => TxnOp::delete(self.physical(key), None),
            })
            .collect();
        let request = etcd_client::Txn::new().when(compares).and_then(operations);
        match self.client.kv_client().txn(request).await {
            Ok(answer) if answer.succeeded() => Ok(TxnOutcome::Applied),
            Ok(_) => Ok(TxnOutcome::Rejected),
            Err(error) => {
                Err(BackendError::new(ErrorKind::Indeterminate, "etcd", Operation::Txn, error.to_string()))
            }
        }
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.inner.keys(range).await
    }
}

struct CountsHarness {
    server: Arc<EtcdServer>,
    right: bool,
}

#[async_trait]
impl Harness for CountsHarness {
    fn name(&self) -> &str {
        "etcd by version"
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let config = EtcdConfig::from_url(&url(&self.server, ""))?;
        let inner = EtcdBackend::open(&config, &Namespace::new(namespace)?).await?;
        let client = self.server.client().await.map_err(|error| {
            BackendError::new(ErrorKind::Unavailable, "etcd", Operation::Connect, error.to_string())
        })?;
        Ok(Arc::new(CountsAlone { inner, client, namespace: namespace.to_owned(), right: self.right }))
    }
}

pub(super) async fn alone_is_red(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Arc::new(server(&programs, &[]).await?);
    for id in ["B13", "B18"] {
        for right in [true, false] {
            let row = check(Arc::new(CountsHarness { server: server.clone(), right }), id).await;
            let expected = if right { RowResult::Passed } else { RowResult::Failed };
            assert_eq!(row.result, expected, "with create_revision: {right}; {row:?}");
            // Not for want of an answer: for a wrong one.
            let why = row.why.as_deref().unwrap_or_default();
            assert!(right || (why.starts_with(id) && !why.contains("saw the error")), "{row:?}");
        }
    }
    Ok(())
}
