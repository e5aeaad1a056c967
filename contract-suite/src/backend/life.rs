//! B18: deleting, and being created again.

use std::collections::BTreeSet;

use coord_core::{Assert, Backend, Entry, Key, Mutation, Version};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::Control;
use crate::probe::{Probe, key, put, same_contents};
use crate::process::{Job, Seat, run_workers};
use crate::race::{Leg, Racers};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B18",
        layer: Layer::Backend,
        promise: "delete removes the key from snapshot and listing; deleting an absent key changes nothing; a re-created key has a \
                  version it never had; an assert on any earlier version fails",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(lives(cx)),
    },
    Clause {
        id: "B18.processes",
        layer: Layer::Backend,
        promise: "a re-created key has a version it never had, also when another process re-creates it",
        needs: Needs::PROCESSES,
        body: |cx| Box::pin(lives_in_processes(cx)),
    },
    Clause {
        id: "B18.restart",
        layer: Layer::Backend,
        promise: "a re-created key has a version it never had, also after a restart of the server",
        needs: Needs::exclusive(&[Control::Kill]),
        body: |cx| Box::pin(lives_over_restarts(cx)),
    },
];

pub(crate) const JOBS: &[Job] = &[RECREATE];

const RECREATE: Job = Job { name: "recreate", body: recreate };

/// The versions that a key has ever had, none of which may come again.
#[derive(Default)]
struct Past {
    seen: BTreeSet<Version>,
    lives: BTreeSet<u64>,
}

impl Past {
    fn born(&mut self, version: Version) -> Outcome {
        ensure_eq!(version.count(), 1, "the count of a created key");
        ensure!(
            self.lives.insert(version.incarnation()),
            "saw the incarnation {:x} given a second time, after {} lives",
            version.incarnation(),
            self.lives.len()
        );
        self.add(version)
    }

    fn add(&mut self, version: Version) -> Outcome {
        ensure!(self.seen.insert(version), "saw the version {version} given a second time");
        Ok(())
    }
}

async fn lives(cx: Context) -> Outcome {
    deletes(&cx).await?;
    let name = key("phoenix");
    let mut past = Past::default();
    asserts_on_the_past(&cx, &name, &mut past).await?;
    // A handle that was just opened is what a restarted client has: what it mints must not begin anew.
    for round in 0..12 {
        let handle = cx.open().await?;
        for _ in 0..=round % 3 {
            handle.commit(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), "new")]).await?;
            past.born(handle.version(&name).await?).at("by a newly opened handle")?;
            handle.unset(&name).await?;
        }
    }
    // Many lives in quick succession, by several handles in turn and with and without asserts.
    let handles = cx.handles(3).await?;
    for round in cx.rounds(100, 3_000) {
        let (maker, ender) = (&handles[round % 3], &handles[round / 3 % 3]);
        let asserts = [Assert::missing(name.clone())];
        maker.commit(&asserts[..round % 2], &[Mutation::put(name.clone(), "v")]).await?;
        past.born(ender.version(&name).await?)?;
        ender.unset(&name).await?;
    }
    alone(&cx).await.at("as the only key of its namespace")?;
    racing_lives(&cx, &name, &mut past).await.at("several clients at a time")
}

/// With every death nothing at all is left.
async fn alone(cx: &Context) -> Outcome {
    let namespace = cx.fresh_namespace();
    let handles = [cx.open_in(&namespace).await?, cx.open_in(&namespace).await?];
    let (one, two) = (key("one"), key("two"));
    let (mut past, mut past_of_two) = (Past::default(), Past::default());
    for round in 0..20 {
        let (a, b) = (&handles[round % 2], &handles[round / 2 % 2]);
        a.commit(&[], &[Mutation::put(one.clone(), "v"), Mutation::put(two.clone(), "v")]).await?;
        past.born(b.version(&one).await?)?;
        past_of_two.born(b.version(&two).await?)?;
        b.commit(&[], &[Mutation::delete(two.clone()), Mutation::delete(one.clone())]).await?;
        ensure_eq!(a.list("").await?, [], "the keys of a namespace whose keys were all deleted");
        past.born(create(&**b, &one).await?)?;
        a.unset(&one).await?;
    }
    Ok(())
}

async fn deletes(cx: &Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let names = ["d/a", "d/b", "d/c"].map(key);
    for name in &names {
        handles[0].set(name, "v").await?;
        handles[1].set(name, "w").await?;
    }
    let before = handles[0].contents().await?;
    handles[0].unset(&names[1]).await?;
    let mut expected = before.clone();
    expected.remove(&names[1]);
    for handle in &handles {
        ensure_eq!(handle.entry(&names[1]).await?, Entry::Absent, "the entry of a deleted key");
        let listed = handle.list("d/").await?;
        ensure_eq!(listed, [names[0].clone(), names[2].clone()], "the keys listed after one was deleted");
        same_contents(&handle.contents().await?, &expected).at("after a delete")?;
    }
    // Deleting what is absent changes nothing: not alone, not with an assert, not beside other writes.
    for gone in [&names[1], &key("d/never")] {
        let delete = [Mutation::delete(gone.clone())];
        handles[0].commit(&[], &delete).await?;
        handles[1].commit(&[Assert::missing(gone.clone())], &delete).await?;
        handles[0].commit(&[Assert::version(names[0].clone(), before[&names[0]].version())], &delete).await?;
        for handle in &handles {
            same_contents(&handle.contents().await?, &expected)
                .at(format!("after {gone:?} was deleted, being absent"))?;
        }
        handles[1].commit(&[], &[put("d/c", "x"), delete[0].clone()]).await?;
        let moved = handles[0].entry(&names[2]).await?;
        ensure_eq!(
            Some(moved.version()),
            expected[&names[2]].version().next(),
            "the version of a key that was written beside a delete of an absent one"
        );
        expected.insert(names[2].clone(), moved);
        same_contents(&handles[0].contents().await?, &expected)?;
        handles[1].commit(&[Assert::missing(gone.clone())], &[Mutation::put(gone.clone(), "new")]).await?;
        let version = handles[0].version(gone).await?;
        ensure_eq!(version.count(), 1, "the count of a key created after deletes of it, absent");
        handles[0].commit(&[Assert::version(gone.clone(), version)], &delete).await?;
    }
    Ok(())
}

async fn asserts_on_the_past(cx: &Context, name: &Key, past: &mut Past) -> Outcome {
    let handles = cx.handles(2).await?;
    for life in 0..6_usize {
        let (a, b) = (&handles[life % 2], &handles[(life + 1) % 2]);
        // Created alone, or with others, which a backend may give the same incarnation.
        if life.is_multiple_of(2) {
            a.commit(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), "same")]).await?;
        } else {
            a.commit(&[], &[put("beside", "x"), Mutation::put(name.clone(), "same"), put("too", "x")])
                .await?;
        }
        past.born(b.version(name).await?)?;
        for _ in 0..life {
            past.add(b.set(name, "same").await?)?;
        }
        let now = a.version(name).await?;
        for version in past.seen.iter().filter(|version| **version != now) {
            a.refuse(&[Assert::version(name.clone(), *version)], &[Mutation::put(name.clone(), "bad")])
                .await?;
            b.refuse(&[Assert::version(name.clone(), *version)], &[put("other", "bad")]).await?;
        }
        b.commit(&[Assert::version(name.clone(), now)], &[Mutation::delete(name.clone())]).await?;
        for version in &past.seen {
            a.refuse(&[Assert::version(name.clone(), *version)], &[Mutation::put(name.clone(), "bad")])
                .await
                .at("on a deleted key")?;
        }
        ensure_eq!(a.entry(name).await?, Entry::Absent, "the entry of a deleted key");
    }
    Ok(())
}

/// Clients create, write and delete one key as they like. Each value is unique, so a version that is ever seen with two values was given
/// twice.
async fn racing_lives(cx: &Context, name: &Key, past: &mut Past) -> Outcome {
    const RACERS: usize = 3;
    let handles = cx.handles(RACERS).await?;
    let legs = (0..RACERS).map(|racer| -> Leg<Vec<(Version, Vec<u8>)>> {
        let (handle, name, cx) = (handles[racer].clone(), name.clone(), cx.clone());
        Box::pin(async move {
            let mut seen = Vec::new();
            for round in cx.rounds(30, 2_000) {
                let value = format!("{racer} {round}");
                let _ = handle
                    .attempt(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), value.clone())])
                    .await?;
                if let Entry::Present { version, value } = handle.entry(&name).await? {
                    seen.push((version, value.to_vec()));
                    let asserts = [Assert::version(name.clone(), version)];
                    let _ = handle.attempt(&asserts, &[Mutation::delete(name.clone())]).await?;
                }
            }
            Ok(seen)
        })
    });
    let seen = Racers::new(cx, RACERS).run(legs.collect::<Vec<_>>()).await?;
    let mut values = std::collections::BTreeMap::new();
    for (version, value) in seen.into_iter().flatten() {
        let first = values.entry(version).or_insert_with(|| value.clone());
        ensure!(
            *first == value,
            "saw the version {version} with two values, {:?} and {:?}",
            String::from_utf8_lossy(first),
            String::from_utf8_lossy(&value)
        );
    }
    for version in values.keys().filter(|version| version.count() == 1) {
        past.born(*version)?;
    }
    Ok(())
}

fn recreate(seat: Seat) -> BoxFuture<'static, Result<Value, Verdict>> {
    Box::pin(async move {
        let rounds = seat.request["rounds"].as_u64().unwrap_or(0);
        let shared = key("shared");
        let mut born: Vec<(String, u64)> = Vec::new();
        for round in 0..rounds {
            // Alone with a key that every worker creates in its turn, so that all of them begin with it.
            let outcome = seat
                .backend
                .attempt(
                    &[Assert::missing(shared.clone())],
                    &[Mutation::put(shared.clone(), round.to_string())],
                )
                .await?;
            if outcome.is_applied() {
                let version = seat.backend.version(&shared).await?;
                born.push((shared.to_string(), version.incarnation()));
                seat.backend
                    .commit(&[Assert::version(shared.clone(), version)], &[Mutation::delete(shared.clone())])
                    .await?;
            }
        }
        Ok(json!(born))
    })
}

async fn lives_in_processes(cx: Context) -> Outcome {
    const WORKERS: usize = 3;
    let mut past = Past::default();
    let handle = cx.open().await?;
    let shared = key("shared");
    // One process after the other, each from its start; then all at a time.
    let mut answers = Vec::new();
    for _ in 0..WORKERS {
        answers.extend(run_workers(&cx, &RECREATE, vec![json!({ "rounds": 5 })]).await?);
        past.born(create(&*handle, &shared).await?).at("by the first process")?;
        handle.unset(&shared).await?;
    }
    answers.extend(run_workers(&cx, &RECREATE, vec![json!({ "rounds": 50 }); WORKERS]).await?);
    let mut lives = 0;
    for answer in answers {
        let born: Vec<(String, u64)> = serde_json::from_value(answer)?;
        for (_, incarnation) in born {
            let Some(version) = Version::first(incarnation) else {
                fail!("saw the incarnation {incarnation:x}, which is none");
            };
            past.born(version).at("by one process after it was given by another one, or by itself")?;
            lives += 1;
        }
    }
    ensure!(lives >= 5 * WORKERS, "saw only {lives} lives, which proves nothing");
    Ok(())
}

async fn create(handle: &dyn Backend, name: &Key) -> Result<Version, Verdict> {
    handle.commit(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), "v")]).await?;
    handle.version(name).await
}

async fn lives_over_restarts(cx: Context) -> Outcome {
    let server = cx.server(Control::Kill)?;
    let name = key("phoenix");
    let mut past = Past::default();
    let failed = |error| Verdict::Failed(format!("saw the harness fail: {error}"));
    for round in 0..4 {
        let handle = cx.open().await?;
        for _ in 0..5 {
            past.born(create(&*handle, &name).await?).at(format!("after {round} restarts"))?;
            past.add(handle.set(&name, "w").await?)?;
            handle.unset(&name).await?;
        }
        server.kill().await.map_err(failed)?;
        server.restart().await.map_err(failed)?;
        let handle = cx.open().await?;
        for version in &past.seen {
            handle
                .refuse(&[Assert::version(name.clone(), *version)], &[Mutation::put(name.clone(), "bad")])
                .await
                .at("after a restart")?;
        }
    }
    Ok(())
}
