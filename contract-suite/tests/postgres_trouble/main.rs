//! What goes wrong between a handle and its PostgreSQL, on servers of this machine: one clear error each, in bounded time, without a secret,
//! and the handle works on once the trouble is over. And what each primitive costs.

#![allow(clippy::unwrap_used, reason = "a test program: a panic is a failed test")]

mod connect;
mod cost;
mod durability;
mod guard;
mod outage;
mod schema;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::postgres::{POSTGRES, PostgresHarness, PostgresServer, Programs};
use contract_suite::servers::trouble::SECRET;
use contract_suite::servers::{trials, trouble};
use coord_core::{BackendError, Namespace};
use coord_postgres::{PostgresBackend, PostgresConfig};

const TESTS: &[(&str, trials::Test)] = &[
    ("connect: wrong user, password and database", |programs| Box::pin(connect::credentials(programs))),
    ("connect: nobody listens", |_| Box::pin(connect::nobody_listens())),
    ("connect: a server that never answers", |_| Box::pin(connect::no_answer())),
    ("connect: a server of another kind", |_| Box::pin(connect::another_kind())),
    ("connect: TLS", |programs| Box::pin(connect::tls(programs))),
    ("connect: a server that is too old", |programs| Box::pin(connect::too_old(programs))),
    ("connect: settings that lose data", |programs| Box::pin(connect::settings(programs))),
    ("schema: tables of others, newer and older versions", |programs| Box::pin(schema::versions(programs))),
    ("schema: many clients open at once", |programs| Box::pin(schema::many_open(programs))),
    ("schema: a user who may not create", |programs| Box::pin(schema::privileges(programs))),
    ("outage: the server is gone for a while", |programs| Box::pin(outage::gone_for_a_while(programs))),
    ("outage: connections closed by the server", |programs| Box::pin(outage::terminated(programs))),
    ("outage: a key that somebody holds", |programs| Box::pin(outage::held(programs))),
    ("outage: no connection left", |programs| Box::pin(outage::no_connection_left(programs))),
    ("outage: no writes for a while", |programs| Box::pin(outage::no_writes(programs))),
    ("outage: calls dropped in their midst", |programs| Box::pin(outage::dropped(programs))),
    ("durability: each commit waits for what the URL says", |programs| {
        Box::pin(durability::levels(programs))
    }),
    ("durability: a wait for the standby that is given up", |programs| {
        Box::pin(durability::given_up(programs))
    }),
    ("cost: one round trip, one statement, one commit", |programs| Box::pin(cost::one_each(programs))),
    ("cost: the largest requests", |programs| Box::pin(cost::largest(programs))),
    ("without the guard of absent keys B20 is red", |programs| Box::pin(guard::absent_keys(programs))),
];

fn main() -> ExitCode {
    // The clauses that are run here start no workers.
    trials::main(&POSTGRES, PostgresHarness::given(String::new()), TESTS, 3, Duration::from_secs(240))
}

async fn server(programs: Vec<PathBuf>, settings: &[&str]) -> Result<PostgresServer, ControlError> {
    Programs::new(programs)?.primary(settings).await
}

/// The URL of a server, for `postgres`, with these parameters on top.
fn url(server: &PostgresServer, parameters: &str) -> String {
    format!("postgres://postgres:{SECRET}@127.0.0.1:{}/postgres?{parameters}", server.port())
}

async fn open(url: &str) -> Result<PostgresBackend, BackendError> {
    PostgresBackend::open(&PostgresConfig::from_url(url)?, &Namespace::new("trouble")?).await
}

/// The error of opening this, which must come within so many seconds and show no secret.
async fn refusal(url: &str, within: u64) -> BackendError {
    trouble::refusal(url, open(url), within).await
}
