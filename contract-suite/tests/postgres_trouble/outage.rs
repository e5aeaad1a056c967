//! Trouble while a handle is in use: what it says, and that it recovers by itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::postgres::PostgresServer;
use contract_suite::servers::trouble::{bounded, elapsed, entry, key, put, show, step};
use contract_suite::servers::wait_until;
use coord_core::{Backend as _, ErrorKind, KeyRange, KeySet, Mutation, Prefix, Txn, TxnOutcome, Version};

use super::{open, refusal, server, url};

/// The connections of our handles.
const OURS: &str = "FROM pg_stat_activity WHERE application_name = 'coord'";

async fn count(server: &PostgresServer, what: &str) -> Result<u64, ControlError> {
    Ok(server.value(&format!("SELECT count(*) {what}")).await?.parse()?)
}

pub(super) async fn gone_for_a_while(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let backend = open(&url(&server, "timeout=3s")).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    for round in 1..4 {
        server.process().kill().await?;
        let clock = coord_core::SystemClock::new();
        // Gone for some seconds, in which every call ends soon.
        while coord_core::Clock::monotonic(&clock) < Duration::from_secs(3) {
            let error = bounded(5, entry(&backend, "k")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "a read: {error}");
            show(&error);
            let error = bounded(5, backend.txn(&put("lost"))).await.unwrap_err();
            // Nobody is there who could have got it.
            assert_eq!(error.kind(), ErrorKind::Unavailable, "a transaction: {error}");
            show(&error);
        }
        server.process().restart().await?;
        // The first call works, over whatever connections the pool has left.
        assert_eq!(bounded(5, step(&backend, "k")).await?, round + 1);
        assert!(!entry(&backend, "lost").await?.is_present());
    }
    Ok(())
}

/// The server closes connections, idle ones and working ones, again and again, among the calls of four clients.
pub(super) async fn terminated(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let backend = open(&url(&server, "")).await?;
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
                    // Reads are tried again, so nobody notices.
                    let seen = entry(&backend, &name).await.unwrap().version().count();
                    assert!(
                        (acknowledged..=acknowledged + unsure).contains(&seen),
                        "{name} was written {seen} times"
                    );
                }
            })
        })
        .collect();
    for _ in 0..40 {
        server.value(&format!("SELECT count(pg_terminate_backend(pid)) {OURS}")).await?;
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        bounded(30, client).await?;
    }
    Ok(())
}

/// Somebody holds a key, one that is there and one that is not yet.
pub(super) async fn held(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let backend = open(&url(&server, "timeout=2s")).await?;
    assert_eq!(step(&backend, "there").await?, 1);
    let other = server.client().await?;
    other
        .batch_execute(
            "BEGIN; SELECT FROM coord.entry WHERE key = 'there' FOR UPDATE;
             INSERT INTO coord.entry VALUES ('trouble', 'absent', 5, 1, '')",
        )
        .await?;
    for name in ["there", "absent"] {
        let (answer, took) = elapsed(bounded(4, backend.txn(&put(name)))).await;
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error}");
        assert!(took >= Duration::from_secs(1), "{name}: {took:?}");
        // Nobody waits to read.
        let (seen, took) = elapsed(entry(&backend, name)).await;
        assert_eq!(seen?.is_present(), name == "there");
        assert!(took < Duration::from_secs(1), "{name}: {took:?}");
    }
    other.batch_execute("ROLLBACK").await?;
    // What was given up has not happened, and does not happen later.
    assert_eq!(entry(&backend, "absent").await?.version(), Version::MISSING);
    assert_eq!(step(&backend, "there").await?, 2);
    assert_eq!(step(&backend, "absent").await?, 1);
    Ok(())
}

pub(super) async fn no_connection_left(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    server.execute("CREATE ROLE worker LOGIN SUPERUSER").await?;
    let worker = format!("postgres://worker@127.0.0.1:{}/postgres?timeout=4s", server.port());
    let first = open(&worker).await?;
    // A limit does not bind a superuser.
    server.execute("ALTER ROLE worker NOSUPERUSER CONNECTION LIMIT 1; GRANT ALL ON SCHEMA coord TO worker; GRANT ALL ON ALL TABLES IN SCHEMA coord TO worker").await?;
    assert_eq!(step(&first, "k").await?, 1);
    let error = refusal(&worker, 8).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // A handle that has one connection gets along with it, however many calls want more.
    let calls = (0..8).map(|n| {
        let first = first.clone();
        async move { step(&first, &format!("many/{n}")).await }
    });
    let answers = bounded(20, futures::future::join_all(calls)).await;
    for answer in answers {
        if let Err(error) = answer {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
    drop(first);
    wait_until(Duration::from_secs(10), || async { Ok(open(&worker).await.map(drop)?) }).await
}

/// The server takes no writes, as one that has become a standby, and then it does again.
pub(super) async fn no_writes(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let backend = open(&url(&server, "timeout=3s")).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on").await?;
    server.execute("SELECT pg_reload_conf()").await?;
    wait_until(Duration::from_secs(20), || async {
        match backend.txn(&put("none")).await {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                Ok(())
            }
            Ok(_) => Err("it still writes".into()),
        }
    })
    .await?;
    let before = {
        let error = refusal(&url(&server, ""), 8).await;
        assert_eq!(error.kind(), ErrorKind::Config, "a new handle: {error}");
        server.value("SELECT coalesce(max(count), 0) FROM coord.entry WHERE key = 'none'").await?
    };
    let error = bounded(5, backend.txn(&put("none"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(
        server.value("SELECT coalesce(max(count), 0) FROM coord.entry WHERE key = 'none'").await?,
        before
    );
    let client = server.client().await?;
    client.batch_execute("SET default_transaction_read_only = off").await?;
    client.batch_execute("ALTER SYSTEM RESET default_transaction_read_only").await?;
    client.batch_execute("SELECT pg_reload_conf()").await?;
    wait_until(Duration::from_secs(20), || async { Ok(step(&backend, "k").await.map(drop)?) }).await
}

/// Callers that go while their transactions wait for a key: the server is not flooded with connections, nothing stays locked, and
/// the handle works on.
pub(super) async fn dropped(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let backend = open(&url(&server, "timeout=12s&pool_size=3")).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    let other = server.client().await?;
    other.batch_execute("BEGIN; SELECT FROM coord.entry WHERE key = 'k' FOR UPDATE").await?;
    let waiting = format!("{OURS} AND wait_event_type = 'Lock'");
    let both = Txn::new([], [Mutation::put(key("also"), "v"), Mutation::put(key("k"), "v")])?;
    for n in 1..=3 {
        let (backend, both) = (backend.clone(), both.clone());
        let call = tokio::spawn(async move { backend.txn(&both).await });
        wait_until(Duration::from_secs(3), || async {
            let waits = count(&server, &waiting).await?;
            if waits == n { Ok(()) } else { Err(format!("{waits} wait, not {n}").into()) }
        })
        .await?;
        call.abort();
        assert!(call.await.is_err_and(|error| error.is_cancelled()));
    }
    // All connections are taken by what nobody waits for any more. More callers wait for a place, and go too.
    for _ in 0..50 {
        let _ = tokio::time::timeout(Duration::from_millis(2), backend.txn(&both)).await;
    }
    assert_eq!(count(&server, OURS).await?, 3);
    other.batch_execute("ROLLBACK").await?;
    // Each of the three happens now or was given up; then everything is free.
    assert!(bounded(16, backend.txn(&both)).await?.is_applied());
    // Those whose callers have gone may still come, so both are looked at in one instant.
    let snapshot = backend.snapshot(&KeySet::new([key("k"), key("also")])?).await?;
    let writes = snapshot.require(&key("k"))?.version().count();
    assert!((2..=5).contains(&writes), "{writes} writes");
    assert_eq!(snapshot.require(&key("also"))?.version().count(), writes - 1);
    assert_eq!(backend.keys(&KeyRange::new(Prefix::all(), 10)?).await?, [key("also"), key("k")]);
    // The first is in use again, and no place of the pool is lost.
    let again = futures::future::join_all((0..12).map(|n| {
        let backend = backend.clone();
        async move { step(&backend, &format!("later/{n}")).await }
    }));
    for answer in bounded(10, again).await {
        assert_eq!(answer?, 1);
    }
    assert!(count(&server, OURS).await? <= 3);
    wait_until(Duration::from_secs(10), || async {
        let waits = count(&server, &waiting).await?;
        if waits == 0 { Ok(()) } else { Err(format!("{waits} still wait").into()) }
    })
    .await?;
    Ok(())
}
