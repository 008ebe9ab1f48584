//! Renamed repositories: under both names, for each kind of token, after a kill and without the
//! index.

use serde_json::{Value, json};

use super::{commit, create, files, lost, put, state};
use crate::support::{Client, Response, Start, issue, send};

/// Renames a model.
async fn rename(client: &Client, from: &str, to: &str) -> Response {
    let body = json!({ "fromRepo": from, "toRepo": to, "type": "model" }).to_string();
    client.post("/api/repos/move", body).await
}

#[tokio::test]
async fn renamed_repository_is_served_under_both_names() {
    let directory = tempfile::tempdir().unwrap();
    let start = || Start::default().data_dir(directory.path()).with("auth", "token").start();
    let mut server = start();
    let token = issue(&server, "write", "models/me/*", &[]);
    let one = issue(&server, "write", "models/me/model", &[]);
    let mut client = server.client().bearing(&token);
    create(&client, "model").await;
    assert_eq!(commit(&client, "me/model", None, &[put("a.txt", b"the first")]).await.0, 200);
    let renamed = rename(&client, "me/model", "me/Later").await;
    assert_eq!((renamed.status, renamed.json()), (200, json!({})));
    server.kill();
    server = start();
    client = server.client().bearing(&token);
    for name in ["me/model", "me/later"] {
        assert_eq!(client.get(&format!("/api/models/{name}")).await.json()["id"], "me/Later");
        assert_eq!(files(&client, name, "main", 9).await["a.txt"], b"the first");
        // A token of the repository opens it under both names.
        let of_one = server.client().bearing(&one);
        assert_eq!(commit(&of_one, name, None, &[put("b.txt", name.as_bytes())]).await.0, 200);
    }
    let listed: Value = client.get("/api/models?author=me").await.json();
    assert_eq!(listed.as_array().unwrap().iter().map(|repo| &repo["id"]).collect::<Vec<_>>(), ["me/Later"]);
    // The name is free, and the token of the first is not one of the second.
    create(&client, "model").await;
    assert_eq!(client.get("/me/model/resolve/main/a.txt").await.status, 404);
    assert_eq!(commit(&client, "me/model", None, &[put("a.txt", b"the second")]).await.0, 200);
    assert_eq!(client.get("/me/model/resolve/main/a.txt").await.body, "the second");
    let of_one = server.client().bearing(&one);
    for name in ["model", "later"] {
        assert_eq!(of_one.get(&format!("/me/{name}/resolve/main/a.txt")).await.body, "the first");
    }

    let before = state(&client, &["me/model", "me/later"]).await;
    server.terminate();
    assert!(server.wait().success());
    lost::rebuild(directory.path());
    server = start();
    assert_eq!(state(&server.client().bearing(&token), &["me/model", "me/later"]).await, before);
}

#[tokio::test]
async fn rename_that_is_not_permitted_changes_nothing() {
    let server = Start::default().with("auth", "token").start();
    let all = server.client().bearing(&issue(&server, "write", "*", &[]));
    create(&all, "model").await;
    create(&all, "other").await;
    let token = |scope: &str, repo: &str| server.client().bearing(&issue(&server, scope, repo, &[]));
    for (client, from, to, status) in [
        (&all, "me/absent", "me/new", 404),
        (&all, "me/model", "me/OTHER", 409),
        (&all, "me/model", "you/model", 400),
        (&all, "me/model", "me/a..b", 400),
        (&token("read", "*"), "me/model", "me/new", 403),
        // It may write the repository, and no other name.
        (&token("write", "models/me/model"), "me/model", "me/new", 403),
        (&token("write", "datasets/me/*"), "me/model", "me/new", 404),
    ] {
        let refused = rename(client, from, to).await;
        assert_eq!(refused.status, status, "{from} to {to}: {}", refused.json());
    }
    assert_eq!(send(&all, "POST", "/api/repos/move", None, b"{}".to_vec()).await.status, 400);
    for name in ["model", "other"] {
        assert_eq!(all.get(&format!("/api/models/me/{name}")).await.json()["id"], format!("me/{name}"));
    }
    assert_eq!(rename(&all, "me/model", "me/model").await.status, 200);
}
