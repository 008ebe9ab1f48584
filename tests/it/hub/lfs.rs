//! Large files from clients without hf_xet: sent as a whole to the URL of a Git LFS batch.

use rand::Rng;
use reqwest::Method;
use serde_json::{Value, json};

use super::{commit, create, files};
use crate::support::{Client, Raw, Response, Start, TestServer, eventually, issue, rng, sha256_of, token_command};

fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng().fill_bytes(&mut bytes);
    bytes
}

fn object(contents: &[u8]) -> Value {
    json!({ "oid": sha256_of(contents).to_string(), "size": contents.len() })
}

/// The batch of one file that is to be uploaded.
pub(super) fn batch_body(contents: &[u8]) -> String {
    json!({ "operation": "upload", "transfers": ["basic"], "objects": [object(contents)] }).to_string()
}

/// The entries of a batch of `huggingface_hub` without hf_xet.
async fn batch(client: &Client, repo: &str, objects: &[Value]) -> Vec<Value> {
    let path = format!("/{repo}.git/info/lfs/objects/batch");
    let body = json!({ "operation": "upload", "transfers": ["basic", "multipart"], "objects": objects, "hash_algo": "sha256" });
    let response = client.post(&path, body.to_string()).await;
    assert_eq!(response.status, 200);
    let response = response.json();
    assert_eq!(response["transfer"], "basic");
    response["objects"].as_array().unwrap().clone()
}

/// Path and query of the URL for a file; `None` if the repository has the file.
pub(super) async fn upload_path(client: &Client, repo: &str, contents: &[u8]) -> Option<String> {
    let entry = batch(client, repo, &[object(contents)]).await.remove(0);
    let href = entry["actions"]["upload"]["href"].as_str()?;
    Some(client.path_of(href).to_owned())
}

/// Sends a file as clients do: without a token.
pub(super) async fn send(client: &Client, path: &str, body: Vec<u8>) -> Response {
    let client = client.without_token();
    Response::of(client.request(Method::PUT, path).body(body)).await
}

/// A line of a commit that puts a large file at a path.
pub(super) fn line(path: &str, contents: &[u8]) -> Value {
    let object = object(contents);
    json!({ "key": "lfsFile", "value": { "path": path, "algo": "sha256", "oid": object["oid"], "size": object["size"] } })
}

#[tokio::test]
async fn file_sent_as_a_whole_is_committed_and_read() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    // Longer than a batch of pieces, and one chunk.
    let contents = [random(5 << 20), random(10), vec![0; 3 << 20]];
    for (n, contents) in contents.iter().enumerate() {
        let name = format!("{n}.bin");
        assert_eq!(commit(&client, "me/model", None, &[line(&name, contents)]).await.0, 400, "it is not there yet");
        let path = upload_path(&client, "me/model", contents).await.unwrap();
        assert_eq!(send(&client, &path, contents.clone()).await.status, 200);
        assert_eq!(commit(&client, "me/model", None, &[line(&name, contents)]).await.0, 200);
        assert_eq!(upload_path(&client, "me/model", contents).await, None, "it is there now");
        // The URL can be used again, as after a lost response.
        assert_eq!(send(&client, &path, contents.clone()).await.status, 200);
    }
    let found = files(&client, "me/model", "main", 1000).await;
    for (n, contents) in contents.iter().enumerate() {
        assert!(found[&format!("{n}.bin")] == *contents, "{n}");
    }
}

#[tokio::test]
async fn upload_url_takes_only_the_file_that_it_is_for() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let (contents, other) = (random(100_000), random(100_000));
    let path = upload_path(&client, "me/model", &contents).await.unwrap();
    send(&client, &path, other.clone()).await.problem(400, "invalid_request");
    send(&client, &path, contents[1..].to_vec()).await.problem(400, "invalid_request");
    let stated = [sha256_of(&contents).to_string(), sha256_of(&other).to_string()];
    send(&client, &path.replace(&stated[0], &stated[1]), other.clone()).await.problem(403, "forbidden");
    send(&client, &path.replace("len=100000", "len=100001"), [&contents[..], b"x"].concat())
        .await
        .problem(403, "forbidden");
    send(&client, path.split("&s=").next().unwrap(), contents.clone()).await.problem(403, "forbidden");
    send(&client, &path.replace("len=100000", "len=-1"), contents.clone()).await.problem(400, "invalid_request");
    assert_eq!(commit(&client, "me/model", None, &[line("a.bin", &contents)]).await.0, 400);
    assert_eq!(server.drafts(), 0);
    let objects = [
        json!({ "oid": "ab", "size": 1 }),
        json!({ "oid": sha256_of(b"").to_string(), "size": 1_u64 << 50 }),
        json!({ "oid": sha256_of(b"").to_string(), "size": 0 }),
    ];
    let entries = batch(&client, "me/model", &objects).await;
    assert_eq!((&entries[0]["error"]["code"], &entries[1]["error"]["code"]), (&json!(422), &json!(422)));
    assert_eq!(entries[2]["actions"], Value::Null);
    let body = json!({ "operation": "download", "objects": [object(&contents)] }).to_string();
    let entry = client.post("/me/model.git/info/lfs/objects/batch", body).await.json()["objects"][0].clone();
    assert_eq!(entry["error"]["code"], 501);
}

#[tokio::test]
async fn upload_url_has_the_rights_of_its_token_and_ends_with_it() {
    let server = Start::default().with("auth", "token").start();
    let token = |scope: &str, repo: &str| issue(&server, scope, repo, &["--subject", "alice"]);
    let text = token("write", "models/me/model");
    let (owner, anyone) = (server.client().bearing(&text), server.client());
    create(&owner, "model").await;
    let contents = random(50_000);
    let body = batch_body(&contents);
    let ask = async |client: Client, repo: &str| {
        client.post(&format!("/{repo}.git/info/lfs/objects/batch"), body.clone()).await.status
    };
    assert_eq!(ask(anyone.clone(), "me/model").await, 401);
    for (scope, repo, status) in
        [("read", "models/me/model", 403), ("write", "models/me/other", 404), ("write", "datasets/me/model", 404)]
    {
        assert_eq!(ask(anyone.bearing(&token(scope, repo)), "me/model").await, status, "{scope} {repo}");
    }
    let path = upload_path(&owner, "me/model", &contents).await.unwrap();
    let signature = path.split("&s=").nth(1).unwrap();
    // The signature is no token.
    assert_eq!(ask(anyone.bearing(signature), "me/model").await, 401);
    assert_eq!(ask(anyone.bearing(&format!("zorb_{signature}")), "me/model").await, 401);
    assert_eq!(send(&anyone, &path, contents.clone()).await.status, 200);
    // Only the repository of the token has the file.
    let other = server.client().bearing(&token("write", "models/me/other"));
    create(&other, "other").await;
    assert!(upload_path(&other, "me/other", &contents).await.is_some());
    assert_eq!(commit(&other, "me/other", None, &[line("a.bin", &contents)]).await.0, 400);
    assert_eq!(commit(&owner, "me/model", None, &[line("a.bin", &contents)]).await.0, 200);

    let late = random(1000);
    let path = upload_path(&owner, "me/model", &late).await.unwrap();
    let revoked = token_command(&server, &["revoke", &text]);
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    owner
        .eventually("the revocation applies", async |owner| owner.get("/api/models/me/model").await.status == 401)
        .await;
    send(&anyone, &path, late).await.problem(403, "forbidden");
}

/// A file of two xorbs: the first is published while the second arrives.
#[tokio::test]
async fn file_whose_upload_was_killed_is_sent_again_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let begin = || Start::default().data_dir(directory.path()).start();
    let mut server = begin();
    create(&server.client(), "model").await;
    let contents = random(70 << 20);
    let path = upload_path(&server.client(), "me/model", &contents).await.unwrap();
    // The last round sends all but the last byte.
    for sent_len in [1 << 20, 67 << 20, contents.len() - 1] {
        let mut raw = Raw::connect(&server).await;
        let len = contents.len();
        raw.send(format!("PUT {path} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {len}\r\n\r\n")).await;
        raw.send(&contents[..sent_len]).await;
        if sent_len > 64 << 20 {
            // That of the first commit is there, too.
            eventually("the first xorb is published", async || server.blobs().len() == 2).await;
        }
        server.kill();
        server = begin();
        let client = server.client();
        assert!(upload_path(&client, "me/model", &contents).await.is_some(), "after {sent_len} bytes");
        assert_eq!(commit(&client, "me/model", None, &[line("a.bin", &contents)]).await.0, 400);
        assert_eq!(server.drafts(), 0);
    }
    let client = server.client();
    assert_eq!(send(&client, &path, contents.clone()).await.status, 200);
    server.kill();
    server = begin();
    let client = server.client();
    assert_eq!(commit(&client, "me/model", None, &[line("a.bin", &contents)]).await.0, 200);
    assert!(client.get("/me/model/resolve/main/a.bin").await.body == contents);
    assert_eq!(server.blobs().len(), 3);
}
