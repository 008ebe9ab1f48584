//! The `.gitignore` of an upload or of a repository: which files clients leave out.

use serde_json::{Value, json};

use super::{commit, create, put};
use crate::support::{Client, TestServer};

/// The paths that a client is told to leave out.
async fn left_out(client: &Client, paths: &[&str], sent: Option<&str>) -> Vec<String> {
    let file = |path: &&str| json!({ "path": path, "size": 1, "sample": "YQ==" });
    let mut body = json!({ "files": paths.iter().map(file).collect::<Vec<_>>() });
    if let Some(sent) = sent {
        body["gitIgnore"] = json!(sent);
    }
    let response = client.post("/api/models/me/model/preupload/main", body.to_string()).await;
    assert_eq!(response.status, 200);
    let files = response.json()["files"].as_array().unwrap().clone();
    let is_ignored = |file: &&Value| file["shouldIgnore"].as_bool().unwrap();
    files.iter().filter(is_ignored).map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn files_of_the_gitignore_are_left_out() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let paths = ["a.bin", "b.log", "tmp/x", "keep.log", "../x", "/b.log"];
    assert_eq!(left_out(&client, &paths, None).await, [""; 0]);
    assert_eq!(left_out(&client, &paths, Some("*.log\n!keep.log\ntmp/\n")).await, ["b.log", "tmp/x"]);
    // Without one of its own an upload has that of the repository.
    assert_eq!(commit(&client, "me/model", None, &[put(".gitignore", b"*.bin\n")]).await.0, 200);
    assert_eq!(left_out(&client, &paths, None).await, ["a.bin"]);
    assert_eq!(left_out(&client, &paths, Some("")).await, [""; 0]);
}

#[tokio::test]
async fn gitignore_that_cannot_be_used_refuses_only_what_sends_it() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let long = "*.log\n".repeat(6000);
    let body = json!({ "files": [{ "path": "a.log", "size": 1, "sample": "" }], "gitIgnore": long }).to_string();
    let refused = client.post("/api/models/me/model/preupload/main", body).await;
    refused.problem(400, "invalid_request");
    assert!(refused.json()["detail"].as_str().unwrap().contains("at most 32768"), "{:?}", refused.json());
    assert_eq!(commit(&client, "me/model", None, &[put(".gitignore", long.as_bytes())]).await.0, 200);
    assert_eq!(left_out(&client, &["a.log"], None).await, [""; 0]);
}
