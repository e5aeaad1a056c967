//! Random verbs, and somebody who performs them at a board.

use std::sync::Arc;
use std::time::Duration;

use coord_core::Token;
use coord_core::board::{
    Added, AgentId, Archive, BoardError, ClaimRequest, Dep, ExtendedBoard, Filter, Retry, Rule, Standing,
    Task, TaskId, TaskSpec,
};
use proptest::prelude::*;

use super::super::stage::{TTL, agent, id, result};
use super::reference::{End, Reference, blocked_by, held_by, names};
use crate::clause::Verdict;

/// A dependency by one of the rules.
type Edge = (u8, u8);

/// One verb with arguments that mean something whatever was before.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Add {
        task: u8,
        deps: Vec<Edge>,
        attempts: Option<u32>,
        priority: i32,
    },
    Remove {
        task: u8,
    },
    SetDeps {
        task: u8,
        deps: Vec<Edge>,
    },
    Claim {
        task: u8,
        agent: u8,
        ttl: Option<u8>,
    },
    ClaimNext {
        agent: u8,
    },
    /// By one of the tokens that were given, counted from the last.
    Renew {
        token: u8,
    },
    Release {
        token: u8,
    },
    Complete {
        token: u8,
    },
    Fail {
        token: u8,
    },
    Progress {
        token: u8,
    },
    Cancel {
        task: u8,
    },
    Reopen {
        task: u8,
    },
    /// With the fence that stands, or an older one.
    Revoke {
        task: u8,
        older: bool,
    },
    /// What has ended so many seconds ago.
    Archive {
        age: u8,
        failed: bool,
        cancelled: bool,
    },
    Explain {
        task: u8,
    },
    Wait {
        seconds: u8,
    },
}

const TASKS: u8 = 6;

/// How a task is defined, its number aside.
fn definition() -> impl Strategy<Value = (Vec<Edge>, Option<u32>, i32)> {
    let deps = proptest::collection::vec((0..TASKS, 0..4_u8), 0..4);
    (deps, proptest::option::weighted(0.3, 1..3_u32), 0..2_i32)
}

fn add(task: u8, (deps, attempts, priority): (Vec<Edge>, Option<u32>, i32)) -> Op {
    Op::Add { task, deps, attempts, priority }
}

/// A board on which every task names some that were added before it, and what happens there.
pub(super) fn ops() -> impl Strategy<Value = Vec<(bool, Op)>> {
    let task = || 0..TASKS;
    let deps = || proptest::collection::vec((0..TASKS, 0..4_u8), 0..4);
    // Mostly the last token, for otherwise nearly all are lost.
    let token = || prop_oneof![5 => Just(0_u8), 2 => 1..3_u8, 1 => 3..20_u8];
    let one = |op| vec![op];
    let op = prop_oneof![
        4 => (task(), definition()).prop_map(|(task, definition)| add(task, definition)).prop_map(one),
        2 => task().prop_map(|task| Op::Remove { task }).prop_map(one),
        4 => (task(), deps()).prop_map(|(task, deps)| Op::SetDeps { task, deps }).prop_map(one),
        6 => (task(), 0..2_u8, proptest::option::weighted(0.9, 1..60_u8))
            .prop_map(|(task, agent, ttl)| Op::Claim { task, agent, ttl }).prop_map(one),
        // A life in short.
        8 => (task(), 0..4_u8).prop_map(|(task, end)| {
            let end = match end {
                0 | 1 => Op::Fail { token: 0 },
                2 => Op::Complete { token: 0 },
                _ => Op::Release { token: 0 },
            };
            vec![Op::Claim { task, agent: 0, ttl: Some(30) }, end]
        }),
        4 => (0..2_u8).prop_map(|agent| Op::ClaimNext { agent }).prop_map(one),
        2 => token().prop_map(|token| Op::Renew { token }).prop_map(one),
        1 => token().prop_map(|token| Op::Release { token }).prop_map(one),
        3 => token().prop_map(|token| Op::Complete { token }).prop_map(one),
        2 => token().prop_map(|token| Op::Fail { token }).prop_map(one),
        1 => token().prop_map(|token| Op::Progress { token }).prop_map(one),
        4 => task().prop_map(|task| Op::Cancel { task }).prop_map(one),
        5 => task().prop_map(|task| Op::Reopen { task }).prop_map(one),
        1 => (task(), any::<bool>()).prop_map(|(task, older)| Op::Revoke { task, older }).prop_map(one),
        1 => (0..60_u8, any::<bool>(), any::<bool>())
            .prop_map(|(age, failed, cancelled)| Op::Archive { age, failed, cancelled }).prop_map(one),
        3 => task().prop_map(|task| Op::Explain { task }).prop_map(one),
        3 => (1..60_u8).prop_map(|seconds| Op::Wait { seconds }).prop_map(one),
    ];
    let planned = proptest::collection::vec(definition(), usize::from(TASKS));
    let seats = proptest::collection::vec((any::<bool>(), op), 1..50);
    (planned, seats).prop_map(|(planned, seats)| {
        let planned = planned.into_iter().zip(0..).map(|((mut deps, attempts, priority), task): (_, u8)| {
            deps.retain(|_| task > 0);
            deps.iter_mut().for_each(|(dep, _)| *dep %= task);
            (false, add(task, (deps, attempts, priority)))
        });
        let moves = seats.into_iter().flat_map(|(seat, ops)| ops.into_iter().map(move |op| (seat, op)));
        planned.chain(moves).collect()
    })
}

fn name(task: u8) -> TaskId {
    id(format!("task {task}"))
}

fn who(number: u8) -> AgentId {
    agent(format!("agent {number}"))
}

/// Every task once, by the rule done more often than by another one.
fn edges(deps: &[Edge]) -> Vec<Dep> {
    let mut edges: Vec<Dep> = Vec::new();
    for (task, rule) in deps {
        let rule = [Rule::Done, Rule::Finished, Rule::Failed, Rule::Done][usize::from(rule % 4)];
        if !edges.iter().any(|edge| edge.id == name(*task)) {
            edges.push(Dep::on(name(*task), rule));
        }
    }
    edges
}

fn spec(task: u8, deps: &[Edge], attempts: Option<u32>, priority: i32) -> TaskSpec {
    let spec = TaskSpec::new(name(task)).deps(edges(deps)).priority(priority);
    match attempts {
        Some(attempts) => {
            let (first, longest) = (Duration::from_secs(20), Duration::from_secs(60));
            spec.retry(Retry::new(attempts).backoff(first, longest))
        }
        None => spec,
    }
}

/// A refusal in the words of the reference.
fn refused(error: BoardError) -> Result<String, BoardError> {
    Ok(match error {
        BoardError::NotFound { .. } => "NotFound".into(),
        BoardError::Terminal { state } => format!("Terminal {state}"),
        BoardError::Taken { owner, until, .. } => held_by(&owner, until),
        BoardError::NotYet { until } => format!("NotYet until {until}"),
        BoardError::Blocked { pending, failed, missing } => blocked_by(&pending, &failed, &missing),
        BoardError::LeaseLost { .. } => "LeaseLost".into(),
        BoardError::AlreadyExists { .. } => "AlreadyExists".into(),
        BoardError::UnknownDep { id } => format!("UnknownDep {id:?}"),
        BoardError::Cycle { .. } => "Cycle".into(),
        BoardError::HasDependents { dependent } => format!("HasDependents {dependent:?}"),
        other => return Err(other),
    })
}

fn explained(standing: Standing) -> Result<String, BoardError> {
    match standing {
        Standing::Claimable => Ok("claimable".into()),
        Standing::Skippable => Ok("to be skipped".into()),
        Standing::Exhausted => Ok("exhausted".into()),
        Standing::Ended { state } => Err(BoardError::Terminal { state }),
        Standing::Pinned { state, dependent } => Ok(format!("{state}, pinned by {dependent:?}")),
        Standing::Held { owner, until, fence } => Err(BoardError::Taken { owner, until, fence }),
        Standing::NotYet { until } => Err(BoardError::NotYet { until }),
        Standing::Blocked { pending, failed, missing } => {
            Err(BoardError::Blocked { pending, failed, missing })
        }
        other => Ok(format!("{other:?}")),
    }
}

/// What a verb answered.
pub(super) struct Answered {
    pub(super) said: String,
    /// What it gave.
    given: Option<TaskId>,
    /// Whom a refusal names.
    named: Option<TaskId>,
}

/// A board from two seats, and the tokens that it has given.
pub(super) struct Player {
    pub(super) seats: [Arc<dyn ExtendedBoard>; 2],
    pub(super) tokens: Vec<(TaskId, Token)>,
}

impl Player {
    /// Which of the tokens, counted from the last.
    fn number(&self, token: u8) -> Option<usize> {
        self.tokens.len().checked_sub(usize::from(token) + 1)
    }

    fn token(&self, token: u8) -> (TaskId, Token) {
        self.number(token).map_or_else(|| (name(0), Token::mint()), |number| self.tokens[number].clone())
    }

    /// Performs it and says what was answered, in words that no number depends on.
    pub(super) async fn perform(&mut self, other: bool, op: &Op) -> Result<Answered, Verdict> {
        let board = self.seats[usize::from(other)].clone();
        let mut claimed = None;
        let ok = |()| "ok".to_owned();
        let answer = match op {
            Op::Add { task, deps, attempts, priority } => {
                board.add(spec(*task, deps, *attempts, *priority)).await.map(|added| match added {
                    Added::New => "new".to_owned(),
                    Added::Existed => "existed".to_owned(),
                })
            }
            Op::Remove { task } => board.remove(&name(*task)).await.map(ok),
            Op::SetDeps { task, deps } => board.set_deps(&name(*task), &edges(deps), None).await.map(ok),
            Op::Claim { task, agent, ttl } => {
                let request = match ttl {
                    Some(ttl) => ClaimRequest::for_ttl(Duration::from_secs((*ttl).into())),
                    None => ClaimRequest::forever(),
                };
                let claim = board.claim(&name(*task), &who(*agent), request).await;
                claim.map(|claim| claimed = Some(claim)).map(|()| String::new())
            }
            Op::ClaimNext { agent } => {
                let claim = board.claim_next(&who(*agent), &Filter::any(), TTL).await;
                claim.map(|claim| claimed = claim).map(|()| "nothing".to_owned())
            }
            Op::Renew { token } => {
                let (task, token) = self.token(*token);
                board.renew(&task, &token, TTL).await.map(|_| "ok".to_owned())
            }
            Op::Release { token } => {
                let (task, token) = self.token(*token);
                board.release(&task, &token).await.map(|()| String::new())
            }
            Op::Complete { token: n } => {
                let (task, token) = self.token(*n);
                let kept = board.complete(&task, &token, result(&format!("done {n}"))).await;
                kept.map(|kept| kept.to_string())
            }
            Op::Fail { token: n } => {
                let (task, token) = self.token(*n);
                let kept = board.fail(&task, &token, result(&format!("failed {n}"))).await;
                kept.map(|kept| kept.to_string())
            }
            Op::Progress { token: n } => {
                let (task, token) = self.token(*n);
                board.progress(&task, &token, &format!("told {n}")).await.map(ok)
            }
            Op::Cancel { task } => board.cancel(&name(*task)).await.map(ok),
            Op::Reopen { task } => board.reopen(&name(*task)).await.map(ok),
            Op::Revoke { task, older } => {
                let fence = match board.get(&name(*task)).await {
                    Ok(task) if *older => task.fence.saturating_sub(1),
                    Ok(task) => task.fence,
                    Err(_) => 1,
                };
                board.revoke(&name(*task), fence).await.map(ok)
            }
            Op::Archive { age, failed, cancelled } => {
                let mut request = Archive::older_than(Duration::from_secs((*age).into()));
                (request.failed, request.cancelled) = (*failed, *cancelled);
                let report = board.archive(&request).await;
                report.map(|report| format!("archived {}", names(&report.archived)))
            }
            Op::Explain { task } => board.explain(&name(*task)).await.and_then(explained),
            Op::Wait { .. } => Ok("ok".to_owned()),
        };
        let named = match &answer {
            Err(BoardError::HasDependents { dependent }) => Some(dependent.clone()),
            _ => None,
        };
        let said = match answer.or_else(refused) {
            Ok(said) => said,
            Err(error) => return Err(Verdict::from(error).context(format!("{op:?}"))),
        };
        let Some(claim) = claimed else { return Ok(Answered { said, given: None, named }) };
        let given = claim.task.id;
        self.tokens.push((given.clone(), claim.lease.token));
        Ok(Answered { said: format!("claimed {given:?}"), given: Some(given), named })
    }

    /// What should have been answered to a verb that has just been performed, after which the board shows these tasks.
    pub(super) fn expected(
        &self,
        reference: &mut Reference,
        op: &Op,
        answered: &Answered,
        seen: &[Task],
    ) -> String {
        // The token that has just been given was not to be had before.
        let before = usize::from(answered.given.is_some());
        let number = |token: &u8| (self.tokens.len() - before).checked_sub(usize::from(*token) + 1);
        let task_of =
            |token: &u8| number(token).map_or_else(|| name(0), |number| self.tokens[number].0.clone());
        let mut settle = |token: &u8, end, text: String| {
            reference.settle(&task_of(token), number(token), end, &text, seen)
        };
        let said = match op {
            Op::Add { task, deps, attempts, priority } => {
                reference.add(&spec(*task, deps, *attempts, *priority))
            }
            Op::Remove { task } => reference.remove(&name(*task), answered.named.as_ref()),
            Op::SetDeps { task, deps } => reference.set_deps(&name(*task), &edges(deps)),
            Op::Claim { task, agent, ttl } => {
                let ttl = ttl.map(|ttl| Duration::from_secs(ttl.into()));
                reference.claim(&name(*task), &who(*agent), ttl, seen)
            }
            Op::ClaimNext { agent } => reference.claim_next(&who(*agent), seen, answered.given.as_ref()),
            Op::Renew { token } => reference.renew(&task_of(token), number(token)),
            Op::Progress { token } => {
                reference.progress(&task_of(token), number(token), &format!("told {token}"))
            }
            Op::Release { token } => settle(token, End::Release, String::new()),
            Op::Complete { token } => settle(token, End::Complete, format!("done {token}")),
            Op::Fail { token } => settle(token, End::Fail, format!("failed {token}")),
            Op::Cancel { task } => reference.cancel(&name(*task)),
            Op::Reopen { task } => reference.reopen(&name(*task)),
            Op::Revoke { task, older } => reference.revoke(&name(*task), *older),
            Op::Archive { age, failed, cancelled } => {
                reference.archive(Duration::from_secs((*age).into()), *failed, *cancelled)
            }
            Op::Explain { task } => reference.explain(&name(*task)),
            Op::Wait { .. } => Ok("ok".into()),
        };
        said.unwrap_or_else(|refused| refused)
    }

    /// What has to be asked at the end, so that what no list shows is seen too: why each can be claimed or not, and whether what has ended
    /// can be reopened.
    pub(super) fn at_the_end(reference: &Reference) -> Vec<Op> {
        let number = |id: &TaskId| (0..TASKS).find(|task| name(*task) == *id);
        let explain =
            reference.ids().iter().filter_map(number).map(|task| Op::Explain { task }).collect::<Vec<_>>();
        let reopen = reference
            .reopenable()
            .iter()
            .filter_map(number)
            .map(|task| Op::Reopen { task })
            .collect::<Vec<_>>();
        explain.into_iter().chain([Op::ClaimNext { agent: 0 }]).chain(reopen).collect()
    }
}
