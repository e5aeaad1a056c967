//! B34: namespaces are disjoint.

use std::collections::BTreeMap;

use coord_core::{Assert, Entry, Key, Mutation};

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::probe::{Contents, Probe, key, put, same_contents};
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B34",
    layer: Layer::Backend,
    promise: "namespaces are disjoint, also when one name begins with the other",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(disjoint(cx)),
}];

async fn disjoint(cx: Context) -> Outcome {
    // Names that begin with one another, that patterns would take for one another, that differ in case, and that are as long as can be.
    let base = cx.fresh_namespace();
    let long = format!("{base}{}", "n".repeat(64 - base.len()));
    let mut names = vec![
        base.clone(),
        long[..63].to_owned(),
        long[..62].to_owned(),
        format!("{}m", &long[..63]),
        long.clone(),
    ];
    for suffix in
        ["a", "ab", "b", "A", "AB", "-", "_", ".", "--", "..", "_a", ".a", "-a", "0", "00", "a_", "a."]
    {
        names.push(format!("{base}{suffix}"));
    }
    names.push(base.to_uppercase());
    names.push(base.replace('-', "_"));
    names.push(base.replace('-', "."));
    names.push(base[..base.len() - 1].to_owned());
    let mut expected: BTreeMap<String, Contents> = BTreeMap::new();
    for name in &names {
        cx.adopt_namespace(name);
        let handle = cx.open_in(name).await?;
        same_contents(&handle.contents().await?, &Contents::new())
            .at(format!("the new namespace {name:?}"))?;
    }
    // One key that all have, and keys that would be in another namespace if the names were run together.
    for (n, name) in names.iter().enumerate() {
        let handle = cx.open_in(name).await?;
        let mut puts = vec![put("shared", name.clone()), put(format!("own/{n}"), "x")];
        for tail in [
            "a",
            "ab",
            "b",
            "/shared",
            ":shared",
            "a/shared",
            "a:shared",
            "\u{1}shared",
            "ashared",
            "-",
            "}",
            "}shared",
            "_",
        ] {
            puts.push(put(tail, format!("{name} {tail}")));
        }
        puts.push(put(&base, "the other's name"));
        // An absent key is absent here, whatever the others have.
        let asserts: Vec<Assert> =
            puts.iter().take(48).map(|put| Assert::missing(put.key().clone())).collect();
        handle.commit(&asserts, &puts).await.at(format!("creating in {name:?}"))?;
        for _ in 0..n % 3 {
            handle.set(&key("shared"), name).await?;
        }
        let contents = handle.contents().await?;
        ensure!(
            contents.keys().eq(puts.iter().map(Mutation::key).collect::<std::collections::BTreeSet<_>>()),
            "saw {:?} in {name:?}, not just what was put there",
            contents.keys().take(20).collect::<Vec<_>>()
        );
        expected.insert(name.clone(), contents);
    }
    for (name, contents) in &expected {
        let handle = cx.open_in(name).await?;
        same_contents(&handle.contents().await?, contents)
            .at(format!("in {name:?} after others were written"))?;
        let listed = handle.list("own/").await?;
        ensure_eq!(listed.len(), 1, "the keys under \"own/\" in {name:?}, of which each namespace has one");
    }
    // Writing, asserting and deleting in one moves nothing in any other.
    for (n, name) in names.iter().enumerate() {
        let handle = cx.open_in(name).await?;
        let shared = key("shared");
        let version = expected[name][&shared].version();
        let other = &names[(n + 1) % names.len()];
        let foreign = expected[other][&shared].version();
        if foreign != version {
            handle
                .refuse(&[Assert::version(shared.clone(), foreign)], &[put("shared", "x")])
                .await
                .at(format!("asserting in {name:?} the version that the key has in {other:?}"))?;
        }
        if n % 2 == 0 {
            handle.commit(&[Assert::version(shared.clone(), version)], &[put("shared", "changed")]).await?;
            expected
                .get_mut(name)
                .expect("it was inserted")
                .insert(shared.clone(), handle.entry(&shared).await?);
        } else {
            let all: Vec<Mutation> = expected[name].keys().map(|key| Mutation::delete(key.clone())).collect();
            handle.commit(&[], &all).await?;
            ensure_eq!(handle.entry(&shared).await?, Entry::Absent, "the entry of a deleted key in {name:?}");
            expected.insert(name.clone(), Contents::new());
        }
    }
    for (name, contents) in &expected {
        let handle = cx.open_in(name).await?;
        same_contents(&handle.contents().await?, contents)
            .at(format!("in {name:?} after others were changed or emptied"))?;
        let keys: Vec<Key> = ["shared", "a", "/shared", "none"].map(key).to_vec();
        for (key, entry) in handle.look(&keys).await?.iter() {
            ensure_eq!(
                Some(entry).filter(|entry| entry.is_present()),
                contents.get(key),
                "the entry of {key:?} in {name:?}"
            );
        }
    }
    Ok(())
}
