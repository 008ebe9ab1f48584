//! An index that is lost, and made again of blobs and records, by the real binary on a real data directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::RngExt;
use serde_json::Value;
use tokio::time::sleep;

use crate::cli::{Directory, Ran};
use crate::support::{
    Client, Start, TestServer, Xorb, blob_path, eventually, guarded, issue, read_file, register, rng, send, sha256_of,
    shard_of, upload_shard,
};

/// A store with several repositories, and everything to ask it.
struct Stocked {
    server: TestServer,
    /// By the name of who asks.
    tokens: BTreeMap<String, String>,
    files: Vec<String>,
    xorbs: Vec<Xorb>,
    sha256s: Vec<String>,
    /// What files are, to be read back.
    contents: Vec<(String, Vec<u8>)>,
}

const REPOS: [&str; 3] = ["org/a", "org/b", "other/c"];

impl Stocked {
    async fn new() -> Self {
        let (server, mut rng) = (guarded(), rng());
        let mut tokens = BTreeMap::new();
        for repo in REPOS {
            tokens.insert(repo.to_owned(), issue(&server, "write", repo, &[]));
        }
        tokens.insert("*".to_owned(), issue(&server, "admin", "*", &[]));
        let client = |name: &str| server.client().bearing(&tokens[name]);
        let xorbs: Vec<Xorb> = (0..5).map(|index| Xorb::mixed(&mut rng, 6 + index)).collect();
        let (a, b, c) = (&client("org/a"), &client("org/b"), &client("other/c"));
        for (client, xorb) in [(a, 0), (a, 1), (b, 2), (c, 3), (c, 0), (a, 4)] {
            let status = client.post(&xorbs[xorb].path(), xorbs[xorb].bytes.clone()).await.status;
            assert!(matches!(status, 200 | 201), "{status}");
        }
        let (whole, part) = (upload_shard(&xorbs[0], 0, 6), upload_shard(&xorbs[1], 2, 5));
        let mixed = shard_of(&[(&xorbs[0], 1, 3), (&xorbs[2], 0, 8), (&xorbs[0], 0, 2)]);
        let (gone, elsewhere) = (upload_shard(&xorbs[3], 0, 9), upload_shard(&xorbs[3], 1, 2));
        let (first, second) = (sha256_of(xorbs[0].raw(0, 6)), sha256_of(xorbs[1].raw(2, 5)));
        register(a, whole.clone().claiming(first).bytes()).await;
        register(c, whole.bytes()).await;
        register(a, part.clone().claiming(second).bytes()).await;
        register(b, mixed.bytes()).await;
        register(c, gone.bytes()).await;
        register(c, elsewhere.bytes()).await;
        let files: Vec<String> =
            [&whole, &part, &mixed, &gone, &elsewhere].iter().map(|shard| shard.file_hash()).collect();
        let sha256s = vec![first.to_string(), second.to_string(), sha256_of(b"nobody has it").to_string()];
        eventually("every sha256 is verified", async || {
            is_verified(a, &sha256s[0]).await && is_verified(a, &sha256s[1]).await
        })
        .await;
        let mixed_bytes = [xorbs[0].raw(1, 3), xorbs[2].raw(0, 8), xorbs[0].raw(0, 2)].concat();
        let contents = vec![(files[0].clone(), xorbs[0].raw.to_vec()), (files[2].clone(), mixed_bytes)];
        Self { server, tokens, files, xorbs, sha256s, contents }
    }

    /// Removes a file, and a claim to another.
    async fn remove_some(self) -> Self {
        for (file, name) in [(&self.files[3], "*"), (&self.files[0], "org/a")] {
            let path = format!("/v1/files/{file}");
            let response = send(&self.server.client(), "DELETE", &path, Some(&self.tokens[name]), Vec::new()).await;
            assert_eq!(response.status, 200, "{:?}", response.body);
        }
        self
    }

    /// Stops the server, does this, and starts it again.
    async fn stopped_for(mut self, work: impl AsyncFnOnce(&Path)) -> Self {
        let (directories, data_dir) = (self.server.directory(), self.server.data_dir().to_owned());
        self.server.terminate();
        assert!(self.server.wait().success());
        work(&data_dir).await;
        self.server = Start::default().data_dir(&data_dir).with("auth", "token").start();
        self.server.keep(directories);
        self
    }

    /// All responses, by what was asked and by whom. Signatures and ports of URLs differ with every start.
    async fn responses(&self) -> BTreeMap<String, String> {
        let mut responses = BTreeMap::new();
        for (name, token) in &self.tokens {
            let client = self.server.client().bearing(token);
            let mut paths = vec!["/v1/files".to_owned(), "/v1/xorbs".to_owned()];
            for file in &self.files {
                paths.extend(["v1", "v2"].map(|version| format!("/{version}/reconstructions/{file}")));
                paths.push(format!("/v2/file-chunk-hashes/{file}"));
            }
            paths.extend(self.sha256s.iter().map(|sha256| format!("/v1/sha256/{sha256}")));
            paths.extend(self.xorbs.iter().map(Xorb::path));
            for path in paths {
                let response = client.get(&path).await;
                let body = match serde_json::from_slice::<Value>(&response.body) {
                    Ok(mut value) => {
                        anonymous(&mut value);
                        value.to_string()
                    }
                    Err(_) => sha256_of(&response.body).to_string(),
                };
                responses.insert(format!("{name} GET {path}"), format!("{} {body}", response.status));
            }
            for path in self
                .files
                .iter()
                .map(|file| format!("/v1/reconstructions/{file}"))
                .chain(self.xorbs.iter().map(Xorb::path))
            {
                let response = client.head(&path).await;
                responses.insert(
                    format!("{name} HEAD {path}"),
                    format!("{} {:?}", response.status, response.headers.get("content-length")),
                );
            }
            for xorb in &self.xorbs {
                for hash in 0..xorb.chunk_count() as usize {
                    let path = format!("/v1/chunks/default-merkledb/{}", xorb.chunk_hash(hash));
                    responses.insert(format!("{name} GET {path}"), client.get(&path).await.status.to_string());
                }
            }
        }
        let metrics = self.server.client().bearing(&self.tokens["*"]).get("/metrics").await;
        for line in String::from_utf8_lossy(&metrics.body).lines().filter(|line| line.starts_with("zorb_store_")) {
            // What the disk has left is everybody's.
            if line.starts_with("zorb_store_free_bytes") {
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            responses.insert(name.to_owned(), value.to_owned());
        }
        responses
    }

    /// The files that are there can be read by those who have them.
    async fn check_contents(&self) {
        for ((file, bytes), repo) in self.contents.iter().zip(["other/c", "org/b"]) {
            let client = self.server.client().bearing(&self.tokens[repo]);
            for version in ["v1", "v2"] {
                assert_eq!(&read_file(&client, version, file, None).await.unwrap(), bytes, "{file}");
            }
        }
    }

    async fn check_same(&self, before: &BTreeMap<String, String>, case: &str) {
        let admin = self.server.client().bearing(&self.tokens["*"]);
        // The server reads files again to know their sha256 for certain.
        for sha256 in
            self.sha256s.iter().filter(|sha256| before[&format!("* GET /v1/sha256/{sha256}")].starts_with("200"))
        {
            eventually("the sha256 is verified again", async || is_verified(&admin, sha256).await).await;
        }
        for (asked, response) in self.responses().await {
            assert_eq!(Some(&response), before.get(&asked), "{case}: {asked}");
        }
        self.check_contents().await;
    }
}

async fn is_verified(client: &Client, sha256: &str) -> bool {
    let response = client.get(&format!("/v1/sha256/{sha256}")).await;
    response.status == 200 && response.json()["state"] == "verified"
}

/// Takes out what differs although nothing does: URLs, request ids.
fn anonymous(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !matches!(name.as_str(), "url" | "instance" | "request_id"));
            fields.values_mut().for_each(anonymous);
        }
        Value::Array(items) => items.iter_mut().for_each(anonymous),
        _ => {}
    }
}

fn lose_index(data_dir: &Path) {
    for name in ["index.sqlite", "index.sqlite-wal", "index.sqlite-shm"] {
        match fs::remove_file(data_dir.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{name}: {error}"),
            _ => {}
        }
    }
}

fn rebuild(data_dir: &Path, more: &[&str]) -> Ran {
    let args = ["index", "rebuild", "--json", "--data-dir", data_dir.to_str().unwrap()];
    Directory::new().zorb(&[&args[..], more].concat())
}

fn names(data_dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(data_dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_deleted_and_rebuilt_index_gives_the_same_responses() {
    let stocked = Stocked::new().await.remove_some().await;
    let before = stocked.responses().await;
    let told = |status: &str| before.values().filter(|response| response.starts_with(status)).count();
    assert!(told("200") > 50 && told("404") > 50, "{} and {}", told("200"), told("404"));
    let stocked = stocked
        .stopped_for(async |data_dir| {
            lose_index(data_dir);
            let record = rebuild(data_dir, &[]).ok().record();
            assert_eq!((record["xorbs"].as_u64(), record["records"].as_u64()), (Some(5), Some(8)), "{record}");
            assert_eq!(record["old_index"], Value::Null);
        })
        .await;
    stocked.check_same(&before, "the index was gone").await;
    // Again with an index that is there, and is kept.
    let stocked = stocked
        .stopped_for(async |data_dir| {
            let record = rebuild(data_dir, &[]).ok().record();
            let old = record["old_index"].as_str().unwrap();
            assert!(names(data_dir).iter().any(|name| name == old), "{old} of {:?}", names(data_dir));
        })
        .await;
    stocked.check_same(&before, "the index was replaced").await;
    // And takes what is new.
    let client = stocked.server.client().bearing(&stocked.tokens["org/a"]);
    assert_eq!(register(&client, upload_shard(&stocked.xorbs[4], 0, 3).bytes()).await, 1);
}

#[tokio::test]
async fn rebuild_killed_at_any_moment_leaves_an_index_and_repeats() {
    let mut stocked = Stocked::new().await.remove_some().await;
    let before = stocked.responses().await;
    let mut rng = rng();
    let (mut killed, mut reach) = (0, Duration::from_millis(400));
    for round in 0..12 {
        stocked = stocked
            .stopped_for(async |data_dir| {
                if round % 3 == 0 {
                    lose_index(data_dir);
                }
                for _ in 0..3 {
                    let mut child = Command::new(env!("CARGO_BIN_EXE_zorb"))
                        .args(["index", "rebuild", "--data-dir", data_dir.to_str().unwrap()])
                        .stdin(Stdio::null())
                        .stdout(Stdio::null())
                        .stderr(Stdio::null())
                        .spawn()
                        .unwrap();
                    let begin = Instant::now();
                    // Not a wait for anything: the moment of death, which is what is random here.
                    sleep(reach.mul_f64(rng.random_range(0.0..1.0))).await;
                    child.kill().unwrap();
                    if child.wait().unwrap().success() {
                        reach = begin.elapsed().max(Duration::from_millis(5)).mul_f64(0.9);
                    } else {
                        killed += 1;
                    }
                }
                if round % 3 == 0 || round % 3 == 1 {
                    rebuild(data_dir, &[]).ok();
                }
            })
            .await;
        stocked.check_same(&before, &format!("round {round}")).await;
    }
    println!("{killed} of 36 were killed");
    assert!(killed > 10, "the kills came too late: {killed}");
}

#[tokio::test]
async fn a_server_does_not_begin_an_empty_index_where_one_was_lost() {
    let stocked = Stocked::new().await;
    let before = stocked.responses().await;
    let stocked = stocked
        .stopped_for(async |data_dir| {
            lose_index(data_dir);
            let args = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
            Directory::new().zorb(&args).failed(1, &["index", "is gone", "zorb index rebuild"]);
            assert!(!data_dir.join("index.sqlite").exists());
            rebuild(data_dir, &[]).ok();
        })
        .await;
    stocked.check_same(&before, "rebuilt").await;
    // Nor is one rebuilt beside a server.
    rebuild(stocked.server.data_dir(), &[]).failed(1, &["another zorb serves the data directory"]);
    rebuild(&stocked.server.data_dir().join("nowhere"), &[]).failed(1, &["no store"]);
}

#[tokio::test]
async fn store_older_than_records_has_them_after_its_next_start() {
    let stocked = Stocked::new().await;
    let before = stocked.responses().await;
    let stocked = stocked.stopped_for(async |data_dir| fs::remove_dir_all(data_dir.join("shards")).unwrap()).await;
    eventually("it says so", async || stocked.server.log().contains("files_recorded=5")).await;
    let stocked = stocked
        .stopped_for(async |data_dir| {
            lose_index(data_dir);
            rebuild(data_dir, &[]).ok();
        })
        .await;
    stocked.check_same(&before, "recorded at the start").await;
    // Without a start in between the rebuild asks the index that is there; without either it does not go on by itself.
    let stocked = stocked
        .stopped_for(async |data_dir| {
            fs::remove_dir_all(data_dir.join("shards")).unwrap();
            rebuild(data_dir, &[]).ok();
        })
        .await;
    stocked.check_same(&before, "recorded by the rebuild").await;
    let stocked = stocked
        .stopped_for(async |data_dir| {
            fs::remove_dir_all(data_dir.join("shards")).unwrap();
            lose_index(data_dir);
            rebuild(data_dir, &[]).failed(1, &["--accept-incomplete"]);
            assert!(!data_dir.join("index.sqlite").exists());
            rebuild(data_dir, &["--accept-incomplete"]).ok();
        })
        .await;
    let admin = stocked.server.client().bearing(&stocked.tokens["*"]);
    assert_eq!(admin.get("/v1/files").await.json()["files"], Value::Array(Vec::new()));
    assert_eq!(admin.get(&stocked.xorbs[0].path()).await.status, 200);
}

#[tokio::test]
async fn what_is_damaged_is_reported_and_the_rest_is_there() {
    let stocked = Stocked::new().await;
    let (hash, part) = (stocked.xorbs[1].hash(), stocked.files[1].clone());
    let stocked = stocked
        .stopped_for(async |data_dir| {
            let blob = blob_path(data_dir, &hash);
            let mut bytes = fs::read(&blob).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            fs::write(&blob, bytes).unwrap();
            let record = data_dir.join("shards/0000000000000/0000000000000003");
            let bytes = fs::read(&record).unwrap();
            fs::write(&record, &bytes[..bytes.len() - 1]).unwrap();
            lose_index(data_dir);
            let ran = rebuild(data_dir, &[]).failed(1, &[&hash, &part, "record 0000000000000003"]);
            let told = ran.record();
            assert_eq!(
                (told["damaged_xorbs"].as_u64(), told["damaged_records"].as_u64()),
                (Some(1), Some(1)),
                "{told}"
            );
        })
        .await;
    let admin = stocked.server.client().bearing(&stocked.tokens["*"]);
    for (file, status) in stocked.files.iter().zip([200, 404, 404, 200, 200]) {
        assert_eq!(admin.get(&format!("/v1/reconstructions/{file}")).await.status, status, "{file}");
    }
}
