//! A second board, a second side-effect store and a second guard, right or wrong on demand: the suite's own test subjects.

mod index;
mod one_key;
mod one_key_effects;
mod one_value;
mod plain_guard;
#[cfg(feature = "sqlite")]
pub mod trials;
mod wrong;
mod wrong_effects;
mod wrong_guard;

use std::sync::Arc;

use coord_core::board::{BoardError, ExtendedBoard};
use coord_core::effects::{EffectError, EffectStore};
use coord_core::{Backend, async_trait};

pub use index::{WrongIndex, WrongIndexHarness};
pub use one_key::OneKeyBoard;
pub use one_key_effects::OneKeyEffects;
pub use plain_guard::PlainGuard;
pub use wrong::WrongJudge;
pub use wrong_effects::WrongEffects;
pub use wrong_guard::WrongGuard;

use crate::harness::{BoardHarness, BoardSeat, EffectSeat, EffectsHarness};

/// Opens [`OneKeyBoard`]s, all of them right, or all wrong in one way.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneKeyHarness {
    /// How they judge wrongly.
    pub wrong: Option<WrongJudge>,
}

#[async_trait]
impl BoardHarness for OneKeyHarness {
    fn name(&self) -> &str {
        "one key"
    }

    async fn open(
        &self,
        backend: Arc<dyn Backend>,
        seat: BoardSeat,
    ) -> Result<Arc<dyn ExtendedBoard>, BoardError> {
        let board = OneKeyBoard::open(backend, seat.clock, seat.max_clock_skew).await?;
        Ok(match self.wrong {
            Some(wrong) => Arc::new(board.judging(wrong)),
            None => Arc::new(board),
        })
    }
}

/// Opens [`OneKeyEffects`], all of them right, or all wrong in one way.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneKeyEffectsHarness {
    /// How they judge wrongly.
    pub wrong: Option<WrongEffects>,
}

#[async_trait]
impl EffectsHarness for OneKeyEffectsHarness {
    fn name(&self) -> &str {
        "one key"
    }

    async fn open(
        &self,
        backend: Arc<dyn Backend>,
        seat: EffectSeat,
    ) -> Result<Arc<dyn EffectStore>, EffectError> {
        let store = OneKeyEffects::open(backend, seat.clock, seat.max_clock_skew, seat.agent).await?;
        Ok(match self.wrong {
            Some(wrong) => Arc::new(store.judging(wrong)),
            None => Arc::new(store),
        })
    }
}
