//! `postgres://` and `postgresql://`.

use std::sync::Arc;

use coord_core::{Backend, BackendError, Namespace, async_trait};
use coord_postgres::{PostgresBackend, PostgresConfig};

use crate::registry::Factory;

/// Opens stores in PostgreSQL databases.
pub(crate) struct Postgres;

#[async_trait]
impl Factory for Postgres {
    async fn connect(&self, url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError> {
        let config = PostgresConfig::from_url(url)?;
        Ok(Arc::new(PostgresBackend::open(&config, namespace).await?))
    }
}
