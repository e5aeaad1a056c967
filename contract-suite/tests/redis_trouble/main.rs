//! What goes wrong between a handle and its Redis, on servers of this machine: one clear error each, in bounded time, without a secret, and
//! the handle works on once the trouble is over. And what each primitive costs.

#![allow(clippy::unwrap_used, reason = "a test program: a panic is a failed test")]

mod connect;
mod namespace;
mod outage;
mod scan;
mod trips;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use contract_suite::servers::redis::{DURABLE, REDIS, RedisHarness, launch};
use contract_suite::servers::trouble::{self, key};
use contract_suite::servers::{ServerProcess, free_port, trials};
use coord_core::{BackendError, Mutation};
use coord_redis::{RedisBackend, RedisConfig};

const TESTS: &[(&str, trials::Test)] = &[
    ("connect: wrong and missing credentials", |programs| Box::pin(connect::credentials(programs))),
    ("connect: nobody listens", |programs| Box::pin(connect::nobody_listens(programs))),
    ("connect: a server that never answers", |programs| Box::pin(connect::no_answer(programs))),
    ("connect: TLS", |programs| Box::pin(connect::tls(programs))),
    ("connect: a server that is too old", |programs| Box::pin(connect::too_old(programs))),
    ("connect: a server of another kind", |programs| Box::pin(connect::another_kind(programs))),
    ("connect: rights", |programs| Box::pin(connect::rights(programs))),
    ("connect: settings that lose data, where the URL accepts it", |programs| {
        Box::pin(connect::accepted_settings(programs))
    }),
    ("namespace: foreign data", |programs| Box::pin(namespace::foreign(programs))),
    ("namespace: nothing is left behind", |programs| Box::pin(namespace::nothing_left(programs))),
    ("outage: the server is gone for a while", |programs| Box::pin(outage::gone_for_a_while(programs))),
    ("outage: many calls at a server that stands still", |programs| Box::pin(outage::many_wait(programs))),
    ("outage: memory is full", |programs| Box::pin(outage::memory_full(programs))),
    ("outage: demoted to a replica", |programs| Box::pin(outage::demoted(programs))),
    ("outage: busy with another script", |programs| Box::pin(outage::busy(programs))),
    ("outage: too few replicas", |programs| Box::pin(outage::too_few_replicas(programs))),
    ("outage: a client killed by the server", |programs| Box::pin(outage::client_killed(programs))),
    ("one round trip a primitive", |programs| Box::pin(trips::one_each(programs))),
    ("a listing by SCAN is red", |programs| Box::pin(scan::is_red(programs))),
];

fn main() -> ExitCode {
    // The clauses that are run here start no workers.
    trials::main(&REDIS, RedisHarness::given(String::new()), TESTS, 4, Duration::from_secs(180))
}

/// A server, and the port that it listens on.
struct Server {
    port: u16,
    process: ServerProcess,
}

impl Server {
    /// One with these settings on top.
    async fn start(programs: &[PathBuf], settings: &[&str]) -> Server {
        let port = free_port(0, 0).unwrap();
        let process = ServerProcess::start(launch(&programs[0], port, settings).unwrap()).await.unwrap();
        Server { port, process }
    }

    async fn durable(programs: &[PathBuf]) -> Server {
        Server::start(programs, DURABLE).await
    }

    fn url(&self, rest: &str) -> String {
        format!("redis://127.0.0.1:{}/{rest}", self.port)
    }

    async fn open(&self, namespace: &str) -> RedisBackend {
        open(&self.url("?response_timeout=1s&connect_timeout=1s"), namespace).await.unwrap()
    }
}

async fn open(url: &str, namespace: &str) -> Result<RedisBackend, BackendError> {
    RedisBackend::open(&RedisConfig::from_url(url)?, &namespace.parse()?).await
}

/// The error of opening a handle, which must come in time and show no secret.
async fn refusal(url: &str) -> BackendError {
    trouble::refusal(url, open(url, "refused"), 10).await
}

fn put(name: &str, value: &str) -> Mutation {
    Mutation::put(key(name), value.to_owned())
}
