//! `etcd://` and `etcds://`.

use std::sync::Arc;

use coord_core::{Backend, BackendError, Namespace, async_trait};
use coord_etcd::{EtcdBackend, EtcdConfig};

use crate::registry::Factory;

/// Opens stores in etcd.
pub(crate) struct Etcd;

#[async_trait]
impl Factory for Etcd {
    async fn connect(&self, url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError> {
        let config = EtcdConfig::from_url(url)?;
        Ok(Arc::new(EtcdBackend::open(&config, namespace).await?))
    }
}
