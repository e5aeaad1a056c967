//! The clauses of the board on the board under one key: the right one passes them, and every wrong one fails the clause that is named
//! for it.

use std::process::ExitCode;
use std::sync::Arc;

use contract_suite::judges::trials::{self, Judges};
use contract_suite::judges::{OneKeyHarness, WrongIndex, WrongIndexHarness, WrongJudge};
use contract_suite::{Clause, Layer, MemoryHarness, Options, SqliteHarness, Subject, clauses};

/// The clause that must fail on each wrong board; those with several processes have some of the same.
fn killed() -> impl Iterator<Item = (WrongJudge, &'static str)> {
    let alone = WrongJudge::ALL.iter().map(|wrong| (*wrong, wrong.clause()));
    alone.chain([
        (WrongJudge::ClaimUnasserted, "T03.processes"),
        (WrongJudge::FenceByTwo, "T03.processes"),
        (WrongJudge::FenceInHandle, "T19.processes"),
        (WrongJudge::FenceForgotten, "T19.processes"),
        (WrongJudge::AnyNumberOfDeps, "T26"),
        (WrongJudge::RulesIgnored, "T38.order"),
        (WrongJudge::SkippedByFirst, "T38.order"),
        (WrongJudge::PinInTwo, "T40"),
        (WrongJudge::SkippedEdited, "T38.edited"),
        (WrongJudge::FailedTakesDone, "T27"),
        (WrongJudge::ImpossibleNotNamed, "T27"),
        (WrongJudge::SkippedByFirst, "T27"),
        (WrongJudge::SkipKeepsSeq, "T27"),
        (WrongJudge::ReopenIgnoresPin, "T27"),
        (WrongJudge::PinThoughBlocked, "T27"),
        (WrongJudge::PinUntilEdited, "T27"),
        (WrongJudge::ArchiveTakesNeeded, "T27"),
        (WrongJudge::TakeoverNotCounted, "T27"),
    ])
}

/// It costs as much as the whole board to look for a task on the board under one key: the one clause that it does not pass.
const TOO_DEAR: &str = "T24";

fn boards() -> impl Iterator<Item = &'static Clause> {
    clauses().iter().filter(|clause| clause.layer == Layer::Board)
}

fn main() -> ExitCode {
    let judges = Judges {
        kind: "board",
        variable: "COORD_SUITE_JUDGE",
        wrong: WrongJudge::ALL,
        what: WrongJudge::what,
        put: |subject, wrong| subject.with_boards(Arc::new(OneKeyHarness { wrong })),
        patience_with_wrong: Options::default().patience,
        threads: 2,
    };
    trials::main(judges, |trials| {
        trials.right_passes(boards().filter(|clause| clause.id != TOO_DEAR));
        for (wrong, id) in killed() {
            trials.fails_on(wrong, id);
        }
        for wrong in WrongIndex::ALL.iter().copied() {
            let id = wrong.clause();
            let name = format!("{id} fails on the index {wrong:?}");
            trials.fails_on_subject(name, id, format!("{wrong:?}"), move |_| {
                let memory = Subject::new(Arc::new(MemoryHarness::default()));
                memory.with_boards(Arc::new(WrongIndexHarness(wrong)))
            });
        }
        // In a file as well: a ready task lost, one handed out twice, a marker dropped, an expired lease never found.
        for wrong in [
            WrongIndex::ReadyDropped,
            WrongIndex::HeadUnasserted,
            WrongIndex::MarkerDropped,
            WrongIndex::NeverDue,
        ] {
            let id = wrong.clause();
            let name = format!("{id} fails on the index {wrong:?} in a file");
            trials.fails_on_subject(name, id, format!("{wrong:?}"), move |_| {
                let file = SqliteHarness::from_environment().expect("there is a folder for temporary files");
                Subject::new(Arc::new(file)).with_boards(Arc::new(WrongIndexHarness(wrong)))
            });
        }
        trials.fails_on_right(
            format!("{TOO_DEAR} fails on the board under one key"),
            TOO_DEAR,
            "every verb reads the whole board",
        );
        let indices = WrongIndex::ALL.iter().map(|wrong| wrong.clause());
        trials.all_are_named(boards(), killed().map(|(_, id)| id).chain(indices).chain([TOO_DEAR]));
    })
}
