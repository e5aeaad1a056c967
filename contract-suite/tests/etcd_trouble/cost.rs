//! What a primitive costs: one round trip, counted on the wire and by the server.

use std::path::PathBuf;

use contract_suite::ControlError;
use contract_suite::servers::etcd::topology::EtcdServer;
use contract_suite::servers::trouble::{key, put};
use contract_suite::wire::{Forwarder, Http2};
use coord_core::{Assert, Backend as _, Key, KeyRange, KeySet, Mutation, Prefix, Txn};

use super::{open, server};

/// What has been counted.
struct Counted<'a> {
    wire: &'a Forwarder,
    server: &'a EtcdServer,
    told: (u64, (u64, u64)),
}

impl Counted<'_> {
    /// So many more requests on the wire, of which the server has answered so many transactions and reads.
    async fn more(&mut self, what: &str, transactions: u64, reads: u64) -> Result<(), ControlError> {
        let now = (self.wire.requests(), self.server.answered().await?);
        let (wire, (txn, range)) = self.told;
        assert_eq!(now.0, wire + transactions + reads, "requests on the wire for {what}");
        assert_eq!(now.1, (txn + transactions, range + reads), "transactions and reads for {what}");
        self.told = now;
        Ok(())
    }
}

pub(super) async fn one_each(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    let wire =
        Forwarder::start(format!("127.0.0.1:{}", server.port()), || Box::new(Http2::default())).await?;
    let backend = open(&format!("etcd://{}", wire.address())).await?;
    // The first of each kind, so that the server has a counter for it.
    assert!(backend.txn(&put("first")).await?.is_applied());
    backend.keys(&KeyRange::new(Prefix::all(), 1)?).await?;
    let told = (wire.requests(), server.answered().await?);
    let mut counted = Counted { wire: &wire, server: &server, told };
    for round in 0..2 {
        let keys: Vec<Key> = (0..64).map(|n| key(&format!("{round:02}/{n:02}"))).collect();
        let set = KeySet::new(keys.clone())?;
        let range = KeyRange::new(Prefix::new(format!("{round:02}/"))?, 100)?;
        let puts = || keys.iter().map(|key| Mutation::put(key.clone(), vec![b'v'; 1_000]));
        let absent = Txn::new(keys.iter().take(48).cloned().map(Assert::missing), puts())?;
        assert!(backend.txn(&absent).await?.is_applied());
        counted.more("a transaction of 48 asserts that creates 64 keys", 1, 0).await?;
        assert!(!backend.txn(&absent).await?.is_applied());
        counted.more("the same, rejected", 1, 0).await?;
        let snapshot = backend.snapshot(&set).await?;
        assert!(snapshot.iter().all(|(_, entry)| entry.is_present()));
        counted.more("a snapshot of 64 keys", 1, 0).await?;
        let asserts: Vec<Assert> = snapshot
            .iter()
            .take(48)
            .map(|(key, entry)| Assert::version(key.clone(), entry.version()))
            .collect();
        assert!(backend.txn(&Txn::new(asserts, puts())?).await?.is_applied());
        counted.more("a transaction of 48 asserts that updates 64 keys", 1, 0).await?;
        assert_eq!(backend.keys(&range).await?, keys);
        counted.more("a listing", 0, 1).await?;
        assert!(backend.txn(&Txn::new([Assert::missing(key("nothing"))], [])?).await?.is_applied());
        counted.more("a check", 1, 0).await?;
        assert!(backend.txn(&Txn::new([], puts())?).await?.is_applied());
        counted.more("a transaction that puts 64 keys without asserts", 1, 0).await?;
        assert!(backend.txn(&Txn::new([], keys.iter().cloned().map(Mutation::delete))?).await?.is_applied());
        counted.more("a transaction that deletes 64 keys without asserts", 1, 0).await?;
    }
    assert_eq!(wire.open(), 1, "over one connection");
    Ok(())
}
