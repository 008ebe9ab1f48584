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
use crate::support::{Xorb, eventually, read_file, register, rng, upload_shard};

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

async fn number(connection: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

/// The change that is acknowledged when the standby gets nothing more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Registration,
    Commit,
}

async fn promote_after(change: Change) {
    let primary = Cluster::start(None);
    let mut backend = Backend::fake().await;
    backend.change("database_url", primary.url());
    assert_eq!(zorb(&["db", "migrate"], &backend.variables()).code, Some(0));
    let standby = Cluster::start(Some(&primary));
    let mut fleet = Fleet { backend, directory: Directory::new(), servers: Vec::new(), auth: "off" };
    let server = fleet.server(0);
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng(), 9));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let files = [3, 9].map(|end| upload_shard(&xorb, 0, end));
    assert_eq!(register(&client, files[0].bytes()).await, 1);
    let body = json!({ "name": "model", "organization": "me", "type": "model", "private": false }).to_string();
    assert_eq!(client.post("/api/repos/create", body).await.status, 200);

    // Its record has a number that the standby knows, and its transaction comes later.
    let (mut on_primary, on_standby) = (primary.connect().await, Mutex::new(standby.connect().await));
    let count = async |sql| number(&mut *on_standby.lock().await, sql).await;
    let held = hold_changes(&mut on_primary).await;
    let body = files[1].bytes();
    let changing = tokio::spawn(async move {
        match change {
            Change::Registration => register(&client, body).await == 1,
            Change::Commit => commit(&client, "me/model", "a").await == 200,
        }
    });
    eventually("its record has a number", async || count("SELECT count(*) FROM open_records").await == 1).await;
    for sql in ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"] {
        sqlx::raw_sql(sql).execute(&mut *on_standby.lock().await).await.unwrap();
    }
    eventually("it is cut off", async || count("SELECT count(*) FROM pg_stat_wal_receiver").await == 0).await;
    held.rollback().await.unwrap();
    assert!(changing.await.unwrap(), "it is acknowledged");

    server.kill();
    drop(on_primary);
    primary.stop();
    sqlx::raw_sql("SELECT pg_promote()").execute(&mut *on_standby.lock().await).await.unwrap();
    assert_eq!(count("SELECT count(*) FROM open_records").await, 1, "the standby lacks it");
    fleet.backend.change("database_url", standby.url());
    // No command hides from the next start what the standby lacks.
    let data_dir = fleet.directory.path("0");
    let ran = fleet.zorb(&["gc", "--compact", "--data-dir", data_dir.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("start zorb serve once"), "{ran:?}");
    for directory in 0..2 {
        let server = fleet.server(directory);
        let client = server.client();
        let registered = if change == Change::Registration { &files[..] } else { &files[..1] };
        for (file, end) in registered.iter().zip([3, 9]) {
            assert_eq!(read_file(&client, "v1", &file.file_hash(), None).await.unwrap(), xorb.raw(0, end));
        }
        let tree = client.get("/api/models/me/model/tree/main").await.json();
        let has_commit = tree.as_array().unwrap().iter().any(|entry| entry["path"] == "a");
        assert_eq!(has_commit, change == Change::Commit, "{tree}");
        assert_eq!(count("SELECT count(*) FROM open_records").await, 0);
    }
    let ran = fleet.zorb(&["fsck", "--deep", "--data-dir", data_dir.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    drop(on_standby);
    standby.stop();
}

#[tokio::test]
async fn promotion_of_a_standby_loses_no_acknowledged_file() {
    promote_after(Change::Registration).await;
}

#[tokio::test]
async fn promotion_of_a_standby_loses_no_acknowledged_commit() {
    promote_after(Change::Commit).await;
}
