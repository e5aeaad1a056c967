//! What a commit waits for, shown with a standby that is never there: who waits for it waits for ever.

use std::path::PathBuf;
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::postgres::PostgresServer;
use contract_suite::servers::trouble::{bounded, elapsed, entry, key, put};
use contract_suite::servers::wait_until;
use coord_core::{Assert, Backend as _, ErrorKind, Mutation, Txn, TxnOutcome, Version};

use super::{open, server, url};

/// Waits for a standby of this name from now on; for none if it is empty.
async fn standbys(server: &PostgresServer, names: &str) -> Result<(), ControlError> {
    // The session itself must not wait for what it has just set.
    let client = server.client().await?;
    client.batch_execute("SET synchronous_commit = local").await?;
    client.batch_execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await?;
    client.batch_execute("SELECT pg_reload_conf()").await?;
    wait_until(Duration::from_secs(10), || async {
        let now = server.value("SHOW synchronous_standby_names").await?;
        if now == names { Ok(()) } else { Err(format!("it is still {now:?}").into()) }
    })
    .await
}

pub(super) async fn levels(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    // A default that waits for nothing at all, which `full` must raise for its own commits.
    let server = server(programs, &["synchronous_commit=off"]).await?;
    let full = open(&url(&server, "timeout=2s")).await?;
    let local = open(&url(&server, "timeout=2s&durability=local")).await?;
    let none = open(&url(&server, "timeout=2s&durability=none")).await?;
    assert!(full.txn(&put("full")).await?.is_applied());
    standbys(&server, "nobody").await?;

    // Who does not ask for the standby does not wait for it.
    for (what, backend) in [("local", &local), ("none", &none)] {
        let (answer, took) = elapsed(bounded(5, backend.txn(&put(what)))).await;
        assert_eq!(answer?, TxnOutcome::Applied, "{what}");
        assert!(took < Duration::from_secs(1), "{what}: {took:?}");
    }
    // What writes nothing has nothing to wait for: a rejected one before its locks, one after them, a check, reads.
    let seen = entry(&full, "full").await?.version();
    let stale = Txn::new([Assert::missing(key("full"))], [Mutation::put(key("new"), "v")])?;
    assert_eq!(bounded(1, full.txn(&stale)).await?, TxnOutcome::Rejected);
    let check = Txn::new([Assert::version(key("full"), seen)], [])?;
    assert_eq!(bounded(1, full.txn(&check)).await?, TxnOutcome::Applied);

    // The commit of `full` waits, until the caller gives up.
    let error = bounded(5, full.txn(&put("full"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    // Nobody sees it before the standby has it.
    assert_eq!(entry(&none, "full").await?.version(), seen);
    standbys(&server, "").await?;
    wait_until(Duration::from_secs(10), || async {
        let now = entry(&none, "full").await?.version();
        if Some(now) == seen.next() { Ok(()) } else { Err(format!("{now}").into()) }
    })
    .await?;
    assert!(bounded(5, full.txn(&put("full"))).await?.is_applied());
    Ok(())
}

/// Somebody cancels a commit that waits for the standby, or ends its connection. It has happened on the primary, and the server says so by
/// a warning, or breaks off.
pub(super) async fn given_up(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let backend = open(&url(&server, "timeout=20s")).await?;
    standbys(&server, "nobody").await?;
    for (n, how) in ["pg_cancel_backend", "pg_terminate_backend"].into_iter().enumerate() {
        let call = tokio::spawn({
            let backend = backend.clone();
            async move { backend.txn(&put(how)).await }
        });
        let waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        wait_until(Duration::from_secs(10), || async {
            match server.value(&format!("SELECT {how}(pid) {waiting}")).await {
                Ok(done) if done == "t" => Ok(()),
                other => Err(format!("{other:?}").into()),
            }
        })
        .await?;
        let error = bounded(10, call).await?.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{how}: {error}");
        assert_ne!(entry(&backend, how).await?.version(), Version::MISSING, "{how} {n}");
    }
    standbys(&server, "").await?;
    // A doubt about one transaction is none about the next.
    assert!(bounded(5, backend.txn(&put("after"))).await?.is_applied());
    Ok(())
}
