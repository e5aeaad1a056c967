//! Users, passwords, rights and tokens.

use std::path::PathBuf;
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::etcd::topology::EtcdServer;
use contract_suite::servers::trouble::{SECRET, entry, put, show, step};
use coord_core::{Backend as _, Clock as _, ErrorKind, KeyRange, Prefix, SystemClock};
use etcd_client::{Client, ConnectOptions, Permission};
use futures::future::join_all;

use super::{open, refusal, server, url};

fn with_user(server: &EtcdServer, user: &str, password: &str) -> String {
    format!("etcd://{user}:{password}@127.0.0.1:{}/?request_timeout=3s", server.port())
}

async fn root(server: &EtcdServer) -> Result<Client, ControlError> {
    let options = ConnectOptions::new().with_user("root", SECRET).with_auto_token_refresh(true);
    Ok(Client::connect([format!("127.0.0.1:{}", server.port())], Some(options)).await?)
}

/// Makes the user `root`, and `worker` who may do everything in the namespaces, and turns authentication on.
async fn turn_on(server: &EtcdServer) -> Result<(), ControlError> {
    let mut client = server.client().await?;
    client.user_add("root", SECRET, None).await?;
    client.user_grant_role("root", "root").await?;
    client.user_add("worker", SECRET, None).await?;
    client.role_add("coord").await?;
    client.role_grant_permission("coord", Permission::read_write("coord/").with_prefix()).await?;
    client.user_grant_role("worker", "coord").await?;
    client.auth_enable().await?;
    Ok(())
}

pub(super) async fn credentials(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    let error = refusal(&with_user(&server, "worker", SECRET), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "a user where there is no authentication: {error}");
    assert!(error.message().contains("has no authentication"), "{error}");
    turn_on(&server).await?;
    for (what, wrong) in [
        ("another password", with_user(&server, "worker", &format!("{SECRET}x"))),
        ("no such user", with_user(&server, "nobody", SECRET)),
    ] {
        let error = refusal(&wrong, 5).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
        assert!(error.message().contains("refuses the user or the password"), "{what}: {error}");
    }
    let error = refusal(&url(&server, ""), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "no user: {error}");
    assert!(error.message().contains("user"), "{error}");
    let backend = open(&with_user(&server, "worker", SECRET)).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    assert!(!format!("{backend:?} {backend:#?}").contains(SECRET));
    // Over a restart, which forgets all tokens, with many calls at once.
    server.process().kill().await?;
    server.process().restart().await?;
    for (n, answer) in join_all((0..32).map(|n| {
        let backend = backend.clone();
        async move { step(&backend, &format!("many/{n}")).await }
    }))
    .await
    .into_iter()
    .enumerate()
    {
        assert_eq!(answer?, 1, "{n}");
    }
    Ok(())
}

pub(super) async fn rights(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    turn_on(&server).await?;
    let mut root = root(&server).await?;
    for (role, permission) in [
        ("reader", Permission::read("coord/").with_prefix()),
        ("elsewhere", Permission::read_write("coord/other/").with_prefix()),
        ("enough", Permission::read_write("coord/trouble/").with_prefix()),
    ] {
        root.role_add(role).await?;
        root.role_grant_permission(role, permission).await?;
        root.user_add(role, SECRET, None).await?;
        root.user_grant_role(role, role).await?;
    }
    let error = refusal(&with_user(&server, "elsewhere", SECRET), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("may not read and write the namespace"), "{error}");
    let enough = open(&with_user(&server, "enough", SECRET)).await?;
    assert_eq!(step(&enough, "k").await?, 1);
    let reader = open(&with_user(&server, "reader", SECRET)).await?;
    assert!(entry(&reader, "k").await?.is_present());
    // (etcd 3.4 does not look at rights inside of nested transactions, where keys are put that are not asserted.)
    let error = step(&reader, "k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    show(&error);
    assert_eq!(step(&enough, "k").await?, 2);
    Ok(())
}

pub(super) async fn turned_on_and_off(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    let nobody = open(&url(&server, "request_timeout=3s")).await?;
    assert_eq!(step(&nobody, "k").await?, 1);
    turn_on(&server).await?;
    let all = KeyRange::new(Prefix::all(), 10)?;
    for error in
        [nobody.txn(&put("k")).await.err(), nobody.keys(&all).await.err(), entry(&nobody, "k").await.err()]
    {
        let error = error.ok_or("a call without a user was answered")?;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains("demand a user"), "{error}");
    }
    let worker = open(&with_user(&server, "worker", SECRET)).await?;
    assert_eq!(step(&worker, "k").await?, 2);
    let mut root = root(&server).await?;
    let mut count = 2;
    for round in 0..2 {
        root.auth_disable().await?;
        count += 1;
        assert_eq!(step(&nobody, "k").await?, count, "round {round}");
        // Who has a token may be told that nobody asks for it, as a new handle would be.
        match step(&worker, "k").await {
            Ok(_) => count += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                assert!(error.message().contains("has no authentication"), "{error}");
                show(&error);
            }
        }
        server.client().await?.auth_enable().await?;
        count += 1;
        assert_eq!(step(&worker, "k").await?, count, "round {round}");
    }
    // Another password: the token is taken away with the old one.
    root.user_change_password("worker", "another").await?;
    let error = entry(&worker, "k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("refuses the user or the password"), "{error}");
    show(&error);
    root.user_change_password("worker", SECRET).await?;
    assert_eq!(step(&worker, "k").await?, count + 1);
    Ok(())
}

pub(super) async fn token_expires(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &["--auth-token-ttl", "1"]).await?;
    turn_on(&server).await?;
    let backend = open(&with_user(&server, "worker", SECRET)).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    // Every use makes a token live longer, so that each look is by a client of that time which has not looked before.
    let options = ConnectOptions::new().with_user("worker", SECRET);
    let address = format!("127.0.0.1:{}", server.port());
    let mut others = Vec::new();
    for _ in 0..16 {
        others.push(Client::connect([&address], Some(options.clone())).await?);
    }
    let clock = SystemClock::new();
    let mut refused = None;
    for other in others {
        clock.sleep(Duration::from_millis(500)).await;
        refused = other.kv_client().get("coord/trouble/k", None).await.err();
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.ok_or("the tokens of that time live still")?.to_string();
    assert!(refused.contains("invalid auth token"), "{refused}");
    // The first call works, however many come at once, and each happens once.
    let calls = (0..32).map(|n| {
        let backend = backend.clone();
        async move { backend.txn(&put(&format!("many/{n}"))).await.map(|_| ()) }
    });
    for answer in join_all(calls).await {
        answer?;
    }
    for n in 0..32 {
        assert_eq!(entry(&backend, &format!("many/{n}")).await?.version().count(), 1);
    }
    assert_eq!(step(&backend, "k").await?, 2);
    Ok(())
}

/// A signed token carries the state of the users at its time, and is refused once they have changed.
pub(super) async fn users_change(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("key");
    std::fs::write(&path, [b'k'; 64])?;
    let token = format!("jwt,priv-key={},sign-method=HS256,ttl=10m", path.display());
    let server = server(&programs, &["--auth-token", &token]).await?;
    turn_on(&server).await?;
    let backend = open(&with_user(&server, "worker", SECRET)).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    for round in 1..4 {
        root(&server).await?.user_add(format!("user{round}"), SECRET, None).await?;
        let written = backend.txn(&put("k")).await?;
        assert!(written.is_applied());
        root(&server).await?.user_delete(format!("user{round}")).await?;
        assert_eq!(entry(&backend, "k").await?.version().count(), 1 + round);
    }
    Ok(())
}
