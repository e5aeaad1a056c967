//! The board above any backend: opening, reading, and the loop that every verb runs through.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::progress::{Progress, progress_key, read_progress};
use super::record::{
    self, Definition, Head, Topology, definition_key, head_id, head_key, read_definition, read_head, shown,
    topology_key,
};
use super::task::{State, Task, TaskId, limits};
use super::{BoardError, Verb, ready};
use crate::backend::Backend;
use crate::cas::{self, Backoff, Bounds, Fate, Judge, Pending, View};
use crate::clock::{Clock, SystemClock};
use crate::error::BackendError;
use crate::key::{self, Key, Prefix};
use crate::snapshot::{KeyRange, KeySet, Snapshot};
use crate::token::OperationId;
use crate::txn::{Assert, Mutation, Txn};

/// How a board is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BoardOptions {
    /// Waits between tries, and tells the time where the store has no clock of its own. Default: the system's clock.
    pub clock: Arc<dyn Clock>,
    /// How far the clocks of two clients may be apart where the store has none: who takes over an expired lease waits this much longer
    /// than its holder may act. Default: 5 s.
    pub max_clock_skew: Duration,
    /// How many conflicts with other clients a verb bears until [`BoardError::TxnConflict`]. Default: 100.
    pub max_conflicts: u32,
    /// How many failures of the store a verb waits out while one of its writes may or may not have happened, until
    /// [`BoardError::OutcomeUnknown`]. Default: 8, which with the waits in between makes about 2 seconds.
    pub max_failures: u32,
}

impl Default for BoardOptions {
    fn default() -> Self {
        BoardOptions {
            clock: Arc::new(SystemClock::new()),
            max_clock_skew: Duration::from_secs(5),
            max_conflicts: 100,
            max_failures: 8,
        }
    }
}

impl BoardOptions {
    /// With this clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// With this margin between clocks.
    #[must_use]
    pub fn max_clock_skew(mut self, skew: Duration) -> Self {
        self.max_clock_skew = skew;
        self
    }
}

/// The task board above a [`Backend`]: one board a namespace. Clones share the handle.
///
/// Every verb is a loop of snapshot, judgement and transaction; the transaction asserts the versions that the judgement rests on. A
/// verb without conflict and without dependencies costs one snapshot and one transaction.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use coord_core::board::{AgentId, Board, BoardAdapter, BoardOptions, ClaimRequest, ExtendedBoard, Outcome, TaskId, TaskSpec};
/// use coord_memory::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = MemoryStore::new().open(&"demo".parse()?);
/// let board = BoardAdapter::open(backend, BoardOptions::default()).await?;
/// let id = TaskId::new("deploy")?;
/// board.add(TaskSpec::new(id.clone()).title("Deploy to production")).await?;
///
/// let worker = AgentId::new("worker-1")?;
/// let claim = board.claim(&id, &worker, ClaimRequest::for_ttl(Duration::from_secs(30))).await?;
/// assert_eq!(claim.lease.fence, 1);
/// // Somebody else comes too late.
/// assert!(board.claim(&id, &AgentId::new("worker-2")?, ClaimRequest::for_ttl(Duration::from_secs(30))).await.is_err());
/// board.complete(&id, &claim.lease.token, Outcome::new("v1.2 is live")?).await?;
/// # Ok(()) }
/// ```
pub struct BoardAdapter<B> {
    inner: Arc<Inner<B>>,
}

struct Inner<B> {
    backend: B,
    options: BoardOptions,
}

impl<B> Clone for BoardAdapter<B> {
    fn clone(&self) -> Self {
        BoardAdapter { inner: self.inner.clone() }
    }
}

impl<B: Backend> fmt::Debug for BoardAdapter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoardAdapter")
            .field("backend", &self.inner.backend)
            .field("options", &self.inner.options)
            .finish()
    }
}

/// Some tasks of a board that may be too large to list at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPage {
    /// The tasks, in ascending order of their ids.
    pub tasks: Vec<Task>,
    /// Where the next page starts, `None` after the last one.
    pub next: Option<TaskId>,
}

impl<B: Backend> BoardAdapter<B> {
    /// Opens the board of the handle's namespace, and makes it if there is none yet. A board that was written by a version without the
    /// index of ready tasks is brought into it first; from then on that older version must not write to it any more.
    ///
    /// # Errors
    /// [`Malformed`](BoardError::Malformed) if the namespace holds something else under the board's keys.
    pub async fn open(backend: B, options: BoardOptions) -> Result<Self, BoardError> {
        let board = BoardAdapter { inner: Arc::new(Inner { backend, options }) };
        let (key, mark) = (topology_key(), ready::mark_key());
        let keys = KeySet::new([key.clone(), mark.clone()])?;
        let create = Txn::new(
            [Assert::missing(key.clone())],
            [
                Mutation::put(key.clone(), record::encode_topology(&Topology::default())),
                Mutation::put(mark.clone(), ready::encode_mark()),
            ],
        )?;
        let options = &board.inner.options;
        let snapshot =
            cas::open(board.backend(), &*options.clock, options.max_failures, &keys, &key, &create).await?;
        record::read_topology(snapshot.require(&key)?)?;
        match snapshot.require(&mark)?.value() {
            Some(value) => ready::read_mark(value).map_err(|error| record::malformed(&mark, error))?,
            None => board.index_all().await?,
        }
        Ok(board)
    }

    /// The handle below.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.inner.backend
    }

    pub(super) async fn page_of_tasks(
        &self,
        after: Option<&TaskId>,
        limit: usize,
    ) -> Result<TaskPage, BoardError> {
        if !(1..=1_000).contains(&limit) {
            return Err(BoardError::Invalid(format!("a page has 1 to 1,000 tasks, not {limit}")));
        }
        let mut range = KeyRange::new(heads_prefix(), limit + 1)?;
        if let Some(after) = after {
            after.validate()?;
            range = range.start_after(head_key(after));
        }
        let mut tasks = self.read_instant(&range).await?;
        let more = tasks.len() > limit;
        tasks.truncate(limit);
        let tasks = tasks.into_iter().map(|(_, task)| task).collect::<Result<Vec<Task>, BoardError>>()?;
        let next = if more { tasks.last().map(|task| task.id.clone()) } else { None };
        Ok(TaskPage { tasks, next })
    }

    /// Runs a verb.
    pub(super) async fn run<J: Judge<Error = BoardError>>(
        &self,
        judge: &mut J,
    ) -> Result<J::Answer, BoardError> {
        let options = &self.inner.options;
        let bounds = Bounds { conflicts: options.max_conflicts, failures: options.max_failures };
        cas::run(self.backend(), &*options.clock, options.max_clock_skew, bounds, judge).await
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.inner.options.clock
    }

    /// Runs a verb within other bounds than those of the options.
    pub(super) async fn run_within<J: Judge<Error = BoardError>>(
        &self,
        bounds: Bounds,
        judge: &mut J,
    ) -> Result<J::Answer, BoardError> {
        let options = &self.inner.options;
        cas::run(self.backend(), &*options.clock, options.max_clock_skew, bounds, judge).await
    }

    /// A view of a snapshot that no transaction rests on.
    pub(super) fn view<'a>(&self, snapshot: &'a Snapshot) -> View<'a> {
        View {
            snapshot,
            clock: self.inner.options.clock.now(),
            max_clock_skew: self.inner.options.max_clock_skew,
        }
    }

    /// All heads of a range at one instant, each with its definition. Unreadable records are errors of their own.
    ///
    /// The instant is that of the one snapshot that reads all heads. The guard record, read before, with and after it, tells that no
    /// task came, went or was reconnected in the meantime; else it is done again.
    async fn read_instant(
        &self,
        range: &KeyRange,
    ) -> Result<Vec<(TaskId, Result<Task, BoardError>)>, BoardError> {
        let mut reading = Reading::start(self).await?;
        'again: loop {
            let Some(heads) = reading.heads(range).await? else { continue };
            let mut definitions: BTreeMap<TaskId, Result<Definition, BoardError>> = BTreeMap::new();
            // Of claimed tasks only, so that a board of finished ones is listed as fast as ever.
            let mut progress: BTreeMap<TaskId, Progress> = BTreeMap::new();
            let readable = heads.iter().filter_map(|(id, head)| Some((id, head.as_ref().ok()?)));
            let claimed: BTreeMap<&TaskId, &Head> =
                readable.clone().filter(|(_, head)| head.state() == State::Claimed).collect();
            for page in definition_pages(readable) {
                let told = page.iter().filter(|id| claimed.contains_key(id)).map(progress_key);
                let keys = page.iter().map(definition_key).chain(told);
                let Some(snapshot) = reading.read(keys).await? else { continue 'again };
                for id in page {
                    if let Some(head) = claimed.get(&id)
                        && let Some(told) = read_progress(snapshot.require(&progress_key(&id))?, head)
                    {
                        progress.insert(id.clone(), told);
                    }
                    let definition = read_definition(&id, snapshot.require(&definition_key(&id))?);
                    definitions.insert(id, definition);
                }
            }
            let mut task = |id: &TaskId, head: Result<Head, BoardError>| {
                let head = head?;
                let definition = definitions.remove(id).unwrap_or_else(|| {
                    Err(record::malformed(&definition_key(id), "the task has no definition"))
                })?;
                Ok(Task { progress: progress.remove(id), ..shown(id, &head, &definition) })
            };
            return Ok(heads
                .into_iter()
                .map(|(id, head)| {
                    let task = task(&id, head);
                    (id, task)
                })
                .collect());
        }
    }
}

pub(super) fn heads_prefix() -> Prefix {
    Prefix::new(record::HEADS).expect("a short prefix")
}

/// Several reads that belong together because the guard record has not moved in between.
struct Reading<'a, B> {
    board: &'a BoardAdapter<B>,
    topology: crate::snapshot::Version,
    last: Snapshot,
    backoff: Backoff,
    restarts: u32,
}

impl<'a, B: Backend> Reading<'a, B> {
    async fn start(board: &'a BoardAdapter<B>) -> Result<Self, BoardError> {
        let last = board.backend().snapshot(&KeySet::new([topology_key()])?).await?;
        let entry = last.require(&topology_key())?;
        record::read_topology(entry)?;
        Ok(Reading {
            board,
            topology: entry.version(),
            backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(100)),
            restarts: 0,
            last,
        })
    }

    /// Reads keys together with the guard; `None` if that has moved, and then everything has to be read again.
    async fn read(&mut self, keys: impl IntoIterator<Item = Key>) -> Result<Option<Snapshot>, BoardError> {
        let keys = KeySet::new(keys.into_iter().chain([topology_key()]))?;
        let snapshot = self.board.backend().snapshot(&keys).await?;
        let entry = snapshot.require(&topology_key())?;
        if entry.version() == self.topology {
            return Ok(Some(snapshot));
        }
        record::read_topology(entry)?;
        self.topology = entry.version();
        let options = &self.board.inner.options;
        self.restarts += 1;
        if self.restarts >= options.max_conflicts {
            return Err(BoardError::TxnConflict { attempts: self.restarts });
        }
        self.backoff.wait(&*options.clock).await;
        Ok(None)
    }

    /// The heads of a range at one instant; `None` if everything has to be read again.
    #[allow(clippy::type_complexity, reason = "the error of one record must not hide the others")]
    async fn heads(
        &mut self,
        range: &KeyRange,
    ) -> Result<Option<Vec<(TaskId, Result<Head, BoardError>)>>, BoardError> {
        let keys = self.board.backend().keys(range).await?;
        if keys.len() > limits::LISTED_TASKS {
            return Err(BoardError::TooLarge {
                what: "the board",
                size: keys.len(),
                limit: limits::LISTED_TASKS,
            });
        }
        let Some(snapshot) = self.read(keys.iter().cloned()).await? else { return Ok(None) };
        let mut heads = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(id) = head_id(&key) else {
                let id = TaskId::unchecked(key.as_str().strip_prefix(record::HEADS).unwrap_or_default());
                heads.push((id, Err(record::malformed(&key, "the key does not end in a task id"))));
                continue;
            };
            let head = match read_head(&id, snapshot.require(&key)?) {
                // The guard has not moved since before the listing, so a key that was listed is there.
                Ok(None) => Err(record::malformed(&key, "the record was listed and is absent")),
                Ok(Some(head)) => Ok(head),
                Err(error) => Err(error),
            };
            heads.push((id, head));
        }
        self.last = snapshot;
        Ok(Some(heads))
    }
}

/// Groups ids so that the definitions of each group, and the progress of those that are claimed, fit one snapshot.
pub(super) fn definition_pages<'a>(
    heads: impl IntoIterator<Item = (&'a TaskId, &'a Head)>,
) -> Vec<Vec<TaskId>> {
    // The guard record travels along with each page, and a stored size may be off for a record that was damaged.
    const PAGE_BYTES: usize = key::limits::SNAPSHOT_BYTES / 2;
    const PAGE_KEYS: usize = key::limits::SNAPSHOT_KEYS / 2;
    let mut pages: Vec<Vec<TaskId>> = Vec::new();
    let (mut size, mut count) = (0, 0);
    for (id, head) in heads {
        let mut bytes = head.definition_bytes as usize + definition_key(id).as_bytes().len();
        let mut keys = 1;
        if head.state() == State::Claimed {
            // Its progress.
            bytes += progress_key(id).as_bytes().len() + limits::PROGRESS_BYTES + 32;
            keys += 1;
        }
        match pages.last_mut() {
            Some(page) if count + keys <= PAGE_KEYS && size + bytes <= PAGE_BYTES => {
                size += bytes;
                count += keys;
                page.push(id.clone());
            }
            _ => {
                (size, count) = (bytes, keys);
                pages.push(vec![id.clone()]);
            }
        }
    }
    pages
}

/// Looks for the trace of a pending try in the records whose rings it would have written.
///
/// - found: applied;
/// - nothing that it asserted has moved: still open;
/// - a record whose ring it would have written moved by at most the length of the ring, in the same life, without the operation:
///   it was not applied, and what it asserted has moved, so it never can be;
/// - else it cannot be told.
pub(super) fn ring_fate<A: Clone>(
    view: &View<'_>,
    pending: &Pending<A>,
    operation: OperationId,
    rings: &[(&Key, &record::Recent)],
) -> Result<Fate<A>, BackendError> {
    if rings.iter().any(|(_, recent)| recent.contains(operation)) {
        return Ok(Fate::Applied(pending.answer.clone()));
    }
    if !pending.has_moved(view)? {
        return Ok(Fate::Open);
    }
    for (key, _) in rings {
        let (Some(before), now) = (pending.asserted(key), view.entry(key)?.version()) else { continue };
        let moved = now.count().checked_sub(before.count());
        if now.incarnation() == before.incarnation() && moved.is_some_and(|n| n <= record::REMEMBERED as u64)
        {
            return Ok(Fate::Dead);
        }
    }
    Ok(Fate::Lost)
}

/// A transaction of a board, which says in its own words if it is too large.
pub(super) fn commit(asserts: Vec<Assert>, mutations: Vec<Mutation>) -> Result<Txn, BoardError> {
    let bytes: usize = asserts.iter().map(|assert| assert.key.as_bytes().len()).sum::<usize>()
        + mutations
            .iter()
            .map(|m| m.key().as_bytes().len() + m.value().map_or(0, bytes::Bytes::len))
            .sum::<usize>();
    let too_large = |what, size, limit| Err(BoardError::TooLarge { what, size, limit });
    if mutations.len() > key::limits::TXN_MUTATIONS {
        return too_large("the number of records of the change", mutations.len(), key::limits::TXN_MUTATIONS);
    }
    if bytes > key::limits::TXN_BYTES {
        return too_large("the change, in bytes", bytes, key::limits::TXN_BYTES);
    }
    Ok(Txn::new(asserts, mutations)?)
}

/// The error of a verb of which nobody can tell whether it has happened.
pub(super) fn outcome_unknown(verb: Verb, id: &TaskId, token: Option<&crate::token::Token>) -> BoardError {
    BoardError::OutcomeUnknown { verb, id: id.clone(), token: token.cloned() }
}

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn list_tasks(&self) -> Result<Vec<Task>, BoardError> {
        let range = KeyRange::new(heads_prefix(), limits::LISTED_TASKS + 1)?;
        self.read_instant(&range).await?.into_iter().map(|(_, task)| task).collect()
    }

    pub(super) async fn get_task(&self, id: &TaskId) -> Result<Task, BoardError> {
        id.validate()?;
        let (head_key, definition_key, progress_key) = (head_key(id), definition_key(id), progress_key(id));
        let keys = [head_key.clone(), definition_key.clone(), progress_key.clone()];
        let snapshot = self.backend().snapshot(&KeySet::new(keys)?).await?;
        let head = read_head(id, snapshot.require(&head_key)?)?
            .ok_or_else(|| BoardError::NotFound { id: id.clone() })?;
        let mut task = shown(id, &head, &read_definition(id, snapshot.require(&definition_key)?)?);
        task.progress = read_progress(snapshot.require(&progress_key)?, &head);
        Ok(task)
    }
}
