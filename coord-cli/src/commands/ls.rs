//! `coord ls`.

use coord_core::board::{Task, TaskId, limits};
use serde_json::{Value, json};

use super::{outcome_text, task_json};
use crate::args::{LsArgs, StandingArg};
use crate::failure::{Failure, exit};
use crate::output::{self, Format};
use crate::standing::{Counts, Standing, standings};
use crate::store::OpenBoard;

impl StandingArg {
    fn standing(self) -> Standing {
        match self {
            StandingArg::Running => Standing::Running,
            StandingArg::Ready => Standing::Ready,
            StandingArg::Waiting => Standing::Waiting,
            StandingArg::Blocked => Standing::Blocked,
            StandingArg::Failed => Standing::Failed,
            StandingArg::Cancelled => Standing::Cancelled,
            StandingArg::Skipped => Standing::Skipped,
            StandingArg::Done => Standing::Done,
            StandingArg::Unknown => Standing::Unknown,
        }
    }
}

/// What is shown.
struct Shown {
    tasks: Vec<(Task, Standing)>,
    /// Of the whole board; `None` if a part of it was enough.
    counts: Option<Counts>,
    /// After which task the next page begins.
    next: Option<TaskId>,
}

struct Wanted {
    standings: Vec<Standing>,
    filter: coord_core::board::Filter,
    owner: Option<String>,
    after: Option<TaskId>,
    limit: usize,
}

impl Wanted {
    fn has(&self, task: &Task, standing: Standing) -> bool {
        (self.standings.is_empty() || self.standings.contains(&standing))
            && self.filter.matches(&task.labels)
            && self
                .owner
                .as_ref()
                .is_none_or(|owner| task.owner.as_ref().is_some_and(|of| of.as_str() == owner))
            && self.after.as_ref().is_none_or(|after| task.id > *after)
    }

    /// Whether the state of a task alone tells whether it is wanted.
    fn by_state(&self) -> bool {
        !self.standings.is_empty() && self.standings.iter().all(|standing| standing.is_of_state())
    }
}

/// `coord ls`.
pub(crate) async fn run(args: &LsArgs) -> Result<u8, Failure> {
    let wanted = Wanted {
        standings: args.state.iter().map(|state| state.standing()).collect(),
        filter: args.filter.filter(),
        owner: args.owner.clone(),
        after: args.after.as_ref().map(TaskId::new).transpose()?,
        limit: args.limit.map_or(usize::MAX, |limit| limit as usize),
    };
    let opened = args.board.store.store().existing_board(args.board.board.as_ref()).await?;
    let paged = args.limit.is_some() || wanted.after.is_some();
    let shown = if paged && (wanted.by_state() || wanted.owner.is_some()) {
        scan(&opened, &wanted).await?
    } else {
        whole(&opened, &wanted, paged).await?
    };
    match args.board.store.format {
        Format::Json => output::json(&json!({
            "board": opened.name.as_str(),
            "counts": shown.counts.map(Counts::to_json),
            "next": shown.next.as_ref().map(TaskId::as_str),
            "tasks": shown.tasks.iter().map(|(task, standing)| task_json(task, *standing)).collect::<Vec<Value>>(),
        })),
        Format::Text => {
            output::text(&table(&shown.tasks));
            if let Some(next) = &shown.next {
                let next = crate::effects::word(next.as_str());
                output::line(&format!("there are more: the same command with --after {next}"));
            }
            if let Some(counts) = shown.counts {
                output::line(&format!("board {}: {counts}", opened.name));
            }
        }
    }
    Ok(exit::OK)
}

/// From a look at all tasks, which alone tells how those stand that wait for others.
async fn whole(opened: &OpenBoard, wanted: &Wanted, paged: bool) -> Result<Shown, Failure> {
    let tasks = opened.list().await?;
    let standings = standings(&tasks);
    let counts = Some(Counts::of(standings.iter().copied()));
    let mut tasks: Vec<(Task, Standing)> =
        tasks.into_iter().zip(standings).filter(|(task, standing)| wanted.has(task, *standing)).collect();
    let mut next = None;
    if paged {
        tasks.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
        if tasks.len() > wanted.limit {
            tasks.truncate(wanted.limit);
            next = tasks.last().map(|(task, _)| task.id.clone());
        }
    } else {
        // The order in which they were added is that of the plan, which people know.
        tasks.sort_by(|(a, _), (b, _)| (a.order, &a.id).cmp(&(b.order, &b.id)));
    }
    Ok(Shown { tasks, counts, next })
}

/// From page after page, until there are as many as are wanted.
async fn scan(opened: &OpenBoard, wanted: &Wanted) -> Result<Shown, Failure> {
    let mut tasks = Vec::new();
    let mut after = wanted.after.clone();
    loop {
        let page = opened.page(after.as_ref()).await?;
        let found = page.tasks.into_iter().filter_map(|task| {
            // An owner is of a task that is held.
            let standing = Standing::of_state(task.state)?;
            wanted.has(&task, standing).then_some((task, standing))
        });
        tasks.extend(found);
        if tasks.len() > wanted.limit {
            tasks.truncate(wanted.limit);
            let next = tasks.last().map(|(task, _)| task.id.clone());
            return Ok(Shown { tasks, counts: None, next });
        }
        after = page.next;
        if after.is_none() {
            return Ok(Shown { tasks, counts: None, next: None });
        }
        if tasks.len() > limits::LISTED_TASKS * 50 {
            return Err(Failure::usage("these are too many tasks to be shown at once").help("give --limit"));
        }
    }
}

fn table(shown: &[(Task, Standing)]) -> String {
    let width = shown.iter().map(|(task, _)| output::width(task.id.as_str())).max();
    let width = width.unwrap_or(0).clamp(2, 40);
    let mut text = String::new();
    for (task, standing) in shown {
        let state = output::style(*standing).apply_to(output::pad(standing.as_str(), 9));
        let id = output::pad(task.id.as_str(), width);
        let mut facts = Vec::new();
        if task.priority != 0 {
            facts.push(format!("priority {}", task.priority));
        }
        if let Some(owner) = &task.owner {
            let until = task.lease.and_then(|lease| lease.until);
            let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
            facts.push(format!("{owner} (fence {}{until})", task.fence));
        }
        if let (Some(retry), true) = (task.retry, task.attempts > 0) {
            facts.push(format!("attempt {} of {}", task.attempts, retry.attempts));
        }
        if let (Some(until), Standing::Ready) = (task.not_before, standing) {
            facts.push(format!("not before {until}"));
        }
        if let Some(outcome) = outcome_text(task) {
            facts.push(outcome);
        }
        if !task.title.is_empty() {
            facts.push(task.title.clone());
        }
        text.push_str(format!("{state} {id}  {}", output::fit(&facts.join("; "), 120)).trim_end());
        text.push('\n');
    }
    text
}
