//! The clauses of the guard on the plain guard: the right one passes them, and every wrong one fails the clause that is named for it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use contract_suite::judges::trials::{self, Judges};
use contract_suite::judges::{PlainGuard, WrongGuard};
use contract_suite::{Clause, clauses};

fn guards() -> impl Iterator<Item = &'static Clause> {
    clauses().iter().filter(|clause| clause.id.starts_with('G'))
}

fn main() -> ExitCode {
    let judges = Judges {
        kind: "guard",
        variable: "COORD_SUITE_GUARD",
        wrong: WrongGuard::ALL,
        what: WrongGuard::what,
        put: |subject, wrong| subject.with_guard(Arc::new(PlainGuard { wrong })),
        // Most wrong ones are waited for in vain.
        patience_with_wrong: Duration::from_secs(5),
        threads: 4,
    };
    trials::main(judges, |trials| {
        trials.right_passes(guards());
        for wrong in WrongGuard::ALL.iter().copied() {
            trials.fails_on(wrong, wrong.clause());
        }
        trials.all_are_named(guards(), WrongGuard::ALL.iter().map(|wrong| wrong.clause()));
    })
}
