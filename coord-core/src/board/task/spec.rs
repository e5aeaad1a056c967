//! What is known of a task before it is added.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{TaskId, limits};
use crate::board::BoardError;
use crate::board::dep::{Dep, Rule};
use crate::board::retry::Retry;
use crate::clock::Timestamp;

/// The definition of a task to be added.
///
/// ```
/// use coord_core::board::{TaskId, TaskSpec};
///
/// let build = TaskId::new("build")?;
/// let test = TaskSpec::new(TaskId::new("test")?).title("Run the tests").dep(build).label("ci").priority(5);
/// assert_eq!(test.deps.len(), 1);
/// # Ok::<(), coord_core::board::BoardError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskSpec {
    /// As [`Task::id`](super::Task::id).
    pub id: TaskId,
    /// As [`Task::title`](super::Task::title); at most 4,096 bytes.
    pub title: String,
    /// As [`Task::deps`](super::Task::deps); at most 1,024, of which at most 40 have another rule than [`Rule::Done`].
    pub deps: Vec<Dep>,
    /// As [`Task::labels`](super::Task::labels); at most 64 of at most 200 bytes.
    pub labels: Vec<String>,
    /// As [`Task::priority`](super::Task::priority).
    pub priority: i32,
    /// As [`Task::not_before`](super::Task::not_before).
    pub not_before: Option<Timestamp>,
    /// As [`Task::payload`](super::Task::payload); at most 256 KiB.
    pub payload: Bytes,
    /// As [`Task::retry`](super::Task::retry).
    #[serde(default)]
    pub retry: Option<Retry>,
}

impl TaskSpec {
    /// A task without title, dependencies, labels and payload, of priority 0.
    #[must_use]
    pub fn new(id: TaskId) -> Self {
        TaskSpec {
            id,
            title: String::new(),
            deps: Vec::new(),
            labels: Vec::new(),
            priority: 0,
            not_before: None,
            payload: Bytes::new(),
            retry: None,
        }
    }

    /// With this title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// With one more dependency.
    #[must_use]
    pub fn dep(mut self, dep: impl Into<Dep>) -> Self {
        self.deps.push(dep.into());
        self
    }

    /// With these dependencies more: they are appended to those that it has.
    #[must_use]
    pub fn deps(mut self, deps: impl IntoIterator<Item = impl Into<Dep>>) -> Self {
        self.deps.extend(deps.into_iter().map(Into::into));
        self
    }

    /// With one more label.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.labels.push(label.into());
        self
    }

    /// With this priority.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Not to be claimed before this time, in the store's time.
    #[must_use]
    pub fn not_before(mut self, time: Timestamp) -> Self {
        self.not_before = Some(time);
        self
    }

    /// With this payload.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Tried as often as this says.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Checks everything that can be checked without the board.
    ///
    /// # Errors
    /// [`BoardError::Invalid`], [`BoardError::TooLarge`], or [`BoardError::Cycle`] if the task depends on itself.
    pub fn validate(&self) -> Result<(), BoardError> {
        let too_large = |what, size, limit| Err(BoardError::TooLarge { what, size, limit });
        self.id.validate()?;
        if self.title.len() > limits::TITLE_BYTES {
            return too_large("the title", self.title.len(), limits::TITLE_BYTES);
        }
        if self.labels.len() > limits::LABELS {
            return too_large("the number of labels", self.labels.len(), limits::LABELS);
        }
        for label in &self.labels {
            if label.is_empty() {
                return Err(BoardError::Invalid("a label is empty".into()));
            }
            if label.len() > limits::LABEL_BYTES {
                return too_large("a label", label.len(), limits::LABEL_BYTES);
            }
        }
        if self.payload.len() > limits::PAYLOAD_BYTES {
            return too_large("the payload", self.payload.len(), limits::PAYLOAD_BYTES);
        }
        self.retry.map_or(Ok(()), |retry| retry.validate())?;
        validate_deps(&self.id, &self.deps)
    }
}

/// Checks the dependencies of a task as far as that goes without the board.
pub(crate) fn validate_deps(id: &TaskId, deps: &[Dep]) -> Result<(), BoardError> {
    if deps.len() > limits::DEPENDENCIES {
        return Err(BoardError::TooLarge {
            what: "the number of dependencies",
            size: deps.len(),
            limit: limits::DEPENDENCIES,
        });
    }
    let ruled = deps.iter().filter(|dep| dep.rule != Rule::Done).count();
    if ruled > limits::RULED_DEPENDENCIES {
        return Err(BoardError::TooLarge {
            what: "the number of dependencies that need not be done",
            size: ruled,
            limit: limits::RULED_DEPENDENCIES,
        });
    }
    let mut seen = BTreeSet::new();
    for Dep { id: dep, .. } in deps {
        dep.validate()?;
        if dep == id {
            return Err(BoardError::Cycle { path: vec![id.clone(), id.clone()] });
        }
        if !seen.insert(dep) {
            return Err(BoardError::Invalid(format!("the dependency {dep:?} is named twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Outcome;

    fn id(text: &str) -> TaskId {
        TaskId::new(text).unwrap()
    }

    #[test]
    fn limits_are_exact() {
        let spec = || TaskSpec::new(id("t"));
        let deps = |n: usize| (0..n).map(|n| id(&format!("d{n}"))).collect::<Vec<_>>();
        assert!(TaskId::new("i".repeat(200)).is_ok());
        assert!(
            spec()
                .deps(deps(1_024))
                .title("t".repeat(4_096))
                .payload(vec![0; 256 * 1_024])
                .validate()
                .is_ok()
        );
        for (what, bad) in [
            ("id", TaskId::new("i".repeat(201)).map(|_| ())),
            ("deps", spec().deps(deps(1_025)).validate()),
            ("title", spec().title("t".repeat(600 * 1_024)).validate()),
            ("payload", spec().payload(vec![0; 256 * 1_024 + 1]).validate()),
            ("label", spec().label("l".repeat(201)).validate()),
            ("outcome", Outcome::new("o".repeat(513)).map(|_| ())),
        ] {
            assert!(matches!(bad, Err(BoardError::TooLarge { .. })), "{what}: {bad:?}");
        }
        for bad in [TaskId::new(""), TaskId::new("a\0")] {
            assert!(matches!(bad, Err(BoardError::Invalid(_))), "{bad:?}");
        }
        assert!(matches!(spec().dep(id("t")).validate(), Err(BoardError::Cycle { .. })));
        assert!(matches!(spec().dep(id("a")).dep(id("a")).validate(), Err(BoardError::Invalid(_))));
        assert_eq!(Outcome::truncated(&"é".repeat(300)).as_str().len(), 512);
    }
}
