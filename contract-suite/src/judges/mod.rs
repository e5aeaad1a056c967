//! A second board, right or wrong on demand: the suite's own test subject.

mod one_key;
mod wrong;

use std::sync::Arc;

use coord_core::board::{BoardError, ExtendedBoard};
use coord_core::{Backend, async_trait};

pub use one_key::OneKeyBoard;
pub use wrong::WrongJudge;

use crate::harness::{BoardHarness, BoardSeat};

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
