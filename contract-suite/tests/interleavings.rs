//! The board and the side-effect store above the memory backend, under a scheduler that decides at every point between its snapshots and transactions which
//! client goes on: by chance, and by few but ill-timed preemptions (PCT).
//!
//! Every failure prints its schedule. `COORD_SCHEDULE=<schedule> cargo test -p contract-suite --test interleavings <name>` replays it,
//! `COORD_SUITE_SEED` starts from another seed, and `COORD_SCHEDULES` sets how many schedules each scheduler tries.

#[path = "interleavings/effects.rs"]
mod effects;
#[path = "interleavings/scenarios.rs"]
mod scenarios;
#[path = "interleavings/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, MaxSteps, Runner};

use world::{Flaw, World};

/// Schedules of each scheduler for each scenario.
const SCHEDULES: usize = 700;
/// At most so many until a flaw is found.
const FLAWED_SCHEDULES: usize = 500;
const SEED: u64 = 4;

type Scenario = fn(World) -> BoxFuture<'static, ()>;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs a scenario under a scheduler, and returns how many schedules were tried.
fn run(scheduler: impl Scheduler + 'static, scenario: Scenario, flaw: Option<Flaw>) -> usize {
    let mut config = Config::new();
    // Futures are large without optimisation.
    config.stack_size = 0x8_0000;
    // No run needs more than some hundreds: a loop without end is a failure, too.
    config.max_steps = MaxSteps::FailAfter(20_000);
    Runner::new(scheduler, config).run(move || shuttle::future::block_on(scenario(World::new(flaw))))
}

fn explore(scenario: Scenario) {
    if let Ok(schedule) = std::env::var("COORD_SCHEDULE") {
        run(ReplayScheduler::new_from_encoded(&schedule), scenario, None);
        return;
    }
    let seed = number("COORD_SUITE_SEED").unwrap_or(SEED);
    let schedules = number("COORD_SCHEDULES").map_or(SCHEDULES, |n| usize::try_from(n).unwrap_or(SCHEDULES));
    let tried = run(RandomScheduler::new_from_seed(seed, schedules), scenario, None);
    assert_eq!(tried, schedules, "schedules by chance");
    let tried = run(PctScheduler::new_from_seed(seed, 3, schedules), scenario, None);
    assert_eq!(tried, schedules, "schedules with few preemptions");
}

macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                explore(|world| Box::pin($module::$name(world)));
            }
        )*

        const ALL: &[(&str, Scenario)] = &[$((stringify!($name), |world| Box::pin($module::$name(world)))),*];
    };
}

scenarios! {
    scenarios::one_winner,
    scenarios::fences_grow,
    scenarios::fences_survive_removal,
    scenarios::no_lost_completion,
    scenarios::no_cycle_of_two,
    scenarios::no_cycle_of_plans,
    scenarios::dependency_completes_during_claim,
    scenarios::dependencies_edited_during_claim,
    scenarios::takeover_against_complete,
    scenarios::takeover_against_renew,
    scenarios::revoke_against_complete,
    scenarios::revoke_against_next_claim,
    scenarios::remove_against_add,
    scenarios::remove_against_claim,
    scenarios::one_definition,
    scenarios::claim_next_shares_out,
    scenarios::lost_claim,
    scenarios::lost_release,
    scenarios::lost_complete,
    scenarios::lost_remove,
    scenarios::lost_add,
    effects::one_grant,
    effects::one_holder,
    effects::expiry_against_renew,
    effects::expiry_against_complete,
    effects::ruling_against_complete,
    effects::lost_acquire,
    effects::lost_completion,
    effects::lost_ruling,
    effects::forget_against_acquire,
}

/// Keeps the schedule that is tried.
struct Keeping<S> {
    inner: S,
    kept: Arc<Mutex<Option<Schedule>>>,
}

impl<S: Scheduler> Keeping<S> {
    fn keep(&self, add: impl FnOnce(&mut Schedule)) {
        if let Some(kept) = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner) {
            add(kept);
        }
    }
}

impl<S: Scheduler> Scheduler for Keeping<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        let schedule = self.inner.new_execution();
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&schedule);
        schedule
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let task = self.inner.next_task(runnable, current, is_yielding)?;
        self.keep(|kept| kept.push_task(task));
        Some(task)
    }

    fn next_u64(&mut self) -> u64 {
        self.keep(Schedule::push_random);
        self.inner.next_u64()
    }
}

/// Runs a scenario on a store with a flaw until it fails, and returns the schedule that failed.
fn failing(scenario: Scenario, flaw: Flaw) -> Option<Schedule> {
    let schedulers: [Box<dyn Scheduler + Send>; 2] = [
        Box::new(PctScheduler::new_from_seed(SEED, 3, FLAWED_SCHEDULES)),
        Box::new(RandomScheduler::new_from_seed(SEED, FLAWED_SCHEDULES)),
    ];
    schedulers.into_iter().find_map(|inner| {
        let kept = Arc::default();
        let scheduler = Keeping { inner, kept: Arc::clone(&kept) };
        let failed = catch_unwind(AssertUnwindSafe(|| run(scheduler, scenario, Some(flaw)))).is_err();
        kept.lock().unwrap_or_else(PoisonError::into_inner).take().filter(|_| failed)
    })
}

/// Each scenario is red on a store that is wrong in one of three ways: the schedules reach the gaps.
#[test]
fn every_scenario_finds_a_flaw() {
    let flaws = [Flaw::TornTxn, Flaw::Unasserted, Flaw::TornSnapshot];
    let finds = |scenario| flaws.into_iter().any(|flaw| failing(scenario, flaw).is_some());
    let green: Vec<&str> =
        ALL.iter().filter(|(_, scenario)| !finds(*scenario)).map(|(name, _)| *name).collect();
    assert!(green.is_empty(), "green on every flawed store: {green:?}");
}

#[test]
fn a_failing_schedule_fails_again() {
    let scenario: Scenario = |world| Box::pin(scenarios::one_winner(world));
    let schedule = failing(scenario, Flaw::TornTxn).expect("two agents win on a torn store");
    for _ in 0..3 {
        let replay = ReplayScheduler::new_from_schedule(schedule.clone());
        let replayed = catch_unwind(AssertUnwindSafe(|| run(replay, scenario, Some(Flaw::TornTxn))));
        assert!(replayed.is_err(), "the schedule that failed passes now");
    }
}
