//! The task board: claims with leases, tokens and fences, and dependencies between tasks.
//!
//! [`Board`] is the store-neutral contract of six verbs, [`ExtendedBoard`] what planners and operators need besides,
//! [`BoardAdapter`] the one implementation of the judging logic, above any [`Backend`].

mod adapter;
mod archive;
mod check;
mod check_pages;
mod claim;
mod cost;
mod dep;
mod error;
mod explain;
mod one_head;
mod past;
mod plan;
mod progress;
mod ready;
mod record;
mod retry;
mod task;
mod topology;
mod waiting;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use adapter::{BoardAdapter, BoardOptions, TaskPage};
pub use archive::{Archive, ArchiveReport};
pub use check::{Problem, ProblemCode, check};
pub use dep::{Dep, Rule};
pub use error::BoardError;
pub use explain::Standing;
pub use past::{Event, History};
pub use plan::{Added, Plan, PlanReport};
pub use progress::Progress;
pub use ready::RepairReport;
pub use retry::Retry;
pub use task::{
    AgentId, Claim, ClaimRequest, Filter, Lease, LeaseInfo, Outcome, State, Task, TaskId, TaskSpec, limits,
};
pub use worker::{Answer, Job, Settled, Worker, WorkerEvent, WorkerHandle, WorkerReport};

pub use waiting::{Awaited, Pace};

use crate::backend::Backend;
use crate::token::Token;

/// A verb of a board, for errors and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verb {
    /// Opening a board.
    Open,
    /// [`Board::list`].
    List,
    /// [`Board::get`].
    Get,
    /// [`Board::claim`].
    Claim,
    /// [`Board::renew`].
    Renew,
    /// [`Board::release`].
    Release,
    /// [`Board::complete`].
    Complete,
    /// [`ExtendedBoard::fail`].
    Fail,
    /// [`ExtendedBoard::add`] and [`ExtendedBoard::add_plan`].
    Add,
    /// [`ExtendedBoard::remove`].
    Remove,
    /// [`ExtendedBoard::set_deps`].
    SetDeps,
    /// [`ExtendedBoard::cancel`].
    Cancel,
    /// [`ExtendedBoard::reopen`].
    Reopen,
    /// [`ExtendedBoard::revoke`].
    Revoke,
    /// [`ExtendedBoard::progress`].
    Progress,
    /// [`ExtendedBoard::archive`].
    Archive,
    /// Writing that a task can never begin, by whoever finds that, whatever he came for.
    Skip,
}

impl Verb {
    /// The verb as its method is called.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Open => "open",
            Verb::List => "list",
            Verb::Get => "get",
            Verb::Claim => "claim",
            Verb::Renew => "renew",
            Verb::Release => "release",
            Verb::Complete => "complete",
            Verb::Fail => "fail",
            Verb::Add => "add",
            Verb::Remove => "remove",
            Verb::SetDeps => "set_deps",
            Verb::Cancel => "cancel",
            Verb::Reopen => "reopen",
            Verb::Revoke => "revoke",
            Verb::Progress => "progress",
            Verb::Archive => "archive",
            Verb::Skip => "skip",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A board: the six verbs that workers live on. [`BoardAdapter`] implements it above any store; a host may implement it itself and
/// run the same clauses of the contract suite.
///
/// # Contract
///
/// Every verb takes effect at one instant or not at all, and an error says that it did not happen, save
/// [`OutcomeUnknown`](BoardError::OutcomeUnknown). Errors are judged in the order in which they are listed. Time is the
/// store's where the store has a clock. No answer but the claimer's contains a token.
#[async_trait]
pub trait Board: fmt::Debug + Send + Sync + 'static {
    /// All tasks at one instant, in ascending order of their ids.
    ///
    /// # Errors
    /// [`TooLarge`](BoardError::TooLarge) above 9,999 tasks.
    async fn list(&self) -> Result<Vec<Task>, BoardError>;

    /// One task.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound).
    async fn get(&self, id: &TaskId) -> Result<Task, BoardError>;

    /// Claims a task that is open, or whose lease has expired, and whose dependencies have come to what their rules want. In one transaction the agent becomes
    /// its owner, the fence and the seq grow, and the lease ends `ttl` after the time of the judgement. The token is new. Dependencies that
    /// failed or were cancelled stay so from then on. A task that can never begin becomes [`Skipped`](State::Skipped), and that is the
    /// answer.
    ///
    /// # Errors
    /// [`Invalid`](BoardError::Invalid), [`NotFound`](BoardError::NotFound), [`Terminal`](BoardError::Terminal),
    /// [`Taken`](BoardError::Taken) (also by the same agent name), [`NotYet`](BoardError::NotYet),
    /// [`Blocked`](BoardError::Blocked), in this order.
    async fn claim(&self, id: &TaskId, agent: &AgentId, request: ClaimRequest) -> Result<Claim, BoardError>;

    /// Moves the end of the lease to `ttl` after the time of the judgement. The token stays. Exactly at expiry is too late.
    ///
    /// # Errors
    /// [`Invalid`](BoardError::Invalid), [`NotFound`](BoardError::NotFound), [`LeaseLost`](BoardError::LeaseLost).
    async fn renew(&self, id: &TaskId, token: &Token, ttl: Duration) -> Result<Lease, BoardError>;

    /// Gives the claim back: the task is open again, and the attempt is not counted. Accepted after expiry too, until somebody takes over. The same token again gets
    /// the same answer until the task is claimed again.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound), [`LeaseLost`](BoardError::LeaseLost).
    async fn release(&self, id: &TaskId, token: &Token) -> Result<(), BoardError>;

    /// The task is done, for ever. Accepted after expiry too, until somebody takes over. The same token again gets the outcome
    /// that was kept, which is the first one.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound), [`LeaseLost`](BoardError::LeaseLost).
    async fn complete(&self, id: &TaskId, token: &Token, outcome: Outcome) -> Result<Outcome, BoardError>;
}

/// What planners and operators need beyond the contract of [`Board`].
#[async_trait]
pub trait ExtendedBoard: Board {
    /// Adds one task. The same definition again is [`Added::Existed`] and changes nothing.
    ///
    /// # Errors
    /// [`Invalid`](BoardError::Invalid), [`TooLarge`](BoardError::TooLarge), [`AlreadyExists`](BoardError::AlreadyExists),
    /// [`UnknownDep`](BoardError::UnknownDep), [`Cycle`](BoardError::Cycle).
    async fn add(&self, task: TaskSpec) -> Result<Added, BoardError>;

    /// Adds a plan: all or nothing if it fits one transaction, else in pieces in dependency order. After an error, adding the same plan
    /// again goes on where it stopped.
    ///
    /// # Errors
    /// As [`add`](ExtendedBoard::add).
    async fn add_plan(&self, plan: &Plan) -> Result<PlanReport, BoardError>;

    /// Removes a task that nothing depends on and nobody holds.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound), [`Taken`](BoardError::Taken) (also after expiry: an operator revokes first),
    /// [`HasDependents`](BoardError::HasDependents).
    async fn remove(&self, id: &TaskId) -> Result<(), BoardError>;

    /// Replaces the dependencies of an open task. With `expected_seq`, only if the task has not changed since it had that seq.
    ///
    /// # Errors
    /// [`Invalid`](BoardError::Invalid), [`TooLarge`](BoardError::TooLarge), [`NotFound`](BoardError::NotFound),
    /// [`Terminal`](BoardError::Terminal), [`Taken`](BoardError::Taken) (also after expiry),
    /// [`SeqMismatch`](BoardError::SeqMismatch), [`UnknownDep`](BoardError::UnknownDep), [`Cycle`](BoardError::Cycle).
    async fn set_deps(&self, id: &TaskId, deps: &[Dep], expected_seq: Option<u64>) -> Result<(), BoardError>;

    /// The holder says that the task has failed. If it has attempts left ([`TaskSpec::retry`]), it is open again and may be claimed once
    /// it has rested; else it has failed, and stays in the list until somebody reopens or removes it. The same token again gets the reason that was kept, until the task is claimed again.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound), [`LeaseLost`](BoardError::LeaseLost).
    async fn fail(&self, id: &TaskId, token: &Token, reason: Outcome) -> Result<Outcome, BoardError>;

    /// Cancels a task, held or not. Success if it is cancelled already.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound), [`Terminal`](BoardError::Terminal) if done, failed or skipped.
    async fn cancel(&self, id: &TaskId) -> Result<(), BoardError>;

    /// Opens a failed or cancelled task again and sets its attempts to zero. Success if it is open already. Once another task has been
    /// claimed because of that end, it stays.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound), [`Terminal`](BoardError::Terminal) if done or skipped, [`Taken`](BoardError::Taken) if claimed,
    /// [`HasDependents`](BoardError::HasDependents) with the task that has begun.
    async fn reopen(&self, id: &TaskId) -> Result<(), BoardError>;

    /// Frees the claim with this fence, whoever holds it: for an operator. The attempt stays counted. Success if that claim no longer stands and no later one does.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound), [`LeaseLost`](BoardError::LeaseLost) if another claim stands.
    async fn revoke(&self, id: &TaskId, fence: u64) -> Result<(), BoardError>;

    /// Claims the first task that can be claimed: the highest priority, and within it the first in line. Where others look at the same time,
    /// each gets another one near the front. `None` if there is none; also if what could be claimed kept changing while it was looked for,
    /// so whoever works on looks again.
    ///
    /// On a quiet board above a store it costs three short listings side by side, a snapshot and a transaction, and one snapshot more if
    /// the task has dependencies, however many other tasks there are: five or six calls, three or four of them one after the other.
    ///
    /// # Errors
    /// [`Invalid`](BoardError::Invalid); [`Malformed`](BoardError::Malformed) if an unreadable record was met and nothing else found.
    async fn claim_next(
        &self,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
    ) -> Result<Option<Claim>, BoardError>;

    /// Claims up to `most` tasks, as so many calls of [`claim_next`](ExtendedBoard::claim_next) would, one by one. What has been claimed
    /// when something goes wrong is returned as if there had been no more.
    ///
    /// # Errors
    /// As [`claim_next`](ExtendedBoard::claim_next), if nothing was claimed.
    async fn claim_up_to(
        &self,
        most: usize,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
    ) -> Result<Vec<Claim>, BoardError>;

    /// Tasks in ascending order of their ids: the first `limit` (1 to 1,000) after `after`, which need not exist. Each page is one
    /// instant, different pages are not: for boards above the 9,999 tasks that [`list`](Board::list) returns.
    ///
    /// # Errors
    /// [`Invalid`](BoardError::Invalid) for another limit, [`TxnConflict`](BoardError::TxnConflict) if tasks kept being added and
    /// removed.
    async fn page(&self, after: Option<&TaskId>, limit: usize) -> Result<TaskPage, BoardError>;

    /// Every broken invariant of the board's tasks, as the function [`check`] finds them, however large the board is and whoever else works
    /// on it: what is read at several instants is read again until it contradicts itself at one, or no more. Reads only; a listing, and
    /// above 9,999 tasks one page a thousand of them.
    ///
    /// # Errors
    /// [`Malformed`](BoardError::Malformed) if a record cannot be read, [`TxnConflict`](BoardError::TxnConflict) if the tasks of a
    /// suspicion kept changing.
    async fn check(&self) -> Result<Vec<Problem>, BoardError> {
        check_pages::check_board(self).await
    }

    /// Why a task can be claimed or not: who holds it, what it waits for, until when.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound).
    async fn explain(&self, id: &TaskId) -> Result<Standing, BoardError>;

    /// The holder says how far the task is, in at most 512 bytes: shown as [`Task::progress`], and no change of the task, whose seq stays.
    /// Exactly at expiry is too late. A newer word replaces an older one, so one of which it is not known whether it was told may be told
    /// again, or not at all.
    ///
    /// # Errors
    /// [`TooLarge`](BoardError::TooLarge), [`NotFound`](BoardError::NotFound), [`LeaseLost`](BoardError::LeaseLost).
    async fn progress(&self, id: &TaskId, token: &Token, text: &str) -> Result<(), BoardError>;

    /// The last things that happened to a task. Renewals are not told, nor that a dependent has begun because of the end of this task. Gone with
    /// the task.
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound).
    async fn history(&self, id: &TaskId) -> Result<History, BoardError>;

    /// Takes finished tasks off the board, so that one that goes on for ever stays bounded: those of the next [`Archive::most`] ids that
    /// are done or skipped, or failed or cancelled if that is asked for, were last touched so long ago, and on which nothing depends
    /// that is not done or skipped itself. Their names are taken out of the definitions of these, whose seqs move and whose time of
    /// touching stays; adding one of these again is still [`Added::Existed`]. A task that is gone is unknown: adding it again runs it
    /// again, and a new task cannot depend on it. Fences and seqs go on, as over [`remove`](ExtendedBoard::remove).
    ///
    /// The board is whole at any time, whoever else works on it, and also when a call is given up. What has been archived before something goes
    /// wrong is gone all the same.
    ///
    /// # Errors
    /// [`Invalid`](BoardError::Invalid) for another number of tasks than 1 to 1,000.
    async fn archive(&self, request: &Archive) -> Result<ArchiveReport, BoardError>;

    /// Waits until this has come, `true`, or the patience is over, `false`. It looks at once and then less and less often, see [`Pace`].
    ///
    /// # Errors
    /// [`NotFound`](BoardError::NotFound) if the task is not there (any more).
    async fn wait(&self, awaited: &Awaited, patience: Duration) -> Result<bool, BoardError>;

    /// Makes whatever the board keeps besides its tasks anew, from the tasks: how they are found by
    /// [`claim_next`](ExtendedBoard::claim_next). For boards that were damaged, or written to by a version that did not keep it. Others
    /// may work on meanwhile.
    ///
    /// # Errors
    /// [`Malformed`](BoardError::Malformed) if a record in the way cannot be read.
    async fn repair(&self) -> Result<RepairReport, BoardError>;

    /// Compares what the board keeps besides its tasks with the tasks: that each that can be claimed is found. A board on which others
    /// work may have entries that are stale or still to be examined; [`ProblemCode::Unindexed`] is a fault at any time.
    ///
    /// # Errors
    /// [`Malformed`](BoardError::Malformed) if a record cannot be read.
    async fn check_index(&self) -> Result<Vec<Problem>, BoardError>;
}

macro_rules! forward {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<B: Board + ?Sized> Board for $pointer<B> {
            async fn list(&self) -> Result<Vec<Task>, BoardError> {
                (**self).list().await
            }
            async fn get(&self, id: &TaskId) -> Result<Task, BoardError> {
                (**self).get(id).await
            }
            async fn claim(
                &self,
                id: &TaskId,
                agent: &AgentId,
                request: ClaimRequest,
            ) -> Result<Claim, BoardError> {
                (**self).claim(id, agent, request).await
            }
            async fn renew(&self, id: &TaskId, token: &Token, ttl: Duration) -> Result<Lease, BoardError> {
                (**self).renew(id, token, ttl).await
            }
            async fn release(&self, id: &TaskId, token: &Token) -> Result<(), BoardError> {
                (**self).release(id, token).await
            }
            async fn complete(
                &self,
                id: &TaskId,
                token: &Token,
                outcome: Outcome,
            ) -> Result<Outcome, BoardError> {
                (**self).complete(id, token, outcome).await
            }
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<B: ExtendedBoard + ?Sized> ExtendedBoard for $pointer<B> {
            async fn add(&self, task: TaskSpec) -> Result<Added, BoardError> {
                (**self).add(task).await
            }
            async fn add_plan(&self, plan: &Plan) -> Result<PlanReport, BoardError> {
                (**self).add_plan(plan).await
            }
            async fn remove(&self, id: &TaskId) -> Result<(), BoardError> {
                (**self).remove(id).await
            }
            async fn set_deps(
                &self,
                id: &TaskId,
                deps: &[Dep],
                expected_seq: Option<u64>,
            ) -> Result<(), BoardError> {
                (**self).set_deps(id, deps, expected_seq).await
            }
            async fn fail(&self, id: &TaskId, token: &Token, reason: Outcome) -> Result<Outcome, BoardError> {
                (**self).fail(id, token, reason).await
            }
            async fn cancel(&self, id: &TaskId) -> Result<(), BoardError> {
                (**self).cancel(id).await
            }
            async fn reopen(&self, id: &TaskId) -> Result<(), BoardError> {
                (**self).reopen(id).await
            }
            async fn revoke(&self, id: &TaskId, fence: u64) -> Result<(), BoardError> {
                (**self).revoke(id, fence).await
            }
            async fn claim_next(
                &self,
                agent: &AgentId,
                filter: &Filter,
                ttl: Duration,
            ) -> Result<Option<Claim>, BoardError> {
                (**self).claim_next(agent, filter, ttl).await
            }
            async fn claim_up_to(
                &self,
                most: usize,
                agent: &AgentId,
                filter: &Filter,
                ttl: Duration,
            ) -> Result<Vec<Claim>, BoardError> {
                (**self).claim_up_to(most, agent, filter, ttl).await
            }
            async fn page(&self, after: Option<&TaskId>, limit: usize) -> Result<TaskPage, BoardError> {
                (**self).page(after, limit).await
            }
            async fn check(&self) -> Result<Vec<Problem>, BoardError> {
                (**self).check().await
            }
            async fn explain(&self, id: &TaskId) -> Result<Standing, BoardError> {
                (**self).explain(id).await
            }
            async fn progress(&self, id: &TaskId, token: &Token, text: &str) -> Result<(), BoardError> {
                (**self).progress(id, token, text).await
            }
            async fn archive(&self, request: &Archive) -> Result<ArchiveReport, BoardError> {
                (**self).archive(request).await
            }
            async fn history(&self, id: &TaskId) -> Result<History, BoardError> {
                (**self).history(id).await
            }
            async fn wait(&self, awaited: &Awaited, patience: Duration) -> Result<bool, BoardError> {
                (**self).wait(awaited, patience).await
            }
            async fn repair(&self) -> Result<RepairReport, BoardError> {
                (**self).repair().await
            }
            async fn check_index(&self) -> Result<Vec<Problem>, BoardError> {
                (**self).check_index().await
            }
        }
    };
}

forward!(Arc);
forward!(Box);

#[async_trait]
impl<B: Backend> Board for BoardAdapter<B> {
    async fn list(&self) -> Result<Vec<Task>, BoardError> {
        self.list_tasks().await
    }
    async fn get(&self, id: &TaskId) -> Result<Task, BoardError> {
        self.get_task(id).await
    }
    async fn claim(&self, id: &TaskId, agent: &AgentId, request: ClaimRequest) -> Result<Claim, BoardError> {
        self.claim_task(id, agent, &request).await
    }
    async fn renew(&self, id: &TaskId, token: &Token, ttl: Duration) -> Result<Lease, BoardError> {
        self.renew_task(id, token, ttl).await
    }
    async fn release(&self, id: &TaskId, token: &Token) -> Result<(), BoardError> {
        self.release_task(id, token).await
    }
    async fn complete(&self, id: &TaskId, token: &Token, outcome: Outcome) -> Result<Outcome, BoardError> {
        self.complete_task(id, token, outcome).await
    }
}

#[async_trait]
impl<B: Backend> ExtendedBoard for BoardAdapter<B> {
    async fn add(&self, task: TaskSpec) -> Result<Added, BoardError> {
        task.validate()?;
        let added = self.add_tasks(std::slice::from_ref(&task)).await?;
        Ok(added.first().copied().unwrap_or(Added::Existed))
    }
    async fn add_plan(&self, plan: &Plan) -> Result<PlanReport, BoardError> {
        self.add_whole_plan(plan).await
    }
    async fn remove(&self, id: &TaskId) -> Result<(), BoardError> {
        self.remove_task(id).await
    }
    async fn set_deps(&self, id: &TaskId, deps: &[Dep], expected_seq: Option<u64>) -> Result<(), BoardError> {
        self.reconnect_task(id, deps, expected_seq).await
    }
    async fn fail(&self, id: &TaskId, token: &Token, reason: Outcome) -> Result<Outcome, BoardError> {
        self.fail_task(id, token, reason).await
    }
    async fn cancel(&self, id: &TaskId) -> Result<(), BoardError> {
        self.cancel_task(id).await
    }
    async fn reopen(&self, id: &TaskId) -> Result<(), BoardError> {
        self.reopen_task(id).await
    }
    async fn revoke(&self, id: &TaskId, fence: u64) -> Result<(), BoardError> {
        self.revoke_task(id, fence).await
    }
    async fn claim_next(
        &self,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
    ) -> Result<Option<Claim>, BoardError> {
        Ok(self.claim_ready(agent, filter, ttl, 1).await?.pop())
    }
    async fn claim_up_to(
        &self,
        most: usize,
        agent: &AgentId,
        filter: &Filter,
        ttl: Duration,
    ) -> Result<Vec<Claim>, BoardError> {
        self.claim_ready(agent, filter, ttl, most).await
    }
    async fn page(&self, after: Option<&TaskId>, limit: usize) -> Result<TaskPage, BoardError> {
        self.page_of_tasks(after, limit).await
    }
    async fn explain(&self, id: &TaskId) -> Result<Standing, BoardError> {
        self.explain_task(id).await
    }
    async fn archive(&self, request: &Archive) -> Result<ArchiveReport, BoardError> {
        self.archive_tasks(request).await
    }
    async fn progress(&self, id: &TaskId, token: &Token, text: &str) -> Result<(), BoardError> {
        self.tell_progress(id, token, text).await
    }
    async fn history(&self, id: &TaskId) -> Result<History, BoardError> {
        self.history_of(id).await
    }
    async fn wait(&self, awaited: &Awaited, patience: Duration) -> Result<bool, BoardError> {
        self.wait_for(awaited, patience).await
    }
    async fn repair(&self) -> Result<RepairReport, BoardError> {
        self.repair_index().await
    }
    async fn check_index(&self) -> Result<Vec<Problem>, BoardError> {
        self.check_index_entries().await
    }
}
