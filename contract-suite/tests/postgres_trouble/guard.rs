//! A wrong variant of this backend: without the rows that hold the places of absent keys, two transactions that each assert both of two
//! absent keys and create one of them both pass.

use std::path::PathBuf;
use std::sync::Arc;

use contract_suite::servers::postgres::PostgresHarness;
use contract_suite::{ControlError, RowResult, check};

use super::{open, server, url};

/// What is taken out of the function, and what stands in its place.
const WITHOUT_GUARD: [(&str, &str); 2] = [
    // Only what is put gets a row before the locks.
    (
        "                 WHERE coalesce(n.incarnation, 0) = 0\n",
        "                 WHERE coalesce(n.incarnation, 0) = 0 AND n.action = 1\n",
    ),
    // And nobody looks whether every key is held.
    ("hole := made + held < in_held;", "hole := false;"),
];

pub(super) async fn absent_keys(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let url = url(&server, "schema=wrong&timeout=20s");
    drop(open(&url).await?);
    let row = check(Arc::new(PostgresHarness::given(url.clone())), "B20").await;
    assert_eq!(row.result, RowResult::Passed, "{row:?}");

    let mut function = server.value("SELECT pg_get_functiondef('wrong.txn'::regproc)").await?;
    for (guard, without) in WITHOUT_GUARD {
        assert_eq!(function.matches(guard).count(), 1, "{guard:?} is in the function");
        function = function.replace(guard, without);
    }
    server.execute(&function).await?;
    let row = check(Arc::new(PostgresHarness::given(url)), "B20").await;
    assert_eq!(row.result, RowResult::Failed, "the function without its guard passes");
    assert!(row.why.as_deref().is_some_and(|why| why.starts_with("B20")), "{row:?}");
    Ok(())
}
