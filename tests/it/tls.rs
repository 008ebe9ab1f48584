//! TLS on the server's own port: what it protects, how its certificate is changed, and who cannot hold it up.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tokio::net::TcpStream;

use crate::support::{Certificates, Raw, Start, TestServer, Xorb, eventually, is_alive, rng, served_on, upload_shard};

const BOTH: &[&rustls::SupportedProtocolVersion] = rustls::ALL_VERSIONS;

#[tokio::test]
async fn data_round_trips_through_tls_with_https_urls() {
    let (certificates, mut rng) = (Certificates::new(), rng());
    let server = certificates.start().start();
    assert!(server.url().starts_with("https://"), "{}", server.url());
    let (client, xorb) = (certificates.client(&server), Xorb::incompressible(&mut rng, 8 << 20));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    assert!(client.get(&xorb.path()).await.body == xorb.bytes, "8 MiB came back changed");
    let shard = upload_shard(&xorb, 0, xorb.chunk_count());
    assert_eq!(client.post("/v1/shards", shard.clone().bytes()).await.status, 200);
    let plan = client.get(&format!("/v1/reconstructions/{}", shard.file_hash())).await.json();
    let fetch = &plan["fetch_info"][&xorb.hash()][0];
    let url = fetch["url"].as_str().expect("a URL");
    let path = url.strip_prefix(server.url()).expect("a URL of this server, with its scheme");
    let range = &fetch["url_range"];
    let header = format!("bytes={}-{}", range["start"], range["end"]);
    let data = client.get_with(path, &[("range", header.as_str())]).await;
    assert_eq!((data.status, data.body), (206, xorb.bytes));
}

/// For new connections.
#[tokio::test]
async fn sighup_loads_a_new_certificate_and_ignores_a_broken_one() {
    let certificates = Certificates::new();
    let server = certificates.start().start();
    let mut before = certificates.connect(&server, BOTH, &[]).await.expect("the server speaks TLS");
    let first = served_on(&before);
    assert!(is_alive(&mut before).await);
    let second = certificates.renew();
    assert_eq!(certificates.served(&server).await, first, "nothing is taken up before it is told");
    server.hang_up();
    eventually("the new certificate is served", async || certificates.served(&server).await == second).await;
    assert!(is_alive(&mut before).await, "the connection of before goes on");
    assert_eq!(served_on(&before), first);

    // A key that is not that of the certificate, half a certificate, no file at all.
    let (good, key) = (fs::read(certificates.certificate()).unwrap(), fs::read(certificates.key()).unwrap());
    let other = Certificates::new();
    let broken: [&dyn Fn(); 3] = [
        &|| fs::write(certificates.key(), fs::read(other.key()).unwrap()).unwrap(),
        &|| fs::write(certificates.certificate(), &good[..good.len() / 2]).unwrap(),
        &|| fs::remove_file(certificates.key()).unwrap(),
    ];
    for (count, breaks) in broken.iter().enumerate() {
        breaks();
        server.hang_up();
        let complaints = || {
            server
                .log()
                .lines()
                .filter(|line| line.contains("ERROR") && line.contains("invalid TLS certificate"))
                .count()
        };
        eventually("it is logged", async || complaints() == count + 1).await;
        assert_eq!(certificates.served(&server).await, second);
        fs::write(certificates.certificate(), &good).unwrap();
        fs::write(certificates.key(), &key).unwrap();
    }
    assert!(is_alive(&mut before).await);
    let third = certificates.renew();
    server.hang_up();
    eventually("it is mended by the next one", async || certificates.served(&server).await == third).await;
}

#[tokio::test]
async fn sighup_does_not_end_a_server_with_nothing_to_reload() {
    let server = TestServer::start();
    server.hang_up();
    eventually("it is logged", async || server.log().contains("SIGHUP")).await;
    assert_eq!(server.client().get("/healthz").await.status, 200);
    server.terminate();
    assert_eq!(server.exit().await.0.code(), Some(0));
}

#[tokio::test]
async fn tls_1_2_and_1_3_with_http_1_1_and_nothing_else() {
    let certificates = Certificates::new();
    let server = certificates.start().start();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for protocols in [&[][..], &[b"h2".as_slice(), b"http/1.1"], &[b"http/1.1"]] {
            let mut stream = certificates.connect(&server, &[version], protocols).await.expect("it is spoken");
            let chosen = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
            assert_eq!(chosen, protocols.first().map(|_| b"http/1.1".to_vec()));
            assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
            assert!(is_alive(&mut stream).await);
        }
        assert!(certificates.connect(&server, &[version], &[b"h2"]).await.is_err(), "there is no HTTP/2 here");
    }
}

#[tokio::test]
async fn plain_http_on_the_tls_port_gets_one_response_that_says_so() {
    let certificates = Certificates::new();
    let server = certificates.start().start();
    for request in [
        "GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n",
        "POST /v1/shards HTTP/1.1\r\nhost: zorb\r\ncontent-length: 9\r\n\r\n",
    ] {
        let mut connection = Raw::connect(&server).await;
        connection.send(request).await;
        let response = connection.response().await;
        response.problem(400, "https_required");
        assert_eq!(response.header("connection"), "close");
        assert!(response.headers.get("strict-transport-security").is_none(), "nobody believes that without TLS");
        assert!(connection.rest().await.is_empty());
    }
    for garbage in
        [&b"\x16\x03\x01\xff\xff garbage that begins like a handshake"[..], b"\x00\x00\x00", b"SSH-2.0-x\r\n\r\n"]
    {
        let mut connection = Raw::connect(&server).await;
        connection.send(garbage).await;
        connection.finish_sending().await;
        connection.drain().await;
    }
    assert_eq!(certificates.client(&server).get("/healthz").await.status, 200);
    assert!(!server.log().contains("panicked"));
}

#[tokio::test]
async fn connection_without_a_handshake_is_closed_for_a_new_one() {
    let certificates = Certificates::new();
    let server = certificates.start().with("max_connections", 2).start();
    let mut first = TcpStream::connect(server.address()).await.unwrap();
    assert_eq!(certificates.client(&server).get("/healthz").await.status, 200, "one slot is left");
    let _second = TcpStream::connect(server.address()).await.unwrap();
    let _third = TcpStream::connect(server.address()).await.unwrap();
    // Both slots are taken; this one is served because the first is sent away.
    assert_eq!(certificates.client(&server).get("/healthz").await.status, 200);
    let mut rest = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut first, &mut rest).await.expect("it was closed in order");
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_handshake_that_stalls_does_not_delay_the_end() {
    let certificates = Certificates::new();
    let server = certificates.start().with("drain_timeout", "600s").start();
    let mut stalled = Raw::connect(&server).await;
    stalled.send(b"\x16\x03\x01").await;
    // Accepted after it, so that one is in its handshake by now.
    assert_eq!(certificates.client(&server).get("/healthz").await.status, 200);
    server.terminate();
    let (status, log) = server.exit().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("cut off"), "{log}");
    stalled.drain().await;
}

#[tokio::test]
async fn upload_refused_before_its_end_gets_its_reason_over_tls() {
    let certificates = Certificates::new();
    let server = certificates.start().start();
    let client = certificates.client(&server);
    let xorb = Xorb::incompressible(&mut rng(), 100 << 10);
    // 80 MiB, of which the server reads some.
    let response = client.post(&xorb.path(), vec![0; 80 << 20]).await;
    response.problem(413, "too_large");
}

#[tokio::test]
async fn a_key_that_everybody_may_read_is_used_with_a_warning() {
    let certificates = Certificates::new();
    let server = certificates.start().start();
    assert!(!server.log().contains("chmod"));
    fs::set_permissions(certificates.key(), PermissionsExt::from_mode(0o644)).unwrap();
    let server = certificates.start().start();
    assert!(server.log().lines().any(|line| line.contains("WARN") && line.contains("chmod")), "{}", server.log());
}

#[test]
fn start_with_half_or_mismatched_pair_fails_with_a_message() {
    let (certificates, other) = (Certificates::new(), Certificates::new());
    let directory = tempfile::tempdir().unwrap();
    let fails = |settings: &[(&str, &std::path::Path)], expected: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(directory.path().join("data"));
        let output = command.envs(settings.iter().copied()).output().expect("the binary was built for this test");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(expected) && output.stdout.is_empty(), "{text}");
    };
    fails(&[("ZORB_TLS_CERT", &certificates.certificate())], "it requires tls_key");
    fails(&[("ZORB_TLS_KEY", &certificates.key())], "it requires tls_cert");
    let mixed = [("ZORB_TLS_CERT", certificates.certificate()), ("ZORB_TLS_KEY", other.key())];
    let [(cert, certificate), (key, other_key)] = &mixed;
    fails(&[(cert, certificate), (key, other_key)], "for TLS");
    fails(&[(cert, certificate), (key, &directory.path().join("missing"))], "cannot read the key in");
}

/// Runs the program against a server, with this authority or with those of the machine.
fn zorb(server: &TestServer, authority: Option<&Certificates>, args: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.args(args).env("ZORB_SERVER", server.url()).env("XDG_CACHE_HOME", server.data_dir().join("cache"));
    // An own authority must do without those of the machine.
    command.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
    if let Some(authority) = authority {
        command.env("ZORB_CA_FILE", authority.authority());
    }
    command.output().expect("the binary was built for this test")
}

#[test]
fn every_command_trusts_only_the_given_authority() {
    let (certificates, other) = (Certificates::new(), Certificates::new());
    let server = certificates.start().start();
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    fs::write(&source, b"something to push".repeat(10_000)).unwrap();
    let (source, target) = (source.to_str().unwrap(), target.to_str().unwrap());
    for believed in [None, Some(&other)] {
        for args in [&["healthcheck"][..], &["push", "--retries", "0", source], &["ls", "files", "--retries", "0"]] {
            let output = zorb(&server, believed, args);
            assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        }
    }
    let done = |args: &[&str]| {
        let output = zorb(&server, Some(&certificates), args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    done(&["healthcheck"]);
    let pushed = done(&["push", source]);
    let hash = pushed.split(' ').next().expect("a hash");
    assert!(done(&["ls", "files"]).contains(hash));
    done(&["pull", hash, "-o", target]);
    assert_eq!(fs::read(source).unwrap(), fs::read(target).unwrap());
    let file = certificates.authority();
    let output = zorb(&server, None, &["healthcheck", "--ca-file", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let output = zorb(&server, None, &["healthcheck", "--ca-file", certificates.key().to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is invalid"), "{output:?}");
}

#[tokio::test]
async fn behind_tls_only_a_server_promises_tls_for_the_future() {
    let certificates = Certificates::new();
    let (encrypted, plain) = (certificates.start().start(), Start::default().start());
    let header = |response: &crate::support::Response| response.headers.get("strict-transport-security").cloned();
    for path in ["/healthz", "/unknown", "/xorbs/1"] {
        assert_eq!(header(&certificates.client(&encrypted).get(path).await).unwrap(), "max-age=31536000", "{path}");
        assert_eq!(header(&plain.client().get(path).await), None, "{path}");
    }
}

/// Files of a certificate that vouches for itself, and its key, as `openssl req -x509` makes them: an authority.
fn self_signed(directory: &std::path::Path, names: &[&str]) -> (std::path::PathBuf, std::path::PathBuf) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
    let key = KeyPair::generate().unwrap();
    let [cert_file, key_file] = ["cert.pem", "key.pem"].map(|name| directory.join(name));
    fs::write(&cert_file, params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    fs::set_permissions(&key_file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    (cert_file, key_file)
}

#[test]
fn a_self_signed_certificate_is_believed_when_it_is_given() {
    let (directory, others) = (tempfile::tempdir().unwrap(), Certificates::new());
    let listed = |names: &[&str], authority: Option<&std::path::Path>| {
        let (cert, key) = self_signed(directory.path(), names);
        let [cert_setting, key_setting] = [&cert, &key].map(|path| path.to_str().unwrap().to_owned());
        let server = Start::default().with("tls_cert", cert_setting).with("tls_key", key_setting).start();
        let authority = authority.unwrap_or(&cert).to_str().unwrap();
        let output = zorb(&server, None, &["ls", "--retries", "0", "--ca-file", authority]);
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(listed(&["localhost", "127.0.0.1"], None), (true, String::new()));
    let (is_listed, text) = listed(&["other.example"], None);
    assert!(!is_listed && text.contains("not valid for name \"127.0.0.1\""), "{text}");
    let (is_listed, text) = listed(&[], None);
    assert!(!is_listed && text.contains("lacks the extension subjectAltName"), "{text}");
    let (is_listed, text) = listed(&["127.0.0.1"], Some(&others.authority()));
    assert!(!is_listed && text.contains("certificate is a CA certificate; pass this certificate"), "{text}");
}
