//! A store in memory behind a line that can be cut, on a server that can be paused and killed: the fault clauses run on it without any
//! server, and its client shows how failures are to be told.

mod client;
mod record;
mod server;

use std::sync::Arc;

use async_trait::async_trait;
use coord_core::{Backend, BackendError, Key, Namespace, Version};

use crate::harness::{Control, ControlError, Cut, Harness, Misconfiguration, ServerControl};

pub(crate) use client::{Manner, NAME, SimBackend};
pub(crate) use server::{Server, Settings, Sync};

use record::Record;

/// A store that is right by construction: what it acknowledges is on its disk, its handles open a new line when theirs broke, wait no
/// longer than a second, and say `Unavailable` only of what was not sent.
#[derive(Clone, Debug)]
pub struct SimHarness {
    server: Server,
    manner: Manner,
}

impl SimHarness {
    /// A new, empty store with a server of its own.
    #[must_use]
    pub fn new() -> Self {
        SimHarness::with(Settings::RIGHT, Manner::RIGHT)
    }

    pub(crate) fn with(settings: Settings, manner: Manner) -> Self {
        SimHarness { server: Server::start(settings), manner }
    }

    async fn connect(&self, server: &Server, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        let namespace = Namespace::new(namespace)?;
        Ok(Arc::new(SimBackend::open(server.clone(), namespace, self.manner).await?))
    }
}

impl Default for SimHarness {
    fn default() -> Self {
        SimHarness::new()
    }
}

#[async_trait]
impl Harness for SimHarness {
    fn name(&self) -> &str {
        NAME
    }

    async fn open(&self, namespace: &str) -> Result<Arc<dyn Backend>, BackendError> {
        self.connect(&self.server, namespace).await
    }

    fn server(&self) -> Option<&dyn ServerControl> {
        Some(self)
    }

    async fn open_misconfigured(
        &self,
        fault: Misconfiguration,
    ) -> Option<Result<Arc<dyn Backend>, BackendError>> {
        let settings = match fault {
            Misconfiguration::NotDurable => Settings { sync: Sync::Never, ..Settings::RIGHT },
            Misconfiguration::LazySync => Settings { sync: Sync::NowAndThen, ..Settings::RIGHT },
            Misconfiguration::Evicting => Settings { evicts: true, ..Settings::RIGHT },
            Misconfiguration::ReadOnly => Settings { read_only: true, ..Settings::RIGHT },
        };
        Some(self.connect(&Server::start(settings), "misconfigured").await)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ServerControl for SimHarness {
    fn can(&self, _: Control) -> bool {
        true
    }

    async fn kill(&self) -> Result<(), ControlError> {
        self.server.kill();
        Ok(())
    }

    async fn restart(&self) -> Result<(), ControlError> {
        self.server.restart();
        Ok(())
    }

    async fn pause(&self) -> Result<(), ControlError> {
        self.server.pause();
        Ok(())
    }

    async fn resume(&self) -> Result<(), ControlError> {
        self.server.resume();
        Ok(())
    }

    async fn cut(&self, cut: Cut) -> Result<(), ControlError> {
        self.server.cut(cut);
        Ok(())
    }

    async fn heal(&self) -> Result<usize, ControlError> {
        Ok(self.server.heal())
    }

    async fn flush_scripts(&self) -> Result<(), ControlError> {
        self.server.flush_scripts();
        Ok(())
    }

    async fn write_foreign(&self, namespace: &str, key: &Key, variant: usize) -> Result<bool, ControlError> {
        let Some(record) = Record::foreign(variant) else { return Ok(false) };
        self.server.set_record(&Namespace::new(namespace)?, key, Some(record));
        Ok(true)
    }

    async fn read_raw(&self, namespace: &str, key: &Key) -> Result<Option<Vec<u8>>, ControlError> {
        Ok(self.server.record(&Namespace::new(namespace)?, key).map(|record| record.dump()))
    }

    async fn remove_raw(&self, namespace: &str, key: &Key) -> Result<(), ControlError> {
        self.server.set_record(&Namespace::new(namespace)?, key, None);
        Ok(())
    }

    async fn set_version(&self, namespace: &str, key: &Key, version: Version) -> Result<bool, ControlError> {
        let namespace = Namespace::new(namespace)?;
        let record =
            self.server.record(&namespace, key).ok_or("the key whose version is to be set is absent")?;
        let (_, value) = record.read().map_err(|foreign| foreign.to_string())?;
        self.server.set_record(&namespace, key, Some(Record::ours(version, value)));
        Ok(true)
    }
}
