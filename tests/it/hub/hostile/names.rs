//! Hostile names: paths in commits and in URLs, repositories and namespaces.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::hub::{commit, commit_body, create, delete, files, head, put};
use crate::support::{Client, Raw, Response, RouteCase, Start, TestServer, guarded, issue, routes, sha256_of};

/// Sends this path as it is: other clients resolve `..` in it.
async fn get(server: &TestServer, path: &str) -> Response {
    let mut connection = Raw::connect(server).await;
    connection.send(format!("GET {path} HTTP/1.1\r\nhost: zorb\r\nconnection: close\r\n\r\n")).await;
    connection.response().await
}

/// Paths that no file may have, as they are in the decoded JSON.
fn refused_paths() -> Vec<String> {
    let paths = [
        "",
        "/",
        "/etc/passwd",
        "a//b",
        ".",
        "./a",
        "..",
        "../a",
        "a/..",
        "a/../b",
        "../../../../etc/passwd",
        ".git",
        ".GIT/config",
        "a/.giT/hooks/update",
        ".git ",
        ".git.",
        ".git. . ",
        "git~1/config",
        "GIT~1",
        ".git::$INDEX_ALLOCATION/config",
        ".g\u{200c}it/config",
        "a\\b",
        "..\\..\\a",
        "C:\\a",
        ".git\\config",
        "a\0",
        "a\nb",
        "a\r\nset-cookie: b",
        "\t",
        "\u{7f}",
        "\u{85}",
    ];
    let mut paths: Vec<String> = paths.map(str::to_owned).into();
    // A name of 256 bytes, in one and in two bytes per character; 1025 bytes, and 65 names.
    paths.extend(["n".repeat(256), "\u{fc}".repeat(128), format!("a/{}/b", "n".repeat(256))]);
    paths.extend([format!("{}n", vec!["n".repeat(204); 5].join("/")), ["n"; 65].join("/")]);
    paths
}

#[tokio::test]
async fn each_operation_refuses_each_hostile_path() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let before = head(&client, "me/model").await;
    let oid = sha256_of(b"").to_string();
    for path in refused_paths() {
        let lines = [
            put(&path, b""),
            json!({ "key": "lfsFile", "value": { "path": path, "algo": "sha256", "oid": oid, "size": 0 } }),
            json!({ "key": "copyFile", "value": { "path": path, "srcPath": ".gitattributes" } }),
            json!({ "key": "copyFile", "value": { "path": "a", "srcPath": path } }),
            delete("deletedFile", &path),
            delete("deletedFolder", &path),
        ];
        for line in lines {
            let body = commit_body("a commit", None, std::slice::from_ref(&line));
            let refused = client.post("/api/models/me/model/commit/main", body).await;
            let detail = refused.problem(400, "invalid_request")["detail"].as_str().unwrap().to_owned();
            assert!(detail.starts_with("Line 2 of the commit: the path \""), "{detail} for {line}");
        }
    }
    assert_eq!(head(&client, "me/model").await, before, "no refusal moves the branch");
}

/// Files whose names are long or strange, and not refused.
fn strange_paths() -> BTreeSet<String> {
    let paths = [
        // No byte of them is decoded a second time.
        "..%2Fkeys",
        "%2e%2e%2fkeys",
        "%00",
        "%",
        "a%2Fb",
        "+",
        "a+b",
        "a b",
        "a?b#c",
        "a&b=c",
        "a;b",
        "a:b",
        "CON",
        "*",
        // Nearly a name that is refused.
        "...",
        "..a",
        "a..",
        ".gitmodules",
        ".github/x",
        "gitt/x",
        ".g\u{456}t/x",
        // For browsers, shells and terminals.
        "<script>alert(1)</script>",
        "a\"b'c`d",
        "$(id)",
        "-rf",
        "\u{202e}gpj.exe",
        "\u{feff}a",
        "\u{2028}",
        // The same to a reader, and not in bytes.
        "\u{fc}",
        "u\u{308}",
    ];
    let mut paths: BTreeSet<String> = paths.map(str::to_owned).into();
    // The longest names and the longest path, and 64 names.
    paths.extend(["n".repeat(255), format!("{}n", "\u{fc}".repeat(127))]);
    paths.extend([vec!["n".repeat(204); 5].join("/"), ["d"; 64].join("/")]);
    paths
}

#[tokio::test]
async fn strange_paths_are_listed_and_read_as_committed() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let paths = strange_paths();
    let lines: Vec<Value> = paths.iter().map(|path| put(path, path.as_bytes())).collect();
    assert_eq!(commit(&client, "me/model", None, &lines).await.0, 200);
    let mut listed = BTreeSet::new();
    let entries = client.get("/api/models/me/model/tree/main?recursive=true").await.json();
    for entry in entries.as_array().unwrap().iter().filter(|entry| entry["type"] == "file") {
        listed.insert(entry["path"].as_str().unwrap().to_owned());
    }
    listed.remove(".gitattributes");
    assert_eq!(listed, paths);
    for path in &paths {
        // Each name is one segment, or the whole path is.
        let encoded: String = path.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for encoded in [encoded.replace("%2F", "/"), encoded] {
            let found = get(&server, &format!("/me/model/resolve/main/{encoded}")).await;
            assert_eq!((found.status, &found.body[..]), (200, path.as_bytes()), "{encoded}");
        }
    }
}

#[tokio::test]
async fn encoded_paths_in_urls_lead_to_no_other_file() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let lines = [put("keys", b"in the root"), put("dir/a.txt", b"below")];
    assert_eq!(commit(&client, "me/model", None, &lines).await.0, 200);
    for (path, code) in [
        ("/me/model/resolve/main/..%2Fkeys", "EntryNotFound"),
        ("/me/model/resolve/main/dir/../keys", "EntryNotFound"),
        ("/me/model/resolve/main/dir%2F..%2Fkeys", "EntryNotFound"),
        ("/me/model/resolve/main/dir/%2e%2e/keys", "EntryNotFound"),
        ("/me/model/resolve/main/./keys", "EntryNotFound"),
        ("/me/model/resolve/main/%252e%252e%252fkeys", "EntryNotFound"),
        ("/me/model/resolve/main/dir%5C..%5Ckeys", "EntryNotFound"),
        ("/me/model/resolve/main/keys%00", "EntryNotFound"),
        ("/me/model/resolve/main/keys%00.txt", "EntryNotFound"),
        ("/me/model/resolve/main/%2Fetc%2Fpasswd", "EntryNotFound"),
        ("/me/model/resolve/main/.git%2FHEAD", "EntryNotFound"),
        ("/me/model/resolve/main/KEYS", "EntryNotFound"),
        ("/me/model/resolve/main/dir", "EntryNotFound"),
        ("/me/model/resolve/..%2Fmain/keys", "RevisionNotFound"),
        ("/me/model/resolve/main%00/keys", "RevisionNotFound"),
        ("/me/model/resolve/refs%2Fheads%2F..%2Fheads%2Fmain/keys", "RevisionNotFound"),
        ("/me/..%2Fme%2Fmodel/resolve/main/keys", "RepoNotFound"),
        ("/..%2Fme/model/resolve/main/keys", "RepoNotFound"),
        ("/me%2Fmodel/x/resolve/main/keys", "RepoNotFound"),
        ("/me/model%00/resolve/main/keys", "RepoNotFound"),
        ("/me/model%20/resolve/main/keys", "RepoNotFound"),
        ("/api/models/me/..%2Fmodel/tree/main", "RepoNotFound"),
        ("/api/models/me/model/tree/..%2Fmain", "RevisionNotFound"),
        ("/api/models/me/model/tree/main/..%2Fdir", "EntryNotFound"),
        ("/api/models/me/model/tree/main/dir%2F..", "EntryNotFound"),
        ("/api/models/me/model/tree/main/dir%00", "EntryNotFound"),
    ] {
        let missing = get(&server, path).await;
        missing.problem(404, "not_found");
        assert_eq!(missing.header("x-error-code"), code, "{path}");
    }
    let found = get(&server, "/me/model/resolve/refs%2Fheads%2Fmain/dir%2Fa.txt").await;
    assert_eq!((found.status, &found.body[..]), (200, &b"below"[..]));
}

#[tokio::test]
async fn line_breaks_in_a_url_begin_no_header() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    for path in [
        "/me/model/resolve/main/a%0D%0Aset-cookie:%20b=c",
        "/me/model/resolve/main%0D%0Aset-cookie:%20b=c/a",
        "/api/models/me/model/revision/a%0Aset-cookie:%20b=c",
        "/api/models/me/model/tree/main/a%0D%0A%0D%0A%3Chtml%3E",
    ] {
        let missing = get(&server, path).await;
        missing.problem(404, "not_found");
        assert!(!missing.headers.contains_key("set-cookie"), "{path}: {:?}", missing.headers);
    }
}

#[tokio::test]
async fn names_of_repositories_differ_in_more_than_case() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "Model").await;
    assert_eq!(commit(&client, "me/Model", None, &[put("a.txt", b"a")]).await.0, 200);
    let new = async |namespace: &str, name: &str, kind: &str| {
        let body = json!({ "name": name, "organization": namespace, "type": kind, "private": false }).to_string();
        client.post("/api/repos/create", body).await.status
    };
    for (namespace, name) in [("me", "model"), ("ME", "MODEL"), ("Me", "Model")] {
        assert_eq!(new(namespace, name, "model").await, 409, "{namespace}/{name}");
        let found = client.get(&format!("/{namespace}/{name}/resolve/main/a.txt")).await;
        assert_eq!((found.status, &found.body[..]), (200, &b"a"[..]), "{namespace}/{name}");
        assert_eq!(client.get(&format!("/api/models/{namespace}/{name}")).await.json()["id"], "me/Model");
    }
    assert_eq!(new("ME", "model", "dataset").await, 200, "each kind has its own names");
    let body = json!({ "name": "MODEL", "organization": "ME", "type": "model" }).to_string();
    let deleted = Response::of(client.request(Method::DELETE, "/api/repos/delete").body(body)).await;
    assert_eq!(deleted.status, 200, "{:?}", deleted.body);
    assert_eq!(client.get("/api/models/me/Model").await.status, 404);
}

#[tokio::test]
async fn token_for_a_name_in_another_case_opens_nothing() {
    let server = guarded();
    let token = |repo: &str| server.client().bearing(&issue(&server, "write", repo, &[]));
    create(&token("models/me/model"), "model").await;
    for repo in ["models/me/MODEL", "models/ME/model", "models/ME/*", "*/ME/*", "Models/me/model"] {
        let foreign = token(repo);
        for path in ["/api/models/me/model", "/api/models/ME/MODEL"] {
            assert_eq!(foreign.get(path).await.status, 404, "{path} with a token for {repo}");
        }
        assert_eq!(commit(&foreign, "me/model", None, &[put("a", b"a")]).await.0, 404, "a commit for {repo}");
        let body = json!({ "name": "MODEL", "organization": "ME", "type": "model" }).to_string();
        assert_eq!(foreign.post("/api/repos/create", body).await.status, 403, "a creation for {repo}");
    }
}

#[tokio::test]
async fn files_whose_names_differ_in_case_are_two_files() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let paths = ["README.md", "readme.md", "Dir/a", "dir/a", "DIR/A"];
    let lines = paths.map(|path| put(path, path.as_bytes()));
    assert_eq!(commit(&client, "me/model", None, &lines).await.0, 200);
    assert_eq!(commit(&client, "me/model", None, &[delete("deletedFolder", "DIR")]).await.0, 200);
    let found = files(&client, "me/model", "main", 2).await;
    for path in &paths[..4] {
        assert_eq!(found[*path], path.as_bytes(), "{path} has its own contents");
    }
    assert_eq!(found.len(), 5, "only one of the directories is deleted: {:?}", found.keys());
}

/// From the list of routes, so that a new one is not forgotten.
#[tokio::test]
async fn no_namespace_is_the_first_segment_of_a_route() {
    let server = Start::default().with("grants", true).start();
    let client = server.client();
    let first = |route: &RouteCase| route.template.split('/').nth(1).unwrap_or_default().to_owned();
    let all: BTreeSet<String> = routes(&client).await.iter().map(first).collect();
    let names: Vec<&String> = all.iter().filter(|name| !name.contains('{')).collect();
    assert!(names.len() >= 15, "only {names:?} were found");
    for name in names {
        for namespace in [name.clone(), name.to_uppercase()] {
            refuse_namespace(&client, &namespace).await;
        }
    }
    assert_eq!(client.get("/api/models").await.json(), json!([]), "no repository was created");
}

/// As an organization, and as a part of the name.
async fn refuse_namespace(client: &Client, namespace: &str) {
    let by_field = json!({ "name": "model", "organization": namespace, "type": "model" });
    let by_name = json!({ "name": format!("{namespace}/model"), "type": "model" });
    for body in [by_field, by_name] {
        let refused = client.post("/api/repos/create", body.to_string()).await;
        let detail = refused.problem(400, "invalid_request")["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("some namespaces are reserved"), "{detail} for {body}");
    }
}
