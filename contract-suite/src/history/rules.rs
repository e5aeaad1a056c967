//! The rules of the checker, each of which can be left out, so that a test can show that each is needed.

use std::fmt;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What a strictly serialisable history must obey.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $($(#[$doc])* #[doc = $text] $name,)*
        }

        impl Rule {
            /// All of them.
            pub const ALL: &[Rule] = &[$(Rule::$name),*];

            /// The rule as a sentence.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Rule::$name => $text,)*
                }
            }
        }
    };
}

rules! {
    Complete = "a snapshot answers every key that it was asked for",
    Shape = "a listing is ascending, without duplicates, within its range and its limit",
    Provenance = "a value that is read was written, by a transaction that was not answered rejected or refused",
    Successor = "a value is read at the version after the one that its write replaced, a created one at count 1",
    Once = "one creation gives one incarnation",
    Fresh = "one incarnation has one creation",
    Made = "a version that an applied transaction asserts was made by somebody",
    WriteWrite = "writes of one key happen in the order of its versions",
    WriteRead = "what is seen has been written before",
    ReadWrite = "what is seen has not been replaced before",
    AssertOnly = "an applied transaction has seen what it asserts of keys that it does not write",
    RealTime = "what returned before another call has happened before it",
    Absent = "a key that is seen as absent is so outside its lives",
    Lives = "a key has one life at a time",
    Listed = "a key that is listed is in one of its lives",
    Rejected = "a rejected transaction has an assert that did not hold",
    Unknown = "a transaction of unknown outcome happens as a whole or not at all, and not before it was called",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The rules that a check applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules(u32);

impl Rules {
    /// All rules: the only set that judges a backend.
    pub const ALL: Rules = Rules((1 << Rule::ALL.len()) - 1);

    /// All rules but one.
    #[must_use]
    pub fn without(self, rule: Rule) -> Rules {
        Rules(self.0 & !(1 << rule as u32))
    }

    /// Whether a rule is applied.
    #[must_use]
    pub fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u32) != 0
    }
}
