//! The envelope of every record: a magic, a format version, a kind, and the payload.
//!
//! bincode is used here and nowhere else, behind the format version, so that it can be replaced without touching anything else.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key::{Key, limits};
use crate::snapshot::Entry;

/// The first bytes of every record of ours. The first one is no valid start of UTF-8 text, so text is never taken for a record.
const MAGIC: [u8; 4] = [0xC0, b'R', b'D', b'1'];
/// The format of the payloads below it: bincode 2, standard configuration, through serde.
const FORMAT: u8 = 1;
const HEADER: usize = MAGIC.len() + 2;

/// What a record is. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// The guard of a board's tasks and edges.
    Topology = 1,
    /// The head of a task.
    TaskHead = 2,
    /// The definition of a task.
    TaskDefinition = 3,
    /// An edge of the dependency graph: a marker without content.
    Edge = 4,
    /// The mark that all tasks of a board are in the ready index.
    Index = 5,
    /// An entry of the ready index: a marker without content.
    Marker = 6,
    /// An entry of a task that is ready, with its labels.
    Labels = 7,
    /// The definition of a task that is tried several times.
    RetriedDefinition = 8,
    /// The definition of a task of which not all dependencies must be done.
    RuledDefinition = 9,
    /// The head of a failed or cancelled task that stays so, for another one has begun because of that.
    PinnedHead = 10,
    // 11 to 13 are the board's.
    /// What has happened to a task.
    History = 14,
    /// How far a task is.
    Progress = 15,
    /// The guard of a side-effect store.
    Floor = 16,
    /// The head of an action.
    ActionHead = 17,
    /// A resource, and who holds it.
    Resource = 18,
    /// The result of a completed action.
    ActionResult = 19,
    /// A late result, kept as evidence.
    ActionEvidence = 20,
    /// An entry of the index of open actions: a marker without content.
    OpenAction = 21,
}

/// Why bytes are not the record that was expected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("the bytes are not a record of coord")]
    Foreign,
    #[error("the record has format {0}, which this version of coord does not know")]
    Format(u8),
    #[error("the record is of kind {found}, not {expected:?}")]
    Kind { expected: RecordKind, found: u8 },
    #[error("the record's payload is damaged")]
    Payload(#[source] bincode::error::DecodeError),
    #[error("the record has {0} bytes after its end")]
    Trailing(usize),
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<{ limits::VALUE_BYTES }>()
}

/// Encodes a record.
///
/// # Panics
/// Never for the record types of this crate: their maps, lengths and numbers are all of the kinds that the format has.
pub(crate) fn encode<T: Serialize>(kind: RecordKind, record: &T) -> Bytes {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[FORMAT, kind as u8]);
    let payload = bincode::serde::encode_to_vec(record, bincode::config::standard())
        .expect("a record of this crate can be encoded");
    bytes.extend_from_slice(&payload);
    bytes.into()
}

/// Decodes a record: the whole of `bytes`, of this kind, and nothing else.
pub(crate) fn decode<T: DeserializeOwned>(kind: RecordKind, bytes: &[u8]) -> Result<T, DecodeError> {
    let (Some(magic), Some(&[format, found])) =
        (bytes.first_chunk::<4>(), bytes.get(MAGIC.len()..HEADER).and_then(<[u8]>::first_chunk::<2>))
    else {
        return Err(DecodeError::Foreign);
    };
    if *magic != MAGIC {
        return Err(DecodeError::Foreign);
    }
    if format != FORMAT {
        return Err(DecodeError::Format(format));
    }
    if found != kind as u8 {
        return Err(DecodeError::Kind { expected: kind, found });
    }
    let payload = &bytes[HEADER..];
    let (record, read) =
        bincode::serde::decode_from_slice(payload, config()).map_err(DecodeError::Payload)?;
    if read != payload.len() {
        return Err(DecodeError::Trailing(payload.len() - read));
    }
    Ok(record)
}

/// A record that cannot be read, or contradicts itself.
#[derive(Debug)]
pub(crate) struct DamagedRecord {
    pub(crate) key: String,
    pub(crate) source: Box<dyn std::error::Error + Send + Sync + 'static>,
}

impl DamagedRecord {
    pub(crate) fn new(key: &Key, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        DamagedRecord { key: key.as_str().to_owned(), source: why.into() }
    }
}

/// Reads the record under a key, `None` if there is none.
pub(crate) fn read<T: DeserializeOwned>(
    kind: RecordKind,
    key: &Key,
    entry: &Entry,
) -> Result<Option<T>, DamagedRecord> {
    let decoded = entry.value().map(|value| decode(kind, value)).transpose();
    decoded.map_err(|error| DamagedRecord::new(key, error))
}

/// Counters move by one and have half of their range left when nobody will ever get there. A larger one is damage; believed, it would
/// overflow, and a fence start again.
pub(crate) fn check_counters<const N: usize>(key: &Key, counters: [u64; N]) -> Result<(), DamagedRecord> {
    if counters.into_iter().any(|counter| counter > u64::MAX / 2) {
        return Err(DamagedRecord::new(key, "a counter is larger than anybody can count"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_records_of_the_kind_are_read() {
        let record = (7_u64, "text".to_owned());
        let bytes = encode(RecordKind::Topology, &record);
        assert_eq!(decode::<(u64, String)>(RecordKind::Topology, &bytes).unwrap(), record);
        for cut in 0..bytes.len() {
            assert!(decode::<(u64, String)>(RecordKind::Topology, &bytes[..cut]).is_err(), "cut at {cut}");
        }
        let mut long = bytes.to_vec();
        long.push(0);
        assert!(matches!(
            decode::<(u64, String)>(RecordKind::Topology, &long),
            Err(DecodeError::Trailing(1))
        ));
        assert!(matches!(
            decode::<(u64, String)>(RecordKind::TaskHead, &bytes),
            Err(DecodeError::Kind { found: 1, .. })
        ));
        let mut other = bytes.to_vec();
        other[4] = 2;
        assert!(matches!(decode::<(u64, String)>(RecordKind::Topology, &other), Err(DecodeError::Format(2))));
        assert!(matches!(decode::<()>(RecordKind::Topology, b"{\"json\":1}"), Err(DecodeError::Foreign)));
    }

    #[test]
    fn a_length_that_lies_allocates_nothing() {
        // A vector that says it has 2^60 elements.
        let mut bytes = encode(RecordKind::Topology, &()).to_vec();
        bytes.extend_from_slice(&[253, 0, 0, 0, 0, 0, 0, 0, 16]);
        assert!(matches!(decode::<Vec<u64>>(RecordKind::Topology, &bytes), Err(DecodeError::Payload(_))));
    }
}
