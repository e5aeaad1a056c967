//! TLS by rustls, with the cryptography of ring.

use std::path::Path;
use std::sync::Arc;

use coord_core::BackendError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::{PostgresConfig, SslMode};
use crate::error::config_error;

/// How this configuration encrypts, `None` if it never does.
pub(crate) fn connector(config: &PostgresConfig) -> Result<Option<MakeRustlsConnect>, BackendError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trust = match (config.ssl_mode, &config.ssl_root_cert) {
        (SslMode::Disable, _) => return Ok(None),
        (SslMode::Prefer, _) | (SslMode::Require, None) => Trust::Anyone,
        (SslMode::Require, Some(file)) => Trust::Authority(verifier(read_roots(file)?, &provider)?),
        (SslMode::VerifyFull, Some(file)) => Trust::Host(verifier(read_roots(file)?, &provider)?),
        (SslMode::VerifyFull, None) => Trust::Host(verifier(system_roots()?, &provider)?),
    };
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| config_error("this build has no usable version of TLS").with_source(error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { trust, provider }))
        .with_no_client_auth();
    Ok(Some(MakeRustlsConnect::new(client)))
}

fn read_roots(file: &Path) -> Result<RootCertStore, BackendError> {
    let failed = |why: &str| config_error(format!("`sslrootcert`: {} {why}", file.display()));
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed("cannot be read").with_source(error))?;
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(failed("contains no certificate"));
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, BackendError> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(config_error(
            "the system trusts no authority; name a file of certificates by `sslrootcert`",
        ));
    }
    Ok(roots)
}

fn verifier(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, BackendError> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| config_error("the certificates to trust cannot be used").with_source(error))
}

/// Whose certificate is accepted.
#[derive(Debug)]
enum Trust {
    /// Anyone's: the connection is encrypted, but not against an attacker who can answer in the server's place.
    Anyone,
    /// One of an authority that is trusted, for whatever host.
    Authority(Arc<WebPkiServerVerifier>),
    /// One of an authority that is trusted, for this host.
    Host(Arc<WebPkiServerVerifier>),
}

#[derive(Debug)]
struct Verifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.trust {
            Trust::Anyone => Ok(ServerCertVerified::assertion()),
            Trust::Host(verifier) => verifier.verify_server_cert(certificate, intermediates, host, ocsp, now),
            Trust::Authority(verifier) => {
                match verifier.verify_server_cert(certificate, intermediates, host, ocsp, now) {
                    // The name is looked at last, so all else is right.
                    Err(rustls::Error::InvalidCertificate(
                        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                    )) => Ok(ServerCertVerified::assertion()),
                    other => other,
                }
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
