//! etcd for the suite: a server of this machine behind a wire that can be cut, or a given one.

pub mod topology;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coord_core::{Backend, BackendError, Key, Namespace};
use coord_etcd::{EtcdBackend, EtcdConfig};
use etcd_client::Client;

use super::{Image, Launch, Place, Ready, ServerProcess, Store, free_port, fresh_folder};
use crate::harness::{Control, ControlError, Cut, Harness, ServerControl};
use crate::wire::{Forwarder, Http2};

/// Where etcd is found.
pub const ETCD: Store = Store {
    name: "etcd",
    variable: "COORD_ETCD_URL",
    programs: &["etcd"],
    folders: &["/usr/bin", "/usr/local/bin"],
    image: Image {
        name: "quay.io/coreos/etcd",
        tag: "v3.4.23",
        port: 2379,
        command: &[
            "/usr/local/bin/etcd",
            "--data-dir=/etcd-data",
            "--listen-client-urls=http://0.0.0.0:2379",
            "--advertise-client-urls=http://0.0.0.0:2379",
        ],
        environment: &[],
        url: "etcd://127.0.0.1:PORT",
    },
};

/// The suite's etcd. The several processes of a clause are given its URL by `COORD_ETCD_URL`.
pub struct EtcdHarness {
    /// Where handles connect.
    url: Result<String, String>,
    local: Option<LocalEtcd>,
}

/// One server of this machine, and the wire to it.
struct LocalEtcd {
    server: ServerProcess,
    port: u16,
    wire: Forwarder,
}

impl EtcdHarness {
    /// The server that the environment names or allows to start.
    ///
    /// # Errors
    /// If a server that should start does not.
    pub async fn from_environment() -> Result<Self, ControlError> {
        match Place::of(&ETCD) {
            Place::Given(url) => Ok(EtcdHarness { url: Ok(url), local: None }),
            Place::Local(programs) => Ok(EtcdHarness::controlled(LocalEtcd::start(programs).await?)),
            Place::Container => Ok(EtcdHarness::nowhere("no container has been started".into())),
            Place::Nowhere(why) => Ok(EtcdHarness::nowhere(why)),
        }
    }

    fn controlled(local: LocalEtcd) -> Self {
        // As long as a busy machine may need for the largest requests.
        let url = format!("etcd://{}/?request_timeout=6s&connect_timeout=2s", local.wire.address());
        EtcdHarness { url: Ok(url), local: Some(local) }
    }

    /// No server: why.
    #[must_use]
    pub fn nowhere(why: String) -> Self {
        EtcdHarness { url: Err(why), local: None }
    }

    /// A server that runs already.
    #[must_use]
    pub fn given(url: String) -> Self {
        EtcdHarness { url: Ok(url), local: None }
    }
}

impl LocalEtcd {
    async fn start(programs: Vec<std::path::PathBuf>) -> Result<Self, ControlError> {
        let port = free_port(1, 1)?;
        let [program] = programs.try_into().map_err(|_| "etcd is one program")?;
        let server = ServerProcess::start(launch(program, "default", &[("default", port)])?).await?;
        LocalEtcd::behind_wire(server, port).await
    }

    async fn behind_wire(server: ServerProcess, port: u16) -> Result<Self, ControlError> {
        let wire = Forwarder::start(format!("127.0.0.1:{port}"), || Box::new(Http2::default())).await?;
        Ok(LocalEtcd { server, port, wire })
    }

    /// A client past the wire.
    async fn client(&self) -> Result<Client, ControlError> {
        Ok(Client::connect([format!("127.0.0.1:{}", self.port)], None).await?)
    }
}

/// How to start the member `name` of a cluster whose members listen for clients on these ports and for each other on the next ones.
pub(crate) fn launch(
    program: std::path::PathBuf,
    name: &str,
    members: &[(&str, u16)],
) -> Result<Launch, ControlError> {
    let port = members.iter().find(|(member, _)| *member == name).map_or(0, |(_, port)| *port);
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", port + 1));
    let cluster: Vec<String> =
        members.iter().map(|(name, port)| format!("{name}=http://127.0.0.1:{}", port + 1)).collect();
    let arguments = [
        ("--name", name),
        ("--data-dir", "data"),
        ("--listen-client-urls", &client),
        ("--advertise-client-urls", &client),
        ("--listen-peer-urls", &peer),
        ("--initial-advertise-peer-urls", &peer),
        ("--initial-cluster", &cluster.join(",")),
        ("--heartbeat-interval", "50"),
        ("--election-timeout", "500"),
    ];
    Ok(Launch {
        name: format!("etcd {name}"),
        program,
        arguments: arguments.iter().flat_map(|(option, value)| [(*option).into(), (*value).into()]).collect(),
        folder: fresh_folder("etcd")?,
        ready: ready(port),
        ready_within: Duration::from_secs(30),
    })
}

/// Whether the member that listens for clients on this port answers.
fn ready(port: u16) -> Ready {
    Arc::new(move || {
        Box::pin(async move {
            let ask = async {
                let mut client = Client::connect([format!("127.0.0.1:{port}")], None).await?;
                client.get("ready?", None).await
            };
            tokio::time::timeout(Duration::from_secs(1), ask).await??;
            Ok(())
        })
    })
}

/// Where the backend keeps a key.
fn physical(namespace: &str, key: &Key) -> String {
    format!("coord/{namespace}/{key}")
}

#[async_trait]
impl Harness for EtcdHarness {
    fn name(&self) -> &str {
        ETCD.name
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let url = self.url.as_deref().unwrap_or_default();
        let backend = EtcdBackend::open(&EtcdConfig::from_url(url)?, &Namespace::new(namespace)?).await?;
        Ok(Arc::new(backend))
    }

    fn unavailable(&self) -> Option<String> {
        self.url.as_ref().err().cloned()
    }

    fn server(&self) -> Option<&dyn ServerControl> {
        self.local.as_ref().map(|local| local as &dyn ServerControl)
    }

    fn worker_env(&self) -> Vec<(String, String)> {
        self.url.iter().map(|url| (ETCD.variable.to_owned(), url.clone())).collect()
    }
}

#[async_trait]
impl ServerControl for LocalEtcd {
    fn can(&self, control: Control) -> bool {
        // etcd keeps no scripts, and its versions are its own.
        matches!(control, Control::Kill | Control::Pause | Control::Cut | Control::Foreign)
    }

    async fn kill(&self) -> Result<(), ControlError> {
        self.server.kill().await
    }

    async fn restart(&self) -> Result<(), ControlError> {
        self.server.restart().await
    }

    async fn pause(&self) -> Result<(), ControlError> {
        self.server.pause()
    }

    async fn resume(&self) -> Result<(), ControlError> {
        self.server.resume()
    }

    async fn cut(&self, cut: Cut) -> Result<(), ControlError> {
        self.wire.cut(cut);
        Ok(())
    }

    async fn heal(&self) -> Result<usize, ControlError> {
        Ok(self.wire.heal())
    }

    async fn write_foreign(&self, namespace: &str, key: &Key, variant: usize) -> Result<bool, ControlError> {
        let mut client = self.client().await?;
        let value = match variant {
            0 => &b"not ours"[..],
            1 => &b""[..],
            2 => &b"\x00\x01\x02"[..],
            _ => return Ok(false),
        };
        client.put(physical(namespace, key), value, None).await?;
        Ok(true)
    }

    async fn read_raw(&self, namespace: &str, key: &Key) -> Result<Option<Vec<u8>>, ControlError> {
        let response = self.client().await?.get(physical(namespace, key), None).await?;
        Ok(response.kvs().first().map(|found| {
            let mut raw = format!("{} {} ", found.mod_revision(), found.lease()).into_bytes();
            raw.extend_from_slice(found.value());
            raw
        }))
    }

    async fn remove_raw(&self, namespace: &str, key: &Key) -> Result<(), ControlError> {
        self.client().await?.delete(physical(namespace, key), None).await?;
        Ok(())
    }
}
