//! What is kept of a command that was run once: its exit code and its output.

use coord_core::Bytes;
use serde::{Deserialize, Serialize};

/// How much of the beginning and of the end of a stream is kept, each.
const KEPT: usize = 60 * 1_024;
/// What the result of a command begins with. Anything else was put there by somebody who resolved the action, or by another program.
const MAGIC: &[u8] = b"coord once 1\n";

/// A stream as it comes: the beginning and the end are kept.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    left_out: u64,
}

impl Stream {
    /// Takes what came.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        let room = KEPT.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        bytes = &bytes[room..];
        self.tail.extend(bytes);
        let over = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    /// What is kept of it.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut bytes = self.head;
        if self.left_out > 0 {
            bytes.extend_from_slice(
                format!("\n[... {} bytes are left out here ...]\n", self.left_out).as_bytes(),
            );
        }
        bytes.extend(self.tail);
        bytes
    }
}

/// What is kept of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) exit: u8,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    exit: u8,
    stdout: usize,
    stderr: usize,
}

impl Kept {
    /// As a result: the magic, a line of JSON with exit code and lengths, and the two streams.
    pub(crate) fn encode(&self) -> Bytes {
        let header = Header { exit: self.exit, stdout: self.stdout.len(), stderr: self.stderr.len() };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(serde_json::to_vec(&header).expect("numbers are always JSON"));
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.stdout);
        bytes.extend_from_slice(&self.stderr);
        bytes.into()
    }

    /// Reads a result. One that no command left is what it would have printed.
    pub(crate) fn decode(result: &[u8]) -> Self {
        let read = || {
            let rest = result.strip_prefix(MAGIC)?;
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let header: Header = serde_json::from_slice(&rest[..end]).ok()?;
            let (stdout, stderr) = rest[end + 1..].split_at_checked(header.stdout)?;
            (stderr.len() == header.stderr).then(|| Kept {
                exit: header.exit,
                stdout: stdout.to_vec(),
                stderr: stderr.to_vec(),
            })
        };
        read().unwrap_or_else(|| Kept { exit: 0, stdout: result.to_vec(), stderr: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_back_and_fits() {
        let mut stream = Stream::default();
        for n in 0..300_000_u32 {
            stream.write(format!("{n}\n").as_bytes());
        }
        let stdout = stream.finish();
        assert!(stdout.starts_with(b"0\n1\n") && stdout.ends_with(b"\n299999\n"));
        let kept = Kept { exit: 3, stderr: stdout.clone(), stdout };
        let encoded = kept.encode();
        assert!(encoded.len() <= coord_core::effects::limits::RESULT_BYTES, "{}", encoded.len());
        assert_eq!(Kept::decode(&encoded), kept);
        let odd = Kept { exit: 0, stdout: b"\n{}\0\xff".to_vec(), stderr: Vec::new() };
        assert_eq!(Kept::decode(&odd.encode()), odd);
    }

    #[test]
    fn a_short_stream_is_kept_whole() {
        let mut stream = Stream::default();
        stream.write(&[7; KEPT]);
        stream.write(&[8; KEPT]);
        assert_eq!(stream.finish().len(), 2 * KEPT);
    }

    #[test]
    fn what_no_command_left_is_shown_as_it_is() {
        for raw in [
            &b"receipt 7"[..],
            b"",
            b"coord once 1\n",
            b"coord once 1\n{\"exit\":0,\"stdout\":9,\"stderr\":0}\nx",
        ] {
            assert_eq!(Kept::decode(raw), Kept { exit: 0, stdout: raw.to_vec(), stderr: Vec::new() });
        }
    }
}
