//! What goes wrong between a handle and its etcd, on servers of this machine: one clear error each, in bounded time, without a secret, and the
//! handle works on once the trouble is over. And what each primitive costs.

#![allow(clippy::unwrap_used, reason = "a test program: a panic is a failed test")]

mod auth;
mod connect;
mod cost;
mod namespace;
mod outage;
mod versions;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::etcd::topology::EtcdServer;
use contract_suite::servers::etcd::{ETCD, EtcdHarness};
use contract_suite::servers::{trials, trouble};
use coord_core::{BackendError, Namespace};
use coord_etcd::{EtcdBackend, EtcdConfig};

const TESTS: &[(&str, trials::Test)] = &[
    ("connect: nobody listens", |_| Box::pin(connect::nobody_listens())),
    ("connect: a server that never answers", |_| Box::pin(connect::no_answer())),
    ("connect: a server of another kind", |_| Box::pin(connect::another_kind())),
    ("connect: a server that is too old", |_| Box::pin(connect::too_old())),
    ("connect: TLS", |programs| Box::pin(connect::tls(programs))),
    ("auth: wrong and missing credentials", |programs| Box::pin(auth::credentials(programs))),
    ("auth: rights", |programs| Box::pin(auth::rights(programs))),
    ("auth: turned on and off under open handles", |programs| Box::pin(auth::turned_on_and_off(programs))),
    ("auth: a handle that lives longer than its token", |programs| Box::pin(auth::token_expires(programs))),
    ("auth: tokens that are too old because the users changed", |programs| {
        Box::pin(auth::users_change(programs))
    }),
    ("namespace: foreign data", |programs| Box::pin(namespace::foreign(programs))),
    ("namespace: nothing is left behind", |programs| Box::pin(namespace::nothing_left(programs))),
    ("outage: the server is gone for a while", |programs| Box::pin(outage::gone_for_a_while(programs))),
    ("outage: many calls at a server that stands still", |programs| Box::pin(outage::many_wait(programs))),
    ("outage: connections that break", |programs| Box::pin(outage::broken(programs))),
    ("outage: the disk's quota is used up", |programs| Box::pin(outage::no_space(programs))),
    ("outage: fewer operations a transaction than by default", |programs| {
        Box::pin(outage::few_operations(programs))
    }),
    ("cost: one round trip a primitive", |programs| Box::pin(cost::one_each(programs))),
    ("with a key's version alone B13 and B18 are red", |programs| Box::pin(versions::alone_is_red(programs))),
];

fn main() -> ExitCode {
    // The clauses that are run here start no workers.
    trials::main(&ETCD, EtcdHarness::given(String::new()), TESTS, 4, Duration::from_secs(240))
}

/// The URL of a server without users.
fn url(server: &EtcdServer, parameters: &str) -> String {
    format!("etcd://127.0.0.1:{}/?{parameters}", server.port())
}

async fn open(url: &str) -> Result<EtcdBackend, BackendError> {
    EtcdBackend::open(&EtcdConfig::from_url(url)?, &Namespace::new("trouble")?).await
}

/// The error of opening this, which must come within so many seconds and show no secret.
async fn refusal(url: &str, within: u64) -> BackendError {
    trouble::refusal(url, open(url), within).await
}

async fn server(programs: &[PathBuf], settings: &[&str]) -> Result<EtcdServer, ControlError> {
    EtcdServer::start(&programs[0], settings).await
}
