//! A server in a container.

use std::fmt;
use std::time::Duration;

use testcontainers::core::{ContainerPort, ImageExt as _};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage};

use super::process::wait_until;
use super::{Image, free_port};
use crate::harness::ControlError;

/// How long an image may take to be pulled and its container to be made.
const START: Duration = Duration::from_secs(120);
/// How long the server in it may take until it accepts requests.
const READY: Duration = Duration::from_secs(60);

/// A server in a container of its own, on a port of loopback. Dropped, it is removed; that needs the asynchronous runtime that it was
/// started on.
pub struct ServerContainer {
    _container: ContainerAsync<GenericImage>,
    url: String,
}

impl fmt::Debug for ServerContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerContainer").finish_non_exhaustive()
    }
}

impl ServerContainer {
    /// Starts a container of an image and waits until a handle can be opened on the server in it.
    ///
    /// # Errors
    /// If there is no engine, no image, or the server does not accept requests in time.
    pub async fn start(image: &Image) -> Result<ServerContainer, ControlError> {
        let port = free_port(0, 0)?;
        let mut request = GenericImage::new(image.name, image.tag)
            .with_mapped_port(port, ContainerPort::Tcp(image.port))
            .with_cmd(image.command.iter().copied())
            .with_startup_timeout(START);
        for (name, value) in image.environment {
            request = request.with_env_var(*name, *value);
        }
        let name = format!("a container of {}:{}", image.name, image.tag);
        let container = tokio::time::timeout(START, request.start())
            .await
            .map_err(|_| format!("{name} does not start within {} s", START.as_secs()))?
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        let server =
            ServerContainer { _container: container, url: image.url.replace("PORT", &port.to_string()) };
        let namespace = coord_core::Namespace::default();
        wait_until(READY, || async { Ok(coord_connect::connect(&server.url, &namespace).await.map(drop)?) })
            .await
            .map_err(|why| format!("{name} does not accept requests: {why}"))?;
        Ok(server)
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}
