//! The suite on the simulated store: every clause that needs a server to hurt runs here.

use std::process::ExitCode;

fn main() -> ExitCode {
    contract_suite::main(contract_suite::SimHarness::new())
}
