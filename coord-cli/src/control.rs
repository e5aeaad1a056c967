//! What a worker is asked to do: by its parent over a pipe, or by signals.

use std::io;
use std::sync::Arc;

use coord_core::board::WorkerHandle;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};

use crate::failure::Failure;
use crate::protocol::Order;

/// What is wished for. It only ever grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    /// Go on.
    Work,
    /// Claim nothing more.
    Drain,
    /// Stop at once.
    Stop,
}

/// The wishes as they come in.
#[derive(Debug)]
pub(crate) struct Control {
    wish: watch::Receiver<Wish>,
    look: Arc<Notify>,
}

/// The end that wishes come from.
#[derive(Debug)]
struct Source {
    wish: watch::Sender<Wish>,
    look: Arc<Notify>,
}

impl Source {
    fn new() -> (Self, Control) {
        let (wish, wish_seen) = watch::channel(Wish::Work);
        let look = Arc::new(Notify::new());
        (Source { wish, look: look.clone() }, Control { wish: wish_seen, look })
    }

    fn raise(&self, to: Wish) {
        self.wish.send_if_modified(|wish| {
            let higher = to > *wish;
            *wish = to.max(*wish);
            higher
        });
    }
}

impl Control {
    /// What is wished for now.
    pub(crate) fn wish(&self) -> Wish {
        *self.wish.borrow()
    }

    /// Waits until there is another wish, or a reason to look for tasks.
    pub(crate) async fn changed(&mut self) {
        tokio::select! {
            changed = self.wish.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
            () = self.look.notified() => {}
        }
    }

    /// Passes on what comes in.
    pub(crate) async fn pass_on(mut self, worker: WorkerHandle) {
        let mut looks = false;
        loop {
            match self.wish() {
                // What was wished for until now is no reason to look.
                Wish::Work if looks => worker.look(),
                Wish::Work => {}
                Wish::Drain => worker.drain(),
                Wish::Stop => worker.stop(),
            }
            self.changed().await;
            looks = true;
        }
    }
}

/// Orders from the parent, over standard input. Its end is the end of the parent, and means to stop.
pub(crate) fn from_parent() -> Result<Control, Failure> {
    use std::os::fd::AsFd as _;
    let no_pipe =
        |error: io::Error| Failure::usage(format!("--supervised wants a pipe as its input: {error}"));
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(no_pipe)?;
    let input = tokio::net::unix::pipe::Receiver::from_owned_fd(input).map_err(no_pipe)?;
    let mut signals = Signals::new()?;
    let (source, control) = Source::new();
    let source = Arc::new(source);
    // Whoever sends a signal to this worker alone means this worker alone.
    tokio::spawn({
        let source = source.clone();
        async move {
            signals.next().await;
            source.raise(Wish::Drain);
            signals.next().await;
            source.raise(Wish::Stop);
        }
    });
    tokio::spawn(async move {
        let mut lines = BufReader::new(input).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            match Order::parse(&line) {
                Some(Order::Look) => source.look.notify_one(),
                Some(Order::Drain) => source.raise(Wish::Drain),
                Some(Order::Stop) => source.raise(Wish::Stop),
                None => tracing::warn!(line, "an order that is not understood"),
            }
        }
        source.raise(Wish::Stop);
        // Kept, so that nobody takes the end of the orders for another one.
        std::future::pending::<()>().await;
    });
    Ok(control)
}

/// Signals: the first one drains, the second one stops.
pub(crate) fn from_signals() -> Result<Control, Failure> {
    let mut signals = Signals::new()?;
    let (source, control) = Source::new();
    tokio::spawn(async move {
        signals.next().await;
        crate::output::note("ending after what runs; the same signal again stops it");
        source.raise(Wish::Drain);
        signals.next().await;
        source.raise(Wish::Stop);
        std::future::pending::<()>().await;
    });
    Ok(control)
}

/// The signals that ask a process to end.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Takes over the signals from the system's default.
    pub(crate) fn new() -> Result<Self, Failure> {
        let on = |kind| {
            signal(kind).map_err(|error| Failure::failed(format!("signals cannot be received: {error}")))
        };
        Ok(Signals {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
