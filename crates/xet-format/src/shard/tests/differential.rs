//! The official crate against ours: what one writes, the other reads as the same values.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use xet_core_structures::merklehash::MerkleHash;
use xet_core_structures::metadata_shard::file_structs::{
    FileDataSequenceEntry, FileDataSequenceHeader, FileMetadataExt, FileVerificationEntry, MDBFileInfo,
};
use xet_core_structures::metadata_shard::shard_in_memory::MDBInMemoryShard;
use xet_core_structures::metadata_shard::streaming_shard::MDBMinimalShard;
use xet_core_structures::metadata_shard::xorb_structs::{MDBXorbInfo, XorbChunkSequenceEntry, XorbChunkSequenceHeader};
use xet_core_structures::metadata_shard::{MDBShardFile, MDBShardInfo, new_shard_file_cache};

use super::support::{random_shard, rng};
use crate::shard::{CasInfo, DedupResponse, FileInfo, Shard, parse, write_dedup_response, write_upload};
use crate::{HmacKey, XorbHash};

fn theirs(hash: &[u8; 32]) -> MerkleHash {
    MerkleHash::from(hash)
}

fn their_file(file: &FileInfo) -> MDBFileInfo {
    let verified = file.range_hashes.is_some();
    let segment = |term: &crate::shard::Term| {
        FileDataSequenceEntry::new(theirs(term.xorb.as_bytes()), term.raw_len, term.chunks.start(), term.chunks.end())
    };
    let range_hashes = file.range_hashes.iter().flatten();
    MDBFileInfo {
        metadata: FileDataSequenceHeader::new(
            theirs(file.hash.as_bytes()),
            file.terms.len(),
            verified,
            file.sha256.is_some(),
        ),
        segments: file.terms.iter().map(segment).collect(),
        verification: range_hashes.map(|hash| FileVerificationEntry::new(theirs(hash.as_bytes()))).collect(),
        // Their sha256 is a hash made from the hex, which is how the words come to be swapped.
        metadata_ext: file
            .sha256
            .map(|sha256| FileMetadataExt::new(MerkleHash::from_hex(&sha256.to_string()).unwrap())),
    }
}

fn their_xorb(xorb: &CasInfo) -> MDBXorbInfo {
    let chunk = |chunk: &crate::shard::CasChunk| {
        XorbChunkSequenceEntry::new(theirs(chunk.hash.as_bytes()), chunk.raw_len, chunk.raw_offset)
            .with_global_dedup_flag(chunk.dedup_eligible)
    };
    MDBXorbInfo {
        metadata: XorbChunkSequenceHeader::new(theirs(xorb.hash.as_bytes()), xorb.chunks.len(), xorb.raw_len),
        chunks: xorb.chunks.iter().map(chunk).collect(),
    }
}

fn their_shard(shard: &Shard) -> MDBInMemoryShard {
    let mut theirs = MDBInMemoryShard::default();
    shard.files.iter().for_each(|file| theirs.add_file_reconstruction_info(their_file(file)).unwrap());
    shard.xorbs.iter().for_each(|xorb| theirs.add_xorb_block(their_xorb(xorb)).unwrap());
    theirs
}

/// Files and xorbs in the order in which the official crate writes them: by the four words of the
/// hash.
fn sorted(mut shard: Shard) -> Shard {
    shard.files.sort_by_key(|file| theirs(file.hash.as_bytes()));
    shard.xorbs.sort_by_key(|xorb| theirs(xorb.hash.as_bytes()));
    shard
}

#[test]
fn official_shards_with_tables_and_footer_parse_equal() {
    let mut rng = rng(11);
    for _ in 0..300 {
        let shard = sorted(random_shard(&mut rng));
        let mut bytes = Vec::new();
        let expiry = rng.random_bool(0.5).then_some(Duration::from_secs(1000));
        MDBShardInfo::serialize_from(&mut bytes, &their_shard(&shard), expiry).unwrap();
        assert_eq!(parse(&bytes), Ok(shard));
    }
}

#[test]
fn official_shards_cut_before_their_tables_are_refused() {
    let mut rng = rng(12);
    for _ in 0..20 {
        let bytes = their_shard(&random_shard(&mut rng)).to_bytes().unwrap();
        let tables_start = write_upload(&parse(&bytes).unwrap()).unwrap().len();
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]).is_err(), len < tables_start, "{len} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn native_client_shards_parse_to_the_same_values() {
    let mut rng = rng(13);
    for _ in 0..300 {
        let shard = sorted(random_shard(&mut rng));
        let mut bytes = Vec::new();
        let info = MDBShardInfo::serialize_from(&mut bytes, &their_shard(&shard), None).unwrap();
        // The native client cuts the shard off where the lookup tables begin, and sets the footer
        // length in the header to 0.
        bytes.truncate(info.metadata.file_lookup_offset as usize);
        bytes[40..48].fill(0);
        assert_eq!(parse(&bytes).as_ref(), Ok(&shard));
        assert_eq!(write_upload(&shard), Ok(bytes));
    }
}

#[test]
fn official_crate_parses_our_uploads_to_the_same_values() {
    let mut rng = rng(14);
    for _ in 0..300 {
        let shard = random_shard(&mut rng);
        let bytes = write_upload(&shard).unwrap();
        let loaded = MDBMinimalShard::from_reader(&mut Cursor::new(&bytes), true, true).unwrap();
        assert_eq!((loaded.num_files(), loaded.num_xorb()), (shard.files.len(), shard.xorbs.len()));
        for (index, file) in shard.files.iter().enumerate() {
            assert_eq!(MDBFileInfo::from(loaded.file(index).unwrap()), their_file(file));
        }
        for (index, xorb) in shard.xorbs.iter().enumerate() {
            assert_eq!(MDBXorbInfo::from(loaded.xorb(index).unwrap()), their_xorb(xorb));
        }
        let in_memory = MDBInMemoryShard::from_reader(&mut Cursor::new(&bytes)).unwrap();
        let expected = their_shard(&shard);
        assert_eq!(in_memory.file_content, expected.file_content);
        assert_eq!(in_memory.xorb_content, expected.xorb_content);
    }
}

fn random_response(seed: u64) -> (Vec<CasInfo>, HmacKey, u64, Vec<u8>) {
    let mut rng = rng(seed);
    let mut xorbs = random_shard(&mut rng).xorbs;
    xorbs.extend(random_shard(&mut rng).xorbs);
    let key = HmacKey::from_bytes(rng.random());
    // The year 2100: the official crate refuses expired responses.
    let expiry = 4_102_444_800;
    let response =
        DedupResponse { xorbs: &xorbs, key, created_unix_secs: 1_790_000_000, key_expires_unix_secs: expiry };
    let bytes = write_dedup_response(&response).unwrap();
    (xorbs, key, expiry, bytes)
}

#[test]
fn official_crate_loads_our_responses_with_all_chunks() {
    for seed in 0..100 {
        let (xorbs, key, expiry, bytes) = random_response(seed);
        let mut reader = Cursor::new(&bytes);
        let info = MDBShardInfo::load_from_reader(&mut reader).unwrap();
        assert_eq!(info.chunk_hmac_key(), Some(theirs(key.as_bytes())));
        assert_eq!((info.metadata.shard_creation_timestamp, info.metadata.shard_key_expiry), (1_790_000_000, expiry));
        assert_eq!(info.read_all_file_info_sections(&mut reader).unwrap(), []);
        assert_eq!(info.num_bytes(), bytes.len() as u64);
        let blocks = info.read_all_xorb_blocks_full(&mut reader).unwrap();
        let hashes: Vec<_> = blocks.iter().map(|block| block.metadata.xorb_hash).collect();
        assert_eq!(hashes, xorbs.iter().map(|xorb| theirs(xorb.hash.as_bytes())).collect::<Vec<_>>());
        // A client aborts here if the table offsets are 0, see `footer::write`.
        let chunk_count: usize = xorbs.iter().map(|xorb| xorb.chunks.len()).sum();
        assert_eq!(info.read_all_truncated_hashes(&mut reader).unwrap().len(), chunk_count);
    }
}

#[test]
fn official_client_finds_our_chunks_in_its_disk_cache() {
    let directory = tempfile::tempdir().unwrap();
    let cache = new_shard_file_cache();
    for seed in 0..10 {
        let (xorbs, _, _, bytes) = random_response(1000 + seed);
        let file = MDBShardFile::write_out_from_reader(directory.path(), &mut Cursor::new(&bytes), &cache).unwrap();
        let mut record = 0;
        for xorb in &xorbs {
            let hashes: Vec<_> = xorb.chunks.iter().map(|chunk| theirs(chunk.hash.as_bytes())).collect();
            for start in 0..hashes.len() {
                check_found(&file, xorb, record, &hashes, start);
            }
            record += 1 + xorb.chunks.len() as u32;
        }
    }
    let loaded = MDBShardFile::load_all_valid(directory.path(), &new_shard_file_cache()).unwrap();
    assert_eq!(loaded.len(), 10, "a new session takes them from the disk");
}

/// Looks up unblinded hashes as the client does, which must find the xorb from that chunk to its
/// end.
fn check_found(file: &Arc<MDBShardFile>, xorb: &CasInfo, record: u32, hashes: &[MerkleHash], start: usize) {
    let found = file.chunk_hash_dedup_query_direct(&hashes[start..], record, start as u32).unwrap();
    let (count, entry) = found.unwrap();
    assert_eq!(count, hashes.len() - start);
    assert_eq!(XorbHash::from_bytes(entry.xorb_hash.as_bytes().try_into().unwrap()), xorb.hash);
    assert_eq!((entry.chunk_index_start as usize, entry.chunk_index_end as usize), (start, hashes.len()));
    let raw_len: u32 = xorb.chunks[start..].iter().map(|chunk| chunk.raw_len).sum();
    assert_eq!(entry.unpacked_segment_bytes, raw_len);
}
