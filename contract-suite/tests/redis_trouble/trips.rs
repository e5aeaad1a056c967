//! What a primitive costs: one round trip, counted on the wire and by the server.

use std::path::PathBuf;

use contract_suite::ControlError;
use contract_suite::servers::redis::command;
use contract_suite::servers::trouble::key;
use contract_suite::wire::{Forwarder, Turns};
use coord_core::{Assert, Backend as _, Key, KeyRange, KeySet, Mutation, Prefix, Txn};
use redis::Value;

use super::{Server, open};

/// How often clients have sent a script, by the server's own statistics: by its hash, and by its text.
async fn scripts(port: u16) -> Result<(u64, u64), ControlError> {
    let Value::VerbatimString { text, .. } = command(port, "INFO commandstats").await? else {
        return Err("INFO is no text".into());
    };
    let calls = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls="))?.split(',').next());
        line.map_or(Ok(0), str::parse)
    };
    Ok((calls("evalsha")?, calls("eval")?))
}

pub(super) async fn one_each(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    let wire = Forwarder::start(format!("127.0.0.1:{}", server.port), || Box::new(Turns::default())).await?;
    let backend = open(&format!("redis://{}", wire.address()), "trips").await?;
    let keys: Vec<Key> = (0..64).map(|n| key(&format!("{n:02}"))).collect();
    let (set, range) = (KeySet::new(keys.clone())?, KeyRange::new(Prefix::all(), 100)?);
    let puts = || keys.iter().map(|key| Mutation::put(key.clone(), vec![b'v'; 1_000]));
    // The first calls teach the server the scripts.
    assert!(backend.txn(&Txn::new([], puts())?).await?.is_applied());
    backend.keys(&range).await?;
    let asserts: Vec<Assert> = {
        let snapshot = backend.snapshot(&set).await?;
        snapshot.iter().take(48).map(|(key, entry)| Assert::version(key.clone(), entry.version())).collect()
    };
    for round in 0..3 {
        let mut told = (wire.requests(), scripts(server.port).await?);
        let mut one_more = async |what: &str| {
            let now = (wire.requests(), scripts(server.port).await?);
            assert_eq!(now.0, told.0 + 1, "requests on the wire for {what}, round {round}");
            assert_eq!(
                now.1,
                (told.1.0 + 1, told.1.1),
                "scripts by hash and by text for {what}, round {round}"
            );
            told = now;
            Ok::<_, ControlError>(())
        };
        assert_eq!(backend.snapshot(&set).await?.len(), 64);
        one_more("a snapshot of 64 keys").await?;
        let txn = Txn::new(asserts.clone(), puts())?;
        assert_eq!(backend.txn(&txn).await?.is_applied(), round == 0);
        one_more("a transaction of 48 asserts and 64 mutations").await?;
        assert_eq!(backend.keys(&range).await?.len(), 64);
        one_more("a listing").await?;
    }
    assert_eq!(wire.open(), 1, "over one connection");
    Ok(())
}
