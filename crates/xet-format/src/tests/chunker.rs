use sha2::{Digest as _, Sha256};

use super::samples::Noise;
use crate::chunker::{Chunker, chunks};
use crate::gear_table::GEAR_TABLE;
use crate::{ChunkHash, RangeHash, merkle};

/// The ends of the chunks if the data arrives in pieces of this length. The last one is the end of
/// the data.
fn ends(data: &[u8], piece_len: usize) -> Vec<usize> {
    let mut chunker = Chunker::new();
    let mut ends = Vec::new();
    let mut offset = 0;
    for piece in data.chunks(piece_len) {
        let mut rest = piece;
        while let Some(len) = chunker.next_boundary(rest) {
            assert!(len >= 1);
            offset += len;
            ends.push(offset);
            rest = &rest[len..];
        }
        offset += rest.len();
    }
    if ends.last() != Some(&offset) && offset > 0 {
        ends.push(offset);
    }
    ends
}

fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn gear_table_is_the_one_of_the_protocol() {
    let bytes: Vec<u8> = GEAR_TABLE.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(sha256_hex(&bytes), "e1d3936666d7ae7a977c958e9afcc75f90aaca758ce5fbe4ece61dffefe1912c");
}

#[test]
fn a_million_random_bytes_are_cut_and_hashed_as_published() {
    let data = Noise::new(0).bytes(1_000_000);
    assert_eq!(sha256_hex(&data), "b3d0a1f7938cd4d8413a4dcffd4313e2e8ac0cb61cb1090eb140ea8e9154befb");
    let expected = [
        84_493, 134_421, 144_853, 243_318, 271_793, 336_457, 467_529, 494_581, 582_000, 596_735, 616_815, 653_164,
        678_202, 724_510, 815_591, 827_760, 958_832, 991_092, 1_000_000,
    ];
    assert_eq!(ends(&data, data.len()), expected);

    let chunks: Vec<_> = chunks(&data).map(|raw| (ChunkHash::of(raw), raw.len() as u64)).collect();
    let hashes: Vec<_> = chunks.iter().map(|(hash, _)| *hash).collect();
    let pairs = || chunks.iter().map(|(hash, len)| (hash, *len));
    let check = |actual: String, expected: &str| assert_eq!(actual, expected);
    check(hashes[0].to_string(), "6eca1e7dadaf08cca5d82d318c800f07c2ddcec115a7e8627e5edd9605b94b8d");
    check(merkle::xorb_hash(pairs()).to_string(), "6f2ce16ca5e317f0100ff0e7e5bf40a0de9032e9ee1ad04b6b8ff4e36cdfbf6c");
    check(merkle::file_hash(pairs()).to_string(), "3d17b2d7d64a0e011b6717a52d9a16bd2c3f05b743fa8adf52a7d75dafab6d89");
    check(RangeHash::of(&hashes).to_string(), "6daf15a7ed258b91f607e8f5e6723a8564292d12c8104c156f7bad9c255a0180");
}

#[test]
fn constant_bytes_are_cut_at_the_maximum() {
    let data = vec![59; 1_000_000];
    let expected: Vec<_> = (1..=7).map(|count| count * 131_072).chain([1_000_000]).collect();
    assert_eq!(ends(&data, data.len()), expected);
}

#[test]
fn empty_data_has_no_chunks_and_short_data_has_one() {
    assert_eq!(chunks(b"").count(), 0);
    for len in [1, 63, 64, 65, 8_126, 8_127, 8_128, 8_191] {
        let data = vec![7; len];
        assert_eq!(chunks(&data).collect::<Vec<_>>(), [data.as_slice()]);
    }
}

#[test]
fn cut_at_the_end_of_the_data_leaves_no_empty_chunk() {
    let data = vec![59; 262_144];
    assert_eq!(ends(&data, data.len()), [131_072, 262_144]);
    assert_eq!(chunks(&data).count(), 2);
}

#[test]
fn cuts_do_not_depend_on_how_the_data_arrives() {
    let mut data = Noise::new(1).bytes(700_000);
    data[200_000..400_000].fill(3);
    let whole = ends(&data, data.len());
    assert_eq!(chunks(&data).map(<[u8]>::len).sum::<usize>(), data.len());
    for piece_len in [1, 7, 64, 65, 4_096, 8_126, 8_127, 8_128, 8_191, 8_192, 8_193, 65_536, 131_071, 131_073] {
        assert_eq!(ends(&data, piece_len), whole, "pieces of {piece_len}");
    }
}

/// The ends of the chunks by the rule of the specification, without optimization: every byte of a
/// chunk is hashed.
fn ends_by_the_specification(data: &[u8]) -> Vec<usize> {
    let (mut hash, mut start, mut ends) = (0_u64, 0, Vec::new());
    for (index, byte) in data.iter().enumerate() {
        hash = (hash << 1).wrapping_add(GEAR_TABLE[usize::from(*byte)]);
        let len = index + 1 - start;
        if len == 131_072 || (len >= 8_192 && hash & 0xFFFF_0000_0000_0000 == 0) {
            ends.push(index + 1);
            (hash, start) = (0, index + 1);
        }
    }
    if start < data.len() {
        ends.push(data.len());
    }
    ends
}

#[test]
fn skipping_ahead_changes_no_cut() {
    for seed in 0..8 {
        let data = Noise::new(seed).bytes(1_500_000);
        assert_eq!(ends(&data, 50_000), ends_by_the_specification(&data), "seed {seed}");
    }
}

/// 64 bytes after which a chunk can end, because the hash has no bit of the mask. They are found by
/// trial, as in the tests of the reference.
fn trigger() -> Vec<u8> {
    let mut noise = Noise::new(5);
    loop {
        let bytes = noise.bytes(64 * 1024);
        let mut hash = 0_u64;
        for (index, byte) in bytes.iter().enumerate() {
            hash = (hash << 1).wrapping_add(GEAR_TABLE[usize::from(*byte)]);
            if index >= 64 && hash & 0xFFFF_0000_0000_0000 == 0 {
                return bytes[index - 63..=index].to_vec();
            }
        }
    }
}

#[test]
fn match_cuts_from_the_minimum_length_and_not_a_byte_before() {
    let trigger = trigger();
    for (chunk_len, is_cut) in [(8_190, false), (8_191, false), (8_192, true), (8_193, true), (131_071, true)] {
        let mut data = vec![59; chunk_len - trigger.len()];
        data.extend_from_slice(&trigger);
        data.extend_from_slice(&[59; 10]);
        let first = chunks(&data).next().unwrap().len();
        assert_eq!(first, if is_cut { chunk_len } else { data.len() }, "a match at {chunk_len}");
    }
}
