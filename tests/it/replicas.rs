//! Several servers of one store, in a PostgreSQL database and a bucket: they see what the others do, and go on when one
//! of them dies or is cut off.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::cli::{Directory, Ran};
use crate::support::backend::Backend;
use crate::support::{
    Client, Promise, Response, Start, TestServer, Xorb, check_promise, eventually, kill_rounds, many_files, read_file,
    register, rng, sha256_of, shard_of, upload_shard,
};

/// The servers of a fleet.
const SERVER_COUNT: usize = 3;

/// How often a server is killed, by default.
const ROUND_COUNT: usize = 12;

/// Writers of one branch, and commits of each. More with the variable `ZORB_COMMIT_COUNT`.
const WRITER_COUNT: usize = 16;
const COMMIT_COUNT: usize = 5;

/// Clients of each server while servers are killed.
const CLIENT_COUNT: usize = 2;

mod rebuild;
mod records;
mod standby;

/// Servers of one store, each with a data directory of its own, as on machines of their own.
struct Fleet {
    backend: Backend,
    directory: Directory,
    servers: Vec<TestServer>,
    auth: &'static str,
}

impl Fleet {
    async fn start() -> Self {
        let (backend, directory) = (Backend::own().await, Directory::new());
        let mut fleet = Self { backend, directory, servers: Vec::new(), auth: "off" };
        for number in 0..SERVER_COUNT {
            let server = fleet.server(number);
            fleet.servers.push(server);
        }
        fleet
    }

    /// A server with the data directory of this number.
    fn server(&self, number: usize) -> TestServer {
        let start = Start::default().data_dir(&self.directory.path(&number.to_string())).with("auth", self.auth);
        self.backend.variables().into_iter().fold(start, |start, (name, value)| start.env(&name, value)).start()
    }

    fn client(&self, number: usize) -> Client {
        self.servers[number].client()
    }

    fn zorb(&self, args: &[&str]) -> Ran {
        zorb(args, &self.backend.variables())
    }
}

/// A test that fails shows what the servers have complained of.
impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs: Vec<String> = self.servers.iter().map(TestServer::log).collect();
            let is_complaint = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
            logs.iter().flat_map(|log| log.lines()).filter(is_complaint).for_each(|line| println!("{line}"));
        }
    }
}

/// Until the end of this transaction no change ends: it writes the locked table last, after its record.
async fn hold_changes(connection: &mut PgConnection) -> sqlx::Transaction<'_, sqlx::Postgres> {
    let mut locking = connection.begin().await.unwrap();
    sqlx::query("LOCK TABLE store IN SHARE ROW EXCLUSIVE MODE").execute(&mut *locking).await.unwrap();
    locking
}

fn zorb(args: &[&str], variables: &[(String, String)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zorb"));
    command.args(args).envs(variables.iter().cloned()).stdin(Stdio::null());
    Ran::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary was built"))
}

/// Repeats a registration that is refused because another server is at the same files.
async fn register_patiently(client: &Client, shard: &[u8]) {
    eventually("the files are registered", async || {
        let response = client.post("/v1/shards", shard.to_vec()).await;
        assert!(matches!(response.status, 200 | 503), "{}: {:?}", response.status, response.body);
        response.status == 200
    })
    .await;
}

#[tokio::test]
async fn every_server_shows_what_another_one_was_told() {
    let fleet = Fleet::start().await;
    let mut rng = rng();
    let (a, b) = (Xorb::mixed(&mut rng, 7), Xorb::mixed(&mut rng, 5));
    let [first, second, third] = [0, 1, 2].map(|number| fleet.client(number));
    assert_eq!(first.post(&a.path(), a.bytes.clone()).await.status, 201);
    assert_eq!(second.post(&b.path(), b.bytes.clone()).await.status, 201);
    assert_eq!(third.post(&a.path(), a.bytes.clone()).await.status, 200, "it is stored");
    // The same xorb through all servers at once.
    for _ in 0..20 {
        let xorb = Xorb::mixed(&mut rng, 3);
        let path = xorb.path();
        let posts = [&first, &second, &third].map(|client| client.post(&path, xorb.bytes.clone()));
        let mut statuses: Vec<u16> = join_all(posts).await.iter().map(|response| response.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 201]);
    }
    let shard = shard_of(&[(&a, 1, 6), (&b, 0, 5)]);
    assert_eq!(register(&third, shard.bytes()).await, 1);
    let contents = [a.raw(1, 6), b.raw(0, 5)].concat();
    for client in [&first, &second, &third] {
        assert_eq!(read_file(client, "v1", &shard.file_hash(), None).await.unwrap(), contents);
        assert_eq!(read_file(client, "v2", &shard.file_hash(), Some((3, 99))).await.unwrap(), contents[3..100]);
        assert_eq!(client.get(&a.path()).await.body, a.bytes);
    }
    // Deduplication tells of xorbs that another server has stored: the first chunk of the file is known.
    let chunk = format!("/v1/chunks/default/{}", a.chunk_hash(1));
    for client in [&first, &second, &third] {
        assert_eq!(client.get(&chunk).await.status, 200);
    }
    let removed = second.request(Method::DELETE, &format!("/v1/files/{}", shard.file_hash()));
    assert_eq!(Response::of(removed).await.status, 200);
    for client in [&first, &second, &third] {
        assert_eq!(read_file(client, "v1", &shard.file_hash(), None).await.unwrap_err().status, 404);
    }
    // Grants wait in the memory of one server, so there are none.
    let ask = first.post(&format!("/v1/xorb-grants/default/{}", a.hash()), "{}").await;
    assert_eq!(ask.status, 404, "{:?}", ask.body);
}

/// Keys and accounts are in the database: what one server has signed, the others accept.
#[tokio::test]
async fn tokens_and_urls_of_one_server_are_those_of_all() {
    let mut fleet = Fleet::start().await;
    let xorb = Xorb::mixed(&mut rng(), 5);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let file = upload_shard(&xorb, 0, 5);
    register(&fleet.client(1), file.bytes()).await;
    let plan = fleet.client(2).get(&format!("/v1/reconstructions/{}", file.file_hash())).await.json();
    let url = plan["fetch_info"][xorb.hash()][0]["url"].as_str().unwrap().to_owned();
    let range = &plan["fetch_info"][xorb.hash()][0]["url_range"];
    let path = format!("/{}", url.splitn(4, '/').nth(3).unwrap());
    let header = format!("bytes={}-{}", range["start"], range["end"]);
    for number in 0..SERVER_COUNT {
        let response = fleet.client(number).get_with(&path, &[("range", &header)]).await;
        assert_eq!(response.status, 206, "{:?}", response.body);
    }

    fleet.auth = "token";
    fleet.servers.clear();
    for number in 0..SERVER_COUNT {
        let server = fleet.server(number);
        fleet.servers.push(server);
    }
    // The command needs no data directory, only the settings.
    let ran = fleet.zorb(&["token", "issue", "--scope", "write", "--repo", "*"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let token = String::from_utf8(ran.stdout).unwrap().trim().to_owned();
    let read = async |number: usize| fleet.client(number).bearing(&token).get(&xorb.path()).await.status;
    for number in 0..SERVER_COUNT {
        assert_eq!(fleet.client(number).get(&xorb.path()).await.status, 401);
        assert_eq!(read(number).await, 200);
    }
    let ran = fleet.zorb(&["token", "revoke", &token]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for number in 0..SERVER_COUNT {
        eventually("the token is refused", async || read(number).await == 401).await;
    }
    let ran = fleet.zorb(&["user", "add", "ann"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = fleet.zorb(&["user", "token", "ann", "--scope", "write"]);
    let token = String::from_utf8(ran.stdout).unwrap().trim().to_owned();
    for number in 0..SERVER_COUNT {
        let who = fleet.client(number).bearing(&token).get("/api/whoami-v2").await;
        assert_eq!((who.status, &who.json()["name"]), (200, &json!("ann")));
    }
    // Another master key opens nothing, and changes nothing.
    let other = fleet.backend.with("master_key", &"00".repeat(32));
    for args in [&["token", "issue", "--scope", "read", "--repo", "*"][..], &["user", "add", "bob"]] {
        let ran = zorb(args, &other.variables());
        assert!(ran.code == Some(1) && ran.stderr.contains("sealed with another master key"), "{ran:?}");
    }
    let data_dir = fleet.directory.path("other");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
    let ran = zorb(&serve, &other.variables());
    assert!(ran.code == Some(1) && ran.stderr.contains("sealed with another master key"), "{ran:?}");
}

/// The keys of a data directory of an earlier version are taken over by the first start, and by no later one.
#[tokio::test]
async fn key_file_of_a_data_directory_is_taken_over_once() {
    let (backend, directory) = (Backend::fake().await, Directory::new());
    let (plain, data) = (directory.path("plain"), directory.path("data"));
    drop(Start::default().data_dir(&plain).start());
    let issue = |data_dir: &Path| {
        let ran =
            zorb(&["token", "issue", "--scope", "read", "--repo", "*", "--data-dir", data_dir.to_str().unwrap()], &[]);
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    };
    let token = issue(&plain);
    // Without keys no command makes any: a start may still take over old ones.
    let ran = zorb(&["token", "issue", "--scope", "read", "--repo", "*"], &backend.variables());
    assert!(ran.code == Some(1) && ran.stderr.contains("start zorb serve once"), "{ran:?}");
    std::fs::create_dir(&data).unwrap();
    std::fs::copy(plain.join("keys"), data.join("keys")).unwrap();
    let start = || {
        let start = Start::default().data_dir(&data).with("auth", "token");
        backend.variables().into_iter().fold(start, |start, (name, value)| start.env(&name, value)).start()
    };
    let path = format!("/v1/reconstructions/{}", "ab".repeat(32));
    let server = start();
    assert_eq!(server.client().bearing(&token).get(&path).await.status, 404);
    assert!(!data.join("keys").exists() && data.join("keys.in-database").exists());
    server.kill();
    // A file that appears later is not read: what was revoked since must stay revoked.
    std::fs::remove_file(plain.join("keys")).unwrap();
    drop(Start::default().data_dir(&plain).start());
    std::fs::copy(plain.join("keys"), data.join("keys")).unwrap();
    let other = issue(&plain);
    let server = start();
    assert_eq!(server.client().bearing(&other).get(&path).await.status, 401);
    assert_eq!(server.client().bearing(&token).get(&path).await.status, 404);
}

/// Two registrations in steps of the same files, through two servers, and one of them again through the third.
#[tokio::test]
async fn long_registrations_of_the_same_files_through_all_are_made() {
    let fleet = Fleet::start().await;
    let xorb = Xorb::mixed(&mut rng(), 60);
    assert_eq!(fleet.client(0).post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let (shard, files) = many_files(&xorb, 1500);
    let clients: Vec<Client> = (0..SERVER_COUNT).map(|number| fleet.client(number)).collect();
    join_all(clients.iter().map(|client| register_patiently(client, &shard))).await;
    for (number, file) in files.iter().enumerate().step_by(97) {
        let read = read_file(&fleet.client(number % SERVER_COUNT), "v1", &file.to_string(), None).await;
        assert!(read.is_ok(), "{number}");
    }
}

/// A commit of a file, always with the same contents.
async fn commit(client: &Client, repo: &str, path: &str) -> u16 {
    commit_contents(client, repo, (path, "hello"), None).await
}

async fn commit_contents(client: &Client, repo: &str, (path, contents): (&str, &str), parent: Option<&str>) -> u16 {
    let header = json!({ "key": "header", "value": { "summary": path, "parentCommit": parent } });
    let file = json!({ "key": "file", "value": { "path": path, "content": contents, "encoding": "utf-8" } });
    client.post(&format!("/api/models/{repo}/commit/main"), format!("{header}\n{file}\n")).await.status
}

/// The ids of the commits of `main`, the newest first.
async fn history(client: &Client) -> Vec<String> {
    let commits = client.get("/api/models/me/model/commits/main?limit=1000").await.json();
    commits.as_array().unwrap().iter().map(|commit| commit["id"].as_str().unwrap().to_owned()).collect()
}

/// Clients that commit with one parent at once, through all servers: one of them succeeds.
async fn commit_as_rivals(fleet: &Fleet, round: usize, parent: &str) {
    let clients: Vec<Client> = (0..WRITER_COUNT).map(|number| fleet.client(number % SERVER_COUNT)).collect();
    let rival = async |number: usize| {
        let path = format!("rival {number} of {round}");
        commit_contents(&clients[number], "me/model", (&path, &path), Some(parent)).await
    };
    let mut results = join_all((0..WRITER_COUNT).map(rival)).await;
    results.sort_unstable();
    assert_eq!(results, [vec![200], vec![412; WRITER_COUNT - 1]].concat());
}

#[tokio::test]
async fn commits_to_one_branch_through_all_servers_are_in_one_line() {
    let count = std::env::var("ZORB_COMMIT_COUNT").map_or(COMMIT_COUNT, |count| count.parse().unwrap());
    let fleet = Fleet::start().await;
    let body = json!({ "name": "model", "organization": "me", "type": "model", "private": false }).to_string();
    assert_eq!(fleet.client(0).post("/api/repos/create", body.clone()).await.status, 200);
    assert_eq!(fleet.client(1).post("/api/repos/create", body).await.status, 409);
    let mut clients = JoinSet::new();
    for number in 0..WRITER_COUNT {
        let client = fleet.client(number % SERVER_COUNT);
        clients.spawn(async move {
            for file in 0..count {
                let path = format!("{number}/{file}");
                assert_eq!(commit_contents(&client, "me/model", (&path, &path), None).await, 200);
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    for number in 0..SERVER_COUNT {
        let commits = history(&fleet.client(number)).await;
        assert_eq!(commits.len(), WRITER_COUNT * count + 1);
        assert_eq!(commits.iter().collect::<BTreeSet<_>>().len(), commits.len());
        let tree = fleet.client(number).get("/api/models/me/model/tree/main?recursive=true&limit=1000").await.json();
        let files = tree.as_array().unwrap().iter().filter(|entry| entry["type"] == "file").count();
        // With `.gitattributes`, which the creation has put.
        assert_eq!(files, WRITER_COUNT * count + 1);
    }
    for (number, file) in (0..WRITER_COUNT).flat_map(|number| (0..count).map(move |file| (number, file))) {
        let path = format!("{number}/{file}");
        let read = fleet.client(file % SERVER_COUNT).get(&format!("/me/model/resolve/main/{path}")).await;
        assert_eq!((read.status, read.body.as_ref()), (200, path.as_bytes()));
    }
    for round in 0..3 {
        let head = history(&fleet.client(0)).await.swap_remove(0);
        commit_as_rivals(&fleet, round, &head).await;
    }
    // A deletion is seen by all at once, and the name is free for another one.
    let named = json!({ "name": "model", "organization": "me", "type": "model" }).to_string();
    let delete = fleet.client(2).request(Method::DELETE, "/api/repos/delete").body(named.clone());
    assert_eq!(Response::of(delete).await.status, 200);
    for number in 0..SERVER_COUNT {
        assert_eq!(fleet.client(number).get("/api/models/me/model").await.status, 404);
    }
    eventually("the name is free", async || {
        fleet.client(1).post("/api/repos/create", named.clone()).await.status == 200
    })
    .await;
    assert_eq!(commit(&fleet.client(0), "me/model", "again").await, 200);
}

/// The processes of PostgreSQL that have a lock of servers, by their ids.
async fn sessions(connection: &mut PgConnection) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
               AND (classid::bigint << 32 | objid::bigint) = $1 \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    sqlx::query_scalar(sql).bind(i64::from_be_bytes(*b"zorb.srv")).fetch_all(connection).await.unwrap()
}

/// A server that is stopped for so long that PostgreSQL ends its session, which takes 20 seconds; then it wakes up with a
/// registration to make.
#[tokio::test]
async fn server_without_its_session_changes_nothing_and_ends() {
    let mut fleet = Fleet::start().await;
    let mut connection = PgConnection::connect(fleet.backend.get("database_url")).await.unwrap();
    let old = fleet.servers.pop().unwrap();
    let client = old.client();
    let xorb = Xorb::mixed(&mut rng(), 9);
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let victim = fleet.server(SERVER_COUNT);
    assert_eq!(sessions(&mut connection).await.len(), SERVER_COUNT + 1);
    // It says where it listens before its start has ended.
    assert_eq!(victim.client().get("/readyz").await.status, 200);
    let shard = upload_shard(&xorb, 0, 9);
    victim.pause();
    let (paused, body) = (victim.client(), shard.bytes());
    let registration =
        tokio::spawn(async move { Response::try_of(paused.request(Method::POST, "/v1/shards").body(body)).await });
    eventually("PostgreSQL has ended the session", async || sessions(&mut connection).await.len() == SERVER_COUNT)
        .await;
    victim.resume();
    if let Ok(response) = registration.await.unwrap() {
        assert_eq!(response.status, 503, "{:?}", response.body);
    }
    let (status, log) = victim.exit().await;
    assert!(status.code() == Some(1) && log.contains("lost the connection that has the locks"), "{log}");
    let hash = shard.file_hash();
    assert_eq!(read_file(&fleet.client(0), "v1", &hash, None).await.unwrap_err().status, 404);
    assert_eq!(register(&fleet.client(1), shard.bytes()).await, 1);
    assert_eq!(read_file(&client, "v1", &hash, None).await.unwrap(), xorb.raw(0, 9));
}

#[tokio::test]
async fn another_server_does_the_work_in_the_background_when_one_dies() {
    const LINE: &str = "this server does the work in the background";
    let mut fleet = Fleet::start().await;
    eventually("one of them leads", async || fleet.servers.iter().any(|server| server.log().contains(LINE))).await;
    let leads = |server: &TestServer| server.log().contains(LINE);
    assert_eq!(fleet.servers.iter().filter(|server| leads(server)).count(), 1);
    let leader = fleet.servers.iter().position(leads).unwrap();
    fleet.servers.remove(leader).kill();
    eventually("another one leads", async || fleet.servers.iter().any(leads)).await;
    // A claim of a sha256 is verified by the leader, whichever server was told.
    let follower = fleet.servers.iter().position(|server| !leads(server)).unwrap();
    let client = fleet.client(follower);
    let xorb = Xorb::mixed(&mut rng(), 3);
    assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let sha256 = sha256_of(xorb.raw(0, 3));
    register(&client, upload_shard(&xorb, 0, 3).claiming(sha256).bytes()).await;
    eventually("the sha256 is verified", async || {
        client.get(&format!("/v1/sha256/{sha256}")).await.json()["state"] == "verified"
    })
    .await;
}

/// A file, and what its reader must get.
#[derive(Clone, Debug)]
struct Known {
    contents: Vec<u8>,
    promise: Promise,
}

#[tokio::test]
async fn killed_servers_lose_nothing_that_was_acknowledged() {
    let round_count = kill_rounds(ROUND_COUNT);
    let (mut rng, mut fleet) = (rng(), Fleet::start().await);
    let mut files: HashMap<String, Known> = HashMap::new();
    let mut xorbs: Vec<Xorb> = Vec::new();
    for _ in 0..round_count {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for number in (0..SERVER_COUNT).flat_map(|number| [number; CLIENT_COUNT]) {
            let (client, is_over) = (fleet.client(number), Arc::clone(&is_over));
            let some: Vec<Xorb> = xorbs.iter().rev().take(6).cloned().collect();
            clients.spawn(work(client, is_over, StdRng::from_rng(&mut rng), some));
        }
        // Time under load, which is not a wait for anything.
        sleep(Duration::from_millis(rng.random_range(20..400))).await;
        let victim = rng.random_range(0..SERVER_COUNT);
        let data_dir = fleet.servers[victim].data_dir().to_owned();
        fleet.servers.remove(victim).kill();
        sleep(Duration::from_millis(rng.random_range(0..200))).await;
        is_over.store(true, Ordering::Relaxed);
        while let Some(done) = clients.join_next().await {
            let (new_xorbs, new_files) = done.unwrap();
            xorbs.extend(new_xorbs);
            files.extend(new_files);
        }
        let number: usize = data_dir.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let server = fleet.server(number);
        fleet.servers.insert(victim, server);
    }
    let mut there = 0;
    for (number, (hash, known)) in files.iter().enumerate() {
        let [client, other] = [0, 1].map(|next| fleet.client((number + next) % SERVER_COUNT));
        let is_there = check_promise(&client, hash, &known.contents, known.promise).await;
        let promise = if is_there { Promise::There } else { Promise::Removed };
        check_promise(&other, hash, &known.contents, promise).await;
        there += usize::from(is_there);
    }
    for xorb in &xorbs {
        assert_eq!(fleet.client(0).get(&xorb.path()).await.body, xorb.bytes);
    }
    println!("{round_count} kills: {there} of {} files are there, and {} xorbs", files.len(), xorbs.len());
    assert!(there > round_count && there < files.len(), "{there} of {}", files.len());
    let data_dir = fleet.servers[0].data_dir().to_owned();
    fleet.servers.clear();
    let ran = fleet.zorb(&["fsck", "--deep", "--repair", "--data-dir", data_dir.to_str().unwrap()]);
    assert!(ran.code.is_some_and(|code| code < 2), "{ran:?}");
    let ran = fleet.zorb(&["fsck", "--deep", "--data-dir", data_dir.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    // The records say the same of what was acknowledged, in their order: an index is rebuilt from them.
    rebuild::rebuild(&mut fleet).await;
    let server = fleet.server(0);
    for (hash, known) in &files {
        check_promise(&server.client(), hash, &known.contents, known.promise).await;
    }
}

/// Uploads, registers and removes, until the round is over or the connection breaks.
async fn work(
    client: Client,
    is_over: Arc<AtomicBool>,
    mut rng: StdRng,
    some: Vec<Xorb>,
) -> (Vec<Xorb>, HashMap<String, Known>) {
    let (mut xorbs, mut files, old_count) = (some.clone(), HashMap::new(), some.len());
    while !is_over.load(Ordering::Relaxed) {
        if xorbs.len() == old_count || rng.random_ratio(1, 3) {
            let count = rng.random_range(1..6);
            let xorb = Xorb::mixed(&mut rng, count);
            if !hears(&client, Method::POST, &xorb.path(), xorb.bytes.to_vec()).await {
                break;
            }
            xorbs.push(xorb);
        }
        let own = &xorbs[old_count..];
        let (first, other) = (own.choose(&mut rng).unwrap(), xorbs.choose(&mut rng).unwrap());
        let end = rng.random_range(1..=other.chunk_count());
        let shard = shard_of(&[(first, 0, first.chunk_count()), (other, 0, end)]);
        let contents = [first.raw(0, first.chunk_count()), other.raw(0, end)].concat();
        let known = files.entry(shard.file_hash()).or_insert(Known { contents, promise: Promise::Either });
        known.promise = Promise::Either;
        if !hears(&client, Method::POST, "/v1/shards", shard.bytes()).await {
            break;
        }
        known.promise = Promise::There;
        if rng.random_ratio(1, 4) {
            known.promise = Promise::Either;
            let path = format!("/v1/files/{}", shard.file_hash());
            if !hears(&client, Method::DELETE, &path, Vec::new()).await {
                break;
            }
            known.promise = Promise::Removed;
        }
    }
    xorbs.drain(..old_count);
    (xorbs, files)
}

/// Whether there was a response. Those of a server under load are successes, or requests to come again.
async fn hears(client: &Client, method: Method, path: &str, body: Vec<u8>) -> bool {
    for _ in 0..500 {
        let Ok(response) = Response::try_of(client.request(method.clone(), path).body(body.clone())).await else {
            return false;
        };
        match response.status {
            200 | 201 => return true,
            503 => sleep(Duration::from_millis(20)).await,
            status => panic!("{path}: {status} {:?}", response.body),
        }
    }
    panic!("{path} is always refused");
}
