//! What a handle says that cannot be opened.

use std::path::PathBuf;

use contract_suite::ControlError;
use contract_suite::servers::trouble::{SECRET, step};
use coord_core::ErrorKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{open, refusal, server, url};

pub(super) async fn credentials(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let port = server.port();
    server
        .execute("CREATE ROLE worker LOGIN PASSWORD 'right'; GRANT CREATE ON DATABASE postgres TO worker")
        .await?;
    let rules = "host all postgres 127.0.0.1/32 trust\nhost postgres worker 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(server.process().launch().folder.join("data/pg_hba.conf"), rules)?;
    server.execute("SELECT pg_reload_conf()").await?;
    // The new rules count once the server has read them.
    contract_suite::servers::wait_until(std::time::Duration::from_secs(10), || async {
        match server
            .value("SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'scram-sha-256'")
            .await?
            .as_str()
        {
            "1" => Ok(()),
            other => Err(format!("{other} rules").into()),
        }
    })
    .await?;
    let login = |user: &str, database: &str| format!("postgres://{user}@127.0.0.1:{port}/{database}");
    let backend = open(&login("worker:right", "postgres")).await?;
    assert_eq!(step(&backend, "k").await?, 1);
    for (what, url) in [
        ("a wrong password", login(&format!("worker:{SECRET}"), "postgres")),
        ("no password", login("worker", "postgres")),
        ("an unknown user", login(&format!("nobody:{SECRET}"), "postgres")),
        ("a database that the rules forbid", login(&format!("worker:{SECRET}"), "template1")),
        ("an unknown database", login(&format!("postgres:{SECRET}"), "nowhere")),
    ] {
        let error = refusal(&url, 5).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
        assert!(error.message().contains(&port.to_string()), "{what}: {error}");
    }
    Ok(())
}

pub(super) async fn nobody_listens() -> Result<(), ControlError> {
    let port = contract_suite::servers::free_port(0, 0)?;
    let error = refusal(&format!("postgres://me:{SECRET}@127.0.0.1:{port}/db"), 5).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains(&port.to_string()), "{error}");
    let error = refusal(&format!("postgres://me:{SECRET}@no-such-host.invalid/db?timeout=2s"), 30).await;
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Config), "{error}");
    let error = refusal(&format!("postgres://me:{SECRET}@%2Fno%2Fsuch%2Ffolder/db"), 5).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    Ok(())
}

/// Accepts and says nothing, as a server behind a wrong rule of a firewall or one that is stopped.
pub(super) async fn no_answer() -> Result<(), ControlError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url =
        format!("postgres://me:{SECRET}@{}/db?connect_timeout=300ms&timeout=1s", listener.local_addr()?);
    for sslmode in ["prefer", "disable", "require"] {
        let error = refusal(&format!("{url}&sslmode={sslmode}"), 4).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{sslmode}: {error}");
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
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(greeting.as_bytes()).await;
            }
        });
        for sslmode in ["prefer", "disable"] {
            let url = format!(
                "postgres://me:{SECRET}@{address}/db?sslmode={sslmode}&connect_timeout=1s&timeout=2s"
            );
            let error = refusal(&url, 5).await;
            assert!(
                matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable),
                "{greeting:?}: {error}"
            );
        }
        other.abort();
    }
    Ok(())
}

pub(super) async fn tls(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    let port = server.port();
    let error = refusal(&url(&server, "sslmode=require"), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "a server without TLS: {error}");

    let folder = server.process().launch().folder.clone();
    let authority = || -> Result<_, ControlError> {
        let keys = rcgen::KeyPair::generate()?;
        let mut params = rcgen::CertificateParams::new([])?;
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let signed = params.self_signed(&keys)?.pem();
        Ok((signed, rcgen::Issuer::new(params, keys)))
    };
    let ((ours, issuer), (others, _)) = (authority()?, authority()?);
    let leaf = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(["localhost".to_owned()])?.signed_by(&leaf, &issuer)?;
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map(|()| path.to_string_lossy().into_owned())
    };
    let (ours, others) = (file("ours.pem", ours)?, file("others.pem", others)?);
    file("data/server.crt", certificate.pem())?;
    file("data/server.key", leaf.serialize_pem())?;
    // A key that others than the owner of the data may read is refused.
    let owner = std::fs::metadata(folder.join("data"))?;
    let key = folder.join("data/server.key");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    std::os::unix::fs::chown(
        &key,
        Some(std::os::unix::fs::MetadataExt::uid(&owner)),
        Some(std::os::unix::fs::MetadataExt::gid(&owner)),
    )?;
    std::fs::write(
        folder.join("data/pg_hba.conf"),
        "hostssl all all 127.0.0.1/32 trust\nhost all postgres 127.0.0.1/32 reject\n",
    )?;
    server.execute("ALTER SYSTEM SET ssl = on").await?;
    server.execute("SELECT pg_reload_conf()").await?;
    let at = |host: &str, parameters: &str| {
        format!("postgres://postgres:{SECRET}@{host}:{port}/postgres?{parameters}")
    };
    // Until it has read its new settings, it refuses TLS.
    contract_suite::servers::wait_until(std::time::Duration::from_secs(20), || async {
        Ok(open(&at("localhost", "sslmode=require")).await.map(drop)?)
    })
    .await?;
    for right in [
        at("127.0.0.1", "sslmode=prefer"),
        at("127.0.0.1", "sslmode=require"),
        at("127.0.0.1", &format!("sslmode=require&sslrootcert={ours}")),
        at("localhost", &format!("sslmode=verify-full&sslrootcert={ours}")),
    ] {
        step(&open(&right).await?, "k").await?;
    }
    for (what, wrong) in [
        ("no TLS where it is demanded", at("127.0.0.1", "sslmode=disable")),
        ("another name", at("127.0.0.1", &format!("sslmode=verify-full&sslrootcert={ours}"))),
        ("another authority", at("localhost", &format!("sslmode=verify-full&sslrootcert={others}"))),
        (
            "another authority, whatever the name",
            at("localhost", &format!("sslmode=require&sslrootcert={others}")),
        ),
        ("an authority that the system does not know", at("localhost", "sslmode=verify-full")),
        ("no file", at("localhost", "sslmode=verify-full&sslrootcert=/no/such.pem")),
        ("a file without certificates", at("localhost", "sslmode=verify-full&sslrootcert=/dev/null")),
    ] {
        let error = refusal(&wrong, 5).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{what}: {error}");
    }
    Ok(())
}

/// The server says that it is older than it is: a schema before `pg_catalog` answers for it.
pub(super) async fn too_old(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    let server = server(programs, &[]).await?;
    server
        .execute(
            "CREATE SCHEMA old;
             CREATE FUNCTION old.current_setting(name text) RETURNS text LANGUAGE sql AS
                 $$ SELECT CASE name WHEN 'server_version_num' THEN '120017' ELSE pg_catalog.current_setting(name) END $$;
             ALTER ROLE postgres IN DATABASE postgres SET search_path = old, pg_catalog",
        )
        .await?;
    let error = refusal(&url(&server, ""), 5).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("12.17") && error.message().contains("13 or newer"), "{error}");
    Ok(())
}

pub(super) async fn settings(programs: Vec<PathBuf>) -> Result<(), ControlError> {
    for setting in ["fsync", "full_page_writes"] {
        let server = server(programs.clone(), &[&format!("{setting}=off")]).await?;
        for parameters in ["", "durability=full", "durability=local"] {
            let error = refusal(&url(&server, parameters), 5).await;
            assert_eq!(error.kind(), ErrorKind::Config, "{setting} {parameters}: {error}");
            assert!(
                error.message().contains(setting) && error.message().contains("durability=none"),
                "{error}"
            );
        }
        assert_eq!(step(&open(&url(&server, "durability=none")).await?, "k").await?, 1);
    }
    // What only would make the function fail is set right for each session.
    let server = server(programs, &["default_transaction_isolation=serializable"]).await?;
    assert_eq!(step(&open(&url(&server, "")).await?, "k").await?, 1);
    Ok(())
}
