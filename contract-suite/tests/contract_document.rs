//! `docs/contract.md` says what the registry says.

use std::collections::BTreeSet;
use std::path::Path;

use contract_suite::{clauses, contract_markdown};

#[test]
fn the_document_is_that_of_the_registry() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/contract.md");
    let expected = contract_markdown();
    if std::env::var_os("COORD_SUITE_WRITE").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(
            found,
            expected,
            "line {}: run this test with COORD_SUITE_WRITE=1 to write docs/contract.md again",
            line + 1
        );
    }
    assert_eq!(found, expected, "run this test with COORD_SUITE_WRITE=1 to write docs/contract.md again");
}

#[test]
fn every_clause_has_an_id_of_its_own_and_a_promise_on_one_line() {
    let mut ids = BTreeSet::new();
    for clause in clauses() {
        assert!(ids.insert(clause.id), "{} is there twice", clause.id);
        assert!(!clause.promise.trim().is_empty() && !clause.promise.contains('\n'), "{}", clause.id);
        assert_eq!(clause.promise, clause.promise.trim(), "{}", clause.id);
        assert!(!clause.promise.contains("  "), "{} has a gap in its promise", clause.id);
        assert!(clause.id.starts_with(['B', 'T', 'E', 'G']), "{}", clause.id);
    }
}
