//! The project's own boards and side-effect stores.

use std::sync::Arc;

use async_trait::async_trait;
use coord_core::Backend;
use coord_core::board::{BoardAdapter, BoardError, BoardOptions, ExtendedBoard};
use coord_core::effects::{EffectAdapter, EffectError, EffectOptions, EffectStore};

use crate::harness::{BoardHarness, BoardSeat, EffectSeat, EffectsHarness};

/// Boards as [`BoardAdapter`] makes them above any backend: what a [`Subject`](crate::Subject) has if nobody supplies others.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdapterBoards;

#[async_trait]
impl BoardHarness for AdapterBoards {
    fn name(&self) -> &str {
        "adapter"
    }

    async fn open(
        &self,
        backend: Arc<dyn Backend>,
        seat: BoardSeat,
    ) -> Result<Arc<dyn ExtendedBoard>, BoardError> {
        let options = BoardOptions::default().clock(seat.clock).max_clock_skew(seat.max_clock_skew);
        Ok(Arc::new(BoardAdapter::open(backend, options).await?))
    }
}

/// Side-effect stores as [`EffectAdapter`] makes them above any backend: what a [`Subject`](crate::Subject) has if nobody supplies
/// others.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdapterEffects;

#[async_trait]
impl EffectsHarness for AdapterEffects {
    fn name(&self) -> &str {
        "adapter"
    }

    async fn open(
        &self,
        backend: Arc<dyn Backend>,
        seat: EffectSeat,
    ) -> Result<Arc<dyn EffectStore>, EffectError> {
        let options =
            EffectOptions::default().clock(seat.clock).max_clock_skew(seat.max_clock_skew).agent(seat.agent);
        Ok(Arc::new(EffectAdapter::open(backend, options).await?))
    }
}
