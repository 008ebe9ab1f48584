//! Quotas, over HTTP: what is charged, what is refused, and what those who are refused are told.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::Directory;
use crate::support::{
    Client, Metrics, Response, Start, TestServer, UploadShard, Xorb, issue, rng, send, shard_of, upload_shard,
};

const MEASURES: [&str; 3] = ["files", "logical_bytes", "physical_bytes"];

/// A server that asks for tokens, with xorbs that nobody has a file of.
struct Store {
    server: TestServer,
    client: Client,
    /// For all repositories.
    operator: String,
    xorbs: Vec<Xorb>,
    _directory: Directory,
}

impl Store {
    /// With what stands in its configuration file.
    async fn with(config: impl FnOnce(&[Xorb]) -> String) -> Self {
        let (directory, mut rng) = (Directory::new(), rng());
        let xorbs: Vec<_> = (0..3).map(|_| Xorb::mixed(&mut rng, 6)).collect();
        directory.write("config.toml", config(&xorbs).as_bytes());
        let path: PathBuf = directory.path("config.toml");
        let server = Start::default().with("auth", "token").with("config", path.display()).start();
        let (client, operator) = (server.client(), issue(&server, "admin", "*", &[]));
        for xorb in &xorbs {
            let stored = send(&client, "POST", &xorb.xet_path(), Some(&operator), xorb.bytes.to_vec()).await;
            assert_eq!(stored.status, 200);
        }
        Self { server, client, operator, xorbs, _directory: directory }
    }

    fn writer(&self, repo: &str) -> String {
        issue(&self.server, "write", repo, &[])
    }

    async fn register(&self, token: &str, shard: &UploadShard) -> Response {
        send(&self.client, "POST", "/v1/shards", Some(token), shard.bytes()).await
    }

    async fn accepted(&self, token: &str, shard: &UploadShard, is_new: bool) {
        let response = self.register(token, shard).await;
        assert_eq!((response.status, response.json()["result"].as_u64()), (200, Some(is_new.into())), "{response:?}");
    }

    /// Registers what is too much; returns what is said about that.
    async fn refused(&self, token: &str, shard: &UploadShard) -> Value {
        let before = self.usage(&self.operator, "").await;
        let problem = self.register(token, shard).await.problem(413, "quota_exceeded");
        assert_eq!(self.usage(&self.operator, "").await, before, "a refusal changes nothing");
        let path = format!("/v1/files/{}", shard.file_hash());
        assert_eq!(send(&self.client, "HEAD", &path, Some(token), Vec::new()).await.status, 404);
        problem
    }

    async fn usage(&self, token: &str, query: &str) -> Value {
        let response = send(&self.client, "GET", &format!("/v1/usage{query}"), Some(token), Vec::new()).await;
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    }

    /// Files, their bytes, and the bytes stored for them, of the one repository of a token.
    async fn used(&self, token: &str) -> [u64; 3] {
        let usage = self.usage(token, "").await;
        assert_eq!((usage["repos"].as_array().map(Vec::len), &usage["next"]), (Some(1), &Value::Null), "{usage}");
        MEASURES.map(|name| usage["repos"][0][name].as_u64().expect("a number"))
    }

    async fn remove(&self, token: &str, shard: &UploadShard) {
        let path = format!("/v1/files/{}", shard.file_hash());
        assert_eq!(send(&self.client, "DELETE", &path, Some(token), Vec::new()).await.status, 200);
    }
}

fn raw_len(shard: &UploadShard) -> u64 {
    shard.shard.files[0].terms.iter().map(|term| u64::from(term.raw_len)).sum()
}

/// What one file more takes of each quantity, where a store has two and may have three.
fn lens(xorbs: &[Xorb]) -> [Vec<u64>; 3] {
    let logical = xorbs.iter().map(|xorb| raw_len(&upload_shard(xorb, 0, 3))).collect();
    [vec![1; 3], logical, xorbs.iter().map(|xorb| xorb.bytes.len() as u64).collect()]
}

#[tokio::test]
async fn each_of_three_limits_can_be_reached_and_not_passed() {
    for (index, quantity) in MEASURES.into_iter().enumerate() {
        for slack in [0, 1] {
            // Two files are there; the third brings it to the limit, or one beyond.
            let store =
                Store::with(|xorbs| format!("quota_{quantity} = {}", lens(xorbs)[index].iter().sum::<u64>() - slack));
            let store = store.await;
            let (writer, shards) = (store.writer("acme/bert"), store.xorbs.iter().map(|xorb| upload_shard(xorb, 0, 3)));
            let (shards, lens): (Vec<_>, _) = (shards.collect(), &lens(&store.xorbs)[index]);
            store.accepted(&writer, &shards[0], true).await;
            store.accepted(&writer, &shards[1], true).await;
            let used = lens[0] + lens[1];
            if slack == 0 {
                store.accepted(&writer, &shards[2], true).await;
                assert_eq!(store.used(&writer).await[index], used + lens[2]);
                continue;
            }
            let problem = store.refused(&writer, &shards[2]).await;
            let said = ["holder", "quantity", "limit", "used", "added"].map(|name| problem[name].clone());
            let limit = used + lens[2] - 1;
            assert_eq!(said, [json!("acme/bert"), json!(quantity), json!(limit), json!(used), json!(lens[2])]);
            let sentence = problem["detail"].as_str().expect("a sentence");
            for part in ["acme/bert", &limit.to_string(), &used.to_string(), &lens[2].to_string(), "Remove files"] {
                assert!(sentence.contains(part), "no {part} in {sentence}");
            }
            // What is known costs nothing, and what is removed makes room at once.
            store.accepted(&writer, &shards[1], false).await;
            store.remove(&writer, &shards[0]).await;
            store.remove(&writer, &shards[1]).await;
            assert_eq!(store.used(&writer).await, [0; 3]);
            store.accepted(&writer, &shards[2], true).await;
        }
    }
}

#[tokio::test]
async fn repository_is_charged_for_shared_xorbs_and_once_for_each() {
    let store = Store::with(|_| String::new()).await;
    let (a, b) = (store.writer("acme/a"), store.writer("acme/b"));
    let [first, second, _] = &store.xorbs[..] else { panic!("there are three") };
    let both = shard_of(&[(first, 0, 2), (second, 1, 3), (first, 2, 4)]);
    let part = upload_shard(first, 1, 5);
    let (first_len, second_len) = (first.bytes.len() as u64, second.bytes.len() as u64);
    store.accepted(&a, &both, true).await;
    store.accepted(&a, &part, true).await;
    let total = [2, raw_len(&both) + raw_len(&part), first_len + second_len];
    assert_eq!(store.used(&a).await, total);
    assert_eq!(store.used(&b).await, [0; 3]);
    store.accepted(&b, &part, true).await;
    assert_eq!(store.used(&b).await, [1, raw_len(&part), first_len]);
    assert_eq!(store.used(&a).await, total);
    store.remove(&a, &both).await;
    assert_eq!(store.used(&a).await, [1, raw_len(&part), first_len]);
    // Who removes a file for everybody takes it from everybody's account.
    store.remove(&store.operator, &part).await;
    assert_eq!((store.used(&a).await, store.used(&b).await), ([0; 3], [0; 3]));
}

#[tokio::test]
async fn of_concurrent_registrations_as_many_win_as_fit() {
    let store = Store::with(|_| "quota_files = 3".to_owned()).await;
    let writer = store.writer("acme/bert");
    let shards: Vec<_> = (0..3).flat_map(|xorb| (1..6).map(move |end| (xorb, end))).collect();
    let shards: Vec<_> = shards.into_iter().map(|(xorb, end)| upload_shard(&store.xorbs[xorb], 0, end)).collect();
    let responses = futures_util::future::join_all(shards.iter().map(|shard| store.register(&writer, shard))).await;
    let mut statuses: Vec<_> = responses.iter().map(|response| response.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![200; 3], vec![413; 12]].concat());
    assert_eq!(store.used(&writer).await[0], 3);
    let counted = Metrics::of(&store.client.bearing(&store.operator)).await;
    assert!((counted.get("zorb_quota_refused_registrations_total") - 12.0).abs() < 0.5);
}

/// Named repositories, owners, tokens of all repositories.
#[tokio::test]
async fn limits_of_repositories_owners_and_all_are_separate() {
    let config = "quota_files = 1\n[quota.'acme/large']\nfiles = 3\n[quota.'acme/*']\nfiles = 4\n";
    let store = Store::with(|_| config.to_owned()).await;
    let shard = |xorb: usize, end| upload_shard(&store.xorbs[xorb], 0, end);
    let [small, large, late, other] =
        ["acme/small", "acme/large", "acme/late", "other/x"].map(|repo| store.writer(repo));
    store.accepted(&small, &shard(0, 1), true).await;
    assert_eq!(store.refused(&small, &shard(0, 2)).await["holder"], "acme/small");
    for end in 1..4 {
        store.accepted(&large, &shard(0, end), true).await;
    }
    assert_eq!(store.refused(&large, &shard(0, 4)).await["holder"], "acme/large");
    // Each has room, all of the owner together have none.
    let problem = store.refused(&late, &shard(1, 1)).await;
    assert_eq!((&problem["holder"], &problem["used"], &problem["limit"]), (&json!("acme/*"), &json!(4), &json!(4)));
    store.accepted(&other, &shard(1, 1), true).await;
    let usage = store.usage(&late, "").await["repos"][0].clone();
    assert_eq!((&usage["files"], &usage["limits"]["files"]), (&json!(0), &json!(1)));
    assert_eq!((&usage["owner"]["owner"], &usage["owner"]["files"]), (&json!("acme"), &json!(4)));
    assert_eq!(store.usage(&other, "").await["repos"][0]["owner"], Value::Null);
    // Nothing was said of these, and what is meant for tenants does not bind them.
    for end in 1..6 {
        store.accepted(&store.operator, &shard(2, end), true).await;
    }
    let all = store.usage(&store.operator, "?repo=*").await["repos"][0].clone();
    assert_eq!((&all["files"], &all["limits"]["files"]), (&json!(5), &Value::Null));
    store.remove(&large, &shard(0, 3)).await;
    store.accepted(&late, &shard(1, 1), true).await;

    let names = |page: &Value| -> Vec<String> {
        let repos = page["repos"].as_array().expect("a list").iter();
        repos.map(|repo| repo["repo"].as_str().expect("a name").to_owned()).collect()
    };
    let everything = ["*", "acme/large", "acme/late", "acme/small", "other/x"];
    assert_eq!(names(&store.usage(&store.operator, "").await), everything);
    let page = store.usage(&store.operator, "?limit=2&after=*").await;
    assert_eq!(
        (names(&page), &page["next"]),
        (vec!["acme/large".to_owned(), "acme/late".to_owned()], &json!("acme/late"))
    );
    let get = async |token: &str, query: &str| {
        send(&store.client, "GET", &format!("/v1/usage{query}"), Some(token), Vec::new()).await
    };
    get(&small, "?repo=acme/large").await.problem(403, "forbidden");
    get(&issue(&store.server, "write", "*", &[]), "?repo=acme/large").await.problem(403, "forbidden");
    assert_eq!(get(&small, "?repo=acme/small").await.status, 200);
    for query in ["?repo=", "?repo=a%20b", "?limit=0", "?limit=x"] {
        get(&store.operator, query).await.problem(400, "invalid_request");
    }
}

#[tokio::test]
async fn event_stream_ends_with_the_quota_error_and_its_remedy() {
    let store = Store::with(|_| "quota_files = 1".to_owned()).await;
    let writer = store.writer("acme/bert");
    store.accepted(&writer, &upload_shard(&store.xorbs[0], 0, 1), true).await;
    let shard = upload_shard(&store.xorbs[1], 0, 1);
    let response = send(&store.client, "POST", "/v2/shards", Some(&writer), shard.bytes()).await;
    assert_eq!((response.status, response.header("content-type")), (200, "application/x-ndjson"), "{response:?}");
    let [event] = &std::str::from_utf8(&response.body).expect("text").lines().collect::<Vec<_>>()[..] else {
        panic!("no single event: {response:?}")
    };
    let event: Value = serde_json::from_str(event).expect("JSON");
    assert_eq!((&event["type"], &event["code"]), (&json!("error"), &json!("quota_exceeded")));
    assert_eq!(event["retryable"], false, "stock clients would try five times");
    let sentence = event["message"].as_str().expect("a sentence");
    assert!(sentence.contains("acme/bert uses 1 of 1 files, and this would add 1."), "{sentence}");
    assert_eq!(store.used(&writer).await[0], 1);
    // The line of the response has the status 200, so the operator finds the reason in another one.
    let log = store.server.log();
    let line = log.lines().find(|line| line.contains("the registration failed after its response began"));
    let line = line.unwrap_or_else(|| panic!("no line: {log}"));
    assert!(line.contains("quota_exceeded") && line.contains("acme/bert uses 1 of 1 files"), "{line}");
    assert!(line.contains("path=/v2/shards") || line.contains("path=\"/v2/shards\""), "{line}");
    // The other refusals have a status still. This repository has room for the file.
    let spoilt = shard.with_wrong_proof();
    let other = store.writer("acme/other");
    let response = send(&store.client, "POST", "/v2/shards", Some(&other), spoilt.bytes()).await;
    response.problem(400, "missing_xorb");
}

/// Bytes of the records in the directory `shards`.
fn records_len(server: &TestServer) -> u64 {
    let entries = |path: PathBuf| std::fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry"));
    let directories = entries(server.data_dir().join("shards")).filter(|entry| entry.path().is_dir());
    directories.flat_map(|entry| entries(entry.path())).map(|entry| entry.metadata().expect("a file").len()).sum()
}

#[tokio::test]
async fn record_of_a_registration_is_charged_and_goes_with_its_file() {
    // 48 bytes for a header, a sha256, and twice for each of 1000 terms, in whole KiB.
    const RECORD_LEN: u64 = 93 << 10;
    let limit = |xorbs: &[Xorb]| xorbs[0].bytes.len() as u64 + RECORD_LEN;
    let store = Store::with(|xorbs| format!("quota_physical_bytes = {}", limit(xorbs))).await;
    let writer = store.writer("acme/bert");
    let xorb = &store.xorbs[0];
    let before = records_len(&store.server);
    // What lists xorbs and has no file leaves nothing.
    let mut listing = upload_shard(xorb, 0, 6);
    listing.shard.files.clear();
    for _ in 0..3 {
        store.accepted(&writer, &listing, false).await;
    }
    assert_eq!(records_len(&store.server), before);

    let (scattered, more) = (shard_of(&[(xorb, 1, 2); 1000]), shard_of(&[(xorb, 2, 3); 1000]));
    store.accepted(&writer, &scattered, true).await;
    assert_eq!(store.used(&writer).await[2], limit(&store.xorbs));
    let left = records_len(&store.server) - before;
    assert!((RECORD_LEN..RECORD_LEN + 2048).contains(&left), "{left} bytes");
    let problem = store.refused(&writer, &more).await;
    assert_eq!((&problem["quantity"], &problem["added"]), (&json!("physical_bytes"), &json!(RECORD_LEN)));
    // A file that is known comes along, and is not written down again.
    let mut both = upload_shard(xorb, 3, 5);
    both.shard.files.push(scattered.shard.files[0].clone());
    store.accepted(&writer, &both, true).await;
    assert!(records_len(&store.server) - before < left + 2048);
    assert_eq!(store.used(&writer).await[2], limit(&store.xorbs));

    store.remove(&writer, &scattered).await;
    assert_eq!(store.used(&writer).await[2], xorb.bytes.len() as u64);
    store.accepted(&writer, &more, true).await;
}

#[tokio::test]
async fn people_see_what_they_have_and_why_a_push_was_refused() {
    let store = Store::with(|_| "quota_files = 2\n[quota.'acme/*']\nlogical_bytes = 1000000".to_owned()).await;
    let (directory, writer, url) = (Directory::new(), store.writer("acme/bert"), store.server.url());
    for name in ["a", "b", "c"] {
        directory.write(name, name.repeat(1000).as_bytes());
    }
    directory.zorb(&["push", "a", "b", "--server", url, "--token", &writer]).ok_with_remarks();
    let complaint = ["the quota of acme/bert leaves 0 files, and this push needs 1; nothing was sent"];
    directory.zorb(&["push", "c", "--server", url, "--token", &writer]).failed(1, &complaint);
    let text = directory.zorb(&["usage", "--server", url, "--token", &writer]).ok().text();
    let begin = "acme/bert  2 files of 2, 2.0 KiB, stored ";
    assert!(text.starts_with(begin) && text.contains("; acme/* together: 2 files, 2.0 KiB of 976.6 KiB"), "{text}");
    store.accepted(&store.writer("other/x"), &upload_shard(&store.xorbs[0], 0, 1), true).await;
    let records = directory.zorb(&["usage", "--json", "--server", url, "--token", &store.operator]).ok().records();
    let names: Vec<_> = records.iter().map(|record| record["repo"].as_str().expect("a name")).collect();
    assert_eq!(names, ["acme/bert", "other/x"]);
    assert_eq!(records[0], store.usage(&writer, "").await["repos"][0]);
    let one =
        directory.zorb(&["usage", "other/x", "--json", "--server", url, "--token", &store.operator]).ok().record();
    assert_eq!(one, records[1]);
    directory.zorb(&["usage", "other/x", "--server", url, "--token", &writer]).failed(1, &["forbidden"]);
}

#[tokio::test]
async fn a_restored_store_knows_what_everybody_has() {
    let store = Store::with(|_| String::new()).await;
    let (a, b) = (store.writer("acme/a"), store.writer("acme/b"));
    let both = shard_of(&[(&store.xorbs[0], 0, 2), (&store.xorbs[1], 1, 3)]);
    store.accepted(&a, &both, true).await;
    store.accepted(&a, &upload_shard(&store.xorbs[0], 0, 5), true).await;
    store.accepted(&b, &both, true).await;
    let before = store.usage(&store.operator, "").await;
    assert_eq!(before["repos"].as_array().map(Vec::len), Some(2));
    let (directory, data_dir) = (Directory::new(), store.server.data_dir().display().to_string());
    directory.zorb(&["backup", "archive.rca", "--data-dir", &data_dir]).ok_with_remarks();
    directory.zorb(&["restore", "archive.rca", "--data-dir", "restored"]).ok_with_remarks();
    let restored = Start::default().data_dir(&directory.path("restored")).start();
    assert_eq!(restored.client().get("/v1/usage").await.json(), before);
}
