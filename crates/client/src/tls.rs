//! TLS with given certificates, and the advice for certificates that are not trusted.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, InvalidMessage, RootCertStore, SignatureScheme,
};

/// The certificates in a PEM text; `None` if it has none, or if one of them is damaged.
pub(super) fn parse(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    let mut roots = RootCertStore::empty();
    let are_sound = certificates.iter().all(|certificate| roots.add(certificate.clone()).is_ok());
    (are_sound && !certificates.is_empty()).then_some(certificates)
}

/// TLS that trusts only these certificates; `None` if none of them can be used.
pub(super) fn config(certificates: &[CertificateDer<'static>]) -> Option<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.iter().cloned());
    let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().ok()?;
    let verifier = Verifier { chains, given: certificates.to_vec() };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Some(config)
}

/// Verifies chains as usual. It also accepts a server certificate that is itself, byte for byte,
/// one of the given certificates.
///
/// `openssl req -x509` makes CA certificates by default, and a server may not use a CA certificate
/// as its own (RFC 5280, 4.2.1.9). The exception is safe, because the user has given exactly this
/// certificate, so it needs no chain.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // Before this error the dates of the certificate were checked, but not its name.
            Err(error) if is_authority(&error) && self.given.iter().any(|given| given == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Whether a certificate was refused because it is a CA certificate.
fn is_authority(error: &Error) -> bool {
    // The type of this error is in a crate that is not a dependency here, so its text is compared.
    matches!(error, Error::InvalidCertificate(CertificateError::Other(other)) if other.0.to_string() == "CaUsedAsEndEntity")
}

/// The advice for this connection error, if it is a TLS error with a known fix.
pub(super) fn remedy(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    let mut error = Some(error);
    while let Some(current) = error {
        if let Some(tls) = current.downcast_ref::<Error>() {
            return advice(tls);
        }
        // `source` of an `io::Error` skips the error inside it, so this uses `get_ref`.
        let inner = current.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        error = match inner {
            Some(inner) => Some(inner),
            None => current.source(),
        };
    }
    None
}

/// The advice for this TLS error; `None` if there is none.
fn advice(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the port does not speak TLS; use http:// if the server has no TLS"
        }
        Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })
            if presented.is_empty() =>
        {
            "the certificate lacks the extension subjectAltName; with openssl req, add it with \
             -addext subjectAltName=DNS:NAME (or IP:ADDRESS)"
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is not trusted; pass the certificate of its CA, or its own, with --ca-file"
        }
        error if is_authority(error) => {
            "the server's certificate is a CA certificate; pass this certificate with --ca-file, or issue one \
             with basicConstraints=CA:FALSE"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_authority_is_told_with_what_to_do() {
        let text = advice(&Error::InvalidCertificate(CertificateError::UnknownIssuer));
        assert!(text.is_some_and(|text| text.contains("is not trusted") && text.contains("--ca-file")), "{text:?}");
        assert_eq!(advice(&Error::InvalidCertificate(CertificateError::Expired)), None);
    }
}
