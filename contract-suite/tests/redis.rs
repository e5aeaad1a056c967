//! The suite on Redis: a given server, one of this machine, or one in a container.

use std::process::ExitCode;

use contract_suite::servers::redis::{REDIS, RedisHarness};

fn main() -> ExitCode {
    contract_suite::servers::main(
        &REDIS,
        RedisHarness::from_environment,
        RedisHarness::given,
        RedisHarness::nowhere,
    )
}
