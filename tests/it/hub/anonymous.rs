//! Clients without a token, on a server that shows them public repositories (`anonymous_read`).

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::accounts::{accounts, client_of};
use super::lfs::line;
use super::rights::{Subject, call, hub_routes, visible};
use super::{commit, put, stored_xorb};
use crate::support::{Client, Response, Start, TestServer, issue, register, send, sha256_of, upload_shard};

fn server() -> TestServer {
    Start::default().with("auth", "token").with("anonymous_read", true).start()
}

/// Creates `me/open`, which is public, and `me/closed`, each with a small file.
async fn create_both(owner: &Client) {
    for (name, visibility) in [("open", "public"), ("closed", "private")] {
        let new = json!({ "name": name, "organization": "me", "visibility": visibility }).to_string();
        assert_eq!(owner.post("/api/repos/create", new).await.status, 200);
        assert_eq!(commit(owner, &format!("me/{name}"), None, &[put("a.txt", b"a")]).await.0, 200);
    }
}

fn model(name: &str) -> Subject<'_> {
    Subject { kind: "models", name, revision: "main" }
}

#[tokio::test]
async fn client_without_a_token_reads_what_any_user_reads() {
    let server = server();
    let client = server.client();
    create_both(&client.bearing(&issue(&server, "admin", "*", &[]))).await;
    accounts(&server, &["user", "add", "stranger"]);
    let stranger = accounts(&server, &["user", "token", "stranger", "--scope", "read"]);
    let (mut shown_count, mut refused_count) = (0, 0);
    for route in hub_routes(&server).await.iter().filter(|route| route.scope.is_some()) {
        let names_repo = route.template.contains("{name}");
        let is_shown = route.scope.as_deref() == Some("read") && (names_repo || route.template == "/api/{kind}");
        let response = call(&client, route, model("open"), None).await;
        if !is_shown {
            assert_eq!(response.status, 401, "{route:?}");
            refused_count += 1;
            continue;
        }
        let as_user = call(&client, route, model("open"), Some(stranger.trim_end())).await;
        // A token is required for a repository that does not exist, as for a hidden one.
        let is_missing = as_user.headers.get("x-error-code").is_some_and(|code| code == "RepoNotFound");
        assert_eq!(response.status, if is_missing { 401 } else { as_user.status }, "{route:?}");
        shown_count += usize::from(response.status == 200);
        if response.status == 200 && !route.template.contains("-token") {
            assert_eq!(visible(&response), visible(&as_user), "{route:?}");
        }
        let hidden = call(&client, route, model("closed"), None).await;
        let missing = call(&client, route, model("absent"), None).await;
        assert_eq!(visible(&hidden), visible(&missing), "{route:?}");
        if names_repo {
            assert_eq!((hidden.status, hidden.header("x-error-code")), (401, "RepoNotFound"), "{route:?}");
        }
    }
    assert!(shown_count >= 10 && refused_count >= 15, "{shown_count} shown, {refused_count} refused");
    let listed = client.get("/api/models").await.json();
    let ids: Vec<&Value> = listed.as_array().unwrap().iter().map(|repo| &repo["id"]).collect();
    assert_eq!(ids, ["me/open"]);
    // A token that is none is not taken for a client without one.
    assert_eq!(client.bearing("hf_x").get("/api/models/me/open").await.status, 401);
    assert_eq!(client.get("/v1/files").await.status, 401, "only routes of the Hub are open");
}

#[tokio::test]
async fn without_a_token_only_files_of_public_repositories_transfer() {
    let server = server();
    let client = server.client();
    let owner = client.bearing(&issue(&server, "admin", "*", &[]));
    create_both(&owner).await;
    let token =
        async |client: &Client, path: &str| client.get(path).await.json()["accessToken"].as_str().unwrap().to_owned();
    let writer = client.bearing(&token(&owner, "/api/models/me/open/xet-write-token/main").await);
    let xorb = stored_xorb(&writer).await;
    let raw = xorb.raw(0, 5).to_vec();
    assert_eq!(register(&writer, upload_shard(&xorb, 0, 5).claiming(sha256_of(&raw)).bytes()).await, 1);
    assert_eq!(commit(&owner, "me/open", None, &[line("w.bin", &raw)]).await.0, 200);
    // As clients without hf_xet, and as hf_xet.
    let whole = client.get("/me/open/resolve/main/w.bin").await;
    assert_eq!((whole.status, &whole.body[..]), (200, &raw[..]));
    let of_anonymous = token(&client, "/api/models/me/open/xet-read-token/main").await;
    let reader = client.bearing(&of_anonymous);
    let path = format!("/v1/reconstructions/{}", whole.header("x-xet-hash"));
    assert_eq!(reader.get(&path).await.status, 200);
    assert_eq!(reader.get(&xorb.path()).await.status, 404, "whole xorbs have bytes of others");
    assert_eq!(reader.get(&format!("/v1/chunks/default/{}", xorb.chunk_hash(0))).await.status, 404);
    assert_eq!(reader.post(&xorb.path(), xorb.bytes.clone()).await.status, 403);
    assert_eq!(reader.get("/api/models/me/closed").await.status, 404);
    assert_eq!(client.get("/api/models/me/open/xet-write-token/main").await.status, 401);

    let of_user = token(&owner, "/api/models/me/open/xet-read-token/main").await;
    let server = server.restart_with(|start| start.with("auth", "token"));
    let plan = async |token: &str| server.client().bearing(token).get(&path).await.status;
    assert_eq!((plan(&of_anonymous).await, plan(&of_user).await), (401, 200), "the setting has changed since");
}

/// The public repository has the first name of a hidden one, so its storage name differs from its name.
#[tokio::test]
async fn readers_do_not_see_that_a_hidden_repository_had_the_name() {
    let server = server();
    let owner = server.client().bearing(&issue(&server, "admin", "*", &[]));
    create_both(&owner).await;
    let renamed = json!({ "fromRepo": "me/closed", "toRepo": "me/hidden", "type": "model" }).to_string();
    assert_eq!(owner.post("/api/repos/move", renamed).await.status, 200);
    let new = json!({ "name": "closed", "organization": "me", "private": false }).to_string();
    assert_eq!(owner.post("/api/repos/create", new).await.status, 200);
    assert_eq!(commit(&owner, "me/closed", None, &[put("a.txt", b"a")]).await.0, 200);
    let fresh = json!({ "name": "latest", "organization": "me", "private": false }).to_string();
    assert_eq!(owner.post("/api/repos/create", fresh).await.status, 200);
    assert_eq!(commit(&owner, "me/latest", None, &[put("a.txt", b"a")]).await.0, 200);
    let stored = owner.get("/v1/usage?repo=models/me/closed~2").await.json();
    assert!(stored["repos"][0]["files"].as_u64().unwrap() > 0, "its storage name: {stored}");
    accounts(&server, &["user", "add", "stranger"]);
    let holders = [server.client(), client_of(&server, "stranger", "write")];
    for client in &holders {
        // The same headers and lengths.
        for route in hub_routes(&server).await.iter().filter(|route| route.template.contains("{name}")) {
            let taken = call(client, route, model("closed"), None).await;
            let never = call(client, route, model("latest"), None).await;
            assert_eq!((taken.status, taken.body.len()), (never.status, never.body.len()), "{route:?}");
            let names = |response: &Response| response.headers.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&taken), names(&never), "{route:?}");
            let shown = [format!("{:?}", taken.headers), String::from_utf8_lossy(&taken.body).into_owned()].concat();
            assert!(!shown.contains("~2") && !shown.contains("hidden"), "{route:?}: {shown}");
        }
        let mut seen = Vec::new();
        for name in ["closed", "latest"] {
            let given = client.get(&format!("/api/models/me/{name}/xet-read-token/main")).await;
            let token = given.json()["accessToken"].as_str().unwrap().to_owned();
            let payload = BASE64_URL_SAFE_NO_PAD.decode(token.strip_prefix("zorb_").unwrap()).unwrap();
            let shows = |text: &str| payload.windows(text.len()).any(|window| window == text.as_bytes());
            assert!(!shows("models") && !shows(name), "{name}");
            let transfer = server.client().bearing(&token);
            assert_eq!(transfer.get(&format!("/me/{name}/resolve/main/a.txt")).await.body, "a");
            let usage = transfer.get("/v1/usage").await;
            assert_eq!(usage.status, 403, "{name}");
            let files = transfer.get("/v1/files").await;
            let lens = (given.body.len(), token.len());
            seen.push((lens, given.header("content-length").to_owned(), visible(&usage), visible(&files)));
        }
        assert_eq!(seen[0], seen[1]);
    }
}

/// Not later: made private, it is not told from a deleted one, nor is a later one of its name.
#[tokio::test]
async fn token_for_reading_ends_with_the_public_repository() {
    let server = server();
    let owner = server.client().bearing(&issue(&server, "admin", "*", &[]));
    create_both(&owner).await;
    let set = async |visibility: &str| {
        let change = json!({ "visibility": visibility }).to_string().into_bytes();
        assert_eq!(send(&owner, "PUT", "/api/models/me/open/settings", None, change).await.status, 200);
    };
    let create = async |visibility: &str| {
        let name = json!({ "name": "open", "organization": "me", "visibility": visibility }).to_string();
        assert_eq!(owner.post("/api/repos/create", name).await.status, 200);
    };
    let delete = async || {
        let name = json!({ "name": "open", "organization": "me" }).to_string().into_bytes();
        assert_eq!(send(&owner, "DELETE", "/api/repos/delete", None, name).await.status, 200);
    };
    let given = server.client().get("/api/models/me/open/xet-read-token/main").await.json();
    let reader = server.client().bearing(given["accessToken"].as_str().unwrap());
    let file = server.client().get("/me/open/resolve/main/.gitattributes").await;
    assert_eq!(file.status, 200);
    let hash = owner.get("/v1/files").await.json()["files"][0]["hash"].as_str().unwrap().to_owned();
    let paths = [format!("/v1/files/{hash}"), format!("/v1/reconstructions/{hash}"), "/api/models/me/open".to_owned()];
    let seen = async || {
        let mut seen = Vec::new();
        for path in &paths {
            let response = reader.get(path).await;
            seen.push((response.status, visible(&response), response.body.len()));
        }
        seen
    };
    let is_open = async || seen().await.iter().all(|seen| seen.0 == 200);
    assert!(is_open().await);
    set("private").await;
    let hidden = seen().await;
    assert!(hidden.iter().all(|seen| seen.0 == 401), "{hidden:?}");
    set("public").await;
    assert!(is_open().await);
    delete().await;
    assert_eq!(seen().await, hidden);
    for visibility in ["private", "public"] {
        create(visibility).await;
        assert_eq!(seen().await, hidden, "{visibility}");
        delete().await;
    }
}

/// A browser reaches this server from its network, also for the page of another site.
#[tokio::test]
async fn pages_of_other_sites_read_no_public_repository() {
    let server = server();
    let client = server.client();
    create_both(&client.bearing(&issue(&server, "admin", "*", &[]))).await;
    let path = "/me/open/resolve/main/a.txt";
    for header in [("origin", "https://evil.example"), ("host", "evil.example")] {
        client.get_with(path, &[header]).await.problem(403, "forbidden");
    }
    assert_eq!(client.get_with(path, &[("host", "localhost")]).await.status, 200);
}

#[tokio::test]
async fn unsaid_visibility_is_that_of_the_settings() {
    for (setting, is_private) in [(None, true), (Some("private"), true), (Some("public"), false)] {
        let start = Start::default().with("auth", "token");
        let server = setting.into_iter().fold(start, |start, value| start.with("default_visibility", value)).start();
        accounts(&server, &["user", "add", "alice"]);
        let alice = client_of(&server, "alice", "write");
        let create = async |name: &str, more: Value| {
            let mut new = json!({ "name": name });
            new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(alice.post("/api/repos/create", new.to_string()).await.status, 200);
            alice.get(&format!("/api/models/alice/{name}")).await.json()["private"].as_bool().unwrap()
        };
        assert_eq!(create("silent", json!({})).await, is_private, "{setting:?}");
        assert!(!create("open", json!({ "private": false })).await);
        assert!(create("closed", json!({ "visibility": "private" })).await);
        let again = alice.post("/api/repos/create", json!({ "name": "open" }).to_string()).await;
        let problem = again.problem(409, "conflict");
        assert_eq!((&problem["id"], &problem["error"]), (&json!("alice/open"), &problem["detail"]));
        assert!(problem["url"].as_str().unwrap().ends_with("/alice/open"));
    }
}

#[tokio::test]
async fn what_a_repository_stores_is_told_to_those_with_a_role() {
    let server = server();
    let client = server.client();
    accounts(&server, &["user", "add", "alice"]);
    accounts(&server, &["user", "add", "bob"]);
    let (alice, bob) = (client_of(&server, "alice", "write"), client_of(&server, "bob", "write"));
    let new = json!({ "name": "open", "visibility": "public" }).to_string();
    assert_eq!(alice.post("/api/repos/create", new).await.status, 200);
    assert_eq!(commit(&alice, "alice/open", None, &[put("a.txt", b"a")]).await.0, 200);
    let stored = async |client: &Client| {
        let Response { status, body, .. } = client.get("/api/models/alice/open").await;
        assert_eq!(status, 200);
        serde_json::from_slice::<Value>(&body).unwrap()["usedStorage"].as_u64()
    };
    let own = client_of(&server, "alice", "read").get("/api/settings/repositories").await.json();
    assert!(own[0]["storage"].as_u64().unwrap() > 0);
    assert_eq!(stored(&alice).await, own[0]["storage"].as_u64());
    assert_eq!((stored(&bob).await, stored(&client).await), (None, None));
}
