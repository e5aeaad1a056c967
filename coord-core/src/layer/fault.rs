//! A backend that fails by a plan, for tests.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Notify;

use crate::backend::Backend;
use crate::error::{BackendError, ErrorKind, Operation};
use crate::key::Key;
use crate::snapshot::{KeyRange, KeySet, Snapshot};
use crate::txn::{Txn, TxnOutcome};

use super::plan::{Call, Cell, Request, Told, When};

/// A backend between a caller and a right backend that does to the calls what a plan says: for tests of everything that must survive
/// a lost request, a lost reply, or a request that lands long after its caller was told of an error.
///
/// It stays within the contract: whatever the plan, `Unavailable` is only said of what did not and will not happen, and a read is
/// never `Indeterminate`. Without a plan it does nothing. Clones share the plan.
///
/// ```
/// use coord_core::layer::{Cell, Fault, When};
/// use coord_core::{Assert, Backend, Key, KeySet, Mutation, Namespace, Txn, TxnOutcome};
/// use coord_memory::MemoryStore;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let memory = MemoryStore::new().open(&Namespace::new("example")?);
/// let backend = Fault::new(memory.clone());
/// let faults = backend.faults();
/// faults.on(When::txn().nth(1), Cell::late());
///
/// // The caller is told that it may have happened, and it has not: not yet.
/// let key = Key::new("greeting")?;
/// let create = Txn::new([Assert::missing(key.clone())], [Mutation::put(key.clone(), "hello")])?;
/// assert!(backend.txn(&create).await.unwrap_err().is_indeterminate());
/// let keys = KeySet::new([key.clone()])?;
/// assert!(!backend.snapshot(&keys).await?.require(&key)?.is_present());
///
/// // Now it lands.
/// let held = faults.take_held().expect("the transaction is held");
/// assert_eq!(held.release().await?, TxnOutcome::Applied);
/// assert!(backend.snapshot(&keys).await?.require(&key)?.is_present());
/// assert_eq!(faults.hits().len(), 1);
/// # Ok::<(), coord_core::BackendError>(())
/// # }).unwrap();
/// ```
pub struct Fault<B> {
    inner: Arc<B>,
    faults: Faults,
}

impl<B: Backend> Fault<B> {
    /// A backend without a plan, which forwards everything.
    #[must_use]
    pub fn new(inner: B) -> Self {
        Fault { inner: Arc::new(inner), faults: Faults::default() }
    }

    /// A backend under a plan that others are under as well: calls are counted together.
    #[must_use]
    pub fn with_faults(inner: B, faults: Faults) -> Self {
        Fault { inner: Arc::new(inner), faults }
    }

    /// The plan.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The wrapped backend, where nothing goes wrong.
    #[must_use]
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn error(&self, kind: ErrorKind, operation: Operation, message: &str) -> BackendError {
        // A read that fails because of the infrastructure is always unavailable.
        let kind = if operation == Operation::Txn { kind } else { ErrorKind::Unavailable };
        BackendError::new(kind, self.inner.name(), operation, message)
    }

    /// Waits while the plan is paused, and says what is to happen to this call.
    async fn admit(&self, call: Call<'_>) -> Result<Option<Cell>, BackendError> {
        self.faults.wait_while_paused().await;
        match self.faults.judge(&call) {
            Judged::Gone => {
                Err(self.error(ErrorKind::Unavailable, call.operation(), "injected: the store is gone"))
            }
            Judged::Cell(cell) => {
                if let Some(step) = &cell.before {
                    step(self.faults.clone()).await;
                }
                Ok(Some(cell))
            }
            Judged::Pass => Ok(None),
        }
    }

    /// Ends a call of which the store's own answer is `answer`, if it was asked.
    async fn settle<T>(
        &self,
        cell: Cell,
        operation: Operation,
        answer: Option<Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        if cell.gone {
            self.faults.lock().gone = true;
        }
        if let Some(step) = &cell.after {
            step(self.faults.clone()).await;
        }
        let lost = |kind| Err(self.error(kind, operation, &format!("injected: {}", cell.name())));
        match (cell.told, answer) {
            (Told::NothingEver, _) => std::future::pending().await,
            (Told::TheTruth, Some(answer)) => answer,
            // If the store could not do it either, the true error says more, and is no less right.
            (Told::Error(_), Some(Err(error))) => Err(error),
            (Told::Error(kind), _) => lost(kind),
            (Told::TheTruth, None) => lost(ErrorKind::Indeterminate),
        }
    }

    async fn read<T>(
        &self,
        call: Call<'_>,
        ask: impl Future<Output = Result<T, BackendError>> + Send,
    ) -> Result<T, BackendError> {
        let Some(cell) = self.admit(call).await? else { return ask.await };
        let answer = match cell.request {
            Request::Now | Request::NowAndLate => Some(ask.await),
            Request::Nothing | Request::Late => None,
        };
        self.settle(cell, call.operation(), answer).await
    }
}

impl<B> Clone for Fault<B> {
    fn clone(&self) -> Self {
        Fault { inner: self.inner.clone(), faults: self.faults.clone() }
    }
}

impl<B: fmt::Debug> fmt::Debug for Fault<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault").field("inner", &self.inner).field("faults", &self.faults).finish()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for Fault<B> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn snapshot(&self, keys: &KeySet) -> Result<Snapshot, BackendError> {
        self.read(Call::Snapshot(keys), self.inner.snapshot(keys)).await
    }

    async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, BackendError> {
        let Some(cell) = self.admit(Call::Txn(txn)).await? else { return self.inner.txn(txn).await };
        let answer = match cell.request {
            Request::Now | Request::NowAndLate => Some(self.inner.txn(txn).await),
            Request::Nothing | Request::Late => None,
        };
        let hold = match (cell.request, &answer) {
            (Request::Nothing | Request::Now, _) => false,
            (Request::Late | Request::NowAndLate, None) => true,
            // Whoever is told that nothing happened relies on nothing landing later.
            (_, Some(Ok(TxnOutcome::Rejected))) => cell.told != Told::TheTruth,
            (_, Some(Ok(TxnOutcome::Applied))) => true,
            (_, Some(Err(error))) => error.is_indeterminate(),
        };
        if hold {
            let held = Held { backend: self.inner.clone(), txn: txn.clone() };
            self.faults.lock().held.push_back(held);
        }
        self.settle(cell, Operation::Txn, answer).await
    }

    async fn keys(&self, range: &KeyRange) -> Result<Vec<Key>, BackendError> {
        self.read(Call::Keys(range), self.inner.keys(range)).await
    }
}

/// A transaction that its caller was told an error about, and that has not arrived yet. Dropped, it never will.
#[must_use = "a held transaction that is dropped never lands"]
pub struct Held {
    backend: Arc<dyn Backend>,
    txn: Txn,
}

impl Held {
    /// The transaction.
    #[must_use]
    pub fn txn(&self) -> &Txn {
        &self.txn
    }

    /// Lets it arrive now, and says what the store answers, which nobody but the test gets to know.
    ///
    /// It is a try of its own: the keys that it creates get incarnations of their own.
    ///
    /// # Errors
    /// Those of the wrapped backend.
    pub async fn release(self) -> Result<TxnOutcome, BackendError> {
        self.backend.txn(&self.txn).await
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.txn).finish()
    }
}

/// Names a rule of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(usize);

/// A fault that was really reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hit {
    /// The rule; `None` if a seeded choice made it.
    pub rule: Option<RuleId>,
    /// The number of the call, of all calls through this plan, beginning with 1.
    pub call: u64,
    /// What was called.
    pub operation: Operation,
    /// The [name](Cell::name) of the cell.
    pub cell: &'static str,
}

enum Judged {
    Pass,
    Cell(Cell),
    Gone,
}

struct Rule {
    when: When,
    cell: Cell,
    matched: u64,
}

struct Seeded {
    random: StdRng,
    one_in: u32,
    cells: Vec<Cell>,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    seeded: Option<Seeded>,
    hits: Vec<Hit>,
    held: std::collections::VecDeque<Held>,
    calls: u64,
    gone: bool,
    refused: u64,
    paused: bool,
    waiting: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// The plan of a [`Fault`]: what goes wrong and when, what has been reached, what is held. Clones are the same plan.
#[derive(Clone, Default)]
pub struct Faults(Arc<Shared>);

impl Faults {
    /// An empty plan, to be shared by several backends.
    #[must_use]
    pub fn new() -> Self {
        Faults::default()
    }

    /// Adds a rule. Its calls are counted from now on. If several rules are due at one call, the one added first is followed; the
    /// others have counted the call all the same.
    pub fn on(&self, when: When, cell: Cell) -> RuleId {
        let mut state = self.lock();
        state.rules.push(Rule { when, cell, matched: 0 });
        RuleId(state.rules.len() - 1)
    }

    /// Lets one call in `one_in` go wrong, by a random choice among `cells`; rules go first. The choices are a function of the seed
    /// and of the order of the calls.
    ///
    /// # Panics
    /// If `one_in` is 0 or there are no cells.
    pub fn seeded(&self, seed: u64, one_in: u32, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert!(one_in > 0 && !cells.is_empty(), "a seeded plan needs cells to choose from");
        self.lock().seeded = Some(Seeded { random: StdRng::seed_from_u64(seed), one_in, cells });
    }

    /// Forgets all rules and seeded choices, and brings the store back. Hits are kept, and so is what is held.
    pub fn clear(&self) {
        {
            let mut state = self.lock();
            // The places of the rules stay taken, so that no two rules ever have one id.
            for rule in &mut state.rules {
                rule.when = When::matching(|_| false);
            }
            state.seeded = None;
        }
        self.heal();
        self.resume();
    }

    /// The store is gone: every call is `Unavailable` and reaches nothing.
    pub fn gone(&self) {
        self.lock().gone = true;
    }

    /// The store is back.
    pub fn heal(&self) {
        self.lock().gone = false;
    }

    /// How many calls have been refused because the store was gone.
    #[must_use]
    pub fn refused_while_gone(&self) -> u64 {
        self.lock().refused
    }

    /// Makes every call wait that comes from now on, before it is judged and before it reaches the store.
    pub fn pause(&self) {
        self.lock().paused = true;
    }

    /// Lets the waiting calls go on.
    pub fn resume(&self) {
        self.lock().paused = false;
        self.0.changed.notify_waiters();
    }

    /// Waits until `n` calls at least wait because of [`pause`](Faults::pause).
    pub async fn until_waiting(&self, n: usize) {
        self.until(|state| state.waiting >= n).await;
    }

    /// How many calls came through, those that went wrong included, those that wait not yet.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// The faults that have been reached, in order.
    #[must_use]
    pub fn hits(&self) -> Vec<Hit> {
        self.lock().hits.clone()
    }

    /// How often a rule has been reached.
    #[must_use]
    pub fn hits_of(&self, rule: RuleId) -> usize {
        self.lock().hits.iter().filter(|hit| hit.rule == Some(rule)).count()
    }

    /// Waits until `n` faults at least have been reached, of whatever rule.
    pub async fn until_hits(&self, n: usize) {
        self.until(|state| state.hits.len() >= n).await;
    }

    /// The oldest transaction that is held. Who takes it decides when it lands, or that it never does.
    #[must_use]
    pub fn take_held(&self) -> Option<Held> {
        self.lock().held.pop_front()
    }

    /// How many transactions are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// Lets everything land that is held, in the order in which it was sent, and returns what the store answered.
    pub async fn release_held(&self) -> Vec<Result<TxnOutcome, BackendError>> {
        let mut answers = Vec::new();
        while let Some(held) = self.take_held() {
            answers.push(held.release().await);
        }
        answers
    }

    fn judge(&self, call: &Call<'_>) -> Judged {
        let mut state = self.lock();
        state.calls += 1;
        if state.gone {
            state.refused += 1;
            return Judged::Gone;
        }
        let mut due = None;
        for (index, rule) in state.rules.iter_mut().enumerate() {
            if !rule.when.matches(call) {
                continue;
            }
            rule.matched += 1;
            if due.is_none() && rule.when.covers(rule.matched) {
                due = Some((Some(RuleId(index)), rule.cell.clone()));
            }
        }
        if due.is_none()
            && let Some(seeded) = &mut state.seeded
            && seeded.random.random_ratio(1, seeded.one_in)
        {
            let index = seeded.random.random_range(0..seeded.cells.len());
            due = Some((None, seeded.cells[index].clone()));
        }
        let Some((rule, cell)) = due else { return Judged::Pass };
        let hit = Hit { rule, call: state.calls, operation: call.operation(), cell: cell.name() };
        state.hits.push(hit);
        drop(state);
        self.0.changed.notify_waiters();
        Judged::Cell(cell)
    }

    async fn wait_while_paused(&self) {
        {
            let mut state = self.lock();
            if !state.paused {
                return;
            }
            state.waiting += 1;
        }
        let _waiting = Waiting(self);
        self.0.changed.notify_waiters();
        self.until(|state| !state.paused).await;
    }

    async fn until(&self, condition: impl Fn(&State) -> bool) {
        loop {
            // Registered before the look, so that a change in between is not missed.
            let changed = self.0.changed.notified();
            if condition(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only a predicate of a rule can panic under the lock, and then the state is whole.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Faults")
            .field("calls", &state.calls)
            .field("hits", &state.hits.len())
            .field("held", &state.held.len())
            .field("gone", &state.gone)
            .field("paused", &state.paused)
            .finish_non_exhaustive()
    }
}

/// One call that waits; counted down also if its future is dropped.
struct Waiting<'a>(&'a Faults);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}
