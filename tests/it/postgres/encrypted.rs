//! A database that is reached over a network: with TLS, and only if its certificate is the right one.

use std::net::TcpListener;
use std::process::Child;

use sqlx::{Connection, PgConnection};

use super::{check_refused, start, zorb};
use crate::cli::Directory;
use crate::support::postgres::run;
use crate::support::{Certificates, Xorb, rng};

/// Who may connect: over TCP only with TLS.
const CLIENTS: &str = "local all all trust\nhostssl all all 127.0.0.1/32 trust\n";

/// A server with a certificate, in a directory of its own. Both go with this value.
struct Encrypted {
    directory: String,
    port: u16,
    script: Child,
}

impl Encrypted {
    fn start(certificates: &Certificates) -> Self {
        let directory = tempfile::Builder::new().prefix("zorb-pg-").tempdir().unwrap().keep();
        let directory = directory.to_str().unwrap().to_owned();
        let [certificate, key, clients] = ["certificate", "key", "clients"].map(|name| format!("{directory}/{name}"));
        std::fs::copy(certificates.certificate(), &certificate).unwrap();
        // With its mode, which lets only the owner read it.
        std::fs::copy(certificates.key(), &key).unwrap();
        std::fs::write(&clients, CLIENTS).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let [certificate, key, clients] =
            [("ssl_cert_file", certificate), ("ssl_key_file", key), ("hba_file", clients)]
                .map(|(name, path)| format!("{name}={path}"));
        let settings = ["listen_addresses=127.0.0.1", "ssl=on", &certificate, &key, &clients];
        let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["-c", setting]).collect();
        let script = run(&directory, &settings, port);
        Self { directory, port, script }
    }

    fn url(&self, parameters: &str) -> String {
        format!("postgres://zorb@localhost:{}/postgres?{parameters}", self.port)
    }

    /// The number of connections of others over TCP that have TLS, and that have none.
    async fn connections(&self) -> (i64, i64) {
        let url = format!("postgres:///postgres?host={}&port={}&user=zorb", self.directory, self.port);
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let count = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl \
                     JOIN pg_stat_activity USING (pid) WHERE client_port > 0";
        sqlx::query_as(count).fetch_one(&mut connection).await.unwrap()
    }
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        self.script.wait().unwrap();
    }
}

#[tokio::test]
async fn connections_have_tls_and_the_certificate_is_checked() {
    let (certificates, others, directory) = (Certificates::new(), Certificates::new(), Directory::new());
    let (database, data) = (Encrypted::start(&certificates), directory.path("data"));
    let verified = |authority: &Certificates| {
        database.url(&format!("sslmode=verify-full&sslrootcert={}", authority.authority().display()))
    };
    for (url, words) in [
        (verified(&others), &["database_url", "certificate"][..]),
        (database.url("sslmode=verify-full"), &["database_url", "certificate"]),
        // Another name of the same machine, which is not in the certificate.
        (verified(&certificates).replace("localhost", "127.0.0.2"), &["database_url"]),
        (database.url("sslmode=disable"), &["database_url", "no encryption"]),
    ] {
        check_refused(&url, &data, words);
        assert_eq!(zorb(&url, &["db", "migrate"]).code, Some(1), "{url}");
    }
    let url = verified(&certificates);
    let ran = zorb(&url, &["db", "migrate"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let server = start(&url, &data);
    let xorb = Xorb::mixed(&mut rng(), 7);
    assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let (encrypted, plain) = database.connections().await;
    assert!(encrypted > 0 && plain == 0, "{encrypted} {plain}");
    server.kill();
    // Without a mode: whatever the database offers.
    let server = start(&database.url(""), &data);
    assert_eq!(server.client().get(&xorb.path()).await.body, xorb.bytes);
    let (encrypted, plain) = database.connections().await;
    assert!(encrypted > 0 && plain == 0, "{encrypted} {plain}");
}
