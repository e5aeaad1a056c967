//! E03, E07 and E08: what stays once an action is done.

use std::time::Duration;

use coord_core::Bytes;
use coord_core::effects::{
    ActionState, EffectError, Outcome as Acquired, PurgeRequest, Replay, Resolution, limits, result_digest,
};

use super::scenes::{Past, reach};
use super::stage::{Seat, Stage, TICK, TTL, alone, on, resource, stores};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E03",
        layer: Layer::Effects,
        promise: "completed: replayed byte for byte (empty, null, {}, NUL, 256 KiB) to any caller, from any handle, until \
                  purged; larger: TooLarge",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(replayed(cx)),
    },
    Clause {
        id: "E07",
        layer: Layer::Effects,
        promise: "the resource's fence strictly grows over complete, release, abandon, expiry, purge and forget",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(fences(cx)),
    },
    Clause {
        id: "E08",
        layer: Layer::Effects,
        promise: "complete: the same token again gives the stored result and writes nothing, also after the resource went \
                  on; another result later: the first one stays and is returned",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(repeated(cx)),
    },
];

async fn replayed(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let whole: Vec<u8> = (0..limits::RESULT_BYTES).map(|n| (n % 251) as u8).collect();
    let results: Vec<Bytes> = vec![
        Bytes::new(),
        Bytes::from_static(b"null"),
        Bytes::from_static(b"{}"),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b"a\0\0"),
        Bytes::from_static(b" spaces \n"),
        Bytes::from_static(b"\xff\xfe\x80"),
        (0..=255_u8).collect(),
        whole.clone().into(),
    ];
    for (n, result) in results.iter().enumerate() {
        let action = alone(format!("result {n}"));
        let lease = a.grant(&action).await?;
        let kept = a.store.complete(&action, &lease, result.clone()).await.at(format!("result {n}"))?;
        ensure!(kept.result() == Some(result), "saw {kept:?} returned by the completion with result {n}");
    }
    let fresh = stage.seat("cay").await?;
    for (n, result) in results.iter().enumerate() {
        let action = alone(format!("result {n}"));
        for seat in [&a, &b, &fresh] {
            match seat.ask(&action).await? {
                Acquired::Completed(kept) => {
                    ensure!(kept.result() == Some(result), "saw {kept:?} replayed for result {n}");
                    ensure!(!kept.maybe_twice, "saw maybe_twice for an action that was done once");
                }
                other => fail!("saw {other:?}, not Completed: result {n}"),
            }
            let status = seat.get(&action).await?;
            ensure!(
                matches!(&status.replay, Some(Replay::Result(kept)) if kept == result),
                "saw {:?} from get for result {n}",
                status.replay
            );
            let Some(listed) = status.completed else {
                fail!("saw no completion in the status of result {n}")
            };
            ensure_eq!(
                (listed.len, listed.digest, listed.kept),
                (result.len() as u64, result_digest(result), true),
                "what is listed of result {n}"
            );
        }
    }
    // A ruling's result is a result.
    let action = alone("ruled");
    reach(&stage, &a, &action, Past::RuledApplied).await?;
    match b.ask(&action).await? {
        Acquired::Completed(kept) => ensure_eq!(
            kept.result().map(|result| &result[..]),
            Some(&b"as ruled"[..]),
            "what is replayed of an action that was ruled applied"
        ),
        other => fail!("saw {other:?}, not Completed: an action that was ruled applied"),
    }
    // Too large to be kept is no reason to fail.
    let mut larger = whole;
    larger.push(7);
    let larger = Bytes::from(larger);
    let action = alone("larger");
    let lease = a.grant(&action).await?;
    let kept = a.store.complete(&action, &lease, larger.clone()).await.at("a result beyond the limit")?;
    let expected = Replay::TooLarge { len: larger.len() as u64, digest: result_digest(&larger) };
    ensure_eq!(kept.replay, expected, "what is kept of a result beyond the limit");
    match b.ask(&action).await? {
        Acquired::Completed(kept) => {
            ensure_eq!(kept.replay, expected, "what is replayed of a result beyond the limit")
        }
        other => fail!("saw {other:?}, not Completed: a result beyond the limit"),
    }
    // Until it is purged.
    stage.advance(TTL);
    let mut next = PurgeRequest::older_than(TTL).limit(3);
    loop {
        let report = a.store.purge(&next).await.at("purging")?;
        ensure!(report.examined <= 3, "saw {report:?} of a batch of three");
        match report.next {
            Some(key) => next = next.after(Some(key)),
            None => break,
        }
    }
    for n in 0..results.len() {
        match b.ask(&alone(format!("result {n}"))).await? {
            Acquired::Completed(kept) => ensure_matches!(
                kept.replay,
                Replay::Purged { at } if *at == stage.now(),
                "what is replayed of a purged result"
            ),
            other => fail!("saw {other:?}, not Completed: a purged result"),
        }
    }
    Ok(())
}

async fn fences(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let steps =
        ["complete", "release", "abandon", "expiry", "mark", "purge", "forget", "forget resource", "ruling"];
    let mut last = 0;
    for round in 0..3 {
        for (n, step) in steps.into_iter().enumerate() {
            let seat = if (round + n) % 2 == 0 { &a } else { &b };
            let action = on(format!("{step} {round}"), "gate");
            let lease = seat.grant(&action).await.at(format!("before {step}"))?;
            ensure!(lease.fence > last, "saw the fence {} after {last}: before {step}", lease.fence);
            last = lease.fence;
            match step {
                "complete" => {
                    seat.finish(&lease, "done").await?;
                }
                "release" => seat.release(&lease).await?,
                "abandon" => seat.abandon(&lease).await?,
                "expiry" => stage.advance(TTL),
                "mark" => {
                    seat.mark(&lease).await?;
                    stage.advance(TTL);
                }
                "purge" => {
                    seat.finish(&lease, "done").await?;
                    let report =
                        seat.store.purge(&PurgeRequest::older_than(Duration::ZERO).limit(1_000)).await?;
                    ensure!(report.purged > 0, "saw {report:?}: purging a completed action at once");
                }
                "forget" => {
                    seat.finish(&lease, "done").await?;
                    seat.store.forget(&action.key).await.at("forgetting a key")?;
                }
                "forget resource" => {
                    seat.finish(&lease, "done").await?;
                    seat.store.forget(&action.key).await.at("forgetting a key")?;
                    seat.store.forget_resource(&resource("gate")).await.at("forgetting a resource")?;
                    // And again, which is no change.
                    seat.store
                        .forget_resource(&resource("gate"))
                        .await
                        .at("forgetting a forgotten resource")?;
                }
                _ => {
                    let episode = seat.mark(&lease).await?;
                    seat.rule(&action, episode, &Resolution::NotApplied).await?;
                    match seat.ask(&action).await? {
                        Acquired::Contended(_) => {}
                        other => fail!("saw {other:?}, not Contended: ruled while the hold is live"),
                    }
                    stage.advance(TTL);
                }
            }
        }
    }
    // The same key again and again, over every way that gives it back.
    let action = alone("phoenix");
    let mut last = 0;
    for round in 0..4 {
        let lease = a.grant(&action).await.at(format!("in life {round}"))?;
        ensure!(lease.fence > last, "saw the fence {} after {last}: in life {round}", lease.fence);
        last = lease.fence;
        a.finish(&lease, "done").await?;
        b.store.forget(&action.key).await.at("forgetting")?;
        b.store.forget_resource(&action.resource).await.at("forgetting")?;
        ensure!(b.store.get(&action.key).await?.is_none(), "saw a forgotten action");
    }
    Ok(())
}

async fn repeated(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let action = on("mail", "gate");
    let lease = a.grant(&action).await?;
    let first = a.finish(&lease, "first").await?;
    let check_same = async |seat: &Seat, when: &str| -> Outcome {
        let before = seat.raw_entries().await?;
        stage.advance(TICK);
        let again = seat.finish(&lease, "first").await.at(when)?;
        ensure_eq!(again, first, "what the same token gets again {when}");
        seat.same_entries(&before, when).await
    };
    check_same(&a, "at once").await?;
    check_same(&b, "from another handle").await?;
    stage.advance(TTL * 2);
    check_same(&a, "long after the hold would have ended").await?;
    let other = b.grant(&on("other", "gate")).await?;
    check_same(&a, "while another key holds the resource").await?;
    b.finish(&other, "other").await?;
    check_same(&b, "after another key was done on the resource").await?;
    // Another result: the first one stays.
    let second = a.finish(&lease, "second").await.at("another result")?;
    ensure_eq!(second.result(), first.result(), "the result after another one came");
    ensure!(second.maybe_twice, "saw no maybe_twice although another result came");
    match b.ask(&action).await? {
        Acquired::Completed(kept) => {
            ensure_eq!(kept.result(), first.result(), "the replayed result after another one came");
            ensure!(kept.maybe_twice, "saw no maybe_twice replayed although another result came");
        }
        other => fail!("saw {other:?}, not Completed"),
    }
    ensure_eq!(
        b.evidence(&action).await?,
        [(lease.fence, Some(Bytes::from_static(b"second")))],
        "the evidence of another result"
    );
    let before = b.raw_entries().await?;
    let third = b.finish(&lease, "second").await.at("the same other result again")?;
    ensure_eq!(third.result(), first.result(), "the result after the same other one came again");
    b.same_entries(&before, "the same other result came again").await?;
    // Every holder's verb that comes after it changes nothing.
    ensure_matches!(
        a.mark(&lease).await,
        Err(EffectError::AttemptJudged { state: ActionState::Completed }),
        "a mark of a completed attempt"
    );
    ensure_matches!(
        a.abandon(&lease).await,
        Err(EffectError::AttemptJudged { state: ActionState::Completed }),
        "an abandon of a completed attempt"
    );
    ensure_matches!(
        a.renew(&lease).await,
        Err(EffectError::AttemptJudged { .. } | EffectError::FenceStale { .. } | EffectError::LeaseLost),
        "a renewal of a completed attempt"
    );
    b.same_entries(&before, "late verbs of a completed attempt").await?;
    // A race of the same completion.
    let seats = stage.seats(4).await?;
    for round in cx.rounds(5, 60) {
        let action = alone(format!("race {round}"));
        let lease = seats[0].grant(&action).await?;
        let calls = (0..8).map(|n| {
            let (store, action, lease) = (stores(&seats)[n % 4].clone(), action.clone(), lease.clone());
            tokio::spawn(
                async move { store.complete(&action, &lease, Bytes::from(format!("{}", n % 2))).await },
            )
        });
        let mut results = std::collections::BTreeSet::new();
        for call in calls.collect::<Vec<_>>() {
            let kept = call.await?.at("completing in a race")?;
            results.insert(kept.result().cloned());
        }
        ensure_eq!(results.len(), 1, "the different results that one token was told");
        let evidence = seats[1].evidence(&action).await?;
        ensure_eq!(evidence.len(), 1, "the evidence of two results in a race");
        ensure!(!results.contains(&evidence[0].1), "saw the result that counts as evidence too");
    }
    Ok(())
}
