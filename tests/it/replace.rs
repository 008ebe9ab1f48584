//! A xorb that is uploaded again in a much shorter serialization: the shorter one is stored instead, and no reader notices.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection, SqliteConnection};
use zorb::format::compression::Policy;

use crate::backup::{Stored, store};
use crate::cli::Directory;
use crate::gc::collect;
use crate::scrub::{fetch, first_fetch, in_two_forms, keep_reading};
use crate::support::{
    Client, Grant, Metrics, Start, TestServer, Xorb, blob_path, blob_paths, random_bytes, read_file, rng, upload_shard,
};

const HOUR: Duration = Duration::from_secs(3600);

/// The same xorb, a little shorter than without compression.
fn hardly_shorter() -> (Xorb, Xorb) {
    let mut rng = rng();
    let mut chunks: Vec<_> = (0..8).map(|_| random_bytes(&mut rng, 9_000)).collect();
    chunks.push(b"the same again ".repeat(600));
    (Xorb::of(Policy::None, &chunks), Xorb::of(Policy::Lz4, &chunks))
}

/// What the first repository is charged for, and what the store says it has.
async fn charged(client: &Client) -> (u64, f64) {
    let usage = client.get("/v1/usage").await.json();
    let stored = Metrics::of(client).await.get("zorb_store_bytes");
    (usage["repos"][0]["physical_bytes"].as_u64().expect("a number"), stored)
}

/// Makes what is known of replaced blobs so much older.
async fn age(data_dir: &Path, by: Duration) {
    let path = data_dir.join("index.sqlite");
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    let query = sqlx::query("UPDATE objects SET since = since - ?").bind(i64::try_from(by.as_millis()).unwrap());
    query.execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

async fn check_read(client: &Client, stored: &Stored, form: &Xorb) {
    for version in ["v1", "v2"] {
        assert_eq!(read_file(client, version, &stored.file, None).await.unwrap(), stored.xorb.raw, "{version}");
    }
    let bytes = client.get(&format!("/v1/files/{}", stored.file)).await;
    assert!(bytes.status == 200 && bytes.body == stored.xorb.raw);
    assert_eq!(client.get(&stored.xorb.path()).await.body, form.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn much_shorter_serialization_replaces_the_stored_one() {
    let server = TestServer::start();
    let (client, (plain, small)) = (server.client(), in_two_forms());
    assert!(small.bytes.len() * 4 <= plain.bytes.len() * 3, "{} of {}", small.bytes.len(), plain.bytes.len());
    let stored = store(&client, plain.clone()).await;
    let old_url = first_fetch(&client, &stored.file).await;
    let before = charged(&client).await;
    let stop = Arc::new(AtomicBool::new(false));
    let again = Stored { file: stored.file.clone(), xorb: stored.xorb.clone() };
    let reading = tokio::spawn(keep_reading(server.client(), again, Arc::clone(&stop)));

    let response = client.post(&small.xet_path(), small.bytes.clone()).await;
    assert_eq!((response.status, &response.json()["was_inserted"]), (200, &Value::Bool(true)));
    check_read(&client, &stored, &small).await;
    let after = charged(&client).await;
    let saved = (plain.bytes.len() - small.bytes.len()) as u64;
    assert_eq!((after.0, after.1), (before.0 - saved, small.bytes.len() as f64));
    let metrics = Metrics::of(&client).await;
    assert_eq!(metrics.get("zorb_store_replaced_xorbs_total"), 1.0);
    assert_eq!(metrics.get("zorb_store_replaced_bytes"), plain.bytes.len() as f64);
    assert_eq!(blob_paths(server.data_dir(), &plain.hash()).len(), 2);

    // What was planned before gets the old bytes, and a new plan is of the new ones.
    let old = fetch(&client, &old_url).await;
    assert!(old.status == 206 && old.body == plain.bytes, "{}", old.status);
    let new_url = first_fetch(&client, &stored.file).await;
    assert_ne!(old_url.1, new_url.1);
    assert_eq!(fetch(&client, &new_url).await.body, small.bytes);
    stop.store(true, Ordering::SeqCst);
    assert!(reading.await.unwrap() > 2, "the file was hardly read");

    // The old blob is deleted when all URLs of it have expired, and not before.
    let directory = Directory::new();
    age(server.data_dir(), 2 * HOUR).await;
    collect(&directory, server.data_dir(), &[]);
    assert_eq!(fetch(&client, &old_url).await.body, plain.bytes);
    age(server.data_dir(), HOUR).await;
    let (done, _) = collect(&directory, server.data_dir(), &[]);
    assert_eq!(done["replaced"]["serialized_len"], plain.bytes.len());
    assert_eq!(fs::read(blob_path(server.data_dir(), &plain.hash())).unwrap(), small.bytes);
    fetch(&client, &old_url).await.problem(403, "forbidden");
    assert_eq!(fetch(&client, &new_url).await.body, small.bytes);
    assert_eq!(Metrics::of(&client).await.get("zorb_store_replaced_bytes"), 0.0);
    let server = server.restart();
    check_read(&server.client(), &stored, &small).await;
}

#[tokio::test]
async fn longer_or_hardly_shorter_serialization_changes_nothing() {
    let server = TestServer::start();
    let client = server.client();
    let ((plain, small), (long, less)) = (in_two_forms(), hardly_shorter());
    assert!(less.bytes.len() < long.bytes.len() && less.bytes.len() * 4 > long.bytes.len() * 3);
    for (first, second) in [(&small, &plain), (&long, &less)] {
        let stored = store(&client, first.clone()).await;
        let (url, before) = (first_fetch(&client, &stored.file).await, charged(&client).await);
        let response = client.post(&second.path(), second.bytes.clone()).await;
        assert_eq!((response.status, &response.json()["was_inserted"]), (200, &Value::Bool(false)));
        assert_eq!(charged(&client).await, before);
        assert_eq!(fetch(&client, &url).await.body, first.bytes);
        check_read(&client, &stored, first).await;
        assert_eq!(fs::read(server.blob(&first.hash())).unwrap(), first.bytes);
    }
    assert_eq!(Metrics::of(&client).await.get("zorb_store_replaced_bytes"), 0.0);
    assert_eq!(server.drafts(), 0);
}

/// A body with a footer does, and one whose bytes are not those of the xorb does not.
#[tokio::test]
async fn only_verified_bytes_of_the_xorb_replace_it() {
    let server = TestServer::start();
    let (client, (plain, small)) = (server.client(), in_two_forms());
    let stored = store(&client, plain.clone()).await;
    let mut wrong = small.bytes.to_vec();
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    assert_eq!(client.post(&plain.path(), wrong).await.status, 400);
    let (other, _) = hardly_shorter();
    client.post(&plain.path(), other.bytes.slice(..)).await.problem(400, "hash_mismatch");
    check_read(&client, &stored, &plain).await;
    assert_eq!(server.drafts(), 0);

    let response = client.post(&plain.xet_path(), small.with_footer_v1(0)).await;
    assert_eq!((response.status, &response.json()["was_inserted"]), (200, &Value::Bool(true)));
    check_read(&client, &stored, &small).await;
}

#[tokio::test]
async fn upload_by_grant_replaces_a_longer_serialization() {
    let server = Start::default().with("grants", true).start();
    let client = server.client();
    for is_sent_before in [true, false] {
        let (plain, small) = in_two_forms();
        let grant = Grant::of(&client, &small).await;
        let send = async || assert_eq!(grant.send(&client, small.bytes.clone()).await.status, 200);
        if is_sent_before {
            send().await;
        }
        let stored = store(&client, plain.clone()).await;
        if !is_sent_before {
            send().await;
        }
        check_read(&client, &stored, &plain).await;
        assert_eq!(grant.commit(&client).await.status, 200);
        check_read(&client, &stored, &small).await;
        assert_eq!(blob_paths(server.data_dir(), &plain.hash()).len(), 2);
    }
}

/// Blobs of older versions have the hash alone as their name.
#[tokio::test]
async fn blob_of_an_older_version_is_served_and_replaced() {
    let server = TestServer::start();
    let (client, (plain, small)) = (server.client(), in_two_forms());
    let stored = store(&client, plain.clone()).await;
    let (directories, data_dir) = (server.directory(), server.data_dir().to_owned());
    server.terminate();
    assert!(server.wait().success());
    let path = blob_path(&data_dir, &plain.hash());
    fs::rename(&path, path.with_file_name(plain.hash())).unwrap();
    let mut connection =
        SqliteConnection::connect(&format!("sqlite://{}", data_dir.join("index.sqlite").display())).await.unwrap();
    sqlx::query("UPDATE xorbs SET incarnation = 0").execute(&mut connection).await.unwrap();
    sqlx::query("DELETE FROM objects").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let mut server = Start::default().data_dir(&data_dir).start();
    server.keep(directories);
    let client = server.client();
    check_read(&client, &stored, &plain).await;
    let old_url = first_fetch(&client, &stored.file).await;
    assert_eq!(client.post(&plain.path(), small.bytes.clone()).await.status, 201);
    check_read(&client, &stored, &small).await;
    assert_eq!(fetch(&client, &old_url).await.body, plain.bytes);
    assert_eq!(client.post("/v1/shards", upload_shard(&small, 0, 12).bytes()).await.json()["result"], 0);
    age(&data_dir, 3 * HOUR).await;
    collect(&Directory::new(), &data_dir, &[]);
    assert!(!path.with_file_name(plain.hash()).exists());
    check_read(&client, &stored, &small).await;
}
