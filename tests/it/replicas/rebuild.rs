//! `zorb db rebuild`: a lost database is rebuilt from the bucket.

use std::process::{Command, Stdio};

use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::{Fleet, commit, hold_changes, zorb};
use crate::cli::Ran;
use crate::support::postgres::migrated;
use crate::support::{Response, TestServer, Xorb, eventually, read_file, register, rng, upload_shard};

/// Ends the servers of a fleet, and gives it a new database without an index.
async fn lose_database(fleet: &mut Fleet) {
    fleet.servers.drain(..).for_each(TestServer::kill);
    fleet.backend.change("database_url", migrated().await);
}

fn run_rebuild(fleet: &Fleet) -> Ran {
    let data_dir = fleet.directory.path("rebuild");
    fleet.zorb(&["db", "rebuild", "--json", "--data-dir", data_dir.to_str().unwrap()])
}

/// The database of a fleet is lost, and rebuilt.
pub(super) async fn rebuild(fleet: &mut Fleet) {
    lose_database(fleet).await;
    let ran = run_rebuild(fleet);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// A start that must fail: what it complains of.
fn refused_start(fleet: &Fleet) -> String {
    let data_dir = fleet.directory.path("0");
    let ran = fleet.zorb(&["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    ran.stderr
}

#[tokio::test]
async fn a_lost_database_is_rebuilt_from_the_bucket() {
    let mut fleet = Fleet::start().await;
    let xorb = Xorb::mixed(&mut rng(), 9);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let shards = [3, 6, 9].map(|end| upload_shard(&xorb, 0, end));
    for (number, shard) in shards.iter().enumerate() {
        assert_eq!(register(&fleet.client(number), shard.bytes()).await, 1);
    }
    let removal = fleet.client(1).request(Method::DELETE, &format!("/v1/files/{}", shards[0].file_hash()));
    assert_eq!(Response::of(removal).await.status, 200);
    let body = json!({ "name": "model", "organization": "me", "type": "model", "private": true }).to_string();
    assert_eq!(fleet.client(2).post("/api/repos/create", body).await.status, 200);
    for path in ["a", "b"] {
        assert_eq!(commit(&fleet.client(0), "me/model", path).await, 200);
    }
    let tree = fleet.client(0).get("/api/models/me/model/tree/main").await.json();
    let (xorbs, records) = (fleet.backend.names("xorbs/"), fleet.backend.names("shards/"));

    lose_database(&mut fleet).await;
    let complaint = refused_start(&fleet);
    assert!(complaint.contains("the index is empty") && complaint.contains("zorb db rebuild"), "{complaint}");
    let ran = run_rebuild(&fleet);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = ran.record();
    let expected = json!([xorbs.len(), records.len(), 0, 0]);
    assert_eq!(json!([told["xorbs"], told["records"], told["left_out"], told["left_out_hub"]]), expected, "{told}");
    assert!(told["database"].as_str().unwrap().starts_with("database "), "{told}");
    let again = run_rebuild(&fleet);
    assert!(again.code == Some(1) && again.stderr.contains("has an index already"), "{again:?}");

    let servers = [fleet.server(0), fleet.server(1)];
    for client in servers.each_ref().map(TestServer::client) {
        for (shard, end) in shards.iter().zip([3, 6, 9]).skip(1) {
            assert_eq!(read_file(&client, "v1", &shard.file_hash(), None).await.unwrap(), xorb.raw(0, end));
        }
        assert_eq!(read_file(&client, "v1", &shards[0].file_hash(), None).await.unwrap_err().status, 404);
        assert_eq!(client.get("/api/models/me/model/tree/main").await.json(), tree);
        assert_eq!(client.get("/api/models/me/model").await.json()["private"], true);
    }
    // The log goes on behind the records that exist.
    assert_eq!(register(&servers[1].client(), shards[0].bytes()).await, 1);
    assert_eq!(commit(&servers[0].client(), "me/model", "c").await, 200);
    let more = fleet.backend.names("shards/");
    // The rebuild has added one, too.
    assert!(more.len() == records.len() + 3 && more.starts_with(&records), "{more:?}");
    drop(servers);
    let data_dir = fleet.directory.path("0");
    let ran = fleet.zorb(&["fsck", "--deep", "--data-dir", data_dir.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn no_server_starts_with_an_interrupted_rebuild() {
    let mut fleet = Fleet::start().await;
    let xorb = Xorb::mixed(&mut rng(), 9);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let shard = upload_shard(&xorb, 0, 9);
    assert_eq!(register(&fleet.client(0), shard.bytes()).await, 1);
    lose_database(&mut fleet).await;
    let mut connection = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    // Its last statement waits until it is killed.
    let held = hold_changes(&mut connection).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    let data_dir = fleet.directory.path("rebuild");
    command.args(["db", "rebuild", "--data-dir"]).arg(&data_dir).envs(fleet.backend.variables());
    let mut rebuilding = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut watching = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    loop {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM files").fetch_one(&mut watching).await.unwrap();
        if count == 1 {
            break;
        }
        assert!(rebuilding.try_wait().unwrap().is_none(), "it waits");
        tokio::task::yield_now().await;
    }
    rebuilding.kill().unwrap();
    rebuilding.wait().unwrap();
    held.rollback().await.unwrap();
    assert!(refused_start(&fleet).contains("the index is empty"));
    eventually("the killed rebuild has ended", async || !run_rebuild(&fleet).stderr.contains("another zorb")).await;
    let again = run_rebuild(&fleet);
    assert!(again.code == Some(1) && again.stderr.contains("or a part of one"), "{again:?}");
    assert!(refused_start(&fleet).contains("the index is empty"));
    rebuild(&mut fleet).await;
    let server = fleet.server(0);
    assert_eq!(read_file(&server.client(), "v1", &shard.file_hash(), None).await.unwrap(), xorb.raw(0, 9));
}

/// Nothing is read that no store has written, and nothing is written.
#[tokio::test]
async fn a_rebuild_needs_a_store_and_a_database() {
    let mut fleet = Fleet::start().await;
    fleet.servers.drain(..).for_each(TestServer::kill);
    let before = fleet.backend.names("");
    let ran = run_rebuild(&fleet);
    assert!(ran.code == Some(1) && ran.stderr.contains("has an index already"), "{ran:?}");
    fleet.backend.change("database_url", migrated().await);
    let other = fleet.backend.with("s3_prefix", "other");
    let data_dir = fleet.directory.path("rebuild");
    let args = ["db", "rebuild", "--data-dir", data_dir.to_str().unwrap()];
    let ran = zorb(&args, &other.variables());
    assert!(ran.code == Some(1) && ran.stderr.contains("no store in s3_bucket"), "{ran:?}");
    let ran = zorb(&args, &[]);
    assert!(ran.code == Some(1) && ran.stderr.contains("no database: set database_url"), "{ran:?}");
    assert_eq!(fleet.backend.names(""), before);
}
