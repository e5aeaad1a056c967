//! E11, E22, E24 and E28: what is refused because of what it names, and what is told apart.

use std::time::Duration;

use coord_core::effects::{
    Action, ActionState, EffectError, Fingerprint, Lease, ListFilter, Note, Outcome as Acquired, Resolution,
};
use coord_core::{Bytes, Timestamp, Token};

use super::scenes::{Past, reach};
use super::stage::{Seat, Stage, TTL, alone, applied, key, note, on, resource};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure, ensure_eq, ensure_matches, fail};

pub(crate) const CLAUSES: &[Clause] = &[
    Clause {
        id: "E11",
        layer: Layer::Effects,
        promise: "any verb with a made-up lease, another key's or another resource's: refused, nothing created",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(made_up(cx)),
    },
    Clause {
        id: "E11.secrets",
        layer: Layer::Effects,
        promise: "no answer but its holder's shows a token: not outcomes, status, lists, history or errors",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(secrets(cx)),
    },
    Clause {
        id: "E22",
        layer: Layer::Effects,
        promise: "same key with another resource or fingerprint (or one given, one not), in every state: Mismatch, the \
                  original untouched, its result not shown",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(mismatches(cx)),
    },
    Clause {
        id: "E24",
        layer: Layer::Effects,
        promise: "ttl zero, overflowing: Invalid, never an instantly dead lease",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(ttls(cx)),
    },
    Clause {
        id: "E28",
        layer: Layer::Effects,
        promise: "separators: (\"a:b\",\"c\") and (\"a\",\"b:c\"), keys that begin with one another, unicode forms: all distinct",
        needs: Needs::NOTHING,
        body: |cx| Box::pin(distinct(cx)),
    },
];

/// Every verb that an attempt has.
const VERBS: [&str; 5] = ["complete", "mark", "renew", "release", "abandon"];

async fn try_verb(seat: &Seat, verb: &str, action: &Action, lease: &Lease) -> Result<(), EffectError> {
    let why = Note::truncated("made up");
    match verb {
        "complete" => seat.store.complete(action, lease, Bytes::from_static(b"made up")).await.map(drop),
        "mark" => seat.store.mark_uncertain(action, lease, &why).await.map(drop),
        "renew" => seat.store.renew(action, lease, TTL).await.map(drop),
        "release" => seat.store.release(action, lease).await,
        _ => seat.store.abandon(action, lease, &why).await,
    }
}

async fn made_up(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    for past in Past::ALL {
        let action = on(format!("{past:?}"), format!("gate {past:?}"));
        let genuine = reach(&stage, &a, &action, past).await?;
        let other_action = on(format!("other {past:?}"), format!("other gate {past:?}"));
        let other = b.grant(&other_action).await?;
        let mut lease = genuine.clone().unwrap_or_else(|| Lease { action: action.clone(), ..other.clone() });
        lease.token = Token::mint();
        let mut cases: Vec<(&str, Action, Lease)> = vec![
            ("a made-up token", action.clone(), lease.clone()),
            ("another key's lease", action.clone(), other.clone()),
            ("another key's token", action.clone(), Lease { token: other.token.clone(), ..lease.clone() }),
        ];
        if let Some(genuine) = &genuine {
            let elsewhere = Action::new(action.key.clone()).resource(resource("elsewhere"));
            cases.push(("another resource", elsewhere.clone(), genuine.clone()));
            cases.push((
                "another resource, in the lease too",
                elsewhere.clone(),
                Lease { action: elsewhere.clone(), ..genuine.clone() },
            ));
            cases.push(("a lease for another key", other_action.clone(), genuine.clone()));
        }
        let whole = a.raw_entries().await?;
        for (what, action, lease) in &cases {
            for verb in VERBS {
                let place = format!("{verb} with {what}, the key being {past:?}");
                for seat in [&a, &b] {
                    let answer = try_verb(seat, verb, action, lease).await;
                    ensure_matches!(
                        answer,
                        Err(EffectError::LeaseLost
                            | EffectError::Mismatch { .. }
                            | EffectError::NeverAcquired { .. }
                            | EffectError::FenceStale { .. }),
                        "{place}"
                    );
                    if *what == "a made-up token" {
                        if past == Past::Never {
                            ensure_matches!(answer, Err(EffectError::NeverAcquired { .. }), "{place}");
                        } else {
                            ensure_matches!(answer, Err(EffectError::LeaseLost), "{place}");
                        }
                    }
                }
                a.same_entries(&whole, &place).await?;
            }
        }
        // A genuine token under a fence that was not given with it holds nothing.
        if past == Past::InFlight
            && let Some(genuine) = &genuine
        {
            for fence in [genuine.fence + 1, genuine.fence - 1, 0, u64::MAX] {
                let lease = Lease { fence, ..genuine.clone() };
                for verb in ["renew", "release"] {
                    let place = format!("{verb} with the fence {fence}");
                    ensure_matches!(
                        try_verb(&a, verb, &action, &lease).await,
                        Err(EffectError::LeaseLost | EffectError::FenceStale { .. }),
                        "{place}"
                    );
                    a.same_entries(&whole, &place).await?;
                }
            }
        }
        // A made-up right to judge.
        if past.is_uncertain() {
            let episode = b.uncertain(&action).await?.episode;
            let whole = a.raw_entries().await?;
            let attempt = genuine.map_or_else(Token::mint, |lease| lease.token);
            for token in [Token::mint(), other.token.clone(), attempt] {
                let answer = a
                    .store
                    .resolve_owned(&action, episode, &Resolution::NotApplied, &note("made up"), &token)
                    .await;
                ensure_matches!(
                    answer,
                    Err(EffectError::ReconcileLost { .. }),
                    "ruling with a made-up right, {past:?}"
                );
                a.same_entries(&whole, "a made-up right to judge").await?;
            }
        }
    }
    Ok(())
}

async fn secrets(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let mut tokens: Vec<String> = Vec::new();
    let mut shown: Vec<(String, String)> = Vec::new();
    for past in Past::ALL {
        let action = on(format!("{past:?}"), format!("gate {past:?}"));
        if let Some(lease) = reach(&stage, &a, &action, past).await? {
            tokens.push(lease.token.reveal());
            for verb in VERBS {
                let mut wrong = lease.clone();
                wrong.token = Token::mint();
                shown.push((
                    format!("{verb}, {past:?}"),
                    format!("{:?}", try_verb(&b, verb, &action, &wrong).await),
                ));
            }
            let mismatch = Action::new(action.key.clone()).resource(resource("elsewhere"));
            shown.push((
                format!("a mismatch, {past:?}"),
                format!("{:?}", b.store.acquire(&mismatch, TTL).await),
            ));
        }
        if past.is_uncertain() {
            let right = a.look_into(&action).await?;
            tokens.push(right.token.reveal());
            shown.push((format!("a second look, {past:?}"), format!("{:?}", b.look_into(&action).await)));
        }
        let asked = b.ask(&on(format!("other {past:?}"), action.resource.as_str())).await?;
        match asked {
            Acquired::Granted(lease) => tokens.push(lease.token.reveal()),
            other => shown.push((format!("another key, {past:?}"), deep(&other))),
        }
        let status = b.store.get(&action.key).await?;
        if let Some(status) = &status {
            shown.push((format!("the key for downstream, {past:?}"), status.downstream_key.clone()));
        }
        shown.push((format!("get, {past:?}"), format!("{status:?}")));
        shown.push((format!("history, {past:?}"), format!("{:?}", b.store.history(&action.key).await?)));
        if past != Past::Never {
            let again = b.ask(&action).await?;
            match again {
                Acquired::Granted(lease) => tokens.push(lease.token.reveal()),
                other => shown.push((format!("acquire, {past:?}"), deep(&other))),
            }
        }
    }
    shown.push(("list".to_owned(), format!("{:?}", b.store.list(&ListFilter::all()).await?)));
    ensure!(tokens.len() > 10, "saw only {} tokens", tokens.len());
    for (place, text) in &shown {
        for token in &tokens {
            ensure!(!text.contains(token.as_str()), "saw a token in the answer to {place}");
        }
    }
    // Tokens are unique, and long.
    let mut sorted = tokens.clone();
    sorted.sort();
    sorted.dedup();
    ensure_eq!(sorted.len(), tokens.len(), "the different tokens");
    Ok(())
}

/// An outcome with all its texts.
fn deep(outcome: &Acquired) -> String {
    match outcome {
        Acquired::Completed(kept) => format!("{kept:?} {:?}", kept.result()),
        other => format!("{other:?}"),
    }
}

async fn mismatches(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let print = |text: &str| Fingerprint::of_bytes(text.as_bytes());
    for past in Past::ALL {
        if past == Past::Never {
            continue;
        }
        for given in [true, false] {
            let place = format!("{past:?}, with a fingerprint: {given}");
            let plain = on(format!("mail {place}"), format!("gate {place}"));
            let action = if given { plain.clone().fingerprint(print("ada, 10")) } else { plain.clone() };
            let Some(lease) = reach(&stage, &a, &action, past).await? else { fail!("saw no lease: {place}") };
            let mut others = vec![
                ("another resource", action.clone().resource(resource(format!("other gate {place}")))),
                ("another fingerprint", plain.clone().fingerprint(print("ada, 11"))),
            ];
            if given {
                others.push(("no fingerprint", plain.clone()));
            }
            let whole = b.raw_entries().await?;
            for (what, other) in others {
                let place = format!("{what}, the original being {place}");
                let claimed = Lease { action: other.clone(), ..lease.clone() };
                let episode = coord_core::effects::Episode::new(1, 1);
                let mut answers: Vec<(&str, Result<(), EffectError>)> = Vec::new();
                let acquired = b.store.acquire(&other, TTL).await;
                answers.push(("acquire", acquired.map(drop)));
                for verb in VERBS {
                    answers.push((verb, try_verb(&a, verb, &other, &claimed).await));
                }
                answers.push(("begin_reconcile", b.look_into(&other).await.map(drop)));
                answers.push(("resolve", b.rule(&other, episode, &applied("no")).await.map(drop)));
                for (verb, answer) in answers {
                    let Err(EffectError::Mismatch { key, state }) = &answer else {
                        fail!("saw {answer:?}, not Mismatch: {verb} with {place}")
                    };
                    ensure_eq!(*key, action.key, "the key: {verb} with {place}");
                    let right = match past {
                        Past::InFlight => *state == ActionState::InFlight,
                        Past::Expired | Past::Released => {
                            matches!(state, ActionState::Lapsed | ActionState::Uncertain)
                        }
                        _ if past.is_uncertain() => *state == ActionState::Uncertain,
                        _ if past.is_completed() => *state == ActionState::Completed,
                        _ => *state == ActionState::Idle,
                    };
                    ensure!(right, "saw the state {state} told: {verb} with {place}");
                    let text = format!("{answer:?}").replace(action.key.as_str(), "");
                    ensure!(
                        !text.contains("done") && !text.contains("as ruled"),
                        "saw {text}: {verb} with {place}"
                    );
                }
                b.same_entries(&whole, &place).await?;
            }
        }
    }
    // The same identity with other content is the same action.
    let first = alone("worded").fingerprint(print("ada").with_content(&"Dear Ada")?);
    let again = alone("worded").fingerprint(print("ada").with_content(&"Hello Ada")?);
    let lease = a.grant(&first).await?;
    match b.ask(&again).await? {
        Acquired::InFlight(_) => {}
        other => fail!("saw {other:?}, not InFlight: the same action, worded anew"),
    }
    a.finish(&lease, "sent").await?;
    match b.ask(&again).await? {
        Acquired::Completed(kept) => {
            ensure_eq!(
                kept.result().map(|result| &result[..]),
                Some(&b"sent"[..]),
                "the replay of what is worded anew"
            );
        }
        other => fail!("saw {other:?}, not Completed: the same action, worded anew"),
    }
    // A fresh life may be something else.
    b.store.forget(&first.key).await?;
    let other = on("worded", "elsewhere").fingerprint(print("bob"));
    a.grant(&other).await.at("another action under a forgotten key")?;
    Ok(())
}

async fn ttls(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let micros = u64::try_from(Timestamp::MAX.saturating_since(stage.now()).as_micros()).unwrap_or(u64::MAX);
    let longest = Duration::from_micros(micros);
    let bad = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_nanos(999),
        longest + Duration::from_micros(1),
        Duration::from_secs(u64::MAX / 1_000_000),
        Duration::MAX,
    ];
    let held = alone("held");
    let lease = a.grant(&held).await?;
    let uncertain = alone("uncertain");
    reach(&stage, &a, &uncertain, Past::Marked).await?;
    let whole = b.raw_entries().await?;
    for ttl in bad {
        let place = format!("a ttl of {ttl:?}");
        let answers = [
            (
                "acquire of a new key",
                a.store.acquire(&alone("new"), ttl).await.map(|outcome| format!("{outcome:?}")),
            ),
            ("renew", a.store.renew(&held, &lease, ttl).await.map(|lease| format!("{lease:?}"))),
            (
                "begin_reconcile",
                a.store.begin_reconcile(&uncertain, ttl).await.map(|right| format!("{right:?}")),
            ),
        ];
        for (verb, answer) in answers {
            ensure_matches!(answer, Err(EffectError::Invalid(_)), "{verb} with {place}");
        }
        b.same_entries(&whole, &place).await?;
    }
    // The shortest and the longest that there are.
    let shortest = a.grant_for(&alone("short"), Duration::from_micros(1)).await?;
    ensure_eq!(shortest.until.as_micros(), stage.now().as_micros() + 1, "the end of the shortest hold");
    let longest = a.grant_for(&alone("long"), longest).await?;
    ensure_eq!(longest.until, Timestamp::MAX, "the end of the longest hold");
    stage.advance(TTL);
    match b.ask(&alone("long")).await? {
        Acquired::InFlight(holder) => ensure_eq!(holder.until, Timestamp::MAX, "the end of the longest hold"),
        other => fail!("saw {other:?}, not InFlight: the longest hold"),
    }
    match b.ask(&alone("short")).await? {
        Acquired::Uncertain(_) => Ok(()),
        other => fail!("saw {other:?}, not Uncertain: the shortest hold"),
    }
}

async fn distinct(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let long = "k".repeat(200);
    let longer = format!("{}é", "k".repeat(198));
    let names: Vec<&str> = vec![
        "a",
        "a:b",
        "a:b:c",
        "b:c",
        "c",
        "a/b",
        "a//b",
        "/a",
        "a/",
        "a\\b",
        "a%2Fb",
        "a%b",
        "a_b",
        "a*",
        "a?",
        "[a]",
        "{a}",
        "a b",
        " a",
        "a ",
        "A",
        "\u{e9}",
        "e\u{301}",
        "e",
        "\u{212b}",
        "\u{c5}",
        "A\u{30a}",
        "ſ",
        "s",
        "ß",
        "ss",
        "😀",
        "😀😀",
        "\u{200f}a",
        "a\u{200d}",
        "\n",
        "a\n",
        "\u{10ffff}",
        "1",
        "01",
        "1a",
        "3:abc",
        "abc",
        "act/a",
        "out/a",
        "res/a",
        "open/a",
        "floor",
        "ev/a/0",
        &long,
        &longer,
    ];
    // One resource for all keys, in pairs that a separator would join.
    for (n, (first, second)) in
        [(("a:b", "c"), ("a", "b:c")), (("x/y", "z"), ("x", "y/z")), (("1a", "b"), ("1", "ab"))]
            .into_iter()
            .enumerate()
    {
        let one = a.grant(&on(first.0, first.1)).await?;
        let two = b.grant(&on(second.0, second.1)).await.at(format!("pair {n}"))?;
        a.finish(&one, "one").await?;
        b.finish(&two, "two").await?;
        for (pair, expected) in [(first, "one"), (second, "two")] {
            match b.ask(&on(pair.0, pair.1)).await? {
                Acquired::Completed(kept) => ensure_eq!(
                    kept.result().map(|result| &result[..]),
                    Some(expected.as_bytes()),
                    "the result of {pair:?}"
                ),
                other => fail!("saw {other:?}, not Completed: {pair:?}"),
            }
        }
        for pair in [first, second] {
            b.store.forget(&key(pair.0)).await?;
            b.store.forget_resource(&resource(pair.1)).await?;
        }
    }
    // Every name as key and resource at once, all of them in flight together.
    let mut leases = Vec::new();
    for name in &names {
        leases.push(a.grant(&alone(name)).await.at(format!("the name {name:?}"))?);
    }
    let mut downstream: Vec<&str> = leases.iter().map(|lease| lease.downstream_key.as_str()).collect();
    downstream.sort_unstable();
    downstream.dedup();
    ensure_eq!(downstream.len(), names.len(), "the different keys for downstream");
    let listed = b.store.list(&ListFilter::all()).await?;
    let mut expected: Vec<&str> = names.clone();
    expected.sort_unstable();
    let seen: Vec<&str> = listed.actions.iter().map(|status| status.action.key.as_str()).collect();
    ensure_eq!(seen, expected, "the keys of the list, in their order");
    for (n, lease) in leases.iter().enumerate() {
        if n % 2 == 0 {
            a.finish(lease, &format!("result of {n}")).await?;
        }
    }
    for (n, name) in names.iter().enumerate() {
        match b.ask(&alone(name)).await? {
            Acquired::Completed(kept) if n % 2 == 0 => {
                let expected = format!("result of {n}");
                ensure_eq!(
                    kept.result().map(|result| &result[..]),
                    Some(expected.as_bytes()),
                    "the result of the name {name:?}"
                );
            }
            Acquired::InFlight(holder) if n % 2 == 1 => {
                ensure_eq!(holder.key.as_str(), *name, "who holds the resource {name:?}");
            }
            other => fail!("saw {other:?}: the name {name:?}"),
        }
        if n % 2 == 0 {
            b.store.forget(&key(name)).await.at(format!("forgetting {name:?}"))?;
            ensure!(b.store.get(&key(name)).await?.is_none(), "saw {name:?} after it was forgotten");
        }
    }
    let left = b.store.list(&ListFilter::all()).await?;
    ensure_eq!(left.actions.len(), names.len() / 2, "the actions left after every other one was forgotten");
    Ok(())
}
