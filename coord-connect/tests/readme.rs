//! What the project's README shows in Rust is what the example compiles and runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

const README: &str = include_str!("../../README.md");
const EXAMPLE: &str = include_str!("../examples/readme.rs");

/// The lines of a text, without what only breaks or indents them.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_readme_shows_what_the_example_does() {
    let example = lines(EXAMPLE);
    let pieces: Vec<&str> =
        README.split("```rust\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    assert_eq!(pieces.len(), 3);
    for piece in pieces {
        let wanted = lines(piece);
        let there = example.windows(wanted.len()).any(|found| found == wanted);
        assert!(there, "the example does not have this piece of the README:\n{piece}");
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn the_example_runs() {
    let folder = tempfile::tempdir().unwrap();
    // Cargo puts examples beside the tests that it builds with them.
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().parent().unwrap().join("examples/readme");
    if !example.exists() {
        // `cargo test --test readme` alone builds no examples.
        return;
    }
    let output = std::process::Command::new(example).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("charged:") && said.contains("was charged before"),
        "{said}"
    );
}
