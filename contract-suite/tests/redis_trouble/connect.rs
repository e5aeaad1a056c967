//! Servers that must not be connected to.

use std::path::PathBuf;
use std::time::Duration;

use contract_suite::ControlError;
use contract_suite::servers::free_port;
use contract_suite::servers::redis::{DURABLE, command};
use contract_suite::servers::trouble::{SECRET, step};
use coord_core::{Clock as _, ErrorKind, SystemClock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Server, open, refusal};

pub(super) async fn credentials(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::start(&programs, &[DURABLE, &["--requirepass", SECRET]].concat()).await;
    let port = server.port;
    for (url, word) in [
        (format!("redis://127.0.0.1:{port}"), "demands a password"),
        (format!("redis://:{SECRET}x@127.0.0.1:{port}"), "refuses the user or the password"),
        (format!("redis://nobody:{SECRET}@127.0.0.1:{port}"), "refuses the user or the password"),
    ] {
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains(word), "{error}");
    }
    let backend = open(&format!("redis://:{SECRET}@127.0.0.1:{port}"), "let-in").await?;
    assert_eq!(step(&backend, "k").await?, 1);
    assert!(!format!("{backend:?}").contains(SECRET));
    Ok(())
}

pub(super) async fn nobody_listens(_: Vec<PathBuf>) -> Result<(), ControlError> {
    let (one, other) = (free_port(0, 0)?, free_port(0, 0)?);
    for url in [
        format!("redis://:{SECRET}@127.0.0.1:{one}"),
        format!("redis+cluster://:{SECRET}@127.0.0.1:{one},127.0.0.1:{other}"),
        format!("redis+sentinel://:{SECRET}@127.0.0.1:{one},127.0.0.1:{other}/m"),
    ] {
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("cannot connect to 127.0.0.1"), "{error}");
    }
    let error = refusal("redis://host.invalid").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    Ok(())
}

/// A listener that accepts and says nothing.
pub(super) async fn no_answer(_: Vec<PathBuf>) -> Result<(), ControlError> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let address = silent.local_addr()?;
    for scheme in ["redis", "rediss", "redis+cluster"] {
        let clock = SystemClock::new();
        let error = refusal(&format!("{scheme}://:{SECRET}@{address}?connect_timeout=300ms")).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("does not answer within 300ms"), "{error}");
        assert!(clock.monotonic() < Duration::from_secs(2));
    }
    Ok(())
}

pub(super) async fn tls(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    // A server without TLS takes the greeting for a line that has not ended yet, and waits.
    let plain = Server::durable(&programs).await;
    let error = refusal(&format!("rediss://:{SECRET}@127.0.0.1:{}?connect_timeout=1s", plain.port)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("perhaps it speaks no TLS"), "{error}");

    let folder = plain.process.launch().folder.clone();
    let authority = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::new([])?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "the authority");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let signed = params.self_signed(&authority)?;
    let issuer = rcgen::Issuer::new(params, authority);
    let leaf = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&leaf, &issuer)?;
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map(|()| path.to_string_lossy().into_owned())
    };
    let (ca, cert, key) = (
        file("ca.pem", signed.pem())?,
        file("cert.pem", certificate.pem())?,
        file("key.pem", leaf.serialize_pem())?,
    );
    // It speaks TLS on one port, and in clear on another, by which it is known to be ready.
    let port = free_port(0, 0)?;
    let text = port.to_string();
    let settings = [
        DURABLE,
        &["--tls-port", &text, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca],
    ]
    .concat();
    let _server = Server::start(&programs, &settings).await;

    let error = refusal(&format!("redis://:{SECRET}@127.0.0.1:{port}")).await;
    assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable), "{error}");
    let error = refusal(&format!("rediss://:{SECRET}@127.0.0.1:{port}")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "an authority that is not trusted: {error}");
    let with_ca = format!("rediss://127.0.0.1:{port}/?tls_ca={ca}");
    let error = refusal(&with_ca).await;
    assert!(
        matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable),
        "no client certificate: {error}"
    );
    let backend = open(&format!("{with_ca}&tls_cert={cert}&tls_key={key}"), "tls").await?;
    assert_eq!(step(&backend, "k").await?, 1);
    let error = refusal(&format!("rediss://127.0.0.1:{port}/?tls_ca=/no/such.pem")).await;
    assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable), "{error}");
    Ok(())
}

/// Speaks as much Redis as it takes to say which version it is.
pub(super) async fn too_old(_: Vec<PathBuf>) -> Result<(), ControlError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 4_096];
            // The handshake, then the three questions.
            let hello = "%3\r\n+version\r\n+6.2.14\r\n+mode\r\n+standalone\r\n+role\r\n+master\r\n";
            for reply in [hello.to_owned(), format!("{hello}-ERR no\r\n-ERR no\r\n")] {
                if !matches!(stream.read(&mut asked).await, Ok(1..))
                    || stream.write_all(reply.as_bytes()).await.is_err()
                {
                    break;
                }
            }
        }
    });
    let error = refusal(&format!("redis://{address}")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("6.2.14") && error.message().contains("7.0 or later"), "{error}");
    server.abort();
    // Something else altogether, that answers in its own way.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 4_096];
            let _ = stream.read(&mut asked).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let error = refusal(&format!("redis://{address}")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("not Redis's protocol"), "{error}");
    server.abort();
    Ok(())
}

pub(super) async fn another_kind(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let plain = Server::durable(&programs).await;
    for (scheme, path) in [("redis+cluster", ""), ("redis+sentinel", "/m")] {
        let error = refusal(&format!("{scheme}://127.0.0.1:{}{path}", plain.port)).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    let node = Server::start(&programs, &[DURABLE, &["--cluster-enabled", "yes"]].concat()).await;
    let error = refusal(&node.url("")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("redis+cluster://"), "{error}");
    // A node that has no slots yet knows nobody who has them.
    let error = refusal(&format!("redis+cluster://127.0.0.1:{}", node.port)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    Ok(())
}

pub(super) async fn rights(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = Server::durable(&programs).await;
    let port = server.port;
    let needed = "+eval +evalsha +time +get +set +del +zcard +zadd +zrem +zrangebylex +exists +hlen +hstrlen +hmget +hexists +hset \
                  +hincrby";
    for (user, keys, rights) in [
        ("enough", "~{mine}:*", format!("{needed} +config|get")),
        ("blind", "~{mine}:*", needed.to_owned()),
        ("weak", "~{mine}:*", format!("{needed} -zadd -hset +config|get")),
        ("elsewhere", "~{other}:*", format!("{needed} +config|get")),
        ("mute", "~*", "+config|get".to_owned()),
    ] {
        command(port, &format!("ACL SETUSER {user} on >{SECRET} {keys} {rights}")).await?;
    }
    let url = |user: &str| format!("redis://{user}:{SECRET}@127.0.0.1:{port}");
    let backend = open(&url("enough"), "mine").await?;
    assert_eq!((step(&backend, "k").await?, step(&backend, "k").await?), (1, 2));
    for (user, words) in [
        ("blind", ["`maxmemory-policy`", "+config|get"]),
        ("weak", ["zadd", "hset"]),
        ("elsewhere", ["refuses the user", "NOPERM"]),
        ("mute", ["refuses the user", "NOPERM"]),
    ] {
        let error = open(&url(user), "mine").await.expect_err(user);
        assert_eq!(error.kind(), ErrorKind::Config, "{user}: {error}");
        assert!(words.iter().all(|word| error.message().contains(word)), "{user}: {error}");
        assert!(!format!("{error:?}").contains(SECRET));
    }
    // Who accepts the loss needs no right to read settings.
    let blind = open(&format!("{}?durability=none", url("blind")), "mine").await?;
    assert_eq!(step(&blind, "k").await?, 3);
    Ok(())
}

pub(super) async fn accepted_settings(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let memory = Server::start(&programs, &["--appendonly", "no"]).await;
    let lazy = Server::start(&programs, &["--appendonly", "yes", "--appendfsync", "everysec"]).await;
    for (server, parameter, fits) in [
        (&memory, "", false),
        (&memory, "?durability=everysec", false),
        (&memory, "?durability=none", true),
        (&lazy, "?durability=always", false),
        (&lazy, "?durability=everysec", true),
        (&lazy, "?durability=none", true),
    ] {
        match open(&server.url(parameter), "accepted").await {
            Ok(backend) => {
                assert!(fits, "{parameter}");
                step(&backend, "k").await?;
            }
            Err(error) => {
                assert!(!fits && error.kind() == ErrorKind::Config, "{parameter}: {error}");
                assert!(
                    error.message().contains("durability="),
                    "it says what the URL could accept: {error}"
                );
            }
        }
    }
    // A handle that reconnects looks again.
    let server = Server::durable(&programs).await;
    let backend = server.open("looks-again").await;
    step(&backend, "k").await?;
    command(server.port, "CONFIG SET appendfsync everysec").await?;
    command(server.port, "CLIENT KILL TYPE normal").await?;
    let error = loop {
        match step(&backend, "k").await {
            // The end of the connection may not have been noticed yet.
            Err(error) if error.kind() == ErrorKind::Config => break error,
            Err(error) => assert!(error.is_retryable() || error.is_indeterminate(), "{error}"),
            Ok(_) => panic!("a handle wrote to a server that no longer keeps what it acknowledges"),
        }
    };
    assert!(error.message().contains("appendfsync"), "{error}");
    command(server.port, "CONFIG SET appendfsync always").await?;
    step(&backend, "k").await?;
    Ok(())
}
