//! The worker processes of one run: started, told, heard, and started again when they die.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc;

use crate::process::Group;
use crate::protocol::{Event, Order};

/// The first and the longest wait before a worker is started again.
const RESTART: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A worker that lived so long has not died of its start.
const SETTLED: Duration = Duration::from_secs(5);
/// How often in a row a worker may die young before it is not started again.
const DEATHS: u32 = 8;
/// How long an order may take to be written.
const ORDER: Duration = Duration::from_millis(200);

/// How workers are started.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// The URL of the store. It goes through the environment, which other users do not see.
    pub(crate) store: Secret,
    /// The folder for output.
    pub(crate) logs: PathBuf,
    /// The board.
    pub(crate) board: String,
    /// The lease.
    pub(crate) lease: Duration,
}

/// A text that is not shown.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What is heard of a worker.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It says something.
    Said(usize, Event),
    /// It complains on standard error.
    Complained(usize, String),
    /// It has ended.
    Ended(usize, Option<ExitStatus>),
}

/// What a worker is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    /// The task.
    pub(crate) task: String,
    /// The fence of its claim.
    pub(crate) fence: u64,
}

#[derive(Debug, Default)]
struct Slot {
    input: Option<ChildStdin>,
    group: Option<Group>,
    running: Option<Running>,
    idle: bool,
    started: Duration,
    deaths: u32,
    restart_at: Option<Duration>,
    complaint: Option<String>,
}

/// The workers.
#[derive(Debug)]
pub(crate) struct Pool {
    recipe: Recipe,
    slots: Vec<Slot>,
    sender: mpsc::UnboundedSender<Heard>,
    heard: mpsc::UnboundedReceiver<Heard>,
    /// How often a worker was started again.
    pub(crate) restarts: u32,
}

/// What the end of a worker means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was asked to.
    Wanted,
    /// It died, with this task in its hands; another one is started after a while.
    Restarts(Option<Running>),
    /// It died once too often; this is the last that it said.
    GivenUp(Option<String>),
}

impl Pool {
    /// So many workers; none is started yet.
    pub(crate) fn new(recipe: Recipe, count: usize) -> Self {
        let (sender, heard) = mpsc::unbounded_channel();
        let slots =
            (0..count).map(|_| Slot { restart_at: Some(Duration::ZERO), ..Slot::default() }).collect();
        Pool { recipe, slots, sender, heard, restarts: 0 }
    }

    /// Starts the workers whose time has come.
    pub(crate) fn start_due(&mut self, now: Duration) -> io::Result<()> {
        for number in 0..self.slots.len() {
            if self.slots[number].restart_at.is_some_and(|at| at <= now) {
                self.start(number, now)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, number: usize, now: Duration) -> io::Result<()> {
        let Recipe { store, logs, board, lease } = &self.recipe;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["worker", "--supervised", "--board", board, "--logs"])
            .arg(logs)
            .args(["--lease", &format!("{}ms", lease.as_millis())])
            .env("COORD_STORE", &store.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C reaches the parent alone, which decides what the workers are told.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Group::from_raw);
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let listened = tokio::spawn(listen(number, output, sender.clone()));
            let complained = tokio::spawn(complain(number, errors, sender.clone()));
            let status = child.wait().await.ok();
            // What it said comes before its end.
            let _ = tokio::join!(listened, complained);
            let _ = sender.send(Heard::Ended(number, status));
        });
        let slot = &mut self.slots[number];
        slot.input = input;
        slot.group = group;
        slot.idle = false;
        slot.running = None;
        slot.started = now;
        slot.restart_at = None;
        slot.complaint = None;
        Ok(())
    }

    /// The next thing that is heard.
    pub(crate) async fn hear(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            // The pool keeps a sender itself, so that this never happens.
            None => std::future::pending().await,
        }
    }

    /// Takes note of what a worker says.
    pub(crate) fn note(&mut self, number: usize, event: &Event) {
        let slot = &mut self.slots[number];
        match event {
            Event::Idle => slot.idle = true,
            Event::Claimed { task, fence, .. } => {
                slot.idle = false;
                slot.running = Some(Running { task: task.clone(), fence: *fence });
            }
            Event::Settled { .. } => {
                slot.running = None;
                slot.deaths = 0;
            }
            Event::Trouble { message } => slot.complaint = Some(message.clone()),
        }
    }

    /// Takes note of what a worker complains of.
    pub(crate) fn note_complaint(&mut self, number: usize, line: &str) {
        self.slots[number].complaint = Some(line.to_owned());
    }

    /// Takes note of the end of a worker.
    pub(crate) fn ended(&mut self, number: usize, wanted: bool, now: Duration) -> End {
        let slot = &mut self.slots[number];
        slot.input = None;
        slot.group = None;
        slot.idle = false;
        let running = slot.running.take();
        if wanted {
            return End::Wanted;
        }
        slot.deaths = if now.saturating_sub(slot.started) >= SETTLED { 1 } else { slot.deaths + 1 };
        if slot.deaths > DEATHS {
            return End::GivenUp(slot.complaint.take());
        }
        let wait = RESTART.0.saturating_mul(1 << (slot.deaths - 1).min(16)).min(RESTART.1);
        slot.restart_at = Some(now.saturating_add(wait));
        self.restarts += 1;
        End::Restarts(running)
    }

    /// Nobody is started any more.
    pub(crate) fn no_restarts(&mut self) {
        for slot in &mut self.slots {
            slot.restart_at = None;
        }
    }

    /// When the next worker is to be started.
    pub(crate) fn next_start(&self) -> Option<Duration> {
        self.slots.iter().filter_map(|slot| slot.restart_at).min()
    }

    /// How many workers live.
    pub(crate) fn alive(&self) -> usize {
        self.slots.iter().filter(|slot| slot.group.is_some()).count()
    }

    /// Whether there are workers, or will be.
    pub(crate) fn has_future(&self) -> bool {
        self.slots.iter().any(|slot| slot.group.is_some() || slot.restart_at.is_some())
    }

    /// Tells all workers.
    pub(crate) async fn tell_all(&mut self, order: Order) {
        for slot in &mut self.slots {
            tell(slot, order).await;
        }
    }

    /// Tells the workers that have nothing to do to look again.
    pub(crate) async fn nudge(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.idle) {
            slot.idle = false;
            tell(slot, Order::Look).await;
        }
    }

    /// Kills the workers that are left. Their guards kill their commands.
    pub(crate) fn kill_all(&self) {
        for group in self.slots.iter().filter_map(|slot| slot.group) {
            group.kill();
        }
    }
}

async fn tell(slot: &mut Slot, order: Order) {
    if let Some(input) = &mut slot.input {
        let line = format!("{}\n", order.as_str());
        // A worker that does not read is stopped or dead, and that is found out elsewhere.
        let _ = tokio::time::timeout(ORDER, input.write_all(line.as_bytes())).await;
    }
}

async fn listen(number: usize, output: Option<impl AsyncRead + Unpin>, sender: mpsc::UnboundedSender<Heard>) {
    let Some(output) = output else { return };
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(event) => {
                let _ = sender.send(Heard::Said(number, event));
            }
            Err(error) => tracing::warn!(%error, "a worker said what is not understood"),
        }
    }
}

async fn complain(
    number: usize,
    errors: Option<impl AsyncRead + Unpin>,
    sender: mpsc::UnboundedSender<Heard>,
) {
    let Some(errors) = errors else { return };
    let mut lines = BufReader::new(errors).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let _ = sender.send(Heard::Complained(number, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_that_keeps_dying_young_is_given_up_and_one_that_works_is_not() {
        let recipe = Recipe {
            store: Secret("memory:".into()),
            logs: PathBuf::new(),
            board: "b".into(),
            lease: Duration::from_secs(1),
        };
        let mut pool = Pool::new(recipe, 1);
        let ms = Duration::from_millis;
        for death in 0..DEATHS {
            assert_eq!(pool.ended(0, false, ms(1)), End::Restarts(None));
            let wait = pool.next_start().unwrap() - ms(1);
            assert_eq!(wait, (RESTART.0 * 2u32.pow(death)).min(RESTART.1));
        }
        // Whoever settles a task has not died of its start.
        let settled =
            Event::Settled { task: "t".into(), fence: 1, how: crate::protocol::Settled::Done, ended: None };
        pool.note(0, &settled);
        pool.note(0, &Event::Claimed { task: "t".into(), title: String::new(), fence: 2 });
        let running = Running { task: "t".into(), fence: 2 };
        assert_eq!(pool.ended(0, false, ms(1)), End::Restarts(Some(running)));
        for _ in 1..DEATHS {
            assert_eq!(pool.ended(0, false, ms(1)), End::Restarts(None));
        }
        pool.note_complaint(0, "no store");
        assert_eq!(pool.ended(0, false, ms(1)), End::GivenUp(Some("no store".into())));
        assert!(format!("{:?}", Secret("password".into())).find("password").is_none());
    }
}
