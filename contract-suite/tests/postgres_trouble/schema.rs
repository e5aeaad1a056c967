//! The schema: made once, by one of many, upgraded, refused.

use std::path::PathBuf;

use contract_suite::ControlError;
use contract_suite::servers::trouble::{entry, key, put, step};
use coord_core::{Backend as _, ErrorKind, KeyRange, Prefix};
use futures::future::try_join_all;

use super::{open, refusal, server, url};

pub(super) async fn versions(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    // Tables of others, whatever their names: refused, and left alone.
    for (n, table) in [
        "entry (x integer)",
        "users (name text)",
        "format (x integer)",
        "format (store text, version integer)",
        "format (store integer, version text)",
    ]
    .into_iter()
    .enumerate()
    {
        server.execute(&format!("CREATE SCHEMA others{n}; CREATE TABLE others{n}.{table}")).await?;
        let error = refusal(&url(&server, &format!("schema=others{n}")), 5).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{table}: {error}");
        let count = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace";
        assert_eq!(server.value(&format!("{count} WHERE nspname = 'others{n}'")).await?, "1", "{table}");
    }
    // An empty one is taken.
    server.execute("CREATE SCHEMA empty").await?;
    assert_eq!(step(&open(&url(&server, "schema=empty")).await?, "k").await?, 1);
    // Two schemas are two stores.
    let (one, two) = (open(&url(&server, "schema=one")).await?, open(&url(&server, "schema=two")).await?);
    assert!(one.txn(&put("k")).await?.is_applied());
    assert!(!entry(&two, "k").await?.is_present());

    // A newer one is refused, also by a handle that is open already, as soon as it opens a new connection.
    server.execute("UPDATE one.format SET version = 1000").await?;
    let error = refusal(&url(&server, "schema=one"), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("1000"), "{error}");
    server
        .execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'coord'",
        )
        .await?;
    contract_suite::servers::wait_until(std::time::Duration::from_secs(10), || async {
        match entry(&one, "k").await {
            Err(error) if error.kind() == ErrorKind::Config => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    })
    .await?;
    // An older one is upgraded: the function is made anew, the data stay.
    server.execute("UPDATE one.format SET version = 0; DROP FUNCTION one.txn").await?;
    let upgraded = open(&url(&server, "schema=one")).await?;
    assert_eq!(step(&upgraded, "k").await?, 2);
    // And the handle that was refused works again.
    assert_eq!(step(&one, "k").await?, 3);
    Ok(())
}

pub(super) async fn many_open(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    for round in 0..4 {
        let url = url(&server, &format!("schema=race{round}&timeout=30s"));
        let opened = try_join_all((0..16).map(|n| {
            let url = url.clone();
            tokio::spawn(async move {
                let backend = open(&url).await?;
                let _ = backend.txn(&put(&format!("key/{n:02}"))).await?;
                Ok::<_, coord_core::BackendError>(backend)
            })
        }))
        .await?;
        let opened: Vec<_> = opened.into_iter().collect::<Result<_, _>>()?;
        let keys = opened[0].keys(&KeyRange::new(Prefix::new("key/")?, 100)?).await?;
        assert_eq!(keys, (0..16).map(|n| key(&format!("key/{n:02}"))).collect::<Vec<_>>());
    }
    Ok(())
}

pub(super) async fn privileges(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let worker =
        |schema: &str| format!("postgres://worker@127.0.0.1:{}/postgres?schema={schema}", server.port());
    server.execute("CREATE ROLE worker LOGIN; REVOKE CREATE ON DATABASE postgres FROM PUBLIC").await?;
    let error = refusal(&worker("coord"), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "nothing is there: {error}");
    assert_eq!(step(&open(&url(&server, "")).await?, "k").await?, 1);
    let error = refusal(&worker("coord"), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "nothing is granted: {error}");
    // The grants of the README.
    server
        .execute(
            "GRANT USAGE ON SCHEMA coord TO worker;
             GRANT SELECT ON coord.format TO worker;
             GRANT SELECT, INSERT, UPDATE, DELETE ON coord.entry TO worker",
        )
        .await?;
    let backend = open(&worker("coord")).await?;
    assert_eq!(step(&backend, "k").await?, 2);
    assert_eq!(step(&backend, "new").await?, 1);
    assert_eq!(backend.keys(&KeyRange::new(Prefix::all(), 10)?).await?.len(), 2);
    // A privilege that is taken away is an error of the deployment, and no key counts as missing.
    server.execute("REVOKE UPDATE ON coord.entry FROM worker").await?;
    let error = backend.txn(&put("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    server.execute("GRANT UPDATE ON coord.entry TO worker").await?;
    assert_eq!(step(&backend, "k").await?, 3);
    Ok(())
}
