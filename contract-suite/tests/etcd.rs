//! The suite on etcd: a given server, or one of this machine.

use std::process::ExitCode;

use contract_suite::servers::etcd::EtcdHarness;

#[allow(clippy::print_stderr, reason = "the test program has no other way to say why it has no harness")]
fn main() -> ExitCode {
    // The wire to the server lives on this runtime, beside that of the suite.
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no asynchronous runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    // A container is removed through this runtime.
    let _entered = runtime.enter();
    match runtime.block_on(EtcdHarness::from_environment()) {
        Ok(harness) => contract_suite::main(harness),
        Err(error) => {
            eprintln!("etcd: {error}");
            ExitCode::FAILURE
        }
    }
}
