//! Where requests and replies begin in a stream of bytes.

/// A mark in a chunk of bytes: something begins `at` this offset, and is known by this `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The offset in the chunk. What begins before the chunk but is only recognised in it begins at 0.
    pub at: usize,
    /// A request and its reply have the same id; no two requests of one connection do.
    pub id: u64,
}

/// How one connection is read. It sees every byte of both directions, in the order in which they pass.
pub trait Framing: Send + 'static {
    /// The requests that begin in these bytes of the client.
    fn requests(&mut self, bytes: &[u8]) -> Vec<Mark>;
    /// The replies that begin in these bytes of the server.
    fn replies(&mut self, bytes: &[u8]) -> Vec<Mark>;
}

/// For protocols in which a client that sends one request at a time waits for its reply (Redis, PostgreSQL): whatever a client sends
/// after the server has spoken is a new request, and what the server says first after that is its reply. Requests that are sent
/// together count as one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    turns: u64,
    asked: bool,
}

impl Framing for Turns {
    fn requests(&mut self, bytes: &[u8]) -> Vec<Mark> {
        if self.asked || bytes.is_empty() {
            return Vec::new();
        }
        self.asked = true;
        self.turns += 1;
        vec![Mark { at: 0, id: self.turns }]
    }

    fn replies(&mut self, bytes: &[u8]) -> Vec<Mark> {
        if !self.asked || bytes.is_empty() {
            return Vec::new();
        }
        self.asked = false;
        vec![Mark { at: 0, id: self.turns }]
    }
}

/// For HTTP/2 in clear (gRPC, so etcd): a request is a stream that the client opens, its reply the first headers of the server on that
/// stream. Pings, settings and window updates are neither.
#[derive(Clone, Debug)]
pub struct Http2 {
    client: Frames,
    server: Frames,
}

impl Default for Http2 {
    fn default() -> Self {
        Http2 { client: Frames::after(PREFACE), server: Frames::after(0) }
    }
}

impl Framing for Http2 {
    fn requests(&mut self, bytes: &[u8]) -> Vec<Mark> {
        self.client.headers(bytes)
    }

    fn replies(&mut self, bytes: &[u8]) -> Vec<Mark> {
        self.server.headers(bytes)
    }
}

/// The bytes that a client sends before its first frame: `PRI * HTTP/2.0 ..`.
const PREFACE: usize = 24;
/// A frame begins with its length (3 bytes), type (1), flags (1) and stream (4).
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;

/// Reads the frames of one direction, however they are cut into chunks.
#[derive(Clone, Debug)]
struct Frames {
    skip: usize,
    header: [u8; FRAME_HEADER],
    have: usize,
    /// The streams on which headers were seen: a second block of headers on a stream (the trailers) is no new request or reply.
    seen: Vec<u64>,
}

impl Frames {
    fn after(skip: usize) -> Self {
        Frames { skip, header: [0; FRAME_HEADER], have: 0, seen: Vec::new() }
    }

    fn headers(&mut self, bytes: &[u8]) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len() - at);
                self.skip -= skipped;
                at += skipped;
                continue;
            }
            let start = at.saturating_sub(self.have);
            let taken = (FRAME_HEADER - self.have).min(bytes.len() - at);
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[at..at + taken]);
            self.have += taken;
            at += taken;
            if self.have < FRAME_HEADER {
                continue;
            }
            self.have = 0;
            let [a, b, c, kind, _, s0, s1, s2, s3] = self.header;
            self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            let id = u64::from(u32::from_be_bytes([s0 & 0x7F, s1, s2, s3]));
            if kind == HEADERS && !self.seen.contains(&id) {
                self.seen.push(id);
                marks.push(Mark { at: start, id });
                // Trailers come within few other streams, so old ones can be forgotten.
                if self.seen.len() > 1_024 {
                    self.seen.drain(..512);
                }
            }
        }
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_alternate() {
        let mut turns = Turns::default();
        assert_eq!(turns.replies(b"hello"), [], "a greeting is no reply");
        assert_eq!(turns.requests(b"a"), [Mark { at: 0, id: 1 }]);
        assert_eq!(turns.requests(b"more of a"), []);
        assert_eq!(turns.replies(b"r"), [Mark { at: 0, id: 1 }]);
        assert_eq!(turns.replies(b"more of r"), []);
        assert_eq!(turns.requests(b"b"), [Mark { at: 0, id: 2 }]);
    }

    fn frame(kind: u8, stream: u8, payload: usize) -> Vec<u8> {
        let mut frame = vec![0, (payload >> 8) as u8, payload as u8, kind, 0, 0, 0, 0, stream];
        frame.resize(FRAME_HEADER + payload, 0xAA);
        frame
    }

    #[test]
    fn http2_counts_streams_however_they_are_cut() {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(frame(4, 0, 12));
        let first = sent.len();
        sent.extend(frame(HEADERS, 1, 300));
        sent.extend(frame(0, 1, 40));
        sent.extend(frame(6, 0, 8));
        let second = sent.len();
        sent.extend(frame(HEADERS, 3, 5));
        let whole = Http2::default().requests(&sent);
        assert_eq!(whole, [Mark { at: first, id: 1 }, Mark { at: second, id: 3 }]);
        for size in [1, 2, 7, 100] {
            let mut framing = Http2::default();
            let ids: Vec<u64> =
                sent.chunks(size).flat_map(|chunk| framing.requests(chunk)).map(|mark| mark.id).collect();
            assert_eq!(ids, [1, 3], "in chunks of {size}");
        }
        // The server's answer: settings, headers, data, trailers.
        let mut answer = frame(4, 0, 0);
        answer.extend([frame(HEADERS, 1, 10), frame(0, 1, 10), frame(HEADERS, 1, 10)].concat());
        assert_eq!(Http2::default().replies(&answer), [Mark { at: FRAME_HEADER, id: 1 }]);
    }
}
