//! The suite on etcd: a given server, one of this machine, or one in a container.

use std::process::ExitCode;

use contract_suite::servers::etcd::{ETCD, EtcdHarness};

fn main() -> ExitCode {
    contract_suite::servers::main(
        &ETCD,
        EtcdHarness::from_environment,
        EtcdHarness::given,
        EtcdHarness::nowhere,
    )
}
