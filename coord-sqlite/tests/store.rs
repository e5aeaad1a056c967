//! The contract on one file, where this store could break it: types, limits, turns, dropped futures.

#![allow(clippy::unwrap_used, reason = "this is a test")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Store, entry, increment, key, put};
use coord_core::criteria::concurrent_txn;
use coord_core::{
    Assert, Backend, Bytes, ErrorKind, Key, KeyRange, KeySet, Mutation, Prefix, Txn, TxnOutcome, Version,
    limits,
};
use coord_sqlite::{Durability, SqliteBackend};
use futures::future::join_all;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_racer_wins_over_handles_that_were_opened_separately() {
    let store = Store::new();
    let mut handles: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..4 {
        handles.push(Arc::new(store.open().await));
    }
    for _ in 0..5 {
        concurrent_txn(&handles, &key("present later"), 16).await.unwrap();
    }
}

#[tokio::test]
async fn versions_go_on_over_handles_and_never_come_back() {
    let store = Store::new();
    let (a, b) = (store.open().await, store.open().await);
    let k = key("k");
    put(&a, &k, "1").await;
    let first = entry(&b, &k).await.version();
    assert_eq!(first.count(), 1);
    put(&b, &k, "1").await;
    assert_eq!(entry(&a, &k).await.version(), first.next().unwrap());
    assert!(a.txn(&Txn::new([], [Mutation::delete(k.clone())]).unwrap()).await.unwrap().is_applied());
    put(&b, &k, "1").await;
    let second = entry(&a, &k).await.version();
    assert_ne!(second.incarnation(), first.incarnation());
    let stale = Txn::new([Assert::version(k.clone(), first)], [Mutation::put(k.clone(), "2")]).unwrap();
    assert_eq!(a.txn(&stale).await.unwrap(), TxnOutcome::Rejected);
    drop((a, b));
    assert_eq!(entry(&store.open().await, &k).await.version(), second);
}

#[tokio::test]
async fn the_limits_are_accepted_to_the_last_byte() {
    let store = Store::new();
    let handle = store.open().await;
    // 3,000 mutations.
    let many: Vec<Key> = (0..limits::TXN_MUTATIONS).map(|n| key(&format!("many/{n:04}"))).collect();
    let txn = Txn::new(
        many.iter().take(limits::TXN_ASSERTS).cloned().map(Assert::missing),
        many.iter().map(|key| Mutation::put(key.clone(), "v")),
    )
    .unwrap();
    assert!(handle.txn(&txn).await.unwrap().is_applied());
    assert_eq!(handle.txn(&txn).await.unwrap(), TxnOutcome::Rejected);
    // 10,000 keys in one snapshot, most of them absent.
    let keys: Vec<Key> = (0..limits::SNAPSHOT_KEYS).map(|n| key(&format!("many/{n:04}"))).collect();
    let snapshot = handle.snapshot(&KeySet::new(keys).unwrap()).await.unwrap();
    assert_eq!(snapshot.len(), limits::SNAPSHOT_KEYS);
    assert_eq!(snapshot.iter().filter(|(_, entry)| entry.is_present()).count(), limits::TXN_MUTATIONS);
    // The longest key with the largest value, byte for byte.
    let long = key(&"é".repeat(limits::KEY_BYTES / 2));
    let bytes: Bytes = (0..limits::VALUE_BYTES).map(|n| (n % 256) as u8).collect::<Vec<_>>().into();
    let txn = Txn::new([], [Mutation::put(long.clone(), bytes.clone())]).unwrap();
    assert!(handle.txn(&txn).await.unwrap().is_applied());
    assert_eq!(entry(&handle, &long).await.value().unwrap(), &bytes);
}

#[tokio::test]
async fn a_snapshot_has_16_mib_and_not_a_byte_more() {
    let store = Store::new();
    let handle = store.open().await;
    let keys: Vec<Key> = (0..32).map(|n| key(&format!("{n:04}"))).collect();
    // Each entry has 512 KiB with its key of four bytes, so 32 of them are exactly 16 MiB.
    for key in &keys {
        let value = vec![7; limits::VALUE_BYTES - 4];
        assert!(
            handle
                .txn(&Txn::new([], [Mutation::put(key.clone(), value)]).unwrap())
                .await
                .unwrap()
                .is_applied()
        );
    }
    let all = || keys.iter().cloned();
    let doubled = KeySet::new(all().chain(all()).chain([key("absent")])).unwrap();
    assert_eq!(handle.snapshot(&doubled).await.unwrap().size(), limits::SNAPSHOT_BYTES);
    put(&handle, &key("x"), "").await;
    for more in ["x", "00000"] {
        put(&handle, &key(more), "").await;
        let error = handle.snapshot(&KeySet::new(all().chain([key(more)])).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    // The handle goes on.
    assert_eq!(handle.snapshot(&doubled).await.unwrap().len(), 33);
}

#[tokio::test]
async fn listings_are_bytes_in_order() {
    let store = Store::new();
    let handle = store.open().await;
    let names = ["a", "a%", "a_", "a*", "aB", "ab", "b", "é", "e\u{301}", "a\u{10FFFF}", "\u{10FFFF}", " a"];
    let txn = Txn::new([], names.map(|name| Mutation::put(key(name), ""))).unwrap();
    assert!(handle.txn(&txn).await.unwrap().is_applied());
    let mut sorted: Vec<&str> = names.to_vec();
    sorted.sort_unstable();
    let list = async |prefix: &str, after: Option<&str>, limit| {
        let mut range = KeyRange::new(Prefix::new(prefix).unwrap(), limit).unwrap();
        if let Some(after) = after {
            range = range.start_after(key(after));
        }
        let keys = handle.keys(&range).await.unwrap();
        keys.iter().map(|key| key.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list("", None, 100).await, sorted);
    for prefix in ["a", "a%", "a_", "a*", "A", "é", "\u{10FFFF}", "e", "b", "z"] {
        let expected: Vec<_> = sorted.iter().filter(|name| name.starts_with(prefix)).collect();
        assert_eq!(
            list(prefix, None, 100).await,
            expected.into_iter().copied().collect::<Vec<_>>(),
            "{prefix}"
        );
    }
    let mut paged: Vec<String> = Vec::new();
    loop {
        let page = list("a", paged.last().map(String::as_str), 2).await;
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, list("a", None, 100).await);
}

#[tokio::test]
async fn namespaces_are_disjoint() {
    let store = Store::new();
    let a = store.open().await;
    let longer = coord_core::Namespace::new(format!("{}x", store.namespace)).unwrap();
    let b = SqliteBackend::open(&store.config(), &longer).await.unwrap();
    put(&a, &key("k"), "a").await;
    put(&a, &key("xk"), "a").await;
    assert!(!entry(&b, &key("k")).await.is_present());
    assert!(b.keys(&KeyRange::new(Prefix::all(), 10).unwrap()).await.unwrap().is_empty());
}

#[tokio::test]
async fn foreign_rows_are_corrupt_for_every_verb_and_stay_as_they_are() {
    for (column, value) in [
        ("value", "'text'"),
        ("value", "7"),
        ("value", "zeroblob(524289)"),
        ("incarnation", "'text'"),
        ("incarnation", "0"),
        ("incarnation", "-1"),
        ("count", "0"),
        ("count", "1.5"),
        ("count", "x'01'"),
    ] {
        let store = Store::new();
        let handle = store.open().await;
        put(&handle, &key("k"), "v").await;
        store.sql(&format!("UPDATE coord_entries SET {column} = {value}"));
        let dump = || {
            let connection = rusqlite::Connection::open(store.path()).unwrap();
            let sql = "SELECT namespace || quote(key) || quote(incarnation) || quote(count) || quote(value) FROM coord_entries";
            connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap()
        };
        let before = dump();
        let k = key("k");
        let snapshot = handle.snapshot(&KeySet::new([k.clone()]).unwrap()).await.unwrap_err();
        assert_eq!(snapshot.kind(), ErrorKind::Corrupt, "{column} = {value}: {snapshot}");
        let assert = Assert::missing(k.clone());
        let (put, delete) = (Mutation::put(k.clone(), "w"), Mutation::delete(k.clone()));
        let version = Assert::version(k.clone(), Version::first(1).unwrap());
        for txn in [
            Txn::new([], [put.clone()]),
            Txn::new([], [delete.clone()]),
            Txn::new([assert.clone()], [put]),
            Txn::new([version], [delete]),
            Txn::new([assert.clone()], []),
            Txn::new([Assert::missing(key("other")), assert], [Mutation::put(key("other"), "")]),
        ] {
            let error = handle.txn(&txn.unwrap()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{column} = {value}: {error}");
        }
        assert_eq!(dump(), before);
        assert!(!entry(&handle, &key("other")).await.is_present());
    }
}

#[tokio::test]
async fn a_foreign_key_is_corrupt_and_never_absent() {
    for (foreign, name) in [("'k'", "k"), ("7", "7"), ("1.5", "1.5"), ("'é'", "é")] {
        let store = Store::new();
        let handle = store.open().await;
        put(&handle, &key("fine"), "v").await;
        store.sql(&format!("INSERT INTO coord_entries VALUES ('{}', {foreign}, 1, 1, x'')", store.namespace));
        let list =
            async |prefix| handle.keys(&KeyRange::new(Prefix::new(prefix).unwrap(), 10).unwrap()).await;
        for prefix in ["", name] {
            assert_eq!(list(prefix).await.unwrap_err().kind(), ErrorKind::Corrupt, "{foreign}");
        }
        let snapshot = handle.snapshot(&KeySet::new([key(name)]).unwrap()).await.unwrap_err();
        assert_eq!(snapshot.kind(), ErrorKind::Corrupt, "{foreign}: {snapshot}");
        for txn in [
            Txn::new([Assert::missing(key(name))], [Mutation::put(key("fine"), "")]),
            Txn::new([Assert::missing(key(name))], []),
            Txn::new([], [Mutation::put(key("fine"), ""), Mutation::put(key(name), "")]),
            Txn::new([], [Mutation::delete(key(name))]),
        ] {
            assert_eq!(handle.txn(&txn.unwrap()).await.unwrap_err().kind(), ErrorKind::Corrupt, "{foreign}");
        }
        // The keys beside it are as they were.
        assert_eq!(entry(&handle, &key("fine")).await.version().count(), 1);
        assert_eq!(list("fine").await.unwrap(), [key("fine")]);
        put(&handle, &key("fine"), "w").await;
        assert!(!entry(&handle, &key("other")).await.is_present());
    }
    for foreign in ["x'ff'", "x'6b00'", "x''", "zeroblob(1025)"] {
        let store = Store::new();
        let handle = store.open().await;
        store.sql(&format!("INSERT INTO coord_entries VALUES ('{}', {foreign}, 1, 1, x'')", store.namespace));
        let listing = handle.keys(&KeyRange::new(Prefix::all(), 10).unwrap()).await.unwrap_err();
        assert_eq!(listing.kind(), ErrorKind::Corrupt, "{foreign}: {listing}");
        assert!(!entry(&handle, &key("k")).await.is_present());
    }
}

#[tokio::test]
async fn versions_near_the_powers_of_two_are_exact_and_the_last_one_is_the_end() {
    let store = Store::new();
    let handle = store.open().await;
    let k = key("k");
    put(&handle, &k, "v").await;
    for count in [1 << 32, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, 1 << 62, Version::MAX_HALF - 1] {
        store.sql(&format!("UPDATE coord_entries SET incarnation = {}, count = {count}", (1_u64 << 53) + 1));
        let version = Version::new((1 << 53) + 1, count).unwrap();
        assert_eq!(entry(&handle, &k).await.version(), version);
        for near in [Version::new((1 << 53) + 1, count - 1), Version::new(1 << 53, count), version.next()] {
            let stale = Txn::new([Assert::version(k.clone(), near.unwrap())], [Mutation::put(k.clone(), "")])
                .unwrap();
            assert_eq!(handle.txn(&stale).await.unwrap(), TxnOutcome::Rejected);
        }
        let right = Txn::new([Assert::version(k.clone(), version)], [Mutation::put(k.clone(), "")]).unwrap();
        assert_eq!(handle.txn(&right).await.unwrap(), TxnOutcome::Applied);
        assert_eq!(entry(&handle, &k).await.version(), version.next().unwrap());
    }
    let last = entry(&handle, &k).await;
    assert_eq!(last.version().count(), Version::MAX_HALF);
    let more = Txn::new([], [Mutation::put(key("other"), ""), Mutation::put(k.clone(), "x")]).unwrap();
    assert_eq!(handle.txn(&more).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(entry(&handle, &k).await, last);
    assert!(!entry(&handle, &key("other")).await.is_present());
}

#[tokio::test]
async fn the_time_is_the_clock_of_the_file_even_if_nothing_is_asked_for() {
    let store = Store::new();
    let handle = store.open().await;
    let first = handle.snapshot(&KeySet::empty()).await.unwrap();
    assert!(first.is_empty());
    let clock: i64 = rusqlite::Connection::open_in_memory()
        .unwrap()
        .query_row("SELECT unixepoch('now') * 1000000", [], |row| row.get(0))
        .unwrap();
    let apart = (first.store_time().unwrap().as_micros() - clock).abs();
    assert!(apart < 60_000_000, "{apart} µs");
    let second = handle.snapshot(&KeySet::empty()).await.unwrap();
    assert!(second.store_time() >= first.store_time());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_starves_nobody_and_loses_no_update() {
    const CLIENTS: usize = 8;
    const TIMES: usize = 40;
    let store = Store::new();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let handle = store.open().await;
        clients.push(tokio::spawn(async move {
            for _ in 0..TIMES {
                increment(&handle, &key("hot")).await;
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    let end = entry(&store.open().await, &key("hot")).await;
    assert_eq!(end.value().unwrap(), (CLIENTS * TIMES).to_string().as_bytes());
    assert_eq!(end.version().count(), (CLIENTS * TIMES) as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_one_process_are_served_in_turn() {
    // Each of four handles writes as fast as it can, without asserts. Served in turn, none gets ahead of another by more than the
    // few that were in the queue at the start.
    const TIMES: usize = 50;
    let store = Store::new();
    let mut handles = Vec::new();
    for _ in 0..4 {
        handles.push(store.open().await);
    }
    let barrier = Arc::new(tokio::sync::Barrier::new(4));
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let writers = handles.into_iter().enumerate().map(|(writer, handle)| {
        let (barrier, order) = (barrier.clone(), order.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            for _ in 0..TIMES {
                put(&handle, &key("hot"), "v").await;
                order.lock().unwrap().push(writer);
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    let order = order.lock().unwrap();
    let mut done = [0_usize; 4];
    for &writer in order.iter() {
        done[writer] += 1;
        let (most, least) = (done.iter().max().unwrap(), done.iter().min().unwrap());
        assert!(most - least <= 12, "{done:?} in {order:?}");
    }
}

/// Polls a future some times, lets others run in between, and drops it. Whether it was not done by then.
async fn cut_off<F: Future>(future: F, polls: u64, yields: u64) -> bool {
    let mut future = std::pin::pin!(future);
    for _ in 0..polls {
        if futures::poll!(future.as_mut()).is_ready() {
            return false;
        }
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_dropped_at_any_moment_leave_all_or_nothing_and_a_handle_that_works() {
    let store = Store::new();
    let handle = store.open().await;
    let (a, b) = (key("a"), key("b"));
    let pair = |n: u64| {
        Txn::new([], [Mutation::put(key("a"), n.to_string()), Mutation::put(key("b"), n.to_string())])
            .unwrap()
    };
    assert!(handle.txn(&pair(0)).await.unwrap().is_applied());
    let both = KeySet::new([a.clone(), b.clone()]).unwrap();
    let listing = KeyRange::new(Prefix::all(), 10).unwrap();
    let mut cut = 0;
    for n in 1..=400_u64 {
        // From "never polled" over "in the queue" and "at work" to "just done and not yet told".
        let (polls, yields) = (n % 4, n * 7 % 50);
        let txn = pair(n);
        let dropped = match n % 3 {
            0 => cut_off(handle.txn(&txn), polls, yields).await,
            1 => {
                let (x, y) = (pair(n), pair(n + 1_000));
                let all = async { tokio::join!(handle.txn(&x), handle.txn(&y), handle.snapshot(&both)) };
                cut_off(all, polls, yields).await
            }
            _ => {
                let reads = async { tokio::join!(handle.snapshot(&both), handle.keys(&listing)) };
                cut_off(reads, polls, yields).await
            }
        };
        cut += u32::from(dropped);
        let seen = handle.snapshot(&both).await.unwrap();
        let (x, y) = (seen.require(&a).unwrap(), seen.require(&b).unwrap());
        assert_eq!(x.value(), y.value());
        assert_eq!(x.version().count(), y.version().count());
    }
    assert!(cut > 100, "only {cut} futures were cut off");
    for n in 0..10 {
        assert!(handle.txn(&pair(n)).await.unwrap().is_applied());
    }
}

#[tokio::test]
async fn a_lock_held_by_somebody_else_is_waited_for_and_then_unavailable() {
    let store = Store::new();
    let config = store.config().with_busy_timeout(Duration::from_millis(50));
    let handle = SqliteBackend::open(&config, &store.namespace).await.unwrap();
    put(&handle, &key("k"), "v").await;
    let other = rusqlite::Connection::open(store.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let txn = Txn::new([], [Mutation::put(key("k"), "w")]).unwrap();
    let error = handle.txn(&txn).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("holds the lock"), "{error}");
    // Reads, and transactions that only assert, wait for no writer.
    assert_eq!(entry(&handle, &key("k")).await.value().unwrap(), "v");
    let check = Txn::new([Assert::missing(key("absent"))], []).unwrap();
    assert!(handle.txn(&check).await.unwrap().is_applied());
    // As soon as the lock is free, a patient writer gets it.
    let patient = store.open().await;
    let waiting = tokio::spawn(async move { patient.txn(&txn).await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    other.execute_batch("ROLLBACK").unwrap();
    assert!(waiting.await.unwrap().unwrap().is_applied());
    assert_eq!(entry(&handle, &key("k")).await.value().unwrap(), "w");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_calls_in_flight_get_their_own_answers() {
    let store = Store::new();
    let handle = store.open().await;
    let answers = join_all((0..64).map(|n| {
        let handle = handle.clone();
        tokio::spawn(async move {
            let k = key(&format!("tag/{n}"));
            put(&handle, &k, &n.to_string()).await;
            (n, entry(&handle, &k).await)
        })
    }))
    .await;
    for answer in answers {
        let (n, entry) = answer.unwrap();
        assert_eq!(entry.value().unwrap(), n.to_string().as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_and_a_listing_are_one_instant() {
    let store = Store::new();
    let (writer, reader) = (store.open().await, store.open().await);
    let keys: Vec<Key> = (0..300).map(|n| key(&format!("set/{n:03}"))).collect();
    let set = |n: u64| {
        let puts = keys.iter().map(|key| Mutation::put(key.clone(), n.to_string()));
        // And a marker that moves from name to name.
        let (from, to) = (key(&format!("mark/{:02}", n % 50)), key(&format!("mark/{:02}", (n + 1) % 50)));
        Txn::new([], puts.chain([Mutation::delete(from), Mutation::put(to, "")])).unwrap()
    };
    assert!(writer.txn(&set(0)).await.unwrap().is_applied());
    let txns: Vec<Txn> = (1..60).map(set).collect();
    let writing = tokio::spawn(async move {
        for txn in &txns {
            assert!(writer.txn(txn).await.unwrap().is_applied());
        }
    });
    let (all, marks) =
        (KeySet::new(keys.clone()).unwrap(), KeyRange::new(Prefix::new("mark/").unwrap(), 100).unwrap());
    let mut seen = std::collections::BTreeSet::new();
    while !writing.is_finished() {
        let snapshot = reader.snapshot(&all).await.unwrap();
        let first = snapshot.require(&keys[0]).unwrap().value().unwrap().clone();
        assert!(snapshot.iter().all(|(_, entry)| entry.value() == Some(&first)));
        assert_eq!(reader.keys(&marks).await.unwrap().len(), 1);
        seen.insert(first);
    }
    writing.await.unwrap();
    assert!(seen.len() > 5, "only {} instants were seen", seen.len());
}

/// Makes the commit of every transaction that creates the key `bad` fail: a foreign key that is only checked in `COMMIT`.
const FAILING_COMMIT: &str = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
    CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
    CREATE TRIGGER fails AFTER INSERT ON coord_entries WHEN NEW.key = CAST('bad' AS BLOB)
    BEGIN INSERT INTO child VALUES (1); END;";

#[tokio::test]
async fn a_commit_that_fails_is_indeterminate_and_the_handle_works_on() {
    let store = Store::new();
    let handle = store.open().await;
    put(&handle, &key("good"), "1").await;
    store.sql(FAILING_COMMIT);
    let txn = Txn::new([], [Mutation::put(key("good"), "2"), Mutation::put(key("bad"), "")]).unwrap();
    for _ in 0..3 {
        let error = handle.txn(&txn).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        assert!(std::error::Error::source(&error).is_some());
        let good = entry(&handle, &key("good")).await;
        assert_eq!((good.value().unwrap(), good.version().count()), (&"1".into(), 1));
        assert!(!entry(&handle, &key("bad")).await.is_present());
    }
    put(&handle, &key("good"), "2").await;
}

/// Sends transactions while somebody else has the lock, so that all of them are written at once as soon as it is free.
async fn at_once(store: &Store, txns: Vec<Txn>) -> Vec<Result<TxnOutcome, coord_core::BackendError>> {
    let other = rusqlite::Connection::open(store.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let handle = store.open().await;
    let mut waiting: Vec<_> = txns.iter().map(|txn| handle.txn(txn)).collect();
    // The first poll of each puts it in the queue, in this order.
    for txn in &mut waiting {
        assert!(futures::poll!(txn).is_pending());
    }
    other.execute_batch("ROLLBACK").unwrap();
    join_all(waiting).await
}

#[tokio::test]
async fn transactions_that_are_written_at_once_are_judged_one_by_one() {
    let store = Store::new();
    let k = key("k");
    let create = |value: &str| {
        Txn::new([Assert::missing(k.clone())], [Mutation::put(k.clone(), value.to_owned())]).unwrap()
    };
    let other = Txn::new([], [Mutation::put(key("other"), "x")]).unwrap();
    drop(store.open().await);
    store.sql(&format!(
        "INSERT INTO coord_entries VALUES ('{}', x'41', 'no number', 1, x'')",
        store.namespace
    ));
    let foreign = Txn::new([], [Mutation::put(key("B"), ""), Mutation::put(key("A"), "")]).unwrap();
    let answers = at_once(&store, vec![create("1"), create("2"), foreign, other, create("3")]).await;
    let kinds: Vec<_> = answers.into_iter().map(|answer| answer.map_err(|error| error.kind())).collect();
    let (applied, rejected) = (Ok(TxnOutcome::Applied), Ok(TxnOutcome::Rejected));
    assert_eq!(kinds, [applied, rejected, Err(ErrorKind::Corrupt), applied, rejected]);
    let handle = store.open().await;
    assert_eq!(entry(&handle, &k).await.value().unwrap(), "1");
    assert!(entry(&handle, &key("other")).await.is_present());
    assert!(!entry(&handle, &key("B")).await.is_present());
}

#[tokio::test]
async fn what_was_rejected_because_of_a_commit_that_failed_is_not_rejected() {
    let store = Store::new();
    drop(store.open().await);
    store.sql(FAILING_COMMIT);
    let create = |name: &str| {
        Txn::new([Assert::missing(key("k"))], [Mutation::put(key("k"), ""), Mutation::put(key(name), "")])
            .unwrap()
    };
    let answers = at_once(&store, vec![create("bad"), create("good")]).await;
    let kinds: Vec<_> = answers.into_iter().map(|answer| answer.map_err(|error| error.kind())).collect();
    // The second one was judged after the first one, which may not have happened. It has certainly not happened itself.
    assert_eq!(kinds, [Err(ErrorKind::Indeterminate), Err(ErrorKind::Unavailable)]);
    let handle = store.open().await;
    assert!(handle.txn(&create("good")).await.unwrap().is_applied());
}

#[tokio::test]
async fn a_log_that_a_reader_keeps_long_is_shortened_once_the_reader_is_gone() {
    let store = Store::new();
    // Without a wait for the disk, which has nothing to do with it.
    let config = store.config().with_durability(Durability::Normal);
    let handle = SqliteBackend::open(&config, &store.namespace).await.unwrap();
    put(&handle, &key("k"), "v").await;
    let log_size = || std::fs::metadata(store.path().with_extension("db-wal")).unwrap().len();
    let reader = rusqlite::Connection::open(store.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM coord_entries").unwrap();
    let value = vec![7_u8; limits::VALUE_BYTES];
    let txn = Txn::new([], [Mutation::put(key("k"), value)]).unwrap();
    let mut largest = 0;
    while log_size() < 20 << 20 {
        assert!(handle.txn(&txn).await.unwrap().is_applied());
        largest = largest.max(log_size());
    }
    reader.execute_batch("ROLLBACK").unwrap();
    // At the latest when it has grown as much once more.
    while log_size() >= largest {
        assert!(handle.txn(&txn).await.unwrap().is_applied());
        assert!(log_size() < 44 << 20, "the log grows and grows");
    }
    let after = entry(&handle, &key("k")).await;
    assert_eq!(after.value().unwrap().len(), limits::VALUE_BYTES);
}
