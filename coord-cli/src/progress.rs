//! What people see of a run while it goes on, on standard error: a bar and a line for each running task on a terminal, plain lines
//! elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::definition::{Ended, seconds};
use crate::output::{self, clean, fit};
use crate::protocol::Settled;
use crate::standing::{Counts, Standing};

/// The widest name of a task in a line.
const NAME: usize = 50;

/// What people see.
#[derive(Debug)]
pub(crate) struct Progress {
    bars: Option<Bars>,
    total: usize,
    done: Done,
}

/// How many tasks are done, as a number that never goes back. A look at the board and the message of a worker come in any order, so
/// that the one may or may not count the other.
#[derive(Debug, Default)]
struct Done {
    /// Those that were done before the first worker began.
    before: Option<usize>,
    /// Those that the workers of this run have done.
    here: BTreeSet<String>,
    most: usize,
}

impl Done {
    /// The board was looked at, and so many were done.
    fn looked(&mut self, done: usize) {
        self.before.get_or_insert(done);
        self.most = self.most.max(done);
    }

    /// A worker of this run has done a task.
    fn settled(&mut self, task: &str) {
        self.here.insert(task.to_owned());
        self.most = self.most.max(self.before.unwrap_or(0) + self.here.len());
    }

    fn of(&self, total: usize) -> usize {
        self.most.min(total)
    }
}

#[derive(Debug)]
struct Bars {
    all: MultiProgress,
    bar: ProgressBar,
    running: BTreeMap<usize, ProgressBar>,
}

impl Progress {
    /// Begins.
    pub(crate) fn new(total: usize) -> Self {
        let bars = io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let bar = all.add(ProgressBar::new(total as u64));
            bar.set_style(style("{bar:30} {pos}/{len} {elapsed} {msg}").progress_chars("=> "));
            bar.enable_steady_tick(Duration::from_millis(200));
            Bars { all, bar, running: BTreeMap::new() }
        });
        Progress { bars, total, done: Done::default() }
    }

    /// Where the tasks stand.
    pub(crate) fn counts(&mut self, counts: &Counts) {
        self.total = counts.total();
        self.done.looked(counts.get(Standing::Done) + counts.get(Standing::Skipped));
        if let Some(bars) = &self.bars {
            bars.bar.set_length(self.total as u64);
            bars.bar.set_position(self.done.of(self.total) as u64);
            let failed = counts.get(Standing::Failed);
            bars.bar.set_message(if failed > 0 { format!("{failed} failed") } else { String::new() });
        }
    }

    /// A worker has claimed a task.
    pub(crate) fn claimed(&mut self, worker: usize, task: &str, title: &str) {
        let Some(bars) = &mut self.bars else { return };
        let line = bars.all.add(ProgressBar::new_spinner());
        line.set_style(style("  {spinner} {msg} {elapsed}"));
        line.set_message(fit(&format!("{task}  {title}"), NAME));
        line.enable_steady_tick(Duration::from_millis(200));
        if let Some(before) = bars.running.insert(worker, line) {
            before.finish_and_clear();
        }
    }

    /// A worker has nothing in its hands any more.
    pub(crate) fn freed(&mut self, worker: usize) {
        if let Some(bars) = &mut self.bars
            && let Some(line) = bars.running.remove(&worker)
        {
            line.finish_and_clear();
            bars.all.remove(&line);
        }
    }

    /// A claim has ended.
    pub(crate) fn settled(&mut self, worker: usize, task: &str, how: Settled, ended: Option<&Ended>) {
        self.freed(worker);
        if how == Settled::Done {
            self.done.settled(task);
            if let Some(bars) = &self.bars {
                bars.bar.set_position(self.done.of(self.total) as u64);
                return;
            }
        }
        let what = match (how, ended) {
            (Settled::Done, Some(ended)) => format!("done      {task}  {}", seconds(ended.duration())),
            (Settled::Again, Some(ended)) => format!("again     {task}  {ended}; tried again after a rest"),
            (Settled::Failed, Some(ended)) => format!("failed    {task}  {ended}"),
            (how, _) => format!("{how:<9} {task}"),
        };
        let width = self.total.to_string().len();
        self.say(&format!("[{:>width$}/{}] {what}", self.done.of(self.total), self.total));
    }

    /// Something that people should know.
    pub(crate) fn say(&self, line: &str) {
        let line = clean(line);
        match &self.bars {
            Some(bars) => {
                let _ = bars.all.println(line);
            }
            None => output::note(&line),
        }
    }

    /// Ends. The lines that moved are gone.
    pub(crate) fn finish(&mut self) {
        if let Some(bars) = self.bars.take() {
            for line in bars.running.values() {
                line.finish_and_clear();
            }
            bars.bar.finish_and_clear();
            let _ = bars.all.clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a constant template that a test checks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_right() {
        style("{bar:30} {pos}/{len} {elapsed} {msg}");
        style("  {spinner} {msg} {elapsed}");
    }

    #[test]
    fn the_count_never_goes_back_and_never_counts_a_task_twice() {
        let mut done = Done::default();
        done.looked(3);
        // Two are done; the board is looked at between the messages and after them, but the answer to the first look was older.
        done.settled("a");
        assert_eq!(done.of(9), 4);
        done.looked(3);
        assert_eq!(done.of(9), 4);
        done.looked(5);
        assert_eq!(done.of(9), 5);
        done.settled("b");
        assert_eq!(done.of(9), 5, "the look had counted it");
        done.settled("b");
        assert_eq!(done.of(9), 5, "it is one task");
        // Others do tasks of the board too.
        done.looked(9);
        done.settled("c");
        assert_eq!(done.of(9), 9);
    }
}
