//! The routes of the Hub: rights, commits against the real `git`, concurrent commits, crashes.

mod accounts;
mod anonymous;
mod card;
mod catalog;
mod deletion;
mod exchanges;
mod hostile;
mod ignored;
mod kills;
mod last_commit;
mod lfs;
mod limits;
mod lost;
mod namespace;
mod rename;
mod rights;
mod squash;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rand::RngExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Client, Response, Start, TestServer, Xorb, eventually, issue, register, rng, sha256_of, token_command, upload_shard,
};

/// The files of a revision.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) async fn create(client: &Client, name: &str) {
    let body = json!({ "name": name, "organization": "me", "type": "model", "private": false }).to_string();
    assert_eq!(client.post("/api/repos/create", body).await.status, 200);
}

/// A line of a commit that puts a file at a path.
pub(crate) fn put(path: &str, contents: &[u8]) -> Value {
    json!({ "key": "file", "value": { "path": path, "content": base64(contents), "encoding": "base64" } })
}

fn delete(key: &str, path: &str) -> Value {
    json!({ "key": key, "value": { "path": path } })
}

/// Base64 of bytes, as clients send it.
fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn commit_body(summary: &str, parent: Option<&str>, lines: &[Value]) -> String {
    let header = json!({ "key": "header", "value": { "summary": summary, "parentCommit": parent } });
    std::iter::once(&header).chain(lines).map(|line| format!("{line}\n")).collect()
}

/// Commits, and returns the status and the id.
pub(crate) async fn commit(client: &Client, repo: &str, parent: Option<&str>, lines: &[Value]) -> (u16, String) {
    let path = format!("/api/models/{repo}/commit/main");
    let response = client.post(&path, commit_body("a commit", parent, lines)).await;
    let id =
        if response.status == 200 { response.json()["commitOid"].as_str().unwrap().to_owned() } else { String::new() };
    (response.status, id)
}

async fn head(client: &Client, repo: &str) -> String {
    let refs = client.get(&format!("/api/models/{repo}/refs")).await.json();
    let main = refs["branches"].as_array().unwrap().iter().find(|branch| branch["name"] == "main").unwrap();
    main["targetCommit"].as_str().unwrap().to_owned()
}

/// Every file of a revision, read by its path, by pages of `limit`.
pub(crate) async fn files(client: &Client, repo: &str, revision: &str, limit: usize) -> Files {
    let (mut found, mut next) =
        (Files::new(), Some(format!("/api/models/{repo}/tree/{revision}?recursive=true&limit={limit}")));
    while let Some(path) = next.take() {
        let page = client.get(&path).await;
        for item in page.json().as_array().unwrap() {
            if item["type"] == "file" {
                let path = item["path"].as_str().unwrap();
                let contents = client.get(&format!("/{repo}/resolve/{revision}/{path}")).await;
                assert_eq!(contents.status, 200, "{path}");
                assert!(found.insert(path.to_owned(), contents.body.to_vec()).is_none(), "{path} is listed twice");
            }
        }
        next = next_page(client, &page);
    }
    found
}

/// The path that a page names as the next one.
fn next_page(client: &Client, page: &Response) -> Option<String> {
    let link = page.headers.get("link")?.to_str().unwrap();
    let url = link.strip_prefix('<').unwrap().split('>').next().unwrap();
    Some(client.path_of(url).to_owned())
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(directory).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", directory);
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "x").env(format!("GIT_{who}_EMAIL"), "x");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The id of the blob or directory at each path, as git lists it.
fn git_ids(directory: &Path) -> BTreeMap<String, String> {
    git(directory, &["add", "--all"]);
    let tree = git(directory, &["write-tree"]);
    let listed = git(directory, &["-c", "core.quotepath=off", "ls-tree", "-r", "-t", &tree]);
    let line = |line: &str| {
        let (object, path) = line.split_once('\t').unwrap();
        (path.to_owned(), object.split(' ').nth(2).unwrap().to_owned())
    };
    listed.lines().map(line).collect()
}

async fn ids(client: &Client, repo: &str) -> BTreeMap<String, String> {
    let listed = client.get(&format!("/api/models/{repo}/tree/main?recursive=true")).await.json();
    let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_owned();
    listed.as_array().unwrap().iter().map(|item| (text(item, "path"), text(item, "oid"))).collect()
}

#[tokio::test]
async fn same_changes_have_the_ids_that_git_gives_them() {
    let (server, mut rng) = (TestServer::start(), rng());
    let client = server.client();
    create(&client, "model").await;
    let directory = tempfile::tempdir().unwrap();
    git(directory.path(), &["init", "--quiet"]);
    git(directory.path(), &["config", "core.autocrlf", "false"]);
    let attributes = client.get("/me/model/resolve/main/.gitattributes").await.body;
    std::fs::write(directory.path().join(".gitattributes"), attributes).unwrap();
    let mut expected = files(&client, "me/model", "main", 1000).await;
    let mut last = head(&client, "me/model").await;
    for round in 0..25 {
        let mut lines = Vec::new();
        for _ in 0..rng.random_range(1..12) {
            // Names that git sorts in another order than bytes, and directories that become empty.
            let names = ["a", "a.b", "a0", "dir", "dir-x", "ü c"];
            let pick = |rng: &mut rand::rngs::StdRng| names[rng.random_range(0..names.len())];
            let depth = rng.random_range(0..3);
            let path: Vec<&str> = (0..depth).map(|_| pick(&mut rng)).collect();
            let directories: Vec<String> = path.iter().map(|name| format!("d{name}")).collect();
            let path = directories.iter().map(String::as_str).chain([pick(&mut rng)]).collect::<Vec<_>>().join("/");
            if expected.contains_key(&path) && rng.random_range(0..3) == 0 {
                lines.push(delete("deletedFile", &path));
                expected.remove(&path);
                std::fs::remove_file(directory.path().join(&path)).unwrap();
            } else if depth > 0 && rng.random_range(0..8) == 0 {
                let top = &directories[0];
                if expected.keys().any(|path| path.starts_with(&format!("{top}/"))) {
                    lines.push(delete("deletedFolder", &format!("{top}/")));
                    expected.retain(|path, _| !path.starts_with(&format!("{top}/")));
                    std::fs::remove_dir_all(directory.path().join(top)).unwrap();
                }
            } else {
                let contents: Vec<u8> = (0..rng.random_range(0..400)).map(|_| rng.random()).collect();
                lines.push(put(&path, &contents));
                let place = directory.path().join(&path);
                std::fs::create_dir_all(place.parent().unwrap()).unwrap();
                std::fs::write(place, &contents).unwrap();
                expected.insert(path, contents);
            }
        }
        let (status, id) = commit(&client, "me/model", Some(&last), &lines).await;
        assert_eq!(status, 200, "round {round}: {lines:?}");
        last = id;
        assert_eq!(ids(&client, "me/model").await, git_ids(directory.path()), "round {round}");
    }
    assert_eq!(files(&client, "me/model", &last, 3).await, expected, "read by pages of 3");
}

#[tokio::test]
async fn concurrent_commits_are_all_there_in_one_line() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let writers = (0..16).map(|writer| {
        let client = server.client();
        async move {
            for number in 0..5 {
                let line = put(&format!("w{writer}/{number}.txt"), format!("{writer} {number}").as_bytes());
                assert_eq!(commit(&client, "me/model", None, &[line]).await.0, 200);
            }
        }
    });
    futures_util::future::join_all(writers).await;
    let found = files(&client, "me/model", "main", 1000).await;
    assert_eq!(found.len(), 16 * 5 + 1);
    assert_eq!(found["w7/4.txt"], b"7 4");
    let history = client.get("/api/models/me/model/commits/main?limit=1000").await.json();
    assert_eq!(history.as_array().unwrap().len(), 16 * 5 + 1);

    // With a parent, one of several wins, and the others learn that they are late.
    let parent = head(&client, "me/model").await;
    let rivals = (0..8).map(|rival| {
        let (client, parent) = (server.client(), parent.clone());
        async move { commit(&client, "me/model", Some(&parent), &[put("rival.txt", &[rival])]).await }
    });
    let mut results = futures_util::future::join_all(rivals).await;
    results.sort();
    assert_eq!(results.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 412, 412, 412, 412, 412, 412, 412]);
    assert_eq!(head(&client, "me/model").await, results[0].1);
}

#[tokio::test]
async fn repeated_commit_is_the_one_that_was_made() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let parent = head(&client, "me/model").await;
    let lines = [put("a.txt", b"a"), put("b/c.txt", b"c")];
    let (status, made) = commit(&client, "me/model", Some(&parent), &lines).await;
    assert_eq!(status, 200);
    assert_eq!(commit(&client, "me/model", Some(&parent), &lines).await, (200, made.clone()));
    assert_eq!(commit(&client, "me/model", None, &lines).await, (200, made.clone()));
    // Other changes on the same parent are late.
    assert_eq!(commit(&client, "me/model", Some(&parent), &lines[..1]).await.0, 412);
    assert_eq!(commit(&client, "me/model", Some(&made[..10]), &[put("a.txt", b"b")]).await.0, 200);
}

#[tokio::test]
async fn refusals_change_nothing_and_say_why() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let before = head(&client, "me/model").await;
    let unknown =
        json!({ "key": "lfsFile", "value": { "path": "x", "algo": "sha256", "oid": "ab".repeat(32), "size": 1 } });
    for (lines, status) in [
        (vec![put("../x", b"")], 400),
        (vec![put("a/.git/config", b"")], 400),
        (vec![put(".gitattributes/x", b"")], 400),
        (vec![put("a/b", b""), put("a", b"")], 400),
        (vec![unknown], 400),
        (vec![delete("deletedFile", "absent")], 404),
        (vec![put("ok", b"ok"), delete("deletedFolder", "ok")], 404),
        (vec![json!({ "key": "copyFile", "value": { "path": "x", "srcPath": "absent" } })], 404),
    ] {
        let (found, _) = commit(&client, "me/model", None, &lines).await;
        assert_eq!(found, status, "{lines:?}");
    }
    assert_eq!(head(&client, "me/model").await, before);
    assert_eq!(commit(&client, "me/absent", None, &[]).await.0, 404);
    let body = commit_body("x", None, &[put("x", b"x")]);
    let response = client.post("/api/models/me/model/commit/absent", body.clone()).await;
    assert_eq!((response.status, response.header("x-error-code")), (404, "RevisionNotFound"));
    let response = client.post("/api/models/me/model/commit/main?create_pr=1", body).await;
    response.problem(403, "forbidden");
    for name in ["a..b", ".a", "a.git", "a--b", "", "xorbs/x"] {
        let body = json!({ "name": name, "organization": "me", "type": "model" }).to_string();
        client.post("/api/repos/create", body).await.problem(400, "invalid_request");
    }
    let body = json!({ "name": "x", "organization": "API", "type": "model" }).to_string();
    client.post("/api/repos/create", body).await.problem(400, "invalid_request");
    let taken = json!({ "name": "MODEL", "organization": "Me", "type": "model" }).to_string();
    assert_eq!(client.post("/api/repos/create", taken).await.status, 409);
    let missing = client.get("/me/model/resolve/main/absent").await;
    assert_eq!((missing.status, missing.header("x-error-code")), (404, "EntryNotFound"));
    assert_eq!(missing.header("x-repo-commit"), before);
    assert_eq!(missing.json()["error"], missing.json()["detail"]);
    // The list of discussions must not exist: with it, clients would ask other hosts.
    client.get("/api/models/me/model/discussions").await.problem(404, "not_found");
}

/// A directory that a commit makes or empties is like any other within the same commit.
#[tokio::test]
async fn changes_of_one_commit_build_on_each_other() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let paths = async |lines: &[Value]| {
        let (status, _) = commit(&client, "me/model", None, lines).await;
        let found = ids(&client, "me/model").await;
        (status, found.into_keys().filter(|path| path != ".gitattributes").collect::<Vec<_>>())
    };
    assert_eq!(
        paths(&[put("x/b", b"1"), delete("deletedFile", "x/b"), put("x", b"2")]).await,
        (200, vec!["x".to_owned()])
    );
    assert_eq!(paths(&[put("n/b/c", b"1"), delete("deletedFolder", "n")]).await, (200, vec!["x".to_owned()]));
    assert_eq!(paths(&[delete("deletedFile", "x"), put("x/b", b"3")]).await.1, ["x", "x/b"]);
    assert_eq!(paths(&[put("y/b", b"1"), put("y", b"2")]).await.0, 400);
    assert_eq!(paths(&[put("x/b", b"4"), delete("deletedFolder", "x/")]).await, (200, vec![]));
    // A deletion whose response was lost is repeated, and another one is not.
    assert_eq!(paths(&[put("a", b"1"), put("b", b"1")]).await.0, 200);
    for lines in [[delete("deletedFile", "a")], [delete("deletedFile", "a")]] {
        assert_eq!(paths(&lines).await, (200, vec!["b".to_owned()]));
    }
    assert_eq!(paths(&[delete("deletedFile", "c")]).await.0, 404);
    let deep = ["d"; 64].join("/");
    assert_eq!(paths(&[put(&deep, b"deep")]).await.0, 200);
    assert_eq!(paths(&[put(&format!("{deep}/d"), b"deeper")]).await.0, 400);
    let wide: Vec<Value> = (0..400).map(|n| put(&format!("{n}/{}", ["d"; 63].join("/")), b"")).collect();
    assert_eq!(paths(&wide).await.0, 400, "25 000 directories at most");
}

/// The git blob of a pointer and of its large file are the same.
#[tokio::test]
async fn pointer_text_stands_for_its_large_file() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let xorb = stored_xorb(&client).await;
    let contents = xorb.raw(1, 4);
    let sha256 = sha256_of(contents);
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {}\n", contents.len());
    let pointer = put("model.bin", pointer.as_bytes());
    assert_eq!(commit(&client, "me/model", None, std::slice::from_ref(&pointer)).await.0, 400, "the file is not here");
    register(&client, upload_shard(&xorb, 1, 4).claiming(sha256).bytes()).await;
    assert_eq!(commit(&client, "me/model", None, &[pointer]).await.0, 200);
    assert_eq!(&client.get("/me/model/resolve/main/model.bin").await.body[..], contents);
    let paths = client.post("/api/models/me/model/paths-info/main", "paths=model.bin&expand=false").await.json();
    assert_eq!(paths[0]["lfs"]["oid"], sha256.to_string());
    let other_len = json!({ "key": "lfsFile", "value": { "path": "x", "oid": sha256.to_string(), "size": 1 } });
    assert_eq!(commit(&client, "me/model", None, &[other_len]).await.0, 400);
}

/// A path whose large file turns out to have another sha256 is not found, until the true file is
/// pushed.
#[tokio::test]
async fn path_with_a_false_sha256_is_repaired_by_the_true_file() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let xorb = stored_xorb(&client).await;
    let truth = xorb.raw(2, 6);
    let sha256 = sha256_of(truth);
    let shard = upload_shard(&xorb, 1, 5).claiming(sha256);
    let len = xorb.raw(1, 5).len();
    register(&client, shard.bytes()).await;
    let line =
        |len: usize| json!({ "key": "lfsFile", "value": { "path": "w.bin", "oid": sha256.to_string(), "size": len } });
    // The server may have verified it already.
    let (status, _) = commit(&client, "me/model", None, &[line(len)]).await;
    assert!([200, 400].contains(&status), "{status}");
    let path = "/me/model/resolve/main/w.bin";
    eventually("the sha256 is found false", async || client.get(path).await.status == 404).await;
    register(&client, upload_shard(&xorb, 2, 6).claiming(sha256).bytes()).await;
    assert_eq!(commit(&client, "me/model", None, &[line(truth.len())]).await.0, 200);
    assert_eq!(&client.get(path).await.body[..], truth);
}

#[tokio::test]
async fn unreadable_file_is_not_copied_and_is_uploaded_again() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    assert_eq!(commit(&client, "me/model", None, &[put("a.txt", b"contents")]).await.0, 200);
    let preupload = async || {
        let body = json!({ "files": [{ "path": "a.txt", "size": 8, "sample": base64(b"contents") }] }).to_string();
        client.post("/api/models/me/model/preupload/main", body).await.json()["files"][0]["oid"].clone()
    };
    assert_eq!(preupload().await, ids(&client, "me/model").await["a.txt"]);
    let file = client.get("/v1/files").await.json();
    let hashes: Vec<String> = file["files"].as_array().unwrap().iter().map(|file| file["hash"].to_string()).collect();
    for hash in hashes {
        let hash = hash.trim_matches('"').to_owned();
        Response::of(client.request(Method::DELETE, &format!("/v1/files/{hash}"))).await;
    }
    assert_eq!(client.get("/me/model/resolve/main/a.txt").await.status, 404);
    assert_eq!(preupload().await, Value::Null);
    let copy = json!({ "key": "copyFile", "value": { "path": "b.txt", "srcPath": "a.txt" } });
    assert_eq!(commit(&client, "me/model", None, &[copy]).await.0, 404);
    assert_eq!(commit(&client, "me/model", None, &[put("a.txt", b"contents")]).await.0, 200);
    assert_eq!(&client.get("/me/model/resolve/main/a.txt").await.body[..], b"contents");
}

#[tokio::test]
async fn branches_and_tags_have_names_that_git_allows() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let path = |kind: &str, name: &str| format!("/api/models/me/model/{kind}/{}", name.replace('/', "%2F"));
    for name in ["v1", "feature/x", "ü"] {
        assert_eq!(client.post(&path("branch", name), "").await.status, 200, "{name}");
    }
    assert_eq!(client.post(&path("branch", "v1"), "{}").await.status, 409);
    for name in
        ["a..b", "a~b", "-a", ".a", "a.lock", "a.", "HEAD", "@", "refs/heads/main", "feature", "v1/x", &"a".repeat(40)]
    {
        assert_eq!(client.post(&path("branch", name), "").await.status, 400, "{name}");
    }
    let tag = |name: &str| json!({ "tag": name }).to_string();
    assert_eq!(client.post(&path("tag", "feature/x"), tag("v1")).await.status, 200);
    assert_eq!(client.post(&path("tag", "absent"), tag("v2")).await.status, 404);
    let sha = client.get(&path("revision", "refs/tags/v1")).await.json()["sha"].clone();
    assert_eq!(sha, head(&client, "me/model").await);
    for (kind, name, status) in
        [("branch", "feature/x", 200), ("branch", "feature/x", 404), ("branch", "main", 400), ("tag", "v1", 200)]
    {
        let response = Response::of(client.request(Method::DELETE, &path(kind, name))).await;
        assert_eq!(response.status, status, "{kind} {name}");
    }
    assert_eq!(client.get(&path("revision", "a%00b")).await.status, 404);
}

async fn stored_xorb(client: &Client) -> Xorb {
    let xorb = Xorb::mixed(&mut rng(), 8);
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    xorb
}

#[tokio::test]
async fn token_of_another_repository_sees_none() {
    let server = Start::default().with("auth", "token").start();
    let token = |scope: &str, repo: &str| server.client().bearing(&issue(&server, scope, repo, &[]));
    let owner = token("write", "models/me/model");
    create(&owner, "model").await;
    assert_eq!(commit(&owner, "me/model", None, &[put("secret.txt", b"secret")]).await.0, 200);
    let foreign = [token("write", "models/me/other"), token("read", "models/me"), token("admin", "datasets/me/model")];
    let paths = |repo: &str| {
        [
            (Method::GET, format!("/api/models/{repo}")),
            (Method::GET, format!("/api/models/{repo}/revision/main")),
            (Method::GET, format!("/api/models/{repo}/refs")),
            (Method::GET, format!("/api/models/{repo}/commits/main")),
            (Method::GET, format!("/api/models/{repo}/tree/main")),
            (Method::GET, format!("/api/models/{repo}/auth-check")),
            (Method::GET, format!("/api/models/{repo}/xet-read-token/main")),
            (Method::GET, format!("/{repo}/resolve/main/secret.txt")),
            (Method::HEAD, format!("/{repo}/resolve/main/secret.txt")),
            (Method::GET, format!("/{repo}/resolve/absent/absent")),
        ]
    };
    for client in &foreign {
        for ((method, path), (_, absent)) in paths("me/model").into_iter().zip(paths("me/absent")) {
            let hidden = Response::of(client.request(method.clone(), &path)).await;
            let missing = Response::of(client.request(method.clone(), &absent)).await;
            assert_eq!((hidden.status, &hidden.body), (missing.status, &missing.body), "{method} {path}");
            assert_eq!((hidden.status, hidden.header("x-error-code")), (404, "RepoNotFound"), "{method} {path}");
            let names =
                |headers: &reqwest::header::HeaderMap| headers.keys().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(names(&hidden.headers), names(&missing.headers), "{method} {path}");
        }
        assert_eq!(client.get("/api/models").await.json(), json!([]));
    }
    assert_eq!(server.client().get("/api/models/me/model").await.status, 401);
    // A reader reads, and writes nothing.
    let reader = token("read", "models/me/model");
    assert_eq!(files(&reader, "me/model", "main", 1000).await["secret.txt"], b"secret");
    assert_eq!(commit(&reader, "me/model", None, &[put("x", b"x")]).await.0, 403);
    assert_eq!(reader.get("/api/models/me/model/xet-write-token/main").await.status, 403);
    // Nor does a token of another one learn by a creation that a name is taken.
    let body = json!({ "name": "MODEL", "organization": "me", "type": "model" }).to_string();
    let response = token("write", "models/me/MODEL").post("/api/repos/create", body).await;
    assert_eq!(response.status, 403);
    // An administrator sees it, and files of one repository do not become those of another.
    let admin = token("admin", "*");
    assert_eq!(admin.get("/api/models").await.json()[0]["id"], "me/model");
    let other = &foreign[0];
    create(other, "other").await;
    let entry = owner.get("/api/models/me/model/tree/main").await.json();
    let secret = entry.as_array().unwrap().iter().find(|item| item["path"] == "secret.txt").unwrap();
    let stolen =
        json!({ "key": "copyFile", "value": { "path": "x", "srcPath": "secret.txt", "srcRevision": secret["oid"] } });
    assert_eq!(commit(other, "me/other", None, &[stolen]).await.0, 404);
}

/// The server makes a token for the transfer of large files, for the token of the caller.
#[tokio::test]
async fn token_for_a_transfer_ends_with_that_of_its_caller() {
    let server = Start::default().with("auth", "token").start();
    let caller = issue(&server, "write", "models/me/model", &[]);
    create(&server.client().bearing(&caller), "model").await;
    let reader = server.client().bearing(&issue(&server, "read", "models/me/model", &[]));
    let given = reader.get("/api/models/me/model/xet-read-token/main").await.json();
    let xet = server.client().bearing(given["accessToken"].as_str().unwrap());
    assert_eq!(xet.get("/v1/usage").await.json()["repos"][0]["repo"], "models/me/model");
    assert_eq!(xet.get("/api/models/me/model/auth-check").await.status, 200);
    let given = server.client().bearing(&caller).get("/api/models/me/model/xet-read-token/main").await.json();
    let derived = server.client().bearing(given["accessToken"].as_str().unwrap());
    assert_eq!(derived.get("/v1/files").await.status, 200);
    let revoked = token_command(&server, &["revoke", &caller]);
    assert!(revoked.status.success(), "{revoked:?}");
    eventually("the derived token is refused", async || derived.get("/v1/files").await.status == 401).await;
}

/// A refresh token makes a token, and for that one the server issues one, and so on. Each ends with
/// each of those before it, and there are no more than five.
#[tokio::test]
async fn token_for_a_transfer_ends_with_each_one_before_it() {
    let server = Start::default().with("auth", "token").start();
    let refresh = issue(&server, "write", "models/me/model", &["--refresh"]);
    let refreshed = server.client().bearing(&refresh).get("/v1/token").await.json();
    let mut tokens = vec![refreshed["accessToken"].as_str().unwrap().to_owned()];
    create(&server.client().bearing(&tokens[0]), "model").await;
    let refused = loop {
        let client = server.client().bearing(tokens.last().unwrap());
        let given = client.get("/api/models/me/model/xet-read-token/main").await;
        if given.status != 200 {
            break given.status;
        }
        tokens.push(given.json()["accessToken"].as_str().unwrap().to_owned());
    };
    assert_eq!((refused, tokens.len()), (403, 5));
    let status = async |token: &str| server.client().bearing(token).get("/v1/files").await.status;
    for token in [3, 0] {
        let revoked = token_command(&server, &["revoke", &tokens[token]]);
        assert!(revoked.status.success(), "{revoked:?}");
        eventually("the revoked token is refused", async || status(&tokens[token]).await == 401).await;
        for (place, other) in tokens.iter().enumerate() {
            assert_eq!(status(other).await, if place < token { 200 } else { 401 }, "{place} after {token}");
        }
    }
}

/// Messages may have 64 KiB, and a page of the history a thousand of them.
#[tokio::test]
async fn page_of_the_history_ends_after_a_mib_of_messages() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let message = "\u{1}".repeat(60 << 10);
    for number in 0..20 {
        let header = json!({ "key": "header", "value": { "summary": message } });
        let body = format!("{header}\n{}", put("a", format!("{number}").as_bytes()));
        assert_eq!(client.post("/api/models/me/model/commit/main", body).await.status, 200);
    }
    let page = client.get("/api/models/me/model/commits/main?limit=1000").await;
    assert_eq!(page.json().as_array().unwrap().len(), 18);
    let next = page.headers["link"].to_str().unwrap().split_once('>').unwrap().0.trim_start_matches('<').to_owned();
    let rest = client.get(&next[next.find("/api/").unwrap()..]).await.json();
    assert_eq!(rest.as_array().unwrap().len(), 3);
    assert_eq!(rest[2]["title"], "initial commit");
}

/// What a command of zorb did.
fn zorb(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zorb")).args(arguments).output().unwrap()
}

/// What clients see of these repositories.
async fn state(client: &Client, repos: &[&str]) -> Vec<Value> {
    let mut state = Vec::new();
    for repo in repos {
        for path in ["refs", "commits/main", "revision/main", "tree/main?recursive=true&limit=1000"] {
            let response = client.get(&format!("/api/models/{repo}/{path}")).await;
            assert_eq!(response.status, 200, "{repo} {path}");
            state.push(response.json());
        }
    }
    state
}

/// Backups are incremental, also of repositories.
#[tokio::test]
async fn repositories_are_backed_up_and_restored() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    create(&client, "other").await;
    let many: Vec<Value> = (0..1500).map(|n| put(&format!("d{}/{n}.txt", n % 7), format!("{n}").as_bytes())).collect();
    assert_eq!(commit(&client, "me/model", None, &many).await.0, 200);
    assert_eq!(client.post("/api/models/me/model/tag/main", r#"{"tag":"v1"}"#).await.status, 200);
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("backup.rca");
    let back_up = || {
        let data = server.data_dir().to_str().unwrap();
        let output = zorb(&["backup", archive.to_str().unwrap(), "--data-dir", data, "--json"]);
        assert!(output.status.success(), "{output:?}");
        let record: Value = serde_json::from_slice(&output.stdout).unwrap();
        record["added_len"].as_u64().unwrap()
    };
    let whole = back_up();
    assert_eq!(back_up(), 0, "nothing has changed");
    assert_eq!(commit(&client, "me/other", None, &[put("late.txt", b"late")]).await.0, 200);
    let added = back_up();
    assert!(added > 0 && added * 4 < whole, "{added} of {whole} bytes: only one repository has changed");

    let state = async |client: &Client| {
        (state(client, &["me/model", "me/other"]).await, files(client, "me/model", "v1", 1000).await)
    };
    let before = state(&client).await;
    let restored = directory.path().join("restored");
    let output = zorb(&["restore", archive.to_str().unwrap(), "--data-dir", restored.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let output = zorb(&["backup", archive.to_str().unwrap(), "--verify"]);
    assert!(output.status.success(), "{output:?}");
    let copy = Start::default().data_dir(&restored).start();
    assert_eq!(state(&copy.client()).await, before);
    // It goes on where the original was, and its log has also what was restored.
    assert_eq!(commit(&copy.client(), "me/other", None, &[put("more.txt", b"more")]).await.0, 200);
    let before = state(&copy.client()).await;
    copy.terminate();
    assert!(copy.wait().success());
    lost::rebuild(&restored);
    let rebuilt = Start::default().data_dir(&restored).start();
    assert_eq!(state(&rebuilt.client()).await, before);
}

/// A backup beside commits has every file of the branches that it has.
#[tokio::test]
async fn backup_beside_commits_has_the_files_of_its_branches() {
    let server = TestServer::start();
    create(&server.client(), "model").await;
    let directory = tempfile::tempdir().unwrap();
    let (archive, data) = (directory.path().join("backup.rca"), server.data_dir().to_owned());
    let committing = tokio::spawn(kills::commit_until_it_breaks(server.client(), 0));
    for round in 0..5 {
        let path = kills::path_of(0, round);
        let is_made = async || server.client().get(&format!("/me/model/resolve/main/{path}")).await.status == 200;
        eventually("the next commit", is_made).await;
        let archive = archive.clone();
        let arguments = ["backup", archive.to_str().unwrap(), "--data-dir", data.to_str().unwrap()].map(str::to_owned);
        let backing_up = move || zorb(&arguments.each_ref().map(String::as_str));
        let output = tokio::task::spawn_blocking(backing_up).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let restored = directory.path().join(format!("restored-{round}"));
        let output = zorb(&["restore", archive.to_str().unwrap(), "--data-dir", restored.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
        let copy = Start::default().data_dir(&restored).start();
        // Every file of the branch is read.
        assert!(files(&copy.client(), "me/model", "main", 1000).await.contains_key(&path));
    }
    server.kill();
    assert!(committing.await.unwrap().len() >= 5);
}
