//! Files are removed, and what nobody needs goes: over HTTP, by the server itself and by `zorb gc`.
//!
//! No process can be told that weeks have passed. So what is in the index is made older instead, beside whatever runs.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection};

use crate::cli::Directory;
use crate::support::{
    Metrics, Start, TestServer, Xorb, eventually, guarded, issue, read_file, register, rng, send, shard_of, stocked,
    upload_shard,
};

pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// Makes everything that is known of xorbs so much older.
pub async fn age(data_dir: &Path, by: Duration) {
    let path = data_dir.join("index.sqlite");
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    sqlx::query("UPDATE xorbs SET since = since - ?1, lease_until = max(lease_until - ?1, 0)")
        .bind(i64::try_from(by.as_millis()).unwrap())
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// `zorb gc` on this directory; its last line of JSON, and the ones before it.
pub fn collect(directory: &Directory, data_dir: &Path, args: &[&str]) -> (Value, Vec<Value>) {
    let all = [&["gc", "--json", "--data-dir", data_dir.to_str().unwrap()], args].concat();
    let mut records = directory.zorb(&all).ok().records();
    (records.pop().unwrap(), records)
}

pub fn count(record: &Value, what: &str) -> u64 {
    record[what]["xorbs"].as_u64().unwrap()
}

#[tokio::test]
async fn removed_file_is_unreadable_at_once_and_deleted_later() {
    let (server, a, b) = stocked().await;
    let (directory, client) = (Directory::new(), server.client());
    // One file of both, one of the second alone.
    let shards = [shard_of(&[(&a, 0, 7), (&b, 0, 5)]), upload_shard(&b, 1, 4)];
    for shard in &shards {
        assert_eq!(register(&client, shard.bytes()).await, 1);
    }
    let kept = read_file(&client, "v1", &shards[1].file_hash(), None).await.unwrap();
    let path = format!("/v1/files/{}", shards[0].file_hash());
    assert_eq!(client.head(&path).await.status, 200);
    let removed = send(&client, "DELETE", &path, None, Vec::new()).await;
    let expected = json!({"file": shards[0].file_hash(), "file_removed": true, "claims_removed": ["*"]});
    assert_eq!((removed.status, removed.json()), (200, expected));
    assert_eq!(client.head(&path).await.status, 404);
    assert_eq!(read_file(&client, "v1", &shards[0].file_hash(), None).await.unwrap_err().status, 404);
    send(&client, "DELETE", &path, None, Vec::new()).await.problem(404, "not_found");
    send(&client, "DELETE", "/v1/files/xyz", None, Vec::new()).await.problem(400, "invalid_hash");

    // Nothing is taken before its time, whoever asks.
    let data_dir = server.data_dir();
    let (plan, planned) = collect(&directory, data_dir, &["--dry-run"]);
    assert_eq!(
        (count(&plan["retained"], "referenced"), count(&plan["retained"], "in_grace"), planned.len()),
        (1, 1, 0)
    );
    age(data_dir, 21 * DAY).await;
    let (plan, planned) = collect(&directory, data_dir, &["--dry-run"]);
    assert_eq!((planned.len(), &planned[0]["xorb"], &planned[0]["action"]), (1, &json!(a.hash()), &json!("condemn")));
    assert_eq!(planned[0]["serialized_len"], a.bytes.len());
    assert_eq!(plan["freed_later"], json!({"xorbs": 1, "serialized_len": a.bytes.len()}));
    let (done, _) = collect(&directory, data_dir, &[]);
    assert_eq!((count(&done, "condemned"), count(&done, "deleted")), (1, 0));
    let (done, _) = collect(&directory, data_dir, &[]);
    assert_eq!((count(&done, "condemned"), count(&done, "deleted")), (0, 0));
    assert_eq!(client.get(&a.path()).await.body, a.bytes, "what is condemned can be read");

    age(data_dir, DAY).await;
    let text = directory.zorb(&["gc", "--dry-run", "--data-dir", data_dir.to_str().unwrap()]).ok().text();
    assert!(text.contains(&a.hash()) && text.contains("delete: condemned and not used"), "{text}");
    assert_eq!(server.blobs().len(), 2, "a dry run deletes nothing");
    let (done, _) = collect(&directory, data_dir, &[]);
    assert_eq!((count(&done, "condemned"), count(&done, "deleted")), (0, 1));
    assert_eq!(server.blobs(), [b.hash()]);
    // The server that has it in memory notices, at the latest when it reads.
    client.get(&a.path()).await.problem(404, "not_found");
    assert_eq!(client.head(&a.path()).await.status, 404);
    assert_eq!(client.post(&a.path(), a.bytes.clone()).await.status, 201);
    assert_eq!(client.get(&a.path()).await.body, a.bytes);
    assert_eq!(read_file(&client, "v2", &shards[1].file_hash(), None).await.unwrap(), kept);
}

#[tokio::test]
async fn xorb_just_deleted_by_a_command_can_be_uploaded_again() {
    let (server, a, _b) = stocked().await;
    let (directory, client) = (Directory::new(), server.client());
    assert_eq!(client.get(&a.path()).await.status, 200);
    age(server.data_dir(), 21 * DAY).await;
    collect(&directory, server.data_dir(), &[]);
    age(server.data_dir(), DAY).await;
    collect(&directory, server.data_dir(), &[]);
    // One refusal, where memory was behind, and never a second one.
    let first = client.post(&a.path(), a.bytes.clone()).await;
    if first.status != 201 {
        first.problem(503, "overloaded");
        assert_eq!(client.post(&a.path(), a.bytes.clone()).await.status, 201);
    }
    assert_eq!(client.get(&a.path()).await.body, a.bytes);
}

#[tokio::test]
async fn whoever_is_told_by_head_that_a_xorb_is_there_can_count_on_it() {
    let (server, a, b) = stocked().await;
    let (directory, client) = (Directory::new(), server.client());
    let c = Xorb::mixed(&mut rng(), 3);
    assert_eq!(client.post(&c.path(), c.bytes.clone()).await.status, 201);
    age(server.data_dir(), 21 * DAY).await;
    assert_eq!(client.head(&a.path()).await.status, 200);
    assert_eq!(client.head(&format!("/xorb/default/{}", b.hash())).await.status, 200);
    let (done, _) = collect(&directory, server.data_dir(), &[]);
    assert_eq!(count(&done, "condemned"), 1);
    // Also what is condemned: asked for, it stays.
    assert_eq!(client.head(&format!("/v1/xorbs/default/{}", c.hash())).await.status, 200);
    age(server.data_dir(), 2 * DAY).await;
    let (done, _) = collect(&directory, server.data_dir(), &[]);
    assert_eq!((count(&done, "condemned"), count(&done, "deleted")), (0, 0));
    assert_eq!(client.get(&c.path()).await.body, c.bytes);
}

#[tokio::test]
async fn a_server_collects_by_itself_and_counts_what_it_does() {
    let server = Start::default().with("gc_interval", "1s").start();
    let (client, mut rng) = (server.client(), rng());
    let (garbage, needed) = (Xorb::mixed(&mut rng, 4), Xorb::mixed(&mut rng, 4));
    for xorb in [&garbage, &needed] {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
    let shard = upload_shard(&needed, 0, 4);
    register(&client, shard.bytes()).await;
    age(server.data_dir(), 21 * DAY).await;
    eventually("condemned, delete delay", async || {
        Metrics::of(&client).await.get("zorb_gc_condemned_xorbs_total") == 1.0
    })
    .await;
    assert_eq!(client.get(&garbage.path()).await.body, garbage.bytes);
    age(server.data_dir(), DAY).await;
    eventually("it is deleted", async || server.blobs() == [needed.hash()]).await;
    eventually("it is counted", async || {
        let metrics = Metrics::of(&client).await;
        metrics.get("zorb_gc_deleted_xorbs_total") == 1.0 && metrics.get("zorb_store_xorbs") == 1.0
    })
    .await;
    let metrics = Metrics::of(&client).await;
    assert_eq!(metrics.get("zorb_gc_freed_bytes_total"), garbage.bytes.len() as f64);
    assert!(metrics.get("zorb_gc_runs_total") >= 2.0 && metrics.get("zorb_gc_last_success_timestamp_seconds") > 1.7e9);
    assert_eq!((metrics.get("zorb_gc_aborted_total"), metrics.get("zorb_gc_failures_total")), (0.0, 0.0));
    assert_eq!(client.get(&garbage.path()).await.status, 404);
    assert_eq!(client.post(&garbage.path(), garbage.bytes.clone()).await.status, 201);
    read_file(&client, "v1", &shard.file_hash(), None).await.unwrap();
    server.terminate();
    let (status, log) = server.exit().await;
    assert!(status.success() && log.contains("GC finished"), "{log}");
}

#[tokio::test]
async fn token_removes_only_the_files_of_its_repository() {
    let (server, mut rng) = (guarded(), rng());
    let client = server.client();
    let [a, b] = ["models/a/one", "models/b/one"].map(|repo| issue(&server, "write", repo, &[]));
    let reader = issue(&server, "read", "models/a/one", &[]);
    let admin = issue(&server, "admin", "*", &[]);
    let xorb = Xorb::mixed(&mut rng, 5);
    let shard = upload_shard(&xorb, 0, 5);
    for token in [&a, &b] {
        let path = format!("/v1/xorbs/default/{}", xorb.hash());
        assert_eq!(send(&client, "POST", &path, Some(token), xorb.bytes.to_vec()).await.status, 200);
        assert_eq!(send(&client, "POST", "/v1/shards", Some(token), shard.bytes()).await.status, 200);
    }
    let path = format!("/v1/files/{}", shard.file_hash());
    let of_b = format!("{path}?repo=models/b/one");
    let delete = async |path: &str, token: &str| send(&client, "DELETE", path, Some(token), Vec::new()).await;
    let length = async |token: &str| send(&client, "HEAD", &path, Some(token), Vec::new()).await.status;
    delete(&path, &reader).await.problem(403, "forbidden");
    delete(&of_b, &a).await.problem(403, "forbidden");
    for garbled in ["?repo=", "?repo=a%20b", "?repo=models/a/one&repo=models/b/one"] {
        delete(&format!("{path}{garbled}"), &admin).await.problem(400, "invalid_request");
    }
    assert_eq!((length(&a).await, length(&b).await), (200, 200));
    let removed = delete(&path, &a).await.json();
    assert_eq!(
        (&removed["file_removed"], &removed["claims_removed"]),
        (&json!(true), &json!(["models/a/one"])),
        "not a word of others"
    );
    assert_eq!((length(&a).await, length(&b).await), (404, 200));
    delete(&path, &a).await.problem(404, "not_found");
    delete(&format!("{path}?repo=models/a/one"), &admin).await.problem(404, "not_found");
    let removed = delete(&of_b, &admin).await.json();
    assert_eq!((&removed["file_removed"], &removed["claims_removed"]), (&json!(true), &json!(["models/b/one"])));
    assert_eq!(length(&b).await, 404);
    // It can come back as if it had never been there.
    assert_eq!(send(&client, "POST", "/v1/shards", Some(&a), shard.bytes()).await.json()["result"], 1);
    assert_eq!((length(&a).await, length(&b).await), (200, 404));
}

#[tokio::test]
async fn rm_removes_files_by_their_hashes_and_says_for_whom() {
    let (directory, server) = (Directory::new(), guarded());
    let writer = issue(&server, "write", "models/a/one", &[]);
    let login = ["--server", server.url(), "--token", writer.as_str()];
    for name in ["a", "b"] {
        directory.write(name, name.repeat(1000).as_bytes());
    }
    directory.zorb(&[&["push", "a", "b"], &login[..]].concat()).ok_with_remarks();
    let list = || directory.zorb(&[&["ls", "--json"], &login[..]].concat()).ok().records();
    let hashes: Vec<String> = list().iter().map(|file| file["hash"].as_str().unwrap().to_owned()).collect();
    let [first, second] = hashes.as_slice() else { panic!("{hashes:?}") };
    let text = directory.zorb(&[&["rm", first], &login[..]].concat()).ok().text();
    assert_eq!(text, format!("{first}  removed for models/a/one\n"));
    assert_eq!(list().len(), 1);
    directory.zorb(&[&["rm", first, second], &login[..]].concat()).failed(1, &[first, "File "]);
    directory
        .zorb(&[&["rm", second, "--repo", "models/b/one"], &login[..]].concat())
        .failed(1, &["requires an admin token"]);
    assert_eq!(list().len(), 1, "the first one that fails ends it");
    let record = directory.zorb(&[&["rm", second, "--json"], &login[..]].concat()).ok().record();
    assert_eq!(record, json!({"file": second, "file_removed": true, "claims_removed": ["models/a/one"]}));
    assert_eq!(list().len(), 0);
    directory.zorb(&[&["rm", "xyz"], &login[..]].concat()).failed(2, &[]);
}

#[tokio::test]
async fn one_process_at_a_time_deletes_and_none_below_the_grace() {
    let directory = Directory::new();
    let server = TestServer::start();
    let data_dir = server.data_dir().to_str().unwrap().to_owned();
    let held = File::create(server.data_dir().join("gc.lock")).unwrap();
    held.lock().unwrap();
    let gc = ["gc", "--data-dir", data_dir.as_str()];
    directory.zorb(&gc).failed(1, &["another process is running GC"]);
    directory.zorb(&[&gc[..], &["--dry-run"]].concat()).ok();
    // A start does not wait for it.
    let server = server.restart();
    drop(held);
    directory.zorb(&gc).ok();
    directory.write("zorb.toml", b"gc_grace = '20d'\n");
    let short = directory.zorb(&[&gc[..], &["--config", "zorb.toml"]].concat());
    short.failed(1, &["gc_grace = 20days", "at least 21d"]);
    directory.zorb(&["gc", "--data-dir", "nowhere"]).failed(1, &["no store in nowhere"]);
    drop(server);
}

#[tokio::test]
async fn removal_beyond_the_request_timeout_says_so_and_completes() {
    let server = Start::default().with("request_timeout", "3s").start();
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng(), 4));
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let [gone, kept] = [(0, 2), (1, 4)].map(|(start, end)| upload_shard(&xorb, start, end));
    for shard in [&gone, &kept] {
        register(&client, shard.bytes()).await;
    }
    // Somebody else writes to the index, for longer than the request may take.
    let path = server.data_dir().join("index.sqlite");
    let mut other = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let path = format!("/v1/files/{}", gone.file_hash());
    let late = send(&client, "DELETE", &path, None, Vec::new()).await;
    late.problem(503, "deadline");
    assert!(late.headers.contains_key("retry-after"), "{late:?}");
    // Until then the file is there, and whoever reads is not held up.
    assert_eq!(client.head(&path).await.status, 200);
    read_file(&client, "v1", &kept.file_hash(), None).await.unwrap();
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    eventually("it is removed", async || client.head(&path).await.status == 404).await;
    send(&client, "DELETE", &path, None, Vec::new()).await.problem(404, "not_found");

    // The record says the same as the index.
    let server = server.restart();
    let (data_dir, keep) = (server.data_dir().to_owned(), server.directory());
    server.terminate();
    assert!(server.wait().success());
    Directory::new().zorb(&["index", "rebuild", "--json", "--data-dir", data_dir.to_str().unwrap()]).ok();
    let server = Start::default().data_dir(&data_dir).start();
    assert_eq!(server.client().head(&path).await.status, 404);
    read_file(&server.client(), "v1", &kept.file_hash(), None).await.unwrap();
    drop(keep);
}
