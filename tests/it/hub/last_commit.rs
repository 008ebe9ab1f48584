//! The last commit of each path, in lists and descriptions of paths.

use std::collections::BTreeMap;

use rand::RngExt;
use reqwest::Method;
use serde_json::{Value, json};

use super::{commit, create, delete, next_page, put};
use crate::support::{Client, Response, TestServer, rng};

/// Id of each path of a revision: of files and directories.
async fn ids(client: &Client, revision: &str) -> BTreeMap<String, String> {
    let listed = client.get(&format!("/api/models/me/model/tree/{revision}?recursive=true")).await.json();
    let id = |entry: &Value| (entry["path"].as_str().unwrap().to_owned(), entry["oid"].as_str().unwrap().to_owned());
    listed.as_array().unwrap().iter().map(id).collect()
}

/// The last commit of each path, by comparing all revisions, the newest first.
async fn compared(client: &Client, history: &[Value]) -> BTreeMap<String, String> {
    let mut revisions = Vec::new();
    for commit in history {
        let id = commit["id"].as_str().unwrap();
        revisions.push((id.to_owned(), ids(client, id).await));
    }
    let (_, head) = &revisions[0];
    let last = |path: &String| {
        let is_changed = |pair: &[(String, BTreeMap<String, String>)]| pair[0].1.get(path) != pair[1].1.get(path);
        let changed = revisions.windows(2).find(|pair| is_changed(pair)).map(|pair| pair[0].0.clone());
        changed.unwrap_or_else(|| revisions.last().unwrap().0.clone())
    };
    head.keys().map(|path| (path.clone(), last(path))).collect()
}

/// The same as the server has it, and the title of the commit.
async fn expanded(client: &Client, directory: &str, query: &str) -> BTreeMap<String, String> {
    let mut next = Some(format!("/api/models/me/model/tree/main{directory}?expand=True&{query}"));
    let mut found = BTreeMap::new();
    while let Some(path) = next.take() {
        let page = client.get(&path).await;
        for entry in page.json().as_array().unwrap() {
            let last = &entry["lastCommit"];
            assert_eq!(last["title"], "a commit".to_owned(), "{entry}");
            assert!(last["date"].as_str().unwrap().ends_with('Z'));
            found.insert(entry["path"].as_str().unwrap().to_owned(), last["id"].as_str().unwrap().to_owned());
        }
        next = next_page(client, &page);
    }
    found
}

#[tokio::test]
async fn last_commit_of_each_path_is_that_which_changed_it() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    // With a title of ours.
    assert_eq!(
        commit(&client, "me/model", None, &[delete("deletedFile", ".gitattributes"), put("a", b"0")]).await.0,
        200
    );
    let mut rng = rng();
    let paths = ["a", "b/c", "b/d", "e/f/g", "e/f/h", "e/i"];
    let mut files = BTreeMap::from([("a", 0)]);
    for number in 1..30 {
        let path = paths[rng.random_range(0..paths.len())];
        let line = match files.get(path) {
            Some(_) if rng.random_range(0..4) == 0 => {
                files.remove(path);
                delete("deletedFile", path)
            }
            // Sometimes with the contents of before: then the commit changes nothing, and is none.
            _ => {
                let contents = rng.random_range(0..3) * 1000 + i32::from(files.len() > 3) * number;
                files.insert(path, contents);
                put(path, contents.to_string().as_bytes())
            }
        };
        let status = commit(&client, "me/model", None, &[line]).await.0;
        assert_eq!(status, 200, "{path}");
        if files.is_empty() {
            assert_eq!(commit(&client, "me/model", None, &[put("a", b"again")]).await.0, 200);
            files.insert("a", -1);
        }
    }
    let history = client.get("/api/models/me/model/commits/main?limit=1000").await.json();
    // Without the first one, which has another title.
    let history: Vec<Value> = history.as_array().unwrap().iter().rev().skip(1).rev().cloned().collect();
    let expected = compared(&client, &history).await;
    assert_eq!(expanded(&client, "", "recursive=true").await, expected);
    assert_eq!(expanded(&client, "", "recursive=true&limit=1").await, expected);
    let below = |path: &&String| path.strip_prefix("e/").is_some_and(|rest| !rest.contains('/'));
    if expected.keys().any(|path| below(&path)) {
        let direct: BTreeMap<_, _> = expected.clone().into_iter().filter(|(path, _)| below(&path)).collect();
        assert_eq!(expanded(&client, "/e", "").await, direct);
    }
    let (path, last) = expected.first_key_value().unwrap();
    let described =
        client.post("/api/models/me/model/paths-info/main", format!("paths={path}&expand=true")).await.json();
    assert_eq!(described[0]["lastCommit"]["id"], json!(last));
    let plain = client.post("/api/models/me/model/paths-info/main", format!("paths={path}")).await.json();
    assert_eq!(plain[0].get("lastCommit"), None);
    let query = json!({ "paths": [path], "expand": true }).to_string();
    let asked = client.request(Method::POST, "/api/models/me/model/paths-info/main").body(query);
    let described = Response::of(asked.header("content-type", "application/json")).await.json();
    assert_eq!(described[0]["lastCommit"]["id"], json!(last));
}

/// A page of a list with last commits has fifty entries.
#[tokio::test]
async fn expanded_page_has_at_most_fifty_entries() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let lines: Vec<_> = (0..120).map(|number| put(&format!("d/{number:03}"), b"x")).collect();
    assert_eq!(commit(&client, "me/model", None, &lines).await.0, 200);
    let page = client.get("/api/models/me/model/tree/main/d?expand=true").await;
    assert_eq!(page.json().as_array().unwrap().len(), 50);
    assert_eq!(expanded(&client, "/d", "").await.len(), 120);
}
