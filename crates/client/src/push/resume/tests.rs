#![expect(clippy::disallowed_methods, reason = "a test's files need not survive a crash")]

use std::fs::File;

use tempfile::TempDir;
use xet_format::shard::CasChunk;

use super::*;

fn cache() -> (TempDir, ResumeCache) {
    let directory = tempfile::tempdir().unwrap();
    let cache = ResumeCache::new(directory.path(), &"http://127.0.0.1:8080".parse().unwrap());
    (directory, cache)
}

fn xorb(byte: u8) -> CasInfo {
    let chunks: Vec<CasChunk> = (0..3_u8)
        .map(|index| {
            let (hash, raw_offset) = (ChunkHash::of(&[byte, index]), u32::from(index) * 1000);
            CasChunk { hash, raw_offset, raw_len: 1000, dedup_eligible: false }
        })
        .collect();
    let hash = xorb_hash(chunks.iter().map(|chunk| (&chunk.hash, 1000)));
    CasInfo { hash, chunks, raw_len: 3000 }
}

fn names(cache: &ResumeCache) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(&cache.directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn recorded_xorbs_are_loaded_until_they_are_forgotten() {
    let (_directory, cache) = cache();
    assert_eq!(cache.load(), []);
    for byte in [1, 2] {
        cache.add(&xorb(byte)).unwrap();
    }
    cache.add(&xorb(1)).unwrap();
    let mut loaded = cache.load();
    loaded.sort_by_key(|loaded| loaded.hash != xorb(1).hash);
    assert_eq!(loaded, [xorb(1), xorb(2)]);
    assert_eq!(cache.find(&xorb(2).hash), Some(xorb(2)));
    cache.forget([xorb(1).hash, xorb(3).hash]);
    assert_eq!(cache.load(), [xorb(2)]);
}

#[test]
fn an_entry_that_is_torn_altered_misnamed_or_endless_is_dropped() {
    let (_directory, cache) = cache();
    cache.add(&xorb(1)).unwrap();
    let good = fs::read(cache.path(&xorb(1).hash)).unwrap();
    let mut altered = good.clone();
    altered[150] ^= 1;
    let path = cache.path(&xorb(2).hash);
    for bad in [&good[..good.len() - 1], &[], &altered, &good, &[good.clone(), vec![0; 1 << 20]].concat()] {
        fs::write(&path, bad).unwrap();
        assert_eq!(cache.load(), [xorb(1)], "{} bytes", bad.len());
        assert!(!path.exists());
    }
    assert_eq!(names(&cache), [format!("{}.shard", xorb(1).hash)]);
}

#[test]
fn entry_is_valid_for_three_weeks() {
    let (_directory, cache) = cache();
    for (byte, days) in [(1, 20), (2, 22)] {
        cache.add(&xorb(byte)).unwrap();
        let then = now() - LIFE / 21 * days;
        File::options().append(true).open(cache.path(&xorb(byte).hash)).unwrap().set_modified(then).unwrap();
    }
    assert_eq!(cache.load(), [xorb(1)]);
    assert_eq!(names(&cache).len(), 1);
}

#[test]
fn each_server_has_a_directory_of_its_own() {
    let directory = |url: &str| ResumeCache::new(Path::new("base"), &url.parse().unwrap()).directory;
    assert_eq!(directory("http://a:80/x"), directory("http://a:80/x/"));
    assert_ne!(directory("http://a-b"), directory("http://a.b"));
    let long = directory(&format!("http://a/{}", "x".repeat(500)));
    assert!(long.file_name().unwrap().len() < 128, "{}", long.display());
}
