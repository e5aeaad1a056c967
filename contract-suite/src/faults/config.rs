//! B46: a server that would lose what it has acknowledged.

use coord_core::{ErrorKind, KeySet};

use crate::clause::{Clause, Layer, Needs, Outcome, VerdictContext};
use crate::context::Context;
use crate::harness::Misconfiguration;
use crate::{ensure, ensure_eq, fail, skip};

use super::trouble::bounded;

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B46",
    layer: Layer::Backend,
    promise: "a server that would lose acknowledged state silently is refused at connect with `Config`, unless the URL says so \
              (`durability=…`): Redis without `appendonly yes` and `appendfsync always` or with an evicting policy, a \
              read-only replica, PostgreSQL with `fsync=off`",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(misconfigured(cx)),
}];

async fn misconfigured(cx: Context) -> Outcome {
    let mut tried = 0;
    for fault in Misconfiguration::ALL {
        let place = format!("a server that is {fault:?}");
        let opened = cx.harness().open_misconfigured(*fault);
        match bounded(&cx, "the connecting", opened).await.at(&place)? {
            None => continue,
            Some(Ok(_)) => fail!("{place}: saw it accepted"),
            Some(Err(error)) => {
                ensure_eq!(error.kind(), ErrorKind::Config, "{place}: the kind of the error \"{error}\"");
                ensure!(!error.message().is_empty(), "{place}: saw an error that does not say what to fix");
            }
        }
        tried += 1;
    }
    if tried == 0 {
        skip!("the harness has no server with a wrong setting");
    }
    // The right one is not refused.
    cx.open().await?.snapshot(&KeySet::empty()).await?;
    Ok(())
}
