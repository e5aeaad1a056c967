//! T13: what a board does with records that are not its own.

use std::collections::BTreeMap;

use coord_core::board::{Board as _, BoardError, ClaimRequest, Dep, ExtendedBoard as _, Filter, TaskId};
use coord_core::{Bytes, Key, Mutation, Token};

use super::stage::{HOLDER_VERBS, Seat, Stage, TTL, agent, id, spec};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T13",
    layer: Layer::Board,
    promise: "foreign bytes under a task key: Malformed from every verb that meets them; claim_next skips such a record \
              and says Malformed only if it found nothing else",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(malformed(cx)),
}];

/// What may be where a record should be, given what was there.
fn garbage(record: &Bytes) -> Vec<(&'static str, Bytes)> {
    let mut longer = record.to_vec();
    longer.push(0);
    let mut other = record.to_vec();
    if let Some(first) = other.first_mut() {
        *first ^= 0x20;
    }
    vec![
        ("nothing", Bytes::new()),
        ("one byte", Bytes::from_static(b"\0")),
        ("text", Bytes::from_static(b"hello, this is not yours")),
        ("JSON", Bytes::from_static(br#"["state","open"]"#)),
        ("bytes that are no text", Bytes::from_static(b"\xff\xfe\xfd")),
        ("its own beginning", record.slice(..record.len().saturating_sub(1))),
        ("itself and one byte more", Bytes::from(longer)),
        ("itself with another first byte", Bytes::from(other)),
    ]
}

async fn malformed(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    a.open_task("before").await?;
    let whole = a.raw_entries().await?;
    let task = a.open_task("task").await?;
    let mut token = a.claim(&task, "w").await?.lease.token;
    let good = a.raw_entries().await?;
    // The records of the task are those that came with it; a board without any keeps everything in the others.
    let mut own: BTreeMap<Key, Bytes> = good
        .iter()
        .filter(|(key, _)| !whole.contains_key(*key))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let apart = !own.is_empty();
    if !apart {
        own.clone_from(&good);
    }
    ensure!(!own.is_empty(), "saw a board that keeps nothing in its backend");
    let kinds = garbage(&Bytes::from_static(b"any")).len();
    for kind in 0..kinds {
        let (mut what, mut bad) = ("", BTreeMap::new());
        for (key, value) in &own {
            let (name, bytes) = garbage(value).swap_remove(kind);
            what = name;
            bad.insert(key.clone(), bytes);
        }
        a.raw_write(bad.iter().map(|(key, value)| Mutation::put(key.clone(), value.clone()))).await?;
        let place = format!("with {what} in place of its records");
        for seat in [&a, &b] {
            every_verb(seat, &task, &token).await.at(&place)?;
        }
        untouched(&a, &bad, &good, &own).await.at(&place)?;
        // The lease is over, so whoever looks for a task comes by this one.
        stage.advance(TTL);
        if apart {
            // The rest of the board is served as ever, and only a search that finds nothing else says so.
            let other = a.open_task(&format!("other {kind}")).await.at(&place)?;
            next_skips_it(&b, &other).await.at(&place)?;
            a.board.remove(&other).await.at(&place)?;
        } else {
            let next = b.board.claim_next(&agent("w"), &Filter::any(), TTL).await;
            ensure_matches!(next, Err(BoardError::Malformed { .. }), "claim_next {place}");
        }
        restore(&a, &own).await?;
        token = a.claim(&task, "w").await.at("once its records are back")?.lease.token;
        own = a.raw_entries().await?;
        own.retain(|key, _| !apart || !whole.contains_key(key));
    }
    if apart {
        one_record_at_a_time(&a, &b, &task, &token, &own).await?;
    }
    a.board.release(&task, &token).await.at("after all of this")?;
    a.list().await?;
    Ok(())
}

async fn restore(seat: &Seat, own: &BTreeMap<Key, Bytes>) -> Outcome {
    seat.raw_write(own.iter().map(|(key, value)| Mutation::put(key.clone(), value.clone()))).await
}

async fn untouched(
    seat: &Seat,
    bad: &BTreeMap<Key, Bytes>,
    good: &BTreeMap<Key, Bytes>,
    own: &BTreeMap<Key, Bytes>,
) -> Outcome {
    let now = seat.raw_entries().await?;
    for (key, value) in bad {
        ensure_eq!(
            now.get(key),
            Some(value),
            "the foreign bytes under {key:?} after every verb has met them"
        );
    }
    for key in now.keys() {
        ensure!(
            good.contains_key(key) || own.contains_key(key),
            "saw the new record {key:?} after refused verbs"
        );
    }
    Ok(())
}

/// All records of the task are foreign, so there is no verb on it that does not meet one.
async fn every_verb(seat: &Seat, task: &TaskId, token: &Token) -> Outcome {
    let mut answers: Vec<(&str, Result<String, BoardError>)> = Vec::new();
    let told = |answer: Result<(), BoardError>| answer.map(|()| "success".to_owned());
    answers.push(("list", seat.board.list().await.map(|tasks| format!("{} tasks", tasks.len()))));
    answers.push(("get", seat.board.get(task).await.map(|task| format!("{task:?}"))));
    let claim = seat.board.claim(task, &agent("w"), ClaimRequest::for_ttl(TTL)).await;
    answers.push(("claim", claim.map(|claim| format!("{claim:?}"))));
    for verb in HOLDER_VERBS {
        answers.push((verb, seat.hold(verb, task, token, "").await));
    }
    answers.push(("cancel", told(seat.board.cancel(task).await)));
    answers.push(("reopen", told(seat.board.reopen(task).await)));
    answers.push(("revoke", told(seat.board.revoke(task, 1).await)));
    answers.push(("remove", told(seat.board.remove(task).await)));
    answers.push(("set_deps", told(seat.board.set_deps(task, &Dep::all([id("before")]), None).await)));
    let same = seat.board.add(spec(task.as_str())).await;
    answers.push(("add of the same task", same.map(|added| format!("{added:?}"))));
    let other = seat.board.add(spec(task.as_str()).title("another")).await;
    answers.push(("add of another task of its name", other.map(|added| format!("{added:?}"))));
    for (verb, answer) in answers {
        ensure_matches!(answer, Err(BoardError::Malformed { .. }), "{verb}");
    }
    Ok(())
}

async fn next_skips_it(seat: &Seat, other: &TaskId) -> Outcome {
    let before =
        seat.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next with two ready")?;
    let Some(first) = before else { fail!("saw claim_next find nothing, although two tasks are ready") };
    let next =
        seat.board.claim_next(&agent("w"), &Filter::any(), TTL).await.at("claim_next with one ready")?;
    let Some(second) = next else { fail!("saw claim_next find nothing, although a task is ready") };
    let mut given = [&first.task.id, &second.task.id];
    given.sort();
    ensure_eq!(given, [&id("before"), other], "what claim_next gave");
    let none = seat.board.claim_next(&agent("w"), &Filter::any(), TTL).await;
    ensure_matches!(none, Err(BoardError::Malformed { .. }), "claim_next when only the foreign one is left");
    for claim in [first, second] {
        seat.board.release(&claim.task.id, &claim.lease.token).await?;
    }
    Ok(())
}

/// Foreign bytes in one of the task's records: whatever still answers must not have read them as missing.
async fn one_record_at_a_time(
    a: &Seat,
    b: &Seat,
    task: &TaskId,
    token: &Token,
    own: &BTreeMap<Key, Bytes>,
) -> Outcome {
    let healthy = b.get(task).await?;
    let mut met = 0;
    for (key, value) in own {
        for (what, bytes) in garbage(value) {
            a.raw_write([Mutation::put(key.clone(), bytes.clone())]).await?;
            let place = format!("with {what} under {key:?} alone");
            let got = b.board.get(task).await;
            match &got {
                Ok(shown) => ensure_eq!(*shown, healthy, "get {place}"),
                Err(BoardError::Malformed { .. }) => met += 1,
                Err(other) => fail!("saw {other:?}: get {place}"),
            }
            match b.board.list().await {
                Ok(tasks) => {
                    ensure!(tasks.contains(&healthy), "saw the task missing or changed in list {place}")
                }
                Err(BoardError::Malformed { .. }) => {}
                Err(other) => fail!("saw {other:?}: list {place}"),
            }
            for (verb, answer) in [
                ("claim", b.try_claim(task, "w2").await.map(|_| ())),
                (
                    "complete with a wrong token",
                    b.board.complete(task, &Token::mint(), Default::default()).await.map(|_| ()),
                ),
                ("remove", b.board.remove(task).await),
                ("set_deps", b.board.set_deps(task, &Dep::all([id("before")]), None).await),
                (
                    "add of another task of its name",
                    b.board.add(spec("task").title("another")).await.map(|_| ()),
                ),
            ] {
                ensure_matches!(
                    answer,
                    Err(BoardError::Malformed { .. }
                        | BoardError::Taken { .. }
                        | BoardError::LeaseLost { .. }
                        | BoardError::AlreadyExists { .. }),
                    "{verb} {place}"
                );
            }
            ensure_eq!(
                a.raw_entries().await?.get(key),
                Some(&bytes),
                "the foreign bytes under {key:?} afterwards"
            );
            a.raw_write([Mutation::put(key.clone(), value.clone())]).await?;
        }
    }
    ensure!(met > 0, "saw no record of a task without which get cannot answer");
    a.board.renew(task, token, TTL).await.at("once its records are back")?;
    Ok(())
}
