//! The suite on the memory backend.

use std::process::ExitCode;

fn main() -> ExitCode {
    contract_suite::main(contract_suite::MemoryHarness::default())
}
