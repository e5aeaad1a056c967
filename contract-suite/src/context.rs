//! What the test of a clause is given.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coord_core::board::ExtendedBoard;
use coord_core::effects::EffectStore;
use coord_core::{Backend, Clock, Key, KeyRange, Mutation, Namespace, Prefix, SystemClock, Txn};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng, TryRng};

use crate::clause::{Clause, Verdict, VerdictContext};
use crate::guard::GuardHarness;
use crate::harness::{BoardSeat, Control, EffectSeat, Harness, ServerControl};
use crate::run::Subject;

/// Everything that the test of one clause works with: the harness, a fresh random namespace, a seed. Clones are the same one.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    subject: Subject,
    clause: &'static Clause,
    seed: u64,
    patience: Duration,
    clock: SystemClock,
    namespace: String,
    namespaces: Arc<Mutex<Vec<String>>>,
}

impl Context {
    pub(crate) fn new(subject: Subject, clause: &'static Clause, seed: u64, patience: Duration) -> Self {
        let namespace = random_namespace();
        let namespaces = Arc::new(Mutex::new(vec![namespace.clone()]));
        let clock = SystemClock::new();
        Context { inner: Arc::new(Inner { subject, clause, seed, patience, clock, namespace, namespaces }) }
    }

    /// How long one call, or one round of calls that wait for each other, may take. What takes longer hangs.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.inner.patience
    }

    /// The time since the clause began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.inner.clock.monotonic()
    }

    /// Rounds of a race: at least `least`, then as many as fit a third of a second, at most `most`. So a fast store is tried
    /// thoroughly and a slow one does not take for ever.
    #[must_use]
    pub fn rounds(&self, least: usize, most: usize) -> Rounds {
        self.rounds_within(Duration::from_millis(333), least, most)
    }

    /// As [`rounds`](Self::rounds), within another time.
    #[must_use]
    pub fn rounds_within(&self, time: Duration, least: usize, most: usize) -> Rounds {
        Rounds { cx: self.clone(), end: self.elapsed() + time, done: 0, least, most }
    }

    /// The harness.
    #[must_use]
    pub fn harness(&self) -> &dyn Harness {
        &*self.inner.subject.harness
    }

    /// The clause that is run.
    #[must_use]
    pub fn clause(&self) -> &'static Clause {
        self.inner.clause
    }

    /// The namespace of this run: random, empty at the start, removed at the end.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    /// Another fresh namespace, removed at the end.
    #[must_use]
    pub fn fresh_namespace(&self) -> String {
        let namespace = random_namespace();
        self.adopt_namespace(&namespace);
        namespace
    }

    /// The same clause once more in a fresh namespace, removed at the end.
    pub(crate) fn again(&self) -> Context {
        let Inner { subject, clause, seed, patience, clock, namespaces, .. } = &*self.inner;
        let inner = Inner {
            subject: subject.clone(),
            clause,
            seed: *seed,
            patience: *patience,
            clock: *clock,
            namespace: self.fresh_namespace(),
            namespaces: namespaces.clone(),
        };
        Context { inner: Arc::new(inner) }
    }

    /// Removes what is in this namespace too, at the end. (It must begin with that of the clause, or be random itself.)
    pub fn adopt_namespace(&self, namespace: &str) {
        self.inner.namespaces.lock().unwrap_or_else(PoisonError::into_inner).push(namespace.to_owned());
    }

    /// The seed of this clause in this run. The same seed makes the same choices.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// A random source that is fixed by the seed; each stream is another one.
    #[must_use]
    pub fn rng(&self, stream: u64) -> StdRng {
        StdRng::seed_from_u64(self.inner.seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// A new handle on the namespace of this run.
    ///
    /// # Errors
    /// Failed if the harness cannot open one.
    pub async fn open(&self) -> Result<Arc<dyn Backend>, Verdict> {
        self.open_in(self.namespace()).await
    }

    /// A new handle on another namespace.
    ///
    /// # Errors
    /// Failed if the harness cannot open one.
    pub async fn open_in(&self, namespace: &str) -> Result<Arc<dyn Backend>, Verdict> {
        self.harness().open(namespace).await.at("opening a handle")
    }

    /// `count` handles on the namespace of this run, each connected on its own.
    ///
    /// # Errors
    /// Failed if the harness cannot open one.
    pub async fn handles(&self, count: usize) -> Result<Vec<Arc<dyn Backend>>, Verdict> {
        let mut handles = Vec::with_capacity(count);
        for _ in 0..count {
            handles.push(self.open().await?);
        }
        Ok(handles)
    }

    /// The server, if the harness can do this to it.
    ///
    /// # Errors
    /// Skipped if it cannot.
    pub fn server(&self, control: Control) -> Result<&dyn ServerControl, Verdict> {
        match self.harness().server() {
            Some(server) if server.can(control) => Ok(server),
            _ => crate::skip!("the harness cannot {control}"),
        }
    }

    /// A board above this handle, by the board harness of this run.
    ///
    /// # Errors
    /// Skipped if this run has no boards, failed if the board cannot be opened.
    pub async fn board(
        &self,
        backend: Arc<dyn Backend>,
        seat: BoardSeat,
    ) -> Result<Arc<dyn ExtendedBoard>, Verdict> {
        let Some(boards) = &self.inner.subject.boards else {
            crate::skip!("this run has no board harness");
        };
        boards.open(backend, seat).await.at("opening a board")
    }

    /// A side-effect store above this handle, by the effects harness of this run.
    ///
    /// # Errors
    /// Skipped if this run has none, failed if the store cannot be opened.
    pub async fn effects(
        &self,
        backend: Arc<dyn Backend>,
        seat: EffectSeat,
    ) -> Result<Arc<dyn EffectStore>, Verdict> {
        let Some(effects) = &self.inner.subject.effects else {
            crate::skip!("this run has no harness of side-effect stores");
        };
        effects.open(backend, seat).await.at("opening a side-effect store")
    }

    /// The guard of this run.
    #[must_use]
    pub fn guard(&self) -> Arc<dyn GuardHarness> {
        self.inner.subject.guard.clone()
    }

    pub(crate) async fn clean(&self) -> Result<(), Verdict> {
        let namespaces =
            std::mem::take(&mut *self.inner.namespaces.lock().unwrap_or_else(PoisonError::into_inner));
        for namespace in namespaces {
            if Namespace::new(&namespace).is_ok() {
                remove_all(&*self.open_in(&namespace).await?).await?;
            }
        }
        Ok(())
    }
}

/// The rounds of a race, see [`Context::rounds`].
pub struct Rounds {
    cx: Context,
    end: Duration,
    done: usize,
    least: usize,
    most: usize,
}

impl Iterator for Rounds {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        let more = self.done < self.least || (self.done < self.most && self.cx.elapsed() < self.end);
        more.then(|| {
            self.done += 1;
            self.done - 1
        })
    }
}

/// Deletes every key of a namespace, page by page.
///
/// # Errors
/// Failed if the backend fails, or if keys are still listed after so many pages that they cannot be ours.
pub async fn remove_all(backend: &dyn Backend) -> Result<(), Verdict> {
    let page = KeyRange::new(Prefix::all(), 1_000)?;
    for _ in 0..2_000 {
        let keys: Vec<Key> = backend.keys(&page).await?;
        if keys.is_empty() {
            return Ok(());
        }
        // A key may have 1,024 bytes and a transaction 1 MiB, so 1,000 deletes always fit.
        let _ = backend.txn(&Txn::new([], keys.into_iter().map(Mutation::delete))?).await?;
    }
    crate::fail!("saw keys still listed after two million were deleted")
}

/// A number from the system's random source, not from the seed.
///
/// # Panics
/// If the system has no random source.
pub(crate) fn system_random() -> u64 {
    rand::rngs::SysRng.try_next_u64().expect("the system has a random source")
}

// Not from the seed: two runs with one seed against one live store must not meet.
fn random_namespace() -> String {
    format!("suite-{:016x}", system_random())
}

/// The seed of one clause: the same for one seed of the run whatever else is run.
pub(crate) fn clause_seed(seed: u64, id: &str) -> u64 {
    // FNV-1a, to spread the id over the bits, then one step of a generator.
    let hash = id.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    StdRng::seed_from_u64(seed ^ hash).next_u64()
}
