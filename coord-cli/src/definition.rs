//! What a task runs: the payload of a task that `coord` put on a board, and the outcome that it leaves there.

use std::collections::BTreeMap;
use std::time::Duration;

use coord_core::Bytes;
use coord_core::board::{Outcome, Task, TaskSpec};
use serde::{Deserialize, Serialize};

/// How to run a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Definition {
    /// What `sh -c` gets.
    pub(crate) run: String,
    /// How long it may take, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
    /// Variables of its environment, beyond those of the worker.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    /// Its working folder; a relative one begins at the worker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
    /// What it is done at most once for, beyond this board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<EffectDefinition>,
}

/// The action that the command of a task is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EffectDefinition {
    /// What it is done at most once for.
    pub(crate) key: String,
    /// What only one action at a time may touch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resource: Option<String>,
    /// Exit codes that leave its outcome unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) uncertain_exit: Vec<u8>,
    /// Exit codes that mean that nothing was done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) abandon_exit: Vec<u8>,
}

impl Definition {
    /// The definition as a payload: the same bytes for the same definition.
    pub(crate) fn to_payload(&self) -> Bytes {
        serde_json::to_vec(self).expect("strings and numbers are always JSON").into()
    }

    /// Reads a payload.
    pub(crate) fn from_payload(payload: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(payload)
            .map_err(|error| format!("the task was not added by this version of coord: {error}"))
    }

    /// How long it may take.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }
}

/// Which fields of a definition differ from what is on the board, by the names they have in a plan.
pub(crate) fn differences(wanted: &TaskSpec, found: &Task) -> Vec<&'static str> {
    let mut fields = Vec::new();
    if wanted.title != found.title {
        fields.push("title");
    }
    if wanted.deps != found.deps {
        fields.push("deps");
    }
    if wanted.priority != found.priority {
        fields.push("priority");
    }
    if wanted.labels != found.labels {
        fields.push("labels");
    }
    if wanted.retry != found.retry {
        fields.push("retry");
    }
    if wanted.payload != found.payload {
        match (Definition::from_payload(&wanted.payload), Definition::from_payload(&found.payload)) {
            (Ok(wanted), Ok(found)) => {
                let parts = [
                    ("run", wanted.run != found.run),
                    ("timeout", wanted.timeout_ms != found.timeout_ms),
                    ("env", wanted.env != found.env),
                    ("cwd", wanted.cwd != found.cwd),
                    ("effect", wanted.effect != found.effect),
                ];
                fields.extend(parts.iter().filter(|(_, differs)| *differs).map(|(field, _)| *field));
            }
            _ => fields.push("payload"),
        }
    }
    fields
}

/// How the command of a task ended, as it is kept in the task's outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// Its exit code, if it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
    /// It ran out of its time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) timeout: bool,
    /// Why it was not started, or not seen to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// It was done before, and this is what was kept of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) replayed: bool,
    /// How long it took, in milliseconds.
    #[serde(default)]
    pub(crate) ms: u64,
    /// On which machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
}

impl Ended {
    /// Whether it did what it should.
    pub(crate) fn is_success(&self) -> bool {
        self.exit == Some(0) && !self.timeout && self.error.is_none()
    }

    /// As an outcome. Texts are cut so that it fits.
    pub(crate) fn to_outcome(&self) -> Outcome {
        let cut = |text: &Option<String>, most: usize| {
            text.as_ref().map(|text| text.chars().filter(|c| !c.is_control()).take(most).collect::<String>())
        };
        // A character takes at most four bytes, or six as an escape; the rest of the document is below 100 bytes.
        let kept = Ended { error: cut(&self.error, 60), host: cut(&self.host, 16), ..self.clone() };
        Outcome::truncated(&serde_json::to_string(&kept).expect("strings and numbers are always JSON"))
    }

    /// Reads an outcome; `None` if something else wrote it.
    pub(crate) fn from_outcome(outcome: &Outcome) -> Option<Self> {
        serde_json::from_str(outcome.as_str()).ok()
    }

    /// How long it took.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.ms)
    }
}

impl std::fmt::Display for Ended {
    /// As `exit 3 after 1.2s`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(error) = &self.error {
            return f.write_str(error);
        }
        match (self.timeout, self.exit, self.signal) {
            (true, _, _) => f.write_str("ran out of time")?,
            (_, Some(code), _) => write!(f, "exit {code}")?,
            (_, _, Some(signal)) => write!(f, "killed by signal {signal}")?,
            _ => f.write_str("ended")?,
        }
        if self.replayed {
            return f.write_str(", replayed: it was done before");
        }
        write!(f, " after {}", seconds(self.duration()))
    }
}

/// A duration for people: `0.12s`, `12.3s`, `2m 05s`, `3h 07m`.
pub(crate) fn seconds(duration: Duration) -> String {
    let all = duration.as_secs();
    if all < 10 {
        format!("{:.2}s", duration.as_secs_f64())
    } else if all < 60 {
        format!("{:.1}s", duration.as_secs_f64())
    } else if all < 3_600 {
        format!("{}m {:02}s", all / 60, all % 60)
    } else {
        format!("{}h {:02}m", all / 3_600, all / 60 % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_fit_and_are_read_back() {
        let ended = Ended { exit: Some(3), ms: 1_234, host: Some("h".repeat(300)), ..Ended::default() };
        let read = Ended::from_outcome(&ended.to_outcome()).unwrap();
        assert_eq!((read.exit, read.ms, read.to_string().as_str()), (Some(3), 1_234, "exit 3 after 1.23s"));
        let long = Ended { error: Some("\u{1F600}\"\\".repeat(1_000)), host: Some("é".repeat(99)), ..ended };
        assert!(Ended::from_outcome(&long.to_outcome()).is_some(), "{}", long.to_outcome());
        assert!(!Ended { timeout: true, exit: Some(0), ..Ended::default() }.is_success());
    }

    #[test]
    fn durations_are_short() {
        let texts = [120, 12_340, 125_000, 11_220_000].map(|ms| seconds(Duration::from_millis(ms)));
        assert_eq!(texts, ["0.12s", "12.3s", "2m 05s", "3h 07m"]);
    }
}
