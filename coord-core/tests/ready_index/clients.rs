//! Clients that use every verb.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use coord_core::Token;
use coord_core::board::{
    Board as _, BoardAdapter, ClaimRequest, Dep, ExtendedBoard as _, Filter, Outcome, Plan, Retry, Rule,
    TaskId, TaskSpec,
};
use rand::RngExt as _;
use rand::rngs::StdRng;

use crate::world::{Link, TTL, World, agent, id};

type Call = Pin<Box<dyn Future<Output = ()>>>;
type Tokens = Arc<Mutex<Vec<(TaskId, Token)>>>;

/// One client, busy with one call at most. What it was answered does not matter here.
pub(crate) struct Client {
    board: BoardAdapter<Link>,
    tokens: Tokens,
    call: Option<Call>,
    now: coord_core::Timestamp,
    /// How many tasks there are.
    tasks: usize,
    /// Whether dependencies have other rules than to be done.
    ruled: bool,
}

fn some(rng: &mut StdRng, tasks: usize) -> TaskId {
    id(&format!("t{}", rng.random_range(0..tasks)))
}

fn some_deps(rng: &mut StdRng, tasks: usize, ruled: bool, of: &TaskId) -> Vec<Dep> {
    let mut deps: Vec<TaskId> = (0..rng.random_range(0..3)).map(|_| some(rng, tasks)).collect();
    deps.retain(|dep| dep != of);
    deps.sort();
    deps.dedup();
    if rng.random_bool(0.5) {
        deps.reverse();
    }
    let mut rule = || if ruled { Rule::ALL[rng.random_range(0..3)] } else { Rule::Done };
    deps.into_iter().map(|dep| Dep::on(dep, rule())).collect()
}

impl Client {
    pub(crate) fn new(world: &World, n: u64, tasks: usize, ruled: bool) -> Self {
        Client {
            board: world.client(n + 1),
            tokens: Tokens::default(),
            call: None,
            now: world.now(),
            tasks,
            ruled,
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.call.is_some()
    }

    pub(crate) fn drop_call(&mut self) {
        self.call = None;
    }

    pub(crate) fn poll(&mut self) {
        if let Some(call) = &mut self.call
            && let Poll::Ready(()) = call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.call = None;
        }
    }

    fn token(&self, rng: &mut StdRng) -> (TaskId, Token) {
        let tokens = self.tokens.lock().unwrap();
        if tokens.is_empty() {
            return (some(rng, self.tasks), Token::mint());
        }
        let from_the_end = rng.random_range(0..tokens.len().min(3));
        tokens[tokens.len() - 1 - from_the_end].clone()
    }

    fn spec(&self, rng: &mut StdRng, task: TaskId) -> TaskSpec {
        let deps = some_deps(rng, self.tasks, self.ruled, &task);
        let mut spec = TaskSpec::new(task).deps(deps).priority(rng.random_range(0..2));
        if rng.random_ratio(1, 6) {
            spec = spec.not_before(self.now.saturating_add(TTL * rng.random_range(0..4)));
        }
        if rng.random_ratio(1, 4) {
            spec = spec.retry(Retry::new(2).backoff(TTL, TTL * 2));
        }
        spec
    }

    /// Begins any verb.
    pub(crate) fn begin(&mut self, rng: &mut StdRng) {
        let (board, tokens, task) = (self.board.clone(), self.tokens.clone(), some(rng, self.tasks));
        let worker = agent("worker");
        let outcome = Outcome::default;
        self.call = Some(match rng.random_range(0..if self.ruled { 46 } else { 36 }) {
            0..7 => {
                let spec = self.spec(rng, task);
                Box::pin(async move { drop(board.add(spec).await) })
            }
            7 => {
                let other = some(rng, self.tasks);
                let other = self.spec(rng, other);
                let Ok(plan) = Plan::new([self.spec(rng, task), other]) else { return };
                Box::pin(async move { drop(board.add_plan(&plan).await) })
            }
            8..10 => Box::pin(async move { drop(board.remove(&task).await) }),
            10..13 => {
                let deps = some_deps(rng, self.tasks, self.ruled, &task);
                Box::pin(async move { drop(board.set_deps(&task, &deps, None).await) })
            }
            13..17 => {
                let request =
                    if rng.random_ratio(1, 8) { ClaimRequest::forever() } else { ClaimRequest::for_ttl(TTL) };
                Box::pin(async move {
                    if let Ok(claim) = board.claim(&task, &worker, request).await {
                        tokens.lock().unwrap().push((task, claim.lease.token));
                    }
                })
            }
            17..21 => {
                let most = rng.random_range(1..3);
                Box::pin(async move {
                    for claim in
                        board.claim_up_to(most, &worker, &Filter::any(), TTL).await.unwrap_or_default()
                    {
                        tokens.lock().unwrap().push((claim.task.id, claim.lease.token));
                    }
                })
            }
            21..23 => {
                let (task, token) = self.token(rng);
                Box::pin(async move { drop(board.renew(&task, &token, TTL).await) })
            }
            23 => {
                let (task, token) = self.token(rng);
                Box::pin(async move { drop(board.release(&task, &token).await) })
            }
            24..30 => {
                let (task, token) = self.token(rng);
                Box::pin(async move { drop(board.complete(&task, &token, outcome()).await) })
            }
            30 | 36..40 => {
                let (task, token) = self.token(rng);
                Box::pin(async move { drop(board.fail(&task, &token, outcome()).await) })
            }
            31 | 40..43 => Box::pin(async move { drop(board.cancel(&task).await) }),
            32..34 | 43..46 => Box::pin(async move { drop(board.reopen(&task).await) }),
            34 => Box::pin(async move {
                if let Ok(seen) = board.get(&task).await {
                    drop(board.revoke(&task, seen.fence).await);
                }
            }),
            _ => Box::pin(async move { drop(board.repair().await) }),
        });
    }
}
