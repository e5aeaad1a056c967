//! What people see of a run while it goes on, on standard error: a bar and a line for each running task on a terminal, plain lines
//! elsewhere.

use std::collections::BTreeMap;
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
    done: usize,
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
        Progress { bars, total, done: 0 }
    }

    /// Where the tasks stand.
    pub(crate) fn counts(&mut self, counts: &Counts) {
        self.total = counts.total();
        self.done = counts.get(Standing::Done);
        if let Some(bars) = &self.bars {
            bars.bar.set_length(self.total as u64);
            bars.bar.set_position(self.done as u64);
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
            // The next look at the board counts exactly.
            self.done = (self.done + 1).min(self.total);
            if let Some(bars) = &self.bars {
                bars.bar.set_position(self.done as u64);
                return;
            }
        }
        let what = match (how, ended) {
            (Settled::Done, Some(ended)) => format!("done      {task}  {}", seconds(ended.duration())),
            (Settled::Failed, Some(ended)) => format!("failed    {task}  {ended}"),
            (how, _) => format!("{how:<9} {task}"),
        };
        let width = self.total.to_string().len();
        self.say(&format!("[{:>width$}/{}] {what}", self.done, self.total));
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
}
