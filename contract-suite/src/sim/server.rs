//! The server: a store in memory with a disk behind it, reached over lines that can break.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use coord_core::{
    Bytes, Clock, Entry, Key, KeyRange, KeySet, Mutation, Namespace, Snapshot, SystemClock, Txn, TxnOutcome,
    Version, limits,
};
use tokio::sync::{Notify, oneshot};

use crate::harness::{Cut, CutPoint};

use super::record::{Foreign, Record};

/// When a write reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// Before it is acknowledged.
    BeforeReply,
    /// With every 64th write.
    NowAndThen,
    /// Before it is acknowledged, but for the last key of each transaction, which follows with the next one.
    InPart,
    /// Never.
    Never,
}

/// The settings of a server, which its clients can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) sync: Sync,
    /// Drops the first key of a namespace that has more than 1,000.
    pub(crate) evicts: bool,
    /// Refuses every write.
    pub(crate) read_only: bool,
}

impl Settings {
    /// Nothing that was acknowledged is lost.
    pub(crate) const RIGHT: Settings = Settings { sync: Sync::BeforeReply, evicts: false, read_only: false };
}

/// The programs that clients prepare on the server, one a primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Script {
    Snapshot,
    Txn,
    Keys,
}

impl Script {
    pub(crate) const ALL: [Script; 3] = [Script::Snapshot, Script::Txn, Script::Keys];
}

/// The arguments of a script.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Snapshot(KeySet),
    Txn(Txn, u64),
    Keys(KeyRange),
}

impl Call {
    fn script(&self) -> Script {
        match self {
            Call::Snapshot(_) => Script::Snapshot,
            Call::Txn(..) => Script::Txn,
            Call::Keys(_) => Script::Keys,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// What are the settings?
    Settings,
    /// Keep this script.
    Prepare(Script),
    /// Run a script that was prepared.
    Run(Namespace, Call),
    /// Keep the script and run it, in one step.
    PrepareAndRun(Namespace, Call),
}

#[derive(Debug)]
pub(crate) enum Reply {
    Settings(Settings),
    Prepared,
    /// The script is not kept here; nothing was done.
    NotPrepared,
    Snapshot(Snapshot),
    Txn(TxnOutcome),
    Keys(Vec<Key>),
    /// Under this key lies something that is not ours; nothing was done.
    Foreign(Key, Foreign),
    /// The answer would be larger than a snapshot may be.
    TooLarge(usize),
    /// The server takes no writes; nothing was done.
    ReadOnly,
}

/// Why no reply came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The line was known to be broken before anything was sent.
    NotSent,
    /// The line broke after something was sent. What became of it is not known.
    Lost,
}

type Store = BTreeMap<Namespace, BTreeMap<Key, Record>>;

struct Queued {
    line: Arc<Line>,
    request: Request,
    reply: oneshot::Sender<Delivery>,
    point: Option<CutPoint>,
}

struct Delivery {
    reply: Reply,
    delay: Duration,
}

struct State {
    running: bool,
    paused: bool,
    lines: Vec<Weak<Line>>,
    prepared: BTreeSet<Script>,
    live: Store,
    disk: Store,
    /// Written and not yet on the disk.
    unsynced: Vec<(Namespace, Key, Option<Record>)>,
    /// Received and not yet worked off, because the server is paused.
    queue: VecDeque<Queued>,
    requests: u64,
    cuts: Vec<(u64, CutPoint)>,
}

struct Shared {
    settings: Settings,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// A server. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Server(Arc<Shared>);

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a server with an empty disk.
    pub(crate) fn start(settings: Settings) -> Self {
        let state = State {
            running: true,
            paused: false,
            lines: Vec::new(),
            prepared: BTreeSet::new(),
            live: Store::new(),
            disk: Store::new(),
            unsynced: Vec::new(),
            queue: VecDeque::new(),
            requests: 0,
            cuts: Vec::new(),
        };
        Server(Arc::new(Shared { settings, clock: Arc::new(SystemClock::new()), state: Mutex::new(state) }))
    }

    /// Opens a line, `None` if nobody listens.
    pub(crate) fn connect(&self) -> Option<Connection> {
        let mut state = self.lock();
        if !state.running {
            return None;
        }
        let line = Arc::new(Line::default());
        state.lines.retain(|line| line.strong_count() > 0);
        state.lines.push(Arc::downgrade(&line));
        Some(Connection { server: self.clone(), line })
    }

    /// Stops at once: what is not on the disk is lost, and so is what waits.
    pub(crate) fn kill(&self) {
        let mut state = self.lock();
        state.running = false;
        state.paused = false;
        state.queue.clear();
        state.unsynced.clear();
        state.prepared.clear();
        state.live = state.disk.clone();
        for line in state.lines.drain(..).filter_map(|line| line.upgrade()) {
            line.close();
        }
    }

    pub(crate) fn restart(&self) {
        self.lock().running = true;
    }

    pub(crate) fn pause(&self) {
        self.lock().paused = true;
    }

    /// Works on, first on what came in meanwhile, also for those who have hung up.
    pub(crate) fn resume(&self) {
        let mut state = self.lock();
        state.paused = false;
        while let Some(queued) = state.queue.pop_front() {
            self.0.work_off(&mut state, queued);
        }
    }

    pub(crate) fn cut(&self, cut: Cut) {
        let mut state = self.lock();
        let at = state.requests + cut.request;
        state.cuts.push((at, cut.point));
    }

    /// Disarms the cuts that no request has met, and says how many those are.
    pub(crate) fn heal(&self) -> usize {
        std::mem::take(&mut self.lock().cuts).len()
    }

    pub(crate) fn flush_scripts(&self) {
        self.lock().prepared.clear();
    }

    /// What lies under a key.
    pub(crate) fn record(&self, namespace: &Namespace, key: &Key) -> Option<Record> {
        self.lock().live.get(namespace)?.get(key).cloned()
    }

    /// Puts something under a key, or removes what is there, past all clients.
    pub(crate) fn set_record(&self, namespace: &Namespace, key: &Key, record: Option<Record>) {
        let mut state = self.lock();
        state.write(namespace, key, record);
        state.sync();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the state is half changed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self, line: Arc<Line>, request: Request, reply: oneshot::Sender<Delivery>) {
        let mut state = self.lock();
        state.requests += 1;
        let number = state.requests;
        let point = state.cuts.iter().position(|(at, _)| *at == number).map(|met| state.cuts.remove(met).1);
        if point == Some(CutPoint::BeforeSend) {
            line.close();
            return;
        }
        if !state.running {
            return;
        }
        let queued = Queued { line, request, reply, point };
        if state.paused {
            state.queue.push_back(queued);
        } else {
            self.0.work_off(&mut state, queued);
        }
    }
}

impl Shared {
    fn work_off(&self, state: &mut State, queued: Queued) {
        let reply = self.answer(state, queued.request);
        let delay = match queued.point {
            Some(CutPoint::BeforeReply) => {
                queued.line.close();
                return;
            }
            Some(CutPoint::DelayReply(delay)) => delay,
            _ => Duration::ZERO,
        };
        // Whoever has hung up is not told.
        let _ = queued.reply.send(Delivery { reply, delay });
    }

    fn answer(&self, state: &mut State, request: Request) -> Reply {
        match request {
            Request::Settings => Reply::Settings(self.settings),
            Request::Prepare(script) => {
                state.prepared.insert(script);
                Reply::Prepared
            }
            Request::Run(_, call) if !state.prepared.contains(&call.script()) => Reply::NotPrepared,
            Request::Run(namespace, call) => self.run(state, &namespace, call),
            Request::PrepareAndRun(namespace, call) => {
                state.prepared.insert(call.script());
                self.run(state, &namespace, call)
            }
        }
    }

    fn run(&self, state: &mut State, namespace: &Namespace, call: Call) -> Reply {
        let done = match call {
            Call::Snapshot(keys) => snapshot(state, namespace, &keys, &*self.clock),
            Call::Txn(..) if self.settings.read_only => Ok(Reply::ReadOnly),
            Call::Txn(txn, incarnation) => self.txn(state, namespace, &txn, incarnation),
            Call::Keys(range) => Ok(listing(state, namespace, &range)),
        };
        done.unwrap_or_else(|(key, foreign)| Reply::Foreign(key, foreign))
    }

    fn txn(
        &self,
        state: &mut State,
        namespace: &Namespace,
        txn: &Txn,
        incarnation: u64,
    ) -> Result<Reply, (Key, Foreign)> {
        // Everything is read and checked before the first write.
        let mut holds = true;
        for assert in txn.asserts() {
            holds &= state.version(namespace, &assert.key)? == assert.version;
        }
        let mut writes = Vec::with_capacity(txn.mutations().len());
        for mutation in txn.mutations() {
            let now = state.version(namespace, mutation.key())?;
            let record = match mutation {
                Mutation::Delete { .. } => None,
                Mutation::Put { key, value } => {
                    let next = if now.is_missing() { Version::first(incarnation) } else { now.next() };
                    let next = next.ok_or_else(|| (key.clone(), Foreign::Version))?;
                    Some(Record::ours(next, value))
                }
            };
            writes.push((mutation.key(), record));
        }
        if !holds {
            return Ok(Reply::Txn(TxnOutcome::Rejected));
        }
        for (key, record) in writes {
            state.write(namespace, key, record);
        }
        if self.settings.evicts {
            let keys = state.live.entry(namespace.clone()).or_default();
            while keys.len() > 1_000 {
                keys.pop_first();
            }
        }
        match self.settings.sync {
            Sync::BeforeReply => state.sync(),
            Sync::NowAndThen if state.unsynced.len() >= 64 => state.sync(),
            Sync::InPart => {
                let last = state.unsynced.pop();
                state.sync();
                state.unsynced.extend(last);
            }
            Sync::NowAndThen | Sync::Never => {}
        }
        Ok(Reply::Txn(TxnOutcome::Applied))
    }
}

fn snapshot(
    state: &State,
    namespace: &Namespace,
    keys: &KeySet,
    clock: &dyn Clock,
) -> Result<Reply, (Key, Foreign)> {
    let mut entries = Vec::with_capacity(keys.len());
    for key in keys.distinct() {
        entries.push((key.clone(), state.entry(namespace, key)?));
    }
    let snapshot = Snapshot::new(entries, Some(clock.now()));
    let size = snapshot.size();
    Ok(if size > limits::SNAPSHOT_BYTES { Reply::TooLarge(size) } else { Reply::Snapshot(snapshot) })
}

fn listing(state: &State, namespace: &Namespace, range: &KeyRange) -> Reply {
    let prefix = range.prefix().as_str();
    let lower = match range.after() {
        Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
        _ => Bound::Included(prefix),
    };
    let keys = state.live.get(namespace).into_iter().flat_map(|keys| {
        keys.range::<str, _>((lower, Bound::Unbounded)).map(|(key, _)| key).take_while(|k| range.contains(k))
    });
    Reply::Keys(keys.take(range.limit()).cloned().collect())
}

impl State {
    fn entry(&self, namespace: &Namespace, key: &Key) -> Result<Entry, (Key, Foreign)> {
        match self.live.get(namespace).and_then(|keys| keys.get(key)) {
            None => Ok(Entry::Absent),
            Some(record) => {
                let (version, value) = record.read().map_err(|foreign| (key.clone(), foreign))?;
                Ok(Entry::Present { version, value: Bytes::copy_from_slice(value) })
            }
        }
    }

    fn version(&self, namespace: &Namespace, key: &Key) -> Result<Version, (Key, Foreign)> {
        match self.live.get(namespace).and_then(|keys| keys.get(key)) {
            None => Ok(Version::MISSING),
            Some(record) => Ok(record.read().map_err(|foreign| (key.clone(), foreign))?.0),
        }
    }

    fn write(&mut self, namespace: &Namespace, key: &Key, record: Option<Record>) {
        change(&mut self.live, namespace, key, record.clone());
        self.unsynced.push((namespace.clone(), key.clone(), record));
    }

    fn sync(&mut self) {
        for (namespace, key, record) in self.unsynced.drain(..) {
            change(&mut self.disk, &namespace, &key, record);
        }
    }
}

fn change(store: &mut Store, namespace: &Namespace, key: &Key, record: Option<Record>) {
    let keys = store.entry(namespace.clone()).or_default();
    match record {
        Some(record) => {
            keys.insert(key.clone(), record);
        }
        None => {
            keys.remove(key);
        }
    }
}

/// Both ends of a line.
#[derive(Default)]
struct Line {
    closed: AtomicBool,
    closing: Notify,
}

impl Line {
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.closing.notify_waiters();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    async fn until_closed(&self) {
        loop {
            // Registered before the look, so that a close in between is not missed.
            let closing = self.closing.notified();
            if self.is_closed() {
                return;
            }
            closing.await;
        }
    }
}

/// A client's end of a line. Many requests may be on their way at a time.
pub(crate) struct Connection {
    server: Server,
    line: Arc<Line>,
}

impl Connection {
    /// Sends a request and waits for its reply, for as long as it takes.
    pub(crate) async fn call(&self, request: Request) -> Result<Reply, LinkError> {
        if self.line.is_closed() {
            return Err(LinkError::NotSent);
        }
        let (sender, reply) = oneshot::channel();
        self.server.receive(self.line.clone(), request, sender);
        let arrival = async {
            let delivery = reply.await.map_err(|_| LinkError::Lost)?;
            if delivery.delay > Duration::ZERO {
                SystemClock::new().sleep(delivery.delay).await;
            }
            Ok(delivery.reply)
        };
        tokio::select! {
            // What has arrived has arrived, even if the line broke afterwards.
            biased;
            reply = arrival => reply,
            () = self.line.until_closed() => Err(LinkError::Lost),
        }
    }
}
