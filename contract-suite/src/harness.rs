//! What a backend author supplies: how to open a handle and, where it can be done, how to hurt the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coord_core::board::{AgentId, BoardError, ExtendedBoard};
use coord_core::effects::{EffectError, EffectStore};
use coord_core::{Backend, BackendError, Clock, Key, Version};

/// What the suite needs to know about a backend. Only [`name`](Harness::name) and [`open`](Harness::open) have to be written; every
/// capability that is left out is reported as skipped clauses, never as passed ones.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The name in reports, and in the environment variable `COORD_REQUIRE`.
    fn name(&self) -> &str;

    /// A new handle, connected on its own: two calls with one namespace must share nothing but the store, and see the same data.
    ///
    /// # Errors
    /// What the backend says. A clause that cannot open its handles has failed.
    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError>;

    /// Why nothing can run here (no server, say). `None` if clauses can run.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// How to hurt the server, for the clauses that need it.
    fn server(&self) -> Option<&dyn ServerControl> {
        None
    }

    /// Opens a handle on a server with this fault in its settings. `None` if the harness has no such server.
    async fn open_misconfigured(
        &self,
        fault: Misconfiguration,
    ) -> Option<Result<Arc<dyn Backend>, BackendError>> {
        let _ = fault;
        None
    }

    /// The environment variables that a child process of the same program needs so that its harness opens the same store. Empty
    /// means that another process cannot open it, and the clauses with several processes are skipped. (A harness that needs no
    /// variable returns any one, as a sign that it can.)
    fn worker_env(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// One thing that can be done to a server, from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Control {
    /// [`ServerControl::kill`] and [`ServerControl::restart`].
    Kill,
    /// [`ServerControl::pause`] and [`ServerControl::resume`].
    Pause,
    /// [`ServerControl::cut`] and [`ServerControl::heal`].
    Cut,
    /// [`ServerControl::flush_scripts`].
    FlushScripts,
    /// [`ServerControl::write_foreign`], [`ServerControl::read_raw`] and [`ServerControl::remove_raw`].
    Foreign,
    /// [`ServerControl::set_version`].
    SetVersion,
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Control::Kill => "kill and restart the server",
            Control::Pause => "pause the server",
            Control::Cut => "cut the wire",
            Control::FlushScripts => "flush the server's scripts or statements",
            Control::Foreign => "write foreign bytes under a key",
            Control::SetVersion => "set the version of a key",
        })
    }
}

/// Where the wire is cut, seen from the request that meets the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutPoint {
    /// The request never reaches the server.
    BeforeSend,
    /// The server does what was asked, and its reply never arrives.
    BeforeReply,
    /// The reply arrives this much later.
    DelayReply(Duration),
}

/// One cut of the wire: the `request`-th request from now on (the first one is 1), of all handles together, meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which request, counted from 1.
    pub request: u64,
    /// Where.
    pub point: CutPoint,
}

/// Why the harness could not do to the server what it was asked to. That fails the clause.
pub type ControlError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// How to hurt a server. Every method has a default that refuses; [`can`](ServerControl::can) says which ones do not.
#[async_trait]
pub trait ServerControl: Send + Sync {
    /// Whether the methods of this control are implemented.
    fn can(&self, control: Control) -> bool;

    /// Stops the server at once, as `kill -9` does: what was not made durable is lost.
    async fn kill(&self) -> Result<(), ControlError> {
        Err(cannot(Control::Kill))
    }

    /// Starts a killed server on the same data, and returns when it accepts requests.
    async fn restart(&self) -> Result<(), ControlError> {
        Err(cannot(Control::Kill))
    }

    /// The server stops working without closing anything, as `kill -STOP` does.
    async fn pause(&self) -> Result<(), ControlError> {
        Err(cannot(Control::Pause))
    }

    /// A paused server works on.
    async fn resume(&self) -> Result<(), ControlError> {
        Err(cannot(Control::Pause))
    }

    /// Arms a cut of the wire. One request meets it; connections opened later are whole.
    async fn cut(&self, cut: Cut) -> Result<(), ControlError> {
        let _ = cut;
        Err(cannot(Control::Cut))
    }

    /// Disarms every cut that no request has met yet, and returns how many those were.
    async fn heal(&self) -> Result<usize, ControlError> {
        Err(cannot(Control::Cut))
    }

    /// Drops every prepared script or statement that the server keeps for its clients.
    async fn flush_scripts(&self) -> Result<(), ControlError> {
        Err(cannot(Control::FlushScripts))
    }

    /// Writes, past the backend, the `variant`-th kind of foreign content (bytes without our envelope, another type, an impossible
    /// version) where the backend keeps this key. `false` if there is no such variant; variant 0 always exists.
    async fn write_foreign(&self, namespace: &str, key: &Key, variant: usize) -> Result<bool, ControlError> {
        let _ = (namespace, key, variant);
        Err(cannot(Control::Foreign))
    }

    /// What the store holds where the backend keeps this key, past the backend, in any faithful form; `None` if nothing.
    async fn read_raw(&self, namespace: &str, key: &Key) -> Result<Option<Vec<u8>>, ControlError> {
        let _ = (namespace, key);
        Err(cannot(Control::Foreign))
    }

    /// Removes, past the backend, whatever is where the backend keeps this key.
    async fn remove_raw(&self, namespace: &str, key: &Key) -> Result<(), ControlError> {
        let _ = (namespace, key);
        Err(cannot(Control::Foreign))
    }

    /// Gives a present key this version, past the backend. `false` if the store cannot hold that version (one whose
    /// versions are the store's own).
    async fn set_version(&self, namespace: &str, key: &Key, version: Version) -> Result<bool, ControlError> {
        let _ = (namespace, key, version);
        Err(cannot(Control::SetVersion))
    }
}

fn cannot(control: Control) -> ControlError {
    format!("this harness cannot {control}").into()
}

/// A setting with which a server would silently lose what it has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Misconfiguration {
    /// Acknowledged before it is on disk, or never on disk: Redis without `appendonly yes`, PostgreSQL with `fsync=off`.
    NotDurable,
    /// On disk, but only now and then: Redis with `appendfsync everysec`.
    LazySync,
    /// Drops keys when memory is short: Redis with an evicting policy.
    Evicting,
    /// A replica that cannot be written.
    ReadOnly,
}

impl Misconfiguration {
    /// Every one that is known.
    pub const ALL: &'static [Misconfiguration] = &[
        Misconfiguration::NotDurable,
        Misconfiguration::LazySync,
        Misconfiguration::Evicting,
        Misconfiguration::ReadOnly,
    ];
}

/// What a board is opened with besides its backend.
#[derive(Clone, Debug)]
pub struct BoardSeat {
    /// The client's clock: for waiting, and for judging where the store has no clock.
    pub clock: Arc<dyn Clock>,
    /// How far the clocks of two clients may be apart, where the store has none.
    pub max_clock_skew: Duration,
}

/// How to open a board. The clauses of the layer `board` run on whatever this opens.
#[async_trait]
pub trait BoardHarness: Send + Sync + 'static {
    /// The name in reports.
    fn name(&self) -> &str;

    /// A board above this handle. Boards above handles of one namespace are the same board.
    ///
    /// # Errors
    /// What the board says. A clause that cannot open its boards has failed.
    async fn open(
        &self,
        backend: Arc<dyn Backend>,
        seat: BoardSeat,
    ) -> Result<Arc<dyn ExtendedBoard>, BoardError>;
}

/// What a side-effect store is opened with besides its backend.
#[derive(Clone, Debug)]
pub struct EffectSeat {
    /// The client's clock: for waiting, and for judging where the store has no clock.
    pub clock: Arc<dyn Clock>,
    /// How far the clocks of two clients may be apart, where the store has none.
    pub max_clock_skew: Duration,
    /// Who the client is, for the history.
    pub agent: AgentId,
}

/// How to open a side-effect store. The clauses of the layer `effects` run on whatever this opens.
#[async_trait]
pub trait EffectsHarness: Send + Sync + 'static {
    /// The name in reports.
    fn name(&self) -> &str;

    /// A side-effect store above this handle. Stores above handles of one namespace are the same store.
    ///
    /// # Errors
    /// What the store says. A clause that cannot open its stores has failed.
    async fn open(
        &self,
        backend: Arc<dyn Backend>,
        seat: EffectSeat,
    ) -> Result<Arc<dyn EffectStore>, EffectError>;
}
