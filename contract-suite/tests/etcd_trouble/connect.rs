//! Servers that must not be connected to.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use contract_suite::ControlError;
use contract_suite::servers::free_port;
use contract_suite::servers::trouble::{SECRET, elapsed, step};
use coord_core::ErrorKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{open, refusal, server};

pub(super) async fn nobody_listens() -> Result<(), ControlError> {
    let (one, other) = (free_port(0, 0)?, free_port(0, 0)?);
    for scheme in ["etcd", "etcds"] {
        let url = format!("{scheme}://me:{SECRET}@127.0.0.1:{one},127.0.0.1:{other}");
        let error = refusal(&url, 5).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        for port in [one, other] {
            assert!(error.message().contains(&format!("cannot connect to 127.0.0.1:{port}")), "{error}");
        }
    }
    let error = refusal(&format!("etcd://me:{SECRET}@host.invalid:2379/?request_timeout=3s"), 5).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    Ok(())
}

/// Accepts and says nothing, as a server behind a wrong rule of a firewall or one that is stopped.
pub(super) async fn no_answer() -> Result<(), ControlError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    for scheme in ["etcd", "etcds"] {
        for user in [String::new(), format!("me:{SECRET}@")] {
            let url = format!("{scheme}://{user}{address}/?request_timeout=700ms");
            let (error, took) = elapsed(refusal(&url, 5)).await;
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.message().contains(&format!("no answer from {address} within 700ms")), "{error}");
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
    }
    Ok(())
}

pub(super) async fn another_kind() -> Result<(), ControlError> {
    for greeting in
        ["HTTP/1.1 400 Bad Request\r\n\r\n", "-ERR unknown command\r\n", "SSH-2.0-OpenSSH_9.2\r\n"]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let other = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut asked = [0; 4_096];
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(greeting.as_bytes()).await;
            }
        });
        let error = refusal(&format!("etcd://me:{SECRET}@{address}/?request_timeout=2s"), 4).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{greeting:?}: {error}");
        assert!(error.message().contains("is no etcd"), "{greeting:?}: {error}");
        let error = refusal(&format!("etcds://me:{SECRET}@{address}/?request_timeout=2s"), 4).await;
        assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable), "{greeting:?}: {error}");
        assert!(error.message().contains("TLS"), "{greeting:?}: {error}");
        other.abort();
    }
    Ok(())
}

/// Speaks as much gRPC as it takes to say which version it is, or that it knows nothing of all this.
async fn says_version(version: &'static str, grpc_status: &'static str) -> Result<String, ControlError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await?;
                while let Some(request) = connection.accept().await {
                    let (_, mut respond) = request?;
                    let head = http::Response::builder().header("content-type", "application/grpc");
                    let mut body = respond.send_response(head.body(()).unwrap(), false)?;
                    // A message that is not compressed, its length, and in it the second field.
                    let length = u8::try_from(version.len()).unwrap();
                    let message = [&[0, 0, 0, 0, length + 2, 0x12, length][..], version.as_bytes()].concat();
                    body.send_data(Bytes::from(message), false)?;
                    let end = http::HeaderMap::from_iter([(
                        http::HeaderName::from_static("grpc-status"),
                        http::HeaderValue::from_static(grpc_status),
                    )]);
                    body.send_trailers(end)?;
                }
                Ok::<_, h2::Error>(())
            });
        }
    });
    Ok(address)
}

pub(super) async fn too_old() -> Result<(), ControlError> {
    for (version, status, words) in [
        ("3.3.27", "0", ["3.3.27", "3.4 or later"]),
        ("2.3.8", "0", ["2.3.8", "3.4 or later"]),
        ("unknown", "0", ["unknown", "version"]),
        ("", "12", ["is no etcd", "3.4 or later"]),
    ] {
        let address = says_version(version, status).await?;
        let error = refusal(&format!("etcd://{address}"), 5).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(words.iter().all(|word| error.message().contains(word)), "{error}");
    }
    Ok(())
}

pub(super) async fn tls(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let plain = server(&programs, &[]).await?;
    let error =
        refusal(&format!("etcds://me:{SECRET}@127.0.0.1:{}/?request_timeout=2s", plain.port()), 5).await;
    assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable), "{error}");
    assert!(error.message().contains("TLS"), "a server without TLS: {error}");

    let folder = tempfile::tempdir()?;
    let authority = |name: &str| -> Result<_, ControlError> {
        let keys = rcgen::KeyPair::generate()?;
        let mut params = rcgen::CertificateParams::new([])?;
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let signed = params.self_signed(&keys)?.pem();
        Ok((signed, rcgen::Issuer::new(params, keys)))
    };
    let ((ours, issuer), (others, _)) = (authority("ours")?, authority("others")?);
    let leaf = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&leaf, &issuer)?;
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).map(|()| path.to_string_lossy().into_owned())
    };
    let (ours, others) = (file("ours.pem", ours)?, file("others.pem", others)?);
    let (cert, key) = (file("cert.pem", certificate.pem())?, file("key.pem", leaf.serialize_pem())?);
    let secure = "https://127.0.0.1:{port}";
    let settings = [
        ["--cert-file", &cert],
        ["--key-file", &key],
        ["--listen-client-urls", secure],
        ["--advertise-client-urls", secure],
    ]
    .concat();
    let encrypted = server(&programs, &settings).await?;
    let error =
        refusal(&format!("etcd://me:{SECRET}@127.0.0.1:{}/?request_timeout=2s", encrypted.port()), 5).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("perhaps it speaks TLS"), "no TLS where it is demanded: {error}");
    let at = |host: &str, port: u16, parameters: &str| {
        format!("etcds://{host}:{port}/?request_timeout=2s{parameters}")
    };
    let right = at("127.0.0.1", encrypted.port(), &format!("&ca={ours}"));
    assert_eq!(step(&open(&right).await?, "k").await?, 1);
    for (what, parameters) in [
        ("another authority", format!("&ca={others}")),
        ("an authority that the system does not know", String::new()),
        ("no file", "&ca=/no/such.pem".to_owned()),
    ] {
        let error = refusal(&at("127.0.0.1", encrypted.port(), &parameters), 5).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
    }
    let error = refusal(&at("localhost", encrypted.port(), &format!("&ca={ours}")), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "another name: {error}");
    assert!(error.message().contains("TLS handshake with localhost"), "{error}");

    let settings = [&settings[..], &["--client-cert-auth", "--trusted-ca-file", &ours]].concat();
    let mutual = server(&programs, &settings).await?;
    let without = at("127.0.0.1", mutual.port(), &format!("&ca={ours}"));
    let error = refusal(&without, 5).await;
    assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable), "no certificate: {error}");
    assert!(error.message().contains(&mutual.port().to_string()), "{error}");
    assert_eq!(step(&open(&format!("{without}&cert={cert}&key={key}")).await?, "k").await?, 1);
    // A handle stays usable over a restart.
    let backend = open(&right).await?;
    encrypted.process().kill().await?;
    encrypted.process().restart().await?;
    assert_eq!(step(&backend, "k").await?, 2);
    Ok(())
}
