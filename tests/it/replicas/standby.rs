//! An asynchronous standby of PostgreSQL that is promoted lacks the last transactions. The records in the bucket have them.

use std::process::Child;

use serde_json::json;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::{Fleet, commit, hold_changes, zorb};
use crate::cli::Directory;
use crate::support::backend::Backend;
use crate::support::postgres::run_standby;
use crate::support::{Client, Xorb, eventually, read_file, register, rng, upload_shard};

/// What a server with a standby needs, and the standby, too.
const SETTINGS: [&str; 4] = ["-c", "wal_level=replica", "-c", "max_wal_senders=4"];

/// A PostgreSQL server of its own.
struct Cluster {
    directory: TempDir,
    script: Child,
}

impl Cluster {
    fn start(primary: Option<&Self>) -> Self {
        let directory = tempfile::Builder::new().prefix("zorb-pg-").tempdir().unwrap();
        let primary = primary.map_or("", Self::path);
        let script = run_standby(directory.path().to_str().unwrap(), &SETTINGS, 5432, primary);
        Self { directory, script }
    }

    fn path(&self) -> &str {
        self.directory.path().to_str().unwrap()
    }

    fn url(&self) -> String {
        format!("postgres:///postgres?host={}&user=zorb", self.path())
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }

    /// Stops it. A standby that is not connected gets nothing more.
    fn stop(mut self) {
        drop(self.script.stdin.take());
        self.script.wait().unwrap();
    }
}

/// A fleet over a primary with a standby.
struct Pair {
    fleet: Fleet,
    primary: Cluster,
    standby: Cluster,
    on_standby: Mutex<PgConnection>,
}

impl Pair {
    async fn start() -> Self {
        let primary = Cluster::start(None);
        let mut backend = Backend::fake().await;
        backend.change("database_url", primary.url());
        assert_eq!(zorb(&["db", "migrate"], &backend.variables()).code, Some(0));
        let standby = Cluster::start(Some(&primary));
        let fleet = Fleet { backend, directory: Directory::new(), servers: Vec::new(), auth: "off" };
        let on_standby = Mutex::new(standby.connect().await);
        Self { fleet, primary, standby, on_standby }
    }

    /// A number from the standby.
    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&mut *self.on_standby.lock().await).await.unwrap()
    }

    async fn tell_standby(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut *self.on_standby.lock().await).await.unwrap();
    }

    /// The standby gets nothing more.
    async fn cut_off(&self) {
        self.tell_standby("ALTER SYSTEM SET primary_conninfo = ''").await;
        self.tell_standby("SELECT pg_reload_conf()").await;
        eventually("it is cut off", async || self.count("SELECT count(*) FROM pg_stat_wal_receiver").await == 0).await;
    }

    /// Stops the primary, and has the fleet use the standby.
    async fn promote(self) -> Promoted {
        self.primary.stop();
        sqlx::raw_sql("SELECT pg_promote()").execute(&mut *self.on_standby.lock().await).await.unwrap();
        let mut fleet = self.fleet;
        fleet.backend.change("database_url", self.standby.url());
        Promoted { fleet, standby: self.standby, on_standby: self.on_standby.into_inner() }
    }
}

/// A fleet over a promoted standby.
struct Promoted {
    fleet: Fleet,
    standby: Cluster,
    on_standby: PgConnection,
}

impl Promoted {
    async fn open_record_count(&mut self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM open_records");
        count.fetch_one(&mut self.on_standby).await.unwrap()
    }

    /// Checks the store, whose servers have ended, and stops the database.
    fn finish(self) {
        let data_dir = self.fleet.directory.path("0");
        let ran = self.fleet.zorb(&["fsck", "--deep", "--data-dir", data_dir.to_str().unwrap()]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        drop(self.on_standby);
        self.standby.stop();
    }
}

async fn create_model(client: &Client) {
    let body = json!({ "name": "model", "organization": "me", "type": "model", "private": false }).to_string();
    assert_eq!(client.post("/api/repos/create", body).await.status, 200);
}

async fn has_path(client: &Client, path: &str) -> bool {
    let tree = client.get("/api/models/me/model/tree/main").await.json();
    tree.as_array().unwrap().iter().any(|entry| entry["path"] == path)
}

/// The change that is acknowledged when the standby gets nothing more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Registration,
    Commit,
}

async fn promote_after(change: Change) {
    let pair = Pair::start().await;
    let server = pair.fleet.server(0);
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng(), 9));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let files = [3, 9].map(|end| upload_shard(&xorb, 0, end));
    assert_eq!(register(&client, files[0].bytes()).await, 1);
    create_model(&client).await;

    // Its record has a number that the standby knows, and its transaction comes later.
    let mut on_primary = pair.primary.connect().await;
    let held = hold_changes(&mut on_primary).await;
    let body = files[1].bytes();
    let changing = tokio::spawn(async move {
        match change {
            Change::Registration => register(&client, body).await == 1,
            Change::Commit => commit(&client, "me/model", "a").await == 200,
        }
    });
    eventually("its record has a number", async || pair.count("SELECT count(*) FROM open_records").await == 1).await;
    pair.cut_off().await;
    held.rollback().await.unwrap();
    assert!(changing.await.unwrap(), "it is acknowledged");

    server.kill();
    drop(on_primary);
    let mut promoted = pair.promote().await;
    assert_eq!(promoted.open_record_count().await, 1, "the standby lacks it");
    // No command hides from the next start what the standby lacks.
    let data_dir = promoted.fleet.directory.path("0");
    let ran = promoted.fleet.zorb(&["gc", "--compact", "--data-dir", data_dir.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("start zorb serve once"), "{ran:?}");
    for directory in 0..2 {
        let server = promoted.fleet.server(directory);
        let client = server.client();
        let registered = if change == Change::Registration { &files[..] } else { &files[..1] };
        for (file, end) in registered.iter().zip([3, 9]) {
            assert_eq!(read_file(&client, "v1", &file.file_hash(), None).await.unwrap(), xorb.raw(0, end));
        }
        assert_eq!(has_path(&client, "a").await, change == Change::Commit);
        assert_eq!(promoted.open_record_count().await, 0);
    }
    promoted.finish();
}

#[tokio::test]
async fn promotion_of_a_standby_loses_no_acknowledged_file() {
    promote_after(Change::Registration).await;
}

#[tokio::test]
async fn promotion_of_a_standby_loses_no_acknowledged_commit() {
    promote_after(Change::Commit).await;
}

/// The standby lacks the xorbs, too, and the accounts that it has stay.
#[tokio::test]
async fn promotion_of_a_standby_loses_no_acknowledged_xorb() {
    let pair = Pair::start().await;
    let server = pair.fleet.server(0);
    let (client, mut rng) = (server.client(), rng());
    create_model(&client).await;
    assert_eq!(pair.fleet.zorb(&["user", "add", "ann"]).code, Some(0));
    let mut on_primary = pair.primary.connect().await;
    let until: String =
        sqlx::query_scalar("SELECT pg_current_wal_lsn()::text").fetch_one(&mut on_primary).await.unwrap();
    let on_primary = Mutex::new(on_primary);
    eventually("the standby has it", async || {
        let sql = "SELECT EXISTS (SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= $1::pg_lsn)";
        sqlx::query_scalar(sql).bind(&until).fetch_one(&mut *on_primary.lock().await).await.unwrap()
    })
    .await;
    pair.cut_off().await;
    let (filed, without_file) = (Xorb::mixed(&mut rng, 9), Xorb::mixed(&mut rng, 4));
    for xorb in [&filed, &without_file] {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
    let file = upload_shard(&filed, 0, 9);
    assert_eq!(register(&client, file.bytes()).await, 1);
    assert_eq!(commit(&client, "me/model", "a").await, 200);
    let committed = client.get("/me/model/resolve/main/a").await.body;

    server.kill();
    drop(on_primary);
    let promoted = pair.promote().await;
    for directory in 0..2 {
        let server = promoted.fleet.server(directory);
        let client = server.client();
        assert_eq!(read_file(&client, "v1", &file.file_hash(), None).await.unwrap(), filed.raw(0, 9));
        assert_eq!(client.post(&without_file.path(), without_file.bytes.clone()).await.status, 200, "it is stored");
        assert_eq!(client.get("/me/model/resolve/main/a").await.body, committed);
        server.kill();
    }
    let users = promoted.fleet.zorb(&["user", "list"]);
    assert!(users.code == Some(0) && String::from_utf8_lossy(&users.stdout).contains("ann"), "{users:?}");
    promoted.finish();
}
