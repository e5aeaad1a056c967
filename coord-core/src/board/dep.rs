//! What a task depends on, and how: a dependency has a rule.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::task::{State, TaskId};

/// What a dependency has to come to before its dependent may begin. Once the dependent has begun because of a failure or a cancellation,
/// that one cannot be reopened any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Rule {
    /// It must be done. If it is skipped, the dependent is skipped too; while it is failed or cancelled, the dependent waits.
    #[default]
    Done,
    /// It must have ended, whatever the end: done, skipped, failed or cancelled. For what cleans up, or reports. An open task has not
    /// ended, also one that is blocked behind a failure: until somebody repairs that, or cancels the blocked one, the dependent waits.
    Finished,
    /// It must have failed. If it is done or skipped, the dependent is skipped. For what makes good a failure.
    Failed,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 3] = [Rule::Done, Rule::Finished, Rule::Failed];

    /// The rule as one lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Done => "done",
            Rule::Finished => "finished",
            Rule::Failed => "failed",
        }
    }

    /// What the rule says of a dependency in this state: `Some(true)` if it is satisfied, `Some(false)` if it never can be, `None` as
    /// long as neither is certain.
    ///
    /// ```
    /// use coord_core::board::{Rule, State};
    ///
    /// assert_eq!(Rule::Finished.verdict(State::Failed), Some(true));
    /// // It may be reopened and done yet.
    /// assert_eq!(Rule::Done.verdict(State::Failed), None);
    /// assert_eq!(Rule::Failed.verdict(State::Done), Some(false));
    /// ```
    #[must_use]
    pub fn verdict(self, state: State) -> Option<bool> {
        match (self, state) {
            (Rule::Done | Rule::Finished, State::Done)
            | (Rule::Finished, State::Skipped | State::Failed | State::Cancelled)
            | (Rule::Failed, State::Failed) => Some(true),
            (Rule::Done, State::Skipped) | (Rule::Failed, State::Done | State::Skipped) => Some(false),
            _ => None,
        }
    }

    /// The number under which a rule is stored.
    pub(crate) fn code(self) -> u8 {
        match self {
            Rule::Done => 0,
            Rule::Finished => 1,
            Rule::Failed => 2,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Rule::ALL.into_iter().find(|rule| rule.code() == code)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A dependency of a task: which one, and what it has to come to.
///
/// A plain id is a dependency that must be done. In JSON it stays the plain id, and one with another rule is
/// `{"id": "build", "rule": "finished"}`.
///
/// ```
/// use coord_core::board::{Dep, Rule, TaskId, TaskSpec};
///
/// let build = TaskId::new("build")?;
/// let report = TaskSpec::new(TaskId::new("report")?).dep(Dep::on(build.clone(), Rule::Finished));
/// let test = TaskSpec::new(TaskId::new("test")?).dep(build);
/// assert_eq!((report.deps[0].rule, test.deps[0].rule), (Rule::Finished, Rule::Done));
/// # Ok::<(), coord_core::board::BoardError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dep {
    /// The task.
    pub id: TaskId,
    /// What it has to come to.
    pub rule: Rule,
}

impl Dep {
    /// A dependency with this rule.
    #[must_use]
    pub fn on(id: TaskId, rule: Rule) -> Self {
        Dep { id, rule }
    }

    /// Dependencies on all of these, which must be done.
    pub fn all(ids: impl IntoIterator<Item = TaskId>) -> Vec<Self> {
        ids.into_iter().map(Dep::from).collect()
    }
}

impl From<TaskId> for Dep {
    fn from(id: TaskId) -> Self {
        Dep { id, rule: Rule::Done }
    }
}

impl From<&TaskId> for Dep {
    fn from(id: &TaskId) -> Self {
        Dep::from(id.clone())
    }
}

impl From<(TaskId, Rule)> for Dep {
    fn from((id, rule): (TaskId, Rule)) -> Self {
        Dep { id, rule }
    }
}

/// A plain id is the dependency that must be done.
impl PartialEq<TaskId> for Dep {
    fn eq(&self, id: &TaskId) -> bool {
        self.rule == Rule::Done && self.id == *id
    }
}

impl fmt::Display for Dep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Rule::Done => write!(f, "{}", self.id),
            rule => write!(f, "{} ({rule})", self.id),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ruled {
    id: TaskId,
    #[serde(default)]
    rule: Rule,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Readable {
    Plain(TaskId),
    Ruled(Ruled),
}

impl Serialize for Dep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return (&self.id, self.rule.code()).serialize(serializer);
        }
        match self.rule {
            Rule::Done => self.id.serialize(serializer),
            rule => Ruled { id: self.id.clone(), rule }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Dep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            let (id, code) = <(TaskId, u8)>::deserialize(deserializer)?;
            let rule =
                Rule::of_code(code).ok_or_else(|| D::Error::custom(format!("the rule {code} is unknown")))?;
            return Ok(Dep { id, rule });
        }
        Ok(match Readable::deserialize(deserializer)? {
            Readable::Plain(id) => id.into(),
            Readable::Ruled(Ruled { id, rule }) => Dep { id, rule },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_dependency_is_its_id_in_json() {
        let id = |text: &str| TaskId::new(text).unwrap();
        let deps = vec![Dep::from(id("a")), Dep::on(id("b"), Rule::Finished), Dep::on(id("c"), Rule::Failed)];
        let json = serde_json::to_string(&deps).unwrap();
        assert_eq!(json, r#"["a",{"id":"b","rule":"finished"},{"id":"c","rule":"failed"}]"#);
        assert_eq!(serde_json::from_str::<Vec<Dep>>(&json).unwrap(), deps);
        assert_eq!(serde_json::from_str::<Dep>(r#"{"id":"a"}"#).unwrap(), deps[0]);
        for bad in [r#"{"id":"a","rule":"maybe"}"#, r#"{"id":"a","rules":"done"}"#, "3"] {
            assert!(serde_json::from_str::<Dep>(bad).is_err(), "{bad}");
        }
        assert!(deps[0] == id("a") && deps[1] != id("b"));
    }

    #[test]
    fn every_rule_says_of_every_state_what_was_promised() {
        use State::{Cancelled, Claimed, Done, Failed, Open, Skipped, Unknown};
        let (yes, never, open) = (Some(true), Some(false), None);
        let states = [Open, Claimed, Done, Failed, Cancelled, Skipped, Unknown(9)];
        for (rule, verdicts) in [
            (Rule::Done, [open, open, yes, open, open, never, open]),
            (Rule::Finished, [open, open, yes, yes, yes, yes, open]),
            (Rule::Failed, [open, open, never, yes, open, never, open]),
        ] {
            assert_eq!(states.map(|state| rule.verdict(state)), verdicts, "{rule}");
            assert_eq!(Rule::of_code(rule.code()), Some(rule));
        }
    }
}
