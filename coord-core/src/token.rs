//! Secrets and identities from the system's random source.

use std::fmt;
use std::str::FromStr;

use rand::TryRng;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::snapshot::Version;

/// Fills bytes from the system's random source.
///
/// # Panics
/// If the system has no random source. Without one no token can be given that nobody guesses, and no identity that is not used
/// twice, so there is no way to go on.
fn system_random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).expect("the system has a random source");
    bytes
}

/// An incarnation for the keys that one try of a transaction creates: 63 bits, not zero, from the system's random source.
///
/// A backend mints a new one for *every try*, so that a late duplicate of an earlier try never gives a version twice.
///
/// # Panics
/// If the system has no random source.
#[must_use]
pub fn mint_incarnation() -> u64 {
    loop {
        let incarnation = u64::from_le_bytes(system_random()) & Version::MAX_HALF;
        if incarnation != 0 {
            return incarnation;
        }
    }
}

/// A seed for jitter and for choices that need no secrecy.
pub(crate) fn seed() -> u64 {
    u64::from_le_bytes(system_random())
}

pub(crate) fn to_hex(bytes: &[u8; 16]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// A text is not 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 lower-case hexadecimal digits")]
pub struct ParseSecretError;

macro_rules! secret {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Serialize, Deserialize)]
        pub struct $name([u8; 16]);

        impl $name {
            /// A new one: 128 bits from the system's random source.
            ///
            /// # Panics
            /// If the system has no random source.
            #[must_use]
            pub fn mint() -> Self {
                $name(system_random())
            }

            /// The secret as 32 lower-case hexadecimal digits, to hand to another process. Never log it.
            #[must_use]
            pub fn reveal(&self) -> String {
                to_hex(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseSecretError;
            /// Reads what `reveal` gave.
            fn from_str(text: &str) -> Result<Self, ParseSecretError> {
                from_hex(text).map($name).ok_or(ParseSecretError)
            }
        }

        /// Compares in constant time.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.ct_eq(&other.0).into()
            }
        }

        impl Eq for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}

secret! {
    /// What proves a claim: whoever presents it holds the lease. 128 random bits, compared in constant time, hidden by `Debug`.
    ///
    /// ```
    /// use coord_core::Token;
    ///
    /// let token = Token::mint();
    /// assert_eq!(token, token.reveal().parse().unwrap());
    /// assert_eq!(format!("{token:?}"), "Token(..)");
    /// ```
    Token
}

secret! {
    /// What a caller may give to a claim so that, after a lost answer, the same request finds its lease again. A secret like the
    /// token, compared in constant time, hidden by `Debug`.
    RequestId
}

/// What a verb's own write is known by: random, and no secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OperationId([u8; 16]);

impl OperationId {
    /// A new one: 128 bits from the system's random source.
    ///
    /// # Panics
    /// If the system has no random source.
    #[must_use]
    pub fn mint() -> Self {
        OperationId(system_random())
    }

    /// The bytes.
    #[must_use]
    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({})", to_hex(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_round_trip_and_are_hidden() {
        let (a, b) = (Token::mint(), Token::mint());
        assert_ne!(a, b);
        assert_eq!(a, a.reveal().parse().unwrap());
        assert_eq!(a.reveal().len(), 32);
        assert!(!format!("{a:?}").contains(&a.reveal()));
        assert_eq!(format!("{:?}", RequestId::mint()), "RequestId(..)");
    }

    #[test]
    fn only_what_was_revealed_is_read() {
        for bad in ["", "0", "+0000000000000000000000000000000", "0000000000000000000000000000000G"] {
            assert_eq!(bad.parse::<Token>(), Err(ParseSecretError), "{bad:?}");
        }
        assert!("ABCDEF00000000000000000000000000".parse::<Token>().is_err());
        assert!("é".repeat(16).parse::<Token>().is_err());
    }

    #[test]
    fn incarnations_fit_63_bits() {
        for _ in 0..1_000 {
            assert!(Version::first(mint_incarnation()).is_some());
        }
    }
}
