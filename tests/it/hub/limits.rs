//! Limits of requests: how many at once, and how long.

use futures_util::future::join_all;
use serde_json::json;

use super::{create, put};
use crate::support::TestServer;

/// With a second permit for each, some of them would hold all permits and wait for more.
#[tokio::test]
async fn many_clients_read_a_history_at_once() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    assert_eq!(super::commit(&client, "me/model", None, &[put("a", b"1")]).await.0, 200);
    let pages = join_all((0..100).map(|_| client.get("/api/models/me/model/commits/main"))).await;
    for page in pages {
        assert_eq!((page.status, page.json().as_array().map(Vec::len)), (200, Some(2)));
    }
}

#[tokio::test]
async fn body_above_its_limit_is_refused() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let padded = |body: serde_json::Value, len: usize| {
        let body = body.to_string();
        let spaces = " ".repeat(len - body.len());
        body + &spaces
    };
    let new = |name: &str| json!({ "name": name, "organization": "me" });
    let branch = |name: &str| format!("/api/models/me/model/branch/{name}");
    let paths = "/api/models/me/model/paths-info/main";
    for (path, body, limit) in [
        ("/api/repos/create", new("other"), 64 << 10),
        (&branch("b"), json!({}), 64 << 10),
        ("/api/models/me/model/preupload/main", json!({ "files": [] }), 2 << 20),
        ("/me/model.git/info/lfs/objects/batch", json!({ "objects": [] }), 2 << 20),
        ("/api/validate-yaml", json!({ "content": "a" }), 2 << 20),
    ] {
        let refused = client.post(path, padded(body.clone(), limit + 1)).await;
        assert_eq!((refused.status, &refused.json()["limit"]), (413, &json!(limit)), "{path}");
        assert_eq!(client.post(path, padded(body, limit)).await.status, 200, "{path}");
    }
    // A form; each pair of an empty one would take memory.
    assert_eq!(client.post(paths, "&".repeat(1 << 20)).await.status, 400);
    let form = format!("{}expand=false", "paths=none&".repeat(1000));
    assert_eq!(client.post(paths, form).await.json(), json!([]));
    assert_eq!(client.post(paths, "paths=none&".repeat(1001)).await.status, 400);
}
