//! What `coord run` and its workers say to each other: lines of JSON from the worker, single words to it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::definition::Ended;

/// What a worker is told, each more urgent than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Something may have become ready.
    Look,
    /// Claim nothing more, and end when the running task has ended.
    Drain,
    /// Stop the running task, release it, and end.
    Stop,
}

impl Order {
    /// The line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Order::Look => "look",
            Order::Drain => "drain",
            Order::Stop => "stop",
        }
    }

    /// Reads a line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        [Order::Look, Order::Drain, Order::Stop].into_iter().find(|order| order.as_str() == line.trim())
    }
}

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Settled {
    /// The task is done.
    Done,
    /// The task has failed.
    Failed,
    /// The attempt has failed, and the task has more of them.
    Again,
    /// The task was given back.
    Released,
    /// The lease was lost: whatever the command did, the board did not take it.
    Lost,
    /// The store could not be told; the claim ends with its lease.
    Unknown,
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Settled::Done => "done",
            Settled::Failed => "failed",
            Settled::Again => "again",
            Settled::Released => "released",
            Settled::Lost => "lease lost",
            Settled::Unknown => "store not told",
        })
    }
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// It found nothing to claim, and looks again later or when told to.
    Idle,
    /// It has claimed a task.
    Claimed {
        /// The task.
        task: String,
        /// Its title.
        title: String,
        /// The fence of the claim.
        fence: u64,
    },
    /// A claim has ended.
    Settled {
        /// The task.
        task: String,
        /// The fence of the claim.
        fence: u64,
        /// How.
        how: Settled,
        /// How the command ended, if it did.
        ended: Option<Ended>,
    },
    /// Something went wrong; the worker goes on.
    Trouble {
        /// What.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_understand_each_other() {
        for order in [Order::Look, Order::Drain, Order::Stop] {
            assert_eq!(Order::parse(&format!("{}\n", order.as_str())), Some(order));
        }
        assert_eq!(Order::parse("else"), None);
        let ended = Some(Ended { exit: Some(1), ..Ended::default() });
        for event in [
            Event::Idle,
            Event::Claimed { task: "a\nb".into(), title: String::new(), fence: 1 },
            Event::Settled { task: "a".into(), fence: 1, how: Settled::Lost, ended },
            Event::Trouble { message: "m".into() },
        ] {
            let line = serde_json::to_string(&event).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        }
    }
}
