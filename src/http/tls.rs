//! TLS on the server's port.
//!
//! A connection uses the certificate that was current when it began. A handshake has its own time
//! limit and runs in the task of its connection. The response to plaintext on the TLS port is an
//! HTTP error that says that the port requires TLS.
//!
//! The server supports TLS 1.2 and 1.3, with HTTP/1.1 only. It does not request client
//! certificates.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::conn_state::PacedStream;

/// Time limit for the handshake, so that a stalled client does not hold a seat for longer. A
/// handshake takes two round trips, some KiB and one signature. The connect timeout of the client
/// in this repository is the same.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Length of the read buffer between the socket and rustls. rustls reads 4 KiB at a time, and each
/// read of a body may need a permit. Without the buffer, a body would need sixteen times as many
/// permits as without TLS.
const READ_LEN: usize = 64 << 10;

/// First byte of a TLS connection: the record type "handshake" (RFC 8446, section 5.1). No HTTP
/// method contains it.
const HANDSHAKE_RECORD: u8 = 0x16;

/// A certificate chain and its private key.
#[derive(Clone, Debug)]
pub struct Identity(Arc<ServerConfig>);

/// Why a certificate and a key are invalid.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The text of the certificates is not valid PEM.
    #[error("the certificates are not valid PEM")]
    Certificates(#[source] PemError),
    /// The text has no certificate.
    #[error("no PEM certificate found")]
    NoCertificate,
    /// The text has no valid private key.
    #[error("no PEM private key found")]
    Key(#[source] PemError),
    /// The certificate and the key do not match, or their kind is not supported.
    #[error("the certificate and the key do not match")]
    Pair(#[source] rustls::Error),
}

impl Identity {
    /// Parses a certificate chain and the key, both in PEM. The first certificate is that of the
    /// server, the others are those of the authorities that signed it.
    ///
    /// # Errors
    ///
    /// One of them is malformed, or the key does not match the certificate. Dates and names are not
    /// checked.
    pub fn parse(certificates: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        let chain = chain.map_err(IdentityError::Certificates)?;
        if chain.is_empty() {
            return Err(IdentityError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(IdentityError::Key)?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(IdentityError::Pair)?;
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.map_err(IdentityError::Pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

/// The identity for new connections, which can be replaced. Clones share it.
#[derive(Clone, Debug)]
pub struct Tls {
    identity: Arc<RwLock<Identity>>,
}

impl Tls {
    /// Begins with this identity. [`Tls::replace`] sets another one.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self { identity: Arc::new(RwLock::new(identity)) }
    }

    /// Sets the identity of new connections. Existing connections keep theirs.
    pub fn replace(&self, identity: Identity) {
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.identity.read().unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// A byte stream in both directions.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Duplex for S {}

/// A connection that is ready for its first request.
pub(super) struct Opened {
    pub(super) stream: Pin<Box<dyn Duplex>>,
    /// Whether the client sent plain HTTP to the TLS port, and gets a response that says so.
    pub(super) is_plaintext: bool,
}

/// Prepares a connection for its first request: does the handshake if the server has TLS.
///
/// # Errors
///
/// The handshake fails or takes too long, or the client disconnects before its first byte.
pub(super) async fn open(stream: PacedStream<TcpStream>, tls: Option<&Tls>) -> io::Result<Opened> {
    let Some(tls) = tls else {
        return Ok(Opened { stream: Box::pin(stream), is_plaintext: false });
    };
    let handshake = async {
        let mut first = [0];
        // `peek`, because the bytes must be left for the handshake or for HTTP.
        let len = stream.socket().peek(&mut first).await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first != [HANDSHAKE_RECORD] {
            return Ok(Opened { stream: Box::pin(stream), is_plaintext: true });
        }
        let stream = BufReader::with_capacity(READ_LEN, stream);
        let stream = TlsAcceptor::from(tls.current()).accept(Box::pin(stream)).await?;
        Ok(Opened { stream: Box::pin(stream), is_plaintext: false })
    };
    timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn certificate_is_accepted_only_with_its_own_key() {
        let ((certificate, key), (_, other)) = (pair(), pair());
        assert!(Identity::parse(certificate.as_bytes(), key.as_bytes()).is_ok());
        // Some tools write the certificate and the key to one file.
        let both = format!("{key}{certificate}");
        assert!(Identity::parse(both.as_bytes(), both.as_bytes()).is_ok());
        let refused =
            |certificate: &str, key: &str| Identity::parse(certificate.as_bytes(), key.as_bytes()).unwrap_err();
        assert!(matches!(refused(&certificate, &other), IdentityError::Pair(_)));
        assert!(matches!(refused("", &key), IdentityError::NoCertificate));
        assert!(matches!(refused(&key, &key), IdentityError::NoCertificate));
        assert!(matches!(refused(&certificate, &certificate), IdentityError::Key(_)));
        let torn = &certificate[..certificate.len() / 2];
        assert!(matches!(refused(torn, &key), IdentityError::Certificates(_)), "half of a file that is being written");
    }
}
