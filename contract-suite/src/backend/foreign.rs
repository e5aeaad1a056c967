//! B45: what is not ours.

use coord_core::{Assert, Backend, BackendError, ErrorKind, Key, KeySet, Mutation, Txn, Version};

use crate::clause::{Clause, Layer, Needs, Outcome, Verdict, VerdictContext};
use crate::context::Context;
use crate::harness::{Control, ControlError};
use crate::probe::{Probe, key, put};
use crate::{ensure, ensure_eq, fail};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B45",
    layer: Layer::Backend,
    promise: "foreign bytes or a foreign type under one of our keys: `Corrupt`, untouched",
    needs: Needs::controls(&[Control::Foreign]),
    body: |cx| Box::pin(untouched(cx)),
}];

fn failed(error: ControlError) -> Verdict {
    Verdict::Failed(format!("saw the harness fail: {error}"))
}

async fn untouched(cx: Context) -> Outcome {
    let server = cx.server(Control::Foreign)?;
    let handles = cx.handles(2).await?;
    let fine = key("fine");
    let mut variants = 0;
    for was_there in [false, true] {
        for variant in 0.. {
            let name = key(format!("foreign/{was_there}/{variant}"));
            let mut last = Version::MISSING;
            if was_there {
                last = handles[0].set(&name, "ours").await?;
                // Seen by both, so that a cache would hold it.
                handles[1].entry(&name).await?;
            }
            handles[0].set(&fine, &variant.to_string()).await?;
            if !server.write_foreign(cx.namespace(), &name, variant).await.map_err(failed)? {
                handles[0].unset(&name).await?;
                break;
            }
            variants += 1;
            let raw = server.read_raw(cx.namespace(), &name).await.map_err(failed)?;
            ensure!(raw.is_some(), "saw nothing where the harness has written the foreign variant {variant}");
            for handle in &handles {
                refused(&**handle, &name, &fine, last).await.at(format!("foreign variant {variant}"))?;
                let now = server.read_raw(cx.namespace(), &name).await.map_err(failed)?;
                ensure!(now == raw, "saw the foreign variant {variant} changed");
            }
            server.remove_raw(cx.namespace(), &name).await.map_err(failed)?;
            // Once it is gone the key is as any other.
            for handle in &handles {
                ensure!(
                    !handle.entry(&name).await?.is_present(),
                    "saw {name:?} present after it was removed"
                );
            }
            handles[1]
                .commit(&[Assert::missing(name.clone())], &[Mutation::put(name.clone(), "ours")])
                .await?;
            handles[0].unset(&name).await?;
        }
    }
    ensure!(variants >= 2, "saw a harness that can write foreign bytes but has no variant of them");
    Ok(())
}

fn corrupt<T: std::fmt::Debug>(answer: Result<T, BackendError>, what: &str) -> Outcome {
    match answer {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(()),
        Err(error) => fail!("saw the error \"{error}\", not `Corrupt`: {what}"),
        Ok(answer) => fail!("saw {answer:?}, not `Corrupt`: {what}"),
    }
}

/// Every call that meets the key is refused and changes nothing; those that do not are answered.
async fn refused(handle: &dyn Backend, name: &Key, fine: &Key, last: Version) -> Outcome {
    let before = handle.entry(fine).await.at("another key")?;
    for keys in [
        vec![name.clone()],
        vec![fine.clone(), name.clone()],
        vec![key("absent"), name.clone(), fine.clone()],
    ] {
        corrupt(handle.snapshot(&KeySet::new(keys)?).await, "a snapshot with the key")?;
    }
    let asserts = [
        ("that it is missing", Assert::missing(name.clone())),
        ("a version", Assert::version(name.clone(), Version::new(5, 5).unwrap_or(Version::MISSING))),
        ("the version that it had", Assert::version(name.clone(), last)),
    ];
    for (what, assert) in asserts {
        for mutations in [
            vec![],
            vec![Mutation::put(name.clone(), "x")],
            vec![put("new", "x"), Mutation::put(fine.clone(), "x")],
        ] {
            let txn = Txn::new([assert.clone()], mutations)?;
            corrupt(handle.txn(&txn).await, &format!("a transaction that asserts {what}"))?;
        }
    }
    for mutation in [Mutation::put(name.clone(), "x"), Mutation::delete(name.clone())] {
        corrupt(handle.txn(&Txn::new([], [mutation.clone()])?).await, "an unconditional write of the key")?;
        let among = Txn::new([], [put("new", "x"), mutation, Mutation::put(fine.clone(), "x")])?;
        corrupt(handle.txn(&among).await, "a transaction that writes the key among others")?;
    }
    ensure_eq!(handle.entry(fine).await?, before, "the entry of another key after all refusals");
    ensure!(!handle.entry(&key("new")).await?.is_present(), "saw a key that a refused transaction has put");
    // A listing may say that it met something foreign, or list the key, but it must not fail in another way.
    match handle.list("fine").await {
        Ok(listed) => ensure_eq!(listed, std::slice::from_ref(fine), "a listing of other keys"),
        Err(verdict) => return Err(verdict.context("a listing of other keys")),
    }
    Ok(())
}
