//! Reads what the driver hands on.

use coord_core::{BackendError, Bytes, Entry, Key, Operation, Snapshot, Timestamp, Version, limits};
use redis::Value;

use crate::NAME;
use crate::error::{config_error, corrupt, unknown};

/// The text of a reply, whatever kind of string it is.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Okay => Some("OK".to_owned()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The pairs of a map, or of an array that stands for one. Values that are no text are left out.
pub(crate) fn pairs(value: &Value) -> Option<Vec<(String, String)>> {
    match value {
        Value::Map(fields) => {
            Some(fields.iter().filter_map(|(key, value)| Some((text(key)?, text(value)?))).collect())
        }
        Value::Array(fields) => {
            Some(fields.chunks_exact(2).filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect())
        }
        _ => None,
    }
}

/// What a script answers: a word, and what belongs to it.
pub(crate) struct Answer {
    pub(crate) word: String,
    pub(crate) rest: std::vec::IntoIter<Value>,
}

/// Reads the answer of a script, the answers that are none included. `names` are the names of the keys that it was given after marker
/// and index.
pub(crate) fn answer(operation: Operation, value: Value, names: &[&Key]) -> Result<Answer, BackendError> {
    let strange = || unknown(operation, "the server's answer is not that of the script");
    let Value::Array(values) = value else { return Err(strange()) };
    let mut rest = values.into_iter();
    let word = rest.next().as_ref().and_then(text).ok_or_else(strange)?;
    let mut next = || rest.next().as_ref().and_then(text).ok_or_else(strange);
    match word.as_str() {
        "ok" | "applied" | "rejected" => Ok(Answer { word, rest }),
        "corrupt" => {
            let (number, what) = (next()?, next()?);
            let place = match number.parse::<usize>().map_err(|_| strange())? {
                1 => "the marker of the namespace".to_owned(),
                2 => "the index of the namespace".to_owned(),
                n => names
                    .get(n.wrapping_sub(3))
                    .map_or("a key".to_owned(), |name| format!("the key {name:?}")),
            };
            Err(corrupt(operation, format!("{place} holds {what}, not what coord wrote")))
        }
        "format" => {
            let marker = next()?;
            Err(if marker.starts_with("coord ") {
                config_error(
                    "the namespace was written by another version of coord, in a format that this one does not know",
                )
            } else {
                corrupt(
                    operation,
                    "the namespace's marker was not written by coord: the namespace belongs to something else",
                )
            })
        }
        "large" => {
            let message = format!("the snapshot has {} bytes, more than {}", next()?, limits::SNAPSHOT_BYTES);
            Err(BackendError::new(coord_core::ErrorKind::Invalid, NAME, operation, message))
        }
        "denied" => {
            let denied: Vec<String> = rest.as_ref().iter().filter_map(text).collect();
            Err(config_error(format!(
                "the user of the URL may not call {} on the keys of the namespace",
                denied.join(", ")
            )))
        }
        "failed" => {
            let (wrote, why) = (next()?, next()?);
            let message = format!("the script failed: {why}");
            Err(if wrote == "0" {
                crate::error::unavailable(operation, message)
            } else {
                unknown(operation, message)
            })
        }
        _ => Err(strange()),
    }
}

/// The version of an entry.
fn version(incarnation: &Value, count: &Value) -> Option<Version> {
    let number = |value: &Value| text(value)?.parse::<u64>().ok();
    Version::new(number(incarnation)?, number(count)?)
}

/// A snapshot of `names`, in whose order the answer is.
pub(crate) fn snapshot(mut answer: Answer, names: &[&Key]) -> Result<Snapshot, BackendError> {
    let operation = Operation::Snapshot;
    let strange = || unknown(operation, "the server's answer is not that of the script");
    let mut number = || {
        answer
            .rest
            .next()
            .as_ref()
            .and_then(text)
            .and_then(|text| text.parse::<i64>().ok())
            .ok_or_else(strange)
    };
    let (seconds, micros) = (number()?, number()?);
    let time = seconds
        .checked_mul(1_000_000)
        .and_then(|time| time.checked_add(micros))
        .and_then(Timestamp::from_micros)
        .ok_or_else(|| {
            unknown(operation, "the server's clock stands before 1970 or after the year 294246")
        })?;
    if answer.rest.len() != names.len() {
        return Err(strange());
    }
    let entries = names.iter().zip(answer.rest).map(|(name, value)| {
        let entry = match value {
            Value::Int(0) => Entry::Absent,
            Value::Array(fields) => match <[Value; 3]>::try_from(fields) {
                Ok([incarnation, count, Value::BulkString(value)]) => Entry::Present {
                    version: version(&incarnation, &count).ok_or_else(|| {
                        corrupt(operation, format!("the key {name:?} has a version that cannot be"))
                    })?,
                    value: Bytes::from(value),
                },
                _ => return Err(strange()),
            },
            _ => return Err(strange()),
        };
        Ok(((*name).clone(), entry))
    });
    Ok(Snapshot::new(entries.collect::<Result<Vec<_>, _>>()?, Some(time)))
}

/// The names of a listing.
pub(crate) fn names(mut answer: Answer) -> Result<Vec<Key>, BackendError> {
    let operation = Operation::Keys;
    let Some(Value::Array(names)) = answer.rest.next() else {
        return Err(unknown(operation, "the server's answer is not that of the script"));
    };
    names
        .iter()
        .map(|name| match name {
            Value::BulkString(bytes) => Key::from_bytes(bytes).map_err(|error| {
                corrupt(operation, "the index holds a name that is no key").with_source(error)
            }),
            _ => Err(unknown(operation, "the server's answer is not that of the script")),
        })
        .collect()
}
