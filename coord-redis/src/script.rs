//! The scripts, one a primitive.

use std::sync::LazyLock;

/// A script: its text, and the hash under which a server that has seen the text keeps it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    pub(crate) hash: String,
}

impl Script {
    fn new(text: &'static str) -> Script {
        Script { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }
}

macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| Script::new(concat!(include_str!("../lua/common.lua"), include_str!($file))))
    };
}

pub(crate) static OPEN: LazyLock<Script> = script!("../lua/open.lua");
pub(crate) static SNAPSHOT: LazyLock<Script> = script!("../lua/snapshot.lua");
pub(crate) static TXN: LazyLock<Script> = script!("../lua/txn.lua");
pub(crate) static KEYS: LazyLock<Script> = script!("../lua/keys.lua");

#[cfg(test)]
mod tests {
    #[test]
    fn every_script_begins_with_the_header_that_refuses_replicas() {
        for script in [&super::OPEN, &super::SNAPSHOT, &super::TXN, &super::KEYS] {
            assert!(script.text.starts_with("#!lua\n"));
        }
    }
}
