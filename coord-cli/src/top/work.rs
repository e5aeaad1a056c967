//! Who does what, from what changed between two lists of a board: since when claims are held, and who gets how much done.
//!
//! A board does not tell who completed a task. Whoever was seen to hold it under the fence with which it ended did; a task that
//! came and went between two lists is counted, but for nobody in particular.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use coord_core::Timestamp;
use coord_core::board::{State, Task, TaskId};

use crate::definition::Ended;

/// Over how long throughput is measured.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);
/// Before so much time has passed, nothing is said about throughput.
const SETTLING: Duration = Duration::from_secs(10);
/// Completions are counted in pieces of so many seconds.
const PIECE: u64 = 5;
/// A claim that is new since a list that is older than this began at an unknown time in between.
const GAP: Duration = Duration::from_secs(10);

/// Since when a claim is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    fence: u64,
    /// In the time of the store.
    pub(crate) since: Timestamp,
    /// Whether it began then. Otherwise it was held then already, as it was there when it was first looked for.
    pub(crate) exact: bool,
}

/// Whoever does tasks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    /// The name under which it claims.
    Worker(String),
    /// Somebody on this host, in a time in which nobody looked.
    OnHost(String),
    /// Somebody.
    Somebody,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Worker(name) => f.write_str(name),
            Who::OnHost(host) => write!(f, "(not seen, on {host})"),
            Who::Somebody => f.write_str("(not seen)"),
        }
    }
}

/// Completions of the last minutes.
#[derive(Clone, Debug, Default)]
struct Pace(VecDeque<(u64, u64)>);

impl Pace {
    fn add(&mut self, at: Duration) {
        let piece = at.as_secs() / PIECE;
        match self.0.back_mut() {
            Some((last, count)) if *last == piece => *count += 1,
            _ => self.0.push_back((piece, 1)),
        }
    }

    fn forget(&mut self, at: Duration) {
        let oldest = at.saturating_sub(WINDOW).as_secs() / PIECE;
        while self.0.front().is_some_and(|(piece, _)| *piece < oldest) {
            self.0.pop_front();
        }
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

/// What one worker does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    /// How many tasks it holds.
    pub(crate) holds: usize,
    pace: Pace,
}

impl Worker {
    /// How many tasks it has completed within the window.
    pub(crate) fn done(&self) -> u64 {
        self.pace.count()
    }
}

/// What was seen of all workers.
#[derive(Debug, Default)]
pub(crate) struct Work {
    held: HashMap<TaskId, Held>,
    workers: BTreeMap<Who, Worker>,
    all: Pace,
    began: Option<Duration>,
    last: Option<Duration>,
}

impl Work {
    /// The board was listed; `before` tells how a task was the time before.
    pub(super) fn observe<'a>(
        &mut self,
        before: impl Fn(&TaskId) -> Option<&'a Task>,
        tasks: &[Task],
        at: Duration,
    ) {
        let first = self.began.is_none();
        self.began.get_or_insert(at);
        let exact = self.last.is_some_and(|last| at.saturating_sub(last) <= GAP);
        self.last = Some(at);
        for worker in self.workers.values_mut() {
            worker.holds = 0;
        }
        let mut held = HashMap::with_capacity(self.held.len());
        for task in tasks {
            match task.state {
                State::Claimed => {
                    let claim = match self.held.get(&task.id) {
                        Some(known) if known.fence == task.fence => *known,
                        _ => Held { fence: task.fence, since: task.touched, exact },
                    };
                    held.insert(task.id.clone(), claim);
                    if let Some(owner) = &task.owner {
                        self.workers.entry(Who::Worker(owner.as_str().to_owned())).or_default().holds += 1;
                    }
                }
                State::Done if !first => {
                    let known = before(&task.id);
                    if known.is_none_or(|known| known.state != State::Done) {
                        self.workers.entry(who_did(known, task)).or_default().pace.add(at);
                        self.all.add(at);
                    }
                }
                _ => {}
            }
        }
        self.held = held;
        self.all.forget(at);
        for worker in self.workers.values_mut() {
            worker.pace.forget(at);
        }
        self.workers.retain(|_, worker| worker.holds > 0 || worker.done() > 0);
    }

    /// Since when the claim of a task is held.
    pub(crate) fn held(&self, task: &Task) -> Option<Held> {
        self.held.get(&task.id).copied().filter(|held| held.fence == task.fence)
    }

    /// Since when the claim of a task is held, for sorting.
    pub(crate) fn held_since(&self, task: &Task) -> Timestamp {
        self.held(task).map_or(task.touched, |held| held.since)
    }

    /// All workers that hold something or have done something within the window.
    pub(crate) fn workers(&self) -> impl Iterator<Item = (&Who, &Worker)> {
        self.workers.iter()
    }

    /// How many tasks a minute these are, once it can be told.
    pub(crate) fn a_minute(&self, done: u64) -> Option<f64> {
        let seen = self.last?.saturating_sub(self.began?);
        if seen < SETTLING {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "nobody completes 2^52 tasks in five minutes")]
        Some(done as f64 * 60.0 / seen.min(WINDOW).as_secs_f64())
    }

    /// How many tasks a minute the whole board gets done, once it can be told.
    pub(crate) fn all_a_minute(&self) -> Option<f64> {
        self.a_minute(self.all.count())
    }
}

/// Who has completed a task that was not done the last time.
fn who_did(before: Option<&Task>, task: &Task) -> Who {
    let seen = before.filter(|before| before.state == State::Claimed && before.fence == task.fence);
    if let Some(owner) = seen.and_then(|before| before.owner.as_ref()) {
        return Who::Worker(owner.as_str().to_owned());
    }
    let host = task.outcome.as_ref().and_then(Ended::from_outcome).and_then(|ended| ended.host);
    host.map_or(Who::Somebody, Who::OnHost)
}

#[cfg(test)]
mod tests {
    use coord_core::board::{AgentId, Outcome};

    use super::*;

    fn task(id: &str, state: State, fence: u64, owner: Option<&str>) -> Task {
        let mut task = Task::new(TaskId::new(id).unwrap());
        (task.state, task.fence) = (state, fence);
        task.owner = owner.map(|owner| AgentId::new(owner).unwrap());
        task.touched = Timestamp::from_micros(1_000_000).unwrap();
        task
    }

    fn observe(work: &mut Work, before: &[Task], after: &[Task], second: u64) {
        let find = |id: &TaskId| before.iter().find(|task| task.id == *id);
        work.observe(find, after, Duration::from_secs(second));
    }

    fn done(work: &Work) -> Vec<(String, usize, u64)> {
        work.workers().map(|(who, worker)| (who.to_string(), worker.holds, worker.done())).collect()
    }

    #[test]
    fn who_was_seen_to_hold_a_task_under_its_last_fence_has_done_it() {
        let mut work = Work::default();
        let first = [
            task("a", State::Claimed, 1, Some("w1")),
            task("b", State::Claimed, 1, Some("w1")),
            task("c", State::Open, 0, None),
            task("d", State::Done, 1, None),
        ];
        observe(&mut work, &[], &first, 0);
        assert_eq!(done(&work), [("w1".into(), 2, 0)], "what was done before is nobody's");
        assert!(!work.held(&first[0]).unwrap().exact);
        let mut taken_over = task("b", State::Done, 2, None);
        taken_over.outcome = Some(Outcome::new(r#"{"exit":0,"host":"h"}"#).unwrap());
        let second = [
            task("a", State::Done, 1, None),
            taken_over,
            task("c", State::Claimed, 1, Some("w2")),
            task("d", State::Done, 1, None),
        ];
        observe(&mut work, &first, &second, 1);
        assert_eq!(
            done(&work),
            [("w1".into(), 0, 1), ("w2".into(), 1, 0), ("(not seen, on h)".into(), 0, 1)]
        );
        assert!(work.held(&second[2]).unwrap().exact);
        // One that came and went unseen is counted too.
        let third = [task("e", State::Done, 1, None)];
        observe(&mut work, &second, &third, 2);
        assert_eq!(done(&work).last().unwrap(), &("(not seen)".to_owned(), 0, 1));
    }

    #[test]
    fn throughput_is_of_the_last_minutes_and_is_not_guessed_from_a_moment() {
        let mut work = Work::default();
        let held = [task("a", State::Claimed, 1, Some("w"))];
        let finished = [task("a", State::Done, 1, None)];
        observe(&mut work, &[], &held, 100);
        observe(&mut work, &held, &finished, 105);
        assert_eq!(work.all_a_minute(), None);
        observe(&mut work, &finished, &finished, 120);
        assert_eq!(work.all_a_minute(), Some(3.0));
        observe(&mut work, &finished, &finished, 340);
        assert_eq!(work.all_a_minute(), Some(0.25));
        observe(&mut work, &finished, &finished, 500);
        assert_eq!((work.all_a_minute(), done(&work).len()), (Some(0.0), 0));
    }

    #[test]
    fn the_age_of_a_claim_begins_anew_with_its_fence_only() {
        let mut work = Work::default();
        let claim = |fence, touched| {
            let mut task = task("a", State::Claimed, fence, Some("w"));
            task.touched = Timestamp::from_micros(touched).unwrap();
            [task]
        };
        let (first, renewed, taken_over) = (claim(1, 5), claim(1, 9), claim(2, 20));
        observe(&mut work, &[], &first, 0);
        observe(&mut work, &first, &renewed, 1);
        assert_eq!(work.held_since(&renewed[0]).as_micros(), 5);
        observe(&mut work, &renewed, &taken_over, 60);
        let held = work.held(&taken_over[0]).unwrap();
        assert_eq!((held.since.as_micros(), held.exact), (20, false), "nobody looked for a minute");
    }
}
