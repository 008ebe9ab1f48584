//! Shards for tests, as values and as bytes.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::shard::{CasChunk, CasInfo, FileInfo, Kind, ParseError, Sha256, Shard, Term, parse};
use crate::{ChunkHash, ChunkRange, FileHash, RangeHash, XorbHash};

pub(super) const TAG: &[u8; 32] =
    b"HFRepoMetaData\0\x55\x69\x67\x45\x6a\x7b\x81\x57\x83\xa5\xbd\xd9\x5c\xcd\xd1\x4a\xa9";

pub(super) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// The header of a shard.
pub(super) fn header(footer_len: u64) -> Vec<u8> {
    [&TAG[..], &2_u64.to_le_bytes(), &footer_len.to_le_bytes()].concat()
}

/// Any record: a hash of one repeated byte, and four numbers.
pub(super) fn record(hash: u8, fields: [u32; 4]) -> Vec<u8> {
    let mut bytes = vec![hash; 32];
    fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
    bytes
}

pub(super) fn bookend() -> Vec<u8> {
    record(0xff, [0; 4])
}

/// A footer of version 1 for a shard whose other parts have this length.
pub(super) fn footer(at: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; 200];
    bytes[..8].copy_from_slice(&1_u64.to_le_bytes());
    bytes[192..].copy_from_slice(&(at as u64).to_le_bytes());
    bytes
}

/// A footerless shard of these records.
pub(super) fn shard_of(files: &[Vec<u8>], xorbs: &[Vec<u8>]) -> Vec<u8> {
    [header(0), files.concat(), bookend(), xorbs.concat(), bookend()].concat()
}

pub(super) fn check_refused(bytes: &[u8], offset: u64, kind: Kind) {
    assert_eq!(parse(bytes), Err(ParseError { offset, kind }));
}

pub(super) fn term(xorb: u8, start: u32, end: u32, raw_len: u32) -> Term {
    let chunks = ChunkRange::new(start, end).unwrap();
    Term { xorb: XorbHash::from_bytes([xorb; 32]), raw_len, chunks }
}

/// A xorb of chunks of these lengths.
pub(super) fn xorb(hash: u8, raw_lens: &[u32]) -> CasInfo {
    let mut raw_offset = 0;
    let mut chunks = Vec::new();
    for (raw_len, index) in raw_lens.iter().zip(0_u64..) {
        let mut bytes = [hash; 32];
        bytes[..8].copy_from_slice(&index.to_le_bytes());
        let hash = ChunkHash::from_bytes(bytes);
        chunks.push(CasChunk { hash, raw_offset, raw_len: *raw_len, dedup_eligible: index == 1 });
        raw_offset += raw_len;
    }
    CasInfo { hash: XorbHash::from_bytes([hash; 32]), chunks, raw_len: raw_offset }
}

/// Two files, the second of them empty, and two xorbs.
pub(super) fn sample() -> Shard {
    let digest = std::array::from_fn(|index| index as u8);
    Shard {
        files: vec![
            FileInfo {
                hash: FileHash::from_bytes([0x10; 32]),
                terms: vec![term(0x20, 1, 3, 3000), term(0x21, 0, 1, 70_000)],
                range_hashes: Some(vec![RangeHash::from_bytes([0x30; 32]), RangeHash::from_bytes([0x31; 32])]),
                sha256: Some(Sha256::from_digest(digest)),
            },
            FileInfo { hash: FileHash::EMPTY, terms: vec![], range_hashes: Some(vec![]), sha256: None },
        ],
        xorbs: vec![xorb(0x20, &[500, 1000, 2000, 1]), xorb(0x21, &[70_000])],
    }
}

/// A random shard, with everything that clients put into one.
pub(super) fn random_shard(rng: &mut StdRng) -> Shard {
    let xorbs: Vec<CasInfo> = (0..rng.random_range(0..5)).map(|_| random_xorb(rng)).collect();
    let verified = rng.random();
    let files = (0..rng.random_range(0..5)).map(|_| random_file(rng, verified)).collect();
    Shard { files, xorbs }
}

fn random_xorb(rng: &mut StdRng) -> CasInfo {
    let raw_lens: Vec<u32> = (0..rng.random_range(1..40)).map(|_| rng.random_range(1..=131_072)).collect();
    let mut info = xorb(0, &raw_lens);
    info.hash = XorbHash::from_bytes(rng.random());
    for chunk in &mut info.chunks {
        chunk.hash = ChunkHash::from_bytes(rng.random());
        chunk.dedup_eligible = rng.random_bool(0.2);
    }
    info
}

fn random_file(rng: &mut StdRng, verified: bool) -> FileInfo {
    let terms: Vec<Term> = (0..rng.random_range(1..6))
        .map(|_| {
            let start = rng.random_range(0..8191);
            let end = rng.random_range(start + 1..=8192);
            let raw_len = rng.random_range(end - start..=(end - start) * 131_072);
            let chunks = ChunkRange::new(start, end).unwrap();
            Term { xorb: XorbHash::from_bytes(rng.random()), raw_len, chunks }
        })
        .collect();
    let range_hashes = terms.iter().map(|_| RangeHash::from_bytes(rng.random())).collect();
    FileInfo {
        hash: FileHash::from_bytes(rng.random()),
        terms,
        range_hashes: if verified { Some(range_hashes) } else { None },
        sha256: rng.random_bool(0.5).then(|| Sha256::from_digest(rng.random())),
    }
}
