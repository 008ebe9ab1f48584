//! Each route of the Hub with each right and each kind of token, from the list of routes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::accounts::accounts;
use super::{commit, commit_body, create, head, put};
use crate::support::{Client, Response, RouteCase, Start, TestServer, eventually, issue, routes, send, token_command};

/// The routes that a server with the Hub has, and one without has not.
async fn hub_routes(server: &TestServer) -> Vec<RouteCase> {
    let other = Start::default().with("auth", "token").with("hub", false).start();
    let without = routes(&other.client()).await;
    let known = |route: &RouteCase| without.iter().any(|other| other.template == route.template);
    routes(&server.client()).await.into_iter().filter(|route| !known(route)).collect()
}

/// The path of a route about a repository of this name.
fn path_of(route: &RouteCase, name: &str) -> String {
    let values = BTreeMap::from([
        ("kind", "models"),
        ("namespace", "me"),
        ("name", name),
        ("revision", "main"),
        ("path", "a.txt"),
        ("*path", "a.txt"),
        ("topic", "x"),
        ("*topic", "x"),
        ("digest", "0000000000000000000000000000000000000000000000000000000000000000"),
    ]);
    let value = |name: &str| *values.get(name).unwrap_or_else(|| panic!("the parameter {name} is not known here"));
    let pieces = route.template.split(['{', '}']).enumerate();
    pieces.map(|(index, piece)| if index % 2 == 0 { piece } else { value(piece) }).collect()
}

/// A body that the route takes.
fn body_of(route: &RouteCase) -> Vec<u8> {
    let file = json!({ "path": "b.txt", "size": 1, "sample": "" });
    let object = json!({ "oid": "0".repeat(64), "size": 1 });
    let bodies = [
        ("/commit/", commit_body("a commit", None, &[put("b.txt", b"b")])),
        ("/preupload/", json!({ "files": [file] }).to_string()),
        ("/paths-info/", "paths=a.txt".to_owned()),
        ("/tag/", json!({ "tag": "v1" }).to_string()),
        ("/settings", json!({ "private": false }).to_string()),
        ("/objects/batch", json!({ "transfers": ["basic"], "objects": [object] }).to_string()),
        ("/repos/create", json!({ "name": "model", "organization": "me" }).to_string()),
        // Another one, so that the rest of the walk has its repository.
        ("/repos/delete", json!({ "name": "absent", "organization": "me" }).to_string()),
        ("/repos/move", json!({ "fromRepo": "me/absent", "toRepo": "me/model" }).to_string()),
    ];
    let body = bodies.into_iter().find(|(part, _)| route.template.contains(part));
    body.map_or_else(|| "{}".to_owned(), |(_, body)| body).into_bytes()
}

/// Whether the route is about another repository than `models/me/model`, which does not exist.
fn is_absent(route: &RouteCase) -> bool {
    ["/datasets/", "/spaces/", "/api/repos/delete", "/api/repos/move"]
        .iter()
        .any(|begin| route.template.starts_with(begin))
}

async fn call(client: &Client, route: &RouteCase, name: &str, token: Option<&str>) -> Response {
    send(client, &route.method, &path_of(route, name), token, body_of(route)).await
}

/// What a client sees of a response, without what differs between two equal requests.
fn visible(response: &Response) -> (u16, BTreeMap<String, String>, Value) {
    let headers = response.headers.iter().filter(|(name, _)| !["date", "x-request-id"].contains(&name.as_str()));
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let mut body = serde_json::from_slice(&response.body).unwrap_or(Value::Null);
    if let Some(fields) = body.as_object_mut() {
        fields.remove("request_id");
    }
    (response.status, headers, body)
}

#[tokio::test]
async fn private_repository_is_nowhere_different_from_none() {
    let server = Start::default().with("auth", "token").start();
    let client = server.client();
    let token = |scope: &str, repo: &str| issue(&server, scope, repo, &[]);
    let owner = client.bearing(&token("write", "models/me/model"));
    create(&owner, "model").await;
    let private = json!({ "private": true }).to_string().into_bytes();
    let path = "/api/models/me/model/settings";
    assert_eq!(send(&owner, "PUT", path, None, private).await.status, 200);
    assert_eq!(commit(&owner, "me/model", None, &[put("a.txt", b"secret")]).await.0, 200);
    let before = head(&owner, "me/model").await;
    accounts(&server, &["user", "add", "bob"]);
    let foreign = [
        accounts(&server, &["user", "token", "bob", "--scope", "write"]).trim_end().to_owned(),
        token("read", "models/me/other"),
        token("write", "models/me/other"),
        token("write", "datasets/me/model"),
        token("admin", "models/me"),
    ];
    let all = hub_routes(&server).await;
    let mut compared = 0;
    for route in all.iter().filter(|route| route.template.contains("{name}")) {
        for token in [None, Some("zorb_AAAA")].into_iter().chain(foreign.iter().map(|token| Some(token.as_str()))) {
            let hidden = call(&client, route, "model", token).await;
            let missing = call(&client, route, "absnt", token).await;
            assert!([401, 403, 404].contains(&hidden.status), "{route:?} {token:?}: {}", hidden.status);
            assert_eq!(visible(&hidden), visible(&missing), "{route:?} {token:?}");
            assert_eq!(hidden.body.len(), missing.body.len(), "{route:?} {token:?}");
            compared += 1;
        }
    }
    assert!(compared >= 150, "{compared} pairs");
    assert_eq!(head(&owner, "me/model").await, before);
    assert_eq!(owner.get("/api/models/me/model").await.json()["private"], true);
}

#[tokio::test]
async fn each_route_of_the_hub_needs_its_right() {
    let server = Start::default().with("auth", "token").start();
    let client = server.client();
    let token = |scope: &str, repo: &str| issue(&server, scope, repo, &[]);
    let [read, write] = ["read", "write"].map(|scope| token(scope, "models/me/model"));
    let (read_all, admin) = (token("read", "*"), token("admin", "*"));
    for user in ["reader", "writer", "stranger"] {
        accounts(&server, &["user", "add", user]);
    }
    accounts(&server, &["org", "add", "me", "--member", "reader:read", "--member", "writer:write"]);
    let of_user =
        |user: &str, scope: &str| accounts(&server, &["user", "token", user, "--scope", scope]).trim_end().to_owned();
    let users = [of_user("reader", "write"), of_user("writer", "read"), of_user("writer", "write")];
    // To a stranger the repository is public.
    let stranger = of_user("stranger", "write");
    // Their scope is write, and their roles are not.
    let of_readers = [&users[0], &stranger];
    let revoked = token("write", "models/me/model");
    create(&client.bearing(&write), "model").await;
    assert_eq!(commit(&client.bearing(&write), "me/model", None, &[put("a.txt", b"a")]).await.0, 200);
    assert!(token_command(&server, &["revoke", &revoked]).status.success());
    let revoked_client = client.bearing(&revoked);
    eventually("the revocation applies", async || revoked_client.get("/api/whoami-v2").await.status == 401).await;

    let all = hub_routes(&server).await;
    assert!(all.len() >= 30, "{} routes", all.len());
    for route in &all {
        let is_refused = async |token: Option<&str>| {
            let response = call(&client, route, "model", token).await;
            (response.status, response.headers.contains_key("x-error-message"))
        };
        let altered = format!("{}x", admin);
        for invalid in [None, Some("zorb_"), Some("hf_abc"), Some(revoked.as_str()), Some(&altered)] {
            let expected = route.scope.as_ref().map(|_| (401, true));
            let found = is_refused(invalid).await;
            assert_eq!(found.0 == 401, expected.is_some(), "{route:?} {invalid:?}: {found:?}");
            assert!(expected.is_none_or(|expected| expected == found), "{route:?} {invalid:?}: {found:?}");
        }
        for (token, may_write) in [
            (&read, false),
            (&read_all, false),
            (&users[0], false),
            (&users[1], false),
            (&stranger, false),
            (&write, true),
            (&admin, true),
            (&users[2], true),
        ] {
            let (status, _) = is_refused(Some(token.as_str())).await;
            let case = format!("{route:?} with {}: {status}", if may_write { "write" } else { "read" });
            assert_ne!(status, 401, "{case}");
            match route.scope.as_deref() {
                Some("read") => assert_ne!(status, 403, "{case}"),
                Some("write") if may_write => assert_ne!(status, 403, "{case}"),
                // To a user a repository that does not exist is missing.
                Some("write") if of_readers.contains(&token) && is_absent(route) => assert_eq!(status, 404, "{case}"),
                Some("write") => assert_eq!(status, 403, "{case}"),
                // An upload URL without its signature.
                None if route.template.starts_with("/lfs/") => assert_eq!(status, 400, "{case}"),
                None => assert_eq!(status, 200, "{case}"),
                Some(other) => panic!("{route:?} needs {other}"),
            }
        }
    }
}

#[tokio::test]
async fn refusal_of_a_token_says_in_its_headers_what_it_is_about() {
    let server = Start::default().with("auth", "token").start();
    create(&server.client().bearing(&issue(&server, "write", "models/me/model", &[])), "model").await;
    // Clients find out from headers alone what a refusal is about.
    for (client, path, code, message) in [
        (server.client(), "/me/model/resolve/main/x", Some("RepoNotFound"), "This request requires a token"),
        (server.client(), "/me/absent/resolve/main/x", Some("RepoNotFound"), "This request requires a token"),
        (server.client(), "/api/whoami-v2", None, "This request requires a token"),
        (server.client().bearing("hf_x"), "/api/whoami-v2", None, "Invalid credentials in Authorization header"),
        (
            server.client().bearing("hf_x"),
            "/me/model/resolve/main/x",
            None,
            "Invalid credentials in Authorization header",
        ),
    ] {
        let response = client.get(path).await;
        assert_eq!(response.status, 401, "{path}");
        let header = |name| response.headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("x-error-code"), code, "{path}");
        assert!(
            header("x-error-message").unwrap().starts_with(message),
            "{path}: {header:?}",
            header = response.headers
        );
    }
}
