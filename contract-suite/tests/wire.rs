//! The forwarder, before a tiny server that answers each line with `echo <line>` and keeps what it was told.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use contract_suite::wire::{Forwarder, Turns};
use contract_suite::{Cut, CutPoint};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

struct Echo {
    address: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Echo {
    async fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let echo = Echo { address: listener.local_addr().unwrap().to_string(), heard: Arc::default() };
        let heard = echo.heard.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let heard = heard.clone();
                tokio::spawn(async move {
                    let (read, mut write) = stream.into_split();
                    let mut lines = BufReader::new(read).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        heard.lock().unwrap().push(line.clone());
                        if write.write_all(format!("echo {line}\n").as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        echo
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(wire: &Forwarder) -> Client {
        Client(BufReader::new(TcpStream::connect(wire.address()).await.unwrap()))
    }

    /// Sends a line and waits for the answer; `None` if the connection is closed instead.
    async fn ask(&mut self, line: &str) -> Option<String> {
        let sent = self.0.get_mut().write_all(format!("{line}\n").as_bytes()).await;
        if sent.is_err() {
            return None;
        }
        let mut answer = String::new();
        match self.0.read_line(&mut answer).await {
            Ok(0) => None,
            Ok(_) => Some(answer.trim_end().to_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn wire(echo: &Echo) -> Forwarder {
    Forwarder::start(echo.address.clone(), || Box::new(Turns::default())).await.unwrap()
}

async fn until(condition: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(10), async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect("the condition never came true");
}

#[tokio::test]
async fn everything_is_forwarded() {
    let echo = Echo::start().await;
    let wire = wire(&echo).await;
    let (mut a, mut b) = (Client::connect(&wire).await, Client::connect(&wire).await);
    for n in 0..10 {
        assert_eq!(a.ask(&format!("a{n}")).await.unwrap(), format!("echo a{n}"));
        assert_eq!(b.ask(&format!("b{n}")).await.unwrap(), format!("echo b{n}"));
    }
    let long = "x".repeat(1_000_000);
    assert_eq!(a.ask(&long).await.unwrap().len(), 5 + long.len());
    assert_eq!(wire.requests(), 21);
    assert_eq!(wire.open(), 2);
    drop((a, b));
    until(|| wire.open() == 0).await;
}

#[tokio::test]
async fn a_cut_before_the_request_keeps_it_from_the_server() {
    let echo = Echo::start().await;
    let wire = wire(&echo).await;
    let (mut a, mut b) = (Client::connect(&wire).await, Client::connect(&wire).await);
    wire.cut(Cut { request: 3, point: CutPoint::BeforeSend });
    assert!(a.ask("1").await.is_some());
    assert!(b.ask("2").await.is_some());
    assert_eq!(a.ask("3").await, None);
    // The other connection is whole, and so is a new one.
    assert!(b.ask("4").await.is_some());
    assert!(Client::connect(&wire).await.ask("5").await.is_some());
    assert_eq!(echo.heard(), ["1", "2", "4", "5"]);
    assert_eq!(wire.heal(), 0);
}

#[tokio::test]
async fn a_cut_before_the_reply_comes_after_the_server_has_acted() {
    let echo = Echo::start().await;
    let wire = wire(&echo).await;
    let mut client = Client::connect(&wire).await;
    wire.cut(Cut { request: 2, point: CutPoint::BeforeReply });
    assert!(client.ask("1").await.is_some());
    assert_eq!(client.ask("2").await, None);
    assert_eq!(echo.heard(), ["1", "2"]);
    assert!(Client::connect(&wire).await.ask("3").await.is_some());
}

#[tokio::test]
async fn a_delayed_reply_comes_late_and_whole() {
    let echo = Echo::start().await;
    let wire = wire(&echo).await;
    let mut client = Client::connect(&wire).await;
    wire.cut(Cut { request: 1, point: CutPoint::DelayReply(Duration::from_millis(100)) });
    // Nothing comes for as long as the reply is held back: the measured time is a lower bound.
    let early = tokio::time::timeout(Duration::from_millis(50), client.ask("1")).await;
    assert!(early.is_err());
    assert_eq!(echo.heard(), ["1"]);
    let mut answer = String::new();
    client.0.read_line(&mut answer).await.unwrap();
    assert_eq!(answer, "echo 1\n");
    assert_eq!(client.ask("2").await.unwrap(), "echo 2");
}

#[tokio::test]
async fn a_healed_wire_cuts_nothing() {
    let echo = Echo::start().await;
    let wire = wire(&echo).await;
    let mut client = Client::connect(&wire).await;
    wire.cut(Cut { request: 2, point: CutPoint::BeforeSend });
    wire.cut(Cut { request: 3, point: CutPoint::BeforeReply });
    assert!(client.ask("1").await.is_some());
    assert_eq!(wire.heal(), 2);
    for line in ["2", "3", "4"] {
        assert!(client.ask(line).await.is_some());
    }
}

#[tokio::test]
async fn all_connections_can_be_cut_and_new_ones_refused() {
    let echo = Echo::start().await;
    let wire = wire(&echo).await;
    let (mut a, mut b) = (Client::connect(&wire).await, Client::connect(&wire).await);
    assert!(a.ask("1").await.is_some() && b.ask("2").await.is_some());
    wire.refuse(true);
    wire.cut_all();
    assert_eq!((a.ask("3").await, b.ask("4").await), (None, None));
    assert_eq!(Client::connect(&wire).await.ask("5").await, None);
    wire.refuse(false);
    assert!(Client::connect(&wire).await.ask("6").await.is_some());
    assert_eq!(echo.heard(), ["1", "2", "6"]);
    let mut last = Client::connect(&wire).await;
    assert!(last.ask("7").await.is_some());
    drop(wire);
    assert_eq!(last.ask("8").await, None);
}

#[tokio::test]
async fn a_client_that_sends_no_more_still_gets_its_replies() {
    let echo = Echo::start().await;
    let wire = wire(&echo).await;
    let mut client = Client::connect(&wire).await;
    client.0.get_mut().write_all(b"1\n").await.unwrap();
    client.0.get_mut().shutdown().await.unwrap();
    let mut answer = String::new();
    client.0.read_line(&mut answer).await.unwrap();
    assert_eq!(answer, "echo 1\n");
}

#[tokio::test]
async fn without_a_server_connections_are_closed() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let wire = Forwarder::start(address, || Box::new(Turns::default())).await.unwrap();
    assert_eq!(Client::connect(&wire).await.ask("1").await, None);
}
