//! What goes wrong, and when: the language of fault plans.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::{ErrorKind, Operation};
use crate::snapshot::{KeyRange, KeySet};
use crate::txn::Txn;

use super::fault::Faults;

/// One call on a backend, as a plan sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Call<'a> {
    /// [`snapshot`](crate::Backend::snapshot).
    Snapshot(&'a KeySet),
    /// [`txn`](crate::Backend::txn).
    Txn(&'a Txn),
    /// [`keys`](crate::Backend::keys).
    Keys(&'a KeyRange),
}

impl Call<'_> {
    /// Which primitive is called.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Call::Snapshot(_) => Operation::Snapshot,
            Call::Txn(_) => Operation::Txn,
            Call::Keys(_) => Operation::Keys,
        }
    }
}

type Predicate = Arc<dyn Fn(&Call<'_>) -> bool + Send + Sync>;

/// Which calls a rule is about: by primitive, by content, by number.
///
/// The number counts the calls that match the rest, from the moment on that the rule is given to
/// [`Faults::on`], beginning with 1.
///
/// ```
/// use coord_core::layer::When;
///
/// let third_call = When::any().nth(3);
/// let every_read_of_a_listing_from_the_second_on = When::keys().from(2);
/// let removal = When::txn_where(|txn| txn.mutations().iter().any(|m| m.value().is_none()));
/// # let _ = (third_call, every_read_of_a_listing_from_the_second_on, removal);
/// ```
#[derive(Clone)]
pub struct When {
    predicate: Predicate,
    first: u64,
    last: u64,
}

impl When {
    /// The first call, of whatever primitive.
    #[must_use]
    pub fn any() -> Self {
        When::matching(|_| true)
    }

    /// The first snapshot.
    #[must_use]
    pub fn snapshot() -> Self {
        When::matching(|call| matches!(call, Call::Snapshot(_)))
    }

    /// The first transaction.
    #[must_use]
    pub fn txn() -> Self {
        When::matching(|call| matches!(call, Call::Txn(_)))
    }

    /// The first listing.
    #[must_use]
    pub fn keys() -> Self {
        When::matching(|call| matches!(call, Call::Keys(_)))
    }

    /// The first transaction of which this is true.
    #[must_use]
    pub fn txn_where(predicate: impl Fn(&Txn) -> bool + Send + Sync + 'static) -> Self {
        When::matching(move |call| matches!(call, Call::Txn(txn) if predicate(txn)))
    }

    /// The first call of which this is true.
    #[must_use]
    pub fn matching(predicate: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static) -> Self {
        When { predicate: Arc::new(predicate), first: 1, last: 1 }
    }

    /// Instead of the first such call, the `k`-th.
    ///
    /// # Panics
    /// If `k` is 0, for the first call has the number 1.
    #[must_use]
    pub fn nth(mut self, k: u64) -> Self {
        assert!(k > 0, "calls are counted from 1");
        (self.first, self.last) = (k, k);
        self
    }

    /// Instead of the first such call, the `k`-th and every one after it.
    ///
    /// # Panics
    /// If `k` is 0, for the first call has the number 1.
    #[must_use]
    pub fn from(mut self, k: u64) -> Self {
        assert!(k > 0, "calls are counted from 1");
        (self.first, self.last) = (k, u64::MAX);
        self
    }

    /// Every such call.
    #[must_use]
    pub fn always(self) -> Self {
        self.from(1)
    }

    pub(super) fn matches(&self, call: &Call<'_>) -> bool {
        (self.predicate)(call)
    }

    pub(super) fn covers(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("When").field("first", &self.first).field("last", &self.last).finish_non_exhaustive()
    }
}

type Step = Arc<dyn Fn(Faults) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What becomes of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Nothing,
    Now,
    Late,
    NowAndLate,
}

/// What the caller is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    TheTruth,
    Error(ErrorKind),
    NothingEver,
}

/// What goes wrong with one call: a cell of the table "what happens to the request" x "what the caller is told", and steps of others
/// before and after it.
///
/// | cell | the request | the caller is told |
/// |---|---|---|
/// | [`pass`](Cell::pass) | arrives | the truth |
/// | [`refused`](Cell::refused) | is lost | `Unavailable` |
/// | [`request_lost`](Cell::request_lost) | is lost | `Indeterminate` |
/// | [`reply_lost`](Cell::reply_lost) | arrives | `Indeterminate` |
/// | [`late`](Cell::late) | is held back and may arrive later | `Indeterminate` |
/// | [`twice`](Cell::twice) | arrives, and a copy is held back and may arrive later | the truth |
/// | [`twice_reply_lost`](Cell::twice_reply_lost) | arrives, and a copy is held back | `Indeterminate` |
/// | [`hangs`](Cell::hangs) | arrives | nothing: the call never ends |
///
/// No copy is held back of a transaction that the caller is told was rejected or did not happen.
///
/// For a read there is no difference between a lost request and a lost reply: whatever the cell says of an error, a read is told
/// `Unavailable`, as the contract wants it, and nothing of it is held back.
#[derive(Clone)]
pub struct Cell {
    name: &'static str,
    pub(super) request: Request,
    pub(super) told: Told,
    pub(super) before: Option<Step>,
    pub(super) after: Option<Step>,
    pub(super) gone: bool,
}

impl Cell {
    fn new(name: &'static str, request: Request, told: Told) -> Self {
        Cell { name, request, told, before: None, after: None, gone: false }
    }

    /// Nothing goes wrong: for the steps before and after it alone.
    #[must_use]
    pub fn pass() -> Self {
        Cell::new("pass", Request::Now, Told::TheTruth)
    }

    /// Not applied, and said so.
    #[must_use]
    pub fn refused() -> Self {
        Cell::new("refused", Request::Nothing, Told::Error(ErrorKind::Unavailable))
    }

    /// Not applied, and the caller does not know.
    #[must_use]
    pub fn request_lost() -> Self {
        Cell::new("request lost", Request::Nothing, Told::Error(ErrorKind::Indeterminate))
    }

    /// Applied, and the caller does not know.
    #[must_use]
    pub fn reply_lost() -> Self {
        Cell::new("reply lost", Request::Now, Told::Error(ErrorKind::Indeterminate))
    }

    /// Error now, applied later: when the test [releases](super::Held::release) it, or never.
    #[must_use]
    pub fn late() -> Self {
        Cell::new("late", Request::Late, Told::Error(ErrorKind::Indeterminate))
    }

    /// Applied and answered, and a copy of the request arrives when the test releases it.
    #[must_use]
    pub fn twice() -> Self {
        Cell::new("twice", Request::NowAndLate, Told::TheTruth)
    }

    /// Applied, the caller does not know, and a copy of the request arrives when the test releases it.
    #[must_use]
    pub fn twice_reply_lost() -> Self {
        Cell::new("twice, reply lost", Request::NowAndLate, Told::Error(ErrorKind::Indeterminate))
    }

    /// Applied, and the call never ends: for tests that drop the caller's future at this point.
    #[must_use]
    pub fn hangs() -> Self {
        Cell::new("hangs", Request::Now, Told::NothingEver)
    }

    /// The six ways in which a call may go wrong and still end, for tests that go through all of them.
    #[must_use]
    pub fn all() -> [Cell; 6] {
        [
            Cell::refused(),
            Cell::request_lost(),
            Cell::reply_lost(),
            Cell::late(),
            Cell::twice(),
            Cell::twice_reply_lost(),
        ]
    }

    /// Somebody else's step before the call reaches the store.
    ///
    /// The step gets the plan's handle, so that it can release what is held.
    #[must_use]
    pub fn before<F, S>(mut self, step: S) -> Self
    where
        S: Fn(Faults) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.before = Some(Arc::new(move |faults| Box::pin(step(faults))));
        self
    }

    /// Somebody else's step between this call and the caller's next one: it ends before the caller is told anything.
    ///
    /// The step gets the plan's handle, so that it can release what is held.
    #[must_use]
    pub fn then<F, S>(mut self, step: S) -> Self
    where
        S: Fn(Faults) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.after = Some(Arc::new(move |faults| Box::pin(step(faults))));
        self
    }

    /// The store is gone after this call: all later calls are `Unavailable`, until [`Faults::heal`].
    #[must_use]
    pub fn then_gone(mut self) -> Self {
        self.gone = true;
        self
    }

    /// The name of the cell, as in the table above.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell")
            .field("name", &self.name)
            .field("before", &self.before.is_some())
            .field("after", &self.after.is_some())
            .field("gone", &self.gone)
            .finish()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
