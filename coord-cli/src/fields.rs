//! Reading the fields of one table of a plan, and saying what is wrong with them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use coord_core::Timestamp;
use coord_core::board::{Dep, Retry, Rule, TaskId, limits};
use coord_core::effects::{ActionKey, EffectError, ResourceId};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::definition::EffectDefinition;
use crate::diagnose::Problems;

/// The longest variable of an environment with its value: systems limit one to 128 KiB.
const VARIABLE_BYTES: usize = 120 * 1_024;
/// The longest path.
const PATH_BYTES: usize = 4_096;
/// The longest timeout: ten years, which any clock can add.
const TIMEOUT_SECONDS: u64 = 10 * 366 * 24 * 3_600;

/// How a retry is written.
const RETRY_HELP: &str = "write it as 3, or as { attempts = 3, backoff = \"10s\", max_backoff = \"5m\" }; attempts counts the first one too";

/// The fields of one table.
#[derive(Debug)]
pub(crate) struct Fields<'p, 'a, 't> {
    problems: &'p mut Problems<'a>,
    table: &'t DeTable<'t>,
    span: Range<usize>,
    owner: &'t str,
}

/// A text and where it is.
pub(crate) type Located = (String, Range<usize>);

impl<'p, 'a, 't> Fields<'p, 'a, 't> {
    /// The fields of this table, which messages call `owner`.
    pub(crate) fn new(
        problems: &'p mut Problems<'a>,
        table: &'t DeTable<'t>,
        span: Range<usize>,
        owner: &'t str,
    ) -> Self {
        Fields { problems, table, span, owner }
    }

    /// Something is wrong with a field.
    pub(crate) fn problem(
        &mut self,
        span: Range<usize>,
        field: &str,
        message: impl Into<String>,
        help: Option<String>,
    ) {
        self.problems.push(span, format!("{}: {field}", self.owner), message, help);
    }

    /// No other fields than these.
    pub(crate) fn only(&mut self, known: &[&str]) {
        for (key, _) in self.table {
            let name = key.get_ref().as_ref();
            if !known.contains(&name) {
                let help = match nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the fields are {}", known.join(", ")),
                };
                let shown: String = name.chars().take(80).collect();
                self.problem(key.span(), &shown, "unknown field", Some(help));
            }
        }
    }

    fn get(&self, field: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table.get(field)
    }

    fn wrong_type(&mut self, value: &Spanned<DeValue<'_>>, field: &str, wanted: &str) {
        let found = value.get_ref().type_str();
        self.problem(value.span(), field, format!("must be {wanted}, not {found}"), None);
    }

    /// A text.
    pub(crate) fn string(&mut self, field: &str) -> Option<Located> {
        let value = self.get(field)?;
        match value.get_ref() {
            DeValue::String(text) => Some((text.to_string(), value.span())),
            _ => {
                self.wrong_type(value, field, "a string");
                None
            }
        }
    }

    /// A text that must be there.
    pub(crate) fn required(&mut self, field: &str) -> Option<Located> {
        if self.get(field).is_none() {
            self.problem(self.span.clone(), field, "is missing", None);
        }
        self.string(field)
    }

    /// A list of texts.
    pub(crate) fn strings(&mut self, field: &str) -> Option<Vec<Located>> {
        let value = self.get(field)?;
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(value, field, "an array of strings");
            return None;
        };
        let mut texts = Vec::with_capacity(array.len());
        for value in array.iter() {
            match value.get_ref() {
                DeValue::String(text) => texts.push((text.to_string(), value.span())),
                _ => self.wrong_type(value, field, "an array of strings"),
            }
        }
        Some(texts)
    }

    /// `deps`: ids, or tables of an id and a rule.
    pub(crate) fn deps(&mut self) -> Option<Vec<(Dep, Range<usize>)>> {
        const WANTED: &str = "an array of ids, or of tables as { id = \"build\", rule = \"finished\" }";
        let value = self.get("deps")?;
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(value, "deps", WANTED);
            return None;
        };
        let mut deps = Vec::with_capacity(array.len());
        for value in array.iter() {
            match value.get_ref() {
                DeValue::String(id) => deps.push((TaskId::unchecked(id).into(), value.span())),
                DeValue::Table(table) => {
                    let owner = format!("{}: deps", self.owner);
                    let mut fields = Fields::new(self.problems, table, value.span(), &owner);
                    fields.only(&["id", "rule"]);
                    let (id, rule) = (fields.required("id"), fields.rule());
                    if let (Some((id, span)), Some(rule)) = (id, rule) {
                        deps.push((Dep::on(TaskId::unchecked(id), rule), span));
                    }
                }
                _ => self.wrong_type(value, "deps", WANTED),
            }
        }
        Some(deps)
    }

    /// `rule` of a dependency; `done` if it is left out.
    fn rule(&mut self) -> Option<Rule> {
        if self.get("rule").is_none() {
            return Some(Rule::Done);
        }
        let (word, span) = self.string("rule")?;
        let rule = Rule::ALL.into_iter().find(|rule| rule.as_str() == word);
        if rule.is_none() {
            let shown: String = word.chars().take(80).collect();
            let help =
                "done: it must be done; finished: it must have ended, however; failed: it must have failed";
            self.problem(span, "rule", format!("unknown rule {shown:?}"), Some(help.into()));
        }
        rule
    }

    /// `priority`.
    pub(crate) fn priority(&mut self) -> Option<i32> {
        let value = self.get("priority")?;
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_type(value, "priority", "an integer");
            return None;
        };
        let parsed = i32::from_str_radix(integer.as_str(), integer.radix());
        if parsed.is_err() {
            let message = format!("must be between {} and {}", i32::MIN, i32::MAX);
            self.problem(value.span(), "priority", message, None);
        }
        parsed.ok()
    }

    /// `labels`.
    pub(crate) fn labels(&mut self) -> Option<Vec<String>> {
        let labels = self.strings("labels")?;
        if labels.len() > limits::LABELS {
            let (count, most) = (labels.len(), limits::LABELS);
            let span = labels[most].1.clone();
            self.problem(span, "labels", format!("{count} are too many: at most {most}"), None);
        }
        for (label, span) in &labels {
            if label.is_empty() {
                self.problem(span.clone(), "labels", "a label is empty", None);
            } else if label.len() > limits::LABEL_BYTES {
                let (size, most) = (label.len(), limits::LABEL_BYTES);
                let message = format!("a label of {size} bytes is too long: at most {most}");
                self.problem(span.clone(), "labels", message, None);
            }
        }
        Some(labels.into_iter().map(|(label, _)| label).collect())
    }

    /// `timeout`, in milliseconds.
    pub(crate) fn timeout(&mut self) -> Option<u64> {
        let value = self.get("timeout")?;
        let help = || Some("write it as \"30s\", \"5m\" or \"1h 30m\"".to_owned());
        let Some(text) = value.get_ref().as_str() else {
            let found = value.get_ref().type_str();
            self.problem(value.span(), "timeout", format!("must be a string, not {found}"), help());
            return None;
        };
        let message = match humantime::parse_duration(text) {
            Err(error) => format!("is no duration: {error}"),
            Ok(duration) if duration.as_millis() == 0 => "is shorter than a millisecond".into(),
            Ok(duration) if duration.as_secs() > TIMEOUT_SECONDS => "is longer than ten years".into(),
            Ok(duration) => return u64::try_from(duration.as_millis()).ok(),
        };
        self.problem(value.span(), "timeout", message, help());
        None
    }

    /// A time.
    pub(crate) fn time(&mut self, field: &str) -> Option<Timestamp> {
        let value = self.get(field)?;
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Datetime(time) => time.to_string(),
            _ => {
                self.wrong_type(value, field, "a time");
                return None;
            }
        };
        let since_epoch = humantime::parse_rfc3339_weak(&text)
            .ok()
            .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let time = since_epoch.and_then(|since| Timestamp::EPOCH.checked_add(since));
        if time.is_none() {
            let help = Some("write it as \"2026-12-01T03:00:00Z\", in UTC".into());
            self.problem(value.span(), field, "is no time", help);
        }
        time
    }

    /// `retry`: how many attempts, or a table that says also how long a task rests in between.
    pub(crate) fn retry(&mut self) -> Option<Retry> {
        let value = self.get("retry")?;
        if value.get_ref().is_integer() {
            let attempts = self.attempts("retry")?;
            return Some(Retry::new(attempts));
        }
        let Some(table) = value.get_ref().as_table() else {
            let found = value.get_ref().type_str();
            let help = Some(RETRY_HELP.to_owned());
            let message = format!("must be a number of attempts or a table, not {found}");
            self.problem(value.span(), "retry", message, help);
            return None;
        };
        let owner = format!("{}: retry", self.owner);
        let mut fields = Fields::new(self.problems, table, value.span(), &owner);
        fields.only(&["attempts", "backoff", "max_backoff"]);
        if fields.get("attempts").is_none() {
            fields.problem(value.span(), "attempts", "is missing", Some(RETRY_HELP.into()));
        }
        let attempts = fields.attempts("attempts");
        let (first, longest) = (fields.rest("backoff"), fields.rest("max_backoff"));
        let plain = Retry::new(attempts?);
        let first = first.unwrap_or(plain.backoff);
        // Whoever only asks for a long first rest means it.
        let longest = longest.unwrap_or(plain.max_backoff.max(first));
        if longest < first {
            let message = "is shorter than `backoff`, the longest rest after the first failure";
            fields.problem(value.span(), "max_backoff", message, None);
            return None;
        }
        Some(plain.backoff(first, longest))
    }

    fn attempts(&mut self, field: &str) -> Option<u32> {
        let value = self.get(field)?;
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_type(value, field, "an integer");
            return None;
        };
        let attempts = u32::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|n| *n > 0);
        if attempts.is_none() {
            let message = format!("must be between 1 and {}: it counts the first attempt too", u32::MAX);
            self.problem(value.span(), field, message, None);
        }
        attempts
    }

    fn rest(&mut self, field: &str) -> Option<Duration> {
        let value = self.get(field)?;
        let help = || Some("write it as \"500ms\", \"30s\" or \"5m\"".to_owned());
        let Some(text) = value.get_ref().as_str() else {
            let found = value.get_ref().type_str();
            self.problem(value.span(), field, format!("must be a string, not {found}"), help());
            return None;
        };
        let message = match humantime::parse_duration(text) {
            Err(error) => format!("is no duration: {error}"),
            Ok(rest) => match Retry::new(1).backoff(rest, rest).validate() {
                Err(_) => "is longer than a year".into(),
                Ok(()) => return Some(rest),
            },
        };
        self.problem(value.span(), field, message, help());
        None
    }

    /// `env`.
    pub(crate) fn env(&mut self) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        let Some(value) = self.get("env") else { return env };
        let Some(table) = value.get_ref().as_table() else {
            self.wrong_type(value, "env", "a table of strings");
            return env;
        };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let shown: String = name.chars().take(80).collect();
            let field = format!("env.{shown}");
            let Some(text) = value.get_ref().as_str() else {
                let help = Some("write the value in quotes".into());
                let found = value.get_ref().type_str();
                self.problem(value.span(), &field, format!("must be a string, not {found}"), help);
                continue;
            };
            if name.is_empty() || name.contains(['=', '\0']) {
                self.problem(key.span(), &field, "is no name of a variable", None);
            } else if name.starts_with("COORD_") {
                let message = "names that begin with COORD_ are set by coord itself";
                self.problem(key.span(), &field, message, None);
            } else if text.contains('\0') {
                self.problem(value.span(), &field, "contains a NUL character", None);
            } else if name.len() + text.len() > VARIABLE_BYTES {
                let message = format!("is larger than {VARIABLE_BYTES} bytes");
                self.problem(value.span(), &field, message, None);
            } else {
                env.insert(name.to_owned(), text.to_owned());
            }
        }
        env
    }

    /// `cwd`.
    pub(crate) fn cwd(&mut self) -> Option<String> {
        let (cwd, span) = self.string("cwd")?;
        let message = if cwd.is_empty() {
            "is empty"
        } else if cwd.contains('\0') {
            "contains a NUL character"
        } else if cwd.len() > PATH_BYTES {
            "is longer than 4,096 bytes"
        } else {
            return Some(cwd);
        };
        self.problem(span, "cwd", message, None);
        None
    }
}

impl Fields<'_, '_, '_> {
    /// `effect`.
    pub(crate) fn effect(&mut self) -> Option<EffectDefinition> {
        let value = self.get("effect")?;
        let Some(table) = value.get_ref().as_table() else {
            self.wrong_type(value, "effect", "a table with a key");
            return None;
        };
        let owner = format!("{}: effect", self.owner);
        let mut fields = Fields::new(self.problems, table, value.span(), &owner);
        fields.only(&["key", "resource", "uncertain_exit", "abandon_exit"]);
        let key = fields.required("key");
        let key = fields.checked("key", key, |text| ActionKey::new(text).map(|_| ()));
        let resource = fields.string("resource");
        let resource = fields.checked("resource", resource, |text| ResourceId::new(text).map(|_| ()));
        let uncertain_exit = fields.exit_codes("uncertain_exit");
        let abandon_exit = fields.exit_codes("abandon_exit");
        if let Some(both) = uncertain_exit.iter().find(|code| abandon_exit.contains(code)) {
            let message = format!("{both} cannot mean both that nothing was done and that nobody knows");
            fields.problem(value.span(), "abandon_exit", message, None);
        }
        Some(EffectDefinition { key: key.unwrap_or_default(), resource, uncertain_exit, abandon_exit })
    }

    fn checked(
        &mut self,
        field: &str,
        text: Option<Located>,
        check: impl FnOnce(&str) -> Result<(), EffectError>,
    ) -> Option<String> {
        let (text, span) = text?;
        match check(&text) {
            Ok(()) => Some(text),
            Err(EffectError::Invalid(why)) => {
                self.problem(span, field, why, None);
                None
            }
            Err(error) => {
                self.problem(span, field, error.to_string(), None);
                None
            }
        }
    }

    /// A list of exit codes.
    fn exit_codes(&mut self, field: &str) -> Vec<u8> {
        let Some(value) = self.get(field) else { return Vec::new() };
        let codes = value.get_ref().as_array().and_then(|array| {
            let code = |value: &Spanned<DeValue<'_>>| {
                let integer = value.get_ref().as_integer()?;
                u8::from_str_radix(integer.as_str(), integer.radix()).ok()
            };
            array.iter().map(code).collect::<Option<Vec<u8>>>()
        });
        if codes.is_none() {
            self.wrong_type(value, field, "an array of exit codes, 0 to 255");
        }
        codes.unwrap_or_default()
    }
}

/// The known name that a wrong one most probably means.
pub(crate) fn nearest<'n>(wrong: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // Comparing is quadratic in the lengths, and nobody mistypes a text of this length.
    if wrong.len() > limits::ID_BYTES {
        return None;
    }
    let most = 1 + wrong.chars().count() / 4;
    known
        .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}
