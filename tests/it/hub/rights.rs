//! Each route of the Hub with each right and each kind of token, from the list of routes.

use std::collections::BTreeMap;
#[cfg(feature = "full-tests")]
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::accounts::accounts;
use super::{commit, commit_body, create, put};
use crate::support::{Client, Response, RouteCase, Start, TestServer, issue, routes, send, token_command};

/// The routes that a server with the Hub has, and one without has not.
pub(super) async fn hub_routes(server: &TestServer) -> Vec<RouteCase> {
    let other = Start::default().with("auth", "token").with("hub", false).start();
    let without = routes(&other.client()).await;
    let known = |route: &RouteCase| without.iter().any(|other| other.template == route.template);
    routes(&server.client()).await.into_iter().filter(|route| !known(route)).collect()
}

/// What a request is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) revision: &'a str,
}

const MODEL: Subject<'static> = Subject { kind: "models", name: "model", revision: "main" };

/// The path of a route about this.
fn path_of(route: &RouteCase, about: Subject<'_>) -> String {
    let values = BTreeMap::from([
        ("kind", about.kind),
        ("namespace", "me"),
        ("name", about.name),
        ("revision", about.revision),
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

/// Requests that name a repository in their body or query: method, path, body.
fn named_elsewhere(about: Subject<'_>) -> Vec<(&'static str, String, Vec<u8>)> {
    let Subject { kind, name, .. } = about;
    let of_kind = kind.trim_end_matches('s');
    let named = json!({ "name": name, "organization": "me", "type": of_kind }).to_string().into_bytes();
    let whole = json!({ "name": format!("me/{name}"), "type": of_kind }).to_string().into_bytes();
    let from = json!({ "fromRepo": format!("me/{name}"), "toRepo": "me/other", "type": of_kind }).to_string();
    let to = json!({ "fromRepo": "me/other", "toRepo": format!("me/{name}"), "type": of_kind }).to_string();
    vec![
        ("POST", "/api/repos/create".to_owned(), named.clone()),
        ("POST", "/api/repos/create".to_owned(), whole),
        ("DELETE", "/api/repos/delete".to_owned(), named),
        ("POST", "/api/repos/move".to_owned(), from.into_bytes()),
        ("POST", "/api/repos/move".to_owned(), to.into_bytes()),
        ("GET", format!("/api/{kind}?search={name}"), Vec::new()),
        ("GET", format!("/api/{kind}?author=me&search={name}&limit=1"), Vec::new()),
    ]
}

/// Whether the route is about another repository than `models/me/model`, which does not exist.
fn is_absent(route: &RouteCase) -> bool {
    ["/datasets/", "/spaces/", "/api/repos/delete", "/api/repos/move"]
        .iter()
        .any(|begin| route.template.starts_with(begin))
}

pub(super) async fn call(client: &Client, route: &RouteCase, about: Subject<'_>, token: Option<&str>) -> Response {
    send(client, &route.method, &path_of(route, about), token, body_of(route)).await
}

/// What a client sees of a response, without what differs between two equal requests.
pub(super) fn visible(response: &Response) -> (u16, BTreeMap<String, String>, Value) {
    let headers = response.headers.iter().filter(|(name, _)| !["date", "x-request-id"].contains(&name.as_str()));
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    let mut body = serde_json::from_slice(&response.body).unwrap_or(Value::Null);
    if let Some(fields) = body.as_object_mut() {
        fields.remove("request_id");
    }
    (response.status, headers, body)
}

/// What the token for the dataset is. For the other kinds it is a foreign one.
const OF_DATASET: &str = "for the dataset of this name";

/// Tokens that do not permit to see `me/model` of any kind, or but one, by what they are.
async fn foreign_tokens(server: &TestServer) -> Vec<(&'static str, String)> {
    let token = |scope: &str, repo: &str| issue(server, scope, repo, &[]);
    let of_user = |user: &str| accounts(server, &["user", "token", user, "--scope", "write"]).trim_end().to_owned();
    for user in ["bob", "former", "disabled", "revoked"] {
        accounts(server, &["user", "add", user]);
    }
    accounts(
        server,
        &["org", "add", "me", "--member", "former:write", "--member", "disabled:write", "--member", "revoked:write"],
    );
    let tokens = vec![
        ("of another user", of_user("bob")),
        ("of a former member", of_user("former")),
        ("of a disabled member", of_user("disabled")),
        ("a revoked one of a member", of_user("revoked")),
        ("to read another repository", token("read", "models/me/other")),
        ("to write another repository", token("write", "models/me/other")),
        ("for another namespace", token("write", "*/you/*")),
        ("for a repository whose name is a part of it", token("write", "models/me/mode")),
        ("for what begins like the repository", token("admin", "models/me")),
        (OF_DATASET, token("write", "datasets/me/model")),
        ("revoked", token("write", "*")),
    ];
    accounts(server, &["org", "member", "me", "former:none"]);
    accounts(server, &["user", "disable", "disabled"]);
    accounts(server, &["user", "revoke", "revoked"]);
    assert!(token_command(server, &["revoke", &tokens.last().unwrap().1]).status.success());
    let client = server.client();
    for (what, token) in &tokens {
        if ["revoked", "of a disabled member", "a revoked one of a member"].contains(what) {
            let bearing = client.bearing(token);
            bearing.eventually(what, async |bearing| bearing.get("/api/whoami-v2").await.status == 401).await;
        }
    }
    let former = client.bearing(&tokens[1].1);
    let has_no_role = async |former: &Client| former.get("/api/whoami-v2").await.json()["orgs"] == json!([]);
    former.eventually("the role is lost", has_no_role).await;
    tokens
}

#[tokio::test]
async fn private_repository_is_nowhere_different_from_none() {
    let server = Start::default().with("auth", "token").start();
    let client = server.client();
    let owner = client.bearing(&issue(&server, "admin", "*", &[]));
    let mut commits = BTreeMap::new();
    for kind in ["model", "dataset", "space"] {
        let new = json!({ "name": "model", "organization": "me", "type": kind, "private": true }).to_string();
        assert_eq!(owner.post("/api/repos/create", new).await.status, 200);
        let path = format!("/api/{kind}s/me/model/commit/main");
        let made = owner.post(&path, commit_body("a commit", None, &[put("a.txt", b"secret")])).await;
        assert_eq!(made.status, 200, "{kind}");
        commits.insert(format!("{kind}s"), made.json()["commitOid"].as_str().unwrap().to_owned());
    }
    let foreign = foreign_tokens(&server).await;
    let tokens: Vec<_> = foreign.iter().map(|(what, token)| (*what, Some(token.as_str()))).collect();
    let tokens = [vec![("none", None), ("invalid", Some("zorb_AAAA"))], tokens].concat();
    let compare = |what: String, hidden: Response, missing: Response| {
        assert!([200, 401, 403, 404].contains(&hidden.status), "{what}: {}", hidden.status);
        assert_eq!(visible(&hidden), visible(&missing), "{what}");
        assert_eq!(hidden.body.len(), missing.body.len(), "{what}");
        assert!(!String::from_utf8_lossy(&hidden.body).contains("a.txt"), "{what}");
    };
    let all = hub_routes(&server).await;
    let mut compared = 0;
    for route in all.iter().filter(|route| route.template.contains("{name}")) {
        // The other kinds have routes of their own where the path does not name the kind.
        let kinds =
            if route.template.contains("{kind}") { vec!["models", "datasets", "spaces"] } else { vec!["models"] };
        for (kind, revision) in kinds.into_iter().flat_map(|kind| [(kind, "main"), (kind, commits[kind].as_str())]) {
            let is_dataset = kind == "datasets" || route.template.starts_with("/datasets/");
            for (what, token) in tokens.iter().filter(|(what, _)| !is_dataset || *what != OF_DATASET) {
                let hidden = call(&client, route, Subject { kind, name: "model", revision }, *token).await;
                let missing = call(&client, route, Subject { kind, name: "absnt", revision }, *token).await;
                assert_ne!(hidden.status, 200, "{route:?} {kind} {revision}, token: {what}");
                compare(format!("{route:?} {kind} {revision}, token: {what}"), hidden, missing);
                compared += 1;
            }
        }
    }
    for kind in ["models", "datasets", "spaces"] {
        let about = |name| Subject { kind, name, revision: "main" };
        for (hidden, missing) in named_elsewhere(about("model")).into_iter().zip(named_elsewhere(about("absnt"))) {
            for (what, token) in tokens.iter().filter(|(what, _)| kind != "datasets" || *what != OF_DATASET) {
                let case = format!("{} {} {kind}, token: {what}", hidden.0, hidden.1);
                let (method, path, body) = hidden.clone();
                let hidden = send(&client, method, &path, *token, body).await;
                let (method, path, body) = missing.clone();
                compare(case, hidden, send(&client, method, &path, *token, body).await);
                compared += 1;
            }
        }
    }
    assert!(compared >= 2000, "{compared} pairs");
    for (kind, commit) in &commits {
        let now = owner.get(&format!("/api/{kind}/me/model")).await.json();
        assert_eq!((&now["private"], now["sha"].as_str()), (&json!(true), Some(commit.as_str())), "{kind}");
    }
}

/// Two repositories cannot have one name, so who may create it learns that it is in use. Here a hidden repository has
/// the name that a token is for, under another storage name.
#[tokio::test]
async fn hidden_repository_shows_only_that_its_name_is_in_use() {
    let server = Start::default().with("auth", "token").start();
    let client = server.client();
    let owner = client.bearing(&issue(&server, "admin", "*", &[]));
    let rename = async |client: &Client, from: &str, to: &str| {
        let names = json!({ "fromRepo": from, "toRepo": to, "type": "model" }).to_string();
        client.post("/api/repos/move", names).await
    };
    let new = json!({ "name": "first", "organization": "me", "private": true }).to_string();
    assert_eq!(owner.post("/api/repos/create", new).await.status, 200);
    assert_eq!(commit(&owner, "me/first", None, &[put("a.txt", b"secret")]).await.0, 200);
    assert_eq!(rename(&owner, "me/first", "me/model").await.status, 200);
    // The last one is for a namespace that differs from that of the repository by its case.
    for (of_hidden, of_missing) in [("models/me/model", "models/me/absnt"), ("models/Me/*", "models/Me/*")] {
        let token = |repo: &str| issue(&server, "write", repo, &[]);
        let (of_hidden, of_missing) = (token(of_hidden), token(of_missing));
        let both = [("model", &of_hidden), ("absnt", &of_missing)];
        let seen = |response: Response| {
            let (status, headers, body) = visible(&response);
            // The two names have one length.
            (status, headers, body.to_string().replace("absnt", "model"), response.body.len())
        };
        let mut compared = 0;
        for route in hub_routes(&server).await.iter().filter(|route| route.template.contains("{name}")) {
            let mut pair = Vec::new();
            for (name, token) in both {
                pair.push(seen(
                    call(&client, route, Subject { kind: "models", name, revision: "main" }, Some(token)).await,
                ));
            }
            assert_eq!(pair[0], pair[1], "{route:?}");
            compared += 1;
        }
        assert!(compared >= 20, "{compared} routes");
        for index in 2..named_elsewhere(MODEL).len() {
            let mut pair = Vec::new();
            for (name, token) in both {
                let about = Subject { kind: "models", name, revision: "main" };
                let (method, path, body) = named_elsewhere(about).swap_remove(index);
                pair.push(seen(send(&client, method, &path, Some(token), body).await));
            }
            assert_eq!(pair[0], pair[1], "{index}");
        }
    }
    let create = async |repo: &str, namespace: &str, name: &str| {
        let new = json!({ "name": name, "organization": namespace }).to_string();
        client.bearing(&issue(&server, "write", repo, &[])).post("/api/repos/create", new).await
    };
    // The refusal is that of a name that the token does not permit.
    let refusal = create("models/me/model", "me", "absnt").await;
    assert_eq!(refusal.status, 403);
    let is_refusal = |refused: Response| {
        assert_eq!(visible(&refused), visible(&refusal));
        assert_eq!(refused.body.len(), refusal.body.len());
    };
    for (repo, namespace) in [("models/me/model", "me"), ("models/Me/*", "Me")] {
        is_refusal(create(repo, namespace, "model").await);
    }
    assert_eq!(create("models/me/absnt", "me", "absnt").await.status, 200);
    assert_eq!(create("models/Me/*", "Me", "other").await.status, 200);
    // The same for the new name of a repository.
    let own = client.bearing(&issue(&server, "write", "models/Me/*", &[]));
    is_refusal(rename(&own, "Me/other", "Me/model").await);
    assert_eq!(rename(&own, "Me/other", "Me/later").await.status, 200);
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
    let is_refused = async |client: &Client| client.get("/api/whoami-v2").await.status == 401;
    revoked_client.eventually("the revocation applies", is_refused).await;

    let all = hub_routes(&server).await;
    assert!(all.len() >= 30, "{} routes", all.len());
    for route in &all {
        let is_refused = async |token: Option<&str>| {
            let response = call(&client, route, MODEL, token).await;
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

#[cfg(feature = "full-tests")]
#[tokio::test]
async fn expired_token_is_like_an_invalid_one_for_each_route() {
    let server = Start::default().with("auth", "token").start();
    let client = server.client();
    accounts(&server, &["user", "add", "me"]);
    let of_user = accounts(&server, &["user", "token", "me", "--scope", "write", "--ttl", "1s"]);
    let issued = [("write", "models/me/model"), ("write", "*/me/*"), ("admin", "*")];
    let issued = issued.map(|(scope, repo)| issue(&server, scope, repo, &["--ttl", "1s"]));
    create(&client.bearing(&issue(&server, "admin", "*", &[])), "model").await;
    // They are accepted for a minute after their end.
    for token in [of_user.trim_end()].into_iter().chain(issued.iter().map(String::as_str)) {
        let (begin, bearing) = (Instant::now(), client.bearing(token));
        while bearing.get("/api/whoami-v2").await.status != 401 {
            assert!(begin.elapsed() < Duration::from_secs(150), "the token does not expire");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        for route in hub_routes(&server).await.iter().filter(|route| route.scope.is_some()) {
            let expired = call(&client, route, MODEL, Some(token)).await;
            let invalid = call(&client, route, MODEL, Some("zorb_AAAA")).await;
            assert_eq!((expired.status, visible(&expired)), (401, visible(&invalid)), "{route:?}");
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
