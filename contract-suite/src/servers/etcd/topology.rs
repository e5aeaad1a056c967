//! Servers that tests start for themselves: one with settings of its own, and a cluster.

use std::path::Path;
use std::time::Duration;

use coord_core::{Clock as _, SystemClock};
use etcd_client::Client;
use futures::future::try_join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::super::{Ready, ServerProcess, free_port, wait_until};
use super::launch;
use crate::harness::ControlError;

/// One server of etcd.
#[derive(Debug)]
pub struct EtcdServer {
    port: u16,
    health: u16,
    process: ServerProcess,
}

impl EtcdServer {
    /// Starts one with these settings on top. It may speak TLS to clients, or demand a user of them: whether it is ready is asked on a port of
    /// its own.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(program: &Path, settings: &[&str]) -> Result<EtcdServer, ControlError> {
        let (port, health) = (free_port(1, 1)?, free_port(0, 0)?);
        let mut launch = launch(program.to_owned(), "default", &[("default", port)])?;
        let address = format!("http://127.0.0.1:{health}");
        let more = ["--listen-metrics-urls", &address].into_iter().chain(settings.iter().copied());
        // Of a setting that is given twice, the last one counts.
        launch.arguments.extend(more.map(|argument| argument.replace("{port}", &port.to_string()).into()));
        launch.ready = healthy(health);
        Ok(EtcdServer { port, health, process: ServerProcess::start(launch).await? })
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// A client of a server that speaks no TLS.
    ///
    /// # Errors
    /// If it cannot connect.
    pub async fn client(&self) -> Result<Client, ControlError> {
        Ok(Client::connect([format!("127.0.0.1:{}", self.port)], None).await?)
    }

    /// How many requests of clients the server has answered with success, by its own statistics: of transactions, and of reads.
    ///
    /// # Errors
    /// If it does not say.
    pub async fn answered(&self) -> Result<(u64, u64), ControlError> {
        let text = http(self.health, "/metrics").await?;
        let count = |method: &str| -> Result<u64, ControlError> {
            let series = format!("grpc_method=\"{method}\",grpc_service=\"etcdserverpb.KV\"");
            let line = text
                .lines()
                .find(|line| {
                    line.starts_with("grpc_server_handled_total{grpc_code=\"OK\"") && line.contains(&series)
                })
                .ok_or("the server counts no requests")?;
            Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()? as u64)
        };
        Ok((count("Txn")?, count("Range")?))
    }
}

fn healthy(port: u16) -> Ready {
    std::sync::Arc::new(move || {
        Box::pin(async move {
            let answer = tokio::time::timeout(Duration::from_secs(1), http(port, "/health")).await??;
            if answer.contains("\"true\"") { Ok(()) } else { Err(answer.into()) }
        })
    })
}

/// What is answered to a request, with its headers.
async fn http(port: u16, path: &str) -> Result<String, ControlError> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// One member of a [`Cluster`].
#[derive(Debug)]
pub struct Member {
    /// The port for clients.
    pub port: u16,
    /// Its process.
    pub process: ServerProcess,
}

/// Three members.
#[derive(Debug)]
pub struct Cluster {
    /// The members.
    pub members: Vec<Member>,
}

impl Cluster {
    /// Starts them and waits until each answers. A leader that says nothing for `election` is followed by another one; on a machine that is busy with
    /// other things that happens to one that works, too, if it is short.
    ///
    /// # Errors
    /// If one does not answer.
    pub async fn start(program: &Path, election: Duration) -> Result<Cluster, ControlError> {
        let (heartbeat, election) =
            ((election / 10).as_millis().to_string(), election.as_millis().to_string());
        let mut names = Vec::new();
        for name in ["one", "two", "three"] {
            names.push((name, free_port(1, 1)?));
        }
        let starting = names.iter().map(|(name, port)| {
            let launch = launch(program.to_owned(), name, &names).map(|mut launch| {
                let settings = ["--heartbeat-interval", &heartbeat, "--election-timeout", &election];
                // Of a setting that is given twice, the last one counts.
                launch.arguments.extend(settings.map(Into::into));
                launch
            });
            async move {
                Ok::<_, ControlError>(Member { port: *port, process: ServerProcess::start(launch?).await? })
            }
        });
        Ok(Cluster { members: try_join_all(starting).await? })
    }

    /// The index of the leader, as soon as there is one on which a majority agrees.
    ///
    /// # Errors
    /// If there is none for half a minute.
    pub async fn leader(&self) -> Result<usize, ControlError> {
        wait_until(Duration::from_secs(30), || async {
            let mut leads = Vec::new();
            for (index, member) in self.members.iter().enumerate() {
                let Ok(Ok(status)) = tokio::time::timeout(Duration::from_secs(1), status(member.port)).await
                else {
                    continue;
                };
                leads.push((index, status));
            }
            let agreed =
                |id: u64| id != 0 && leads.iter().filter(|(_, (_, leader))| *leader == id).count() >= 2;
            leads
                .iter()
                .find(|(_, (id, leader))| id == leader && agreed(*id))
                .map(|(index, _)| *index)
                .ok_or_else(|| format!("no leader: {leads:?}").into())
        })
        .await
    }

    /// Waits until a majority has another leader than this one.
    ///
    /// # Errors
    /// If it has none for half a minute.
    pub async fn another_leader(&self, than: usize) -> Result<usize, ControlError> {
        let clock = SystemClock::new();
        loop {
            let leader = self.leader().await?;
            if leader != than {
                return Ok(leader);
            }
            if clock.monotonic() > Duration::from_secs(30) {
                return Err("the same leader after half a minute".into());
            }
        }
    }

    /// A URL with these members in this order.
    #[must_use]
    pub fn url(&self, order: &[usize], parameters: &str) -> String {
        let hosts: Vec<String> =
            order.iter().map(|index| format!("127.0.0.1:{}", self.members[*index].port)).collect();
        format!("etcd://{}/?{parameters}", hosts.join(","))
    }
}

/// The id of a member, and of the leader that it knows.
async fn status(port: u16) -> Result<(u64, u64), ControlError> {
    let status = Client::connect([format!("127.0.0.1:{port}")], None).await?.status().await?;
    Ok((status.header().map_or(0, etcd_client::ResponseHeader::member_id), status.leader()))
}
