//! `redis://`, `redis+cluster://`, `redis+sentinel://`, and the same with `rediss`.

use std::sync::Arc;

use coord_core::{Backend, BackendError, Namespace, async_trait};
use coord_redis::{RedisBackend, RedisConfig};

use crate::registry::Factory;

/// Opens stores in Redis.
pub(crate) struct Redis;

#[async_trait]
impl Factory for Redis {
    async fn connect(&self, url: &str, namespace: &Namespace) -> Result<Arc<dyn Backend>, BackendError> {
        let config = RedisConfig::from_url(url)?;
        Ok(Arc::new(RedisBackend::open(&config, namespace).await?))
    }
}
