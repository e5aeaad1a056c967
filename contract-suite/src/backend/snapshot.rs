//! B01 to B03: what a snapshot answers.

use coord_core::{Entry, Key, KeySet, Mutation, Txn};

use crate::clause::{Clause, Layer, Needs, Outcome};
use crate::context::Context;
use crate::{ensure, ensure_eq};

pub(crate) const CLAUSES: &[Clause] = &[Clause {
    id: "B01",
    layer: Layer::Backend,
    promise: "an absent key is returned as absent; exactly the requested keys come back, duplicates once",
    needs: Needs::NOTHING,
    body: |cx| Box::pin(requested_keys(cx)),
}];

async fn requested_keys(cx: Context) -> Outcome {
    let handles = cx.handles(2).await?;
    let (there, absent) = (Key::new("there")?, Key::new("absent")?);
    let _ = handles[0].txn(&Txn::new([], [Mutation::put(there.clone(), "v")])?).await?;
    for handle in &handles {
        let snapshot = handle
            .snapshot(&KeySet::new([there.clone(), absent.clone(), there.clone(), absent.clone()])?)
            .await?;
        ensure_eq!(snapshot.len(), 2, "entries of a snapshot of two keys, each asked for twice");
        ensure_eq!(snapshot.get(&absent), Some(&Entry::Absent), "the entry of an absent key");
        ensure!(snapshot.require(&there)?.is_present(), "saw a key as absent that had been put");
    }
    Ok(())
}
