//! The public sample data of the Xet specification: one file of 63.5 MB as 796 chunks of one xorb,
//! and its shard.

use std::path::PathBuf;

use crate::merkle::{file_hash, xorb_hash};
use crate::shard::{DedupResponse, Shard, parse, write_dedup_response, write_upload};
use crate::{ChunkHash, ChunkRange, HmacKey, RangeHash};

fn reference(name: &str) -> Vec<u8> {
    let default = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference");
    let directory = std::env::var_os("ZORB_REFERENCE_DIR").map_or_else(default, PathBuf::from).join("xet");
    std::fs::read(directory.join(name)).unwrap_or_else(|error| {
        let directory = directory.display();
        panic!("The reference data is missing: {name} in {directory} cannot be read ({error}); set ZORB_REFERENCE_DIR.")
    })
}

fn reference_text(name: &str) -> String {
    String::from_utf8(reference(name)).unwrap().trim().to_owned()
}

fn reference_chunks() -> Vec<(ChunkHash, u32)> {
    let text = reference_text("chunks.tsv");
    let fields = text.lines().map(|line| line.split_ascii_whitespace());
    fields.map(|mut field| (field.next().unwrap().parse().unwrap(), field.next().unwrap().parse().unwrap())).collect()
}

fn upload() -> Shard {
    parse(&reference("reference_shard_nofooter.bin")).unwrap()
}

#[test]
fn the_sample_upload_has_the_stated_hashes_and_lengths() {
    let shard = upload();
    assert_eq!((shard.files.len(), shard.xorbs.len()), (1, 1));
    let (file, xorb) = (&shard.files[0], &shard.xorbs[0]);
    assert_eq!(file.hash.to_string(), reference_text("file_hash.txt"));
    assert_eq!(xorb.hash.to_string(), reference_text("xorb_hash.txt"));
    assert_eq!(file.range_hashes.as_ref().unwrap()[0].to_string(), reference_text("range_hash.txt"));
    assert_eq!(file.raw_len(), 63_527_244);
    assert_eq!(file.terms[0].chunks, ChunkRange::new(0, 796).unwrap());
    assert_eq!((file.terms[0].xorb, xorb.raw_len), (xorb.hash, 63_527_244));
    assert!(file.sha256.is_some());
    let chunks: Vec<_> = xorb.chunks.iter().map(|chunk| (chunk.hash, chunk.raw_len)).collect();
    assert_eq!(chunks, reference_chunks());
}

#[test]
fn the_sample_upload_is_true() {
    let shard = upload();
    let chunks = || shard.xorbs[0].chunks.iter().map(|chunk| (&chunk.hash, u64::from(chunk.raw_len)));
    assert_eq!(xorb_hash(chunks()), shard.xorbs[0].hash);
    assert_eq!(file_hash(chunks()), shard.files[0].hash);
    let hashes: Vec<ChunkHash> = shard.xorbs[0].chunks.iter().map(|chunk| chunk.hash).collect();
    assert_eq!(shard.files[0].range_hashes, Some(vec![RangeHash::of(&hashes)]));
}

#[test]
fn the_sample_with_footer_says_the_same_as_the_one_without() {
    assert_eq!(parse(&reference("reference_shard_full.bin")), Ok(upload()));
}

#[test]
fn the_sample_upload_is_written_as_the_same_bytes() {
    assert_eq!(write_upload(&upload()), Ok(reference("reference_shard_nofooter.bin")));
}

#[test]
fn sample_response_is_written_byte_for_byte_from_the_upload() {
    let key = HmacKey::from_bytes(
        *b"\x78\x56\x34\x12\x78\x56\x34\x12\x78\x56\x34\x12\x78\x56\x34\x12\
        \x78\x56\x34\x12\x78\x56\x34\x12\x78\x56\x34\x12\x78\x56\x34\x12",
    );
    let response = DedupResponse {
        xorbs: &upload().xorbs,
        key,
        created_unix_secs: 0x68d3_1505,
        key_expires_unix_secs: 0x68d3_1505 + 21 * 24 * 3600,
    };
    let written = write_dedup_response(&response).unwrap();
    assert!(written == reference("reference_shard_dedupe.bin"), "the bytes differ");
}

#[test]
fn the_sample_response_parses_with_blinded_hashes() {
    let shard = parse(&reference("reference_shard_dedupe.bin")).unwrap();
    assert_eq!((shard.files.len(), shard.xorbs[0].hash), (0, upload().xorbs[0].hash));
    assert_ne!(shard.xorbs[0].chunks[0].hash, upload().xorbs[0].chunks[0].hash);
}

#[test]
fn every_prefix_of_every_sample_that_lacks_a_record_is_refused() {
    for name in ["reference_shard_nofooter.bin", "reference_shard_full.bin", "reference_shard_dedupe.bin"] {
        let bytes = reference(name);
        let tables_start = write_upload(&parse(&bytes).unwrap()).unwrap().len();
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]).is_err(), len < tables_start, "{len} bytes of {name}");
        }
    }
}
