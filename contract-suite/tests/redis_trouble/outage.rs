//! A server that cannot or will not, and can again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use contract_suite::servers::redis::{DURABLE, client, command};
use contract_suite::servers::trouble::{entry, key, step};
use contract_suite::servers::wait_until;
use contract_suite::{ControlError, servers::redis::topology::wait_for};
use coord_core::{Assert, Backend, Clock as _, ErrorKind, KeySet, Mutation, SystemClock, Txn};
use futures::future::join_all;

use super::{Server, open, put};

/// How long the server stays away; the environment variable `COORD_OUTAGE_SECONDS` makes it longer.
fn outage() -> Duration {
    let seconds = std::env::var("COORD_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

/// The handle works again, without a new one.
async fn recovers(backend: &dyn Backend, name: &str) -> Result<(), ControlError> {
    wait_until(Duration::from_secs(10), || async { Ok(step(backend, name).await?) }).await?;
    Ok(())
}

pub(super) async fn gone_for_a_while(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    let backend = server.open("gone").await;
    let acknowledged = step(&backend, "k").await?;
    server.process.kill().await?;
    let (clock, mut calls) = (SystemClock::new(), 0);
    while clock.monotonic() < outage() {
        let begin = clock.monotonic();
        let read = entry(&backend, "k").await.expect_err("the server is gone");
        assert_eq!(read.kind(), ErrorKind::Unavailable, "{read}");
        let write = backend.txn(&Txn::new([], [put("k", "v")])?).await.expect_err("the server is gone");
        // Once its end is noticed nothing is sent, so it is known that nothing happened.
        assert!(calls == 0 || write.kind() == ErrorKind::Unavailable, "{write}");
        assert!(clock.monotonic() - begin < Duration::from_secs(3));
        calls += 1;
        clock.sleep(Duration::from_millis(50)).await;
    }
    assert!(calls > 10);
    server.process.restart().await?;
    assert_eq!(
        step(&backend, "k").await?,
        acknowledged + 1,
        "at once, with the handle that was there before"
    );
    Ok(())
}

pub(super) async fn many_wait(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    let backend = Arc::new(server.open("many").await);
    step(&*backend, "k").await?;
    server.process.pause()?;
    let clock = SystemClock::new();
    for round in 0..2 {
        let begin = clock.monotonic();
        let calls = (0..60).map(|n| {
            let backend = backend.clone();
            async move {
                let txn = Txn::new([], [put(&format!("{round}/{n}"), "v")])?;
                backend.txn(&txn).await.map(|_| ())
            }
        });
        for answer in join_all(calls).await {
            let error = answer.expect_err("the server stands still");
            // In the second round there is no connection any more.
            let kind = if round == 0 { ErrorKind::Indeterminate } else { ErrorKind::Unavailable };
            assert_eq!(error.kind(), kind, "{error}");
        }
        let took = clock.monotonic() - begin;
        assert!(took < Duration::from_secs(4), "sixty calls waited {took:?} together");
    }
    server.process.resume()?;
    recovers(&*backend, "k").await?;
    // What was never sent has not happened.
    for n in 0..60 {
        assert!(!entry(&*backend, &format!("1/{n}")).await?.is_present());
    }
    Ok(())
}

pub(super) async fn memory_full(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    let backend = server.open("full").await;
    step(&backend, "k").await?;
    let before = entry(&backend, "k").await?;
    command(server.port, "CONFIG SET maxmemory 100kb").await?;
    let many: Vec<Mutation> = (0..200).map(|n| put(&format!("{n}"), "v")).chain([put("k", "new")]).collect();
    let error = backend.txn(&Txn::new([], many)?).await.expect_err("there is no memory");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("OOM"), "{error}");
    command(server.port, "CONFIG SET maxmemory 0").await?;
    assert_eq!(entry(&backend, "k").await?, before);
    assert!(!entry(&backend, "0").await?.is_present(), "nothing of it has happened");
    recovers(&backend, "k").await
}

pub(super) async fn demoted(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let (server, other) = (Server::durable(&programs).await, Server::durable(&programs).await);
    let backend = server.open("demoted").await;
    step(&backend, "k").await?;
    // It keeps its data as long as it does not reach its new master.
    other.process.pause()?;
    command(server.port, &format!("REPLICAOF 127.0.0.1 {}", other.port)).await?;
    for _ in 0..3 {
        let write = backend.txn(&Txn::new([], [put("k", "v")])?).await.expect_err("a replica");
        assert!(matches!(write.kind(), ErrorKind::Unavailable | ErrorKind::Config), "{write}");
        let read = entry(&backend, "k").await.expect_err("a replica may answer old state");
        assert!(matches!(read.kind(), ErrorKind::Unavailable | ErrorKind::Config), "{read}");
    }
    command(server.port, "REPLICAOF NO ONE").await?;
    assert_eq!(step(&backend, "k").await?, 2);
    Ok(())
}

pub(super) async fn busy(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::start(&programs, &[DURABLE, &["--busy-reply-threshold", "20"]].concat()).await;
    let backend = open(&server.url("?response_timeout=60s"), "busy").await?;
    step(&backend, "k").await?;
    let mut slow = client(server.port).await?;
    // One or several seconds, by the machine.
    let script = "local n = 0 while n < 1e8 do n = n + 1 end return 1";
    let running = tokio::spawn(async move {
        let answer: Result<i64, _> = redis::cmd("EVAL").arg(script).arg(0).query_async(&mut slow).await;
        answer
    });
    wait_until(Duration::from_secs(5), || async {
        match command(server.port, "GET any").await {
            Err(error) if error.to_string().contains("BUSY") || error.to_string().contains("busy") => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    })
    .await?;
    // It waits for its turn, for a refusal says that nothing has happened.
    assert_eq!(step(&backend, "k").await?, 2);
    assert!(running.await?.is_ok());
    let impatient = open(&server.url("?response_timeout=200ms"), "busy").await?;
    let mut slow = client(server.port).await?;
    let running = tokio::spawn(async move {
        let answer: Result<i64, _> = redis::cmd("EVAL").arg(script).arg(0).query_async(&mut slow).await;
        answer
    });
    let error = wait_until(Duration::from_secs(5), || async {
        match step(&impatient, "k").await {
            Err(error) => Ok(error),
            Ok(_) => Err("it still answers".into()),
        }
    })
    .await?;
    assert!(!matches!(error.kind(), ErrorKind::Config | ErrorKind::Corrupt), "{error}");
    assert!(running.await?.is_ok());
    recovers(&impatient, "k").await
}

pub(super) async fn too_few_replicas(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    let master = format!("127.0.0.1 {}", server.port);
    let replica = Server::start(
        &programs,
        &[DURABLE, &["--repl-diskless-sync-delay", "0", "--replicaof", &master]].concat(),
    )
    .await;
    wait_for(replica.port, "INFO replication", &["master_link_status:up"]).await?;
    wait_for(server.port, "INFO replication", &["state=online"]).await?;
    let backend = open(&server.url("?wait_replicas=1&wait_timeout=300ms"), "replicas").await?;
    assert_eq!(step(&backend, "k").await?, 1, "the replica confirms");
    replica.process.pause()?;
    let version = entry(&backend, "k").await?.version();
    let txn = Txn::new([Assert::version(key("k"), version)], [put("k", "alone")])?;
    let error = backend.txn(&txn).await.expect_err("the replica stands still");
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    assert!(error.message().contains("0 of 1 replicas"), "{error}");
    assert_eq!(entry(&backend, "k").await?.version().count(), 2, "it is on the master");
    // What changes nothing, or is rejected, waits for nobody.
    assert!(backend.txn(&Txn::new([], [])?).await?.is_applied());
    assert!(!backend.txn(&txn).await?.is_applied());
    replica.process.resume()?;
    recovers(&backend, "k").await
}

pub(super) async fn client_killed(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    let backend = Arc::new(server.open("killed").await);
    let port = server.port;
    let killer = tokio::spawn(async move {
        let clock = SystemClock::new();
        for _ in 0..40 {
            command(port, "CLIENT KILL TYPE normal SKIPME yes").await.map_err(|error| error.to_string())?;
            clock.sleep(Duration::from_millis(25)).await;
        }
        Ok::<_, String>(())
    });
    // Whatever is answered is true: a version moves by one for each write that is known, and by at most one for each that is not.
    let (mut applied, mut unknown) = (0, 0);
    while !killer.is_finished() {
        let txn = Txn::new([], [put("k", "v")])?;
        let reads = KeySet::new([key("k")])?;
        let (write, read) = tokio::join!(backend.txn(&txn), backend.snapshot(&reads));
        match write {
            Ok(outcome) => applied += u64::from(outcome.is_applied()),
            Err(error) if error.is_indeterminate() => unknown += 1,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        if let Err(error) = read {
            assert!(error.is_retryable(), "{error}");
        }
    }
    killer.await??;
    let count =
        wait_until(Duration::from_secs(10), || async { Ok(entry(&*backend, "k").await?.version().count()) })
            .await?;
    assert!(
        (applied..=applied + unknown).contains(&count),
        "{count} writes, {applied} acknowledged, {unknown} unknown"
    );
    assert!(applied > 0);
    Ok(())
}
