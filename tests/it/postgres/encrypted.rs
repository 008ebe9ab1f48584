//! A database that is reached over a network: with TLS, and only if its certificate is the right one.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use sqlx::{Connection, PgConnection};

use super::{check_refused, start, zorb};
use crate::cli::Directory;
use crate::support::{Certificates, Xorb, rng};

/// Creates a server in the directory `$1` that has the certificate `$2` and the key `$3`, and starts it at the port `$4`.
/// Over TCP it accepts TLS only.
const SCRIPT: &str = r#"
set -eu
programs=/usr/lib/postgresql/15/bin
as=
cp "$2" "$1/certificate.pem"
cp "$3" "$1/key.pem"
chmod 600 "$1/key.pem"
if [ "$(id -u)" = 0 ]; then
    as='setpriv --reuid=postgres --regid=postgres --clear-groups'
    chown -R postgres "$1"
fi
cd "$1"
$as $programs/initdb -D "$1/data" -U zorb -A trust -E UTF8 --locale=C --no-sync > "$1/log" 2>&1 || { cat "$1/log" >&2; exit 1; }
printf 'local all all trust\nhostssl all all 127.0.0.1/32 trust\n' > "$1/data/pg_hba.conf"
$as $programs/postgres -D "$1/data" -k "$1" -p "$4" -c listen_addresses=127.0.0.1 -c ssl=on \
    -c ssl_cert_file="$1/certificate.pem" -c ssl_key_file="$1/key.pem" -c fsync=off >> "$1/log" 2>&1 < /dev/null &
server=$!
trap 'kill -INT $server; wait $server' EXIT
until $programs/pg_isready -q -h "$1" -p "$4" -U zorb -d postgres; do
    kill -0 $server || { cat "$1/log" >&2; exit 1; }
    sleep 0.05
done
echo ready
cat > /dev/null
"#;

/// The server. It stops when its standard input ends, which it does with this value.
struct Encrypted {
    directory: tempfile::TempDir,
    port: u16,
    script: Child,
}

impl Encrypted {
    fn start(certificates: &Certificates) -> Self {
        let directory = tempfile::Builder::new().prefix("zorb-pg-").tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "sh"])
            .arg(directory.path())
            .arg(certificates.certificate())
            .arg(certificates.key());
        let script = command.arg(port.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "PostgreSQL 15 does not start");
        Self { directory, port, script }
    }

    fn url(&self, parameters: &str) -> String {
        format!("postgres://zorb@localhost:{}/postgres?{parameters}", self.port)
    }

    /// The number of connections of others over TCP that have TLS, and that have none.
    async fn connections(&self) -> (i64, i64) {
        let url = format!("postgres:///postgres?host={}&port={}&user=zorb", self.directory.path().display(), self.port);
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
