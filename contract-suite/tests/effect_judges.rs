//! The clauses of side effects on the store under one key: the right one passes them, and every wrong one fails the clause that is
//! named for it.

use std::process::ExitCode;
use std::sync::Arc;

use contract_suite::judges::trials::{self, Judges};
use contract_suite::judges::{OneKeyEffectsHarness, WrongEffects};
use contract_suite::{Clause, Layer, Options, clauses};

/// The clause that must fail on each wrong store; some have several.
fn killed() -> impl Iterator<Item = (WrongEffects, &'static str)> {
    let alone = WrongEffects::ALL.iter().map(|wrong| (*wrong, wrong.clause()));
    alone.chain([
        (WrongEffects::LapsedGrantedAgain, "E26.histories"),
        (WrongEffects::ReleasedGrantedAgain, "E26.histories"),
        (WrongEffects::EvidenceDropped, "E26.histories"),
        (WrongEffects::AcquireUnasserted, "E26.histories"),
        (WrongEffects::UnknownIsApplied, "E26.histories"),
        (WrongEffects::AcquireUnasserted, "E30"),
        (WrongEffects::LapsedGrantedAgain, "E30.killed"),
        (WrongEffects::MarkInTwo, "E30.killed"),
    ])
}

fn effects() -> impl Iterator<Item = &'static Clause> {
    clauses().iter().filter(|clause| clause.layer == Layer::Effects)
}

fn main() -> ExitCode {
    let judges = Judges {
        kind: "store",
        variable: "COORD_SUITE_JUDGE",
        wrong: WrongEffects::ALL,
        what: WrongEffects::what,
        put: |subject, wrong| subject.with_effects(Arc::new(OneKeyEffectsHarness { wrong })),
        patience_with_wrong: Options::default().patience,
        threads: 2,
    };
    trials::main(judges, |trials| {
        trials.right_passes(effects());
        for (wrong, id) in killed() {
            trials.fails_on(wrong, id);
        }
        // The clauses of the guard have wrong guards.
        let ours = effects().filter(|clause| clause.id.starts_with('E'));
        trials.all_are_named(ours, killed().map(|(_, id)| id));
    })
}
