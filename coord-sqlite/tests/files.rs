//! Which files are taken, which are refused, and that a refused file is left as it is.

#![allow(clippy::unwrap_used, reason = "this is a test")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{Store, entry, key, put};
use coord_core::{Backend, BackendError, ErrorKind, KeyRange, KeySet, Mutation, Prefix, Txn};
use coord_sqlite::{Durability, SqliteBackend, SqliteConfig};

/// Every file of a folder with its bytes.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap())
        .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
        .collect()
}

/// Waits until a handle that was dropped has closed its files, which it does on another thread: the last one deletes the log.
async fn closed(store: &Store) {
    while store.path().with_extension("db-wal").exists() {
        tokio::task::yield_now().await;
    }
}

/// Opening fails, and changes nothing in the folder.
async fn refused(store: &Store) -> BackendError {
    let before = contents(store.folder());
    let error = SqliteBackend::open(&store.config(), &store.namespace).await.unwrap_err();
    assert!(contents(store.folder()) == before, "the folder has changed after: {error}");
    error
}

#[tokio::test]
async fn a_file_that_is_not_sqlite_is_refused_untouched() {
    for bytes in [&[0; 4096], "a plan, not a store\n".repeat(1_000).as_bytes()] {
        let store = Store::new();
        fs::write(store.path(), bytes).unwrap();
        let error = refused(&store).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains("not a SQLite database"), "{error}");
    }
    // SQLite itself would take a file this short for an empty database, and overwrite it.
    for bytes in [&b"x"[..], b"SQLite format 3\0", &[7; 4_095]] {
        let store = Store::new();
        fs::write(store.path(), bytes).unwrap();
        assert_eq!(refused(&store).await.kind(), ErrorKind::Config);
    }
}

#[tokio::test]
async fn a_database_of_another_application_is_refused_untouched() {
    for sql in [
        "CREATE TABLE t (x)",
        "PRAGMA application_id = 7; CREATE TABLE t (x)",
        "PRAGMA application_id = 7",
        "PRAGMA journal_mode = WAL; CREATE TABLE t (x)",
        // The right table with the wrong mark.
        include_str!("../sql/schema.sql"),
    ] {
        let store = Store::new();
        store.sql(sql);
        let error = refused(&store).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains("another application"), "{error}");
    }
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused_untouched() {
    let store = Store::new();
    let handle = store.open().await;
    put(&handle, &key("k"), "v").await;
    drop(handle);
    closed(&store).await;
    store.sql("PRAGMA user_version = 2");
    let error = refused(&store).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("newer version"), "{error}");
    store.sql("PRAGMA user_version = 0");
    assert_eq!(refused(&store).await.kind(), ErrorKind::Corrupt);
    store.sql("PRAGMA user_version = 1");
    assert!(entry(&store.open().await, &key("k")).await.is_present());
}

#[tokio::test]
async fn a_store_whose_table_is_gone_or_has_other_columns_is_corrupt() {
    for sql in ["DROP TABLE coord_entries", "ALTER TABLE coord_entries RENAME COLUMN count TO counter"] {
        let store = Store::new();
        drop(store.open().await);
        closed(&store).await;
        store.sql(sql);
        assert_eq!(refused(&store).await.kind(), ErrorKind::Corrupt, "{sql}");
    }
}

#[tokio::test]
async fn an_empty_file_and_missing_folders_become_a_store() {
    let store = Store::new();
    fs::write(store.path(), "").unwrap();
    put(&store.open().await, &key("k"), "v").await;
    let deep = SqliteConfig::new(store.folder().join("a/b c/ü?#%.db"));
    let handle = SqliteBackend::open(&deep, &store.namespace).await.unwrap();
    put(&handle, &key("k"), "v").await;
    drop(handle);
    let again = SqliteBackend::open(&deep, &store.namespace).await.unwrap();
    assert!(entry(&again, &key("k")).await.is_present());
    assert!(deep.path().is_file());
}

#[tokio::test]
async fn what_is_no_plain_file_is_refused_with_a_reason() {
    let store = Store::new();
    let folder = store.folder();
    fs::write(folder.join("file"), "").unwrap();
    fs::hard_link(folder.join("file"), folder.join("second name")).unwrap();
    std::os::unix::fs::symlink(folder.join("nothing"), folder.join("dangling")).unwrap();
    for (path, says) in [
        (folder.to_owned(), "is a folder"),
        (folder.join("file"), "2 names"),
        (folder.join("file/below"), "cannot be reached"),
        (folder.join("dangling"), "symbolic link"),
        ("/dev/null".into(), "not a plain file"),
        (":memory:".into(), "database of its own"),
        ("/proc/coord/x.db".into(), "cannot be created"),
    ] {
        let error = SqliteBackend::open(&SqliteConfig::new(&path), &store.namespace).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains(says), "{}: {error}", path.display());
    }
}

#[tokio::test]
async fn a_path_that_is_not_utf_8_is_a_path() {
    use std::os::unix::ffi::OsStrExt;
    let store = Store::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9 %25?.db");
    let config = SqliteConfig::new(store.folder().join(name));
    put(&SqliteBackend::open(&config, &store.namespace).await.unwrap(), &key("k"), "v").await;
    let again = SqliteBackend::open(&config, &store.namespace).await.unwrap();
    assert!(entry(&again, &key("k")).await.is_present());
    assert!(config.path().is_file());
}

#[tokio::test]
async fn a_second_name_that_comes_later_stops_nobody() {
    let store = Store::new();
    let handle = store.open().await;
    fs::hard_link(store.path(), store.folder().join("backup")).unwrap();
    put(&handle, &key("k"), "v").await;
    assert!(entry(&handle, &key("k")).await.is_present());
}

#[tokio::test]
async fn two_paths_to_one_file_are_one_store() {
    let store = Store::new();
    let handle = store.open().await;
    std::os::unix::fs::symlink(store.path(), store.folder().join("link")).unwrap();
    let link = SqliteConfig::new(store.folder().join("link")).with_durability(Durability::Normal);
    let linked = SqliteBackend::open(&link, &store.namespace).await.unwrap();
    assert_eq!(handle.path(), linked.path());
    put(&linked, &key("k"), "v").await;
    assert!(entry(&handle, &key("k")).await.is_present());
}

#[tokio::test]
async fn a_file_removed_under_a_handle_is_unavailable_and_not_made_anew() {
    let store = Store::new();
    let handle = store.open().await;
    put(&handle, &key("k"), "v").await;
    let away = store.folder().join("away.db");
    fs::rename(store.path(), &away).unwrap();
    let put_again = Txn::new([], [Mutation::put(key("k"), "w")]).unwrap();
    let listing = KeyRange::new(Prefix::all(), 10).unwrap();
    for _ in 0..2 {
        assert_eq!(handle.txn(&put_again).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(handle.snapshot(&KeySet::empty()).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(handle.keys(&listing).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(!store.path().exists());
    }
    // Back in its place, it works again, with what was acknowledged.
    fs::rename(&away, store.path()).unwrap();
    assert_eq!(entry(&handle, &key("k")).await.value().unwrap(), "v");
    assert!(handle.txn(&put_again).await.unwrap().is_applied());
}

#[tokio::test]
async fn another_store_in_the_place_of_ours_is_opened_and_keeps_its_log() {
    let (store, other) = (Store::new(), Store::new());
    let handle = store.open().await;
    put(&handle, &key("old"), "v").await;
    // The other store, closed and moved into the place of ours.
    let config = SqliteConfig::new(other.path());
    let second = SqliteBackend::open(&config, &store.namespace).await.unwrap();
    put(&second, &key("new"), "v").await;
    let connection = rusqlite::Connection::open(other.path()).unwrap();
    drop(second);
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    connection.close().unwrap();
    fs::rename(other.path(), store.path()).unwrap();
    let _ = fs::remove_file(store.path().with_extension("db-wal"));
    let _ = fs::remove_file(store.path().with_extension("db-shm"));

    assert!(entry(&handle, &key("new")).await.is_present());
    assert!(!entry(&handle, &key("old")).await.is_present());
    put(&handle, &key("newer"), "v").await;
    // Closing what is left of the old file has not taken the log of the new one away.
    let again = store.open().await;
    assert!(entry(&again, &key("newer")).await.is_present());
}

#[tokio::test]
async fn a_foreign_file_in_the_place_of_ours_is_refused_untouched() {
    let store = Store::new();
    let handle = store.open().await;
    put(&handle, &key("k"), "v").await;
    fs::remove_file(store.path()).unwrap();
    fs::write(store.path(), "not a store").unwrap();
    let error = handle.snapshot(&KeySet::empty()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    drop(handle);
    assert_eq!(fs::read(store.path()).unwrap(), b"not a store");
}

/// The newest content of the first page in a write-ahead log, by the file format: a header of 32 bytes; before each page a header of 24
/// bytes, which begins with the number of the page.
fn first_page_of_log(log: &[u8], page_size: usize) -> Vec<u8> {
    let mut newest = Vec::new();
    for frame in log[32..].chunks_exact(24 + page_size) {
        if frame[..4] == [0, 0, 0, 1] {
            newest = frame[24..].to_vec();
        }
    }
    newest
}

#[tokio::test]
async fn a_checkpoint_that_was_killed_in_the_middle_does_not_look_like_damage() {
    let store = Store::new();
    let opened = store.open().await;
    for n in 0_u8..8 {
        put(&opened, &key(&format!("k{n}")), &n.to_string().repeat(100_000)).await;
    }
    // As it would be found after a kill: the first page is written back and speaks of all pages, the others are only in the log.
    let crashed = Store::new();
    let mut file = fs::read(store.path()).unwrap();
    let log = fs::read(store.path().with_extension("db-wal")).unwrap();
    let page_size = usize::from(u16::from_be_bytes([file[16], file[17]]));
    let page = first_page_of_log(&log, page_size);
    assert_eq!(page.len(), page_size);
    file[..page_size].copy_from_slice(&page);
    let pages = u32::from_be_bytes([page[28], page[29], page[30], page[31]]) as usize;
    assert!(pages * page_size > file.len(), "the log has been written back already");
    fs::write(crashed.path(), file).unwrap();
    fs::write(crashed.path().with_extension("db-wal"), log).unwrap();
    let recovered = SqliteBackend::open(&crashed.config(), &store.namespace).await.unwrap();
    for n in 0_u8..8 {
        let value = entry(&recovered, &key(&format!("k{n}"))).await.value().cloned().unwrap();
        assert!(value == n.to_string().repeat(100_000), "k{n}");
    }
}
