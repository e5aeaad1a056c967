//! What a fleet has really done, written down outside of the store by those who do it.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use coord_core::board::TaskId;
use coord_core::{Clock, SystemClock};

use crate::clause::Verdict;

/// What is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A worker has begun to look for tasks.
    Born,
    /// It found less than it could run.
    Idle,
    /// It has claimed a task, and runs it.
    Run,
    /// The task has failed, as far as its handler goes.
    Failed,
    /// The task has passed, as far as its handler goes.
    Passed,
    /// The board has taken that it is done.
    Done,
}

impl Event {
    const ALL: [Event; 6] = [Event::Born, Event::Idle, Event::Run, Event::Failed, Event::Passed, Event::Done];

    fn word(self) -> &'static str {
        match self {
            Event::Born => "born",
            Event::Idle => "idle",
            Event::Run => "run",
            Event::Failed => "failed",
            Event::Passed => "passed",
            Event::Done => "done",
        }
    }
}

/// A line of the ledger.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Microseconds since 1970 by the clock of this machine.
    pub(super) at: i64,
    pub(super) worker: usize,
    pub(super) event: Event,
    pub(super) fence: u64,
    pub(super) task: String,
}

/// A folder to which any number of processes append.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    folder: PathBuf,
    worker: usize,
}

impl Ledger {
    pub(super) fn new(folder: &Path, worker: usize) -> Self {
        Ledger { folder: folder.to_owned(), worker }
    }

    fn lines(&self) -> PathBuf {
        self.folder.join("lines")
    }

    /// One write, so that lines of several processes never mix, and a line is there or not whenever its writer is killed.
    fn append(path: &Path, text: &str) -> std::io::Result<()> {
        OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
    }

    pub(super) fn write(&self, event: Event, task: &str, fence: u64) -> std::io::Result<()> {
        let at = SystemClock::new().now().as_micros();
        let line = format!("{at}\t{}\t{}\t{fence}\t{task}\n", self.worker, event.word());
        Self::append(&self.lines(), &line)
    }

    fn failures_of(&self, task: &TaskId) -> PathBuf {
        self.folder.join(format!("failures of {task}"))
    }

    /// How often a task has failed.
    pub(super) fn failures(&self, task: &TaskId) -> u64 {
        std::fs::metadata(self.failures_of(task)).map_or(0, |file| file.len())
    }

    pub(super) fn note_failure(&self, task: &TaskId) -> std::io::Result<()> {
        Self::append(&self.failures_of(task), ".")
    }

    pub(super) fn read(&self) -> Result<Vec<Line>, Verdict> {
        let text = std::fs::read_to_string(self.lines())?;
        let mut lines = Vec::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [at, worker, event, fence, task] = fields[..] else {
                crate::fail!("saw the line {line:?} in the ledger");
            };
            let event = Event::ALL.into_iter().find(|known| known.word() == event);
            let Some(event) = event else { crate::fail!("saw the line {line:?} in the ledger") };
            lines.push(Line {
                at: at.parse()?,
                worker: worker.parse()?,
                event,
                fence: fence.parse()?,
                task: task.to_owned(),
            });
        }
        lines.sort_by_key(|line| line.at);
        Ok(lines)
    }
}

/// From when to when, in microseconds.
pub(super) type Span = (i64, i64);

/// When each worker had found nothing (or less than it could run) and not claimed anything since, until the given end.
pub(super) fn idle_spans(lines: &[Line], end: i64) -> Vec<(usize, Span)> {
    let mut open: BTreeMap<usize, i64> = BTreeMap::new();
    let mut spans = Vec::new();
    for line in lines {
        match line.event {
            Event::Idle => {
                open.entry(line.worker).or_insert(line.at);
            }
            // One that was killed waited no longer than until then; when that was is not in the ledger.
            Event::Born => {
                open.remove(&line.worker);
            }
            Event::Run => {
                if let Some(since) = open.remove(&line.worker) {
                    spans.push((line.worker, (since, line.at)));
                }
            }
            _ => {}
        }
    }
    spans.extend(open.into_iter().map(|(worker, since)| (worker, (since, end))));
    spans
}
