//! Telling a worker something while it works.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// What is wished for. It only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wish {
    #[default]
    Work,
    Drain,
    Stop,
}

impl Wish {
    /// Waits until this, or more, is wished for.
    pub(super) async fn is_wished(self, seen: &mut watch::Receiver<Wish>) {
        if seen.wait_for(|wish| *wish >= self).await.is_err() {
            // The worker itself is gone, and whoever waits with it.
            std::future::pending::<()>().await;
        }
    }
}

/// Tells a worker something while it works. Clones speak to the same worker; to one that has ended they speak in vain.
#[derive(Clone, Debug, Default)]
pub struct WorkerHandle {
    pub(super) wish: watch::Sender<Wish>,
    pub(super) look: Arc<Notify>,
}

impl WorkerHandle {
    /// There may be something to claim: it looks soon, if it is idle.
    pub fn look(&self) {
        self.look.notify_one();
    }

    /// It claims nothing more, and ends when what runs has ended, or when its [`grace`](super::Worker::grace) is over.
    pub fn drain(&self) {
        self.raise(Wish::Drain);
    }

    /// It claims nothing more, tells the handlers that it stops, and gives their tasks back if they do not answer within its
    /// [`notice`](super::Worker::notice).
    pub fn stop(&self) {
        self.raise(Wish::Stop);
    }

    fn raise(&self, to: Wish) {
        self.wish.send_if_modified(|wish| {
            let higher = to > *wish;
            *wish = to.max(*wish);
            higher
        });
    }
}
