//! URLs, in every combination of features.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use std::sync::Arc;

use coord_connect::coord_core::{Backend, BackendError, ErrorKind, Namespace, Operation};
use coord_connect::{Registry, connect};

async fn refused(url: &str) -> String {
    let error = connect(url, &Namespace::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Config, Operation::Connect), "{url}: {error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
    error.to_string()
}

/// Writes through one handle and reads through another one.
#[cfg(any(feature = "memory", feature = "sqlite"))]
async fn are_one_store(a: &str, b: &str, namespace: &Namespace) -> bool {
    use coord_connect::coord_core::{Key, KeySet, Mutation, Txn};
    let (a, b) = (connect(a, namespace).await.unwrap(), connect(b, namespace).await.unwrap());
    let key = Key::new("k").unwrap();
    assert!(a.txn(&Txn::new([], [Mutation::put(key.clone(), "")]).unwrap()).await.unwrap().is_applied());
    let one =
        b.snapshot(&KeySet::new([key.clone()]).unwrap()).await.unwrap().require(&key).unwrap().is_present();
    assert!(a.txn(&Txn::new([], [Mutation::delete(key)]).unwrap()).await.unwrap().is_applied());
    one
}

#[tokio::test]
async fn an_unknown_scheme_is_answered_with_the_known_ones_and_without_secrets() {
    for url in ["nosuch://me:hunter2@host", "nosuch:x?password=hunter2", "NoSuch:"] {
        let text = refused(url).await;
        assert!(text.contains("`nosuch:`"), "{text}");
        for scheme in Registry::with_builtin().schemes() {
            assert!(text.contains(&format!("`{scheme}:`")), "{text}");
        }
    }
}

#[tokio::test]
async fn what_has_no_scheme_is_refused_without_secrets() {
    for url in
        ["", "x.db", "/tmp/x.db", ":memory:", "://", "1x:y", "é:x", "//me:hunter2@host", "me:hunter2@host"]
    {
        let text = refused(url).await;
        assert!(text.contains("no URL of a store") || text.contains("`me:`"), "{text}");
    }
}

#[tokio::test]
async fn a_scheme_that_is_left_out_names_its_feature() {
    for (scheme, on) in [("memory", cfg!(feature = "memory")), ("sqlite", cfg!(feature = "sqlite"))] {
        assert_eq!(Registry::with_builtin().schemes().any(|known| known == scheme), on);
        if !on {
            let text = refused(&format!("{scheme}:x")).await;
            assert!(text.contains(&format!("feature `{scheme}`")), "{text}");
        }
    }
}

#[cfg(feature = "memory")]
#[tokio::test]
async fn memory_urls_name_stores_of_this_process() {
    let namespace = Namespace::new("connect-memory").unwrap();
    assert!(are_one_store("memory:", "memory:", &namespace).await);
    assert!(are_one_store("memory:", "MEMORY://", &namespace).await);
    assert!(are_one_store("memory:a", "memory:a", &namespace).await);
    assert!(!are_one_store("memory:a", "memory:b", &namespace).await);
    assert!(!are_one_store("memory:a", "memory:", &namespace).await);
    for bad in ["memory:?x=1", "memory:a?password=hunter2", "memory:a/b", "memory:///", "memory:a#b"] {
        assert!(refused(bad).await.contains("`memory:NAME`"), "{bad}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_urls_name_files() {
    let namespace = Namespace::new("connect-sqlite").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/a.db", folder.path().display());
    let other = format!("sqlite://{}/b.db", folder.path().display());
    assert!(are_one_store(&url, &format!("{url}?busy_timeout=5s&durability=normal"), &namespace).await);
    assert!(!are_one_store(&url, &other, &namespace).await);
    assert!(refused(&format!("{url}?cache=shared")).await.contains("no parameter \"cache\""));
    assert!(refused("sqlite::memory:").await.contains("refused"));
    assert!(refused(&format!("{url}?password=hunter2")).await.contains("no parameter"));
}

#[tokio::test]
async fn a_registry_takes_backends_of_others() {
    fn open(url: &str) -> Result<Arc<dyn Backend>, BackendError> {
        Err(BackendError::new(
            ErrorKind::Unavailable,
            "other",
            Operation::Connect,
            format!("asked for {url}"),
        ))
    }
    let mut registry = Registry::new();
    registry.register("other+x", |url: String, _: Namespace| async move { open(&url) }).unwrap();
    let error = registry.connect("Other+X:Path", &Namespace::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "asked for other+x:Path"));
    for taken_or_bad in ["other+x", "Upper", "", "1", "a b", "é"] {
        let factory = |url: String, _: Namespace| async move { open(&url) };
        assert_eq!(registry.register(taken_or_bad, factory).unwrap_err().kind(), ErrorKind::Config);
    }
    assert_eq!(format!("{registry:?}"), r#"Registry(["other+x"])"#);
    let error = Registry::new().connect("other:x", &Namespace::default()).await.unwrap_err();
    assert!(error.message().contains("no schemes at all"), "{error}");
}
