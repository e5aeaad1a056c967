//! B30, B31: which keys a listing has, and in which order.

use std::collections::BTreeSet;
use std::sync::Arc;

use coord_core::{Assert, Backend, Key, KeyRange, Mutation, Prefix, limits};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::probe::{Probe, key, put};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B30",
        layer: Layer::Backend,
        promise: "a prefix is literal bytes: `% _ * ? [ ] \\ ^ $ . { } /`, case, combining accents, U+10FFFF; no trimming, no folding",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(literal(cx)),
    },
    Clause {
        id: "B31",
        layer: Layer::Backend,
        promise: "ascending byte order, no duplicates; `start_after` and `limit` page without gap or repeat; the empty prefix lists all",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(order_and_pages(cx)),
    },
    Clause {
        id: "B31.limit",
        layer: Layer::Backend,
        promise: "10,000 keys of 1,024 bytes come back in one listing, and in one snapshot",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(longest_listing(cx)),
    },
];

/// Characters that some store takes for something else than themselves.
const LETTERS: [&str; 52] = [
    "%",
    "_",
    "*",
    "?",
    "[",
    "]",
    "\\",
    "^",
    "$",
    ".",
    "{",
    "}",
    "/",
    "-",
    "+",
    "(",
    ")",
    "|",
    "!",
    "#",
    "'",
    "\"",
    "`",
    ";",
    ":",
    ",",
    "~",
    "<",
    ">",
    "=",
    "&",
    "@",
    " ",
    "\t",
    "\n",
    "\u{1}",
    "\u{7f}",
    "a",
    "b",
    "A",
    "0",
    "é",
    "e\u{301}",
    "É",
    "ß",
    "ss",
    "ı",
    "İ",
    "\u{FFFD}",
    "\u{FFFF}",
    "\u{10000}",
    "\u{10FFFF}",
];

/// Puts these keys, each with its own name as the value, in as few transactions as they fit.
async fn put_all(handle: &dyn Backend, keys: &[Key]) -> Outcome {
    for part in keys.chunks(500) {
        let puts: Vec<Mutation> =
            part.iter().map(|key| Mutation::put(key.clone(), key.as_bytes().to_vec())).collect();
        handle.commit(&[], &puts).await?;
    }
    Ok(())
}

fn expected<'a>(all: &'a [Key], prefix: &str) -> Vec<&'a Key> {
    all.iter().filter(|key| key.as_bytes().starts_with(prefix.as_bytes())).collect()
}

fn same_keys(seen: &[Key], expected: &[&Key], place: &str) -> Outcome {
    if seen.iter().eq(expected.iter().copied()) {
        return Ok(());
    }
    let (have, want): (BTreeSet<&Key>, BTreeSet<&Key>) =
        (seen.iter().collect(), expected.iter().copied().collect());
    let missing: Vec<_> = want.difference(&have).take(4).collect();
    let extra: Vec<_> = have.difference(&want).take(4).collect();
    fail!(
        "saw {} keys listed, not {}: left out {missing:?}, added {extra:?}{}: {place}",
        seen.len(),
        expected.len(),
        if missing.is_empty() && extra.is_empty() { ", but in another order, or twice" } else { "" }
    )
}

async fn literal(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    // Every string of one or two of these, and plain ones that patterns would match.
    let mut names: BTreeSet<String> =
        ["abc", "aXc", "xyz", "A-b", "job/1", "Job/1", "joB/2", "job", "jo", "job0", "job_1"]
            .into_iter()
            .map(str::to_owned)
            .collect();
    for first in LETTERS {
        names.insert(first.to_owned());
        names.extend(LETTERS.iter().map(|second| format!("{first}{second}")));
    }
    names.extend(
        ["a%b", "a_b", "a*b", "a[b]", "a\\%", "a\\_", " a ", "\u{301}a", "c:\\d\\", "x{y}z", "{x}{y}"]
            .map(str::to_owned),
    );
    names.extend([
        "K".repeat(1_024),
        "K".repeat(1_023),
        "é".repeat(512),
        format!("a{}", "\u{10FFFF}".repeat(255)),
    ]);
    let keys: Vec<Key> = names.iter().map(key).collect();
    put_all(&*handles[0], &keys).await?;

    let mut prefixes: BTreeSet<String> = names.clone();
    prefixes.extend(names.iter().filter_map(|name| {
        let mut short = name.clone();
        short.pop()?;
        Some(short)
    }));
    for more in [
        "%%%", "a%c", "a_c", "a*c", "[a-z]", "[^a]", "a?c", ".*", "^a", "a$", "{a,b}", "\\a", "ab%", "joB",
        "JOB/", "job/*", "{x}", "nothing", "\\\\\\",
    ] {
        prefixes.insert(more.to_owned());
    }
    for (n, prefix) in prefixes.iter().enumerate() {
        let listed = handles[n % 2].list(prefix).await.at(format!("the prefix {prefix:?}"))?;
        same_keys(&listed, &expected(&keys, prefix), &format!("the prefix {prefix:?}"))?;
    }
    // A key is literal too: no two of these are one.
    for part in keys.chunks(1_000) {
        for (name, entry) in handles[1].look(part).await?.iter() {
            ensure_eq!(
                entry.value().map(|value| &value[..]),
                Some(name.as_bytes()),
                "the value of {name:?}, which is its own name"
            );
            ensure_eq!(entry.version().count(), 1, "the count of {name:?}, which was put once");
        }
    }
    // Keys that differ from one that is there only by what a store might fold or trim are absent, and can be created.
    let others: Vec<Key> = [
        "aB",
        "AB ",
        "abc ",
        " abc",
        "ABC",
        "k",
        "job/1\n",
        "job//1",
        "./job",
        "job/",
        "\u{65}\u{301}\u{301}",
        "SS",
        "ſ",
        "xyz\u{200B}",
    ]
    .into_iter()
    .filter(|name| !names.contains(*name))
    .map(key)
    .collect();
    for name in &others {
        ensure!(!handles[0].entry(name).await?.is_present(), "saw {name:?} as present, which was never put");
        handles[1]
            .commit(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), "other")])
            .await
            .at(format!("creating {name:?}"))?;
    }
    let deletes: Vec<Mutation> = others.iter().map(|key| Mutation::delete(key.clone())).collect();
    handles[0].commit(&[], &deletes).await?;
    let all = handles[1].list("").await?;
    same_keys(&all, &expected(&keys, ""), "the empty prefix, after look-alikes were created and deleted")
}

async fn order_and_pages(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let mut rng = cx.rng(1);
    let mut names: BTreeSet<String> = BTreeSet::new();
    while names.len() < 400 {
        let length = rng.random_range(1..=4);
        names.insert((0..length).map(|_| LETTERS[rng.random_range(0..LETTERS.len())]).collect());
    }
    // Numbers are text: 10 comes before 9.
    names.extend((0..30).map(|n| format!("n/{n}")));
    names.extend(["p", "p/", "p/a", "p/b", "p/b/c", "p0", "q"].map(str::to_owned));
    let keys: Vec<Key> = names.iter().map(key).collect();
    let mut shuffled = keys.clone();
    shuffled.shuffle(&mut rng);
    put_all(&*handles[0], &shuffled).await?;
    // Some are written again and some deleted and created again, which must not change where they are listed.
    for name in shuffled.iter().take(20) {
        handles[1].set(name, "again").await?;
        handles[0].unset(name).await?;
        handles[1].set(name, "and again").await?;
    }
    for name in shuffled.iter().skip(10).take(40) {
        handles[1].set(name, "written again").await?;
    }
    for gone in ["p/aa", "zz", "!"] {
        handles[0].set(&key(gone), "x").await?;
        handles[1].unset(&key(gone)).await?;
    }
    let keys: Vec<Key> =
        keys.into_iter().filter(|key| !["p/aa", "zz", "!"].contains(&key.as_str())).collect();
    for prefix in ["", "p/", "n/", "n/1", "a", "\u{10FFFF}", "%", "none"] {
        let whole = expected(&keys, prefix);
        same_keys(&handles[0].list(prefix).await?, &whole, &format!("the prefix {prefix:?}"))?;
        for limit in [1, 2, 3, 7, 100, 10_000] {
            // Page by page, each by another handle.
            let mut seen: Vec<Key> = Vec::new();
            loop {
                let page = page(&handles[seen.len() % 2], prefix, seen.last(), limit).await?;
                let full = page.len() == limit;
                ensure!(page.len() <= limit, "saw {} keys in a page of at most {limit}", page.len());
                let left = whole.len() - seen.len().min(whole.len());
                ensure_eq!(
                    page.len(),
                    left.min(limit),
                    "the keys in a page of {limit} under {prefix:?}, of {left} that are left"
                );
                seen.extend(page);
                if !full {
                    break;
                }
            }
            same_keys(&seen, &whole, &format!("the pages of {limit} under {prefix:?}"))?;
        }
        // From any key on, be it there or not, below the prefix, in it, or above it.
        let mut afters: Vec<Key> = [
            "!",
            "a",
            "o",
            "p",
            "p/",
            "p/a",
            "p/aa",
            "p/b",
            "p/zz",
            "p0",
            "n/1",
            "n/10",
            "n/15",
            "n/2",
            "zz",
            "\u{10FFFF}\u{10FFFF}\u{10FFFF}\u{10FFFF}\u{10FFFF}",
        ]
        .into_iter()
        .map(key)
        .collect();
        afters.extend(keys.iter().step_by(17).cloned());
        for after in &afters {
            let rest: Vec<&Key> = whole.iter().copied().filter(|key| *key > after).collect();
            for limit in [1, 5, 10_000] {
                let seen = page(&handles[limit % 2], prefix, Some(after), limit).await?;
                let first: Vec<&Key> = rest.iter().copied().take(limit).collect();
                same_keys(&seen, &first, &format!("at most {limit} under {prefix:?} after {after:?}"))?;
            }
        }
    }
    many(&cx, &handles).await.at("10,050 keys")
}

async fn page(
    handle: &Arc<dyn Backend>,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Result<Vec<Key>, Verdict> {
    let mut range = KeyRange::new(Prefix::new(prefix)?, limit)?;
    if let Some(after) = after {
        range = range.start_after(after.clone());
    }
    Ok(handle.keys(&range).await?)
}

/// More than one listing may have, and than any page that a backend may read in.
async fn many(cx: &Context, handles: &[Arc<dyn Backend>]) -> Outcome {
    let mut keys: Vec<Key> = (0..10_050).map(|n| key(format!("many/{n:05}"))).collect();
    keys.shuffle(&mut cx.rng(2));
    for part in keys.chunks(2_500) {
        let puts: Vec<Mutation> = part.iter().map(|key| Mutation::put(key.clone(), "")).collect();
        handles[0].commit(&[], &puts).await?;
    }
    handles[0].commit(&[], &[put("many", "before"), put("many0", "after")]).await?;
    keys.sort();
    let whole: Vec<&Key> = keys.iter().collect();
    for limit in [limits::LISTING_KEYS, 9_999, 1_000, 1_001] {
        let first = page(&handles[1], "many/", None, limit).await?;
        same_keys(&first, &whole[..limit], &format!("the first {limit}"))?;
    }
    let first = page(&handles[0], "many/", None, limits::LISTING_KEYS).await?;
    let rest = page(&handles[1], "many/", first.last(), limits::LISTING_KEYS).await?;
    same_keys(&rest, &whole[limits::LISTING_KEYS..], "the page after 10,000")?;
    let from = page(&handles[0], "many/", Some(&keys[49]), limits::LISTING_KEYS).await?;
    same_keys(&from, &whole[50..], "10,000 keys after the 50th")
}

/// The largest request for a snapshot and the largest answer of a listing: some 10 MiB each.
async fn longest_listing(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let name = |n: usize| key(format!("{}{n:05}", &"long".repeat(256)[..limits::KEY_BYTES - 5]));
    let keys: Vec<Key> = (0..limits::LISTING_KEYS).map(name).collect();
    for handle in &handles {
        let snapshot = handle.look(&keys).await.at("while all are absent")?;
        ensure!(snapshot.iter().all(|(_, entry)| !entry.is_present()), "saw a key that was never put");
    }
    for part in keys.chunks(1_000) {
        let puts: Vec<Mutation> = part.iter().map(|key| Mutation::put(key.clone(), "v")).collect();
        handles[0].commit(&[], &puts).await?;
    }
    let whole: Vec<&Key> = keys.iter().collect();
    for handle in &handles {
        same_keys(&handle.list("").await?, &whole, "all of them")?;
        same_keys(
            &handle.list(&keys[0].as_str()[..limits::KEY_BYTES - 1]).await?,
            &whole[..10],
            "ten of them",
        )?;
        let snapshot = handle.look(&keys).await.at("while all are there")?;
        ensure!(
            snapshot.iter().all(|(_, entry)| entry.version().count() == 1),
            "saw a key absent or moved that was put once"
        );
    }
    Ok(())
}
