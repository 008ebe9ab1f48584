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
