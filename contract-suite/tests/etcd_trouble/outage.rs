//! A server that cannot or will not, and can again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::trouble::{bounded, elapsed, entry, key, put, show, step};
use contract_suite::servers::wait_until;
use contract_suite::wire::{Forwarder, Http2};
use coord_core::{Assert, Backend as _, Clock as _, ErrorKind, Key, Mutation, SystemClock, Txn, TxnOutcome};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions};
use futures::future::join_all;

use super::{open, server, url};

/// How long the server stays away; the environment variable `COORD_OUTAGE_SECONDS` makes it longer.
fn outage() -> Duration {
    let seconds = std::env::var("COORD_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

pub(super) async fn gone_for_a_while(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    let backend = open(&url(&server, "request_timeout=2s&connect_timeout=1s")).await?;
    let acknowledged = step(&backend, "k").await?;
    server.process().kill().await?;
    let (clock, mut calls) = (SystemClock::new(), 0);
    while clock.monotonic() < outage() {
        let (read, took) = elapsed(entry(&backend, "k")).await;
        let read = read.expect_err("the server is gone");
        assert_eq!(read.kind(), ErrorKind::Unavailable, "{read}");
        assert!(read.message().contains("cannot connect to 127.0.0.1"), "{read}");
        show(&read);
        let (write, more) = elapsed(backend.txn(&put("lost"))).await;
        let write = write.expect_err("the server is gone");
        // Its end has been noticed by the read, and nothing is sent, so it is known that nothing happened.
        assert_eq!(write.kind(), ErrorKind::Unavailable, "{write}");
        assert!(took + more < Duration::from_secs(3), "{took:?} {more:?}");
        calls += 1;
    }
    assert!(calls > 10);
    server.process().restart().await?;
    // At once, with the handle that was there before.
    assert_eq!(step(&backend, "k").await?, acknowledged + 1);
    assert!(!entry(&backend, "lost").await?.is_present());
    Ok(())
}

pub(super) async fn many_wait(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    let backend = open(&url(&server, "request_timeout=1s&connect_timeout=1s")).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    server.process().pause()?;
    let mut did_not_happen = Vec::new();
    for round in 0..2 {
        let calls = (0..60).map(|n| {
            let (backend, name) = (backend.clone(), format!("{round}/{n}"));
            async move { (backend.txn(&put(&name)).await, name) }
        });
        let (answers, took) = elapsed(join_all(calls)).await;
        assert!(took < Duration::from_secs(4), "sixty calls waited {took:?} together");
        for (answer, name) in answers {
            let error = answer.expect_err("the server stands still");
            // Without an answer it may have happened; a connection that is given up is not made anew.
            match error.kind() {
                ErrorKind::Indeterminate => {}
                ErrorKind::Unavailable if round > 0 => did_not_happen.push(name),
                _ => panic!("round {round}: {error}"),
            }
        }
        let read = entry(&backend, "k").await.expect_err("the server stands still");
        assert_eq!(read.kind(), ErrorKind::Unavailable, "{read}");
    }
    server.process().resume()?;
    wait_until(Duration::from_secs(10), || async { Ok(step(&backend, "k").await?) }).await?;
    for name in did_not_happen {
        assert!(!entry(&backend, &name).await?.is_present(), "{name}");
    }
    // What may have happened has happened once or not at all.
    for n in 0..60 {
        assert!(entry(&backend, &format!("0/{n}")).await?.version().count() <= 1, "{n}");
    }
    Ok(())
}

/// The connections of all clients are closed again and again.
pub(super) async fn broken(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    let wire = Arc::new(
        Forwarder::start(format!("127.0.0.1:{}", server.port()), || Box::new(Http2::default())).await?,
    );
    let backend = open(&format!("etcd://{}/?request_timeout=3s", wire.address())).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let (backend, stop) = (backend.clone(), stop.clone());
            tokio::spawn(async move {
                let name = format!("client/{n}");
                let (mut acknowledged, mut unsure) = (0_u64, 0_u64);
                while !stop.load(Ordering::SeqCst) || acknowledged < 20 {
                    match backend.txn(&put(&name)).await {
                        Ok(outcome) => {
                            assert_eq!(outcome, TxnOutcome::Applied);
                            acknowledged += 1;
                        }
                        Err(error) if error.is_indeterminate() => unsure += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    }
                    match entry(&backend, &name).await {
                        Ok(entry) => {
                            let seen = entry.version().count();
                            let possible = acknowledged..=acknowledged + unsure;
                            assert!(
                                possible.contains(&seen),
                                "{name} was written {seen} times, not {possible:?}"
                            );
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    }
                }
                unsure
            })
        })
        .collect();
    let clock = SystemClock::new();
    for round in 0..40 {
        // Some requests are on their way by then.
        clock.sleep(Duration::from_millis(5 + round)).await;
        wire.cut_all();
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        bounded(30, client).await?;
    }
    Ok(())
}

pub(super) async fn no_space(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &["--quota-backend-bytes", "4194304"]).await?;
    let backend = open(&url(&server, "")).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    let mut filled = 0_u64;
    let error = loop {
        // Asserted, for etcd counts nothing that is put in a nested transaction.
        let version = entry(&backend, "large").await?.version();
        let large = Mutation::put(key("large"), vec![b'v'; 400_000]);
        let txn = Txn::new([Assert::version(key("large"), version)], [large])?;
        match bounded(10, backend.txn(&txn)).await {
            Ok(outcome) => filled += u64::from(outcome.is_applied()),
            Err(error) => break error,
        }
        assert!(filled < 100, "the quota bounds nothing");
    };
    // A server may have proposed what it answers this to.
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    assert!(error.message().contains("space"), "{error}");
    // Reads go on, and so does nothing that writes.
    assert!(entry(&backend, "large").await?.version().count() <= filled + 1);
    let version = entry(&backend, "k").await?.version();
    let change = Txn::new([Assert::version(key("k"), version)], [Mutation::put(key("k"), "more")])?;
    let error = bounded(10, backend.txn(&change)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    assert_eq!(entry(&backend, "k").await?.version(), version);
    // Room is made, as etcd's documentation says.
    let mut client = server.client().await?;
    let revision = client.get("k", None).await?.header().map_or(0, |header| header.revision());
    client.compact(revision, Some(CompactionOptions::new().with_physical())).await?;
    client.defragment().await?;
    let member = client.status().await?.header().map_or(0, |header| header.member_id());
    let mut options = AlarmOptions::new();
    options.with_member(member);
    client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options)).await?;
    let answer = wait_until(Duration::from_secs(10), || async { Ok(backend.txn(&change).await?) }).await?;
    assert_eq!(answer, TxnOutcome::Applied);
    Ok(())
}

pub(super) async fn few_operations(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &["--max-txn-ops", "16"]).await?;
    let backend = open(&url(&server, "")).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    let keys: Vec<Key> = (0..64).map(|n| key(&format!("{n:02}"))).collect();
    let many = Txn::new([], keys.iter().map(|key| Mutation::put(key.clone(), "v")))?;
    let error = backend.txn(&many).await.unwrap_err();
    // It is the server that has to change, not the request.
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("--max-txn-ops"), "{error}");
    assert!(!entry(&backend, "00").await?.is_present());
    assert_eq!(step(&backend, "k").await?, 2);
    Ok(())
}
