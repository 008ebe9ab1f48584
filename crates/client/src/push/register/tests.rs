use xet_format::shard::{CasChunk, Term, parse};
use xet_format::{ChunkHash, ChunkRange, FileHash, RangeHash, XorbHash};

use super::*;

fn xorb(byte: u8, chunk_count: u32) -> CasInfo {
    let chunk = |index| CasChunk {
        hash: ChunkHash::from_bytes([byte; 32]),
        raw_offset: index,
        raw_len: 1,
        dedup_eligible: false,
    };
    CasInfo {
        hash: XorbHash::from_bytes([byte; 32]),
        chunks: (0..chunk_count).map(chunk).collect(),
        raw_len: chunk_count,
    }
}

fn file(number: u32, term_count: usize) -> FileInfo {
    let mut hash = [7; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    let chunks = ChunkRange::new(0, 1).unwrap();
    FileInfo {
        hash: FileHash::from_bytes(hash),
        terms: vec![Term { xorb: XorbHash::from_bytes([1; 32]), raw_len: 1, chunks }; term_count],
        range_hashes: Some(vec![RangeHash::from_bytes([2; 32]); term_count]),
        sha256: None,
    }
}

#[test]
fn shards_are_split_below_64_mib_and_hold_everything_in_order() {
    let mut shards = Shards::default();
    for byte in 0..200 {
        shards.add_xorb(xorb(byte, 8192));
    }
    for number in 0..3 {
        shards.add_file(file(number, 300_000));
    }
    let shards = shards.finish();
    let parsed: Vec<Shard> = shards
        .iter()
        .map(|shard| {
            let bytes = write_upload(shard).unwrap();
            assert!(bytes.len() as u64 <= TARGET_SHARD_LEN, "{} bytes", bytes.len());
            parse(&bytes).unwrap()
        })
        .collect();
    assert_eq!(shards.len(), 3);
    let xorbs: Vec<u8> = parsed.iter().flat_map(|shard| &shard.xorbs).map(|xorb| xorb.hash.as_bytes()[0]).collect();
    assert_eq!(xorbs, (0..200).collect::<Vec<u8>>());
    assert_eq!(parsed.iter().map(|shard| shard.files.len()).sum::<usize>(), 3);
    assert_eq!(Shards::default().finish(), []);
}

#[test]
fn shard_is_split_before_its_terms_name_too_many_chunks() {
    let mut shards = Shards::default();
    // Each file names a quarter of the chunks that a shard may name.
    let count = usize::try_from(MAX_SHARD_TERM_CHUNK_COUNT / 4 / 8192).unwrap();
    for number in 0..9 {
        let mut file = file(number, count);
        file.terms.iter_mut().for_each(|term| term.chunks = ChunkRange::new(0, 8192).unwrap());
        shards.add_file(file);
    }
    let counts: Vec<usize> = shards.finish().iter().map(|shard| shard.files.len()).collect();
    assert_eq!(counts, [4, 4, 1]);
}

/// The zeros of a file that has too many terms to reuse them form one xorb again and again.
#[test]
fn xorb_that_was_formed_twice_is_in_one_shard_once() {
    let mut shards = Shards::default();
    for byte in [1, 2, 1] {
        shards.add_xorb(xorb(byte, 8));
    }
    shards.add_file(file(0, 1));
    let shards = shards.finish();
    let xorbs: Vec<u8> = shards[0].xorbs.iter().map(|xorb| xorb.hash.as_bytes()[0]).collect();
    assert_eq!((shards.len(), xorbs), (1, vec![1, 2]));
    write_upload(&shards[0]).unwrap();
}
