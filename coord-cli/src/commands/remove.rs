//! `coord remove`.

use std::collections::{BTreeMap, BTreeSet};

use coord_core::board::{BoardError, Task, TaskId};
use serde_json::json;

use super::ids;
use crate::args::RemoveArgs;
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::store::OpenBoard;

/// `coord remove`.
pub(crate) async fn run(args: &RemoveArgs) -> Result<u8, Failure> {
    let wanted = ids(&args.ids)?;
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    let removed = if args.all {
        let all: Vec<TaskId> = opened.list().await?.into_iter().map(|task| task.id).collect();
        remove_with_dependents(&opened, &all).await?
    } else if args.dependents {
        for id in &wanted {
            opened.get(id).await?;
        }
        remove_with_dependents(&opened, &wanted).await?
    } else {
        remove_in_order(&opened, &wanted).await?
    };
    match args.board.store.format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(), "removed": removed.iter().map(TaskId::as_str).collect::<Vec<_>>(),
        })),
        Format::Text => {
            output::line(&format!("board {}: {} removed", opened.name, output::tasks(removed.len())))
        }
    }
    Ok(exit::OK)
}

/// Removes these tasks and all that depend on them, those first on which nothing depends.
pub(crate) async fn remove_with_dependents(
    opened: &OpenBoard,
    ids: &[TaskId],
) -> Result<Vec<TaskId>, Failure> {
    let tasks = opened.list().await?;
    let mut dependents: BTreeMap<&TaskId, Vec<&Task>> = BTreeMap::new();
    for task in &tasks {
        for dep in &task.deps {
            dependents.entry(&dep.id).or_default().push(task);
        }
    }
    let mut all: BTreeSet<TaskId> = ids.iter().cloned().collect();
    let mut next: Vec<TaskId> = ids.to_vec();
    while let Some(id) = next.pop() {
        for dependent in dependents.get(&id).into_iter().flatten() {
            if all.insert(dependent.id.clone()) {
                next.push(dependent.id.clone());
            }
        }
    }
    remove_in_order(opened, &all.into_iter().collect::<Vec<_>>()).await
}

/// Removes tasks, each after those of them that depend on it. Held ones are found before anything is removed.
async fn remove_in_order(opened: &OpenBoard, ids: &[TaskId]) -> Result<Vec<TaskId>, Failure> {
    let tasks = opened.list().await?;
    let wanted: BTreeSet<&TaskId> = ids.iter().collect();
    let known: BTreeMap<&TaskId, &Task> = tasks.iter().map(|task| (&task.id, task)).collect();
    let mut waiting: BTreeMap<&TaskId, usize> = BTreeMap::new();
    for id in ids {
        let Some(task) = known.get(id) else { return Err(BoardError::NotFound { id: id.clone() }.into()) };
        if let (Some(owner), Some(lease)) = (&task.owner, &task.lease) {
            let taken = BoardError::Taken { owner: owner.clone(), until: lease.until, fence: lease.fence };
            return Err(Failure::from(taken)
                .context(format!("the task {id:?} cannot be removed"))
                .help(format!("`coord release {id}` frees it, whoever holds it")));
        }
        waiting.entry(id).or_default();
        for dep in task.deps.iter().map(|dep| &dep.id).filter(|dep| wanted.contains(dep)) {
            *waiting.entry(dep).or_default() += 1;
        }
    }
    let mut free: Vec<&TaskId> =
        waiting.iter().filter(|(_, count)| **count == 0).map(|(id, _)| *id).collect();
    let mut removed = Vec::new();
    while let Some(id) = free.pop() {
        opened.board.remove(id).await.map_err(|error| {
            let failure = Failure::from(error).context(format!("the task {id:?} cannot be removed"));
            failure.help("--dependents also removes what depends on it")
        })?;
        removed.push(id.clone());
        for dep in known.get(id).into_iter().flat_map(|task| &task.deps).map(|dep| &dep.id) {
            if let Some(count) = waiting.get_mut(dep) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    free.push(dep);
                }
            }
        }
    }
    Ok(removed)
}
