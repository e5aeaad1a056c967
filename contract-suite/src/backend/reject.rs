//! B11, B12, B16: one assert that fails is enough, and then nothing has happened.

use coord_core::{Assert, Backend, Key, Mutation, Version};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use std::sync::Arc;

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::ensure_eq;
use crate::probe::{Probe, key, put, same_contents};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B11",
        layer: Layer::Backend,
        promise: "one assert fails (any of them, any position, all subsets of three; with puts, with deletes, mixed): nothing is \
                  applied, no version moves, the whole namespace is byte-equal before and after",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(nothing_happens(cx)),
    },
    Clause {
        id: "B12",
        layer: Layer::Backend,
        promise: "an assert on a key that is not written counts as much as one on a key that is",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(unwritten_keys_count(cx)),
    },
    Clause {
        id: "B16",
        layer: Layer::Backend,
        promise: "the same key asserted twice is AND (a contradiction is `Rejected`)",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(asserted_twice(cx)),
    },
];

/// How an assert can fail. The asserted keys are present, but for the last kind.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Older,
    Newer,
    OtherLife,
    SaidMissing,
    IsMissing,
}

const WRONGS: [Wrong; 5] =
    [Wrong::Older, Wrong::Newer, Wrong::OtherLife, Wrong::SaidMissing, Wrong::IsMissing];

fn version(incarnation: u64, count: u64) -> Version {
    Version::new(incarnation, count).expect("both halves are good")
}

/// Three present keys with counts 2, 3, 4; three absent ones; one bystander.
struct Field {
    handles: Vec<Arc<dyn Backend>>,
    present: Vec<(Key, Version)>,
    absent: Vec<Key>,
}

impl Field {
    async fn new(cx: &Context) -> Result<Field, Verdict> {
        let handles = cx.handles(2).await?;
        let mut present = Vec::new();
        for n in 0..3_usize {
            let name = key(format!("present/{n}"));
            for write in 0..n + 2 {
                handles[write % 2].set(&name, &format!("{n} {write}")).await?;
            }
            let version = handles[0].version(&name).await?;
            present.push((name, version));
        }
        handles[1].set(&key("bystander"), "x").await?;
        Ok(Field { handles, present, absent: (0..3).map(|n| key(format!("absent/{n}"))).collect() })
    }

    /// The n-th assert, which holds.
    fn right(&self, n: usize) -> Assert {
        Assert::version(self.present[n].0.clone(), self.present[n].1)
    }

    /// The n-th assert, which fails in this way.
    fn wrong(&self, n: usize, wrong: Wrong) -> Assert {
        let (name, now) = self.present[n].clone();
        let other = self.present[(n + 1) % 3].1.incarnation();
        match wrong {
            Wrong::Older => Assert::version(name, version(now.incarnation(), now.count() - 1)),
            Wrong::Newer => Assert::version(name, version(now.incarnation(), now.count() + 1)),
            Wrong::OtherLife if other != now.incarnation() => {
                Assert::version(name, version(other, now.count()))
            }
            Wrong::OtherLife => Assert::version(name, version(now.incarnation() ^ 2, now.count())),
            Wrong::SaidMissing => Assert::missing(name),
            Wrong::IsMissing => Assert::version(self.absent[n].clone(), now),
        }
    }

    /// Kinds of mutations, over the asserted keys and over others.
    fn mutations(&self) -> Vec<(&'static str, Vec<Mutation>)> {
        let puts = |suffix: &str| -> Vec<Mutation> {
            self.present
                .iter()
                .map(|(key, _)| Mutation::put(key.clone(), format!("changed{suffix}")))
                .collect()
        };
        let deletes: Vec<Mutation> =
            self.present.iter().map(|(key, _)| Mutation::delete(key.clone())).collect();
        let creates: Vec<Mutation> =
            self.absent.iter().map(|key| Mutation::put(key.clone(), "created")).collect();
        let mixed =
            vec![deletes[0].clone(), puts("!")[1].clone(), creates[2].clone(), put("bystander", "changed")];
        vec![
            ("puts", puts("")),
            ("deletes", deletes),
            ("creations", creates),
            ("mixed", mixed),
            ("puts of other keys", vec![put("bystander", "y"), put("new", "y")]),
            ("deletes of other keys", vec![Mutation::delete(key("bystander")), Mutation::delete(key("new"))]),
            ("one put of equal bytes", vec![put("bystander", "x")]),
            ("one put", vec![puts("?")[0].clone()]),
            ("nothing", Vec::new()),
        ]
    }
}

async fn nothing_happens(cx: Context) -> Outcome {
    let field = Field::new(&cx).await?;
    let handles = &field.handles;
    let before = handles[0].contents().await?;
    let mut turn = 0;
    for wrong in WRONGS {
        for (kind, mutations) in field.mutations() {
            // Bit n says that the n-th of three asserts fails.
            for failing in 1..8_u8 {
                let asserts: Vec<Assert> = (0..3)
                    .map(|n| if failing & (1 << n) == 0 { field.right(n) } else { field.wrong(n, wrong) })
                    .collect();
                turn += 1;
                let place = || format!("asserts {failing:03b} failing as {wrong:?}, with {kind}");
                handles[turn % 2].refuse(&asserts, &mutations).await.at(place())?;
                // The other handle is the one that looks.
                same_contents(&handles[(turn + 1) % 2].contents().await?, &before)
                    .at("after a rejection")
                    .at(place())?;
            }
            handles[turn % 2]
                .refuse(&[field.wrong(0, wrong)], &mutations)
                .await
                .at(format!("alone, {wrong:?}, {kind}"))?;
        }
    }
    same_contents(&handles[0].contents().await?, &before).at("after all rejections")?;
    many_asserts(&cx, &field).await.at("48 asserts")?;
    // No rejection has left a mark that only the next write shows.
    for (name, version) in &field.present {
        handles[1]
            .commit(&[Assert::version(name.clone(), *version)], &[Mutation::put(name.clone(), "end")])
            .await?;
        ensure_eq!(
            Some(handles[0].version(name).await?),
            version.next(),
            "the version of {name:?} after its next write"
        );
    }
    for name in &field.absent {
        handles[0].commit(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), "end")]).await?;
        ensure_eq!(
            handles[1].version(name).await?.count(),
            1,
            "the count of {name:?}, whose creations were rejected before"
        );
    }
    Ok(())
}

/// One failing assert among 48, at each position, the others in random order.
async fn many_asserts(cx: &Context, field: &Field) -> Outcome {
    let handles = &field.handles;
    let keys: Vec<Key> = (0..24).map(|n| key(format!("many/{n:02}"))).collect();
    let puts: Vec<Mutation> = keys.iter().map(|key| Mutation::put(key.clone(), "1")).collect();
    handles[0].commit(&[], &puts).await?;
    let before = handles[1].contents().await?;
    let mut rng = cx.rng(1);
    for position in 0..48 {
        let mut asserts: Vec<Assert> = keys
            .iter()
            .map(|key| Assert::version(key.clone(), before[key].version()))
            .chain((0..24).map(|n| Assert::missing(key(format!("none/{n:02}")))))
            .collect();
        asserts.shuffle(&mut rng);
        asserts[position] = field.wrong(position % 3, WRONGS[rng.random_range(0..WRONGS.len())]);
        let (_, mutations) = field.mutations().swap_remove(position % 4);
        handles[position % 2].refuse(&asserts, &mutations).await.at(format!("position {position}"))?;
    }
    same_contents(&handles[0].contents().await?, &before).at("after the rejections")
}

async fn unwritten_keys_count(cx: Context) -> Outcome {
    let field = Field::new(&cx).await?;
    let handles = &field.handles;
    let target = key("target");
    handles[0].set(&target, "0").await?;
    let mut turn = 0;
    for wrong in WRONGS {
        for written_too in [false, true] {
            for last in [false, true] {
                for kind in 0..4 {
                    turn += 1;
                    let before = handles[turn % 2].contents().await?;
                    let mutations = match kind {
                        0 => vec![Mutation::put(target.clone(), turn.to_string())],
                        1 => vec![Mutation::delete(target.clone())],
                        2 => vec![put("new", "x"), Mutation::put(target.clone(), "y")],
                        _ => vec![put("new", "x")],
                    };
                    // The key that is written is asserted rightly, or not at all; the other one is not written.
                    let mut asserts = vec![field.wrong(turn % 3, wrong)];
                    if written_too {
                        let right = Assert::version(target.clone(), before[&target].version());
                        asserts.insert(usize::from(!last), right);
                    }
                    if last {
                        asserts.insert(0, field.right((turn + 1) % 3));
                    }
                    let place = format!("an assert that fails as {wrong:?} on a key that is not written");
                    handles[turn % 2].refuse(&asserts, &mutations).await.at(&place)?;
                    same_contents(&handles[(turn + 1) % 2].contents().await?, &before).at(place)?;
                }
            }
        }
    }
    // The other way round: it holds, is not touched, and only the target moves.
    for round in 0..6 {
        let handle = &handles[round % 2];
        let before = handle.contents().await?;
        let asserts = [field.right(round % 3), Assert::missing(field.absent[round % 3].clone())];
        handle.commit(&asserts, &[Mutation::put(target.clone(), format!("round {round}"))]).await?;
        let mut expected = before.clone();
        let moved = handle.entry(&target).await?;
        ensure_eq!(Some(moved.version()), before[&target].version().next(), "the version of the written key");
        expected.insert(target.clone(), moved);
        same_contents(&handles[(round + 1) % 2].contents().await?, &expected)
            .at("the keys that were only asserted")?;
    }
    // Another client touches the key that is only asserted: the assert fails, in all three ways that a key can be touched.
    let guard = key("guard");
    for (kind, touch) in [
        ("created", put("guard", "1")),
        ("written with equal bytes", put("guard", "1")),
        ("deleted", Mutation::delete(guard.clone())),
        ("created again", put("guard", "1")),
    ] {
        let seen = handles[0].version(&guard).await?;
        handles[1].commit(&[], &[touch]).await?;
        let before = handles[1].contents().await?;
        handles[0]
            .refuse(&[Assert::version(guard.clone(), seen)], &[Mutation::put(target.clone(), "late")])
            .await
            .at(format!("after another client has {kind} the key that is only asserted"))?;
        same_contents(&handles[1].contents().await?, &before).at(format!("after the guard was {kind}"))?;
    }
    Ok(())
}

async fn asserted_twice(cx: Context) -> Outcome {
    let field = Field::new(&cx).await?;
    let handles = &field.handles;
    let mut turn = 0;
    for between in [false, true] {
        for wrong in WRONGS {
            let none = field.absent[0].clone();
            let (right, bad) = match wrong {
                // On an absent key the contradiction is "missing" and a version.
                Wrong::IsMissing => (Assert::missing(none), field.wrong(0, wrong)),
                _ => (field.right(0), field.wrong(0, wrong)),
            };
            for pair in [
                vec![right.clone(), bad.clone()],
                vec![bad.clone(), right.clone()],
                vec![right.clone(), bad.clone(), right.clone()],
                vec![bad.clone(), right.clone(), bad.clone()],
                vec![bad.clone(), bad.clone()],
            ] {
                for (kind, mutations) in field.mutations() {
                    let mut asserts = pair.clone();
                    if between {
                        asserts.insert(1, field.right(1));
                    }
                    turn += 1;
                    let before = handles[turn % 2].contents().await?;
                    let place = format!("one key asserted rightly and as {wrong:?}, with {kind}");
                    handles[turn % 2].refuse(&asserts, &mutations).await.at(&place)?;
                    same_contents(&handles[(turn + 1) % 2].contents().await?, &before).at(place)?;
                }
            }
        }
    }
    // Twice the same is no contradiction.
    let (right, none) = (field.right(0), Assert::missing(field.absent[0].clone()));
    let twice = [right.clone(), none.clone(), field.right(1), right.clone(), none.clone()];
    handles[0].commit(&twice, &[]).await.at("twice the same, as a check")?;
    handles[1].commit(&twice, &[put("bystander", "y")]).await.at("twice the same, writing another key")?;
    handles[0]
        .commit(&twice, &[Mutation::put(right.key.clone(), "y"), Mutation::put(none.key.clone(), "y")])
        .await
        .at("twice the same, writing them")?;
    ensure_eq!(
        Some(handles[1].version(&right.key).await?),
        right.version.next(),
        "the version of a key asserted twice"
    );
    ensure_eq!(
        handles[1].version(&none.key).await?.count(),
        1,
        "the count of a key asserted as missing twice"
    );
    // As often as asserts go.
    let right = field.right(2);
    let mut often = vec![right.clone(); 48];
    handles[0].commit(&often, &[put("bystander", "z")]).await.at("48 times the same")?;
    for position in [0, 1, 24, 46, 47] {
        often[position] = field.wrong(2, WRONGS[position % 4]);
        handles[1]
            .refuse(&often, &[put("bystander", "w")])
            .await
            .at(format!("a contradiction at {position}"))?;
        often[position] = right.clone();
    }
    Ok(())
}
