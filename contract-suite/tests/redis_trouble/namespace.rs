//! Namespaces that are not ours, or no more.

use std::path::PathBuf;

use contract_suite::ControlError;
use contract_suite::servers::redis::command;
use contract_suite::servers::trouble::{entry, key, step};
use coord_core::{Backend as _, ErrorKind, KeyRange, Mutation, Prefix, Txn};
use redis::Value;

use super::{Server, open, put};

/// What must not be there in a namespace that is ours, and how opening and every call says so.
pub(super) async fn foreign(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    for (n, (setup, kind, word)) in [
        (&["SET {N}:meta something"][..], ErrorKind::Corrupt, "something else"),
        (&["RPUSH {N}:meta something"], ErrorKind::Corrupt, "marker"),
        (&["SET {N}:index something"], ErrorKind::Corrupt, "index"),
        (&["ZADD {N}:index 0 a"], ErrorKind::Corrupt, "marker"),
        (&["ZADD {N}:index 0 a", "SET {N}:meta coord#2"], ErrorKind::Config, "another version"),
    ]
    .into_iter()
    .enumerate()
    {
        let namespace = format!("foreign-{n}");
        let before = server.open(&namespace).await;
        for step in setup {
            let words = step.replace("{N}", &format!("{{{namespace}}}"));
            // A blank separates words here.
            let words: Vec<String> = words.split(' ').map(|word| word.replace('#', " ")).collect();
            let mut command = redis::cmd(&words[0]);
            command.arg(&words[1..]);
            let _: Value =
                command.query_async(&mut contract_suite::servers::redis::client(server.port).await?).await?;
        }
        let dump = command(server.port, &format!("DUMP {{{namespace}}}:meta")).await?;
        let error = open(&server.url(""), &namespace).await.expect_err(&namespace);
        assert!(error.kind() == kind && error.message().contains(word), "{n}: {error}");
        // A handle that was there before writes nothing either.
        let all = KeyRange::new(Prefix::all(), 10)?;
        for error in [
            before.txn(&Txn::new([], [put("k", "v")])?).await.err(),
            before.keys(&all).await.err(),
            entry(&before, "k").await.err(),
        ] {
            let error = error.ok_or(format!("{n}: a call was answered"))?;
            assert!(error.kind() == kind && error.message().contains(word), "{n}: {error}");
        }
        assert_eq!(command(server.port, &format!("DUMP {{{namespace}}}:meta")).await?, dump, "{n}");
    }
    // An index that was lost, or dropped by an eviction, is noticed.
    let backend = server.open("lost").await;
    step(&backend, "k").await?;
    command(server.port, "DEL {lost}:index").await?;
    let error = backend.keys(&KeyRange::new(Prefix::all(), 10)?).await.expect_err("the index is gone");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    Ok(())
}

pub(super) async fn nothing_left(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    let size = || command(server.port, "DBSIZE");
    let backend = server.open("tidy").await;
    assert_eq!(size().await?, Value::Int(0), "opening writes nothing");
    let put_both = Txn::new([], [put("a", ""), put("b", "")])?;
    assert!(backend.txn(&put_both).await?.is_applied());
    assert_eq!(size().await?, Value::Int(4), "two keys, the index and the marker");
    assert!(backend.txn(&Txn::new([], [Mutation::delete(key("a")), put("c", "")])?).await?.is_applied());
    assert_eq!(size().await?, Value::Int(4));
    let delete_all = Txn::new([], ["a", "b", "c"].map(|name| Mutation::delete(key(name))))?;
    assert!(backend.txn(&delete_all).await?.is_applied());
    assert_eq!(size().await?, Value::Int(0), "an empty namespace leaves nothing behind");
    // A wiped database is an empty namespace, and versions are new.
    assert_eq!(step(&backend, "k").await?, 1);
    let before = entry(&backend, "k").await?.version();
    command(server.port, "FLUSHALL").await?;
    assert_eq!(step(&backend, "k").await?, 1);
    assert_ne!(entry(&backend, "k").await?.version(), before);
    Ok(())
}
