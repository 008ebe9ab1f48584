//! A full xorb of the official crate, sent and fetched with curl.

use std::path::Path;
use std::process::Command;

use rand::RngExt;

use crate::support::{TestServer, official_xorb, rng};

#[test]
#[expect(clippy::disallowed_methods, reason = "a test may write a file plainly")]
fn official_64_mib_xorb_round_trips_by_200_random_ranges() {
    let mut rng = rng();
    let (hash, bytes) = official_xorb(&mut rng);
    assert!((60 << 20..=64 << 20).contains(&bytes.len()), "{}", bytes.len());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("xorb");
    std::fs::write(&file, &bytes).unwrap();

    let server = TestServer::start();
    let url = format!("{}/xorbs/{hash}", server.url());
    let at_file = format!("@{}", file.display());
    let response = curl(directory.path(), &["--request", "POST", "--data-binary", &at_file, &url]);
    let response: serde_json::Value = serde_json::from_slice(&response).unwrap();
    assert_eq!((response["hash"].as_str(), response["was_inserted"].as_bool()), (Some(&*hash), Some(true)));
    assert_eq!(response["serialized_len"], bytes.len());

    // Where the chunks are is read off the bytes that were sent, not asked of the server.
    let ends = chunk_ends(&bytes);
    let count = ends.len() - 1;
    assert_eq!(response["chunks"], count);
    let server = server.restart();
    for _ in 0..200 {
        let start = rng.random_range(0..count);
        let end = rng.random_range(start + 1..=count);
        let part = curl(directory.path(), &[&format!("{}/xorbs/{hash}?range={start}-{end}", server.url())]);
        assert!(part == bytes[ends[start]..ends[end]], "chunks {start}-{end} came back changed");
    }
    assert!(
        curl(directory.path(), &[&format!("{}/xorbs/{hash}", server.url())]) == bytes,
        "the whole came back changed"
    );
}

/// Offsets at which chunks end, after a 0 for where the first begins. A chunk header has 8 bytes;
/// bytes 1 to 3 are the payload length, little-endian. This xorb has no footer.
fn chunk_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![0];
    let mut at = 0;
    while at < bytes.len() {
        at += 8 + usize::from(bytes[at + 1]) + (usize::from(bytes[at + 2]) << 8) + (usize::from(bytes[at + 3]) << 16);
        ends.push(at);
    }
    assert_eq!(at, bytes.len());
    ends
}

fn curl(directory: &Path, args: &[&str]) -> Vec<u8> {
    let body = directory.join("body");
    let status = Command::new("curl")
        .args(["--silent", "--show-error", "--fail-with-body", "--noproxy", "*", "--output"])
        .arg(&body)
        .args(args)
        .status()
        .expect("curl is installed");
    let body = std::fs::read(&body).unwrap_or_default();
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&body));
    body
}
