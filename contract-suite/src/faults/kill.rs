//! B42: a server that is killed and started again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use coord_core::{
    Assert, Backend, ErrorKind, Key, KeyRange, KeySet, Mutation, Prefix, Txn, TxnOutcome, Version, limits,
};

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::Control;
use crate::{ensure, ensure_eq, fail};

use super::attempt::{apply, entries, entry};
use super::trouble::{Trouble, bounded, faulty, in_trouble, opens_in_time, recovered, until};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B42",
    layer: Layer::Backend,
    promise: "the server is killed (-9) and restarted: what was acknowledged is there, versions go on, old handles recover by \
              themselves",
    needs: Needs::exclusive(&[Control::Kill]),
    body: |cx| Box::pin(in_trouble(cx, killed)),
}];

const WRITERS: usize = 4;
const ROUNDS: usize = 3;

async fn killed(cx: Context, trouble: Arc<Trouble>) -> Outcome {
    let handles = cx.handles(WRITERS).await?;
    let mut writers = Vec::new();
    for (n, handle) in handles.iter().enumerate() {
        writers.push(Writer::new(handle.clone(), n).await?);
    }
    let mut lives = Lives::default();
    for round in 0..ROUNDS {
        let place = format!("round {round}");
        lives.before(&*handles[0], round).await.at(&place)?;
        let questions = questions()?;
        for handle in &handles {
            // Whoever keeps answers has some now.
            handle.snapshot(&questions.0).await.at(&place)?;
            handle.keys(&questions.1).await.at(&place)?;
        }

        // Everybody writes, and in the midst of it the server dies.
        let (killing, progress) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = writers
            .into_iter()
            .map(|writer| tokio::spawn(writer.run(cx.clone(), killing.clone(), progress.clone())))
            .collect();
        let started = until(&cx, "every writer has written", || {
            progress.load(Ordering::SeqCst) >= 10 * WRITERS
                || tasks.iter().any(tokio::task::JoinHandle::is_finished)
        })
        .await;
        killing.store(true, Ordering::SeqCst);
        trouble.kill().await?;
        writers = Vec::new();
        for task in tasks {
            writers.push(task.await?.at(&place)?);
        }
        started?;

        while_dead(&cx, &handles, &questions, round).await.at(&place)?;
        trouble.restart().await?;
        for handle in &handles {
            recovered(&cx, &**handle, &place).await?;
        }
        let fresh = cx.open().await?;
        for writer in &mut writers {
            writer.check(&*fresh).await.at(&place)?;
            let handle = writer.handle.clone();
            writer.check(&*handle).await.at(&place)?;
        }
        after_death(&*fresh, round).await.at(&place)?;
        lives.after(&*fresh, &*handles[round % WRITERS]).await.at(&place)?;
    }
    Ok(())
}

/// A client that alone writes two keys, always both, and knows what was acknowledged.
struct Writer {
    handle: Arc<dyn Backend>,
    keys: [Key; 2],
    version: Version,
    value: u64,
    /// What was sent last and not answered: the value, and the error.
    open: Option<(u64, ErrorKind)>,
}

impl Writer {
    async fn new(handle: Arc<dyn Backend>, n: usize) -> Result<Self, Verdict> {
        let keys = [Key::new(format!("writer/{n}/a"))?, Key::new(format!("writer/{n}/b"))?];
        let puts = keys.iter().map(|key| Mutation::put(key.clone(), "0"));
        apply(&*handle, &Txn::new([], puts)?).await?;
        let version = entry(&*handle, &keys[0]).await?.version();
        Ok(Writer { handle, keys, version, value: 0, open: None })
    }

    /// Writes until the server dies.
    async fn run(
        mut self,
        cx: Context,
        killing: Arc<AtomicBool>,
        progress: Arc<AtomicUsize>,
    ) -> Result<Self, Verdict> {
        loop {
            let value = self.value + 1;
            let puts = self.keys.iter().map(|key| Mutation::put(key.clone(), value.to_string()));
            let txn = Txn::new([Assert::version(self.keys[0].clone(), self.version)], puts)?;
            match bounded(&cx, "a transaction on a killed server", self.handle.txn(&txn)).await? {
                Ok(TxnOutcome::Applied) => {
                    let Some(next) = self.version.next() else {
                        fail!("saw the version {} end", self.version)
                    };
                    (self.version, self.value) = (next, value);
                    progress.fetch_add(1, Ordering::SeqCst);
                }
                Ok(TxnOutcome::Rejected) => fail!(
                    "saw a transaction rejected that asserts the version {} of {:?}, which nobody else writes",
                    self.version,
                    self.keys[0]
                ),
                Err(error) => {
                    ensure!(killing.load(Ordering::SeqCst), "saw \"{error}\" before the server was killed");
                    self.open = Some((value, faulty(error)?));
                    return Ok(self);
                }
            }
            // On a store that never waits, others would else never get their turn on this thread.
            tokio::task::yield_now().await;
        }
    }

    /// What is stored is what was acknowledged, or else what was in doubt.
    async fn check(&mut self, handle: &dyn Backend) -> Outcome {
        let [a, b] = &self.keys;
        let (first, second) = entries(handle, a, b).await?;
        ensure_eq!(first.value(), second.value(), "{a:?} and {b:?}, which are only written together");
        let text = |value: u64| Some(value.to_string());
        let seen = first.value().map(|value| String::from_utf8_lossy(value).into_owned());
        if seen == text(self.value) {
            ensure_eq!(
                first.version(),
                self.version,
                "the version of {a:?}, whose value is the acknowledged one"
            );
            return Ok(());
        }
        match self.open {
            Some((value, ErrorKind::Indeterminate)) if seen == text(value) => {
                ensure_eq!(
                    Some(first.version()),
                    self.version.next(),
                    "the version of {a:?} after one more write"
                );
                (self.version, self.value) = (first.version(), value);
                Ok(())
            }
            Some((value, kind)) => fail!(
                "saw {a:?} at {} with {seen:?} after the restart, where {} with {:?} was acknowledged and {value} was {kind}",
                first.version(),
                self.version,
                self.value
            ),
            None => {
                fail!("saw {a:?} with {seen:?} after the restart, where {:?} was acknowledged", self.value)
            }
        }
    }
}

fn key_of_the_dead(round: usize, n: usize) -> Result<Key, Verdict> {
    Ok(Key::new(format!("dead/{round}/{n}"))?)
}

/// What is asked before the server dies and while it is dead.
fn questions() -> Result<(KeySet, KeyRange), Verdict> {
    Ok((KeySet::new([Key::new("life/0/0")?, Key::new("none")?])?, KeyRange::new(Prefix::all(), 10)?))
}

/// A dead server answers nothing, and keeps nobody waiting.
async fn while_dead(
    cx: &Context,
    handles: &[Arc<dyn Backend>],
    questions: &(KeySet, KeyRange),
    round: usize,
) -> Outcome {
    opens_in_time(cx, "dead").await?;
    for (n, handle) in handles.iter().enumerate() {
        let key = key_of_the_dead(round, n)?;
        let Err(error) = bounded(cx, "a snapshot on a dead server", handle.snapshot(&questions.0)).await?
        else {
            fail!("saw a snapshot answered by a dead server");
        };
        ensure_eq!(error.kind(), ErrorKind::Unavailable, "the kind of the error of a snapshot: \"{error}\"");
        let Err(error) = bounded(cx, "a listing on a dead server", handle.keys(&questions.1)).await? else {
            fail!("saw a listing answered by a dead server");
        };
        ensure_eq!(error.kind(), ErrorKind::Unavailable, "the kind of the error of a listing: \"{error}\"");
        let txn = Txn::new([], [Mutation::put(key, "too late")])?;
        match bounded(cx, "a transaction on a dead server", handle.txn(&txn)).await? {
            Err(error) => {
                faulty(error)?;
            }
            Ok(outcome) => fail!("saw a transaction answered {outcome:?} by a dead server"),
        }
    }
    Ok(())
}

/// What was sent to a dead server never happens.
async fn after_death(handle: &dyn Backend, round: usize) -> Outcome {
    for n in 0..WRITERS {
        let key = key_of_the_dead(round, n)?;
        ensure!(
            !entry(handle, &key).await?.is_present(),
            "saw {key:?}, which was only written while the server was dead: something sent it again"
        );
    }
    Ok(())
}

/// Keys that come and go: none has a version twice, also not over a restart.
#[derive(Default)]
struct Lives {
    seen: BTreeMap<Key, BTreeSet<Version>>,
    there: BTreeMap<Key, Version>,
}

impl Lives {
    /// Creates keys that are to stay, keys that are deleted, and keys that are deleted and created again.
    async fn before(&mut self, handle: &dyn Backend, round: usize) -> Outcome {
        for n in 0..9 {
            let key = Key::new(format!("life/{round}/{n}"))?;
            self.create(handle, &key).await?;
            if n % 3 > 0 {
                apply(handle, &Txn::new([], [Mutation::delete(key.clone())])?).await?;
                self.there.remove(&key);
            }
            if n % 3 > 1 {
                self.create(handle, &key).await?;
            }
        }
        self.come_and_go(handle, 20).await
    }

    /// One key with many lives: whatever gives identities in some order of its own gives one of them twice, sooner or later.
    async fn come_and_go(&mut self, handle: &dyn Backend, times: usize) -> Outcome {
        let key = Key::new("life/often")?;
        for _ in 0..times {
            self.create(handle, &key).await?;
            apply(handle, &Txn::new([], [Mutation::delete(key.clone())])?).await?;
            self.there.remove(&key);
        }
        Ok(())
    }

    /// Everything is as it was; what was deleted comes into being again as something new, and versions go on.
    async fn after(&mut self, fresh: &dyn Backend, old: &dyn Backend) -> Outcome {
        let mut all: Vec<Key> = self.seen.keys().cloned().collect();
        let snapshot = fresh.snapshot(&KeySet::new(all.iter().cloned())?).await?;
        for key in &all {
            let acknowledged = self.there.get(key).copied().unwrap_or(Version::MISSING);
            ensure_eq!(
                snapshot.require(key)?.version(),
                acknowledged,
                "the version of {key:?} after the restart"
            );
        }
        let listed = fresh.keys(&KeyRange::new(Prefix::new("life/")?, limits::LISTING_KEYS)?).await?;
        ensure_eq!(
            listed,
            self.there.keys().cloned().collect::<Vec<_>>(),
            "what is listed after the restart"
        );
        self.come_and_go(old, 40).await?;
        all.retain(|key| !self.there.contains_key(key) && key.as_str() != "life/often");
        for key in all {
            self.create(old, &key).await?;
        }
        for (key, version) in &mut self.there {
            let txn = Txn::new([Assert::version(key.clone(), *version)], [Mutation::put(key.clone(), "on")])?;
            apply(old, &txn).await.at("writing on after the restart")?;
            let now = entry(fresh, key).await?.version();
            ensure_eq!(Some(now), version.next(), "the version of {key:?} after one more write");
            *version = now;
            self.seen.entry(key.clone()).or_default().insert(now);
        }
        Ok(())
    }

    async fn create(&mut self, handle: &dyn Backend, key: &Key) -> Outcome {
        apply(handle, &Txn::new([Assert::missing(key.clone())], [Mutation::put(key.clone(), "life")])?)
            .await?;
        let version = entry(handle, key).await?.version();
        ensure!(
            self.seen.entry(key.clone()).or_default().insert(version),
            "saw {key:?} created with the version {version}, which it had before"
        );
        self.there.insert(key.clone(), version);
        Ok(())
    }
}
