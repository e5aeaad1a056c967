//! A server in a container.

use std::fmt;
use std::time::Duration;

use testcontainers::core::{ContainerPort, ImageExt as _};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage};

use super::process::{Ready, wait_until};
use super::{Image, free_port};
use crate::harness::ControlError;

/// How long an image may take to be pulled and its container to be made.
const START: Duration = Duration::from_secs(120);

/// A server in a container of its own, at a port of loopback that stays the same over restarts. Dropped, it is removed; that needs the
/// asynchronous runtime that it was started on.
pub struct ServerContainer {
    container: ContainerAsync<GenericImage>,
    name: String,
    ready: Ready,
}

impl fmt::Debug for ServerContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerContainer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ServerContainer {
    /// Starts a container of an image with this command and this environment, waits until the server in it accepts requests, and
    /// returns it with its port on loopback.
    ///
    /// # Errors
    /// If there is no engine, no image, or the server does not accept requests in time.
    pub async fn start(
        image: &Image,
        command: &[&str],
        environment: &[(&str, &str)],
        ready: impl FnOnce(u16) -> Ready,
    ) -> Result<(ServerContainer, u16), ControlError> {
        let port = free_port(0, 0)?;
        let mut request = GenericImage::new(image.name, image.tag)
            .with_mapped_port(port, ContainerPort::Tcp(image.port))
            .with_cmd(command.iter().copied())
            .with_startup_timeout(START);
        for (name, value) in environment {
            request = request.with_env_var(*name, *value);
        }
        let name = format!("a container of {}:{}", image.name, image.tag);
        let container = tokio::time::timeout(START, request.start())
            .await
            .map_err(|_| format!("{name} does not start within {} s", START.as_secs()))?
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        let server = ServerContainer { container, name, ready: ready(port) };
        server.wait().await?;
        Ok((server, port))
    }

    async fn wait(&self) -> Result<(), ControlError> {
        wait_until(Duration::from_secs(60), || (self.ready)())
            .await
            .map_err(|why| format!("{} does not accept requests: {why}", self.name).into())
    }

    /// Kills the server at once (`SIGKILL`).
    ///
    /// # Errors
    /// What the engine says.
    pub async fn kill(&self) -> Result<(), ControlError> {
        Ok(self.container.stop_with_timeout(Some(0)).await?)
    }

    /// Starts a killed server on its data, and waits until it accepts requests.
    ///
    /// # Errors
    /// As [`start`](ServerContainer::start).
    pub async fn restart(&self) -> Result<(), ControlError> {
        self.container.start().await?;
        self.wait().await
    }

    /// Stops every process of the container without closing anything.
    ///
    /// # Errors
    /// What the engine says.
    pub async fn pause(&self) -> Result<(), ControlError> {
        Ok(self.container.pause().await?)
    }

    /// Lets a paused one work on.
    ///
    /// # Errors
    /// What the engine says.
    pub async fn resume(&self) -> Result<(), ControlError> {
        Ok(self.container.unpause().await?)
    }
}
