//! T28: ids are bytes.

use coord_core::board::{Added, Board as _, BoardError, Dep, ExtendedBoard as _, State, TaskId, TaskSpec};

use super::stage::{Stage, id, result};
use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::{ensure_eq, ensure_matches};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "T28",
    layer: Layer::Board,
    promise: "ids with / : { } % _ *, emoji, right-to-left and combining characters, and ids that begin with one another",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(names(cx)),
}];

fn all() -> Vec<TaskId> {
    let long = "x".repeat(200);
    let wide = "\u{10FFFF}".repeat(50);
    let texts = [
        "a",
        "ab",
        "abc",
        "a/",
        "a/b",
        "/a",
        "/",
        "//",
        ":",
        "a:b",
        "a:c",
        "{",
        "}",
        "{a}",
        "%",
        "%%",
        "%2F",
        "%25",
        "%252F",
        "_",
        "__",
        "a_",
        "*",
        "a*",
        "?",
        "[a]",
        "\\",
        "\\\\",
        "'",
        "\"",
        "`",
        "$a",
        "^",
        "|",
        "~",
        "#",
        "&",
        "=",
        "+",
        "-",
        "--",
        ".",
        "..",
        "../a",
        " ",
        "  ",
        " a",
        "a ",
        "\t",
        "\n",
        "a\n",
        "\r\n",
        "\u{1}",
        "\u{7f}",
        "A",
        "AB",
        "Ab",
        "I",
        "i",
        "\u{130}",
        "\u{131}",
        "\u{e9}",
        "e\u{301}",
        "e",
        "\u{c5}",
        "A\u{30a}",
        "\u{212b}",
        "\u{1e9e}",
        "\u{df}",
        "ss",
        "\u{fb01}",
        "fi",
        "\u{1f600}",
        "\u{1f469}\u{200d}\u{1f680}",
        "\u{1f469}",
        "\u{1f3f3}\u{fe0f}",
        "\u{1f3f3}",
        "\u{5e9}\u{5dc}\u{5d5}\u{5dd}",
        "\u{202e}a",
        "\u{202d}a",
        "\u{200b}",
        "a\u{200b}",
        "\u{feff}a",
        "\u{3000}",
        "\u{10ffff}",
        "\u{ffff}",
        "\u{fffd}",
        "0",
        "00",
        "1",
        "01",
        "1:a",
        "1/a",
        "0001a",
        "3:abc",
        "task/a",
        "def/a",
        "topo",
        "task",
        "board",
        "rdy/a",
        "null",
        "true",
    ];
    let mut ids: Vec<TaskId> = texts.into_iter().map(id).collect();
    ids.extend([id(&long), id(&long[..199]), id(&wide), id(format!("{}y", &long[..199]))]);
    ids
}

async fn names(cx: Context) -> Outcome {
    let stage = Stage::new(&cx);
    let (a, b) = stage.pair().await?;
    let ids = all();
    for name in &ids {
        let added = a.board.add(TaskSpec::new(name.clone()).title(name.as_str())).await;
        ensure_eq!(added.at(format!("adding {name:?}"))?, Added::New, "the answer to a new id {name:?}");
    }
    let mut sorted = ids.clone();
    sorted.sort();
    let listed: Vec<TaskId> = b.list().await?.into_iter().map(|task| task.id).collect();
    ensure_eq!(listed, sorted, "the ids of a listing");
    // What is done to one of them is done to no other.
    for (n, name) in ids.iter().enumerate() {
        let before = b.list().await?;
        ensure_eq!(b.get(name).await?.title, name.as_str(), "the title of {name:?}");
        let next = &ids[(n + 1) % ids.len()];
        if n + 1 < ids.len() {
            a.board.set_deps(name, &[Dep::from(next)], None).await.at(format!("{name:?} to {next:?}"))?;
            match b.try_claim(name, "w").await {
                Err(BoardError::Blocked { pending, .. }) => {
                    ensure_eq!(pending, std::slice::from_ref(next), "what {name:?} waits for");
                }
                other => ensure_matches!(other, Err(BoardError::Blocked { .. }), "a claim of {name:?}"),
            }
            a.board.set_deps(name, &[], None).await?;
        }
        let claim = b.claim(name, name.as_str()).await?;
        ensure_eq!(claim.task.id, *name, "the id of what was claimed");
        a.board
            .complete(name, &claim.lease.token, result("done"))
            .await
            .at(format!("completing {name:?}"))?;
        let after = b.list().await?;
        for (old, new) in before.iter().zip(&after) {
            if old.id == *name {
                ensure_eq!((new.state, &new.id), (State::Done, name), "the task that was completed");
            } else {
                ensure_eq!(new, old, "another task than {name:?}, which was completed");
            }
        }
    }
    // Neither does one go with another.
    for (n, name) in ids.iter().enumerate().step_by(2) {
        b.board.remove(name).await.at(format!("removing {name:?}"))?;
        let gone = a.board.get(name).await;
        ensure_matches!(gone, Err(BoardError::NotFound { .. }), "get of the removed {name:?}");
        if let Some(next) = ids.get(n + 1) {
            ensure_eq!(a.get(next).await?.id, *next, "the id of its neighbour");
        }
    }
    let mut left: Vec<TaskId> = ids.iter().skip(1).step_by(2).cloned().collect();
    left.sort();
    let listed: Vec<TaskId> = a.list().await?.into_iter().map(|task| task.id).collect();
    ensure_eq!(listed, left, "the ids that are left");
    for bad in [id(""), id("a\0b"), id("x".repeat(201))] {
        for (verb, answer) in [
            ("add", a.board.add(TaskSpec::new(bad.clone())).await.map(|_| ())),
            ("get", a.board.get(&bad).await.map(|_| ())),
            ("claim", a.try_claim(&bad, "w").await.map(|_| ())),
            ("remove", a.board.remove(&bad).await),
        ] {
            ensure_matches!(
                answer,
                Err(BoardError::Invalid(_) | BoardError::TooLarge { .. }),
                "{verb} of an id of {} bytes that is none",
                bad.as_str().len()
            );
        }
    }
    Ok(())
}
