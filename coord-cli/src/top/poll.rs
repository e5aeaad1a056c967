//! Asking the board again and again, never more than the store bears.

use std::time::Duration;

use bytes::Bytes;
use coord_core::board::{BoardError, Task, limits};
use coord_core::{Clock as _, SystemClock};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendError;

use super::model::Listing;
use super::update::Event;
use crate::failure::Failure;
use crate::store::OpenBoard;

/// A board is listed during at most one part in so many of the time.
const SHARE: u32 = 5;
/// How many tasks are read at once from a board that is too large to be listed at one instant.
const PAGE: usize = 1_000;
/// The most tasks that are looked at.
const MOST: usize = 500_000;
/// How long is waited, at the longest, before a store that is away is asked again.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait after an answer that took so long.
pub(crate) fn pause(interval: Duration, took: Duration) -> Duration {
    interval.saturating_sub(took).max(took.saturating_mul(SHARE - 1))
}

/// How long to wait after so many failures in a row.
pub(crate) fn patience(interval: Duration, failures: u32) -> Duration {
    interval.saturating_mul(1 << failures.min(10)).min(PATIENCE.max(interval))
}

/// Lists the board until nobody listens any more. `now` says that it should be listed without waiting.
pub(crate) async fn poll(
    opened: OpenBoard,
    clock: SystemClock,
    interval: Duration,
    events: mpsc::Sender<Event>,
    mut now: mpsc::Receiver<()>,
) {
    let result: Result<(), SendError<Event>> = async {
        let mut failures = 0;
        let mut in_pages = false;
        loop {
            events.send(Event::Asking).await?;
            let wait = match look(&opened, &clock, in_pages).await {
                Ok(listing) => {
                    failures = 0;
                    // A board that has shrunk is listed at one instant again.
                    in_pages = listing.tasks.len() > limits::LISTED_TASKS;
                    let wait = pause(interval, listing.took);
                    events.send(Event::Listed(Box::new(listing))).await?;
                    wait
                }
                Err(error) => {
                    failures += 1;
                    events.send(Event::Failed(error.message().to_owned())).await?;
                    patience(interval, failures)
                }
            };
            tokio::select! {
                () = clock.sleep(wait) => {}
                Some(()) = now.recv() => {}
            }
        }
    }
    .await;
    // Nobody listens: the screen is gone.
    drop(result);
}

/// Lists the board once.
pub(crate) async fn look(
    opened: &OpenBoard,
    clock: &SystemClock,
    in_pages: bool,
) -> Result<Listing, Failure> {
    let began = clock.monotonic();
    let whole = if in_pages { None } else { at_one_instant(opened).await? };
    let (mut tasks, whole) = match whole {
        Some(tasks) => (tasks, true),
        None => (opened.pages(PAGE, MOST).await?, false),
    };
    for task in &mut tasks {
        // What only the worker needs may be large.
        task.payload = Bytes::new();
    }
    let time = opened.time().await?.unwrap_or_else(|| clock.now());
    let at = clock.monotonic();
    Ok(Listing { tasks, time, at, took: at.saturating_sub(began), whole })
}

/// All tasks, or `None` if they are too many for that.
async fn at_one_instant(opened: &OpenBoard) -> Result<Option<Vec<Task>>, Failure> {
    match opened.board.list().await {
        Ok(tasks) => Ok(Some(tasks)),
        Err(BoardError::TooLarge { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_takes_long_is_listed_less_often() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(1_000), ms(10)), ms(990));
        assert_eq!(pause(ms(1_000), ms(200)), ms(800));
        assert_eq!(pause(ms(1_000), ms(3_000)), ms(12_000));
    }

    #[test]
    fn a_store_that_is_away_is_asked_less_and_less_often_but_soon_enough() {
        let s = Duration::from_secs;
        assert_eq!(
            [1, 2, 3, 4, 99].map(|failures| patience(s(1), failures)),
            [s(2), s(4), s(8), s(10), s(10)]
        );
        assert_eq!(patience(s(60), 5), s(60));
    }
}

#[cfg(test)]
#[cfg(feature = "memory")]
mod outage {
    use std::sync::Arc;

    use coord_core::Namespace;
    use coord_core::board::{TaskId, TaskSpec};
    use coord_core::layer::{Fault, Faults};

    use super::super::model::Model;
    use super::super::update::update;
    use super::*;
    use crate::logs::Logs;

    /// A board in memory, and a switch that makes its store go away.
    async fn board(name: &str) -> (OpenBoard, Faults) {
        let name = Namespace::new(name).unwrap();
        let backend = coord_connect::connect("memory:", &name).await.unwrap();
        let fault = Fault::new(backend);
        let faults = fault.faults();
        let logs = Logs::new("nowhere".into());
        (OpenBoard::over(Arc::new(fault), name, logs).await.unwrap(), faults)
    }

    #[tokio::test]
    async fn a_store_that_comes_back_is_listed_again() {
        let (opened, faults) = board("top.outage").await;
        opened.board.add(TaskSpec::new(TaskId::new("a").unwrap()).payload("secret")).await.unwrap();
        let (send, mut events) = mpsc::channel(1);
        let (list, wanted) = mpsc::channel(1);
        let interval = Duration::from_millis(100);
        let poller = tokio::spawn(poll(opened.clone(), SystemClock::new(), interval, send, wanted));
        let mut model = Model::new("demo", "memory:", false);
        let mut next = async |model: &mut Model| {
            let mut seen = Vec::new();
            loop {
                let event = events.recv().await.unwrap();
                let last = !matches!(event, Event::Asking);
                seen.push(format!("{event:?}"));
                let at = model.at;
                update(model, event, at);
                if last {
                    return seen.join(" ");
                }
            }
        };
        let seen = next(&mut model).await;
        assert!(seen.starts_with("Asking Listed"), "{seen}");
        assert!(model.tasks[0].payload.is_empty());
        assert_eq!(model.counts.total(), 1);
        faults.gone();
        while model.trouble.is_none() {
            next(&mut model).await;
        }
        next(&mut model).await;
        assert!(faults.refused_while_gone() >= 2);
        assert_eq!(model.counts.total(), 1, "what was seen last is kept");
        faults.heal();
        opened.board.add(TaskSpec::new(TaskId::new("b").unwrap())).await.unwrap();
        list.send(()).await.unwrap();
        while model.trouble.is_some() {
            next(&mut model).await;
        }
        assert_eq!(model.counts.total(), 2);
        drop(events);
        poller.await.unwrap();
    }

    #[tokio::test]
    async fn a_board_is_read_in_pages_where_it_has_to_be() {
        let (opened, _) = board("top.pages").await;
        for n in 0..25 {
            opened.board.add(TaskSpec::new(TaskId::new(format!("{n:02}")).unwrap())).await.unwrap();
        }
        let whole = look(&opened, &SystemClock::new(), false).await.unwrap();
        let paged = look(&opened, &SystemClock::new(), true).await.unwrap();
        assert_eq!((whole.whole, paged.whole), (true, false));
        assert_eq!((whole.tasks.len(), &whole.tasks), (25, &paged.tasks));
        assert_eq!(opened.pages(4, 100).await.unwrap().len(), 25);
        let refused = opened.pages(4, 10).await.unwrap_err();
        assert!(refused.message().contains("more than 10 tasks"), "{refused}");
    }
}
