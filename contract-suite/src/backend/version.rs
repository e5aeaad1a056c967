//! B13, B14: when an assert holds.

use coord_core::{Assert, Backend, Key, Mutation, Version};
use rand::RngExt as _;

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::harness::Control;
use crate::probe::{Probe, key, put, same_contents};
use crate::{ensure, ensure_eq, skip};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B13",
        layer: Layer::Backend,
        promise: "`missing` holds only for an absent key; a version only for exactly that version: not older, newer, or another \
                  incarnation with the same count",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(exactly_that_version(cx)),
    },
    Clause {
        id: "B13.large",
        layer: Layer::Backend,
        promise: "a version holds only for exactly that version also near 2^32, 2^53 and 2^62 (where the harness can set a version)",
        needs: Needs::controls(&[Control::SetVersion]),
        body: |cx| Box::pin(large_versions(cx)),
    },
    Clause {
        id: "B14",
        layer: Layer::Backend,
        promise: "A-to-B-to-A is seen: the old version no longer holds although the value is the same again",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(there_and_back(cx)),
    },
];

/// Every version that differs from this one in one bit of one half, is one off, or has the halves exchanged.
fn neighbours(of: Version) -> Vec<Version> {
    let (incarnation, count) = (of.incarnation(), of.count());
    let mut all: Vec<Version> = (0..63)
        .flat_map(|bit| {
            [Version::new(incarnation ^ (1 << bit), count), Version::new(incarnation, count ^ (1 << bit))]
        })
        .chain([
            Version::new(incarnation, count + 1),
            Version::new(incarnation, count.wrapping_sub(1)),
            Version::new(incarnation + 1, count),
            Version::new(incarnation.wrapping_sub(1), count),
            Version::new(incarnation + 1, count.wrapping_sub(1)),
            Version::new(incarnation.wrapping_sub(1), count + 1),
            Version::new(count, incarnation),
            Version::new(count, count),
            Version::new(incarnation, Version::MAX_HALF),
            Version::new(Version::MAX_HALF, count),
            Version::new(Version::MAX_HALF, Version::MAX_HALF),
        ])
        .flatten()
        .filter(|version| *version != of)
        .collect();
    all.push(Version::MISSING);
    all
}

/// All neighbours of a present key's version are rejected, and the version itself holds.
async fn only_this_one(a: &dyn Backend, b: &dyn Backend, name: &Key) -> Outcome {
    let now = a.version(name).await?;
    let kinds = [
        Vec::new(),
        vec![put("other", "x")],
        vec![Mutation::put(name.clone(), "x")],
        vec![Mutation::delete(name.clone())],
    ];
    let before = a.contents().await?;
    for (n, version) in neighbours(now).into_iter().enumerate() {
        let handle = if n % 2 == 0 { a } else { b };
        handle
            .refuse(&[Assert::version(name.clone(), version)], &kinds[n % kinds.len()])
            .await
            .at(format!("{name:?} has the version {now} and is asserted to have {version}"))?;
    }
    same_contents(&b.contents().await?, &before).at("after the rejections")?;
    for handle in [a, b] {
        handle
            .commit(&[Assert::version(name.clone(), now)], &[])
            .await
            .at(format!("the version {now} itself"))?;
    }
    Ok(())
}

async fn exactly_that_version(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let (name, absent) = (key("k"), key("absent"));
    handles[0].set(&key("other"), "o").await?;
    let mut lived: Vec<Version> = Vec::new();
    for life in 0..3_usize {
        for write in 0..=2 + life {
            let version = handles[(life + write) % 2].set(&name, &write.to_string()).await?;
            lived.push(version);
            if write == 0 || write == 2 {
                only_this_one(&*handles[0], &*handles[1], &name).await?;
            }
        }
        for version in &lived[..lived.len() - 1] {
            handles[life % 2]
                .refuse(&[Assert::version(name.clone(), *version)], &[Mutation::put(name.clone(), "x")])
                .await
                .at(format!("{version}, which was, in life {life}"))?;
        }
        // Deleted: every version fails, and only `missing` holds.
        handles[0].unset(&name).await?;
        let before = handles[0].contents().await?;
        let random = cx.rng(life as u64).random_range(1..=Version::MAX_HALF);
        let made_up = [Version::new(1, 1), Version::new(random, 1), Version::new(Version::MAX_HALF, 1)];
        for version in lived.iter().copied().chain(made_up.into_iter().flatten()) {
            for gone in [&name, &absent] {
                for kind in [vec![], vec![Mutation::put(gone.clone(), "x")], vec![put("other", "x")]] {
                    handles[1]
                        .refuse(&[Assert::version(gone.clone(), version)], &kind)
                        .await
                        .at(format!("{gone:?} is absent and is asserted to have {version}"))?;
                }
            }
        }
        same_contents(&handles[1].contents().await?, &before).at("after the rejections on an absent key")?;
        handles[1].commit(&[Assert::missing(name.clone()), Assert::missing(absent.clone())], &[]).await?;
    }
    // `missing` on a present key fails with every kind of mutation, and for a creation above all.
    handles[1].commit(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), "created")]).await?;
    let before = handles[0].contents().await?;
    for handle in &handles {
        for kind in [
            vec![],
            vec![Mutation::put(name.clone(), "again")],
            vec![Mutation::put(name.clone(), "created")],
            vec![Mutation::delete(name.clone())],
            vec![put("new", "x")],
            vec![put("new", "x"), Mutation::put(name.clone(), "again"), Mutation::delete(key("other"))],
        ] {
            handle.refuse(&[Assert::missing(name.clone())], &kind).await.at("`missing` on a present key")?;
        }
        same_contents(&handle.contents().await?, &before).at("after `missing` on a present key")?;
    }
    Ok(())
}

async fn large_versions(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let server = cx.server(Control::SetVersion)?;
    handles[0].set(&key("other"), "o").await?;
    let mut edges = Vec::new();
    for edge in [1_u64 << 31, 1 << 32, 1 << 53, 1 << 62, Version::MAX_HALF - 8] {
        edges.extend([edge - 1, edge, edge + 1]);
    }
    let mut set = 0;
    for (n, edge) in edges.iter().copied().enumerate() {
        // The count at the edge, the incarnation at the edge, and both.
        for (incarnation, count) in [(7, edge), (edge, 7), (edge, edges[edges.len() - 1 - n])] {
            let name = key(format!("large/{incarnation:x}/{count:x}"));
            let version = Version::new(incarnation, count).expect("both halves are good");
            handles[0].set(&name, "v").await?;
            if !server.set_version(cx.namespace(), &name, version).await.map_err(|error| {
                crate::Verdict::Failed(format!("saw the harness fail to set {version}: {error}"))
            })? {
                continue;
            }
            set += 1;
            for handle in &handles {
                ensure_eq!(handle.version(&name).await?, version, "the version of a key that was given it");
            }
            only_this_one(&*handles[0], &*handles[1], &name).await?;
            handles[1]
                .commit(&[Assert::version(name.clone(), version)], &[Mutation::put(name.clone(), "w")])
                .await?;
            ensure_eq!(
                Some(handles[0].version(&name).await?),
                version.next(),
                "the version after a write at {version}"
            );
            handles[0]
                .refuse(&[Assert::version(name.clone(), version)], &[])
                .await
                .at("the version before")?;
        }
    }
    if set == 0 {
        skip!("the store cannot hold the versions that the harness was asked to set");
    }
    Ok(())
}

async fn there_and_back(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let name = key("k");
    for recreated in [false, true] {
        for round in 0..6_usize {
            let (a, b) = (&handles[round % 2], &handles[(round + 1) % 2]);
            let first = a.set(&name, "A").await?;
            let mut old = vec![first];
            for step in 0..=round % 3 {
                let handle = if step % 2 == 0 { b } else { a };
                if recreated {
                    handle.unset(&name).await?;
                } else {
                    old.push(handle.set(&name, "B").await?);
                }
                old.push(handle.set(&name, "A").await?);
            }
            let now = old.pop().unwrap_or(first);
            let before = a.contents().await?;
            ensure_eq!(
                before[&name].value().map(|value| &value[..]),
                Some(&b"A"[..]),
                "the value after it was changed and changed back"
            );
            ensure!(now != first, "saw the version {now} before and after A-to-B-to-A");
            for version in &old {
                for (kind, mutations) in [
                    ("a check", vec![]),
                    ("a put", vec![Mutation::put(name.clone(), "C")]),
                    ("a put of the same", vec![Mutation::put(name.clone(), "A")]),
                    ("a delete", vec![Mutation::delete(name.clone())]),
                    ("a put of another key", vec![put("other", "C")]),
                ] {
                    for handle in [a, b] {
                        handle
                            .refuse(&[Assert::version(name.clone(), *version)], &mutations)
                            .await
                            .at(format!("{kind} that asserts {version}, where the same value has {now}"))?;
                    }
                }
            }
            same_contents(&b.contents().await?, &before)?;
            b.commit(&[Assert::version(name.clone(), now)], &[Mutation::put(name.clone(), "D")]).await?;
        }
    }
    Ok(())
}
