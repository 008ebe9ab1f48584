//! Repositories of a store that has lost its index.

use std::path::{Path, PathBuf};
use std::process::Output;

use reqwest::Method;
use serde_json::json;

use super::accounts::accounts;
use super::{commit, commit_body, create, delete, files, head, put, state, zorb};
use crate::support::{Client, Response, Start, TestServer, Xorb, read_file, register, rng, upload_shard};

/// Deletes the index of a store without a server, and rebuilds it.
pub(super) fn rebuild(data_dir: &Path) {
    let output = lose_and_rebuild(data_dir);
    assert!(output.status.success(), "{output:?}");
}

fn lose_and_rebuild(data_dir: &Path) -> Output {
    for name in ["index.sqlite", "index.sqlite-wal", "index.sqlite-shm"] {
        // SQLite deletes the others itself when the last connection is closed.
        let removed = std::fs::remove_file(data_dir.join(name));
        assert!(removed.is_ok() || name != "index.sqlite", "{name}");
    }
    zorb(&["index", "rebuild", "--data-dir", data_dir.to_str().unwrap()])
}

fn again(data_dir: &Path) -> TestServer {
    Start::default().data_dir(data_dir).start()
}

fn stop(server: TestServer) {
    server.terminate();
    assert!(server.wait().success());
}

/// The records of a store, the oldest first.
fn records(data_dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut directories = vec![data_dir.join("shards")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.retain(|path| std::fs::read(path).unwrap().starts_with(b"{\"blake3\":"));
    found.sort_by_key(|path| path.file_name().unwrap().to_owned());
    found
}

async fn send(client: &Client, method: Method, path: &str, body: &str) -> u16 {
    Response::of(client.request(method, path).body(body.to_owned())).await.status
}

/// The dataset's owner has not uploaded the xorb of one chunk: the user of the model has.
#[tokio::test]
async fn rebuilt_index_has_a_short_file_for_each_owner_of_its_user() {
    let directory = tempfile::tempdir().unwrap();
    let begin = || Start::default().with("auth", "token").data_dir(directory.path()).start();
    let server = begin();
    accounts(&server, &["user", "add", "alice"]);
    let token = accounts(&server, &["user", "token", "alice", "--scope", "write"]);
    let transfers = async |server: &TestServer| {
        let (alice, mut clients) = (server.client().bearing(token.trim_end()), Vec::new());
        for kind in ["model", "dataset"] {
            let new = json!({ "name": "short", "type": kind, "private": true }).to_string();
            assert!([200, 409].contains(&alice.post("/api/repos/create", new).await.status));
            let given = alice.get(&format!("/api/{kind}s/alice/short/xet-write-token/main")).await.json();
            clients.push(server.client().bearing(given["accessToken"].as_str().unwrap()));
        }
        clients
    };
    let clients = transfers(&server).await;
    let xorb = Xorb::mixed(&mut rng(), 1);
    let shard = upload_shard(&xorb, 0, 1);
    assert_eq!(clients[0].post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
    for client in &clients {
        assert_eq!(register(client, shard.bytes()).await, 1);
    }
    stop(server);
    rebuild(directory.path());
    let server = begin();
    for client in transfers(&server).await {
        assert_eq!(read_file(&client, "v1", &shard.file_hash(), None).await.unwrap(), xorb.raw(0, 1));
    }
}

/// Every kind of change is in the log.
#[tokio::test]
async fn rebuilt_index_has_every_change_of_repositories() {
    let directory = tempfile::tempdir().unwrap();
    let server = again(directory.path());
    let client = server.client();
    for name in ["model", "other"] {
        create(&client, name).await;
        assert_eq!(commit(&client, &format!("me/{name}"), None, &[put("a.txt", name.as_bytes())]).await.0, 200);
    }
    let many: Vec<_> = (0..1200).map(|n| put(&format!("d{}/{n}.txt", n % 7), format!("{n}").as_bytes())).collect();
    assert_eq!(commit(&client, "me/model", None, &many).await.0, 200);
    assert_eq!(commit(&client, "me/model", None, &[delete("deletedFolder", "d3")]).await.0, 200);
    // A client repeats a commit, and one is late: neither has an effect.
    assert_eq!(commit(&client, "me/model", Some(&"0".repeat(40)), &[put("late.txt", b"")]).await.0, 412);
    let model = "/api/models/me/model";
    for (method, path, body) in [
        (Method::POST, format!("{model}/tag/main"), r#"{"tag":"v1"}"#),
        (Method::POST, format!("{model}/tag/main"), r#"{"tag":"v2"}"#),
        (Method::POST, format!("{model}/branch/work"), ""),
        (Method::POST, format!("{model}/branch/dropped"), ""),
        (Method::DELETE, format!("{model}/branch/dropped"), ""),
        (Method::DELETE, format!("{model}/tag/v2"), ""),
        (Method::PUT, "/api/models/me/other/settings".to_owned(), r#"{"private":true}"#),
    ] {
        assert_eq!(send(&client, method.clone(), &path, body).await, 200, "{method} {path}");
    }
    let on_branch = commit_body("on a branch", None, &[put("b.txt", b"b")]);
    assert_eq!(client.post(&format!("{model}/commit/work"), on_branch).await.status, 200);
    assert_eq!(send(&client, Method::POST, "/api/models/me/other/super-squash/main", "").await, 200);
    assert_eq!(commit(&client, "me/other", None, &[put("after.txt", b"after")]).await.0, 200);

    let repos = ["me/model", "me/other"];
    let before = state(&client, &repos).await;
    let contents = files(&client, "me/model", "v1", 1000).await;
    assert_eq!(contents.len(), 1200 - 1200 / 7 + 2, "one directory was deleted");
    stop(server);
    let data_dir = directory.path();
    for _ in 0..2 {
        rebuild(data_dir);
        let rebuilt = again(data_dir);
        assert_eq!(state(&rebuilt.client(), &repos).await, before);
        assert_eq!(files(&rebuilt.client(), "me/model", "v1", 1000).await, contents);
        stop(rebuilt);
    }
    // It can be changed as before.
    let rebuilt = again(data_dir);
    let parent = head(&rebuilt.client(), "me/model").await;
    assert_eq!(commit(&rebuilt.client(), "me/model", Some(&parent), &[put("x", b"x")]).await.0, 200);
}

/// Without one record, a branch is where it was before, and whatever else is there is whole.
#[tokio::test]
async fn damaged_record_leaves_the_branch_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = again(directory.path());
    let client = server.client();
    create(&client, "model").await;
    create(&client, "other").await;
    assert_eq!(commit(&client, "me/model", None, &[put("1.txt", b"1")]).await.0, 200);
    let before = state(&client, &["me/model"]).await;
    let known = records(directory.path());
    // Without contents, so that the next record is the one of the commit.
    let copy = json!({ "key": "copyFile", "value": { "path": "2.txt", "srcPath": "1.txt" } });
    assert_eq!(commit(&client, "me/model", None, &[copy]).await.0, 200);
    let damaged: Vec<PathBuf> =
        records(directory.path()).into_iter().filter(|record| !known.contains(record)).collect();
    assert_eq!(damaged.len(), 1);
    // Based on it.
    assert_eq!(commit(&client, "me/model", None, &[put("3.txt", b"3")]).await.0, 200);
    assert_eq!(client.post("/api/models/me/model/tag/main", r#"{"tag":"v1"}"#).await.status, 200);
    assert_eq!(commit(&client, "me/other", None, &[put("x.txt", b"x")]).await.0, 200);
    let other = state(&client, &["me/other"]).await;
    stop(server);
    let data_dir = directory.path();
    let bytes = std::fs::read(&damaged[0]).unwrap();
    for damage in [bytes[..bytes.len() / 2].to_vec(), [&bytes[..], b"x"].concat(), Vec::new()] {
        std::fs::write(&damaged[0], damage).unwrap();
        let output = lose_and_rebuild(data_dir);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("2 changes of Hub repositories left out"), "{text}");
        assert!(text.contains("on which it is based, is missing or left out"), "{text}");
        let rebuilt = again(data_dir);
        assert_eq!(state(&rebuilt.client(), &["me/model"]).await, before);
        assert_eq!(state(&rebuilt.client(), &["me/other"]).await, other);
        stop(rebuilt);
    }
    // With the record, everything is back.
    std::fs::write(&damaged[0], bytes).unwrap();
    rebuild(data_dir);
    let found = files(&again(data_dir).client(), "me/model", "v1", 1000).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), [".gitattributes", "1.txt", "2.txt", "3.txt"]);
}
