//! The suite on a SQLite file.

use std::process::ExitCode;

use contract_suite::SqliteHarness;

#[allow(clippy::print_stderr, reason = "the test program has no other way to say why it has no harness")]
fn main() -> ExitCode {
    match SqliteHarness::from_environment() {
        Ok(harness) => contract_suite::main(harness),
        Err(error) => {
            eprintln!("SQLite: {error}");
            ExitCode::FAILURE
        }
    }
}
