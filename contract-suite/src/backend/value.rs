//! B02: values are bytes, whatever they look like.

use std::collections::BTreeMap;

use coord_core::{Assert, Bytes, ErrorKind, Key, KeySet, Mutation, limits};
use rand::Rng as _;

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::probe::{Probe, key, put};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "B02",
        layer: Layer::Backend,
        promise: "an empty value is not an absent key; all 256 byte values and a 512 KiB value come back unchanged",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(any_bytes(cx)),
    },
    Clause {
        id: "B02.limit",
        layer: Layer::Backend,
        promise: "a snapshot of exactly 16 MiB of keys and values is answered; one byte more is `Invalid`, and the handle works on",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(largest_answer(cx)),
    },
];

async fn any_bytes(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    empty_values(&cx).await.at("an empty value")?;

    let mut values: Vec<(String, Vec<u8>)> = Vec::new();
    values.push(("all bytes".into(), (0..=255).collect()));
    values.push(("all bytes, backwards".into(), (0..=255).rev().collect()));
    values.extend((0..=255_u8).map(|byte| (format!("the byte {byte:02x}"), vec![byte])));
    let texts = [
        "NULL",
        "nil",
        "null",
        "None",
        "true",
        "0",
        "-0",
        "007",
        "1e5",
        " 1",
        "1 ",
        "\n",
        "\r\n",
        "a\0b",
        "\0",
        "\0\0",
        "'",
        "\"",
        "\\",
        "\\x41",
        "\\000",
        "%s",
        "{}",
        "é",
        "e\u{301}",
        "\u{10FFFF}",
        "\u{FEFF}x",
        " ",
        "\t",
        ";--",
    ];
    values.extend(texts.iter().map(|text| (format!("the text {text:?}"), text.as_bytes().to_vec())));
    let not_text: [&[u8]; 6] =
        [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"ends in zero\0\0\0"];
    values.extend(not_text.iter().map(|bytes| (format!("the bytes {bytes:02x?}"), bytes.to_vec())));
    let mut rng = cx.rng(1);
    for length in
        [127, 128, 255, 256, 257, 2_000, 2_048, 8_191, 8_192, 16_384, 32_767, 65_535, 65_536, 65_537]
    {
        let mut bytes = vec![0; length];
        rng.fill_bytes(&mut bytes);
        values.push((format!("{length} random bytes"), bytes));
    }
    let expected: BTreeMap<Key, Vec<u8>> =
        values.iter().enumerate().map(|(n, (_, value))| (key(format!("v/{n:04}")), value.clone())).collect();
    let puts: Vec<Mutation> =
        expected.iter().map(|(key, value)| Mutation::put(key.clone(), value.clone())).collect();
    handles[0].commit(&[], &puts).await?;
    let keys: Vec<Key> = expected.keys().cloned().collect();
    for handle in &handles {
        let snapshot = handle.look(&keys).await?;
        for ((what, _), (key, value)) in values.iter().zip(&expected) {
            same_bytes(snapshot.require(key)?.value(), value).at(what)?;
        }
    }

    // The largest one, in both kinds of bytes that a store may treat differently; then smaller and larger again in its place.
    let big = key("big");
    for length in [limits::VALUE_BYTES, limits::VALUE_BYTES - 1, 1, 0, 100_000, limits::VALUE_BYTES] {
        for random in [true, false] {
            let mut bytes = vec![b'a'; length];
            if random {
                rng.fill_bytes(&mut bytes);
            }
            handles[1].commit(&[], &[Mutation::put(big.clone(), bytes.clone())]).await?;
            for handle in &handles {
                same_bytes(handle.entry(&big).await?.value(), &bytes)
                    .at(format!("a value of {length} bytes"))?;
            }
        }
    }
    // Two keys with one value are two values.
    let shared = Bytes::from_static(b"shared");
    handles[0]
        .commit(&[], &[Mutation::put(key("s1"), shared.clone()), Mutation::put(key("s2"), shared)])
        .await?;
    handles[0].commit(&[], &[put("s1", "other")]).await?;
    same_bytes(handles[1].entry(&key("s2")).await?.value(), b"shared")
        .at("a value that another key had too")?;
    same_bytes(handles[1].entry(&key("s1")).await?.value(), b"other")
}

async fn empty_values(cx: &Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let empty = key("empty");
    handles[0].commit(&[Assert::missing(empty.clone())], &[put("empty", "")]).await?;
    for handle in &handles {
        let entry = handle.entry(&empty).await?;
        same_bytes(entry.value(), b"").at("created")?;
        ensure_eq!(entry.version().count(), 1, "the count of a key created with an empty value");
        ensure_eq!(
            handle.list("emp").await?,
            std::slice::from_ref(&empty),
            "the listing of a key with an empty value"
        );
    }
    let created = handles[0].version(&empty).await?;
    handles[1].refuse(&[Assert::missing(empty.clone())], &[put("empty", "x")]).await?;
    handles[1].commit(&[Assert::version(empty.clone(), created)], &[put("empty", "x")]).await?;
    handles[0].commit(&[], &[put("empty", "")]).await?;
    let entry = handles[1].entry(&empty).await?;
    same_bytes(entry.value(), b"").at("emptied")?;
    ensure_eq!(
        Some(entry.version()),
        created.next().and_then(|v| v.next()),
        "the version after two more writes"
    );
    handles[0].unset(&empty).await?;
    ensure!(!handles[1].entry(&empty).await?.is_present(), "saw a deleted key whose value was empty");
    Ok(())
}

fn same_bytes(seen: Option<&Bytes>, expected: &[u8]) -> Outcome {
    let Some(seen) = seen else {
        fail!("saw an absent key, not one with a value of {} bytes", expected.len());
    };
    ensure_eq!(seen.len(), expected.len(), "the length of the value");
    if let Some(at) = (0..expected.len()).find(|at| seen[*at] != expected[*at]) {
        fail!(
            "saw the byte {:02x} at {at}, not {:02x}, in a value of {} bytes",
            seen[at],
            expected[at],
            seen.len()
        );
    }
    Ok(())
}

async fn largest_answer(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    // 31 values of 512 KiB and 32 keys of 8 bytes; the last value fills up to 16 MiB, less one byte for the one that goes too far.
    let keys: Vec<Key> = (0..32).map(|n| key(format!("large/{n:02}"))).collect();
    let mut rng = cx.rng(1);
    let mut value = vec![0; limits::VALUE_BYTES];
    rng.fill_bytes(&mut value);
    for key in &keys[..31] {
        handles[0].commit(&[], &[Mutation::put(key.clone(), value.clone())]).await?;
    }
    let used: usize = keys.iter().map(|key| key.as_bytes().len()).sum::<usize>() + 31 * limits::VALUE_BYTES;
    let rest = limits::SNAPSHOT_BYTES - used;
    handles[0].commit(&[], &[Mutation::put(keys[31].clone(), value[..rest].to_vec())]).await?;
    for handle in &handles {
        // Absent keys and repeated ones do not count.
        let mut request = keys.clone();
        request.extend(keys.iter().cloned());
        request.extend((0..1_000).map(|n| key(format!("absent/{n}"))));
        let snapshot = handle.look(&request).await.at("16 MiB")?;
        ensure_eq!(snapshot.size(), limits::SNAPSHOT_BYTES, "the size of the answer");
        for key in &keys[..31] {
            same_bytes(snapshot.require(key)?.value(), &value)?;
        }
        same_bytes(snapshot.require(&keys[31])?.value(), &value[..rest])?;
    }
    handles[0].commit(&[], &[Mutation::put(keys[31].clone(), value[..=rest].to_vec())]).await?;
    for handle in &handles {
        match handle.snapshot(&KeySet::new(keys.iter().cloned())?).await {
            Ok(snapshot) => fail!("saw a snapshot of {} bytes answered", snapshot.size()),
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::Invalid, "the kind of the error for 16 MiB and a byte")
            }
        }
        // The handle works on.
        let snapshot = handle.look(&keys[..31]).await.at("after the refusal")?;
        ensure_eq!(snapshot.len(), 31, "entries of a smaller snapshot after the refusal");
    }
    Ok(())
}
