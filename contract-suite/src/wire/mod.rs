//! A wire that can be cut: a TCP forwarder between a client and a real server.

mod framing;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coord_core::{Clock as _, SystemClock};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::harness::{Cut, CutPoint};

pub use framing::{Framing, Http2, Mark, Turns};

/// Listens on a port of the loopback address and forwards every connection to a server, byte for byte, until it is told to lose
/// something. Dropped, it closes everything.
///
/// A [`ServerControl`](crate::ServerControl) of a real server is written with it: the harness opens its backends at
/// [`address`](Forwarder::address), and hands [`cut`](Forwarder::cut) and [`heal`](Forwarder::heal) on.
///
/// ```no_run
/// use contract_suite::wire::{Forwarder, Turns};
/// use contract_suite::{Cut, CutPoint};
///
/// # async fn example() -> std::io::Result<()> {
/// let wire = Forwarder::start("127.0.0.1:6379", || Box::new(Turns::default())).await?;
/// let url = format!("redis://{}", wire.address());
/// // The second request from now on reaches the server, and its reply is lost.
/// wire.cut(Cut { request: 2, point: CutPoint::BeforeReply });
/// # drop(url);
/// # Ok(())
/// # }
/// ```
pub struct Forwarder {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: JoinHandle<()>,
}

struct Shared {
    server: String,
    framing: Box<dyn Fn() -> Box<dyn Framing> + Send + Sync>,
    state: Mutex<State>,
    /// Moves when every connection is to be closed; closed itself when the forwarder is dropped.
    generation: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    requests: u64,
    cuts: Vec<(u64, CutPoint)>,
    refusing: bool,
    open: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the state is half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request and takes the cut that it meets.
    fn meet(&self) -> Option<CutPoint> {
        let mut state = self.lock();
        state.requests += 1;
        let number = state.requests;
        let met = state.cuts.iter().position(|(at, _)| *at == number)?;
        Some(state.cuts.remove(met).1)
    }
}

impl Forwarder {
    /// Starts to listen, on a free port. `server` is the address to forward to, `host:port`, looked up for each connection; `framing`
    /// makes the reader of each connection.
    ///
    /// # Errors
    /// If no port can be listened on. That the server cannot be reached is no error: its clients see their connections closed.
    pub async fn start(
        server: impl Into<String>,
        framing: impl Fn() -> Box<dyn Framing> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server: server.into(),
            framing: Box::new(framing),
            state: Mutex::default(),
            generation: watch::Sender::new(0),
        });
        let acceptor = tokio::spawn(accept(listener, shared.clone()));
        Ok(Forwarder { address, shared, acceptor })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Arms a cut: the `request`-th request from now on, of all connections together, meets it. Its connection is closed; others, and
    /// those opened later, are whole.
    pub fn cut(&self, cut: Cut) {
        let mut state = self.shared.lock();
        let at = state.requests + cut.request;
        state.cuts.push((at, cut.point));
    }

    /// Disarms the cuts that no request has met, and returns how many those were.
    pub fn heal(&self) -> usize {
        std::mem::take(&mut self.shared.lock().cuts).len()
    }

    /// Closes every connection.
    pub fn cut_all(&self) {
        self.shared.generation.send_modify(|generation| *generation += 1);
    }

    /// From now on new connections are closed as soon as they are accepted, or, with `false`, no longer.
    pub fn refuse(&self, refusing: bool) {
        self.shared.lock().refusing = refusing;
    }

    /// How many requests have come from clients so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.lock().requests
    }

    /// How many connections are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.lock().open
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut_all();
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder")
            .field("address", &self.address)
            .field("server", &self.shared.server)
            .finish_non_exhaustive()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of file descriptors, say. Others may give some back.
            tokio::task::yield_now().await;
            continue;
        };
        if shared.lock().refusing {
            continue;
        }
        // Subscribed here, so that whatever is accepted before a `cut_all` is met by it.
        let generation = shared.generation.subscribe();
        tokio::spawn(forward(client, shared.clone(), generation));
    }
}

/// Counts an open connection for as long as it lives.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: Arc<Shared>) -> Self {
        shared.lock().open += 1;
        Open(shared)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().open -= 1;
    }
}

/// What both directions of one connection know.
struct Reading {
    framing: Box<dyn Framing>,
    /// What happens to the replies of the requests that met a cut.
    pending: BTreeMap<u64, CutPoint>,
}

async fn forward(mut client: TcpStream, shared: Arc<Shared>, mut generation: watch::Receiver<u64>) {
    let _open = Open::new(shared.clone());
    let work = async {
        let mut server = TcpStream::connect(&shared.server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let reading = Mutex::new(Reading { framing: (shared.framing)(), pending: BTreeMap::new() });
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let mut replies = std::pin::pin!(replies(from_server, to_client, &reading));
        tokio::select! {
            cut = requests(from_client, to_server, &shared, &reading) => {
                if let Some(Broken) = cut? {
                    return Ok(());
                }
                // The client sends no more, but may still wait for replies.
            }
            _ = &mut replies => return Ok(()),
        }
        replies.await?;
        io::Result::Ok(())
    };
    // Whatever breaks, both sides see their connection closed, and that is all that a forwarder can tell them.
    tokio::select! {
        _ = work => {}
        _ = generation.changed() => {}
    }
}

/// A cut was met: the connection is to be closed.
struct Broken;

async fn requests(
    mut client: impl AsyncRead + Unpin,
    mut server: impl AsyncWrite + Unpin,
    shared: &Shared,
    reading: &Mutex<Reading>,
) -> io::Result<Option<Broken>> {
    let mut buffer = vec![0; 64 * 1_024];
    loop {
        let length = client.read(&mut buffer).await?;
        if length == 0 {
            server.shutdown().await?;
            return Ok(None);
        }
        let chunk = &buffer[..length];
        let mut cut = None;
        {
            let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
            for mark in reading.framing.requests(chunk) {
                match shared.meet() {
                    None => {}
                    Some(CutPoint::BeforeSend) => {
                        cut = Some(mark.at);
                        break;
                    }
                    Some(point) => {
                        reading.pending.insert(mark.id, point);
                    }
                }
            }
        }
        if let Some(at) = cut {
            server.write_all(&chunk[..at]).await?;
            return Ok(Some(Broken));
        }
        server.write_all(chunk).await?;
    }
}

async fn replies(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    reading: &Mutex<Reading>,
) -> io::Result<Option<Broken>> {
    let mut buffer = vec![0; 64 * 1_024];
    loop {
        let length = server.read(&mut buffer).await?;
        if length == 0 {
            return Ok(None);
        }
        let chunk = &buffer[..length];
        let met: Vec<(usize, CutPoint)> = {
            let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
            let marks = reading.framing.replies(chunk);
            marks.into_iter().filter_map(|mark| Some((mark.at, reading.pending.remove(&mark.id)?))).collect()
        };
        let mut passed = 0;
        for (at, point) in met {
            client.write_all(&chunk[passed..at]).await?;
            passed = at;
            match point {
                CutPoint::DelayReply(delay) => SystemClock::new().sleep(delay).await,
                CutPoint::BeforeSend | CutPoint::BeforeReply => return Ok(Some(Broken)),
            }
        }
        client.write_all(&chunk[passed..]).await?;
    }
}
