//! What a primitive costs: one round trip, counted on the wire, and one transaction of one statement, counted by the server.

use std::path::PathBuf;
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::postgres::PostgresServer;
use contract_suite::servers::trouble::{bounded, elapsed, key};
use contract_suite::servers::wait_until;
use contract_suite::wire::{Forwarder, Turns};
use coord_core::{Assert, Backend as _, Key, KeyRange, KeySet, Mutation, Prefix, Txn, limits};
use coord_postgres::PostgresBackend;

use super::{open, server};

/// The transactions of the database so far, and the statements of a role: those of sessions that have ended.
async fn transactions(server: &PostgresServer) -> Result<(i64, i64), ControlError> {
    wait_until(Duration::from_secs(20), || async {
        let sessions =
            server.value("SELECT count(*) FROM pg_stat_activity WHERE datname = 'counted'").await?;
        if sessions == "0" { Ok(()) } else { Err(format!("{sessions} sessions are open").into()) }
    })
    .await?;
    let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'counted'";
    let rollbacks = "SELECT xact_rollback FROM pg_stat_database WHERE datname = 'counted'";
    Ok((server.value(commits).await?.parse()?, server.value(rollbacks).await?.parse()?))
}

pub(super) async fn one_each(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &["autovacuum=off"]).await?;
    server.execute("CREATE DATABASE counted").await?;
    let wire =
        Forwarder::start(format!("127.0.0.1:{}", server.port()), || Box::new(Turns::default())).await?;
    let url = format!("postgres://postgres@{}/counted", wire.address());
    drop(open(&url).await?);
    let mut costs = Vec::new();
    for rounds in [0, 1, 20] {
        let before = transactions(&server).await?;
        let backend = open(&url).await?;
        for round in 0..rounds {
            primitives(&backend, &wire, round).await?;
        }
        assert_eq!(wire.open(), 1, "over one connection");
        drop(backend);
        let after = transactions(&server).await?;
        assert_eq!(after.1, before.1, "nothing is rolled back");
        costs.push(after.0 - before.0);
    }
    // What opening costs is the same each time.
    assert_eq!(costs[1] - costs[0], PRIMITIVES, "{costs:?}");
    assert_eq!(costs[2] - costs[0], 20 * PRIMITIVES, "{costs:?}");
    Ok(())
}

/// How many primitives one round does.
const PRIMITIVES: i64 = 7;

async fn primitives(backend: &PostgresBackend, wire: &Forwarder, round: u64) -> Result<(), ControlError> {
    let keys: Vec<Key> = (0..64).map(|n| key(&format!("{round:02}/{n:02}"))).collect();
    let set = KeySet::new(keys.clone())?;
    let range = KeyRange::new(Prefix::new(format!("{round:02}/"))?, 100)?;
    let puts = || keys.iter().map(|key| Mutation::put(key.clone(), vec![b'v'; 1_000]));
    let absent = Txn::new(keys.iter().take(48).cloned().map(Assert::missing), puts())?;
    let mut told = wire.requests();
    let mut one_more = |what: &str| {
        let now = wire.requests();
        assert_eq!(now, told + 1, "requests on the wire for {what}, round {round}");
        told = now;
    };
    assert!(backend.txn(&absent).await?.is_applied());
    one_more("a transaction of 48 asserts that creates 64 keys");
    assert!(!backend.txn(&absent).await?.is_applied());
    one_more("the same, rejected");
    let snapshot = backend.snapshot(&set).await?;
    assert!(snapshot.iter().all(|(_, entry)| entry.is_present()));
    one_more("a snapshot of 64 keys");
    let asserts = snapshot.iter().take(48).map(|(key, entry)| Assert::version(key.clone(), entry.version()));
    let update = Txn::new(asserts, puts())?;
    assert!(backend.txn(&update).await?.is_applied());
    one_more("a transaction of 48 asserts that updates 64 keys");
    assert_eq!(backend.keys(&range).await?, keys);
    one_more("a listing");
    let check = Txn::new([Assert::missing(key("nothing"))], [])?;
    assert!(backend.txn(&check).await?.is_applied());
    one_more("a check");
    assert!(backend.txn(&Txn::new([], keys.iter().cloned().map(Mutation::delete))?).await?.is_applied());
    one_more("a transaction that deletes 64 keys");
    Ok(())
}

/// The limits of the contract, with keys and values that cannot be compressed, in a time that a caller can wait for.
pub(super) async fn largest(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let backend = open(&super::url(&server, "timeout=30s&schema=large")).await?;
    // The length of a key and its index, and letters that look random.
    let long = |n: u64| {
        let mut state = n;
        let mut text = format!("{n:05}/");
        while text.len() < limits::KEY_BYTES {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push(char::from(b'!' + ((state >> 33) % 94) as u8));
        }
        key(&text)
    };
    let long_keys: Vec<Key> = (0..900).map(long).collect();
    let puts = Txn::new([], long_keys.iter().map(|key| Mutation::put(key.clone(), "v")))?;
    assert!(bounded(20, backend.txn(&puts)).await?.is_applied());
    let value = vec![0xA5; limits::VALUE_BYTES];
    let large = Txn::new([], [Mutation::put(key("large"), value.clone())])?;
    assert!(bounded(20, backend.txn(&large)).await?.is_applied());
    let short: Vec<Key> = (0..10_000).map(|n| key(&format!("short/{n:05}"))).collect();
    let mut slowest = Duration::ZERO;
    for keys in short.chunks(limits::TXN_MUTATIONS) {
        let puts = Txn::new(
            keys.iter().take(limits::TXN_ASSERTS).cloned().map(Assert::missing),
            keys.iter().map(|key| Mutation::put(key.clone(), "value")),
        )?;
        let (answer, took) = elapsed(bounded(20, backend.txn(&puts))).await;
        assert!(answer?.is_applied());
        slowest = slowest.max(took);
    }
    let (snapshot, took) = elapsed(bounded(20, backend.snapshot(&KeySet::new(short.clone())?))).await;
    assert!(snapshot?.iter().all(|(_, entry)| entry.is_present()));
    slowest = slowest.max(took);
    let range = KeyRange::new(Prefix::new("short/")?, limits::LISTING_KEYS)?;
    let (listed, took) = elapsed(bounded(20, backend.keys(&range))).await;
    assert_eq!(listed?, short);
    slowest = slowest.max(took);
    // Of keys that are not there too, however small the table.
    let other = open(&super::url(&server, "timeout=30s&schema=empty")).await?;
    let (snapshot, took) = elapsed(bounded(20, other.snapshot(&KeySet::new(short.clone())?))).await;
    assert!(snapshot?.iter().all(|(_, entry)| !entry.is_present()));
    slowest = slowest.max(took);
    // Generous, for a busy machine; a plan that looks through the table for each key takes minutes.
    assert!(slowest < Duration::from_secs(8), "{slowest:?}");
    Ok(())
}
