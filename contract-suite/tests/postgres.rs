//! The suite on PostgreSQL: a given server, one of this machine, or one in a container.

use std::process::ExitCode;

use contract_suite::servers::postgres::{POSTGRES, PostgresHarness};

fn main() -> ExitCode {
    contract_suite::servers::main(
        &POSTGRES,
        PostgresHarness::from_environment,
        PostgresHarness::given,
        PostgresHarness::nowhere,
    )
}
