//! The suite through PgBouncer in transaction mode, where each transaction may run over another connection to the server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::postgres::{POSTGRES, PostgresHarness, Programs};
use contract_suite::servers::{Launch, Ready, ServerProcess, Store, free_port, fresh_folder, trials};

const PGBOUNCER: Store = Store {
    name: "pgbouncer",
    variable: "COORD_PGBOUNCER_URL",
    programs: &["pgbouncer", "postgres", "initdb", "pg_basebackup"],
    folders: &["/usr/sbin", "/usr/lib/postgresql/*/bin", "/usr/pgsql/bin", "/usr/local/pgsql/bin"],
    // There is none with a pooler in it; the tests start servers of their own.
    image: POSTGRES.image,
};

const TESTS: &[(&str, trials::Test)] =
    &[("transaction mode: the suite", |programs| Box::pin(suite(programs)))];

fn main() -> ExitCode {
    // The suite's clauses start this program again as a worker, with the URL of the pooler in the environment.
    let worker = PostgresHarness::given(std::env::var(POSTGRES.variable).unwrap_or_default());
    trials::main(&PGBOUNCER, worker, TESTS, 1, Duration::from_secs(900))
}

async fn suite(mut programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let pgbouncer = programs.remove(0);
    let programs = Programs::new(programs)?;
    let server = programs.primary(&[]).await?;
    let (folder, port) = (fresh_folder("pgbouncer")?, free_port(0, 0)?);
    // Few connections to the server, so that many clients share each.
    let settings = format!(
        "[databases]\npostgres = host=127.0.0.1 port={} dbname=postgres\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = users\npool_mode = transaction\ndefault_pool_size = 8\nmax_client_conn = 1000\n",
        server.port()
    );
    std::fs::write(folder.join("settings"), settings)?;
    std::fs::write(folder.join("users"), "\"postgres\" \"\"\n")?;
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?timeout=20s&pool_size=6");
    let ready: Ready = Arc::new(move || {
        Box::pin(async move { Ok(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop)?) })
    });
    let (program, arguments) = programs.command(&pgbouncer, &["settings"]);
    let launch = Launch {
        name: "pgbouncer".into(),
        program,
        arguments,
        folder,
        ready,
        ready_within: Duration::from_secs(20),
    };
    let _pooler = ServerProcess::start(launch).await?;
    trials::whole_suite(PostgresHarness::given(url), &[]).await
}
