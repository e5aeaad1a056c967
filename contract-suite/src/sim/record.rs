//! What lies under a key on the disk of the server.

use std::fmt;

use coord_core::{Bytes, Version};

const MAGIC: &[u8; 4] = b"SIM1";
const HEADER: usize = MAGIC.len() + 16;

/// What a server holds under a key: bytes with our header, or anything else that somebody put there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Bytes(Bytes),
    /// Another type of the store, as Redis has lists.
    List(Vec<Bytes>),
}

/// What is wrong with a record that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    Header,
    Version,
    Type,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Foreign::Header => "it does not begin with the header of a record",
            Foreign::Version => "its version is impossible or exhausted",
            Foreign::Type => "it is a list",
        })
    }
}

impl Record {
    pub(crate) fn ours(version: Version, value: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(HEADER + value.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&version.incarnation().to_be_bytes());
        bytes.extend_from_slice(&version.count().to_be_bytes());
        bytes.extend_from_slice(value);
        Record::Bytes(bytes.into())
    }

    pub(crate) fn read(&self) -> Result<(Version, &[u8]), Foreign> {
        let Record::Bytes(bytes) = self else { return Err(Foreign::Type) };
        let rest = bytes.strip_prefix(MAGIC).ok_or(Foreign::Header)?;
        let (incarnation, rest) = number(rest).ok_or(Foreign::Header)?;
        let (count, value) = number(rest).ok_or(Foreign::Header)?;
        Ok((Version::new(incarnation, count).ok_or(Foreign::Version)?, value))
    }

    /// The kinds of foreign content.
    pub(crate) fn foreign(variant: usize) -> Option<Record> {
        let bytes: &[u8] = match variant {
            0 => b"not ours",
            1 => b"",
            2 => b"SIM1\0\0\0",
            3 => b"SIM1\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0value",
            4 => return Some(Record::List(vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")])),
            _ => return None,
        };
        Some(Record::Bytes(Bytes::from_static(bytes)))
    }

    /// The whole record as bytes, for comparing.
    pub(crate) fn dump(&self) -> Vec<u8> {
        match self {
            Record::Bytes(bytes) => bytes.to_vec(),
            Record::List(items) => format!("list {items:?}").into_bytes(),
        }
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}
