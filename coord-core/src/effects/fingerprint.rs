//! What an action is about, so that a key is never used for two different things.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::EffectError;

/// A digest of what an action is about, in two parts: the *identity* has to be the same whenever the key is used (whom to charge, how
/// much), the *content* may differ (a text that a model words anew each time).
///
/// ```
/// use coord_core::effects::Fingerprint;
/// use serde_json::json;
///
/// let mail = json!({ "to": "ada@example.org", "template": 7, "body": "Dear Ada" });
/// let again = json!({ "body": "Hello Ada", "template": 7, "to": "ada@example.org" });
/// let (mail, again) = (Fingerprint::split(&mail, &["body"])?, Fingerprint::split(&again, &["body"])?);
/// assert!(mail.is_same_action(&again));
/// assert_ne!(mail, again);
/// # Ok::<(), coord_core::effects::EffectError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    identity: [u8; 32],
    content: Option<[u8; 32]>,
}

impl Fingerprint {
    /// Of bytes, all of them identity.
    #[must_use]
    pub fn of_bytes(identity: &[u8]) -> Self {
        Fingerprint { identity: digest(b"bytes", identity), content: None }
    }

    /// Of a value in a canonical form, all of it identity: maps and structs by their sorted names, so that the order of fields and
    /// of map entries does not matter. A value and its JSON give the same fingerprint.
    ///
    /// # Errors
    /// [`EffectError::Invalid`] if the value has no JSON form: a map whose keys are no texts or numbers.
    pub fn of(identity: &impl Serialize) -> Result<Self, EffectError> {
        Ok(Fingerprint { identity: canonical_digest(&to_json(identity)?), content: None })
    }

    /// The same, with a content that may differ.
    ///
    /// # Errors
    /// As [`of`](Fingerprint::of).
    pub fn with_content(mut self, content: &impl Serialize) -> Result<Self, EffectError> {
        self.content = Some(canonical_digest(&to_json(content)?));
        Ok(self)
    }

    /// Of a value with named fields: those in `content` may differ, all others are identity. A field that is missing and one that is
    /// null are different things.
    ///
    /// # Errors
    /// [`EffectError::Invalid`] if the value is no struct or map.
    pub fn split(value: &impl Serialize, content: &[&str]) -> Result<Self, EffectError> {
        let Value::Object(fields) = to_json(value)? else {
            return Err(EffectError::Invalid("only a value with named fields can be split".into()));
        };
        let (content, identity): (serde_json::Map<_, _>, serde_json::Map<_, _>) =
            fields.into_iter().partition(|(name, _)| content.contains(&name.as_str()));
        Ok(Fingerprint {
            identity: canonical_digest(&Value::Object(identity)),
            content: Some(canonical_digest(&Value::Object(content))),
        })
    }

    /// Whether the identity is the same.
    #[must_use]
    pub fn is_same_action(&self, other: &Fingerprint) -> bool {
        self.identity == other.identity
    }

    /// Whether identity and content are the same.
    #[must_use]
    pub fn is_same_content(&self, other: &Fingerprint) -> bool {
        self == other
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.identity;
        write!(f, "Fingerprint({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

fn to_json(value: &impl Serialize) -> Result<Value, EffectError> {
    serde_json::to_value(value)
        .map_err(|error| EffectError::Invalid(format!("the value has no canonical form: {error}")))
}

fn digest(kind: &[u8], bytes: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((kind.len() as u64).to_be_bytes());
    hash.update(kind);
    hash.update(bytes);
    hash.finalize().into()
}

fn canonical_digest(value: &Value) -> [u8; 32] {
    let mut bytes = Vec::new();
    write_canonical(value, &mut bytes);
    digest(b"json", &bytes)
}

/// Every value begins with its kind and every text with its length, so that no two values give the same bytes. Names are sorted here,
/// for whether serde_json keeps them sorted depends on a feature that any crate of a build may turn on.
fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    fn text(text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(&(text.len() as u64).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    match value {
        Value::Null => out.push(b'n'),
        Value::Bool(value) => out.extend_from_slice(if *value { b"t" } else { b"f" }),
        Value::Number(number) => {
            out.push(b'#');
            text(&number.to_string(), out);
        }
        Value::String(value) => {
            out.push(b's');
            text(value, out);
        }
        Value::Array(values) => {
            out.push(b'a');
            out.extend_from_slice(&(values.len() as u64).to_be_bytes());
            values.iter().for_each(|value| write_canonical(value, out));
        }
        Value::Object(fields) => {
            out.push(b'o');
            out.extend_from_slice(&(fields.len() as u64).to_be_bytes());
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in fields {
                text(name, out);
                write_canonical(value, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_order_of_names_does_not_matter_and_everything_else_does() {
        #[derive(Serialize)]
        struct Charge {
            cents: u32,
            card: &'static str,
        }
        let charge = Fingerprint::of(&Charge { cents: 100, card: "x" }).unwrap();
        assert_eq!(charge, Fingerprint::of(&json!({ "card": "x", "cents": 100 })).unwrap());
        let different = [
            json!({ "card": "x", "cents": 101 }),
            json!({ "card": "x", "cents": "100" }),
            json!({ "card": "x", "cents": 100.0 }),
            json!({ "card": "x" }),
            json!({ "card": "x", "cents": 100, "currency": null }),
            json!([{ "card": "x", "cents": 100 }]),
            json!("{\"card\":\"x\",\"cents\":100}"),
        ];
        for other in &different {
            assert_ne!(charge, Fingerprint::of(other).unwrap(), "{other}");
        }
        assert_ne!(Fingerprint::of(&json!(["a", "b"])).unwrap(), Fingerprint::of(&json!(["ab"])).unwrap());
        assert_ne!(Fingerprint::of(&json!("a")).unwrap(), Fingerprint::of_bytes(b"a"));
        assert_ne!(Fingerprint::of(&json!([])).unwrap(), Fingerprint::of(&json!({})).unwrap());
    }

    #[test]
    fn content_may_differ_and_identity_may_not() {
        let mail =
            |to: &str, body: &str| Fingerprint::split(&json!({ "to": to, "body": body }), &["body"]).unwrap();
        assert!(
            mail("a", "x").is_same_action(&mail("a", "y"))
                && !mail("a", "x").is_same_content(&mail("a", "y"))
        );
        assert!(!mail("a", "x").is_same_action(&mail("b", "x")));
        assert!(Fingerprint::split(&json!(["to"]), &[]).is_err());
        let by_hand =
            Fingerprint::of(&json!({ "to": "a" })).unwrap().with_content(&json!({ "body": "x" })).unwrap();
        assert_eq!(by_hand, mail("a", "x"));
    }

    #[test]
    fn a_map_without_names_has_no_canonical_form() {
        let map = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(matches!(Fingerprint::of(&map), Err(EffectError::Invalid(_))));
    }
}
