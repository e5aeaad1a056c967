//! A small HTTP service that charges cards, and its client. It knows nothing of duplicates; it only refuses fences smaller than the largest that it has
//! seen for an order.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coord_core::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How the service treats a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mood {
    /// Charges and answers.
    Prompt,
    /// Charges, and answers after a while.
    Slow,
    /// Charges once, and answers twice.
    Twice,
    /// Charges and never answers.
    ChargesSilently,
    /// Never answers, and charges when nobody expects it any more.
    ChargesLate,
}

/// What the service says.
#[derive(Debug)]
pub(crate) enum Reply {
    /// With the receipt.
    Charged(String),
    /// Nothing was charged.
    Refused(String),
}

#[derive(Default)]
struct Books {
    moods: VecDeque<Mood>,
    /// By order: the largest fence, and the amounts that were charged.
    orders: BTreeMap<String, (u64, Vec<u32>)>,
}

/// The service and its client: clones are the same one.
#[derive(Clone)]
pub(crate) struct Service {
    address: SocketAddr,
    books: Arc<Mutex<Books>>,
    late: watch::Sender<bool>,
    refused: watch::Sender<usize>,
}

impl Service {
    /// Starts it on a free port of this machine.
    pub(crate) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let service = Service {
            address: listener.local_addr()?,
            books: Arc::default(),
            late: watch::Sender::new(false),
            refused: watch::Sender::new(0),
        };
        let serving = service.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move { serving.serve(stream).await });
            }
        });
        Ok(service)
    }

    /// How it treats the next charge.
    pub(crate) fn next(&self, mood: Mood) {
        self.books().moods.push_back(mood);
    }

    /// Carries out what it has kept back.
    pub(crate) fn carry_out_late(&self) {
        self.late.send_replace(true);
    }

    /// Waits until so many charges were refused for their fence.
    pub(crate) async fn until_refused(&self, count: usize) {
        // The sender is in `self`.
        let _ = self.refused.subscribe().wait_for(|refused| *refused >= count).await;
    }

    /// How often each order was charged.
    pub(crate) fn ledger(&self) -> BTreeMap<String, usize> {
        let books = self.books();
        books.orders.iter().map(|(order, (_, charges))| (order.clone(), charges.len())).collect()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let request = read(&mut stream).await?;
        let words: Vec<&str> = request.lines().next().unwrap_or_default().split(' ').collect();
        let fence = header(&request, "fence").and_then(|fence| fence.parse().ok()).unwrap_or(0);
        let answer = match words[..] {
            ["GET", order, ..] => {
                let books = self.books();
                match books.orders.get(order).filter(|(_, charges)| !charges.is_empty()) {
                    Some(_) => respond(200, &receipt(order)),
                    None => respond(404, "no such charge"),
                }
            }
            ["PUT", order, ..] => {
                let mut books = self.books();
                let (seen, _) = books.orders.entry(order.to_owned()).or_default();
                *seen = fence.max(*seen);
                respond(200, "sealed")
            }
            ["POST", order, ..] => {
                let cents = header(&request, "cents").and_then(|cents| cents.parse().ok()).unwrap_or(0);
                let mood = self.books().moods.pop_front().unwrap_or(Mood::Prompt);
                match self.treat(mood, order, fence, cents).await {
                    Some(answer) => answer,
                    None => return Ok(()),
                }
            }
            _ => respond(400, "what?"),
        };
        stream.write_all(answer.as_bytes()).await
    }

    async fn treat(&self, mood: Mood, order: &str, fence: u64, cents: u32) -> Option<String> {
        if let Mood::ChargesLate = mood {
            let _ = self.late.subscribe().wait_for(|now| *now).await;
        }
        let answer = {
            let mut books = self.books();
            let (seen, charges) = books.orders.entry(order.to_owned()).or_default();
            if fence < *seen {
                self.refused.send_modify(|refused| *refused += 1);
                respond(409, "the fence is too small")
            } else {
                *seen = fence;
                charges.push(cents);
                respond(200, &receipt(order))
            }
        };
        match mood {
            Mood::Prompt => Some(answer),
            Mood::Twice => Some(format!("{answer}{answer}")),
            Mood::Slow => {
                SystemClock::new().sleep(Duration::from_millis(200)).await;
                Some(answer)
            }
            Mood::ChargesSilently | Mood::ChargesLate => None,
        }
    }

    /// Asks it to charge.
    pub(crate) async fn charge(&self, order: &str, fence: u64, cents: u32) -> io::Result<Reply> {
        let (status, body) = self.ask(&format!("POST {order}"), fence, cents).await?;
        Ok(if status == 200 { Reply::Charged(body) } else { Reply::Refused(body) })
    }

    /// Presents a fence.
    pub(crate) async fn seal(&self, order: &str, fence: u64) -> io::Result<()> {
        self.ask(&format!("PUT {order}"), fence, 0).await.map(drop)
    }

    /// Looks for a charge.
    pub(crate) async fn find(&self, order: &str) -> io::Result<Option<String>> {
        let (status, body) = self.ask(&format!("GET {order}"), 0, 0).await?;
        Ok((status == 200).then_some(body))
    }

    async fn ask(&self, what: &str, fence: u64, cents: u32) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(self.address).await?;
        let request = format!(
            "{what} HTTP/1.1\r\nhost: localhost\r\nfence: {fence}\r\ncents: {cents}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let broken = || io::Error::new(io::ErrorKind::UnexpectedEof, "the service did not answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
        let length: usize =
            header(&answer, "content-length").and_then(|length| length.parse().ok()).ok_or_else(broken)?;
        let (_, rest) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
        // Whatever comes after the first answer is not for us.
        let body = rest.get(..length).ok_or_else(broken)?;
        Ok((status, body.to_owned()))
    }
}

fn receipt(order: &str) -> String {
    format!("receipt of {order}")
}

fn respond(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn header<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    message.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Reads the head of a request; these requests have no body.
async fn read(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut part = [0; 1_024];
    while !head.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut part).await?;
        if read == 0 || head.len() > 8_192 {
            break;
        }
        head.extend_from_slice(&part[..read]);
    }
    String::from_utf8(head).map_err(io::Error::other)
}
