//! Squashed branches and changed visibility.

use reqwest::Method;
use serde_json::{Value, json};

use super::{commit, create, files, head, put};
use crate::support::{Client, Response, TestServer};

async fn send(client: &Client, method: Method, path: &str, body: &Value) -> Response {
    Response::of(client.request(method, path).body(body.to_string())).await
}

#[tokio::test]
async fn squashed_branch_has_the_same_files_and_one_commit() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    for n in 0..4 {
        assert_eq!(commit(&client, "me/model", None, &[put(&format!("{n}.txt"), &[n])]).await.0, 200);
    }
    let (before, old) = (files(&client, "me/model", "main", 1000).await, head(&client, "me/model").await);
    let squash = async |branch: &str, message: &str| {
        let path = format!("/api/models/me/model/super-squash/{branch}");
        send(&client, Method::POST, &path, &json!({ "message": message })).await.status
    };
    assert_eq!(squash("absent", "x").await, 404);
    assert_eq!(squash("main", "a\0b").await, 400);
    assert_eq!(squash("main", "all of it").await, 200);
    let history = client.get("/api/models/me/model/commits/main").await.json();
    assert_eq!(history.as_array().unwrap().len(), 1);
    assert_eq!((&history[0]["title"], head(&client, "me/model").await == old), (&json!("all of it"), false));
    assert_eq!(files(&client, "me/model", "main", 1000).await, before);
    // The parent of a client that has not noticed is not the head any more.
    assert_eq!(commit(&client, "me/model", Some(&old), &[put("x", b"x")]).await.0, 412);
    assert_eq!(commit(&client, "me/model", None, &[put("x", b"x")]).await.0, 200);
}

#[tokio::test]
async fn visibility_is_what_was_set_and_nothing_is_gated() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let is_private = async || client.get("/api/models/me/model").await.json()["private"].clone();
    assert_eq!(is_private().await, json!(false));
    let set = async |body: Value| send(&client, Method::PUT, "/api/models/me/model/settings", &body).await.status;
    assert_eq!(set(json!({ "visibility": "private" })).await, 200);
    assert_eq!(is_private().await, json!(true));
    assert_eq!(set(json!({ "private": false, "gated": false })).await, 200);
    assert_eq!(is_private().await, json!(false));
    for refused in [json!({ "visibility": "secret" }), json!({ "gated": "auto", "private": true }), json!(3)] {
        assert_eq!(set(refused.clone()).await, 400, "{refused}");
    }
    assert_eq!(is_private().await, json!(false));
    let absent = send(&client, Method::PUT, "/api/models/me/absent/settings", &json!({ "private": true })).await;
    assert_eq!((absent.status, absent.header("x-error-code")), (404, "RepoNotFound"));
}
