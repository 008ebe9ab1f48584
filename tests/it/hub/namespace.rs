//! Tokens for all repositories of a namespace.

use serde_json::json;

use super::{commit, files, put};
use crate::support::{Client, Start, TestServer, issue, send};

async fn create(client: &Client, kind: &str, namespace: Option<&str>, name: &str) -> u16 {
    let body = json!({ "name": name, "organization": namespace, "type": kind, "private": true }).to_string();
    client.post("/api/repos/create", body).await.status
}

#[tokio::test]
async fn token_of_a_namespace_is_for_its_repositories_only() {
    let server = Start::default().with("auth", "token").start();
    let client = server.client();
    let token = |scope: &str, repo: &str| issue(&server, scope, repo, &[]);
    let (models, all) = (client.bearing(&token("write", "models/me/*")), client.bearing(&token("write", "*/me/*")));
    let foreign = client.bearing(&token("write", "models/you/*"));
    assert_eq!(models.get("/api/whoami-v2").await.json()["name"], "me");
    // Without a namespace, it is that of the token.
    assert_eq!(create(&models, "model", None, "one").await, 200);
    assert_eq!(create(&models, "model", Some("me"), "two").await, 200);
    assert_eq!(
        (create(&models, "dataset", Some("me"), "data").await, create(&all, "dataset", None, "data").await),
        (403, 200)
    );
    assert_eq!(
        (create(&models, "model", Some("you"), "x").await, create(&foreign, "model", None, "x").await),
        (403, 200)
    );
    assert_eq!(commit(&models, "me/one", None, &[put("a.txt", b"one")]).await.0, 200);
    assert_eq!(files(&all, "me/one", "main", 9).await["a.txt"], b"one");
    // It does not show what it is not for.
    for (path, absent) in [
        ("/api/models/me/one", "/api/models/me/absent"),
        ("/me/one/resolve/main/a.txt", "/me/absent/resolve/main/a.txt"),
    ] {
        let (hidden, missing) = (foreign.get(path).await, foreign.get(absent).await);
        assert_eq!((hidden.status, missing.status, hidden.body.len()), (404, 404, missing.body.len()), "{path}");
    }
    let names = async |client: &Client, kind: &str| {
        let listed = client.get(&format!("/api/{kind}")).await.json();
        listed.as_array().unwrap().iter().map(|repo| repo["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&models, "models").await, ["me/two", "me/one"]);
    assert_eq!(
        (names(&models, "datasets").await.len(), names(&all, "datasets").await),
        (0, vec!["me/data".to_owned()])
    );
    assert_eq!(names(&foreign, "models").await, ["you/x"]);
    // The token for a transfer is for the one repository.
    let issued = models.get("/api/models/me/one/xet-write-token/main").await.json();
    let transfer = client.bearing(issued["accessToken"].as_str().unwrap());
    assert_eq!(transfer.get("/v1/usage").await.json()["repos"][0]["repo"], "models/me/one");
    assert_eq!(transfer.get("/api/models/me/two").await.status, 404);
    let read = token("read", "models/me/*");
    assert_eq!(send(&client, "POST", "/api/models/me/one/branch/b", Some(&read), b"{}".to_vec()).await.status, 403);
}

/// Other routes are about the one repository that the token names.
#[tokio::test]
async fn token_of_a_namespace_is_refused_by_all_other_routes() {
    let server = Start::default().with("auth", "token").start();
    let client = server.client().bearing(&issue(&server, "write", "models/me/*", &[]));
    for path in ["/v1/files", "/v1/usage"] {
        let refused = client.get(path).await;
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("namespace models/me/*"), "{path}");
    }
    assert_eq!(client.post(&format!("/xorbs/{}", "0".repeat(64)), "x").await.status, 403);
}

/// Clients look at the code in the header: with any other refusal they report a server that is broken, and retry.
#[tokio::test]
async fn repository_without_a_namespace_is_not_found() {
    let server = TestServer::start();
    let client = server.client();
    assert_eq!(create(&client, "model", Some("me"), "model").await, 200);
    for path in [
        "/api/models/gpt2",
        "/api/datasets/squad",
        "/api/models/gpt2/revision/main",
        "/api/models/gpt2/tree/main",
        "/api/spaces/demo/tree/refs%2Fheads%2Fmain",
        "/api/models/gpt2/xet-read-token/main",
        "/api/models/gpt2/auth-check/write",
        "/gpt2.git/info/lfs/objects/batch",
        "/gpt2/resolve/main/config.json",
        "/gpt2/resolve/main/a/b.txt",
        "/datasets/squad/resolve/main/data.csv",
        "/spaces/demo/resolve/main/app.py",
    ] {
        let response = client.get(path).await;
        let header = |name| response.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!((response.status, header("x-error-code").as_deref()), (404, Some("RepoNotFound")), "{path}");
        assert!(header("x-error-message").unwrap().starts_with("Repository not found"), "{path}");
    }
    // What does not exist of another repository is no missing repository.
    for path in ["/api/models/me/model/discussions", "/api/models/me/model/tree", "/v1/other/resolve"] {
        let response = client.get(path).await;
        assert_eq!((response.status, response.headers.get("x-error-code")), (404, None), "{path}");
    }
    let without = Start::default().with("hub", false).start();
    assert_eq!(without.client().get("/gpt2/resolve/main/config.json").await.headers.get("x-error-code"), None);
}

#[tokio::test]
async fn token_for_the_uploads_of_a_pull_request_is_refused() {
    let server = TestServer::start();
    let client = server.client();
    assert_eq!(create(&client, "model", Some("me"), "model").await, 200);
    let path = "/api/models/me/model/xet-write-token/main";
    assert_eq!(client.get(path).await.status, 200);
    assert_eq!(client.get(&format!("{path}?create_pr=0")).await.status, 200);
    assert_eq!(client.get(&format!("{path}?create_pr=1")).await.status, 403);
    assert_eq!(client.get("/api/models/me/model/xet-read-token/main?create_pr=1").await.status, 200);
}
