//! What clients do while garbage is collected, and what they were told.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use reqwest::Method;
use tokio::sync::Semaphore;

use crate::support::{Client, Promise, Response, Xorb, shard_of};

/// A file, and what its reader must get.
#[derive(Clone, Debug)]
pub struct Known {
    pub contents: Vec<u8>,
    pub shard: Vec<u8>,
    pub xorbs: HashSet<String>,
    pub promise: Promise,
}

/// What one client may count on, and what it has done until the connection broke.
#[derive(Default)]
pub struct Errand {
    /// Files that stay, with xorbs that therefore stay.
    pub kept: Vec<Known>,
    pub firm: Vec<Xorb>,
    /// Xorbs that somebody has uploaded some time, and that may be there or not.
    pub stale: Vec<Xorb>,
    /// Files that are this client's to remove.
    pub surplus: Vec<String>,
    /// Uploaded, or found to be there, in this round.
    pub fresh: Vec<Xorb>,
    pub files: HashMap<String, Known>,
    pub refused: usize,
}

/// What a client does in a round, at most: several times as much as is done before something dies. In rounds in which the
/// server stays while a collection is finished it would register as many files as there is time for, each of which makes the
/// next collections longer: on a slow disk without an end.
const MAX_STEP_COUNT: usize = 200;

/// Does what clients do, until the connection breaks or there is nothing left to do.
pub async fn run(client: Acknowledged, mut rng: StdRng, mut errand: Errand) -> Errand {
    for _ in 0..MAX_STEP_COUNT {
        if errand.step(&client, &mut rng).await.is_none() {
            break;
        }
    }
    errand
}

impl Errand {
    /// `None` where there was no response.
    async fn step(&mut self, client: &Acknowledged, rng: &mut StdRng) -> Option<()> {
        match rng.random_range(0..10) {
            0..2 => {
                let count = rng.random_range(1..5);
                let xorb = Xorb::mixed(rng, count);
                self.upload(client, xorb).await
            }
            2 => {
                // What was there once, and may be about to go.
                let Some(xorb) = self.stale.pop() else { return Some(()) };
                self.upload(client, xorb).await
            }
            3 => {
                let Some(xorb) = self.stale.pop() else { return Some(()) };
                let status = client.hears(Method::HEAD, &xorb.path(), Vec::new(), &[200, 404]).await?;
                if status == 200 {
                    self.fresh.push(xorb);
                }
                Some(())
            }
            4 => {
                let Some(known) = self.kept.choose(rng) else { return Some(()) };
                client.hears(Method::POST, "/v1/shards", known.shard.clone(), &[200]).await.map(drop)
            }
            5..8 => {
                let Some(hash) = self.surplus.pop() else { return Some(()) };
                self.remove(client, hash).await
            }
            _ => self.register(client, rng).await,
        }
    }

    async fn upload(&mut self, client: &Acknowledged, xorb: Xorb) -> Option<()> {
        // Refused where it is being deleted at this moment.
        match client.hears(Method::POST, &xorb.path(), xorb.bytes.clone(), &[200, 201, 503]).await? {
            503 => self.refused += 1,
            _ => self.fresh.push(xorb),
        }
        Some(())
    }

    async fn remove(&mut self, client: &Acknowledged, hash: String) -> Option<()> {
        let known = Known { contents: Vec::new(), shard: Vec::new(), xorbs: HashSet::new(), promise: Promise::Either };
        let known = self.files.entry(hash.clone()).or_insert(known);
        known.promise = Promise::Either;
        client.hears(Method::DELETE, &format!("/v1/files/{hash}"), Vec::new(), &[200]).await?;
        known.promise = Promise::Removed;
        Some(())
    }

    /// A file of one xorb that is this client's, and of others that it may count on; or of one that it may not.
    async fn register(&mut self, client: &Acknowledged, rng: &mut StdRng) -> Option<()> {
        let own = Xorb::mixed(rng, 2);
        self.upload(client, own.clone()).await?;
        let mut xorbs = vec![own];
        for _ in 0..rng.random_range(0..3) {
            let from = if rng.random_bool(0.5) { &self.fresh } else { &self.firm };
            xorbs.extend(from.choose(rng).cloned());
        }
        let is_bold = rng.random_ratio(1, 3) && !self.stale.is_empty();
        if is_bold {
            xorbs.extend(self.stale.pop());
        }
        let runs: Vec<(&Xorb, u32, u32)> = xorbs
            .iter()
            .map(|xorb| {
                let start = rng.random_range(0..xorb.chunk_count());
                (xorb, start, rng.random_range(start + 1..=xorb.chunk_count()))
            })
            .collect();
        let contents: Vec<u8> = runs.iter().flat_map(|(xorb, start, end)| xorb.raw(*start, *end)).copied().collect();
        let shard = shard_of(&runs);
        let (hash, shard) = (shard.file_hash(), shard.bytes());
        let named = xorbs.iter().map(Xorb::hash).collect();
        let known = Known { contents, shard: shard.clone(), xorbs: named, promise: Promise::Either };
        self.files.insert(hash.clone(), known);
        let expected: &[u16] = if is_bold { &[200, 400] } else { &[200] };
        let status = client.hears(Method::POST, "/v1/shards", shard, expected).await?;
        let known = self.files.get_mut(&hash).expect("it was inserted");
        if status == 200 {
            known.promise = Promise::There;
            if rng.random_ratio(1, 6) {
                return self.remove(client, hash).await;
            }
        } else {
            self.refused += 1;
            known.promise = Promise::Removed;
        }
        Some(())
    }
}

/// A client whose responses are counted.
pub struct Acknowledged {
    pub client: Client,
    pub count: Arc<Semaphore>,
}

impl Acknowledged {
    /// The status of the response, which must be one of these; `None` where there was none.
    async fn hears(&self, method: Method, path: &str, body: impl Into<reqwest::Body>, expected: &[u16]) -> Option<u16> {
        let what = format!("{method} {path}");
        let response = Response::try_of(self.client.request(method, path).body(body)).await.ok()?;
        assert!(expected.contains(&response.status), "{what}: {}: {:?}", response.status, response.body);
        self.count.add_permits(1);
        Some(response.status)
    }
}
