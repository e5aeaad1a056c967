//! Several Redis servers of this machine that stand in for each other.

use std::path::Path;
use std::time::Duration;

use redis::Value;

use super::{DURABLE, command, launch};
use crate::harness::ControlError;
use crate::servers::{ServerProcess, free_port, wait_until};

/// How long servers may take to agree.
const PATIENCE: Duration = Duration::from_secs(60);

/// One server of a topology.
#[derive(Debug)]
pub struct Node {
    /// Where it listens, on loopback.
    pub port: u16,
    /// The process.
    pub process: ServerProcess,
}

impl Node {
    async fn start(program: &Path, port: u16, settings: &[&str]) -> Result<Node, ControlError> {
        Ok(Node { port, process: ServerProcess::start(launch(program, port, settings)?).await? })
    }
}

/// Three masters with a replica each.
#[derive(Debug)]
pub struct Cluster {
    /// At the start the masters, then their replicas in the same order.
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// Starts the servers, lets them meet, and returns when all agree and all replicas are in step.
    ///
    /// # Errors
    /// If a server does not start or they do not agree within a minute.
    pub async fn start(program: &Path) -> Result<Cluster, ControlError> {
        let settings = [
            DURABLE,
            &["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"],
            &["--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0"],
        ]
        .concat();
        let mut nodes = Vec::new();
        for _ in 0..6 {
            // The servers of a cluster talk to each other 10,000 ports further up.
            nodes.push(Node::start(program, free_port(10_000, 1)?, &settings).await?);
        }
        let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
        let mut ids = Vec::new();
        for (n, port) in ports.iter().enumerate() {
            ids.push(text(&command(*port, "CLUSTER MYID").await?));
            command(*port, &format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1)).await?;
        }
        for (port, slots) in ports.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
            command(*port, &format!("CLUSTER ADDSLOTSRANGE {slots}")).await?;
        }
        for port in &ports[1..] {
            command(ports[0], &format!("CLUSTER MEET 127.0.0.1 {port}")).await?;
        }
        for port in &ports {
            wait_for(*port, "CLUSTER INFO", &["cluster_known_nodes:6", "cluster_slots_assigned:16384"])
                .await?;
        }
        for (master, replica) in ids.iter().zip(&ports[3..]) {
            command(*replica, &format!("CLUSTER REPLICATE {master}")).await?;
        }
        for port in &ports {
            wait_for(*port, "CLUSTER INFO", &["cluster_state:ok", "cluster_size:3"]).await?;
        }
        for replica in &ports[3..] {
            wait_for(*replica, "INFO replication", &["master_link_status:up"]).await?;
        }
        for master in &ports[..3] {
            wait_for(*master, "INFO replication", &["connected_slaves:1", "state=online"]).await?;
        }
        Ok(Cluster { nodes })
    }

    /// The URL of the cluster by two of its nodes, with these parameters.
    #[must_use]
    pub fn url(&self, parameters: &str) -> String {
        format!(
            "redis+cluster://127.0.0.1:{},127.0.0.1:{}/?{parameters}",
            self.nodes[0].port, self.nodes[4].port
        )
        .replace("/?", "?")
    }

    /// The master that has a namespace now.
    ///
    /// # Errors
    /// If no node knows.
    pub async fn master_of(&self, namespace: &str) -> Result<&Node, ControlError> {
        self.owner(&self.nodes.iter().collect::<Vec<_>>(), namespace).await
    }

    /// The master that has a namespace, by what the nodes other than this one know.
    ///
    /// # Errors
    /// If none of them knows.
    pub async fn master_known_by_others(&self, node: &Node, namespace: &str) -> Result<&Node, ControlError> {
        let others: Vec<&Node> = self.nodes.iter().filter(|other| other.port != node.port).collect();
        self.owner(&others, namespace).await
    }

    async fn owner(&self, asked: &[&Node], namespace: &str) -> Result<&Node, ControlError> {
        for node in asked {
            let slot = command(node.port, &format!("CLUSTER KEYSLOT {{{namespace}}}")).await;
            let slots = command(node.port, "CLUSTER SLOTS").await;
            let (Ok(Value::Int(slot)), Ok(Value::Array(ranges))) = (slot, slots) else { continue };
            for range in ranges {
                let Value::Array(range) = range else { continue };
                let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else {
                    continue;
                };
                if (first..=last).contains(&&slot)
                    && let Some(Value::Int(port)) = master.get(1)
                    && let Some(node) = self.nodes.iter().find(|node| i64::from(node.port) == *port)
                {
                    return Ok(node);
                }
            }
        }
        Err("no node knows who has the namespace".into())
    }

    /// Moves the slot of a namespace from one master to another as `redis-cli --cluster reshard` does: key by key, while clients work.
    ///
    /// # Errors
    /// If a node refuses a step.
    pub async fn move_slot(&self, namespace: &str, from: &Node, to: &Node) -> Result<(), ControlError> {
        let (from, to) = (from.port, to.port);
        let slot = text(&command(from, &format!("CLUSTER KEYSLOT {{{namespace}}}")).await?);
        let (from_id, to_id) =
            (text(&command(from, "CLUSTER MYID").await?), text(&command(to, "CLUSTER MYID").await?));
        command(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).await?;
        command(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")).await?;
        loop {
            // One at a time, so that clients meet the slot in every state in between.
            let Value::Array(keys) = command(from, &format!("CLUSTER GETKEYSINSLOT {slot} 1")).await? else {
                return Err("CLUSTER GETKEYSINSLOT has no list".into());
            };
            let Some(key) = keys.first() else { break };
            command(from, &format!("MIGRATE 127.0.0.1 {to} {} 0 5000", text(key))).await?;
        }
        // The new owner first, so that the slot is never without one.
        command(to, &format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await?;
        command(from, &format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await?;
        Ok(())
    }
}

/// A primary, a replica, and three sentinels, who know it as `m`.
#[derive(Debug)]
pub struct Sentinels {
    /// The first primary and its replica.
    pub servers: [Node; 2],
    /// The sentinels.
    pub sentinels: Vec<Node>,
}

impl Sentinels {
    /// Starts the servers and returns when the sentinels agree.
    ///
    /// # Errors
    /// If a server does not start or they do not agree within a minute.
    pub async fn start(program: &Path) -> Result<Sentinels, ControlError> {
        let settings = [DURABLE, &["--repl-diskless-sync-delay", "0"]].concat();
        let primary = Node::start(program, free_port(0, 0)?, &settings).await?;
        let master = format!("127.0.0.1 {}", primary.port);
        let replica =
            Node::start(program, free_port(0, 0)?, &[&settings[..], &["--replicaof", &master]].concat())
                .await?;
        wait_for(replica.port, "INFO replication", &["master_link_status:up"]).await?;
        wait_for(primary.port, "INFO replication", &["state=online"]).await?;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let port = free_port(0, 0)?;
            let mut launch = launch(program, port, &[])?;
            let settings = format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor m {master} 2\nsentinel down-after-milliseconds m 1000\n\
                 sentinel failover-timeout m 3000\n"
            );
            // A sentinel keeps what it knows in the file that it is started with.
            std::fs::write(launch.folder.join("sentinel.conf"), settings)?;
            launch.name = format!("sentinel on port {port}");
            launch.arguments = vec!["sentinel.conf".into(), "--sentinel".into()];
            sentinels.push(Node { port, process: ServerProcess::start(launch).await? });
        }
        let sentinels = Sentinels { servers: [primary, replica], sentinels };
        for sentinel in &sentinels.sentinels {
            wait_for(sentinel.port, "SENTINEL MASTER m", &["num-other-sentinels 2", "num-slaves 1"]).await?;
        }
        Ok(sentinels)
    }

    /// The URL of the master by its sentinels, with these parameters.
    #[must_use]
    pub fn url(&self, parameters: &str) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/m?{parameters}", hosts.join(","))
    }

    /// The server that the sentinels take for the master now.
    ///
    /// # Errors
    /// If they do not answer.
    pub async fn master(&self) -> Result<&Node, ControlError> {
        let answer = command(self.sentinels[0].port, "SENTINEL GET-MASTER-ADDR-BY-NAME m").await?;
        let port = match &answer {
            Value::Array(address) => address.get(1).map(text),
            _ => None,
        };
        self.servers
            .iter()
            .find(|server| Some(server.port.to_string()) == port)
            .ok_or_else(|| format!("the sentinels name {answer:?}").into())
    }
}

/// Waits until the answer to a command, as text, holds all of these.
///
/// # Errors
/// If it does not within a minute.
pub async fn wait_for(port: u16, words: &str, wanted: &[&str]) -> Result<(), ControlError> {
    wait_until(PATIENCE, || async {
        let answer = text(&command(port, words).await?);
        match wanted.iter().find(|wanted| !answer.contains(**wanted)) {
            None => Ok(()),
            Some(missing) => Err(format!("{words} on port {port} does not say {missing}: {answer}").into()),
        }
    })
    .await
}

/// An answer as text: the parts of a list or map with blanks in between.
fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Int(number) => number.to_string(),
        Value::Array(parts) | Value::Set(parts) => parts.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Map(pairs) => pairs
            .iter()
            .map(|(key, value)| format!("{} {}", text(key), text(value)))
            .collect::<Vec<_>>()
            .join(" "),
        other => format!("{other:?}"),
    }
}
