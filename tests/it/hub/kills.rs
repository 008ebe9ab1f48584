//! Kills of a server while a client commits small and large files and tags what it has committed.

use std::collections::HashSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use reqwest::{Method, Result};
use serde_json::Value;

use super::lfs::{batch_body, line};
use super::{commit_body, create, files, lost, next_page, put};
use crate::support::{Client, Response, Start, eventually, kill_rounds, rng};

/// Each commit with a number that this divides has a large file, and is tagged.
const LARGE_PERIOD: u32 = 3;

/// A commit that was acknowledged.
pub(super) struct Made {
    id: String,
    /// The path of the file that it has put.
    path: String,
    /// Its tag, if the response to that arrived.
    tag: Option<String>,
}

const fn is_large(number: u32) -> bool {
    number.is_multiple_of(LARGE_PERIOD)
}

/// The path of the file that a commit puts.
pub(super) fn path_of(round: usize, number: u32) -> String {
    format!("r{round}/{number}.{}", if is_large(number) { "bin" } else { "txt" })
}

/// The contents of the file at a path: of a large one some chunks that no other has.
fn contents(path: &str) -> Vec<u8> {
    let Some(seed) = path.strip_suffix(".bin") else { return path.as_bytes().to_vec() };
    let seed = seed.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(257).wrapping_add(byte.into()));
    let mut bytes = vec![0; 300_000];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// After a kill at any moment, every acknowledged commit is the head or before it, every
/// acknowledged tag names its commit, and every file of the head is read.
#[tokio::test]
async fn acknowledged_commits_survive_a_kill() {
    const ROUND_COUNT: usize = if cfg!(feature = "full-tests") { 20 } else { 4 };
    let round_count = kill_rounds(ROUND_COUNT);
    let mut rng = rng();
    let directory = tempfile::tempdir().unwrap();
    let begin = || Start::default().data_dir(directory.path()).start();
    let mut acknowledged: Vec<Made> = Vec::new();
    let (mut committed_count, mut head) = (0, None);
    for round in 0..round_count {
        let server = begin();
        if round == 0 {
            create(&server.client(), "model").await;
        }
        let committing = tokio::spawn(commit_until_it_breaks(server.client(), round));
        if round % 2 == 0 {
            let first = format!("/me/model/resolve/main/{}", path_of(round, 1));
            // The second one is made after the response to the first.
            eventually("two commits", async || server.client().get(&first).await.status == 200).await;
        }
        // Not a wait for anything: the moment of death, which is the one thing that is random here.
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..200))).await;
        server.kill();
        let made = committing.await.unwrap();
        committed_count += usize::from(!made.is_empty());
        // The earlier ones are before the head of the last round, and all are read at the end.
        head = Some(check_acknowledged(&begin().client(), &made, head.as_deref()).await);
        acknowledged.extend(made);
    }
    check_acknowledged(&begin().client(), &acknowledged, None).await;
    assert!(committed_count * 2 >= round_count, "only {committed_count} of {round_count} rounds made a commit");
    let tag_count = acknowledged.iter().filter(|made| made.tag.is_some()).count();
    assert!(tag_count * 2 >= round_count, "only {tag_count} tags in {round_count} rounds");
    files(&begin().client(), "me/model", "main", 1000).await;
    // The registration log has them, too.
    lost::rebuild(directory.path());
    let rebuilt = begin();
    check_acknowledged(&rebuilt.client(), &acknowledged, None).await;
    files(&rebuilt.client(), "me/model", "main", 1000).await;
}

/// Commits one file after another until the server does not respond. Returns what was acknowledged.
pub(super) async fn commit_until_it_breaks(client: Client, round: usize) -> Vec<Made> {
    let mut made = Vec::new();
    for number in 0.. {
        match commit_next(&client, round, number).await {
            Ok(next) => made.push(next),
            Err(_) => break,
        }
        if is_large(number) {
            let tag = format!("r{round}-{number}");
            match respond(&client, "tag", format!(r#"{{"tag":"{tag}"}}"#)).await {
                Ok(_) => made.last_mut().unwrap().tag = Some(tag),
                Err(_) => break,
            }
        }
    }
    made
}

/// Commits a new file, after it has sent a large one as a client without hf_xet does.
async fn commit_next(client: &Client, round: usize, number: u32) -> Result<Made> {
    let path = path_of(round, number);
    let contents = contents(&path);
    let new = if is_large(number) { line(&path, &contents) } else { put(&path, &contents) };
    if is_large(number) {
        let asked = client.request(Method::POST, "/me/model.git/info/lfs/objects/batch").body(batch_body(&contents));
        let asked = Response::try_of(asked).await?.json();
        let href = asked["objects"][0]["actions"]["upload"]["href"].as_str().unwrap();
        let sent = client.without_token().request(Method::PUT, client.path_of(href)).body(contents);
        assert_eq!(Response::try_of(sent).await?.status, 200, "{path}");
    }
    let body = commit_body("a commit", None, &[new, put("last.txt", &number.to_le_bytes())]);
    let id = respond(client, "commit", body).await?["commitOid"].as_str().unwrap().to_owned();
    Ok(Made { id, path, tag: None })
}

/// The response to a change of the branch.
async fn respond(client: &Client, operation: &str, body: String) -> Result<Value> {
    let path = format!("/api/models/me/model/{operation}/main");
    let response = Response::try_of(client.request(Method::POST, &path).body(body)).await?;
    assert_eq!(response.status, 200, "{operation}: {:?}", response.body);
    Ok(response.json())
}

/// Checks that these commits are the head or before it, and after `known` if given, that their tags
/// name them, and reads their files. Returns the head.
async fn check_acknowledged(client: &Client, acknowledged: &[Made], known: Option<&str>) -> String {
    let (mut history, mut next) = (Vec::new(), Some("/api/models/me/model/commits/main?limit=1000".to_owned()));
    let mut is_known_there = known.is_none();
    while let Some(path) = next.take() {
        let page = client.get(&path).await;
        for commit in page.json().as_array().unwrap() {
            history.push(commit["id"].as_str().unwrap().to_owned());
        }
        is_known_there = is_known_there || history.iter().any(|id| Some(id.as_str()) == known);
        next = next_page(client, &page).filter(|_| known.is_none() || !is_known_there);
    }
    assert!(is_known_there, "the head of before, {known:?}, is lost");
    let later: HashSet<&str> = history.iter().map(String::as_str).take_while(|id| Some(*id) != known).collect();
    let refs = client.get("/api/models/me/model/refs").await.json();
    let tags: HashSet<(&str, &str)> = refs["tags"].as_array().unwrap().iter().map(named).collect();
    for Made { id, path, tag } in acknowledged {
        assert!(later.contains(id.as_str()), "the commit of {path} is lost");
        if let Some(tag) = tag {
            assert!(tags.contains(&(tag.as_str(), id.as_str())), "the tag {tag} is lost");
        }
        let found = client.get(&format!("/me/model/resolve/main/{path}")).await;
        assert!(found.status == 200 && found.body == contents(path), "{path}: {}", found.status);
    }
    history.swap_remove(0)
}

/// A tag of a list, and its commit.
fn named(tag: &Value) -> (&str, &str) {
    (tag["name"].as_str().unwrap(), tag["targetCommit"].as_str().unwrap())
}
