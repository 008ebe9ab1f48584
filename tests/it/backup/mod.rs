//! Backups and restores, as the real binary beside the real server.

#[cfg(feature = "full-tests")]
mod kills;
#[cfg(feature = "full-tests")]
mod live;
mod refusals;
mod restored;

use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use serde_json::Value;

use crate::cli::Directory;
use crate::support::{Client, TestServer, Xorb, upload_shard};

/// A directory with an archive and a place to restore to.
pub struct Backups {
    pub directory: Directory,
}

impl Backups {
    pub fn new() -> Self {
        Self { directory: Directory::new() }
    }

    pub fn archive(&self) -> PathBuf {
        self.directory.path("b.rca")
    }

    pub fn archive_len(&self) -> u64 {
        self.archive().metadata().expect("the archive is there").len()
    }

    /// Backs a data directory up and returns the record.
    pub fn back_up(&self, data_dir: &Path) -> Value {
        self.directory.zorb(&["backup", "b.rca", "--json", "--data-dir", text(data_dir)]).ok().record()
    }

    pub fn verify(&self) -> Value {
        self.directory.zorb(&["backup", "b.rca", "--json", "--verify"]).ok().record()
    }

    /// Restores to a directory of this name; returns its path and the record.
    pub fn restore(&self, name: &str) -> (PathBuf, Value) {
        let record = self.directory.zorb(&["restore", "b.rca", "--json", "--data-dir", name]).ok().record();
        (self.directory.path(name), record)
    }

    /// The same with these flags, whatever it remarked.
    pub fn restore_with(&self, name: &str, flags: &[&str]) -> (PathBuf, Value) {
        let args = [&["restore", "b.rca", "--json", "--data-dir", name], flags].concat();
        let record = self.directory.zorb(&args).ok_with_remarks().record();
        (self.directory.path(name), record)
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

/// A file that a server has: its hash, and the xorb whose contents it is.
#[derive(Clone, Debug)]
pub struct Stored {
    pub file: String,
    pub xorb: Xorb,
}

/// Sends a xorb and registers all of it as a file.
pub async fn store(client: &Client, xorb: Xorb) -> Stored {
    let status = client.post(&xorb.xet_path(), xorb.bytes.clone()).await.status;
    assert!(matches!(status, 200 | 201), "{status}");
    let shard = upload_shard(&xorb, 0, xorb.chunk_count());
    let response = client.post("/v1/shards", shard.bytes()).await;
    assert_eq!(response.status, 200, "{:?}", response.body);
    Stored { file: shard.file_hash(), xorb }
}

pub async fn store_many(server: &TestServer, rng: &mut StdRng, count: usize) -> Vec<Stored> {
    let client = server.client();
    let mut stored = Vec::new();
    for _ in 0..count {
        stored.push(store(&client, Xorb::mixed(rng, 12)).await);
    }
    stored
}

/// Everything that was stored is served, byte for byte, and its files have a reconstruction.
pub async fn check_served(server: &TestServer, stored: &[Stored]) {
    let client = server.client();
    for Stored { file, xorb } in stored {
        let response = client.get(&format!("{}?format=raw", xorb.path())).await;
        assert!(response.status == 200 && response.body == xorb.raw, "{}: {}", xorb.hash(), response.status);
        let plan = client.get(&format!("/v1/reconstructions/{file}")).await;
        assert_eq!(plan.status, 200, "{file}: {:?}", plan.body);
        assert_eq!(plan.json()["terms"][0]["hash"], xorb.hash());
    }
}
