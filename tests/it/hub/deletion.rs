//! Deleted repositories: who may delete one, what a kill leaves, and the name used again.

use serde_json::{Value, json};

use super::{commit, create, files, head, put};
use crate::support::{Client, Response, Start, TestServer, eventually, issue, send};

/// Deletes the model of `me` with this name.
async fn delete(client: &Client, name: &str, token: Option<&str>) -> Response {
    let body = json!({ "name": name, "organization": "me", "type": "model" }).to_string();
    send(client, "DELETE", "/api/repos/delete", token, body.into_bytes()).await
}

/// The hashes of the files that a token may read.
async fn listed(client: &Client) -> Vec<String> {
    let page = client.get("/v1/files").await.json();
    page["files"].as_array().unwrap().iter().map(|file| file["hash"].as_str().unwrap().to_owned()).collect()
}

/// The body without what differs between two equal requests.
fn body(response: &Response) -> Value {
    let mut body = response.json();
    body.as_object_mut().unwrap().remove("request_id");
    body
}

#[tokio::test]
async fn deletion_takes_the_right_to_write_this_repository() {
    let server = Start::default().with("auth", "token").start();
    let client = server.client();
    let token = |scope: &str, repo: &str| issue(&server, scope, repo, &[]);
    let owner = client.bearing(&token("write", "models/me/model"));
    create(&owner, "model").await;
    let others = [
        token("read", "models/me/model"),
        token("write", "models/me/other"),
        token("write", "datasets/me/model"),
        token("read", "*"),
    ];
    for other in &others {
        let (there, absent) =
            (delete(&client, "model", Some(other)).await, delete(&client, "absent", Some(other)).await);
        assert!([403, 404].contains(&there.status), "{}", there.status);
        assert_eq!((there.status, body(&there)), (absent.status, body(&absent)));
        assert_eq!(there.headers.get("x-error-code"), absent.headers.get("x-error-code"));
    }
    assert_eq!(delete(&client, "model", None).await.status, 401);
    assert_eq!(owner.get("/api/models/me/model").await.status, 200);
    let malformed = send(&owner, "DELETE", "/api/repos/delete", None, b"{\"name\": 7}".to_vec()).await;
    assert_eq!(malformed.status, 400);
    assert_eq!(delete(&client, "model", Some(&token("write", "*"))).await.status, 200);
    let gone = owner.get("/api/models/me/model").await;
    assert_eq!((gone.status, gone.headers["x-error-code"].to_str().unwrap()), (404, "RepoNotFound"));
    assert_eq!(delete(&client, "model", Some(&token("write", "*"))).await.status, 404);
}

/// A kill between the response and the removal of the last claim.
#[tokio::test]
async fn killed_server_goes_on_with_the_deletion() {
    let mut server = Start::default().with("auth", "token").start();
    let token = |server: &TestServer, name: &str| issue(server, "write", &format!("models/me/{name}"), &[]);
    let (own, other) = (token(&server, "model"), token(&server, "other"));
    for (name, token) in [("model", &own), ("other", &other)] {
        let client = server.client().bearing(token);
        create(&client, name).await;
        // Each commit has a xorb and a file of its own; the first is in both repositories.
        for n in 0..40 {
            let contents = format!("{}{n}", if n == 0 { "same" } else { name });
            assert_eq!(commit(&client, &format!("me/{name}"), None, &[put("a.txt", contents.as_bytes())]).await.0, 200);
        }
    }
    let before = files(&server.client().bearing(&other), "me/other", "main", 9).await;
    let old = head(&server.client().bearing(&own), "me/model").await;
    assert_eq!(listed(&server.client().bearing(&own)).await.len(), 41);
    assert_eq!(delete(&server.client(), "model", Some(&own)).await.status, 200);
    server = server.restart_with(|start| start.with("auth", "token"));
    let client = server.client().bearing(&own);
    for path in ["/api/models/me/model", "/me/model/resolve/main/a.txt", "/api/models/me/model/tree/main"] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
    assert_eq!(client.get("/api/models").await.json(), json!([]));
    eventually("no claim is left", async || listed(&client).await.is_empty()).await;
    // Nothing of the old repository is in a new one of the name.
    create(&client, "model").await;
    assert_eq!(client.get(&format!("/api/models/me/model/revision/{old}")).await.status, 404);
    assert_eq!(commit(&client, "me/model", None, &[put("b.txt", b"model7")]).await.0, 200);
    let other = server.client().bearing(&other);
    assert_eq!((files(&other, "me/other", "main", 9).await, listed(&other).await.len()), (before, 41));
    let checked = fsck(&server);
    assert!(checked.contains(" 0 findings"), "{checked}");
    let kept = files(&client, "me/model", "main", 9).await;
    assert_eq!(kept["b.txt"], b"model7");
}

/// The output of `zorb fsck` beside the server.
fn fsck(server: &TestServer) -> String {
    let output = super::zorb(&["fsck", "--data-dir", server.data_dir().to_str().unwrap()]);
    String::from_utf8(output.stdout).unwrap()
}
