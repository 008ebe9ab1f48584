//! Which bytes are written, and which values cannot be written.

use super::support::{bookend, random_shard, rng, sample, term, xorb};
use crate::shard::{
    CasInfo, DedupResponse, FileInfo, Kind, Shard, WriteError, parse, write_dedup_response, write_upload,
};
use crate::{FileHash, HmacKey, RangeHash, XorbHash};

const KEY: HmacKey = HmacKey::from_bytes([7; 32]);

fn response(xorbs: &[CasInfo]) -> Vec<u8> {
    let response = DedupResponse { xorbs, key: KEY, created_unix_secs: 1000, key_expires_unix_secs: 2000 };
    write_dedup_response(&response).unwrap()
}

fn check_unwritable(shard: Shard, offset: u64, kind: Kind) {
    assert_eq!(write_upload(&shard), Err(WriteError { offset, kind }));
}

#[test]
fn random_shards_are_the_same_after_writing_and_parsing() {
    let mut rng = rng(1);
    for _ in 0..2_000 {
        let shard = random_shard(&mut rng);
        let bytes = write_upload(&shard).unwrap();
        assert_eq!(parse(&bytes), Ok(shard));
    }
}

#[test]
fn an_upload_has_no_footer_and_ends_at_its_second_bookend() {
    let bytes = write_upload(&sample()).unwrap();
    assert_eq!(bytes[40..48], [0; 8]);
    assert_eq!(bytes.len(), 17 * 48);
    assert!(bytes.ends_with(&bookend()));
}

#[test]
fn response_has_no_files_and_three_empty_tables() {
    let bytes = response(&sample().xorbs);
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let footer = bytes.len() - 200;
    assert_eq!(number(40), 200, "footer length in the header");
    assert_eq!(bytes[48..96], bookend());
    assert_eq!((number(footer), number(footer + 8), number(footer + 16)), (1, 48, 96));
    for table in 0..3 {
        assert_eq!(number(footer + 24 + 16 * table), footer as u64, "offset of table {table}");
        assert_eq!(number(footer + 32 + 16 * table), 0, "entries of table {table}");
    }
    assert_eq!(bytes[footer + 72..footer + 104], [7; 32]);
    assert_eq!((number(footer + 104), number(footer + 112)), (1000, 2000));
    assert_eq!(number(footer + 184), 3501 + 70_000, "bytes of the xorbs");
    assert_eq!(number(footer + 192), footer as u64);
}

#[test]
fn a_response_blinds_the_chunk_hashes_and_nothing_else() {
    let clear = sample().xorbs;
    let parsed = parse(&response(&clear)).unwrap();
    assert_eq!(parsed.files, []);
    let blinded: Vec<CasInfo> = clear
        .iter()
        .map(|xorb| {
            let chunks = xorb.chunks.iter().map(|chunk| {
                let hash = KEY.blind(&chunk.hash);
                assert_ne!(hash, chunk.hash);
                super::super::CasChunk { hash, ..*chunk }
            });
            CasInfo { chunks: chunks.collect(), ..xorb.clone() }
        })
        .collect();
    assert_eq!(parsed.xorbs, blinded);
}

#[test]
fn a_response_under_the_key_of_zeros_leaves_the_hashes_in_clear() {
    let xorbs = sample().xorbs;
    let response = DedupResponse { xorbs: &xorbs, key: HmacKey::NONE, created_unix_secs: 0, key_expires_unix_secs: 1 };
    assert_eq!(parse(&write_dedup_response(&response).unwrap()).unwrap().xorbs, xorbs);
}

#[test]
fn a_response_without_xorbs_is_344_bytes() {
    assert_eq!(response(&[]).len(), 344);
    assert_eq!(parse(&response(&[])), Ok(Shard::default()));
}

#[test]
fn hash_of_all_ones_is_not_written_as_it_ends_a_section() {
    let mut shard = sample();
    shard.files[1].hash = FileHash::from_bytes([0xff; 32]);
    check_unwritable(shard, 7 * 48, Kind::BookendHash);
    let mut shard = sample();
    shard.xorbs[0].hash = XorbHash::from_bytes([0xff; 32]);
    check_unwritable(shard, 9 * 48, Kind::BookendHash);
}

#[test]
fn values_that_the_parser_drops_or_refuses_are_not_written() {
    let file = |change: fn(&mut FileInfo)| {
        let mut shard = sample();
        change(&mut shard.files[0]);
        shard
    };
    check_unwritable(file(|file| file.hash = FileHash::EMPTY), 7 * 48, Kind::DuplicateFile);
    check_unwritable(file(|file| file.range_hashes = None), 5 * 48, Kind::MixedVerification);
    let one_proof: fn(&mut FileInfo) = |file| file.range_hashes = Some(vec![RangeHash::from_bytes([1; 32])]);
    check_unwritable(file(one_proof), 48, Kind::RangeHashCount { terms: 2, range_hashes: 1 });
    let empty: fn(&mut FileInfo) = |file| file.terms[1].raw_len = 0;
    check_unwritable(file(empty), 3 * 48, Kind::TermLen { count: 1, raw_len: 0 });
    let far: fn(&mut FileInfo) = |file| file.terms[0] = term(1, 0, 8193, 8193);
    check_unwritable(file(far), 2 * 48, Kind::TermChunks { start: 0, end: 8193 });

    let xorbs = |xorbs: Vec<CasInfo>| Shard { files: vec![], xorbs };
    let none = CasInfo { chunks: vec![], ..xorb(1, &[5]) };
    check_unwritable(xorbs(vec![none]), 96, Kind::XorbEmpty);
    let gap = CasInfo { raw_len: 6, ..xorb(1, &[5]) };
    check_unwritable(xorbs(vec![gap]), 96, Kind::XorbLen { stated: 6, actual: 5 });
    check_unwritable(xorbs(vec![xorb(1, &[5]), xorb(2, &[0])]), 240, Kind::ChunkLen { raw_len: 0 });
    check_unwritable(xorbs(vec![xorb(1, &[1; 8193])]), 96, Kind::XorbChunkCount { count: 8193 });
}
