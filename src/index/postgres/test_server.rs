//! A PostgreSQL server for the tests of this process, and a new database for each test. tests/it
//! has this file as a module, too.
//!
//! The server has a temporary directory with its Unix socket, listens on no port, and runs as the
//! user `postgres` if the tests run as root. It stops when the test process ends, however that
//! ends: a shell waits for the end of its standard input, stops the server by its process id, and
//! removes the directory.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};
use tokio::sync::OnceCell;

use super::PostgresIndex;

/// Where Debian installs the programs of PostgreSQL 15.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

/// Creates and starts a server in the directory `$1` with the programs in `$2`: a standby if
/// `PRIMARY` is not empty. The other arguments are settings for it. What is in the directory is for
/// the server, too.
const SCRIPT: &str = r#"
set -eu
directory=$1
programs=$2
shift 2
as=
if [ "$(id -u)" = 0 ]; then
    as='setpriv --reuid=postgres --regid=postgres --clear-groups'
    chown -R postgres "$directory"
fi
cd "$directory"
if [ -n "$PRIMARY" ]; then
    $as "$programs/pg_basebackup" -h "$PRIMARY" -U zorb -D data -R -X stream --no-sync > log 2>&1 || { cat log >&2; exit 1; }
else
    $as "$programs/initdb" -D data -U zorb -A trust -E UTF8 --locale=C --no-sync > log 2>&1 || { cat log >&2; exit 1; }
fi
$as "$programs/postgres" -D data -k "$directory" -c listen_addresses= -c fsync=off -c full_page_writes=off -c wal_level=minimal \
    -c max_wal_senders=0 -c max_connections=300 -c shared_buffers=64MB "$@" >> log 2>&1 < /dev/null &
server=$!
trap 'kill -INT $server; wait $server; cd /; rm -rf "$directory"' EXIT
until "$programs/pg_isready" -q -h "$directory" -U zorb -d postgres; do
    kill -0 $server || { cat log >&2; exit 1; }
    sleep 0.05
done
echo ready
cat > /dev/null
"#;

/// The database that those of the tests are copies of.
const TEMPLATE: &str = "prepared";

/// Starts a server with these settings, whose socket in this directory has this port. It stops when
/// the standard input of the process ends, and removes the directory.
pub(crate) fn run(directory: &str, settings: &[&str], port: u16) -> Child {
    run_standby(directory, settings, port, "")
}

/// The same for a standby of the server with this directory and the same port. Without a directory
/// it is no standby.
pub(crate) fn run_standby(directory: &str, settings: &[&str], port: u16, primary: &str) -> Child {
    let mut script = Command::new("sh")
        .args(["-c", SCRIPT, "sh", directory, PROGRAMS])
        .args(settings)
        .env("PGPORT", port.to_string())
        .env("PRIMARY", primary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C is for the tests only; the server stops after them.
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(script.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "PostgreSQL 15 does not start: install postgresql-15");
    script
}

/// The running server.
#[derive(Debug)]
struct Server {
    directory: String,
    /// Its standard input ends with this process, and the server with it.
    _script: Child,
}

impl Server {
    async fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("zorb-pg-").tempdir().unwrap().keep();
        let directory = directory.to_str().unwrap().to_owned();
        let script = run(&directory, &[], 5432);
        let server = Self { directory, _script: script };
        server.create(TEMPLATE, "template0").await;
        PostgresIndex::migrate(&server.url(TEMPLATE)).await.unwrap();
        server
    }

    fn url(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&user=zorb", self.directory)
    }

    async fn create(&self, database: &str, template: &str) {
        let mut connection = PgConnection::connect(&self.url("postgres")).await.unwrap();
        // Copied as files: the other strategy writes all pages into the WAL.
        let sql = format!("CREATE DATABASE {database} TEMPLATE {template} STRATEGY file_copy");
        raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }
}

static SERVER: OnceCell<Server> = OnceCell::const_new();
static DATABASE_COUNT: AtomicU32 = AtomicU32::new(0);

/// The connection string of a new database. It has the schema if the template is `None`.
async fn new_database(template: Option<&str>) -> String {
    let server = SERVER.get_or_init(Server::start).await;
    let database = format!("case_{}", DATABASE_COUNT.fetch_add(1, Ordering::Relaxed));
    server.create(&database, template.unwrap_or(TEMPLATE)).await;
    server.url(&database)
}

/// The connection string of a new database with the schema.
pub(crate) async fn migrated() -> String {
    new_database(None).await
}

/// The connection string of a new database without any table.
pub(crate) async fn empty() -> String {
    new_database(Some("template0")).await
}
