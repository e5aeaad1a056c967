//! The contract as a document, generated from the registry.

use std::fmt::Write as _;

use crate::clause::{Clause, Layer, clauses};

/// The contract as Markdown: every clause with its id, its promise and what it needs, by layers. `docs/contract.md` is this text.
#[must_use]
pub fn contract_markdown() -> String {
    markdown(clauses())
}

/// These clauses as Markdown.
#[must_use]
pub fn markdown<'a>(clauses: impl IntoIterator<Item = &'a Clause>) -> String {
    let mut text = String::from(
        "# The contract\n\n\
         <!-- Generated from the registry of the contract suite; change the clauses, not this file. To write it again:\n     \
         COORD_SUITE_WRITE=1 cargo test -p contract-suite --test contract_document -->\n\n\
         Every promise has a stable id and one test in the contract suite. A part of a promise that needs more than the rest of it has\n\
         an id of its own, as `B19.processes`. Each test runs in a fresh namespace, with at least two handles that were connected\n\
         separately. What cannot be tried on a store is reported as skipped, with the reason, never as passed.\n",
    );
    let mut layer = None;
    for clause in clauses {
        if layer != Some(clause.layer) {
            layer = Some(clause.layer);
            let heading = match clause.layer {
                Layer::Backend => "Backends: the three primitives",
                Layer::Board => "Boards",
                Layer::Effects => "Side effects",
            };
            // Writing to a String cannot fail, here and below.
            let _ = write!(text, "\n## {heading}\n\n| id | promise | needs |\n|---|---|---|\n");
        }
        let promise = clause.promise.replace('|', "\\|");
        let _ = writeln!(text, "| {} | {promise} | {} |", clause.id, needs(clause));
    }
    text
}

fn needs(clause: &Clause) -> String {
    let mut needs: Vec<String> =
        clause.needs.controls.iter().map(|control| format!("to {control}")).collect();
    if clause.needs.processes {
        needs.push("several processes".to_owned());
    }
    if clause.needs.exclusive {
        needs.push("to run alone".to_owned());
    }
    needs.join(", ")
}
