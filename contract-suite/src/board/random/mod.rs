//! Random verbs, compared with the board as it should be after each.

mod player;
mod reference;
mod verbs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coord_core::Backend;
use coord_core::board::{ProblemCode, State, Task, TaskId};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use self::player::{Op, Player, ops};
use self::reference::{Reference, shown};
use super::stage::{Seat, Stage};
use crate::clause::{Outcome, Verdict, VerdictContext};
use crate::context::{Context, remove_all};
use crate::{ensure, ensure_eq, fail};

pub(super) use reference::satisfies;

/// What has been seen of an id, in all its lives.
#[derive(Default)]
struct Past {
    fence: u64,
    seq: u64,
    last: Option<Task>,
}

struct Run<'a> {
    stage: Stage,
    seats: &'a [Seat; 2],
    subject: Player,
    reference: Reference,
    past: BTreeMap<TaskId, Past>,
}

impl Run<'_> {
    async fn step(&mut self, other: bool, op: &Op, place: &str) -> Outcome {
        if let Op::Wait { seconds } = op {
            self.stage.advance(Duration::from_secs((*seconds).into()));
        }
        self.reference.begin(self.stage.now());
        let answered = self.subject.perform(other, op).await.at(place)?;
        let tasks = self.seats[usize::from(!other)].list().await.at(place)?;
        let expected = self.subject.expected(&mut self.reference, op, &answered, &tasks);
        ensure_eq!(answered.said, expected, "the answer of {place}");
        self.reference.catch_up(&tasks);
        let seen: Vec<String> = tasks.iter().map(shown).collect();
        ensure_eq!(seen, self.reference.shown(), "the board after {place}");
        for task in &tasks {
            self.counts(task, place)?;
        }
        for (id, past) in &mut self.past {
            if !tasks.iter().any(|task| task.id == *id) {
                past.last = None;
            }
        }
        Ok(())
    }

    /// The numbers of a task move if, and only if, it has changed.
    fn counts(&mut self, task: &Task, place: &str) -> Outcome {
        let past = self.past.entry(task.id.clone()).or_default();
        if self.reference.has_changed(&task.id) {
            ensure!(task.seq > past.seq, "saw the seq {} after {}: {place}", task.seq, past.seq);
            ensure!(task.fence >= past.fence, "saw the fence {} after {}: {place}", task.fence, past.fence);
            let new_claim = task.state == State::Claimed
                && past
                    .last
                    .as_ref()
                    .is_none_or(|last| last.attempts != task.attempts || last.lease.is_none());
            ensure!(
                !new_claim || task.fence > past.fence,
                "saw a claim with the fence {} after {}: {place}",
                task.fence,
                past.fence
            );
        } else if let Some(last) = &past.last {
            let mut same = task.clone();
            same.progress.clone_from(&last.progress);
            ensure!(same == *last, "saw {task:?}, not the unchanged {last:?}, after {place}");
        }
        *past = Past { fence: task.fence, seq: task.seq, last: Some(task.clone()) };
        Ok(())
    }
}

async fn run(cx: &Context, handles: &[Arc<dyn Backend>; 2], ops: &[(bool, Op)]) -> Outcome {
    remove_all(&*handles[0]).await?;
    let stage = Stage::new(cx).again();
    let seats = [
        stage.seat_on(handles[0].clone(), 0, true).await?,
        stage.seat_on(handles[1].clone(), 0, true).await?,
    ];
    let subject = Player { seats: seats.each_ref().map(|seat| seat.board.clone()), tokens: Vec::new() };
    let (reference, past) = (Reference::new(stage.now()), BTreeMap::new());
    let mut run = Run { stage, seats: &seats, subject, reference, past };
    for (n, (other, op)) in ops.iter().enumerate() {
        run.step(*other, op, &format!("{op:?} as the {}. of these verbs", n + 1)).await?;
    }
    for op in Player::at_the_end(&run.reference) {
        run.step(false, &op, &format!("{op:?} at the end")).await?;
    }
    let mut problems = seats[0].board.check_index().await.at("checking the index")?;
    // What was ready when a reopen came stays in line until somebody comes upon it, and what is to be skipped is left to whoever looks next.
    problems.retain(|problem| !matches!(problem.code, ProblemCode::StaleEntry | ProblemCode::Unexamined));
    ensure_eq!(problems, [], "what is wrong with the index");
    Ok(())
}

/// Must not be called from within the runtime, to which it comes back for every verb.
pub(super) fn random_verbs(
    cx: &Context,
    handle: &tokio::runtime::Handle,
    handles: &[Arc<dyn Backend>; 2],
) -> Outcome {
    let mut seed = [0; 32];
    for (n, chunk) in seed.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&(cx.seed().wrapping_add(n as u64)).to_le_bytes());
    }
    let config = Config { cases: 64, max_shrink_iters: 400, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&ops(), |ops| match handle.block_on(run(cx, handles, &ops)) {
        Ok(()) => Ok(()),
        Err(Verdict::Failed(why) | Verdict::Skipped(why)) => Err(TestCaseError::fail(why)),
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, ops)) => {
            let ops: Vec<String> =
                ops.iter().map(|(other, op)| format!("{op:?} at seat {}", u8::from(*other))).collect();
            fail!("{}, the verbs being {}", why.message(), ops.join(", "))
        }
        Err(TestError::Abort(why)) => fail!("saw the property test give up: {}", why.message()),
    }
}
