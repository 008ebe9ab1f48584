//! The process dies while files are registered and removed: what was acknowledged is so, what was not is whole or not there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::{Client, Promise, Response, Start, Xorb, check_promise, kill_rounds, rng, shard_of};

/// How often the process is killed, by default.
const ROUND_COUNT: usize = 60;

/// Clients that upload and register at once.
const CLIENT_COUNT: usize = 4;

/// Responses after which the process is killed, at most: some for each client.
const MAX_RESPONSE_COUNT: u32 = 16;

/// A file, and what its reader must get.
#[derive(Clone, Debug)]
struct Known {
    contents: Vec<u8>,
    shard: Vec<u8>,
    promise: Promise,
}

/// What one client did until the connection broke.
#[derive(Default)]
struct Done {
    /// Acknowledged.
    xorbs: Vec<Xorb>,
    files: HashMap<String, Known>,
}

/// While files are registered and removed.
#[tokio::test]
async fn server_killed_at_any_moment_keeps_acknowledged_files() {
    let round_count = kill_rounds(ROUND_COUNT);
    let mut rng = rng();
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("data");
    let mut files: HashMap<String, Known> = HashMap::new();
    let (mut xorbs, mut new): (Vec<Xorb>, Vec<String>) = Default::default();
    let (mut unheard, mut unheard_there, mut removed) = (0, 0, 0);

    for _ in 0..round_count {
        let server = Start::default().data_dir(&data_dir).start();
        let old: Vec<String> = files.keys().take(5).cloned().collect();
        for hash in new.drain(..).chain(old) {
            let known = files.get_mut(&hash).unwrap();
            let is_there = check_promise(&server.client(), &hash, &known.contents, known.promise).await;
            let is_unheard = known.promise == Promise::Either;
            unheard += usize::from(is_unheard);
            unheard_there += usize::from(is_unheard && is_there);
            removed += usize::from(known.promise == Promise::Removed);
            // What has been seen once must stay.
            known.promise = if is_there { Promise::There } else { Promise::Removed };
        }
        files.retain(|_, known| known.promise == Promise::There);
        assert_eq!(server.drafts(), 0);

        let (mut clients, responses) = (JoinSet::new(), Arc::new(Semaphore::new(0)));
        for _ in 0..CLIENT_COUNT {
            let again: Vec<_> = files.values().take(10).map(|known| known.shard.clone()).collect();
            let some: Vec<_> = xorbs.iter().rev().take(10).cloned().collect();
            let client = Acknowledged { client: server.client(), count: Arc::clone(&responses) };
            clients.spawn(register_until_it_breaks(client, StdRng::from_rng(&mut rng), some, again));
        }
        // The moment of death is counted in responses, so that a busy machine shows as much as an idle one; and then some
        // time, which is not a wait for anything. Without responses a client has failed, and says so when it is joined.
        let _ =
            timeout(Duration::from_secs(60), responses.acquire_many(rng.random_range(0..=MAX_RESPONSE_COUNT))).await;
        sleep(Duration::from_micros(rng.random_range(0..10_000))).await;
        server.kill();
        while let Some(done) = clients.join_next().await {
            let done = done.unwrap();
            xorbs.extend(done.xorbs);
            new.extend(done.files.keys().cloned());
            files.extend(done.files);
        }
    }

    let server = Start::default().data_dir(&data_dir).start();
    let acknowledged = files.values().filter(|known| known.promise == Promise::There).count();
    for (hash, known) in &files {
        check_promise(&server.client(), hash, &known.contents, known.promise).await;
    }
    for xorb in &xorbs {
        let response = server.client().get(&xorb.path()).await;
        assert!(
            response.status == 200 && response.body == xorb.bytes,
            "{} is damaged: {}",
            xorb.hash(),
            response.status
        );
    }
    println!(
        "{round_count} kills: {acknowledged} files and {} xorbs acknowledged, {removed} files removed; {unheard} files \
         without a response, {unheard_there} of them there",
        xorbs.len()
    );
    // A run in which the kill always came too early or too late would show nothing.
    assert!(acknowledged > round_count / 2 && removed > round_count / 20, "{acknowledged} {removed}");
    assert!(unheard > round_count / 20, "{unheard}");
}

/// Uploads xorbs and registers files of their chunks, until the connection breaks.
async fn register_until_it_breaks(client: Acknowledged, mut rng: StdRng, some: Vec<Xorb>, again: Vec<Vec<u8>>) -> Done {
    let mut done = Done { xorbs: some, files: HashMap::new() };
    let old_count = done.xorbs.len();
    loop {
        if done.xorbs.len() == old_count || rng.random_ratio(1, 3) {
            let count = rng.random_range(1..6);
            let xorb = Xorb::mixed(&mut rng, count);
            if !client.hears(Method::POST, &xorb.path(), xorb.bytes.clone()).await {
                break;
            }
            done.xorbs.push(xorb);
        }
        if let Some(shard) = again.choose(&mut rng).filter(|_| rng.random_ratio(1, 8)) {
            // What is registered already; its claim is renewed, and nothing else.
            if !client.hears(Method::POST, "/v1/shards", shard.clone()).await {
                break;
            }
        }
        let runs: Vec<(&Xorb, u32, u32)> = (0..rng.random_range(1..4))
            .map(|_| {
                let xorb = done.xorbs.choose(&mut rng).unwrap();
                let start = rng.random_range(0..xorb.chunk_count());
                (xorb, start, rng.random_range(start + 1..=xorb.chunk_count()))
            })
            .collect();
        let contents = runs.iter().flat_map(|(xorb, start, end)| xorb.raw(*start, *end)).copied().collect();
        let shard = shard_of(&runs);
        let (hash, shard) = (shard.file_hash(), shard.bytes());
        // A file of the same runs may be here or with another client already, and that one may remove it.
        if done.files.contains_key(&hash) || run_is_shared(&runs, &done.xorbs[..old_count]) {
            continue;
        }
        let known = done.files.entry(hash.clone()).or_insert(Known { contents, shard, promise: Promise::Either });
        if !client.hears(Method::POST, "/v1/shards", known.shard.clone()).await {
            break;
        }
        known.promise = Promise::There;
        if rng.random_ratio(1, 5) {
            known.promise = Promise::Either;
            if !client.hears(Method::DELETE, &format!("/v1/files/{hash}"), Vec::new()).await {
                break;
            }
            known.promise = Promise::Removed;
        }
    }
    done.xorbs.drain(..old_count);
    done
}

/// Whether another client may make the same file: only the xorbs of this one are its alone.
fn run_is_shared(runs: &[(&Xorb, u32, u32)], shared: &[Xorb]) -> bool {
    runs.iter().all(|(xorb, ..)| shared.iter().any(|other| other.hash() == xorb.hash()))
}

/// A client whose responses are counted.
struct Acknowledged {
    client: Client,
    count: Arc<Semaphore>,
}

impl Acknowledged {
    /// Sends something that nothing can be against; returns whether there was a response.
    async fn hears(&self, method: Method, path: &str, body: impl Into<reqwest::Body>) -> bool {
        match Response::try_of(self.client.request(method, path).body(body)).await {
            Ok(response) => {
                assert!(matches!(response.status, 200 | 201), "{}: {:?}", response.status, response.body);
                self.count.add_permits(1);
                true
            }
            Err(_) => false,
        }
    }
}
