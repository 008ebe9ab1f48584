//! Certificates of an authority of our own, and connections that believe it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Client, Start, TestServer};

/// An authority, and files with a certificate and a key that it has vouched for.
pub struct Certificates {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    authority: String,
}

impl Certificates {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "an authority for a test");
        let key = KeyPair::generate().expect("the test can make a key");
        let authority = params.self_signed(&key).expect("the key is its own").pem();
        let directory = tempfile::tempdir().expect("the test can make a temporary directory");
        fs::write(directory.path().join("authority.pem"), &authority).expect("the test can write");
        let certificates = Self { directory, issuer: Issuer::new(params, key), authority };
        certificates.renew();
        certificates
    }

    /// Puts another certificate with another key in their place; returns it.
    pub fn renew(&self) -> CertificateDer<'static> {
        let params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
        let key = KeyPair::generate().expect("the test can make a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("the authority has a key");
        fs::write(self.certificate(), certificate.pem()).expect("the test can write");
        fs::write(self.key(), key.serialize_pem()).expect("the test can write");
        fs::set_permissions(self.key(), PermissionsExt::from_mode(0o600)).expect("the file is the test's");
        certificate.der().clone()
    }

    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("certificate.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }

    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    /// A server with these files.
    pub fn start(&self) -> Start {
        let text = |path: &Path| path.to_str().expect("temporary directories have names").to_owned();
        Start::default().with("tls_cert", text(&self.certificate())).with("tls_key", text(&self.key()))
    }

    /// A client that believes this authority and no other.
    pub fn client(&self, server: &TestServer) -> Client {
        Client::trusting(server.url(), self.authority.as_bytes())
    }

    /// A connection on which the test decides every byte, in one of these versions, with these protocols offered.
    pub async fn connect(
        &self,
        server: &TestServer,
        versions: &[&'static SupportedProtocolVersion],
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.authority.as_bytes()).expect("it is PEM");
        roots.add(authority).expect("it is an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_protocol_versions(versions).expect("these versions are known");
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let stream = TcpStream::connect(server.address()).await?;
        let name = ServerName::try_from("127.0.0.1").expect("an address is a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// The certificate that a new connection gets.
    pub async fn served(&self, server: &TestServer) -> CertificateDer<'static> {
        let stream = self.connect(server, rustls::ALL_VERSIONS, &[]).await.expect("the server speaks TLS");
        served_on(&stream)
    }
}

/// The certificate that this connection got.
pub fn served_on(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let chain = stream.get_ref().1.peer_certificates().expect("the server has shown its certificate");
    chain.first().expect("the chain is not empty").clone().into_owned()
}

/// Asks for the sign of life on a connection that stays open; whether it was given.
pub async fn is_alive(stream: &mut TlsStream<TcpStream>) -> bool {
    if stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n").await.is_err() {
        return false;
    }
    let mut text = Vec::new();
    while !text.ends_with(b"}") {
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(len) if len > 0 => text.extend_from_slice(&piece[..len]),
            _ => return false,
        }
    }
    text.starts_with(b"HTTP/1.1 200 ")
}
