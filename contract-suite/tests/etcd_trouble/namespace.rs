//! Namespaces that are not ours, or no more.

use std::path::PathBuf;

use contract_suite::ControlError;
use contract_suite::servers::trouble::{entry, key, put, show, step};
use coord_core::{Assert, Backend as _, ErrorKind, KeyRange, Mutation, Prefix, Txn};
use etcd_client::{GetOptions, PutOptions};

use super::{open, refusal, server, url};

/// What others put where our keys are: refused by opening and by every call that meets it, and left as it is.
pub(super) async fn foreign(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    let mut client = server.client().await?;
    let before = open(&url(&server, "")).await?;
    assert_eq!(step(&before, "ours").await?, 1);
    let lease = client.lease_grant(600, None).await?.id();
    for (what, value, options) in [
        ("text", &b"something"[..], None),
        ("nothing", &b""[..], None),
        ("with our mark, but it will expire", &b"\xFFvalue"[..], Some(PutOptions::new().with_lease(lease))),
    ] {
        client.put("coord/trouble/theirs", value, options).await?;
        let raw = client.get("coord/trouble/theirs", None).await?.kvs().to_vec();
        let error = refusal(&url(&server, ""), 5).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        // A handle that was there before reads its own keys, and nothing else.
        assert!(entry(&before, "ours").await?.is_present());
        let error = entry(&before, "theirs").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.message().contains("theirs"), "{what}: {error}");
        show(&error);
        if raw[0].lease() == 0 {
            let both = [Mutation::put(key("ours"), "new"), Mutation::put(key("theirs"), "new")];
            for txn in [
                put("theirs"),
                Txn::new([], [Mutation::delete(key("theirs"))])?,
                Txn::new([Assert::missing(key("theirs"))], both)?,
            ] {
                let error = before.txn(&txn).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            }
        }
        let now = client.get("coord/trouble/theirs", None).await?;
        assert_eq!(format!("{:?}", now.kvs()), format!("{raw:?}"), "{what}: it was touched");
        assert_eq!(entry(&before, "ours").await?.version().count(), 1);
        client.delete("coord/trouble/theirs", None).await?;
        assert_eq!(step(&before, "theirs").await?, 1, "{what}: it works again once it is gone");
        assert!(before.txn(&Txn::new([], [Mutation::delete(key("theirs"))])?).await?.is_applied());
    }
    // A key that is none of ours.
    client.put(&b"coord/trouble/\xFF\xFE"[..], &b"\xFFvalue"[..], None).await?;
    let error = before.keys(&KeyRange::new(Prefix::all(), 10)?).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    Ok(())
}

pub(super) async fn nothing_left(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(&programs, &[]).await?;
    let mut client = server.client().await?;
    let mut size = async || -> Result<i64, ControlError> {
        let all = GetOptions::new().with_prefix().with_count_only();
        Ok(client.get("coord/", Some(all)).await?.count())
    };
    let backend = open(&url(&server, "")).await?;
    assert_eq!(size().await?, 0, "opening writes nothing");
    let puts = ["a", "b"].map(|name| Mutation::put(key(name), ""));
    assert!(backend.txn(&Txn::new([Assert::missing(key("c"))], puts.clone())?).await?.is_applied());
    assert!(!backend.txn(&Txn::new([Assert::missing(key("a"))], puts)?).await?.is_applied());
    assert_eq!(size().await?, 2, "the two keys");
    assert!(
        backend
            .txn(&Txn::new([], ["a", "b", "c"].map(|name| Mutation::delete(key(name))))?)
            .await?
            .is_applied()
    );
    assert_eq!(size().await?, 0);
    Ok(())
}
