//! `sqlite:PATH`.

use std::sync::Arc;

use coord_core::{Backend, BackendError, Namespace, async_trait};
use coord_sqlite::{SqliteBackend, SqliteConfig};

use crate::registry::Factory;

/// Opens stores in SQLite files.
pub(crate) struct Sqlite;

#[async_trait]
impl Factory for Sqlite {
    async fn connect(&self, url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError> {
        let config = SqliteConfig::from_url(url)?;
        Ok(Arc::new(SqliteBackend::open(&config, namespace).await?))
    }
}
