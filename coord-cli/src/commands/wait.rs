//! `coord wait`.

use std::time::Duration;

use coord_core::board::{Awaited, BoardError, State, Task, TaskId};
use coord_core::{Clock, SystemClock};
use serde_json::{Value, json};

use super::{ids, outcome_text, task_json};
use crate::args::WaitArgs;
use crate::effects::word;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::standing::{Counts, Standing, standings};
use crate::store::OpenBoard;

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3_600);
/// How long the store may fail before the wait is given up, and how long it is left alone then.
const OUTAGE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(1);
/// How long it is waited until it is looked whether it is waited in vain, and how long at most until that is done again.
const FIRST_LOOK: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_secs(60);
/// The most tasks that are named.
const NAMED: usize = 12;

/// `coord wait`.
pub(crate) async fn run(args: &WaitArgs) -> Result<u8, Failure> {
    let ids = ids(&args.ids)?;
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    let clock = SystemClock::new();
    let end = clock.monotonic().saturating_add(args.timeout.unwrap_or(FOR_EVER));
    let awaited: Vec<Awaited> = if args.idle {
        vec![Awaited::Idle]
    } else if args.any {
        vec![Awaited::AnyEnded(ids.iter().cloned().collect())]
    } else {
        ids.iter().cloned().map(Awaited::Ended).collect()
    };
    let mut come = true;
    for awaited in &awaited {
        come = come && wait(&opened, &clock, awaited, end).await?;
    }
    if args.idle { idle(args, &opened, come).await } else { ended(args, &opened, &ids, come).await }
}

/// Waits until then. A store that fails for a while is borne, and what will not come by itself is said.
async fn wait(
    opened: &OpenBoard,
    clock: &SystemClock,
    awaited: &Awaited,
    end: Duration,
) -> Result<bool, Failure> {
    let mut failing_since = None;
    let mut patience = Some(FIRST_LOOK);
    loop {
        let began = clock.monotonic();
        let left = end.saturating_sub(began);
        let error =
            match opened.board.wait(awaited, patience.map_or(left, |patience| patience.min(left))).await {
                Ok(false) if clock.monotonic() < end => {
                    // It is only advice: what fails here fails the wait too, which bears it.
                    let said = warn(opened, awaited).await.unwrap_or(false);
                    patience =
                        patience.filter(|_| !said).map(|patience| patience.saturating_mul(2).min(LOOK));
                    continue;
                }
                Ok(come) => return Ok(come),
                Err(BoardError::Backend(error)) if error.is_retryable() || error.is_indeterminate() => error,
                Err(error) => return Err(error.into()),
            };
        // It may have worked until just now.
        let now = clock.monotonic();
        if now.saturating_sub(began) > AGAIN.saturating_mul(5) {
            failing_since = None;
        }
        if now.saturating_sub(*failing_since.get_or_insert(now)) >= OUTAGE {
            return Err(Failure::from(error).context("the store keeps failing"));
        }
        if now >= end {
            return Ok(false);
        }
        clock.sleep(AGAIN.min(end - now)).await;
    }
}

/// Says of the tasks that are waited for which of them wait behind something that failed, and whether there are any.
async fn warn(opened: &OpenBoard, awaited: &Awaited) -> Result<bool, Failure> {
    let ids: Vec<&TaskId> = match awaited {
        Awaited::Ended(id) => vec![id],
        Awaited::AnyEnded(ids) => ids.iter().collect(),
        _ => return Ok(false),
    };
    let tasks = opened.list().await?;
    let standings = standings(&tasks);
    let stands = |id: &TaskId| tasks.iter().position(|task| task.id == *id).map(|place| standings[place]);
    if ids.is_empty() || !ids.iter().all(|id| stands(id) == Some(Standing::Blocked)) {
        return Ok(false);
    }
    for id in ids.into_iter().take(NAMED) {
        output::note(&output::clean(&format!(
            "{id} waits behind something that failed, and does not end by itself; `coord explain {}` tells what helps",
            word(id.as_str())
        )));
    }
    Ok(true)
}

async fn ended(args: &WaitArgs, opened: &OpenBoard, ids: &[TaskId], come: bool) -> Result<u8, Failure> {
    let mut tasks = Vec::with_capacity(ids.len());
    for id in ids {
        tasks.push(opened.get(id).await?);
    }
    let over: Vec<&Task> = tasks.iter().filter(|task| task.state.is_terminal()).collect();
    let well = if args.any {
        over.iter().any(|task| task.state == State::Done)
    } else {
        over.iter().all(|task| task.state == State::Done)
    };
    match args.board.store.format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(),
            "come": come,
            // Only the whole board tells how a task stands that has not ended.
            "tasks": tasks.iter().map(|task| task_json(task, of_state(task.state))).collect::<Vec<Value>>(),
        })),
        Format::Text => {
            for task in &over {
                let outcome = outcome_text(task).map(|text| format!(": {text}")).unwrap_or_default();
                output::line(&output::clean(&format!("{} {}{outcome}", task.id, task.state)));
            }
            for task in tasks.iter().filter(|task| !come && !task.state.is_terminal()) {
                output::note(&output::clean(&format!(
                    "still {}: {}; `coord explain {}` tells why",
                    task.state, task.id, task.id
                )));
            }
        }
    }
    Ok(code(come, well))
}

async fn idle(args: &WaitArgs, opened: &OpenBoard, come: bool) -> Result<u8, Failure> {
    let tasks = opened.list().await?;
    let counts = Counts::of(standings(&tasks));
    let well = counts.get(Standing::Done) + counts.get(Standing::Skipped) == counts.total();
    match args.board.store.format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(), "come": come, "counts": counts.to_json(),
        })),
        Format::Text => output::line(&format!("board {}: {counts}", opened.name)),
    }
    Ok(code(come, well))
}

fn code(come: bool, well: bool) -> u8 {
    match (come, well) {
        (false, _) => exit::TIMEOUT,
        (true, true) => exit::OK,
        (true, false) => exit::FAILED,
    }
}

/// How a task stands as far as its state alone tells.
fn of_state(state: State) -> Standing {
    Standing::of_state(state).unwrap_or(Standing::Unknown)
}
