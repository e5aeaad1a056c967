//! Checking a board that is too large to be listed at one instant.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::check::{Problem, ProblemCode, check, cycle};
use super::task::{Task, TaskId};
use super::{BoardError, ExtendedBoard};

const PAGE: usize = 1_000;
/// How often a suspicion is looked into again whose tasks have changed meanwhile.
const LOOKS: u32 = 100;

pub(super) async fn check_board<B: ExtendedBoard + ?Sized>(board: &B) -> Result<Vec<Problem>, BoardError> {
    match board.list().await {
        Err(BoardError::TooLarge { .. }) => {}
        listed => return Ok(check(&listed?)),
    }
    let mut tasks = BTreeMap::new();
    let mut after: Option<TaskId> = None;
    loop {
        let page = board.page(after.as_ref(), PAGE).await?;
        // What only workers need may be large.
        tasks.extend(
            page.tasks.into_iter().map(|task| (task.id.clone(), Task { payload: Bytes::new(), ..task })),
        );
        match page.next {
            Some(next) if after.as_ref() < Some(&next) => after = Some(next),
            _ => break,
        }
    }
    let mut tasks: Vec<Task> = tasks.into_values().collect();
    // Read at several instants, the tasks may contradict each other without being wrong.
    let suspects = check(&tasks);
    let suspects: BTreeSet<&TaskId> = suspects
        .iter()
        .filter(|problem| problem.code != ProblemCode::DepCycle)
        .map(|problem| &problem.task)
        .collect();
    let mut problems = Vec::new();
    for id in suspects {
        problems.extend(problems_of(board, id).await?);
    }
    problems.extend(cycle_of(board, &mut tasks).await?);
    Ok(problems)
}

/// What is wrong with one task at one instant, cycles aside. Whatever else was read between two equal looks at the task stood beside it.
async fn problems_of<B: ExtendedBoard + ?Sized>(board: &B, id: &TaskId) -> Result<Vec<Problem>, BoardError> {
    for _ in 0..LOOKS {
        let Some(task) = find(board, id).await? else { return Ok(Vec::new()) };
        let seq = task.seq;
        let deps: BTreeSet<TaskId> =
            task.deps.iter().map(|dep| dep.id.clone()).filter(|dep| dep != id).collect();
        let mut tasks = vec![task];
        for dep in &deps {
            tasks.extend(find(board, dep).await?);
        }
        if find(board, id).await?.is_some_and(|task| task.seq == seq) {
            let mut problems = check(&tasks);
            // The dependencies of the dependencies were not read.
            problems.retain(|problem| problem.task == *id && problem.code != ProblemCode::DepCycle);
            return Ok(problems);
        }
    }
    Err(BoardError::TxnConflict { attempts: LOOKS })
}

/// The first cycle that stands at one instant: that at which all its tasks had been read once, and were unchanged when they were read
/// again.
async fn cycle_of<B: ExtendedBoard + ?Sized>(
    board: &B,
    tasks: &mut Vec<Task>,
) -> Result<Option<Problem>, BoardError> {
    for _ in 0..LOOKS {
        let position = tasks.iter().enumerate().map(|(place, task)| (&task.id, place)).collect();
        let Some(path) = cycle(tasks, &position) else { return Ok(None) };
        let places: BTreeSet<usize> = path.into_iter().collect();
        let ids: BTreeSet<TaskId> = places.iter().map(|place| tasks[*place].id.clone()).collect();
        let before = read(board, &ids).await?;
        let after = read(board, &ids).await?;
        let seqs = |tasks: &[Task]| tasks.iter().map(|task| (task.id.clone(), task.seq)).collect::<Vec<_>>();
        if seqs(&before) == seqs(&after)
            && let Some(problem) =
                check(&after).into_iter().find(|problem| problem.code == ProblemCode::DepCycle)
        {
            return Ok(Some(problem));
        }
        tasks.retain(|task| !ids.contains(&task.id));
        tasks.extend(after);
    }
    Err(BoardError::TxnConflict { attempts: LOOKS })
}

async fn read<B: ExtendedBoard + ?Sized>(board: &B, ids: &BTreeSet<TaskId>) -> Result<Vec<Task>, BoardError> {
    let mut tasks = Vec::with_capacity(ids.len());
    for id in ids {
        tasks.extend(find(board, id).await?);
    }
    Ok(tasks)
}

async fn find<B: ExtendedBoard + ?Sized>(board: &B, id: &TaskId) -> Result<Option<Task>, BoardError> {
    match board.get(id).await {
        Err(BoardError::NotFound { .. }) => Ok(None),
        found => Ok(Some(found?)),
    }
}
