//! Why a task can be claimed or not.

use super::BoardError;
use super::adapter::BoardAdapter;
use super::claim::{Claiming, Found};
use super::record::{head_key, read_head};
use super::task::{AgentId, ClaimRequest, State, TaskId};
use crate::backend::Backend;
use crate::cas::{Fate, Judge, Pending, Step, View};
use crate::clock::Timestamp;
use crate::key::Key;

/// Why a task can be claimed or not, as a claim would judge it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It can be claimed.
    Claimable,
    /// It has ended. If it failed or was cancelled, it can be reopened.
    Ended {
        /// How.
        state: State,
    },
    /// It has failed or was cancelled, and cannot be reopened, for another task has begun because of that.
    Pinned {
        /// How it has ended.
        state: State,
        /// The task that has begun, the first one if there are several. It may have been removed since.
        dependent: TaskId,
    },
    /// Somebody holds it.
    Held {
        /// Who.
        owner: AgentId,
        /// Until when; `None` if for ever.
        until: Option<Timestamp>,
        /// Under which fence: what `revoke` wants to know.
        fence: u64,
    },
    /// It may not be claimed yet.
    NotYet {
        /// From when on it may.
        until: Timestamp,
    },
    /// It waits for others.
    Blocked {
        /// Those that are open or claimed.
        pending: Vec<TaskId>,
        /// Those that ended otherwise than they should. Those that failed or were cancelled somebody has to reopen; those that were done
        /// or skipped make that it is skipped once the others have ended.
        failed: Vec<TaskId>,
        /// Those that do not exist.
        missing: Vec<TaskId>,
    },
    /// All its attempts have been made, and whoever claims it next makes it a failed one.
    Exhausted,
    /// It can never begin, and whoever claims it next makes it a skipped one.
    Skippable,
}

/// A claim that writes nothing.
struct Explaining<'a> {
    id: &'a TaskId,
    claiming: Claiming<'a>,
}

impl Judge for Explaining<'_> {
    type Answer = Standing;
    type Error = BoardError;

    fn keys(&self) -> Vec<Key> {
        self.claiming.keys()
    }

    fn judge(&mut self, view: &View<'_>) -> Result<Step<Standing>, BoardError> {
        let standing = match self.claiming.judge(view) {
            Ok(Step::Read(keys)) => return Ok(Step::Read(keys)),
            Ok(Step::List(range)) => return Ok(Step::List(range)),
            Ok(Step::Commit(_, Found::Failed)) => Standing::Exhausted,
            Ok(Step::Commit(_, Found::Skipped)) => Standing::Skippable,
            Ok(Step::Commit(..) | Step::Answer(_)) => Standing::Claimable,
            Err(BoardError::Terminal { state }) => {
                let head = read_head(self.id, view.entry(&head_key(self.id))?)?;
                match head.and_then(|head| head.pinned_by) {
                    Some(dependent) => Standing::Pinned { state, dependent },
                    None => Standing::Ended { state },
                }
            }
            Err(BoardError::Taken { owner, until, fence }) => Standing::Held { owner, until, fence },
            Err(BoardError::NotYet { until }) => Standing::NotYet { until },
            Err(BoardError::Blocked { pending, failed, missing }) => {
                Standing::Blocked { pending, failed, missing }
            }
            Err(error) => return Err(error),
        };
        Ok(Step::Answer(standing))
    }

    fn fate(&self, _: &View<'_>, _: &Pending<Standing>) -> Result<Fate<Standing>, BoardError> {
        // It has sent nothing.
        Ok(Fate::Dead)
    }

    fn conflict(&self, attempts: u32) -> BoardError {
        self.claiming.conflict(attempts)
    }

    fn unknown(&self) -> BoardError {
        self.claiming.conflict(0)
    }
}

impl<B: Backend> BoardAdapter<B> {
    pub(super) async fn explain_task(&self, id: &TaskId) -> Result<Standing, BoardError> {
        id.validate()?;
        let (agent, request) = (AgentId::unchecked("explain"), ClaimRequest::forever());
        self.run(&mut Explaining { id, claiming: Claiming::new(id, &agent, &request, None) }).await
    }
}
