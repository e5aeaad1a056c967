//! Whether what a fleet did was right.

use std::collections::BTreeMap;
use std::time::Duration;

use coord_core::board::{State, Task, TaskId};

use super::crew::LONGEST_LOOK;
use super::graph::{Conduct, Graph, verdict};
use super::ledger::{Event, Ledger, Line, Span, idle_spans};
use crate::clause::Outcome;
use crate::{ensure, ensure_eq, fail};

/// How long a worker may idle while a task is ready: until its next look, and that look on a busy machine.
const LONGEST_IDLE: Duration = LONGEST_LOOK.saturating_mul(6);

/// When which task was seen to be ready.
#[derive(Default)]
pub(super) struct Ready {
    now: BTreeMap<TaskId, (u64, Span)>,
    past: Vec<(TaskId, Span)>,
}

impl Ready {
    /// Notes what can be claimed, as it was seen within this span of time. A task that has changed in between was not ready all the time; one
    /// that has not was so from the end of the first look on until the beginning of the last one.
    pub(super) fn note(&mut self, tasks: &[Task], (from, to): Span) {
        let states: BTreeMap<&TaskId, State> = tasks.iter().map(|task| (&task.id, task.state)).collect();
        // The store's time is at least this.
        let time = tasks.iter().map(|task| task.touched).max();
        let mut before = std::mem::take(&mut self.now);
        for task in tasks {
            let is_ready = task.state == State::Open
                && task.not_before <= time
                && task
                    .deps
                    .iter()
                    .all(|dep| states.get(&dep.id).and_then(|state| verdict(dep.rule, *state)) == Some(true));
            let seen = before.remove(&task.id);
            if !is_ready {
                self.past.extend(seen.map(|(_, span)| (task.id.clone(), span)));
                continue;
            }
            let since = match seen {
                Some((seq, (since, _))) if seq == task.seq => since,
                Some((_, span)) => {
                    self.past.push((task.id.clone(), span));
                    to
                }
                None => to,
            };
            self.now.insert(task.id.clone(), (task.seq, (since, from)));
        }
    }

    fn spans(&self) -> impl Iterator<Item = (&TaskId, Span)> {
        let now = self.now.iter().map(|(id, (_, span))| (id, *span));
        self.past.iter().map(|(id, span)| (id, *span)).chain(now)
    }
}

/// Judges the board as it is in the end, what was written down, and who idled.
pub(super) fn judge(graph: &Graph, board: &[Task], ledger: &Ledger, ready: &Ready) -> Outcome {
    let lines = ledger.read()?;
    let mut of_task: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
    for line in &lines {
        of_task.entry(line.task.as_str()).or_default().push(line);
    }
    ensure_eq!(board.len(), graph.nodes.len(), "the tasks on the board");
    for ((task, node), end) in board.iter().zip(&graph.nodes).zip(graph.ends()) {
        ensure_eq!(
            (&task.id, task.state),
            (&node.id, end),
            "a task, and the state that its plan's rules say"
        );
        let lines = of_task.get(task.id.as_str()).map_or(&[][..], Vec::as_slice);
        let count = |event| lines.iter().filter(|line| line.event == event).count();
        let done: Vec<u64> =
            lines.iter().filter(|line| line.event == Event::Done).map(|line| line.fence).collect();
        match end {
            State::Done => {
                let by = format!("by {}", task.fence);
                ensure_eq!(
                    task.outcome.as_ref().map(|outcome| outcome.as_str()),
                    Some(by.as_str()),
                    "the outcome of {}, which must be of its last claim",
                    task.id
                );
                ensure!(
                    done.is_empty() || done == [task.fence],
                    "saw {} told to be done under the fences {done:?}, not once under {}",
                    task.id,
                    task.fence
                );
                let passed = lines.iter().any(|line| line.event == Event::Passed && line.fence == task.fence);
                ensure!(passed, "saw {} done, and not passed by whoever held it last", task.id);
                if node.conduct == Conduct::FailsTwice {
                    ensure!(
                        ledger.failures(&task.id) >= 2,
                        "saw {} done before it has failed twice",
                        task.id
                    );
                }
            }
            State::Failed => {
                ensure!(done.is_empty(), "saw {} told to be done, and failed", task.id);
            }
            _ => {
                ensure!(count(Event::Run) == 0, "saw {} run, which never can: {end}", task.id);
            }
        }
    }
    idle(&lines, ready)
}

/// Nobody idles for long while one and the same task is ready.
fn idle(lines: &[Line], ready: &Ready) -> Outcome {
    let longest = i64::try_from(LONGEST_IDLE.as_micros()).unwrap_or(i64::MAX);
    let end = lines.last().map_or(0, |line| line.at);
    let spans: Vec<(usize, Span)> =
        idle_spans(lines, end).into_iter().filter(|(_, (from, to))| to - from > longest).collect();
    for (task, (ready_from, ready_to)) in ready.spans().filter(|(_, (from, to))| to - from > longest) {
        for (worker, (from, to)) in &spans {
            let both = ready_to.min(*to) - ready_from.max(*from);
            if both > longest {
                fail!(
                    "saw a worker of crew {worker} idle for {:?} while {task} was ready",
                    Duration::from_micros(both.unsigned_abs())
                );
            }
        }
    }
    Ok(())
}
