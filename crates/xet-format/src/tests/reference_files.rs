//! The public sample data of the protocol, and the directory where it is.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{ChunkHash, FileHash, RangeHash, XorbHash, merkle};

/// The directory with the sample data: `ZORB_REFERENCE_DIR`, or `shared/reference` beside the
/// working tree.
fn reference_dir() -> PathBuf {
    std::env::var_os("ZORB_REFERENCE_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference"), PathBuf::from)
}

/// A file of the sample data. If it is missing, the test fails, because a test that skips its
/// reference data proves nothing.
fn reference_file(name: &str) -> Vec<u8> {
    let path = reference_dir().join("xet").join(name);
    fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "the sample data of the protocol is needed: {} cannot be read ({error}); \
             set ZORB_REFERENCE_DIR to the directory that has it as xet/",
            path.display()
        )
    })
}

fn reference_text(name: &str) -> String {
    String::from_utf8(reference_file(name)).unwrap().trim().to_owned()
}

/// The 796 chunks of the sample file: hash and raw length.
fn reference_chunks() -> Vec<(ChunkHash, u64)> {
    let line = |line: &str| {
        let (hash, len) = line.split_once(' ').unwrap();
        (hash.parse().unwrap(), len.parse().unwrap())
    };
    reference_text("chunks.tsv").lines().map(line).collect()
}

#[test]
fn sample_file_of_796_chunks_has_its_xorb_file_and_range_hash() {
    let chunks = reference_chunks();
    assert_eq!(chunks.len(), 796);
    let pairs = || chunks.iter().map(|(hash, len)| (hash, *len));
    let xorb: XorbHash = reference_text("xorb_hash.txt").parse().unwrap();
    assert_eq!(xorb.to_string(), "eea25d6ee393ccae385820daed127b96ef0ea034dfb7cf6da3a950ce334b7632");
    assert_eq!(merkle::xorb_hash(pairs()), xorb);
    let file: FileHash = reference_text("file_hash.txt").parse().unwrap();
    assert_eq!(file.to_string(), "118a53328412787fee04011dcf82fdc4acf3a4a1eddec341c910d30a306aaf97");
    assert_eq!(merkle::file_hash(pairs()), file);
    let range: RangeHash = reference_text("range_hash.txt").parse().unwrap();
    let hashes: Vec<_> = chunks.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(RangeHash::of(&hashes), range);
}

#[test]
fn first_three_chunks_of_the_sample_file_hash_to_their_names() {
    for (hash, len) in &reference_chunks()[..3] {
        let raw = reference_file(&format!("{hash}.chunk"));
        assert_eq!(raw.len() as u64, *len);
        assert_eq!(ChunkHash::of(&raw), *hash);
    }
}
